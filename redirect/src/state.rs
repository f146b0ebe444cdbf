// SPDX-License-Identifier: Apache-2.0
//! What should be, what is, and the next step from one to the other. Pure.
//!
//! In: the cluster's pods and namespaces, sandboxes that the runtime announced, results of steps, ztunnel's answers,
//! the time. Out: the next [`Step`], the pods ztunnel should serve, the addresses the node should know. Nothing is
//! remembered as "to do": a step is due while what should be differs from what is, so no lost event matters for long.
//!
//! ```text
//!  pod in the cluster + sandbox ──► ztunnel is asked ──► its consent ──► Capture (rules) ──► annotation `enabled`
//!                                        refusal or no answer yet ──► `pending`
//!  label gone ──► Loosen (fewer rules), annotation removed ──► ztunnel has let go ──► Release (see release.rs)
//!  pod gone   ──► Forget
//! ```
//! Rules lead somewhere only once ztunnel listens, so a running pod that joins the mesh meets no closed port.

mod due;
mod pod;
mod release;
mod resolvers;
mod step;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use capture::NetnsId;

use crate::enroll::{Candidate, Enrolment, Labels, Network, Settings, enrolment};
use crate::memory::Sandbox;
use crate::nftables::Members;
use crate::plan::{Dns, Families, PodOptions, PodPlan, Reach, pod_plan, reduced_plan};
use crate::zds_link::Intent;
use crate::zds_server::Answers;
pub use pod::{Life, Pod, REDIRECTION_ANNOTATION, Redirection};
use release::{Leaving, Stage};
use resolvers::{Consent, Resolvers};
pub use step::{Continuity, Step, Wish};

/// Options of the node.
#[derive(Debug, Clone)]
pub struct Options {
    pub enrolment: Settings,
    pub families: Families,
    pub dns: Dns,
    /// How long connections that are open when their pod leaves the mesh may go on.
    pub release_deadline: Duration,
}

/// A pod that ztunnel should serve, or let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WantedPod<'a> {
    pub pod: &'a Pod,
    /// None: it is in the mesh, but where it runs isn't known.
    pub netns: Option<NetnsId>,
    pub intent: Intent,
}

#[derive(Debug)]
pub struct State {
    options: Options,
    pods: BTreeMap<String, Pod>,
    namespaces: BTreeMap<String, Labels>,
    sandboxes: BTreeMap<String, Arc<Sandbox>>,
    rules: BTreeMap<String, Rules>,
    released: BTreeMap<String, NetnsId>,
    /// Pods on their way out of the mesh.
    leaving: BTreeMap<String, Leaving>,
    /// Pods whose sandbox is new to this agent, so that nothing can be in it from before.
    fresh: BTreeSet<String>,
    annotated: BTreeMap<String, Option<Redirection>>,
    failures: BTreeMap<String, Failure>,
    /// Pods that the cluster still has, but whose sandbox the runtime has taken down.
    torn_down: BTreeSet<String>,
    answers: Answers,
    resolvers: Resolvers,
}

