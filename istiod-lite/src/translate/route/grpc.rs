// SPDX-License-Identifier: Apache-2.0
//! A GRPCRoute, rule by rule. It has no timeouts and no retries.

use std::sync::Arc;

use cluster::{Kind, kinds};
use proto::waypoint as wire;

use super::{
    Faults, HttpRule, Route, Rules,
    filters::{self, Place, Prefix},
    http::{Draft, backends, fits},
    matching, policy, reference,
};
use crate::facts::created;

/// Reads a GRPCRoute; unlike an HTTPRoute it may have no rules, and then matches nothing.
pub(super) fn read(route: &kinds::GRPCRoute) -> Route {
    let namespace: Arc<str> = route
        .metadata
        .namespace
        .as_deref()
        .unwrap_or_default()
        .into();
    let rules = &route.spec.rules;
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
        parents: reference::parents(&route.spec.parent_refs, &namespace),
        hosts: Vec::new(),
        rules: Rules::Http(rules),
        faults: faults.0,
    }
}

fn rule(
    rule: &kinds::GRPCRouteRule,
    position: usize,
    namespace: &Arc<str>,
    faults: &mut Faults,
) -> HttpRule {
    let at = format!("spec.rules[{position}]");
    let mut own = Faults::default();
    own.unknown(&at, &rule.unknown_fields);
    let place = Place {
        namespace,
        kind: Kind::GRPCRoute,
        prefix: Prefix::None,
    };
    let message = wire::HttpRule {
        name: rule.name.clone().unwrap_or_default(),
        matches: matching::grpc(&rule.matches, &at, &mut own),
        session_persistence: policy::session(rule.session_persistence.as_ref(), &at, &mut own),
        ..wire::HttpRule::default()
    };
    let draft = Draft {
        message,
        wanted: rule.matches.len(),
        filters: filters::read(&rule.filters, &at, place, &mut own),
        backends: backends(&rule.backend_refs, &at, place, &mut own),
    };
    draft.finish(own, faults)
}
