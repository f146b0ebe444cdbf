// SPDX-License-Identifier: Apache-2.0
//! Delta discovery: each client is sent what it subscribes to, and what changes.
//!
//! One task per stream joins a client's requests, the news of the catalogue and
//! the pure [`session`]. Clients prove who they are by a service-account token,
//! and must be who their node metadata says. A slow client stalls its own task
//! only: what changes meanwhile is merged into its next push.

pub mod connections;
pub mod node;
pub mod session;

use std::{
    pin::Pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::{Stream, future::OptionFuture};
use ops::shutdown::DrainSignal;
use parking_lot::RwLock;
use proto::ads::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
    aggregated_discovery_service_server::AggregatedDiscoveryService,
};
use rand::RngExt as _;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::Instant,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};

use self::{
    connections::{Connection, Connections},
    node::{Node, NotOfGateway},
    session::{Heard, Push, Session},
};
use crate::{
    authenticate::{Caller, OPAQUE_REFUSAL, REVIEW_OUTAGE, Tokens},
    bearer,
    catalogue::{Catalogue, ResourceType},
    facts::NamespacedName,
    index::Index,
};

/// How long a first answer about workloads waits for the request for policies.
const POLICIES_GRACE: Duration = Duration::from_millis(100);
/// Streams end after about this long, so that clients spread over replicas anew.
const MAX_AGE: Duration = Duration::from_secs(30 * 60);
/// Responses that a slow reader may leave in its queue.
const QUEUE: usize = 4;
/// What all large pushes together may hold in memory, in KiB; a larger one goes alone.
const BUDGET_KIB: u32 = 128 * 1024;
/// Pushes smaller than this don't count.
const SMALL_KIB: usize = 256;
/// How long a large push may keep others waiting.
const BUDGET_HOLD: Duration = Duration::from_secs(10);

/// The discovery service.
#[derive(Debug, Clone)]
pub struct Discovery {
    catalogue: Arc<Catalogue>,
    index: Arc<RwLock<Index>>,
    tokens: Arc<Tokens>,
    connections: Arc<Connections>,
    budget: Arc<Semaphore>,
    drain: DrainSignal,
}

impl Discovery {
    /// Serves what the catalogue holds to those whose tokens are known; the index knows
    /// their pods.
    pub fn new(
        catalogue: Arc<Catalogue>,
        index: Arc<RwLock<Index>>,
        tokens: Arc<Tokens>,
        drain: DrainSignal,
    ) -> Self {
        let budget = Semaphore::new(usize::try_from(BUDGET_KIB).unwrap_or(usize::MAX));
        Self {
            catalogue,
            index,
            tokens,
            connections: Arc::default(),
            budget: Arc::new(budget),
            drain,
        }
    }

    /// The streams that are open now.
    pub fn connections(&self) -> Arc<Connections> {
        Arc::clone(&self.connections)
    }
}

type Responses = Pin<Box<dyn Stream<Item = Result<DeltaDiscoveryResponse, Status>> + Send>>;

#[tonic::async_trait]
impl AggregatedDiscoveryService for Discovery {
    type DeltaAggregatedResourcesStream = Responses;
    type StreamAggregatedResourcesStream =
        Pin<Box<dyn Stream<Item = Result<DiscoveryResponse, Status>> + Send>>;

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Responses>, Status> {
        let caller = self
            .caller(bearer::token(request.metadata()).map(str::to_owned))
            .await?;
        let peer = request.extensions().get().copied();
        let (responses, queue) = mpsc::channel(QUEUE);
        let stream = ClientStream {
            service: self.clone(),
            caller,
            peer,
            session: Session::default(),
            responses,
            held: None,
        };
        tokio::spawn(Box::pin(stream.run(request.into_inner())));
        Ok(Response::new(Box::pin(ReceiverStream::new(queue))))
    }

    async fn stream_aggregated_resources(
        &self,
        _: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        Err(Status::unimplemented("only delta discovery is served"))
    }
}

impl Discovery {
    async fn caller(&self, token: Option<String>) -> Result<Caller, Status> {
        let refused = |reason: &'static str| {
            metrics::counter!("culvert_xds_refused_total", "reason" => reason).increment(1);
        };
        let token = token.ok_or_else(|| {
            refused("no_token");
            Status::unauthenticated(OPAQUE_REFUSAL)
        })?;
        let known = self.tokens.caller(&token, SystemTime::now()).await;
        known.map_err(|error| {
            tracing::warn!(%error, "discovery client refused");
            if error.is_outage() {
                refused("token_review");
                return Status::unavailable(REVIEW_OUTAGE);
            }
            refused("token");
            Status::unauthenticated(OPAQUE_REFUSAL)
        })
    }
}

