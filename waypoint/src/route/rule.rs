// SPDX-License-Identifier: Apache-2.0
//! What a rule does with the requests that are its own.
//!
//! In: the rule; a request, the time, randomness. Out: [`Answer`]. A session's backend goes before the weights. Filters
//! of a backend come behind the rule's own, and where both name a host, a path or who may ask, the backend's count for
//! host and path, the rule's for the last.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue};
use proto::waypoint::http_backend::Target;
use proto::waypoint::path_match::Kind;
use proto::waypoint::{HttpBackend, HttpRoute, HttpRule};
use rand::Rng;

use super::fault::{DirectResponse, Fault};
use super::{Answer, Destination, Here, Hit, Reason, Request};
use crate::filters::cors::{Cors, Grant, Verdict};
use crate::filters::{Filters, Redirect};
use crate::rate_limit::RateLimit;
use crate::resilience::retry::RetryPolicy;
use crate::resilience::timeouts::Timeouts;
use crate::session::{Pin, Session, UnixTime};
use crate::split::Split;

/// Names a rule for log, metric and admin view.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RuleName {
    /// `HTTPRoute`, `GRPCRoute`, or whatever stands in their place.
    pub kind: Arc<str>,
    /// The route's.
    pub namespace: Arc<str>,
    /// The route's.
    pub route: Arc<str>,
    /// The rule's, or `#` and its place if it has none.
    pub rule: Arc<str>,
}

/// A rule, compiled.
#[derive(Debug)]
pub struct Rule {
    /// Which it is.
    pub name: RuleName,
    /// The same in words, for the log.
    pub text: Arc<str>,
    /// How many requests its route takes.
    pub limit: Option<Arc<RateLimit>>,
    /// What it does; if that can't be done, why.
    actions: Result<Actions, Box<str>>,
}

#[derive(Debug)]
struct Actions {
    fault: Fault,
    direct: Option<DirectResponse>,
    filters: Filters,
    backends: Split<Backend>,
    timeouts: Timeouts,
    retry: RetryPolicy,
    session: Option<Session>,
}

/// Who gets a share of a rule's requests; if nobody, why.
#[derive(Debug)]
struct Backend(Result<(Destination, Filters), Box<str>>);

/// A request goes to a backend.
#[derive(Debug)]
pub struct Forward<'t> {
    /// By this rule.
    pub rule: &'t Rule,
    /// There.
    pub destination: &'t Destination,
    /// Another path with the query; none: as it is.
    pub path_and_query: Option<PathAndQuery>,
    /// How long it may take.
    pub timeouts: Timeouts,
    /// What is tried again.
    pub retry: &'t RetryPolicy,
    /// How the client comes back to the same endpoint, if it shall.
    pub session: Option<&'t Session>,
    /// Where it was before.
    pub pin: Option<Pin>,
    filters: &'t Filters,
    edits: ResponseEdits<'t>,
}

/// What is done to the headers of a response.
#[derive(Debug, Clone)]
pub struct ResponseEdits<'t> {
    backend: Option<&'t Filters>,
    rule: &'t Filters,
    grant: Option<(&'t Cors, Grant)>,
}

pub(super) fn compile(
    name: RuleName,
    wire: &HttpRule,
    limit: Option<Arc<RateLimit>>,
    mut problems: Vec<String>,
) -> Rule {
    if !wire.invalid.is_empty() {
        problems.insert(0, wire.invalid.clone());
    }
    let actions = Actions::compile(&name, wire);
    let actions = match (actions, problems.is_empty()) {
        (Ok(actions), true) => Ok(actions),
        (Ok(_), false) => Err(problems.join("; ").into()),
        (Err(why), _) => {
            problems.push(why);
            Err(problems.join("; ").into())
        }
    };
    Rule {
        text: name.to_string().into(),
        name,
        limit,
        actions,
    }
}

impl Actions {
    fn compile(name: &RuleName, wire: &HttpRule) -> Result<Self, String> {
        let filters = Filters::compile(&wire.filters).map_err(|error| error.to_string())?;
        // "/" stands for any path, and the other way round.
        let is_prefix = |path: &proto::waypoint::PathMatch| {
            matches!(path.kind, Some(Kind::Prefix(_) | Kind::Start(_)))
        };
        let mut matches = wire.matches.iter();
        let by_prefix = matches
            .all(|a_match| a_match.grpc.is_none() && a_match.path.as_ref().is_none_or(is_prefix));
        if filters.replaces_prefix() && !by_prefix {
            return Err(NO_PREFIX.into());
        }
        let backends = wire.backends.iter();
        let backends = backends.map(|wire| (wire.weight, Backend::compile(wire, by_prefix)));
        let direct = wire.direct_response.as_ref();
        Ok(Self {
            fault: Fault::compile(wire.fault.as_ref())?,
            direct: direct.map(DirectResponse::compile).transpose()?,
            filters,
            backends: Split::new(backends),
            timeouts: Timeouts::compile(wire.timeouts.as_ref())?,
            retry: RetryPolicy::compile(wire.retry.as_ref())?,
            session: match &wire.session_persistence {
                None => None,
                Some(session) => Some(Session::compile(session, name)?),
            },
        })
    }
}

