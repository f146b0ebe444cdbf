// SPDX-License-Identifier: Apache-2.0
//! An HTTPRoute, rule by rule.

use std::sync::Arc;

use cluster::{
    Kind,
    kinds::{self, PathMatchType},
};
use proto::waypoint as wire;

use super::{
    Backend, Faults, Filter, HttpRule, Reach, Reason, Route, Rules, Target,
    filters::{self, Place, Prefix},
    matching, policy, reference, said,
};
use crate::facts::created;

/// Rules of a route.
pub(super) const MAX_RULES: usize = 16;
/// Backends of a rule.
const MAX_BACKENDS: usize = 16;
const MAX_WEIGHT: u32 = 1_000_000;

/// Reads an HTTPRoute. Its host names say nothing for services: it is them that are addressed.
pub(super) fn read(route: &kinds::HTTPRoute) -> Route {
    let namespace: Arc<str> = route
        .metadata
        .namespace
        .as_deref()
        .unwrap_or_default()
        .into();
    let spec = &route.spec;
    let everything = [kinds::HTTPRouteRule::default()];
    let rules = if spec.rules.is_empty() {
        &everything
    } else {
        spec.rules.as_slice()
    };
    let mut faults = Faults::default();
    let matches = rules.iter().map(|rule| rule.matches.len()).sum();
    let rules = if fits(rules.len(), matches, &mut faults) {
        let read = rules.iter().enumerate();
        read.map(|(position, one)| rule(one, position, &namespace, &mut faults))
            .collect()
    } else {
        vec![HttpRule::broken(&faults.0)]
    };
    Route {
        rate_limit: None,
        created: created(&route.metadata).unwrap_or_default(),
        parents: reference::parents(&spec.parent_refs, &namespace),
        hosts: Vec::new(),
        rules: Rules::Http(rules),
        faults: faults.0,
    }
}

/// Whether a route is no larger than it may be.
pub(super) fn fits(rules: usize, matches: usize, faults: &mut Faults) -> bool {
    let rules = faults.at_most(MAX_RULES, rules, "spec.rules");
    let matches = faults.at_most(
        matching::MAX_MATCHES_OF_ROUTE,
        matches,
        "spec.rules[*].matches",
    );
    rules && matches
}

fn rule(
    rule: &kinds::HTTPRouteRule,
    position: usize,
    namespace: &Arc<str>,
    faults: &mut Faults,
) -> HttpRule {
    let at = format!("spec.rules[{position}]");
    let mut own = Faults::default();
    own.unknown(&at, &rule.unknown_fields);
    let matches = matching::http(&rule.matches, &at, &mut own);
    let place = Place {
        namespace,
        kind: Kind::HTTPRoute,
        prefix: prefix_of(&rule.matches),
    };
    let filters = filters::read(&rule.filters, &at, place, &mut own);
    let redirects = filters.iter().any(Filter::redirects);
    if redirects && !rule.backend_refs.is_empty() {
        let words = "a rule that redirects has no backends";
        own.because(Reason::IncompatibleFilters, format!("{at}.filters"), words);
    }
    let message = wire::HttpRule {
        name: rule.name.clone().unwrap_or_default(),
        matches,
        timeouts: policy::timeouts(rule.timeouts.as_ref(), &at, &mut own),
        retry: policy::retry(rule.retry.as_ref(), &at, &mut own),
        session_persistence: policy::session(rule.session_persistence.as_ref(), &at, &mut own),
        ..wire::HttpRule::default()
    };
    let draft = Draft {
        message,
        wanted: rule.matches.len(),
        filters,
        backends: backends(&rule.backend_refs, &at, place, &mut own),
    };
    draft.finish(own, faults)
}

/// A rule whose faults are not counted yet.
pub(super) struct Draft {
    pub(super) message: wire::HttpRule,
    /// How many matches were written.
    pub(super) wanted: usize,
    pub(super) filters: Vec<Filter>,
    pub(super) backends: Vec<Backend>,
}

impl Draft {
    /// Says in the rule itself why it can't be honoured, if so.
    pub(super) fn finish(self, own: Faults, faults: &mut Faults) -> HttpRule {
        let Self {
            mut message,
            wanted,
            filters,
            backends,
        } = self;
        let broken = !own.0.is_empty();
        if broken {
            message.invalid = said(&own.0);
        } else if backends.is_empty()
            && message.direct_response.is_none()
            && !filters.iter().any(Filter::redirects)
        {
            // No fault of the route, and yet there is nowhere to go.
            "names no backend of any weight".clone_into(&mut message.invalid);
        }
        faults.0.extend(own.0);
        HttpRule {
            // None at all would be everything.
            reach: if message.matches.is_empty() && wanted > 0 {
                Reach::Nothing
            } else {
                Reach::Matched
            },
            message,
            filters,
            backends,
            broken,
        }
    }
}

/// Where the requests of a rule at `at` go; what has no weight is not even looked at.
pub(super) fn backends(
    references: &[kinds::RouteBackendReference],
    at: &str,
    place: Place<'_>,
    faults: &mut Faults,
) -> Vec<Backend> {
    faults.at_most(MAX_BACKENDS, references.len(), &format!("{at}.backendRefs"));
    let mut backends = Vec::new();
    for (position, one) in references.iter().take(MAX_BACKENDS).enumerate() {
        let field = format!("{at}.backendRefs[{position}]");
        let weight = one.weight.unwrap_or(1);
        let Some(weight) = u32::try_from(weight).ok().filter(|w| *w <= MAX_WEIGHT) else {
            let words = format!("{weight} is no weight from 0 to {MAX_WEIGHT}");
            faults.add(format!("{field}.weight"), words);
            continue;
        };
        if weight == 0 {
            continue;
        }
        faults.unknown(&field, &one.unknown_fields);
        let filters = filters::read(&one.filters, &field, place, faults);
        backends.push(Backend {
            weight,
            to: Target {
                reference: reference::read(one, place.namespace),
                field,
            },
            filters,
        });
    }
    backends
}

/// The part of a path that a prefix can be replaced of: there is one if there is one match, by prefix.
fn prefix_of(matches: &[kinds::HTTPRouteMatch]) -> Prefix {
    match matches {
        [] => Prefix::One,
        [one] => match one.path.as_ref().map(|path| &path.match_type) {
            None | Some(None | Some(PathMatchType::PathPrefix)) => Prefix::One,
            Some(Some(_)) => Prefix::None,
        },
        _ => Prefix::None,
    }
}
