// SPDX-License-Identifier: Apache-2.0
//! What can be done in a running lab: each method is a call of the `e2e` program, or reads a file that it left.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::de::DeserializeOwned;

use super::{Access, Held, eventually, proxy_of};
use crate::access_log::{self, Entry};
use crate::environment::Environment;
use crate::state::{PodRecord, StateDir};
use crate::telemetry::Metrics;
use crate::topology::{Cluster, Node, PodName};
use crate::traffic::Report;

/// A daemon's lines gather for 5 ms: what has happened before a log is asked for is to be in it.
const LOG_DELAY: Duration = Duration::from_millis(20);

/// What a program in the lab printed and how it ended.
#[derive(Debug, Clone)]
pub struct Finished {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Access {
    /// The way into a lab that somebody else runs.
    pub fn to_running(environment: &Environment, name: &str) -> Result<Self> {
        let state = StateDir::of_lab(&environment.state_root()?, name)?;
        let record = state.read_record()?;
        Ok(Self {
            state: state.from_outside(&record),
            name: name.into(),
            executable: record.executable,
        })
    }

    /// The same lab, with another of its clusters to apply objects to.
    pub fn in_cluster(&self, cluster: Cluster) -> Self {
        Self {
            state: self.state.of_cluster(cluster),
            ..self.clone()
        }
    }

    pub fn state(&self) -> &StateDir {
        &self.state
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether its objects are an API server's.
    pub fn has_api_server(&self) -> Result<bool> {
        Ok(self.state.read_record()?.api_server)
    }

    /// Has the lab leave its files behind when it ends.
    pub fn keep_files(&self) -> Result<()> {
        std::fs::write(self.state.keep(), [])
            .context("cannot mark the lab's files as worth keeping")
    }

    /// A call of the `e2e` program about this lab. It may have a program name of its own in the lab.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.executable);
        command
            .args(arguments.iter().take(1))
            .args(["--lab", &self.name])
            .args(arguments.iter().skip(1));
        command
    }

