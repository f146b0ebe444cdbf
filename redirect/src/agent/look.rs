// SPDX-License-Identifier: Apache-2.0
//! Compares what holds with what should: for a runtime that asks, and from time to time for every pod and the node.

use tracing::{error, warn};

use super::{Agent, Host, blocking};
use crate::nftables::{Applied, Drift};
use crate::plan::pod_plan;
use crate::plugin_api::{AddReply, AddRequest};
use crate::program::{self, ProgramError, Programmed};
use crate::state::Wish;

impl Agent {
    pub(super) async fn check(&self, request: &AddRequest) -> Result<AddReply, String> {
        let pod = self
            .parts
            .state
            .pod(&request.pod_namespace, &request.pod_name)
            .ok_or("the pod is not known")?;
        let options = match self.parts.state.wish(&pod.uid) {
            Wish::Captured(options) => options,
            Wish::Released(reason) => {
                return Ok(AddReply {
                    enrolled: false,
                    reason: Some(reason.to_string()),
                });
            }
            Wish::Ended | Wish::Gone => {
                return Ok(AddReply {
                    enrolled: false,
                    reason: Some("it has ended".into()),
                });
            }
        };
        let netns = self
            .netns
            .get(&pod.uid)
            .cloned()
            .ok_or("its sandbox is not known")?;
        match self.parts.state.consent(&pod.uid, netns.id()) {
            Some(Ok(())) => {}
            Some(Err(reason)) => return Err(format!("ztunnel refuses the pod: {reason}")),
            None => return Err("ztunnel has not acknowledged the pod".into()),
        }
        let sandbox = self
            .parts
            .state
            .sandbox(&pod.uid)
            .ok_or("its sandbox is not known")?;
        let plan = pod_plan(&self.parts.state.options_in_force(sandbox, options));
        let drift = blocking(move || program::inspect(&netns, &plan))
            .await
            .map_err(|cause| cause.to_string())?;
        match drift.first() {
            None => Ok(AddReply {
                enrolled: true,
                reason: None,
            }),
            Some(drift) => Err(drift.to_string()),
        }
    }

    /// Looks at the rules of every pod and of the node, and repairs them.
    pub(super) async fn look(&mut self) {
        let captured: Vec<_> = self
            .parts
            .state
            .sandboxes()
            .filter_map(|sandbox| Some((sandbox.clone(), self.parts.state.plan(&sandbox.uid)?)))
            .collect();
        for (sandbox, plan) in captured {
            let Some(netns) = self.netns.get(&sandbox.uid).cloned() else {
                continue;
            };
            let programmed = blocking(move || program::apply(&netns, &plan)).await;
            report(
                "pod",
                &format!("{}/{}", sandbox.namespace, sandbox.name),
                programmed,
            );
        }
        let Host {
            netns,
            table,
            families,
        } = &self.parts.host;
        let (netns, table, families) = (netns.clone(), table.clone(), *families);
        let members = self.parts.state.members();
        let wanted = members.clone();
        let applied =
            blocking(move || program::apply_host(&netns, &table, families, &wanted)).await;
        let programmed = applied.map(|applied| match applied {
            Applied::Unchanged => Programmed::Unchanged,
            Applied::Installed => Programmed::Repaired(vec!["the table was missing".into()]),
            Applied::Repaired(drift) => {
                Programmed::Repaired(drift.iter().map(Drift::to_string).collect())
            }
        });
        if programmed.is_ok() {
            self.members = Some(members);
        }
        report("node", &self.parts.node, programmed);
    }
}

fn report(what: &'static str, whose: &str, programmed: Result<Programmed, ProgramError>) {
    match programmed {
        Ok(Programmed::Unchanged) => {}
        Ok(Programmed::Installed) => {
            warn!(what, whose, "rules were missing and have been put back");
            metrics::counter!("redirect_drift_repaired_total", "where" => what).increment(1);
        }
        Ok(Programmed::Repaired(drift)) => {
            warn!(
                what,
                whose,
                drift = drift.join("; "),
                "rules had drifted and have been repaired"
            );
            metrics::counter!("redirect_drift_repaired_total", "where" => what).increment(1);
        }
        Err(cause) => {
            error!(what, whose, %cause, "rules could not be checked");
            metrics::counter!("redirect_failures_total", "step" => "check").increment(1);
        }
    }
}
