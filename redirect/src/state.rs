// SPDX-License-Identifier: Apache-2.0
//! What should be, what is, and the next step from one to the other. Pure.
//!
//! In: the cluster's pods and namespaces, sandboxes that the runtime announced, results of steps, ztunnel's answers,
//! the time. Out: the next [`Step`], the pods ztunnel should serve, the addresses the node should know. Nothing is
//! remembered as "to do": a step is due while what should be differs from what is, so no lost event matters for long.
//!
//! ```text
//!  pod in the cluster + sandbox ──► Capture (rules) ──► wanted by ztunnel ──► its consent ──► annotation `enabled`
//!                                                                   refusal or no answer yet ──► `pending`
//!  label gone ──► annotation removed, no longer wanted ──► ztunnel has let go ──► Release (rules)
//!  pod gone   ──► Forget
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use capture::NetnsId;

use crate::enroll::{Candidate, Enrolment, Labels, Network, Reason, Settings, enrolment};
use crate::memory::Sandbox;
use crate::nftables::Members;
use crate::plan::{Dns, Families, PodOptions};
use crate::zds_server::Answers;

/// A pod of this node, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub service_account: String,
    pub labels: Labels,
    pub annotations: Labels,
    pub network: Network,
    pub life: Life,
    pub ips: Vec<IpAddr>,
    /// What its annotation says.
    pub redirection: Option<Redirection>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    Running,
    /// Succeeded or failed: its containers are gone for good.
    Ended,
}

/// The values of the annotation `ambient.istio.io/redirection`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redirection {
    Enabled,
    /// The rules are in place, ztunnel has not consented.
    Pending,
}

pub const REDIRECTION_ANNOTATION: &str = "ambient.istio.io/redirection";

impl Redirection {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Enabled => "enabled",
            Self::Pending => "pending",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Enabled, Self::Pending]
            .into_iter()
            .find(|value| value.as_str() == text)
    }
}

/// How a pod's traffic should be treated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    Captured(PodOptions),
    Released(Reason),
    Ended,
    /// The cluster doesn't know the pod.
    Gone,
}

/// Something to do for one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Capture {
        sandbox: Arc<Sandbox>,
        options: PodOptions,
    },
    Release {
        sandbox: Arc<Sandbox>,
    },
    Annotate {
        uid: String,
        namespace: String,
        name: String,
        value: Option<Redirection>,
    },
    Forget {
        sandbox: Arc<Sandbox>,
    },
}

/// Were rules already there when we came? After a restart of the agent ztunnel has served such a pod all along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Continuity {
    Found,
    Fresh,
}

/// How long the rules of a pod that leaves the mesh outlive ztunnel's silence. ztunnel ends what is open while the rules
/// still hold: without them its resets no longer reach the application, whose next bytes would go out in the clear.
const RELEASE_PATIENCE: Duration = Duration::from_secs(5);

/// Options of the node.
#[derive(Debug, Clone)]
pub struct Options {
    pub enrolment: Settings,
    pub families: Families,
    pub dns: Dns,
}

#[derive(Debug)]
pub struct State {
    options: Options,
    pods: BTreeMap<String, Pod>,
    namespaces: BTreeMap<String, Labels>,
    sandboxes: BTreeMap<String, Arc<Sandbox>>,
    rules: BTreeMap<String, Rules>,
    released: BTreeMap<String, NetnsId>,
    /// Since when pods are on their way out of the mesh.
    leaving: BTreeMap<String, Instant>,
    annotated: BTreeMap<String, Option<Redirection>>,
    failures: BTreeMap<String, Failure>,
    /// Pods that the cluster still has, but whose sandbox the runtime has taken down.
    torn_down: BTreeSet<String>,
    answers: Answers,
}

#[derive(Debug)]
struct Rules {
    netns: NetnsId,
    options: PodOptions,
    continuity: Continuity,
}

#[derive(Debug)]
struct Failure {
    times: u32,
    retry_at: Instant,
}

