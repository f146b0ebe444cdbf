// SPDX-License-Identifier: Apache-2.0
//! A request's life, in order: read, authorize, route, filter, pick, forward, record.
//!
//! ```text
//!  read ─► authorize ─► route ─► (redirect, preflight, refusal) ─► filters ─► attempt ─► answer ─► filters ─► client
//!                                                                     └ copies   └─ again, elsewhere ─┘
//! ```
//!
//! Each request is decided on by the policies as they are when it comes. Bodies are streamed both ways. What is answered
//! here is short and names its reason.

mod attempt;
mod reply;
mod upgrade;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use http::header::{self, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use hyper::body::{Body as _, Incoming};
use hyper::upgrade::OnUpgrade;

use self::attempt::{Answered, Asked, Attempts, Target};
pub use self::reply::Reply;
use self::upgrade::Wish;
use crate::authorize::Rules;
use crate::authz;
use crate::body::{AnyBody, Downward, Upward};
use crate::destination::Destination;
use crate::exchange::Exchange;
use crate::failure::{Failure, Flag};
use crate::framing::Verdict;
use crate::http::Conversation;
use crate::hygiene;
use crate::path::{self, Normalization};
use crate::record::Labels;
use crate::resilience::affinity::Facts;
use crate::resilience::hash::Key;
use crate::resilience::retry::RetryPolicy;
use crate::resilience::timeouts::Timeouts;
use crate::resilience::traffic::Balancing;
use crate::route::{self, Answer, Forward, Here, Port, Protocol, Table};
use crate::session::UnixTime;
use crate::token::Accepted;

const CLIENT_CERT: HeaderName = HeaderName::from_static("x-forwarded-client-cert");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Which rule has decided, where the control plane wants it told.
const EXPLANATION: HeaderName = HeaderName::from_static("x-culvert-policy");

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
        explained: None,
    });
    match Box::pin(life.run(head, body, framed)).await {
        Ok(Done::Answered(mut response, answered)) => {
            let exchange = life.exchange;
            explain(&mut response, life.explained);
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
            explain(&mut response, life.explained);
            Ok(response.map(|body| Downward::new(body, exchange, None, None)))
        }
    }
}

/// Says in the answer which rule has decided.
fn explain(response: &mut Response<AnyBody>, explained: Option<HeaderValue>) {
    if let Some(explained) = explained {
        response.headers_mut().insert(EXPLANATION, explained);
    }
}

fn explanation(words: &str) -> Option<HeaderValue> {
    HeaderValue::from_str(words).ok()
}

/// How a request ended well.
enum Done {
    Answered(Response<AnyBody>, Answered),
    Upgraded(Response<AnyBody>, upgrade::Upgraded),
}

