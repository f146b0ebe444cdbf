// SPDX-License-Identifier: Apache-2.0
//! The opening end of a tunnel: dial, TLS to an expected identity, HTTP/2, and one task that drives it.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Connection, SendRequest};
use http::{Request, StatusCode};
use identity::{CertificateSource, WorkloadCertificate, tls};
use parking_lot::Mutex;
use spiffe::SpiffeId;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::config::{self, Config};
use crate::error::{OpenError, TunnelError, TunnelFault};
use crate::io::{Pulse, TunnelIo};
use crate::keepalive::Keepalive;
use crate::pool::PoolKey;
use crate::stream::{Receive, Stream, Transmit, TunnelEnd};
use crate::wire::{self, Baggage};

pub use identity::BoxFuture;

/// Makes the TCP connection to a peer: from the right namespace, with the right mark and source address.
pub trait Dial: Send + Sync {
    /// Connects. The time-out is the caller's.
    fn dial(&self, to: SocketAddr) -> BoxFuture<'_, io::Result<TcpStream>>;
}

/// What is known of the tunnel that carries a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunnelInfo {
    /// Who the peer has proven to be.
    pub peer: SpiffeId,
    /// Whether the tunnel was there before.
    pub reused: bool,
    /// What the peer says of the destination.
    pub baggage: Option<Baggage>,
}

/// How much plaintext TLS takes at once: one bulk read of an application.
pub(crate) const TLS_BUFFER: usize = 256 * 1024 + 1024;

/// A tunnel as its users see it: where to open streams, and how many are open.
pub(crate) struct Tunnel {
    peer: SpiffeId,
    most: usize,
    pulse: Pulse,
    abort: Notify,
    state: Mutex<State>,
}

struct State {
    /// Gone once no new stream is wanted. The library closes the connection when the last stream has ended.
    send: Option<SendRequest<Bytes>>,
    streams: usize,
    /// Whether a stream was ever opened.
    leased: bool,
    /// When the last stream was opened or ended.
    used: Instant,
}

/// A place for one stream in a tunnel; dropping it gives the place back.
pub(crate) struct Slot(Arc<Tunnel>);

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.streams -= 1;
        state.used = Instant::now();
    }
}

/// The permission to open one stream.
pub(crate) struct Lease {
    pub(crate) tunnel: Arc<Tunnel>,
    pub(crate) reused: bool,
    send: SendRequest<Bytes>,
    slot: Slot,
}

/// What a tunnel says when asked for one more stream.
pub(crate) enum Checkout {
    Ready(Lease),
    Full,
    /// Broken, going away, or retired.
    Dead,
}

impl Tunnel {
    pub(crate) fn checkout(self: &Arc<Self>) -> Checkout {
        let state = &mut *self.state.lock();
        let Some(send) = &mut state.send else {
            return Checkout::Dead;
        };
        // Never pending: a handle that has sent nothing waits for nothing.
        if let Poll::Ready(Err(_)) = send.poll_ready(&mut Context::from_waker(Waker::noop())) {
            state.send = None;
            return Checkout::Dead;
        }
        if state.streams >= self.most.min(send.current_max_send_streams()) {
            return Checkout::Full;
        }
        let send = send.clone();
        let reused = std::mem::replace(&mut state.leased, true);
        state.streams += 1;
        state.used = Instant::now();
        Checkout::Ready(Lease {
            tunnel: Arc::clone(self),
            reused,
            send,
            slot: Slot(Arc::clone(self)),
        })
    }

    /// Opens no more streams here; closes once the last one has ended.
    pub(crate) fn retire(&self) {
        let send = self.state.lock().send.take();
        drop(send);
    }

    /// Cuts the tunnel and every stream in it.
    pub(crate) fn abort(&self) {
        self.retire();
        self.abort.notify_one();
    }

    pub(crate) fn streams(&self) -> usize {
        self.state.lock().streams
    }

    /// Orders tunnels by how little they will be missed: without streams first, then the one unused for longest.
    pub(crate) fn usefulness(&self) -> (bool, Instant) {
        let state = self.state.lock();
        (state.streams > 0, state.used)
    }

    /// When it may be released for want of use; `None` while it is in use.
    fn unused_since(&self) -> Option<Instant> {
        let state = self.state.lock();
        (state.streams == 0).then_some(state.used)
    }
}

