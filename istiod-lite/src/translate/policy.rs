// SPDX-License-Identifier: Apache-2.0
//! An AuthorizationPolicy as ztunnel can enforce it, or where it has targetRefs, as waypoints do ([`waypoint`]).
//!
//! ztunnel sees connections, not requests, and a value may be unreadable. What
//! cannot be evaluated is never taken for "does not matter":
//!
//! | the part that can't be evaluated | in an ALLOW rule | in a DENY rule |
//! |---|---|---|
//! | an HTTP attribute, an unknown field or `when` key | the rule is dropped | holds: the rest of the rule decides |
//! | an unreadable value of a positive list (`ipBlocks`) | the rule is dropped | the whole list holds |
//! | an unreadable value of a negative list (`notIpBlocks`) | the rule is dropped | that value excludes nothing |
//!
//! So a DENY rule of HTTP attributes alone denies every connection in its scope,
//! as it does at a sidecar for traffic that isn't HTTP; the condition on the policy
//! says so. An action that can't be read counts as an ALLOW without rules.

mod matching;
mod targets;
mod values;
mod waypoint;

use cluster::kinds;
use proto::{security as wire, waypoint as wp};

use self::matching::Entry;
pub(in crate::translate) use self::targets::targets;
pub use self::targets::{Target, TargetKey};
use crate::facts::{
    Problem, Read, annotation,
    policy::{Reach, reach},
};
use crate::wellknown;

/// A policy, as far as ztunnel is concerned.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Which workloads it is for.
    pub reach: Reach,
    /// What is sent; nothing for a policy that ztunnel does not enforce.
    pub authorization: Option<wire::Authorization>,
    /// What its author is told.
    pub acceptance: Acceptance,
    /// What it is for, where that is not for ztunnel to enforce.
    pub targets: Vec<Target>,
    /// What waypoints are told.
    pub for_waypoints: Option<wp::Policy>,
    /// What waypoints enforce more strictly than it is written, and why.
    pub stricter: Option<String>,
}

/// How far ztunnel enforces a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acceptance {
    /// It is for waypoints: nothing is said about ztunnel.
    NotForZtunnel,
    /// As written.
    Accepted,
    /// More strictly than written, for these reasons.
    Stricter(String),
    /// Not at all, for this reason.
    Refused(String),
}

impl Policy {
    /// Keeps ztunnels from hearing of it where it is in dry run.
    pub fn refuse_dry_run(&mut self) {
        if self.authorization.take_if(|sent| sent.dry_run).is_some() {
            let reason = "ztunnels are not told of policies in dry run here";
            self.acceptance = Acceptance::Refused(reason.to_owned());
        }
    }
}

