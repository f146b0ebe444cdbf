// SPDX-License-Identifier: Apache-2.0
//! An answer that is made here: why, with which status, and a short body that names its flag.

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{HeaderName, Response, StatusCode};

use crate::authorizer::Denied;
use crate::body::AnyBody;
use crate::exchange::Exchange;
use crate::failure::{Failure, Flag};
use crate::hygiene::Malformed;
use crate::path::BadPath;
use crate::rate_limit::Taken;
use crate::route::{DirectResponse, Reason};
use crate::token::BadToken;

const OVERLOADED: HeaderName = HeaderName::from_static("x-envoy-overloaded");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// Bytes of a reason that fit into a header.
const MOST_SAID: usize = 1024;

pub struct Reply {
    status: StatusCode,
    headers: Box<HeaderMap>,
    flag: Flag,
    /// For log and metric.
    words: String,
    grpc_status: Option<u8>,
    /// What the client reads, in place of the flag's own words.
    body: Option<Bytes>,
    /// Nothing is wrong: there is nothing to explain.
    silent: bool,
}

impl Reply {
    pub fn of(status: StatusCode, flag: Flag, words: impl Into<String>) -> Self {
        Self {
            status,
            headers: Box::default(),
            flag,
            words: words.into(),
            grpc_status: None,
            body: None,
            silent: false,
        }
    }

    /// What the client wanted, and no endpoint has to do with.
    pub fn made(status: StatusCode, headers: HeaderMap, words: &str) -> Self {
        Self {
            headers: Box::new(headers),
            silent: true,
            ..Self::of(status, Flag::None, words)
        }
    }

    /// A route has the answer itself.
    pub fn direct(response: &DirectResponse, headers: HeaderMap) -> Self {
        Self {
            headers: Box::new(headers),
            body: Some(response.body.clone()),
            ..Self::of(response.status, Flag::None, "answered by its route")
        }
    }

    pub fn malformed(words: &str) -> Self {
        Self::of(
            StatusCode::BAD_REQUEST,
            Flag::DownstreamProtocolError,
            words,
        )
    }

    /// An endpoint that can't be followed.
    pub fn upstream(words: &str) -> Self {
        Self::of(
            StatusCode::BAD_GATEWAY,
            Flag::UpstreamConnectionTermination,
            words,
        )
    }

    /// A policy forbids it. What the client reads names none; the log does.
    pub fn denied(words: impl Into<String>) -> Self {
        Self {
            body: Some(Bytes::from_static(b"RBAC: access denied")),
            ..Self::of(StatusCode::FORBIDDEN, Flag::Denied, words)
        }
    }

    /// Whom a policy asks has denied it, in words of its own.
    pub fn by_authorizer(denied: Denied, words: impl Into<String>) -> Self {
        Self {
            headers: Box::new(denied.headers),
            body: Some(denied.body),
            ..Self::of(denied.status, Flag::ExternalAuthorization, words)
        }
    }

    /// A token is no good, and the client is told why; `realm` is what it asked for.
    pub fn unauthorized(why: BadToken, realm: &str) -> Self {
        let mut headers = HeaderMap::new();
        let challenge = format!("Bearer realm=\"{realm}\", error=\"invalid_token\"");
        if let Ok(challenge) = HeaderValue::from_str(&challenge) {
            headers.insert(header::WWW_AUTHENTICATE, challenge);
        }
        let failure = Failure::Token(why);
        Self {
            headers: Box::new(headers),
            body: Some(why.to_string().into()),
            ..Self::of(failure.status(), failure.flag(), failure.to_string())
        }
    }

    /// Its route takes no more; the client is told when it does.
    pub fn limited(failure: &Failure, taken: Taken) -> Self {
        let mut headers = HeaderMap::new();
        taken.tell(&mut headers);
        Self {
            headers: Box::new(headers),
            ..Self::of(failure.status(), failure.flag(), failure.to_string())
        }
    }

    pub fn refused(reason: Reason<'_>) -> Self {
        let flag = match reason {
            Reason::NoRoute => Flag::NoRoute,
            Reason::NoHost => Flag::DownstreamProtocolError,
            Reason::Fault(_) => Flag::FaultInjected,
            _ => Flag::None,
        };
        let told: Option<&[u8]> = match reason {
            // Envoy's words: who tries clients looks for them.
            Reason::Fault(_) => Some(b"fault filter abort"),
            // Why may name objects and files, which is nothing for clients.
            Reason::InvalidRule(_) | Reason::InvalidBackend(_) => {
                Some(b"the route can't be followed\n")
            }
            _ => None,
        };
        Self {
            body: told.map(Bytes::from_static),
            grpc_status: reason.grpc_status(),
            ..Self::of(reason.status(), flag, reason.to_string())
        }
    }

