// SPDX-License-Identifier: Apache-2.0
//! What an authority of the mesh has to do and has to refuse, asked of a running one through a cluster's API server.
//!
//! ```text
//!  Ground: accounts, pods of two nodes, their tokens ──► cluster
//!  cases:  what is asked ─► Question ─► authority ─► Verdict ─► Report
//! ```
//!
//! No refusal is believed that is not told from ignorance: what is refused to one is issued to another, or was a moment
//! before.

mod cases;
mod ground;
mod question;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use serde::Serialize;

use crate::cli::Output;

/// A running authority, and the cluster whose accounts it certifies.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "It makes a namespace of its own, with accounts and pods that need no node (they are never run), and pods beside the\nproxy's account; all of it is taken away at the end.\n\nExample:\n  e2e conformance --kubeconfig ~/.kube/config --address istiod.istio-system.svc:15012 --roots root-cert.pem"
)]
pub struct Authority {
    /// An administrator's way into the cluster
    #[arg(long)]
    pub kubeconfig: PathBuf,
    /// Host and port of the certificate service
    #[arg(long)]
    pub address: String,
    /// File with the roots that vouch for it, and for what it issues
    #[arg(long)]
    pub roots: PathBuf,
    /// What it calls the cluster
    #[arg(long, default_value = "Kubernetes", value_name = "ID")]
    pub cluster_id: String,
    /// The trust domain that it certifies for
    #[arg(long, default_value = "cluster.local", value_name = "NAME")]
    pub trust_domain: spiffe::TrustDomain,
    /// Whom tokens are meant for
    #[arg(long, default_value = crate::tokens::AUDIENCE)]
    pub audience: String,
    /// The account of nodes' proxies, which may ask for others
    #[arg(long, default_value = "istio-system/ztunnel", value_name = "NAMESPACE/ACCOUNT", value_parser = account)]
    pub proxy: (String, String),
    /// How long it may take to answer, and to hear of a change in the cluster
    #[arg(long, default_value = "30", value_name = "SECONDS", value_parser = seconds)]
    pub patience: Duration,
    /// Try this one only; may be repeated
    #[arg(long, value_name = "NAME")]
    pub case: Vec<String>,
    #[arg(long, value_enum, default_value = "table")]
    pub output: Output,
}

fn seconds(text: &str) -> Result<Duration, std::num::ParseIntError> {
    text.parse().map(Duration::from_secs)
}

fn account(text: &str) -> Result<(String, String), String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
            Ok((namespace.to_owned(), name.to_owned()))
        }
        _ => Err("expected NAMESPACE/ACCOUNT".to_owned()),
    }
}

/// What came of all cases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// In the order in which they were tried.
    pub cases: Vec<Case>,
}

/// One demand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Case {
    /// By which it is known.
    pub name: &'static str,
    /// In words.
    pub demand: &'static str,
    /// None where the demand is met; else what was seen instead.
    pub fault: Option<String>,
}

impl Report {
    /// Whether all demands are met.
    pub fn conforms(&self) -> bool {
        !self.cases.is_empty() && self.cases.iter().all(|case| case.fault.is_none())
    }

    /// For people.
    pub fn table(&self) -> String {
        let widest = self.cases.iter().map(|case| case.name.len()).max();
        let widest = widest.unwrap_or_default();
        let mut text = String::new();
        for case in &self.cases {
            let mark = if case.fault.is_none() { "ok  " } else { "FAIL" };
            text.push_str(&format!(
                "{mark}  {:<widest$}  {}\n",
                case.name, case.demand
            ));
            if let Some(fault) = &case.fault {
                text.push_str(&format!("      {:<widest$}  {fault}\n", ""));
            }
        }
        let met = self.cases.iter().filter(|case| case.fault.is_none());
        text.push_str(&format!(
            "{} of {} demands met\n",
            met.count(),
            self.cases.len()
        ));
        text
    }
}

/// Asks what is wanted; all where nothing is.
///
/// # Errors
/// If the cluster or the authority can't be reached, or a wanted case is not known: then nothing is said about it.
pub async fn check(authority: &Authority) -> Result<Report> {
    let known = || cases::DEMANDS.iter().map(|(name, _)| *name);
    if let Some(unknown) = authority
        .case
        .iter()
        .find(|case| known().all(|name| name != **case))
    {
        bail!(
            "--case {unknown}: is none of {}",
            known().collect::<Vec<_>>().join(", ")
        );
    }
    let ground = ground::Ground::prepare(authority).await?;
    let wanted =
        |name: &str| authority.case.is_empty() || authority.case.iter().any(|case| case == name);
    let tried = cases::tried(&ground, wanted).await;
    let cleared = ground.clear().await;
    let cases = tried?;
    cleared?;
    Ok(Report { cases })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_shows_what_was_seen_instead() {
        let case = |name, fault: Option<&str>| Case {
            name,
            demand: "is refused",
            fault: fault.map(str::to_owned),
        };
        let mut report = Report {
            cases: vec![case("forged", None), case("stranger", Some("was issued"))],
        };
        assert!(!report.conforms());
        let table = report.table();
        assert!(table.contains("FAIL  stranger  is refused"), "{table}");
        assert!(table.contains("was issued"), "{table}");
        assert!(table.contains("1 of 2 demands met"), "{table}");
        report.cases.pop();
        assert!(report.conforms());
        report.cases.pop();
        assert!(!report.conforms(), "nothing was asked");
    }

    #[test]
    fn an_account_has_a_namespace() {
        assert_eq!(account("a/b"), Ok(("a".to_owned(), "b".to_owned())));
        for wrong in ["", "a", "a/", "/b"] {
            assert!(account(wrong).is_err(), "{wrong}");
        }
    }
}
