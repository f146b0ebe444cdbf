// SPDX-License-Identifier: Apache-2.0
//! The TLS side of the server: a certificate of our own authority, renewed in
//! time, and an accept loop that bounds handshakes and connections. Whoever is slow in its handshake makes room for
//! others once there are many of them.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use arc_swap::ArcSwapOption;
use ops::{
    lobby::{Lobby, Standing},
    shutdown::DrainSignal,
};
use rustls::{
    ServerConfig,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

/// Handshakes at a time; see [`Lobby`] for who leaves when there are more.
const MAX_HANDSHAKES: usize = 256;
/// Connections at a time.
const MAX_CONNECTIONS: usize = 10_000;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The certificate that is shown now; it can be replaced at any time. While there is none, no handshake succeeds.
#[derive(Debug)]
pub struct Shown(ArcSwapOption<CertifiedKey>);

impl Shown {
    /// Shows no certificate.
    pub fn nothing() -> Arc<Self> {
        Arc::new(Self(ArcSwapOption::empty()))
    }

    /// Shows another one, or none, from now on.
    pub fn replace(&self, certificate: Option<Arc<CertifiedKey>>) {
        self.0.store(certificate);
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load_full()
    }
}

/// TLS 1.2 and 1.3, HTTP/2 only. Clients prove themselves by token.
///
/// # Errors
/// When the provider lacks what these versions need.
pub fn tls_config(shown: Arc<Shown>) -> Result<Arc<ServerConfig>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
        .with_no_client_auth()
        .with_cert_resolver(shown);
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

/// Accepts connections and shakes hands until the drain; what comes out is ready for HTTP/2.
pub fn incoming(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    drain: DrainSignal,
) -> ReceiverStream<io::Result<Secured>> {
    let (secured, ready) = mpsc::channel(16);
    let acceptor = TlsAcceptor::from(tls);
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let lobby = Lobby::new(MAX_HANDSHAKES);
    tokio::spawn(async move {
        let shake_hands = move |socket: TcpStream, peer: SocketAddr| {
            let (acceptor, slots, secured) =
                (acceptor.clone(), Arc::clone(&slots), secured.clone());
            let standing = lobby.enter(peer.ip().to_canonical());
            async move {
                match secure(socket, peer, &acceptor, slots, standing).await {
                    // The server is gone if nobody takes it.
                    Ok(connection) => _ = secured.send(Ok(connection)).await,
                    Err(error) => {
                        metrics::counter!(
                            "culvert_xds_handshake_failures_total",
                            "reason" => error.reason()
                        )
                        .increment(1);
                        // Without the port, so that many of one peer count as repetitions.
                        tracing::warn!(peer = %peer.ip(), %error, "TLS handshake failed");
                    }
                }
            }
        };
        let served = ops::serve::serve(
            listener,
            "control plane",
            MAX_CONNECTIONS,
            drain,
            shake_hands,
        );
        if let Err(error) = served.await {
            tracing::error!(%error, "the control plane's listener is broken");
        }
    });
    ReceiverStream::new(ready)
}

/// Why a connection came to nothing before its first request.
#[derive(Debug, thiserror::Error)]
enum Turned {
    #[error("there are {MAX_CONNECTIONS} connections already, as many as there may be")]
    Full,
    #[error(
        "it made room for another: of {MAX_HANDSHAKES} clients in their handshake, as many as there may be, most were \
         of its address"
    )]
    Crowded,
    #[error("it was not done within {HANDSHAKE_TIMEOUT:?}")]
    Late,
    #[error(transparent)]
    Broken(#[from] io::Error),
}

impl Turned {
    /// The `reason` of the counter.
    fn reason(&self) -> &'static str {
        match self {
            Self::Full => "connections",
            Self::Crowded => "crowded",
            Self::Late => "timeout",
            Self::Broken(_) => "handshake",
        }
    }
}

/// Shakes hands, for as long as the place in the lobby is not taken away.
async fn secure(
    socket: TcpStream,
    peer: SocketAddr,
    acceptor: &TlsAcceptor,
    slots: Arc<Semaphore>,
    standing: Standing,
) -> Result<Secured, Turned> {
    let slot = slots.try_acquire_owned().map_err(|_| Turned::Full)?;
    socket.set_nodelay(true)?;
    let shaken = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(socket));
    let stream = tokio::select! {
        shaken = shaken => shaken.map_err(|_| Turned::Late)??,
        () = standing.made_to_leave() => return Err(Turned::Crowded),
    };
    Ok(Secured {
        stream: Box::new(stream),
        peer: Peer(peer),
        _slot: slot,
    })
}

/// A client's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// A connection whose handshake is done.
#[derive(Debug)]
pub struct Secured {
    stream: Box<TlsStream<TcpStream>>,
    peer: Peer,
    _slot: OwnedSemaphorePermit,
}

impl Connected for Secured {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer
    }
}

impl AsyncRead for Secured {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Secured {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
