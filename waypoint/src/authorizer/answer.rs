// SPDX-License-Identifier: Apache-2.0
//! What an authorizer has said, whatever it was said in.

use bytes::Bytes;
use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue};

use super::is_of_message;

/// What an authorizer has said.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    Allowed(Allowed),
    Denied(Denied),
}

/// The request may go on, changed so.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Allowed {
    pub(super) remove: Vec<HeaderName>,
    /// Of the request.
    pub(super) upstream: Vec<Edit>,
    /// Of the endpoint's answer.
    pub(super) downstream: Vec<Edit>,
}

/// What the client is answered.
#[derive(Debug, Clone, PartialEq)]
pub struct Denied {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// One change of a header.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Edit {
    pub(super) name: HeaderName,
    pub(super) value: HeaderValue,
    pub(super) how: How,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// In place of what is there.
    Set,
    Append,
    IfAbsent,
    IfPresent,
}

/// Why what came back is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadAnswer {
    #[error("it answered with status {0}")]
    Status(u16),
    #[error("it answered with gRPC status {code}: {message}")]
    Grpc { code: String, message: String },
    #[error("its answer can't be read: {0}")]
    Malformed(&'static str),
    #[error("it wants header {0:?} changed, which it may not")]
    Header(String),
    #[error("it wants the query changed, which is not done")]
    Query,
    #[error("the question can't be put: {0}")]
    Question(&'static str),
}

impl Allowed {
    /// Changes the request.
    pub fn change(&self, request: &mut HeaderMap) {
        for name in &self.remove {
            request.remove(name);
        }
        apply(&self.upstream, request);
    }

    /// Changes the answer to it.
    pub fn change_answer(&self, answer: &mut HeaderMap) {
        apply(&self.downstream, answer);
    }

    /// Whether it has anything to say to the client.
    pub fn tells_client(&self) -> bool {
        !self.downstream.is_empty()
    }
}

pub(super) fn apply(edits: &[Edit], headers: &mut HeaderMap) {
    for Edit { name, value, how } in edits {
        let is_there = headers.contains_key(name);
        match how {
            How::IfAbsent if is_there => {}
            How::IfPresent if !is_there => {}
            How::Append => {
                // Fails only where a message has more headers than could be read.
                let _ = headers.try_append(name.clone(), value.clone());
            }
            How::Set | How::IfAbsent | How::IfPresent => {
                headers.insert(name.clone(), value.clone());
            }
        }
    }
}

impl Edit {
    /// A change that an authorizer asks for in so many words.
    pub(super) fn asked(name: &str, value: &[u8], how: How) -> Result<Self, BadAnswer> {
        let bad = || BadAnswer::Header(name.to_owned());
        let parsed: HeaderName = name.parse().map_err(|_| bad())?;
        if is_of_message(&parsed) {
            return Err(bad());
        }
        Ok(Self {
            name: parsed,
            value: HeaderValue::from_bytes(value).map_err(|_| bad())?,
            how,
        })
    }
}
