// SPDX-License-Identifier: Apache-2.0
//! The kubelets of both nodes: what a Pod object asks for is what runs.
//!
//! ```text
//!  Pod appears ─► sandbox (again and again, until CNI succeeds) ─► containers ─► probes ─► status
//!  Pod is deleted ─► SIGTERM, grace, SIGKILL ─► CNI DEL ─► status, record and the object itself removed
//! ```
//! One task for each pod; the cluster's objects are followed once for all, in a folder or at an API server
//! ([`crate::lab::objects`]). A scheduler's part is played here as well: a pod of an API server that nobody has put
//! anywhere goes to the node with the fewest. Knows nothing of the mesh: its daemons are pods like others.

mod pod;
mod reboot;
mod running;
mod upgrade;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use capture::Netns;
use cluster::kinds::Pod;
use cluster::{Event, Object, ObjectKey, RequestError};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::pod::PodLife;
use crate::environment::Environment;
use crate::lab::cgroups::Cgroups;
use crate::lab::container::Programs;
use crate::lab::in_force::{InForce, Keep};
use crate::lab::objects::Objects;
use crate::lab::progress;
use crate::lab::sandbox::Runtime;
use crate::state::StateDir;
use crate::topology::{Layout, Node, Place, PodName};

/// Between attempts to tell an API server something.
const RETRY: Duration = Duration::from_millis(500);
const LONGEST_RETRY: Duration = Duration::from_secs(5);

/// Both kubelets.
pub struct Kubelet {
    shared: Rc<Shared>,
    watcher: JoinHandle<()>,
    power: JoinHandle<()>,
    ready: watch::Receiver<Tally>,
}

/// How many pods there are to run, and how many are ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Tally {
    listed: bool,
    pods: usize,
    ready: usize,
}

struct Shared {
    state: StateDir,
    /// The network of the cluster's pods.
    network: &'static str,
    hbone_engine: String,
    programs: Rc<Programs>,
    objects: Rc<Objects>,
    cgroups: Rc<Cgroups>,
    runtimes: BTreeMap<Node, Runtime>,
    namespaces: BTreeMap<Node, Netns>,
    workers: RefCell<HashMap<PodName, Worker>>,
    /// The whole lab ends: nothing is worth waiting for.
    ending: Cell<bool>,
    /// What is to run again once the power is back.
    without_power: RefCell<HashMap<Node, HashMap<PodName, Arc<Pod>>>>,
    tally: watch::Sender<Tally>,
}

struct Worker {
    pod: Arc<Pod>,
    node: Node,
    uid: String,
    stop: CancellationToken,
    task: JoinHandle<()>,
    ready: bool,
}

impl Kubelet {
    /// The kubelets of the nodes of one cluster, the one that `state` is seen from.
    pub fn start(
        state: StateDir,
        layout: Layout,
        programs: Rc<Programs>,
        objects: Rc<Objects>,
        cgroups: Rc<Cgroups>,
    ) -> Result<Self> {
        let source = objects.source()?;
        let mut runtimes = BTreeMap::new();
        let mut namespaces = BTreeMap::new();
        for node in layout.nodes(state.cluster()).iter().copied() {
            runtimes.insert(node, Runtime::new(state.clone(), node, programs.clone())?);
            namespaces.insert(
                node,
                Netns::open(state.netns(&Place::Node(node))).context("a node's namespace")?,
            );
        }
        let (tally, ready) = watch::channel(Tally::default());
        let shared = Rc::new(Shared {
            network: layout.network(state.cluster()),
            hbone_engine: Environment::of_process().hbone_engine().to_owned(),
            state,
            programs,
            objects,
            cgroups,
            runtimes,
            namespaces,
            workers: RefCell::default(),
            ending: Cell::new(false),
            without_power: RefCell::default(),
            tally,
        });
        let watcher = tokio::task::spawn_local(watch_pods(source, shared.clone()));
        let power = tokio::task::spawn_local(reboot::follow_orders(shared.clone()));
        Ok(Self {
            shared,
            watcher,
            power,
            ready,
        })
    }

    /// Waits until every pod that is listed runs and is ready.
    pub async fn settled(&mut self) -> Result<()> {
        let settled = self
            .ready
            .wait_for(|tally| tally.listed && tally.ready == tally.pods)
            .await;
        settled.map(drop).context("the kubelets ended")
    }

    /// Which pods are not ready, and why, as lines.
    pub fn complaints(&self, state: &StateDir) -> String {
        let pods = state.pods().unwrap_or_default();
        let late = pods.iter().filter(|pod| {
            pod.message.is_some() || pod.containers.iter().any(|container| !container.ready)
        });
        let lines: Vec<String> = late
            .map(|pod| {
                let why = pod.message.as_deref().unwrap_or("not ready");
                format!(
                    "  {}: {why}; log: {}",
                    pod.pod,
                    state.log(&pod.pod.slug()).display()
                )
            })
            .collect();
        lines.join("\n")
    }

    /// Ends every pod.
    pub async fn stop(self) {
        self.watcher.abort();
        self.power.abort();
        self.shared.ending.set(true);
        let workers: Vec<Worker> = self
            .shared
            .workers
            .borrow_mut()
            .drain()
            .map(|(_, worker)| worker)
            .collect();
        for worker in &workers {
            worker.stop.cancel();
        }
        for worker in workers {
            let _joined = worker.task.await;
        }
    }
}

