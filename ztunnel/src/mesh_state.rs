// SPDX-License-Identifier: Apache-2.0
//! What the mesh looks like at this moment, and who is told when it changes.
//!
//! In: batches of the control plane, or the local file. Out: consistent reads, and two signals: something changed, and
//! something changed that may take a live connection's permission away. Holds no opinion on any of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mesh::{AddressBatch, Changes, Store, Workload};
use parking_lot::{RwLock, RwLockReadGuard};
use tokio::sync::watch;
use tokio::time::timeout;

pub struct MeshState {
    store: RwLock<Store>,
    changed: watch::Sender<u64>,
    authorization: watch::Sender<u64>,
    /// Only workloads of this node, and policies, are of use any more.
    reduced: AtomicBool,
}

impl MeshState {
    pub fn new(store: Store) -> Self {
        Self {
            store: RwLock::new(store),
            changed: watch::Sender::new(0),
            authorization: watch::Sender::new(0),
            reduced: AtomicBool::new(false),
        }
    }

    pub fn read(&self) -> RwLockReadGuard<'_, Store> {
        self.store.read()
    }

    /// Applies one update under the lock and wakes whoever waits for it, after the lock is gone.
    pub fn update(&self, apply: impl FnOnce(&mut Store) -> Changes) -> Changes {
        let mut store = self.store.write();
        let changes = apply(&mut store);
        let concerns_us = changes.policies_changed
            || changes.workloads.iter().any(|uid| {
                store
                    .workload(uid)
                    .is_none_or(|workload| store.is_local(workload))
            });
        drop(store);
        if !changes.is_empty() {
            self.changed.send_modify(|count| *count += 1);
        }
        if concerns_us {
            self.authorization.send_modify(|count| *count += 1);
        }
        changes
    }

    /// Forgets what does not concern these workloads of this node, and takes no more of it in. Decisions on what is
    /// open need no more than this.
    pub fn reduce_to(&self, concerned: impl Fn(&Workload) -> bool) {
        self.reduced.store(true, Ordering::Relaxed);
        self.store.write().keep_only(concerned);
    }

    /// Leaves out of a batch what would not be kept.
    pub fn sift(&self, batch: &mut AddressBatch) {
        if self.reduced.load(Ordering::Relaxed) {
            let store = self.store.read();
            let known = |workload: &Workload| store.workload(&workload.uid).is_some();
            batch.workloads.retain(known);
            batch.services.clear();
        }
    }

    /// Every change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Changes of policies and of this node's workloads.
    pub fn authorization_changes(&self) -> watch::Receiver<u64> {
        self.authorization.subscribe()
    }

    /// Asks again at every change until there is an answer; none within the limit.
    pub async fn wait_for<T>(
        &self,
        limit: Duration,
        mut ask: impl FnMut(&Store) -> Option<T>,
    ) -> Option<T> {
        if let Some(answer) = ask(&self.store.read()) {
            return Some(answer);
        }
        let mut changes = self.changes();
        let asking = async {
            loop {
                // Subscribed before asking: a change in between is not missed.
                if let Some(answer) = ask(&self.store.read()) {
                    return Some(answer);
                }
                if changes.changed().await.is_err() {
                    return None;
                }
            }
        };
        timeout(limit, asking).await.ok().flatten()
    }
}
