// SPDX-License-Identifier: Apache-2.0
//! 15008, mesh → pod: authenticate, authorize, connect, relay.
//!
//! A tunnel proves who its peer is; each of its streams is a connection of its own, with its own destination, decision
//! and record. A tunnel's life is written here in order, a connection's in [`arrival`].

pub mod arrival;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt as _;
use futures_util::future::{Either, ready};
use hbone::wire::MalformedRequest;
use hbone::{Incoming, ServeError, Server, Stream, TunnelFault};
use identity::tls;
use parking_lot::Mutex;
use spiffe::SpiffeId;
use tokio::net::TcpStream;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::{Instrument as _, debug, debug_span, info};

use self::arrival::{Arrivals, Arrived};
use crate::config::Baggage;
use crate::failure::Failure;
use crate::limits::{Standing, Telling};
use crate::outbound::baggage;
use crate::proxy::{PodProxy, canonical};
use crate::record::{Reporter, Security};
use crate::relaying::result_of;
use ops::workers::WorkerId;

/// The life of a tunnel.
pub async fn serve(
    pod: Arc<PodProxy>,
    worker: WorkerId,
    socket: TcpStream,
    peer: SocketAddr,
    half_open: Option<Standing>,
) {
    let Ok(reached) = socket.local_addr().map(canonical) else {
        return;
    };
    // Once the handshake is over, nobody can take the place away any more.
    let leaving = half_open.as_ref().map(Standing::made_to_leave);
    let made_to_leave = async {
        match leaving {
            Some(leaving) => leaving.await,
            None => std::future::pending().await,
        }
    };
    let streams = Arc::new(Streams {
        arrivals: Arrivals {
            pod: Arc::clone(&pod),
            worker,
            peer,
            reached,
            security: Security::MutualTls,
        },
        half_open: Mutex::new(half_open),
    });
    tokio::select! {
        biased;
        ended = tunnel(&pod, socket, streams) => if let Err(failure) = ended {
            pod.refuse_tunnel(peer, reached, &failure);
        },
        () = made_to_leave => pod.made_room(peer, reached),
    }
}

async fn tunnel(pod: &PodProxy, socket: TcpStream, streams: Arc<Streams>) -> Result<(), Failure> {
    let Arrivals { peer, reached, .. } = streams.arrivals;
    let workload = pod.workload_at(reached.ip()).await?;
    let identity = workload.identity.clone();
    let certificate = match pod.certificate(&identity).await {
        Ok(certificate) => certificate,
        Err(error) => {
            return Err(Failure::Certificate {
                identity,
                error: Box::new(error),
            });
        }
    };
    let drain = pod.drain_signal().watch();
    let server = Server::new(pod.shared.settings.hbone.clone());
    match server.serve(socket, certificate, streams, drain).await {
        Ok(()) => Ok(()),
        Err(ServeError::Certificate(reason)) => Err(Failure::LocalTls(reason)),
        Err(ServeError::Handshake(error)) if tls::is_revoked(&error) => {
            Err(Failure::Revoked("client's certificate is revoked".into()))
        }
        // Its streams have told their own ends.
        Err(ServeError::Withdrawn(reason)) => {
            info!(%peer, %reason, "tunnel ended");
            Ok(())
        }
        Err(
            error @ (ServeError::Handshake(_)
            | ServeError::HandshakeTimeout(_)
            | ServeError::PeerIdentity),
        ) => Err(pod.stranger(&error)),
        Err(ServeError::Tunnel(error)) if error.fault() == TunnelFault::Protocol => {
            Err(Failure::ClientProtocol(error))
        }
        Err(ServeError::Tunnel(error)) => {
            // Its streams have told their own ends.
            debug!(%peer, %error, "tunnel broke");
            Ok(())
        }
    }
}

/// What failed a handshake, as one word.
fn word(error: &ServeError) -> &'static str {
    match error {
        ServeError::Handshake(error) => tls::handshake_reason(error),
        ServeError::HandshakeTimeout(_) => "timeout",
        ServeError::PeerIdentity => "no_identity",
        ServeError::Certificate(_) | ServeError::Tunnel(_) | ServeError::Withdrawn(_) => "other",
    }
}

/// The same for a person; what was wrong with an identity is inside of what the library says.
fn words(error: &ServeError) -> String {
    let refusal = match error {
        ServeError::Handshake(error) => tls::peer_refusal(error),
        _ => None,
    };
    refusal.map_or_else(|| error.to_string(), ToString::to_string)
}

