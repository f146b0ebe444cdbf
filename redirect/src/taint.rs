// SPDX-License-Identifier: Apache-2.0
//! Frees a new node of the taint that keeps pods off it until they can be captured there.
//!
//! Whoever makes nodes may give them the taint [`TAINT`]; it goes once the plugin is installed and the node's kernel has
//! captured connections of the canary, and nobody but those who make nodes puts it there. [`without`] is pure.

use std::time::Duration;

use cluster::{Client, RequestError};
use http::Request;
use http::header::CONTENT_TYPE;
use ops::health::Readiness;
use serde_json::{Value, json};
use tracing::{error, info, warn};

use crate::canary;
use crate::rules::Family;

/// Istio's name for it.
pub const TAINT: &str = "cni.istio.io/not-ready";
/// Between looks at whether the agent is ready.
const LOOK: Duration = Duration::from_millis(200);
/// Between tries of what may fail for a while: a kernel that refuses, a server that is lost.
const PAUSE: Duration = Duration::from_secs(10);

/// What removes the taint from a node as the API server shows it; None if there is none. The patch holds only for these
/// very taints: others may add theirs at the same moment.
pub fn without(node: &Value) -> Option<Value> {
    let taints = node["spec"]["taints"].as_array()?;
    let others: Vec<&Value> = taints
        .iter()
        .filter(|taint| taint["key"] != TAINT)
        .collect();
    if others.len() == taints.len() {
        return None;
    }
    Some(json!([
        {"op": "test", "path": "/spec/taints", "value": taints},
        {"op": "replace", "path": "/spec/taints", "value": others},
    ]))
}

/// Waits until all parts of the agent are ready and the canary lives, and frees the node. Ends once that is done, or where
/// the agent may not.
pub async fn lift(client: Client, node: String, readiness: Readiness) {
    while !readiness.pending().is_empty() {
        tokio::time::sleep(LOOK).await;
    }
    loop {
        let tried = tokio::task::spawn_blocking(|| canary::run(Family::V4)).await;
        match tried {
            Ok(Ok(())) => break,
            Ok(Err(failed)) => {
                error!(
                    step = ?failed.step, cause = failed.cause,
                    "connections can't be captured on this node; `redirect preflight` says what to change"
                );
            }
            Err(panicked) => error!(%panicked, "the canary"),
        }
        metrics::counter!("redirect_failures_total", "step" => "canary").increment(1);
        tokio::time::sleep(PAUSE).await;
    }
    loop {
        match remove(&client, &node).await {
            Ok(false) => return,
            Ok(true) => {
                info!(node, taint = TAINT, "the node takes pods from now on");
                return;
            }
            Err(error) if matches!(error.code(), Some(401 | 403 | 404)) => {
                warn!(node, taint = TAINT, %error, "whether the node has the taint can't be said, and it stays");
                return;
            }
            // Somebody else changed the node's taints, or the server is lost.
            Err(error) => warn!(node, taint = TAINT, %error, "the taint stays until the next try"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Whether there was a taint to remove.
async fn remove(client: &Client, node: &str) -> Result<bool, RequestError> {
    let path = format!("/api/v1/nodes/{node}");
    let broken = |error: http::Error| RequestError::Broken(format!("{path}: {error}"));
    let get = Request::get(&path).body(Vec::new()).map_err(broken)?;
    let Some(patch) = without(&client.call(get).await?) else {
        return Ok(false);
    };
    let patch = Request::patch(format!("{path}?fieldManager=redirect"))
        .header(CONTENT_TYPE, "application/json-patch+json")
        .body(patch.to_string().into_bytes())
        .map_err(broken)?;
    client.call(patch).await.map(|_| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_taint_goes_with_every_effect_and_others_stay_in_their_order() {
        let node = |taints: Value| json!({"spec": {"taints": taints}});
        let taint = |key: &str, effect: &str| json!({"key": key, "effect": effect});
        let before = json!([
            taint("a", "NoSchedule"),
            taint(TAINT, "NoSchedule"),
            taint("b", "NoExecute"),
            taint(TAINT, "NoExecute"),
        ]);
        let patch = without(&node(before.clone())).unwrap();
        assert_eq!(patch[0]["value"], before);
        assert_eq!(
            patch[1]["value"],
            json!([taint("a", "NoSchedule"), taint("b", "NoExecute")])
        );
        for nothing in [json!([]), json!(null), json!([taint("a", "NoSchedule")])] {
            assert_eq!(without(&node(nothing.clone())), None, "{nothing}");
        }
    }
}
