// SPDX-License-Identifier: Apache-2.0
//! One pod's life on its node: sandbox, containers, probes, status, end.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use cluster::Partial;
use cluster::kinds::Pod;
use futures_util::future::join_all;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::running::{Backoff, FIRST_BACKOFF, LONGEST_BACKOFF, Running};
use crate::lab::container::{Process, Variables};
use crate::lab::objects::Holder;
use crate::lab::probe::Check;
use crate::lab::progress;
use crate::lab::sandbox::Sandbox;
use crate::lab::volumes::{Volume, volumes};
use crate::manifests::now;
use crate::state::{Phase, PodRecord, write_json};
use crate::tokens::Named;
use crate::topology::{CONTROL_PLANE_PORT, Node, Place, PodName};

/// One pod from its first sandbox to its removal.
pub(super) struct PodLife {
    pub(super) shared: Rc<Shared>,
    pub(super) pod: Arc<Pod>,
    pub(super) name: PodName,
    pub(super) uid: String,
    pub(super) node: Node,
    pub(super) stop: CancellationToken,
    /// What an API server has been told of it last: nobody else says it, so that it need not be told twice.
    pub(super) told: RefCell<Option<Partial>>,
}

/// Where a pod's containers run.
enum Ground {
    /// The node's own namespace.
    Host,
    Own(Sandbox),
}

/// An annotation with a number from 10 to 249.
const WANTED_HOST: &str = "lab.culvert/host";
/// What kubelets write on the pod that stands in the API for a static one: the UID that they have for that.
const STATIC_UID: &str = "kubernetes.io/config.hash";
const PROBE_EVERY: Duration = Duration::from_millis(200);
const PROBE_READY_EVERY: Duration = Duration::from_secs(1);
const LAST_GRACE: Duration = Duration::from_secs(1);

impl PodLife {
    pub(super) async fn live(self) {
        self.record(None, &[], Phase::Pending, None);
        let Some(ground) = self.ground().await else {
            if !self.has_no_power() {
                self.forget().await;
            }
            return;
        };
        let mut containers = Vec::new();
        let volumes = volumes(&self.pod, &self.folder());
        let running = async {
            let pod = self.mount(&ground, &volumes).await;
            match self.prepare(&ground, &pod) {
                Ok(prepared) => containers = prepared,
                Err(error) => {
                    let why = Some(format!("{error:#}"));
                    self.report(Some(&ground), &[], Phase::Failed, why).await;
                    return std::future::pending().await;
                }
            }
            tokio::select! {
                () = self.run(&ground, &mut containers) => {}
                () = self.renew(&volumes) => {}
            }
        };
        tokio::select! {
            () = running => {}
            () = self.stop.cancelled() => {}
        }
        self.end(ground, containers).await;
    }

    /// Fills the volumes. What they are made of may be about to be made, as a namespace's roots are: it is waited for.
    /// Gives the pod back with its mounts.
    async fn mount(&self, ground: &Ground, volumes: &[Volume]) -> Arc<Pod> {
        let mut backoff = FIRST_BACKOFF;
        loop {
            let why = match self.fill(volumes).await {
                Ok(pod) => return pod,
                Err(error) => Some(format!("{error:#}")),
            };
            self.report(Some(ground), &[], Phase::Pending, why).await;
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(LONGEST_BACKOFF);
        }
    }

    async fn fill(&self, volumes: &[Volume]) -> Result<Arc<Pod>> {
        crate::environment::private_directory(&self.folder())?;
        if let Some(kubeconfig) = self.shared.objects.kubeconfig(&self.api_token()) {
            write_json(&self.kubeconfig(), &kubeconfig)?;
        }
        let holder = self.holder();
        for volume in volumes {
            volume.write(&self.shared.objects, &holder).await?;
        }
        self.shared.objects.whole(&self.pod, &self.name.key()).await
    }

    /// How the API server is reached by what runs in the pod, with the token of a volume `api` ...
    fn kubeconfig(&self) -> PathBuf {
        self.folder().join("kubeconfig")
    }

    /// ... if it has one.
    fn api_token(&self) -> PathBuf {
        self.folder().join("api").join("token")
    }