impl State {
    pub fn new(options: Options, sandboxes: BTreeMap<String, Sandbox>) -> Self {
        Self {
            options,
            pods: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            sandboxes: sandboxes
                .into_iter()
                .map(|(uid, sandbox)| (uid, Arc::new(sandbox)))
                .collect(),
            rules: BTreeMap::new(),
            released: BTreeMap::new(),
            leaving: BTreeMap::new(),
            annotated: BTreeMap::new(),
            failures: BTreeMap::new(),
            torn_down: BTreeSet::new(),
            answers: Answers::new(),
        }
    }

    // What the world says.

    /// A pod of this node exists and looks like this. One name belongs to one pod at a time.
    pub fn pod_applied(&mut self, pod: Pod) {
        self.pod_deleted(&pod.namespace, &pod.name, Some(&pod.uid));
        if self
            .pods
            .get(&pod.uid)
            .is_none_or(|known| known.redirection != pod.redirection)
        {
            self.annotated.insert(pod.uid.clone(), pod.redirection);
        }
        self.pods.insert(pod.uid.clone(), pod);
    }

    /// The pod of this name is gone, unless its UID is `except`.
    pub fn pod_deleted(&mut self, namespace: &str, name: &str, except: Option<&str>) {
        self.pods.retain(|uid, pod| {
            pod.namespace != namespace || pod.name != name || except == Some(uid.as_str())
        });
        let pods = &self.pods;
        self.annotated.retain(|uid, _| pods.contains_key(uid));
        self.torn_down.retain(|uid| pods.contains_key(uid));
        let sandboxes = &self.sandboxes;
        self.failures
            .retain(|uid, _| pods.contains_key(uid) || sandboxes.contains_key(uid));
    }

    pub fn namespace_applied(&mut self, name: &str, labels: Labels) {
        self.namespaces.insert(name.to_owned(), labels);
    }

    pub fn namespace_deleted(&mut self, name: &str) {
        self.namespaces.remove(name);
    }

    /// The runtime made a sandbox for a pod. Whatever held for an earlier one of this pod holds no more.
    pub fn sandbox_arrived(&mut self, sandbox: Sandbox) {
        let uid = sandbox.uid.clone();
        if self
            .sandboxes
            .get(&uid)
            .is_none_or(|known| known.netns_id() != sandbox.netns_id())
        {
            self.rules.remove(&uid);
        }
        self.failures.remove(&uid);
        self.released.remove(&uid);
        self.torn_down.remove(&uid);
        self.sandboxes.insert(uid, Arc::new(sandbox));
    }

    /// The runtime took the pod's sandbox down: nobody need serve the pod until it has another one.
    pub fn sandbox_torn_down(&mut self, uid: &str) {
        self.sandbox_gone(uid);
        if self.pods.contains_key(uid) {
            self.torn_down.insert(uid.to_owned());
        }
    }

    /// The sandbox is not known any more, which says nothing of whether it exists.
    pub fn sandbox_gone(&mut self, uid: &str) {
        self.sandboxes.remove(uid);
        self.rules.remove(uid);
        self.released.remove(uid);
        self.failures.remove(uid);
    }

    pub fn answers_arrived(&mut self, answers: Answers) {
        self.answers = answers;
    }

    // What became of steps.

    pub fn captured(&mut self, sandbox: &Sandbox, options: PodOptions, continuity: Continuity) {
        self.failures.remove(&sandbox.uid);
        self.released.remove(&sandbox.uid);
        // Rules that are changed in place don't make a pod new.
        let continuity = match self.rules.get(&sandbox.uid) {
            Some(rules) if rules.netns == sandbox.netns_id() => rules.continuity,
            _ => continuity,
        };
        self.rules.insert(
            sandbox.uid.clone(),
            Rules {
                netns: sandbox.netns_id(),
                options,
                continuity,
            },
        );
    }

    pub fn released(&mut self, sandbox: &Sandbox) {
        self.failures.remove(&sandbox.uid);
        self.rules.remove(&sandbox.uid);
        self.released
            .insert(sandbox.uid.clone(), sandbox.netns_id());
    }

    pub fn annotated(&mut self, uid: &str, value: Option<Redirection>) {
        self.failures.remove(uid);
        self.annotated.insert(uid.to_owned(), value);
    }

