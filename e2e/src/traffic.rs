// SPDX-License-Identifier: Apache-2.0
//! The traffic of the lab: small servers that run in pods ([`server`]) and clients that say exactly what happened to
//! their connection ([`client`]), as one JSON object on standard output; [`load`] goes on and on and tells as it goes.

pub mod client;
pub mod http;
pub mod load;
pub mod payload;
pub mod proxied;
pub mod requests;
mod secured;
pub mod server;
mod web;

use std::io;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// How a client's conversation ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind", content = "detail")]
pub enum Outcome {
    /// All went as asked, every byte checked.
    Done,
    /// The other side does not listen.
    Refused,
    /// The connection was reset.
    Reset,
    /// The other side ended the stream before all was said.
    Closed,
    TimedOut,
    /// What came back is not what should have come.
    Corrupted(String),
    Failed(String),
}

/// What a client saw.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub outcome: Outcome,
    pub target: Option<SocketAddr>,
    /// The client's own end of its last connection.
    pub local: Option<SocketAddr>,
    pub connections: u64,
    pub sent: u64,
    pub received: u64,
    pub milliseconds: u64,
    /// What a server had to say, where that is the point: a greeting, a page, a receipt.
    pub answer: Option<String>,
    /// The headers of an HTTP answer, each a line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<String>,
}

impl Report {
    pub fn new(outcome: Outcome) -> Self {
        Self {
            outcome,
            target: None,
            local: None,
            connections: 0,
            sent: 0,
            received: 0,
            milliseconds: 0,
            answer: None,
            headers: Vec::new(),
        }
    }

    pub fn is_done(&self) -> bool {
        self.outcome == Outcome::Done
    }

    /// The value of a header of the answer, by its name in small letters.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find_map(|line| {
            let (known, value) = line.split_once(':')?;
            known.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Done => f.write_str("done"),
            Self::Refused => f.write_str("refused"),
            Self::Reset => f.write_str("reset"),
            Self::Closed => f.write_str("closed early"),
            Self::TimedOut => f.write_str("no answer in time"),
            Self::Corrupted(what) => write!(f, "corrupted: {what}"),
            Self::Failed(what) => write!(f, "failed: {what}"),
        }
    }
}

impl From<io::Error> for Outcome {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionAborted => Self::Reset,
            io::ErrorKind::UnexpectedEof => Self::Closed,
            io::ErrorKind::TimedOut => Self::TimedOut,
            _ => Self::Failed(error.to_string()),
        }
    }
}
