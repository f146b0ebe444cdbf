// SPDX-License-Identifier: Apache-2.0
//! 15008: a tunnel in, of which each stream is a connection of its own: what is it meant for, may it come, and who
//! carries it from here.
//!
//! A tunnel proves who its peer is; nothing that is said inside can change that. Only what is bound to this waypoint is
//! served; all else is answered with a status, and log, metric and admin view say why.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hbone::wire::{Authority, ConnectRequest, Forwarded, MalformedRequest};
use hbone::{Handler, Incoming, ServeError, Server, TunnelFault};
use identity::tls;
use ops::workers::{Expected, WorkerId};
use spiffe::SpiffeId;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tracing::{Instrument as _, debug, debug_span, info};

use crate::authorize::{self, Facts, Verdict};
use crate::connection;
use crate::connections::Tracked;
use crate::destination::{Destination, own_workload};
use crate::failure::Failure;
use crate::http::Conversation;
use crate::record::{End, Ends};
use crate::waypoint::Waypoint;

/// How long a connection waits for what the control plane has not said yet; then it is refused.
const PATIENCE: Duration = Duration::from_secs(5);

/// Carries an accepted socket to a worker, and waits for its end.
pub async fn serve(waypoint: Arc<Waypoint>, socket: TcpStream, peer: SocketAddr) {
    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    let place = waypoint
        .workers
        .place(waypoint.workers.assign_home(), Expected::Much);
    let (ended, end) = oneshot::channel::<()>();
    let socket = match socket.into_std() {
        Ok(socket) => socket,
        Err(error) => return debug!(%peer, %error, "socket is gone"),
    };
    let worker = place.worker;
    let serving = {
        let waypoint = Arc::clone(&waypoint);
        async move {
            // Known to the runtime of the worker from here on.
            match TcpStream::from_std(socket) {
                Ok(socket) => tunnel(waypoint, worker, socket, peer).await,
                Err(error) => debug!(%peer, %error, "socket is gone"),
            }
            drop((place, ended));
        }
    };
    waypoint.workers.spawn(worker, serving);
    // An error is the end itself.
    let _ended = end.await;
}

/// The life of a tunnel.
async fn tunnel(waypoint: Arc<Waypoint>, worker: WorkerId, socket: TcpStream, peer: SocketAddr) {
    let identity = &waypoint.own.identity;
    let certificate = match waypoint.certificates.certificate(identity).await {
        Ok(certificate) => certificate,
        Err(error) => {
            let failure = Failure::Certificate(error.to_string().into());
            return waypoint.recorder.refuse_tunnel(peer, &failure);
        }
    };
    let server = Server::new(waypoint.hbone.clone());
    let drain = waypoint.draining.watch();
    let streams = Arc::new(Streams {
        waypoint: Arc::clone(&waypoint),
        worker,
        peer,
    });
    let failure = match server.serve(socket, certificate, streams, drain).await {
        Ok(()) => return,
        Err(ServeError::Certificate(reason)) => Failure::Certificate(reason),
        Err(ServeError::Handshake(error)) if tls::is_revoked(&error) => {
            Failure::Revoked("client's certificate is revoked".into())
        }
        // Its streams have told their own ends.
        Err(ServeError::Withdrawn(reason)) => return info!(%peer, %reason, "tunnel ended"),
        Err(ServeError::Tunnel(error)) if error.fault() == TunnelFault::Protocol => {
            Failure::ClientProtocol(error)
        }
        Err(ServeError::Tunnel(error)) => return debug!(%peer, %error, "tunnel broke"),
        Err(
            error @ (ServeError::Handshake(_)
            | ServeError::HandshakeTimeout(_)
            | ServeError::PeerIdentity),
        ) => Failure::ClientHandshake(error.to_string().into()),
    };
    waypoint.recorder.refuse_tunnel(peer, &failure);
}

/// The streams of one tunnel.
struct Streams {
    waypoint: Arc<Waypoint>,
    worker: WorkerId,
    peer: SocketAddr,
}

/// A connection that has come in, and all that is known of where it comes from.
#[derive(Debug)]
pub struct Arrival {
    pub worker: WorkerId,
    /// Where its tunnel comes from.
    pub peer: SocketAddr,
    pub identity: SpiffeId,
    pub request: ConnectRequest,
    /// The client, for telemetry.
    pub source: End,
}

