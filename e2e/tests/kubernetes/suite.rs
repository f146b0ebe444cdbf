// SPDX-License-Identifier: Apache-2.0
//! The suite for clusters of others (`e2e/kind`), on the lab with an API server: the same script and manifests, kubectl at
//! the real server; only the way into pods is the lab's, which has no kubelet.

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use e2e::clients::Client::Kubectl;
use e2e::kubernetes::Cluster;
use e2e::manifests::documents;
use serde_json::json;

use super::lab::SHARED;

const SUITE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/kind/suite");
const IN_POD: &str = r#"#!/bin/sh
"$@" || { status=$?; echo "command terminated with exit code $status" >&2; exit $status; }
"#;
const MANIFESTS: &str = include_str!("../../kind/manifests.yaml");

#[test]
fn the_suite_for_any_cluster_holds_on_the_lab() -> Result<()> {
    let lab = SHARED.lab();
    let e2e = format!("{} exec --lab {}", env!("CARGO_BIN_EXE_e2e"), lab.name());
    let kubernetes = lab.state().kubernetes();
    let kubectl = format!(
        "{e2e} node-a -- env HOME={} {} --kubeconfig {}",
        kubernetes.display(),
        Kubectl.path()?.display(),
        lab.state().kubeconfig().display(),
    );
    // As `kubectl exec` does, which has a last word on each status.
    let way = kubernetes.join("in-pod");
    std::fs::write(&way, IN_POD)?;
    std::fs::set_permissions(&way, std::fs::Permissions::from_mode(0o700))?;
    let output = Command::new(SUITE)
        .env("KUBECTL", kubectl)
        .env("IN_POD", format!("{} {e2e}", way.display()))
        .env("PATIENCE", "60")
        .stdin(Stdio::null())
        .output()
        .context(SUITE)?;
    let (said, why) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    ensure!(output.status.success(), "{}: {said}{why}", output.status);
    let held: Vec<&str> = said.lines().collect();
    assert_eq!(held.len(), 20, "{said}");
    ensure!(held.iter().all(|line| line.starts_with("ok    ")), "{said}");
    Ok(())
}

#[tokio::test]
async fn its_pods_are_admitted_to_the_letter() -> Result<()> {
    let cluster = Cluster::start().await?;
    let objects = documents(MANIFESTS)?;
    for object in objects.iter().filter(|one| one["kind"] == "Namespace") {
        cluster.put(object).await?;
    }
    let mut pods = 0;
    for object in &objects {
        cluster.check(object).await?;
        if let Some(mut pod) = e2e::deploy::pod_of(object).filter(|_| object["kind"] != "Pod") {
            pod["metadata"]["name"] = json!("one");
            cluster.check(&pod).await?;
            pods += 1;
        }
    }
    assert_eq!(pods, 1, "of the Deployment; the others are Pods themselves");
    Ok(())
}

/// All that can be said here of what needs containers: it can be read, and what it names is there.
#[test]
fn what_needs_a_container_engine_can_be_read() -> Result<()> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let read = Command::new("bash")
        .args(["-n", "e2e/kind/run"])
        .current_dir(root)
        .output()?;
    ensure!(read.status.success() && read.stderr.is_empty(), "{read:?}");
    let text =
        |path: &str| std::fs::read_to_string(format!("{root}/{path}")).context(path.to_owned());
    let run = text("e2e/kind/run")?;
    for path in [
        "e2e/kind/cluster.yaml",
        "e2e/kind/Dockerfile",
        "e2e/kind/suite",
        "deploy/images/build",
        "deploy/base/namespace.yaml",
        "deploy/chart",
    ] {
        ensure!(run.contains(path), "run does not name {path}");
        ensure!(std::fs::exists(format!("{root}/{path}"))?, "no {path}");
    }
    let nodes = documents(&text("e2e/kind/cluster.yaml")?)?;
    assert_eq!(nodes[0]["nodes"].as_array().map(Vec::len), Some(3));
    let workflow = documents(&text(".github/workflows/kind.yaml")?)?;
    let steps = &workflow[0]["jobs"]["kind"]["steps"];
    assert_eq!(steps[1]["run"], "e2e/kind/run ${{ matrix.by }}");
    Ok(())
}
