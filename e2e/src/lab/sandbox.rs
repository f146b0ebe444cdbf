// SPDX-License-Identifier: Apache-2.0
//! The container runtime's part: a network namespace for each pod, and the CNI plugins called in their order.
//!
//! ```text
//!  ADD: namespace ─► primary plugin (played here: device, addresses, routes) ─► redirect-cni, with the former's result
//!  DEL: redirect-cni ─► primary plugin ─► namespace
//! ```
//! The chain is read from the node's configuration file, as a runtime reads it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Stdio;
use std::rc::Rc;

use anyhow::{Context as _, Result, bail, ensure};
use capture::Netns;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::lab::container::Programs;
use crate::launch::{Grant, Launch, Surroundings};
use crate::network::{self, UPLINK};
use crate::state::{StateDir, read_json, write_json};
use crate::topology::{Node, POD_PREFIX, Pair, Place, PodName};

const PRIMARY: &str = "lab-primary";
const CHAINED: &str = "istio-cni";
const CNI_VERSION: &str = "1.0.0";
/// Hosts of a node's pod network that pods get; the gateway and room for others lie before.
const HOSTS: std::ops::RangeInclusive<u8> = 10..=249;

/// The runtime of one node.
#[derive(Debug)]
pub struct Runtime {
    state: StateDir,
    node: Node,
    programs: Rc<Programs>,
    hosts: std::cell::RefCell<Hosts>,
}

/// A pod's place on the network.
#[derive(Debug, Clone)]
pub struct Sandbox {
    pub pod: PodName,
    pub uid: String,
    pub container_id: String,
    pub netns: PathBuf,
    pub addresses: Pair,
    host: u8,
    /// What the plugins answered, handed to them again when the pod goes.
    result: Value,
}

/// Addresses are given out in turn, so that one is not reused at once.
#[derive(Debug, Default)]
struct Hosts {
    taken: BTreeSet<u8>,
    last: Option<u8>,
}

impl Hosts {
    fn take(&mut self) -> Result<u8> {
        let after = self.last.unwrap_or(*HOSTS.end());
        let in_turn = HOSTS
            .filter(|host| *host > after)
            .chain(HOSTS.filter(|host| *host <= after));
        let free = in_turn
            .into_iter()
            .find(|host| !self.taken.contains(host))
            .context("the node has no free address")?;
        self.taken.insert(free);
        self.last = Some(free);
        Ok(free)
    }

    /// Gives out the one that is asked for, at once again if it has just been given back.
    fn take_this(&mut self, host: u8) -> Result<u8> {
        ensure!(HOSTS.contains(&host), "host {host} is none of {HOSTS:?}");
        ensure!(self.taken.insert(host), "host {host} is taken");
        Ok(host)
    }
}

impl Runtime {
    /// Writes the node's CNI configuration and stands ready.
    pub fn new(state: StateDir, node: Node, programs: Rc<Programs>) -> Result<Self> {
        let runtime = Self {
            state,
            node,
            programs,
            hosts: Default::default(),
        };
        crate::environment::private_directory(&runtime.run_dir())?;
        write_json(&runtime.configuration(), &runtime.conflist())?;
        Ok(runtime)
    }

    /// Where the node agent keeps its sockets.
    pub fn run_dir(&self) -> PathBuf {
        self.state.node(self.node).join("istio-cni")
    }

    fn configuration(&self) -> PathBuf {
        self.state.node(self.node).join("10-lab.conflist")
    }

    fn conflist(&self) -> Value {
        json!({
            "cniVersion": CNI_VERSION,
            "name": "lab",
            "plugins": [
                {"type": PRIMARY},
                {
                    "type": CHAINED,
                    "plugin_log_level": "info",
                    "cni_agent_run_dir": self.run_dir(),
                    "ambient_enabled": true,
                    "exclude_namespaces": ["kube-system"],
                    "enablement_selectors": [
                        {"podSelector": {"matchLabels": {"istio.io/dataplane-mode": "ambient"}}},
                        {
                            "podSelector": {"matchExpressions": [
                                {"key": "istio.io/dataplane-mode", "operator": "NotIn", "values": ["none"]}
                            ]},
                            "namespaceSelector": {"matchLabels": {"istio.io/dataplane-mode": "ambient"}},
                        },
                    ],
                },
            ],
        })
    }

