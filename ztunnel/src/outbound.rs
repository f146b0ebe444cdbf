// SPDX-License-Identifier: Apache-2.0
//! 15001, pod → mesh: route, connect (elsewhere, if need be), relay. One connection's life, in order. What comes by
//! SOCKS5 instead of capture joins it once its destination is known.
//!
//! A connection that may not or can't be opened is closed with RST, so that the application sees a failure and not an
//! empty answer. There is no way around: what should have gone through a tunnel never goes without.

mod attempts;
mod client;
mod gateway;
mod hop;
mod retry;
mod same_node;

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt as _;
use futures_util::future::{Either, ready};
use hbone::BoxFuture;
use hbone::wire::{Baggage, WorkloadKind};
use mesh::workload::WorkloadType;
use mesh::{Endpoint, Seen, Service, Standings, Workload};
use tokio::net::TcpStream;
use tracing::{Instrument as _, debug_span};

use self::attempts::{Attempts, Connected};
pub use self::client::Client;
use self::hop::{Hop, Refused, Upstream};
use crate::connections::Tracked;
use crate::dns::upstreams::Way;
use crate::endpoints::{Using, endpoint_of};
use crate::failure::Failure;
use crate::hostnames::HostError;
use crate::proxy::{PodProxy, reset};
use crate::record::{End, Labels, Record, Reporter, Security};
use crate::relaying::result_of;
use crate::route::{self, Route, Unresolved};
use ops::workers::WorkerId;

/// Endpoints of one connection whose names are tried.
const NAMES_TRIED: usize = 3;

/// `destination` is where the client wants to go.
pub fn serve(
    pod: Arc<PodProxy>,
    worker: WorkerId,
    client: TcpStream,
    peer: SocketAddr,
    destination: SocketAddr,
) -> impl Future<Output = ()> + Send {
    let relayed_for = Arc::clone(&pod);
    let trace = rand::random();
    let opening = async move {
        let source = match identify(&pod, peer, destination).await {
            Ok(source) => source,
            Err(failure) => {
                pod.refuse_early(Reporter::Source, peer, destination, &failure);
                reset(client);
                return None;
            }
        };
        let connection = Connection {
            worker,
            peer,
            destination,
            source: &source,
        };
        let client = Client::captured(client);
        Caller::of(&pod, connection, trace).open(client).await
    };
    // Boxed: large, and over soon, while what follows lives for days. Nor does an async block hold the two: it would have
    // room for both at a time.
    let life = Box::pin(opening).then(move |open| match open {
        Some(open) => Either::Left(open.relay(relayed_for)),
        None => Either::Right(ready(())),
    });
    life.instrument(debug_span!("outbound", id = format_args!("{trace:032x}")))
}

/// A connection whose two ends are known.
#[derive(Clone, Copy)]
pub struct Connection<'a> {
    pub worker: WorkerId,
    /// The address it comes from, one of the pod's.
    pub peer: SocketAddr,
    /// Where it wants to go.
    pub destination: SocketAddr,
    /// Who opens it.
    pub source: &'a Workload,
}

/// Routes and relays a connection, to its end.
pub async fn carry_out(pod: &Arc<PodProxy>, connection: Connection<'_>, client: Client) {
    let caller = Caller::of(pod, connection, rand::random());
    let span = debug_span!("outbound", id = format_args!("{:032x}", caller.trace));
    let life = async {
        if let Some(open) = Box::pin(caller.open(client)).await {
            open.relay(Arc::clone(pod)).await;
        }
    };
    life.instrument(span).await;
}

/// Who connects.
async fn identify(
    pod: &PodProxy,
    peer: SocketAddr,
    destination: SocketAddr,
) -> Result<Arc<Workload>, Failure> {
    // Before anything waits: such a connection comes from this very proxy.
    if pod.own_ports().is_loop(destination, &[peer.ip()]) {
        return Err(Failure::Loop(destination));
    }
    pod.workload_at(peer.ip()).await
}

/// A connection that a pod opens.
struct Caller<'a> {
    pod: &'a PodProxy,
    worker: WorkerId,
    peer: SocketAddr,
    /// Where it wants to go.
    original: SocketAddr,
    source: &'a Workload,
    /// By which both ends tell it apart in their logs.
    trace: u128,
}