struct Life<'c> {
    conversation: &'c Arc<Conversation>,
    exchange: Box<Exchange>,
    /// What the client is told of the decision, where it is told.
    explained: Option<HeaderValue>,
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
        let asked = read(&head, rules.settings.normalization)?;
        let wish = Wish::of(&mut head)?;
        let client = head.extensions.remove::<OnUpgrade>();

        let token = self.authenticate(&rules, &mut head, &asked)?;
        self.authorize(&rules, (&head, &asked), token.as_ref())?;
        let port = self.port()?;
        let answer = self.route(port.as_ref().map(PortNow::get), &head, &asked);
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
        let mut body = Upward::new(body, Arc::clone(self.exchange.received()));
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
            deadlines: timeouts.begin(self.exchange.started_at()),
            pin: forward.as_ref().and_then(|forward| forward.pin),
            key,
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

    /// The policies as they are now.
    fn rules(&self) -> Result<Rules, Reply> {
        let Conversation {
            waypoint, tracked, ..
        } = &**self.conversation;
        let rules = Rules::of(&waypoint.state.read(), tracked.facts().service.as_ref());
        rules.map_err(|unserved| Failure::from(unserved).into())
    }

    /// What the tokens of the request say; from here on its headers tell of them what the endpoint is to know.
    fn authenticate(
        &mut self,
        rules: &Rules,
        head: &mut Parts,
        asked: &Read,
    ) -> Result<Option<Accepted>, Reply> {
        let judged = rules.authenticate(head, now().0.into());
        judged.map_err(|why| {
            let recorder = &self.conversation.waypoint.recorder;
            recorder.refuse_token(self.exchange.ends(), why);
            let realm = format!("http://{}{}", asked.authority, asked.path);
            Reply::unauthorized(why, &realm)
        })
    }

    /// Whether the request may come.
    fn authorize(
        &mut self,
        rules: &Rules,
        (head, asked): (&Parts, &Read),
        token: Option<&Accepted>,
    ) -> Result<(), Reply> {
        if rules.is_empty() {
            return Ok(());
        }
        let Conversation {
            waypoint, tracked, ..
        } = &**self.conversation;
        let request = authz::Request {
            method: head.method.as_str(),
            authority: &asked.authority,
            path: &asked.path,
            headers: &head.headers,
            token: token.map(|token| authz::Token {
                claims: &token.claims,
            }),
        };
        let access = rules.asking(tracked.facts(), request);
        let refused = rules.custom(&access).find_map(|(by, authorizer)| {
            let why = rules.settings.cannot_ask(authorizer)?;
            Some(format!("denied by {by}: authorizer {authorizer:?}: {why}"))
        });
        let decision = rules.decide(&access);
        let mut decided = waypoint.recorder.decided(&decision);
        let denied = refused.or_else(|| {
            let denied = decision.verdict.is_denied();
            denied.then(|| decision.verdict.to_string())
        });
        if let Some(words) = &denied {
            decided.policy = Some(words.as_str().into());
        }
        if rules.settings.explain {
            self.explained = decided.policy.as_deref().and_then(explanation);
        }
        self.exchange.decided(decided);
        let Some(words) = denied else {
            return Ok(());
        };
        let failure = Failure::Denied(words.as_str().into());
        waypoint.recorder.denied(self.exchange.ends(), &failure);
        Err(Reply::denied(words))
    }

    /// What is said of the port now: routes may have changed since the connection came.
    fn port(&self) -> Result<Option<PortNow>, Reply> {
        let Destination::Service { service, port, .. } = &self.conversation.destination else {
            return Ok(None);
        };
        let known = self.conversation.waypoint.state.read();
        let served = known.served.get(&service.key()).cloned();
        let now = served.and_then(|served| {
            served.port(*port)?;
            Some(PortNow {
                served,
                number: *port,
            })
        });
        let gone = || {
            let words = format!("service {} is no longer served here", service.key());
            Reply::of(StatusCode::SERVICE_UNAVAILABLE, Flag::NoRoute, words)
        };
        now.map(Some).ok_or_else(gone)
    }

    fn route<'p>(&self, port: Option<&'p Port>, head: &Parts, asked: &Read) -> Option<Answer<'p>> {
        let client = self.conversation.arrival.identity.namespace();
        let Some(Table::Http(table)) = port?.table(client) else {
            return None;
        };
        let request = route::Request {
            method: &head.method,
            scheme: "http",
            authority: &asked.authority,
            port: self.conversation.destination.port_number(),
            path: &asked.path,
            query: asked.query.as_deref(),
            headers: &head.headers,
        };
        Some(table.answer(&request, now(), &mut rand::rng()))
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
            Here::Refuse { rule, reason } => (rule, Reply::refused(reason)),
        };
        if let Some(rule) = rule {
            self.exchange.by_route(Arc::clone(&rule.text));
        }
        reply
    }

    /// What the connection was meant for.
    fn meant(&self, port: Option<&Port>) -> Target {
        let destination = self.conversation.destination.clone();
        let endpoints = &self.conversation.waypoint.endpoints;
        Target {
            policy: Arc::clone(port.map_or(destination.policy(), |port| &port.policy)),
            observed: endpoints.observed(&destination),
            destination,
            protocol: port.map_or(Protocol::Detect, |port| port.protocol),
        }
    }

    /// What the request has in common with others that are to meet at one endpoint, and the cookie that gives it something
    /// where it has nothing.
    fn affinity(
        &self,
        target: &Target,
        head: &Parts,
        asked: &Read,
    ) -> (Option<Key>, Option<HeaderValue>) {
        let Balancing::Hash(source) = &target.policy.balancing else {
            return (None, None);
        };
        let facts = Facts {
            headers: &head.headers,
            query: asked.query.as_deref(),
            client: self.conversation.arrival.peer.ip(),
        };
        match source.key(facts) {
            Some(key) => (Some(key), None),
            None => source.make(rand::random()).unzip(),
        }
    }

    /// Where a route sends the request.
    fn routed(&self, to: &route::Destination) -> Result<Target, Reply> {
        let known = self.conversation.waypoint.state.read();
        let service = known.mesh.service(&to.namespace, &to.hostname);
        let service = service.cloned().ok_or_else(|| {
            let words = format!("no service {}/{} is known", to.namespace, to.hostname);
            Reply::of(StatusCode::INTERNAL_SERVER_ERROR, Flag::NoRoute, words)
        })?;
        let destination = Destination::Routed {
            service,
            port: to.port,
            policy: Arc::clone(&to.policy),
        };
        Ok(Target {
            policy: Arc::clone(&to.policy),
            observed: self.conversation.waypoint.endpoints.observed(&destination),
            destination,
            protocol: to.protocol,
        })
    }

    /// The head as it goes on: nothing of this connection, everything that is known of the client.
    fn outgoing(
        &mut self,
        mut head: Parts,
        asked: &Read,
        forward: Option<&Forward<'_>>,
    ) -> Result<Head, Reply> {
        let headers = &mut head.headers;
        hygiene::remove_hop_by_hop(headers);
        self.introduce(headers);
        if let Some(forward) = forward {
            forward.edit_request(headers);
        }
        let host = forward.and_then(Forward::host).cloned();
        let host = host.map_or_else(|| HeaderValue::from_str(&asked.authority), Ok);
        let host = host.map_err(|_| Reply::malformed("the request's host is not one"))?;
        headers.insert(header::HOST, host);
        let path = match forward.and_then(|forward| forward.path_and_query.clone()) {
            Some(path) => path,
            None => asked.path_and_query()?,
        };
        Ok(Head {
            method: head.method,
            path,
            headers: head.headers,
        })
    }

    /// Says who the client is, whatever it says itself.
    fn introduce(&mut self, headers: &mut HeaderMap) {
        let introduction = self.conversation.introduction();
        match &introduction.certificate {
            Some(value) => headers.insert(CLIENT_CERT, value.clone()),
            None => headers.remove(CLIENT_CERT),
        };
        let said = headers.get_all(FORWARDED_FOR).iter();
        let said: Vec<&str> = said.filter_map(|value| value.to_str().ok()).collect();
        let passed = match &*said {
            [] => Ok(introduction.address.clone()),
            said => HeaderValue::try_from(format!("{}, {}", said.join(", "), introduction.ip)),
        };
        if let Ok(value) = passed {
            headers.insert(FORWARDED_FOR, value);
        }
        headers
            .entry(FORWARDED_PROTO)
            .or_insert(HeaderValue::from_static("http"));
        if !headers.contains_key(REQUEST_ID) {
            let id = random_id();
            if let Ok(text) = std::str::from_utf8(&id) {
                self.exchange.of_request_id(text);
            }
            if let Ok(value) = HeaderValue::from_bytes(&id) {
                headers.insert(REQUEST_ID, value);
            }
        }
    }

    /// Sends copies, whose answers nobody waits for.
    fn mirror(&self, forward: &Forward<'_>, head: &Head, body: &mut Upward, is_empty: bool) {
        let drawn: Vec<_> = forward.mirrors(&mut rand::rng()).collect();
        for destination in drawn {
            let Ok(target) = self.routed(destination) else {
                continue;
            };
            let copy = if is_empty {
                crate::body::empty()
            } else {
                body.copied()
            };
            attempt::mirror(self.conversation, target, head.clone(), copy);
        }
    }
}

