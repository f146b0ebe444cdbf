// SPDX-License-Identifier: Apache-2.0
//! Where it is measured: a lab with a client, a server, and two waypoints between them, each of its own service.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::envoy;
use super::results::{ENVOY, OURS};
use crate::bench::data_path::ground::{Running, mesh};
use crate::bench::data_path::load::{Done, REQUESTS};
use crate::bench::envoy::Envoy;
use crate::environment::Environment;
use crate::handle::{Lab, Start, eventually};
use crate::topology::{Layout, Node};
use crate::waypoints::Waypoint;

/// Connections with which many routes are held against one.
pub(super) const MANY_WORTH: usize = 64;

const PATIENCE: Duration = Duration::from_secs(120);
/// Rules that one HTTPRoute may have.
const RULES: usize = 16;

const WAYPOINT: Waypoint = Waypoint {
    namespace: "bench",
    name: OURS,
    node: Node::B,
    serves: "service",
    number: 50,
};
/// The Gateway of which Envoy's pod is an instance.
const GATEWAY: Waypoint = Waypoint {
    name: ENVOY,
    number: 51,
    ..WAYPOINT
};

pub(super) struct Ground {
    lab: Lab,
    envoy: Option<(Envoy, PathBuf)>,
    _server: Running,
}

impl Ground {
    pub(super) fn start(
        environment: &Environment,
        programs: &Path,
        envoy: Option<PathBuf>,
    ) -> Result<Self> {
        let manifests = tempfile::tempdir().context("a folder for manifests")?;
        std::fs::write(manifests.path().join("mesh.yaml"), roomy(&mesh()?)?)?;
        std::fs::write(manifests.path().join("bench.yaml"), objects())?;
        let start = Start {
            name: format!("bench-waypoint-{}", std::process::id()),
            executable: std::env::current_exe().context("the path of this program")?,
            bin_dir: programs.to_owned(),
            manifests: Some(manifests.path().to_owned()),
            layout: Layout::OneCluster,
            keep: false,
            disks: Default::default(),
            api_server: false,
        };
        let lab = Lab::start(environment, &start, |line| eprintln!("  {line}"))?;
        for pod in ["client", "server", OURS, ENVOY] {
            lab.wait_ready(&format!("bench/{pod}"))?;
        }
        let (server, said) = Running::start(lab.tool("bench/server", &["bench-serve"]))?;
        ensure!(said.trim() == "ready", "the server said {said:?}");
        for daemon in ["ztunnel-a", "ztunnel-b", WAYPOINT.pod().as_str()] {
            lab.process(daemon)?.limit_descriptors(None)?;
        }
        let mut ground = Self {
            lab,
            envoy: None,
            _server: server,
        };
        if let Some(program) = envoy {
            ground.start_envoy(program, 1)?;
        }
        ground.settle("v0")?;
        Ok(ground)
    }

    fn start_envoy(&mut self, program: PathBuf, routes: usize) -> Result<()> {
        // Its port and its name among the machine's Envoys must be free first.
        self.envoy = None;
        let server = self.lab.v4("bench/server", REQUESTS)?;
        let told = |files: &str| envoy::text(files, server, routes);
        let place = GATEWAY.pod();
        let running = Envoy::start(&self.lab, &place, (&program, 30), told)?;
        self.envoy = Some((running, program));
        Ok(())
    }