/// Translates a policy.
pub fn translate(policy: &kinds::AuthorizationPolicy, root_namespace: &str) -> Read<Policy> {
    let spec = &policy.spec;
    let mut problems = structure_problems(spec);
    let targeted = spec.target_ref.is_some() || !spec.target_refs.is_empty();
    if targeted && spec.selector.is_none() {
        let namespace = policy.metadata.namespace.as_deref().unwrap_or_default();
        let references = (spec.target_ref.as_ref(), spec.target_refs.as_slice());
        let targets = targets(references, namespace, root_namespace, &mut problems);
        let (message, unread) = waypoint::policy(policy);
        let stricter = (!unread.is_empty()).then(|| {
            let fields: Vec<&str> = unread.iter().map(|one| one.field.as_str()).collect();
            let effect = consequence(match message.action() {
                wp::PolicyAction::Allow => wire::Action::Allow,
                _ => wire::Action::Deny,
            });
            format!(
                "what can't be read ({}) makes it stricter: {effect}",
                fields.join(", ")
            )
        });
        problems.extend(unread);
        let facts = Policy {
            reach: Reach::All,
            authorization: None,
            acceptance: Acceptance::NotForZtunnel,
            targets,
            for_waypoints: Some(message),
            stricter,
        };
        return Read { facts, problems };
    }
    let reach = reach(spec.selector.as_ref(), &mut problems);
    let refusal = refusal(policy);
    if let Some(reason) = refusal {
        let facts = Policy {
            reach,
            authorization: None,
            acceptance: Acceptance::Refused(reason),
            targets: Vec::new(),
            for_waypoints: None,
            stricter: None,
        };
        return Read { facts, problems };
    }
    let action = match &spec.action {
        Some(kinds::Action::Deny) => wire::Action::Deny,
        _ => wire::Action::Allow,
    };
    let readable = !matches!(spec.action, Some(kinds::Action::Unknown(_)));
    let namespace = policy.metadata.namespace.as_deref().unwrap_or_default();
    let rules = if readable { spec.rules.as_slice() } else { &[] };
    let compiled = compile(rules, action, namespace);
    let authorization = wire::Authorization {
        name: policy.metadata.name.clone().unwrap_or_default(),
        namespace: namespace.to_owned(),
        scope: match &reach {
            Reach::Selected(_) => wire::Scope::WorkloadSelector,
            Reach::All if namespace == root_namespace => wire::Scope::Global,
            Reach::All => wire::Scope::Namespace,
        }
        .into(),
        action: action.into(),
        rules: compiled.rules,
        dry_run: is_true(annotation(&policy.metadata, wellknown::DRY_RUN)),
        ..wire::Authorization::default()
    };
    let acceptance = if readable {
        acceptance(action, &compiled.attributes, !compiled.problems.is_empty())
    } else {
        Acceptance::Stricter("its action is not known: the policy allows nothing".to_owned())
    };
    problems.extend(compiled.problems);
    Read {
        facts: Policy {
            reach,
            authorization: Some(authorization),
            acceptance,
            targets: Vec::new(),
            for_waypoints: None,
            stricter: None,
        },
        problems,
    }
}

/// Why ztunnel does not enforce a policy at all.
fn refusal(policy: &kinds::AuthorizationPolicy) -> Option<String> {
    match &policy.spec.action {
        Some(action @ (kinds::Action::Audit | kinds::Action::Custom)) => {
            Some(format!("ztunnel does not support the {action} action"))
        }
        Some(kinds::Action::Allow | kinds::Action::Deny | kinds::Action::Unknown(_)) | None => None,
    }
}

fn is_true(text: Option<&str>) -> bool {
    matches!(text, Some("true" | "True" | "TRUE" | "t" | "T" | "1"))
}

/// What is wrong with a policy as a whole.
fn structure_problems(spec: &kinds::AuthorizationPolicySpec) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut report = |field: String, reason: &str| problems.push(Problem::new(field, reason));
    for field in spec.unknown_fields.keys() {
        report(format!("spec.{field}"), "is not known; it is ignored");
    }
    let targets = [
        spec.selector.is_some(),
        spec.target_ref.is_some(),
        !spec.target_refs.is_empty(),
    ];
    if targets.iter().filter(|set| **set).count() > 1 {
        report(
            "spec".into(),
            "only one of selector, targetRef and targetRefs may be set; ztunnel goes by the selector",
        );
    }
    match &spec.action {
        Some(kinds::Action::Unknown(text)) => report(
            "spec.action".into(),
            &format!("{text:?} is none of ALLOW, DENY, AUDIT, CUSTOM; the policy allows nothing"),
        ),
        Some(kinds::Action::Deny) if spec.rules.is_empty() => {
            report(
                "spec.rules".into(),
                "is empty: a DENY policy without rules has no effect",
            );
        }
        Some(kinds::Action::Custom) if spec.provider.is_none() => {
            report("spec.provider".into(), "is needed by the CUSTOM action");
        }
        _ => {}
    }
    if spec.provider.is_some() && spec.action != Some(kinds::Action::Custom) {
        report(
            "spec.provider".into(),
            "is for the CUSTOM action only; it is ignored",
        );
    }
    problems
}

