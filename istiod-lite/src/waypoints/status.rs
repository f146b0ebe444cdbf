// SPDX-License-Identifier: Apache-2.0
//! What a Gateway's and a GatewayClass' status is to say: pure. Nothing is said anew that is said already.

use cluster::{
    ObjectKey,
    k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp},
    kinds,
};
use serde_json::{Value, json};

use super::{plan::is_hbone, state::Task};
use crate::status::{Condition, Verdict};

const ACCEPTED: &str = "Accepted";
const PROGRAMMED: &str = "Programmed";
const RESOLVED_REFS: &str = "ResolvedRefs";
const CONFLICTED: &str = "Conflicted";
const UNEXPECTED: &str = "a waypoint has a single listener: port 15008, protocol HBONE";

/// How a Gateway stands.
#[derive(Debug)]
pub(super) enum Standing<'a> {
    /// It asks for what can't be had.
    Refused {
        reason: &'static str,
        words: String,
    },
    /// An object that nobody made for it has the name that one of its own would have.
    InTheWay(ObjectKey),
    Found(Found<'a>),
}

/// What there is of a Gateway.
#[derive(Debug)]
pub(super) struct Found<'a> {
    pub(super) service: Option<&'a Value>,
    /// Where it is ours to make, whether it is there by now.
    pub(super) deployment: Option<Option<&'a Value>>,
    /// Of the service.
    pub(super) name: String,
    pub(super) namespace: String,
}

impl Found<'_> {
    /// Whether anybody has answered yet.
    fn is_ready(&self) -> bool {
        match &self.deployment {
            None => self.service.is_some(),
            Some(made) => made.is_some_and(|made| {
                made["status"]["readyReplicas"].as_i64().unwrap_or_default() > 0
            }),
        }
    }

    /// Its service's addresses, then its name; none while the service has no address.
    fn addresses(&self, domain: &str) -> Vec<Value> {
        let Some(service) = self.service else {
            return Vec::new();
        };
        let spec = &service["spec"];
        let listed = spec["clusterIPs"].as_array().into_iter().flatten();
        let mut all: Vec<&str> = listed.filter_map(Value::as_str).collect();
        if all.is_empty() {
            all.extend(spec["clusterIP"].as_str().filter(|ip| !ip.is_empty()));
        }
        if all.is_empty() {
            return Vec::new();
        }
        let host = format!("{}.{}.svc.{domain}", self.name, self.namespace);
        let ips = all.into_iter().filter(|ip| *ip != "None");
        ips.map(|ip| json!({"type": "IPAddress", "value": ip}))
            .chain([json!({"type": "Hostname", "value": host})])
            .collect()
    }
}

fn say(
    kind: &'static str,
    verdict: Verdict,
    reason: &'static str,
    message: impl Into<String>,
) -> Condition {
    Condition {
        kind,
        verdict,
        reason,
        message: message.into(),
    }
}

fn yes(kind: &'static str) -> Condition {
    say(kind, Verdict::True, kind, "")
}

