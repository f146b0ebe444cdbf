// SPDX-License-Identifier: Apache-2.0
//! A pod's DNS listeners: UDP and TCP on its loopback, each query a task, all within bounds.
//!
//! A drain hands the port over without losing a query: the UDP socket stops taking new ones, which then go to the next
//! process's socket (or are refused by the kernel at once, where there is none), what it had taken is answered, and it is
//! gone with the last answer.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener, UdpSocket as StdUdpSocket};
use std::sync::Arc;
use std::time::Duration;

use capture::Netns;
use capture::socket::ListenOptions;
use parking_lot::Mutex;
use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{Instrument as _, debug, info_span, warn};

use super::answer::Transport;
use super::cache::Cache;
use super::lookup::{Arrival, Refusal};
use super::message::{MAX_QUERY, QueryError};
use super::upstreams::framed;
use super::{CONNECTIONS_PER_POD, IDLE, QUERIES_PER_CONNECTION, QUERIES_PER_POD, Resolver};
use crate::config::{DnsListen, InPod, Ipv6, PortReuse};
use crate::proxy::PodProxy;

/// Pause after a receive that failed, so that a broken socket does not spin.
const FAILED_PAUSE: Duration = Duration::from_millis(100);

/// Bound inside a pod, not served yet.
pub struct Listeners {
    udp: Vec<StdUdpSocket>,
    tcp: Vec<StdListener>,
}

