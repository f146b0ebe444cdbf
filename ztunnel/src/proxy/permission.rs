// SPDX-License-Identifier: Apache-2.0
//! Whether a connection may reach this pod: asked when it opens, and again whenever the answer may have changed.

use std::sync::Arc;
use std::time::Duration;

use mesh::{Decision, DenyReason, Workload};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info};

use super::PodProxy;
use crate::config::DecisionLog;
use crate::connections::{InboundFacts, Verdict};
use crate::failure::Failure;
use crate::route;
use crate::trial::{self, Candidates, Change, Traffic, Trials};

/// How long a connection waits for a policy that its destination names; then it is denied.
const POLICY_PATIENCE: Duration = Duration::from_secs(5);

const HAS_LEFT: &str = "allowed: the pod has left the mesh";

impl PodProxy {
    /// Waits a while for policies that the workload names and that have not arrived, then denies. Where the pod leaves
    /// the mesh, plaintext that is denied waits for the control plane to say so: peers may have heard it before us.
    pub async fn authorize(&self, facts: &InboundFacts) -> Result<Arc<str>, Failure> {
        let mut changes = self.shared.mesh.authorization_changes();
        let deadline = Instant::now() + POLICY_PATIENCE;
        loop {
            changes.borrow_and_update();
            if self.is_free(facts) {
                return Ok(HAS_LEFT.into());
            }
            let (decision, tried_out) = self.decide(facts);
            let may_change = match &decision {
                Decision::Deny {
                    reason: DenyReason::Missing { .. },
                } => true,
                Decision::Deny { .. } => self.is_leaving() && facts.identity.is_none(),
                Decision::Allow { .. } => false,
            };
            if may_change && Instant::now() < deadline {
                tokio::select! {
                    _ = changes.changed() => {}
                    () = sleep_until(deadline) => {}
                }
                continue;
            }
            self.log_decision(facts, &decision);
            // Once for the connection, however often it was looked at.
            for said in &tried_out {
                info!(src = %facts.source_ip, dst = %facts.destination, "{said}");
                count_dry_run(said);
            }
            self.remember(facts);
            return match decision {
                Decision::Allow { .. } => Ok(words(&decision)),
                Decision::Deny { .. } => Err(Failure::Denied(words(&decision))),
            };
        }
    }

    /// Plaintext of a pod that has left the mesh is nobody's to decide on any more: it just came by the rules that are
    /// about to go.
    fn is_free(&self, facts: &InboundFacts) -> bool {
        facts.identity.is_none() && self.is_leaving() && self.is_plain()
    }

    /// What policies say, and what those say that are tried out.
    fn decide(&self, facts: &InboundFacts) -> (Decision, Vec<mesh::DryRun>) {
        let workload = match self.workload() {
            Ok(workload) => workload,
            // Known a moment ago, removed or replaced since: what it allowed is not known any more.
            Err(unbound) => {
                let policy = format!("(all policies of {}: {unbound})", self.info).into();
                let reason = DenyReason::Missing { policy };
                return (Decision::Deny { reason }, Vec::new());
            }
        };
        let policies = self.shared.mesh.read().policies_for(&workload);
        let connection = self.judged(facts, &workload);
        let tried_out = policies.dry_run(&connection);
        (mesh::authorize(&policies, &connection), tried_out)
    }

    fn remember(&self, facts: &InboundFacts) {
        let mut recent = self.recent.lock();
        recent.note(
            trial::minute(),
            facts,
            |known| known == facts,
            || facts.clone(),
        );
    }

    /// What would come of the connections of the last minutes if each of these policies, as far as it concerns this pod, were
    /// enforced. Nothing where the pod is not known now.
    pub fn try_out(&self, candidates: &Candidates, found: &mut Trials) {
        let Ok(workload) = self.workload() else {
            return;
        };
        let policies = self.shared.mesh.read().policies_for(&workload);
        let candidates = candidates.concerning(&workload, &policies);
        let minute = trial::minute();
        // Not judged under the lock: connections that come meanwhile wait for it.
        let (recent, forgotten) = {
            let recent = self.recent.lock();
            let lately = recent.lately(minute);
            let lately: Vec<_> = lately
                .map(|(facts, count)| (facts.clone(), count))
                .collect();
            (lately, recent.forgotten(minute))
        };
        for policy in &candidates {
            let tried = policies.trying(policy);
            let trial = found.of(policy, forgotten);
            for (facts, count) in &recent {
                let (connection, count) = (self.judged(facts, &workload), *count);
                let now = mesh::authorize(&policies, &connection);
                let then = mesh::authorize(&tried, &connection);
                let change = Change::between(now.is_allowed(), then.is_allowed());
                trial.add(change, count, || Traffic {
                    source: connection.identity.map(ToString::to_string),
                    caller: connection.caller.map(ToString::to_string),
                    source_ip: facts.source_ip,
                    pod: self.info.to_string(),
                    port: facts.destination.port(),
                    count,
                    change,
                    why: words(&then).to_string(),
                });
            }
        }
    }