impl PodProxy {
    /// Somebody who did not prove to be of the mesh; counted, and told if it is its turn.
    fn stranger(&self, error: &ServeError) -> Failure {
        metrics::counter!("culvert_handshakes_refused_total", "reason" => word(error)).increment(1);
        Failure::ClientHandshake {
            reason: words(error),
            telling: self.gates.strangers.happened(Instant::now()),
        }
    }

    fn refuse_tunnel(&self, peer: SocketAddr, reached: SocketAddr, failure: &Failure) {
        match failure {
            Failure::ClientHandshake {
                telling: Telling::CountOnly,
                ..
            } => self.count_early(Reporter::Destination, failure),
            _ => self.refuse_early(Reporter::Destination, peer, reached, failure),
        }
    }
}

/// What the streams of one tunnel share.
struct Streams {
    arrivals: Arrivals,
    /// Its place among those whose handshake is not over.
    half_open: Mutex<Option<Standing>>,
}

impl hbone::Handler for Streams {
    fn established(&self, _: &SpiffeId) {
        drop(self.half_open.lock().take());
    }

    // Nothing here is an async block around what lasts: it would have room for all that came before, too.
    fn connect(self: Arc<Self>, incoming: Incoming) -> impl Future<Output = ()> + Send + 'static {
        let trace = incoming.request.traceparent.map(|parent| parent.trace());
        let trace = trace.unwrap_or_else(rand::random);
        let span = debug_span!("inbound", id = format_args!("{trace:032x}"), peer = %incoming.peer);
        // Boxed: large, and over soon, while what follows lives for days.
        let life = Box::pin(self.open(incoming)).then(|open| match open {
            Some(open) => Either::Left(open.relay()),
            None => Either::Right(ready(())),
        });
        life.instrument(span)
    }

    fn malformed(&self, peer: &SpiffeId, error: MalformedRequest) {
        let failure = Failure::Malformed(error);
        let at = &self.arrivals;
        at.pod.refuse_stream(peer, at.peer, at.reached, &failure);
    }
}

impl Streams {
    /// Opens the way to the application; none where the peer was refused, which is recorded.
    async fn open(self: Arc<Self>, mut incoming: Incoming) -> Option<Open> {
        let pod = &self.arrivals.pod;
        // A cut tunnel ends its streams' tasks a moment later; the pod waits for their records.
        let held = pod.hold();
        let permitted = self.arrivals.permit(&incoming.request, &incoming.peer);
        let arrived = match permitted.await {
            Ok(permitted) => permitted.connect(pod, incoming.abandoned()).await,
            Err(status) => Err(status),
        };
        let arrived = match arrived {
            Ok(arrived) => arrived,
            Err(status) => {
                incoming.reject(status);
                return None;
            }
        };
        let described = match pod.shared.settings.baggage {
            Baggage::Exchanged => Some(baggage(&arrived.workload)),
            Baggage::SentOnly => None,
        };
        match incoming.accept(described.as_ref()) {
            Ok(stream) => Some(Open {
                stream,
                arrived,
                held,
            }),
            Err(error) => {
                arrived.record.close(Err(Failure::Copy(error.to_string())));
                None
            }
        }
    }
}

/// A stream whose application is there.
struct Open {
    stream: Stream,
    arrived: Arrived,
    held: TaskTrackerToken,
}

impl Open {
    /// Carries it, to its end. What this returns is as large as the memory that an idle connection takes.
    fn relay(self) -> impl Future<Output = ()> + Send {
        let Self {
            stream,
            arrived,
            held,
        } = self;
        let Arrived {
            application,
            workload: _,
            record,
            tracked,
            _place,
        } = arrived;
        let relay = stream.relay(application, record.meter(), tracked.stop());
        relay.map(move |outcome| {
            record.close(result_of(outcome.end));
            drop((tracked, _place, held));
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hbone::Handler as _;

    /// Of the future that a function returns, without calling it.
    fn size_of_future<A, F>(_: impl FnOnce(A) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn idle_connections_stay_small() {
        type Outbound = (Arc<PodProxy>, WorkerId, TcpStream, SocketAddr, SocketAddr);
        let outbound =
            size_of_future(|(a, b, c, d, e): Outbound| crate::outbound::serve(a, b, c, d, e));
        let inbound = size_of_future(|(a, b): (Arc<Streams>, Incoming)| a.connect(b));
        assert!(outbound <= 512, "from a pod: {outbound} bytes");
        assert!(inbound <= 512, "to a pod: {inbound} bytes");
    }
}