/// A port as it is now.
struct PortNow {
    served: Arc<route::Service>,
    number: u16,
}

impl PortNow {
    fn get(&self) -> &Port {
        self.served
            .port(self.number)
            .expect("broken invariant: looked up before this was made")
    }
}

/// What a request asks for, read in one way only.
struct Read {
    authority: Box<str>,
    path: Box<str>,
    query: Option<Box<str>>,
}

/// A head that is ready to be sent.
#[derive(Debug, Clone)]
pub struct Head {
    method: http::Method,
    path: PathAndQuery,
    headers: HeaderMap,
}

impl Head {
    /// As each version of HTTP wants it.
    fn for_version(&self, version: crate::upstream::Version) -> Request<()> {
        let mut request = Request::new(());
        *request.method_mut() = self.method.clone();
        *request.headers_mut() = self.headers.clone();
        let mut uri = http::uri::Parts::default();
        uri.path_and_query = Some(self.path.clone());
        if version == crate::upstream::Version::Http2 {
            let host = request.headers_mut().remove(header::HOST);
            uri.scheme = Some(http::uri::Scheme::HTTP);
            uri.authority = host.and_then(|host| host.to_str().ok()?.parse().ok());
            *request.version_mut() = http::Version::HTTP_2;
            request.headers_mut().remove(header::EXPECT);
        }
        *request.uri_mut() = Uri::from_parts(uri).unwrap_or_default();
        request
    }
}

