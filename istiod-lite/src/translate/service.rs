// SPDX-License-Identifier: Apache-2.0
//! A service as ztunnel learns of it: a Kubernetes one, or a host of a ServiceEntry.

use ipnet::IpNet;
use proto::workload as wire;
use wire::load_balancing::{HealthPolicy, Mode, Scope};

use super::{Mesh, network_address, octets, ports, waypoint::Binding};
use crate::facts::{
    NamespacedName,
    mesh_config::Visibility,
    namespace::Namespace,
    service::{Distribution, Membership, Said, Service},
    service_entry::{Resolution, ServiceEntry},
    waypoint::IngressUse,
};

/// What a service's message is made of, besides what the service says itself.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// Its object's name.
    pub name: &'a NamespacedName,
    /// Its namespace, from which it inherits.
    pub namespace: &'a Namespace,
    /// The cluster's network.
    pub network: &'a str,
    /// Its waypoint.
    pub waypoint: &'a Binding,
}

/// Makes the message of a Kubernetes service.
pub fn kubernetes(mesh: &Mesh, service: &Service, input: Input<'_>) -> wire::Service {
    let Input {
        name,
        namespace,
        network,
        ..
    } = input;
    wire::Service {
        hostname: mesh.hostname(&name.namespace, &name.name),
        addresses: service
            .vips
            .iter()
            .map(|ip| network_address(network, *ip))
            .collect(),
        ports: ports::of_service(&service.ports),
        load_balancing: load_balancing(
            inherited(service.distribution, service.distribution_said, namespace),
            service.membership,
        ),
        ip_families: service.ip_families.into(),
        canonical: true,
        ..common(input, service.ingress)
    }
}

/// A host of a ServiceEntry.
#[derive(Debug, Clone, Copy)]
pub struct Host<'a> {
    /// The host.
    pub host: &'a str,
    /// The entry that it is of.
    pub entry: &'a ServiceEntry,
    /// Whether clients without a service of that name in their own namespace mean this one.
    pub canonical: Canonical,
    /// Who sees it.
    pub visibility: Visibility,
}

/// Whether a service is the one that is meant where a client's own namespace has none of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Canonical {
    /// It is.
    Yes,
    /// Another one is, or none.
    No,
}

/// Makes the message of a host of a ServiceEntry.
pub fn host(host: Host<'_>, input: Input<'_>) -> wire::Service {
    let Host {
        host,
        entry,
        canonical,
        visibility,
    } = host;
    let load_balancing = match entry.resolution {
        Resolution::Passthrough => Some(wire::LoadBalancing {
            mode: Mode::Passthrough.into(),
            health_policy: HealthPolicy::AllowAll.into(),
            ..wire::LoadBalancing::default()
        }),
        Resolution::Static | Resolution::Dns | Resolution::DynamicDns => load_balancing(
            inherited(entry.distribution, entry.distribution_said, input.namespace),
            Membership::Ready,
        ),
    };
    wire::Service {
        hostname: host.to_owned(),
        addresses: addresses(host, entry, input.network),
        ports: ports::of_service(&entry.ports),
        subject_alt_names: entry.subject_alt_names.clone(),
        load_balancing,
        ip_families: wire::IpFamilies::Automatic.into(),
        canonical: canonical == Canonical::Yes,
        visibility: match visibility {
            Visibility::Namespace => wire::service::Visibility::Namespace,
            Visibility::Public | Visibility::None => wire::service::Visibility::Public,
        }
        .into(),
        ..common(input, entry.ingress)
    }
}

/// What both kinds of service have alike.
fn common(input: Input<'_>, ingress: Option<IngressUse>) -> wire::Service {
    let bound = matches!(input.waypoint, Binding::Bound { .. });
    let ingress = ingress.or(input.namespace.ingress);
    wire::Service {
        name: input.name.name.to_string(),
        namespace: input.name.namespace.to_string(),
        waypoint: input.waypoint.address(),
        weighted_waypoints: input.waypoint.weighted(),
        ingress_use_waypoint: bound && ingress == Some(IngressUse::Waypoint),
        ..wire::Service::default()
    }
}

/// The addresses that the entry names, or else those that this host was given.
fn addresses(host: &str, entry: &ServiceEntry, network: &str) -> Vec<wire::NetworkAddress> {
    if !entry.vips.is_empty() {
        return entry.vips.iter().map(|vip| range(network, *vip)).collect();
    }
    if !entry.hosts_to_address().any(|wanted| **wanted == *host) {
        return Vec::new();
    }
    let given = entry.allocated.iter().filter(|(of, _)| **of == *host);
    given.map(|(_, ip)| network_address(network, *ip)).collect()
}

/// Only what is more than one address has a length.
fn range(network: &str, range: IpNet) -> wire::NetworkAddress {
    let single = range.prefix_len() == range.max_prefix_len();
    wire::NetworkAddress {
        network: network.to_owned(),
        address: octets(range.addr()),
        length: (!single).then(|| range.prefix_len().into()),
    }
}

fn inherited(own: Distribution, said: Said, namespace: &Namespace) -> Distribution {
    namespace
        .distribution
        .filter(|_| said == Said::No)
        .unwrap_or(own)
}

fn load_balancing(
    distribution: Distribution,
    membership: Membership,
) -> Option<wire::LoadBalancing> {
    let (mode, scopes): (Mode, &[Scope]) = match distribution {
        Distribution::Any => (Mode::UnspecifiedMode, &[]),
        Distribution::NodeLocal => (Mode::Strict, &[Scope::Node]),
        Distribution::SameZone => (
            Mode::Failover,
            &[Scope::Network, Scope::Region, Scope::Zone],
        ),
        Distribution::SameNode => (
            Mode::Failover,
            &[
                Scope::Network,
                Scope::Region,
                Scope::Zone,
                Scope::Subzone,
                Scope::Node,
            ],
        ),
    };
    let health = match membership {
        Membership::Ready => HealthPolicy::OnlyHealthy,
        Membership::All => HealthPolicy::AllowAll,
    };
    let said = mode != Mode::UnspecifiedMode || health != HealthPolicy::OnlyHealthy;
    said.then(|| wire::LoadBalancing {
        routing_preference: scopes.iter().map(|scope| (*scope).into()).collect(),
        mode: mode.into(),
        health_policy: health.into(),
    })
}
