// SPDX-License-Identifier: Apache-2.0
//! Where it is measured: a lab for each program that plays `ztunnel`, in it a client and two servers of each contestant,
//! and whose processor time counts.
//!
//! ```text
//!  lab of culvert      direct: pods outside the mesh      culvert: in it      shortcut: in it, SAME_NODE_SHORTCUT
//!                      envoy: pods that terminate their own tunnels, by Envoy, where it is found
//!  lab of each other   the same pods in the mesh, the other program as the nodes' ztunnel
//! ```

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::envoy::Envoy;
use super::load::{Done, ECHO, Kind};
use super::results::{Contestant, DIRECT};
use super::works::Work;
use crate::environment::Environment;
use crate::handle::{Lab, Start, eventually, proxy_of};
use crate::topology::{Layout, Node};

/// The mesh's own manifests, in which proxies are told what the bench wants of them.
const MESH: &str = include_str!("../../../manifests/mesh.yaml");
const OURS: &str = "culvert";
const SHORTCUT: &str = "culvert-shortcut";

/// A lab with its contestants.
pub(super) struct Ground {
    pub(super) lab: Lab,
    /// Programs of this ground, as links; gone with it.
    _programs: tempfile::TempDir,
}

/// One that competes.
pub(super) struct Runner {
    pub(super) about: Contestant,
    /// Index of its ground.
    pub(super) ground: usize,
    /// Of its pods: `client` on node a, `far` on node b, `near` on node a.
    namespace: &'static str,
    envoy: Option<Envoy>,
    only_same_node: bool,
    _servers: [Running; 2],
}

/// A program in the lab that ends with this value.
pub(in crate::bench) struct Running {
    pub(in crate::bench) process: Child,
    lifeline: Option<ChildStdin>,
}

impl Running {
    /// Starts it and waits for its first line, which is returned.
    pub(in crate::bench) fn start(mut command: Command) -> Result<(Self, String)> {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run e2e exec")?;
        let lifeline = process.stdin.take();
        let output = process.stdout.take().context("its output")?;
        let running = Self { process, lifeline };
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        ensure!(!line.is_empty(), "it ended without a word");
        Ok((running, line))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        let _already_gone = self.process.kill();
        let _reaped = self.process.wait();
    }
}

impl Ground {
    /// Starts a lab whose nodes run `ztunnel`, all other programs being those of `programs`.
    pub(super) fn start(
        environment: &Environment,
        name: &str,
        programs: &Path,
        ztunnel: &Path,
    ) -> Result<Self> {
        let links = tempfile::tempdir().context("a folder for programs")?;
        for program in crate::binaries::PROGRAMS {
            let target = match program {
                "ztunnel" => ztunnel.to_owned(),
                other => programs.join(other),
            };
            ensure!(target.is_file(), "there is no program {}", target.display());
            std::os::unix::fs::symlink(&target, links.path().join(program))?;
        }
        let manifests = tempfile::tempdir().context("a folder for manifests")?;
        std::fs::write(manifests.path().join("mesh.yaml"), mesh()?)?;
        std::fs::write(manifests.path().join("bench.yaml"), pods())?;
        let start = Start {
            name: format!("bench-{name}-{}", std::process::id()),
            executable: std::env::current_exe().context("the path of this program")?,
            bin_dir: links.path().to_owned(),
            manifests: Some(manifests.path().to_owned()),
            layout: Layout::OneCluster,
            keep: false,
            disks: Default::default(),
            api_server: false,
        };
        let lab = Lab::start(environment, &start, |line| eprintln!("  {name}: {line}"))?;
        for namespace in ["direct", "culvert", "shortcut", "envoy"] {
            for pod in ["client", "far", "near"] {
                lab.wait_ready(&format!("{namespace}/{pod}"))?;
            }
        }
        Ok(Self {
            lab,
            _programs: links,
        })
    }

