// SPDX-License-Identifier: Apache-2.0
//! A route to somebody who is known by a host name only: all is decided but the address.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use hbone::wire::Authority;
use mesh::balance::{self, Address};
use mesh::{Service, Workload};

use super::{Refusal, Route};
use crate::hostnames::HostError;

/// Where a workload is.
pub(super) enum Place {
    At(IpAddr),
    Named(Arc<str>),
}

impl Place {
    /// The place of a workload for a connection to `original`.
    pub(super) fn of(
        workload: &Workload,
        service: Option<&Service>,
        original: IpAddr,
    ) -> Result<Self, Refusal> {
        match balance::choose_address(workload, service, original) {
            Address::Ip(ip) => Ok(Self::At(ip)),
            Address::Hostname(host) => Ok(Self::Named(host)),
            Address::Unreachable => Err(Refusal::NoAddress(workload.uid.clone())),
        }
    }

    /// The route to this place, which is a function of its address. `original` says which family is preferred.
    pub(super) fn route(self, original: IpAddr, to: impl FnOnce(IpAddr) -> Route) -> Route {
        match self {
            Self::At(ip) => to(ip),
            Self::Named(host) => Route::Unresolved(Unresolved {
                host,
                original,
                route: Box::new(to(NOWHERE)),
            }),
        }
    }
}

/// Stands in a route until the address is known; nobody outside sees it there.
const NOWHERE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// A route that lacks the address of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unresolved {
    host: Arc<str>,
    original: IpAddr,
    route: Box<Route>,
}

impl Unresolved {
    /// The host.
    pub fn host(&self) -> &Arc<str> {
        &self.host
    }

    /// The address that the client connected to: one of the same family is to be preferred.
    pub fn original(&self) -> IpAddr {
        self.original
    }

    /// The route, whose address means nothing yet.
    pub fn route(&self) -> &Route {
        &self.route
    }

    /// The refusal that it comes to where the host has no address.
    pub fn refused(self, reason: HostError) -> Route {
        let (workload, service) = match *self.route {
            Route::Direct {
                workload, service, ..
            }
            | Route::Hbone {
                workload, service, ..
            }
            | Route::Waypoint {
                waypoint: workload,
                service,
                ..
            } => (workload, service),
            Route::Gateway {
                gateway, service, ..
            } => (gateway, Some(service)),
            other @ (Route::Passthrough { .. } | Route::Unresolved(_) | Route::Refused { .. }) => {
                return other;
            }
        };
        let reason = Refusal::NoHost {
            workload: workload.uid.clone(),
            host: self.host,
            reason,
        };
        Route::Refused { reason, service }
    }

    /// The route, at the host's address.
    pub fn at(self, ip: IpAddr) -> Route {
        let mut route = *self.route;
        match &mut route {
            Route::Direct { destination, .. } => destination.set_ip(ip),
            Route::Hbone {
                tunnel, authority, ..
            } => {
                tunnel.set_ip(ip);
                if let Authority::Addr(address) = authority {
                    *address = SocketAddr::new(ip, address.port());
                }
            }
            Route::Waypoint { tunnel, .. } | Route::Gateway { tunnel, .. } => tunnel.set_ip(ip),
            Route::Passthrough { .. } | Route::Unresolved(_) | Route::Refused { .. } => {}
        }
        route
    }
}
