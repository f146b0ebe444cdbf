// SPDX-License-Identifier: Apache-2.0
//! A waypoint of a namespace, a server behind it, and one that is not; what each party says of a connection.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use e2e::access_log::{self, Entry};
use e2e::handle::{Forward, Lab, Shared, Tunnel, eventually};
use e2e::telemetry::Metrics;
use e2e::topology::Node;
use e2e::traffic::{Outcome, Report};
use e2e::waypoints::Waypoint;

static SHARED: Shared = Shared::new("waypoint", env!("CARGO_BIN_EXE_e2e"));

pub(crate) const CLIENT_ID: &str = "spiffe://cluster.local/ns/shop/sa/client";
pub(crate) const WAYPOINT_ID: &str = "spiffe://cluster.local/ns/guarded/sa/wp";
pub(crate) const SERVER_ID: &str = "spiffe://cluster.local/ns/guarded/sa/server";

/// It stands with the client, and away from the server.
const WAYPOINT: Waypoint = Waypoint {
    namespace: "guarded",
    name: "wp",
    node: Node::A,
    serves: "all",
    number: 70,
};

const MANIFEST: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: guarded, labels: {istio.io/dataplane-mode: ambient}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: server, namespace: guarded}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: direct, namespace: guarded}
---
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: guarded, labels: {app: server, istio.io/use-waypoint: wp}}
spec:
  nodeName: node-b
  serviceAccountName: server
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: culvert/app
    env: [{name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    readinessProbe: {httpGet: {path: /healthz, port: 8080}}
    securityContext: {capabilities: {drop: [ALL]}}
---
# It tunnels itself, to wherever it likes.
apiVersion: v1
kind: Pod
metadata:
  name: direct
  namespace: guarded
  labels: {istio.io/dataplane-mode: none, networking.istio.io/tunnel: http}
spec:
  nodeName: node-b
  serviceAccountName: direct
  terminationGracePeriodSeconds: 1
  volumes:
  - name: tokens
    projected: {sources: [{serviceAccountToken: {audience: istio-ca, path: istio-token}}]}
  containers:
  - name: app
    image: culvert/app
    env: [{name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    readinessProbe: {httpGet: {path: /healthz, port: 8080}}
"#;

/// The lab with those pods in it, known to the client's node.
pub(crate) fn lab() -> &'static Lab {
    static APPLIED: OnceLock<()> = OnceLock::new();
    let lab = SHARED.lab();
    APPLIED.get_or_init(|| {
        lab.apply(MANIFEST).unwrap();
        lab.apply(&WAYPOINT.manifest()).unwrap();
        for pod in ["guarded/wp", "guarded/server", "guarded/direct"] {
            lab.wait_ready(pod).unwrap();
        }
        eventually("the client's way leads by the waypoint", PATIENCE, || {
            let target = lab.v4("guarded/server", 9000)?.to_string();
            let report = lab.traffic("shop/client", &["echo", &target])?;
            ensure!(report.is_done(), "{report:?}");
            let entry = outbound(&report)?;
            ensure!(entry.is("dst.identity", WAYPOINT_ID), "{entry}");
            Ok(())
        })
        .unwrap();
    });
    lab
}

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn talk(place: &str, arguments: &[&str]) -> Report {
    let report = lab().traffic(place, arguments).unwrap();
    assert_eq!(
        report.outcome,
        Outcome::Done,
        "{place}: {arguments:?}: {report:?}"
    );
    report
}

/// What the client's node says of a connection of `shop/client`.
pub(crate) fn outbound(report: &Report) -> anyhow::Result<Entry> {
    let source = report.local.context("the client has connected")?;
    SHARED
        .lab()
        .access_entry(Node::A, "the connection", |entry| {
            entry.is_final() && entry.source() == Some(source)
        })
}

/// The latest line of the waypoint's access log that `wanted` recognises.
pub(crate) fn waypoint_entry(what: &str, wanted: impl Fn(&Entry) -> bool) -> Entry {
    waypoint_entry_of("guarded/wp", what, wanted)
}

/// The same of another waypoint.
pub(crate) fn waypoint_entry_of(pod: &str, what: &str, wanted: impl Fn(&Entry) -> bool) -> Entry {
    eventually(
        &format!("the waypoint's log shows {what}"),
        PATIENCE,
        || {
            let entries = access_log::parse(&lab().log(pod)?);
            let found = entries.iter().rev().find(|entry| wanted(entry)).cloned();
            found.with_context(|| {
                let last = entries.iter().rev().take(4);
                last.map(|entry| format!("\n  {entry}")).collect::<String>()
            })
        },
    )
    .unwrap()
}

/// What the waypoint has counted so far.
pub(crate) fn waypoint_metrics() -> Metrics {
    let report = talk("guarded/wp", &["get", "127.0.0.1:15020", "/metrics"]);
    Metrics::parse(&report.answer.unwrap())
}

/// What it believes.
pub(crate) fn waypoint_dump() -> serde_json::Value {
    let report = talk("guarded/wp", &["get", "127.0.0.1:15000", "/config_dump"]);
    serde_json::from_str(&report.answer.unwrap()).unwrap()
}

/// A loopback port of the pod `direct` that leads to `to` by a tunnel to the waypoint, whatever the mesh thinks of it.
pub(crate) fn direct(to: SocketAddr) -> Forward {
    let tunnel = Tunnel {
        pod: "guarded/direct",
        to,
        through: Some(lab().v4("guarded/wp", 15008).unwrap().ip()),
        expect: WAYPOINT_ID,
    };
    lab().forward(tunnel).unwrap()
}
