// SPDX-License-Identifier: Apache-2.0
//! What a node's files and its cluster say, as it stands there.

use std::collections::BTreeMap;
use std::path::Path;

use cluster::{Connection, RequestError};
use http::Request;

use super::judge::{self, Connections, Files, Map};
use super::{Finding, Level};

fn below(root: &Path, path: &Path) -> std::path::PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// The runtime's network configurations, by name.
pub(super) fn configurations(root: &Path, folder: &Path) -> Files {
    let path = below(root, folder);
    let named = |error: std::io::Error| format!("{}: {error}", path.display());
    let entries = std::fs::read_dir(&path).map_err(named)?;
    let mut files = BTreeMap::new();
    for entry in entries {
        let entry = entry.map_err(named)?;
        if let Some(name) = entry.file_name().to_str() {
            let content = std::fs::read(entry.path()).map_err(|error| error.to_string());
            files.insert(name.to_owned(), content);
        }
    }
    Ok(files)
}

/// How full the kernel's table of connections is; None where it says nothing.
pub(super) fn connections(root: &Path) -> Option<Connections> {
    let number = |name: &str| -> Option<u64> {
        let path = below(root, Path::new("/proc/sys/net/netfilter")).join(name);
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    Some(Connections {
        known: number("nf_conntrack_count")?,
        limit: number("nf_conntrack_max")?,
    })
}

/// The node's, which is ours as well in a pod on the node's network that does not see its files.
pub(super) fn resolver(root: &Path) -> Result<String, String> {
    const OWN: &str = "/etc/resolv.conf";
    let path = below(root, Path::new(OWN));
    let text = std::fs::read_to_string(&path).or_else(|_| std::fs::read_to_string(OWN));
    text.map_err(|error| format!("{}: {error}", path.display()))
}

/// What the CNIs whose settings matter are set to.
pub(super) fn cluster(kubeconfig: &Path) -> Vec<Finding> {
    const CILIUM: &str = "/api/v1/namespaces/kube-system/configmaps/cilium-config";
    const CALICO: &str = "/apis/crd.projectcalico.org/v1/felixconfigurations/default";
    let asked = |path: &'static str, part: &'static str, judge: fn(&Map) -> Vec<Finding>| match ask(
        kubeconfig, path,
    ) {
        Ok(None) => Vec::new(),
        Ok(Some(found)) => {
            let settings = found[part].as_object().into_iter().flatten();
            let text = |value: &serde_json::Value| match value.as_str() {
                Some(text) => text.to_owned(),
                None => value.to_string(),
            };
            judge(
                &settings
                    .map(|(key, value)| (key.clone(), text(value)))
                    .collect(),
            )
        }
        Err(cause) => vec![Finding::bad(
            "settings of the CNI",
            Level::Warning,
            format!("{path}: {cause}"),
            "--kubeconfig of somebody who may read it",
        )],
    };
    let mut findings = asked(CILIUM, "data", judge::cilium);
    findings.extend(asked(CALICO, "spec", judge::calico));
    findings
}

/// None where there is no such object.
fn ask(kubeconfig: &Path, path: &str) -> Result<Option<serde_json::Value>, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let connection = Connection::kubeconfig(kubeconfig).await;
        let client = connection
            .and_then(|connection| connection.client())
            .map_err(|error| error.to_string())?;
        let request = Request::get(path).body(Vec::new());
        let request = request.map_err(|error| error.to_string())?;
        match client.call(request).await {
            Ok(found) => Ok(Some(found)),
            Err(RequestError::Refused { code: 404, .. }) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    })
}
