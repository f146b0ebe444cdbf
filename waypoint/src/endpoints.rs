// SPDX-License-Identifier: Apache-2.0
//! Which endpoint takes a connection, and what was seen of endpoints: who fails to connect, who carries how much.
//!
//! In: what is known, and what this very connection has tried. Out: an endpoint with its address and the way to it. What
//! to make of failures is `mesh::standing`'s to say.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use mesh::balance::{self, Address, PortRule};
use mesh::workload::{HealthStatus, TunnelProtocol};
use mesh::{Endpoint, Seen, Service, Standings, Workload};
use parking_lot::RwLock;
use rand::Rng;
use spiffe::SpiffeId;
use tracing::warn;

use crate::config::Own;
use crate::destination::{Destination, own_workload};
use crate::failure::Failure;
use crate::record::{End, Security};
use crate::session::Pin;
use crate::state::Known;

/// One endpoint of what was meant, and how it is reached.
#[derive(Debug, Clone)]
pub struct Chosen {
    pub workload: Arc<Workload>,
    /// Where its application listens.
    pub address: SocketAddr,
    pub way: Way,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Way {
    /// It is not of the mesh.
    Plain,
    /// By a tunnel to its node's proxy, or to itself, which has to be one of these.
    Tunnel { expected: Arc<[SpiffeId]> },
}

impl Chosen {
    /// By which its failures are remembered.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint {
            workload: self.workload.uid.clone(),
            port: self.address.port(),
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
        }
    }
}

/// What was seen of all endpoints, by all workers.
#[derive(Default)]
pub struct Endpoints {
    standings: RwLock<Standings>,
}

/// An attempt to connect, later the connection: the endpoint carries it until this is dropped.
pub struct Using {
    endpoints: Arc<Endpoints>,
    endpoint: Endpoint,
}

impl Endpoints {
    /// Chooses for one attempt.
    ///
    /// # Errors
    /// Says why nobody can take it.
    pub fn choose(
        &self,
        known: &Known,
        own: &Own,
        destination: &Destination,
        tried: &[Endpoint],
        pin: Option<Pin>,
        rng: &mut impl Rng,
    ) -> Result<Chosen, Failure> {
        match destination {
            Destination::Workload { workload, address } => {
                if !tried.is_empty() {
                    return Err(Failure::NoEndpoint {
                        name: format!("workload {}", workload.uid).into(),
                        reason: mesh::NoEndpoint::AllTried,
                    });
                }
                // Its latest state, as it may have joined the mesh meanwhile.
                let workload = known.mesh.workload(&workload.uid).unwrap_or(workload);
                reach(own, workload, None, Place::At(*address))
            }
            Destination::Service { service, port, .. } | Destination::Routed { service, port } => {
                self.of_service(known, own, (service, *port), tried, pin, rng)
            }
        }
    }

    fn of_service(
        &self,
        known: &Known,
        own: &Own,
        (service, port): (&Arc<Service>, u16),
        tried: &[Endpoint],
        pin: Option<Pin>,
        rng: &mut impl Rng,
    ) -> Result<Chosen, Failure> {
        // As it is now, with its present balancing; or as it was when it is just gone.
        let now = known.mesh.service(&service.namespace, &service.hostname);
        let service = now.unwrap_or(service);
        let pod = own_workload(&known.mesh, own)?;
        let standings = self.standings.read();
        let seen = Seen {
            standings: &standings,
            tried,
            now: Instant::now(),
        };
        let rule = PortRule::Defined;
        if let Some(pin) = pin
            && let Some(chosen) = pinned(known, own, service, port, seen, pin)
        {
            return Ok(chosen);
        }
        let picked = balance::pick(&known.mesh, service, pod, port, rule, seen, rng);
        let picked = picked.map_err(|reason| Failure::NoEndpoint {
            name: format!("service {}", service.key()).into(),
            reason,
        })?;
        reach(
            own,
            &picked.workload,
            Some(service),
            Place::Port(picked.port),
        )
    }

