// SPDX-License-Identifier: Apache-2.0
//! What becomes of a connection that has not been made: by the code that decides on real ones, and by what is known now. Pure.
//!
//! In: who connects and to what, as a person writes it; what this node knows of the mesh. Out: each hop with who proves to
//! be whom, how it is carried and whether it may arrive, by which rule; or why nothing would. What a waypoint makes of
//! requests is not known here: it is asked itself.

mod names;
mod path;

use std::net::SocketAddr;

use mesh::{Decision, PolicySet, Standings, Store, Workload};
use serde::Serialize;

pub use self::names::Unknown;
use crate::route::OwnPorts;

/// What this node knows.
#[derive(Clone, Copy)]
pub struct Knowledge<'a> {
    pub store: &'a Store,
    pub standings: &'a Standings,
    /// Of this proxy.
    pub network: &'a str,
    pub own_ports: OwnPorts,
    pub now: std::time::Instant,
}

/// What is asked.
#[derive(Debug, Clone, Copy)]
pub struct Question<'q> {
    /// "namespace/pod", or an address.
    pub source: &'q str,
    /// A service by a name that a client might use, an address, or "namespace/pod".
    pub destination: &'q str,
    /// May be left out where the service has one only.
    pub port: Option<u16>,
}

/// What would become of it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    pub source: Party,
    /// The service that is meant, if one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// What the client connects to.
    pub destination: SocketAddr,
    pub hops: Vec<Hop>,
    pub allowed: bool,
    /// What decides.
    pub why: String,
}

/// A workload at one end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Party {
    /// "namespace/name".
    pub workload: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,
    pub identity: String,
    pub in_mesh: bool,
    /// Whether it is on the node that answers, whose knowledge of it decides.
    pub here: bool,
}

/// One leg of the way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Hop {
    /// "hbone", or "plain".
    pub transport: &'static str,
    /// Who the client of this leg proves to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_identity: Option<String>,
    /// For whom it speaks, where it may.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_behalf_of: Option<String>,
    /// "endpoint", "waypoint", "gateway", or "outside" where nothing is known of it.
    pub to: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<Party>,
    pub address: SocketAddr,
    /// What the tunnel is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authority: Option<String>,
    /// Who may answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub expected: Vec<String>,
    /// What protects it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cipher: Option<String>,
    /// What its server decides on it.
    pub verdict: Verdict,
}

/// Whether a leg may arrive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    pub allowed: bool,
    /// By which rule, or why none decides.
    pub why: String,
    /// The policies that were looked at; those in dry run among them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<String>,
}

/// Explains a connection.
///
/// # Errors
/// What of the question means nothing here.
pub fn explain(knows: Knowledge<'_>, question: Question<'_>) -> Result<Explanation, Unknown> {
    let source = names::source(knows, question.source)?;
    let meant = names::destination(knows, question, &source)?;
    Ok(path::follow(knows, &source, &meant))
}

impl Party {
    fn of(knows: Knowledge<'_>, workload: &Workload) -> Self {
        Self {
            workload: format!("{}/{}", workload.namespace, workload.name),
            node: workload.node.to_string(),
            identity: workload.identity.to_string(),
            in_mesh: path::is_in_mesh(workload),
            here: knows.store.is_local(workload),
        }
    }
}

impl Verdict {
    fn of(policies: &PolicySet, connection: &mesh::Connection<'_>) -> Self {
        let decision = mesh::authorize(policies, connection);
        let why = match &decision {
            Decision::Allow { rule: None } => "no ALLOW policy applies".to_owned(),
            Decision::Allow { rule: Some(rule) } => format!("allowed by policy {rule}"),
            Decision::Deny { reason } => reason.to_string(),
        };
        Self {
            allowed: decision.is_allowed(),
            why,
            policies: policies.names().map(|name| name.to_string()).collect(),
        }
    }

    fn nobodys(why: &str) -> Self {
        Self {
            allowed: true,
            why: why.to_owned(),
            policies: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