    /// A step for this pod failed; it is due again later.
    pub fn failed(&mut self, uid: &str, now: Instant) {
        let times = self
            .failures
            .get(uid)
            .map_or(1, |failure| failure.times + 1);
        // 50 ms, doubled each time, up to about 5 s.
        let delay =
            Duration::from_millis(50 << times.saturating_sub(1).min(7)).min(Duration::from_secs(5));
        self.failures.insert(
            uid.to_owned(),
            Failure {
                times,
                retry_at: now + delay,
            },
        );
    }

    // What follows.

    pub fn pod(&self, namespace: &str, name: &str) -> Option<&Pod> {
        self.pods
            .values()
            .find(|pod| pod.namespace == namespace && pod.name == name)
    }

    pub fn sandbox(&self, uid: &str) -> Option<&Arc<Sandbox>> {
        self.sandboxes.get(uid)
    }

    pub fn sandboxes(&self) -> impl Iterator<Item = &Arc<Sandbox>> {
        self.sandboxes.values()
    }

    /// Is there a pod of this name on this node?
    pub fn knows(&self, namespace: &str, name: &str) -> bool {
        self.pod(namespace, name).is_some()
    }

    pub fn wish(&self, uid: &str) -> Wish {
        let Some(pod) = self.pods.get(uid) else {
            return Wish::Gone;
        };
        if pod.life == Life::Ended {
            return Wish::Ended;
        }
        let nothing = Labels::new();
        let candidate = Candidate {
            namespace: &pod.namespace,
            namespace_labels: self.namespaces.get(&pod.namespace).unwrap_or(&nothing),
            labels: &pod.labels,
            annotations: &pod.annotations,
            network: pod.network,
        };
        match enrolment(candidate, &self.options.enrolment) {
            Enrolment::Enrolled => Wish::Captured(PodOptions::for_pod(
                &pod.annotations,
                self.options.families,
                self.options.dns,
            )),
            Enrolment::Outside(reason) => Wish::Released(reason),
        }
    }

    /// The options under which a pod's rules hold now.
    pub fn rules(&self, uid: &str) -> Option<&PodOptions> {
        self.rules.get(uid).map(|rules| &rules.options)
    }

    /// The next thing to do, if any is due.
    pub fn next(&mut self, now: Instant) -> Option<Step> {
        self.note_who_leaves(now);
        let due = |uid: &str| {
            self.failures
                .get(uid)
                .is_none_or(|failure| failure.retry_at <= now)
        };
        let rules = self
            .sandboxes
            .values()
            .filter(|sandbox| due(&sandbox.uid))
            .find_map(|sandbox| self.rule_step(sandbox, now));
        rules.or_else(|| {
            self.pods
                .values()
                .filter(|pod| due(&pod.uid))
                .find_map(|pod| self.annotation_step(pod))
        })
    }

    /// When [`Self::next`] should be asked again although nothing has happened, given that it was asked at `asked`.
    pub fn next_retry(&self, asked: Instant) -> Option<Instant> {
        let retries = self.failures.values().map(|failure| failure.retry_at);
        let releases = self.leaving.values().map(|since| *since + RELEASE_PATIENCE);
        retries.chain(releases).filter(|at| *at > asked).min()
    }

    fn note_who_leaves(&mut self, now: Instant) {
        let leaving: BTreeSet<_> = self
            .sandboxes
            .keys()
            .filter(|uid| matches!(self.wish(uid), Wish::Released(_)))
            .cloned()
            .collect();
        self.leaving.retain(|uid, _| leaving.contains(uid));
        for uid in leaving {
            self.leaving.entry(uid).or_insert(now);
        }
    }

    /// Whether ztunnel serves the pod in this sandbox, as far as it has said.
    fn is_served(&self, sandbox: &Sandbox) -> bool {
        matches!(self.consent(&sandbox.uid, sandbox.netns_id()), Some(Ok(())))
    }

    fn may_lose_rules(&self, sandbox: &Sandbox, now: Instant) -> bool {
        let waited_enough = |since: &Instant| now >= *since + RELEASE_PATIENCE;
        !self.is_served(sandbox) || self.leaving.get(&sandbox.uid).is_some_and(waited_enough)
    }