async fn watch_pods(mut source: cluster::Source, shared: Rc<Shared>) {
    let keep = match shared.objects.are_served() {
        true => Keep::Always,
        false => Keep::WhileBroken,
    };
    let mut in_force = InForce::new(shared.state.in_force(), keep);
    loop {
        let batch = source.next().await;
        if let Err(error) = in_force.follow(&batch) {
            progress(format!("what is in force is not kept: {error:#}"));
        }
        // Names first: the tokens of pods in the same batch need them.
        for event in batch.events.iter() {
            shared.objects.learn(&event);
        }
        for event in batch.events {
            match event {
                Event::Applied(Object::Pod(pod)) => shared.applied(pod).await,
                Event::Deleted(key) if key.kind == cluster::Kind::Pod => shared.deleted(&key),
                _ => {}
            }
        }
        shared.tally.send_modify(|tally| tally.listed = true);
        shared.count();
    }
}

impl Shared {
    async fn applied(self: &Rc<Self>, pod: Arc<Pod>) {
        let Some(name) = name_of(&pod) else { return };
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let leaving = pod.metadata.deletion_timestamp.is_some();
        if let Some(worker) = self
            .workers
            .borrow()
            .get(&name)
            .filter(|worker| worker.uid == uid)
        {
            if leaving {
                worker.stop.cancel();
            }
            return;
        }
        if leaving {
            let (shared, name) = (self.clone(), name.clone());
            tokio::task::spawn_local(async move { shared.finalize(&name, &uid).await });
            return;
        }
        let wanted = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        if wanted.is_none_or(str::is_empty) && self.objects.are_served() {
            tokio::task::spawn_local(self.clone().schedule(name));
            return;
        }
        let Some(node) = wanted
            .and_then(|node| node.parse().ok())
            .filter(|node| self.runtimes.contains_key(node))
        else {
            return;
        };
        if let Some(waiting) = self.without_power.borrow_mut().get_mut(&node) {
            waiting.insert(name, pod);
            return;
        }
        // A pod of the same name with another uid is another pod: the old one ends first.
        let old = self.workers.borrow_mut().remove(&name);
        if let Some(old) = old {
            old.stop.cancel();
            let _joined = old.task.await;
        }
        self.run(name, pod, node);
    }

    fn run(self: &Rc<Self>, name: PodName, pod: Arc<Pod>, node: Node) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let stop = CancellationToken::new();
        let life = PodLife {
            shared: self.clone(),
            pod: pod.clone(),
            name: name.clone(),
            uid: uid.clone(),
            node,
            stop: stop.clone(),
            told: RefCell::default(),
        };
        let task = tokio::task::spawn_local(life.live());
        self.workers.borrow_mut().insert(
            name,
            Worker {
                pod,
                node,
                uid,
                stop,
                task,
                ready: false,
            },
        );
    }

    fn deleted(&self, key: &ObjectKey) {
        let name = PodName::new(key.namespace.as_deref().unwrap_or_default(), &key.name);
        if let Some(worker) = self.workers.borrow_mut().remove(&name) {
            worker.stop.cancel();
        }
        for waiting in self.without_power.borrow_mut().values_mut() {
            waiting.remove(&name);
        }
    }

    /// Nothing of a deleted pod runs any more. A server that is lost is told when it is back.
    async fn finalize(&self, name: &PodName, uid: &str) {
        let mut pause = RETRY;
        while !self.ending.get() {
            let Err(error) = self.objects.gone(&name.key(), uid).await else {
                return;
            };
            progress(format!("{name}: {error:#}"));
            if !self.objects.are_served() {
                return;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_RETRY);
        }
    }

    /// Puts a pod on the node with the fewest, for as long as that fails.
    async fn schedule(self: Rc<Self>, name: PodName) {
        let mut pause = RETRY;
        loop {
            let pods = |node: &Node| {
                let workers = self.workers.borrow();
                workers
                    .values()
                    .filter(|worker| worker.node == *node)
                    .count()
            };
            let Some(node) = self.runtimes.keys().copied().min_by_key(pods) else {
                return;
            };
            let Err(error) = self.objects.bind(&name.key(), node).await else {
                return;
            };
            // Whoever was faster, or took the pod away, has settled it.
            let settled = error
                .downcast_ref::<RequestError>()
                .is_some_and(|error| matches!(error.code(), Some(404 | 409)));
            if settled || self.ending.get() {
                return;
            }
            progress(format!("{name}: cannot put it on {node}: {error:#}"));
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_RETRY);
        }
    }

    fn set_ready(&self, name: &PodName, uid: &str, ready: bool) {
        if let Some(worker) = self
            .workers
            .borrow_mut()
            .get_mut(name)
            .filter(|worker| worker.uid == uid)
        {
            worker.ready = ready;
        }
        self.count();
    }

    fn count(&self) {
        let workers = self.workers.borrow();
        let (pods, ready) = (
            workers.len(),
            workers.values().filter(|worker| worker.ready).count(),
        );
        self.tally.send_if_modified(|tally| {
            let changed = (tally.pods, tally.ready) != (pods, ready);
            (tally.pods, tally.ready) = (pods, ready);
            changed
        });
    }
}

fn name_of(pod: &Pod) -> Option<PodName> {
    Some(PodName::new(
        pod.metadata.namespace.as_deref()?,
        pod.metadata.name.as_deref()?,
    ))
}
