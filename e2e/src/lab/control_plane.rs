// SPDX-License-Identifier: Apache-2.0
//! istiod-lite, in a namespace of its own beside the nodes, without any capability.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio_util::sync::CancellationToken;

use crate::lab::container::{Process, Programs};
use crate::lab::probe;
use crate::launch::Grant;
use crate::state::{StateDir, write_atomically};
use crate::tokens::{AUDIENCE, ISSUER};
use crate::topology::{CONTROL_PLANE_PORT, Place, SYSTEM_NAMESPACE, TRUST_DOMAIN};

/// Readiness, metrics and debug pages, on the loopback of its namespace.
pub const ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
/// The program.
const PROGRAM: &str = "istiod-lite";
/// What it may do on its machine.
pub(super) const GRANT: Grant = Grant::NOTHING;

/// The running control plane, restarted whenever it ends.
pub struct ControlPlane {
    state: StateDir,
    stop: CancellationToken,
    supervisor: tokio::task::JoinHandle<()>,
}

impl ControlPlane {
    /// `source` says where it learns of the cluster and by whom it knows its clients.
    pub fn start(state: &StateDir, programs: Rc<Programs>, source: Vec<String>) -> Result<Self> {
        let process = Process {
            program: programs.of_mesh(PROGRAM)?,
            arguments: [source, arguments(state)].concat(),
            environment: BTreeMap::new(),
            grant: GRANT,
            resolv_conf: None,
            cgroup: None,
        };
        let stop = CancellationToken::new();
        let supervisor =
            tokio::task::spawn_local(supervise(state.clone(), programs, process, stop.clone()));
        Ok(Self {
            state: state.clone(),
            stop,
            supervisor,
        })
    }

    /// Waits until it serves and has published its roots.
    pub async fn ready(&mut self) -> Result<()> {
        let cluster = self.state.cluster();
        let netns = self.state.netns(&Place::ControlPlane(cluster));
        let mut last = String::from("not asked yet");
        for _attempt in 0..300 {
            match probe::fetch(&netns, ADMIN, "/ready").await {
                Ok(answer) if answer.status == 200 && self.state.root_certificates().exists() => {
                    return Ok(());
                }
                Ok(answer) => {
                    last = format!("/ready answered {}: {}", answer.status, answer.body.trim())
                }
                Err(error) => last = format!("{error:#}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        bail!(
            "{} is not ready: {last}; its log: {}",
            cluster.daemon(),
            self.state.log(cluster.daemon()).display()
        )
    }

    pub async fn stop(self) {
        self.stop.cancel();
        let _joined = self.supervisor.await;
    }
}

fn arguments(state: &StateDir) -> Vec<String> {
    let cluster = state.cluster();
    let (name, address) = (cluster.control_plane_name(), cluster.control_plane());
    let pairs = [
        ("--listen", format!("0.0.0.0:{CONTROL_PLANE_PORT}")),
        ("--state", state.istiod().display().to_string()),
        ("--audience", AUDIENCE.into()),
        ("--trust-domain", TRUST_DOMAIN.into()),
        ("--cluster-id", cluster.id().into()),
        ("--root-namespace", SYSTEM_NAMESPACE.into()),
        ("--node-accounts", format!("{SYSTEM_NAMESPACE}/ztunnel")),
        ("--name", format!("{name},{}", address.v4)),
        ("--admin", ADMIN.to_string()),
    ];
    flags(pairs)
}

/// From a folder of manifests, whose tokens the lab signs.
pub(super) fn of_manifests(state: &StateDir) -> Vec<String> {
    flags([
        ("--source", format!("dir:{}", state.manifests().display())),
        ("--jwks", state.jwks().display().to_string()),
        ("--issuer", ISSUER.into()),
    ])
}

fn flags<const N: usize>(pairs: [(&str, String); N]) -> Vec<String> {
    pairs
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .collect()
}

/// What everybody gets, and what somebody asked for.
fn environment(state: &StateDir) -> BTreeMap<String, String> {
    let usual = [("RUST_LOG", "info"), ("RUST_BACKTRACE", "1")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    // Without the file nobody has asked for anything.
    let asked = std::fs::read_to_string(state.control_plane_environment()).unwrap_or_default();
    let asked = asked.lines().filter_map(|line| {
        let (name, value) = line.split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    });
    usual.into_iter().chain(asked).collect()
}

async fn supervise(
    state: StateDir,
    programs: Rc<Programs>,
    mut process: Process,
    stop: CancellationToken,
) {
    let name = state.cluster().daemon();
    let netns = state.netns(&Place::ControlPlane(state.cluster()));
    while !stop.is_cancelled() {
        if state.held_down(name).exists() {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        }
        process.environment = environment(&state);
        match process.start(&programs, &netns, &state.log(name)) {
            Ok(mut child) => {
                note_pid(&state, child.id());
                tokio::select! {
                _status = child.wait() => {}
                () = stop.cancelled() => {
                    let _already_gone = child.start_kill();
                    return;
                }
                }
            }
            Err(error) => crate::lab::progress(format!("{name}: {error:#}")),
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// For `e2e status`.
fn note_pid(state: &StateDir, pid: Option<u32>) {
    let written = write_atomically(
        &state.control_plane_pid(),
        pid.unwrap_or_default().to_string().as_bytes(),
    );
    if let Err(error) = written {
        crate::lab::progress(format!("istiod-lite: {error:#}"));
    }
}
