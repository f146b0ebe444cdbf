// SPDX-License-Identifier: Apache-2.0
//! Pure: what ztunnels believe, as rows. The columns are those of `istioctl ztunnel-config`; as JSON each entry is what
//! the ztunnel says itself.
//!
//! Several ztunnels believe the same of the mesh: what they agree on is listed once. Certificates and connections are each
//! ztunnel's own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use serde_json::{Value, json};
use time::OffsetDateTime;
use time::macros::format_description;

use crate::What;
use crate::table;

/// What is listed.
pub(crate) struct Listing {
    headings: &'static [&'static str],
    entries: Vec<Entry>,
}

struct Entry {
    namespace: String,
    row: Vec<String>,
    raw: Value,
}

impl Listing {
    /// Leaves the entries of one namespace.
    pub(crate) fn retain(&mut self, namespace: Option<&str>) {
        if let Some(namespace) = namespace {
            self.entries.retain(|entry| entry.namespace == namespace);
        }
    }

    pub(crate) fn table(&self) -> String {
        let rows: Vec<_> = self.entries.iter().map(|entry| entry.row.clone()).collect();
        table::render(self.headings, &rows)
    }

    pub(crate) fn json(&self) -> Value {
        self.entries.iter().map(|entry| entry.raw.clone()).collect()
    }
}

/// Rows in order; `now` tells which certificates are in their time.
pub(crate) fn list(what: What, dumps: &[Value], now: OffsetDateTime) -> Listing {
    let (headings, mut entries): (&'static [&'static str], Vec<Entry>) = match what {
        What::Workloads => (
            &[
                "NAMESPACE",
                "POD NAME",
                "ADDRESS",
                "NODE",
                "WAYPOINT",
                "PROTOCOL",
            ],
            of_all(dumps, "workloads", workload),
        ),
        What::Services => (
            &[
                "NAMESPACE",
                "SERVICE NAME",
                "SERVICE VIP",
                "WAYPOINT",
                "ENDPOINTS",
            ],
            of_all(dumps, "services", service),
        ),
        What::Policies => (
            &["NAMESPACE", "POLICY NAME", "ACTION", "SCOPE"],
            of_all(dumps, "policies", policy),
        ),
        What::Certificates => (
            &[
                "CERTIFICATE NAME",
                "TYPE",
                "STATUS",
                "VALID CERT",
                "SERIAL NUMBER",
                "NOT AFTER",
                "NOT BEFORE",
            ],
            dumps
                .iter()
                .flat_map(|dump| certificates(dump, now))
                .collect(),
        ),
        What::Connections => (
            &[
                "WORKLOAD",
                "DIRECTION",
                "LOCAL",
                "REMOTE",
                "REMOTE TARGET",
                "PROTOCOL",
            ],
            dumps.iter().flat_map(connections).collect(),
        ),
    };
    // An authority's chain stays below the certificate that it signed.
    if what != What::Certificates {
        entries.sort_by(|a, b| a.row.cmp(&b.row));
    }
    Listing { headings, entries }
}

/// A list, or the values of a map: Istio's own ztunnel has had both.
pub(crate) fn items<'a>(dump: &'a Value, key: &str) -> Vec<&'a Value> {
    match &dump[key] {
        Value::Array(list) => list.iter().collect(),
        Value::Object(map) => map.values().collect(),
        _ => Vec::new(),
    }
}

fn of_all(dumps: &[Value], key: &str, row: fn(&Value) -> Vec<String>) -> Vec<Entry> {
    let mut seen = BTreeSet::new();
    let all = dumps.iter().flat_map(|dump| items(dump, key));
    all.filter(|raw| seen.insert(raw.to_string()))
        .map(|raw| Entry {
            namespace: text(&raw["namespace"]),
            row: row(raw),
            raw: raw.clone(),
        })
        .collect()
}

pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// `network/address` without the network, which is mostly empty.
fn address(value: &Value) -> String {
    let text = text(value);
    match text.rsplit_once('/') {
        Some((_, address)) => address.to_owned(),
        None => text,
    }
}

fn waypoint(object: &Value) -> String {
    let destination = address(&object["waypoint"]["destination"]);
    let is_address = destination.parse::<std::net::IpAddr>().is_ok();
    match destination.split('.').next() {
        Some("") | None => "None".to_owned(),
        Some(name) if !is_address => name.to_owned(),
        Some(_) => destination,
    }
}

