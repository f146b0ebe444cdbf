// SPDX-License-Identifier: Apache-2.0
//! Two ends of a tunnel over loopback, with real TLS: an application on either side, a client pool, a server.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test file uses the part that it needs"
)]

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hbone::wire::{Authority, Baggage, ConnectRequest, MalformedRequest};
use hbone::{
    BoxFuture, Config, Dial, Engine, Handler, Incoming, Meter, OpenError, Outcome, Pool, PoolKey,
    ServeError, Server, Stop, Stream, TunnelInfo,
};
use http::StatusCode;
use identity::testing::TestAuthority;
use identity::{FixedCertificates, WorkloadCertificate};
use spiffe::SpiffeId;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// The configuration under test: what a program of tests is called says with which engine they run.
pub fn config() -> Config {
    let engine = if env!("CARGO_CRATE_NAME") == "library" {
        Engine::Library
    } else {
        Engine::Own
    };
    Config {
        engine,
        ..Config::default()
    }
}

pub fn id(account: &str) -> SpiffeId {
    format!("spiffe://cluster.local/ns/test/sa/{account}")
        .parse()
        .unwrap()
}

/// Fails a test that hangs instead of letting it hang.
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future)
        .await
        .expect("not done within 30 s")
}

pub async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Two connected sockets.
pub async fn tcp_pair() -> (TcpStream, TcpStream) {
    let (listener, address) = listen().await;
    let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
    (near.unwrap(), far.unwrap().0)
}

/// Dials loopback and counts how often.
#[derive(Default)]
pub struct Loopback {
    pub dials: AtomicUsize,
    /// Where to go instead of where the pool says.
    pub instead: std::sync::Mutex<Option<SocketAddr>>,
}

impl Loopback {
    pub fn count(&self) -> usize {
        self.dials.load(Ordering::SeqCst)
    }
}

impl Dial for Loopback {
    fn dial(&self, to: SocketAddr) -> BoxFuture<'_, io::Result<TcpStream>> {
        self.dials.fetch_add(1, Ordering::SeqCst);
        let to = self.instead.lock().unwrap().unwrap_or(to);
        Box::pin(TcpStream::connect(to))
    }
}

/// Connects every accepted stream to where its authority says; other behaviours by host name.
pub struct Forward {
    pub outcomes: mpsc::UnboundedSender<Outcome>,
    pub seen: mpsc::UnboundedSender<ConnectRequest>,
    pub malformed: mpsc::UnboundedSender<(SpiffeId, String)>,
    pub stop: Stop,
    pub meter: Arc<Meter>,
}

impl Handler for Forward {
    async fn connect(self: Arc<Self>, incoming: Incoming) {
        let _ = self.seen.send(incoming.request.clone());
        match incoming.request.authority.clone() {
            Authority::Addr(address) => match TcpStream::connect(address).await {
                Ok(socket) => {
                    let baggage = Baggage {
                        service: Some("destination".into()),
                        ..Baggage::default()
                    };
                    let Ok(stream) = incoming.accept(Some(&baggage)) else {
                        return;
                    };
                    let outcome = stream.relay(socket, &self.meter, &self.stop).await;
                    let _ = self.outcomes.send(outcome);
                }
                Err(_) => incoming.reject(StatusCode::SERVICE_UNAVAILABLE),
            },
            Authority::Host(host, code) => match host.as_str() {
                "reject" => incoming.reject(StatusCode::from_u16(code).unwrap()),
                "drop" => drop(incoming),
                "panic" => panic!("a handler that panics (part of a test)"),
                "hang" => {
                    let mut incoming = incoming;
                    incoming.abandoned().await;
                }
                _ => incoming.reject(StatusCode::BAD_REQUEST),
            },
        }
    }

    fn malformed(&self, peer: &SpiffeId, error: MalformedRequest) {
        let _ = self.malformed.send((peer.clone(), error.to_string()));
    }
}

/// A mesh of two workloads on one thread.
pub struct Mesh {
    pub config: Config,
    pub authority: TestAuthority,
    pub pool: Pool,
    pub dial: Loopback,
    pub key: PoolKey,
    pub server: ServerSide,
    /// Of all relays at the opening end together.
    pub meter: Arc<Meter>,
}

/// The accepting end.
pub struct ServerSide {
    pub address: SocketAddr,
    pub drain: watch::Sender<bool>,
    pub stop: Stop,
    /// Of all relays at this end together.
    pub meter: Arc<Meter>,
    pub outcomes: mpsc::UnboundedReceiver<Outcome>,
    pub seen: mpsc::UnboundedReceiver<ConnectRequest>,
    /// Who sent requests that no handler gets, and what was wrong with them.
    pub malformed: mpsc::UnboundedReceiver<(SpiffeId, String)>,
    pub ended: mpsc::UnboundedReceiver<Result<(), ServeError>>,
    pub accepting: JoinHandle<()>,
}

impl Mesh {
    pub async fn new() -> Self {
        Self::with(config()).await
    }

    pub async fn with(config: Config) -> Self {
        Self::between(config.clone(), config).await
    }

