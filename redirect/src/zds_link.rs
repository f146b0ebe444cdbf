// SPDX-License-Identifier: Apache-2.0
//! What to say next to one ztunnel. Pure.
//!
//! In: the pods that are wanted, what this ztunnel has answered so far, the time. Out: the next message. Nothing is
//! queued: whatever happened in between, the next message is the first difference between what is wanted and what this
//! ztunnel holds.
//!
//! ```text
//!  hello ──► Snapshot: add or keep every wanted pod, then snapshot_sent ──► Live: del and add what differs,
//!                                                                 ask after the pods that are to be let go
//! ```
//! A ztunnel that can't let go bit by bit is told to delete such a pod at once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use capture::{Netns, NetnsId};

/// The pods that ztunnel should serve, by UID.
pub type Wanted = BTreeMap<String, WantedPod>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedPod {
    pub name: String,
    pub namespace: String,
    pub service_account: String,
    /// None: it is known to be in the mesh, but its namespace isn't at hand; who serves it should go on.
    pub netns: Option<Netns>,
    pub intent: Intent,
}

/// What ztunnel should do for a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    Serve,
    /// Carry on what is open, and serve peers that have not heard that the pod leaves the mesh.
    LetGo,
}

/// Only the newest ztunnel gets new pods; older ones are about to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Newest,
    Older,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    Add {
        uid: String,
        pod: WantedPod,
        netns: Netns,
    },
    Keep {
        uid: String,
    },
    Del {
        uid: String,
    },
    Release {
        uid: String,
    },
    SnapshotSent,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    Send(Message),
    /// Nothing to say, until something changes or this moment comes.
    Wait(Option<Instant>),
}

/// Whether a ztunnel can let go of a pod bit by bit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Releases {
    Gently,
    #[default]
    AtOnce,
}

/// How often a ztunnel is asked how far a pod is.
const RELEASE_PERIOD: Duration = Duration::from_millis(250);

/// One ztunnel, as far as its answers tell.
#[derive(Debug, Default)]
pub struct Link {
    phase: Phase,
    releases: Releases,
    pods: BTreeMap<String, Held>,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Snapshot,
    Live,
}

#[derive(Debug)]
enum Held {
    Serving(NetnsId),
    LettingGo {
        ask_at: Instant,
    },
    Kept,
    Refused {
        netns: NetnsId,
        times: u32,
        retry_at: Instant,
    },
}

impl Link {
    pub fn new(releases: Releases) -> Self {
        Self {
            releases,
            ..Self::default()
        }
    }

    pub fn next(&self, wanted: &Wanted, role: Role, now: Instant) -> Next {
        match self.phase {
            Phase::Snapshot => self.next_of_snapshot(wanted),
            Phase::Live => self.next_of_life(wanted, role, now),
        }
    }

    /// Is this pod for this ztunnel to hold?
    fn holds(&self, pod: &WantedPod) -> bool {
        pod.intent == Intent::Serve || self.releases == Releases::Gently
    }

    /// The snapshot names every pod, whoever else may be newer by now: a pod that it leaves out would be dropped.
    fn next_of_snapshot(&self, wanted: &Wanted) -> Next {
        let unnamed = wanted
            .iter()
            .find(|(uid, pod)| self.holds(pod) && !self.pods.contains_key(*uid));
        Next::Send(match unnamed {
            Some((uid, pod)) => match &pod.netns {
                Some(netns) => Message::Add {
                    uid: uid.clone(),
                    pod: pod.clone(),
                    netns: netns.clone(),
                },
                None => Message::Keep { uid: uid.clone() },
            },
            None => Message::SnapshotSent,
        })
    }

    fn next_of_life(&self, wanted: &Wanted, role: Role, now: Instant) -> Next {
        let unwanted = |uid: &&String| !wanted.get(*uid).is_some_and(|pod| self.holds(pod));
        if let Some(uid) = self.pods.keys().find(unwanted) {
            return Next::Send(Message::Del { uid: uid.clone() });
        }
        let mut wake: Option<Instant> = None;
        for (uid, pod) in wanted.iter().filter(|(_, pod)| self.holds(pod)) {
            let step = match pod.intent {
                Intent::Serve => self.serve(uid, pod, role, now),
                Intent::LetGo => self.let_go(uid, now),
            };
            match step {
                Some(Next::Wait(Some(until))) => {
                    wake = Some(wake.map_or(until, |wake| wake.min(until)));
                }
                Some(Next::Wait(None)) | None => {}
                Some(send) => return send,
            }
        }
        Next::Wait(wake)
    }

