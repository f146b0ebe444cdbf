// SPDX-License-Identifier: Apache-2.0
//! HTTP connections to endpoints, kept for the next request. Each worker has its own.
//!
//! ```text
//!             ┌ one that is idle (HTTP/1) or has room (HTTP/2) ──────► Lease ─ request ─► answer read ─► given back ─┐
//!  checkout ──┼ none, and few are being made ─► Place ─ connect, handshake ─► Lease                                  │
//!             └ none, and enough are there, or being made ─► wait, in order of coming, for either ◄──────────────────┘
//! ```
//!
//! To connect costs more than a request does, so that a crowd that connected at once would keep an endpoint from answering:
//! it gets as many connections as bring more answers (`growth`), and those few at a time.
//!
//! Bounds: requests under way to one endpoint, those that wait with them; connections being made to it at a time; idle ones
//! of the worker, and how long they are kept. The latest used is used next, so that what is too much grows old and ends.

mod entry;
mod growth;
mod lease;
mod place;

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use self::entry::{Entry, Found};
pub use self::lease::{Lease, Unanswered};
pub use self::place::Place;
use crate::endpoints::{Chosen, Observed, Way};
use crate::failure::Failure;
use crate::tls::Tls;
use crate::upstream::Version;

/// Whose connections may be shared.
#[derive(Debug, PartialEq, Eq)]
struct Key {
    workload: Arc<str>,
    address: SocketAddr,
    way: Way,
    tls: Option<Arc<Tls>>,
    version: Version,
}

impl Key {
    fn of(chosen: &Chosen, version: Version) -> Self {
        Self {
            workload: chosen.workload.uid.clone(),
            address: chosen.address,
            way: chosen.way.clone(),
            tls: chosen.tls.clone(),
            version,
        }
    }
}

/// By the address: few endpoints share one, and identities are long.
impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.address.hash(state);
        self.version.hash(state);
    }
}

struct Inner {
    entries: HashMap<Arc<Key>, Entry>,
    /// Of the next HTTP/2 connection.
    next: u64,
    /// Each idle connection has one, beside this.
    idle: Arc<()>,
    most_idle: usize,
}

/// The connections of one worker.
#[derive(Clone)]
pub struct HttpPool(Arc<Mutex<Inner>>);

/// What a request gets to an endpoint.
pub enum Checkout {
    /// A connection.
    Ready(Lease),
    /// The permission to make one.
    Connect(Place),
    /// Either of them, once it can be had.
    Wait(oneshot::Receiver<Granted>),
}

/// What a request that waited gets.
pub enum Granted {
    Lease(Lease),
    Place(Place),
    /// The endpoint can't be connected to.
    Failed(Failure),
}

impl HttpPool {
    /// An empty pool, of which so many connections may be idle at a time.
    pub fn new(most_idle: usize) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            entries: HashMap::new(),
            next: 0,
            idle: Arc::default(),
            most_idle,
        })))
    }

    /// A connection, the permission to make one, or a place in the queue for either, of whom there are `most` and none is
    /// to wait for longer than `patience`.
    ///
    /// # Errors
    /// As many requests are under way to the endpoint, or wait for it, as may be.
    pub fn checkout(
        &self,
        chosen: &Chosen,
        version: Version,
        bounds: (usize, Duration),
    ) -> Result<Checkout, Failure> {
        let key = Key::of(chosen, version);
        let mut inner = self.0.lock();
        let entries = &mut inner.entries;
        let entry = match entries.get_mut(&key) {
            Some(entry) => entry,
            None => {
                let key = Arc::new(key);
                let entry = Entry::new(Arc::clone(&key));
                entries.entry(key).or_insert(entry)
            }
        };
        let key = Arc::clone(entry.key());
        let found = entry.take(bounds, Instant::now())?;
        let is_to_be_watched = entry.is_to_be_watched();
        drop(inner);
        if is_to_be_watched {
            tokio::spawn(self.clone().watch(Arc::clone(&key)));
        }
        Ok(match found {
            Found::Carrier(carrier) => {
                Checkout::Ready(Lease::new(self.clone(), key, carrier, true))
            }
            Found::Room => Checkout::Connect(Place::new(self.clone(), key)),
            Found::Queue(granted) => Checkout::Wait(granted),
        })
    }

    /// A connection that is idle or has room, if there is one; for who may not make another, whichever worker it is of.
    pub fn ready(&self, chosen: &Chosen, version: Version, most: usize) -> Option<Lease> {
        let key = Key::of(chosen, version);
        let mut inner = self.0.lock();
        let entry = inner.entries.get_mut(&key)?;
        let carrier = entry.ready(most, Instant::now())?;
        let key = Arc::clone(entry.key());
        drop(inner);
        Some(Lease::new(self.clone(), key, carrier, true))
    }

    /// Closes what has waited for too long; call it now and then.
    pub fn expire(&self) {
        let now = Instant::now();
        self.0.lock().entries.retain(|_, entry| {
            entry.expire(now);
            !entry.is_unused()
        });
    }

    /// Closes the idle connections that count among a destination's.
    pub fn close_idle(&self, of: &Arc<Observed>) {
        for entry in self.0.lock().entries.values_mut() {
            entry.close_idle(of);
        }
    }

    /// Looks, as long as somebody waits for an endpoint, whether more connections to it are worth having.
    async fn watch(self, key: Arc<Key>) {
        let mut waits = true;
        while std::mem::take(&mut waits) {
            tokio::time::sleep(growth::TICK).await;
            self.change(&key, |entry| waits = entry.look());
        }
    }

    /// Something about an endpoint's connections changes: whoever waits there gets what follows from it.
    fn change(&self, key: &Arc<Key>, change: impl FnOnce(&mut Entry)) {
        let mut inner = self.0.lock();
        let Some(entry) = inner.entries.get_mut(&**key) else {
            return;
        };
        change(entry);
        let granted = entry.grant(Instant::now());
        drop(inner);
        for (waiting, found) in granted {
            let granted = match found {
                Some(carrier) => {
                    Granted::Lease(Lease::new(self.clone(), Arc::clone(key), carrier, true))
                }
                None => Granted::Place(Place::new(self.clone(), Arc::clone(key))),
            };
            // Who has given up meanwhile leaves it to the next: dropped, it comes back here.
            drop(waiting.send(granted));
        }
    }

    /// A connection was not made, by the endpoint's fault.
    fn failed(&self, key: &Arc<Key>, failure: &Failure) {
        let mut hopeless = Default::default();
        self.change(key, |entry| hopeless = entry.failed());
        for waiting in hopeless {
            drop(waiting.send(Granted::Failed(failure.clone())));
        }
    }

    /// A token for one more idle connection; none where none may be. Where there are too many, every endpoint's older half
    /// makes room.
    fn idle_token(&self) -> Option<Arc<()>> {
        let inner = &mut *self.0.lock();
        let count = |idle: &Arc<()>| Arc::strong_count(idle) - 1;
        if count(&inner.idle) >= inner.most_idle {
            inner.entries.values_mut().for_each(Entry::halve_idle);
        }
        (count(&inner.idle) < inner.most_idle).then(|| Arc::clone(&inner.idle))
    }

    fn next_number(&self) -> u64 {
        let mut inner = self.0.lock();
        inner.next += 1;
        inner.next
    }
}

#[cfg(test)]
mod tests;
