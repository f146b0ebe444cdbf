// SPDX-License-Identifier: Apache-2.0
//! The authority as operators see it: what signs until when, which roots are handed out, and who has which of them.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::Authority;
use super::replicas::Others;
use super::rotation::Holder;

/// Names of those who lack a root, at most.
const MOST_NAMES: usize = 100;

/// What `/debug/ca` shows.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Where it was read.
    place: String,
    /// Whether certificates are issued now.
    signs: bool,
    /// Why not, or why the files are not in force.
    problem: Option<String>,
    /// What of the files is held back, and by whom.
    waits: Vec<String>,
    signer: SignerReport,
    roots: Vec<RootReport>,
    /// How many certificates are in use.
    certificates: usize,
    /// How many of each other replica's certificates may be in use; none where that is not known.
    replicas: Option<BTreeMap<String, usize>>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct SignerReport {
    subject: String,
    /// When the first certificate between here and its root ends.
    not_after: String,
    root_serial: String,
}

/// A root that is handed out.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct RootReport {
    subject: String,
    serial: String,
    not_after: String,
    /// Certificates in use that are signed under it.
    signed_under: usize,
    /// Certificates in use that came with it.
    trusted_by: usize,
    /// Some of the others.
    not_trusted_by: Vec<String>,
}

impl Report {
    pub(super) fn new(authority: &Authority, holders: &[Holder], now: SystemTime) -> Self {
        let chain = &authority.signing.chain;
        let instant = Instant::now();
        let roots = authority.bundle.roots.iter().map(|root| {
            let lack = |holder: &&Holder| !holder.trusts(&root.anchor, instant);
            let lacking = holders.iter().filter(lack);
            RootReport {
                subject: root.subject.clone(),
                serial: root.serial.clone(),
                not_after: rfc3339(root.not_after),
                signed_under: holders
                    .iter()
                    .filter(|holder| holder.under == root.anchor)
                    .count(),
                trusted_by: holders.len() - lacking.clone().count(),
                not_trusted_by: lacking.take(MOST_NAMES).map(Holder::label).collect(),
            }
        });
        let root = authority
            .bundle
            .roots
            .iter()
            .find(|root| root.anchor == chain.root);
        Self {
            place: chain.place.to_string(),
            signs: authority.check_time(now).is_ok(),
            problem: None,
            waits: Vec::new(),
            signer: SignerReport {
                subject: chain.subject.clone(),
                not_after: rfc3339(chain.not_after()),
                root_serial: root.map(|root| root.serial.clone()).unwrap_or_default(),
            },
            roots: roots.collect(),
            certificates: holders.len(),
            replicas: None,
        }
    }

    pub(super) fn of_others(self, others: &Others) -> Self {
        let Others::Known(others) = others else {
            return self;
        };
        let each = others.iter();
        let each = each.map(|other| (other.name().to_owned(), other.certificates()));
        Self {
            replicas: Some(each.collect()),
            ..self
        }
    }

    pub(super) fn of_files(self, problem: Option<String>, waits: Vec<String>) -> Self {
        Self {
            problem,
            waits,
            ..self
        }
    }
}

fn rfc3339(at: OffsetDateTime) -> String {
    // Certificates name no year that this could not.
    at.format(&Rfc3339).unwrap_or_default()
}
