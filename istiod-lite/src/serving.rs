// SPDX-License-Identifier: Apache-2.0
//! The TLS side of the server: a certificate of our own authority, renewed in
//! time, and an accept loop that bounds handshakes and connections. Of either there is a lobby: when it is full, the
//! address with the most in it makes room, so that nobody keeps the others out by holding what anyone may open.

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
    sync::mpsc,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

/// How many there may be at a time; see [`Lobby`] for who leaves when there are more.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub handshakes: usize,
    pub connections: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            handshakes: 256,
            connections: 10_000,
        }
    }
}

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
    bounds: Bounds,
) -> ReceiverStream<io::Result<Secured>> {
    let (secured, ready) = mpsc::channel(16);
    let acceptor = TlsAcceptor::from(tls);
    let connections = Lobby::new(bounds.connections);
    let handshakes = Lobby::new(bounds.handshakes);
    tokio::spawn(async move {
        let shake_hands = move |socket: TcpStream, peer: SocketAddr| {
            let (acceptor, secured) = (acceptor.clone(), secured.clone());
            let from = peer.ip().to_canonical();
            let (standing, place) = (handshakes.enter(from), connections.enter(from));
            async move {
                match secure(socket, peer, &acceptor, standing, place).await {
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
            bounds.connections,
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
    #[error(
        "it made room for another: of the clients in their handshake, as many as there may be, most were of its address"
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
    standing: Standing,
    place: Standing,
) -> Result<Secured, Turned> {
    socket.set_nodelay(true)?;
    let shaken = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(socket));
    let stream = tokio::select! {
        shaken = shaken => shaken.map_err(|_| Turned::Late)??,
        () = standing.made_to_leave() => return Err(Turned::Crowded),
    };
    Ok(Secured {
        stream: Box::new(stream),
        peer: Peer(peer),
        taken_away: Box::pin(place.made_to_leave()),
        _place: place,
    })
}

/// A client's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// A connection whose handshake is done. It breaks when its place is given to another.
pub struct Secured {
    stream: Box<TlsStream<TcpStream>>,
    peer: Peer,
    taken_away: Pin<Box<dyn Future<Output = ()> + Send>>,
    _place: Standing,
}

impl Secured {
    fn displaced(&self) -> io::Error {
        metrics::counter!("culvert_xds_connections_displaced_total").increment(1);
        // Without the port, so that many of one peer count as repetitions.
        tracing::warn!(
            peer = %self.peer.0.ip(),
            "closing a connection to make room for another: there are as many as there may be, and most are of its \
             address"
        );
        io::Error::new(io::ErrorKind::ConnectionAborted, "it made room for another")
    }
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
        // HTTP/2 always waits for its peer's next word, so that this is heard at once.
        if self.taken_away.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(self.displaced()));
        }
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

#[cfg(test)]
mod tests {
    use rustls::{ClientConfig, RootCertStore, pki_types::ServerName};
    use tokio::{io::AsyncReadExt as _, net::TcpSocket};
    use tokio_rustls::{TlsConnector, client};
    use tokio_stream::StreamExt as _;

    use super::*;

    /// Both ends of a server that shows `localhost`'s certificate, and of a client that trusts it.
    fn ends() -> (Arc<ServerConfig>, TlsConnector) {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(["localhost".to_owned()])
            .unwrap()
            .self_signed(&key)
            .unwrap();
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let signing = provider
            .key_provider
            .load_private_key(key.serialize_der().try_into().unwrap())
            .unwrap();
        let shown = Shown::nothing();
        shown.replace(Some(Arc::new(CertifiedKey::new(
            vec![certificate.der().clone()],
            signing,
        ))));
        let mut roots = RootCertStore::empty();
        roots.add(certificate.der().clone()).unwrap();
        let mut client = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        client.alpn_protocols = vec![b"h2".to_vec()];
        (
            tls_config(shown).unwrap(),
            TlsConnector::from(Arc::new(client)),
        )
    }

    async fn connect(
        from: &str,
        to: SocketAddr,
        connector: &TlsConnector,
    ) -> client::TlsStream<TcpStream> {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(from.parse().unwrap()).unwrap();
        let socket = socket.connect(to).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        connector.connect(name, socket).await.unwrap()
    }

    #[tokio::test]
    async fn who_holds_most_connections_makes_room_and_others_keep_theirs() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (server, connector) = ends();
        let (_drain, signal) = ops::shutdown::channel();
        let bounds = Bounds {
            handshakes: 8,
            connections: 3,
        };
        let mut incoming = incoming(listener, server, signal, bounds);
        let mut clients = Vec::new();
        let mut held = Vec::new();
        // The third of the crowd is one too many.
        for from in ["127.0.0.1:0", "127.0.0.2:0", "127.0.0.2:0", "127.0.0.2:0"] {
            clients.push(connect(from, address, &connector).await);
            held.push(incoming.next().await.unwrap().unwrap());
        }
        let mut byte = [0];
        let displaced = held[1].read(&mut byte).await.unwrap_err();
        assert_eq!(displaced.kind(), io::ErrorKind::ConnectionAborted);
        for kept in [0, 2, 3] {
            let quiet = tokio::time::timeout(Duration::from_millis(50), held[kept].read(&mut byte));
            assert!(quiet.await.is_err(), "connection {kept} is there no longer");
        }
    }
}
