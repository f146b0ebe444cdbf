// SPDX-License-Identifier: Apache-2.0
//! What policies have decided → the metric of decisions, and what the access log says of them.

use ops::metrics::Metrics;

use crate::authz::{Decision, Verdict};

/// What the access log says of a decision.
#[derive(Debug, Clone, Default)]
pub struct Decided {
    /// What was decided, and by which rule.
    pub policy: Option<Box<str>>,
    /// What would have been decided if the policies that are tried out counted.
    pub dry_run: Option<Box<str>>,
    /// The rule that marks it for audit.
    pub audit: Option<Box<str>>,
}

pub(super) const FAMILY: (&str, &str) = (
    "culvert_authorization_decisions_total",
    "What policies have decided, by the policy and rule that did; of those that are tried out as well",
);

pub(super) fn count(metrics: &Metrics, decision: &Decision<'_>) -> Decided {
    one(metrics, "enforced", &decision.verdict);
    if let Some(verdict) = &decision.dry_run {
        one(metrics, "dry-run", verdict);
    }
    Decided {
        policy: Some(decision.verdict.to_string().into()),
        dry_run: decision.dry_run.map(|verdict| verdict.to_string().into()),
        audit: decision.audit.map(|by| by.to_string().into()),
    }
}

fn one(metrics: &Metrics, mode: &str, verdict: &Verdict<'_>) {
    let by = verdict.by();
    let rule = by.map(|by| by.rule.to_string()).unwrap_or_default();
    let labels = [
        ("mode", mode),
        ("policy", by.map_or("", |by| by.policy)),
        (
            "result",
            if verdict.is_denied() {
                "denied"
            } else {
                "allowed"
            },
        ),
        ("rule", &rule),
    ];
    metrics.counter(FAMILY.0, &labels).increment(1);
}
