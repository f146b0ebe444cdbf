// SPDX-License-Identifier: Apache-2.0
//! A connection that is being made: what HTTP is spoken on it, and who carries it to its end.

use std::net::SocketAddr;
use std::sync::Arc;

use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tracing::debug;

use super::entry::{Carrier, Entry, Held, Sender};
use super::lease::Lease;
use super::{HttpPool, Key};
use crate::endpoints::{Begun, Observed};
use crate::failure::Failure;
use crate::http::MAX_HEADERS;
use crate::resilience::traffic::Connections;
use crate::upstream::{Leg, Version};

const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;

/// The permission to make a connection to an endpoint, for a request. Dropped without one, it is the next one's.
pub struct Place {
    pool: HttpPool,
    key: Arc<Key>,
    taken: bool,
}

impl Place {
    pub(super) fn new(pool: HttpPool, key: Arc<Key>) -> Self {
        Self {
            pool,
            key,
            taken: false,
        }
    }

    /// Speaks HTTP over what carries it once that is reached; it counts among these until its end.
    ///
    /// # Errors
    /// The endpoint is not reached, or doesn't speak HTTP. Where it has no other connection, those that wait for one learn the
    /// same.
    pub async fn fill(
        mut self,
        reaching: impl Future<Output = Result<Leg, Failure>>,
        counted: (Arc<Observed>, Connections, Begun),
    ) -> Result<Lease, Failure> {
        let filled = match reaching.await {
            Ok(leg) => self.speak(leg, counted).await,
            Err(failure) => Err(failure),
        };
        self.taken = true;
        match filled {
            Ok(carrier) => {
                self.pool.change(&self.key, |entry| entry.made(&carrier));
                let (pool, key) = (self.pool.clone(), Arc::clone(&self.key));
                Ok(Lease::new(pool, key, carrier, false))
            }
            Err(failure) => {
                self.pool.failed(&self.key, &failure);
                Err(failure)
            }
        }
    }

    async fn speak(
        &self,
        leg: Leg,
        (of, to, begun): (Arc<Observed>, Connections, Begun),
    ) -> Result<Carrier, Failure> {
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
                let number = self.pool.next_number();
                Sender::Http2 { number, sender }
            }
        };
        Ok(Carrier { sender, held })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.taken {
            self.pool.change(&self.key, Entry::not_made);
        }
    }
}

/// Carries a connection to its end.
async fn carry(connection: impl Future<Output = hyper::Result<()>>, to: SocketAddr, _begun: Begun) {
    if let Err(error) = connection.await {
        debug!(%to, %error, "connection to an endpoint ended");
    }
}
