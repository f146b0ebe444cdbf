// SPDX-License-Identifier: Apache-2.0
//! Whether the agent that ends has a successor. If it has, all stays as it is, and no pod starts outside of the mesh
//! meanwhile; if not, what is left would keep every pod of the node from starting.
//!
//! The agent's own DaemonSet tells, and whether it still selects the node. [`Departure::of`] and [`selects`] are pure.

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

/// Whether a DaemonSet puts its pods on a node, as far as the node's labels and name decide. What is not understood is no
/// reason to say that it does not.
fn selects(daemon_set: &Value, node: &Value) -> bool {
    let pod = &daemon_set["spec"]["template"]["spec"];
    let labels = &node["metadata"]["labels"];
    let wanted = pod["nodeSelector"].as_object();
    let mut wanted = wanted.into_iter().flatten();
    if !wanted.all(|(key, value)| labels[key] == *value) {
        return false;
    }
    let required =
        &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let Some(terms) = required["nodeSelectorTerms"].as_array() else {
        return true;
    };
    let all = |of: &Value, label: &dyn Fn(&str) -> Option<String>| {
        let mut of = of.as_array().into_iter().flatten();
        of.all(|one| holds(one, label))
    };
    let label = |key: &str| labels[key].as_str().map(str::to_owned);
    let field = |key: &str| match key {
        "metadata.name" => node["metadata"]["name"].as_str().map(str::to_owned),
        _ => None,
    };
    terms
        .iter()
        .any(|term| all(&term["matchExpressions"], &label) && all(&term["matchFields"], &field))
}

/// One requirement of a node selector.
fn holds(requirement: &Value, label: &dyn Fn(&str) -> Option<String>) -> bool {
    let found = label(requirement["key"].as_str().unwrap_or_default());
    let values = requirement["values"].as_array();
    let mut values = values.into_iter().flatten().filter_map(Value::as_str);
    let number = |text: &str| text.parse::<i64>().ok();
    let compared = |bound: Option<&str>| Some((number(found.as_deref()?)?, number(bound?)?));
    match requirement["operator"].as_str() {
        Some("In") => found.is_some_and(|found| values.any(|value| value == found)),
        Some("NotIn") => found.is_none_or(|found| values.all(|value| value != found)),
        Some("Exists") => found.is_some(),
        Some("DoesNotExist") => found.is_none(),
        Some("Gt") => compared(values.next()).is_some_and(|(found, bound)| found > bound),
        Some("Lt") => compared(values.next()).is_some_and(|(found, bound)| found < bound),
        _ => true,
    }
}

/// Asks after the agent's DaemonSet, and after its node. While the API server is lost the answer is that a successor comes:
/// the plugin that stays starts no pod outside of the mesh.
pub async fn ask(client: &Client, namespace: &str, node: &str) -> Departure {
    let path = format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{DAEMON_SET}");
    for _ in 0..TRIES {
        let answer = get(client, &path).await;
        match (Departure::of(&answer), answer) {
            (Some(Departure::Succeeded), Ok(daemon_set)) => {
                let found = get(client, &format!("/api/v1/nodes/{node}")).await;
                return match found {
                    Ok(found) if !selects(&daemon_set, &found) => Departure::Last(format!(
                        "DaemonSet {DAEMON_SET} no longer selects node {node}"
                    )),
                    // A node that is being made anew, or a server that is lost just now.
                    _ => Departure::Succeeded,
                };
            }
            (Some(departure), _) => return departure,
            (None, answer) => warn!(?answer, "whether another agent follows can't be said"),
        }
        tokio::time::sleep(PAUSE).await;
    }
    Departure::Succeeded
}

async fn get(client: &Client, path: &str) -> Result<Value, RequestError> {
    match Request::get(path).body(Vec::new()) {
        Ok(request) => client.call(request).await,
        Err(error) => Err(RequestError::Broken(format!("{path}: {error}"))),
    }
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

    /// Whether a DaemonSet with this in its pod's specification goes to a node `a` with these labels.
    fn check(pod: Value, labels: Value, expected: bool) {
        let daemon_set = json!({"spec": {"template": {"spec": pod}}});
        let node = json!({"metadata": {"name": "a", "labels": labels}});
        assert_eq!(selects(&daemon_set, &node), expected, "{daemon_set} {node}");
    }

    #[test]
    fn a_daemon_set_selects_nodes_as_schedulers_read_it() {
        let linux = json!({"nodeSelector": {"kubernetes.io/os": "linux"}});
        check(
            linux.clone(),
            json!({"kubernetes.io/os": "linux", "x": "y"}),
            true,
        );
        check(linux.clone(), json!({"kubernetes.io/os": "windows"}), false);
        check(linux, json!(null), false);
        check(json!({}), json!(null), true);
        let affinity = |terms: Value| {
            let required = json!({"nodeSelectorTerms": terms});
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}})
        };
        let one = |operator: &str, values: Value| {
            let requirement = json!({"key": "k", "operator": operator, "values": values});
            affinity(json!([{"matchExpressions": [requirement]}]))
        };
        for (operator, values, with, without) in [
            ("In", json!(["5", "6"]), true, false),
            ("In", json!(["6"]), false, false),
            ("NotIn", json!(["5"]), false, true),
            ("Exists", json!(null), true, false),
            ("DoesNotExist", json!(null), false, true),
            ("Gt", json!(["4"]), true, false),
            ("Gt", json!(["5"]), false, false),
            ("Lt", json!(["6"]), true, false),
            // Not of today: the plugin stays.
            ("Near", json!(["5"]), true, true),
        ] {
            check(one(operator, values.clone()), json!({"k": "5"}), with);
            check(one(operator, values), json!({}), without);
        }
        // Any of the terms, all of a term.
        let name = |name: &str| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]});
        check(affinity(json!([name("b"), name("a")])), json!({}), true);
        check(affinity(json!([name("b")])), json!({}), false);
        let mut both = name("a");
        both["matchExpressions"] = json!([{"key": "k", "operator": "Exists"}]);
        check(affinity(json!([both])), json!({}), false);
    }
}
