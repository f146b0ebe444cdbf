// SPDX-License-Identifier: Apache-2.0
//! Asks whom CUSTOM policies name, before tokens are looked at and any other policy is: all of them have to agree. What
//! they want changed of the request is changed for whatever comes after. Those that policies in dry run name are asked as well,
//! as Istio's waypoints do; what they say changes nothing and is told.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use http::StatusCode;
use http::request::Parts;
use http_body_util::{BodyExt as _, Limited};
use tokio::time::timeout;

use super::Life;
use super::attempt::Attempts;
use super::outgoing::Head;
use super::read::Read;
use super::reply::Reply;
use super::target::Target;
use crate::authorize::Rules;
use crate::authorizer::{
    Allowed, Answer, Asking, BadAnswer, BodyLimit, Denied, LONGEST_ANSWER, OnError, Party,
    Question, Told,
};
use crate::authz::{Custom, Decision, RuleRef, Verdict};
use crate::body::{self, Upward};
use crate::destination::Destination;
use crate::failure::{Failure, Flag};
use crate::http::Conversation;
use crate::record::Asked;
use crate::resilience::retry::RetryPolicy;
use crate::resilience::timeouts::Timeouts;
use crate::resilience::traffic::TrafficPolicy;
use crate::route::Protocol;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum Silence {
    #[error("{0}")]
    Unreached(#[from] Failure),
    #[error("{0}")]
    Bad(#[from] BadAnswer),
    #[error("it gave no answer within {0:?}")]
    Late(Duration),
    #[error("{0}")]
    Unknown(String),
    #[error("its answer broke off, or is longer than {LONGEST_ANSWER} bytes: {0}")]
    Body(body::Error),
}

/// What comes of asking one authorizer.
enum Outcome {
    Allowed(Allowed),
    Denied(Denied),
    /// It gave no answer, and that is no reason to refuse.
    Passed(String),
    /// It gave none, or could not be asked.
    Refused(StatusCode, String),
    /// Nothing is known of it.
    Unknown(String),
}

impl Outcome {
    fn counts_as(&self) -> Asked {
        match self {
            Self::Allowed(_) => Asked::Allowed,
            Self::Denied(_) => Asked::Denied,
            Self::Passed(_) => Asked::Passed,
            Self::Refused(..) | Self::Unknown(_) => Asked::Error,
        }
    }
}

impl Life<'_> {
    /// Asks whoever has to be; gives the body back, of which some may have been read, and the rule by which it would be refused
    /// if policies that are tried out counted.
    pub(super) async fn ask<'r>(
        &mut self,
        rules: &'r Rules,
        head: &mut Parts,
        asked: &Read,
        body: Upward,
    ) -> Result<(Upward, Option<RuleRef<'r>>), Reply> {
        let mut named: Vec<Custom<'r>> = Vec::new();
        if !rules.is_empty() {
            let request = asked.as_policies_see_it(head, None);
            let access = rules.asking(self.conversation.tracked.facts(), request);
            for custom in rules.custom(&access) {
                if named
                    .iter()
                    .all(|known| known.authorizer != custom.authorizer)
                {
                    named.push(custom);
                }
            }
        }
        match named.is_empty() {
            true => Ok((body, None)),
            false => Box::pin(self.ask_each(rules, named, (head, asked), body)).await,
        }
    }

    async fn ask_each<'r>(
        &mut self,
        rules: &'r Rules,
        named: Vec<Custom<'r>>,
        (head, asked): (&mut Parts, &Read),
        mut body: Upward,
    ) -> Result<(Upward, Option<RuleRef<'r>>), Reply> {
        let recorder = Arc::clone(&self.conversation.waypoint.recorder);
        let mut would_refuse = None;
        // Who the client's tunnel has proven it to be, and nothing that it says itself.
        self.name_client(&mut head.headers);
        for Custom {
            by,
            authorizer: name,
            dry_run,
        } in named
        {
            let asking = self.outcome(rules, name, (head, asked), &mut body);
            let outcome = asking.await;
            recorder.asked(name, outcome.counts_as());
            let why = match &outcome {
                Outcome::Allowed(allowed) => {
                    if !dry_run {
                        allowed.change(&mut head.headers);
                        self.for_client.promised.push(allowed.clone());
                    }
                    continue;
                }
                Outcome::Passed(why) => {
                    let policy = by.policy;
                    tracing::warn!(
                        authorizer = name,
                        policy,
                        why,
                        "a request passes unanswered"
                    );
                    continue;
                }
                Outcome::Denied(denied) => format!("it answered {}", denied.status.as_u16()),
                Outcome::Unknown(why) | Outcome::Refused(_, why) => why.clone(),
            };
            if dry_run {
                would_refuse.get_or_insert(by);
                continue;
            }
            let words = format!("denied by {by}: authorizer {name:?}: {why}");
            self.refused(rules, by, &words);
            return Err(match outcome {
                Outcome::Denied(denied) => Reply::by_authorizer(denied, words),
                Outcome::Refused(status, _) => {
                    Reply::of(status, Flag::ExternalAuthorization, words)
                }
                _ => Reply::denied(words),
            });
        }
        Ok((body, would_refuse))
    }

    /// What comes of asking one of them.
    async fn outcome(
        &self,
        rules: &Rules,
        name: &str,
        (head, asked): (&Parts, &Read),
        body: &mut Upward,
    ) -> Outcome {
        let asking = match rules.settings.asking(name) {
            Ok(asking) => asking,
            Err(why) => return Outcome::Unknown(why.to_owned()),
        };
        let told = match asking.body {
            None => None,
            Some(limit) => match self.told(limit, asking.timeout, body).await {
                Ok(told) => Some(told),
                Err((status, why)) => return Outcome::Refused(status, why),
            },
        };
        let why = match self.ask_one(asking, (head, asked), told.as_ref()).await {
            Ok(Answer::Allowed(allowed)) => return Outcome::Allowed(allowed),
            Ok(Answer::Denied(denied)) => return Outcome::Denied(denied),
            Err(why) => why.to_string(),
        };
        match asking.on_error {
            OnError::Pass => Outcome::Passed(why),
            OnError::Deny(status) => Outcome::Refused(status, why),
        }
    }

    /// Notes a refusal wherever one is looked for.
    fn refused(&mut self, rules: &Rules, by: RuleRef<'_>, words: &str) {
        let recorder = &self.conversation.waypoint.recorder;
        let decision = Decision {
            verdict: Verdict::Denied(Some(by)),
            dry_run: None,
            audit: None,
        };
        let mut decided = recorder.decided(self.conversation.arrival.worker, &decision);
        decided.policy = Some(words.into());
        if rules.settings.explain {
            self.for_client.explain(words);
        }
        self.exchange.decided(decided);
        let failure = Failure::NotAuthorized(words.into());
        recorder.denied(self.exchange.ends(), &failure);
    }

    /// Reads of the body what an authorizer is told; else a status, and why.
    async fn told(
        &self,
        limit: BodyLimit,
        patience: Duration,
        body: &mut Upward,
    ) -> Result<Told, (StatusCode, String)> {
        let Some(place) = self.conversation.waypoint.body_place(limit.most) else {
            let words = "too many bodies are held for authorizers".to_owned();
            return Err((StatusCode::SERVICE_UNAVAILABLE, words));
        };
        let read = timeout(patience, body.read_ahead(limit.most, place));
        match read.await {
            Ok(Ok((bytes, whole))) if whole || limit.partial => Ok(Told { bytes, whole }),
            Ok(Ok(_)) => Err((
                StatusCode::PAYLOAD_TOO_LARGE,
                format!(
                    "the body is longer than the {} bytes that it takes",
                    limit.most
                ),
            )),
            Ok(Err(error)) => Err((
                StatusCode::BAD_REQUEST,
                format!("the body broke off: {error}"),
            )),
            Err(_) => Err((
                StatusCode::REQUEST_TIMEOUT,
                format!("the body did not come within {patience:?}"),
            )),
        }
    }

    async fn ask_one(
        &self,
        asking: &Asking,
        (head, asked): (&Parts, &Read),
        told: Option<&Told>,
    ) -> Result<Answer, Silence> {
        let Conversation {
            waypoint,
            arrival,
            tracked,
            ..
        } = &**self.conversation;
        let path = asked.path_and_query();
        let path = path.map_err(|_| BadAnswer::Question("its path"))?;
        let call = asking.call(&Question {
            head,
            authority: &asked.authority,
            path_and_query: path.as_str(),
            body: told,
            source: Party {
                address: arrival.peer,
                principal: arrival.identity.as_str(),
            },
            destination: Party {
                address: tracked.facts().destination,
                principal: waypoint.own.identity.as_str(),
            },
            at: SystemTime::now(),
        })?;
        let attempts = Attempts {
            conversation: self.conversation,
            target: self.authorizers(asking)?,
            retry: &RetryPolicy::safe(),
            deadlines: Timeouts::default().begin(Instant::now()),
            pin: None,
            key: None,
            speaks_for: None,
        };
        let version = attempts.target.version(http::Version::HTTP_11, None);
        let message = Head {
            method: call.method,
            path: call.path,
            headers: call.headers,
        };
        let exchange = async {
            let mut crossed = false;
            let (answer, held) = loop {
                let message = message.for_version(version, attempts.target.policy.tls.as_deref());
                let message = message.map(|()| body::text(call.body.clone()));
                match attempts.once(version, message).await {
                    // A question may be put twice; its connection may have ended just when it came.
                    Err(Failure::Http { .. }) if !crossed => crossed = true,
                    done => break done?,
                }
            };
            let (parts, body) = answer.into_parts();
            let read = Limited::new(body, LONGEST_ANSWER).collect().await;
            let read = read.map_err(Silence::Body)?;
            held.lease.give_back();
            let trailers = read.trailers().cloned();
            Ok(asking.answer(&parts, read.to_bytes(), trailers.as_ref())?)
        };
        let answered = timeout(asking.timeout, Box::pin(exchange)).await;
        answered.unwrap_or(Err(Silence::Late(asking.timeout)))
    }

    /// Where an authorizer is.
    fn authorizers(&self, asking: &Asking) -> Result<Target, Silence> {
        let waypoint = &self.conversation.waypoint;
        let known = waypoint.state.read();
        let (namespace, host) = (&*asking.namespace, &*asking.hostname);
        let own = match namespace {
            "" => &*waypoint.own.namespace,
            namespace => namespace,
        };
        let mut anywhere = known.mesh.services_by_host(host);
        let service = match (known.mesh.service(own, host), namespace) {
            (Some(service), _) => Ok(service),
            (None, "") => match (anywhere.next(), anywhere.next()) {
                (Some(service), None) => Ok(service),
                (None, _) => Err(format!("no service {host} is known")),
                (Some(_), Some(_)) => Err(format!("several namespaces have a service {host}")),
            },
            (None, namespace) => Err(format!("no service {namespace}/{host} is known")),
        };
        let policy = Arc::new(TrafficPolicy::default());
        let destination = Destination::Routed {
            service: Arc::clone(service.map_err(Silence::Unknown)?),
            port: asking.port,
            policy: Arc::clone(&policy),
        };
        Ok(Target {
            observed: waypoint.endpoints.observed(&destination),
            destination,
            protocol: match asking.is_grpc() {
                true => Protocol::Grpc,
                false => Protocol::Http1,
            },
            policy,
        })
    }
}
