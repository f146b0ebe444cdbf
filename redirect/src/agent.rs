// SPDX-License-Identifier: Apache-2.0
//! The agent's one loop: takes in what happens, asks [`State`] what follows, does it.
//!
//! ```text
//!  cluster ─────► ┌───────┐ ──► rules in pods and on the node
//!  CNI plugin ──► │ State │ ──► wanted pods ──► ztunnel
//!  ztunnel ─────► └───────┘ ──► annotation, memory, answers to the plugin
//! ```
//! Has no opinions of its own. Everything is done by this one task, one thing after the other; what blocks does so on a
//! thread of its own.

mod arrivals;
mod departures;
mod look;
mod search;
mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use capture::Netns;
use cluster::{Batch, Event, Kind, Object, ObjectKey, Problem, Severity, Source, StatusWriter};
use ops::health::ReadyHandle;
use ops::shutdown::DrainSignal;
use tokio::sync::{mpsc, watch};
use tracing::{error, info, warn};

use crate::cluster_view;
use crate::memory::{Memory, Sandbox};
use crate::nftables::Members;
use crate::pairing::{self, Found};
use crate::plan::Families;
use crate::plugin_api::{DelRequest, GcRequest};
use crate::plugin_server::Question;
use crate::program;
use crate::rules::Table;
use crate::state::{State, Step, Wish};
use crate::zds_link::{Wanted, WantedPod};
use crate::zds_server::Answers;
use arrivals::Waiting;
use departures::Leaving;
use search::Search;

/// Everything that the loop works with.
#[derive(Debug)]
pub struct Parts {
    pub node: String,
    pub source: Source,
    pub status: StatusWriter,
    pub memory: Memory,
    pub state: State,
    pub host: Host,
    pub host_root: PathBuf,
    pub rule_check_interval: Duration,
    pub questions: mpsc::Receiver<Question>,
    pub answers: watch::Receiver<Answers>,
    pub wanted: watch::Sender<Option<Arc<Wanted>>>,
    pub ready: ReadyHandle,
}

/// The node's own side.
#[derive(Debug)]
pub struct Host {
    pub netns: Netns,
    pub table: Table,
    pub families: Families,
}

#[derive(Debug)]
struct Agent {
    parts: Parts,
    /// Held open, so that an id means one namespace.
    netns: BTreeMap<String, Netns>,
    members: Option<Members>,
    waiting: Vec<Waiting>,
    leaving: Vec<Leaving>,
    /// The last look for sandboxes that were not announced.
    searched: Option<Search>,
    /// What is wrong with the cluster's objects, as far as it has been logged.
    reported: BTreeSet<Problem>,
    started: Started,
    /// When the state was last asked for steps.
    asked: Instant,
    /// Until then nobody is annotated: the API server could not be asked.
    annotate_after: Instant,
}

/// Before the first batch nothing is known of the cluster, so nothing is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Started {
    No,
    Yes,
}

