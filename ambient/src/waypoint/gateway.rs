// SPDX-License-Identifier: Apache-2.0
//! Pure: a waypoint is a Gateway of class `istio-waypoint`; what asks for one, and what one says of itself.

use clap::ValueEnum;
use serde_json::{Value, json};

use crate::ps::{items, text};

pub(crate) const CLASS: &str = "istio-waypoint";
const WAYPOINT_FOR: &str = "istio.io/waypoint-for";
const REVISION: &str = "istio.io/rev";
pub(crate) const USE_WAYPOINT: &str = "istio.io/use-waypoint";
pub(crate) const DATAPLANE_MODE: &str = "istio.io/dataplane-mode";

/// Traffic to what goes through the waypoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Traffic {
    /// Services
    Service,
    /// Pods, where they are called by their addresses
    Workload,
    /// Both
    All,
    /// Neither: to try it without being in the way
    None,
}

/// The object that asks for a waypoint.
pub(crate) fn object(
    namespace: &str,
    name: &str,
    traffic: Option<Traffic>,
    revision: Option<&str>,
) -> Value {
    let mut metadata = json!({"name": name, "namespace": namespace});
    let traffic = traffic.and_then(|traffic| traffic.to_possible_value());
    if let Some(traffic) = traffic {
        metadata["labels"][WAYPOINT_FOR] = json!(traffic.get_name());
    }
    if let Some(revision) = revision {
        metadata["labels"][REVISION] = json!(revision);
    }
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": metadata,
        "spec": {
            "gatewayClassName": CLASS,
            "listeners": [{"name": "mesh", "port": 15008, "protocol": "HBONE"}],
        },
    })
}

pub(crate) fn is_waypoint(gateway: &Value) -> bool {
    gateway["spec"]["gatewayClassName"] == CLASS
}

/// Of a list of Gateways the waypoints, by namespace and name; of one revision, if one is said.
pub(crate) fn waypoints(list: &Value, of: Option<&str>) -> Vec<Value> {
    let is_wanted = |gateway: &&Value| {
        is_waypoint(gateway) && of.is_none_or(|wanted| revision(gateway) == wanted)
    };
    let mut found: Vec<Value> = items(list, "items")
        .into_iter()
        .filter(is_wanted)
        .cloned()
        .collect();
    found.sort_by_key(|gateway| (namespace(gateway), name(gateway)));
    found
}

pub(crate) fn name(gateway: &Value) -> String {
    text(&gateway["metadata"]["name"])
}

pub(crate) fn namespace(gateway: &Value) -> String {
    text(&gateway["metadata"]["namespace"])
}

fn revision(gateway: &Value) -> String {
    label(gateway, REVISION, "default")
}

fn label(gateway: &Value, key: &str, otherwise: &str) -> String {
    match &gateway["metadata"]["labels"][key] {
        Value::String(value) => value.clone(),
        _ => otherwise.to_owned(),
    }
}

/// A condition of a Gateway, or that there is none, as the cells STATUS, TYPE, REASON and MESSAGE.
fn condition(gateway: &Value, kind: &str) -> [String; 4] {
    let conditions = items(&gateway["status"], "conditions");
    let found = conditions.into_iter().find(|one| one["type"] == kind);
    let cells = |status: &str, reason: &str, message: &str| {
        [status, kind, reason, message].map(str::to_owned)
    };
    let Some(found) = found else {
        return cells("Unknown", "Pending", "no control plane has said so yet");
    };
    let seen = found["observedGeneration"].as_u64();
    if seen.is_some() && seen < gateway["metadata"]["generation"].as_u64() {
        return cells(
            "Unknown",
            "Pending",
            "it was changed since the control plane saw it",
        );
    }
    [
        text(&found["status"]),
        kind.to_owned(),
        text(&found["reason"]),
        text(&found["message"]),
    ]
}