    /// Processor time that its proxies have taken so far.
    fn proxies(&self) -> Result<f64> {
        let nodes = Node::ALL.iter().map(|node| {
            let process = self.lab.process(proxy_of(*node))?;
            process.processor_seconds()
        });
        nodes.sum()
    }

    /// Memory of the node's proxies that is their own.
    pub(super) fn memory(&self) -> Result<u64> {
        let nodes = Node::ALL
            .iter()
            .map(|node| self.lab.process(proxy_of(*node))?.memory());
        nodes.sum()
    }
}

impl Runner {
    pub(super) fn of_ours(grounds: &[Ground], envoy: Option<&Path>) -> Result<Vec<Self>> {
        let mut all = vec![
            Self::new(
                grounds,
                0,
                DIRECT,
                "no proxy: pods outside the mesh",
                "direct",
            )?,
            Self::new(
                grounds,
                0,
                OURS,
                "the nodes' ztunnels, every connection in a tunnel",
                "culvert",
            )?,
            Self {
                only_same_node: true,
                ..Self::new(
                    grounds,
                    0,
                    SHORTCUT,
                    "the same with SAME_NODE_SHORTCUT: no tunnel within a node",
                    "shortcut",
                )?
            },
        ];
        if let Some(program) = envoy {
            let about = "an Envoy in each pod, told statically to tunnel the same way; dialled on loopback instead of captured";
            let mut runner = Self::new(grounds, 0, "envoy", about, "envoy")?;
            let lab = &grounds[0].lab;
            runner.envoy = Some(Envoy::start(lab, program)?);
            all.push(runner);
        }
        Ok(all)
    }

    /// Another program in ztunnel's place, in a ground of its own.
    pub(super) fn of_other(
        grounds: &[Ground],
        ground: usize,
        name: &str,
        program: &Path,
    ) -> Result<Self> {
        let about = format!("{} as the nodes' ztunnel", program.display());
        Self::new(grounds, ground, name, &about, "culvert")
    }

    fn new(
        grounds: &[Ground],
        ground: usize,
        name: &str,
        about: &str,
        namespace: &'static str,
    ) -> Result<Self> {
        let lab = &grounds[ground].lab;
        let serve = |pod: &str| {
            let place = format!("{namespace}/{pod}");
            let (running, said) = Running::start(lab.tool(&place, &["bench-serve"]))
                .with_context(|| format!("the server in {place}"))?;
            ensure!(
                said.trim() == "ready",
                "the server in {place} said {said:?}"
            );
            Ok(running)
        };
        let runner = Self {
            about: Contestant {
                name: name.into(),
                about: about.into(),
            },
            ground,
            namespace,
            envoy: None,
            only_same_node: false,
            _servers: [serve("far")?, serve("near")?],
        };
        Ok(runner)
    }

    pub(super) fn does(&self, work: &Work) -> bool {
        work.same_node || !self.only_same_node
    }

    /// Waits until its way works, and is the one that it is named for.
    pub(super) fn warm(&self, grounds: &[Ground]) -> Result<()> {
        for same_node in [true, false] {
            eventually(
                &format!("{} carries bytes", self.about.name),
                Duration::from_secs(60),
                || {
                    let target = self.target(grounds, Kind::Connect, same_node)?;
                    self.load(grounds, Kind::Connect, target, 1, 0.2).map(drop)
                },
            )?;
        }
        if self.about.name != SHORTCUT {
            return Ok(());
        }
        let lab = &grounds[self.ground].lab;
        let labels = [
            ("source_workload_namespace", self.namespace),
            ("connection_security_policy", "none"),
        ];
        let taken = lab
            .metrics(Node::A)?
            .sum("istio_tcp_connections_opened_total", &labels);
        ensure!(taken > 0.0, "no connection took the shortcut");
        Ok(())
    }

