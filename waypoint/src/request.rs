// SPDX-License-Identifier: Apache-2.0
//! A request's life, in order: read, authorize, route, filter, pick, forward, record.
//!
//! ```text
//!  read ─► ask ─► authorize ─► route ─► (redirect, preflight, refusal) ─► filters ─► attempt ─► answer ─► filters ─► client
//!                                                                     └ copies   └─ again, elsewhere ─┘
//! ```
//!
//! Each request is decided on by the policies as they are when it comes. Bodies are streamed both ways. What is answered
//! here is short and names its reason.

mod admission;
mod ask;
mod attempt;
mod connecting;
mod mirror;
mod once;
mod outgoing;
mod read;
mod reply;
mod target;
mod upgrade;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use http::header;
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode};
use hyper::body::{Body as _, Incoming};
use hyper::upgrade::OnUpgrade;

use self::admission::ForClient;
use self::attempt::{Answered, Asked, Attempts};
use self::read::read;
pub use self::reply::Reply;
use self::target::PortNow;
use self::upgrade::Wish;
use crate::body::{AnyBody, Downward, Upward};
use crate::exchange::Exchange;
use crate::framing::Verdict;
use crate::http::Conversation;
use crate::hygiene;
use crate::record::Labels;
use crate::resilience::retry::RetryPolicy;
use crate::resilience::timeouts::Timeouts;
use crate::route::{Answer, Here};
use crate::session::UnixTime;

/// Answers one request, if its bytes can be read in one way only.
pub async fn respond(
    conversation: Arc<Conversation>,
    request: Request<Incoming>,
    framed: Verdict,
) -> Result<Response<Downward>, Infallible> {
    let (head, body) = request.into_parts();
    let Conversation {
        waypoint,
        arrival,
        destination,
        ..
    } = &*conversation;
    let service = destination.service();
    let exchange = Exchange::begin(
        &waypoint.recorder,
        arrival.worker,
        arrival.ends(),
        (
            arrival.source.clone(),
            service.map(|service| Labels::service_of(service)),
        ),
        &head,
    );
    // Boxed: it waits for the endpoint, and hyper keeps one of these for each request.
    let mut life = Box::new(Life {
        conversation: &conversation,
        exchange,
        for_client: ForClient::default(),
    });
    match Box::pin(life.run(head, body, framed)).await {
        Ok(Done::Answered(mut response, answered)) => {
            let exchange = life.exchange;
            life.for_client.tell(&mut response);
            Ok(response.map(|body| {
                let Answered {
                    lease, deadline, ..
                } = answered;
                Downward::new(body, exchange, lease, deadline)
            }))
        }
        Ok(Done::Upgraded(response, upgraded)) => {
            let stop = conversation.tracked.stop().clone();
            upgraded.carry(life.exchange, stop);
            Ok(response.map(Downward::detached))
        }
        Err(reply) => {
            let mut exchange = life.exchange;
            let mut response = reply.response(&mut exchange);
            life.for_client.tell(&mut response);
            Ok(response.map(|body| Downward::new(body, exchange, None, None)))
        }
    }
}

/// How a request ended well.
enum Done {
    Answered(Response<AnyBody>, Answered),
    Upgraded(Response<AnyBody>, upgrade::Upgraded),
}

struct Life<'c> {
    conversation: &'c Arc<Conversation>,
    exchange: Box<Exchange>,
    for_client: ForClient,
}