impl<'a> Caller<'a> {
    fn of(pod: &'a PodProxy, connection: Connection<'a>, trace: u128) -> Self {
        Self {
            pod,
            worker: connection.worker,
            peer: connection.peer,
            original: connection.destination,
            source: connection.source,
            trace,
        }
    }

    /// Opens the way to the other end; none where the client was refused, which is recorded.
    async fn open(&self, client: Client) -> Option<Open> {
        if let Err(failure) = self.learn().await {
            let pod = self.pod;
            pod.refuse_early(Reporter::Source, self.peer, self.original, &failure);
            client.refuse(&failure).await;
            return None;
        }
        match self.hop(&[]).await {
            Ok(hop) => self.open_by(client, hop).await,
            Err(refused) => {
                let failure = self.refuse(refused);
                client.refuse(&failure).await;
                None
            }
        }
    }

    async fn open_by(&self, client: Client, hop: Hop) -> Option<Open> {
        let pod = self.pod;
        let reached = client.reached();
        if hop.is_loop(reached) {
            let failure = Failure::Loop(hop.to);
            pod.refuse_early(Reporter::Source, self.peer, hop.to, &failure);
            client.refuse(&failure).await;
            return None;
        }
        let tracked = pod.connections.track(self.worker, None, hop.view(self));
        let attempts = Attempts::new(self, reached);
        let (record, connected) = attempts.connect(hop, &tracked).await;
        let Connected { upstream, using } = match connected {
            Ok(connected) => connected,
            Err(failure) => {
                let refusal = client.refusal(&failure);
                record.close(Err(failure));
                refusal.await;
                return None;
            }
        };
        match client.opened().await {
            Ok(client) => Some(Open {
                client,
                upstream,
                original: self.original,
                record,
                tracked,
                using,
            }),
            Err(error) => {
                record.close(Err(Failure::Copy(error.to_string())));
                None
            }
        }
    }

    /// Learns of the destination, where this node doesn't follow the whole mesh.
    async fn learn(&self) -> Result<(), Failure> {
        let shared = &self.pod.shared;
        let Some(on_demand) = &shared.on_demand else {
            return Ok(());
        };
        let needs = |store: &mesh::Store| {
            let standings = shared.endpoints.standings();
            route::needs::outbound(store, &self.connection(&standings, &[]))
        };
        Box::pin(on_demand.learn(&shared.mesh, needs)).await
    }

    /// The way there; straight through this node where that is allowed and possible.
    async fn hop(&self, tried: &[Endpoint]) -> Result<Hop, Refused> {
        let route = self.route(tried).await;
        let shortcut = same_node::shortcut(self, &route);
        let hop = Hop::of(route)?;
        Ok(match shortcut {
            Some(shortcut) => hop.through(shortcut),
            None => hop,
        })
    }

    /// Where that leads now, other than to endpoints that were tried or whose names lead nowhere.
    async fn route(&self, tried: &[Endpoint]) -> Route {
        let mut tried = Cow::Borrowed(tried);
        let mut nameless = None;
        loop {
            let unresolved = match (self.decide(&tried), nameless.take()) {
                (Route::Unresolved(unresolved), _) => unresolved,
                // That nobody is left says less than why the last one could not be found.
                (Route::Refused { .. }, Some(refused)) => return refused,
                (route, _) => return route,
            };
            let endpoint = endpoint_of(unresolved.route());
            match self.resolve(&unresolved).await {
                Ok(ip) => return unresolved.at(ip),
                Err(error) => match endpoint.filter(|one| !tried.contains(one)) {
                    Some(fresh) if tried.len() < NAMES_TRIED => {
                        tried.to_mut().push(fresh);
                        nameless = Some(unresolved.refused(error));
                    }
                    _ => return unresolved.refused(error),
                },
            }
        }
    }

    async fn resolve(&self, unresolved: &Unresolved) -> Result<IpAddr, HostError> {
        let hostnames = &self.pod.shared.hostnames;
        let (host, original) = (unresolved.host(), unresolved.original());
        let way = Way {
            netns: &self.pod.netns,
            mark: Some(self.pod.shared.settings.inpod.mark),
        };
        // Rarely needed, and large.
        Box::pin(hostnames.resolve(way, self.source, host, original)).await
    }