/// A large push keeps its share of the budget until it is answered, or for a while.
struct Held {
    _share: OwnedSemaphorePermit,
    until: Instant,
}

/// One client's stream.
struct ClientStream {
    service: Discovery,
    caller: Caller,
    peer: Option<crate::serving::Peer>,
    session: Session,
    responses: mpsc::Sender<Result<DeltaDiscoveryResponse, Status>>,
    held: Option<Held>,
}

/// Why a stream is over.
enum End {
    /// The client went away, or its time is up.
    Quietly,
    /// The client is told.
    Refused(Status),
}

impl ClientStream {
    async fn run(mut self, mut requests: Streaming<DeltaDiscoveryRequest>) {
        let end = match self.first(&mut requests).await {
            Ok((node, waypoint, request)) => {
                self.session = Session::new(node.node_name.clone(), waypoint);
                let connection = self.service.connections.open(&node, self.peer);
                tracing::info!(node = %node.id, connection = connection.id(), "discovery stream opened");
                let end = match self.serve(request, &mut requests, &connection).await {
                    Ok(never) => match never {},
                    Err(end) => end,
                };
                tracing::info!(node = %node.id, connection = connection.id(), "discovery stream closed");
                end
            }
            Err(end) => end,
        };
        if let End::Refused(status) = end {
            tracing::warn!(%status, "discovery stream refused");
            // If the queue is full, the client isn't reading: closing has to do.
            let _ = self.responses.try_send(Err(status));
        }
    }

    /// The first request, which has to say who the client is.
    async fn first(
        &self,
        requests: &mut Streaming<DeltaDiscoveryRequest>,
    ) -> Result<(Node, Option<NamespacedName>, DeltaDiscoveryRequest), End> {
        let request = next(requests).await?;
        let node = Node::read(request.node.as_ref()).ok_or_else(|| {
            End::Refused(Status::invalid_argument("the first request has no node id"))
        })?;
        if let Err(reason) = node.is(&self.caller) {
            metrics::counter!("culvert_xds_refused_total", "reason" => "identity").increment(1);
            tracing::warn!(node = %node.id, reason, "discovery client is not who it says");
            return Err(End::Refused(Status::permission_denied(
                "authorization failure",
            )));
        }
        let waypoint = self.waypoint(&node).await?;
        Ok((node, waypoint, request))
    }

    /// The waypoint that the client is an instance of.
    async fn waypoint(&self, node: &Node) -> Result<Option<NamespacedName>, End> {
        if node.gateway.is_none() {
            return Ok(None);
        }
        // While the cluster isn't known, no pod is.
        let mut known = self.service.catalogue.watch();
        tokio::select! {
            known = known.wait_for(|generation| *generation > 0) => {
                known.map_err(|_| End::Quietly)?;
            }
            () = self.responses.closed() => return Err(End::Quietly),
            () = self.service.drain.requested() => return Err(End::Quietly),
        }
        let waypoint = node.waypoint(&self.caller, &*self.service.index.read());
        waypoint.map_err(|error| match error {
            NotOfGateway::UnknownPod => {
                End::Refused(Status::unavailable("your pod is not known yet: come again"))
            }
            NotOfGateway::Foreign { said } => {
                metrics::counter!("culvert_xds_refused_total", "reason" => "gateway").increment(1);
                tracing::warn!(node = %node.id, caller = %self.caller, gateway = said, "discovery client is no instance of the Gateway that it names");
                End::Refused(Status::permission_denied("authorization failure"))
            }
        })
    }

    async fn serve(
        &mut self,
        first: DeltaDiscoveryRequest,
        requests: &mut Streaming<DeltaDiscoveryRequest>,
        connection: &Connection,
    ) -> Result<std::convert::Infallible, End> {
        let mut news = self.service.catalogue.watch();
        let drain = self.service.drain.clone();
        let grace = Instant::now() + POLICIES_GRACE;
        let age = Instant::now() + MAX_AGE.mul_f64(rand::rng().random_range(0.9..1.1));
        self.hear(first, connection).await?;
        loop {
            self.push().await?;
            connection.update(&self.session);
            let held_until = self
                .held
                .as_ref()
                .map(|held| tokio::time::sleep_until(held.until));
            tokio::select! {
                request = next(requests) => self.hear(request?, connection).await?,
                changed = news.changed() => changed.map_err(|_| End::Quietly)?,
                () = tokio::time::sleep_until(grace), if self.session.waits_for_policies() => {
                    self.session.stop_waiting();
                }
                Some(()) = OptionFuture::from(held_until) => self.held = None,
                () = tokio::time::sleep_until(age) => return Err(End::Quietly),
                () = drain.requested() => {
                    return Err(End::Refused(Status::unavailable("the control plane shuts down")));
                }
            }
        }
    }