pub(super) fn of_gateway(
    key: &ObjectKey,
    gateway: &kinds::Gateway,
    standing: &Standing<'_>,
    domain: &str,
    now: Timestamp,
) -> Option<Task> {
    let nothing = kinds::GatewayStatus::default();
    let carried = gateway.status.as_ref().unwrap_or(&nothing);
    // Once given, they stay: who is bound to a waypoint that is down for a while waits for it.
    let given: Vec<Value> = carried.addresses.iter().map(|one| json!(one)).collect();
    let (accepted, programmed, addresses) = match standing {
        Standing::Refused { reason, words } => (
            say(ACCEPTED, Verdict::False, reason, words),
            say(PROGRAMMED, Verdict::False, "Invalid", "it is not accepted"),
            given,
        ),
        Standing::InTheWay(object) => {
            let words = format!("{object} was not made for it, and is left alone");
            (
                yes(ACCEPTED),
                say(PROGRAMMED, Verdict::False, "Invalid", words),
                given,
            )
        }
        Standing::Found(found) => {
            let addresses = if found.is_ready() || !given.is_empty() {
                found.addresses(domain)
            } else {
                Vec::new()
            };
            let addresses = if addresses.is_empty() {
                given
            } else {
                addresses
            };
            let programmed = match (found.service, addresses.is_empty()) {
                (Some(_), false) => yes(PROGRAMMED),
                (None, _) if found.deployment.is_none() => {
                    let words = format!("there is no Service {}/{}", found.namespace, found.name);
                    say(PROGRAMMED, Verdict::False, "AddressNotUsable", words)
                }
                _ => {
                    let words = "no instance of it is ready yet";
                    say(PROGRAMMED, Verdict::False, "AddressNotAssigned", words)
                }
            };
            (yes(ACCEPTED), programmed, addresses)
        }
    };
    let good = matches!(&gateway.spec.listeners[..], [one] if is_hbone(one));
    let accepted = if accepted.verdict == Verdict::True && !good {
        say(ACCEPTED, Verdict::True, "ListenersNotValid", UNEXPECTED)
    } else {
        accepted
    };
    let is_programmed = programmed.verdict == Verdict::True;
    let generation = gateway.metadata.generation;
    let listeners = gateway.spec.listeners.iter().map(|one| {
        let said = listener(is_hbone(one), is_programmed);
        let before = carried
            .listeners
            .iter()
            .find(|before| before["name"] == one.name.as_str());
        let before = before.map_or(&Value::Null, |before| &before["conditions"]);
        let before: Vec<kinds::Condition> =
            serde_json::from_value(before.clone()).unwrap_or_default();
        json!({
            "name": one.name, "attachedRoutes": 0, "supportedKinds": [],
            "conditions": written(&said, &before, generation, now),
        })
    });
    let conditions = [accepted, programmed, yes(RESOLVED_REFS)];
    let conditions = written(&conditions, &carried.conditions, generation, now);
    let listeners: Vec<Value> = listeners.collect();
    let same = says(&carried.conditions, &conditions)
        && carried.listeners == listeners
        && carried
            .addresses
            .iter()
            .map(|one| json!(one))
            .eq(addresses.iter().cloned());
    (!same).then(|| Task::Say {
        object: key.clone(),
        body: json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": key.name, "namespace": key.namespace, "uid": gateway.metadata.uid},
            "status": {"addresses": addresses, "conditions": conditions, "listeners": listeners},
        }),
    })
}

/// What is said of a listener.
fn listener(is_hbone: bool, is_programmed: bool) -> [Condition; 4] {
    let (accepted, programmed) = match (is_hbone, is_programmed) {
        (true, true) => (yes(ACCEPTED), yes(PROGRAMMED)),
        (true, false) => (
            yes(ACCEPTED),
            say(
                PROGRAMMED,
                Verdict::False,
                "Pending",
                "the Gateway is not programmed",
            ),
        ),
        (false, _) => (
            say(ACCEPTED, Verdict::False, "UnsupportedProtocol", UNEXPECTED),
            say(
                PROGRAMMED,
                Verdict::False,
                "Invalid",
                "the listener is not accepted",
            ),
        ),
    };
    [
        accepted,
        programmed,
        say(CONFLICTED, Verdict::False, "NoConflicts", ""),
        yes(RESOLVED_REFS),
    ]
}

pub(super) fn of_class(
    key: &ObjectKey,
    class: &kinds::GatewayClass,
    now: Timestamp,
) -> Option<Task> {
    let carried = class.status.as_ref().map(|status| &status.conditions[..]);
    let carried = carried.unwrap_or_default();
    let words = "waypoints of this class are kept by this control plane";
    let wanted = [say(ACCEPTED, Verdict::True, ACCEPTED, words)];
    let conditions = written(&wanted, carried, class.metadata.generation, now);
    (!says(carried, &conditions)).then(|| Task::Say {
        object: key.clone(),
        body: json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
            "metadata": {"name": key.name, "uid": class.metadata.uid},
            "status": {"conditions": conditions},
        }),
    })
}

/// Conditions as they are to be written in place of those that are carried.
fn written(
    wanted: &[Condition],
    carried: &[kinds::Condition],
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<kinds::Condition> {
    let of = |wanted: &Condition| {
        let before = carried.iter().find(|one| one.type_ == wanted.kind);
        wanted.written(before, generation, Time(now))
    };
    wanted.iter().map(of).collect()
}

/// Whether all of these are carried, whatever others have added.
fn says(carried: &[kinds::Condition], wanted: &[kinds::Condition]) -> bool {
    wanted.iter().all(|one| carried.contains(one))
}
