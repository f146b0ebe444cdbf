// SPDX-License-Identifier: Apache-2.0
//! How an endpoint is reached: where it is, and what lies between. Pure.
//!
//! In: the endpoint that was picked, what is known, who asks. Out: the way to it, or why there is none. Addresses of another
//! network mean nothing here: its gateway is asked for the service by name, and who answers behind it proves to us itself
//! to be one of those that the service names.

use std::net::SocketAddr;
use std::sync::Arc;

use mesh::balance::{self, Address, NoHop, PortRule, Upstream};
use mesh::workload::TunnelProtocol;
use mesh::{Endpoint, GatewayDestination, Seen, Service, Workload};
use rand::Rng;
use spiffe::SpiffeId;

use crate::config::Own;
use crate::failure::Failure;
use crate::record::{End, Security};
use crate::state::Known;
use crate::tls::Tls;

/// An endpoint that was picked. Where it is known by a host name, its address is yet to be found.
#[derive(Debug, Clone)]
pub struct Choice {
    pub workload: Arc<Workload>,
    /// Its application's.
    pub port: u16,
    pub place: Place,
    pub way: Way,
    /// What is begun on the connection, if anything.
    pub tls: Option<Arc<Tls>>,
}

/// Where to connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    At(SocketAddr),
    /// At a port of the host that has this name.
    Named(Arc<str>, u16),
}

/// One endpoint of what was meant, and how it is reached.
#[derive(Debug, Clone)]
pub struct Chosen {
    pub workload: Arc<Workload>,
    pub port: u16,
    /// Where its application listens, or the gateway that leads there.
    pub address: SocketAddr,
    pub way: Way,
    pub tls: Option<Arc<Tls>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Way {
    /// It is not of the mesh.
    Plain,
    /// By a tunnel to its node's proxy, or to itself, which has to be one of these.
    Tunnel {
        expected: Arc<[SpiffeId]>,
        /// For whom we speak, where policies there ask for that: what is carried belongs to that client alone.
        caller: Option<SpiffeId>,
    },
    /// By a tunnel to the gateway of its network, and another inside.
    Gateway(Arc<Gateway>),
}

/// The gateway of another network, and what is behind it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Gateway {
    /// Who may answer at the gateway.
    pub expected: Arc<[SpiffeId]>,
    /// Who may answer behind it.
    pub behind: Arc<[SpiffeId]>,
    /// What is asked for at either: a port of a service, by its name.
    pub host: Arc<str>,
    pub port: u16,
}

/// Who asks, and what is known.
#[derive(Clone, Copy)]
pub(super) struct Asker<'a> {
    pub(super) known: &'a Known,
    pub(super) own: &'a Own,
    /// This process's own pod.
    pub(super) pod: &'a Workload,
    pub(super) seen: Seen<'a>,
}

impl Choice {
    /// Says for whom we speak, where that decides: it keeps the connections of clients apart that could share them otherwise.
    pub(super) fn speaking_for(mut self, client: &SpiffeId, known: &Known, own: &Own) -> Self {
        if let Way::Tunnel { caller, .. } = &mut self.way
            && known
                .mesh
                .policies_ask_beyond(&self.workload, &own.identity)
        {
            *caller = Some(client.clone());
        }
        self
    }

    /// By which its failures are remembered.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint {
            workload: self.workload.uid.clone(),
            port: self.port,
        }
    }

    /// With its address.
    pub fn at(self, address: SocketAddr) -> Chosen {
        Chosen {
            workload: self.workload,
            port: self.port,
            address,
            way: self.way,
            tls: self.tls,
        }
    }
}

impl Chosen {
    /// By which its failures are remembered.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint {
            workload: self.workload.uid.clone(),
            port: self.port,
        }
    }

    /// What telemetry says of it.
    pub fn end(&self) -> (End, Security) {
        let end = End::of(&self.workload);
        match &self.way {
            Way::Plain => (end, Security::None),
            Way::Tunnel { .. } => (
                end.proven(self.workload.identity.clone()),
                Security::MutualTls,
            ),
            // Which of those that may answer there does is not known here.
            Way::Gateway(_) => (end, Security::MutualTls),
        }
    }
}