impl Handler for Streams {
    // Not an async function, and the request boxed: it would be kept three times over, for as long as the stream lives.
    fn connect(self: Arc<Self>, incoming: Incoming) -> impl Future<Output = ()> + Send + 'static {
        let trace = incoming.request.traceparent.map(|parent| parent.trace());
        let trace = trace.unwrap_or_else(rand::random);
        let span =
            debug_span!("connection", id = format_args!("{trace:032x}"), peer = %incoming.peer);
        self.carry(Box::new(incoming)).instrument(span)
    }

    fn malformed(&self, peer: &SpiffeId, error: MalformedRequest) {
        let ends = Ends {
            source: self.peer,
            identity: peer.clone(),
            authority: "".into(),
        };
        self.waypoint
            .recorder
            .refuse(&ends, &Failure::Malformed(error));
    }
}

impl Streams {
    async fn carry(self: Arc<Self>, mut incoming: Box<Incoming>) {
        let waypoint = &self.waypoint;
        let arrival = self.arrival(&incoming);
        let Ok(_place) = waypoint.places.try_acquire() else {
            let failure = Failure::Full(waypoint.limits.connections);
            return refuse(waypoint, &arrival, *incoming, &failure);
        };
        // Boxed: large, and over soon, while what follows lives for days.
        let admitted = Box::pin(async {
            tokio::select! {
                admitted = admit(waypoint, &arrival) => admitted,
                gone = incoming.abandoned() => Err(Failure::ClientGone(gone.to_string().into())),
            }
        });
        let (destination, tracked) = match admitted.await {
            Ok(admitted) => admitted,
            Err(failure) => return refuse(waypoint, &arrival, *incoming, &failure),
        };
        let waypoint = Arc::clone(waypoint);
        let conversation = Conversation::new(waypoint, arrival, destination, tracked);
        let conversation = Arc::new(conversation);
        connection::serve(conversation, incoming).await;
    }

    fn arrival(&self, incoming: &Incoming) -> Arrival {
        let known = self.waypoint.state.read();
        let network = &self.waypoint.own.network;
        // A workload found by its address is worth more than what a client says of itself.
        let source = match known.mesh.workload_by_ip(network, self.peer.ip()) {
            Some(workload) if workload.identity == incoming.peer => End::of(workload),
            _ => {
                let baggage = incoming.request.baggage.as_ref();
                baggage.map(End::of_baggage).unwrap_or_default()
            }
        };
        Arrival {
            worker: self.worker,
            peer: self.peer,
            identity: incoming.peer.clone(),
            source: source.proven(incoming.peer.clone()),
            request: incoming.request.clone(),
        }
    }
}

/// Finds out what a connection is meant for and whether it may come; waits a while for what has not arrived.
async fn admit(waypoint: &Waypoint, arrival: &Arrival) -> Result<(Destination, Tracked), Failure> {
    let own = &waypoint.own;
    let mut facts = arrival.facts(own.address);
    let ask = |known: &crate::state::Known| {
        let destination = Destination::of(known, own, &arrival.request.authority)?;
        let pod = own_workload(&known.mesh, own)?;
        let policies = authorize::policies(&known.mesh, pod);
        match authorize::decide(&policies, &facts) {
            Verdict::Allowed => Ok(Ok(destination)),
            Verdict::Denied(words) => Ok(Err(Failure::Denied(words))),
            Verdict::Missing(words) => Err(Failure::Denied(words)),
        }
    };
    let destination = waypoint.state.wait_for(PATIENCE, ask).await??;
    if let Some(service) = destination.service() {
        facts.service = Some(service.key());
        if let Authority::Host(..) = &arrival.request.authority {
            facts.destination_ips = service.vips.iter().map(|vip| vip.address).collect();
        }
    }
    let tracked = waypoint.connections.track(facts);
    Ok((destination, tracked))
}

fn refuse(waypoint: &Waypoint, arrival: &Arrival, incoming: Incoming, failure: &Failure) {
    waypoint.recorder.refuse(&arrival.ends(), failure);
    incoming.reject(failure.status());
}

impl Arrival {
    pub fn ends(&self) -> Ends {
        Ends {
            source: self.peer,
            identity: self.identity.clone(),
            authority: self.request.authority.to_string().into(),
        }
    }

    fn facts(&self, own: std::net::IpAddr) -> Facts {
        let destination = match &self.request.authority {
            Authority::Addr(address) => *address,
            Authority::Host(_, port) => SocketAddr::new(own, *port),
        };
        Facts {
            source_ip: self.peer.ip(),
            identity: self.identity.clone(),
            destination,
            destination_ips: [destination.ip()].into(),
            service: None,
            server_name: OnceLock::new(),
        }
    }

    /// What the next one is told of the client.
    pub fn forwarded(&self, destination: &Destination) -> Option<Forwarded> {
        let said = self.request.forwarded.as_ref();
        Some(Forwarded {
            source: said.and_then(|said| said.source).or(Some(self.peer)),
            host: destination
                .service()
                .map(|service| service.hostname.to_string()),
        })
    }
}
