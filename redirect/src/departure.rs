// SPDX-License-Identifier: Apache-2.0
//! Whether the agent that ends has a successor. If it has, all stays as it is, and no pod starts outside of the mesh
//! meanwhile; if not, what is left would keep every pod of the node from starting.
//!
//! The agent's own DaemonSet tells. [`Departure::of`] is pure.

use std::time::Duration;

use cluster::{Client, RequestError};
use http::Request;
use serde_json::Value;
use tracing::warn;

/// The DaemonSet whose pods the agents are: Istio's name, by which the plugin knows them as well.
pub const DAEMON_SET: &str = "istio-cni-node";
/// An answer is asked for as often, and then the agent ends without one.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Departure {
    /// Another agent follows, or nobody knows better.
    Succeeded,
    /// None will, and why.
    Last(String),
}

impl Departure {
    /// What the API server's answer about the DaemonSet means; None where it did not answer.
    fn of(answer: &Result<Value, RequestError>) -> Option<Self> {
        let last = |why: String| Some(Self::Last(why));
        match answer {
            Ok(found) if !found["metadata"]["deletionTimestamp"].is_null() => {
                last(format!("DaemonSet {DAEMON_SET} is being deleted"))
            }
            Ok(_) => Some(Self::Succeeded),
            // Account and rights go first, in an order that nobody promises; without them no agent does its work either.
            Err(error) => match error.code() {
                Some(404) => last(format!("DaemonSet {DAEMON_SET} is gone")),
                Some(401 | 403) => last(format!("the agent's rights are gone: {error}")),
                _ => None,
            },
        }
    }
}

/// Asks after the agent's DaemonSet. While the API server is lost the answer is that a successor comes: the plugin that
/// stays starts no pod outside of the mesh.
pub async fn ask(client: &Client, namespace: &str) -> Departure {
    let path = format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{DAEMON_SET}");
    for _ in 0..TRIES {
        let answer = match Request::get(&path).body(Vec::new()) {
            Ok(request) => client.call(request).await,
            Err(error) => Err(RequestError::Broken(format!("{path}: {error}"))),
        };
        if let Some(departure) = Departure::of(&answer) {
            return departure;
        }
        warn!(?answer, "whether another agent follows can't be said");
        tokio::time::sleep(PAUSE).await;
    }
    Departure::Succeeded
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_agent_is_the_last_one_only_if_the_server_says_so() {
        let refused = |code| {
            Err(RequestError::Refused {
                code,
                reason: String::new(),
                message: "no".to_owned(),
            })
        };
        let there = json!({"metadata": {"name": DAEMON_SET}});
        let leaving = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        for (answer, last) in [
            (Ok(there), Some(false)),
            (Ok(leaving), Some(true)),
            (refused(404), Some(true)),
            (refused(401), Some(true)),
            (refused(403), Some(true)),
            (refused(500), None),
            (refused(429), None),
            (Err(RequestError::Silent(PAUSE)), None),
            (Err(RequestError::Broken("lost".to_owned())), None),
        ] {
            let found = Departure::of(&answer).map(|found| found != Departure::Succeeded);
            assert_eq!(found, last, "{answer:?}");
        }
    }
}