    async fn hear(
        &mut self,
        request: DeltaDiscoveryRequest,
        connection: &Connection,
    ) -> Result<(), End> {
        let heard = self.session.hear(request);
        let heard = heard.map_err(|e| End::Refused(Status::resource_exhausted(e.to_string())))?;
        match heard {
            Heard::Subscription | Heard::Ignored | Heard::Accepted(_) => {}
            Heard::Stale(of) => count("pilot_xds_expired_nonce", of),
            Heard::Rejected(of, reason) => {
                count("pilot_total_xds_rejects", of);
                tracing::warn!(
                    connection = connection.id(),
                    node = connection.node(),
                    r#type = of.label(),
                    reason,
                    "client rejected resources"
                );
            }
            Heard::UnknownType(response) => {
                tracing::info!(
                    connection = connection.id(),
                    type_url = response.type_url,
                    "client asks for a type that is not served"
                );
                self.send(*response).await?;
            }
        }
        if self.session.is_idle() {
            self.held = None;
        }
        Ok(())
    }

    async fn push(&mut self) -> Result<(), End> {
        if self.session.is_on_demand() {
            self.service.catalogue.keep_lookup();
        }
        // Its turn comes before anything is made for it: clients that come all at once wait with empty hands.
        let at_most = self.session.at_most(&self.service.catalogue.read());
        let mut share = self.share(at_most).await?;
        let Push { responses, bytes } = {
            let tables = self.service.catalogue.read();
            let push = self.session.push(&tables);
            push.map_err(|_| End::Refused(Status::unavailable("too far behind: come again")))?
        };
        if responses.is_empty() {
            return Ok(());
        }
        if bytes / 1024 <= SMALL_KIB {
            share = None;
        } else if share.is_none() {
            share = self.share(bytes).await?;
        }
        if let Some(share) = share {
            self.held = Some(Held {
                _share: share,
                until: Instant::now() + BUDGET_HOLD,
            });
        }
        for response in responses {
            if let Some(of) = ResourceType::from_url(&response.type_url) {
                count("pilot_xds_pushes", of);
            }
            self.send(response).await?;
        }
        Ok(())
    }

    /// Waits for its share of the budget; small pushes need none.
    async fn share(&self, bytes: usize) -> Result<Option<OwnedSemaphorePermit>, End> {
        let kib = bytes / 1024;
        if kib <= SMALL_KIB {
            return Ok(None);
        }
        let share = u32::try_from(kib).unwrap_or(u32::MAX).min(BUDGET_KIB);
        tokio::select! {
            share = Arc::clone(&self.service.budget).acquire_many_owned(share) => {
                Ok(Some(share.expect("broken invariant: the budget is never closed")))
            }
            () = self.responses.closed() => Err(End::Quietly),
            () = self.service.drain.requested() => Err(End::Quietly),
        }
    }

    async fn send(&self, response: DeltaDiscoveryResponse) -> Result<(), End> {
        tokio::select! {
            sent = self.responses.send(Ok(response)) => sent.map_err(|_| End::Quietly),
            () = self.service.drain.requested() => Err(End::Quietly),
        }
    }
}

async fn next(
    requests: &mut Streaming<DeltaDiscoveryRequest>,
) -> Result<DeltaDiscoveryRequest, End> {
    match requests.message().await {
        Ok(request) => request.ok_or(End::Quietly),
        Err(status) if is_unreadable(&status) => {
            metrics::counter!("culvert_xds_refused_total", "reason" => "malformed").increment(1);
            Err(End::Refused(Status::invalid_argument(format!(
                "the request can't be read: {}",
                status.message()
            ))))
        }
        // A transport that broke: there is nobody to tell.
        Err(_) => Err(End::Quietly),
    }
}

/// What was sent is no message, or larger than any may be; everything else is about the transport.
fn is_unreadable(status: &Status) -> bool {
    let by_the_transport = std::error::Error::source(status).is_some();
    matches!(
        status.code(),
        Code::Internal | Code::OutOfRange | Code::ResourceExhausted | Code::InvalidArgument
    ) && !by_the_transport
}

fn count(name: &'static str, of: ResourceType) {
    metrics::counter!(name, "type" => of.label()).increment(1);
}
