// SPDX-License-Identifier: Apache-2.0
//! Forwards a request: picks an endpoint, sends, waits for the head of the answer; and does so again where the rule and
//! the attempt allow it.

use std::sync::Arc;
use std::time::Instant;

use http::{Request, Response};
use hyper::body::Incoming;
use mesh::Endpoint;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use super::Head;
use super::reply::Reply;
use crate::body::{self, AnyBody, Upward};
use crate::destination::Destination;
use crate::endpoints::{Chosen, Using};
use crate::exchange::Exchange;
use crate::failure::{Failure, Flag};
use crate::http::Conversation;
use crate::pool::{Checkout, Lease, Unanswered};
use crate::record::Labels;
use crate::resilience::retry::{Attempt, Budget, Next, Outcome, RetryPolicy, Stop};
use crate::resilience::timeouts::{Deadlines, Expiry};
use crate::route::Protocol;
use crate::session::Pin;
use crate::upstream::{self, Version};

/// Where a request goes, and what is spoken there.
pub(super) struct Target {
    pub(super) destination: Destination,
    pub(super) protocol: Protocol,
}

impl Target {
    /// As declared, or else as the client does; what becomes something else begins as HTTP/1.1.
    fn version(&self, client: http::Version, upgrade: bool) -> Version {
        match self.protocol {
            _ if upgrade => Version::Http1,
            Protocol::Http1 | Protocol::WebSocket => Version::Http1,
            Protocol::Http2 | Protocol::Grpc => Version::Http2,
            Protocol::Detect | Protocol::Tcp | Protocol::Tls => match client {
                http::Version::HTTP_2 => Version::Http2,
                _ => Version::Http1,
            },
        }
    }
}

/// What is to be sent.
pub(super) struct Asked {
    pub(super) head: Head,
    /// None where there is none.
    pub(super) body: Option<Upward>,
    pub(super) client_version: http::Version,
    pub(super) upgrade: bool,
}

/// How it is to be sent.
pub(super) struct Attempts<'a> {
    pub(super) conversation: &'a Conversation,
    pub(super) target: Target,
    pub(super) retry: &'a RetryPolicy,
    pub(super) deadlines: Deadlines,
    pub(super) pin: Option<Pin>,
}

/// What an answer needs until its last byte.
pub(super) struct Answered {
    pub(super) lease: Option<Lease>,
    pub(super) endpoint: Endpoint,
    pub(super) deadline: Option<tokio::time::Instant>,
}

/// A request's body between attempts.
enum Payload {
    None,
    /// Nothing of it was sent.
    Whole(AnyBody),
    /// It was sent, or some of it.
    Gone,
}

impl Payload {
    /// For one attempt; it may be given back.
    fn take(&mut self) -> AnyBody {
        match std::mem::replace(self, Self::Gone) {
            Self::None => {
                *self = Self::None;
                body::empty()
            }
            Self::Whole(body) => body,
            Self::Gone => body::empty(),
        }
    }

    fn give_back(&mut self, body: AnyBody) {
        if matches!(self, Self::Gone) {
            *self = Self::Whole(body);
        }
    }

    fn can_be_sent(&self) -> bool {
        !matches!(self, Self::Gone)
    }
}

/// An attempt that brought no answer.
struct Failed {
    failure: Failure,
    /// None where another attempt could do no better.
    outcome: Option<Outcome>,
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Self {
        let outcome = failure.is_the_endpoints().then_some(Outcome::NotConnected);
        Self { failure, outcome }
    }
}

