// SPDX-License-Identifier: Apache-2.0
//! What the index keeps of a Namespace and of a Node.

use k8s_openapi::api::core::v1 as core;

use super::{
    Labels, annotation,
    service::{Distribution, read_annotation},
    waypoint::{Bypass, Canary, Choice, IngressUse, ingress},
};
use crate::wellknown;

/// A namespace, as far as its objects inherit from it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Namespace {
    /// Its labels: Gateways may admit namespaces by them.
    pub labels: Labels,
    /// The waypoint of objects that don't choose.
    pub waypoint: Choice,
    /// The one that takes a share of the connections to services that don't choose.
    pub canary: Option<Canary>,
    /// Whether ingress passes through it.
    pub ingress: Option<IngressUse>,
    /// Whether its pods take what went around their waypoints; that of the root namespace counts for all.
    pub bypass: Option<Bypass>,
    /// Which endpoints its services prefer, where they don't say.
    pub distribution: Option<Distribution>,
    /// The network named by its label; that of the root namespace counts.
    pub network: String,
}

/// Reads a namespace.
pub fn read(namespace: &core::Namespace) -> Namespace {
    let meta = &namespace.metadata;
    let labels = meta.labels.clone().unwrap_or_default();
    Namespace {
        waypoint: Choice::read(&labels),
        canary: Canary::read(meta),
        ingress: ingress(&labels),
        bypass: Bypass::read(meta),
        distribution: annotation(meta, wellknown::TRAFFIC_DISTRIBUTION).map(read_annotation),
        network: labels.get(wellknown::NETWORK).cloned().unwrap_or_default(),
        labels,
    }
}

/// Where a node stands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Locality {
    /// Region.
    pub region: String,
    /// Zone in the region.
    pub zone: String,
    /// Part of the zone.
    pub subzone: String,
}

/// Reads a node; one without any of the three labels stands nowhere.
pub fn read_node(node: &core::Node) -> Option<Locality> {
    let labels = node.metadata.labels.as_ref()?;
    let text = |key: &str| labels.get(key).cloned().unwrap_or_default();
    let locality = Locality {
        region: text(wellknown::REGION),
        zone: text(wellknown::ZONE),
        subzone: text(wellknown::SUBZONE),
    };
    (locality != Locality::default()).then_some(locality)
}
