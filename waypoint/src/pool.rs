// SPDX-License-Identifier: Apache-2.0
//! HTTP connections to endpoints, kept for the next request. Each worker has its own.
//!
//! ```text
//!  checkout ─► one that is idle (HTTP/1) or has room (HTTP/2)? ─ yes ─► Lease ─ request ─► answer read ─► given back
//!                 └─ no ─► connect, handshake ───────────────────────────┘
//! ```
//!
//! Bounds: requests under way to one endpoint, idle connections to it, and how long they are kept.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use tracing::debug;

use crate::body::AnyBody;
use crate::endpoints::{Begun, Chosen, Observed, Way};
use crate::failure::Failure;
use crate::http::MAX_HEADERS;
use crate::resilience::traffic::Connections;
use crate::upstream::{Leg, Version};

/// Connections to one endpoint that wait for a request.
const MOST_IDLE: usize = 64;

/// How long one waits. Shorter than what servers grant, as a rule, so that they seldom close what is being used.
const IDLE: Duration = Duration::from_secs(50);

/// Requests that one HTTP/2 connection carries before another is opened.
const STREAMS: usize = 100;

const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;

/// Whose connections may be shared.
#[derive(Debug, PartialEq, Eq)]
struct Key {
    workload: Arc<str>,
    address: SocketAddr,
    way: Way,
    version: Version,
}

/// By the address: few endpoints share one, and identities are long.
impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.address.hash(state);
        self.version.hash(state);
    }
}

struct Entry {
    key: Arc<Key>,
    /// Requests under way, and connections being made for one.
    under_way: usize,
    idle: Vec<Idle>,
    shared: Vec<Shared>,
}

/// An HTTP/1 connection that waits for a request.
struct Idle {
    sender: http1::SendRequest<AnyBody>,
    until: Instant,
    held: Held,
}

/// What a connection is held to, and how far it has come.
#[derive(Clone)]
struct Held {
    /// Among whose connections it counts.
    of: Arc<Observed>,
    to: Connections,
    /// Requests that it has carried, with the one that it has or waits for.
    carried: u32,
}

impl Held {
    fn idle(&self) -> Duration {
        self.to.idle.unwrap_or(IDLE)
    }

    /// Whether it may carry one more.
    fn has_more(&self) -> bool {
        self.to.requests.is_none_or(|most| self.carried < most)
    }
}

/// An HTTP/2 connection.
struct Shared {
    number: u64,
    sender: http2::SendRequest<AnyBody>,
    streams: usize,
    used: Instant,
    held: Held,
}

#[derive(Default)]
struct Inner {
    entries: HashMap<Arc<Key>, Entry>,
    next: u64,
}

/// The connections of one worker.
#[derive(Clone, Default)]
pub struct HttpPool(Arc<Mutex<Inner>>);

/// The use of a connection for one request.
pub struct Lease {
    pool: HttpPool,
    key: Arc<Key>,
    sender: Sender,
    held: Held,
    /// Whether it has carried requests before: then it may have been closed just now.
    pub reused: bool,
    healthy: bool,
}

enum Sender {
    Http1(Option<http1::SendRequest<AnyBody>>),
    Http2 {
        number: u64,
        sender: http2::SendRequest<AnyBody>,
    },
}

/// A request that was not answered.
pub struct Unanswered {
    pub error: hyper::Error,
    /// The request, if none of it was sent.
    pub request: Option<Request<AnyBody>>,
}

/// A place for a request to an endpoint, for which there is no connection yet.
pub struct Place {
    pool: HttpPool,
    key: Arc<Key>,
    taken: bool,
}

pub enum Checkout {
    Ready(Lease),
    Connect(Place),
}

impl HttpPool {
    /// A connection, or the permission to make one.
    ///
    /// # Errors
    /// As many requests are under way to the endpoint as may be.
    pub fn checkout(
        &self,
        chosen: &Chosen,
        version: Version,
        most: usize,
    ) -> Result<Checkout, Failure> {
        let key = Key {
            workload: chosen.workload.uid.clone(),
            address: chosen.address,
            way: chosen.way.clone(),
            version,
        };
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
        let key = Arc::clone(&entry.key);
        if entry.under_way >= most {
            return Err(Failure::Overflow(most));
        }
        entry.under_way += 1;
        let now = Instant::now();
        let sender = match version {
            Version::Http1 => {
                entry.expire(now);
                let ready = entry.idle.iter().rposition(|idle| idle.sender.is_ready());
                ready.map(|place| {
                    let Idle { sender, held, .. } = entry.idle.remove(place);
                    (Sender::Http1(Some(sender)), held)
                })
            }
            Version::Http2 => {
                entry.shared.retain(|shared| !shared.sender.is_closed());
                let mut shared = entry.shared.iter_mut();
                let free = shared.find(|one| one.streams < STREAMS && one.held.has_more());
                free.map(|shared| {
                    shared.streams += 1;
                    shared.used = now;
                    shared.held.carried += 1;
                    let sender = Sender::Http2 {
                        number: shared.number,
                        sender: shared.sender.clone(),
                    };
                    (sender, shared.held.clone())
                })
            }
        };
        drop(inner);
        let pool = self.clone();
        Ok(match sender {
            Some((sender, held)) => Checkout::Ready(Lease {
                pool,
                key,
                sender,
                held,
                reused: true,
                healthy: false,
            }),
            None => Checkout::Connect(Place {
                pool,
                key,
                taken: false,
            }),
        })
    }

    /// Closes what has waited for too long; call it now and then.
    pub fn expire(&self) {
        let now = Instant::now();
        self.0.lock().entries.retain(|_, entry| {
            entry.expire(now);
            entry.under_way > 0 || !entry.idle.is_empty() || !entry.shared.is_empty()
        });
    }