impl Attempts<'_> {
    pub(super) async fn run(
        self,
        asked: Asked,
        exchange: &mut Exchange,
    ) -> Result<(Response<Incoming>, Answered), Reply> {
        let load = &self.conversation.waypoint.load;
        let _under_way = load.under_way();
        let version = self.target.version(asked.client_version, asked.upgrade);
        let mut request = asked.head.for_version(version);
        let mut payload = payload(asked.body, &mut request);
        let mut tried = Vec::new();
        let mut retries = 0;
        let mut _retrying = None;
        loop {
            let began = Instant::now();
            let limit = self.deadlines.attempt(began);
            let sending =
                Box::pin(self.send(&request, version, &mut payload, &mut tried, exchange));
            let sent = match limit {
                None => sending.await,
                Some((at, expiry)) => match timeout_at(at.into(), sending).await {
                    Ok(sent) => sent,
                    Err(_) => Err(Failed {
                        failure: Failure::Timeout,
                        outcome: match expiry {
                            Expiry::Attempt => Some(Outcome::TooLong),
                            Expiry::Request => return Err(Failure::Timeout.into()),
                        },
                    }),
                },
            };
            let outcome = match &sent {
                Ok((answer, _)) => Outcome::Status(answer.status().as_u16()),
                Err(Failed {
                    outcome: Some(outcome),
                    ..
                }) => *outcome,
                Err(Failed { failure, .. }) => return Err(failure.clone().into()),
            };
            let next = self.retry.decide(
                Attempt {
                    outcome,
                    retries,
                    replayable: payload.can_be_sent(),
                    left: self.deadlines.left(Instant::now()),
                },
                || load.allows_retry(Budget::default()),
                &mut rand::rng(),
            );
            match (next, sent) {
                (Next::Retry(wait), sent) => {
                    // What it answered is nobody's to read.
                    drop(sent);
                    _retrying = Some(load.retrying());
                    retries += 1;
                    tokio::time::sleep(wait).await;
                }
                (Next::Stop(stop), Ok((answer, lease))) => {
                    if stop == Stop::Attempts && retries > 0 {
                        exchange.answered_here(Flag::UpstreamRetryLimit, stop.to_string());
                    }
                    let answered = Answered {
                        lease: Some(lease),
                        endpoint: endpoint(&tried),
                        deadline: limit.map(|(at, _)| at.into()),
                    };
                    return Ok((answer, answered));
                }
                (Next::Stop(_), Err(failed)) => return Err(failed.failure.into()),
            }
        }
    }

    /// One attempt.
    async fn send(
        &self,
        request: &Request<()>,
        version: Version,
        payload: &mut Payload,
        tried: &mut Vec<Endpoint>,
        exchange: &mut Exchange,
    ) -> Result<(Response<Incoming>, Lease), Failed> {
        let (chosen, using) = self.choose(tried)?;
        let service = self.target.destination.service();
        exchange.tried(&chosen, service.map(|service| Labels::service_of(service)));
        tried.push(chosen.endpoint());
        // A connection that waited for long may be closed just when it is used: that is not an attempt.
        loop {
            let mut lease =
                match connection(self.conversation, &self.target, &chosen, version).await {
                    Ok(lease) => lease,
                    Err(failure) => {
                        if failure.is_the_endpoints() {
                            using.failed(&failure);
                        }
                        return Err(failure.into());
                    }
                };
            using.succeeded();
            let reused = lease.reused;
            let body = payload.take();
            match lease.send(request.clone().map(|()| body)).await {
                Ok(answer) => {
                    exchange.use_until_the_end(using);
                    return Ok((answer, lease));
                }
                Err(unanswered) => {
                    let Unanswered { error, request } = *unanswered;
                    let unsent = request.map(|request| payload.give_back(request.into_body()));
                    let processed = unsent.is_none() && !was_refused(&error);
                    if unsent.is_some() && reused {
                        continue;
                    }
                    return Err(Failed {
                        failure: Failure::Http {
                            to: chosen.address,
                            error: error.to_string().into(),
                        },
                        outcome: Some(match processed {
                            true => Outcome::BrokeOff,
                            false => Outcome::NotProcessed,
                        }),
                    });
                }
            }
        }
    }

    fn choose(&self, tried: &[Endpoint]) -> Result<(Chosen, Using), Failure> {
        let waypoint = &self.conversation.waypoint;
        let known = waypoint.state.read();
        let choose = |tried: &[Endpoint]| {
            let rng = &mut rand::rng();
            let destination = &self.target.destination;
            let endpoints = &waypoint.endpoints;
            endpoints.choose(&known, &waypoint.own, destination, tried, self.pin, rng)
        };
        // Where all were tried, one of them may do better now.
        let chosen = choose(tried).or_else(|failure| match tried {
            [] => Err(failure),
            _ => choose(&[]),
        })?;
        let using = waypoint.endpoints.begin(chosen.endpoint());
        Ok((chosen, using))
    }
}