    /// Tries for a sandbox until it works or the pod is deleted.
    async fn ground(&self) -> Option<Ground> {
        if self.host_network() {
            return Some(Ground::Host);
        }
        let mut backoff = FIRST_BACKOFF;
        loop {
            let wanted = self.wanted_host();
            let attempt = self.shared.runtimes[&self.node].add(&self.name, self.own_uid(), wanted);
            match attempt.await {
                Ok(sandbox) => return Some(Ground::Own(sandbox)),
                Err(error) => {
                    let why = Some(format!("{error:#}"));
                    self.report(None, &[], Phase::Pending, why).await;
                }
            }
            tokio::select! {
                () = tokio::time::sleep(backoff) => {}
                () = self.stop.cancelled() => return None,
            }
            backoff = (backoff * 2).min(LONGEST_BACKOFF);
        }
    }

    /// The last part of the address that the pod asks for, as some network plugins let it.
    fn wanted_host(&self) -> Option<u8> {
        self.annotation(WANTED_HOST)?.parse().ok()
    }

    /// The UID that the kubelet itself and the runtime have for the pod: the API's, unless it is a static one.
    fn own_uid(&self) -> &str {
        self.annotation(STATIC_UID).unwrap_or(&self.uid)
    }

    fn annotation(&self, name: &str) -> Option<&str> {
        let annotations = self.pod.metadata.annotations.as_ref()?;
        annotations.get(name).map(String::as_str)
    }

    fn host_network(&self) -> bool {
        self.pod
            .spec
            .as_ref()
            .and_then(|spec| spec.host_network)
            .unwrap_or(false)
    }

    fn prepare(&self, ground: &Ground, pod: &Pod) -> Result<Vec<Running>> {
        let spec = pod.spec.as_ref().context("the pod has no spec")?;
        let variables = self.variables(ground);
        let resolv_conf = self.resolv_conf()?;
        let cgroup = self.shared.cgroups.of_pod(self.own_uid());
        let mut containers = Vec::new();
        for container in &spec.containers {
            let process = Process {
                resolv_conf: resolv_conf.clone(),
                cgroup: cgroup.clone(),
                ..Process::of_container(pod, container, &self.shared.programs, &variables)?
            };
            let log = if spec.containers.len() == 1 {
                self.name.slug()
            } else {
                format!("{}_{}", self.name.slug(), container.name)
            };
            containers.push(Running {
                name: container.name.clone(),
                process,
                check: Check::of_probe(container.readiness_probe.as_ref())?,
                log: self.shared.state.log(&log),
                held_down: self.shared.state.held_down(&self.name.slug()),
                upgrade_order: self.shared.state.upgrade_order(&self.name.slug()),
                carried_out: false,
                child: None,
                relieved: Vec::new(),
                restarts: 0,
                start: Backoff {
                    not_before: Instant::now(),
                    delay: FIRST_BACKOFF,
                },
                ready: false,
            });
        }
        Ok(containers)
    }

    /// Pods on the node's network resolve names as it does.
    fn resolv_conf(&self) -> Result<Option<PathBuf>> {
        if self.host_network() {
            return Ok(None);
        }
        let path = self.shared.state.resolv_conf_of(&self.name);
        crate::lab::resolver::write_of_pod(&path, &self.name.namespace)?;
        Ok(Some(path))
    }

    fn folder(&self) -> PathBuf {
        self.shared
            .state
            .node(self.node)
            .join("volumes")
            .join(self.name.slug())
    }

    fn holder(&self) -> Holder {
        let spec = self.pod.spec.as_ref();
        let account = spec.and_then(|spec| spec.service_account_name.as_deref());
        Holder {
            namespace: self.name.namespace.clone(),
            account: account.unwrap_or("default").to_owned(),
            pod: Named {
                name: self.name.name.clone(),
                uid: self.uid.clone(),
            },
            node: self.node,
        }
    }

