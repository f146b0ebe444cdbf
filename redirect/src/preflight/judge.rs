// SPDX-License-Identifier: Apache-2.0
//! Pure: what a node's and a CNI's settings mean for the mesh.

use std::collections::BTreeMap;

use super::{Finding, Level};
use crate::install::conflist::{self, Place, Wanted};

/// Files by name, or why there are none.
pub type Files = Result<conflist::Folder, String>;
/// A CNI's settings.
pub type Map = BTreeMap<String, String>;

/// The kernel's table of connections.
#[derive(Debug, Clone, Copy)]
pub struct Connections {
    pub known: u64,
    pub limit: u64,
}

/// Is there a configuration that the plugin can follow?
pub fn primary(files: &Files) -> Finding {
    const CHECK: &str = "CNI configuration";
    let folder = match files {
        Ok(folder) => folder,
        Err(cause) => {
            let change = "--cni-net-dir, and the DaemonSet's hostPath cni-net: where the container runtime looks";
            return Finding::bad(CHECK, Level::Failure, cause, change);
        }
    };
    let folder = folder
        .iter()
        .filter(|(name, _)| conflist::is_configuration(name))
        .map(|(name, content)| (name.clone(), content.clone()))
        .collect();
    let wanted = Wanted {
        place: Place::Own,
        own: "02-istio-cni.conflist".to_owned(),
        entry: conflist::entry("/var/run/istio-cni".as_ref(), &[], "istio-system"),
    };
    let plan = conflist::plan(&folder, &wanted);
    match plan.file {
        Ok(_) if plan.changes.is_empty() => Finding::ok(CHECK, "the plugin is installed"),
        Ok(file) => Finding::ok(CHECK, format!("the plugin can be installed in {file}")),
        Err(missing @ conflist::Missing::Second { .. }) => {
            let change = "ISTIO_OWNED_CNI_CONFIG_FILENAME of the agent";
            Finding::bad(CHECK, Level::Failure, missing.to_string(), change)
        }
        Err(missing @ conflist::Missing::Version { .. }) => {
            let change = "cniVersion in that file";
            Finding::bad(CHECK, Level::Failure, missing.to_string(), change)
        }
        Err(missing @ conflist::Missing::Primary(_)) => {
            let change = "install the cluster's CNI first, or name its folder by --cni-net-dir";
            Finding::bad(CHECK, Level::Failure, missing.to_string(), change)
        }
    }
}

/// Every captured connection takes room in the kernel's table.
pub fn connections(found: &Option<Connections>) -> Option<Finding> {
    const CHECK: &str = "connection tracking";
    let Connections { known, limit } = (*found)?;
    let says = format!("{known} of {limit} connections");
    Some(match known.saturating_mul(10) >= limit.saturating_mul(8) {
        false => Finding::ok(CHECK, says),
        true => Finding::bad(
            CHECK,
            Level::Warning,
            says,
            "net.netfilter.nf_conntrack_max",
        ),
    })
}

/// What ztunnel asks for names that are not the mesh's begins with what the node asks.
pub fn resolver(text: &Result<String, String>) -> Finding {
    const CHECK: &str = "DNS of the node";
    const CHANGE: &str = "`nameserver` in the node's /etc/resolv.conf";
    let text = match text {
        Ok(text) => text,
        Err(cause) => return Finding::bad(CHECK, Level::Warning, cause, CHANGE),
    };
    let servers: Vec<&str> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver"))
        .filter_map(|rest| rest.split_whitespace().next())
        .collect();
    match servers.is_empty() {
        false => Finding::ok(CHECK, servers.join(", ")),
        true => Finding::bad(CHECK, Level::Warning, "no name server", CHANGE),
    }
}

/// Cilium's ConfigMap `cilium-config`.
pub fn cilium(settings: &Map) -> Vec<Finding> {
    const CHECK: &str = "Cilium";
    let is = |key: &str, value: &str| settings.get(key).is_some_and(|found| found == value);
    let mut findings = Vec::new();
    if is("cni-exclusive", "true") {
        findings.push(Finding::bad(
            CHECK,
            Level::Failure,
            "it renames the configurations of other plugins, ours among them",
            "Helm value cni.exclusive=false",
        ));
    }
    if is("enable-bpf-masquerade", "true") {
        findings.push(Finding::bad(
            CHECK,
            Level::Failure,
            "its masquerading in eBPF rewrites the link-local address of kubelet probes, which then fail in captured pods",
            "Helm value bpf.masquerade=false",
        ));
    }
    let replaces = ["true", "strict"]
        .iter()
        .any(|value| is("kube-proxy-replacement", value));
    let sockets = is("bpf-lb-sock", "true") || (replaces && !is("bpf-lb-sock", "false"));
    if sockets && !is("bpf-lb-sock-hostns-only", "true") {
        findings.push(Finding::bad(
            CHECK,
            Level::Failure,
            "it replaces service addresses at the sockets of pods, so that ztunnel sees no service and no waypoint is used",
            "Helm value socketLB.hostNamespaceOnly=true",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, "nothing that hinders the mesh"));
    }
    findings
}

/// Calico's FelixConfiguration `default`.
pub fn calico(settings: &Map) -> Vec<Finding> {
    const CHECK: &str = "Calico";
    let is = |key: &str, value: &str| settings.get(key).is_some_and(|found| found == value);
    let balances = !is("bpfConnectTimeLoadBalancing", "Disabled");
    let legacy = is("bpfConnectTimeLoadBalancingEnabled", "false");
    if is("bpfEnabled", "true") && balances && !legacy {
        return vec![Finding::bad(
            CHECK,
            Level::Warning,
            "its eBPF mode may replace service addresses at the sockets of pods, so that ztunnel sees no service",
            "FelixConfiguration default: bpfConnectTimeLoadBalancing: Disabled, bpfHostNetworkedNATWithoutCTLB: Enabled",
        )];
    }
    vec![Finding::ok(CHECK, "nothing that hinders the mesh")]
}