    fn target(&self, grounds: &[Ground], kind: Kind, same_node: bool) -> Result<SocketAddr> {
        let pod = if same_node { "near" } else { "far" };
        match &self.envoy {
            Some(envoy) => Ok(envoy.way(same_node, kind.port())),
            None => {
                let lab = &grounds[self.ground].lab;
                lab.v4(&format!("{}/{pod}", self.namespace), kind.port())
            }
        }
    }

    /// Does some work, and says what it came to and what it cost the proxies in seconds of processor time.
    pub(super) fn measure(
        &self,
        grounds: &[Ground],
        work: &Work,
        seconds: f64,
    ) -> Result<(Done, f64)> {
        let target = self.target(grounds, work.kind, work.same_node)?;
        let before = self.processor(grounds)?;
        let done = self.load(grounds, work.kind, target, work.connections, seconds)?;
        Ok((done, self.processor(grounds)? - before))
    }

    fn processor(&self, grounds: &[Ground]) -> Result<f64> {
        match (&self.envoy, self.namespace) {
            (_, "direct") => Ok(0.0),
            (Some(envoy), _) => envoy.processor_seconds(),
            (None, _) => grounds[self.ground].proxies(),
        }
    }

    fn load(
        &self,
        grounds: &[Ground],
        kind: Kind,
        target: SocketAddr,
        connections: usize,
        seconds: f64,
    ) -> Result<Done> {
        let lab = &grounds[self.ground].lab;
        let place = format!("{}/client", self.namespace);
        let kind = serde_json::to_value(kind)?;
        let kind = kind.as_str().context("a kind is a word")?;
        let (target, connections, seconds) = (
            target.to_string(),
            connections.to_string(),
            seconds.to_string(),
        );
        let arguments = [
            "bench-load",
            kind,
            &target,
            "--connections",
            &connections,
            "--seconds",
            &seconds,
        ];
        lab.answer(&place, &arguments)
    }

    /// Holds so many connections to the other node for as long as the returned value lives.
    pub(super) fn hold(&self, grounds: &[Ground], connections: usize) -> Result<Running> {
        let lab = &grounds[self.ground].lab;
        let target = lab
            .v4(&format!("{}/far", self.namespace), ECHO)?
            .to_string();
        let connections = connections.to_string();
        let place = format!("{}/client", self.namespace);
        let arguments = ["bench-load", "idle", &target, "--connections", &connections];
        Ok(Running::start(lab.tool(&place, &arguments))?.0)
    }

    /// Whether it is the nodes' ztunnels whose memory its connections take.
    pub(super) fn is_node_proxy(&self) -> bool {
        self.envoy.is_none() && self.namespace == "culvert"
    }
}

/// As users run it: access log at its usual level, no word about each decision.
pub(in crate::bench) fn mesh() -> Result<String> {
    let verbose = "    - {name: AUTHZ_POLICY_INFO_LOGGING, value: \"true\"}\n";
    ensure!(
        MESH.contains(verbose),
        "the proxies' manifests have changed"
    );
    let ours = "    - {name: SAME_NODE_SHORTCUT, value: shortcut}\n";
    Ok(MESH.replace(verbose, ours))
}

fn pods() -> String {
    let mut text = String::new();
    for (namespace, label) in [
        ("direct", ""),
        ("culvert", "istio.io/dataplane-mode: ambient"),
        ("shortcut", "istio.io/dataplane-mode: ambient"),
        ("envoy", ""),
    ] {
        text.push_str(&format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}, labels: {{{label}}}}}\n---\n"
        ));
        for (pod, node) in [("client", Node::A), ("far", Node::B), ("near", Node::A)] {
            text.push_str(&format!(
                "apiVersion: v1
kind: ServiceAccount
metadata: {{name: {pod}, namespace: {namespace}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: {pod}, namespace: {namespace}}}
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
            ));
        }
    }
    text
}

/// Folders of labs for other programs need a name of their own.
pub(super) fn name_of(program: &Path) -> String {
    let name = program.file_name().and_then(|name| name.to_str());
    name.unwrap_or("other").to_owned()
}
