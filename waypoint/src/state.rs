// SPDX-License-Identifier: Apache-2.0
//! What this waypoint knows at this moment: the mesh, and the services that it serves.
//!
//! In: decoded responses of the control plane. Out: consistent reads, and word of every change for whoever waits for
//! something to arrive.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use mesh::{Changes, NamespacedHostname, Store};
use parking_lot::{RwLock, RwLockReadGuard};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::route;
use crate::settings::Settings;

/// Its parts change independently; a service may be known as one before it is known as the other.
#[derive(Default)]
pub struct Known {
    pub mesh: Store,
    /// What the control plane says of each service that is served here.
    pub served: HashMap<NamespacedHostname, Arc<route::Service>>,
    /// What holds for all of them; nothing is served before it is known.
    pub settings: Option<Arc<Settings>>,
}

pub struct State {
    known: RwLock<Known>,
    changed: watch::Sender<u64>,
}

impl State {
    pub fn new() -> Self {
        Self {
            known: RwLock::new(Known {
                mesh: Store::new(None),
                served: HashMap::new(),
                settings: None,
            }),
            changed: watch::Sender::new(0),
        }
    }

    #[cfg(test)]
    pub fn knowing(known: Known) -> Self {
        Self {
            known: RwLock::new(known),
            ..Self::new()
        }
    }

    pub fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read()
    }

    /// Applies one update of the mesh and wakes whoever waits for it, after the lock is gone.
    pub fn update_mesh(&self, apply: impl FnOnce(&mut Store) -> Changes) {
        let changes = apply(&mut self.known.write().mesh);
        if !changes.is_empty() {
            self.changed.send_modify(|count| *count += 1);
        }
    }

    /// The same for the services that are served here.
    pub fn update_served(
        &self,
        updated: Vec<(NamespacedHostname, route::Service)>,
        removed: &[NamespacedHostname],
    ) {
        let mut known = self.known.write();
        for (name, served) in updated {
            known.served.insert(name, Arc::new(served));
        }
        for name in removed {
            known.served.remove(name);
        }
        drop(known);
        self.changed.send_modify(|count| *count += 1);
    }

    /// The same for what holds for all of them.
    pub fn update_settings(&self, settings: Option<Settings>) {
        self.known.write().settings = settings.map(Arc::new);
        self.changed.send_modify(|count| *count += 1);
    }

    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Asks again at every change until there is an answer; the last refusal once the limit is reached.
    pub async fn wait_for<T, E>(
        &self,
        limit: Duration,
        mut ask: impl FnMut(&Known) -> Result<T, E>,
    ) -> Result<T, E> {
        if let Ok(answer) = ask(&self.known.read()) {
            return Ok(answer);
        }
        let mut changes = self.changes();
        let deadline = Instant::now() + limit;
        loop {
            // Subscribed before asking: a change in between is not missed.
            let refusal = match ask(&self.known.read()) {
                Ok(answer) => return Ok(answer),
                Err(refusal) => refusal,
            };
            match timeout_at(deadline, changes.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return Err(refusal),
            }
        }
    }
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}