fn first(value: &Value) -> String {
    address(value.get(0).unwrap_or(&Value::Null))
}

fn workload(raw: &Value) -> Vec<String> {
    vec![
        text(&raw["namespace"]),
        text(&raw["name"]),
        first(&raw["workloadIps"]),
        text(&raw["node"]),
        waypoint(raw),
        text(&raw["protocol"]),
    ]
}

fn service(raw: &Value) -> Vec<String> {
    let endpoints = items(raw, "endpoints");
    let healthy = endpoints.iter().filter(|endpoint| {
        // Istio's ztunnel leaves out what is as it mostly is.
        endpoint
            .get("status")
            .is_none_or(|status| status == "Healthy")
    });
    vec![
        text(&raw["namespace"]),
        text(&raw["name"]),
        first(&raw["vips"]),
        waypoint(raw),
        format!("{}/{}", healthy.count(), endpoints.len()),
    ]
}

fn policy(raw: &Value) -> Vec<String> {
    ["namespace", "name", "action", "scope"]
        .map(|key| text(&raw[key]))
        .to_vec()
}

/// RFC 3339 in UTC with whole seconds: earlier times are lesser texts.
pub(crate) fn rfc3339(at: OffsetDateTime) -> String {
    let format = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second]Z");
    at.format(format).unwrap_or_default()
}

fn certificates(dump: &Value, now: OffsetDateTime) -> Vec<Entry> {
    let now = rfc3339(now);
    let mut entries = Vec::new();
    for raw in items(dump, "certificates") {
        let identity = text(&raw["identity"]);
        let namespace = identity.split("/ns/").nth(1).unwrap_or_default();
        let namespace = namespace.split('/').next().unwrap_or_default().to_owned();
        let state = text(&raw["state"]);
        let mut row = |kind: &str, one: &Value| {
            let (after, before) = (text(&one["expirationTime"]), text(&one["validFrom"]));
            let valid = before <= now && now < after;
            entries.push(Entry {
                namespace: namespace.clone(),
                row: vec![
                    identity.clone(),
                    kind.to_owned(),
                    state.clone(),
                    valid.to_string(),
                    text(&one["serialNumber"]),
                    after,
                    before,
                ],
                raw: json!({
                    "identity": identity, "type": kind, "state": state, "valid": valid, "certificate": one,
                }),
            });
        };
        let (chain, roots) = (items(raw, "certChain"), items(raw, "rootCerts"));
        if chain.is_empty() && roots.is_empty() {
            row("Leaf", &Value::Null);
        }
        for (index, one) in chain.into_iter().enumerate() {
            row(if index == 0 { "Leaf" } else { "Intermediate" }, one);
        }
        for one in roots {
            row("Root", one);
        }
    }
    entries
}

fn connections(dump: &Value) -> Vec<Entry> {
    let names: BTreeMap<String, String> = items(dump, "workloads")
        .into_iter()
        .flat_map(|workload| {
            let name = format!(
                "{}.{}",
                text(&workload["name"]),
                text(&workload["namespace"])
            );
            let addresses = items(workload, "workloadIps");
            addresses
                .into_iter()
                .map(move |ip| (address(ip), name.clone()))
        })
        .collect();
    // Addresses of pods are said by the pods' names.
    let named = |value: &Value| {
        let text = text(value);
        match text.parse::<SocketAddr>() {
            Ok(at) => match names.get(&at.ip().to_canonical().to_string()) {
                Some(name) => format!("{name}:{}", at.port()),
                None => text,
            },
            Err(_) => text,
        }
    };
    let mut entries = Vec::new();
    for pod in items(dump, "workloadState") {
        let namespace = text(&pod["info"]["namespace"]);
        let workload = format!("{}.{namespace}", text(&pod["info"]["name"]));
        for (key, word) in [("inbound", "Inbound"), ("outbound", "Outbound")] {
            for raw in items(&pod["connections"], key) {
                let (local, remote) = match key {
                    "inbound" => ("actualDst", "src"),
                    _ => ("src", "actualDst"),
                };
                entries.push(Entry {
                    namespace: namespace.clone(),
                    row: vec![
                        workload.clone(),
                        word.to_owned(),
                        named(&raw[local]),
                        named(&raw[remote]),
                        named(&raw["originalDst"]),
                        text(&raw["protocol"]),
                    ],
                    raw: json!({"workload": pod["info"], "direction": word, "connection": raw}),
                });
            }
        }
    }
    entries
}

#[cfg(test)]
mod tests;
