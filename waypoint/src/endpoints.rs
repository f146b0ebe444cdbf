// SPDX-License-Identifier: Apache-2.0
//! Which endpoint takes a connection or a request, and what was seen of endpoints: who fails to connect, who carries how
//! much, who answers how soon and with errors.
//!
//! In: what is known, how the port's endpoints are to be chosen, and what this very connection has tried. Out: an endpoint
//! with its address and the way to it. What to make of failures is `mesh::standing`'s and `resilience`'s to say.

mod observed;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mesh::balance::{self, Address};
use mesh::workload::TunnelProtocol;
use mesh::{Endpoint, Seen, Service, Standings, Workload};
use parking_lot::RwLock;
use rand::Rng;
use spiffe::SpiffeId;
use tracing::warn;

use self::observed::Asked as OfService;
pub use self::observed::{Begun, Observed};
use crate::config::Own;
use crate::destination::{Destination, own_workload};
use crate::failure::Failure;
use crate::record::{End, Security};
use crate::resilience::hash::Key;
use crate::resilience::traffic::TrafficPolicy;
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
    /// One for each destination that was asked for, until its service is gone.
    observed: RwLock<HashMap<Place, Arc<Observed>>>,
}

/// A port of a service, or of a workload, whose namespace is empty here.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Place {
    namespace: Arc<str>,
    name: Arc<str>,
    port: u16,
}

/// What one attempt asks for.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    pub destination: &'a Destination,
    pub policy: &'a TrafficPolicy,
    /// What was seen of the destination.
    pub observed: &'a Observed,
    /// What it has in common with others that are to meet at one endpoint.
    pub key: Option<Key>,
    /// Where the client was before, if it is to come back.
    pub pin: Option<Pin>,
    /// Endpoints that failed already.
    pub tried: &'a [Endpoint],
}

/// An endpoint that is avoided now.
#[derive(Debug, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Out {
    pub workload: String,
    pub port: u16,
    pub reason: &'static str,
    pub milliseconds_left: u64,
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
        asked: Asked<'_>,
        rng: &mut impl Rng,
    ) -> Result<Chosen, Failure> {
        let tried = asked.tried;
        match asked.destination {
            Destination::Workload { workload, address } => {
                if !tried.is_empty() {
                    return Err(Failure::NoEndpoint {
                        name: format!("workload {}", workload.uid).into(),
                        reason: mesh::NoEndpoint::AllTried,
                    });
                }
                // Its latest state, as it may have joined the mesh meanwhile.
                let workload = known.mesh.workload(&workload.uid).unwrap_or(workload);
                reach(own, workload, None, Where::At(*address))
            }
            Destination::Service { service, port, .. }
            | Destination::Routed { service, port, .. } => {
                self.of_service(known, own, (service, *port), asked, rng)
            }
        }
    }

    fn of_service(
        &self,
        known: &Known,
        own: &Own,
        (service, port): (&Arc<Service>, u16),
        asked: Asked<'_>,
        rng: &mut impl Rng,
    ) -> Result<Chosen, Failure> {
        // As it is now, with its present balancing; or as it was when it is just gone.
        let now = known.mesh.service(&service.namespace, &service.hostname);
        let service = now.unwrap_or(service);
        let pod = own_workload(&known.mesh, own)?;
        let standings = self.standings.read();
        let seen = Seen {
            standings: &standings,
            tried: asked.tried,
            now: Instant::now(),
        };
        let of = OfService {
            service,
            port,
            policy: asked.policy,
            key: asked.key,
            pin: asked.pin,
        };
        let picked = asked.observed.pick(&known.mesh, pod, of, seen, rng);
        let picked = picked.map_err(|reason| Failure::NoEndpoint {
            name: format!("service {}", service.key()).into(),
            reason,
        })?;
        reach(
            own,
            &picked.workload,
            Some(service),
            Where::Port(picked.port),
        )
    }

    pub fn begin(self: &Arc<Self>, endpoint: Endpoint) -> Using {
        self.standings.write().began(&endpoint, Instant::now());
        Using {
            endpoints: Arc::clone(self),
            endpoint,
        }
    }

    /// What was seen of a destination.
    pub fn observed(&self, destination: &Destination) -> Arc<Observed> {
        let place = Place::of(destination);
        if let Some(observed) = self.observed.read().get(&place) {
            return Arc::clone(observed);
        }
        Arc::clone(self.observed.write().entry(place).or_default())
    }

    /// Forgets what was seen of destinations that are gone and not in use; call it now and then.
    pub fn expire(&self, known: &Known) {
        let mesh = &known.mesh;
        self.observed.write().retain(|place, observed| {
            let exists = match &*place.namespace {
                "" => mesh.workload(&place.name).is_some(),
                namespace => mesh.service(namespace, &place.name).is_some(),
            };
            exists || Arc::strong_count(observed) > 1
        });
    }

    /// Those that are avoided now.
    pub fn out(&self) -> Vec<Out> {
        let now = Instant::now();
        let out = |endpoint: &Endpoint, reason, left: Duration| Out {
            workload: endpoint.workload.to_string(),
            port: endpoint.port,
            reason,
            milliseconds_left: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
        };
        let standings = self.standings.read();
        let failing = standings.out(now).map(|(endpoint, failing)| {
            out(
                endpoint,
                "fails to connect",
                failing.until.duration_since(now),
            )
        });
        let observed = self.observed.read();
        let outliers = observed.values().flat_map(|observed| observed.out(now));
        let outliers = outliers.map(|(endpoint, left)| out(&endpoint, "answers with errors", left));
        failing.chain(outliers).collect()
    }
}

impl Place {
    fn of(destination: &Destination) -> Self {
        let (namespace, name, port) = match destination {
            Destination::Service { service, port, .. }
            | Destination::Routed { service, port, .. } => {
                (service.namespace.clone(), service.hostname.clone(), *port)
            }
            Destination::Workload { workload, address } => {
                ("".into(), workload.uid.clone(), address.port())
            }
        };
        Self {
            namespace,
            name,
            port,
        }
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

/// Where a workload is to be reached.
enum Where {
    /// At the address that was asked for.
    At(SocketAddr),
    /// At a port of any address that suits.
    Port(u16),
}

fn reach(
    own: &Own,
    workload: &Arc<Workload>,
    service: Option<&Service>,
    place: Where,
) -> Result<Chosen, Failure> {
    let unreachable = |reason| Failure::Unreachable {
        workload: workload.uid.clone(),
        reason,
    };
    if workload.network != own.network {
        return Err(unreachable("it is on another network"));
    }
    let address = match place {
        Where::At(address) => address,
        Where::Port(port) => match balance::choose_address(workload, service, own.address) {
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
