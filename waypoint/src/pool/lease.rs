// SPDX-License-Identifier: Apache-2.0
//! The use of a connection for one request.

use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;

use super::entry::{Carrier, Entry, Sender};
use super::{HttpPool, Key};
use crate::body::AnyBody;

/// A connection, for one request. Dropped before the answer was read, it takes the connection with it; before anything was
/// sent, it leaves it to the next.
pub struct Lease {
    pool: HttpPool,
    key: Arc<Key>,
    carrier: Carrier,
    /// Whether it has carried requests before: then it may have been closed just now.
    pub reused: bool,
    /// Whether nothing is under way on it.
    clean: bool,
    /// Whether it is an HTTP/1 connection that carries bytes from now on.
    upgraded: bool,
}

/// A request that was not answered.
pub struct Unanswered {
    pub error: hyper::Error,
    /// The request, if none of it was sent.
    pub request: Option<Request<AnyBody>>,
}

impl Lease {
    pub(super) fn new(pool: HttpPool, key: Arc<Key>, carrier: Carrier, reused: bool) -> Self {
        Self {
            pool,
            key,
            carrier,
            reused,
            clean: true,
            upgraded: false,
        }
    }

    /// Sends a request and waits for the head of its answer.
    ///
    /// # Errors
    /// With the request itself, if none of it was sent.
    pub async fn send(
        &mut self,
        request: Request<AnyBody>,
    ) -> Result<Response<Incoming>, Box<Unanswered>> {
        self.clean = false;
        let sent = match &mut self.carrier.sender {
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

    /// What it carries is no HTTP any more.
    pub fn upgrade(&mut self) {
        if matches!(self.carrier.sender, Sender::Http1(_)) && !self.upgraded {
            self.upgraded = true;
            self.pool.change(&self.key, Entry::upgrade);
        }
    }

    /// The answer was read: the connection may be used again, as soon as its own task has seen that, too.
    pub fn give_back(mut self) {
        self.clean = true;
        if !self.is_between_requests() {
            tokio::spawn(async move {
                if let Sender::Http1(Some(sender)) = &mut self.carrier.sender {
                    // Where it has ended, so it is found when it is dropped.
                    let _ended = sender.ready().await;
                }
            });
        }
    }

    /// Whether the next request can be sent now, or never.
    fn is_between_requests(&self) -> bool {
        match &self.carrier.sender {
            Sender::Http1(Some(sender)) => sender.is_ready() || sender.is_closed(),
            _ => true,
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Carrier { sender, held } = &mut self.carrier;
        match sender {
            Sender::Http1(_) if self.upgraded => {
                self.pool.change(&self.key, Entry::done_upgraded);
            }
            Sender::Http1(sender) => {
                let is_kept = self.clean && held.has_more();
                let sender = sender.take();
                let sender = sender.filter(|sender| is_kept && !sender.is_closed());
                let kept = sender.and_then(|sender| {
                    let counted = self.pool.idle_token()?;
                    let mut held = held.clone();
                    held.carried = held.carried.saturating_add(1);
                    Some((sender, held, counted))
                });
                let is_kept = kept.is_some();
                self.pool.change(&self.key, |entry| entry.done_http1(kept));
                // One that is closed tells of its place when it is.
                if is_kept {
                    held.of.freed(self.key.address);
                }
            }
            Sender::Http2 { number, .. } => {
                let number = *number;
                self.pool
                    .change(&self.key, |entry| entry.done_http2(number));
                held.of.freed(self.key.address);
            }
        }
    }
}