    /// As the client gets it; the exchange notes why.
    pub fn response(self, exchange: &mut Exchange) -> Response<AnyBody> {
        let Self {
            status,
            headers,
            flag,
            words,
            grpc_status,
            body,
            silent,
        } = self;
        let flag_text = flag.as_str();
        exchange.answered_here(flag, words.clone());
        let mut response = Response::new(());
        *response.headers_mut() = *headers;
        let set = response.headers_mut();
        if exchange.is_grpc() && !silent {
            // An error of gRPC is told by trailers alone, under status 200.
            let code = grpc_status.unwrap_or_else(|| grpc_of(status));
            set.insert(
                header::CONTENT_TYPE,
                HeaderValue::from_static("application/grpc"),
            );
            set.insert(GRPC_STATUS, HeaderValue::from(u16::from(code)));
            let message = match &body {
                None if flag == Flag::None => words.as_str().into(),
                Some(told) if !told.is_empty() => String::from_utf8_lossy(told.trim_ascii_end()),
                _ => brief(flag).into(),
            };
            if let Ok(message) =
                HeaderValue::from_str(&visible(message.get(..MOST_SAID).unwrap_or(&message)))
            {
                set.insert(GRPC_MESSAGE, message);
            }
            exchange.answered(StatusCode::OK, response.headers());
            return response.map(|()| crate::body::empty());
        }
        *response.status_mut() = status;
        if silent {
            exchange.answered(status, response.headers());
            return response.map(|()| crate::body::empty());
        }
        let text = match (body, flag) {
            (Some(body), _) => body,
            (None, Flag::None) => format!("{words}\n").into(),
            (None, _) => format!("{flag_text}: {}\n", brief(flag)).into(),
        };
        if !text.is_empty() {
            let plain = HeaderValue::from_static("text/plain");
            let headers = response.headers_mut();
            headers.entry(header::CONTENT_TYPE).or_insert(plain);
        }
        exchange.answered(status, response.headers());
        response.map(|()| crate::body::text(text))
    }
}

/// What a client may know; the log says the rest.
fn brief(flag: Flag) -> &'static str {
    match flag {
        Flag::None => "",
        Flag::NoRoute => "no route",
        Flag::NoHealthyUpstream => "no healthy upstream",
        Flag::UpstreamConnectionFailure => "upstream connection failure",
        Flag::UpstreamConnectionTermination => "upstream connection termination",
        Flag::UpstreamTimeout => "upstream request timeout",
        Flag::UpstreamRetryLimit => "upstream retry limit exceeded",
        Flag::Overflow => "overflow",
        Flag::RateLimited => "too many requests",
        Flag::DownstreamConnectionTermination => "client gone",
        Flag::DownstreamProtocolError => "malformed request",
        Flag::Denied => "access denied",
        Flag::ExternalAuthorization => "not authorized",
        Flag::Identity => "identity error",
        Flag::FaultInjected => "error on purpose",
    }
}

/// As gRPC's own table of HTTP statuses has it.
fn grpc_of(status: StatusCode) -> u8 {
    match status.as_u16() {
        400 => 13,
        401 => 16,
        403 => 7,
        404 => 12,
        429 | 502 | 503 | 504 => 14,
        _ => 2,
    }
}

/// What a gRPC message may hold as it is.
fn visible(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            ' '..='~' if c != '%' => c,
            _ => '?',
        })
        .collect()
}

impl From<Malformed> for Reply {
    fn from(malformed: Malformed) -> Self {
        let flag = match malformed {
            Malformed::Connect => Flag::NoRoute,
            _ => Flag::DownstreamProtocolError,
        };
        let mut reply = Self::of(malformed.status(), flag, malformed.to_string());
        if malformed.ends_the_connection() {
            let close = HeaderValue::from_static("close");
            reply.headers.insert(header::CONNECTION, close);
        }
        reply
    }
}

impl From<BadPath> for Reply {
    fn from(bad: BadPath) -> Self {
        Self::malformed(&bad.to_string())
    }
}

impl From<Failure> for Reply {
    fn from(failure: Failure) -> Self {
        let mut reply = Self::of(failure.status(), failure.flag(), failure.to_string());
        if reply.flag == Flag::Overflow {
            // In Envoy's words, for clients that hold back when they read it.
            reply
                .headers
                .insert(OVERLOADED, HeaderValue::from_static("true"));
        }
        reply
    }
}