    fn rule_step(&self, sandbox: &Arc<Sandbox>, now: Instant) -> Option<Step> {
        let rules = self.rules.get(&sandbox.uid);
        match self.wish(&sandbox.uid) {
            Wish::Captured(options) if rules.is_none_or(|rules| rules.options != options) => {
                Some(Step::Capture {
                    sandbox: sandbox.clone(),
                    options,
                })
            }
            Wish::Captured(_) | Wish::Ended => None,
            Wish::Released(_) => {
                // After a restart it is unknown whether there are rules; the annotation tells.
                let annotated = self
                    .annotated
                    .get(&sandbox.uid)
                    .copied()
                    .flatten()
                    .is_some();
                let done = self.released.get(&sandbox.uid) == Some(&sandbox.netns_id());
                let due = rules.is_some() || annotated && !done;
                (due && self.may_lose_rules(sandbox, now)).then(|| Step::Release {
                    sandbox: sandbox.clone(),
                })
            }
            Wish::Gone => Some(Step::Forget {
                sandbox: sandbox.clone(),
            }),
        }
    }

    fn annotation_step(&self, pod: &Pod) -> Option<Step> {
        let current = self.annotated.get(&pod.uid).copied().flatten();
        let value = self.redirection(pod, current);
        (value != current).then(|| Step::Annotate {
            uid: pod.uid.clone(),
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            value,
        })
    }

    fn redirection(&self, pod: &Pod, current: Option<Redirection>) -> Option<Redirection> {
        match self.wish(&pod.uid) {
            Wish::Released(_) | Wish::Ended | Wish::Gone => None,
            Wish::Captured(_) if self.torn_down.contains(&pod.uid) => None,
            Wish::Captured(_) => {
                // Without rules of ours nothing new is known.
                let Some(rules) = self.rules.get(&pod.uid) else {
                    return current;
                };
                Some(
                    match self
                        .answers
                        .get(&pod.uid)
                        .filter(|answer| answer.netns == rules.netns)
                    {
                        Some(answer) if answer.error.is_empty() => Redirection::Enabled,
                        Some(_) => Redirection::Pending,
                        // ztunnel has not been asked since the agent started, and may have served the pod all along.
                        None if rules.continuity == Continuity::Found && current.is_some() => {
                            return current;
                        }
                        None => Redirection::Pending,
                    },
                )
            }
        }
    }

    /// The pods that ztunnel should serve, with the namespace if the pod's rules hold in it.
    pub fn wanted(&self) -> BTreeMap<&str, (&Pod, Option<NetnsId>)> {
        self.pods
            .values()
            .filter(|pod| {
                matches!(self.wish(&pod.uid), Wish::Captured(_))
                    && !self.torn_down.contains(&pod.uid)
            })
            .filter_map(|pod| {
                let netns = self.rules.get(&pod.uid).map(|rules| rules.netns);
                let served = self.annotated.get(&pod.uid).copied().flatten().is_some();
                (netns.is_some() || served).then_some((pod.uid.as_str(), (pod, netns)))
            })
            .collect()
    }

    /// The addresses of captured pods, with the UID of their owner.
    pub fn members(&self) -> Members {
        let captured = self.wanted();
        let captured = captured.iter().filter(|(_, (_, netns))| netns.is_some());
        captured
            .flat_map(|(uid, (pod, _))| self.ips(pod).into_iter().map(|ip| (ip, (*uid).to_owned())))
            .collect()
    }

    /// A pod's addresses: those of its sandbox, since the status has none while the pod starts.
    fn ips(&self, pod: &Pod) -> Vec<IpAddr> {
        match self.sandboxes.get(&pod.uid) {
            Some(sandbox) if !sandbox.ips.is_empty() => sandbox.ips.clone(),
            _ => pod.ips.clone(),
        }
    }

    /// What ztunnel says about a pod in this namespace: served, refused with a reason, or nothing yet.
    pub fn consent(&self, uid: &str, netns: NetnsId) -> Option<Result<(), String>> {
        let answer = self
            .answers
            .get(uid)
            .filter(|answer| answer.netns == netns)?;
        Some(if answer.error.is_empty() {
            Ok(())
        } else {
            Err(answer.error.clone())
        })
    }
}

#[cfg(test)]
mod tests;
