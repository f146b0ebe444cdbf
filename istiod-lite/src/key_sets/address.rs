// SPDX-License-Identifier: Apache-2.0
//! Where keys may be fetched from. Pure.
//!
//! Whoever may write a RequestAuthentication chooses an address that this process connects to, from within the cluster
//! and with its rights: what only a process of the same host should reach is out of bounds, and so is what clouds tell
//! their machines there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses of cloud metadata that are not link-local.
const METADATA: [IpAddr; 4] = [
    // AWS.
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    // Google.
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
    // Alibaba.
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    // Azure.
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
];

/// Why keys are not fetched from an address.
pub(super) fn forbidden(address: IpAddr) -> Option<&'static str> {
    let embedded = match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(v6) => embedded(v6),
    };
    if let Some(v4) = embedded {
        return forbidden(IpAddr::V4(v4));
    }
    let is_link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    match address {
        _ if address.is_loopback() => Some("is this host's own"),
        _ if address.is_unspecified() => Some("is no host's"),
        _ if is_link_local => Some("is link-local"),
        _ if address.is_multicast() => Some("is many hosts'"),
        _ if METADATA.contains(&address) => Some("is where clouds tell of their machines"),
        IpAddr::V4(v4) if v4.octets()[0] == 0 || v4.octets()[0] >= 240 => Some("is no host's"),
        _ => None,
    }
}

/// The IPv4 address that an IPv6 one leads to: mapped, compatible, NAT64 (RFC 6052) or 6to4 (RFC 3056).
fn embedded(v6: Ipv6Addr) -> Option<Ipv4Addr> {
    let of = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Some(Ipv4Addr::new(a, b, c, d))
    };
    match v6.segments() {
        // "::" and "::1" are themselves.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            of(high, low)
        }
        [0x2002, high, low, ..] => of(high, low),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_this_host_should_reach_is_forbidden_however_it_is_written() {
        for text in [
            "127.0.0.1",
            "127.8.8.8",
            "::1",
            "::ffff:127.0.0.1",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "0.0.0.0",
            "0.1.2.3",
            "::",
            "169.254.169.254",
            "169.254.170.2",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "fe80::1",
            "fd00:ec2::254",
            "100.100.100.200",
            "168.63.129.16",
            "224.0.0.1",
            "ff02::1",
            "255.255.255.255",
        ] {
            let address = text.parse().expect("an address");
            assert!(forbidden(address).is_some(), "{text}");
        }
        for text in [
            "10.0.0.1",
            "192.168.1.1",
            "8.8.8.8",
            "2001:db8::1",
            "fd00::1",
            "64:ff9b::808:808",
        ] {
            let address = text.parse().expect("an address");
            assert_eq!(forbidden(address), None, "{text}");
        }
    }
}