fn read(head: &Parts, normalization: Normalization) -> Result<Read, Reply> {
    let target = hygiene::read(&head.method, head.version, &head.uri, &head.headers)?;
    let path = path::normalize(target.path, normalization)?;
    Ok(Read {
        authority: target.authority.into(),
        path: path.into(),
        query: target.query.map(Into::into),
    })
}

impl Read {
    fn path_and_query(&self) -> Result<PathAndQuery, Reply> {
        let text = match &self.query {
            Some(query) => format!("{}?{query}", self.path),
            None => self.path.to_string(),
        };
        PathAndQuery::try_from(text).map_err(|_| Reply::malformed("the path is not one"))
    }
}

fn now() -> UnixTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = since.unwrap_or_default().as_secs();
    UnixTime(u32::try_from(seconds).unwrap_or(u32::MAX))
}

/// A random UUID of version 4.
fn random_id() -> [u8; 36] {
    let number: u128 = rand::random();
    let number = number & !(0xf << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [b'-'; 36];
    let mut at = 0;
    for byte in number.to_be_bytes() {
        if matches!(at, 8 | 13 | 18 | 23) {
            at += 1;
        }
        text[at] = DIGITS[usize::from(byte >> 4)];
        text[at + 1] = DIGITS[usize::from(byte & 0xf)];
        at += 2;
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_requests_number_is_a_random_uuid() {
        let id = super::random_id();
        let text = std::str::from_utf8(&id).unwrap();
        let parts: Vec<_> = text.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12], "{text}");
        let is_hex = |byte: &u8| byte.is_ascii_hexdigit() || *byte == b'-';
        assert!(id.iter().all(is_hex), "{text}");
        // Version 4, and the variant of RFC 9562.
        assert_eq!(id[14], b'4', "{text}");
        assert!(b"89ab".contains(&id[19]), "{text}");
        assert_ne!(id, super::random_id());
    }
}
