// SPDX-License-Identifier: Apache-2.0
//! Who asks, by tokens, and whether that is allowed, by the policies as they are now and the limits of routes.

use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use super::read::Read;
use super::reply::Reply;
use super::{Life, now};
use crate::authorize::Rules;
use crate::authorizer::Allowed;
use crate::authz::{RuleRef, Verdict};
use crate::body::AnyBody;
use crate::connections::Carried;
use crate::failure::{Failure, Flag};
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

    /// Whether the request may come. `tried` is the rule by which an authorizer that is tried out would have refused it.
    pub(super) fn authorize(
        &mut self,
        rules: &Rules,
        (head, asked): (&Parts, &Read),
        token: Option<&Accepted>,
        tried: Option<RuleRef<'_>>,
    ) -> Result<(), Reply> {
        let Conversation {
            waypoint,
            arrival,
            tracked,
            ..
        } = &**self.conversation;
        if let Some(why) = rules.closed(tracked.facts(), Carried::Requests) {
            let error = StatusCode::INTERNAL_SERVER_ERROR;
            return Err(Reply::of(error, Flag::None, why));
        }
        let request = asked.as_policies_see_it(head, token);
        let access = rules.asking(tracked.facts(), request);
        if let Some(memory) = &self.conversation.memory {
            memory.note(&access);
        }
        let mut decision = rules.decide(&access);
        if let Some(by) = tried {
            decision.dry_run = Some(Verdict::Denied(Some(by)));
        }
        let decided = waypoint.recorder.decided(arrival.worker, &decision);
        if rules.settings.explain
            && let Some(words) = &decided.policy
        {
            self.for_client.explain(words);
        }
        self.exchange.decided(decided);
        if !decision.verdict.is_denied() {
            return Ok(());
        }
        let words = decision.verdict.to_string();
        let failure = Failure::Denied(words.as_str().into());
        waypoint.recorder.denied(self.exchange.ends(), &failure);
        Err(Reply::denied(words))
    }
}

/// What the client is told beside the answer.
#[derive(Default)]
pub(super) struct ForClient {
    explained: Option<HeaderValue>,
    /// By whoever has allowed the request.
    pub(super) promised: Vec<Allowed>,
}

impl ForClient {
    /// Which rule has decided.
    pub(super) fn explain(&mut self, words: &str) {
        self.explained = HeaderValue::from_str(words).ok();
    }

    pub(super) fn tell(self, answer: &mut Response<AnyBody>) {
        for allowed in &self.promised {
            allowed.change_answer(answer.headers_mut());
        }
        if let Some(explained) = self.explained {
            answer.headers_mut().insert(EXPLANATION, explained);
        }
    }
}