/// Binds the pod's listeners. Those on IPv6 are left out where the pod's loopback has none.
///
/// # Errors
/// What kept one of them from being bound.
pub fn listen(netns: &Netns, listen: DnsListen, inpod: &InPod) -> io::Result<Listeners> {
    let reuse_port = inpod.port_reuse == PortReuse::Shared;
    let mut listeners = Listeners {
        udp: Vec::new(),
        tcp: Vec::new(),
    };
    for address in listen.addresses() {
        if address.is_ipv6() && inpod.ipv6 == Ipv6::Disabled {
            continue;
        }
        let options = ListenOptions {
            mark: Some(inpod.mark),
            reuse_port,
            v6: address.is_ipv6(),
        };
        let udp = capture::socket::udp_at(netns, address, Some(inpod.mark), reuse_port);
        let bound =
            udp.and_then(|udp| Ok((udp, capture::socket::listen_at(netns, address, options)?)));
        match bound {
            Ok((udp, tcp)) => {
                listeners.udp.push(udp);
                listeners.tcp.push(tcp);
            }
            Err(error) if address.is_ipv6() && capture::socket::no_ipv6(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(listeners)
}

/// What the kernel had already taken in when the socket was retired is there by then.
const LEFTOVERS: Duration = Duration::from_millis(50);

/// A pod that asks.
struct Asking {
    pod: Arc<PodProxy>,
    resolver: Arc<Resolver>,
    in_flight: Arc<Semaphore>,
    cache: Mutex<Cache>,
}

/// Holds a query's places.
struct Places {
    _of_pod: OwnedSemaphorePermit,
    _of_node: OwnedSemaphorePermit,
}

/// Serves the listeners on the pod's home worker until the pod drains.
pub fn serve(pod: &Arc<PodProxy>, resolver: &Arc<Resolver>, listeners: Listeners) {
    let asking = Arc::new(Asking {
        pod: Arc::clone(pod),
        resolver: Arc::clone(resolver),
        in_flight: Arc::new(Semaphore::new(QUERIES_PER_POD)),
        cache: Mutex::default(),
    });
    let span = || info_span!("dns_proxy", wl = %pod.info);
    for socket in listeners.udp {
        let served = Arc::clone(&asking).serve_udp(socket);
        pod.spawn(served.instrument(span()));
    }
    for listener in listeners.tcp {
        let served = Arc::clone(&asking).serve_tcp(listener);
        pod.spawn(served.instrument(span()));
    }
}

impl Asking {
    fn places(&self) -> Result<Places, Refusal> {
        let of_pod = Arc::clone(&self.in_flight).try_acquire_owned();
        let of_node = Arc::clone(&self.resolver.in_flight).try_acquire_owned();
        Ok(Places {
            _of_pod: of_pod.map_err(|_| Refusal::PodBusy)?,
            _of_node: of_node.map_err(|_| Refusal::NodeBusy)?,
        })
    }

    async fn serve_udp(self: Arc<Self>, socket: StdUdpSocket) {
        let usable = UdpSocket::from_std(socket).and_then(|socket| {
            let address = socket.local_addr()?;
            Ok((Arc::new(socket), address))
        });
        let (socket, address) = match usable {
            Ok(usable) => usable,
            Err(error) => return warn!(%error, "the DNS socket can't be used"),
        };
        let drain = self.pod.drain_signal();
        // One byte more than a query may have, so that a longer one is recognised.
        let mut buffer = vec![0; MAX_QUERY + 1];
        loop {
            let received = tokio::select! {
                biased;
                () = drain.requested() => break,
                received = socket.recv_from(&mut buffer) => received,
            };
            match received {
                Ok((length, peer)) => self.take_datagram(&socket, address, peer, &buffer[..length]),
                Err(error) => {
                    debug!(%error, "receiving a DNS query failed");
                    tokio::time::sleep(FAILED_PAUSE).await;
                }
            }
        }
        retire(&socket, address);
        while let Ok(Ok((length, peer))) = timeout(LEFTOVERS, socket.recv_from(&mut buffer)).await {
            self.take_datagram(&socket, address, peer, &buffer[..length]);
        }
    }

    fn take_datagram(
        self: &Arc<Self>,
        socket: &Arc<UdpSocket>,
        listener: SocketAddr,
        peer: SocketAddr,
        message: &[u8],
    ) {
        let arrival = Arrival {
            transport: Transport::Udp,
            peer,
            listener,
        };
        let places = match self.places() {
            Ok(places) => places,
            Err(refusal) => {
                let refused = self
                    .resolver
                    .refuse_unread(&self.pod, arrival, message, refusal);
                if let Some(response) = refused {
                    // A full buffer loses it, as the network may.
                    let _ = socket.try_send_to(&response, peer);
                }
                return;
            }
        };
        let (asking, socket, message) = (Arc::clone(self), Arc::clone(socket), message.to_vec());
        self.pod.spawn(async move {
            let _places = places;
            let response = asking
                .resolver
                .respond(&asking.pod, &asking.cache, arrival, &message)
                .await;
            if let Some(response) = response
                && let Err(error) = socket.send_to(&response, peer).await
            {
                debug!(%peer, %error, "a DNS answer could not be sent");
            }
        });
    }

    async fn serve_tcp(self: Arc<Self>, listener: StdListener) {
        let listener = match TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => return warn!(%error, "the DNS listener can't be used"),
        };
        let drain = self.pod.drain_signal();
        let connection = |socket, peer| {
            let asking = Arc::clone(&self);
            async move {
                let pod = Arc::clone(&asking.pod);
                pod.until_cut(asking.connection(socket, peer)).await;
            }
        };
        let served =
            ops::serve::serve(listener, "dns", CONNECTIONS_PER_POD, drain, connection).await;
        if let Err(error) = served {
            warn!(%error, "the DNS listener broke");
        }
    }

    async fn connection(self: Arc<Self>, socket: TcpStream, peer: SocketAddr) {
        let listener = match socket.local_addr() {
            Ok(listener) => listener,
            Err(error) => return debug!(%peer, %error, "connection ended before it was served"),
        };
        let _ = socket.set_nodelay(true);
        let (reading, writing) = socket.into_split();
        let (responses, queue) = mpsc::channel(QUERIES_PER_CONNECTION);
        let arrival = Arrival {
            transport: Transport::Tcp,
            peer,
            listener,
        };
        tokio::join!(
            self.read_queries(reading, arrival, responses),
            write_responses(writing, queue)
        );
    }

    /// Several queries may be under way; answers go out as they come (RFC 7766 §6.2.1.1).
    async fn read_queries(
        self: Arc<Self>,
        mut reading: OwnedReadHalf,
        arrival: Arrival,
        responses: mpsc::Sender<Vec<u8>>,
    ) {
        let drain = self.pod.drain_signal();
        let mut under_way = JoinSet::new();
        loop {
            while under_way.len() >= QUERIES_PER_CONNECTION {
                under_way.join_next().await;
            }
            while under_way.try_join_next().is_some() {}
            let message = tokio::select! {
                biased;
                () = drain.requested() => break,
                () = responses.closed() => break,
                read = timeout(IDLE, read_message(&mut reading)) => match read {
                    Ok(Ok(message)) => message,
                    Ok(Err(_)) | Err(_) => break,
                },
            };
            let refused = match self.places() {
                Ok(places) if message.len() <= MAX_QUERY => {
                    let (asking, responses) = (Arc::clone(&self), responses.clone());
                    under_way.spawn(async move {
                        let _places = places;
                        let responded =
                            asking
                                .resolver
                                .respond(&asking.pod, &asking.cache, arrival, &message);
                        if let Some(response) = responded.await {
                            let _gone = responses.send(response).await;
                        }
                    });
                    continue;
                }
                Ok(_) => Refusal::Unreadable(QueryError::Long),
                Err(refusal) => refusal,
            };
            let too_long = matches!(refused, Refusal::Unreadable(_));
            let refused = self
                .resolver
                .refuse_unread(&self.pod, arrival, &message, refused);
            if let Some(response) = refused {
                let _gone = responses.send(response).await;
            }
            if too_long {
                break;
            }
        }
        while under_way.join_next().await.is_some() {}
    }
}

/// The next message with its first [`MAX_QUERY`] bytes and one more; a longer one is not worth the rest.
async fn read_message(reading: &mut OwnedReadHalf) -> io::Result<Vec<u8>> {
    let length = usize::from(reading.read_u16().await?);
    let mut message = vec![0; length.min(MAX_QUERY + 1)];
    reading.read_exact(&mut message).await?;
    Ok(message)
}

async fn write_responses(mut writing: OwnedWriteHalf, mut queue: mpsc::Receiver<Vec<u8>>) {
    while let Some(response) = queue.recv().await {
        let written = timeout(IDLE, writing.write_all(&framed(&response))).await;
        if !matches!(written, Ok(Ok(()))) {
            return;
        }
    }
}

/// Takes the socket out of the port's group without closing it: the kernel gives a connected socket only what its peer
/// sends, and this one is its own peer.
fn retire(socket: &UdpSocket, address: SocketAddr) {
    if let Err(error) = SockRef::from(socket).connect(&address.into()) {
        warn!(%error, "the DNS socket keeps its port until its last answer");
    }
}
