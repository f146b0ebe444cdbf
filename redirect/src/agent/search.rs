// SPDX-License-Identifier: Apache-2.0
//! Pods whose sandbox nobody announced to this agent: those from before the plugin was installed, and all of them where
//! the run directory was lost. Their namespaces are looked for among the node's processes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use tracing::{debug, info, warn};

use super::{Agent, blocking, host_path};
use crate::memory::Sandbox;
use crate::processes::{self, Candidate};
use crate::state::Pod;

/// A pod that was not found is looked for again after this long.
const SEARCH_AGAIN: Duration = Duration::from_secs(5);

/// The last search, for as long as it left pods behind.
#[derive(Debug)]
pub(super) struct Search {
    missed: BTreeSet<String>,
    at: Instant,
}

impl Agent {
    /// Looks for pods that should be in the mesh and whose sandbox is not known: new ones at once, others again later.
    pub(super) async fn search(&mut self) {
        let unplaced: Vec<Pod> = self.parts.state.unplaced().cloned().collect();
        if unplaced.is_empty() {
            self.searched = None;
            return;
        }
        let due = self.searched.as_ref().is_none_or(|last| {
            last.at.elapsed() >= SEARCH_AGAIN
                || unplaced.iter().any(|pod| !last.missed.contains(&pod.uid))
        });
        if !due {
            return;
        }
        let proc = host_path(&self.parts.host_root, "/proc".as_ref());
        let uids: BTreeSet<String> = unplaced
            .iter()
            .flat_map(Pod::uids)
            .map(str::to_owned)
            .collect();
        let mut found = match blocking(move || processes::of_pods(&proc, &uids)).await {
            Ok(found) => found,
            Err(error) => {
                warn!(%error, "the node's processes can't be read");
                BTreeMap::new()
            }
        };
        let mut missed = BTreeSet::new();
        for pod in unplaced {
            let candidates = pod.uids().find_map(|uid| found.remove(uid));
            if !self.place(&pod, candidates.unwrap_or_default()) {
                missed.insert(pod.uid);
            }
        }
        let at = Instant::now();
        self.searched = (!missed.is_empty()).then_some(Search { missed, at });
    }

    pub(super) fn searches_again_at(&self) -> Option<Instant> {
        self.searched.as_ref().map(|last| last.at + SEARCH_AGAIN)
    }

    /// Takes the first namespace that is proven to be the pod's.
    fn place(&mut self, pod: &Pod, candidates: Vec<Candidate>) -> bool {
        let Pod {
            uid,
            namespace,
            name,
            ..
        } = pod;
        for Candidate { netns, path, .. } in candidates {
            let path = match path.strip_prefix(&self.parts.host_root) {
                Ok(inner) => Path::new("/").join(inner),
                Err(_) => path,
            };
            if let Err(reason) = self.claim(uid, &netns, &path, &pod.ips) {
                warn!(namespace, name, uid, reason, "not the namespace of the pod");
                continue;
            }
            let sandbox = Sandbox {
                uid: uid.clone(),
                namespace: namespace.clone(),
                name: name.clone(),
                container_id: None,
                netns: path,
                dev: netns.id().dev,
                ino: netns.id().ino,
                ips: pod.ips.clone(),
                // As far as its annotation tells; whoever wrote that may have left rules.
                captured: pod.redirection.is_some(),
            };
            if let Err(error) = self.parts.memory.remember(&sandbox) {
                warn!(namespace, name, uid, %error, "a pod could not be remembered");
            }
            info!(namespace, name, uid, netns = %sandbox.netns.display(), "sandbox of the pod found");
            metrics::counter!("redirect_sandboxes_found_total").increment(1);
            self.netns.insert(uid.clone(), netns);
            self.parts.state.sandbox_found(sandbox);
            return true;
        }
        debug!(
            namespace,
            name, uid, "no process of the pod is in a namespace of its own"
        );
        false
    }
}