    fn serve(&self, uid: &str, pod: &WantedPod, role: Role, now: Instant) -> Option<Next> {
        let netns = pod.netns.as_ref()?;
        match self.pods.get(uid) {
            _ if role == Role::Older => None,
            Some(Held::Serving(served)) if *served == netns.id() => None,
            Some(Held::Refused {
                netns: refused,
                retry_at,
                ..
            }) if *refused == netns.id() && *retry_at > now => Some(Next::Wait(Some(*retry_at))),
            _ => Some(Next::Send(Message::Add {
                uid: uid.to_owned(),
                pod: pod.clone(),
                netns: netns.clone(),
            })),
        }
    }

    /// Whoever holds the pod is asked, older ztunnels too; whoever doesn't need not get it any more.
    fn let_go(&self, uid: &str, now: Instant) -> Option<Next> {
        match self.pods.get(uid)? {
            Held::Refused { .. } => None,
            Held::LettingGo { ask_at } if *ask_at > now => Some(Next::Wait(Some(*ask_at))),
            Held::Serving(_) | Held::Kept | Held::LettingGo { .. } => {
                let uid = uid.to_owned();
                Some(Next::Send(Message::Release { uid }))
            }
        }
    }

    /// Takes the answer to `message`: an empty `error` is consent.
    pub fn answered(&mut self, message: &Message, error: &str, now: Instant) {
        match message {
            Message::SnapshotSent => self.phase = Phase::Live,
            Message::Keep { uid } => {
                self.pods.insert(uid.clone(), Held::Kept);
            }
            // A pod that ztunnel can't remove is none that it should hold; asking again would not help.
            Message::Del { uid } => {
                self.pods.remove(uid);
            }
            // One that it can't let go is none that it holds.
            Message::Release { uid } if !error.is_empty() => {
                self.pods.remove(uid);
            }
            Message::Release { uid } => {
                let ask_at = now + RELEASE_PERIOD;
                self.pods.insert(uid.clone(), Held::LettingGo { ask_at });
            }
            Message::Add { uid, netns, .. } => {
                let held = if error.is_empty() {
                    Held::Serving(netns.id())
                } else {
                    let times = match self.pods.get(uid) {
                        Some(Held::Refused {
                            times,
                            netns: refused,
                            ..
                        }) if *refused == netns.id() => times + 1,
                        _ => 1,
                    };
                    Held::Refused {
                        netns: netns.id(),
                        times,
                        retry_at: now + delay(times),
                    }
                };
                self.pods.insert(uid.clone(), held);
            }
        }
    }

    /// Has this ztunnel heard of every pod?
    pub fn is_live(&self) -> bool {
        self.phase == Phase::Live
    }
}