    /// What `$(…)` may stand for in a container of the lab, as there are no mounts.
    fn variables(&self, ground: &Ground) -> Variables {
        let addresses = self.addresses(Some(ground));
        let state = &self.shared.state;
        let path = |path: PathBuf| path.display().to_string();
        [
            (
                "LAB_POD_IP",
                addresses
                    .map(|pair| pair.v4.to_string())
                    .unwrap_or_default(),
            ),
            ("LAB_HOST_IP", self.node.uplink().v4.to_string()),
            ("LAB_SOURCE", self.shared.objects.source_argument()),
            // Where there is no API server nobody reads it.
            ("LAB_KUBECONFIG", path(self.kubeconfig())),
            ("LAB_NODE_DIR", path(state.node(self.node))),
            ("LAB_VOLUMES", path(self.folder())),
            ("LAB_ROOT_CERTIFICATES", path(state.root_certificates())),
            (
                "LAB_CONTROL_PLANE",
                format!(
                    "https://{}:{CONTROL_PLANE_PORT}",
                    state.cluster().control_plane_name()
                ),
            ),
            ("LAB_CLUSTER_ID", state.cluster().id().to_owned()),
            ("LAB_NETWORK", self.shared.network.to_owned()),
            ("LAB_HBONE_ENGINE", self.shared.hbone_engine.clone()),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
    }

    /// Keeps the volumes as they are to be; never ends.
    async fn renew(&self, volumes: &[Volume]) {
        let holder = self.holder();
        join_all(volumes.iter().map(|volume| self.renew_one(volume, &holder))).await;
        std::future::pending().await
    }

    async fn renew_one(&self, volume: &Volume, holder: &Holder) {
        let mut pause = volume.renew_after();
        loop {
            tokio::time::sleep(pause).await;
            pause = match volume.write(&self.shared.objects, holder).await {
                Ok(()) => volume.renew_after(),
                Err(error) => {
                    progress(format!("{}: cannot renew a volume: {error:#}", self.name));
                    LONGEST_BACKOFF
                }
            };
        }
    }

    /// Keeps the containers running and says whether they are ready.
    async fn run(&self, ground: &Ground, containers: &mut [Running]) {
        let node = &self.shared.namespaces[&self.node];
        let address = match ground {
            Ground::Host => self.node.uplink().v4,
            Ground::Own(sandbox) => sandbox.addresses.v4,
        };
        let netns = self.netns(ground);
        let mut complaint = None;
        let mut written = true;
        loop {
            let mut changed = false;
            for container in containers.iter_mut() {
                changed |= container.keep_running(&self.shared.programs, &netns, &mut complaint);
                let answer = match container.child {
                    Some(_) => container.check.ask(node, address.into()).await,
                    None => Err("not running".into()),
                };
                changed |= container.ready != answer.is_ok();
                container.ready = answer.is_ok();
                complaint = answer
                    .err()
                    .map(|why| format!("container {}: {why}", container.name));
            }
            let ready = containers.iter().all(|container| container.ready);
            // What could not be written, as on a full disk, is written again.
            if changed || !ready || !written {
                let why = complaint.clone();
                written = self
                    .report(Some(ground), containers, Phase::Running, why)
                    .await;
            }
            if written {
                containers.iter_mut().for_each(Running::order_recorded);
            }
            tokio::time::sleep(if ready {
                PROBE_READY_EVERY
            } else {
                PROBE_EVERY
            })
            .await;
        }
    }

    fn netns(&self, ground: &Ground) -> PathBuf {
        match ground {
            Ground::Host => self.shared.state.netns(&Place::Node(self.node)),
            Ground::Own(sandbox) => sandbox.netns.clone(),
        }
    }

    /// Asks the containers to end, waits for their grace period, then makes them.
    async fn end(self, ground: Ground, mut containers: Vec<Running>) {
        if self.has_no_power() {
            return self.vanish(ground, containers).await;
        }
        let grace = self
            .pod
            .spec
            .as_ref()
            .and_then(|spec| spec.termination_grace_period_seconds)
            .unwrap_or(30);
        let mut grace = Duration::from_secs(u64::try_from(grace).unwrap_or_default());
        if self.shared.ending.get() {
            grace = grace.min(LAST_GRACE);
        }
        for child in containers.iter_mut().flat_map(Running::children) {
            if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
                // It may have ended by itself between the two calls.
                let _already_gone = kill(Pid::from_raw(pid), Signal::SIGTERM);
            }
        }
        let ends = async {
            for child in containers.iter_mut().flat_map(Running::children) {
                let _status = child.wait().await;
            }
        };
        if tokio::time::timeout(grace, ends).await.is_err() {
            for child in containers.iter_mut().flat_map(Running::children) {
                let _already_gone = child.kill().await;
            }
        }
        if let Ground::Own(sandbox) = &ground
            && !self.shared.ending.get()
            && let Err(error) = self.shared.runtimes[&self.node].remove(sandbox).await
        {
            progress(format!("{}: {error:#}", self.name));
        }
        self.forget().await;
    }

