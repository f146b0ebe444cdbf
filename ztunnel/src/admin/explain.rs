// SPDX-License-Identifier: Apache-2.0
//! `/debug/explain?source=&destination=&port=`: what would become of a connection, by what is known now.

use std::time::Instant;

use http::StatusCode;
use identity::CertificateState;
use mesh::Store;
use ops::admin::{AdminRequest, AdminResponse, json, text};
use serde::Serialize;

use super::Shown;
use crate::explain::{Explanation, Knowledge, Question, explain};

const USAGE: &str = "usage: /debug/explain?source=NAMESPACE/POD&destination=SERVICE&port=PORT\n\
source may be an address, destination an address or NAMESPACE/POD; port may be left out of a service that has one\n";

#[derive(Serialize)]
struct Answer {
    #[serde(flatten)]
    explanation: Explanation,
    /// What stands in the way at this moment, whatever policies say.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

pub(super) fn page(shown: &Shown, request: &AdminRequest) -> AdminResponse {
    let value = |key| request.query_value(key).filter(|value| !value.is_empty());
    let port = value("port").map(str::parse::<u16>).transpose();
    let (Some(source), Some(destination), Ok(port)) = (value("source"), value("destination"), port)
    else {
        return text(StatusCode::BAD_REQUEST, USAGE);
    };
    let question = Question {
        source,
        destination,
        port,
    };
    // Always in this order, as writers wait for both.
    let store = shown.mesh.read();
    let standings = shown.endpoints.standings();
    let knows = Knowledge {
        store: &store,
        standings: &standings,
        network: shown.proxies.network(),
        own_ports: shown.proxies.own_ports(),
        now: Instant::now(),
    };
    match explain(knows, question) {
        Ok(explanation) => {
            let notes = notes(shown, &store, &explanation);
            json(&Answer { explanation, notes })
        }
        Err(unknown) => text(StatusCode::NOT_FOUND, format!("{unknown}\n")),
    }
}

/// Where the client is a pod of this node, more is known of what it can do now.
fn notes(shown: &Shown, store: &Store, explanation: &Explanation) -> Vec<String> {
    let client = &explanation.source;
    let mut notes = Vec::new();
    if !client.here {
        notes.push(format!(
            "{} is not on this node: its own ztunnel may know better",
            client.workload
        ));
    } else if client.in_mesh {
        let states = shown.certificates.states();
        let own = states
            .iter()
            .find(|status| status.identity.as_str() == client.identity);
        match own.map(|status| &status.state) {
            Some(CertificateState::Available { .. }) => {}
            Some(CertificateState::Initializing) | None => notes.push(format!(
                "there is no certificate yet for {}",
                client.identity
            )),
            Some(CertificateState::Unavailable(error)) => notes.push(format!(
                "there is no certificate for {}: {error}",
                client.identity
            )),
        }
        let pods = shown.proxies.view();
        let pod = pods
            .iter()
            .find(|pod| pod.info.to_string() == client.workload);
        match pod {
            None => notes.push(format!("{} is not served here (yet)", client.workload)),
            Some(pod) => {
                let unbound = pod.unbound.as_ref();
                notes.extend(unbound.map(|why| format!("its connections are refused: {why}")));
            }
        }
    }
    for policy in explanation
        .hops
        .iter()
        .flat_map(|hop| &hop.verdict.policies)
    {
        let held = store.policy(policy);
        if held.is_some_and(|held| held.enforcement == mesh::policy::Enforcement::DryRun) {
            notes.push(format!("policy {policy} is in dry run"));
        }
    }
    if explanation.hops.iter().any(|hop| hop.to == "waypoint") {
        notes.push("the waypoint decides on each request by its own rules as well".to_owned());
    }
    notes
}
