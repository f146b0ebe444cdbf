// SPDX-License-Identifier: Apache-2.0
//! The PROXY protocol's header, version 2: tells an application that is handed a tunnelled connection who is at its
//! other end and where it was meant to go (<https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt>).
//!
//! Beside the two addresses it carries what the mesh adds, as Istio's waypoints read it: the source's identity and the
//! service that was meant.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use spiffe::SpiffeId;

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, command PROXY.
const VERSION_AND_COMMAND: u8 = 0x21;
const TCP_OVER_IPV4: u8 = 0x11;
const TCP_OVER_IPV6: u8 = 0x21;
/// Types that the protocol leaves to applications; these two are Istio's.
const SOURCE_IDENTITY: u8 = 0xd0;
const SERVICE_HOST: u8 = 0xd1;

/// What is told of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Announcement<'a> {
    /// Where it comes from.
    pub source: SocketAddr,
    /// Where it was meant to go.
    pub destination: SocketAddr,
    /// Who its source has proven to be.
    pub identity: Option<&'a SpiffeId>,
    /// The host name of the service that was meant.
    pub service: Option<&'a str>,
}

impl Announcement<'_> {
    /// The header that precedes the connection's own bytes.
    ///
    /// Two addresses of different families are both written as IPv6, as HAProxy does: to leave them out would have the
    /// application judge by the proxy's own address.
    pub fn header(&self) -> Vec<u8> {
        let (source, destination) = (self.source.ip(), self.destination.ip());
        let (family, addresses) = match (source.to_canonical(), destination.to_canonical()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => (
                TCP_OVER_IPV4,
                [source.octets(), destination.octets()].concat(),
            ),
            (source, destination) => (
                TCP_OVER_IPV6,
                [in_ipv6(source).octets(), in_ipv6(destination).octets()].concat(),
            ),
        };
        let mut rest = addresses;
        rest.extend_from_slice(&self.source.port().to_be_bytes());
        rest.extend_from_slice(&self.destination.port().to_be_bytes());
        if let Some(identity) = self.identity {
            extend_with(&mut rest, SOURCE_IDENTITY, identity.as_str());
        }
        if let Some(service) = self.service {
            extend_with(&mut rest, SERVICE_HOST, service);
        }
        let length =
            u16::try_from(rest.len()).expect("broken invariant: identity and host name are short");
        let mut header = SIGNATURE.to_vec();
        header.extend_from_slice(&[VERSION_AND_COMMAND, family]);
        header.extend_from_slice(&length.to_be_bytes());
        header.extend_from_slice(&rest);
        header
    }
}

fn in_ipv6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// Adds a value with its type and length. Names longer than the mesh ever has (a SPIFFE id is at most 2,048 bytes, a
/// host 253) would not be cut but left out: half a name is another name.
fn extend_with(rest: &mut Vec<u8>, kind: u8, value: &str) {
    const MOST: usize = 2048;
    let Some(length) = u16::try_from(value.len())
        .ok()
        .filter(|length| usize::from(*length) <= MOST)
    else {
        return;
    };
    rest.push(kind);
    rest.extend_from_slice(&length.to_be_bytes());
    rest.extend_from_slice(value.as_bytes());
}

#[cfg(test)]
mod tests;
