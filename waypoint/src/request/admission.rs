// SPDX-License-Identifier: Apache-2.0
//! Who asks, by tokens, and whether that is allowed, by the policies as they are now and the limits of routes.

use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response};

use super::read::Read;
use super::reply::Reply;
use super::{Life, now};
use crate::authorize::Rules;
use crate::authz;
use crate::body::AnyBody;
use crate::failure::Failure;
use crate::http::Conversation;
use crate::rate_limit::Taken;
use crate::route::Rule;
use crate::token::Accepted;

/// Which rule has decided, where the control plane wants it told.
const EXPLANATION: HeaderName = HeaderName::from_static("x-culvert-policy");

impl Life<'_> {
    /// The policies as they are now.
    pub(super) fn rules(&self) -> Result<Rules, Reply> {
        let Conversation {
            waypoint, tracked, ..
        } = &**self.conversation;
        let rules = Rules::of(&waypoint.state.read(), tracked.facts().service.as_ref());
        rules.map_err(|unserved| Failure::from(unserved).into())
    }

    /// What the tokens of the request say; from here on its headers tell of them what the endpoint is to know.
    pub(super) fn authenticate(
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

    /// Whether the route takes one more; what the client is told of that.
    pub(super) fn limit(
        &mut self,
        rule: &Rule,
        headers: &HeaderMap,
    ) -> Result<Option<Taken>, Reply> {
        let Some(limit) = &rule.limit else {
            return Ok(None);
        };
        let Conversation {
            waypoint, arrival, ..
        } = &**self.conversation;
        let taken = waypoint.rate_limits.take(limit, &arrival.identity, headers);
        if taken.wait.is_none() {
            return Ok(Some(taken));
        }
        self.exchange.by_route(Arc::clone(&rule.text));
        let failure = Failure::RateLimited(Arc::clone(&limit.route));
        let recorder = &waypoint.recorder;
        recorder.limited(self.exchange.ends(), &failure, &limit.route);
        Err(Reply::limited(&failure, taken))
    }

    /// Whether the request may come.
    pub(super) fn authorize(
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
}

/// Says in the answer which rule has decided.
pub(super) fn explain(response: &mut Response<AnyBody>, explained: Option<HeaderValue>) {
    if let Some(explained) = explained {
        response.headers_mut().insert(EXPLANATION, explained);
    }
}

fn explanation(words: &str) -> Option<HeaderValue> {
    HeaderValue::from_str(words).ok()
}