    pub async fn between(client: Config, server: Config) -> Self {
        let authority = TestAuthority::new("root");
        let side = ServerSide::start(server, authority.issue(&id("server"))).await;
        let certificates: FixedCertificates =
            [authority.issue(&id("client"))].into_iter().collect();
        Self {
            config: client.clone(),
            pool: Pool::new(client, Arc::new(certificates)),
            dial: Loopback::default(),
            key: key(side.address),
            server: side,
            meter: Arc::default(),
            authority,
        }
    }

    pub async fn open(
        &self,
        authority: impl Into<Target>,
    ) -> Result<(Stream, TunnelInfo), OpenError> {
        let request = ConnectRequest::new(authority.into().0);
        self.pool.open(&self.key, &self.dial, request).await
    }

    /// An application's connection through the mesh to `to`, and what becomes of the client's relay.
    pub async fn connect(&self, to: SocketAddr) -> (TcpStream, JoinHandle<Outcome>) {
        self.connect_with(to, Stop::new()).await
    }

    pub async fn connect_with(
        &self,
        to: SocketAddr,
        stop: Stop,
    ) -> (TcpStream, JoinHandle<Outcome>) {
        let (stream, _) = soon(self.open(to)).await.unwrap();
        let (application, captured) = tcp_pair().await;
        let meter = Arc::clone(&self.meter);
        let relay = tokio::spawn(async move { stream.relay(captured, &meter, &stop).await });
        (application, relay)
    }
}

pub fn key(address: SocketAddr) -> PoolKey {
    PoolKey {
        source: id("client"),
        destination: Arc::new([id("server")]),
        address,
        source_ip: address.ip(),
    }
}

pub struct Target(Authority);

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Self {
        Self(address.into())
    }
}

impl From<&str> for Target {
    fn from(text: &str) -> Self {
        Self(text.parse().unwrap())
    }
}

impl ServerSide {
    pub async fn start(config: Config, certificate: Arc<WorkloadCertificate>) -> Self {
        let (listener, address) = listen().await;
        let (drain, draining) = watch::channel(false);
        let (outcomes_in, outcomes) = mpsc::unbounded_channel();
        let (seen_in, seen) = mpsc::unbounded_channel();
        let (malformed_in, malformed) = mpsc::unbounded_channel();
        let (ended_in, ended) = mpsc::unbounded_channel();
        let stop = Stop::new();
        let meter = Arc::new(Meter::new());
        let handler = Arc::new(Forward {
            outcomes: outcomes_in,
            seen: seen_in,
            malformed: malformed_in,
            stop: stop.clone(),
            meter: Arc::clone(&meter),
        });
        let server = Server::new(config);
        let accepting = tokio::spawn(async move {
            // Dropped with this task, and the connections with it.
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let (server, certificate) = (server.clone(), Arc::clone(&certificate));
                let (handler, draining) = (Arc::clone(&handler), draining.clone());
                let ended = ended_in.clone();
                connections.spawn(async move {
                    let result = server.serve(socket, certificate, handler, draining).await;
                    let _ = ended.send(result);
                });
            }
        });
        Self {
            address,
            drain,
            stop,
            meter,
            outcomes,
            seen,
            malformed,
            ended,
            accepting,
        }
    }
}

/// A peer that speaks HTTP/2 as the test wishes.
pub mod raw {
    use bytes::Bytes;
    use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

    use super::*;

    pub type ServerConnection = h2::server::Connection<server::TlsStream<TcpStream>, Bytes>;

    /// Accepts one tunnel.
    pub async fn accept(
        listener: &TcpListener,
        certificate: &WorkloadCertificate,
        builder: &h2::server::Builder,
    ) -> ServerConnection {
        let (socket, _) = listener.accept().await.unwrap();
        let config = identity::tls::server_config(certificate).unwrap();
        let tls = TlsAcceptor::from(config).accept(socket).await.unwrap();
        builder.handshake(tls).await.unwrap()
    }

    /// Opens a tunnel, and drives it in a task of its own.
    pub async fn connect(
        to: SocketAddr,
        certificate: &WorkloadCertificate,
        builder: &h2::client::Builder,
    ) -> h2::client::SendRequest<Bytes> {
        let tls = tls(to, certificate).await;
        let (send, connection) = builder.handshake(tls).await.unwrap();
        tokio::spawn(connection);
        send
    }

    pub async fn tls(
        to: SocketAddr,
        certificate: &WorkloadCertificate,
    ) -> client::TlsStream<TcpStream> {
        let config = identity::tls::client_config(certificate, &[id("server")]).unwrap();
        let socket = TcpStream::connect(to).await.unwrap();
        TlsConnector::from(config)
            .connect(identity::tls::server_name(), socket)
            .await
            .unwrap()
    }

    pub fn request(authority: &str) -> http::Request<()> {
        http::Request::connect(authority).body(()).unwrap()
    }
}

/// An application that answers with what it is sent, and closes when its client has.
pub async fn echo() -> SocketAddr {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = socket.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
            });
        }
    });
    address
}
