// SPDX-License-Identifier: Apache-2.0
//! What all connections of this process share, and what those of one worker do.

use std::sync::Arc;

use hbone::Pool;
use identity::Certificates;
use ops::shutdown::DrainSignal;
use ops::workers::{WorkerId, Workers};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::authorize::{self, Rules, Verdict};
use crate::config::{Limits, Own};
use crate::connection::Habits;
use crate::connections::{Carried, Connections};
use crate::destination::own_workload;
use crate::endpoints::{Chosen, Endpoints, Observed};
use crate::hostnames::Hostnames;
use crate::memory::Memory;
use crate::pool::{HttpPool, Lease};
use crate::rate_limit::Buckets;
use crate::record::Recorder;
use crate::state::State;
use crate::tls::Configs;
use crate::upstream::Version;

/// Copies of requests that are on their way at a time.
const MOST_COPIES: usize = 1024;

/// Bytes of bodies that are held for authorizers at a time, in pieces of a kilobyte.
const MOST_HELD: usize = 64 << 10;

pub struct Waypoint {
    pub own: Own,
    pub state: Arc<State>,
    pub certificates: Certificates,
    pub recorder: Arc<Recorder>,
    pub endpoints: Arc<Endpoints>,
    pub connections: Arc<Connections>,
    pub workers: Workers,
    pub hbone: hbone::Config,
    pub limits: Limits,
    /// One permit for each connection that may be open.
    pub places: Arc<Semaphore>,
    pub draining: DrainSignal,
    pub habits: Habits,
    pub hostnames: Hostnames,
    pub tls: Configs,
    pub rate_limits: Buckets,
    pub memory: Memory,
    mirrors: Arc<Semaphore>,
    bodies: Arc<Semaphore>,
    per_worker: Box<[PerWorker]>,
}

/// What is used by the connections of one worker alone.
pub struct PerWorker {
    tunnels: Pool,
    http: HttpPool,
}

/// What a waypoint is made of.
pub struct Parts {
    pub own: Own,
    pub state: Arc<State>,
    pub certificates: Certificates,
    pub recorder: Arc<Recorder>,
    pub workers: Workers,
    pub hbone: hbone::Config,
    pub limits: Limits,
    pub draining: DrainSignal,
}

impl Waypoint {
    pub fn new(parts: Parts) -> Self {
        let workers = parts.workers.count();
        let most_idle = parts.limits.idle_connections.div_ceil(workers.max(1));
        let per_worker = (0..workers).map(|_| PerWorker {
            tunnels: Pool::new(parts.hbone.clone(), Arc::new(parts.certificates.clone())),
            http: HttpPool::new(most_idle),
        });
        Self {
            per_worker: per_worker.collect(),
            places: Arc::new(Semaphore::new(parts.limits.connections)),
            own: parts.own,
            state: parts.state,
            certificates: parts.certificates,
            recorder: parts.recorder,
            endpoints: Arc::default(),
            connections: Arc::default(),
            workers: parts.workers,
            hbone: parts.hbone,
            limits: parts.limits,
            draining: parts.draining,
            habits: Habits::default(),
            hostnames: Hostnames::default(),
            tls: Configs::default(),
            rate_limits: Buckets::default(),
            memory: Memory::default(),
            mirrors: Arc::new(Semaphore::new(MOST_COPIES)),
            bodies: Arc::new(Semaphore::new(MOST_HELD)),
        }
    }

    /// Ends what is open and no longer allowed, and says how much that was. Requests are decided on one by one, and not
    /// again.
    pub fn decide_again(&self) -> usize {
        let known = self.state.read();
        // A pod that the control plane withdrew for a moment keeps what it has; new connections are refused.
        let Ok(pod) = own_workload(&known.mesh, &self.own) else {
            return 0;
        };
        let policies = authorize::policies(&known.mesh, pod);
        self.connections.decide_again(|facts, carried| {
            let verdict = authorize::decide(&policies, facts);
            if verdict != Verdict::Allowed || carried == Carried::Requests {
                return verdict;
            }
            match Rules::of(&known, facts.service.as_ref()) {
                Ok(rules) => rules
                    .carry(facts)
                    .map_or_else(Verdict::Denied, |_| Verdict::Allowed),
                Err(unserved) => Verdict::Missing(unserved.to_string().into()),
            }
        })
    }

    /// Room for one more copy of a request; none where too many are on their way.
    pub fn mirror_place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.mirrors).try_acquire_owned().ok()
    }

    /// Room to hold so many bytes of a body; none where too many are held.
    pub fn body_place(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let pieces = u32::try_from(bytes.div_ceil(1 << 10)).ok()?;
        Arc::clone(&self.bodies).try_acquire_many_owned(pieces).ok()
    }

    /// Closes the connections to endpoints that nobody has used for long; call it now and then.
    pub fn expire(&self) {
        for worker in &self.per_worker {
            worker.http.expire();
        }
        let known = self.state.read();
        self.endpoints.expire(&known);
        self.memory.expire(&known.mesh);
    }

    /// A connection to an endpoint that any worker has free, for who may not make another.
    pub fn ready(&self, chosen: &Chosen, version: Version) -> Option<Lease> {
        let most = self.limits.requests_per_endpoint;
        let mut workers = self.per_worker.iter();
        workers.find_map(|worker| worker.http.ready(chosen, version, most))
    }

    /// Closes the idle connections of a destination, on all workers, to make room for another.
    pub fn close_idle(&self, of: &Arc<Observed>) {
        for worker in &self.per_worker {
            worker.http.close_idle(of);
        }
    }

    pub fn worker(&self, worker: WorkerId) -> &PerWorker {
        &self.per_worker[worker.index()]
    }

    /// Tunnels to endpoints, of all workers, and the streams in them.
    pub fn tunnels_and_streams(&self) -> (usize, usize) {
        let pools = || self.per_worker.iter().map(|worker| &worker.tunnels);
        (
            pools().map(Pool::tunnels).sum(),
            pools().map(Pool::streams).sum(),
        )
    }
}

impl PerWorker {
    pub fn tunnels(&self) -> &Pool {
        &self.tunnels
    }

    pub fn http(&self) -> &HttpPool {
        &self.http
    }
}
