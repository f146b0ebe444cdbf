// SPDX-License-Identifier: Apache-2.0
//! What a connection is meant for, and whether that is ours to serve. Pure.
//!
//! ```text
//!  authority ─► a workload's address ─► is this its waypoint? ─► Workload: policy, then straight on
//!            ├► a service's address or name ─► is this its waypoint? ─► what the control plane says of it ─► Service
//!            └► anything else, or not ours, or not told of yet ─► Unserved, which says why
//! ```

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};

use hbone::wire::Authority;
use mesh::{Found, GatewayAddress, NamespacedHostname, Service, Store, Workload};

use crate::config::Own;
use crate::resilience::traffic::TrafficPolicy;
use crate::route::{self, Port};
use crate::state::Known;

/// What a connection is meant for.
#[derive(Debug, Clone)]
pub enum Destination {
    /// A service, by an address or its name: routed and balanced.
    Service {
        service: Arc<Service>,
        served: Arc<route::Service>,
        port: u16,
    },
    /// A service that a route leads to; it need not be one that is served here.
    Routed {
        service: Arc<Service>,
        port: u16,
        policy: Arc<TrafficPolicy>,
    },
    /// One workload, by its address.
    Workload {
        workload: Arc<Workload>,
        address: SocketAddr,
    },
}

/// Why a connection is not served. It may be a question of time: what is bound to a waypoint now, others may have heard
/// of before it does.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unserved {
    #[error("the control plane has not told of this waypoint's own pod {0}")]
    OwnPod(String),
    #[error("{0} is the address of nothing that is known here")]
    UnknownAddress(SocketAddr),
    #[error("no service {0:?} is known here")]
    UnknownHost(String),
    #[error("{what} is not bound to waypoint {waypoint}")]
    NotOurs { what: String, waypoint: String },
    #[error("the control plane has not said what holds at this waypoint")]
    Unsettled,
    #[error("the control plane has not said how service {0} is served")]
    NotTold(NamespacedHostname),
    #[error("service {service} has no port {port}")]
    NoPort {
        service: NamespacedHostname,
        port: u16,
    },
}

impl Destination {
    /// Finds out what `authority` means.
    ///
    /// # Errors
    /// Says why it is not served.
    pub fn of(known: &Known, own: &Own, authority: &Authority) -> Result<Self, Unserved> {
        let pod = own_workload(&known.mesh, own)?;
        known.settings.as_ref().ok_or(Unserved::Unsettled)?;
        let found = match authority {
            Authority::Addr(address) => known
                .mesh
                .find(&own.network, address.ip().to_canonical(), None)
                .ok_or(Unserved::UnknownAddress(*address))?,
            Authority::Host(host, _) => by_host(&known.mesh, pod, host)?,
        };
        let not_ours = |what: String| Unserved::NotOurs {
            what,
            waypoint: format!("{}/{}", own.namespace, own.gateway),
        };
        match (found, authority) {
            (Found::Workload(workload), Authority::Addr(address)) => {
                let mut waypoints = workload.waypoint.iter();
                if !waypoints.any(|waypoint| leads_to(&known.mesh, waypoint, pod)) {
                    return Err(not_ours(format!("workload {}", workload.uid)));
                }
                Ok(Self::Workload {
                    workload,
                    address: *address,
                })
            }
            (Found::Workload(workload), Authority::Host(..)) => {
                Err(not_ours(format!("workload {}", workload.uid)))
            }
            (Found::Service(service), authority) => {
                if !is_ours(&known.mesh, &service, pod) {
                    return Err(not_ours(format!("service {}", service.key())));
                }
                let key = service.key();
                let served = known.served.get(&key).cloned();
                let served = served.ok_or_else(|| Unserved::NotTold(key.clone()))?;
                let port = authority.port();
                if served.port(port).is_none() {
                    return Err(Unserved::NoPort { service: key, port });
                }
                Ok(Self::Service {
                    service,
                    served,
                    port,
                })
            }
        }
    }

    /// The service, where one was meant.
    pub fn service(&self) -> Option<&Arc<Service>> {
        match self {
            Self::Service { service, .. } | Self::Routed { service, .. } => Some(service),
            Self::Workload { .. } => None,
        }
    }

    /// What is said of the port; nothing where a workload was meant.
    pub fn port(&self) -> Option<&Port> {
        match self {
            Self::Service { served, port, .. } => served.port(*port),
            Self::Routed { .. } | Self::Workload { .. } => None,
        }
    }

    /// How its endpoints are to be chosen and spared.
    pub fn policy(&self) -> &Arc<TrafficPolicy> {
        static DEFAULT: LazyLock<Arc<TrafficPolicy>> = LazyLock::new(Arc::default);
        match self {
            Self::Service { .. } => self.port().map_or(&DEFAULT, |port| &port.policy),
            Self::Routed { policy, .. } => policy,
            Self::Workload { .. } => &DEFAULT,
        }
    }

    /// The port that was asked for.
    pub fn port_number(&self) -> u16 {
        match self {
            Self::Service { port, .. } | Self::Routed { port, .. } => *port,
            Self::Workload { address, .. } => address.port(),
        }
    }
}

/// This process's own pod, as the mesh knows it.
pub fn own_workload<'s>(mesh: &'s Store, own: &Own) -> Result<&'s Arc<Workload>, Unserved> {
    let mut pods = mesh.local_workloads(&own.namespace, &own.service_account, &own.pod);
    // Clusters may have pods of the same name.
    let found = pods.find(|pod| pod.addresses.contains(&own.address));
    found.ok_or_else(|| Unserved::OwnPod(format!("{}/{}", own.namespace, own.pod)))
}

/// The service of a host name that is bound to us, or else the first.
fn by_host(mesh: &Store, pod: &Workload, host: &str) -> Result<Found, Unserved> {
    let mut ours = mesh
        .services_by_host(host)
        .filter(|service| is_ours(mesh, service, pod));
    let service = ours.next().or_else(|| mesh.services_by_host(host).next());
    let service = service.ok_or_else(|| Unserved::UnknownHost(host.to_owned()))?;
    Ok(Found::Service(service.clone()))
}

/// Whether connections to a service may come through this pod.
fn is_ours(mesh: &Store, service: &Service, pod: &Workload) -> bool {
    let mut waypoints = service.waypoints();
    waypoints.any(|waypoint| leads_to(mesh, waypoint, pod))
}

/// Whether a waypoint's address is that of this pod, or of a service that it backs.
fn leads_to(mesh: &Store, waypoint: &GatewayAddress, pod: &Workload) -> bool {
    match mesh.gateway(&waypoint.destination, None) {
        Some(Found::Service(service)) => pod
            .ports_for(&service.namespace, &service.hostname)
            .is_some(),
        Some(Found::Workload(workload)) => workload.uid == pod.uid,
        None => false,
    }
}
