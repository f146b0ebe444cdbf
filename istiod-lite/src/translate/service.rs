// SPDX-License-Identifier: Apache-2.0
//! A service as ztunnel learns of it.

use proto::workload as wire;
use wire::load_balancing::{HealthPolicy, Mode, Scope};

use super::{Mesh, network_address, waypoint::Binding};
use crate::facts::{
    NamespacedName,
    namespace::Namespace,
    service::{Distribution, Membership, Said, Service, TargetPort},
    waypoint::IngressUse,
};

/// What a service's message is made of.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// Its name.
    pub name: &'a NamespacedName,
    /// What it says.
    pub service: &'a Service,
    /// Its namespace, from which it inherits.
    pub namespace: &'a Namespace,
    /// The cluster's network.
    pub network: &'a str,
    /// Its waypoint.
    pub waypoint: &'a Binding,
}

/// Makes the message.
pub fn translate(mesh: &Mesh, input: Input<'_>) -> wire::Service {
    let Input {
        name,
        service,
        namespace,
        network,
        waypoint,
    } = input;
    let ingress = service.ingress.or(namespace.ingress);
    let bound = matches!(waypoint, Binding::Bound { .. });
    wire::Service {
        name: name.name.to_string(),
        namespace: name.namespace.to_string(),
        hostname: mesh.hostname(&name.namespace, &name.name),
        addresses: service
            .vips
            .iter()
            .map(|ip| network_address(network, *ip))
            .collect(),
        ports: service
            .ports
            .iter()
            .map(|port| wire::Port {
                service_port: port.port.into(),
                // Zero says that each endpoint has its own.
                target_port: match &port.target {
                    TargetPort::Number(number) => (*number).into(),
                    TargetPort::Named(_) => 0,
                },
                app_protocol: port.protocol.into(),
            })
            .collect(),
        waypoint: waypoint.address(),
        ingress_use_waypoint: bound && ingress == Some(IngressUse::Waypoint),
        load_balancing: load_balancing(service, namespace),
        ip_families: service.ip_families.into(),
        canonical: true,
        visibility: wire::service::Visibility::Public.into(),
        ..wire::Service::default()
    }
}

fn load_balancing(service: &Service, namespace: &Namespace) -> Option<wire::LoadBalancing> {
    let inherited = namespace
        .distribution
        .filter(|_| service.distribution_said == Said::No);
    let (mode, scopes): (Mode, &[Scope]) = match inherited.unwrap_or(service.distribution) {
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
    let health = match service.membership {
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