#[derive(Debug)]
struct Rules {
    netns: NetnsId,
    options: PodOptions,
    reach: Reach,
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
            fresh: BTreeSet::new(),
            annotated: BTreeMap::new(),
            failures: BTreeMap::new(),
            torn_down: BTreeSet::new(),
            answers: Answers::new(),
            resolvers: Resolvers::default(),
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
            self.fresh.insert(uid.clone());
        }
        self.failures.remove(&uid);
        self.released.remove(&uid);
        self.torn_down.remove(&uid);
        self.sandboxes.insert(uid, Arc::new(sandbox));
    }

    /// A sandbox was found that nobody announced to this agent; rules may be in it.
    pub fn sandbox_found(&mut self, sandbox: Sandbox) {
        let uid = sandbox.uid.clone();
        self.failures.remove(&uid);
        self.sandboxes.insert(uid, Arc::new(sandbox));
    }

    /// What is remembered of a sandbox has changed.
    pub fn sandbox_noted(&mut self, sandbox: Arc<Sandbox>) {
        self.sandboxes.insert(sandbox.uid.clone(), sandbox);
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
        self.fresh.remove(uid);
        self.resolvers.forget(uid);
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
                reach: Reach::Everything,
                continuity,
            },
        );
    }

    /// Whether somebody listens for DNS in the pod, as it was just seen. Says what follows for the pod's queries if that
    /// is news.
    pub fn looked_for_resolver(
        &mut self,
        sandbox: &Sandbox,
        listens: bool,
        now: Instant,
    ) -> Option<Dns> {
        let netns = sandbox.netns_id();
        let consent = self.consented(&sandbox.uid, netns);
        self.resolvers
            .found(&sandbox.uid, netns, consent, listens, now)
    }

    pub fn loosened(&mut self, sandbox: &Sandbox, options: PodOptions, reach: Reach) {
        self.failures.remove(&sandbox.uid);
        self.rules.insert(
            sandbox.uid.clone(),
            Rules {
                netns: sandbox.netns_id(),
                options,
                reach,
                continuity: Continuity::Found,
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

    /// Pods that are, or were, for the mesh and run somewhere on this node, nobody has said where.
    pub fn unplaced(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values().filter(|pod| {
            let uid = &pod.uid;
            let ours = match self.wish(uid) {
                Wish::Captured(_) => true,
                Wish::Released(_) => self.annotated.get(uid).copied().flatten().is_some(),
                Wish::Ended | Wish::Gone => false,
            };
            ours && pod.network == Network::Own
                && !pod.ips.is_empty()
                && !self.sandboxes.contains_key(uid)
                && !self.torn_down.contains(uid)
        })
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
            Enrolment::Enrolled => Wish::Captured(self.options_of(pod)),
            Enrolment::Outside(reason) => Wish::Released(reason),
        }
    }

    fn options_of(&self, pod: &Pod) -> PodOptions {
        PodOptions::for_pod(&pod.annotations, self.options.families, self.options.dns)
    }

    /// What is captured of a pod where all is as wished, but for DNS that nobody would answer.
    pub fn options_in_force(&self, sandbox: &Sandbox, wished: PodOptions) -> PodOptions {
        match wished.dns {
            Dns::Untouched => wished,
            Dns::Captured => PodOptions {
                dns: self.resolvers.verdict(&sandbox.uid, sandbox.netns_id()),
                ..wished
            },
        }
    }

    /// Pods whose DNS should be captured and is not, since nobody would answer it.
    pub fn without_resolver(&self) -> usize {
        let unanswered = |sandbox: &&Arc<Sandbox>| match self.wish(&sandbox.uid) {
            Wish::Captured(wished) => {
                self.rules.contains_key(&sandbox.uid)
                    && self.options_in_force(sandbox, wished.clone()) != wished
            }
            _ => false,
        };
        self.sandboxes.values().filter(unanswered).count()
    }

    /// The rules that hold in a pod now.
    pub fn plan(&self, uid: &str) -> Option<PodPlan> {
        let rules = self.rules.get(uid)?;
        Some(match rules.reach {
            Reach::Everything => pod_plan(&rules.options),
            reach => reduced_plan(&rules.options, reach),
        })
    }

    /// Is all of the pod's new traffic captured?
    pub fn is_captured(&self, uid: &str) -> bool {
        self.rules
            .get(uid)
            .is_some_and(|rules| rules.reach == Reach::Everything)
    }

    /// Which ztunnel serves the pod in this namespace, as far as one has said so.
    fn consented(&self, uid: &str, netns: NetnsId) -> Consent {
        let answer = self.answers.get(uid)?;
        (answer.netns == netns && answer.error.is_empty()).then_some(answer.by)
    }

    /// The pods that ztunnel should serve or let go, with the namespace of those whose sandbox is known.
    pub fn wanted(&self) -> BTreeMap<&str, WantedPod<'_>> {
        let wanted = self.pods.values().filter_map(|pod| {
            let uid = pod.uid.as_str();
            let intent = match self.wish(uid) {
                Wish::Captured(_) if !self.torn_down.contains(uid) => Intent::Serve,
                Wish::Released(_) => {
                    let leaving = self.leaving.get(uid)?;
                    (leaving.stage() != Stage::Over).then_some(Intent::LetGo)?
                }
                _ => return None,
            };
            let netns = self.sandboxes.get(uid).map(|sandbox| sandbox.netns_id());
            let served = self.annotated.get(uid).copied().flatten().is_some();
            let wanted = WantedPod { pod, netns, intent };
            (netns.is_some() || served).then_some((uid, wanted))
        });
        wanted.collect()
    }

    /// The addresses of captured pods, with the UID of their owner.
    pub fn members(&self) -> Members {
        let captured = self.wanted();
        let captured = captured.values().filter(|wanted| wanted.netns.is_some());
        captured
            .flat_map(|WantedPod { pod, .. }| {
                self.ips(pod).into_iter().map(|ip| (ip, pod.uid.clone()))
            })
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
