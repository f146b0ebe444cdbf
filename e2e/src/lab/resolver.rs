// SPDX-License-Identifier: Apache-2.0
//! The lab's DNS server, in a namespace of its own beside the nodes; and the resolv.conf(5) files that lead to it.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio_util::sync::CancellationToken;

use crate::lab::container::{Process, Programs};
use crate::lab::progress;
use crate::launch::Grant;
use crate::state::StateDir;
use crate::topology::{Place, TRUST_DOMAIN, resolver};

/// The name of its log.
pub const NAME: &str = "resolver";

/// The running server, restarted whenever it ends.
pub struct Resolver {
    stop: CancellationToken,
    supervisor: tokio::task::JoinHandle<()>,
}

impl Resolver {
    pub fn start(state: &StateDir, programs: Rc<Programs>) -> Self {
        let process = Process {
            program: programs.executable.clone(),
            arguments: vec!["serve-dns".to_owned()],
            environment: [("RUST_BACKTRACE".to_owned(), "1".to_owned())].into(),
            grant: Grant::NOTHING,
            resolv_conf: None,
            cgroup: None,
        };
        let stop = CancellationToken::new();
        let supervisor =
            tokio::task::spawn_local(supervise(state.clone(), programs, process, stop.clone()));
        Self { stop, supervisor }
    }

    pub async fn stop(self) {
        self.stop.cancel();
        let _joined = self.supervisor.await;
    }
}

async fn supervise(
    state: StateDir,
    programs: Rc<Programs>,
    process: Process,
    stop: CancellationToken,
) {
    let netns = state.netns(&Place::Resolver);
    while !stop.is_cancelled() {
        match process.start(&programs, &netns, &state.log(NAME)) {
            Ok(mut child) => tokio::select! {
                _status = child.wait() => {}
                () = stop.cancelled() => {
                    let _already_gone = child.start_kill();
                    return;
                }
            },
            Err(error) => progress(format!("{NAME}: {error:#}")),
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// What a node, and so the proxy on it, resolves by.
pub fn write_of_nodes(path: &Path) -> Result<()> {
    let text = format!("nameserver {}\n", resolver().v4);
    std::fs::write(path, text).context("cannot write the nodes' resolv.conf")
}

/// What a kubelet gives a pod: short names of its namespace come first.
pub fn write_of_pod(path: &Path, namespace: &str) -> Result<()> {
    let text = format!(
        "search {namespace}.svc.{TRUST_DOMAIN} svc.{TRUST_DOMAIN} {TRUST_DOMAIN}\nnameserver {}\noptions ndots:5\n",
        resolver().v4
    );
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
