// SPDX-License-Identifier: Apache-2.0
//! `istio.workload.Service` → [`Service`].

use ipnet::IpNet;
use proto::workload as wire;

use super::{ConvertError, Fault, gateway, ip, known, ports, required};
use crate::address::{NetworkAddress, NetworkCidr};
use crate::service::{
    HealthPolicy, IpFamilies, LoadBalancer, Mode, Scope, Service, Visibility, WeightedWaypoint,
};

/// Converts a service.
///
/// # Errors
/// Names the field that is not what it must be.
pub fn service(wire: wire::Service) -> Result<Service, ConvertError> {
    let object = format!("Service {}/{}", wire.namespace, wire.hostname);
    convert(wire).map_err(|fault| fault.of(object))
}

fn convert(wire: wire::Service) -> Result<Service, Fault> {
    part_of_name("namespace", &wire.namespace)?;
    part_of_name("hostname", &wire.hostname)?;
    let (vips, cidr_vips) = addresses(wire.addresses)?;
    Ok(Service {
        vips,
        cidr_vips,
        ports: ports("ports", wire.ports)?,
        // Names of other kinds (a host's, for instance) are no identity that a peer of the mesh could have. Leaving
        // one out can only narrow whom we accept.
        subject_alt_names: wire
            .subject_alt_names
            .iter()
            .filter_map(|name| name.parse().ok())
            .collect(),
        waypoint: wire.waypoint.map(|w| gateway("waypoint", w)).transpose()?,
        weighted_waypoints: wire
            .weighted_waypoints
            .into_iter()
            .enumerate()
            .map(|(i, weighted)| weighted_waypoint(&format!("weighted_waypoints[{i}]"), weighted))
            .collect::<Result<_, _>>()?,
        load_balancer: wire
            .load_balancing
            .map(load_balancer)
            .transpose()
            .map_err(|fault| fault.within("load_balancing"))?
            .unwrap_or_default(),
        ip_families: match known("ip_families", wire.ip_families)? {
            wire::IpFamilies::Automatic => IpFamilies::Automatic,
            wire::IpFamilies::Ipv4Only => IpFamilies::V4Only,
            wire::IpFamilies::Ipv6Only => IpFamilies::V6Only,
            wire::IpFamilies::Dual => IpFamilies::Dual,
        },
        canonical: wire.canonical,
        visibility: match wire::service::Visibility::try_from(wire.visibility) {
            Ok(wire::service::Visibility::Namespace) => Visibility::Namespace,
            Ok(wire::service::Visibility::Public) | Err(_) => Visibility::Public,
        },
        name: wire.name.into(),
        namespace: wire.namespace.into(),
        hostname: wire.hostname.into(),
    })
}

/// A service is withdrawn by `namespace/hostname`: with another slash in it, it would stay for good.
fn part_of_name(field: &str, text: &str) -> Result<(), Fault> {
    required(field, text)?;
    if text.contains('/') {
        return Err(Fault::new(field, format!("{text:?} holds a slash")));
    }
    Ok(())
}

/// Host addresses and ranges, told apart by their prefix length.
fn addresses(
    wire: Vec<wire::NetworkAddress>,
) -> Result<(Vec<NetworkAddress>, Vec<NetworkCidr>), Fault> {
    let (mut hosts, mut ranges) = (Vec::new(), Vec::new());
    for (i, entry) in wire.into_iter().enumerate() {
        let address = ip(format_args!("addresses[{i}].address"), &entry.address)?;
        let network = entry.network.into();
        let host_length = if address.is_ipv4() { 32 } else { 128 };
        match entry.length.map(u8::try_from) {
            None => hosts.push(NetworkAddress { network, address }),
            Some(Ok(length)) if length == host_length => {
                hosts.push(NetworkAddress { network, address });
            }
            Some(Ok(length)) if length < host_length => {
                let cidr = IpNet::new(address, length)
                    .expect("broken invariant: the prefix is no longer than the address")
                    .trunc();
                ranges.push(NetworkCidr { network, cidr });
            }
            Some(_) => {
                let length = entry.length.unwrap_or_default();
                return Err(Fault::new(
                    format!("addresses[{i}].length"),
                    format!("{length} is longer than {host_length}, the length of its address"),
                ));
            }
        }
    }
    Ok((hosts, ranges))
}

fn weighted_waypoint(
    field: &str,
    weighted: wire::WeightedWaypoint,
) -> Result<WeightedWaypoint, Fault> {
    let destination = weighted
        .destination
        .ok_or_else(|| Fault::new(format!("{field}.destination"), "is missing"))?;
    Ok(WeightedWaypoint {
        destination: gateway(&format!("{field}.destination"), destination)?,
        weight: weighted.weight,
    })
}

fn load_balancer(wire: wire::LoadBalancing) -> Result<LoadBalancer, Fault> {
    use wire::load_balancing as lb;

    let routing_preferences = wire
        .routing_preference
        .into_iter()
        .enumerate()
        .map(|(i, value)| scope(&format!("routing_preference[{i}]"), value))
        .collect::<Result<_, _>>()?;
    Ok(LoadBalancer {
        routing_preferences,
        mode: match known("mode", wire.mode)? {
            lb::Mode::UnspecifiedMode => Mode::Standard,
            lb::Mode::Strict => Mode::Strict,
            lb::Mode::Failover => Mode::Failover,
            lb::Mode::Passthrough => Mode::Passthrough,
        },
        health_policy: match known("health_policy", wire.health_policy)? {
            lb::HealthPolicy::OnlyHealthy => HealthPolicy::OnlyHealthy,
            lb::HealthPolicy::AllowAll => HealthPolicy::AllowAll,
        },
    })
}

fn scope(field: &str, value: i32) -> Result<Scope, Fault> {
    use wire::load_balancing::Scope as Wire;

    Ok(match known(field, value)? {
        Wire::Region => Scope::Region,
        Wire::Zone => Scope::Zone,
        Wire::Subzone => Scope::Subzone,
        Wire::Node => Scope::Node,
        Wire::Cluster => Scope::Cluster,
        Wire::Network => Scope::Network,
        Wire::UnspecifiedScope => return Err(Fault::new(field, "is not specified")),
    })
}