    pub fn begin(self: &Arc<Self>, endpoint: Endpoint) -> Using {
        self.standings.write().began(&endpoint, Instant::now());
        Using {
            endpoints: Arc::clone(self),
            endpoint,
        }
    }

    /// Those that are avoided now, with the milliseconds left.
    pub fn out(&self) -> Vec<(String, u16, u128)> {
        let now = Instant::now();
        let standings = self.standings.read();
        let out = standings.out(now).map(|(endpoint, failing)| {
            let left = failing.until.duration_since(now).as_millis();
            (endpoint.workload.to_string(), endpoint.port, left)
        });
        out.collect()
    }
}

impl Using {
    /// It connects; whatever it did before is forgiven.
    pub fn succeeded(&self) {
        let standings = &self.endpoints.standings;
        // Nearly always there is nothing to forgive, and then nobody need wait for the lock.
        if !standings.read().all_trusted() {
            standings.write().succeeded(&self.endpoint);
        }
    }

    /// It doesn't, by its own fault.
    pub fn failed(&self, failure: &Failure) {
        let now = Instant::now();
        let out_for = self.endpoints.standings.write().failed(&self.endpoint, now);
        if let Some(out_for) = out_for {
            let Endpoint { workload, port } = &self.endpoint;
            warn!(endpoint = %workload, port, ?out_for, error = %failure, "endpoint fails to connect and is avoided");
        }
    }
}

impl Drop for Using {
    fn drop(&mut self) {
        self.endpoints.standings.write().ended(&self.endpoint);
    }
}

/// The endpoint that served a client before, while it is ready and in good standing.
fn pinned(
    known: &Known,
    own: &Own,
    service: &Arc<Service>,
    port: u16,
    seen: Seen<'_>,
    pin: Pin,
) -> Option<Chosen> {
    let all = known.mesh.endpoints(service).iter();
    let mut ready = all.filter(|workload| workload.status == HealthStatus::Healthy);
    ready.find_map(|workload| {
        let port = balance::target_port(service, workload, port, PortRule::Defined)?;
        let endpoint = Endpoint {
            workload: workload.uid.clone(),
            port,
        };
        let is_good = pin.is_at(&endpoint)
            && !seen.tried.contains(&endpoint)
            && !seen.standings.is_out(&endpoint, seen.now);
        let chosen = || reach(own, workload, Some(service), Place::Port(port)).ok();
        is_good.then(chosen).flatten()
    })
}

/// Where a workload is to be reached.
enum Place {
    /// At the address that was asked for.
    At(SocketAddr),
    /// At a port of any address that suits.
    Port(u16),
}

fn reach(
    own: &Own,
    workload: &Arc<Workload>,
    service: Option<&Service>,
    place: Place,
) -> Result<Chosen, Failure> {
    let unreachable = |reason| Failure::Unreachable {
        workload: workload.uid.clone(),
        reason,
    };
    if workload.network != own.network {
        return Err(unreachable("it is on another network"));
    }
    let address = match place {
        Place::At(address) => address,
        Place::Port(port) => match balance::choose_address(workload, service, own.address) {
            Address::Ip(ip) => SocketAddr::new(ip, port),
            Address::Hostname(_) => return Err(unreachable("it is known by a host name only")),
            Address::Unreachable => {
                return Err(unreachable(
                    "it has no address that the service's address families permit",
                ));
            }
        },
    };
    let way = match workload.protocol {
        TunnelProtocol::None => Way::Plain,
        TunnelProtocol::Hbone => Way::Tunnel {
            expected: identities(workload, service),
        },
    };
    Ok(Chosen {
        workload: workload.clone(),
        address,
        way,
    })
}

/// Who may answer for a workload.
fn identities(workload: &Workload, service: Option<&Service>) -> Arc<[SpiffeId]> {
    let others = service.map_or(&[][..], |service| &service.subject_alt_names);
    let own = std::iter::once(&workload.identity);
    own.chain(others.iter().filter(|other| **other != workload.identity))
        .cloned()
        .collect()
}