/// 100 ms, doubled each time, up to 5 s.
fn delay(times: u32) -> Duration {
    Duration::from_millis(100 << times.saturating_sub(1).min(6)).min(Duration::from_secs(5))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(netns: Option<Netns>) -> WantedPod {
        WantedPod {
            name: "web".into(),
            namespace: "shop".into(),
            service_account: "web".into(),
            netns,
            intent: Intent::Serve,
        }
    }

    fn new_netns() -> Netns {
        Netns::create().expect("creating a network namespace needs root, or `unshare -Urnm`")
    }

    /// Answers everything with consent until there is nothing more to say; tells what was said.
    fn converse(link: &mut Link, wanted: &Wanted, role: Role) -> Vec<String> {
        let now = Instant::now();
        let mut said = Vec::new();
        while let Next::Send(message) = link.next(wanted, role, now) {
            said.push(match &message {
                Message::Add { uid, .. } => format!("add {uid}"),
                Message::Keep { uid } => format!("keep {uid}"),
                Message::Del { uid } => format!("del {uid}"),
                Message::Release { uid } => format!("release {uid}"),
                Message::SnapshotSent => "snapshot".to_owned(),
            });
            link.answered(&message, "", now);
        }
        said
    }

    #[test]
    fn a_snapshot_adds_and_keeps_then_says_that_it_is_complete() {
        let wanted: Wanted = [
            ("a".into(), pod(Some(new_netns()))),
            ("b".into(), pod(None)),
        ]
        .into();
        let mut link = Link::default();
        assert_eq!(
            converse(&mut link, &wanted, Role::Newest),
            ["add a", "keep b", "snapshot"]
        );
        assert_eq!(
            converse(&mut Link::default(), &Wanted::new(), Role::Newest),
            ["snapshot"]
        );
    }

    #[test]
    fn changes_are_told_once() {
        let mut wanted: Wanted = [("a".into(), pod(Some(new_netns())))].into();
        let mut link = Link::default();
        converse(&mut link, &wanted, Role::Newest);
        assert!(converse(&mut link, &wanted, Role::Newest).is_empty());
        wanted.remove("a");
        wanted.insert("b".into(), pod(Some(new_netns())));
        assert_eq!(
            converse(&mut link, &wanted, Role::Newest),
            ["del a", "add b"]
        );
        // Another sandbox of the same pod.
        wanted.insert("b".into(), pod(Some(new_netns())));
        assert_eq!(converse(&mut link, &wanted, Role::Newest), ["add b"]);
    }

    #[test]
    fn an_older_ztunnel_only_hears_of_removals_and_catches_up_when_it_becomes_the_newest() {
        let mut wanted: Wanted = [("a".into(), pod(Some(new_netns())))].into();
        let mut link = Link::default();
        converse(&mut link, &wanted, Role::Newest);
        wanted = [("b".into(), pod(Some(new_netns())))].into();
        assert_eq!(converse(&mut link, &wanted, Role::Older), ["del a"]);
        assert_eq!(converse(&mut link, &wanted, Role::Newest), ["add b"]);
    }

    fn let_go(netns: Netns) -> WantedPod {
        WantedPod {
            intent: Intent::LetGo,
            ..pod(Some(netns))
        }
    }

    #[test]
    fn a_pod_that_leaves_is_asked_after_until_it_is_deleted_or_comes_back() {
        let netns = new_netns();
        let mut wanted: Wanted = [("a".into(), pod(Some(netns.clone())))].into();
        let mut link = Link::new(Releases::Gently);
        converse(&mut link, &wanted, Role::Newest);
        wanted.insert("a".into(), let_go(netns.clone()));
        // Older ztunnels too: they may carry some of it.
        assert_eq!(converse(&mut link, &wanted, Role::Older), ["release a"]);
        let now = Instant::now();
        let Next::Wait(Some(ask_at)) = link.next(&wanted, Role::Newest, now) else {
            panic!("it is not asked again")
        };
        assert!(ask_at <= now + RELEASE_PERIOD);
        let again = Message::Release { uid: "a".into() };
        assert_eq!(
            link.next(&wanted, Role::Newest, ask_at),
            Next::Send(again.clone())
        );
        link.answered(&again, "", ask_at);
        wanted.insert("a".into(), pod(Some(netns.clone())));
        assert_eq!(converse(&mut link, &wanted, Role::Newest), ["add a"]);
        wanted.insert("a".into(), let_go(netns));
        assert_eq!(converse(&mut link, &wanted, Role::Newest), ["release a"]);
        assert_eq!(converse(&mut link, &Wanted::new(), Role::Newest), ["del a"]);
    }

    #[test]
    fn a_pod_that_leaves_is_handed_to_a_ztunnel_that_comes_anew() {
        let wanted: Wanted = [("a".into(), let_go(new_netns()))].into();
        assert_eq!(
            converse(&mut Link::new(Releases::Gently), &wanted, Role::Newest),
            ["add a", "snapshot", "release a"]
        );
    }

    #[test]
    fn a_ztunnel_that_knows_no_release_is_told_to_delete() {
        let netns = new_netns();
        let mut wanted: Wanted = [("a".into(), pod(Some(netns.clone())))].into();
        let mut link = Link::default();
        converse(&mut link, &wanted, Role::Newest);
        wanted.insert("a".into(), let_go(netns));
        assert_eq!(converse(&mut link, &wanted, Role::Newest), ["del a"]);
        assert_eq!(
            converse(&mut Link::default(), &wanted, Role::Newest),
            ["snapshot"]
        );
    }

    #[test]
    fn a_refused_pod_is_tried_again_later_and_stops_nobody_else() {
        let wanted: Wanted = [
            ("a".into(), pod(Some(new_netns()))),
            ("b".into(), pod(Some(new_netns()))),
        ]
        .into();
        let mut link = Link::default();
        let now = Instant::now();
        let Next::Send(first) = link.next(&wanted, Role::Newest, now) else {
            panic!("nothing to say")
        };
        link.answered(&first, "port 15001 is taken", now);
        for expected in ["b", "snapshot"] {
            let Next::Send(message) = link.next(&wanted, Role::Newest, now) else {
                panic!("nothing for {expected}")
            };
            link.answered(&message, "", now);
        }
        let Next::Wait(Some(retry_at)) = link.next(&wanted, Role::Newest, now) else {
            panic!("no retry")
        };
        assert_eq!(retry_at, now + Duration::from_millis(100));
        let Next::Send(again) = link.next(&wanted, Role::Newest, retry_at) else {
            panic!("no retry")
        };
        assert_eq!(again, first);
        link.answered(&again, "port 15001 is taken", retry_at);
        assert_eq!(
            link.next(&wanted, Role::Newest, retry_at),
            Next::Wait(Some(retry_at + Duration::from_millis(200)))
        );
        assert_eq!(delay(40), Duration::from_secs(5));
    }
}
