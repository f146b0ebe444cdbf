// SPDX-License-Identifier: Apache-2.0
//! Plugins that wait for their pods: from the runtime's question to the answer that lets a pod start or says why not.

use std::time::{Duration, Instant};

use capture::{Netns, NetnsId};
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::{Agent, host_path};
use crate::memory::Sandbox;
use crate::plugin_api::{AddReply, AddRequest};
use crate::state::Wish;

/// The plugin gives up after 5 s and must hear why before.
const PLUGIN_PATIENCE: Duration = Duration::from_millis(4500);
/// How long a pod may be unknown to us while the runtime already starts it.
const CLUSTER_LAG: Duration = Duration::from_secs(2);

/// A plugin that waits for its pod.
#[derive(Debug)]
pub(super) struct Waiting {
    request: AddRequest,
    reply: oneshot::Sender<Result<AddReply, String>>,
    since: Instant,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The cluster has not told us of the pod.
    Unknown,
    /// The sandbox is remembered; rules and consent are on their way.
    Arrived { uid: String, netns: NetnsId },
}

impl Waiting {
    pub(super) fn new(
        request: AddRequest,
        reply: oneshot::Sender<Result<AddReply, String>>,
    ) -> Self {
        Self {
            request,
            reply,
            since: Instant::now(),
            stage: Stage::Unknown,
        }
    }

    pub(super) fn gives_up_at(&self) -> Instant {
        self.since
            + match self.stage {
                Stage::Unknown => CLUSTER_LAG,
                Stage::Arrived { .. } => PLUGIN_PATIENCE,
            }
    }
}

impl Agent {
    /// Remembers the sandboxes of pods that the cluster knows by now.
    pub(super) async fn welcome(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        for mut waiting in waiting {
            if let Stage::Unknown = waiting.stage {
                let request = &waiting.request;
                let pod = self
                    .parts
                    .state
                    .pod(&request.pod_namespace, &request.pod_name);
                let same = pod.filter(|pod| {
                    let said = request.pod_uid.as_ref();
                    said.is_none_or(|said| pod.uids().any(|uid| uid == said))
                });
                if let Some(uid) = same.map(|pod| pod.uid.clone()) {
                    match self.arrive(&uid, request).await {
                        Ok(netns) => waiting.stage = Stage::Arrived { uid, netns },
                        Err(reason) => {
                            warn!(
                                namespace = request.pod_namespace,
                                name = request.pod_name,
                                reason,
                                "pod refused"
                            );
                            _ = waiting.reply.send(Err(reason));
                            continue;
                        }
                    }
                }
            }
            self.waiting.push(waiting);
        }
    }

    pub(super) async fn arrive(
        &mut self,
        uid: &str,
        request: &AddRequest,
    ) -> Result<NetnsId, String> {
        let mut sandbox = Sandbox {
            uid: uid.to_owned(),
            namespace: request.pod_namespace.clone(),
            name: request.pod_name.clone(),
            container_id: request.container_id.clone(),
            netns: request.netns.clone().into(),
            dev: 0,
            ino: 0,
            ips: request.addresses(),
            // Written once, since rules will follow.
            captured: matches!(self.parts.state.wish(uid), Wish::Captured(_)),
        };
        let path = host_path(&self.parts.host_root, &sandbox.netns);
        let netns = Netns::open(&path)
            .map_err(|cause| format!("network namespace {}: {cause}", path.display()))?;
        if sandbox.ips.is_empty()
            && let Some(pod) = self.parts.state.pod(&sandbox.namespace, &sandbox.name)
        {
            // A runtime that says nothing leaves it to the cluster.
            sandbox.ips.clone_from(&pod.ips);
        }
        self.claim(uid, &netns, &path, &sandbox.ips)?;
        (sandbox.dev, sandbox.ino) = (netns.id().dev, netns.id().ino);
        self.parts.memory.remember(&sandbox).map_err(|cause| {
            metrics::counter!("redirect_failures_total", "step" => "remember").increment(1);
            format!("remembering the pod: {cause}")
        })?;
        let id = netns.id();
        self.netns.insert(uid.to_owned(), netns);
        self.parts.state.sandbox_arrived(sandbox);
        Ok(id)
    }

    /// Answers the plugins whose pods are ready, and those that have waited too long.
    pub(super) fn settle(&mut self) {
        let now = Instant::now();
        let waiting = std::mem::take(&mut self.waiting);
        for waiting in waiting {
            let waited = now.duration_since(waiting.since);
            let outcome = match &waiting.stage {
                Stage::Unknown => (waited >= CLUSTER_LAG).then(|| {
                    Err(format!(
                        "no pod {}/{}{} is known on node {}",
                        waiting.request.pod_namespace,
                        waiting.request.pod_name,
                        waiting
                            .request
                            .pod_uid
                            .as_ref()
                            .map(|uid| format!(" with UID {uid}"))
                            .unwrap_or_default(),
                        self.parts.node,
                    ))
                }),
                Stage::Arrived { uid, netns } => match self.progress(uid, *netns) {
                    None if waited >= PLUGIN_PATIENCE => {
                        Some(Err("ztunnel has not acknowledged the pod in time".into()))
                    }
                    progress => progress,
                },
            };
            match outcome {
                Some(outcome) => {
                    let (namespace, name) =
                        (&waiting.request.pod_namespace, &waiting.request.pod_name);
                    match &outcome {
                        Ok(AddReply { enrolled, .. }) => {
                            info!(namespace, name, enrolled, ?waited, "pod may start")
                        }
                        Err(reason) => warn!(namespace, name, reason, ?waited, "pod refused"),
                    }
                    _ = waiting.reply.send(outcome);
                }
                None => self.waiting.push(waiting),
            }
        }
    }

    pub(super) fn progress(&self, uid: &str, netns: NetnsId) -> Option<Result<AddReply, String>> {
        match self.parts.state.wish(uid) {
            Wish::Captured(_) => {
                if !self.parts.state.is_captured(uid) {
                    // A refusal is known before there are rules.
                    let refusal = self.parts.state.consent(uid, netns)?.err()?;
                    return Some(Err(format!("ztunnel refuses the pod: {refusal}")));
                }
                // The node's set comes first: a probe may follow at once.
                self.members
                    .as_ref()
                    .filter(|members| **members == self.parts.state.members())?;
                match self.parts.state.consent(uid, netns)? {
                    Ok(()) => Some(Ok(AddReply {
                        enrolled: true,
                        reason: None,
                    })),
                    Err(reason) => Some(Err(format!("ztunnel refuses the pod: {reason}"))),
                }
            }
            Wish::Released(reason) => Some(Ok(AddReply {
                enrolled: false,
                reason: Some(reason.to_string()),
            })),
            Wish::Ended => Some(Err("the pod has ended".into())),
            Wish::Gone => Some(Err("the pod has been deleted".into())),
        }
    }

    /// Tells a waiting plugin at once that it is no use.
    pub(super) fn refuse(&mut self, uid: &str, reason: &str) {
        let waiting = std::mem::take(&mut self.waiting);
        for waiting in waiting {
            match &waiting.stage {
                Stage::Arrived { uid: waits_for, .. } if waits_for == uid => {
                    _ = waiting.reply.send(Err(reason.to_owned()));
                }
                _ => self.waiting.push(waiting),
            }
        }
    }
}
