// SPDX-License-Identifier: Apache-2.0
//! What all connections of this process share, and what those of one worker do.

use std::sync::Arc;

use hbone::Pool;
use identity::Certificates;
use ops::shutdown::DrainSignal;
use ops::workers::{WorkerId, Workers};
use tokio::sync::Semaphore;

use crate::config::{Limits, Own};
use crate::connections::Connections;
use crate::endpoints::Endpoints;
use crate::record::Recorder;
use crate::state::State;

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
    per_worker: Box<[PerWorker]>,
}

/// What is used by the connections of one worker alone.
pub struct PerWorker {
    tunnels: Pool,
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
        let per_worker = (0..parts.workers.count()).map(|_| PerWorker {
            tunnels: Pool::new(parts.hbone.clone(), Arc::new(parts.certificates.clone())),
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
}
