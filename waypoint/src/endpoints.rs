// SPDX-License-Identifier: Apache-2.0
//! Which endpoint takes a connection or a request, and what was seen of endpoints: who fails to connect, who carries how
//! much, who answers how soon and with errors.
//!
//! In: what is known, how the port's endpoints are to be chosen, and what this very connection has tried. Out: an endpoint
//! with its address and the way to it. What to make of failures is `mesh::standing`'s and `resilience`'s to say.

mod carried;
mod observed;
mod queue;
mod snapshot;
mod way;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use mesh::{Endpoint, Seen, Service, Standings};
use rand::Rng;
use spiffe::SpiffeId;
use tracing::warn;

use self::carried::Carried;
use self::observed::Asked as OfService;
pub use self::observed::{Begun, Observed};
use self::snapshot::Snapshot;
use self::way::Asker;
pub use self::way::{Choice, Chosen, Gateway, Place, Way};
use crate::config::Own;
use crate::destination::{Destination, own_workload};
use crate::failure::Failure;
use crate::resilience::hash::Key;
use crate::resilience::traffic::TrafficPolicy;
use crate::session::Pin;
use crate::state::Known;

/// What was seen of all endpoints, by all workers.
#[derive(Default)]
pub struct Endpoints {
    /// Who fails to connect.
    standings: Snapshot<Standings>,
    carried: Arc<Carried>,
    /// One for each destination that was asked for, until its service is gone.
    observed: Snapshot<HashMap<Account, Arc<Observed>>>,
}

/// A port of a service, or of a workload, whose namespace is empty here.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Account {
    namespace: Arc<str>,
    name: Arc<str>,
    port: u16,
    /// A part of its endpoints, where a route means that alone; else empty.
    part: Arc<str>,
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
    /// The client, unless this waypoint asks for itself.
    pub speaks_for: Option<&'a SpiffeId>,
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
    carried: Arc<AtomicU32>,
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
    ) -> Result<Choice, Failure> {
        let choice = self.one(known, own, asked, rng)?;
        Ok(match asked.speaks_for {
            Some(client) => choice.speaking_for(client, known, own),
            None => choice,
        })
    }

    fn one(
        &self,
        known: &Known,
        own: &Own,
        asked: Asked<'_>,
        rng: &mut impl Rng,
    ) -> Result<Choice, Failure> {
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
                way::to_workload(own, workload, *address)
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
    ) -> Result<Choice, Failure> {
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
        let asker = Asker {
            known,
            own,
            pod,
            seen,
        };
        let choice = asker.endpoint(&picked, (service, port), rng)?;
        Ok(Choice {
            tls: asked.policy.tls.clone(),
            ..choice
        })
    }

    /// An attempt to connect to an endpoint of an observed destination.
    pub fn begin(self: &Arc<Self>, observed: &Observed, endpoint: Endpoint) -> Using {
        let carried = observed.counter(&endpoint);
        carried.fetch_add(1, Ordering::Relaxed);
        if self.standings.read().is_failing(&endpoint) {
            self.standings
                .change(|standings| standings.tried(&endpoint, Instant::now()));
        }
        Using {
            endpoints: Arc::clone(self),
            endpoint,
            carried,
        }
    }

    /// What was seen of a destination.
    pub fn observed(&self, destination: &Destination) -> Arc<Observed> {
        let account = Account::of(destination);
        if let Some(observed) = self.observed.read().get(&account) {
            return Arc::clone(observed);
        }
        let new = || Arc::new(Observed::new(&self.carried));
        self.observed
            .change(|observed| Arc::clone(observed.entry(account).or_insert_with(new)))
    }

    /// Forgets what was seen of destinations that are gone and not in use; call it now and then.
    pub fn expire(&self, known: &Known) {
        let (mesh, now) = (&known.mesh, Instant::now());
        for observed in self.observed.read().values() {
            observed.expire(now);
        }
        self.observed.change(|all| {
            all.retain(|account, observed| {
                let exists = match &*account.namespace {
                    "" => mesh.workload(&account.name).is_some(),
                    namespace => mesh.service(namespace, &account.name).is_some(),
                };
                // Parts come and go with the routes that mean them.
                let is_kept = account.part.is_empty() || observed.has_any_out(now);
                // The copy that others read has one, and this one another.
                exists && is_kept || Arc::strong_count(observed) > 2
            });
        });
        if !self.standings.read().all_trusted() {
            self.standings.change(|standings| standings.forget(now));
        }
        self.carried.expire();
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

impl Account {
    fn of(destination: &Destination) -> Self {
        let part = destination.policy().part();
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
            part: part.cloned().unwrap_or_default(),
        }
    }
}

impl Using {
    /// It connects; whatever it did before is forgiven.
    pub fn succeeded(&self) {
        let standings = &self.endpoints.standings;
        // Nearly always there is nothing to forgive.
        if standings.read().is_failing(&self.endpoint) {
            standings.change(|standings| standings.succeeded(&self.endpoint));
        }
    }

    /// It doesn't, by its own fault.
    pub fn failed(&self, failure: &Failure) {
        let now = Instant::now();
        let standings = &self.endpoints.standings;
        let out_for = standings.change(|standings| standings.failed(&self.endpoint, now));
        if let Some(out_for) = out_for {
            let Endpoint { workload, port } = &self.endpoint;
            warn!(endpoint = %workload, port, ?out_for, error = %failure, "endpoint fails to connect and is avoided");
        }
    }
}

impl Drop for Using {
    fn drop(&mut self) {
        self.carried.fetch_sub(1, Ordering::Relaxed);
    }
}
