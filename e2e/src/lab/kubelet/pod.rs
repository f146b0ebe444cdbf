// SPDX-License-Identifier: Apache-2.0
//! One pod's life on its node: sandbox, containers, probes, status, end.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use cluster::kinds::Pod;
use cluster::{ObjectKey, Partial};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::running::{Backoff, FIRST_BACKOFF, LONGEST_BACKOFF, Running};
use crate::lab::container::{Process, Variables};
use crate::lab::probe::Check;
use crate::lab::progress;
use crate::lab::sandbox::Sandbox;
use crate::lab::volumes::{ProjectedToken, projected_tokens};
use crate::manifests::now;
use crate::state::{Phase, PodRecord, write_json};
use crate::tokens::{Bearer, Named};
use crate::topology::{CONTROL_PLANE_PORT, Node, Place, PodName};

/// One pod from its first sandbox to its removal.
pub(super) struct PodLife {
    pub(super) shared: Rc<Shared>,
    pub(super) pod: Arc<Pod>,
    pub(super) name: PodName,
    pub(super) uid: String,
    pub(super) node: Node,
    pub(super) stop: CancellationToken,
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
                self.forget();
            }
            return;
        };
        let mut containers = Vec::new();
        match self.prepare(&ground) {
            Ok((prepared, tokens)) => {
                containers = prepared;
                let renewing = self.renew(tokens);
                tokio::select! {
                    () = self.run(&ground, &mut containers) => {}
                    () = renewing => {}
                    () = self.stop.cancelled() => {}
                }
            }
            Err(error) => {
                self.report(
                    Some(&ground),
                    &[],
                    Phase::Failed,
                    Some(format!("{error:#}")),
                );
                self.stop.cancelled().await;
            }
        }
        self.end(ground, containers).await;
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
                    self.report(None, &[], Phase::Pending, Some(format!("{error:#}")));
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

    fn prepare(&self, ground: &Ground) -> Result<(Vec<Running>, Vec<ProjectedToken>)> {
        let spec = self.pod.spec.as_ref().context("the pod has no spec")?;
        let folder = self.folder();
        crate::environment::private_directory(&folder)?;
        let tokens = projected_tokens(&self.pod, &folder);
        for token in &tokens {
            token.write(&self.shared.issuer, &self.bearer()?)?;
        }
        let variables = self.variables(ground);
        let resolv_conf = self.resolv_conf()?;
        let cgroup = self.shared.cgroups.of_pod(self.own_uid());
        let mut containers = Vec::new();
        for container in &spec.containers {
            let process = Process {
                resolv_conf: resolv_conf.clone(),
                cgroup: cgroup.clone(),
                ..Process::of_container(&self.pod, container, &self.shared.programs, &variables)?
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
        Ok((containers, tokens))
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

    fn bearer(&self) -> Result<Bearer> {
        let account = self
            .pod
            .spec
            .as_ref()
            .and_then(|spec| spec.service_account_name.as_deref())
            .unwrap_or("default");
        let account =
            ObjectKey::namespaced(cluster::Kind::ServiceAccount, &self.name.namespace, account);
        Ok(Bearer {
            namespace: self.name.namespace.clone(),
            service_account: self.shared.uid_of(&account)?,
            pod: Named {
                name: self.name.name.clone(),
                uid: self.uid.clone(),
            },
            node: self.shared.uid_of(&ObjectKey::cluster_wide(
                cluster::Kind::Node,
                self.node.name(),
            ))?,
        })
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
            ("LAB_MANIFESTS", path(state.manifests())),
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

    async fn renew(&self, tokens: Vec<ProjectedToken>) {
        let Some(shortest) = tokens.iter().map(ProjectedToken::renew_after).min() else {
            return std::future::pending().await;
        };
        loop {
            tokio::time::sleep(shortest).await;
            for token in &tokens {
                let written = self
                    .bearer()
                    .and_then(|bearer| token.write(&self.shared.issuer, &bearer));
                if let Err(error) = written {
                    progress(format!("{}: cannot renew its token: {error:#}", self.name));
                }
            }
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
                written = self.report(Some(ground), containers, Phase::Running, complaint.clone());
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
        self.forget();
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

    fn forget(&self) {
        self.shared.cgroups.remove(self.own_uid());
        // A record that was never written need not be removed.
        let _no_record = std::fs::remove_file(self.shared.state.pod_record(&self.name));
        let _no_names = std::fs::remove_file(self.shared.state.resolv_conf_of(&self.name));
        if let Err(error) = self.shared.status.remove(&self.key()) {
            progress(format!("{}: cannot remove its status: {error}", self.name));
        }
        self.shared.finalize(&self.name, &self.uid);
    }

    fn key(&self) -> ObjectKey {
        ObjectKey::namespaced(cluster::Kind::Pod, &self.name.namespace, &self.name.name)
    }

    fn addresses(&self, ground: Option<&Ground>) -> Option<crate::topology::Pair> {
        match ground? {
            Ground::Host => Some(self.node.uplink()),
            Ground::Own(sandbox) => Some(sandbox.addresses),
        }
    }

    /// Writes the pod's status into the cluster and the lab's record of it; true if both are written.
    fn report(
        &self,
        ground: Option<&Ground>,
        containers: &[Running],
        phase: Phase,
        message: Option<String>,
    ) -> bool {
        let ready = !containers.is_empty() && containers.iter().all(|container| container.ready);
        let status = self.write_status(ground, ready, phase, message.as_deref());
        if let Err(error) = &status {
            progress(format!("{}: cannot write its status: {error:#}", self.name));
        }
        let recorded = self.record(ground, containers, phase, message);
        self.shared.set_ready(&self.name, &self.uid, ready);
        status.is_ok() && recorded
    }

    fn write_status(
        &self,
        ground: Option<&Ground>,
        ready: bool,
        phase: Phase,
        message: Option<&str>,
    ) -> Result<()> {
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
        let partial = Partial {
            status,
            ..Partial::default()
        };
        self.shared
            .status
            .write(&self.key(), &self.uid, &partial)
            .map(drop)
            .context("status")
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
