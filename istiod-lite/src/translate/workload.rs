// SPDX-License-Identifier: Apache-2.0
//! A pod, or an endpoint that is no pod, as ztunnel learns of it.

use proto::workload as wire;

use super::{Mesh, octets, ports, waypoint::Binding};
use crate::facts::{
    Labels, NamespacedName,
    endpoint::{Endpoint, EndpointAddress},
    first_label,
    namespace::Locality,
    pod::{Health, Pod, PodNetwork, Tunnel},
    service::Service,
    slice::{self, Slice},
};
use crate::wellknown;

/// The services that a workload backs, by the names of their resources, with its ports for each.
pub type Services = Vec<(String, Vec<wire::Port>)>;

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
    pub services: Services,
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
pub fn slice_endpoint_uid(
    mesh: &Mesh,
    slice: &NamespacedName,
    endpoint: &slice::Endpoint,
) -> String {
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
    let names = Names::of(&pod.labels, &pod.workload_name);
    wire::Workload {
        uid: pod_uid(mesh, name),
        name: name.name.to_string(),
        namespace: name.namespace.to_string(),
        addresses: pod.addresses.iter().map(|ip| octets(*ip)).collect(),
        network: network.to_owned(),
        tunnel_protocol: tunnel_protocol(pod.tunnel),
        native_tunnel: pod.tunnel == Tunnel::Native,
        trust_domain: mesh.wire_trust_domain(),
        service_account: pod.service_account.to_string(),
        waypoint: waypoint.address(),
        node: pod.node.to_string(),
        canonical_name: names.canonical,
        canonical_revision: names.revision,
        workload_type: wire::WorkloadType::Pod.into(),
        workload_name: pod.workload_name.to_string(),
        application_tunnel,
        services: by_name(services),
        authorization_policies: policies,
        status: status(pod.health),
        cluster_id: mesh.cluster_id.clone(),
        locality: locality.map(wire_locality),
        network_mode: match pod.network {
            PodNetwork::Own => wire::NetworkMode::Standard,
            PodNetwork::Host => wire::NetworkMode::HostNetwork,
        }
        .into(),
        pod_uid: pod.uid.clone(),
        ..wire::Workload::default()
    }
}

/// What the message of an endpoint of a slice is made of.
#[derive(Debug, Clone, Copy)]
pub struct SliceInput<'a> {
    /// The slice's name.
    pub slice_name: &'a NamespacedName,
    /// The slice.
    pub slice: &'a Slice,
    /// The endpoint in it.
    pub endpoint: &'a slice::Endpoint,
    /// The service that it belongs to.
    pub service: &'a Service,
    /// The cluster's network.
    pub network: &'a str,
}

/// Makes the message of an endpoint of a slice that is no pod. Nobody vouches for it:
/// it has no identity, and its address may be shared with a pod.
pub fn slice_endpoint(mesh: &Mesh, input: SliceInput<'_>) -> wire::Workload {
    let SliceInput {
        slice_name,
        slice,
        endpoint,
        service,
        network,
    } = input;
    let service_name = NamespacedName::new(slice_name.namespace.clone(), slice.service.as_str());
    let ports = ports::slice_of_service(service, slice);
    wire::Workload {
        uid: slice_endpoint_uid(mesh, slice_name, endpoint),
        name: slice_name.name.to_string(),
        namespace: slice_name.namespace.to_string(),
        addresses: endpoint.addresses.iter().map(|ip| octets(*ip)).collect(),
        network: network.to_owned(),
        trust_domain: mesh.wire_trust_domain(),
        workload_type: wire::WorkloadType::Pod.into(),
        services: by_name(vec![(service_key(mesh, &service_name), ports)]),
        status: status(endpoint.health),
        cluster_id: mesh.cluster_id.clone(),
        network_mode: wire::NetworkMode::HostNetwork.into(),
        ..wire::Workload::default()
    }
}

/// What an endpoint is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WrittenIn<'a> {
    /// A WorkloadEntry of this name: the endpoint is the object.
    WorkloadEntry(&'a NamespacedName),
    /// A ServiceEntry of this name, among others.
    ServiceEntry(&'a NamespacedName),
}

/// What the message of a workload that is no pod is made of.
#[derive(Debug, Clone)]
pub struct EndpointInput<'a> {
    /// What it is written in.
    pub written_in: WrittenIn<'a>,
    /// The workload.
    pub endpoint: &'a Endpoint,
    /// The labels that name it.
    pub labels: &'a Labels,
    /// What it is a replica of.
    pub workload_name: &'a str,
    /// How it is reached.
    pub tunnel: Tunnel,
    /// The cluster's network.
    pub network: &'a str,
    /// The services that it backs.
    pub services: Services,
    /// The policies that name it, in their order.
    pub policies: Vec<String>,
    /// Its waypoint.
    pub waypoint: Binding,
    /// How traffic is handed to it, if it is a waypoint itself.
    pub application_tunnel: Option<wire::ApplicationTunnel>,
}

