// SPDX-License-Identifier: Apache-2.0
//! A pod, or an endpoint that is no pod, as ztunnel learns of it.

use proto::workload as wire;

use super::{Mesh, octets, waypoint::Binding};
use crate::facts::{
    NamespacedName, first_label,
    namespace::Locality,
    pod::{Health, Pod, PodNetwork, Tunnel},
    service::{Service, TargetPort},
    slice::{Endpoint, Slice},
};
use crate::wellknown;

/// What a pod's message is made of.
#[derive(Debug, Clone)]
pub struct PodInput<'a> {
    /// Its name.
    pub name: &'a NamespacedName,
    /// What it says.
    pub pod: &'a Pod,
    /// The cluster's network.
    pub network: &'a str,
    /// Where its node stands.
    pub locality: Option<&'a Locality>,
    /// The services that it backs.
    pub services: Vec<(NamespacedName, &'a Service)>,
    /// The policies that name it, in their order.
    pub policies: Vec<String>,
    /// Its waypoint.
    pub waypoint: Binding,
    /// How traffic is handed to it, if it is a waypoint itself.
    pub application_tunnel: Option<wire::ApplicationTunnel>,
}

/// The uid of a pod's workload. The empty second part is the core API group.
pub fn pod_uid(mesh: &Mesh, name: &NamespacedName) -> String {
    format!("{}//Pod/{}/{}", mesh.cluster_id, name.namespace, name.name)
}

/// The uid of the workload behind an endpoint that is no pod.
pub fn endpoint_uid(mesh: &Mesh, slice: &NamespacedName, endpoint: &Endpoint) -> String {
    let address = endpoint
        .addresses
        .first()
        .map(ToString::to_string)
        .unwrap_or_default();
    format!(
        "{}/discovery.k8s.io/EndpointSlice/{}/{}/{address}",
        mesh.cluster_id, slice.namespace, slice.name
    )
}

/// Makes a pod's message.
pub fn pod(mesh: &Mesh, input: PodInput<'_>) -> wire::Workload {
    let PodInput {
        name,
        pod,
        network,
        locality,
        services,
        policies,
        waypoint,
        application_tunnel,
    } = input;
    let services = services.into_iter().map(|(service_name, service)| {
        let key = service_key(mesh, &service_name);
        (
            key,
            wire::PortList {
                ports: pod_ports(service, pod),
            },
        )
    });
    let canonical_name =
        first_label(&pod.labels, &wellknown::CANONICAL_NAME).unwrap_or(&pod.workload_name);
    let canonical_revision =
        first_label(&pod.labels, &wellknown::CANONICAL_REVISION).unwrap_or("latest");
    wire::Workload {
        uid: pod_uid(mesh, name),
        name: name.name.to_string(),
        namespace: name.namespace.to_string(),
        addresses: pod.addresses.iter().map(|ip| octets(*ip)).collect(),
        network: network.to_owned(),
        tunnel_protocol: match pod.tunnel {
            Tunnel::None => wire::TunnelProtocol::None,
            Tunnel::Captured | Tunnel::Native => wire::TunnelProtocol::Hbone,
        }
        .into(),
        native_tunnel: pod.tunnel == Tunnel::Native,
        trust_domain: mesh.wire_trust_domain(),
        service_account: pod.service_account.clone(),
        waypoint: waypoint.address(),
        node: pod.node.clone(),
        canonical_name: canonical_name.to_owned(),
        canonical_revision: canonical_revision.to_owned(),
        workload_type: wire::WorkloadType::Pod.into(),
        workload_name: pod.workload_name.clone(),
        application_tunnel,
        services: services.collect(),
        authorization_policies: policies,
        status: status(pod.health),
        cluster_id: mesh.cluster_id.clone(),
        locality: locality.map(|locality| wire::Locality {
            region: locality.region.clone(),
            zone: locality.zone.clone(),
            subzone: locality.subzone.clone(),
        }),
        network_mode: match pod.network {
            PodNetwork::Own => wire::NetworkMode::Standard,
            PodNetwork::Host => wire::NetworkMode::HostNetwork,
        }
        .into(),
        ..wire::Workload::default()
    }
}

/// What the message of an endpoint that is no pod is made of.
#[derive(Debug, Clone, Copy)]
pub struct EndpointInput<'a> {
    /// The slice's name.
    pub slice_name: &'a NamespacedName,
    /// The slice.
    pub slice: &'a Slice,
    /// The endpoint in it.
    pub endpoint: &'a Endpoint,
    /// The service that it belongs to.
    pub service: &'a Service,
    /// The cluster's network.
    pub network: &'a str,
}

/// Makes the message of an endpoint that is no pod. Nobody vouches for it: it has
/// no identity, and its address may be shared with a pod.
pub fn endpoint(mesh: &Mesh, input: EndpointInput<'_>) -> wire::Workload {
    let EndpointInput {
        slice_name,
        slice,
        endpoint,
        service,
        network,
    } = input;
    let service_name = NamespacedName::new(slice_name.namespace.clone(), slice.service.as_str());
    let ports = slice.ports.iter().filter_map(|(name, number)| {
        let port = service.ports.iter().find(|port| port.name == *name)?;
        Some(wire::Port {
            service_port: port.port.into(),
            target_port: (*number).into(),
            app_protocol: 0,
        })
    });
    wire::Workload {
        uid: endpoint_uid(mesh, slice_name, endpoint),
        name: slice_name.name.to_string(),
        namespace: slice_name.namespace.to_string(),
        addresses: endpoint.addresses.iter().map(|ip| octets(*ip)).collect(),
        network: network.to_owned(),
        trust_domain: mesh.wire_trust_domain(),
        workload_type: wire::WorkloadType::Pod.into(),
        services: [(
            service_key(mesh, &service_name),
            wire::PortList {
                ports: ports.collect(),
            },
        )]
        .into_iter()
        .collect(),
        status: status(endpoint.health),
        cluster_id: mesh.cluster_id.clone(),
        network_mode: wire::NetworkMode::HostNetwork.into(),
        ..wire::Workload::default()
    }
}

/// How resources name a service: namespace and host name.
pub fn service_key(mesh: &Mesh, name: &NamespacedName) -> String {
    format!(
        "{}/{}",
        name.namespace,
        mesh.hostname(&name.namespace, &name.name)
    )
}

fn status(health: Health) -> i32 {
    match health {
        Health::Ready => wire::WorkloadStatus::Healthy,
        Health::NotReady => wire::WorkloadStatus::Unhealthy,
    }
    .into()
}

/// The pod's own port for each of the service's. A port that the pod doesn't name
/// is left out for this pod, so that a rolling rename works.
fn pod_ports(service: &Service, pod: &Pod) -> Vec<wire::Port> {
    let ports = service.ports.iter().filter_map(|port| {
        let target = match &port.target {
            TargetPort::Number(number) => *number,
            TargetPort::Named(name) => pod
                .named_ports
                .iter()
                .find(|(known, _)| known == name)
                .map(|(_, number)| *number)?,
        };
        Some(wire::Port {
            service_port: port.port.into(),
            target_port: target.into(),
            app_protocol: 0,
        })
    });
    ports.collect()
}
