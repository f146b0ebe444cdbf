// SPDX-License-Identifier: Apache-2.0
//! What the tests stand on: the lab, whose turn it is, and what a proxy holds.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::environment::Environment;
use e2e::handle::{Lab, Start, eventually, proxy_of};
use e2e::state::Disks;
use e2e::topology::{Layout, Node};
use serde_json::Value;

/// The mesh's own manifests, in which proxies ask for short-lived certificates and follow a list.
const MESH: &str = include_str!("../../manifests/mesh.yaml");
const LIFETIME: &str = "30s";

static LAB: OnceLock<Result<Lab, String>> = OnceLock::new();
static TURN: Mutex<()> = Mutex::new(());

/// The lab, for one test at a time, every proxy ready and nothing revoked.
pub(crate) struct Turn {
    pub(crate) lab: &'static Lab,
    _turn: MutexGuard<'static, ()>,
}

pub(crate) fn turn() -> Turn {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let lab = match LAB.get_or_init(|| start().map_err(|error| format!("{error:#}"))) {
        Ok(lab) => lab,
        Err(reason) => panic!("the lab of these tests could not be started: {reason}"),
    };
    let turn = Turn { lab, _turn: turn };
    for node in Node::ALL {
        turn.revoke(node, "");
    }
    turn.all_ready();
    turn
}

fn start() -> Result<Lab> {
    let environment = Environment::of_process();
    let executable = PathBuf::from(env!("CARGO_BIN_EXE_e2e"));
    let manifests = tempfile::tempdir()?;
    let more = format!(
        "    - {{name: SECRET_TTL, value: {LIFETIME}}}
    - {{name: CRL_PATH, value: $(LAB_NODE_DIR)/ca-crl.pem}}
    - {{name: LOG_FORMAT, value: json}}"
    );
    let usual = "    - {name: LOG_FORMAT, value: json}";
    ensure!(MESH.contains(usual), "the proxies' manifests have changed");
    std::fs::write(
        manifests.path().join("mesh.yaml"),
        MESH.replace(usual, &more),
    )?;
    let start = Start {
        name: format!("trust-{}", std::process::id()),
        bin_dir: e2e::binaries::build(&environment, &executable)?,
        executable,
        manifests: Some(manifests.path().to_owned()),
        layout: Layout::OneCluster,
        keep: false,
        disks: Disks::Shared,
        api_server: false,
    };
    Lab::start(&environment, &start, |_progress| {})
}

impl Turn {
    pub(crate) fn all_ready(&self) {
        for node in Node::ALL {
            eventually(&format!("{node} is ready"), Duration::from_secs(60), || {
                self.ready(node)
            })
            .unwrap();
        }
    }

    /// What a proxy says to its readiness probe, as an error unless it is ready.
    pub(crate) fn ready(&self, node: Node) -> Result<()> {
        let arguments = ["get", "127.0.0.1:15021", "/healthz/ready"];
        let report = self.lab.traffic(node.name(), &arguments)?;
        let answer = report.answer.unwrap_or_default();
        ensure!(
            answer == "ready\n",
            "{node}: {}, {answer:?}",
            report.outcome
        );
        Ok(())
    }

    /// A client of its own account on node a, whose tunnels are new.
    pub(crate) fn newcomer(&self, name: &'static str) -> Newcomer<'_> {
        let manifest = format!(
            "apiVersion: v1
kind: ServiceAccount
metadata: {{name: {name}, namespace: shop}}
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: shop}}
spec:
  nodeName: node-a
  serviceAccountName: {name}
  terminationGracePeriodSeconds: 1
  containers: [{{name: app, image: culvert/app}}]
"
        );
        self.lab.apply(&manifest).unwrap();
        let pod = format!("shop/{name}");
        self.lab.wait_ready(&pod).unwrap();
        Newcomer {
            lab: self.lab,
            identity: format!("spiffe://cluster.local/ns/shop/sa/{name}"),
            pod,
        }
    }

    pub(crate) fn echo(&self, pod: &str) -> SocketAddr {
        self.lab.v4(pod, 9000).unwrap()
    }

    /// The list that a node's proxy follows.
    pub(crate) fn revoke(&self, node: Node, pem: &str) {
        let folder = self.lab.state().node(node);
        let beside = folder.join("ca-crl.new");
        std::fs::write(&beside, pem).unwrap();
        std::fs::rename(&beside, folder.join("ca-crl.pem")).unwrap();
    }

    /// The certificates that a proxy holds for an identity, the leaf first.
    pub(crate) fn certificates(&self, node: Node, identity: &str) -> Result<Vec<Certificate>> {
        let arguments = ["get", "127.0.0.1:15000", "/config_dump?certificates"];
        let report = self.lab.traffic(node.name(), &arguments)?;
        let dump: Value = serde_json::from_str(&report.answer.unwrap_or_default())
            .with_context(|| format!("{node}'s dump"))?;
        let of = dump["certificates"].as_array().and_then(|all| {
            all.iter()
                .find(|certificate| certificate["identity"] == identity)
        });
        let of = of.with_context(|| format!("{node} holds none of {identity}: {dump}"))?;
        let chain = of["certChain"].as_array().into_iter().flatten();
        Ok(chain
            .map(|certificate| Certificate {
                serial: certificate["serialNumber"]
                    .as_str()
                    .unwrap_or_default()
                    .into(),
            })
            .collect())
    }

    pub(crate) fn log_has(&self, node: Node, words: &str) -> Result<()> {
        ensure!(
            self.lab.log(proxy_of(node))?.contains(words),
            "{node}'s log does not say {words:?}"
        );
        Ok(())
    }
}

/// A pod that leaves when this is dropped.
pub(crate) struct Newcomer<'l> {
    lab: &'l Lab,
    pub(crate) pod: String,
    pub(crate) identity: String,
}

impl Drop for Newcomer<'_> {
    fn drop(&mut self) {
        let _the_lab_ends_soon = self.lab.delete("pod", &self.pod);
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Certificate {
    /// In decimal.
    pub(crate) serial: String,
}
