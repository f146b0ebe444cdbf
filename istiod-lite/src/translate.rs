// SPDX-License-Identifier: Apache-2.0
//! Facts in, wire messages out. Each function here is pure: it neither looks
//! anything up nor remembers anything; the index hands it all that it needs.

pub mod authentication;
pub mod backend_tls;
pub mod bypass;
pub mod destination_rule;
pub mod network_gateway;
pub mod peer_authentication;
pub mod policy;
pub mod ports;
pub mod route;
pub mod service;
pub mod telemetry;
pub mod waypoint;
pub mod workload;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bytes::Bytes;
use ipnet::{Ipv4Net, Ipv6Net};
use proto::workload::NetworkAddress;
use spiffe::TrustDomain;

/// What is the same for the whole mesh.
#[derive(Debug, Clone)]
pub struct Mesh {
    /// This cluster's id: part of every workload's uid.
    pub cluster_id: String,
    /// The domain under which services are named, such as `cluster.local`.
    pub cluster_domain: String,
    /// The realm of the identities.
    pub trust_domain: TrustDomain,
    /// The namespace whose policies hold for all.
    pub root_namespace: String,
    /// Where the addresses of ServiceEntries that name none are taken from; they get
    /// none where this is absent.
    pub auto_allocate: Option<Ranges>,
    /// Whether ztunnels are told of policies in dry run. Old ones of Istio's would enforce them.
    pub dry_run_at_ztunnels: bool,
}

/// Where addresses for hosts that have none are taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ranges {
    /// IPv4 addresses.
    pub v4: Ipv4Net,
    /// IPv6 addresses.
    pub v6: Ipv6Net,
}

impl Default for Ranges {
    /// Istio's: reserved (RFC 1112) and benchmarking (RFC 5180) addresses, which no network routes.
    fn default() -> Self {
        Self {
            v4: Ipv4Net::new_assert(Ipv4Addr::new(240, 240, 0, 0), 16),
            v6: Ipv6Net::new_assert(Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 0), 48),
        }
    }
}

impl Mesh {
    /// The host name of a service.
    pub fn hostname(&self, namespace: &str, name: &str) -> String {
        format!("{name}.{namespace}.svc.{}", self.cluster_domain)
    }

    /// The trust domain as workloads carry it: empty stands for the default one.
    fn wire_trust_domain(&self) -> String {
        match self.trust_domain.as_str() {
            TrustDomain::DEFAULT => String::new(),
            other => other.to_owned(),
        }
    }
}

/// An address as 4 or 16 bytes.
pub(crate) fn octets(ip: IpAddr) -> Bytes {
    match ip {
        IpAddr::V4(ip) => Bytes::copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => Bytes::copy_from_slice(&ip.octets()),
    }
}

fn network_address(network: &str, ip: IpAddr) -> NetworkAddress {
    NetworkAddress {
        network: network.to_owned(),
        address: octets(ip),
        length: None,
    }
}
