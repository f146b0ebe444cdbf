// SPDX-License-Identifier: Apache-2.0
//! What the targets share: cutting the fuzzer's bytes into parts, and a peer that says them on a connection.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

/// Cuts bytes into parts, each begun by a byte that says what it is and two that say how long (big-endian). A last part
/// that is cut off counts as it is.
pub fn parts(mut data: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let [kind, high, low, rest @ ..] = data else {
            return None;
        };
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        let (part, rest) = rest.split_at(length);
        data = rest;
        Some((*kind, part))
    })
}

/// Runs a conversation with a peer that says `bytes`, listens to the end, and then hangs up. Time that nobody uses
/// passes at once.
pub fn converse<F>(bytes: &[u8], conversation: impl FnOnce(DuplexStream) -> F)
where
    F: Future<Output = ()>,
{
    const ROOM: usize = 16 << 10;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let (near, far) = tokio::io::duplex(ROOM);
        let (mut heard, mut said) = tokio::io::split(far);
        let bytes = bytes.to_vec();
        let listening = tokio::spawn(async move {
            let mut buffer = vec![0; ROOM];
            while matches!(heard.read(&mut buffer).await, Ok(1..)) {}
        });
        let speaking = tokio::spawn(async move {
            // In a few pieces, so that what is read in parts is met too.
            for piece in bytes.chunks(bytes.len() / 3 + 1) {
                if said.write_all(piece).await.is_err() {
                    return;
                }
                tokio::task::yield_now().await;
            }
            let _ = said.shutdown().await;
        });
        tokio::time::timeout(Duration::from_secs(3600), conversation(near))
            .await
            .expect("a conversation with a peer that is gone ends");
        let _ = speaking.await;
        let _ = listening.await;
    });
}

/// HTTP/2 frames as a peer would write them: each part is a frame whose first two bytes are type, flags and stream.
///
/// ```text
/// part kind: frame type (4 bits), stream (4 bits, doubled and one more: a client's streams are odd; 0 is the connection)
/// part bytes: flags, payload
/// ```
pub fn frames(data: &[u8], to: &mut Vec<u8>) {
    for (kind, part) in parts(data) {
        let (flags, payload) = part.split_first().unwrap_or((&0, &[]));
        let stream = match kind & 0x0f {
            0 => 0,
            nth => u32::from(nth) * 2 - 1,
        };
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        to.extend_from_slice(&length.to_be_bytes()[1..]);
        to.extend_from_slice(&[kind >> 4, *flags]);
        to.extend_from_slice(&stream.to_be_bytes());
        to.extend_from_slice(payload);
    }
}

/// RFC 7468.
pub fn pem(label: &str, der: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = format!("-----BEGIN {label}-----");
    for (index, chunk) in der.chunks(3).enumerate() {
        if index % 16 == 0 {
            text.push('\n');
        }
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or_default());
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            text.push(match place > chunk.len() {
                true => '=',
                false => char::from(ALPHABET[(group >> (18 - 6 * place) & 63) as usize]),
            });
        }
    }
    text + &format!("\n-----END {label}-----\n")
}
