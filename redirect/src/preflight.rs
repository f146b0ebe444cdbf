// SPDX-License-Identifier: Apache-2.0
//! `redirect preflight`: will the mesh work on this node, and if not, what exactly has to be changed.
//!
//! Each finding is one question with its answer. [`judge`] answers from what a node and its cluster say, pure; the
//! [`crate::canary`] tries on the kernel; here both are put together and shown.

mod gather;
pub mod judge;

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use serde::Serialize;

use crate::canary::{self, Failed, Step};
use crate::rules::Family;

#[derive(Debug, Parser)]
#[command(
    name = "redirect preflight",
    about = "Says whether the mesh will work on this node, and what to change if not",
    after_help = "Examples:\n  redirect preflight                                    # on a node, as root\n  redirect preflight --host-root /host --output json    # in a pod that sees the node's files\n  redirect preflight --kubeconfig admin.conf            # what the CNI is set to is read from the cluster too\n\nThe exit status is 0 if nothing fails, 1 if something does, 2 if the question was not understood."
)]
pub struct Arguments {
    /// Where the node's files are
    #[arg(long, default_value = "/")]
    host_root: PathBuf,
    /// The node's folder of network configurations, below the root
    #[arg(long, default_value = "/etc/cni/net.d")]
    cni_net_dir: PathBuf,
    /// File that says how to reach the API server, to read how the CNI is set
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// table, for people; json, for scripts
    #[arg(long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Json,
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Ok,
    /// Something will not work as one may expect, or could not be found out.
    Warning,
    /// The mesh will not work on this node.
    Failure,
}

/// One question and its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub check: &'static str,
    pub level: Level,
    pub says: String,
    /// The setting to change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change: Option<String>,
}

impl Finding {
    pub fn ok(check: &'static str, says: impl Into<String>) -> Self {
        Self {
            check,
            level: Level::Ok,
            says: says.into(),
            change: None,
        }
    }

    pub fn bad(
        check: &'static str,
        level: Level,
        says: impl Into<String>,
        change: impl Into<String>,
    ) -> Self {
        Self {
            check,
            level,
            says: says.into(),
            change: Some(change.into()),
        }
    }
}

/// What to print, and whether the mesh will work.
pub fn run(arguments: &Arguments) -> (String, bool) {
    let mut findings: Vec<Finding> = [Family::V4, Family::V6]
        .into_iter()
        .map(|family| tried(family, canary::run(family)))
        .collect();
    let root = &arguments.host_root;
    let files = gather::configurations(root, &arguments.cni_net_dir);
    findings.push(judge::primary(&files));
    findings.extend(judge::connections(&gather::connections(root)));
    findings.push(judge::resolver(&gather::resolver(root)));
    if let Some(kubeconfig) = &arguments.kubeconfig {
        findings.extend(gather::cluster(kubeconfig));
    }
    let works = findings
        .iter()
        .all(|finding| finding.level < Level::Failure);
    let text = match arguments.output {
        Output::Table => table(&findings),
        Output::Json => {
            let report = serde_json::json!({"works": works, "findings": findings});
            let text = serde_json::to_string_pretty(&report);
            text.expect("broken invariant: findings are valid JSON") + "\n"
        }
    };
    (text, works)
}

/// What the canary's word means.
fn tried(family: Family, outcome: Result<(), Failed>) -> Finding {
    let (check, level) = match family {
        Family::V4 => ("capture of IPv4", Level::Failure),
        // Pods without IPv6 are served all the same.
        Family::V6 => ("capture of IPv6", Level::Warning),
    };
    let Failed { step, cause } = match outcome {
        Ok(()) => {
            return Finding::ok(check, "rules, redirection and borrowed sources work");
        }
        Err(failed) => failed,
    };
    let (what, change) = match step {
        Step::Namespaces => (
            "network namespaces can't be made",
            "run as root, or grant CAP_SYS_ADMIN",
        ),
        Step::Link => (
            "a veth link can't be made or addressed",
            "kernel: CONFIG_VETH, and for IPv6 net.ipv6.conf.default.disable_ipv6=0",
        ),
        Step::Rules => (
            "the rules of a pod are refused",
            "kernel: CONFIG_NF_TABLES, CONFIG_NF_TABLES_INET, CONFIG_NFT_CT, CONFIG_NFT_NAT, CONFIG_NFT_REDIR, CONFIG_NF_CONNTRACK_ZONES, CONFIG_IP_MULTIPLE_TABLES, CONFIG_IPV6_MULTIPLE_TABLES; as modules: modprobe nf_tables nft_ct nft_redir nft_nat",
        ),
        Step::Outbound => (
            "what a pod sends is not redirected",
            "kernel: CONFIG_NFT_REDIR, CONFIG_NF_NAT",
        ),
        Step::Inbound => (
            "what a pod is sent is not redirected",
            "kernel: CONFIG_NFT_REDIR, CONFIG_NF_NAT",
        ),
        Step::Source => (
            "a proxy can't speak from its peer's address",
            "grant CAP_NET_ADMIN; net.ipv4.conf.all.rp_filter must not be 1 while net.ipv4.conf.all.src_valid_mark is 0",
        ),
    };
    let change = match family {
        Family::V4 => change.to_owned(),
        Family::V6 => format!("{change}; or AMBIENT_IPV6=false for the agent"),
    };
    Finding::bad(check, level, format!("{what}: {cause}"), change)
}

fn table(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.check.len()).max();
    let width = width.unwrap_or_default();
    let mut text = String::new();
    for Finding {
        check,
        level,
        says,
        change,
    } in findings
    {
        let mark = match level {
            Level::Ok => "ok  ",
            Level::Warning => "warn",
            Level::Failure => "FAIL",
        };
        let _written = writeln!(text, "{mark}  {check:width$}  {says}");
        if let Some(change) = change {
            let _written = writeln!(text, "      {:width$}  change: {change}", "");
        }
    }
    text
}

#[cfg(test)]
mod tests;
