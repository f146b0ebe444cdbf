// SPDX-License-Identifier: Apache-2.0
//! HTTP/2 by hand (RFC 9113, RFC 7541): frames that no library would send, and the few that matter in what comes back.

use std::io;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _};

pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(super) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const PRIORITY: u8 = 2;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PUSH_PROMISE: u8 = 5;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
}

pub(super) const END_HEADERS: u8 = 4;

pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len())
        .unwrap_or(u32::MAX)
        .to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// SETTINGS with one parameter.
pub(super) fn setting(name: u16, value: u32) -> Vec<u8> {
    let mut payload = name.to_be_bytes().to_vec();
    payload.extend(value.to_be_bytes());
    frame(kind::SETTINGS, 0, 0, &payload)
}

/// Header fields as literals, none of them remembered.
pub(super) fn block<'a>(fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        string(&mut block, name);
        string(&mut block, value);
    }
    block
}

fn string(block: &mut Vec<u8>, text: &str) {
    // A prefix of seven bits holds lengths below 127; longer ones go on in groups of seven.
    let mut length = text.len();
    if length < 127 {
        block.push(u8::try_from(length).unwrap_or_default());
    } else {
        block.push(127);
        length -= 127;
        while length >= 128 {
            block.push(u8::try_from(length % 128).unwrap_or_default() | 128);
            length /= 128;
        }
        block.push(u8::try_from(length).unwrap_or_default());
    }
    block.extend(text.as_bytes());
}

/// How the other end answered a request, or ended the tunnel.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heard {
    pub status: Option<u16>,
    /// The code of the stream's RST_STREAM.
    pub reset: Option<u32>,
    /// Code and text of the tunnel's GOAWAY.
    pub goaway: Option<(u32, String)>,
    /// The connection is over.
    pub closed: bool,
    /// Bytes of DATA that came.
    pub data: usize,
}

impl Heard {
    /// Takes the next frame in; an error is the end of the connection.
    pub(super) async fn next(&mut self, io: &mut (impl AsyncRead + Unpin)) {
        match read_frame(io).await {
            Ok((kind::HEADERS, _, payload)) => self.status = self.status.or(status(&payload)),
            Ok((kind::RST_STREAM, _, payload)) => self.reset = number(&payload),
            Ok((kind::DATA, _, payload)) => self.data += payload.len(),
            Ok((kind::GOAWAY, _, payload)) => {
                let code = payload.get(4..).and_then(number).unwrap_or_default();
                let text = payload.get(8..).unwrap_or_default();
                self.goaway = Some((code, String::from_utf8_lossy(text).into_owned()));
            }
            Ok(_) => {}
            Err(_) => self.closed = true,
        }
    }

    /// Hears the connection out.
    pub(super) async fn hear_out(&mut self, io: &mut (impl AsyncRead + Unpin)) {
        while !self.closed {
            self.next(io).await;
        }
    }
}

fn number(payload: &[u8]) -> Option<u32> {
    payload.first_chunk().copied().map(u32::from_be_bytes)
}

async fn read_frame(io: &mut (impl AsyncRead + Unpin)) -> io::Result<(u8, u32, Vec<u8>)> {
    let mut header = [0; 9];
    io.read_exact(&mut header).await?;
    let [a, b, c, kind, _, rest @ ..] = header;
    let length = u32::from_be_bytes([0, a, b, c]);
    let mut payload = vec![0; usize::try_from(length).unwrap_or_default()];
    io.read_exact(&mut payload).await?;
    Ok((kind, u32::from_be_bytes(rest), payload))
}

/// `:status` is always the first field of an answer, and servers of the mesh write it without Huffman's code or by index,
/// after the size update that opens a connection's first block.
fn status(block: &[u8]) -> Option<u16> {
    match block {
        [0x20..=0x3f, rest @ ..] => status(rest),
        [first @ 0x88..=0x8e, ..] => [200, 204, 206, 304, 400, 404, 500]
            .get(usize::from(first - 0x88))
            .copied(),
        [_, 3, digits @ ..] => std::str::from_utf8(digits.get(..3)?).ok()?.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_strings_have_long_lengths() {
        let check = |length: usize, expected: &[u8]| {
            let mut block = Vec::new();
            string(&mut block, &"x".repeat(length));
            assert_eq!(&block[..block.len() - length], expected);
        };
        check(126, &[126]);
        check(127, &[127, 0]);
        check(1337, &[127, 0b1011_1010, 9]);
    }

    #[test]
    fn statuses_are_read_in_both_spellings() {
        assert_eq!(status(&[0x8c]), Some(400));
        assert_eq!(status(b"\x20\x08\x03401"), Some(401));
        assert_eq!(status(b""), None);
    }
}