fn acceptance(action: wire::Action, attributes: &[String], unreadable: bool) -> Acceptance {
    let effect = match action {
        wire::Action::Allow => "rules that use them allow nothing",
        wire::Action::Deny => "rules that use them deny whatever their other conditions match",
    };
    let mut reasons = Vec::new();
    if !attributes.is_empty() {
        reasons.push(format!(
            "some attributes are beyond what ztunnel sees ({}): {effect}",
            attributes.join(", ")
        ));
    }
    if unreadable {
        reasons.push(format!("some values can't be read: {effect}"));
    }
    if reasons.is_empty() {
        Acceptance::Accepted
    } else {
        Acceptance::Stricter(reasons.join("; "))
    }
}

fn consequence(action: wire::Action) -> &'static str {
    match action {
        wire::Action::Allow => "the rule allows nothing",
        wire::Action::Deny => "the rule denies whatever its other conditions match",
    }
}

struct Compiled {
    rules: Vec<wire::Rule>,
    attributes: Vec<String>,
    problems: Vec<Problem>,
}

fn compile(rules: &[kinds::Rule], action: wire::Action, namespace: &str) -> Compiled {
    let mut compiled = Compiled {
        rules: Vec::new(),
        attributes: Vec::new(),
        problems: Vec::new(),
    };
    for (position, rule) in rules.iter().enumerate() {
        let clauses = clauses(rule, &format!("spec.rules[{position}]"), namespace);
        let entries = || clauses.iter().flatten();
        let whole = entries().all(|entry| entry.is_whole());
        for entry in entries() {
            for attribute in &entry.attributes {
                if !compiled.attributes.contains(attribute) {
                    compiled.attributes.push(attribute.clone());
                }
            }
            compiled
                .problems
                .extend(entry.problems.iter().map(|problem| Problem {
                    field: problem.field.clone(),
                    reason: format!("{}; {}", problem.reason, consequence(action)),
                }));
        }
        if whole || action == wire::Action::Deny {
            let clauses = clauses
                .into_iter()
                .filter_map(|entries| clause(entries, action));
            compiled.rules.push(wire::Rule {
                clauses: clauses.collect(),
            });
        }
    }
    compiled
}

/// The clauses of a rule, all of which must hold: `to`, `from`, then each `when`.
/// One entry of a clause is enough for it to hold.
fn clauses(rule: &kinds::Rule, path: &str, namespace: &str) -> Vec<Vec<Entry>> {
    let mut clauses = Vec::new();
    if !rule.unknown_fields.is_empty() {
        clauses.push(vec![Entry::unknown(&rule.unknown_fields, path)]);
    }
    if !rule.to.is_empty() {
        let entries = rule.to.iter().enumerate();
        clauses.push(
            entries
                .map(|(i, to)| matching::operation(to, &format!("{path}.to[{i}]")))
                .collect(),
        );
    }
    if !rule.from.is_empty() {
        let entries = rule.from.iter().enumerate();
        clauses.push(
            entries
                .map(|(i, from)| matching::source(from, &format!("{path}.from[{i}]"), namespace))
                .collect(),
        );
    }
    for (i, when) in rule.when.iter().enumerate() {
        clauses.push(vec![matching::condition(
            when,
            &format!("{path}.when[{i}]"),
        )]);
    }
    clauses
}

/// A clause on the wire. In a DENY rule, an entry of which nothing is left might
/// match anything, so that its clause holds and need not be sent; an empty match
/// would never hold.
fn clause(entries: Vec<Entry>, action: wire::Action) -> Option<wire::Clause> {
    let nothing_left = |entry: &Entry| entry.conditions == wire::Match::default();
    if action == wire::Action::Deny && entries.iter().any(nothing_left) {
        return None;
    }
    let matches = entries.into_iter().map(|entry| entry.conditions).collect();
    Some(wire::Clause { matches })
}

#[cfg(test)]
mod lowering;
#[cfg(test)]
mod tests;
