// SPDX-License-Identifier: Apache-2.0
//! The opening end of a tunnel: dial, TLS to an expected identity, HTTP/2, and one task that drives it.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use h2::client::{Connection, SendRequest};
use http::{Request, Response, StatusCode};
use identity::{CertificateSource, PeerRole, Standing, WorkloadCertificate, tls};
use parking_lot::Mutex;
use spiffe::SpiffeId;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;

use crate::config::{self, Config, Engine};
use crate::engine::handshake as own_handshake;
use crate::engine::link::Link;
use crate::engine::session::Role;
use crate::engine::stream::OwnStream;
use crate::engine::tunnel::{Driver, Farewell, Next};
use crate::error::{OpenError, TunnelError, TunnelFault};
use crate::fate::Fate;
use crate::io::{Pulse, TunnelIo};
use crate::keepalive::Keepalive;
use crate::pool::PoolKey;
use crate::stream::{Inner, LibraryStream, Receive, Stream, Transmit, TunnelEnd};
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

/// How long the far end of a carrier may take to close its side, once this one has said that nothing more comes.
const FAREWELL: Duration = Duration::from_secs(30);

/// A tunnel as its users see it: where to open streams, and how many are open.
pub(crate) struct Tunnel {
    peer: SpiffeId,
    /// Of the streams of the library, which hear only that the connection is gone.
    fate: Fate,
    most: usize,
    /// From then on what the ends have proven counts no more for what begins.
    valid_until: Option<SystemTime>,
    heard: Heard,
    abort: Notify,
    state: Mutex<State>,
}

/// How a tunnel knows that its peer is alive.
enum Heard {
    Own(Link),
    Library(Pulse),
}

impl Heard {
    fn count(&self) -> u64 {
        match self {
            Self::Own(link) => link.pulse(),
            Self::Library(pulse) => pulse.count(),
        }
    }
}

/// Where streams are opened.
#[derive(Clone)]
enum Opener {
    Own(Link),
    Library(SendRequest<Bytes>),
}

/// What the handshake has shown.
struct Proven {
    peer: SpiffeId,
    valid_until: Option<SystemTime>,
}

struct State {
    /// Gone once no new stream is wanted. The engine closes the connection when the last stream has ended.
    opener: Option<Opener>,
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
    opener: Opener,
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
    fn new(proven: Proven, heard: Heard, opener: Opener, config: &Config) -> Arc<Self> {
        Arc::new(Self {
            peer: proven.peer,
            fate: Fate::default(),
            most: config.pool_max_streams as usize,
            valid_until: proven.valid_until,
            heard,
            abort: Notify::new(),
            state: Mutex::new(State {
                opener: Some(opener),
                streams: 0,
                leased: false,
                used: Instant::now(),
            }),
        })
    }

    pub(crate) fn checkout(self: &Arc<Self>) -> Checkout {
        if self.valid_until.is_some_and(|end| end <= SystemTime::now()) {
            self.retire();
            return Checkout::Dead;
        }
        let state = &mut *self.state.lock();
        let Some(opener) = &mut state.opener else {
            return Checkout::Dead;
        };
        let most = match opener {
            Opener::Own(link) => link.is_open().then(|| link.peer_max_streams()),
            Opener::Library(send) => {
                // Never pending: a handle that has sent nothing waits for nothing.
                let ready = send.poll_ready(&mut Context::from_waker(Waker::noop()));
                (!matches!(ready, Poll::Ready(Err(_)))).then(|| send.current_max_send_streams())
            }
        };
        let Some(most) = most else {
            state.opener = None;
            return Checkout::Dead;
        };
        if state.streams >= self.most.min(most) {
            return Checkout::Full;
        }
        let opener = opener.clone();
        let reused = std::mem::replace(&mut state.leased, true);
        state.streams += 1;
        state.used = Instant::now();
        Checkout::Ready(Lease {
            tunnel: Arc::clone(self),
            reused,
            opener,
            slot: Slot(Arc::clone(self)),
        })
    }

    /// Opens no more streams here; closes once the last one has ended.
    pub(crate) fn retire(&self) {
        let opener = self.state.lock().opener.take();
        if let Some(Opener::Own(link)) = opener {
            link.retire();
        }
    }

