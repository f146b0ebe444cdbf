// SPDX-License-Identifier: Apache-2.0
//! Pods of one node that are connected without a tunnel, where the proxies are told that they may: with the real rules,
//! under the real control plane's policies.

#![expect(clippy::unwrap_used, reason = "a test's helpers may end the test")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::access_log::Entry;
use e2e::environment::Environment;
use e2e::handle::{Lab, Start, eventually};
use e2e::topology::{Layout, Node};
use e2e::traffic::{Outcome, Report};

/// The mesh's own manifests, in which proxies are allowed the shortcut.
const MESH: &str = include_str!("../manifests/mesh.yaml");
const CLIENT: &str = "spiffe://cluster.local/ns/shop/sa/client";
const WEB: &str = "spiffe://cluster.local/ns/shop/sa/web";
const SETTLES: Duration = Duration::from_secs(20);

fn lab() -> &'static Lab {
    static LAB: OnceLock<Result<Lab, String>> = OnceLock::new();
    match LAB.get_or_init(|| start().map_err(|error| format!("{error:#}"))) {
        Ok(lab) => lab,
        Err(reason) => panic!("the lab of these tests could not be started: {reason}"),
    }
}

fn start() -> Result<Lab> {
    let environment = Environment::of_process();
    let executable = PathBuf::from(env!("CARGO_BIN_EXE_e2e"));
    let manifests = tempfile::tempdir()?;
    let usual = "    - {name: LOG_FORMAT, value: json}\n";
    ensure!(MESH.contains(usual), "the proxies' manifests have changed");
    let allowed = format!("{usual}    - {{name: SAME_NODE_SHORTCUT, value: shop}}\n");
    let mesh = MESH.replace(usual, &allowed);
    std::fs::write(manifests.path().join("mesh.yaml"), mesh)?;
    let start = Start {
        name: format!("same-node-{}", std::process::id()),
        bin_dir: e2e::binaries::build(&environment, &executable)?,
        executable,
        manifests: Some(manifests.path().to_owned()),
        layout: Layout::OneCluster,
        keep: false,
        disks: Default::default(),
        api_server: false,
    };
    let lab = Lab::start(&environment, &start, |_progress| {})?;
    // Without certificates at hand connections take the tunnel, which is right and not what is tested here.
    eventually("the shortcut is taken", SETTLES, || {
        let target = lab.v4("shop/web-a", 9000)?.to_string();
        lab.traffic("shop/client", &["echo", &target])?;
        ensure!(opened(&lab, "none")? > 0.0, "not yet");
        Ok(())
    })?;
    Ok(lab)
}

/// Connections that node a's proxy has opened, by what their security is called.
fn opened(lab: &Lab, security: &str) -> Result<f64> {
    let labels = [
        ("connection_security_policy", security),
        ("source_workload_namespace", "shop"),
    ];
    let metrics = lab.metrics(Node::A)?;
    Ok(metrics.sum("istio_tcp_connections_opened_total", &labels))
}

fn at(pod: &str, port: u16) -> String {
    lab().v4(pod, port).unwrap().to_string()
}

fn talk(words: &[&str]) -> Report {
    let report = lab().traffic("shop/client", words).unwrap();
    assert!(report.is_done(), "{words:?}: {report:?}");
    report
}

/// Both ends' lines about the connection from there.
fn lines(source: SocketAddr) -> [Entry; 2] {
    [false, true].map(|inbound| {
        let of_it = |entry: &Entry| {
            entry.source() == Some(source) && entry.is_inbound() == inbound && entry.is_final()
        };
        lab()
            .access_entry(Node::A, "the connection", of_it)
            .unwrap()
    })
}

