// SPDX-License-Identifier: Apache-2.0
//! Pure: which pods are to be served, from what the node agent says and how starting them went.
//!
//! In: the agent's messages in order, and the outcome of each start. Out: what to start and stop. It opens no socket and
//! reads no clock; `N` stands for a network namespace that can be compared.
//!
//! ```text
//!                connected            snapshot_sent
//!   Disconnected ─────────► Snapshot ───────────────► Live
//!        ▲                     │                        │
//!        └─────────────────────┴──────── disconnected ──┘      (running pods stay up throughout)
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

pub use mesh::PodUid;

/// Whose pod it is, as the agent says; the mesh must know a workload of these names for it to speak.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodInfo {
    pub name: Arc<str>,
    pub namespace: Arc<str>,
    pub service_account: Arc<str>,
}

impl fmt::Display for PodInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod<N> {
    /// The agent's name for it, which is the UID that the cluster knows it by.
    pub uid: PodUid,
    pub info: PodInfo,
    pub netns: N,
}

/// What the shell is to do now, in this order.
#[derive(Debug, PartialEq, Eq)]
pub enum Action<N> {
    Stop(PodUid),
    Start(Pod<N>),
    /// It is served already, and goes on being so even if it was on its way out.
    Stay(PodUid),
}

/// The agent broke the order of messages; its connection can't be trusted any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    #[error("pod kept after the snapshot")]
    KeepAfterSnapshot,
    #[error("second snapshot on one connection")]
    SecondSnapshot,
}

/// A pod that can't be served as asked, while all others can.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("its network namespace belongs to pod {0}, which is still served")]
    SharedNamespace(PodUid),
    #[error("its network namespace is this proxy's own")]
    OwnNamespace,
}

/// What follows from a pod that the agent named.
#[derive(Debug, PartialEq, Eq)]
pub struct Added<N> {
    /// To be done even where the pod is refused: what it had before holds no more.
    pub actions: Vec<Action<N>>,
    pub refusal: Option<Refusal>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Disconnected,
    Snapshot,
    Live,
}

pub struct Pods<N> {
    /// Where this process is; no pod's.
    own: Option<N>,
    phase: Phase,
    running: BTreeMap<PodUid, Pod<N>>,
    pending: BTreeMap<PodUid, Pod<N>>,
    /// Named on this connection before its snapshot ended.
    noted: BTreeSet<PodUid>,
}

impl<N: Clone + PartialEq> Pods<N> {
    pub fn new() -> Self {
        Self {
            own: None,
            phase: Phase::Disconnected,
            running: BTreeMap::new(),
            pending: BTreeMap::new(),
            noted: BTreeSet::new(),
        }
    }

    /// As [`Self::new`], for a process in this namespace.
    pub fn beside(own: N) -> Self {
        Self {
            own: Some(own),
            ..Self::new()
        }
    }

    /// The agent of this connection begins from nothing; what runs is reconciled at its snapshot.
    pub fn connected(&mut self) {
        self.phase = Phase::Snapshot;
        self.noted.clear();
        self.pending.clear();
    }

    pub fn disconnected(&mut self) {
        self.phase = Phase::Disconnected;
    }

    pub fn add(&mut self, pod: Pod<N>) -> Added<N> {
        if self.phase == Phase::Snapshot {
            self.noted.insert(pod.uid.clone());
        }
        self.pending.remove(&pod.uid);
        let mut actions = Vec::new();
        match self.running.get(&pod.uid) {
            Some(running) if *running == pod => {
                return Added {
                    actions: vec![Action::Stay(pod.uid)],
                    refusal: None,
                };
            }
            Some(_) => {
                self.running.remove(&pod.uid);
                actions.push(Action::Stop(pod.uid.clone()));
            }
            None => {}
        }
        let refusal = self.refusal(&pod);
        match refusal {
            None => actions.push(Action::Start(pod)),
            // It never becomes a pod's.
            Some(Refusal::OwnNamespace) => {}
            Some(Refusal::SharedNamespace(_)) => {
                self.pending.insert(pod.uid.clone(), pod);
            }
        }
        Added { actions, refusal }
    }

    /// Two sets of listeners in one namespace would share connections at random, each under another identity.
    fn refusal(&self, pod: &Pod<N>) -> Option<Refusal> {
        if self.own.as_ref() == Some(&pod.netns) {
            return Some(Refusal::OwnNamespace);
        }
        let mut running = self.running.values();
        let owner = running.find(|running| running.netns == pod.netns)?;
        Some(Refusal::SharedNamespace(owner.uid.clone()))
    }

    pub fn keep(&mut self, uid: PodUid) -> Result<(), ProtocolError> {
        if self.phase != Phase::Snapshot {
            return Err(ProtocolError::KeepAfterSnapshot);
        }
        self.noted.insert(uid);
        Ok(())
    }

    /// Before the snapshot a running pod is left to it; an unknown pod is none of ours and fine.
    pub fn delete(&mut self, uid: &PodUid) -> Vec<Action<N>> {
        self.noted.remove(uid);
        self.pending.remove(uid);
        if self.phase == Phase::Live && self.running.remove(uid).is_some() {
            return vec![Action::Stop(uid.clone())];
        }
        Vec::new()
    }

