// SPDX-License-Identifier: Apache-2.0
//! `istio.workload.Workload` → [`Workload`].

use std::sync::Arc;

use proto::workload as wire;
use spiffe::{SpiffeId, TrustDomain};

use super::{ConvertError, Fault, gateway, ip, known, port, ports, required};
use crate::address::NamespacedHostname;
use crate::pod_uid::PodUid;
use crate::workload::{
    ApplicationProtocol, ApplicationTunnel, DEFAULT_CLUSTER, DEFAULT_SERVICE_ACCOUNT, HealthStatus,
    Locality, Membership, NetworkMode, TunnelProtocol, Workload, WorkloadType,
};

/// Converts a workload.
///
/// # Errors
/// Names the field that is not what it must be.
pub fn workload(wire: wire::Workload) -> Result<Workload, ConvertError> {
    let object = format!("Workload {}", wire.uid);
    convert(wire).map_err(|fault| fault.of(object))
}

fn convert(wire: wire::Workload) -> Result<Workload, Fault> {
    required("uid", &wire.uid)?;
    let identity = identity(&wire)?;
    let locality = wire.locality.unwrap_or_default();
    Ok(Workload {
        identity,
        protocol: tunnel_protocol(wire.tunnel_protocol)?,
        addresses: wire
            .addresses
            .iter()
            .enumerate()
            .map(|(i, bytes)| ip(format_args!("addresses[{i}]"), bytes))
            .collect::<Result<_, _>>()?,
        waypoint: wire.waypoint.map(|w| gateway("waypoint", w)).transpose()?,
        network_gateway: wire
            .network_gateway
            .map(|g| gateway("network_gateway", g))
            .transpose()?,
        workload_type: workload_type(wire.workload_type),
        application_tunnel: wire
            .application_tunnel
            .map(application_tunnel)
            .transpose()
            .map_err(|fault| fault.within("application_tunnel"))?,
        services: wire
            .services
            .into_iter()
            .map(|(name, list)| membership(&name, list))
            .collect::<Result<_, _>>()?,
        status: match known("status", wire.status)? {
            wire::WorkloadStatus::Healthy => HealthStatus::Healthy,
            wire::WorkloadStatus::Unhealthy => HealthStatus::Unhealthy,
        },
        network_mode: match known("network_mode", wire.network_mode)? {
            wire::NetworkMode::Standard => NetworkMode::Standard,
            wire::NetworkMode::HostNetwork => NetworkMode::HostNetwork,
        },
        locality: Arc::new(Locality {
            region: locality.region.into(),
            zone: locality.zone.into(),
            subzone: locality.subzone.into(),
        }),
        uid: wire.uid.into(),
        pod_uid: PodUid::unless_empty(&wire.pod_uid),
        name: wire.name.into(),
        namespace: wire.namespace.into(),
        hostname: wire.hostname.into(),
        network: wire.network.into(),
        node: wire.node.into(),
        canonical_name: wire.canonical_name.into(),
        canonical_revision: wire.canonical_revision.into(),
        workload_name: wire.workload_name.into(),
        native_tunnel: wire.native_tunnel,
        authorization_policies: distinct(wire.authorization_policies),
        cluster_id: or_default(&wire.cluster_id, DEFAULT_CLUSTER).into(),
        capacity: wire.capacity.unwrap_or(1),
    })
}

fn identity(wire: &wire::Workload) -> Result<SpiffeId, Fault> {
    let trust_domain: TrustDomain = or_default(&wire.trust_domain, TrustDomain::DEFAULT)
        .parse()
        .map_err(|error| Fault::new("trust_domain", format!("makes no identity: {error}")))?;
    let service_account = or_default(&wire.service_account, DEFAULT_SERVICE_ACCOUNT);
    SpiffeId::new(&trust_domain, &wire.namespace, service_account).map_err(|error| {
        Fault::new(
            "namespace and service_account",
            format!("make no identity: {error}"),
        )
    })
}

fn or_default<'a>(text: &'a str, default: &'a str) -> &'a str {
    if text.is_empty() { default } else { text }
}

fn tunnel_protocol(value: i32) -> Result<TunnelProtocol, Fault> {
    match known("tunnel_protocol", value)? {
        wire::TunnelProtocol::None => Ok(TunnelProtocol::None),
        wire::TunnelProtocol::Hbone => Ok(TunnelProtocol::Hbone),
        wire::TunnelProtocol::LegacyIstioMtls => Err(Fault::new(
            "tunnel_protocol",
            "LEGACY_ISTIO_MTLS is not supported",
        )),
    }
}

/// For telemetry only, so that an unknown type costs nothing but precision.
fn workload_type(value: i32) -> WorkloadType {
    match wire::WorkloadType::try_from(value) {
        Ok(wire::WorkloadType::Deployment) | Err(_) => WorkloadType::Deployment,
        Ok(wire::WorkloadType::Cronjob) => WorkloadType::CronJob,
        Ok(wire::WorkloadType::Pod) => WorkloadType::Pod,
        Ok(wire::WorkloadType::Job) => WorkloadType::Job,
    }
}

fn application_tunnel(tunnel: wire::ApplicationTunnel) -> Result<ApplicationTunnel, Fault> {
    use wire::application_tunnel::Protocol;

    let port = port("port", tunnel.port)?;
    Ok(ApplicationTunnel {
        protocol: match known("protocol", tunnel.protocol)? {
            Protocol::None => ApplicationProtocol::None,
            Protocol::Proxy => ApplicationProtocol::Proxy,
        },
        port: (port != 0).then_some(port),
    })
}

fn membership(name: &str, list: wire::PortList) -> Result<Membership, Fault> {
    let field = format!("services[{name:?}]");
    let service: NamespacedHostname = name
        .parse()
        .map_err(|_| Fault::new(&*field, "is not of the form <namespace>/<hostname>"))?;
    Ok(Membership {
        service,
        ports: ports(&format!("{field}.ports"), list.ports)?,
    })
}

fn distinct(keys: Vec<String>) -> Vec<Arc<str>> {
    let mut distinct: Vec<Arc<str>> = Vec::with_capacity(keys.len());
    for key in keys {
        if !distinct.iter().any(|held| **held == *key) {
            distinct.push(key.into());
        }
    }
    distinct
}
