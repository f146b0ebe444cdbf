// SPDX-License-Identifier: Apache-2.0
//! `ip:port`, `[ip]:port` or `host:port`: where a stream leads.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// The longest host name of DNS.
const MAX_HOST: usize = 253;

/// The destination of a CONNECT.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Authority {
    /// An address. IPv4 in IPv6 clothes is never kept as such.
    Addr(SocketAddr),
    /// A service's host name, in lower case, and a port.
    Host(String, u16),
}

/// Why a text is no [`Authority`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthorityError {
    /// Nothing there.
    #[error("is missing")]
    Missing,
    /// No port, or none between 1 and 65535.
    #[error("{0:?} has no port between 1 and 65535")]
    Port(Box<str>),
    /// Neither an address nor a host name.
    #[error("{0:?} names neither an address nor a host")]
    Host(Box<str>),
}

impl Authority {
    /// The port.
    pub fn port(&self) -> u16 {
        match self {
            Self::Addr(address) => address.port(),
            Self::Host(_, port) => *port,
        }
    }
}

impl From<SocketAddr> for Authority {
    fn from(address: SocketAddr) -> Self {
        Self::Addr(SocketAddr::new(address.ip().to_canonical(), address.port()))
    }
}

impl FromStr for Authority {
    type Err = AuthorityError;

    fn from_str(text: &str) -> Result<Self, AuthorityError> {
        if text.is_empty() {
            return Err(AuthorityError::Missing);
        }
        let quote = || shorten(text);
        let (host, port) = text
            .rsplit_once(':')
            .ok_or_else(|| AuthorityError::Port(quote()))?;
        let port = parse_port(port).ok_or_else(|| AuthorityError::Port(quote()))?;
        if let Some(inside) = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
            let ip: Ipv6Addr = inside.parse().map_err(|_| AuthorityError::Host(quote()))?;
            return Ok(SocketAddr::new(ip.into(), port).into());
        }
        if let Ok(ip @ IpAddr::V4(_)) = host.parse() {
            return Ok(Self::Addr(SocketAddr::new(ip, port)));
        }
        if is_host(host) {
            return Ok(Self::Host(host.to_ascii_lowercase(), port));
        }
        Err(AuthorityError::Host(quote()))
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Addr(SocketAddr::V4(address)) => address.fmt(f),
            // Not the address's own format: a zone has no place on the wire.
            Self::Addr(SocketAddr::V6(address)) => {
                write!(f, "[{}]:{}", address.ip(), address.port())
            }
            Self::Host(host, port) => write!(f, "{host}:{port}"),
        }
    }
}

fn parse_port(text: &str) -> Option<u16> {
    let digits = (1..=5).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    let port = digits.then(|| text.parse().ok()).flatten()?;
    (port != 0).then_some(port)
}

fn is_host(text: &str) -> bool {
    (1..=MAX_HOST).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
}

/// Enough of a foreign text to recognise it in a log.
fn shorten(text: &str) -> Box<str> {
    text.chars().take(300).collect::<String>().into()
}
