// SPDX-License-Identifier: Apache-2.0
//! What policies have decided → the metric of decisions, and what the access log says of them.

use metrics::Counter;
use ops::metrics::{Handles, Metrics};
use ops::workers::WorkerId;

use crate::authz::{Decision, Verdict};

/// Decisions whose counters stay at hand on each worker.
const CACHED: usize = 1024;

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

/// The counters of decisions, at hand by the words in which a decision is told: policy, rule and result stand there.
pub(super) struct Decisions {
    metrics: Metrics,
    enforced: Handles<Box<str>, Counter>,
    dry_run: Handles<Box<str>, Counter>,
}

impl Decisions {
    pub(super) fn new(metrics: Metrics, workers: usize) -> Self {
        metrics.describe(FAMILY.0, FAMILY.1);
        Self {
            metrics,
            enforced: Handles::new(workers, CACHED),
            dry_run: Handles::new(workers, CACHED),
        }
    }

    pub(super) fn count(&self, worker: WorkerId, decision: &Decision<'_>) -> Decided {
        let one = |at_hand: &Handles<Box<str>, Counter>, mode, verdict: &Verdict<'_>| {
            let words: Box<str> = verdict.to_string().into();
            let look_up = || (words.clone(), self.look_up(mode, verdict));
            at_hand.of(worker, &words, look_up).increment(1);
            words
        };
        let dry_run = decision.dry_run.as_ref();
        Decided {
            policy: Some(one(&self.enforced, "enforced", &decision.verdict)),
            dry_run: dry_run.map(|verdict| one(&self.dry_run, "dry-run", verdict)),
            audit: decision.audit.map(|by| by.to_string().into()),
        }
    }

    pub(super) fn let_go(&self) {
        self.enforced.let_go();
        self.dry_run.let_go();
    }

    fn look_up(&self, mode: &str, verdict: &Verdict<'_>) -> Counter {
        let by = verdict.by();
        let rule = by.map(|by| by.rule.to_string()).unwrap_or_default();
        let result = match verdict.is_denied() {
            true => "denied",
            false => "allowed",
        };
        let labels = [
            ("mode", mode),
            ("policy", by.map_or("", |by| by.policy)),
            ("result", result),
            ("rule", &rule),
        ];
        self.metrics.counter(FAMILY.0, &labels)
    }
}