/// Why a request got no stream.
pub(crate) enum RequestError {
    Tunnel(TunnelError),
    TimedOut,
    Refused(StatusCode),
}

impl Lease {
    /// Sends the CONNECT and waits for the answer.
    pub(crate) async fn request(
        mut self,
        request: Request<()>,
        config: &Config,
    ) -> Result<(Stream, TunnelInfo), RequestError> {
        let before = self.tunnel.pulse.count();
        let (response, transmit) = self
            .send
            .send_request(request, false)
            .map_err(|error| RequestError::Tunnel(error.into()))?;
        // Not kept while waiting: the tunnel may be retired meanwhile.
        drop(self.send);
        let Ok(response) = timeout(config.response_timeout, response).await else {
            if self.tunnel.pulse.count() == before {
                // Not a byte since: more likely the tunnel is dead than the application slow.
                self.tunnel.retire();
            }
            return Err(RequestError::TimedOut);
        };
        let response = response.map_err(|error| RequestError::Tunnel(error.into()))?;
        if response.status() != StatusCode::OK {
            return Err(RequestError::Refused(response.status()));
        }
        let info = TunnelInfo {
            peer: self.tunnel.peer.clone(),
            reused: self.reused,
            baggage: wire::response_baggage(&response),
        };
        let stream = Stream {
            transmit: Transmit::new(transmit, TunnelEnd::Client),
            receive: Receive::new(response.into_body()),
            _slot: Some(self.slot),
        };
        Ok((stream, info))
    }
}

/// A new tunnel and the task that must run for it to work.
pub(crate) struct Connected {
    pub(crate) tunnel: Arc<Tunnel>,
    pub(crate) driver: BoxFuture<'static, Result<(), TunnelError>>,
}

/// Makes a tunnel for a key: certificate, TCP, TLS, HTTP/2, each with its time-out.
pub(crate) async fn connect(
    key: &PoolKey,
    dial: &dyn Dial,
    certificates: &dyn CertificateSource,
    config: &Config,
) -> Result<Connected, OpenError> {
    let certificate = fetch(&key.source, certificates, config).await?;
    let tls = tls::client_config(&certificate, &key.destination).map_err(|error| match error {
        tls::TlsError::NobodyExpected => OpenError::PeerIdentity {
            address: key.address,
            expected: Arc::clone(&key.destination),
            reason: error.to_string().into(),
        },
        _ => OpenError::Certificate {
            identity: key.source.clone(),
            reason: error.to_string().into(),
        },
    })?;
    let socket = timeout(config.connect_timeout, dial.dial(key.address))
        .await
        .map_err(|_| OpenError::DialTimeout {
            address: key.address,
            after: config.connect_timeout,
        })?
        .map_err(|error| OpenError::Dial {
            address: key.address,
            source: Arc::new(error),
        })?;
    let _ = socket.set_nodelay(true);
    timeout(
        config.handshake_timeout,
        handshake(socket, TlsConnector::from(tls), config),
    )
    .await
    .map_err(|_| OpenError::HandshakeTimeout {
        address: key.address,
        after: config.handshake_timeout,
    })?
    .map(Secured::into_connected)
    .map_err(|error| handshake_error(key, error))
}

pub(crate) async fn fetch(
    source: &SpiffeId,
    certificates: &dyn CertificateSource,
    config: &Config,
) -> Result<Arc<WorkloadCertificate>, OpenError> {
    timeout(config.certificate_timeout, certificates.certificate(source))
        .await
        .map_err(|_| OpenError::CertificateTimeout {
            identity: source.clone(),
            after: config.certificate_timeout,
        })?
        .map_err(|error| OpenError::Certificate {
            identity: source.clone(),
            reason: error.to_string().into(),
        })
}

fn handshake_error(key: &PoolKey, error: io::Error) -> OpenError {
    match tls::peer_refusal(&error) {
        Some(refusal) => OpenError::PeerIdentity {
            address: key.address,
            expected: Arc::clone(&key.destination),
            reason: refusal.to_string().into(),
        },
        None => OpenError::Handshake {
            address: key.address,
            source: Arc::new(error),
        },
    }
}

/// A new tunnel over any byte stream, before anything drives it.
pub(crate) struct Secured<T> {
    pub(crate) tunnel: Arc<Tunnel>,
    pub(crate) io: TunnelIo<T>,
    pub(crate) driver: BoxFuture<'static, Result<(), TunnelError>>,
}

