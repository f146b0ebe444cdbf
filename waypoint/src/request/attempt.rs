// SPDX-License-Identifier: Apache-2.0
//! Forwards a request: picks an endpoint, sends, waits for the head of the answer; and does so again where the rule and
//! the attempt allow it.

use std::time::Instant;

use http::{Request, Response};
use hyper::body::Incoming;
use mesh::Endpoint;
use parking_lot::Mutex;
use spiffe::SpiffeId;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use super::connecting::connection;
use super::outgoing::Head;
use super::reply::Reply;
use super::target::Target;
use super::upgrade::Wish;
use crate::body::{self, AnyBody, Upward};
use crate::endpoints::{Asked as Wanted, Choice, Using};
use crate::exchange::Exchange;
use crate::failure::{Failure, Flag};
use crate::http::Conversation;
use crate::pool::{Lease, Unanswered};
use crate::record::Labels;
use crate::resilience::hash::Key;
use crate::resilience::limits::Work;
use crate::resilience::retry::{Attempt, Next, Outcome, RetryPolicy, Stop};
use crate::resilience::timeouts::{Deadlines, Expiry};
use crate::session::Pin;
use crate::upstream::Version;

/// What is to be sent.
pub(super) struct Asked {
    pub(super) head: Head,
    /// None where there is none.
    pub(super) body: Option<Upward>,
    pub(super) client_version: http::Version,
    pub(super) wish: Option<Wish>,
}

/// How it is to be sent.
pub(super) struct Attempts<'a> {
    pub(super) conversation: &'a Conversation,
    pub(super) target: Target,
    pub(super) retry: &'a RetryPolicy,
    pub(super) deadlines: Deadlines,
    pub(super) pin: Option<Pin>,
    pub(super) key: Option<Key>,
    /// The client, unless this waypoint asks for itself.
    pub(super) speaks_for: Option<&'a SpiffeId>,
}

/// What an answer needs until its last byte.
pub(super) struct Answered {
    pub(super) lease: Option<Lease>,
    pub(super) endpoint: Endpoint,
    pub(super) version: Version,
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
        let Target {
            policy, observed, ..
        } = &self.target;
        let begun = observed.begin(Work::Request, &policy.limits);
        exchange.under_way(begun.map_err(Failure::Limit)?);
        let wish = asked.wish.as_ref();
        let version = self.target.version(asked.client_version, wish);
        let mut request = asked.head.for_version(version, policy.tls.as_deref());
        if let Some(wish) = wish {
            wish.ask(version, &mut request);
        }
        let mut payload = payload(asked.body, &mut request);
        let mut tried = Vec::new();
        let mut retries = 0;
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
            self.ended(&tried, outcome, &sent, began);
            let mut retrying = None;
            let next = self.retry.decide(
                Attempt {
                    outcome,
                    retries,
                    replayable: payload.can_be_sent(),
                    left: self.deadlines.left(Instant::now()),
                },
                || {
                    // The one before counts no longer.
                    exchange.retrying(None);
                    retrying = observed.retry(policy);
                    retrying.is_some()
                },
                &mut rand::rng(),
            );
            match (next, sent) {
                (Next::Retry(wait), sent) => {
                    // What it answered is nobody's to read.
                    drop(sent);
                    exchange.retrying(retrying);
                    retries += 1;
                    tokio::time::sleep(wait).await;
                }
                (Next::Stop(stop), Ok((answer, lease))) => {
                    let flag = match stop {
                        Stop::Attempts if retries > 0 => Some(Flag::UpstreamRetryLimit),
                        Stop::Budget => Some(Flag::Overflow),
                        _ => None,
                    };
                    if let Some(flag) = flag {
                        exchange.answered_here(flag, stop.to_string());
                    }
                    let answered = Answered {
                        lease: Some(lease),
                        endpoint: endpoint(&tried),
                        version,
                        deadline: limit.map(|(at, _)| at.into()),
                    };
                    return Ok((answer, answered));
                }
                (Next::Stop(_), Err(failed)) => return Err(failed.failure.into()),
            }
        }
    }

    /// Notes how an attempt ended: its endpoint may be left alone for a while.
    fn ended(
        &self,
        tried: &[Endpoint],
        outcome: Outcome,
        sent: &Result<(Response<Incoming>, Lease), Failed>,
        began: Instant,
    ) {
        let Some(endpoint) = tried.last() else {
            return;
        };
        let Target {
            policy, observed, ..
        } = &self.target;
        let outcome = match sent {
            Ok((answer, _)) => blamed(answer),
            Err(_) => outcome,
        };
        let now = Instant::now();
        let out_for = observed.ended(policy, endpoint, outcome, now - began, now);
        if let Some(out_for) = out_for {
            let Endpoint { workload, port } = endpoint;
            tracing::warn!(endpoint = %workload, port, ?out_for, "endpoint answers with errors and is left alone");
            self.conversation.waypoint.recorder.ejected();
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
        let (choice, using) = self.choose(tried)?;
        tried.push(choice.endpoint());
        let waypoint = &self.conversation.waypoint;
        let settled = waypoint.hostnames.settle(choice, waypoint.own.address);
        let chosen = match settled.await {
            Ok(chosen) => chosen,
            Err(failure) => {
                using.failed(&failure);
                return Err(failure.into());
            }
        };
        let service = self.target.destination.service();
        exchange.tried(&chosen, service.map(|service| Labels::service_of(service)));
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
            let method = request.method();
            let crossed = method.is_safe() || reused && method.is_idempotent();
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
                            false => Outcome::NotProcessed,
                            true if crossed => Outcome::Crossed,
                            true => Outcome::BrokeOff,
                        }),
                    });
                }
            }
        }
    }

    pub(super) fn choose(&self, tried: &[Endpoint]) -> Result<(Choice, Using), Failure> {
        let waypoint = &self.conversation.waypoint;
        let known = waypoint.state.read();
        let choose = |tried: &[Endpoint]| {
            let wanted = Wanted {
                destination: &self.target.destination,
                policy: &self.target.policy,
                observed: &self.target.observed,
                key: self.key,
                pin: self.pin,
                tried,
                speaks_for: self.speaks_for,
            };
            let endpoints = &waypoint.endpoints;
            endpoints.choose(&known, &waypoint.own, wanted, &mut rand::rng())
        };
        // Where all were tried, one of them may do better now.
        let chosen = choose(tried).or_else(|failure| match tried {
            [] => Err(failure),
            _ => choose(&[]),
        })?;
        let using = waypoint
            .endpoints
            .begin(&self.target.observed, chosen.endpoint());
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

/// What an endpoint is to blame for. gRPC's errors come with 200; one that comes in place of an answer stands in its head.
fn blamed(answer: &Response<Incoming>) -> Outcome {
    let status = answer.headers().get("grpc-status");
    Outcome::Status(match status.map(http::HeaderValue::as_bytes) {
        // DEADLINE_EXCEEDED, UNAVAILABLE.
        Some(b"4") => 504,
        Some(b"14") => 503,
        // UNKNOWN, INTERNAL, DATA_LOSS.
        Some(b"2" | b"13" | b"15") => 500,
        _ => answer.status().as_u16(),
    })
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
            // Of the streams of a connection that is about to end, those fail so that it has not looked at.
            let going = cause.is_go_away() && cause.is_remote();
            return match cause.reason() {
                Some(h2::Reason::REFUSED_STREAM) => true,
                Some(h2::Reason::NO_ERROR) => going,
                _ => false,
            };
        }
        source = cause.source();
    }
    false
}
