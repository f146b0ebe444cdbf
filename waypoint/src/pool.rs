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
use crate::endpoints::{Chosen, Way};
use crate::failure::Failure;
use crate::http::MAX_HEADERS;
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
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    workload: Arc<str>,
    address: SocketAddr,
    way: Way,
    version: Version,
}

#[derive(Default)]
struct Entry {
    /// Requests under way, and connections being made for one.
    under_way: usize,
    idle: Vec<(http1::SendRequest<AnyBody>, Instant)>,
    shared: Vec<Shared>,
}

/// An HTTP/2 connection.
struct Shared {
    number: u64,
    sender: http2::SendRequest<AnyBody>,
    streams: usize,
    used: Instant,
}

#[derive(Default)]
struct Inner {
    entries: HashMap<Key, Entry>,
    next: u64,
}

/// The connections of one worker.
#[derive(Clone, Default)]
pub struct HttpPool(Arc<Mutex<Inner>>);

/// The use of a connection for one request.
pub struct Lease {
    pool: HttpPool,
    key: Key,
    sender: Sender,
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
    key: Key,
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
        let entry = inner.entries.entry(key.clone()).or_default();
        if entry.under_way >= most {
            return Err(Failure::Overflow(most));
        }
        entry.under_way += 1;
        let now = Instant::now();
        let sender = match version {
            Version::Http1 => {
                entry.expire(now);
                let ready = entry.idle.iter().rposition(|(sender, _)| sender.is_ready());
                ready.map(|place| Sender::Http1(Some(entry.idle.remove(place).0)))
            }
            Version::Http2 => {
                entry.shared.retain(|shared| !shared.sender.is_closed());
                let free = entry.shared.iter_mut().find(|one| one.streams < STREAMS);
                free.map(|shared| {
                    shared.streams += 1;
                    shared.used = now;
                    Sender::Http2 {
                        number: shared.number,
                        sender: shared.sender.clone(),
                    }
                })
            }
        };
        drop(inner);
        let pool = self.clone();
        Ok(match sender {
            Some(sender) => Checkout::Ready(Lease {
                pool,
                key,
                sender,
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

    fn over(&self, key: &Key, give: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.0.lock().entries.get_mut(key) {
            entry.under_way = entry.under_way.saturating_sub(1);
            give(entry);
        }
    }
}

impl Entry {
    fn expire(&mut self, now: Instant) {
        let is_young = |since: Instant| now.duration_since(since) < IDLE;
        self.idle
            .retain(|(sender, since)| !sender.is_closed() && is_young(*since));
        self.shared.retain(|shared| {
            !shared.sender.is_closed() && (shared.streams > 0 || is_young(shared.used))
        });
    }
}

impl Place {
    /// Speaks HTTP over a connection that was made for it.
    ///
    /// # Errors
    /// The endpoint doesn't speak it.
    pub async fn fill(mut self, leg: Leg) -> Result<Lease, Failure> {
        let to = self.key.address;
        let broken = |error: hyper::Error| Failure::Http {
            to,
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
                tokio::spawn(async move {
                    if let Err(error) = connection.await {
                        debug!(%to, %error, "connection to an endpoint ended");
                    }
                });
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
                tokio::spawn(async move {
                    if let Err(error) = connection.await {
                        debug!(%to, %error, "connection to an endpoint ended");
                    }
                });
                let mut inner = self.pool.0.lock();
                inner.next += 1;
                let number = inner.next;
                if let Some(entry) = inner.entries.get_mut(&self.key) {
                    entry.shared.push(Shared {
                        number,
                        sender: sender.clone(),
                        streams: 1,
                        used: Instant::now(),
                    });
                }
                Sender::Http2 { number, sender }
            }
        };
        self.taken = true;
        Ok(Lease {
            pool: self.pool.clone(),
            key: self.key.clone(),
            sender,
            reused: false,
            healthy: false,
        })
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
        match &mut self.sender {
            Sender::Http1(sender) => {
                let sender = sender
                    .take()
                    .filter(|sender| healthy && !sender.is_closed());
                self.pool.over(&self.key, |entry| {
                    if let Some(sender) = sender {
                        if entry.idle.len() >= MOST_IDLE {
                            entry.idle.remove(0);
                        }
                        entry.idle.push((sender, Instant::now()));
                    }
                });
            }
            Sender::Http2 { number, .. } => {
                let number = *number;
                self.pool.over(&self.key, |entry| {
                    let mut shared = entry.shared.iter_mut();
                    if let Some(shared) = shared.find(|one| one.number == number) {
                        shared.streams = shared.streams.saturating_sub(1);
                    }
                });
            }
        }
    }
}