    fn decide(&self, tried: &[Endpoint]) -> Route {
        let shared = &self.pod.shared;
        // Always in this order, as writers wait for both.
        let store = shared.mesh.read();
        let standings = shared.endpoints.standings();
        let connection = self.connection(&standings, tried);
        route::route(&store, connection, &mut rand::rng())
    }

    fn connection<'s>(
        &'s self,
        standings: &'s Standings,
        tried: &'s [Endpoint],
    ) -> route::Outbound<'s> {
        route::Outbound {
            source: self.source,
            source_ip: self.peer.ip(),
            destination: self.original,
            network: &self.pod.shared.settings.network,
            own_ports: self.pod.own_ports(),
            seen: Seen {
                standings,
                tried,
                now: Instant::now(),
            },
        }
    }

    fn refuse(&self, Refused { reason, service }: Refused) -> Failure {
        let failure = Failure::from(reason);
        let (end, service) = (End::default(), service.as_deref());
        let labels = labels(self.source, end, service, Security::Unknown);
        let recorder = &self.pod.shared.recorder;
        recorder.refuse_early(&labels, self.peer, self.original, &failure);
        failure
    }
}

/// A connection whose other end is there.
struct Open {
    client: TcpStream,
    upstream: Upstream,
    /// Where the client wanted to go.
    original: SocketAddr,
    record: Record,
    tracked: Tracked,
    using: Option<Using>,
}

impl Open {
    /// Carries it, to its end. What this returns is as large as the memory that an idle connection takes.
    fn relay(self, pod: Arc<PodProxy>) -> impl Future<Output = ()> + Send {
        let Self {
            client,
            upstream,
            original,
            record,
            tracked,
            using,
        } = self;
        let (meter, stop) = (record.meter(), tracked.stop());
        let relay = match upstream {
            Upstream::Tunnel(stream) => {
                let relay = stream.relay(client, meter, stop);
                Either::Left(relay.map(|outcome| result_of(outcome.end)))
            }
            // Those that take no tunnel are boxed, so that they make no other one larger.
            Upstream::Plain(upstream) => {
                let relay = hbone::relay_tcp(client, upstream, meter, stop);
                let relay = relay.map(|outcome| result_of(outcome.end));
                Either::Right(Box::pin(relay) as BoxFuture<'static, _>)
            }
            Upstream::SameNode(local) => {
                let (meter, stop) = (Arc::clone(meter), stop.clone());
                Either::Right(
                    Box::pin(async move { local.relay(client, &meter, &stop).await }) as _,
                )
            }
        };
        relay.map(move |result| {
            drop(using);
            pod.habits.learn(original, record.meter());
            record.close(result);
            drop(tracked);
        })
    }
}

fn labels(
    source: &Workload,
    destination: End,
    service: Option<&Service>,
    security: Security,
) -> Labels {
    let principal = security
        .proves_identities()
        .then(|| source.identity.clone());
    Labels {
        reporter: Reporter::Source,
        source: End::of(source).with_principal(principal),
        destination,
        service: service.map(Into::into),
        security,
    }
}

/// What a workload says of itself to its peers.
pub fn baggage(workload: &Workload) -> Baggage {
    let text = |text: &Arc<str>| Some(text.to_string()).filter(|text| !text.is_empty());
    let kind = match workload.workload_type {
        WorkloadType::Deployment => WorkloadKind::Deployment,
        WorkloadType::CronJob => WorkloadKind::CronJob,
        WorkloadType::Pod => WorkloadKind::Pod,
        WorkloadType::Job => WorkloadKind::Job,
    };
    Baggage {
        cluster: text(&workload.cluster_id),
        namespace: text(&workload.namespace),
        workload: text(&workload.workload_name).map(|name| (kind, name)),
        service: text(&workload.canonical_name),
        revision: text(&workload.canonical_revision),
        region: text(&workload.locality.region),
        zone: text(&workload.locality.zone),
    }
}
