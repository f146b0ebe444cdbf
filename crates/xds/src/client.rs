// SPDX-License-Identifier: Apache-2.0
//! Connects, feeds the subscriptions, backs off.
//!
//! In: channels from the caller's connector. Out: calls of the handlers, counts
//! for the observer, and word of the first complete state. It holds no opinion on
//! resources; whatever goes wrong costs at most the stream, and the next stream
//! resumes from what is held.

use std::fmt;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use proto::ads::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use proto::ads::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Node};
use rand::RngExt;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::codegen::{Body as HttpBody, Bytes, StdError};
use tonic::{Code, Status};

use crate::demand::{Batch, Demand};
use crate::subscription::{
    Delivery, Rejection, Resource, Subscription, change_keys, refuse_unknown_type,
};

/// The largest response that is decoded: the first one holds the whole mesh.
const MAX_MESSAGE: usize = 200 << 20;
/// Replies that may wait for a control plane that does not read.
const REPLIES_IN_FLIGHT: usize = 16;
const BACKOFF_MIN: Duration = Duration::from_millis(10);
const BACKOFF_MAX: Duration = Duration::from_secs(15);

/// A boxed future that may move between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Applies the resources of one type.
pub trait Handler: Send {
    /// The type.
    fn type_url(&self) -> &'static str;

    /// What is asked for by key; all resources are wanted where this is none.
    fn demand(&self) -> Option<Demand> {
        None
    }

    /// Whether nothing is to begin before the first answer; a control plane of another make may know nothing of a type.
    fn is_needed(&self) -> bool {
        true
    }

    /// Applies `resources`, then forgets `removed`, and says which resources it
    /// refuses; the others stay applied.
    fn apply(&mut self, resources: Vec<Resource>, removed: Vec<String>) -> Vec<Rejection>;
}

/// Why a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Termination {
    /// It could not be opened.
    ConnectionError,
    /// The transport or the control plane went away, as either may at any time.
    Reconnect,
    /// The control plane refused.
    Error,
    /// The control plane closed it in good order.
    Complete,
}

impl Termination {
    /// The value of Istio's metric label `reason`.
    pub fn label(self) -> &'static str {
        match self {
            Self::ConnectionError => "ConnectionError",
            Self::Reconnect => "Reconnect",
            Self::Error => "Error",
            Self::Complete => "Complete",
        }
    }
}

/// Counts what happens, for metrics.
pub trait Observer: Send {
    /// A stream ended, or could not be opened.
    fn terminated(&mut self, why: Termination);
    /// A response of this type arrived, with this many bytes of resources.
    fn message(&mut self, type_url: &str, bytes: usize);
    /// So many resources of a response of this type were refused.
    fn refused(&mut self, type_url: &str, resources: usize);
}

/// What observers hear instead of a type that was not subscribed to, which may be any text.
const UNKNOWN_TYPE: &str = "unknown";

/// Counts nothing.
impl Observer for () {
    fn terminated(&mut self, _why: Termination) {}
    fn message(&mut self, _type_url: &str, _bytes: usize) {}
    fn refused(&mut self, _type_url: &str, _resources: usize) {}
}

/// A client of one control plane.
pub struct Client<C, O = ()> {
    connect: C,
    node: Node,
    subscribers: Vec<Subscriber>,
    observer: O,
    synced: watch::Sender<bool>,
}

struct Subscriber {
    subscription: Subscription,
    handler: Box<dyn Handler>,
    demand: Option<Demand>,
}

impl Subscriber {
    fn open(&self, node: &Node) -> DeltaDiscoveryRequest {
        match &self.demand {
            Some(demand) => self.subscription.open_keys(node, &demand.open()),
            None => self.subscription.open(node),
        }
    }

    /// Whether all that it waits for at the start is there; keys are waited for one by one.
    fn is_complete(&self) -> bool {
        self.demand.is_some() || !self.handler.is_needed() || self.subscription.acknowledged()
    }
}

impl<C, O: Observer> Client<C, O> {
    /// A client that subscribes to each handler's type, in this order. `connect`
    /// is called for each stream anew.
    pub fn new(connect: C, node: Node, handlers: Vec<Box<dyn Handler>>, observer: O) -> Self {
        let subscribers: Vec<_> = handlers
            .into_iter()
            .map(|handler| Subscriber {
                subscription: Subscription::new(handler.type_url()),
                demand: handler.demand(),
                handler,
            })
            .collect();
        let synced = watch::Sender::new(subscribers.is_empty());
        Self {
            connect,
            node,
            subscribers,
            observer,
            synced,
        }
    }

    /// Becomes true once each type that is needed and wanted whole had a response that was
    /// accepted whole, and stays true.
    pub fn synced(&self) -> watch::Receiver<bool> {
        self.synced.subscribe()
    }

