// SPDX-License-Identifier: Apache-2.0
//! Decisions about connections that arrive at a pod: is this destination ours, where does it go, which service was it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hbone::wire::Authority;
use http::StatusCode;
use mesh::workload::ApplicationProtocol;
use mesh::{Found, GatewayAddress, Service, Store, Workload, balance};
use spiffe::SpiffeId;

use super::{OwnPorts, backs};

/// Why a tunnelled connection is not served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InboundRefusal {
    /// It is meant for somebody else.
    #[error("{authority} is neither this workload's address ({reached}) nor behind its waypoint")]
    NotOurs {
        /// What was asked for.
        authority: SocketAddr,
        /// Where the tunnel ended.
        reached: IpAddr,
    },
    /// No service of this name is visible to this workload.
    #[error("no service {0:?} is known here")]
    UnknownHost(String),
    /// The service does not have the port.
    #[error("service {host:?} has no port {port} here")]
    NoPort {
        /// The service's name.
        host: String,
        /// The port.
        port: u16,
    },
    /// It would come back to this proxy.
    #[error("port {0} is a port of this pod's own proxy")]
    Loop(u16),
    /// What is handed to the application must name an address, and the service has none.
    #[error("service {0:?} has no address, which the workload's application tunnel needs")]
    NoVip(String),
}

impl InboundRefusal {
    /// The answer to the peer.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::NotOurs { .. } => StatusCode::BAD_REQUEST,
            Self::UnknownHost(_) | Self::NoPort { .. } | Self::Loop(_) | Self::NoVip(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        }
    }
}

/// Checks that what a peer asks for is served here: by the address that the tunnel reached, as a waypoint of the
/// destination, or by an application that tunnels itself.
///
/// # Errors
/// Says that it is not ours.
pub fn accept_destination(
    store: &Store,
    local: &Workload,
    reached: IpAddr,
    network: &str,
    authority: &Authority,
) -> Result<(), InboundRefusal> {
    let Authority::Addr(asked) = authority else {
        return Ok(());
    };
    let (reached, ip) = (reached.to_canonical(), asked.ip().to_canonical());
    if ip == reached || local.application_tunnel.is_some() {
        return Ok(());
    }
    let leads_here = |waypoint: &GatewayAddress| leads_here(store, waypoint, local, reached);
    let behind_us = match store.find(network, ip, None) {
        Some(Found::Service(service)) => service.waypoints().any(leads_here),
        Some(Found::Workload(workload)) => workload.waypoint.iter().any(leads_here),
        None => false,
    };
    if behind_us {
        return Ok(());
    }
    Err(InboundRefusal::NotOurs {
        authority: *asked,
        reached,
    })
}

/// Whether a peer is a waypoint of the workload, so that what it says of the client that it speaks for is believed: it has
/// proven to be that waypoint, and comes from where that one is.
pub fn vouches(
    store: &Store,
    local: &Workload,
    network: &str,
    (peer, from): (&SpiffeId, IpAddr),
) -> bool {
    let Some(waypoint) = store.workload_by_ip(network, from.to_canonical()) else {
        return false;
    };
    let is_it = |reference: &GatewayAddress| match store.gateway(&reference.destination, None) {
        Some(Found::Service(service)) => backs(waypoint, &service),
        Some(Found::Workload(workload)) => workload.uid == waypoint.uid,
        None => false,
    };
    waypoint.identity == *peer
        && (local.waypoint.iter().any(is_it)
            || candidate_services(store, local)
                .iter()
                .any(|service| service.waypoints().any(is_it)))
}

fn leads_here(store: &Store, waypoint: &GatewayAddress, local: &Workload, reached: IpAddr) -> bool {
    match store.gateway(&waypoint.destination, None) {
        Some(Found::Service(service)) => backs(local, &service),
        Some(Found::Workload(workload)) => workload.addresses.contains(&reached),
        None => false,
    }
}