/// The way to a workload that was asked for by its address.
pub(super) fn to_workload(
    own: &Own,
    workload: &Arc<Workload>,
    address: SocketAddr,
) -> Result<Choice, Failure> {
    if workload.network != own.network {
        return Err(unreachable(
            workload,
            "it is on another network, and no service was asked for",
        ));
    }
    Ok(Choice {
        workload: workload.clone(),
        port: address.port(),
        place: Place::At(address),
        way: direct(workload, None),
        tls: None,
    })
}

impl Asker<'_> {
    /// The way to an endpoint that was picked for a port of a service.
    pub(super) fn endpoint(
        self,
        picked: &Upstream,
        (service, service_port): (&Arc<Service>, u16),
        rng: &mut impl Rng,
    ) -> Result<Choice, Failure> {
        let Upstream { workload, port, .. } = picked;
        if workload.network != self.own.network {
            return self.behind_gateway(picked, (service, service_port), rng);
        }
        Ok(Choice {
            workload: workload.clone(),
            port: *port,
            place: self.place(workload, Some(service), *port)?,
            way: direct(workload, Some(service)),
            tls: None,
        })
    }

    fn behind_gateway(
        self,
        picked: &Upstream,
        (service, service_port): (&Arc<Service>, u16),
        rng: &mut impl Rng,
    ) -> Result<Choice, Failure> {
        let workload = &picked.workload;
        let Some(reference) = &workload.network_gateway else {
            return Err(unreachable(
                workload,
                "it is on another network and names no gateway to it",
            ));
        };
        if service.subject_alt_names.is_empty() {
            return Err(unreachable(
                workload,
                "it is on another network, and its service names nobody who may answer there",
            ));
        }
        let Self {
            known, pod, seen, ..
        } = self;
        let rule = PortRule::Defined;
        let hop = balance::hop(&known.mesh, reference, pod, rule, seen, rng);
        let hop = hop.map_err(|reason| match reason {
            NoHop::Unknown => unreachable(workload, "the gateway to its network is not known"),
            NoHop::NoEndpoint(reason) => Failure::NoEndpoint {
                name: format!("the gateway to network {}", workload.network).into(),
                reason,
            },
        })?;
        let gateway_service = hop.service.as_deref();
        let place = match &reference.destination {
            GatewayDestination::Address(address)
                if hop.workload.addresses.contains(&address.address) =>
            {
                Place::At(SocketAddr::new(address.address, hop.port))
            }
            _ => self.place(&hop.workload, gateway_service, hop.port)?,
        };
        let gateway = Gateway {
            expected: balance::identities(&hop.workload, gateway_service),
            behind: service.subject_alt_names.iter().cloned().collect(),
            host: service.hostname.clone(),
            port: service_port,
        };
        Ok(Choice {
            workload: workload.clone(),
            port: picked.port,
            place,
            way: Way::Gateway(Arc::new(gateway)),
            tls: None,
        })
    }

    fn place(
        self,
        workload: &Workload,
        service: Option<&Service>,
        port: u16,
    ) -> Result<Place, Failure> {
        match balance::choose_address(workload, service, self.own.address) {
            Address::Ip(ip) => Ok(Place::At(SocketAddr::new(ip, port))),
            Address::Hostname(host) => Ok(Place::Named(host, port)),
            Address::Unreachable => Err(unreachable(
                workload,
                "it has no address that the service's address families permit",
            )),
        }
    }
}

fn direct(workload: &Workload, service: Option<&Service>) -> Way {
    match workload.protocol {
        TunnelProtocol::None => Way::Plain,
        TunnelProtocol::Hbone => Way::Tunnel {
            expected: balance::identities(workload, service),
            caller: None,
        },
    }
}

fn unreachable(workload: &Workload, reason: &'static str) -> Failure {
    Failure::Unreachable {
        workload: workload.uid.clone(),
        reason,
    }
}

#[cfg(test)]
mod tests;
