// SPDX-License-Identifier: Apache-2.0
//! Certificates taken back before their time, and the connections that live on them.
//!
//! ```text
//!  file ─► RevocationList ──replace──► Revocation ◄── handshakes ask: is this path revoked?
//!                                          │
//!                                          └─► every peer admitted before is looked at again: its standing ends
//! ```
//!
//! In: lists as they are loaded, peers as they are authenticated. Out: refusals in handshakes, and for each live
//! connection the moment in which its peer lost its standing. Who reads the file and who ends the connection is not
//! known here. What no list speaks of counts as good.

mod list;

pub use list::{MAX_LIST_BYTES, RevocationList, RevocationListError, Revoked};

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::SystemTime;

use parking_lot::{Mutex, RwLock};
use tokio::sync::oneshot;

use crate::path::Path;

/// What the one who shows a certificate is in the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerRole {
    /// It connected to us.
    Client,
    /// We connected to it.
    Server,
}

/// Hears of what revocation did; feeds metrics.
pub trait RevocationObserver: Send + Sync {
    /// A peer was turned away in the handshake, or its live connection ended.
    fn rejected(&self, peer: PeerRole);
    /// A peer's connection could not be registered: a later revocation will not end it.
    fn untracked(&self, peer: PeerRole);
}

/// What is revoked now, and who was admitted. Clones share it.
#[derive(Clone)]
pub struct Revocation(Arc<Inner>);

struct Inner {
    list: RwLock<Arc<RevocationList>>,
    admitted: Mutex<HashMap<u64, Admitted>>,
    next: AtomicU64,
    observer: Box<dyn RevocationObserver>,
}

struct Admitted {
    path: Path,
    role: PeerRole,
    withdraw: oneshot::Sender<Arc<str>>,
}

impl Revocation {
    /// Nothing is revoked yet.
    pub fn new(observer: impl RevocationObserver + 'static) -> Self {
        Self(Arc::new(Inner {
            list: RwLock::default(),
            admitted: Mutex::default(),
            next: AtomicU64::new(0),
            observer: Box::new(observer),
        }))
    }

    /// Takes this list for the truth from now on, and ends what it forbids. Returns how many connections that were.
    pub fn replace(&self, list: RevocationList) -> usize {
        let list = Arc::new(list);
        // Before the look at the admitted: who is admitted after it is judged by the new list.
        *self.0.list.write() = Arc::clone(&list);
        if list.is_empty() {
            return 0;
        }
        let gone: Vec<_> = {
            let mut admitted = self.0.admitted.lock();
            admitted
                .extract_if(|_, peer| list.find(&peer.path).is_some())
                .collect()
        };
        let count = gone.len();
        for (_, peer) in gone {
            self.withdraw(peer, &list);
        }
        count
    }

    /// What is revoked now.
    pub fn list(&self) -> Arc<RevocationList> {
        Arc::clone(&self.0.list.read())
    }

    /// How many connections would be ended by a revocation of their peer.
    pub fn admitted(&self) -> usize {
        self.0.admitted.lock().len()
    }

    /// Counts a peer that was turned away.
    pub(crate) fn rejected(&self, role: PeerRole) {
        self.0.observer.rejected(role);
    }

    /// Registers a peer whose handshake is done. Without a path it is only counted.
    pub(crate) fn admit(&self, role: PeerRole, path: Option<Path>) -> Standing {
        let Some(path) = path else {
            self.0.observer.untracked(role);
            return Standing::unconditional();
        };
        let (withdraw, withdrawn) = oneshot::channel();
        let id = self.0.next.fetch_add(1, Ordering::Relaxed);
        let peer = Admitted {
            path,
            role,
            withdraw,
        };
        self.0.admitted.lock().insert(id, peer);
        // A list that came between the handshake and this did not see it.
        let list = self.list();
        let late = {
            let mut admitted = self.0.admitted.lock();
            match admitted.get(&id) {
                Some(peer) if list.find(&peer.path).is_some() => admitted.remove(&id),
                _ => None,
            }
        };
        if let Some(peer) = late {
            self.withdraw(peer, &list);
        }
        Standing {
            registered: Some(Registered {
                withdrawn,
                revocation: self.clone(),
                id,
            }),
            valid_until: None,
        }
    }

    fn withdraw(&self, peer: Admitted, list: &RevocationList) {
        if let Some(revoked) = list.find(&peer.path) {
            self.0.observer.rejected(peer.role);
            // Nobody listens any more if the connection ended by itself meanwhile.
            let _ = peer.withdraw.send(format!("peer's {revoked}").into());
        }
    }
}

impl fmt::Debug for Revocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Revocation")
            .field("list", &self.list())
            .field("admitted", &self.admitted())
            .finish()
    }
}

/// Whether a peer may still be who it proved to be. Kept for as long as its connection lives.
#[derive(Debug)]
pub struct Standing {
    registered: Option<Registered>,
    valid_until: Option<SystemTime>,
}

struct Registered {
    withdrawn: oneshot::Receiver<Arc<str>>,
    revocation: Revocation,
    id: u64,
}

impl Standing {
    /// Of a peer that nothing is ever taken back from.
    pub fn unconditional() -> Self {
        Self {
            registered: None,
            valid_until: None,
        }
    }

    /// The same, proven by certificates of which the first ends then.
    #[must_use]
    pub fn until(self, end: SystemTime) -> Self {
        Self {
            valid_until: Some(end),
            ..self
        }
    }

    /// When what was proven has to be proven again: what is under way goes on, what begins later needs another
    /// connection.
    pub fn valid_until(&self) -> Option<SystemTime> {
        self.valid_until
    }

    /// Ready with the reason once the peer has lost its standing; never, as long as it has not.
    pub fn poll_withdrawn(&mut self, cx: &mut Context<'_>) -> Poll<Arc<str>> {
        let Some(registered) = &mut self.registered else {
            return Poll::Pending;
        };
        let withdrawn = ready!(Pin::new(&mut registered.withdrawn).poll(cx));
        self.registered = None;
        // Nobody but this value takes it off the register without a word.
        withdrawn.map_or(Poll::Pending, Poll::Ready)
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registered").field(&self.id).finish()
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.revocation.0.admitted.lock().remove(&self.id);
    }
}