impl Life<'_> {
    async fn run(
        &mut self,
        mut head: Parts,
        body: Incoming,
        framed: Verdict,
    ) -> Result<Done, Reply> {
        framed?;
        let rules = self.rules()?;
        if let Some(telemetry) = rules.telemetry() {
            self.exchange.told_by(telemetry, &head.headers);
        }
        let asked = read(&head, rules.settings.normalization)?;
        let wish = Wish::of(&mut head)?;
        let client = head.extensions.remove::<OnUpgrade>();

        let body = Upward::new(body, Arc::clone(self.exchange.received()));
        let (mut body, tried) = self.ask(&rules, &mut head, &asked, body).await?;
        let token = self.authenticate(&rules, &mut head, &asked)?;
        self.authorize(&rules, (&head, &asked), token.as_ref(), tried)?;
        let port = self.port()?;
        let answer = self.route(
            port.as_ref().map(PortNow::get),
            (&head, &asked),
            token.as_ref(),
        );
        let taken = match answer.as_ref().and_then(Answer::rule) {
            Some(rule) => self.limit(rule, &head.headers)?,
            None => None,
        };
        let rule = answer.as_ref().and_then(Answer::rule);
        let mut begun = self.exchange.started_at();
        if let Some(delay) = rule.and_then(|rule| rule.delay(&mut rand::rng())) {
            // Its time begins afterwards, as in Istio.
            Box::pin(tokio::time::sleep(delay)).await;
            begun = Instant::now();
        }
        let (forward, target) = match answer {
            None => (None, self.meant(port.as_ref().map(PortNow::get))),
            Some(Answer::Forward(forward)) => {
                self.exchange.by_route(Arc::clone(&forward.rule.text));
                let target = self.routed(forward.destination)?;
                (Some(forward), target)
            }
            Some(Answer::Here(here)) => return Err(self.local(here)),
        };

        let (key, cookie) = self.affinity(&target, &head, &asked);
        let version = head.version;
        let policy = RetryPolicy::safe();
        let retry = forward.as_ref().map_or(&policy, |forward| forward.retry);
        let timeouts = forward
            .as_ref()
            .map_or(Timeouts::default(), |forward| forward.timeouts);
        let outgoing = self.outgoing(head, &asked, forward.as_ref())?;
        let is_empty = body.is_end_stream();
        if let Some(forward) = &forward {
            self.mirror(forward, &outgoing, &mut body, is_empty);
        }
        let asked = Asked {
            head: outgoing,
            body: (!is_empty).then_some(body),
            client_version: version,
            wish: wish.clone(),
        };
        let attempts = Attempts {
            conversation: self.conversation,
            target,
            retry,
            deadlines: timeouts.begin(begun),
            pin: forward.as_ref().and_then(|forward| forward.pin),
            key,
            speaks_for: Some(&self.conversation.arrival.identity),
        };
        let (mut response, answered) = attempts.run(asked, &mut self.exchange).await?;

        let status = response.status();
        let is_agreed = wish.is_some() && Wish::is_agreed(answered.version, status);
        let misleads = match &wish {
            Some(wish) => !is_agreed && wish.is_misled_by(status),
            None => status == StatusCode::SWITCHING_PROTOCOLS,
        };
        if misleads {
            return Err(Reply::upstream(
                "the endpoint's answer is not one to what was asked of it",
            ));
        }
        let upgraded = is_agreed.then(|| hyper::upgrade::on(&mut response));
        let (mut parts, body) = response.into_parts();
        hygiene::remove_hop_by_hop(&mut parts.headers);
        if let Some(forward) = &forward {
            forward.response_edits().apply(&mut parts.headers);
            if let Some(session) = forward.session {
                let (to, at) = (forward.destination, &answered.endpoint);
                session.write(forward.pin, to, at, now(), &mut parts.headers);
            }
        }
        if let Some(taken) = taken {
            taken.tell(&mut parts.headers);
        }
        if let Some(cookie) = cookie {
            // Where the answer has too many headers already, the client is told next time.
            let _ = parts.headers.try_append(header::SET_COOKIE, cookie);
        }
        if let Some(wish) = wish.filter(|_| is_agreed) {
            parts.status = wish.agree(&mut parts.headers);
        }
        self.exchange.answered(parts.status, &parts.headers);
        let mut response = Response::new(());
        *response.status_mut() = parts.status;
        *response.headers_mut() = parts.headers;
        match (upgraded, client) {
            (Some(endpoint), Some(client)) => Ok(Done::Upgraded(
                response.map(|()| crate::body::empty()),
                upgrade::Upgraded {
                    client,
                    endpoint,
                    lease: answered.lease,
                },
            )),
            (Some(_), None) => Err(Reply::upstream(
                "the endpoint switched protocols and the client cannot",
            )),
            (None, _) => Ok(Done::Answered(
                response.map(|()| crate::body::streamed(body)),
                answered,
            )),
        }
    }

    /// An answer that needs no endpoint.
    fn local(&mut self, here: Here<'_>) -> Reply {
        let (rule, reply) = match here {
            Here::Redirect {
                rule,
                status,
                location,
                edits,
            } => {
                let mut headers = HeaderMap::new();
                headers.insert(header::LOCATION, location);
                edits.apply(&mut headers);
                (Some(rule), Reply::made(status, headers, "redirected"))
            }
            Here::Preflight { rule, headers } => {
                let status = StatusCode::NO_CONTENT;
                (Some(rule), Reply::made(status, headers, "preflight"))
            }
            Here::Direct {
                rule,
                response,
                edits,
            } => {
                let mut headers = HeaderMap::new();
                edits.apply(&mut headers);
                (Some(rule), Reply::direct(response, headers))
            }
            Here::Refuse { rule, reason } => (rule, Reply::refused(reason)),
        };
        if let Some(rule) = rule {
            self.exchange.by_route(Arc::clone(&rule.text));
        }
        reply
    }
}

fn now() -> UnixTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = since.unwrap_or_default().as_secs();
    UnixTime(u32::try_from(seconds).unwrap_or(u32::MAX))
}
