// SPDX-License-Identifier: Apache-2.0
//! Where a connection goes: the decisions of outbound and inbound, as functions of the mesh and the connection.
//!
//! In: what the mesh holds at this moment, who connects from where to where, randomness. Out: a value that says what to
//! do, or a refusal that says why not. Nothing here connects, waits or logs.
//!
//! ```text
//!  original destination
//!    ├─ this pod's own proxy port ─────────────► Refused
//!    ├─ service with a waypoint ───────────────► Waypoint      authority: the original destination
//!    ├─ service, or address of a workload
//!    │    ├─ on another network ──────────────► Gateway       authority: the service's name and port
//!    │    ├─ workload addressed, has a waypoint► Waypoint      unless the source is that waypoint
//!    │    ├─ endpoint speaks HBONE ────────────► Hbone         authority: the endpoint and its own port
//!    │    ├─ endpoint speaks TCP ──────────────► Direct
//!    │    └─ no endpoint ──────────────────────► Refused
//!    │         each of these, at an endpoint known by name: Unresolved, to be settled with an address
//!    └─ anything else ─────────────────────────► Passthrough
//! ```

mod gateway;
mod inbound;
pub mod needs;
mod unresolved;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hbone::wire::Authority;
use mesh::balance::{self, NoHop, PortRule, Upstream, identities};
use mesh::service::Mode;
use mesh::workload::TunnelProtocol;
use mesh::{
    Found, GatewayAddress, GatewayDestination, NamespacedHostname, NoEndpoint, Seen, Service,
    Store, Workload,
};
use rand::Rng;
use spiffe::SpiffeId;

use crate::config::Socks5;
use crate::hostnames::HostError;

use gateway::through_gateway;
pub use inbound::{
    Announced, InboundRefusal, NextHop, accept_destination, candidate_services,
    destination_service, next_hop, vouches,
};
use unresolved::Place;
pub use unresolved::Unresolved;

/// Ports of the proxy itself: a connection to them inside the pod would come back to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnPorts(Socks5);

impl OwnPorts {
    /// Those of a proxy that offers SOCKS5, or does not: then its port is the application's to use.
    pub fn with(socks5: Socks5) -> Self {
        Self(socks5)
    }

    /// Whether it is one of them.
    pub fn contains(self, port: u16) -> bool {
        use capture::contract::{INBOUND_HBONE_PORT, INBOUND_PLAINTEXT_PORT, OUTBOUND_PORT};
        match port {
            OUTBOUND_PORT | INBOUND_PLAINTEXT_PORT | INBOUND_HBONE_PORT => true,
            capture::contract::SOCKS5_PORT => self.0 == Socks5::On,
            _ => false,
        }
    }

    /// Whether a connection to this destination would come back to the proxy of the pod that these addresses belong to.
    pub fn is_loop(self, destination: SocketAddr, pod: &[IpAddr]) -> bool {
        let ip = destination.ip();
        self.contains(destination.port())
            && (ip.is_loopback() || ip.is_unspecified() || pod.contains(&ip))
    }
}

/// A connection that a pod opens.
#[derive(Debug, Clone, Copy)]
pub struct Outbound<'a> {
    /// The workload that opens it.
    pub source: &'a Workload,
    /// The address it opens it from.
    pub source_ip: IpAddr,
    /// Where it wants to go.
    pub destination: SocketAddr,
    /// The network that this proxy serves.
    pub network: &'a str,
    /// Where a connection must not lead inside the pod.
    pub own_ports: OwnPorts,
    /// What is known of endpoints beside the mesh.
    pub seen: Seen<'a>,
}

/// What to do with a connection that a pod opens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// The destination is none of the mesh's business: plain TCP to where the pod wanted to go.
    Passthrough {
        /// The original destination.
        destination: SocketAddr,
    },
    /// The destination is known and speaks plain TCP.
    Direct {
        /// The endpoint.
        destination: SocketAddr,
        /// Who is there.
        workload: Arc<Workload>,
        /// The service that was meant.
        service: Option<Arc<Service>>,
    },
    /// A tunnel to the destination.
    Hbone {
        /// Where the tunnel ends.
        tunnel: SocketAddr,
        /// What to ask for there.
        authority: Authority,
        /// Who may answer.
        expected: Arc<[SpiffeId]>,
        /// Who is there.
        workload: Arc<Workload>,
        /// The service that was meant.
        service: Option<Arc<Service>>,
    },
    /// A tunnel to the waypoint of the destination.
    Waypoint {
        /// Where the tunnel ends.
        tunnel: SocketAddr,
        /// What to ask for there: the original destination.
        authority: Authority,
        /// Who may answer.
        expected: Arc<[SpiffeId]>,
        /// The waypoint.
        waypoint: Arc<Workload>,
        /// The service that was meant.
        service: Option<Arc<Service>>,
    },
    /// A tunnel to the gateway of another network, and inside it one to the destination.
    Gateway {
        /// Where the outer tunnel ends.
        tunnel: SocketAddr,
        /// What to ask for, at the gateway and behind it: the service by name.
        authority: Authority,
        /// Who may answer at the gateway.
        expected: Arc<[SpiffeId]>,
        /// The gateway.
        gateway: Arc<Workload>,
        /// Who may answer behind it; never empty.
        expected_behind: Arc<[SpiffeId]>,
        /// Who was picked, as far as this side can tell.
        workload: Arc<Workload>,
        /// The port of its application.
        port: u16,
        /// The service that was meant.
        service: Arc<Service>,
    },
    /// One of those above, to a host whose address is to be found first.
    Unresolved(Unresolved),
    /// The connection must not be opened.
    Refused {
        /// Why.
        reason: Refusal,
        /// The service that was meant.
        service: Option<Arc<Service>>,
    },
}