    /// Waits until all ways work, and go by the header.
    fn settle(&self, version: &str) -> Result<()> {
        let chosen = format!("x-version: {version}");
        for contestant in self.contestants() {
            let what = format!("{contestant} goes by {chosen:?}");
            eventually(&what, PATIENCE, || {
                let get = |header: &str| {
                    let target = front(contestant);
                    let arguments = ["get", &target, "/sixty-four", "--header", header];
                    self.lab.traffic("bench/client", &arguments)
                };
                let report = get(&chosen)?;
                ensure!(report.is_done(), "{report:?}");
                let report = get("x-version: none")?;
                ensure!(!report.is_done(), "another header leads there too");
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Those that compete.
    pub(super) fn contestants(&self) -> Vec<&'static str> {
        let envoy = self.envoy.iter().map(|_| ENVOY);
        [OURS].into_iter().chain(envoy).collect()
    }

    fn pid(&self, contestant: &str) -> Result<u32> {
        match (&self.envoy, contestant) {
            (Some((envoy, _)), ENVOY) => envoy.pid(),
            _ => Ok(self.lab.process(&WAYPOINT.pod())?.pid),
        }
    }

    /// Bytes that a contestant has for itself.
    pub(super) fn memory(&self, contestant: &str) -> Result<u64> {
        crate::handle::memory(self.pid(contestant)?)
    }

    /// Does some work; says what it came to and the seconds of processor time that the contestant took for it.
    pub(super) fn measure(
        &self,
        contestant: &str,
        connections: usize,
        seconds: f64,
    ) -> Result<(Done, f64)> {
        let pid = self.pid(contestant)?;
        let before = crate::handle::processor_seconds(pid)?;
        let (target, connections, seconds) = (
            front(contestant),
            connections.to_string(),
            seconds.to_string(),
        );
        let arguments = [
            "bench-load",
            "requests",
            &target,
            "--connections",
            &connections,
            "--seconds",
            &seconds,
        ];
        let done = self.lab.answer("bench/client", &arguments);
        let done = done.with_context(|| format!("{connections} connections by {contestant}"))?;
        Ok((done, crate::handle::processor_seconds(pid)? - before))
    }

    /// What each holds with so many connections open, on which a request was made each, once they have rested for a while.
    pub(super) fn hold(&self, connections: usize) -> Result<Vec<(String, u64)>> {
        let mut held = Vec::new();
        for contestant in self.contestants() {
            let (target, connections) = (front(contestant), connections.to_string());
            let arguments = [
                "bench-load",
                "idle-requests",
                &target,
                "--connections",
                &connections,
            ];
            let (holding, said) = Running::start(self.lab.tool("bench/client", &arguments))
                .with_context(|| format!("{connections} connections held by {contestant}"))?;
            let done: Done = serde_json::from_str(&said).context("what the load said")?;
            if done.errors > 0 {
                eprintln!(
                    "{} failed while {connections} were opened by {contestant}",
                    done.errors
                );
            }
            held.push((contestant.to_owned(), self.memory(contestant)?));
            drop(holding);
        }
        Ok(held)
    }

    /// Gives each so many routes, of which the load takes the last. Both begin anew, so that neither holds on to what
    /// earlier work took.
    pub(super) fn add_routes(&mut self, routes: usize) -> Result<()> {
        self.lab.apply(&many(routes))?;
        let ours = WAYPOINT.pod();
        self.lab.kill(&ours)?;
        eventually("the waypoint runs again", PATIENCE, || {
            self.lab.process(&ours)?.limit_descriptors(None)
        })?;
        if let Some(program) = self.envoy.as_ref().map(|(_, program)| program.clone()) {
            self.start_envoy(program, routes)?;
        }
        self.settle(&format!("v{}", routes - 1))?;
        self.settle("v0")
    }
}

/// Proxies of nodes that let a crowd in, however few descriptors the machine grants a program by itself.
fn roomy(mesh: &str) -> Result<String> {
    let shortcut = "    - {name: SAME_NODE_SHORTCUT, value: shortcut}\n";
    ensure!(
        mesh.contains(shortcut),
        "the proxies' manifests have changed"
    );
    let room = "    - {name: MAX_CONNECTIONS_PER_POD, value: \"60000\"}\n";
    Ok(mesh.replace(shortcut, room))
}

/// Where a contestant's service is.
fn front(contestant: &str) -> String {
    let number = if contestant == ENVOY { 53 } else { 52 };
    format!("10.96.0.{number}:80")
}

/// Routes by a header's value, from v1 on; the first is there already, and comes last.
fn many(routes: usize) -> String {
    let values: Vec<usize> = (1..routes).collect();
    let mut text = String::new();
    for (number, chunk) in values.chunks(RULES).enumerate() {
        route(&mut text, &format!("a{number:04}"), chunk);
    }
    text
}

fn route(text: &mut String, name: &str, values: &[usize]) {
    let _ = write!(
        text,
        "apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: {name}, namespace: bench}}
spec:
  parentRefs: [{{group: '', kind: Service, name: {OURS}-front, port: 80}}]
  rules:
"
    );
    for value in values {
        let _ = writeln!(
            text,
            "  - {{matches: [{{headers: [{{name: x-version, value: v{value}}}]}}], backendRefs: [{{name: server, port: 80}}]}}"
        );
    }
    text.push_str("---\n");
}

fn objects() -> String {
    let mut text = String::from(
        "apiVersion: v1
kind: Namespace
metadata: {name: bench, labels: {istio.io/dataplane-mode: ambient}}
---
",
    );
    let bound = "    - {name: MAX_REQUESTS_PER_ENDPOINT, value: \"100000\"}\n";
    let manifest = WAYPOINT.manifest();
    // As Envoy's circuit breakers: a crowd comes to the one server that there is.
    text.push_str(&manifest.replacen("    env:\n", &format!("    env:\n{bound}"), 1));
    // With the account of Envoy's pod.
    text.push_str(&GATEWAY.gateway());
    for account in ["client", "server"] {
        let _ = write!(
            text,
            "apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: {account}, namespace: bench}}\n---\n"
        );
    }
    let native = "gateway.networking.k8s.io/gateway-name: envoy, istio.io/dataplane-mode: none, networking.istio.io/tunnel: http";
    for (pod, node, labels) in [
        ("client", Node::A, "app: client"),
        ("server", Node::B, "app: server"),
        (ENVOY, Node::B, native),
    ] {
        let _ = write!(
            text,
            "apiVersion: v1
kind: Pod
metadata: {{name: {pod}, namespace: bench, labels: {{{labels}}}}}
spec:
  nodeName: {node}
  serviceAccountName: {pod}
  terminationGracePeriodSeconds: 1
  volumes:
  - name: tokens
    projected: {{sources: [{{serviceAccountToken: {{audience: istio-ca, path: istio-token}}}}]}}
  containers: [{{name: app, image: culvert/app}}]
---
"
        );
    }
    for (service, number, waypoint) in [
        ("culvert-front", 52, "istio.io/use-waypoint: culvert"),
        ("envoy-front", 53, "istio.io/use-waypoint: envoy"),
        ("server", 54, ""),
    ] {
        let _ = write!(
            text,
            "apiVersion: v1
kind: Service
metadata: {{name: {service}, namespace: bench, labels: {{{waypoint}}}}}
spec:
  selector: {{app: server}}
  clusterIP: 10.96.0.{number}
  clusterIPs: [10.96.0.{number}]
  ports: [{{name: http, port: 80, targetPort: {REQUESTS}}}]
---
"
        );
    }
    route(&mut text, "z-last", &[0]);
    text.push_str(
        "apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: front, namespace: bench}
spec:
  targetRefs: [{group: '', kind: Service, name: culvert-front}]
  action: ALLOW
  rules:
  - from: [{source: {principals: [cluster.local/ns/bench/sa/client]}}]
    to: [{operation: {methods: [GET], paths: [/sixty-four]}}]
",
    );
    text
}