    /// Closes the idle connections that count among a destination's.
    pub fn close_idle(&self, of: &Arc<Observed>) {
        for entry in self.0.lock().entries.values_mut() {
            let is_its = |held: &Held| Arc::ptr_eq(&held.of, of);
            entry.idle.retain(|idle| !is_its(&idle.held));
            let is_idle = |shared: &Shared| shared.streams == 0 && is_its(&shared.held);
            entry.shared.retain(|shared| !is_idle(shared));
        }
    }

    fn over(&self, key: &Key, give: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.0.lock().entries.get_mut(key) {
            entry.under_way = entry.under_way.saturating_sub(1);
            give(entry);
        }
    }
}

impl Entry {
    fn new(key: Arc<Key>) -> Self {
        Self {
            key,
            under_way: 0,
            idle: Vec::new(),
            shared: Vec::new(),
        }
    }

    fn expire(&mut self, now: Instant) {
        self.idle
            .retain(|idle| !idle.sender.is_closed() && now < idle.until);
        self.shared.retain(|shared| {
            let is_wanted = now.duration_since(shared.used) < shared.held.idle();
            let is_usable = is_wanted && shared.held.has_more();
            !shared.sender.is_closed() && (shared.streams > 0 || is_usable)
        });
    }
}

impl Place {
    /// Speaks HTTP over a connection that was made for it, and counts among these until its end.
    ///
    /// # Errors
    /// The endpoint doesn't speak it.
    pub async fn fill(
        mut self,
        leg: Leg,
        (of, to, begun): (Arc<Observed>, Connections, Begun),
    ) -> Result<Lease, Failure> {
        let held = Held {
            of,
            to,
            // The one that it is made for.
            carried: 1,
        };
        let at = self.key.address;
        let broken = |error: hyper::Error| Failure::Http {
            to: at,
            error: error.to_string().into(),
        };
        let io = TokioIo::new(leg);
        let sender = match self.key.version {
            Version::Http1 => {
                let handshake = http1::Builder::new()
                    .max_buf_size(MAX_HEADERS)
                    .handshake(io)
                    .await;
                let (sender, connection) = handshake.map_err(broken)?;
                let connection = connection.with_upgrades();
                tokio::spawn(carry(connection, at, begun));
                Sender::Http1(Some(sender))
            }
            Version::Http2 => {
                let handshake = http2::Builder::new(TokioExecutor::new())
                    .initial_stream_window_size(STREAM_WINDOW)
                    .initial_connection_window_size(CONNECTION_WINDOW)
                    .max_header_list_size(MAX_HEADERS as u32)
                    .handshake(io)
                    .await;
                let (sender, connection) = handshake.map_err(broken)?;
                tokio::spawn(carry(connection, at, begun));
                let mut inner = self.pool.0.lock();
                inner.next += 1;
                let number = inner.next;
                if let Some(entry) = inner.entries.get_mut(&self.key) {
                    entry.shared.push(Shared {
                        number,
                        sender: sender.clone(),
                        streams: 1,
                        used: Instant::now(),
                        held: held.clone(),
                    });
                }
                Sender::Http2 { number, sender }
            }
        };
        self.taken = true;
        Ok(Lease {
            pool: self.pool.clone(),
            key: Arc::clone(&self.key),
            sender,
            held,
            reused: false,
            healthy: false,
        })
    }
}

/// Carries a connection to its end.
async fn carry(connection: impl Future<Output = hyper::Result<()>>, to: SocketAddr, _begun: Begun) {
    if let Err(error) = connection.await {
        debug!(%to, %error, "connection to an endpoint ended");
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.taken {
            self.pool.over(&self.key, |_| {});
        }
    }
}

impl Lease {
    /// Sends a request and waits for the head of its answer.
    ///
    /// # Errors
    /// With the request itself, if none of it was sent.
    pub async fn send(
        &mut self,
        request: Request<AnyBody>,
    ) -> Result<Response<Incoming>, Box<Unanswered>> {
        let sent = match &mut self.sender {
            Sender::Http1(Some(sender)) => sender.try_send_request(request).await,
            Sender::Http2 { sender, .. } => sender.try_send_request(request).await,
            Sender::Http1(None) => unreachable!("a lease holds its sender until it is dropped"),
        };
        sent.map_err(|mut error| {
            Box::new(Unanswered {
                request: error.take_message(),
                error: error.into_error(),
            })
        })
    }

    /// The answer was read: the connection may be used again.
    pub fn give_back(mut self) {
        self.healthy = true;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let healthy = self.healthy;
        let held = &self.held;
        match &mut self.sender {
            Sender::Http1(sender) => {
                // Where somebody waits for its place, that is worth more than the connection.
                let is_kept = healthy && held.has_more() && !held.of.is_crowded();
                let sender = sender
                    .take()
                    .filter(|sender| is_kept && !sender.is_closed());
                let mut held = held.clone();
                held.carried = held.carried.saturating_add(1);
                self.pool.over(&self.key, |entry| {
                    if let Some(sender) = sender {
                        if entry.idle.len() >= MOST_IDLE {
                            entry.idle.remove(0);
                        }
                        let until = Instant::now() + held.idle();
                        entry.idle.push(Idle {
                            sender,
                            until,
                            held,
                        });
                    }
                });
            }
            Sender::Http2 { number, .. } => {
                let number = *number;
                self.pool.over(&self.key, |entry| {
                    let mut shared = entry.shared.iter_mut();
                    if let Some(shared) = shared.find(|one| one.number == number) {
                        shared.streams = shared.streams.saturating_sub(1);
                        entry.expire(Instant::now());
                    }
                });
                held.of.made_room();
            }
        }
    }
}
