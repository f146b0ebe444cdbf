// SPDX-License-Identifier: Apache-2.0
//! The numbers and names that both sides of a pod's capture rely on. They are Istio ambient's, so that each side can be
//! swapped for Istio's own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Outbound connections of the pod are redirected here.
pub const OUTBOUND_PORT: u16 = 15001;
/// Plaintext connections to the pod are redirected here.
pub const INBOUND_PLAINTEXT_PORT: u16 = 15006;
/// HBONE: never redirected, peers connect to it by name.
pub const INBOUND_HBONE_PORT: u16 = 15008;
/// DNS queries of the pod are redirected here (UDP and TCP).
pub const DNS_PORT: u16 = 15053;
/// SOCKS5, where it is switched on.
pub const SOCKS5_PORT: u16 = 15080;

/// A value to set or match in a packet or connection mark; only the bits of `mask` belong to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mark {
    pub value: u32,
    pub mask: u32,
}

/// On every socket that ztunnel opens in a pod: "already handled, don't capture".
pub const PACKET_MARK: Mark = Mark {
    value: 0x539,
    mask: 0xfff,
};
/// On connections that ztunnel made to the application, so that the replies find their way back to ztunnel's
/// transparent socket.
pub const CONNECTION_MARK: Mark = Mark {
    value: 0x111,
    mask: 0xfff,
};

/// On sockets that speak to the application from a client's address: [`PACKET_MARK`] and a bit of ours beside it.
///
/// The kernel draws their ports without knowing which ones the client uses, and the client may have a connection of the
/// same addresses and ports to the pod, which is redirected and tracked under them. Told by this mark, the borrowed
/// connection is tracked in [`BORROWED_SOURCE_ZONE`], and neither takes the other's packets. Rules that don't know of
/// the bit see [`PACKET_MARK`].
pub const BORROWED_SOURCE_MARK: Mark = Mark {
    value: 0x1539,
    mask: 0x1fff,
};
/// Where packets of connections from borrowed addresses are tracked, on their way to the application.
pub const BORROWED_SOURCE_ZONE: u16 = 2;

/// Replies that carry [`CONNECTION_MARK`] look up this routing table, whose only route delivers locally.
pub const ROUTE_TABLE: u32 = 100;
/// Priority of the rule that leads to [`ROUTE_TABLE`].
pub const RULE_PRIORITY: u32 = 32764;

/// Kubelet probes leave the node with this source, so that pods can tell them from other traffic of the node.
pub const PROBE_SOURCE_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 7, 127);
/// See [`PROBE_SOURCE_V4`].
pub const PROBE_SOURCE_V6: Ipv6Addr = Ipv6Addr::new(
    0xfd16, 0x9254, 0x7127, 0x1337, 0xffff, 0xffff, 0xffff, 0xffff,
);

/// The table that redirects, in pods; on the node it rewrites the source of probes.
pub const NAT_TABLE: &str = "istio-ambient-nat";
/// The table that marks, in pods.
pub const MANGLE_TABLE: &str = "istio-ambient-mangle";
/// The table that tracks apart what ztunnel does itself, in pods.
pub const RAW_TABLE: &str = "istio-ambient-raw";

/// The node's set of captured pods' IPv4 addresses, inside [`NAT_TABLE`].
pub const PROBE_SET_V4: &str = "istio-inpod-probes-v4";
/// The node's set of captured pods' IPv6 addresses, inside [`NAT_TABLE`].
pub const PROBE_SET_V6: &str = "istio-inpod-probes-v6";

/// Does this address belong to the node's probes?
pub fn is_probe_source(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4 == PROBE_SOURCE_V4,
        IpAddr::V6(v6) => v6 == PROBE_SOURCE_V6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_source_is_recognised_in_each_form() {
        for (text, expected) in [
            ("169.254.7.127", true),
            ("::ffff:169.254.7.127", true),
            ("fd16:9254:7127:1337:ffff:ffff:ffff:ffff", true),
            ("169.254.7.126", false),
            ("fd16:9254:7127:1337:ffff:ffff:ffff:fffe", false),
        ] {
            assert_eq!(is_probe_source(text.parse().unwrap()), expected, "{text}");
        }
    }

    #[test]
    fn marks_stay_within_their_masks() {
        for mark in [PACKET_MARK, CONNECTION_MARK, BORROWED_SOURCE_MARK] {
            assert_eq!(mark.value & !mark.mask, 0);
        }
        assert_eq!(
            BORROWED_SOURCE_MARK.value & PACKET_MARK.mask,
            PACKET_MARK.value
        );
        assert_eq!(PACKET_MARK.value, 1337);
    }
}