    /// Runs `e2e …` and returns what it printed, whatever its status.
    pub fn run(&self, arguments: &[&str]) -> Result<Finished> {
        let output = self
            .command(arguments)
            .stdin(Stdio::null())
            .output()
            .context("cannot run e2e")?;
        Ok(Finished {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Runs `e2e …`, which must succeed.
    pub fn must(&self, arguments: &[&str]) -> Result<String> {
        let finished = self.run(arguments)?;
        ensure!(
            finished.code == Some(0),
            "e2e {}: {}{}",
            arguments.join(" "),
            finished.stderr,
            finished.stdout
        );
        Ok(finished.stdout)
    }

    /// A command that runs `e2e …` itself inside a pod, a node or the control plane's place.
    pub fn tool(&self, place: &str, arguments: &[&str]) -> Command {
        let mut command = self.command(&["exec", place, "--"]);
        command.arg(&self.executable).args(arguments);
        command
    }

    /// Has a client in a pod talk to `target` and returns its report; an outcome other than done is no error here.
    pub fn traffic(&self, place: &str, arguments: &[&str]) -> Result<Report> {
        let arguments: Vec<&str> = ["traffic"]
            .into_iter()
            .chain(arguments.iter().copied())
            .collect();
        self.answer(place, &arguments)
    }

    /// Runs a tool that prints one JSON value as its last line.
    pub fn answer<T: DeserializeOwned>(&self, place: &str, arguments: &[&str]) -> Result<T> {
        let output = self
            .tool(place, arguments)
            .stdin(Stdio::null())
            .output()
            .context("cannot run e2e exec")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let last = text.trim_end().lines().last().unwrap_or_default();
        serde_json::from_str(last).with_context(|| {
            format!(
                "{} in {place}: {}{}",
                arguments.join(" "),
                text,
                String::from_utf8_lossy(&output.stderr)
            )
        })
    }

    /// Starts a client whose connection stays open until it is told to end or is ended.
    pub fn hold(&self, place: &str, target: SocketAddr) -> Result<Held> {
        let target = target.to_string();
        let command = self.tool(place, &["traffic", "hold", &target]);
        Held::start(command).with_context(|| format!("from {place} to {target}"))
    }

    /// Stores objects in the lab's cluster.
    pub fn apply(&self, manifest: &str) -> Result<String> {
        use std::io::Write as _;
        let cluster = self.state.cluster().number().to_string();
        let mut command = self.command(&["apply", "--cluster", &cluster, "-"]);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = command.spawn().context("cannot run e2e apply")?;
        let mut input = process.stdin.take().context("the input of e2e apply")?;
        input
            .write_all(manifest.as_bytes())
            .context("the input of e2e apply")?;
        drop(input);
        let output = process.wait_with_output().context("e2e apply")?;
        ensure!(
            output.status.success(),
            "e2e apply: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    pub fn delete(&self, kind: &str, name: &str) -> Result<()> {
        let cluster = self.state.cluster().number().to_string();
        self.must(&["delete", "--cluster", &cluster, kind, name])
            .map(drop)
    }

    /// Gives an object labels (`NAME=VALUE`) and takes others away (`NAME-`).
    pub fn label(&self, kind: &str, name: &str, labels: &[&str]) -> Result<()> {
        let cluster = self.state.cluster().number().to_string();
        let fixed = ["label", "--cluster", &cluster, kind, name];
        self.must(&[&fixed[..], labels].concat()).map(drop)
    }

    /// A pod's record; its address is known once it has one.
    pub fn pod(&self, name: &str) -> Result<PodRecord> {
        let name: PodName = name.parse().map_err(anyhow::Error::msg)?;
        self.state.read_pod(&name)
    }

    /// A pod's IPv4 address with a port.
    pub fn v4(&self, pod: &str, port: u16) -> Result<SocketAddr> {
        self.endpoint(pod, port, |pair| pair.v4.into())
    }

    /// A pod's IPv6 address with a port.
    pub fn v6(&self, pod: &str, port: u16) -> Result<SocketAddr> {
        self.endpoint(pod, port, |pair| pair.v6.into())
    }

    fn endpoint(
        &self,
        pod: &str,
        port: u16,
        family: impl FnOnce(crate::topology::Pair) -> IpAddr,
    ) -> Result<SocketAddr> {
        let addresses = self
            .pod(pod)?
            .addresses
            .with_context(|| format!("pod {pod} has no address yet"))?;
        Ok(SocketAddr::new(family(addresses), port))
    }

    /// Waits until a pod runs and all its containers are ready.
    pub fn wait_ready(&self, pod: &str) -> Result<PodRecord> {
        eventually(
            &format!("pod {pod} is ready"),
            Duration::from_secs(60),
            || {
                let record = self.pod(pod)?;
                let ready = !record.containers.is_empty()
                    && record.containers.iter().all(|container| container.ready);
                ensure!(
                    ready,
                    "{}",
                    record.message.as_deref().unwrap_or("not ready")
                );
                Ok(record)
            },
        )
    }

    /// The log of a daemon or pod, from the beginning.
    pub fn log(&self, name: &str) -> Result<String> {
        let path = self.log_path(name)?;
        std::thread::park_timeout(LOG_DELAY);
        let text =
            std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Finds a log by what people call it: a pod, or a daemon without its namespace.
    pub fn log_path(&self, name: &str) -> Result<PathBuf> {
        let in_system = format!("{}_{name}", crate::topology::SYSTEM_NAMESPACE);
        let pod = name
            .parse::<PodName>()
            .map(|pod| pod.slug())
            .unwrap_or_default();
        let candidates = [name, in_system.as_str(), pod.as_str()];
        let found = candidates
            .iter()
            .map(|name| self.state.log(name))
            .find(|path| path.is_file());
        found.with_context(|| {
            format!(
                "there is no log of `{name}`; there are: {}",
                self.log_names(&self.state.logs()).join(", ")
            )
        })
    }

    fn log_names(&self, folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| Some(entry.path().file_stem()?.to_str()?.to_owned()))
            .collect();
        names.sort();
        names
    }

    /// What the proxy of a node wrote about connections so far.
    pub fn access_log(&self, node: Node) -> Result<Vec<Entry>> {
        Ok(access_log::parse(&self.log(proxy_of(node))?))
    }

    /// Waits for a line of a proxy's access log that `wanted` recognises.
    pub fn access_entry(
        &self,
        node: Node,
        what: &str,
        wanted: impl Fn(&Entry) -> bool,
    ) -> Result<Entry> {
        eventually(
            &format!("{node}'s access log shows {what}"),
            Duration::from_secs(10),
            || {
                let entries = self.access_log(node)?;
                entries
                    .iter()
                    .rev()
                    .find(|entry| wanted(entry))
                    .cloned()
                    .with_context(|| {
                        let last: Vec<String> = entries
                            .iter()
                            .rev()
                            .take(4)
                            .map(|entry| format!("  {entry}"))
                            .collect();
                        format!("the last lines are\n{}", last.join("\n"))
                    })
            },
        )
    }

    /// The metrics of a node's proxy.
    pub fn metrics(&self, node: Node) -> Result<Metrics> {
        let report = self.traffic(node.name(), &["get", "127.0.0.1:15020", "/metrics"])?;
        ensure!(report.is_done(), "metrics of {node}: {}", report.outcome);
        Ok(Metrics::parse(&report.answer.unwrap_or_default()))
    }
}
