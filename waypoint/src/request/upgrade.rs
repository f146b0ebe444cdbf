// SPDX-License-Identifier: Apache-2.0
//! A connection that becomes something else, a WebSocket as a rule: how a client asks for it, how an endpoint is asked, and
//! bytes both ways until either end is done.
//!
//! HTTP/1.1 asks with `Upgrade` and agrees with 101; HTTP/2 asks with a CONNECT that names the protocol and agrees with
//! 200 (RFC 8441), for WebSockets alone here. Either may stand on either side: what differs is translated. Routes see what
//! HTTP/1.1 has, a GET.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use hbone::Stop;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Request, StatusCode};
use hyper::ext::Protocol;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use crate::exchange::Exchange;
use crate::failure::Failure;
use crate::hygiene::{self, Malformed};
use crate::pool::Lease;
use crate::upstream::Version;

const WEBSOCKET: &str = "websocket";

/// What a WebSocket's answer is made with (RFC 6455 §1.3).
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// What a client wants to go on with.
#[derive(Debug, Clone)]
pub(super) struct Wish {
    protocol: HeaderValue,
    by: By,
}

#[derive(Debug, Clone)]
enum By {
    /// HTTP/1.1, with the key of a WebSocket, if it is one.
    Upgrade(Option<HeaderValue>),
    /// HTTP/2.
    Connect,
}

impl Wish {
    /// What the request asks for, if anything; its method is then as routes see it.
    ///
    /// # Errors
    /// If it is a tunnel of another kind.
    pub(super) fn of(head: &mut Parts) -> Result<Option<Self>, Malformed> {
        if head.method == Method::CONNECT {
            let protocol = head.extensions.get::<Protocol>();
            if protocol.is_none_or(|protocol| protocol.as_str() != WEBSOCKET) {
                return Err(Malformed::Connect);
            }
            head.method = Method::GET;
            return Ok(Some(Self {
                protocol: HeaderValue::from_static(WEBSOCKET),
                by: By::Connect,
            }));
        }
        let protocol = hygiene::upgrade(head.version, &head.headers);
        Ok(protocol.map(|protocol| {
            let key = head.headers.get(header::SEC_WEBSOCKET_KEY).cloned();
            Self {
                protocol,
                by: By::Upgrade(key),
            }
        }))
    }

    /// Whether HTTP/2 has a way to ask for it.
    pub(super) fn is_websocket(&self) -> bool {
        let protocol = self.protocol.as_bytes();
        protocol.eq_ignore_ascii_case(WEBSOCKET.as_bytes())
    }

    /// Makes a request that is otherwise ready ask for it.
    pub(super) fn ask(&self, version: Version, request: &mut Request<()>) {
        match version {
            Version::Http1 => {
                let headers = request.headers_mut();
                headers.insert(header::CONNECTION, UPGRADE);
                headers.insert(header::UPGRADE, self.protocol.clone());
                if matches!(self.by, By::Connect) {
                    let key = BASE64.encode(rand::random::<[u8; 16]>());
                    if let Ok(key) = HeaderValue::try_from(key) {
                        headers.insert(header::SEC_WEBSOCKET_KEY, key);
                    }
                }
            }
            Version::Http2 => {
                *request.method_mut() = Method::CONNECT;
                request.headers_mut().remove(header::SEC_WEBSOCKET_KEY);
                let protocol = Protocol::from_static(WEBSOCKET);
                request.extensions_mut().insert(protocol);
            }
        }
    }

    /// Whether an endpoint that was asked in this version has agreed.
    pub(super) fn is_agreed(version: Version, status: StatusCode) -> bool {
        match version {
            Version::Http1 => status == StatusCode::SWITCHING_PROTOCOLS,
            Version::Http2 => status == StatusCode::OK,
        }
    }

    /// Whether an answer without agreement can't be passed on: for the client it would be one.
    pub(super) fn is_misled_by(&self, status: StatusCode) -> bool {
        match self.by {
            By::Upgrade(_) => status == StatusCode::SWITCHING_PROTOCOLS,
            By::Connect => status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS,
        }
    }

    /// Tells the client, in its own version, that the endpoint agrees.
    pub(super) fn agree(&self, headers: &mut HeaderMap) -> StatusCode {
        match &self.by {
            By::Upgrade(key) => {
                headers.insert(header::CONNECTION, UPGRADE);
                headers.insert(header::UPGRADE, self.protocol.clone());
                // An endpoint that was asked over HTTP/2 has seen no key.
                if let Some(key) = key
                    && let Ok(accept) = HeaderValue::try_from(accept(key.as_bytes()))
                {
                    headers.entry(ACCEPT).or_insert(accept);
                }
                StatusCode::SWITCHING_PROTOCOLS
            }
            By::Connect => {
                headers.remove(ACCEPT);
                StatusCode::OK
            }
        }
    }
}

const UPGRADE: HeaderValue = HeaderValue::from_static("upgrade");
const ACCEPT: HeaderName = header::SEC_WEBSOCKET_ACCEPT;

/// What shows a client that its key was understood (RFC 6455 §4.2.2).
fn accept(key: &[u8]) -> String {
    let digest = digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key, GUID].concat());
    BASE64.encode(digest)
}

pub(super) struct Upgraded {
    pub(super) client: OnUpgrade,
    pub(super) endpoint: OnUpgrade,
    /// The connection to the endpoint, or its place on one.
    pub(super) lease: Option<Lease>,
}

impl Upgraded {
    /// Carries it in a task of its own, which ends the exchange.
    pub(super) fn carry(self, exchange: Box<Exchange>, stop: Stop) {
        tokio::spawn(async move {
            let Self {
                client,
                endpoint,
                mut lease,
            } = self;
            if let Some(lease) = &mut lease {
                lease.upgrade();
            }
            let mut exchange = exchange;
            let carried = async {
                let (client, endpoint) = tokio::try_join!(client, endpoint)
                    .map_err(|error| Failure::Broken(error.to_string().into()))?;
                let (mut client, mut endpoint) = (TokioIo::new(client), TokioIo::new(endpoint));
                copy_bidirectional(&mut client, &mut endpoint)
                    .await
                    .map_err(|error| Failure::Broken(error.to_string().into()))
            };
            let result = tokio::select! {
                carried = carried => carried,
                reason = stop.stopped() => Err(Failure::PolicyChanged(reason)),
            };
            let result = result.map(|(up, down)| exchange.carried(up, down));
            exchange.finish(result);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_websockets_key_is_answered_as_in_the_rfc() {
        let accepted = accept(b"dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(accepted, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
