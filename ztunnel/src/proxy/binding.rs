// SPDX-License-Identifier: Apache-2.0
//! The workload that a pod is, asked of the mesh and the kernel together; waited for a while where that may help.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use capture::Netns;
use mesh::{Store, Workload};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::warn;

use super::{PodProxy, YOUTH};
use crate::binding::{Handed, Unbound};
use crate::failure::Failure;

/// How long a connection waits for its own pod to become known to the mesh.
const WORKLOAD_PATIENCE: Duration = Duration::from_secs(5);
/// What the kernel said of a pod's addresses is asked again after this long.
const GOOD_FOR: Duration = Duration::from_secs(5);
/// Where an address is missing it is asked again, but not more often than this.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// The addresses of a pod's interfaces.
pub(super) struct Held {
    netns: Netns,
    known: Mutex<Known>,
}

struct Known {
    addresses: Arc<BTreeSet<IpAddr>>,
    /// When they were asked for, whatever came of it.
    asked: Instant,
}

impl Held {
    /// Asks once: a pod of which nothing is known must not be served.
    pub(super) fn read(netns: &Netns) -> io::Result<Self> {
        let known = Known {
            addresses: Arc::new(netns.addresses()?),
            asked: Instant::now(),
        };
        Ok(Self {
            netns: netns.clone(),
            known: Mutex::new(known),
        })
    }

    /// As they were `age` ago or later. Where the kernel can't be asked, for want of descriptors, as they were before.
    fn not_older_than(&self, age: Duration) -> Arc<BTreeSet<IpAddr>> {
        let mut known = self.known.lock();
        if known.asked.elapsed() >= age {
            known.asked = Instant::now();
            match self.netns.addresses() {
                Ok(addresses) if addresses == *known.addresses => {}
                Ok(addresses) => known.addresses = Arc::new(addresses),
                Err(error) => warn!(netns = %self.netns.id(), %error, "addresses of a pod"),
            }
        }
        Arc::clone(&known.addresses)
    }
}

impl PodProxy {
    /// The workload that this pod is, as the mesh knows it now.
    pub fn workload(&self) -> Result<Arc<Workload>, Unbound> {
        self.bound(|handed, store| handed.workload(store))
    }

    /// As [`Self::workload`], for a stream of a tunnel that ends at this address.
    pub fn workload_now_at(&self, address: IpAddr) -> Result<Arc<Workload>, Unbound> {
        self.bound(|handed, store| handed.workload_at(store, address))
    }

    /// The workload that this pod is, waited for a while; of a young pod, too, as whoever asks for a name is less patient
    /// than whoever connects.
    pub async fn known_workload(&self) -> Result<Arc<Workload>, Failure> {
        let waited = self.wait(|handed, store| handed.workload(store));
        match timeout(WORKLOAD_PATIENCE, waited).await {
            Ok(answer) => answer,
            Err(_) => self.workload().map_err(Failure::from),
        }
    }

    /// The workload that this pod is, provided that `address` is its own: a connection uses its identity there.
    pub async fn workload_at(&self, address: IpAddr) -> Result<Arc<Workload>, Failure> {
        self.wait(|handed, store| handed.workload_at(store, address))
            .await
    }

    /// The workload that this pod is, provided that plaintext for `address` is meant for it.
    pub async fn workload_reached(&self, address: IpAddr) -> Result<Arc<Workload>, Failure> {
        self.wait(|handed, store| handed.workload_reached(store, address))
            .await
    }

    /// The workload that this pod is and an address that it speaks from, for a connection that came by loopback and so
    /// has no such address itself.
    pub async fn workload_towards(
        &self,
        destination: IpAddr,
    ) -> Result<(Arc<Workload>, IpAddr), Failure> {
        self.wait(|handed, store| handed.workload_towards(store, destination))
            .await
    }

    async fn wait<T>(
        &self,
        ask: impl Fn(Handed<'_>, &Store) -> Result<T, Unbound>,
    ) -> Result<T, Failure> {
        let unbound = match self.bound(&ask) {
            Ok(workload) => return Ok(workload),
            Err(unbound) if !unbound.may_pass() => return Err(unbound.into()),
            Err(unbound) => unbound,
        };
        // Rarely needed, and not small.
        Box::pin(self.wait_on(unbound, ask)).await
    }

    async fn wait_on<T>(
        &self,
        mut unbound: Unbound,
        ask: impl Fn(Handed<'_>, &Store) -> Result<T, Unbound>,
    ) -> Result<T, Failure> {
        let deadline = self.patience(&unbound);
        // Subscribed before asking: a change in between is not missed.
        let mut changes = self.shared.mesh.changes();
        while unbound.may_pass() && Instant::now() < deadline {
            unbound = match self.bound(&ask) {
                Ok(workload) => return Ok(workload),
                Err(unbound) => unbound,
            };
            // The kernel does not tell by itself.
            let again = deadline.min(Instant::now() + ASK_AGAIN);
            tokio::select! {
                _ = changes.changed() => {}
                () = sleep_until(again) => {}
            }
        }
        Err(unbound.into())
    }

    /// Until when to wait where a pod is not what the mesh knows.
    fn patience(&self, unbound: &Unbound) -> Instant {
        let usual = Instant::now() + WORKLOAD_PATIENCE;
        match unbound {
            // The first word of the pod, or of the one that has its name now.
            Unbound::Unknown(_) | Unbound::ForeignNamespace { .. } | Unbound::OtherPod { .. } => {
                usual.max(self.started + YOUTH)
            }
            _ => usual,
        }
    }

    /// Asks with what is known of the pod's addresses, and with what the kernel says now if that is not enough.
    fn bound<T>(
        &self,
        ask: impl Fn(Handed<'_>, &Store) -> Result<T, Unbound>,
    ) -> Result<T, Unbound> {
        let with = |held: &BTreeSet<IpAddr>| {
            let (uid, info) = (&self.uid, &self.info);
            ask(Handed { uid, info, held }, &self.shared.mesh.read())
        };
        let held = self.held.not_older_than(GOOD_FOR);
        match with(&held) {
            // Of which the kernel knows nothing.
            Err(unbound @ (Unbound::Unknown(_) | Unbound::OtherPod { .. })) => Err(unbound),
            Err(_) => with(&self.held.not_older_than(ASK_AGAIN)),
            workload => workload,
        }
    }
}
