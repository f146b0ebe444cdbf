// SPDX-License-Identifier: Apache-2.0
//! One request through a tunnel that is otherwise in order.

use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::AsyncWriteExt as _;

use super::http2::{END_HEADERS, Heard, PREFACE, block, frame, kind};
use super::shake::{self, Caller};

#[derive(Debug, Clone, clap::Args)]
pub struct Ask {
    #[command(flatten)]
    pub caller: Caller,
    #[arg(long, default_value = "CONNECT")]
    pub method: String,
    /// What is asked for
    #[arg(long)]
    pub authority: String,
    /// Header fields beside those, each of a kilobyte
    #[arg(long, default_value_t = 0)]
    pub padding: usize,
    /// Bytes to send before anything else, instead of HTTP/2
    #[arg(long)]
    pub instead: Option<String>,
}

const PATIENCE: Duration = Duration::from_secs(20);

pub async fn run(ask: &Ask) -> Result<Heard> {
    let mut tunnel = shake::tunnel(&ask.caller).await?;
    let bytes = match &ask.instead {
        Some(text) => text.repeat(64).into_bytes(),
        None => request(ask),
    };
    tunnel.write_all(&bytes).await.context("the request")?;
    tunnel.flush().await.context("the request")?;
    let mut heard = Heard::default();
    let answered = async {
        while heard.status.is_none() && heard.reset.is_none() && !heard.closed {
            heard.next(&mut tunnel).await;
        }
    };
    tokio::time::timeout(PATIENCE, answered)
        .await
        .context("no answer in time")?;
    Ok(heard)
}

fn request(ask: &Ask) -> Vec<u8> {
    let value = "x".repeat(1000);
    let mut fields = vec![(":method", ask.method.as_str())];
    if ask.method != "CONNECT" {
        fields.extend([(":scheme", "https"), (":path", "/")]);
    }
    fields.push((":authority", &ask.authority));
    fields.extend((0..ask.padding).map(|_| ("x-padding", value.as_str())));
    let block = block(fields);
    let mut bytes = PREFACE.to_vec();
    bytes.extend(frame(kind::SETTINGS, 0, 0, &[]));
    // As many frames as it takes: none is longer than every server takes.
    let mut pieces = block.chunks(16_000).peekable();
    let mut kind = kind::HEADERS;
    while let Some(piece) = pieces.next() {
        let flags = if pieces.peek().is_none() {
            END_HEADERS
        } else {
            0
        };
        bytes.extend(frame(kind, flags, 1, piece));
        kind = kind::CONTINUATION;
    }
    bytes
}