const NO_PREFIX: &str = "a prefix is to be replaced, and not every match is a prefix";

impl Backend {
    fn compile(wire: &HttpBackend, by_prefix: bool) -> Self {
        let text = |error: String| error.into();
        let destination = match &wire.target {
            Some(Target::Destination(destination)) => {
                Destination::compile(destination).map_err(|error| text(error.to_string()))
            }
            Some(Target::Invalid(why)) if !why.is_empty() => Err(text(why.clone())),
            Some(Target::Invalid(_)) | None => Err(text("it names no target".into())),
        };
        let filters = match Filters::compile(&wire.filters) {
            Ok(filters) if filters.replaces_prefix() && !by_prefix => Err(text(NO_PREFIX.into())),
            Ok(filters) => Ok(filters),
            Err(error) => Err(text(error.to_string())),
        };
        Self(destination.and_then(|destination| Ok((destination, filters?))))
    }
}

impl<'t> Hit<'t> {
    /// What becomes of a request that the rule is for.
    pub fn decide(self, request: &Request<'_>, now: UnixTime, rng: &mut impl Rng) -> Answer<'t> {
        let rule = self.rule;
        let refuse = |reason| {
            Answer::Here(Here::Refuse {
                rule: Some(rule),
                reason,
            })
        };
        let actions = match &rule.actions {
            Ok(actions) => actions,
            Err(why) => return refuse(Reason::InvalidRule(why)),
        };
        if let Some(abort) = actions.fault.abort(rng) {
            return refuse(Reason::Fault(abort));
        }
        let mut edits = ResponseEdits {
            backend: None,
            rule: &actions.filters,
            grant: None,
        };
        if let Some(answer) = self.judge(&actions.filters, request, &mut edits) {
            return answer;
        }
        if let Some(redirect) = &actions.filters.redirect {
            return self.redirect(redirect, request, edits);
        }
        if let Some(response) = &actions.direct {
            return Answer::Here(Here::Direct {
                rule,
                response,
                edits,
            });
        }
        let session = actions.session.as_ref();
        let pin = session.and_then(|session| session.read(request.headers, now));
        let pinned = pin.and_then(|pin| {
            let leads_to = |backend: &&Backend| match &backend.0 {
                Ok((destination, _)) => pin.is_for(destination),
                Err(_) => false,
            };
            actions.backends.iter().find(leads_to)
        });
        let Some(backend) = pinned.or_else(|| actions.backends.draw(rng)) else {
            return refuse(Reason::NoBackend);
        };
        let (destination, filters) = match &backend.0 {
            Ok(backend) => backend,
            Err(why) => return refuse(Reason::InvalidBackend(why)),
        };
        edits.backend = Some(filters);
        if actions.filters.cors.is_none()
            && let Some(answer) = self.judge(filters, request, &mut edits)
        {
            return answer;
        }
        if let Some(redirect) = &filters.redirect {
            return self.redirect(redirect, request, edits);
        }
        let rewrite = |filters: &'t Filters| filters.rewrite.as_ref()?.path.as_ref();
        let path = rewrite(filters).or_else(|| rewrite(&actions.filters));
        let path_and_query = match path {
            None => None,
            Some(change) => {
                let changed = change.apply(request.path, request.query, self.prefix);
                let changed = changed.and_then(|path| PathAndQuery::try_from(path).ok());
                match changed {
                    None => return refuse(Reason::BadRewrite),
                    changed => changed,
                }
            }
        };
        Answer::Forward(Forward {
            rule,
            destination,
            path_and_query,
            timeouts: actions.timeouts,
            retry: &actions.retry,
            session,
            pin: pinned.and(pin),
            filters,
            edits,
        })
    }

    /// Notes what a script of another origin may read, or answers in place of a backend.
    fn judge(
        self,
        filters: &'t Filters,
        request: &Request<'_>,
        edits: &mut ResponseEdits<'t>,
    ) -> Option<Answer<'t>> {
        let rule = self.rule;
        let cors = filters.cors.as_ref()?;
        match cors.judge(request.method, request.headers) {
            Verdict::Plain => None,
            Verdict::Granted(grant) => {
                edits.grant = Some((cors, grant));
                None
            }
            Verdict::Preflight(headers) => Some(Answer::Here(Here::Preflight { rule, headers })),
            Verdict::Refused => Some(Answer::Here(Here::Refuse {
                rule: Some(rule),
                reason: Reason::Origin,
            })),
        }
    }