/// Whether it takes traffic, as it stands there now.
pub(crate) fn is_programmed(gateway: &Value) -> bool {
    condition(gateway, "Programmed")[0] == "True"
}

pub(crate) const LIST: [&str; 4] = ["NAME", "REVISION", "TRAFFIC TYPE", "PROGRAMMED"];

pub(crate) fn list_rows(gateway: &Value) -> Vec<Vec<String>> {
    let [programmed, ..] = condition(gateway, "Programmed");
    let traffic = label(gateway, WAYPOINT_FOR, "service");
    vec![vec![name(gateway), revision(gateway), traffic, programmed]]
}

pub(crate) const STATUS: [&str; 6] = ["NAME", "STATUS", "TYPE", "REASON", "MESSAGE", "ADDRESSES"];

/// A row for each condition; the addresses stand in that which they belong to.
pub(crate) fn status_rows(gateway: &Value) -> Vec<Vec<String>> {
    let addresses = items(&gateway["status"], "addresses");
    let addresses: Vec<String> = addresses.iter().map(|one| text(&one["value"])).collect();
    ["Accepted", "Programmed"]
        .map(|kind| {
            let mut row = vec![name(gateway)];
            row.extend(condition(gateway, kind));
            row.push(match kind {
                "Programmed" => addresses.join(","),
                _ => String::new(),
            });
            row
        })
        .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_asks_for_a_waypoint_says_only_what_was_said() {
        let plain = object("shop", "waypoint", None, None);
        assert_eq!(
            plain["metadata"],
            json!({"name": "waypoint", "namespace": "shop"})
        );
        assert!(is_waypoint(&plain));
        let full = object("shop", "w", Some(Traffic::All), Some("next"));
        assert_eq!(
            full["metadata"]["labels"],
            json!({"istio.io/waypoint-for": "all", "istio.io/rev": "next"})
        );
        assert_eq!(list_rows(&full), [["w", "next", "all", "Unknown"]]);
    }

    fn told(status: &str, seen: u64) -> Value {
        let mut gateway = object("shop", "w", None, None);
        gateway["metadata"]["generation"] = json!(2);
        gateway["status"] = json!({
            "addresses": [{"type": "IPAddress", "value": "10.96.0.9"}, {"value": "w.shop.svc"}],
            "conditions": [{
                "type": "Programmed", "status": status, "observedGeneration": seen,
                "reason": "Why", "message": "since",
            }],
        });
        gateway
    }

    #[test]
    fn a_waypoint_is_programmed_as_it_stands_there_now_or_it_is_not() {
        assert!(is_programmed(&told("True", 2)));
        assert!(!is_programmed(&told("True", 1)));
        assert!(!is_programmed(&told("False", 2)));
        assert_eq!(
            status_rows(&told("False", 2)),
            [
                [
                    "w",
                    "Unknown",
                    "Accepted",
                    "Pending",
                    "no control plane has said so yet",
                    ""
                ],
                [
                    "w",
                    "False",
                    "Programmed",
                    "Why",
                    "since",
                    "10.96.0.9,w.shop.svc"
                ],
            ]
        );
        let stale = &status_rows(&told("True", 1))[1];
        assert_eq!(stale[1..4], ["Unknown", "Programmed", "Pending"]);
    }

    #[test]
    fn other_gateways_and_other_revisions_are_left_out() {
        let mut ingress = object("shop", "ingress", None, None);
        ingress["spec"]["gatewayClassName"] = json!("istio");
        let list = json!({"items": [
            object("shop", "b", None, None), ingress, object("shop", "a", None, Some("next")),
            object("infra", "z", None, None),
        ]});
        let names = |of| -> Vec<String> { waypoints(&list, of).iter().map(name).collect() };
        assert_eq!(names(None), ["z", "a", "b"]);
        assert_eq!(names(Some("next")), ["a"]);
        assert_eq!(names(Some("default")), ["z", "b"]);
    }
}