/// The uid of a workload that is no pod.
pub fn endpoint_uid(mesh: &Mesh, written_in: WrittenIn<'_>, address: &EndpointAddress) -> String {
    let cluster = &mesh.cluster_id;
    match written_in {
        WrittenIn::WorkloadEntry(name) => {
            format!("{cluster}/networking.istio.io/WorkloadEntry/{name}")
        }
        WrittenIn::ServiceEntry(name) => {
            format!("{cluster}/networking.istio.io/ServiceEntry/{name}/{address}")
        }
    }
}

/// Makes the message of a workload that is no pod. Nobody watches its health.
pub fn endpoint(mesh: &Mesh, input: EndpointInput<'_>) -> wire::Workload {
    let EndpointInput {
        written_in,
        endpoint,
        labels,
        workload_name,
        tunnel,
        network,
        services,
        policies,
        waypoint,
        application_tunnel,
    } = input;
    let (WrittenIn::WorkloadEntry(name) | WrittenIn::ServiceEntry(name)) = written_in;
    let names = Names::of(labels, workload_name);
    let (addresses, hostname) = match &endpoint.address {
        EndpointAddress::Ip(ip) => (vec![octets(*ip)], String::new()),
        EndpointAddress::Hostname(host) => (Vec::new(), host.clone()),
        EndpointAddress::Gateway => (Vec::new(), String::new()),
    };
    wire::Workload {
        uid: endpoint_uid(mesh, written_in, &endpoint.address),
        name: name.name.to_string(),
        namespace: name.namespace.to_string(),
        addresses,
        hostname,
        network: endpoint.network.as_deref().unwrap_or(network).to_owned(),
        tunnel_protocol: tunnel_protocol(tunnel),
        native_tunnel: tunnel == Tunnel::Native,
        trust_domain: mesh.wire_trust_domain(),
        service_account: endpoint.service_account.clone(),
        waypoint: waypoint.address(),
        canonical_name: names.canonical,
        canonical_revision: names.revision,
        workload_type: wire::WorkloadType::Pod.into(),
        workload_name: workload_name.to_owned(),
        application_tunnel,
        services: by_name(services),
        authorization_policies: policies,
        status: status(Health::Ready),
        cluster_id: mesh.cluster_id.clone(),
        locality: endpoint.locality.as_ref().map(wire_locality),
        capacity: endpoint.capacity,
        ..wire::Workload::default()
    }
}

/// How resources name a service: namespace and host name.
pub fn service_key(mesh: &Mesh, name: &NamespacedName) -> String {
    host_key(&name.namespace, &mesh.hostname(&name.namespace, &name.name))
}

/// How resources name a host of a namespace.
pub fn host_key(namespace: &str, host: &str) -> String {
    format!("{namespace}/{host}")
}

/// How telemetry names a workload.
struct Names {
    canonical: String,
    revision: String,
}

impl Names {
    fn of(labels: &Labels, workload_name: &str) -> Self {
        let canonical = first_label(labels, &wellknown::CANONICAL_NAME).unwrap_or(workload_name);
        let revision = first_label(labels, &wellknown::CANONICAL_REVISION).unwrap_or("latest");
        Self {
            canonical: canonical.to_owned(),
            revision: revision.to_owned(),
        }
    }
}

fn by_name(services: Services) -> std::collections::BTreeMap<String, wire::PortList> {
    let list = |(name, ports)| (name, wire::PortList { ports });
    services.into_iter().map(list).collect()
}

fn tunnel_protocol(tunnel: Tunnel) -> i32 {
    match tunnel {
        Tunnel::None => wire::TunnelProtocol::None,
        Tunnel::Captured | Tunnel::Native => wire::TunnelProtocol::Hbone,
    }
    .into()
}

fn wire_locality(locality: &Locality) -> wire::Locality {
    wire::Locality {
        region: locality.region.clone(),
        zone: locality.zone.clone(),
        subzone: locality.subzone.clone(),
    }
}

fn status(health: Health) -> i32 {
    match health {
        Health::Ready => wire::WorkloadStatus::Healthy,
        Health::NotReady => wire::WorkloadStatus::Unhealthy,
    }
    .into()
}
