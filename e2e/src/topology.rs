// SPDX-License-Identifier: Apache-2.0
//! The lab's map, as values: which nodes there are, what they are called and which addresses they hold. Pure.
//!
//! ```text
//!   node a  10.77.1.1 (pods 10.77.1.0/24)          node b  10.77.2.1 (pods 10.77.2.0/24)
//!     └ eth0 10.77.0.1 ──────────┐        ┌────────── eth0 10.77.0.2 ┘
//!                                link bridge
//!                                     ├── istiod-lite 10.77.0.10
//!                                     ├── resolver 10.77.0.53
//!                                     └── kube-apiserver 10.77.0.20, where there is one
//! ```
//! Every IPv4 address has an IPv6 twin: 10.77.x.y is fd77:x::y.

mod clusters;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use cluster::{Kind, ObjectKey};
use serde::{Deserialize, Serialize};

pub use self::clusters::{Cluster, Layout};

/// The trust domain, cluster and service names that the lab's cluster goes by.
pub const TRUST_DOMAIN: &str = "cluster.local";
pub const CLUSTER_ID: &str = "Kubernetes";
pub const SYSTEM_NAMESPACE: &str = "istio-system";
/// Under this name daemons dial the control plane; it stands in the lab's hosts file and in the serving certificate.
pub const CONTROL_PLANE_NAME: &str = "istiod.istio-system.svc";
pub const CONTROL_PLANE_PORT: u16 = 15012;

/// One node of the lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Node {
    A,
    B,
}

impl Node {
    pub const ALL: [Self; 2] = [Self::A, Self::B];

    fn number(self) -> u8 {
        match self {
            Self::A => 1,
            Self::B => 2,
        }
    }

    /// The node's name, as it stands in `spec.nodeName`.
    pub fn name(self) -> &'static str {
        match self {
            Self::A => "node-a",
            Self::B => "node-b",
        }
    }

    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// The node's address on the link between the nodes; also its pods' way out.
    pub fn uplink(self) -> Pair {
        Pair::of(0, self.number())
    }

    /// The bridge that the node's pods hang on: their gateway.
    pub fn gateway(self) -> Pair {
        Pair::of(self.number(), 1)
    }

    /// The network of the node's pods, to be read with [`POD_PREFIX`].
    pub fn pod_network(self) -> Pair {
        Pair::of(self.number(), 0)
    }

    /// The address of the n-th pod, counted from 0.
    pub fn pod(self, host: u8) -> Pair {
        Pair::of(self.number(), host)
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Node {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "a" | "A" | "node-a" => Ok(Self::A),
            "b" | "B" | "node-b" => Ok(Self::B),
            other => Err(format!(
                "there is no node `{other}`; the lab has node-a and node-b"
            )),
        }
    }
}

/// Prefix lengths of every network of the lab.
pub const POD_PREFIX: PrefixPair = PrefixPair { v4: 24, v6: 64 };

#[derive(Debug, Clone, Copy)]
pub struct PrefixPair {
    pub v4: u8,
    pub v6: u8,
}

/// An IPv4 address and its IPv6 twin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pair {
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
}

impl Pair {
    fn of(network: u8, host: u8) -> Self {
        Self {
            v4: Ipv4Addr::new(10, 77, network, host),
            v6: Ipv6Addr::new(0xfd77, u16::from(network), 0, 0, 0, 0, 0, same_digits(host)),
        }
    }

    pub fn both(self) -> [IpAddr; 2] {
        [self.v4.into(), self.v6.into()]
    }
}

/// A number whose hexadecimal digits are the decimal ones of `host`: 10.77.1.12 and fd77:1::12 belong together at a glance.
fn same_digits(host: u8) -> u16 {
    let host = u16::from(host);
    ((host / 100) << 8) | ((host / 10 % 10) << 4) | (host % 10)
}

/// Where the lab's DNS server listens.
pub fn resolver() -> Pair {
    Pair::of(0, 53)
}

/// Where the lab's API server is found, if it has one: on the link, at no node.
pub fn api_server() -> Pair {
    Pair::of(0, 20)
}

/// The port of the API server.
pub const API_SERVER_PORT: u16 = 6443;

/// A part of the lab that has a network namespace of its own and a name to be called by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Node(Node),
    ControlPlane(Cluster),
    Resolver,
    Pod(PodName),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "resolver" {
            return Ok(Self::Resolver);
        }
        for cluster in [Cluster::First, Cluster::Second] {
            if text == cluster.daemon() {
                return Ok(Self::ControlPlane(cluster));
            }
        }
        if let Ok(node) = text.strip_prefix("node:").unwrap_or(text).parse() {
            return Ok(Self::Node(node));
        }
        text.parse().map(Self::Pod)
    }
}

/// A pod's name with its namespace, written `namespace/name`; a name alone is looked for in `default`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct PodName {
    pub namespace: String,
    pub name: String,
}

impl PodName {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// The pod among the cluster's objects.
    pub fn key(&self) -> ObjectKey {
        ObjectKey::namespaced(Kind::Pod, &self.namespace, &self.name)
    }

    /// A name fit for files and network devices' aliases.
    pub fn slug(&self) -> String {
        format!("{}_{}", self.namespace, self.name)
    }
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl FromStr for PodName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
        let fine = |part: &str| {
            !part.is_empty()
                && !part.starts_with('.')
                && part
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.')
        };
        if fine(namespace) && fine(name) {
            Ok(Self::new(namespace, name))
        } else {
            Err(format!(
                "`{text}` is no pod name; write NAMESPACE/NAME, as `e2e status` shows it"
            ))
        }
    }
}

impl From<PodName> for String {
    fn from(pod: PodName) -> Self {
        pod.to_string()
    }
}

impl TryFrom<String> for PodName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_has_its_ipv6_twin() {
        assert_eq!(Node::B.pod(7).v4.to_string(), "10.77.2.7");
        assert_eq!(Node::B.pod(7).v6.to_string(), "fd77:2::7");
        assert_eq!(Node::B.pod(249).v6.to_string(), "fd77:2::249");
        assert_eq!(Node::A.uplink().v4.to_string(), "10.77.0.1");
    }

    #[test]
    fn places_are_told_apart_by_their_names() {
        assert_eq!("node-a".parse(), Ok(Place::Node(Node::A)));
        assert_eq!("node:b".parse(), Ok(Place::Node(Node::B)));
        assert_eq!("resolver".parse(), Ok(Place::Resolver));
        assert_eq!(
            "istiod-lite".parse(),
            Ok(Place::ControlPlane(Cluster::First))
        );
        assert_eq!(
            "istiod-lite-2".parse(),
            Ok(Place::ControlPlane(Cluster::Second))
        );
        assert_eq!(
            "shop/cart".parse(),
            Ok(Place::Pod(PodName::new("shop", "cart")))
        );
        assert_eq!(
            "cart".parse(),
            Ok(Place::Pod(PodName::new("default", "cart")))
        );
    }

    #[test]
    fn names_that_could_leave_the_state_directory_are_refused() {
        for text in ["../x", "a/b/c", "a/", "", "A/b"] {
            assert!(text.parse::<PodName>().is_err(), "{text:?} was accepted");
        }
    }
}