    /// Makes the pod's sandbox. On failure nothing is left of it, as a runtime cleans up before it tries anew.
    /// `wanted` is the host of the address that the pod asks for.
    pub async fn add(&self, pod: &PodName, uid: &str, wanted: Option<u8>) -> Result<Sandbox> {
        let host = match wanted {
            Some(host) => self.hosts.borrow_mut().take_this(host)?,
            None => self.hosts.borrow_mut().take()?,
        };
        let mut sandbox = Sandbox {
            pod: pod.clone(),
            uid: uid.to_owned(),
            container_id: format!("{:032x}", rand::random::<u128>()),
            netns: self.state.netns(&Place::Pod(pod.clone())),
            addresses: self.node.pod(host),
            host,
            result: Value::Null,
        };
        match self.add_chain(&mut sandbox).await {
            Ok(()) => Ok(sandbox),
            Err(error) => {
                if let Err(leftover) = self.remove(&sandbox).await {
                    crate::lab::progress(format!(
                        "{pod}: cleaning up a failed sandbox: {leftover:#}"
                    ));
                }
                Err(error)
            }
        }
    }

    async fn add_chain(&self, sandbox: &mut Sandbox) -> Result<()> {
        let path = sandbox.netns.clone();
        blocking(move || {
            network::remove(&path)
                .and_then(|()| network::create(&path))
                .map(drop)
        })
        .await?;
        for plugin in self.plugins()? {
            let kind = plugin["type"].as_str().unwrap_or_default().to_owned();
            sandbox.result = match kind.as_str() {
                PRIMARY => self.primary_add(sandbox).await?,
                CHAINED => self
                    .call("ADD", &plugin, sandbox)
                    .await?
                    .context("redirect-cni answered ADD with nothing")?,
                other => bail!(
                    "the node's CNI configuration names the plugin `{other}`, which the lab does not have"
                ),
            };
        }
        Ok(())
    }

    /// Takes the sandbox down. Every step is tried; the first failure is reported.
    pub async fn remove(&self, sandbox: &Sandbox) -> Result<()> {
        let mut outcome = Ok(());
        for plugin in self.plugins()?.iter().rev() {
            let step = match plugin["type"].as_str() {
                Some(CHAINED) => self.call("DEL", plugin, sandbox).await.map(drop),
                _ => self.primary_del(sandbox).await,
            };
            outcome = outcome.and(step);
        }
        let path = sandbox.netns.clone();
        outcome = outcome.and(blocking(move || network::remove(&path)).await);
        self.hosts.borrow_mut().taken.remove(&sandbox.host);
        outcome
    }

    /// What is left of a sandbox when the node loses its power: the plugins hear nothing of it.
    pub async fn vanish(&self, sandbox: &Sandbox) -> Result<()> {
        let device = self.primary_del(sandbox).await;
        let path = sandbox.netns.clone();
        let namespace = blocking(move || network::remove(&path)).await;
        self.hosts.borrow_mut().taken.remove(&sandbox.host);
        device.and(namespace)
    }

    /// Empties what lies in the node's memory, as after a loss of power.
    pub fn lose_memory(&self) -> Result<()> {
        let run_dir = self.run_dir();
        std::fs::remove_dir_all(&run_dir)
            .with_context(|| format!("cannot empty {}", run_dir.display()))?;
        crate::environment::private_directory(&run_dir)
    }

    fn plugins(&self) -> Result<Vec<Value>> {
        let list: Value = read_json(&self.configuration())?;
        let plugins = list["plugins"]
            .as_array()
            .context("the node's CNI configuration has no plugins")?;
        let with_list_keys = |plugin: &Value| {
            let mut plugin = plugin.clone();
            plugin["cniVersion"] = list["cniVersion"].clone();
            plugin["name"] = list["name"].clone();
            plugin
        };
        Ok(plugins.iter().map(with_list_keys).collect())
    }

    fn node_netns(&self) -> PathBuf {
        self.state.netns(&Place::Node(self.node))
    }