    /// Follows the control plane for ever; to end it, drop the future.
    pub async fn run<S, E>(mut self)
    where
        C: Fn() -> BoxFuture<'static, Result<S, E>>,
        E: fmt::Display,
        S: GrpcService<Body>,
        S::Error: Into<StdError>,
        S::ResponseBody: HttpBody<Data = Bytes> + Send + 'static,
        <S::ResponseBody as HttpBody>::Error: Into<StdError> + Send,
    {
        let mut backoff = Backoff::default();
        loop {
            let end = match (self.connect)().await {
                Ok(service) => self.stream(service).await,
                Err(error) => StreamEnd {
                    why: Termination::ConnectionError,
                    detail: error.to_string(),
                    progress: Progress::Nothing,
                },
            };
            self.observer.terminated(end.why);
            let pause = backoff.after(end.progress, rand::rng().random_range(0.0..1.0));
            tracing::warn!(reason = end.why.label(), detail = %end.detail, ?pause, "xDS stream ended");
            tokio::time::sleep(pause).await;
        }
    }

    /// One stream, from its first request to its end.
    async fn stream<S>(&mut self, service: S) -> StreamEnd
    where
        S: GrpcService<Body>,
        S::Error: Into<StdError>,
        S::ResponseBody: HttpBody<Data = Bytes> + Send + 'static,
        <S::ResponseBody as HttpBody>::Error: Into<StdError> + Send,
    {
        let (requests, outgoing) = mpsc::channel(self.subscribers.len() + REPLIES_IN_FLIGHT);
        for subscriber in &self.subscribers {
            let request = subscriber.open(&self.node);
            requests
                .try_send(request)
                .expect("the queue holds a request per subscription");
        }
        let mut client =
            AggregatedDiscoveryServiceClient::new(service).max_decoding_message_size(MAX_MESSAGE);
        let opened = client
            .delta_aggregated_resources(ReceiverStream::new(outgoing))
            .await;
        let mut responses = match opened {
            Ok(response) => response.into_inner(),
            Err(status) => {
                return StreamEnd {
                    why: Termination::ConnectionError,
                    detail: describe(&status),
                    progress: Progress::Nothing,
                };
            }
        };
        tracing::info!(node = %self.node.id, "xDS stream open");
        let mut progress = Progress::Nothing;
        let by_key = self.subscribers.iter().filter_map(|subscriber| {
            let demand = subscriber.demand.clone()?;
            Some((subscriber.subscription.type_url(), demand))
        });
        let demands: Vec<_> = by_key.collect();
        loop {
            let response = tokio::select! {
                response = responses.message() => response,
                request = next_demand(&demands) => {
                    let _ = requests.send(request).await;
                    continue;
                }
            };
            let response = match response {
                Ok(Some(response)) => response,
                Ok(None) => {
                    return StreamEnd {
                        why: Termination::Complete,
                        detail: "closed by the control plane".into(),
                        progress,
                    };
                }
                Err(status) => {
                    return StreamEnd {
                        why: classify(&status),
                        detail: describe(&status),
                        progress,
                    };
                }
            };
            progress = Progress::Responses;
            let reply = self.respond(response);
            // Nobody reads replies any more: the end of the responses will say why.
            let _ = requests.send(reply).await;
        }
    }

    /// Has a response applied, and words the reply.
    fn respond(&mut self, response: DeltaDiscoveryResponse) -> DeltaDiscoveryRequest {
        let bytes = response
            .resources
            .iter()
            .filter_map(|resource| resource.resource.as_ref())
            .map(|body| body.value.len())
            .sum();
        let subscriber = self
            .subscribers
            .iter_mut()
            .find(|subscriber| subscriber.subscription.type_url() == response.type_url);
        let Some(Subscriber {
            subscription,
            handler,
            demand,
        }) = subscriber
        else {
            tracing::warn!(type_url = %response.type_url, "response of a type that was not subscribed to");
            self.observer.message(UNKNOWN_TYPE, bytes);
            self.observer
                .refused(UNKNOWN_TYPE, response.resources.len());
            return refuse_unknown_type(response);
        };
        self.observer.message(subscription.type_url(), bytes);
        let named = demand.as_ref().map(|_| names(&response));
        let Delivery {
            resources,
            removed,
            pending,
        } = subscription.receive(response);
        tracing::debug!(
            type_url = subscription.type_url(),
            resources = resources.len(),
            removed = removed.len(),
            bytes,
            "xDS response"
        );
        let rejections = handler.apply(resources, removed);
        let refused = pending.refused() + rejections.len();
        if refused > 0 {
            self.observer.refused(subscription.type_url(), refused);
        }
        let reply = subscription.conclude(pending, rejections);
        if let Some((demand, names)) = demand.as_ref().zip(named) {
            demand.respond(names.iter().map(String::as_str));
        }
        if let Some(error) = &reply.error_detail {
            tracing::warn!(type_url = %reply.type_url, error = %error.message, "resources refused");
        }
        let complete = self.subscribers.iter().all(Subscriber::is_complete);
        self.synced
            .send_if_modified(|synced| complete && !std::mem::replace(synced, true));
        reply
    }
}

