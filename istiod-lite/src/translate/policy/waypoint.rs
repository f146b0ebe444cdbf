// SPDX-License-Identifier: Apache-2.0
//! An AuthorizationPolicy as a waypoint decides by it.
//!
//! A waypoint sees requests, so that nearly all is taken as written. What can't be read turns to the stricter side as it
//! does for ztunnel: an ALLOW rule that holds it is dropped, any other rule goes by the rest.

mod entry;
mod values;

use cluster::kinds;
use proto::waypoint as wire;

use self::entry::Entry;
use crate::facts::{Problem, annotation};
use crate::wellknown;

/// A policy for waypoints, and what of it can't be read.
pub(super) fn policy(policy: &kinds::AuthorizationPolicy) -> (wire::Policy, Vec<Problem>) {
    let spec = &policy.spec;
    let action = match &spec.action {
        // One that nobody knows allows nothing.
        Some(kinds::Action::Allow | kinds::Action::Unknown(_)) | None => wire::PolicyAction::Allow,
        Some(kinds::Action::Deny) => wire::PolicyAction::Deny,
        Some(kinds::Action::Audit) => wire::PolicyAction::Audit,
        Some(kinds::Action::Custom) => wire::PolicyAction::Custom,
    };
    let readable = !matches!(spec.action, Some(kinds::Action::Unknown(_)));
    let written = if readable { spec.rules.as_slice() } else { &[] };
    let namespace = policy.metadata.namespace.as_deref().unwrap_or_default();
    let effect = match action {
        wire::PolicyAction::Allow => "the rule allows nothing",
        wire::PolicyAction::Deny => "the rule denies whatever its other conditions match",
        wire::PolicyAction::Audit | wire::PolicyAction::Custom => {
            "the rule concerns whatever its other conditions match"
        }
    };
    let mut problems = Vec::new();
    let mut rules = Vec::new();
    for (index, rule) in written.iter().enumerate() {
        let path = format!("spec.rules[{index}]");
        let mut clauses = clauses(rule, &path, namespace);
        if action == wire::PolicyAction::Custom {
            for entry in clauses.iter_mut().flatten() {
                entry.before_tokens(&path);
            }
        }
        let entries = || clauses.iter().flatten();
        let whole = entries().all(|entry| entry.problems.is_empty());
        problems.extend(
            entries()
                .flat_map(|entry| &entry.problems)
                .map(|problem| Problem {
                    field: problem.field.clone(),
                    reason: format!("{}; {effect}", problem.reason),
                }),
        );
        if whole || action != wire::PolicyAction::Allow {
            rules.push(wire::PolicyRule {
                index: u32::try_from(index).unwrap_or(u32::MAX),
                clauses: clauses.into_iter().filter_map(clause).collect(),
            });
        }
    }
    let dry_run = annotation(&policy.metadata, wellknown::DRY_RUN);
    let provider = spec
        .provider
        .as_ref()
        .and_then(|provider| provider.get("name"));
    let message = wire::Policy {
        namespace: namespace.to_owned(),
        name: policy.metadata.name.clone().unwrap_or_default(),
        action: action.into(),
        dry_run: super::is_true(dry_run),
        rules,
        authorizer: match action {
            wire::PolicyAction::Custom => provider
                .and_then(|name| name.as_str())
                .unwrap_or_default()
                .to_owned(),
            _ => String::new(),
        },
    };
    (message, problems)
}

/// The clauses of a rule, all of which must hold: `to`, `from`, then each `when`. One entry of a clause is enough for it
/// to hold.
fn clauses(rule: &kinds::Rule, path: &str, namespace: &str) -> Vec<Vec<Entry>> {
    let mut clauses = Vec::new();
    if !rule.unknown_fields.is_empty() {
        clauses.push(vec![Entry::unknown(&rule.unknown_fields, path)]);
    }
    if !rule.to.is_empty() {
        let entries = rule.to.iter().enumerate();
        let entries = entries.map(|(i, to)| entry::operation(to, &format!("{path}.to[{i}]")));
        clauses.push(entries.collect());
    }
    if !rule.from.is_empty() {
        let entries = rule.from.iter().enumerate();
        let entries =
            entries.map(|(i, from)| entry::source(from, &format!("{path}.from[{i}]"), namespace));
        clauses.push(entries.collect());
    }
    for (i, when) in rule.when.iter().enumerate() {
        clauses.push(vec![entry::condition(
            when,
            &format!("{path}.when[{i}]"),
            namespace,
        )]);
    }
    clauses
}

/// A clause on the wire. An entry of which nothing is left might match anything, so that its clause holds.
fn clause(entries: Vec<Entry>) -> Option<wire::PolicyClause> {
    if entries.iter().any(|entry| entry.conditions.is_empty()) {
        return None;
    }
    let matches = entries.into_iter().map(|entry| wire::PolicyMatch {
        conditions: entry.conditions,
    });
    Some(wire::PolicyClause {
        matches: matches.collect(),
    })
}

#[cfg(test)]
mod tests;
