// SPDX-License-Identifier: Apache-2.0
//! The far side of a connection: an endpoint in a tunnel, or in plain where it is not of the mesh; with TLS on it where its
//! rules say so.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hbone::wire::{Authority, ConnectRequest, PORT};
use hbone::{Behind, BoxFuture, Dial, PoolKey, Stream};
use http::HeaderMap;
use mesh::Endpoint;
use spiffe::SpiffeId;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use crate::destination::Destination;
use crate::endpoints::{Asked, Begun, Chosen, Using, Way};
use crate::failure::Failure;
use crate::listener::Arrival;
use crate::resilience::affinity::Facts;
use crate::resilience::limits::Work;
use crate::resilience::traffic::{Balancing, Connections};
use crate::tls::Tls;
use crate::waypoint::Waypoint;

/// Bound on a plain connect; that on a tunnel is the tunnel's own.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Endpoints of one connection that are tried.
const MOST_ATTEMPTS: usize = 3;

/// The version of HTTP that is spoken on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Version {
    Http1,
    Http2,
}

/// A connection to an endpoint.
pub struct Upstream {
    pub leg: Leg,
    pub chosen: Chosen,
    pub using: Using,
    /// It counts among its destination's connections.
    pub begun: Begun,
}

/// What carries it.
pub enum Leg {
    Tunnel(Stream),
    Plain(TcpStream),
    /// TLS that was begun here.
    Secured(Box<TlsStream<Self>>),
}

/// Connects to an endpoint of what was meant; to another one, while it fails and nothing was said.
pub async fn connect(
    waypoint: &Waypoint,
    arrival: &Arrival,
    destination: &Destination,
) -> Result<Upstream, Failure> {
    let policy = destination.policy();
    let observed = waypoint.endpoints.observed(destination);
    let begun = observed.begin(Work::Connection, &policy.limits)?;
    // What a stream of bytes has in common with others is its client, at most.
    let key = match &policy.balancing {
        Balancing::Hash(source) => source.key(Facts {
            headers: &HeaderMap::new(),
            query: None,
            client: arrival.peer.ip(),
        }),
        _ => None,
    };
    let mut tried: Vec<Endpoint> = Vec::new();
    let mut last = None;
    loop {
        let chosen = {
            let known = waypoint.state.read();
            let wanted = Asked {
                destination,
                policy,
                observed: &observed,
                key,
                pin: None,
                tried: &tried,
                speaks_for: Some(&arrival.identity),
            };
            let endpoints = &waypoint.endpoints;
            endpoints.choose(&known, &waypoint.own, wanted, &mut rand::rng())
        };
        let chosen = match (chosen, last.take()) {
            (Ok(chosen), _) => chosen,
            // That nobody is left says less than why the last one failed.
            (Err(_), Some(failure)) => return Err(failure),
            (Err(refusal), None) => return Err(refusal),
        };
        let endpoint = chosen.endpoint();
        let using = waypoint.endpoints.begin(&observed, endpoint.clone());
        let reached = async {
            let own = waypoint.own.address;
            let chosen = waypoint.hostnames.settle(chosen, own).await?;
            let limits = &policy.connections;
            let wanted = (limits, None);
            let leg = reach(waypoint, arrival, destination, wanted, &chosen).await?;
            Ok::<_, Failure>((leg, chosen))
        };
        match reached.await {
            Ok((leg, chosen)) => {
                using.succeeded();
                return Ok(Upstream {
                    leg,
                    chosen,
                    using,
                    begun,
                });
            }
            Err(failure) if !failure.is_the_endpoints() => return Err(failure),
            Err(failure) => {
                using.failed(&failure);
                tried.push(endpoint);
                if tried.len() >= MOST_ATTEMPTS {
                    return Err(failure);
                }
                last = Some(failure);
                waypoint.recorder.retried();
            }
        }
    }
}

/// One attempt, for a version of HTTP, or for bytes of any kind.
pub async fn reach(
    waypoint: &Waypoint,
    arrival: &Arrival,
    destination: &Destination,
    (limits, version): (&Connections, Option<Version>),
    chosen: &Chosen,
) -> Result<Leg, Failure> {
    let reaching = async {
        let leg = way_to(waypoint, arrival, destination, chosen).await?;
        match &chosen.tls {
            None => Ok(leg),
            // Large, and seldom wanted.
            Some(tls) => Box::pin(secure(waypoint, tls, version, (leg, chosen.address))).await,
        }
    };
    match limits.connect_timeout {
        // What lies on the way has bounds of its own.
        None => reaching.await,
        Some(_) => in_time(limits, chosen.address, reaching).await?,
    }
}

