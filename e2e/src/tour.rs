// SPDX-License-Identifier: Apache-2.0
//! The tour: conversations between pods, and for each one what can be proved about it from the outside.
//!
//! - who talked, and whether it worked: by the client in the pod
//! - encrypted or not: by capturing both nodes' wires meanwhile and looking for the text that was sent
//! - whose identities: by the access log of the destination's proxy
//! - which policy decided: by the same log
//! - how many bytes: by the metrics of the same proxy
//!
//! Then requests by way of a waypoint ([`requests`]), and what each party says of them.
//!
//! Nothing is believed that was not seen.

mod evidence;
mod requests;
mod scenarios;
mod table;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::handle::Access;
pub use crate::tour::scenarios::{Expected, Scenario, all};

/// Everything that was proved, or was not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Proved {
    pub facts: Vec<Fact>,
    /// Of requests by way of a waypoint.
    pub claims: Vec<Claim>,
}

/// Something that a waypoint is to do with requests, and what was seen of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    pub what: String,
    pub seen: String,
    pub holds: bool,
}

/// One conversation and what was seen of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fact {
    pub path: String,
    pub source: String,
    pub destination: String,
    pub expected: Expected,
    pub seen: Seen,
    pub holds: bool,
    /// Each expectation that was not met: what was expected and what was seen.
    pub failures: Vec<String>,
}

/// What was seen of a conversation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// What the client reported.
    pub outcome: String,
    pub transport: Option<Transport>,
    pub source_identity: Option<String>,
    pub destination_identity: Option<String>,
    pub verdict: Option<Verdict>,
    /// The policy that decided, and its rule.
    pub rule: Option<String>,
    /// What the destination's proxy counted from the client and to it.
    pub bytes_received: u64,
    pub bytes_sent: u64,
    /// The pods that answered, where several may.
    pub answered_by: Vec<String>,
    /// TLS records on the tunnel's port while it lasted.
    pub tls_records: u64,
}

/// How bytes crossed the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// By the tunnel: TLS records, and the text that was sent is nowhere in the clear.
    MutualTls,
    /// The text that was sent stood on the wire.
    Plaintext,
}

/// What the destination's proxy decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Allowed,
    Denied,
}

impl Proved {
    pub fn holds(&self) -> bool {
        let facts = self.facts.iter().map(|fact| fact.holds);
        let mut all = facts.chain(self.claims.iter().map(|claim| claim.holds));
        !self.facts.is_empty() && !self.claims.is_empty() && all.all(|holds| holds)
    }

    /// For people.
    pub fn table(&self, colour: Colour) -> String {
        table::print(self, colour)
    }
}

pub use crate::tour::table::Colour;

/// Walks through all scenarios.
pub fn walk(lab: &Access, mut watch: impl FnMut(&str)) -> Result<Proved> {
    let mut facts = Vec::new();
    for scenario in all() {
        watch(&format!(
            "{}: {} → {}",
            scenario.path, scenario.source, scenario.destination
        ));
        facts.push(evidence::gather(lab, &scenario)?);
    }
    watch("requests by way of a waypoint");
    let claims = requests::gather(lab)?;
    Ok(Proved { facts, claims })
}