    /// Stops what the agent no longer named; that may free what pending pods were waiting for.
    pub fn snapshot_sent(&mut self) -> Result<Vec<Action<N>>, ProtocolError> {
        if self.phase != Phase::Snapshot {
            return Err(ProtocolError::SecondSnapshot);
        }
        self.phase = Phase::Live;
        let noted = std::mem::take(&mut self.noted);
        let gone: Vec<PodUid> = self
            .running
            .keys()
            .filter(|uid| !noted.contains(uid))
            .cloned()
            .collect();
        for uid in &gone {
            self.running.remove(uid);
        }
        let retries = self.retry();
        Ok(gone.into_iter().map(Action::Stop).chain(retries).collect())
    }

    /// What to try again, at a time the shell chooses: of several pods that wait for one namespace, one.
    pub fn retry(&self) -> Vec<Action<N>> {
        let mut chosen: Vec<&Pod<N>> = Vec::new();
        for pod in self.pending.values() {
            if self.refusal(pod).is_none() && !chosen.iter().any(|other| other.netns == pod.netns) {
                chosen.push(pod);
            }
        }
        chosen.into_iter().cloned().map(Action::Start).collect()
    }

    pub fn started(&mut self, pod: Pod<N>) {
        self.pending.remove(&pod.uid);
        self.running.insert(pod.uid.clone(), pod);
    }

    pub fn failed(&mut self, pod: Pod<N>) {
        self.pending.insert(pod.uid.clone(), pod);
    }

    /// Whether this very pod is served.
    pub fn runs(&self, pod: &Pod<N>) -> bool {
        self.running.get(&pod.uid) == Some(pod)
    }

    pub fn pending(&self) -> impl Iterator<Item = &Pod<N>> {
        self.pending.values()
    }

    pub fn running_count(&self) -> usize {
        self.running.len()
    }

    pub fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// Every pod that the agent wants served is served.
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Live && self.pending.is_empty()
    }
}