/// Why a connection must not be opened. There is never a way around: what should have been protected by a tunnel or
/// judged by a waypoint does not go without.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It would come back to this proxy.
    #[error("{0} is a port of this pod's own proxy")]
    Loop(SocketAddr),
    /// The service has no endpoint for it.
    #[error("service {service} cannot take the connection: {reason}")]
    NoEndpoint {
        /// The service.
        service: NamespacedHostname,
        /// What left no endpoint.
        reason: NoEndpoint,
    },
    /// A waypoint or gateway is named that is not known.
    #[error("{role} {reference} is unknown")]
    UnknownHop {
        /// What it is needed for.
        role: Role,
        /// How it is named.
        reference: GatewayDestination,
    },
    /// A waypoint or gateway is known and nothing serves there.
    #[error("{role} {reference} cannot take the connection: {reason}")]
    NoHopEndpoint {
        /// What it is needed for.
        role: Role,
        /// How it is named.
        reference: GatewayDestination,
        /// What left no endpoint.
        reason: NoEndpoint,
    },
    /// There is no address to connect to.
    #[error("workload {0} has no address that the service's address families permit")]
    NoAddress(Arc<str>),
    /// The destination is on another network and nothing leads there.
    #[error("workload {workload} is on network {network:?} and names no gateway to it")]
    NoGateway {
        /// Who is there.
        workload: Arc<str>,
        /// Where that is.
        network: Arc<str>,
    },
    /// The destination is on another network, where an address of it means nothing.
    #[error(
        "workload {workload} is on network {network:?}, which is reached by the names of services only"
    )]
    NotAService {
        /// Who is there.
        workload: Arc<str>,
        /// Where that is.
        network: Arc<str>,
    },
    /// The destination is on another network, and nobody could prove to be it.
    #[error(
        "service {service} names no identity that its endpoints on network {network:?} may have"
    )]
    NobodyExpected {
        /// The service.
        service: NamespacedHostname,
        /// Where its endpoint is.
        network: Arc<str>,
    },
    /// The endpoint is known by a host name only, which leads nowhere.
    #[error("workload {workload} is at {host}, but {reason}")]
    NoHost {
        /// Who is there.
        workload: Arc<str>,
        /// Its host name.
        host: Arc<str>,
        /// Why it has no address.
        reason: HostError,
    },
}

/// What a named hop is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// To judge what passes.
    Waypoint,
    /// To lead to another network.
    NetworkGateway,
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Waypoint => "waypoint",
            Self::NetworkGateway => "network gateway",
        })
    }
}

/// Decides where a connection goes.
pub fn route(store: &Store, connection: Outbound<'_>, rng: &mut impl Rng) -> Route {
    let connection = Outbound {
        source_ip: connection.source_ip.to_canonical(),
        destination: canonical(connection.destination),
        ..connection
    };
    let meant = service_meant(store, &connection);
    let decided = decide(store, &connection, meant.as_ref(), rng);
    decided.unwrap_or_else(|reason| Route::Refused {
        reason,
        service: meant,
    })
}

/// The service that the connection is addressed to. An address that is a workload's as well does not count, so that
/// such a connection takes no service's waypoint.
fn service_meant(store: &Store, connection: &Outbound<'_>) -> Option<Arc<Service>> {
    let client = Some(&*connection.source.namespace);
    match store.find(connection.network, connection.destination.ip(), client)? {
        Found::Service(service) => Some(service),
        Found::Workload(_) => None,
    }
}

fn decide(
    store: &Store,
    connection: &Outbound<'_>,
    meant: Option<&Arc<Service>>,
    rng: &mut impl Rng,
) -> Result<Route, Refusal> {
    let source = connection.source;
    let own = [connection.source_ip];
    let own_ports = connection.own_ports;
    if own_ports.is_loop(connection.destination, &own)
        || own_ports.is_loop(connection.destination, &source.addresses)
    {
        return Err(Refusal::Loop(connection.destination));
    }
    if let Some(service) = meant
        && let Some(waypoint) = service.draw_waypoint(rng)
    {
        return through_waypoint(store, connection, waypoint, meant.cloned(), rng);
    }
    let Some(upstream) = upstream(store, connection, rng)? else {
        return Ok(Route::Passthrough {
            destination: connection.destination,
        });
    };
    if upstream.workload.network != source.network {
        return through_gateway(store, connection, upstream, meant, rng);
    }
    // A connection to a service never takes the waypoint of one of its endpoints.
    if meant.is_none()
        && let Some(waypoint) = &upstream.workload.waypoint
        && !is_waypoint(store, waypoint, connection)
    {
        return through_waypoint(store, connection, waypoint, upstream.service, rng);
    }
    to_workload(connection, upstream, meant)
}