    /// Cuts the tunnel and every stream in it.
    pub(crate) fn abort(&self) {
        self.retire();
        match &self.heard {
            Heard::Own(link) => link.abort(),
            Heard::Library(_) => self.abort.notify_one(),
        }
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
        self,
        request: Request<()>,
        config: &Config,
    ) -> Result<(Stream, TunnelInfo), RequestError> {
        let Self {
            tunnel,
            reused,
            opener,
            slot,
        } = self;
        let before = tunnel.heard.count();
        let answer = async {
            match opener {
                Opener::Own(link) => {
                    let mut stream = OwnStream::request(&link, &request)?;
                    // Not kept while waiting: the tunnel may be retired meanwhile.
                    drop(link);
                    let response = stream.answer().await?;
                    Ok((response, Inner::Own(stream)))
                }
                Opener::Library(mut send) => {
                    let (response, transmit) = send.send_request(request, false)?;
                    drop(send);
                    let (head, receive) = response.await?.into_parts();
                    let stream = LibraryStream {
                        transmit: Transmit::new(transmit, TunnelEnd::Client),
                        receive: Receive::new(receive),
                        fate: tunnel.fate.clone(),
                    };
                    Ok((Response::from_parts(head, ()), Inner::Library(stream)))
                }
            }
        };
        let Ok(answer) = timeout(config.response_timeout, answer).await else {
            if tunnel.heard.count() == before {
                // Not a byte since: more likely the tunnel is dead than the application slow.
                tunnel.retire();
            }
            return Err(RequestError::TimedOut);
        };
        let (response, inner) = answer.map_err(RequestError::Tunnel)?;
        if response.status() != StatusCode::OK {
            return Err(RequestError::Refused(response.status()));
        }
        let info = TunnelInfo {
            peer: tunnel.peer.clone(),
            reused,
            baggage: wire::response_baggage(&response),
        };
        let stream = Stream {
            inner,
            _slot: Some(slot),
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
        handshake(socket, tls, &certificate, Farewell::Close, config),
    )
    .await
    .map_err(|_| OpenError::HandshakeTimeout {
        address: key.address,
        after: config.handshake_timeout,
    })?
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

/// TLS and HTTP/2 over any byte stream.
pub(crate) async fn handshake<T>(
    io: T,
    tls: Arc<ClientConfig>,
    certificate: &WorkloadCertificate,
    farewell: Farewell,
    config: &Config,
) -> io::Result<Connected>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    match config.engine {
        Engine::Own => own(io, &tls, certificate, farewell, config).await,
        Engine::Library => library(io, tls, certificate, farewell, config).await,
    }
}

async fn own<T>(
    io: T,
    tls: &ClientConfig,
    certificate: &WorkloadCertificate,
    farewell: Farewell,
    config: &Config,
) -> io::Result<Connected>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let secured = own_handshake::connect(io, tls, certificate).await?;
    let proven = Proven {
        peer: secured.peer.clone(),
        valid_until: secured.valid_until(),
    };
    let (mut driver, link) = Driver::new(Role::Client, secured, farewell, config);
    let heard = Heard::Own(link.clone());
    let tunnel = Tunnel::new(proven, heard, Opener::Own(link), config);
    let mut release = Release::new(config.pool_unused_release);
    let released = Arc::clone(&tunnel);
    let driver = poll_fn(move |cx| {
        if release.poll_due(cx, &released).is_ready() {
            released.retire();
        }
        loop {
            match ready!(driver.poll_next(cx)) {
                // A server opens no streams.
                Next::Stream(..) => {}
                Next::Ended(result) => return Poll::Ready(result),
            }
        }
    });
    Ok(Connected {
        tunnel,
        driver: Box::pin(driver),
    })
}

async fn library<T>(
    io: T,
    tls: Arc<ClientConfig>,
    certificate: &WorkloadCertificate,
    farewell: Farewell,
    config: &Config,
) -> io::Result<Connected>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let tls = TlsConnector::from(tls);
    let mut secured = tls.connect(tls::server_name(), io).await?;
    let (_, session) = secured.get_mut();
    session.set_buffer_limit(Some(TLS_BUFFER));
    let peer = Peer {
        identity: tls::authenticated_peer(session).map_err(io::Error::other)?,
        standing: tls::standing(session, certificate, PeerRole::Server),
    };
    open(secured, peer, farewell, config).await
}

/// Who is at the other end.
pub(crate) struct Peer {
    pub(crate) identity: SpiffeId,
    pub(crate) standing: Standing,
}

/// HTTP/2 by the library, over any byte stream.
pub(crate) async fn open<T>(
    secured: T,
    peer: Peer,
    farewell: Farewell,
    config: &Config,
) -> io::Result<Connected>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut io = TunnelIo::new(secured);
    let (send, mut connection) = builder(config)
        .handshake::<_, Bytes>(io.clone())
        .await
        .map_err(|error| TunnelError::from(error).into_io())?;
    let pulse = io.pulse();
    let keepalive = Keepalive::new(connection.ping_pong(), pulse.clone(), config);
    let Peer { identity, standing } = peer;
    let heard = Heard::Library(pulse);
    let proven = Proven {
        peer: identity,
        valid_until: standing.valid_until(),
    };
    let tunnel = Tunnel::new(proven, heard, Opener::Library(send), config);
    let release = Release::new(config.pool_unused_release);
    let driven = Arc::clone(&tunnel);
    let driver = async move {
        drive(connection, io.clone(), keepalive, release, standing, driven).await?;
        if farewell == Farewell::Listen {
            // A carrier that is dropped before both its directions have ended is reset, and that could overtake what
            // the gateway has not passed on yet.
            let _given_up = timeout(FAREWELL, until_end(&mut io)).await;
        }
        Ok(())
    };
    Ok(Connected {
        tunnel,
        driver: Box::pin(driver),
    })
}

async fn until_end<T: AsyncRead + Unpin>(io: &mut T) {
    let mut ignored = [0; 512];
    while matches!(io.read(&mut ignored).await, Ok(1..)) {}
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
    mut standing: Standing,
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
        if let Poll::Ready(reason) = standing.poll_withdrawn(cx) {
            tunnel.fate.withdraw(Arc::clone(&reason));
            return Poll::Ready(Err(TunnelError::new(TunnelFault::Withdrawn, reason)));
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
