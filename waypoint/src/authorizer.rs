// SPDX-License-Identifier: Apache-2.0
//! Those outside whom CUSTOM policies ask, by Envoy's ext_authz contract over gRPC or HTTP. Pure.
//!
//! In: [`proto::waypoint::Authorizer`]; a [`Question`], which is a request as policies see it. Out: the [`Call`] that asks
//! it; from what was answered an [`Answer`], or why that is none.
//!
//! ```text
//! question ─► call ─► (request::ask sends it) ─► answer: allowed, with changes ─ denied, with what the client is told
//!                                             └► none ─► on_error: denied, or let pass where that is wanted
//! ```

mod answer;
mod grpc;
mod http;

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use ::http::header::{self, HeaderMap, HeaderName};
use ::http::uri::PathAndQuery;
use ::http::{Method, StatusCode, request, response};
use bytes::Bytes;
use proto::waypoint as wire;

pub use self::answer::{Allowed, Answer, BadAnswer, Denied};
use self::http::Rules;

/// Bytes of an answer's body that are read.
pub const LONGEST_ANSWER: usize = 64 << 10;

/// Bytes of a request that are held for a question, at most.
const MOST_BYTES: u32 = 1 << 20;

/// As Envoy has it where nothing is said.
const PATIENCE: Duration = Duration::from_secs(600);

/// Whom CUSTOM policies ask.
#[derive(Debug)]
pub struct Authorizer {
    pub name: Box<str>,
    /// How it is asked, or why it can't be.
    pub asking: Result<Asking, Box<str>>,
}

/// How an authorizer is asked.
#[derive(Debug)]
pub struct Asking {
    /// Empty: of whichever namespace has the host.
    pub namespace: Box<str>,
    pub hostname: Box<str>,
    pub port: u16,
    /// Of one question, with its answer.
    pub timeout: Duration,
    pub on_error: OnError,
    /// What it is told of a request's body.
    pub body: Option<BodyLimit>,
    protocol: Protocol,
}

/// What becomes of a request about which there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    Pass,
    Deny(StatusCode),
}

/// How much of a body is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyLimit {
    pub most: usize,
    /// Whether the beginning of a longer one will do.
    pub partial: bool,
    as_bytes: bool,
}

#[derive(Debug)]
enum Protocol {
    Grpc,
    Http(Rules),
}

/// A request as an authorizer is told of it.
#[derive(Debug, Clone, Copy)]
pub struct Question<'r> {
    pub head: &'r request::Parts,
    pub authority: &'r str,
    /// Normalised.
    pub path_and_query: &'r str,
    pub body: Option<&'r Told>,
    pub source: Party<'r>,
    pub destination: Party<'r>,
    pub at: SystemTime,
}

/// What is told of a body.
#[derive(Debug, Clone)]
pub struct Told {
    pub bytes: Bytes,
    /// Whether that is all of it.
    pub whole: bool,
}

/// One end of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Party<'r> {
    pub address: SocketAddr,
    /// A SPIFFE id; empty where it is not known.
    pub principal: &'r str,
}

/// What is sent to an authorizer.
#[derive(Debug, Clone)]
pub struct Call {
    pub method: Method,
    pub path: PathAndQuery,
    /// With `host`.
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// Whether an authorizer's words hold a text that tells if a body was told whole.
const PARTIAL_BODY: HeaderName = HeaderName::from_static("x-envoy-auth-partial-body");

impl Authorizer {
    /// Compiles an authorizer. What can't be used of it is its own answer: what asks it is denied.
    pub fn compile(authorizer: &wire::Authorizer) -> Self {
        let asking = match authorizer.invalid.as_str() {
            "" => Asking::compile(authorizer).map_err(Into::into),
            reason => Err(reason.into()),
        };
        Self {
            name: authorizer.name.as_str().into(),
            asking,
        }
    }
}

impl Asking {
    fn compile(authorizer: &wire::Authorizer) -> Result<Self, String> {
        let port = u16::try_from(authorizer.port).ok().filter(|port| *port > 0);
        let port = port.ok_or_else(|| format!("{} is no port", authorizer.port))?;
        if authorizer.hostname.is_empty() {
            return Err("it has no host name".to_owned());
        }
        let timeout = match authorizer.timeout {
            None => PATIENCE,
            Some(time) => Duration::try_from(time)
                .ok()
                .filter(|time| !time.is_zero())
                .ok_or("its timeout is none")?,
        };
        let on_error = match (authorizer.fail_open, authorizer.status_on_error) {
            (true, _) => OnError::Pass,
            (false, 0) => OnError::Deny(StatusCode::FORBIDDEN),
            (false, status) => {
                let code = u16::try_from(status).ok();
                let code = code.and_then(|code| StatusCode::from_u16(code).ok());
                let code = code.filter(|code| !code.is_informational());
                OnError::Deny(code.ok_or_else(|| format!("{status} is no status"))?)
            }
        };
        let body = authorizer.body.as_ref().map(|body| match body.max_bytes {
            most @ 1..=MOST_BYTES => Ok(BodyLimit {
                most: most as usize,
                partial: body.allow_partial,
                as_bytes: body.as_bytes,
            }),
            most => Err(format!("{most} bytes of a body can't be held")),
        });
        Ok(Self {
            namespace: authorizer.namespace.as_str().into(),
            hostname: authorizer.hostname.as_str().into(),
            port,
            timeout,
            on_error,
            body: body.transpose()?,
            protocol: match &authorizer.protocol {
                Some(wire::authorizer::Protocol::Grpc(())) => Protocol::Grpc,
                Some(wire::authorizer::Protocol::Http(http)) => {
                    Protocol::Http(Rules::compile(http)?)
                }
                None => return Err("it speaks a protocol that is not known here".to_owned()),
            },
        })
    }

    /// Whether it is asked over HTTP/2.
    pub fn is_grpc(&self) -> bool {
        matches!(self.protocol, Protocol::Grpc)
    }

    /// What asks the question.
    ///
    /// # Errors
    /// If it can't be said.
    pub fn call(&self, question: &Question<'_>) -> Result<Call, BadAnswer> {
        match &self.protocol {
            Protocol::Grpc => Ok(grpc::call(self, question)),
            Protocol::Http(rules) => rules.call(question),
        }
    }

    /// What was answered.
    ///
    /// # Errors
    /// If that is no answer.
    pub fn answer(
        &self,
        head: &response::Parts,
        body: Bytes,
        trailers: Option<&HeaderMap>,
    ) -> Result<Answer, BadAnswer> {
        match &self.protocol {
            Protocol::Grpc => grpc::answer(head, &body, trailers),
            Protocol::Http(rules) => rules.answer(head, body),
        }
    }
}

/// Headers that are of one message and one connection, and of no other.
fn is_of_message(name: &HeaderName) -> bool {
    const OWN: [HeaderName; 12] = [
        header::CONNECTION,
        header::CONTENT_LENGTH,
        header::EXPECT,
        header::HOST,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
        HeaderName::from_static("http2-settings"),
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
        HeaderName::from_static("x-envoy-auth-headers-to-remove"),
    ];
    OWN.contains(name)
}

#[cfg(test)]
mod tests;
