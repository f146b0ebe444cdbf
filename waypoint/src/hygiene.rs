// SPDX-License-Identifier: Apache-2.0
//! What a request is for, read so that nobody behind can read it otherwise; and what no message may carry on.
//!
//! In: method, version, target and headers as the HTTP library gives them. Out: authority, path and query, or the
//! refusal. What HTTP/1.1's bytes themselves may say in two ways, `framing` has looked at before. Done by the library
//! already, and tested in no second place: with hyper's HTTP/1, bytes that names and values can't hold, a
//! `Transfer-Encoding` that doesn't end in `chunked` or comes with HTTP/1.0 (400), too many or too large headers (431).
//! With h2, connection-specific headers, upper-case names, pseudo-headers that are missing, doubled or out of place, a
//! `content-length` other than the data's, and floods.

use std::net::Ipv6Addr;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::Authority;
use http::{Method, StatusCode, Uri, Version};

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target<'r> {
    /// Host, with a port if the client named one.
    pub authority: &'r str,
    /// As it came; `*` for a question about the server itself.
    pub path: &'r str,
    /// What follows the question mark.
    pub query: Option<&'r str>,
}

/// Why a request is refused before anything is decided on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// HTTP/1.0 names neither host nor, often, an end.
    #[error("HTTP/1.0 is not served")]
    Old,
    /// Host is missing.
    #[error("the request names no host")]
    NoHost,
    /// More than one, or another than in the target.
    #[error("the request names several hosts")]
    SeveralHosts,
    /// Not a host, maybe with a port.
    #[error("the request's host is not one")]
    BadHost,
    /// A tunnel within the tunnel.
    #[error("CONNECT is not served")]
    Connect,
    /// No path where there has to be one, or `*` where only OPTIONS may have it.
    #[error("the request's target fits no request of its method")]
    Target,
    /// Other than `chunked`, which some take for something else.
    #[error("the transfer coding is not chunked alone")]
    Coding,
    /// `Connection` names a header that says where the message ends or whom it is for.
    #[error("the connection header takes away what frames the message")]
    Connection,
    /// A length twice, one that is no number, or one beside a transfer coding: where it ends is in doubt.
    #[error("the request says in several ways where it ends, or in none")]
    Lengths,
    /// CR, LF or NUL where no line ends, or a header without a colon.
    #[error("a line of the head is not one")]
    Line,
    /// Once allowed; what belongs to which header is in doubt.
    #[error("a header goes on over several lines")]
    Fold,
    /// What came before it on the connection leaves no way to tell where it begins.
    #[error("where the request begins is in doubt")]
    Beginning,
    /// Other than `100-continue`.
    #[error("the expectation is not known")]
    Expectation,
}

impl Malformed {
    /// What the client is answered.
    pub fn status(self) -> StatusCode {
        match self {
            Self::Old => StatusCode::UPGRADE_REQUIRED,
            Self::Connect => StatusCode::NOT_FOUND,
            Self::Coding => StatusCode::NOT_IMPLEMENTED,
            Self::Expectation => StatusCode::EXPECTATION_FAILED,
            Self::NoHost
            | Self::SeveralHosts
            | Self::BadHost
            | Self::Target
            | Self::Connection
            | Self::Lengths
            | Self::Line
            | Self::Fold
            | Self::Beginning => StatusCode::BAD_REQUEST,
        }
    }

    /// Whether nothing that comes behind it on the connection may be taken for a request.
    pub fn ends_the_connection(self) -> bool {
        matches!(
            self,
            Self::Lengths | Self::Line | Self::Fold | Self::Beginning | Self::Coding
        )
    }

    /// Envoy's flag.
    pub fn flag(self) -> &'static str {
        match self {
            Self::Connect => "NR",
            _ => "DPE",
        }
    }
}

/// Reads what a request is for.
///
/// # Errors
/// If others might read it otherwise.
pub fn read<'r>(
    method: &Method,
    version: Version,
    uri: &'r Uri,
    headers: &'r HeaderMap,
) -> Result<Target<'r>, Malformed> {
    if version < Version::HTTP_11 {
        return Err(Malformed::Old);
    }
    if *method == Method::CONNECT && uri.path_and_query().is_none() {
        return Err(Malformed::Connect);
    }
    check_framing(headers)?;
    let authority = authority(version, uri, headers)?;
    let target = uri.path_and_query().ok_or(Malformed::Target)?;
    let path = match target.path() {
        "*" if *method == Method::OPTIONS => "*",
        path if path.starts_with('/') => path,
        _ => return Err(Malformed::Target),
    };
    Ok(Target {
        authority,
        path,
        query: target.query(),
    })
}