impl<T> Secured<T> {
    fn into_connected(self) -> Connected {
        Connected {
            tunnel: self.tunnel,
            driver: self.driver,
        }
    }
}

/// TLS and HTTP/2 over any byte stream.
pub(crate) async fn handshake<T>(
    io: T,
    tls: TlsConnector,
    config: &Config,
) -> io::Result<Secured<TlsStream<T>>>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut secured = tls.connect(tls::server_name(), io).await?;
    let (_, session) = secured.get_mut();
    session.set_buffer_limit(Some(TLS_BUFFER));
    let peer = tls::authenticated_peer(session).map_err(io::Error::other)?;
    open(secured, peer, config).await
}

/// HTTP/2 over any byte stream.
pub(crate) async fn open<T>(secured: T, peer: SpiffeId, config: &Config) -> io::Result<Secured<T>>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let io = TunnelIo::new(secured);
    let (send, mut connection) = builder(config)
        .handshake::<_, Bytes>(io.clone())
        .await
        .map_err(|error| TunnelError::from(error).into_io())?;
    let pulse = io.pulse();
    let keepalive = Keepalive::new(connection.ping_pong(), pulse.clone(), config);
    let tunnel = Arc::new(Tunnel {
        peer,
        most: config.pool_max_streams as usize,
        pulse,
        abort: Notify::new(),
        state: Mutex::new(State {
            send: Some(send),
            streams: 0,
            leased: false,
            used: Instant::now(),
        }),
    });
    let release = Release::new(config.pool_unused_release);
    let driver = drive(
        connection,
        io.clone(),
        keepalive,
        release,
        Arc::clone(&tunnel),
    );
    Ok(Secured {
        tunnel,
        io,
        driver: Box::pin(driver),
    })
}

fn builder(config: &Config) -> h2::client::Builder {
    let mut builder = h2::client::Builder::new();
    builder
        .initial_window_size(config.stream_window)
        .initial_connection_window_size(config.connection_window_for(config.pool_max_streams))
        .max_frame_size(config.max_frame)
        .max_header_list_size(config::CLIENT_HEADER_LIST)
        .max_send_buffer_size(config.send_buffer)
        .initial_max_send_streams(config.pool_max_streams as usize)
        .max_concurrent_reset_streams(config::MAX_REMEMBERED_RESETS)
        .max_local_error_reset_streams(Some(config::MAX_ERROR_RESETS))
        .data_frame_budget(config::DATA_FRAME_BUDGET)
        .enable_push(false);
    builder
}

/// Runs a tunnel until it ends. Its streams and its users only talk to the library; this task alone does I/O.
async fn drive<T>(
    mut connection: Connection<TunnelIo<T>, Bytes>,
    io: TunnelIo<T>,
    mut keepalive: Keepalive,
    mut release: Release,
    tunnel: Arc<Tunnel>,
) -> Result<(), TunnelError>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    io.gather();
    let mut aborted = pin!(tunnel.abort.notified());
    poll_fn(|cx| {
        if aborted.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(TunnelError::new(
                TunnelFault::Aborted,
                "the pool was aborted",
            )));
        }
        if let Poll::Ready(error) = keepalive.poll(cx) {
            return Poll::Ready(Err(error));
        }
        if release.poll_due(cx, &tunnel).is_ready() {
            tunnel.retire();
        }
        let ended = Pin::new(&mut connection).poll(cx);
        if let Poll::Ready(Err(error)) = io.poll_drain(cx) {
            return Poll::Ready(Err(error.into()));
        }
        ready!(ended)?;
        Poll::Ready(Ok(()))
    })
    .await
}

/// When a tunnel without streams has been kept for long enough.
struct Release {
    after: Duration,
    timer: Pin<Box<Sleep>>,
}

impl Release {
    fn new(after: Duration) -> Self {
        Self {
            after,
            timer: Box::pin(sleep(after)),
        }
    }

    fn poll_due(&mut self, cx: &mut Context<'_>, tunnel: &Tunnel) -> Poll<()> {
        while self.timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            let due = tunnel.unused_since().unwrap_or(now) + self.after;
            self.timer
                .as_mut()
                .reset(due.max(now + Duration::from_millis(1)));
            if due <= now {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }
}
