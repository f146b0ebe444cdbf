// SPDX-License-Identifier: Apache-2.0
//! A request's head as it goes on: nothing of the connection it came by, everything that is known of the client.

use http::header::{self, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, Request, Uri};

use super::Life;
use super::read::Read;
use super::reply::Reply;
use crate::hygiene;
use crate::route::Forward;
use crate::tls::Tls;
use crate::upstream::Version;

const CLIENT_CERT: HeaderName = HeaderName::from_static("x-forwarded-client-cert");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// A head that is ready to be sent.
#[derive(Debug, Clone)]
pub(super) struct Head {
    pub(super) method: http::Method,
    pub(super) path: PathAndQuery,
    pub(super) headers: HeaderMap,
}

impl Head {
    /// As each version of HTTP wants it.
    pub(super) fn for_version(&self, version: Version, tls: Option<&Tls>) -> Request<()> {
        let mut request = Request::new(());
        *request.method_mut() = self.method.clone();
        *request.headers_mut() = self.headers.clone();
        let mut uri = http::uri::Parts::default();
        uri.path_and_query = Some(self.path.clone());
        if version == Version::Http2 {
            let host = request.headers_mut().remove(header::HOST);
            uri.scheme = Some(match tls {
                Some(_) => http::uri::Scheme::HTTPS,
                None => http::uri::Scheme::HTTP,
            });
            uri.authority = host.and_then(|host| host.to_str().ok()?.parse().ok());
            *request.version_mut() = http::Version::HTTP_2;
            request.headers_mut().remove(header::EXPECT);
        }
        *request.uri_mut() = Uri::from_parts(uri).unwrap_or_default();
        request
    }
}

impl Life<'_> {
    /// The head as it goes on: nothing of this connection, everything that is known of the client.
    pub(super) fn outgoing(
        &mut self,
        mut head: Parts,
        asked: &Read,
        forward: Option<&Forward<'_>>,
    ) -> Result<Head, Reply> {
        let headers = &mut head.headers;
        hygiene::remove_hop_by_hop(headers);
        self.introduce(headers);
        self.exchange.propagate(headers);
        if let Some(forward) = forward {
            forward.edit_request(headers);
        }
        let host = forward.and_then(Forward::host).cloned();
        let host = host.map_or_else(|| HeaderValue::from_str(&asked.authority), Ok);
        let host = host.map_err(|_| Reply::malformed("the request's host is not one"))?;
        headers.insert(header::HOST, host);
        let path = match forward.and_then(|forward| forward.path_and_query.clone()) {
            Some(path) => path,
            None => asked.path_and_query()?,
        };
        Ok(Head {
            method: head.method,
            path,
            headers: head.headers,
        })
    }

    /// Says who the client's tunnel has proven it to be, whatever it says itself.
    pub(super) fn name_client(&self, headers: &mut HeaderMap) {
        match &self.conversation.introduction().certificate {
            Some(value) => headers.insert(CLIENT_CERT, value.clone()),
            None => headers.remove(CLIENT_CERT),
        };
    }

    /// Says all that is known of the client.
    fn introduce(&mut self, headers: &mut HeaderMap) {
        self.name_client(headers);
        let introduction = self.conversation.introduction();
        let said = headers.get_all(FORWARDED_FOR).iter();
        let said: Vec<&str> = said.filter_map(|value| value.to_str().ok()).collect();
        let passed = match &*said {
            [] => Ok(introduction.address.clone()),
            said => HeaderValue::try_from(format!("{}, {}", said.join(", "), introduction.ip)),
        };
        if let Ok(value) = passed {
            headers.insert(FORWARDED_FOR, value);
        }
        headers
            .entry(FORWARDED_PROTO)
            .or_insert(HeaderValue::from_static("http"));
        if !headers.contains_key(REQUEST_ID) {
            let id = random_id();
            if let Ok(text) = std::str::from_utf8(&id) {
                self.exchange.of_request_id(text);
            }
            if let Ok(value) = HeaderValue::from_bytes(&id) {
                headers.insert(REQUEST_ID, value);
            }
        }
    }
}

/// A random UUID of version 4.
fn random_id() -> [u8; 36] {
    let number: u128 = rand::random();
    let number = number & !(0xf << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [b'-'; 36];
    let mut at = 0;
    for byte in number.to_be_bytes() {
        if matches!(at, 8 | 13 | 18 | 23) {
            at += 1;
        }
        text[at] = DIGITS[usize::from(byte >> 4)];
        text[at + 1] = DIGITS[usize::from(byte & 0xf)];
        at += 2;
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_requests_number_is_a_random_uuid() {
        let id = super::random_id();
        let text = std::str::from_utf8(&id).unwrap();
        let parts: Vec<_> = text.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12], "{text}");
        let is_hex = |byte: &u8| byte.is_ascii_hexdigit() || *byte == b'-';
        assert!(id.iter().all(is_hex), "{text}");
        // Version 4, and the variant of RFC 9562.
        assert_eq!(id[14], b'4', "{text}");
        assert!(b"89ab".contains(&id[19]), "{text}");
        assert_ne!(id, super::random_id());
    }
}