/// Who serves the original destination; nobody that we know of where it is not the mesh's.
fn upstream(
    store: &Store,
    connection: &Outbound<'_>,
    rng: &mut impl Rng,
) -> Result<Option<Upstream>, Refusal> {
    let source = connection.source;
    let (ip, port) = (connection.destination.ip(), connection.destination.port());
    let client = Some(&*source.namespace);
    // Here a service comes before a workload of the same address: a service is what a client means by a name.
    if let Some(service) = store.service_by_vip(&source.network, ip, client) {
        if service.load_balancer.mode == Mode::Passthrough {
            return Ok(None);
        }
        return balance::pick(
            store,
            service,
            source,
            port,
            PortRule::Defined,
            connection.seen,
            rng,
        )
        .map(Some)
        .map_err(|reason| Refusal::NoEndpoint {
            service: service.key(),
            reason,
        });
    }
    let workload = store.workload_by_ip(&source.network, ip);
    Ok(workload.map(|workload| Upstream {
        workload: workload.clone(),
        port,
        service: None,
    }))
}

fn to_workload(
    connection: &Outbound<'_>,
    upstream: Upstream,
    meant: Option<&Arc<Service>>,
) -> Result<Route, Refusal> {
    let Upstream {
        workload,
        port,
        service,
    } = upstream;
    let service = service.or_else(|| meant.cloned());
    let original = connection.destination.ip();
    let place = Place::of(&workload, service.as_deref(), original)?;
    Ok(place.route(original, |ip| match workload.protocol {
        TunnelProtocol::None => Route::Direct {
            destination: SocketAddr::new(ip, port),
            workload,
            service,
        },
        TunnelProtocol::Hbone => Route::Hbone {
            tunnel: SocketAddr::new(ip, capture::contract::INBOUND_HBONE_PORT),
            authority: SocketAddr::new(ip, port).into(),
            expected: identities(&workload, service.as_deref()),
            workload,
            service,
        },
    }))
}

fn through_waypoint(
    store: &Store,
    connection: &Outbound<'_>,
    reference: &GatewayAddress,
    service: Option<Arc<Service>>,
    rng: &mut impl Rng,
) -> Result<Route, Refusal> {
    let source = connection.source;
    let rule = PortRule::DefinedOrTunnelled;
    let hop = resolve(store, reference, connection, rule, Role::Waypoint, rng)?;
    if hop.workload.network != source.network {
        return through_gateway(store, connection, hop, service.as_ref(), rng);
    }
    // A waypoint named by its host is reached in the family of the original destination, if it has an address there.
    let family = match &reference.destination {
        GatewayDestination::Hostname(_) => connection.destination.ip(),
        GatewayDestination::Address(address) => address.address,
    };
    let place = Place::of(&hop.workload, hop.service.as_deref(), family)?;
    Ok(place.route(family, |ip| Route::Waypoint {
        tunnel: SocketAddr::new(ip, hop.port),
        authority: connection.destination.into(),
        expected: identities(&hop.workload, hop.service.as_deref()),
        waypoint: hop.workload,
        service,
    }))
}

/// Finds an endpoint of a waypoint or a gateway.
fn resolve(
    store: &Store,
    reference: &GatewayAddress,
    connection: &Outbound<'_>,
    rule: PortRule,
    role: Role,
    rng: &mut impl Rng,
) -> Result<Upstream, Refusal> {
    let Outbound { source, seen, .. } = *connection;
    let found = balance::hop(store, reference, source, rule, seen, rng);
    found.map_err(|reason| match reason {
        NoHop::Unknown => Refusal::UnknownHop {
            role,
            reference: reference.destination.clone(),
        },
        NoHop::NoEndpoint(reason) => Refusal::NoHopEndpoint {
            role,
            reference: reference.destination.clone(),
            reason,
        },
    })
}

/// Whether the source is itself the waypoint that a reference stands for.
fn is_waypoint(store: &Store, reference: &GatewayAddress, connection: &Outbound<'_>) -> bool {
    let source = connection.source;
    let client = Some(&*source.namespace);
    match store.gateway(&reference.destination, client) {
        None => false,
        Some(Found::Service(service)) => {
            backs(source, &service) && source.addresses.contains(&connection.source_ip)
        }
        Some(Found::Workload(workload)) => {
            workload.identity == source.identity
                && workload.addresses.contains(&connection.source_ip)
        }
    }
}

fn backs(workload: &Workload, service: &Service) -> bool {
    workload
        .ports_for(&service.namespace, &service.hostname)
        .is_some()
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests;