    /// A connection as policies see it, by what is known now.
    fn judged<'f>(&self, facts: &'f InboundFacts, workload: &Workload) -> mesh::Connection<'f> {
        facts.connection(|peer| {
            let network = &self.shared.settings.network;
            let store = self.shared.mesh.read();
            route::vouches(&store, workload, network, (peer, facts.source_ip))
        })
    }

    fn log_decision(&self, facts: &InboundFacts, decision: &Decision) {
        let identity = facts.identity.as_ref().map(spiffe::SpiffeId::as_str);
        let claimed = facts.claimed.as_ref().map(spiffe::SpiffeId::as_str);
        let (src, dst, words) = (facts.source_ip, facts.destination, words(decision));
        match self.shared.settings.decisions {
            DecisionLog::Info => {
                info!(%src, %dst, identity, claimed, decision = &*words, "policy decision")
            }
            DecisionLog::Debug => {
                debug!(%src, %dst, identity, claimed, decision = &*words, "policy decision")
            }
        }
    }

    /// Decides again on everything that is open. Returns when to do so next without any further change.
    pub(super) fn decide_again(&self) -> Option<Instant> {
        if self.connections.count() == 0 {
            *self.policy_missing_since.lock() = None;
            return None;
        }
        // A workload that the control plane withdrew for a moment keeps what it has; new connections are refused.
        let workload = self.workload().ok()?;
        let policies = self.shared.mesh.read().policies_for(&workload);
        let patient_until = {
            let mut since = self.policy_missing_since.lock();
            if policies.missing.is_empty() {
                *since = None;
            } else {
                since.get_or_insert_with(Instant::now);
            }
            since.map(|since| since + POLICY_PATIENCE)
        };
        let now = Instant::now();
        let free = self.is_leaving() && self.is_plain();
        let stopped = self.connections.decide_again(|facts| {
            if free && facts.identity.is_none() {
                return Verdict::Keep(HAS_LEFT.into());
            }
            let decision = mesh::authorize(&policies, &self.judged(facts, &workload));
            let waiting = patient_until.is_some_and(|until| now < until);
            match &decision {
                Decision::Deny {
                    reason: DenyReason::Missing { .. },
                } if waiting => Verdict::Keep(words(&decision)),
                Decision::Deny { .. } => Verdict::Stop(words(&decision)),
                Decision::Allow { .. } => Verdict::Keep(words(&decision)),
            }
        });
        if stopped > 0 {
            info!(pod = %self.info, stopped, "connections ended by a change of policy");
        }
        patient_until.filter(|until| now < *until)
    }
}

fn count_dry_run(said: &mesh::DryRun) {
    let (by, result) = match said {
        mesh::DryRun::WouldDeny(rule) => (Some(rule), "denied"),
        mesh::DryRun::WouldAllow(rule) => (Some(rule), "allowed"),
        mesh::DryRun::WouldNotAllow => (None, "denied"),
    };
    let policy = by.map(|by| by.policy.to_string()).unwrap_or_default();
    let rule = by.map(|by| by.rule.to_string()).unwrap_or_default();
    metrics::counter!(
        "culvert_authorization_decisions_total",
        "mode" => "dry-run", "policy" => policy, "result" => result, "rule" => rule,
    )
    .increment(1);
}

fn words(decision: &Decision) -> Arc<str> {
    match decision {
        Decision::Allow { rule: None } => "allowed: no ALLOW policy applies".into(),
        Decision::Allow { rule: Some(rule) } => format!("allowed by policy {rule}").into(),
        Decision::Deny { reason } => reason.to_string().into(),
    }
}