    fn redirect(
        self,
        redirect: &Redirect,
        request: &Request<'_>,
        edits: ResponseEdits<'t>,
    ) -> Answer<'t> {
        let rule = self.rule;
        match redirect.location(request, self.prefix) {
            Some(location) => Answer::Here(Here::Redirect {
                rule,
                status: redirect.status,
                location,
                edits,
            }),
            None => Answer::Here(Here::Refuse {
                rule: Some(rule),
                reason: Reason::NoHost,
            }),
        }
    }
}

impl<'t> Forward<'t> {
    /// Changes the request's headers, but for its host. A mirrored request is a copy of what this makes of it.
    pub fn edit_request(&self, headers: &mut HeaderMap) {
        self.edits.rule.edit_request(headers);
        self.filters.edit_request(headers);
    }

    /// The host that the backend is to see; none: that of the request.
    pub fn host(&self) -> Option<&'t HeaderValue> {
        self.filters.host().or_else(|| self.edits.rule.host())
    }

    /// Who gets a copy of this request, drawn now.
    pub fn mirrors<'a, R: Rng>(
        &'a self,
        rng: &'a mut R,
    ) -> impl Iterator<Item = &'t Destination> + use<'a, 't, R> {
        let mirrors = self.edits.rule.mirrors.iter().chain(&self.filters.mirrors);
        mirrors.filter_map(|mirror| mirror.fraction.draw(rng).then_some(&mirror.destination))
    }

    /// What is done to the response.
    pub fn response_edits(&self) -> &ResponseEdits<'t> {
        &self.edits
    }
}

impl ResponseEdits<'_> {
    /// Changes the headers: the backend's filters first, then the rule's, then those that browsers ask for.
    pub fn apply(&self, headers: &mut HeaderMap) {
        if let Some(backend) = self.backend {
            backend.edit_response(headers);
        }
        self.rule.edit_response(headers);
        if let Some((cors, grant)) = &self.grant {
            cors.grant(grant, headers);
        }
    }
}

impl Rule {
    /// How long a request waits before anything else becomes of it, drawn now.
    pub fn delay(&self, rng: &mut impl Rng) -> Option<Duration> {
        self.actions.as_ref().ok()?.fault.delay(rng)
    }

    /// What of it can't be honoured.
    pub fn problems(&self) -> impl Iterator<Item = (&RuleName, &str)> {
        let own = self.actions.as_ref().err().map(|why| &**why);
        let backends = self
            .actions
            .iter()
            .flat_map(|actions| actions.backends.iter());
        let invalid = backends.filter_map(|backend| backend.0.as_ref().err());
        own.into_iter()
            .chain(invalid.map(|why| &**why))
            .map(|why| (&self.name, why))
    }

    /// Where its requests may go.
    pub fn destinations(&self) -> impl Iterator<Item = &Destination> {
        let backends = self
            .actions
            .iter()
            .flat_map(|actions| actions.backends.iter());
        backends.filter_map(|backend| Some(&backend.0.as_ref().ok()?.0))
    }
}

impl RuleName {
    /// The route's requests are limited together, by its name.
    pub(super) fn limit(route: &HttpRoute) -> Result<Option<Arc<RateLimit>>, String> {
        let Some(limit) = &route.rate_limit else {
            return Ok(None);
        };
        let HttpRoute {
            kind,
            namespace,
            name,
            ..
        } = route;
        let text = format!("{kind} {namespace}/{name}").into();
        RateLimit::compile(text, limit).map(|limit| Some(Arc::new(limit)))
    }

    pub(super) fn new(route: &HttpRoute, place: usize, rule: &HttpRule) -> Self {
        Self {
            kind: route.kind.as_str().into(),
            namespace: route.namespace.as_str().into(),
            route: route.name.as_str().into(),
            rule: match rule.name.as_str() {
                "" => format!("#{place}").into(),
                name => name.into(),
            },
        }
    }
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            namespace,
            route,
            rule,
        } = self;
        write!(f, "{kind} {namespace}/{route} rule {rule}")
    }
}
