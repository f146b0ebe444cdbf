// SPDX-License-Identifier: Apache-2.0
//! 15008, mesh → pod: authenticate, authorize, connect, relay.
//!
//! A tunnel proves who its peer is; each of its streams is a connection of its own, with its own destination, decision
//! and record. Both lives are written here in order.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use hbone::wire::{ConnectRequest, Forwarded, MalformedRequest};
use hbone::{Incoming, ServeError, Server, TunnelFault};
use http::StatusCode;
use identity::tls;
use mesh::{Service, Workload};
use parking_lot::Mutex;
use spiffe::SpiffeId;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tracing::{Instrument as _, debug, debug_span, info};

use crate::config::{AppTunnel, Baggage};
use crate::connections::{ConnectionView, InboundFacts};
use crate::failure::Failure;
use crate::limits::{Standing, Telling};
use crate::outbound::baggage;
use crate::proxy::{PodProxy, canonical};
use crate::proxy_protocol::Announcement;
use crate::record::{End, Labels, Opening, Reporter, Security};
use crate::relaying::result_of;
use crate::route::{self, Announced};
use crate::workers::WorkerId;

/// The life of a tunnel.
pub async fn serve(
    pod: Arc<PodProxy>,
    worker: WorkerId,
    socket: TcpStream,
    peer: SocketAddr,
    half_open: Option<Standing>,
) {
    let _ = socket.set_nodelay(true);
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
        pod: Arc::clone(&pod),
        worker,
        peer,
        reached,
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
    let (peer, reached) = (streams.peer, streams.reached);
    let workload = pod.workload_at(reached.ip()).await?;
    let identity = workload.identity.clone();
    let certificate = match pod.shared.certificates.certificate(&identity).await {
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
    pod: Arc<PodProxy>,
    worker: WorkerId,
    peer: SocketAddr,
    /// Where the tunnel ends.
    reached: SocketAddr,
    /// Its place among those whose handshake is not over.
    half_open: Mutex<Option<Standing>>,
}

/// A stream that is meant for us.
struct Accepted {
    workload: Arc<Workload>,
    destination: SocketAddr,
    /// What the application is to be told first.
    announced: Option<Announced>,
    service: Option<Arc<Service>>,
    source: End,
}

impl hbone::Handler for Streams {
    fn established(&self, _: &SpiffeId) {
        drop(self.half_open.lock().take());
    }

    async fn connect(self: Arc<Self>, incoming: Incoming) {
        let trace = incoming.request.traceparent.map(|parent| parent.trace());
        let trace = trace.unwrap_or_else(rand::random);
        let span = debug_span!("inbound", id = format_args!("{trace:032x}"), peer = %incoming.peer);
        self.carry(incoming).instrument(span).await;
    }

    fn malformed(&self, peer: &SpiffeId, error: MalformedRequest) {
        let failure = Failure::Malformed(error);
        self.pod
            .refuse_stream(peer, self.peer, self.reached, &failure);
    }
}

impl Streams {
    /// The life of a connection.
    async fn carry(self: Arc<Self>, mut incoming: Incoming) {
        let pod = &self.pod;
        // A cut tunnel ends its streams' tasks a moment later; the pod waits for their records.
        let _open = pod.hold();
        let Some(_place) = pod.admit_stream(self.peer, self.reached, &incoming.peer) else {
            return incoming.reject(StatusCode::SERVICE_UNAVAILABLE);
        };
        let accepted = match self
            .learn_and_accept(&incoming.request, &incoming.peer)
            .await
        {
            Ok(accepted) => accepted,
            Err((status, failure)) => {
                incoming.reject(status);
                return pod.refuse_early(Reporter::Destination, self.peer, self.reached, &failure);
            }
        };
        let identity = incoming.peer.clone();
        let forwarded_host = forwarded_host(&incoming.request).map(Arc::from);
        let authority: Arc<str> = incoming.request.authority.to_string().into();
        let workload = &accepted.workload;
        let record = pod.shared.recorder.open(
            self.worker,
            Opening {
                labels: Labels {
                    reporter: Reporter::Destination,
                    source: accepted.source,
                    destination: End::of(workload).with_principal(Some(workload.identity.clone())),
                    service: accepted.service.as_deref().map(Into::into),
                    security: Security::MutualTls,
                },
                source: self.peer,
                destination: self.reached,
                authority: Some(authority),
            },
        );
        let facts = InboundFacts {
            source_ip: self.peer.ip(),
            identity: Some(identity),
            destination: accepted.destination,
        };
        let view = ConnectionView {
            src: self.peer,
            original_dst: forwarded_host,
            actual_dst: accepted.destination.to_string().into(),
            protocol: "HBONE",
            verdict: None,
        };
        let tracked = pod
            .connections
            .track(self.worker, Some(facts.clone()), view);

        match pod.authorize(&facts).await {
            Ok(words) => tracked.note(words),
            Err(denied) => {
                incoming.reject(StatusCode::UNAUTHORIZED);
                return record.close(Err(denied));
            }
        }
        let connected = tokio::select! {
            connected = self.connect_application(accepted.destination, accepted.announced.as_ref()) => connected,
            gone = incoming.abandoned() => Err(Failure::Copy(format!("the client gave up while connecting: {gone}"))),
        };
        let mut application = match connected {
            Ok(application) => application,
            Err(failure) => {
                incoming.reject(StatusCode::SERVICE_UNAVAILABLE);
                return record.close(Err(failure));
            }
        };
        let described = match pod.shared.settings.baggage {
            Baggage::Exchanged => Some(baggage(workload)),
            Baggage::SentOnly => None,
        };
        let header = accepted.announced.as_ref().map(|announced| {
            let announcement = Announcement {
                source: self.peer,
                destination: announced.destination,
                identity: facts.identity.as_ref(),
                service: announced.service.as_deref(),
            };
            announcement.header()
        });
        match incoming.accept(described.as_ref()) {
            Ok(stream) => {
                // A fresh socket has room for it.
                if let Some(header) = header
                    && let Err(error) = application.write_all(&header).await
                {
                    return record.close(Err(Failure::Copy(error.to_string())));
                }
                let outcome = stream
                    .relay(application, record.meter(), tracked.stop())
                    .await;
                record.close(result_of(outcome.end));
            }
            Err(error) => record.close(Err(Failure::Copy(error.to_string()))),
        }
    }

    async fn learn_and_accept(
        &self,
        request: &ConnectRequest,
        peer: &SpiffeId,
    ) -> Result<Accepted, (StatusCode, Failure)> {
        let shared = &self.pod.shared;
        if let Some(on_demand) = &shared.on_demand
            && let Ok(workload) = self.pod.workload()
        {
            self.pod.wonder_at(&workload, self.peer.ip());
            let (reached, network) = (self.reached.ip(), &*shared.settings.network);
            let needs = |store: &mesh::Store| {
                route::needs::inbound(store, &workload, reached, network, &request.authority)
            };
            let learned = Box::pin(on_demand.learn(&shared.mesh, needs)).await;
            learned.map_err(|failure| (StatusCode::SERVICE_UNAVAILABLE, failure))?;
        }
        self.accept(request, peer)
    }

    /// Is it for us, where does it go, and who speaks as far as telemetry is concerned.
    fn accept(
        &self,
        request: &ConnectRequest,
        peer: &SpiffeId,
    ) -> Result<Accepted, (StatusCode, Failure)> {
        let pod = &self.pod;
        // The tunnel may be older than what is known of the pod.
        let workload = pod
            .workload_now_at(self.reached.ip())
            .map_err(|unbound| (StatusCode::SERVICE_UNAVAILABLE, unbound.into()))?;
        let refused =
            |refusal: route::InboundRefusal| (refusal.status(), Failure::NotServed(refusal));
        let network = &*pod.shared.settings.network;
        let store = pod.shared.mesh.read();
        let (reached, authority) = (self.reached.ip(), &request.authority);
        route::accept_destination(&store, &workload, reached, network, authority)
            .map_err(refused)?;
        let hop =
            route::next_hop(&store, &workload, reached, network, authority).map_err(refused)?;
        let named = forwarded_host(request);
        let service =
            route::destination_service(&hop.services, &workload, hop.destination.port(), named);
        Ok(Accepted {
            source: self
                .source(&store, request)
                .with_principal(Some(peer.clone())),
            workload,
            destination: hop.destination,
            announced: hop.announced,
            service,
        })
    }

    /// An application that is told where connections come from may listen on loopback alone, where nobody else can tell
    /// it anything.
    async fn connect_application(
        &self,
        to: SocketAddr,
        announced: Option<&Announced>,
    ) -> Result<TcpStream, Failure> {
        let pod = &self.pod;
        if announced.is_some() && pod.shared.settings.inpod.app_tunnel == AppTunnel::Loopback {
            let loopback = match to.ip() {
                IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            };
            return pod
                .connect_in_time(SocketAddr::new(loopback, to.port()), None)
                .await;
        }
        pod.connect_keeping_source(to, self.peer.ip()).await
    }

    /// A workload found by its address is worth more than what a peer says of itself; an address of another network
    /// says nothing here.
    fn source(&self, store: &mesh::Store, request: &ConnectRequest) -> End {
        let settings = &self.pod.shared.settings;
        let foreign = request
            .network
            .as_ref()
            .is_some_and(|network| !network.eq_ignore_ascii_case(&settings.network));
        let known = if foreign {
            None
        } else {
            store.workload_by_ip(&settings.network, self.peer.ip())
        };
        if let Some(workload) = known {
            return End::of(workload);
        }
        match (&request.baggage, settings.baggage) {
            (Some(baggage), Baggage::Exchanged) => End::of_baggage(baggage),
            _ => End::default(),
        }
    }
}

fn forwarded_host(request: &ConnectRequest) -> Option<&str> {
    request
        .forwarded
        .as_ref()
        .and_then(|Forwarded { host, .. }| host.as_deref())
}
