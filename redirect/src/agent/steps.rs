// SPDX-License-Identifier: Apache-2.0
//! Steps as they are done for one pod, and what became of them told to the state. A failed step is due again later.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::{Kind, ObjectKey};
use tracing::{debug, error, info, warn};

use super::{Agent, blocking};
use crate::memory::Sandbox;
use crate::plan::{Dns, PodOptions, Reach, pod_plan, reduced_plan};
use crate::program::{self, Programmed};
use crate::state::{Continuity, REDIRECTION_ANNOTATION, Redirection};

/// How long an API server that could not be asked is left alone.
const OUTAGE: Duration = Duration::from_secs(5);

impl Agent {
    pub(super) async fn capture(&mut self, sandbox: &Sandbox, options: PodOptions) {
        let Sandbox {
            namespace,
            name,
            uid,
            ..
        } = sandbox;
        let Some(netns) = self.netns.get(uid).cloned() else {
            self.forget(sandbox);
            return;
        };
        if !self.note(sandbox, true) {
            return;
        }
        let plan = pod_plan(&options);
        match blocking(move || program::apply(&netns, &plan)).await {
            Ok(programmed) => {
                let continuity = match &programmed {
                    Programmed::Installed => Continuity::Fresh,
                    Programmed::Unchanged | Programmed::Repaired(_) => Continuity::Found,
                };
                info!(namespace, name, uid, ?programmed, "pod captured");
                self.parts.state.captured(sandbox, options, continuity);
            }
            Err(cause) => {
                error!(namespace, name, uid, %cause, "pod could not be captured");
                metrics::counter!("redirect_failures_total", "step" => "capture").increment(1);
                self.parts.state.failed(uid, Instant::now());
                self.refuse(uid, &format!("capturing the pod: {cause}"));
            }
        }
    }

    pub(super) async fn look_for_resolver(&mut self, sandbox: &Sandbox) {
        let Sandbox {
            namespace,
            name,
            uid,
            ..
        } = sandbox;
        let Some(netns) = self.netns.get(uid).cloned() else {
            self.forget(sandbox);
            return;
        };
        let listens = match blocking(move || program::resolver_listens(&netns)).await {
            Ok(listens) => listens,
            Err(cause) => {
                // The pod's connections are captured all the same.
                error!(namespace, name, uid, %cause, "a pod's listeners could not be looked at");
                metrics::counter!("redirect_failures_total", "step" => "resolver").increment(1);
                false
            }
        };
        let state = &mut self.parts.state;
        match state.looked_for_resolver(sandbox, listens, Instant::now()) {
            Some(Dns::Captured) => debug!(namespace, name, uid, "DNS of the pod is answered"),
            Some(Dns::Untouched) => warn!(
                namespace,
                name,
                uid,
                "DNS of the pod is left alone: ztunnel does not listen for it (is ISTIO_META_DNS_CAPTURE false there?)"
            ),
            None => {}
        }
    }

    pub(super) async fn loosen(&mut self, sandbox: &Sandbox, options: PodOptions, reach: Reach) {
        let Sandbox {
            namespace,
            name,
            uid,
            ..
        } = sandbox;
        let Some(netns) = self.netns.get(uid).cloned() else {
            self.forget(sandbox);
            return;
        };
        let plan = reduced_plan(&options, reach);
        match blocking(move || program::apply(&netns, &plan)).await {
            Ok(_) => {
                let captured = match reach {
                    Reach::Everything => "everything",
                    Reach::Inbound => "what comes in",
                    Reach::Nothing => "what is open",
                };
                info!(namespace, name, uid, captured, "pod leaves the mesh");
                self.parts.state.loosened(sandbox, options, reach);
            }
            Err(cause) => {
                error!(namespace, name, uid, %cause, "rules of a pod that leaves could not be changed");
                metrics::counter!("redirect_failures_total", "step" => "release").increment(1);
                self.parts.state.failed(uid, Instant::now());
            }
        }
    }

    /// Remembers whether rules of ours may be in a sandbox, before they come and after they are gone.
    fn note(&mut self, sandbox: &Sandbox, captured: bool) -> bool {
        if sandbox.captured == captured {
            return true;
        }
        let noted = Sandbox {
            captured,
            ..sandbox.clone()
        };
        if let Err(cause) = self.parts.memory.remember(&noted) {
            let Sandbox {
                namespace, name, ..
            } = sandbox;
            error!(namespace, name, %cause, "a pod could not be remembered");
            metrics::counter!("redirect_failures_total", "step" => "remember").increment(1);
            self.parts.state.failed(&sandbox.uid, Instant::now());
            return false;
        }
        self.parts.state.sandbox_noted(Arc::new(noted));
        true
    }

    pub(super) async fn release(&mut self, sandbox: &Sandbox) {
        let Sandbox {
            namespace,
            name,
            uid,
            ..
        } = sandbox;
        let released = match self.netns.get(uid).cloned() {
            Some(netns) => blocking(move || program::remove(&netns)).await,
            None => Ok(()),
        };
        match released {
            Ok(()) => {
                info!(namespace, name, uid, "pod released");
                self.parts.state.released(sandbox);
                self.note(sandbox, false);
            }
            Err(cause) => {
                error!(namespace, name, uid, %cause, "pod could not be released");
                metrics::counter!("redirect_failures_total", "step" => "release").increment(1);
                self.parts.state.failed(uid, Instant::now());
            }
        }
    }

    pub(super) async fn annotate(
        &mut self,
        uid: &str,
        namespace: &str,
        name: &str,
        value: Option<Redirection>,
    ) {
        let now = Instant::now();
        if now < self.annotate_after {
            self.parts.state.failed(uid, now);
            return;
        }
        let key = ObjectKey::namespaced(Kind::Pod, namespace, name);
        let (status, owner) = (self.parts.status.clone(), uid.to_owned());
        let written = blocking(move || {
            let value = value.map(Redirection::as_str);
            status.annotate(&key, &owner, REDIRECTION_ANNOTATION, value)
        })
        .await;
        match written {
            Ok(_) => {
                debug!(
                    namespace,
                    name,
                    value = value.map(Redirection::as_str),
                    "redirection annotated"
                );
                self.parts.state.annotated(uid, value);
            }
            Err(cause) => {
                // The next pod would wait as long, and with it all else.
                if cause.is_outage() {
                    self.annotate_after = Instant::now() + OUTAGE;
                }
                error!(namespace, name, %cause, "pod could not be annotated");
                metrics::counter!("redirect_failures_total", "step" => "annotate").increment(1);
                self.parts.state.failed(uid, Instant::now());
            }
        }
    }
}