impl<N: Clone + PartialEq> Default for Pods<N> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, netns: u32) -> Pod<u32> {
        let info = PodInfo {
            name: uid.into(),
            namespace: "default".into(),
            service_account: "sa".into(),
        };
        Pod {
            uid: uid.into(),
            info,
            netns,
        }
    }

    /// Carries actions out as a shell would whose every start succeeds.
    fn apply(pods: &mut Pods<u32>, actions: Vec<Action<u32>>) -> Vec<String> {
        let describe = |action: Action<u32>| match action {
            Action::Stop(uid) => format!("stop {uid}"),
            Action::Start(pod) => {
                let text = format!("start {} in {}", pod.uid, pod.netns);
                pods.started(pod);
                text
            }
            Action::Stay(uid) => format!("stay {uid}"),
        };
        actions.into_iter().map(describe).collect()
    }

    fn add(pods: &mut Pods<u32>, pod: Pod<u32>) -> Vec<String> {
        let Added { actions, refusal } = pods.add(pod);
        assert_eq!(refusal, None);
        apply(pods, actions)
    }

    fn snapshot(pods: &mut Pods<u32>) -> Vec<String> {
        let actions = pods.snapshot_sent().expect("is the first snapshot");
        apply(pods, actions)
    }

    fn refused(owner: &str) -> Added<u32> {
        Added {
            actions: vec![],
            refusal: Some(Refusal::SharedNamespace(owner.into())),
        }
    }

    #[test]
    fn pods_start_as_they_are_named_and_readiness_waits_for_the_snapshot() {
        let mut pods = Pods::new();
        pods.connected();
        assert_eq!(add(&mut pods, pod("a", 1)), ["start a in 1"]);
        assert!(!pods.is_ready());
        assert!(snapshot(&mut pods).is_empty());
        assert!(pods.is_ready());
    }

    #[test]
    fn a_pod_named_again_with_the_same_namespace_is_left_alone() {
        let mut pods = Pods::new();
        pods.connected();
        add(&mut pods, pod("a", 1));
        assert_eq!(add(&mut pods, pod("a", 1)), ["stay a"]);
    }

    #[test]
    fn a_pod_in_another_namespace_is_restarted() {
        let mut pods = Pods::new();
        pods.connected();
        add(&mut pods, pod("a", 1));
        assert_eq!(add(&mut pods, pod("a", 2)), ["stop a", "start a in 2"]);
    }

    #[test]
    fn a_pod_under_another_account_is_restarted() {
        let mut pods = Pods::new();
        pods.connected();
        add(&mut pods, pod("a", 1));
        let mut other = pod("a", 1);
        other.info.service_account = "other".into();
        assert_eq!(add(&mut pods, other), ["stop a", "start a in 1"]);
    }

    #[test]
    fn a_namespace_serves_one_pod_at_a_time() {
        let mut pods = Pods::new();
        pods.connected();
        add(&mut pods, pod("a", 1));
        snapshot(&mut pods);
        assert_eq!(pods.add(pod("b", 1)), refused("a"));
        assert!(pods.retry().is_empty(), "the first still holds it");
        assert_eq!(pods.delete(&"a".into()), [Action::Stop("a".into())]);
        let retries = pods.retry();
        assert_eq!(apply(&mut pods, retries), ["start b in 1"]);
        assert!(pods.is_ready());
    }

    #[test]
    fn a_pod_that_moves_into_a_taken_namespace_is_served_no_more() {
        let mut pods = Pods::new();
        pods.connected();
        add(&mut pods, pod("a", 1));
        add(&mut pods, pod("b", 2));
        snapshot(&mut pods);
        let Added { actions, refusal } = pods.add(pod("a", 2));
        assert_eq!(apply(&mut pods, actions), ["stop a"]);
        assert_eq!(refusal, Some(Refusal::SharedNamespace("b".into())));
        // Its old one is free for whoever comes.
        assert_eq!(add(&mut pods, pod("c", 1)), ["start c in 1"]);
    }

    #[test]
    fn of_pods_that_wait_for_one_namespace_one_gets_it() {
        let mut pods = Pods::new();
        pods.connected();
        for uid in ["a", "b", "c"] {
            let refusal = pods.add(pod(uid, 1)).refusal;
            assert_eq!(refusal.is_some(), uid != "a");
            if uid == "a" {
                pods.started(pod("a", 1));
            }
        }
        snapshot(&mut pods);
        pods.delete(&"a".into());
        let retries = pods.retry();
        assert_eq!(apply(&mut pods, retries), ["start b in 1"]);
        assert_eq!(pods.pending_count(), 1);
        assert!(pods.retry().is_empty());
    }

    #[test]
    fn the_namespace_of_the_proxy_is_no_pods() {
        let mut pods = Pods::beside(7);
        pods.connected();
        let added = pods.add(pod("a", 7));
        assert_eq!(added.refusal, Some(Refusal::OwnNamespace));
        assert!(added.actions.is_empty());
        snapshot(&mut pods);
        assert!(pods.is_ready(), "nothing waits for what never comes");
    }

    #[test]
    fn the_snapshot_stops_what_it_did_not_name_and_keeps_the_rest() {
        let mut pods = Pods::new();
        pods.connected();
        for (uid, netns) in [("a", 1), ("b", 2), ("c", 3)] {
            add(&mut pods, pod(uid, netns));
        }
        snapshot(&mut pods);
        pods.disconnected();
        assert!(!pods.is_ready());
        assert_eq!(pods.running_count(), 3, "nothing stops with the agent");

        pods.connected();
        assert_eq!(add(&mut pods, pod("a", 1)), ["stay a"]);
        pods.keep("b".into()).expect("precedes the snapshot");
        assert_eq!(snapshot(&mut pods), ["stop c"]);
    }

    #[test]
    fn a_namespace_freed_by_the_snapshot_goes_to_the_pod_that_waits_for_it() {
        let mut pods = Pods::new();
        pods.connected();
        add(&mut pods, pod("old", 1));
        snapshot(&mut pods);
        pods.disconnected();
        pods.connected();
        assert_eq!(pods.add(pod("new", 1)), refused("old"));
        assert_eq!(snapshot(&mut pods), ["stop old", "start new in 1"]);
    }

    #[test]
    fn a_deletion_before_the_snapshot_waits_for_it() {
        let mut pods = Pods::new();
        pods.connected();
        add(&mut pods, pod("a", 1));
        assert!(pods.delete(&"a".into()).is_empty());
        assert_eq!(snapshot(&mut pods), ["stop a"]);
    }

    #[test]
    fn an_unknown_pod_is_deleted_without_complaint() {
        let mut pods: Pods<u32> = Pods::new();
        pods.connected();
        snapshot(&mut pods);
        assert!(pods.delete(&"nobody".into()).is_empty());
    }

    #[test]
    fn failed_starts_are_tried_again_until_they_succeed_or_are_deleted() {
        let mut pods = Pods::new();
        pods.connected();
        assert_eq!(pods.add(pod("a", 1)).actions.len(), 1);
        pods.failed(pod("a", 1));
        pods.snapshot_sent().expect("is the first");
        assert!(!pods.is_ready());
        assert_eq!(pods.retry(), [Action::Start(pod("a", 1))]);
        pods.delete(&"a".into());
        assert!(pods.is_ready());
        assert!(pods.retry().is_empty());
    }

    #[test]
    fn messages_out_of_order_are_protocol_errors() {
        let mut pods: Pods<u32> = Pods::new();
        pods.connected();
        snapshot(&mut pods);
        assert_eq!(pods.keep("a".into()), Err(ProtocolError::KeepAfterSnapshot));
        assert_eq!(pods.snapshot_sent(), Err(ProtocolError::SecondSnapshot));
    }

    #[test]
    fn a_new_connection_forgets_what_the_last_one_left_pending() {
        let mut pods = Pods::new();
        pods.connected();
        pods.failed(pod("a", 1));
        pods.connected();
        assert_eq!(pods.pending_count(), 0);
    }
}
