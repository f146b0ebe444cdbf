// SPDX-License-Identifier: Apache-2.0
//! The accepting end of a tunnel: TLS that demands a client of the mesh, HTTP/2, and a handler per stream.
//!
//! ```text
//!   accept ─► TLS ─► HTTP/2 ─► one turn after another: streams in, frames out
//!                                │ CONNECT               │ drain
//!                                ▼                       ▼
//!                          handler's own task      GOAWAY, then wait for the streams
//! ```

mod library;
mod own;

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::SystemTime;

use http::StatusCode;
use identity::{BoxFuture, WorkloadCertificate, tls};
use spiffe::SpiffeId;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::config::{Config, Engine};
use crate::engine::handshake as own_handshake;
use crate::engine::session::Role;
use crate::engine::stream::OwnStream;
use crate::engine::tunnel::{Driver, Farewell};
use crate::error::{ServeError, TunnelError};
use crate::fate::Fate;
use crate::stream::{Inner, LibraryStream, Stream, Transmit, TunnelEnd};
use crate::wire::{self, Baggage, ConnectRequest, MalformedRequest};

/// Decides what becomes of each stream.
pub trait Handler: Send + Sync + 'static {
    /// Answers one stream and, if it accepts, carries it to its end. What is returned runs in a task of its own, which is
    /// aborted when the tunnel is cut.
    fn connect(self: Arc<Self>, incoming: Incoming) -> impl Future<Output = ()> + Send + 'static;

    /// Hears that the handshake is over, before any stream.
    fn established(&self, peer: &SpiffeId) {
        let _ = peer;
    }

    /// Hears of a stream that asked for nothing that can be served; it has been answered 400.
    fn malformed(&self, peer: &SpiffeId, error: MalformedRequest) {
        tracing::debug!(%peer, %error, "malformed request");
    }
}

/// Serves tunnels.
#[derive(Debug, Clone)]
pub struct Server {
    config: Arc<Config>,
}

impl Server {
    /// A server with these sizes and time-outs.
    pub fn new(config: Config) -> Self {
        Self {
            config: Arc::new(config),
        }
    }

    /// Serves one accepted connection until the client ends it, it breaks, or it has drained.
    ///
    /// When `drain` becomes true, or a certificate of either end expires, the client is told to open no more streams, and this returns once those that are
    /// open have ended. Dropping the future cuts the connection, its streams and their applications' connections.
    ///
    /// # Errors
    /// Each names the party at fault; streams and handlers have ended when this returns.
    pub async fn serve<H: Handler>(
        &self,
        tcp: TcpStream,
        certificate: Arc<WorkloadCertificate>,
        handler: Arc<H>,
        drain: watch::Receiver<bool>,
    ) -> Result<(), ServeError> {
        let _ = tcp.set_nodelay(true);
        let peer_address = tcp.peer_addr().ok();
        let config = tls::server_config(&certificate)
            .map_err(|error| ServeError::Certificate(error.to_string().into()))?;
        match self.config.engine {
            Engine::Own => {
                // Boxed: large, and over soon, while what follows lives for days.
                let handshake = Box::pin(own_handshake::accept(tcp, &config, &certificate));
                let secured = self
                    .in_time(async { handshake.await.map_err(own::handshake_error) })
                    .await?;
                handler.established(&secured.peer);
                let peer = Peer {
                    identity: secured.peer.clone(),
                    address: peer_address,
                };
                let drain = draining(drain, secured.valid_until());
                let (driver, link) =
                    Driver::new(Role::Server, secured, Farewell::Close, &self.config);
                own::serve(driver, link, peer, handler, drain).await
            }
            Engine::Library => {
                let accepted = library::Accepted {
                    tcp,
                    config,
                    certificate,
                    address: peer_address,
                };
                self.serve_library(accepted, handler, drain).await
            }
        }
    }

    async fn in_time<T>(
        &self,
        handshake: impl Future<Output = Result<T, ServeError>>,
    ) -> Result<T, ServeError> {
        let limit = self.config.handshake_timeout;
        timeout(limit, handshake)
            .await
            .map_err(|_| ServeError::HandshakeTimeout(limit))?
    }
}

/// Resolves when the drain is asked for, or when what the ends have proven counts no more for new streams.
fn draining(
    mut drain: watch::Receiver<bool>,
    valid_until: Option<SystemTime>,
) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let asked = async {
            // Never, if whoever could ask is gone.
            if drain.wait_for(|asked| *asked).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let over = async {
            match valid_until.map(|end| end.duration_since(SystemTime::now())) {
                Some(left) => sleep(left.unwrap_or_default()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = asked => {}
            () = over => {}
        }
    })
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "the handler of a stream panicked; its stream was reset");
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) identity: SpiffeId,
    pub(crate) address: Option<SocketAddr>,
}

/// A stream that waits for an answer. Dropping it without one answers 503.
pub struct Incoming {
    /// Who the client has proven to be.
    pub peer: SpiffeId,
    /// Where the tunnel comes from.
    pub peer_address: Option<SocketAddr>,
    /// What it asks for.
    pub request: ConnectRequest,
    answer: Answer,
}

/// How a stream is answered, by the engine that brought it.
enum Answer {
    Own(OwnStream),
    Library {
        responder: library::Responder,
        early: library::Early,
        fate: Fate,
    },
}

impl Incoming {
    /// Answers 200, with what is said of the destination if that is wanted.
    ///
    /// # Errors
    /// The client has reset the stream, or the tunnel is gone.
    pub fn accept(self, baggage: Option<&Baggage>) -> Result<Stream, TunnelError> {
        let accepted = wire::accepted(baggage);
        let inner = match self.answer {
            Answer::Own(mut stream) => {
                stream.respond(&accepted)?;
                Inner::Own(stream)
            }
            Answer::Library {
                mut responder,
                early,
                fate,
            } => {
                let receive = early.lock().take().ok_or_else(TunnelError::closed)?;
                responder.answered = true;
                let transmit = responder.respond.send_response(accepted, false)?;
                Inner::Library(LibraryStream {
                    transmit: Transmit::new(transmit, TunnelEnd::Server),
                    receive,
                    fate,
                })
            }
        };
        Ok(Stream { inner, _slot: None })
    }

    /// Answers with a status and ends the stream; its tunnel stays.
    pub fn reject(self, status: StatusCode) {
        match self.answer {
            Answer::Own(mut stream) => {
                // An error means that the client is no longer there to hear it.
                let _gone = stream.respond(&wire::refused(status));
            }
            Answer::Library { mut responder, .. } => responder.refuse(status),
        }
    }

    /// Waits until the client gives the stream up, or the tunnel breaks: no need to go on connecting then.
    pub async fn abandoned(&mut self) -> TunnelError {
        match &mut self.answer {
            Answer::Own(stream) => stream.broken().await,
            Answer::Library { responder, .. } => {
                poll_fn(|cx| match responder.respond.poll_reset(cx) {
                    Poll::Ready(Ok(reason)) => Poll::Ready(TunnelError::reset(reason)),
                    Poll::Ready(Err(error)) => Poll::Ready(error.into()),
                    Poll::Pending => Poll::Pending,
                })
                .await
            }
        }
    }
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Incoming")
            .field("peer", &self.peer)
            .field("request", &self.request)
            .finish_non_exhaustive()
    }
}