/// Where a tunnelled connection goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextHop {
    /// The application.
    pub destination: SocketAddr,
    /// The services that it may have been meant for.
    pub services: Vec<Arc<Service>>,
    /// What the application is told before the connection's own bytes, if it wants to be told.
    pub announced: Option<Announced>,
}

/// Where a connection was meant to go, for an application that takes those of others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announced {
    /// The address that was asked for, or one of the service's.
    pub destination: SocketAddr,
    /// The service's host name, if it is known which one was meant.
    pub service: Option<Arc<str>>,
}

/// Decides where an accepted connection goes. `network` is that of this proxy, `own_ports` lead nowhere.
///
/// # Errors
/// Says why it cannot go anywhere.
pub fn next_hop(
    store: &Store,
    local: &Workload,
    reached: IpAddr,
    network: &str,
    own_ports: OwnPorts,
    authority: &Authority,
) -> Result<NextHop, InboundRefusal> {
    let (port, services) = match authority {
        Authority::Addr(asked) => (asked.port(), candidate_services(store, local)),
        Authority::Host(host, port) => {
            let service = store
                .service_by_host(host, Some(&local.namespace))
                .ok_or_else(|| InboundRefusal::UnknownHost(host.clone()))?;
            let target = balance::target_port(service, local, *port, balance::PortRule::Defined);
            let target = target.ok_or_else(|| InboundRefusal::NoPort {
                host: host.clone(),
                port: *port,
            })?;
            (target, vec![service.clone()])
        }
    };
    if own_ports.contains(port) {
        return Err(InboundRefusal::Loop(port));
    }
    let mut hop = NextHop {
        destination: SocketAddr::new(reached.to_canonical(), port),
        services,
        announced: None,
    };
    if let Some(tunnel) = local.application_tunnel {
        let announced = match authority {
            Authority::Addr(asked) => Announced {
                destination: *asked,
                service: store
                    .service_by_vip(network, asked.ip(), None)
                    .map(|service| service.hostname.clone()),
            },
            Authority::Host(host, port) => hop
                .services
                .first()
                .and_then(|service| announced(service, network, *port))
                .ok_or_else(|| InboundRefusal::NoVip(host.clone()))?,
        };
        let port = tunnel.port.unwrap_or(port);
        if own_ports.contains(port) {
            return Err(InboundRefusal::Loop(port));
        }
        hop.destination.set_port(port);
        hop.announced = (tunnel.protocol == ApplicationProtocol::Proxy).then_some(announced);
    }
    Ok(hop)
}

/// A service by one of its addresses: of this network if it has one here, IPv4 before IPv6.
fn announced(service: &Service, network: &str, port: u16) -> Option<Announced> {
    let vip = service
        .vips
        .iter()
        .min_by_key(|vip| (*vip.network != *network, !vip.address.is_ipv4()))?;
    Some(Announced {
        destination: SocketAddr::new(vip.address, port),
        service: Some(service.hostname.clone()),
    })
}

/// The known services that a workload backs.
pub fn candidate_services(store: &Store, local: &Workload) -> Vec<Arc<Service>> {
    let names = local.services.iter().map(|membership| &membership.service);
    names
        .filter_map(|name| store.service(&name.namespace, &name.hostname))
        .cloned()
        .collect()
}

/// The service that a connection was meant for, as far as can be told: the one that the peer names, if it is one of
/// the candidates, else the first that has the port.
pub fn destination_service(
    candidates: &[Arc<Service>],
    local: &Workload,
    port: u16,
    named: Option<&str>,
) -> Option<Arc<Service>> {
    let by_name =
        named.and_then(|host| candidates.iter().find(|service| *service.hostname == *host));
    let has_port = |service: &&Arc<Service>| {
        let own = local.ports_for(&service.namespace, &service.hostname);
        let mut targets = service
            .ports
            .iter()
            .chain(own.into_iter().flat_map(|own| own.iter()));
        targets.any(|(_, target)| target == port)
    };
    by_name
        .or_else(|| candidates.iter().find(has_port))
        .cloned()
}