#[test]
fn the_application_sees_its_client_and_the_log_tells_the_truth() {
    let target = at("shop/web-a", 8080);
    let report = talk(&["get", &target]);
    let client = report.local.unwrap();
    let page: serde_json::Value = serde_json::from_str(&report.answer.unwrap()).unwrap();
    let seen: SocketAddr = page["client"].as_str().unwrap().parse().unwrap();
    assert_eq!(seen.ip(), client.ip(), "the source address is kept");
    for line in lines(client) {
        assert!(line.is("transport", "same-node"), "{line}");
        assert!(line.is("src.identity", CLIENT), "{line}");
        assert!(line.is("dst.identity", WEB), "{line}");
        assert!(line.is("dst.addr", &target), "{line}");
        assert_eq!(line.field("dst.hbone_addr"), None, "{line}");
    }
}

#[test]
fn bulk_and_half_close_pass_both_ways() {
    let bytes = 50_000_000;
    let report = talk(&[
        "echo",
        &at("shop/web-a", 9000),
        "--bytes",
        &bytes.to_string(),
    ]);
    for line in lines(report.local.unwrap()) {
        assert!(line.is("transport", "same-node"), "{line}");
        assert_eq!(line.number("bytes_sent"), Some(bytes), "{line}");
        assert_eq!(line.number("bytes_recv"), Some(bytes), "{line}");
        assert_eq!(line.error(), None, "{line}");
    }
    let sink = at("shop/web-a", 9002);
    talk(&["finish-after-sending", &sink, "--bytes", "3000000"]);
}

#[test]
fn another_node_is_reached_by_a_tunnel_all_the_same() {
    let report = talk(&["echo", &at("shop/web-b", 9000)]);
    let source = report.local.unwrap();
    let outbound = lab()
        .access_entry(Node::A, "the connection", |entry| {
            entry.source() == Some(source)
        })
        .unwrap();
    assert_eq!(outbound.field("transport"), None, "{outbound}");
    assert!(outbound.field("dst.hbone_addr").is_some(), "{outbound}");
}

#[test]
fn a_policy_of_the_destination_keeps_out_and_cuts_off() {
    let manifest = "apiVersion: v1
kind: ServiceAccount
metadata: {name: guarded, namespace: shop}
---
apiVersion: v1
kind: Pod
metadata: {name: guarded, namespace: shop, labels: {app: guarded}}
spec:
  nodeName: node-a
  serviceAccountName: guarded
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: culvert/app}]
";
    lab().apply(manifest).unwrap();
    lab().wait_ready("shop/guarded").unwrap();
    let target = lab().v4("shop/guarded", 9000).unwrap();
    let words = ["echo", &target.to_string()];
    eventually("it is reached without a tunnel", SETTLES, || {
        let report = lab().traffic("shop/client", &words)?;
        ensure!(report.is_done(), "{}", report.outcome);
        let lines = lab().access_log(Node::A)?;
        let taken = lines
            .iter()
            .any(|line| line.source() == report.local && line.is("transport", "same-node"));
        ensure!(taken, "it took the tunnel");
        Ok(())
    })
    .unwrap();
    let live = lab().hold("shop/client", target).unwrap();
    let policy = "apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: guard, namespace: shop}
spec:
  selector: {matchLabels: {app: guarded}}
  action: DENY
  rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/client]}}]}]
";
    lab().apply(policy).unwrap();
    let ended = live.ended(SETTLES).unwrap();
    assert_eq!(ended.outcome, Outcome::Reset, "{ended:?}");
    eventually("it is kept out", SETTLES, || {
        let report = lab().traffic("shop/client", &words)?;
        ensure!(!report.is_done(), "it is still let in");
        Ok(())
    })
    .unwrap();
    let said = |words: &str| {
        let of_it = |entry: &Entry| {
            let error = entry.error().unwrap_or_default();
            entry.is_inbound() && entry.is("transport", "same-node") && error.contains(words)
        };
        lab().access_entry(Node::A, words, of_it).unwrap()
    };
    said("connection closed because policy changed");
    let denied = said("denied by policy shop/guard");
    assert!(denied.is("src.identity", CLIENT), "{denied}");
}
