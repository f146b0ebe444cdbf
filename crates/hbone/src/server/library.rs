// SPDX-License-Identifier: Apache-2.0
//! Serving tunnels with the h2 library: the fallback.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::{Connection, SendResponse};
use http::{Request, StatusCode};
use identity::{BoxFuture, PeerRole, Standing, WorkloadCertificate, tls};
use parking_lot::Mutex;
use spiffe::SpiffeId;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;

use super::{Answer, Handler, Incoming, Peer, Server, draining, report};
use crate::client::TLS_BUFFER;
use crate::config::{self, Config};
use crate::error::{ServeError, TunnelError, TunnelFault};
use crate::fate::Fate;
use crate::io::TunnelIo;
use crate::keepalive::Keepalive;
use crate::stream::{Receive, Supply};
use crate::wire::{self, ConnectRequest};

/// How long a client may take to hear why its tunnel ends.
const LAST_WORD: Duration = Duration::from_secs(1);

impl Server {
    pub(super) async fn serve_library<H: Handler>(
        &self,
        accepted: Accepted,
        handler: Arc<H>,
        drain: watch::Receiver<bool>,
    ) -> Result<(), ServeError> {
        let address = accepted.address;
        let handshake = Box::pin(self.handshake(accepted));
        let (identity, opened) = self.in_time(handshake).await?;
        handler.established(&identity);
        let peer = Peer { identity, address };
        self.carry(opened, peer, handler, drain).await
    }

    async fn handshake(
        &self,
        accepted: Accepted,
    ) -> Result<(SpiffeId, Opened<TlsStream<TcpStream>>), ServeError> {
        let tls = TlsAcceptor::from(accepted.config);
        let secured = tls.accept(accepted.tcp).await;
        let mut secured = secured.map_err(ServeError::Handshake)?;
        let (_, session) = secured.get_mut();
        session.set_buffer_limit(Some(TLS_BUFFER));
        let peer = tls::authenticated_peer(session).map_err(|error| match error {
            tls::TlsError::NoPeerIdentity => ServeError::PeerIdentity,
            error => ServeError::Handshake(io::Error::other(error)),
        })?;
        let standing = tls::standing(session, &accepted.certificate, PeerRole::Client);
        Ok((peer, self.open(secured, standing).await?))
    }

    /// HTTP/2 over any byte stream.
    pub(crate) async fn open<T>(
        &self,
        secured: T,
        standing: Standing,
    ) -> Result<Opened<T>, ServeError>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let io = TunnelIo::new(secured);
        let connection = builder(&self.config)
            .handshake(io.clone())
            .await
            .map_err(|error| ServeError::Handshake(TunnelError::from(error).into_io()))?;
        Ok(Opened {
            connection,
            io,
            standing,
        })
    }

    /// The life of an open connection.
    pub(crate) async fn carry<T, H>(
        &self,
        opened: Opened<T>,
        peer: Peer,
        handler: Arc<H>,
        drain: watch::Receiver<bool>,
    ) -> Result<(), ServeError>
    where
        T: AsyncRead + AsyncWrite + Unpin,
        H: Handler,
    {
        let Opened {
            mut connection,
            io,
            standing,
        } = opened;
        let keepalive = Keepalive::new(connection.ping_pong(), io.pulse(), &self.config);
        io.gather();
        let mut tunnel = Tunnel {
            connection,
            io,
            keepalive,
            drain: draining(drain, standing.valid_until()),
            standing,
            tasks: JoinSet::new(),
        };
        let fate = Fate::default();
        let outcome = loop {
            match poll_fn(|cx| tunnel.poll_next(cx)).await {
                Next::Stream(request, respond) => {
                    tunnel.tasks.spawn(serve_stream(
                        peer.clone(),
                        *request,
                        respond,
                        fate.clone(),
                        Arc::clone(&handler),
                    ));
                }
                Next::Drain => tunnel.connection.graceful_shutdown(),
                Next::Withdrawn(reason) => {
                    fate.withdraw(Arc::clone(&reason));
                    tunnel.connection.abrupt_shutdown(h2::Reason::NO_ERROR);
                    // A peer that no longer listens is not waited for.
                    let _ = timeout(LAST_WORD, poll_fn(|cx| tunnel.poll_closed(cx))).await;
                    break Err(TunnelError::new(TunnelFault::Withdrawn, reason));
                }
                // Without streams it is the client's right to leave as it likes.
                Next::Ended(Err(error))
                    if tunnel.tasks.is_empty() && error.fault() == TunnelFault::Connection =>
                {
                    break Ok(());
                }
                Next::Ended(result) => break result,
            }
        };
        let Tunnel {
            connection,
            mut tasks,
            ..
        } = tunnel;
        // Streams that still live now learn that their tunnel is gone.
        drop(connection);
        while let Some(ended) = tasks.join_next().await {
            report(ended);
        }
        outcome.map_err(ServeError::from)
    }
}

/// A connection whose handshakes are done.
pub(crate) struct Opened<T> {
    connection: Connection<TunnelIo<T>, Bytes>,
    io: TunnelIo<T>,
    standing: Standing,
}

