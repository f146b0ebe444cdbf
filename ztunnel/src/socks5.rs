// SPDX-License-Identifier: Apache-2.0
//! 15080 on the pod's loopback, for applications that speak SOCKS5 (RFC 1928): they say where they want to go, by address
//! or by name, and from there on it is [`outbound`]'s connection like any other.
//!
//! ```text
//!  app ── SOCKS5 to 127.0.0.1:15080 ──► handshake (pure) ─► a name? dns: as the pod would be answered ─► outbound ─► reply
//! ```
//! The reply says how connecting went, and so comes only when that is known. A client is of this pod, since nobody else
//! reaches its loopback; who that is, is proven by the pod's address in the namespace, as everywhere.
//!
//! Bounds: a client has [`LONGEST_HANDSHAKE`] to say what it wants, and counts as one of its pod's connections meanwhile.

mod handshake;
mod reply;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use mesh::Workload;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tracing::debug;

pub use self::handshake::{GREETED, Handshake, Progress, Target, Violation};
pub use self::reply::Reply;
use crate::binding::Unbound;
use crate::dns::ResolveError;
use crate::dns::message::Family;
use crate::failure::Failure;
use crate::outbound::{self, Client, Connection};
use crate::proxy::{PodProxy, canonical};
use crate::record::Reporter;
use ops::workers::WorkerId;

/// How long a client may take until its request is complete.
pub const LONGEST_HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a client that was refused may take to close.
const FAREWELL: Duration = Duration::from_secs(1);
/// What such a client may have sent, without being reset before it has read the reply.
const FAREWELL_BYTES: u64 = 64 << 10;

pub async fn serve(pod: Arc<PodProxy>, worker: WorkerId, mut client: TcpStream, peer: SocketAddr) {
    let reached = match client.local_addr() {
        Ok(reached) => canonical(reached),
        Err(error) => {
            return debug!(%peer, %error, "connection ended before it was served");
        }
    };
    let refuse = |destination, failure: &Failure| {
        pod.refuse_early(Reporter::Source, shown(&pod, peer), destination, failure);
    };
    let mut handshake = Handshake::default();
    let shaken = timeout(LONGEST_HANDSHAKE, shake_hands(&mut client, &mut handshake)).await;
    let target = match shaken {
        Ok(Ok(target)) => target,
        Ok(Err(Unserved::Gone)) => {
            return debug!(%peer, "SOCKS5 client ended before it said anything");
        }
        Ok(Err(Unserved::Broken(error))) => {
            return refuse(reached, &Failure::Copy(error.to_string()));
        }
        Ok(Err(Unserved::Wrong(violation))) => {
            refuse(reached, &violation.into());
            return farewell(client, &violation.answer()).await;
        }
        Ok(Err(Unserved::Unfinished)) => {
            refuse(reached, &Failure::Socks5Unfinished);
            return farewell(client, &handshake.dismissal()).await;
        }
        Err(_) => {
            refuse(reached, &Failure::Socks5Slow(LONGEST_HANDSHAKE));
            return farewell(client, &handshake.dismissal()).await;
        }
    };
    match destination(&pod, peer, &target).await {
        Ok(Found {
            source,
            own,
            destination,
        }) => {
            let connection = Connection {
                worker,
                peer: SocketAddr::new(own, peer.port()),
                destination,
                source: &source,
            };
            outbound::carry_out(&pod, connection, Client::of_socks5(client)).await;
        }
        Err(failure) => {
            let destination = match target {
                Target::Address(address) => address,
                Target::Host(..) => reached,
            };
            refuse(destination, &failure);
            farewell(client, &Reply::of(&failure).bytes()).await;
        }
    }
}

/// Why a client has not said where it wants to go.
enum Unserved {
    /// It went away as it came: a probe.
    Gone,
    Broken(io::Error),
    Wrong(Violation),
    Unfinished,
}

/// The address by which a person knows the pod, which its loopback is not.
fn shown(pod: &PodProxy, peer: SocketAddr) -> SocketAddr {
    let workload = pod.workload();
    let own = workload
        .ok()
        .and_then(|workload| workload.addresses.first().copied());
    own.map_or(peer, |own| SocketAddr::new(own, peer.port()))
}

async fn shake_hands(
    client: &mut TcpStream,
    handshake: &mut Handshake,
) -> Result<Target, Unserved> {
    loop {
        let count = client.read(handshake.room()).await;
        let count = count.map_err(Unserved::Broken)?;
        if count == 0 {
            return Err(match handshake.is_untouched() {
                true => Unserved::Gone,
                false => Unserved::Unfinished,
            });
        }
        match handshake.filled(count).map_err(Unserved::Wrong)? {
            Progress::More => {}
            Progress::Greeted => {
                let greeted = client.write_all(&GREETED).await;
                greeted.map_err(Unserved::Broken)?;
            }
            Progress::Asked(target) => return Ok(target),
        }
    }
}

/// Who asks and where that leads.
struct Found {
    source: Arc<Workload>,
    /// The pod's own address towards the destination.
    own: IpAddr,
    destination: SocketAddr,
}

async fn destination(pod: &PodProxy, peer: SocketAddr, target: &Target) -> Result<Found, Failure> {
    let towards = match target {
        Target::Address(address) => address.ip(),
        Target::Host(..) => peer.ip(),
    };
    let (source, own) = pod.workload_towards(towards).await?;
    if !peer.ip().is_loopback() && !source.addresses.contains(&peer.ip()) {
        let foreign = Unbound::ForeignAddress {
            address: peer.ip(),
            pod: pod.info.clone(),
        };
        return Err(foreign.into());
    }
    let destination = match target {
        Target::Address(address) => *address,
        Target::Host(host, port) => SocketAddr::new(resolve(pod, &source, host).await?, *port),
    };
    // A name may lead to the other family.
    let own = match own.is_ipv4() == destination.is_ipv4() {
        true => own,
        false => pod.workload_towards(destination.ip()).await?.1,
    };
    if pod.own_ports().is_loop(destination, &[own]) {
        return Err(Failure::Loop(destination));
    }
    Ok(Found {
        source,
        own,
        destination,
    })
}

/// An address of a family that the pod has; IPv4 before IPv6, as the listener is on IPv4.
async fn resolve(pod: &PodProxy, source: &Workload, host: &str) -> Result<IpAddr, ResolveError> {
    let Some(resolver) = &pod.shared.resolver else {
        return Err(ResolveError::Off(host.to_owned()));
    };
    let has = |family| {
        let mut addresses = source.addresses.iter();
        addresses.any(|address| Family::of(*address) == family)
    };
    let mut outcome = Err(ResolveError::NoName(host.to_owned()));
    for family in [Family::V4, Family::V6]
        .into_iter()
        .filter(|family| has(*family))
    {
        outcome = resolver.resolve(pod, source, host, family).await;
        if !matches!(outcome, Err(ResolveError::NoAddress { .. })) {
            break;
        }
    }
    outcome
}

/// Tells a client that it is not served, and closes so that it can read that: with FIN, as long as it has said no more
/// than was to be expected.
pub async fn farewell(mut client: TcpStream, answer: &[u8]) {
    let _ = socket2::SockRef::from(&client).set_linger(None);
    let told = async {
        client.write_all(answer).await?;
        client.shutdown().await?;
        let mut rest = client.take(FAREWELL_BYTES);
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
    };
    let _ = timeout(FAREWELL, told).await;
}