/// The next request for keys, of whichever type; never where none is asked for by key.
async fn next_demand(demands: &[(&'static str, Demand)]) -> DeltaDiscoveryRequest {
    let next = |(type_url, demand): &'_ (&'static str, Demand)| {
        let (type_url, demand) = (*type_url, demand.clone());
        Box::pin(async move {
            let Batch {
                subscribe,
                unsubscribe,
            } = demand.next().await;
            change_keys(type_url, &subscribe, &unsubscribe)
        })
    };
    let mut next: Vec<_> = demands.iter().map(next).collect();
    std::future::poll_fn(|context| {
        let ready = next
            .iter_mut()
            .find_map(|next| match next.as_mut().poll(context) {
                Poll::Ready(request) => Some(request),
                Poll::Pending => None,
            });
        ready.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// All names that a response speaks of.
fn names(response: &DeltaDiscoveryResponse) -> Vec<String> {
    let resources = response.resources.iter();
    let names =
        resources.flat_map(|resource| std::iter::once(&resource.name).chain(&resource.aliases));
    names.chain(&response.removed_resources).cloned().collect()
}

/// How a stream ended.
struct StreamEnd {
    why: Termination,
    detail: String,
    progress: Progress,
}

/// Whether a stream was of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// No response arrived.
    Nothing,
    /// At least one did.
    Responses,
}

fn classify(status: &Status) -> Termination {
    let went_away = match status.code() {
        Code::Unknown | Code::Cancelled | Code::DeadlineExceeded => true,
        Code::Unavailable => {
            let detail = describe(status).to_ascii_lowercase();
            [
                "transport is closing",
                "goaway",
                "connection",
                "broken pipe",
            ]
            .iter()
            .any(|sign| detail.contains(sign))
        }
        _ => false,
    };
    match went_away {
        true => Termination::Reconnect,
        false => Termination::Error,
    }
}

/// Code, message and causes on one line.
fn describe(status: &Status) -> String {
    let mut text = format!("{:?}: {}", status.code(), status.message());
    let mut source = std::error::Error::source(status);
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// Pauses between streams: doubled while nothing comes of them, started over by a
/// stream that was of use. A control plane that closes each stream at once is so
/// met with patience however it words it.
struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: BACKOFF_MIN }
    }
}

impl Backoff {
    /// The pause before the next stream. `random` from 0 to 1 takes off up to half
    /// of it, so that the nodes of a cluster do not come back all at once.
    fn after(&mut self, progress: Progress, random: f64) -> Duration {
        if progress == Progress::Responses {
            self.next = BACKOFF_MIN;
        }
        let pause = self.next;
        self.next = (self.next * 2).min(BACKOFF_MAX);
        pause.mul_f64(1.0 - random.clamp(0.0, 1.0) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_to_its_cap_and_starts_over_after_a_useful_stream() {
        let mut backoff = Backoff::default();
        let pauses: Vec<_> = (0..13)
            .map(|_| backoff.after(Progress::Nothing, 0.0))
            .collect();
        assert_eq!(pauses[0], Duration::from_millis(10));
        assert_eq!(pauses[1], Duration::from_millis(20));
        assert_eq!(pauses[10], Duration::from_millis(10_240));
        assert_eq!(pauses[11], BACKOFF_MAX);
        assert_eq!(pauses[12], BACKOFF_MAX);
        assert_eq!(backoff.after(Progress::Responses, 0.0), BACKOFF_MIN);
        assert_eq!(
            backoff.after(Progress::Nothing, 1.0),
            BACKOFF_MIN,
            "half of 20 ms"
        );
    }

    #[test]
    fn endings_are_told_apart() {
        for (status, expected) in [
            (Status::unknown("x"), Termination::Reconnect),
            (Status::cancelled("x"), Termination::Reconnect),
            (Status::deadline_exceeded("x"), Termination::Reconnect),
            (
                Status::unavailable("transport is closing"),
                Termination::Reconnect,
            ),
            (
                Status::unavailable("received prior GOAWAY"),
                Termination::Reconnect,
            ),
            (Status::unavailable("overloaded"), Termination::Error),
            (Status::permission_denied("x"), Termination::Error),
            (Status::internal("x"), Termination::Error),
        ] {
            assert_eq!(classify(&status), expected, "{status:?}");
        }
    }
}
