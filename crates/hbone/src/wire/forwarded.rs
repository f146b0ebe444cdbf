// SPDX-License-Identifier: Apache-2.0
//! The `forwarded` header (RFC 7239): the client's address and the service that it meant.

use std::net::SocketAddr;

use http::HeaderValue;

use super::Authority;

/// What a tunnel says of the connection that it carries.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Forwarded {
    /// `for`: where the connection came from.
    pub source: Option<SocketAddr>,
    /// `host`: the service that was asked for.
    pub host: Option<String>,
}

impl Forwarded {
    /// Reads a value: parameters split at `;`, blanks trimmed, optional quotes removed, names in lower case only.
    /// `None` if neither parameter can be read.
    pub fn parse(text: &str) -> Option<Self> {
        let mut forwarded = Self::default();
        for parameter in text.split(';') {
            let Some((name, value)) = parameter.split_once('=') else {
                continue;
            };
            let value = unquote(value.trim());
            match name.trim() {
                "for" if forwarded.source.is_none() => forwarded.source = parse_source(value),
                "host" if forwarded.host.is_none() && !value.is_empty() => {
                    forwarded.host = Some(value.to_owned());
                }
                _ => {}
            }
        }
        (forwarded != Self::default()).then_some(forwarded)
    }

    /// The header's value; `None` if there is nothing to say.
    pub fn to_header(&self) -> Option<HeaderValue> {
        let mut text = String::new();
        if let Some(source) = self.source {
            text.push_str("for=\"");
            text.push_str(&Authority::from(source).to_string());
            text.push('"');
        }
        if let Some(host) = self.host.as_deref().filter(|host| can_be_carried(host)) {
            if !text.is_empty() {
                text.push(';');
            }
            text.push_str("host=");
            text.push_str(host);
        }
        if text.is_empty() {
            return None;
        }
        HeaderValue::try_from(text).ok()
    }
}

fn unquote(value: &str) -> &str {
    value
        .strip_prefix('"')
        .and_then(|value| value.strip_suffix('"'))
        .unwrap_or(value)
}

fn parse_source(value: &str) -> Option<SocketAddr> {
    match value.parse().ok()? {
        Authority::Addr(address) => Some(address),
        Authority::Host(..) => None,
    }
}

fn can_be_carried(host: &str) -> bool {
    !host.is_empty()
        && host
            .bytes()
            .all(|b| b.is_ascii_graphic() && !matches!(b, b';' | b'"' | b','))
}