/// The one that was tried last.
fn endpoint(tried: &[Endpoint]) -> Endpoint {
    tried
        .last()
        .cloned()
        .expect("broken invariant: whoever answered was tried")
}

/// A connection to an endpoint, kept or new.
async fn connection(
    conversation: &Conversation,
    target: &Target,
    chosen: &Chosen,
    version: Version,
) -> Result<Lease, Failure> {
    let (waypoint, arrival) = (&conversation.waypoint, &conversation.arrival);
    let pool = waypoint.worker(arrival.worker).http();
    match pool.checkout(chosen, version, waypoint.limits.requests_per_endpoint)? {
        Checkout::Ready(lease) => Ok(lease),
        Checkout::Connect(place) => {
            let leg = upstream::reach(waypoint, arrival, &target.destination, chosen).await?;
            place.fill(leg).await
        }
    }
}

/// The body, held back where the client waits for the endpoint's go-ahead, which HTTP/1.1 passes on.
fn payload(body: Option<Upward>, request: &mut Request<()>) -> Payload {
    let Some(body) = body else {
        return Payload::None;
    };
    if !request.headers().contains_key(http::header::EXPECT) {
        return Payload::Whole(body::streamed(body));
    }
    let (body, go) = body.awaiting();
    let go = Mutex::new(Some(go));
    hyper::ext::on_informational(request, move |informed| {
        if informed.status() == http::StatusCode::CONTINUE {
            let go: Option<oneshot::Sender<()>> = go.lock().take();
            // An error means that the body is on its way, or not wanted any more.
            let _told = go.map(|go| go.send(()));
        }
    });
    Payload::Whole(body::streamed(body))
}

/// Whether the endpoint said that it has not looked at the request.
fn was_refused(error: &hyper::Error) -> bool {
    if error.is_canceled() {
        return true;
    }
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(cause) = cause.downcast_ref::<h2::Error>() {
            return cause.reason() == Some(h2::Reason::REFUSED_STREAM);
        }
        source = cause.source();
    }
    false
}

/// Sends a copy, and reads what is answered to its end.
pub(super) fn mirror(conversation: &Arc<Conversation>, target: Target, head: Head, copy: AnyBody) {
    let conversation = Arc::clone(conversation);
    let Some(place) = conversation.waypoint.mirror_place() else {
        return;
    };
    tokio::spawn(async move {
        let _place = place;
        let attempts = Attempts {
            conversation: &conversation,
            target,
            retry: &RetryPolicy::safe(),
            deadlines: crate::resilience::timeouts::Timeouts::default().begin(Instant::now()),
            pin: None,
        };
        let version = attempts.target.version(http::Version::HTTP_11, false);
        let request = head.for_version(version);
        let sent = async {
            let (chosen, _using) = attempts.choose(&[])?;
            let connection = connection(&conversation, &attempts.target, &chosen, version);
            let mut lease = connection.await?;
            let answer = lease.send(request.map(|()| copy)).await;
            let answer = answer.map_err(|unanswered| Failure::Http {
                to: chosen.address,
                error: unanswered.error.to_string().into(),
            })?;
            if body::read_to_end(answer.into_body()).await {
                lease.give_back();
            }
            Ok::<_, Failure>(())
        };
        if let Err(failure) = Box::pin(sent).await {
            tracing::debug!(error = %failure, "a copy of a request was not answered");
        }
    });
}
