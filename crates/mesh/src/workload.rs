// SPDX-License-Identifier: Apache-2.0
//! A workload: a pod, a virtual machine or an external endpoint; its addresses, identity, protocol and health.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use spiffe::SpiffeId;

use crate::address::{GatewayAddress, NamespacedHostname, Ports};
use crate::pod_uid::PodUid;

/// The cluster meant where none is named.
pub const DEFAULT_CLUSTER: &str = "Kubernetes";
/// The service account meant where none is named.
pub const DEFAULT_SERVICE_ACCOUNT: &str = "default";

/// Something that serves or opens connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// Unique in the mesh.
    pub uid: Arc<str>,
    /// Which of all pods that ever had its name it is. None where the control plane does not say. Most workloads are
    /// pods of other nodes, of which a store forgets it: hence the box.
    pub pod_uid: Option<Box<PodUid>>,
    /// The pod's name.
    pub name: Arc<str>,
    /// The pod's namespace: scope of policies and of service preference.
    pub namespace: Arc<str>,
    /// Its addresses, all on `network`.
    pub addresses: Vec<IpAddr>,
    /// A name to resolve where there is no address, or the name of a headless pod; often empty.
    pub hostname: Arc<str>,
    /// The network that its addresses belong to.
    pub network: Arc<str>,
    /// How it is reached.
    pub protocol: TunnelProtocol,
    /// What its certificate says.
    pub identity: SpiffeId,
    /// The waypoint of traffic addressed to it.
    pub waypoint: Option<GatewayAddress>,
    /// The gateway that leads to it from other networks.
    pub network_gateway: Option<GatewayAddress>,
    /// The node it runs on.
    pub node: Arc<str>,
    /// The service name that telemetry groups it by.
    pub canonical_name: Arc<str>,
    /// The version that telemetry groups it by.
    pub canonical_revision: Arc<str>,
    /// What kind of controller owns it.
    pub workload_type: WorkloadType,
    /// That controller's name.
    pub workload_name: Arc<str>,
    /// Whether it terminates HBONE itself.
    pub native_tunnel: bool,
    /// How the node proxy hands a tunnelled connection to it.
    pub application_tunnel: Option<ApplicationTunnel>,
    /// The services it backs, each once.
    pub services: Arc<[Membership]>,
    /// Keys of the policies that select it by labels.
    pub authorization_policies: Vec<Arc<str>>,
    /// Whether it is ready to serve.
    pub status: HealthStatus,
    /// The cluster it runs in.
    pub cluster_id: Arc<str>,
    /// Where it runs.
    pub locality: Arc<Locality>,
    /// Whether its address is its own.
    pub network_mode: NetworkMode,
    /// Its weight among the endpoints of a service; 0 takes no traffic.
    pub capacity: u32,
}

impl Workload {
    /// A workload with an identity and nothing else: the border fills in what it was told.
    pub fn new(
        uid: impl Into<Arc<str>>,
        namespace: impl Into<Arc<str>>,
        identity: SpiffeId,
    ) -> Self {
        let empty: Arc<str> = "".into();
        Self {
            uid: uid.into(),
            pod_uid: None,
            name: empty.clone(),
            namespace: namespace.into(),
            addresses: Vec::new(),
            hostname: empty.clone(),
            network: empty.clone(),
            protocol: TunnelProtocol::None,
            identity,
            waypoint: None,
            network_gateway: None,
            node: empty.clone(),
            canonical_name: empty.clone(),
            canonical_revision: empty.clone(),
            workload_type: WorkloadType::Deployment,
            workload_name: empty.clone(),
            native_tunnel: false,
            application_tunnel: None,
            services: Arc::default(),
            authorization_policies: Vec::new(),
            status: HealthStatus::Healthy,
            cluster_id: DEFAULT_CLUSTER.into(),
            locality: Arc::default(),
            network_mode: NetworkMode::Standard,
            capacity: 1,
        }
    }

    /// The port map it has as an endpoint of a service; none if it does not back that service.
    pub fn ports_for(&self, namespace: &str, hostname: &str) -> Option<&Ports> {
        self.services
            .iter()
            .find(|m| *m.service.hostname == *hostname && *m.service.namespace == *namespace)
            .map(|m| &m.ports)
    }

    /// Whether connections from and to it need a certificate of its identity.
    pub fn needs_certificate(&self) -> bool {
        self.protocol == TunnelProtocol::Hbone || self.native_tunnel
    }
}

/// That a workload backs a service, and on which ports.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Membership {
    /// The service.
    pub service: NamespacedHostname,
    /// Its ports as this workload serves them.
    pub ports: Ports,
}

/// How a workload is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TunnelProtocol {
    /// Plain TCP.
    #[serde(rename = "TCP")]
    None,
    /// An HBONE tunnel.
    #[serde(rename = "HBONE")]
    Hbone,
}

/// Whether a workload takes traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HealthStatus {
    /// It is ready.
    Healthy,
    /// It is not; used only by services that ask for such endpoints.
    Unhealthy,
}

/// Whether a workload's address identifies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NetworkMode {
    /// The address is its own.
    Standard,
    /// It shares the node's address, by which it must not be found.
    HostNetwork,
}

/// The kind of a workload's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkloadType {
    /// A Deployment, or anything not listed here.
    Deployment,
    /// A CronJob.
    CronJob,
    /// A bare pod.
    Pod,
    /// A Job.
    Job,
}

impl WorkloadType {
    /// Its name in telemetry.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deployment => "deployment",
            Self::CronJob => "cronjob",
            Self::Pod => "pod",
            Self::Job => "job",
        }
    }
}

impl fmt::Display for WorkloadType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How the inner connection of a tunnel reaches the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApplicationTunnel {
    /// What precedes the bytes.
    pub protocol: ApplicationProtocol,
    /// The port to connect to instead of the resolved one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// What precedes the bytes of an inner connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum ApplicationProtocol {
    /// Nothing.
    None,
    /// A PROXY protocol v2 header.
    Proxy,
}

/// Where a workload runs; empty parts are unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Locality {
    /// The region.
    pub region: Arc<str>,
    /// The zone within the region.
    pub zone: Arc<str>,
    /// The part of the zone.
    pub subzone: Arc<str>,
}

impl Locality {
    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.region.is_empty() && self.zone.is_empty() && self.subzone.is_empty()
    }
}