/// Runs until the drain is asked for.
pub async fn run(parts: Parts, drain: DrainSignal) {
    let mut agent = Agent {
        parts,
        netns: BTreeMap::new(),
        members: None,
        waiting: Vec::new(),
        leaving: Vec::new(),
        searched: None,
        reported: BTreeSet::new(),
        started: Started::No,
        asked: Instant::now(),
        annotate_after: Instant::now(),
    };
    agent.reopen().await;
    let mut look = tokio::time::interval(agent.parts.rule_check_interval);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    look.reset();
    loop {
        // Before the start only the cluster's first word helps.
        let wake = match agent.started {
            Started::Yes => agent.wake(),
            Started::No => None,
        };
        let timer = async {
            match wake {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = drain.requested() => break,
            batch = agent.parts.source.next() => agent.take_in(batch),
            Some(question) = agent.parts.questions.recv() => agent.hear(question).await,
            Ok(()) = agent.parts.answers.changed() => {}
            _ = look.tick() => agent.look().await,
            () = timer => {}
        }
        if agent.started == Started::Yes {
            agent.converge().await;
        }
    }
}

impl Agent {
    /// Opens what is remembered from before a restart, and drops what is not the same any more.
    async fn reopen(&mut self) {
        let remembered: Vec<_> = self.parts.state.sandboxes().cloned().collect();
        for sandbox in remembered {
            match self.open(&sandbox) {
                Ok(netns) => {
                    self.netns.insert(sandbox.uid.clone(), netns);
                }
                Err(reason) => {
                    let Sandbox {
                        namespace, name, ..
                    } = &*sandbox;
                    info!(namespace, name, reason, "forgetting the sandbox of a pod");
                    self.forget(&sandbox);
                }
            }
        }
    }

    /// Logs each problem once for as long as it lasts.
    fn report(&mut self, problems: Vec<Problem>) {
        let serious = problems
            .into_iter()
            .filter(|problem| problem.severity != Severity::Info);
        let problems: BTreeSet<Problem> = serious.collect();
        for problem in problems.difference(&self.reported) {
            warn!(%problem, "an object can't be used as it is written");
        }
        self.reported = problems;
    }

    fn take_in(&mut self, batch: Batch) {
        self.report(batch.problems);
        // Of the whole cluster: what other nodes' agents say of their pods lies beside what this one says.
        let mut pods = BTreeSet::new();
        for event in batch.events {
            match event {
                Event::Applied(Object::Pod(pod)) => {
                    if self.started == Started::No {
                        pods.insert(Object::Pod(pod.clone()).key());
                    }
                    match cluster_view::pod_on(&pod, &self.parts.node) {
                        Some(pod) => self.parts.state.pod_applied(pod),
                        None => {
                            let name = |name: &Option<String>| name.clone().unwrap_or_default();
                            self.parts.state.pod_deleted(
                                &name(&pod.metadata.namespace),
                                &name(&pod.metadata.name),
                                None,
                            );
                        }
                    }
                }
                Event::Applied(Object::Namespace(namespace)) => {
                    let name = namespace.metadata.name.clone().unwrap_or_default();
                    let labels = namespace.metadata.labels.clone().unwrap_or_default();
                    self.parts.state.namespace_applied(&name, labels);
                }
                Event::Deleted(ObjectKey {
                    kind: Kind::Pod,
                    namespace,
                    name,
                }) => {
                    self.parts
                        .state
                        .pod_deleted(&namespace.unwrap_or_default(), &name, None);
                }
                Event::Deleted(ObjectKey {
                    kind: Kind::Namespace,
                    name,
                    ..
                }) => {
                    self.parts.state.namespace_deleted(&name);
                }
                Event::Applied(_) | Event::Deleted(_) => {}
            }
        }
        if self.started == Started::No {
            self.started = Started::Yes;
            if let Err(error) = self.parts.status.retain(|key| pods.contains(key)) {
                warn!(%error, "status of pods that are gone");
            }
        }
    }

    async fn hear(&mut self, question: Question) {
        match question {
            Question::Add(request, reply) => {
                self.waiting.push(Waiting::new(request, reply));
            }
            Question::Check(request, reply) => {
                let found = self.check(&request).await;
                _ = reply.send(found);
            }
            Question::Del(request, reply) => {
                let DelRequest {
                    container_id,
                    netns,
                } = request;
                let netns = netns.and_then(|path| {
                    let path = host_path(&self.parts.host_root, path.as_ref());
                    Some(Netns::open(path).ok()?.id())
                });
                let gone = self.forget_sandboxes(|sandbox| match &sandbox.container_id {
                    Some(known) => *known == container_id,
                    // It was found among the processes.
                    None => Some(sandbox.netns_id()) == netns,
                });
                self.leaving.push(Leaving::new(gone, reply));
            }
            Question::Gc(GcRequest { container_ids }, reply) => {
                self.forget_sandboxes(|sandbox| {
                    let valid = sandbox
                        .container_id
                        .as_ref()
                        .is_none_or(|id| container_ids.contains(id));
                    !valid && !sandbox.netns.exists()
                });
                _ = reply.send(());
            }
            Question::Status(reply) => {
                _ = reply.send(match self.started {
                    Started::Yes => Ok(()),
                    Started::No => Err("the state of the cluster has not arrived yet".into()),
                });
            }
        }
    }

    /// Does all that is due.
    async fn converge(&mut self) {
        let answers = self.parts.answers.borrow_and_update().clone();
        self.parts.state.answers_arrived(answers);
        self.welcome().await;
        self.search().await;
        loop {
            self.asked = Instant::now();
            let Some(step) = self.parts.state.next(self.asked) else {
                break;
            };
            self.take(step).await;
        }
        self.publish();
        self.sync_members().await;
        self.parts.ready.ready();
        self.settle();
        self.see_off();
    }

    async fn take(&mut self, step: Step) {
        match step {
            Step::Capture { sandbox, options } => self.capture(&sandbox, options).await,
            Step::LookForResolver { sandbox } => self.look_for_resolver(&sandbox).await,
            Step::Loosen {
                sandbox,
                options,
                reach,
            } => self.loosen(&sandbox, options, reach).await,
            Step::Release { sandbox } => self.release(&sandbox).await,
            Step::Annotate {
                uid,
                namespace,
                name,
                value,
            } => self.annotate(&uid, &namespace, &name, value).await,
            Step::Forget { sandbox } => {
                let Sandbox {
                    namespace,
                    name,
                    uid,
                    ..
                } = &*sandbox;
                info!(namespace, name, uid, "pod is gone");
                self.forget(&sandbox);
                let key = ObjectKey::namespaced(Kind::Pod, namespace.clone(), name.clone());
                if !self.parts.state.knows(namespace, name)
                    && let Err(error) = self.parts.status.forget(&key)
                {
                    warn!(%error, "status of a pod that is gone");
                }
            }
        }
    }

    /// Tells ztunnel which pods to serve, if that has changed.
    fn publish(&self) {
        let pods = self.parts.state.wanted().into_iter().map(|(uid, wanted)| {
            let netns = wanted.netns.and_then(|_| self.netns.get(uid).cloned());
            let pod = WantedPod {
                name: wanted.pod.name.clone(),
                namespace: wanted.pod.namespace.clone(),
                service_account: wanted.pod.service_account.clone(),
                netns,
                intent: wanted.intent,
            };
            (uid.to_owned(), pod)
        });
        let wanted: Wanted = pods.collect();
        metrics::gauge!("redirect_captured_pods").set(wanted.len() as f64);
        let unanswered = self.parts.state.without_resolver();
        metrics::gauge!("redirect_dns_unanswered_pods").set(unanswered as f64);
        self.parts.wanted.send_if_modified(|current| {
            let changed = current.as_deref() != Some(&wanted);
            if changed {
                *current = Some(Arc::new(wanted));
            }
            changed
        });
    }

    async fn sync_members(&mut self) {
        let members = self.parts.state.members();
        if self.members.as_ref() == Some(&members) {
            return;
        }
        let (netns, families) = (self.parts.host.netns.clone(), self.parts.host.families);
        let wanted = members.clone();
        match blocking(move || program::sync_host(&netns, families, &wanted)).await {
            Ok(()) => self.members = Some(members),
            Err(cause) => {
                // Tried again at the next occasion, at the latest at the next look.
                error!(%cause, "the node's set of captured pods");
                metrics::counter!("redirect_failures_total", "step" => "host").increment(1);
            }
        }
    }

    /// The UIDs of the pods whose sandboxes these were.
    fn forget_sandboxes(&mut self, which: impl Fn(&Sandbox) -> bool) -> Vec<String> {
        let gone: Vec<_> = self
            .parts
            .state
            .sandboxes()
            .filter(|sandbox| which(sandbox))
            .cloned()
            .collect();
        for sandbox in &gone {
            let Sandbox {
                namespace,
                name,
                uid,
                ..
            } = &**sandbox;
            info!(namespace, name, uid, "sandbox is gone");
            self.forget(sandbox);
            self.parts.state.sandbox_torn_down(uid);
        }
        gone.iter().map(|sandbox| sandbox.uid.clone()).collect()
    }

    fn forget(&mut self, sandbox: &Sandbox) {
        self.netns.remove(&sandbox.uid);
        self.parts.state.sandbox_gone(&sandbox.uid);
        if let Err(error) = self.parts.memory.forget(&sandbox.uid) {
            warn!(%error, "memory of a pod");
        }
    }

    /// The namespace of a remembered sandbox, if it still is the same one.
    fn open(&self, sandbox: &Sandbox) -> Result<Netns, String> {
        let path = host_path(&self.parts.host_root, &sandbox.netns);
        let netns = Netns::open(&path)
            .map_err(|cause| format!("network namespace {}: {cause}", path.display()))?;
        if netns.id() != sandbox.netns_id() {
            return Err(format!(
                "network namespace {} is another one now",
                path.display()
            ));
        }
        self.claim(&sandbox.uid, &netns, &path, &sandbox.ips)?;
        Ok(netns)
    }

    /// Whether a namespace is the pod's; in words why not.
    fn claim(&self, uid: &str, netns: &Netns, path: &Path, ips: &[IpAddr]) -> Result<(), String> {
        let held = netns
            .addresses()
            .map_err(|cause| format!("addresses of the pod: {cause}"))?;
        let found = Found {
            id: netns.id(),
            held: &held,
        };
        let state = &self.parts.state;
        let lives = |other: &Sandbox| match self.started {
            Started::Yes => !matches!(state.wish(&other.uid), Wish::Gone | Wish::Ended),
            // Nothing has been said of any pod.
            Started::No => true,
        };
        // Only those whose namespaces are held open: ids of others may have been given out again.
        let others = state
            .sandboxes()
            .map(|sandbox| &**sandbox)
            .filter(|other: &&Sandbox| {
                other.uid != uid && self.netns.contains_key(&other.uid) && lives(other)
            });
        pairing::check(found, self.parts.host.netns.id(), ips, others).map_err(|mismatch| {
            metrics::counter!("redirect_wrong_namespaces_total", "reason" => mismatch.label())
                .increment(1);
            format!("network namespace {} {mismatch}", path.display())
        })
    }

    /// When to go on although nothing happens.
    fn wake(&self) -> Option<Instant> {
        let patience = self.waiting.iter().map(Waiting::gives_up_at);
        patience
            .chain(self.leaving.iter().map(Leaving::gives_up_at))
            .chain(self.parts.state.next_retry(self.asked))
            .chain(self.searches_again_at())
            .min()
    }
}

fn host_path(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work)
        .await
        .expect("broken invariant: blocking work neither panics nor is cancelled")
}
