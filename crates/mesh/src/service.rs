// SPDX-License-Identifier: Apache-2.0
//! A service: its names, virtual addresses, ports, waypoint and the way its endpoints are chosen.
//!
//! Which endpoints it has is not part of it: workloads say which services they back, and the store joins the two in
//! whichever order they arrive.

use std::net::IpAddr;
use std::sync::Arc;

use rand::{Rng, RngExt};
use serde::{Deserialize, Serialize};
use spiffe::SpiffeId;

use crate::address::{GatewayAddress, NamespacedHostname, NetworkAddress, NetworkCidr, Ports};

/// A name that stands for endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// The short name, for telemetry.
    pub name: Arc<str>,
    /// The namespace that defines it.
    pub namespace: Arc<str>,
    /// The full host name, or a wildcard host.
    pub hostname: Arc<str>,
    /// Its virtual addresses; a headless service has none.
    pub vips: Vec<NetworkAddress>,
    /// Its virtual address ranges.
    pub cidr_vips: Vec<NetworkCidr>,
    /// Its ports; a target of 0 is a named port, resolved per endpoint.
    pub ports: Ports,
    /// Identities that its endpoints may have besides their own.
    pub subject_alt_names: Vec<SpiffeId>,
    /// The waypoint of traffic addressed to it.
    pub waypoint: Option<GatewayAddress>,
    /// Waypoints to draw from by weight; they come before `waypoint`.
    pub weighted_waypoints: Vec<WeightedWaypoint>,
    /// How an endpoint is chosen.
    pub load_balancer: LoadBalancer,
    /// Which families its endpoints may use.
    pub ip_families: IpFamilies,
    /// Preferred among services that share a host or an address.
    pub canonical: bool,
    /// Who may see it.
    pub visibility: Visibility,
}

impl Service {
    /// A service with a name and nothing else.
    pub fn new(namespace: impl Into<Arc<str>>, hostname: impl Into<Arc<str>>) -> Self {
        Self {
            name: "".into(),
            namespace: namespace.into(),
            hostname: hostname.into(),
            vips: Vec::new(),
            cidr_vips: Vec::new(),
            ports: Ports::default(),
            subject_alt_names: Vec::new(),
            waypoint: None,
            weighted_waypoints: Vec::new(),
            load_balancer: LoadBalancer::default(),
            ip_families: IpFamilies::Automatic,
            canonical: false,
            visibility: Visibility::Public,
        }
    }

    /// What identifies it.
    pub fn key(&self) -> NamespacedHostname {
        NamespacedHostname {
            namespace: self.namespace.clone(),
            hostname: self.hostname.clone(),
        }
    }

    /// Whether clients of a namespace may see it; no namespace sees everything.
    pub fn is_visible_to(&self, client_namespace: Option<&str>) -> bool {
        match (self.visibility, client_namespace) {
            (Visibility::Public, _) | (_, None) => true,
            (Visibility::Namespace, Some(client)) => *self.namespace == *client,
        }
    }

    /// The waypoint of one connection that is addressed to it: drawn by weight where any has some, else the single one.
    /// What is drawn and can't be used is no reason to draw again.
    pub fn draw_waypoint(&self, rng: &mut impl Rng) -> Option<&GatewayAddress> {
        let weights = || self.weighted_waypoints.iter().map(|w| u64::from(w.weight));
        let total: u64 = weights().sum();
        if total == 0 {
            return self.waypoint.as_ref();
        }
        let mut drawn = rng.random_range(0..total);
        let past = weights().position(|weight| match drawn.checked_sub(weight) {
            Some(rest) => {
                drawn = rest;
                false
            }
            None => true,
        });
        past.map(|at| &self.weighted_waypoints[at].destination)
    }

    /// All waypoints that connections addressed to it may come through.
    pub fn waypoints(&self) -> impl Iterator<Item = &GatewayAddress> {
        let weighted = self.weighted_waypoints.iter().filter(|w| w.weight > 0);
        self.waypoint.iter().chain(weighted.map(|w| &w.destination))
    }
}

/// A waypoint with its share of the connections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightedWaypoint {
    /// Where it is.
    pub destination: GatewayAddress,
    /// Its share.
    pub weight: u32,
}

/// How an endpoint is chosen.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LoadBalancer {
    /// What the client and the endpoint should have in common, most important first.
    pub routing_preferences: Vec<Scope>,
    /// What those preferences mean.
    pub mode: Mode,
    /// Which endpoints take traffic.
    pub health_policy: HealthPolicy,
}

/// What a client and an endpoint may have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Scope {
    /// The region.
    Region,
    /// The zone.
    Zone,
    /// The part of the zone.
    Subzone,
    /// The node.
    Node,
    /// The cluster.
    Cluster,
    /// The network.
    Network,
}

/// What the routing preferences mean.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// Nothing.
    #[default]
    Standard,
    /// All must be met.
    Strict,
    /// The endpoints that meet most of them are used.
    Failover,
    /// No endpoint is chosen: the connection goes where the client sent it.
    Passthrough,
}

/// Which endpoints take traffic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HealthPolicy {
    /// The ready ones.
    #[default]
    OnlyHealthy,
    /// All.
    AllowAll,
}

/// Which address families a service serves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum IpFamilies {
    /// No restriction.
    #[default]
    Automatic,
    /// IPv4.
    #[serde(rename = "IPv4")]
    V4Only,
    /// IPv6.
    #[serde(rename = "IPv6")]
    V6Only,
    /// Both.
    Dual,
}

impl IpFamilies {
    /// Whether an endpoint may be reached by this address.
    pub fn accepts(self, address: IpAddr) -> bool {
        match self {
            Self::Automatic | Self::Dual => true,
            Self::V4Only => address.is_ipv4(),
            Self::V6Only => address.is_ipv6(),
        }
    }
}

/// Which clients see a service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Visibility {
    /// All.
    #[default]
    Public,
    /// Those of its own namespace.
    Namespace,
}