    fn has_no_power(&self) -> bool {
        self.shared.without_power.borrow().contains_key(&self.node)
    }

    /// Nobody is asked, nobody is told: the network goes first, or the kernel would end the connections of what it kills.
    async fn vanish(self, ground: Ground, mut containers: Vec<Running>) {
        if let Ground::Own(sandbox) = &ground
            && let Err(error) = self.shared.runtimes[&self.node].vanish(sandbox).await
        {
            progress(format!("{}: {error:#}", self.name));
        }
        for child in containers.iter_mut().flat_map(Running::children) {
            let _already_gone = child.kill().await;
        }
    }

    async fn forget(&self) {
        self.shared.cgroups.remove(self.own_uid());
        // A record that was never written need not be removed.
        let _no_record = std::fs::remove_file(self.shared.state.pod_record(&self.name));
        let _no_names = std::fs::remove_file(self.shared.state.resolv_conf_of(&self.name));
        self.shared.finalize(&self.name, &self.uid).await;
    }

    fn addresses(&self, ground: Option<&Ground>) -> Option<crate::topology::Pair> {
        match ground? {
            Ground::Host => Some(self.node.uplink()),
            Ground::Own(sandbox) => Some(sandbox.addresses),
        }
    }

    /// Writes the pod's status into the cluster and the lab's record of it; true if both are written.
    async fn report(
        &self,
        ground: Option<&Ground>,
        containers: &[Running],
        phase: Phase,
        message: Option<String>,
    ) -> bool {
        let ready = !containers.is_empty() && containers.iter().all(|container| container.ready);
        let status = self
            .say(self.status(ground, ready, phase, message.as_deref()))
            .await;
        if let Err(error) = &status {
            progress(format!("{}: cannot write its status: {error:#}", self.name));
        }
        let recorded = self.record(ground, containers, phase, message);
        self.shared.set_ready(&self.name, &self.uid, ready);
        status.is_ok() && recorded
    }

    async fn say(&self, status: Partial) -> Result<()> {
        let objects = &self.shared.objects;
        if objects.are_served() && self.told.borrow().as_ref() == Some(&status) {
            return Ok(());
        }
        objects.say(&self.name.key(), &self.uid, &status).await?;
        *self.told.borrow_mut() = Some(status);
        Ok(())
    }

    fn status(
        &self,
        ground: Option<&Ground>,
        ready: bool,
        phase: Phase,
        message: Option<&str>,
    ) -> Partial {
        let condition = |kind: &str, holds: bool| {
            let mut condition =
                json!({"type": kind, "status": if holds { "True" } else { "False" }});
            if let Some(message) = message.filter(|_| !holds) {
                condition["message"] = json!(message);
            }
            condition
        };
        let host = self.node.uplink();
        let mut status = json!({
            "phase": phase,
            "hostIP": host.v4,
            "hostIPs": host.both().map(|ip| json!({"ip": ip})),
            "conditions": [
                condition("Initialized", true),
                condition("PodReadyToStartContainers", ground.is_some()),
                condition("ContainersReady", ready),
                condition("Ready", ready),
            ],
        });
        if let Some(addresses) = self.addresses(ground) {
            status["podIP"] = json!(addresses.v4);
            status["podIPs"] = json!(addresses.both().map(|ip| json!({"ip": ip})));
            status["startTime"] = json!(
                self.pod
                    .metadata
                    .creation_timestamp
                    .as_ref()
                    .map_or_else(|| json!(now()), |time| json!(time))
            );
        }
        let serde_json::Value::Object(status) = status else {
            unreachable!("broken invariant: status is an object")
        };
        Partial {
            status,
            ..Partial::default()
        }
    }

    fn record(
        &self,
        ground: Option<&Ground>,
        containers: &[Running],
        phase: Phase,
        message: Option<String>,
    ) -> bool {
        let record = PodRecord {
            pod: self.name.clone(),
            uid: self.uid.clone(),
            node: self.node,
            netns: ground.map(|ground| self.netns(ground)).unwrap_or_default(),
            addresses: self.addresses(ground),
            host_network: self.host_network(),
            containers: containers.iter().map(Running::record).collect(),
            phase,
            message,
        };
        let written = write_json(&self.shared.state.pod_record(&self.name), &record);
        if let Err(error) = &written {
            progress(format!("{}: cannot write its record: {error:#}", self.name));
        }
        written.is_ok()
    }
}