/// The time that a connection to an endpoint may take.
pub fn connect_timeout(limits: &Connections) -> Duration {
    limits.connect_timeout.unwrap_or(CONNECT_TIMEOUT)
}

/// What comes within the time that a connection to an endpoint may take.
///
/// # Errors
/// It took longer.
pub async fn in_time<T>(
    limits: &Connections,
    to: SocketAddr,
    coming: impl Future<Output = T>,
) -> Result<T, Failure> {
    let limit = connect_timeout(limits);
    let came = timeout(limit, coming).await;
    came.map_err(|_| Failure::ConnectTimeout { to, limit })
}

async fn secure(
    waypoint: &Waypoint,
    tls: &Tls,
    version: Option<Version>,
    (leg, to): (Leg, SocketAddr),
) -> Result<Leg, Failure> {
    let namespace = &waypoint.own.namespace;
    let begin = tls.begin(&waypoint.tls, namespace, version, (leg, to));
    let begun = timeout(CONNECT_TIMEOUT, begin).await;
    let begun = begun.map_err(|_| Failure::ConnectTimeout {
        to,
        limit: CONNECT_TIMEOUT,
    })?;
    Ok(Leg::Secured(Box::new(begun?)))
}

async fn way_to(
    waypoint: &Waypoint,
    arrival: &Arrival,
    destination: &Destination,
    chosen: &Chosen,
) -> Result<Leg, Failure> {
    let to = chosen.address;
    match &chosen.way {
        Way::Plain => match timeout(CONNECT_TIMEOUT, dial(to)).await {
            Ok(Ok(socket)) => Ok(Leg::Plain(socket)),
            Ok(Err(error)) => Err(Failure::Connect {
                to,
                error: Arc::new(error),
            }),
            Err(_) => Err(Failure::ConnectTimeout {
                to,
                limit: CONNECT_TIMEOUT,
            }),
        },
        Way::Tunnel { expected, caller } => {
            let address = SocketAddr::new(to.ip(), PORT);
            let key = tunnel_key(waypoint, expected, address);
            let request = ConnectRequest {
                caller: caller.clone(),
                ..request(arrival, destination, Authority::from(to))
            };
            let pool = waypoint.worker(arrival.worker).tunnels();
            let opened = pool.open(&key, &Directly, request).await;
            let (stream, _peer) = opened.map_err(Failure::Tunnel)?;
            Ok(Leg::Tunnel(stream))
        }
        Way::Gateway(gateway) => {
            let key = tunnel_key(waypoint, &gateway.expected, to);
            let authority = Authority::Host(gateway.host.to_ascii_lowercase(), gateway.port);
            let to_gateway = request(arrival, destination, authority);
            let behind = Behind {
                expected: Arc::clone(&gateway.behind),
                to_destination: ConnectRequest {
                    network: Some(waypoint.own.network.to_string()),
                    ..to_gateway.clone()
                },
                to_gateway,
            };
            let pool = waypoint.worker(arrival.worker).tunnels();
            let opened = Box::pin(pool.open_behind(&key, &Directly, behind)).await;
            let (stream, _answering) = opened.map_err(Failure::Tunnel)?;
            Ok(Leg::Tunnel(stream))
        }
    }
}

fn tunnel_key(waypoint: &Waypoint, expected: &Arc<[SpiffeId]>, address: SocketAddr) -> PoolKey {
    PoolKey {
        source: waypoint.own.identity.clone(),
        destination: Arc::clone(expected),
        address,
        source_ip: waypoint.own.address,
    }
}

fn request(arrival: &Arrival, destination: &Destination, authority: Authority) -> ConnectRequest {
    ConnectRequest {
        baggage: arrival.request.baggage.clone(),
        forwarded: arrival.forwarded(destination),
        traceparent: arrival.request.traceparent,
        ..ConnectRequest::new(authority)
    }
}

struct Directly;

impl Dial for Directly {
    fn dial(&self, to: SocketAddr) -> BoxFuture<'_, io::Result<TcpStream>> {
        Box::pin(dial(to))
    }
}

async fn dial(to: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(to).await?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

impl AsyncRead for Leg {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tunnel(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Plain(socket) => Pin::new(socket).poll_read(cx, buf),
            Self::Secured(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Leg {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tunnel(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Plain(socket) => Pin::new(socket).poll_write(cx, buf),
            Self::Secured(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tunnel(stream) => Pin::new(stream).poll_flush(cx),
            Self::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Self::Secured(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tunnel(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Secured(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
