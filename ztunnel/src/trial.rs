// SPDX-License-Identifier: Apache-2.0
//! What a policy would have done to the connections of the last minutes. Pure, but for the clock that counts minutes.
//!
//! In: the policies that are tried out, and what each pod remembers of its connections (all that policies look at here: who
//! connects or is spoken for, from which address, to which port), which are decided on twice: as now, and as if the policy were
//! enforced. Out: how many would be denied that pass now, or pass that are denied now, and whose they are.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use mesh::policy::PolicyScope;
use mesh::{Policy, PolicySet, Workload};
use serde::Serialize;

/// Kinds of connections that are told of each policy, those of which there were most.
const TOLD: usize = 100;

/// Minutes since this was first asked.
pub fn minute() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_secs() / 60
}

/// Which policies are tried out.
#[derive(Debug)]
pub enum Candidates {
    /// Those that are marked for it.
    Marked,
    /// One that is not in force; where it chooses workloads, these.
    Given {
        policy: Arc<Policy>,
        workloads: Vec<String>,
    },
}

impl Candidates {
    /// Those that concern a workload, which has these now.
    pub fn concerning(&self, workload: &Workload, now: &PolicySet) -> Vec<Arc<Policy>> {
        match self {
            Self::Marked => now.in_dry_run().to_vec(),
            Self::Given { policy, workloads } => {
                let concerns = match policy.scope {
                    PolicyScope::Global => true,
                    PolicyScope::Namespace if policy.namespace.is_empty() => true,
                    PolicyScope::Namespace => policy.namespace == workload.namespace,
                    PolicyScope::WorkloadSelector => {
                        workloads.iter().any(|uid| **uid == *workload.uid)
                    }
                };
                concerns.then(|| Arc::clone(policy)).into_iter().collect()
            }
        }
    }
}

/// What a policy does to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Change {
    None,
    WouldDeny,
    WouldAllow,
}

impl Change {
    pub fn between(now: bool, then: bool) -> Self {
        match (now, then) {
            (true, false) => Self::WouldDeny,
            (false, true) => Self::WouldAllow,
            _ => Self::None,
        }
    }
}

/// Connections that have all in common that policies look at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Traffic {
    /// Nobody where it came in plain.
    pub source: Option<String>,
    /// For whom the pod's own waypoint spoke.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller: Option<String>,
    pub source_ip: IpAddr,
    /// "namespace/name" of the pod that was reached.
    pub pod: String,
    pub port: u16,
    pub count: u32,
    pub change: Change,
    /// What would be said of it.
    pub why: String,
}

/// What comes of one policy.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Trial {
    /// Pods that it concerns.
    pods: usize,
    /// Connections of theirs that were looked at.
    connections: u64,
    would_deny: u64,
    would_allow: u64,
    /// Connections of theirs that nothing is known of any more.
    forgotten: u64,
    /// Those for which it changes something, the most frequent first.
    changes: Vec<Traffic>,
}

/// What comes of each policy, by "namespace/name".
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Trials(BTreeMap<String, Trial>);

impl Trials {
    /// That of one policy, which concerns one more pod, which has forgotten so many connections.
    pub fn of(&mut self, policy: &Policy, forgotten: u32) -> &mut Trial {
        let trial = self.0.entry(policy.key().to_string()).or_default();
        trial.pods += 1;
        trial.forgotten += u64::from(forgotten);
        trial
    }

    /// The most frequent of each.
    #[must_use]
    pub fn told(mut self) -> Self {
        for trial in self.0.values_mut() {
            trial.changes.sort_by(|a, b| {
                let order = |one: &Traffic| (one.pod.clone(), one.source.clone(), one.port);
                b.count.cmp(&a.count).then_with(|| order(a).cmp(&order(b)))
            });
            trial.changes.truncate(TOLD);
        }
        self
    }
}

impl Trial {
    /// So many connections, of which this is what would change.
    pub fn add(&mut self, change: Change, count: u32, traffic: impl FnOnce() -> Traffic) {
        let many = u64::from(count);
        self.connections += many;
        match change {
            Change::None => return,
            Change::WouldDeny => self.would_deny += many,
            Change::WouldAllow => self.would_allow += many,
        }
        self.changes.push(traffic());
    }
}

#[cfg(test)]
mod tests {
    use mesh::policy::{Action, Enforcement};

    use super::*;

    fn policy(namespace: &str, scope: PolicyScope) -> Arc<Policy> {
        Arc::new(Policy {
            name: "p".into(),
            namespace: namespace.into(),
            scope,
            action: Action::Deny,
            rules: vec![],
            enforcement: Enforcement::Enforced,
        })
    }

    #[test]
    fn a_policy_concerns_what_its_scope_says() {
        let id = "spiffe://cluster.local/ns/shop/sa/web".parse().unwrap();
        let web = Workload::new("c1//Pod/shop/web", "shop", id);
        for (namespace, scope, workloads, concerns) in [
            ("root", PolicyScope::Global, &[][..], true),
            ("shop", PolicyScope::Namespace, &[], true),
            ("", PolicyScope::Namespace, &[], true),
            ("other", PolicyScope::Namespace, &[], false),
            ("shop", PolicyScope::WorkloadSelector, &[], false),
            (
                "shop",
                PolicyScope::WorkloadSelector,
                &["c1//Pod/shop/web"],
                true,
            ),
            (
                "shop",
                PolicyScope::WorkloadSelector,
                &["c1//Pod/shop/db"],
                false,
            ),
        ] {
            let given = Candidates::Given {
                policy: policy(namespace, scope),
                workloads: workloads.iter().map(ToString::to_string).collect(),
            };
            let found = given.concerning(&web, &PolicySet::default());
            assert_eq!(
                found.len(),
                usize::from(concerns),
                "{namespace} {scope:?} {workloads:?}"
            );
        }
    }

    #[test]
    fn the_most_frequent_changes_are_told_and_all_are_counted() {
        let mut trials = Trials::default();
        let trial = trials.of(&policy("shop", PolicyScope::Global), 3);
        for count in 1..=150 {
            let change = Change::between(true, count % 2 == 0);
            trial.add(change, count, || Traffic {
                source: None,
                caller: None,
                source_ip: [10, 0, 0, 1].into(),
                pod: "shop/web".into(),
                port: 80,
                count,
                change,
                why: "denied".into(),
            });
        }
        assert_eq!(Change::between(false, true), Change::WouldAllow);
        let told = trials.told();
        let trial = &told.0["shop/p"];
        let (all, odd) = ((1..=150).sum::<u64>(), (1..=150).step_by(2).sum::<u64>());
        assert_eq!((trial.connections, trial.would_deny), (all, odd));
        assert_eq!((trial.would_allow, trial.forgotten), (0, 3));
        assert_eq!(trial.changes.len(), 75);
        assert_eq!(trial.changes[0].count, 149);
    }
}