/// A connection before its handshakes, and what the workload that it came for shows and knows.
pub(super) struct Accepted {
    pub(super) tcp: TcpStream,
    pub(super) config: Arc<ServerConfig>,
    pub(super) certificate: Arc<WorkloadCertificate>,
    pub(super) address: Option<SocketAddr>,
}

fn builder(config: &Config) -> h2::server::Builder {
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(config.stream_window)
        .initial_connection_window_size(config.connection_window_for(config.max_streams))
        .max_frame_size(config.max_frame)
        .max_header_list_size(config::SERVER_HEADER_LIST)
        .max_concurrent_streams(config.max_streams)
        .max_send_buffer_size(config.send_buffer)
        .max_pending_accept_reset_streams(config::MAX_PENDING_RESETS)
        .max_concurrent_reset_streams(config::MAX_REMEMBERED_RESETS)
        .max_local_error_reset_streams(Some(config::MAX_ERROR_RESETS))
        .data_frame_budget(config::DATA_FRAME_BUDGET);
    builder
}

/// A served connection and the tasks of its streams.
struct Tunnel<T> {
    connection: Connection<TunnelIo<T>, Bytes>,
    io: TunnelIo<T>,
    keepalive: Keepalive,
    /// Replaced by a future that never resolves once it has been heard.
    drain: BoxFuture<'static, ()>,
    standing: Standing,
    tasks: JoinSet<()>,
}

enum Next {
    Stream(Box<Request<RecvStream>>, SendResponse<Bytes>),
    Drain,
    Withdrawn(Arc<str>),
    Ended(Result<(), TunnelError>),
}

impl<T: AsyncRead + AsyncWrite + Unpin> Tunnel<T> {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Next> {
        if let Poll::Ready(reason) = self.standing.poll_withdrawn(cx) {
            return Poll::Ready(Next::Withdrawn(reason));
        }
        if let Poll::Ready(error) = self.keepalive.poll(cx) {
            return Poll::Ready(Next::Ended(Err(error)));
        }
        if self.drain.as_mut().poll(cx).is_ready() {
            self.drain = Box::pin(std::future::pending());
            return Poll::Ready(Next::Drain);
        }
        while let Poll::Ready(Some(ended)) = self.tasks.poll_join_next(cx) {
            report(ended);
        }
        let accepted = self.connection.poll_accept(cx);
        // The end of a turn: what the library has written leaves now. If the socket has no room, its readiness wakes
        // this task again.
        let drained = self.io.poll_drain(cx);
        match accepted {
            Poll::Ready(Some(Ok((request, respond)))) => {
                Poll::Ready(Next::Stream(Box::new(request), respond))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Next::Ended(Err(error.into()))),
            Poll::Ready(None) => Poll::Ready(Next::Ended(Ok(()))),
            Poll::Pending => match drained {
                Poll::Ready(Err(error)) => Poll::Ready(Next::Ended(Err(error.into()))),
                _ => Poll::Pending,
            },
        }
    }

    /// Until what the library has to say is said.
    fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let closed = self.connection.poll_closed(cx);
        let drained = self.io.poll_drain(cx);
        match (closed, drained) {
            (Poll::Pending, Poll::Pending | Poll::Ready(Ok(()))) | (_, Poll::Pending) => {
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }
}

/// What has come for a stream that is not accepted yet. It is shared by the handler, which takes it when it accepts,
/// and by the stream's task, which meanwhile keeps small frames from piling up.
pub(super) type Early = Arc<Mutex<Option<Receive>>>;

async fn serve_stream<H: Handler>(
    peer: Peer,
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
    fate: Fate,
    handler: Arc<H>,
) {
    let connect = ConnectRequest::from_http(&request);
    let early: Early = Arc::new(Mutex::new(Some(Receive::new(request.into_body()))));
    let mut responder = Responder {
        respond,
        answered: false,
    };
    let request = match connect {
        Ok(request) => request,
        Err(error) => {
            responder.refuse(StatusCode::BAD_REQUEST);
            handler.malformed(&peer.identity, error);
            return;
        }
    };
    let incoming = Incoming {
        peer: peer.identity,
        peer_address: peer.address,
        request,
        answer: Answer::Library {
            responder,
            early: Arc::clone(&early),
            fate,
        },
    };
    let mut handled = pin!(handler.connect(incoming));
    let mut waiting = true;
    poll_fn(|cx| {
        let done = handled.as_mut().poll(cx);
        if waiting && done.is_pending() {
            waiting = gather_early(&early, cx);
        }
        done
    })
    .await;
}

/// Takes over what has come; says whether there may be more to take over.
fn gather_early(early: &Early, cx: &mut Context<'_>) -> bool {
    early.lock().as_mut().is_some_and(|receive| {
        let more = matches!(receive.fill(cx), Ok(Supply::Open));
        receive.chunks.settle();
        more
    })
}

pub(super) struct Responder {
    pub(super) respond: SendResponse<Bytes>,
    pub(super) answered: bool,
}

impl Responder {
    pub(super) fn refuse(&mut self, status: StatusCode) {
        self.answered = true;
        // An error means that the client is no longer there to hear it.
        let _ = self.respond.send_response(wire::refused(status), true);
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if !self.answered {
            self.refuse(StatusCode::SERVICE_UNAVAILABLE);
        }
    }
}