    /// What a primary CNI plugin does, and its result.
    async fn primary_add(&self, sandbox: &Sandbox) -> Result<Value> {
        let (node_path, pod_path, device) = (
            self.node_netns(),
            sandbox.netns.clone(),
            host_device(sandbox.host),
        );
        let (addresses, gateway, host_device) =
            (sandbox.addresses, self.node.gateway(), device.clone());
        let mac = blocking(move || {
            let (node, pod) = (Netns::open(node_path)?, Netns::open(pod_path)?);
            network::attach_pod(&node, &pod, &host_device, addresses, gateway)
        })
        .await
        .with_context(|| format!("primary plugin: {}", sandbox.pod))?;
        Ok(json!({
            "cniVersion": CNI_VERSION,
            "interfaces": [
                {"name": device},
                {"name": UPLINK, "mac": mac, "sandbox": sandbox.netns},
            ],
            "ips": [
                {"address": format!("{}/{}", addresses.v4, POD_PREFIX.v4), "gateway": gateway.v4, "interface": 1},
                {"address": format!("{}/{}", addresses.v6, POD_PREFIX.v6), "gateway": gateway.v6, "interface": 1},
            ],
            "routes": [{"dst": "0.0.0.0/0", "gw": gateway.v4}, {"dst": "::/0", "gw": gateway.v6}],
            "dns": {},
        }))
    }

    async fn primary_del(&self, sandbox: &Sandbox) -> Result<()> {
        let (node, device) = (self.node_netns(), host_device(sandbox.host));
        blocking(move || network::detach_pod(&Netns::open(node)?, &device)).await
    }

    /// Runs a plugin as a runtime does: verb and pod in the environment, configuration on standard input.
    async fn call(&self, verb: &str, plugin: &Value, sandbox: &Sandbox) -> Result<Option<Value>> {
        let program = self.programs.of_mesh("redirect-cni")?;
        let node = self.node_netns();
        let mut command = Command::from(Launch::command(
            &self.programs.executable,
            Surroundings {
                netns: Some(&node),
                ..Surroundings::default()
            },
            &Grant::Everything,
            &program,
        ));
        let PodName { namespace, name } = &sandbox.pod;
        command
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", &sandbox.container_id)
            .env("CNI_NETNS", &sandbox.netns)
            .env("CNI_IFNAME", UPLINK)
            .env("CNI_PATH", &self.programs.bin_dir)
            .env(
                "CNI_ARGS",
                format!(
                    "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};\
                     K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID={}",
                    sandbox.container_id, sandbox.uid
                ),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut configuration = plugin.clone();
        if !sandbox.result.is_null() {
            configuration["prevResult"] = sandbox.result.clone();
        }
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;
        let mut input = child.stdin.take().context("redirect-cni's input")?;
        // A plugin that fails early may not read its input to the end.
        let _unread = input.write_all(&serde_json::to_vec(&configuration)?).await;
        drop(input);
        let output = child.wait_with_output().await.context("redirect-cni")?;
        let answer: Option<Value> = serde_json::from_slice(&output.stdout).ok();
        if !output.status.success() {
            let said = answer.map_or_else(
                || String::from_utf8_lossy(&output.stderr).trim().to_owned(),
                |error| {
                    format!(
                        "{} (code {}){}",
                        error["msg"].as_str().unwrap_or_default(),
                        error["code"],
                        details(&error)
                    )
                },
            );
            bail!("CNI {verb} for {}: {said}", sandbox.pod);
        }
        if verb == "ADD" {
            let ips = answer.as_ref().map(|answer| &answer["ips"]);
            ensure!(
                ips == Some(&sandbox.result["ips"]),
                "CNI ADD for {}: redirect-cni changed the result: {answer:?}",
                sandbox.pod
            );
        }
        Ok(answer)
    }
}

fn details(error: &Value) -> String {
    error["details"]
        .as_str()
        .filter(|text| !text.is_empty())
        .map(|text| format!(": {text}"))
        .unwrap_or_default()
}

fn host_device(host: u8) -> String {
    format!("pod{host}")
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .context("blocking work ended early")?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_given_in_turn_and_reused_last() {
        let mut hosts = Hosts::default();
        assert_eq!(hosts.take().unwrap(), 10);
        assert_eq!(hosts.take().unwrap(), 11);
        hosts.taken.remove(&10);
        assert_eq!(hosts.take().unwrap(), 12);
        for _ in 13..=249 {
            hosts.take().unwrap();
        }
        assert_eq!(hosts.take().unwrap(), 10);
        assert!(hosts.take().is_err());
        assert!(hosts.take_this(200).is_err());
        hosts.taken.remove(&200);
        assert_eq!(hosts.take_this(200).unwrap(), 200);
        assert!(hosts.take_this(9).is_err());
    }
}