/// That of the target counts; where there is one in HTTP/1, `Host` is what an older proxy made of it and is ignored (RFC
/// 9112 §3.2.2), while in HTTP/2 the two have to be one (RFC 9113 §8.3.1).
fn authority<'r>(
    version: Version,
    uri: &'r Uri,
    headers: &'r HeaderMap,
) -> Result<&'r str, Malformed> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next().map(HeaderValue::to_str);
    if hosts.next().is_some() {
        return Err(Malformed::SeveralHosts);
    }
    let host = host.transpose().map_err(|_| Malformed::BadHost)?;
    let authority = match (uri.authority().map(Authority::as_str), host) {
        (None, None) => return Err(Malformed::NoHost),
        (None, Some(host)) => host,
        (Some(authority), Some(host)) if version >= Version::HTTP_2 => {
            if !authority.eq_ignore_ascii_case(host) {
                return Err(Malformed::SeveralHosts);
            }
            authority
        }
        (Some(authority), _) => authority,
    };
    match authority {
        "" => Err(Malformed::NoHost),
        authority if split_host(authority).is_some() => Ok(authority),
        _ => Err(Malformed::BadHost),
    }
}

/// Host and port of an authority. None where it isn't just that: a name of letters, digits, `-`, `.` and `_`, or an
/// address; nobody's name and password, and nothing that a list or a path could be made of.
pub fn split_host(authority: &str) -> Option<(&str, Option<u16>)> {
    let length = match authority.strip_prefix('[') {
        Some(rest) => {
            let length = rest.find(']')?;
            rest[..length].parse::<Ipv6Addr>().ok()?;
            length + 2
        }
        None => {
            let is_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._".contains(byte);
            authority.bytes().take_while(is_of_name).count()
        }
    };
    let (host, rest) = authority
        .split_at_checked(length)
        .filter(|(host, _)| !host.is_empty())?;
    match rest.strip_prefix(':') {
        None => rest.is_empty().then_some((host, None)),
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some((host, Some(port.parse().ok()?)))
        }
        Some(_) => None,
    }
}

fn check_framing(headers: &HeaderMap) -> Result<(), Malformed> {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    if let Some(coding) = codings.next() {
        let is_chunked = coding
            .as_bytes()
            .trim_ascii()
            .eq_ignore_ascii_case(b"chunked");
        if !is_chunked || codings.next().is_some() {
            return Err(Malformed::Coding);
        }
    }
    let mut expected = headers.get_all(header::EXPECT).iter();
    if expected.any(|value| !value.as_bytes().eq_ignore_ascii_case(b"100-continue")) {
        return Err(Malformed::Expectation);
    }
    const FRAMING: [&[u8]; 4] = [b"content-length", b"host", b"cookie", b"authorization"];
    let takes_framing = |token: &[u8]| FRAMING.iter().any(|name| name.eq_ignore_ascii_case(token));
    match connection_tokens(headers).any(takes_framing) {
        true => Err(Malformed::Connection),
        false => Ok(()),
    }
}

/// What `Connection` names.
fn connection_tokens(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let lines = headers.get_all(header::CONNECTION).iter();
    let tokens = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    tokens
        .map(<[u8]>::trim_ascii)
        .filter(|token| !token.is_empty())
}

/// The protocol that an HTTP/1.1 request wants to go on with, if it says so in both places and names one only. `h2c` is
/// not honoured (RFC 9113 §3.1 did away with it).
pub fn upgrade(version: Version, headers: &HeaderMap) -> Option<HeaderValue> {
    let asked = connection_tokens(headers).any(|token| token.eq_ignore_ascii_case(b"upgrade"));
    let mut named = headers.get_all(header::UPGRADE).iter();
    let protocol = named
        .next()
        .filter(|_| asked && version == Version::HTTP_11)?;
    let is_one = named.next().is_none() && !protocol.as_bytes().contains(&b',');
    let is_h2c = protocol.as_bytes().eq_ignore_ascii_case(b"h2c");
    (is_one && !is_h2c).then(|| protocol.clone())
}

/// Headers of one connection (RFC 9110 §7.6.1), besides those that `Connection` names.
const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("http2-settings"),
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::TE,
];

/// Takes what was meant for this connection out of a message's headers. `TE: trailers` stays, since gRPC insists on it.
/// Whoever passes an upgrade on puts [`upgrade`]'s value back.
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<_> = connection_tokens(headers)
        .filter_map(|token| HeaderName::from_bytes(token).ok())
        .collect();
    let mut codings = headers.get_all(header::TE).iter();
    let mut codings = codings
        .by_ref()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    let trailers = codings.any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"));
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    if trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
}

#[cfg(test)]
mod tests;
