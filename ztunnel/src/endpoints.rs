// SPDX-License-Identifier: Apache-2.0
//! What this node sees of endpoints, kept for all its pods: who fails to connect, and who carries how much.
//!
//! In: attempts to connect and what became of them. Out: the facts that a choice of endpoint goes by, metrics and an
//! admin view. What to make of the facts is `mesh::standing`'s to say.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use mesh::{Endpoint, Standings, Workload};
use ops::metrics::Metrics;
use parking_lot::{RwLock, RwLockReadGuard};
use serde::Serialize;
use tracing::{info, warn};

use crate::failure::Failure;
use crate::route::Route;

pub struct Endpoints {
    standings: RwLock<Standings>,
    metrics: Metrics,
    ejections: metrics::Counter,
}

/// An endpoint that is avoided, for the admin view.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EjectedView {
    pub workload_uid: Arc<str>,
    pub port: u16,
    /// In a row.
    pub failures: u32,
    pub milliseconds_left: u128,
}

/// An attempt to connect, later the connection: the endpoint carries it until this is dropped.
pub struct Using {
    endpoints: Arc<Endpoints>,
    endpoint: Endpoint,
}

impl Endpoints {
    pub fn new(metrics: &Metrics) -> Arc<Self> {
        for (name, help) in [
            (
                "culvert_connect_retries_total",
                "Attempts to connect that were made again at another endpoint, by what failed (unstable)",
            ),
            (
                "culvert_endpoint_ejections_total",
                "Times that an endpoint was avoided because it failed to connect (unstable)",
            ),
            (
                "culvert_ejected_endpoints",
                "The number of endpoints that are avoided now (unstable)",
            ),
        ] {
            metrics.describe(name, help);
        }
        let endpoints = Arc::new(Self {
            standings: RwLock::default(),
            metrics: metrics.clone(),
            ejections: metrics.counter("culvert_endpoint_ejections_total", &[]),
        });
        let ejected = metrics.gauge("culvert_ejected_endpoints", &[]);
        let counted = Arc::downgrade(&endpoints);
        metrics.before_scrape(move || {
            if let Some(endpoints) = counted.upgrade() {
                let out = endpoints.standings.read().out(Instant::now()).count();
                ejected.set(out as f64);
            }
        });
        endpoints
    }

    /// For the time of one choice.
    pub fn standings(&self) -> RwLockReadGuard<'_, Standings> {
        self.standings.read()
    }

    pub fn begin(self: &Arc<Self>, endpoint: Endpoint) -> Using {
        self.standings.write().began(&endpoint, Instant::now());
        Using {
            endpoints: Arc::clone(self),
            endpoint,
        }
    }

    /// An attempt is made again elsewhere.
    pub fn retried(&self, service: &str, reason: &str) {
        let labels = [("destination_service", service), ("reason", reason)];
        self.metrics
            .counter("culvert_connect_retries_total", &labels)
            .increment(1);
    }

    /// The one that comes back first stands first.
    pub fn ejected(&self) -> Vec<EjectedView> {
        let now = Instant::now();
        let standings = self.standings.read();
        let views = standings.out(now).map(|(endpoint, failing)| EjectedView {
            workload_uid: endpoint.workload.clone(),
            port: endpoint.port,
            failures: failing.failures,
            milliseconds_left: failing.until.duration_since(now).as_millis(),
        });
        let mut views: Vec<_> = views.collect();
        views.sort_by_key(|view| view.milliseconds_left);
        views
    }
}

impl Using {
    /// It connects; whatever it did before is forgiven.
    pub fn succeeded(&self) {
        let Endpoint { workload, port } = &self.endpoint;
        let standings = &self.endpoints.standings;
        // Nearly always there is nothing to forgive, and then nobody need wait for the lock.
        if standings.read().all_trusted() {
            return;
        }
        if standings.write().succeeded(&self.endpoint) {
            info!(endpoint = %workload, port, "endpoint connects again");
        }
    }

    /// It doesn't, by its own fault.
    pub fn failed(&self, at: SocketAddr, failure: &Failure) {
        let Endpoint { workload, port } = &self.endpoint;
        let now = Instant::now();
        let out_for = self.endpoints.standings.write().failed(&self.endpoint, now);
        if let Some(out_for) = out_for {
            self.endpoints.ejections.increment(1);
            warn!(endpoint = %workload, port, %at, ?out_for, error = %failure, "endpoint fails to connect and is avoided");
        }
    }
}

impl Drop for Using {
    fn drop(&mut self) {
        self.endpoints.standings.write().ended(&self.endpoint);
    }
}

/// Whose connecting tells how well it does; nobody that is known where the mesh has no part in it.
pub fn endpoint_of(route: &Route) -> Option<Endpoint> {
    let at = |workload: &Workload, port| Endpoint {
        workload: workload.uid.clone(),
        port,
    };
    match route {
        Route::Passthrough { .. } | Route::Refused { .. } => None,
        Route::Unresolved(unresolved) => endpoint_of(unresolved.route()),
        Route::Direct {
            destination,
            workload,
            ..
        } => Some(at(workload, destination.port())),
        Route::Hbone {
            authority,
            workload,
            ..
        } => Some(at(workload, authority.port())),
        Route::Waypoint {
            tunnel,
            waypoint: between,
            ..
        }
        | Route::Gateway {
            tunnel,
            gateway: between,
            ..
        } => Some(at(between, tunnel.port())),
    }
}
