// SPDX-License-Identifier: Apache-2.0
//! The lab with its objects in an API server: all that is applied there comes to pass on its nodes, by the real programs
//! with the rights of their accounts; and what becomes of traffic while the server is lost.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::handle::{Lab, Shared, eventually};
use e2e::kubernetes::API_SERVER;
use e2e::topology::Node;
use e2e::traffic::{Outcome, Report};
use e2e::waypoints::Waypoint;

pub(crate) static SHARED: Shared = Shared::on_api_server("served", env!("CARGO_BIN_EXE_e2e"));

const PATIENCE: Duration = Duration::from_secs(60);
const CLIENT: &str = "shop/client";
const SERVER_ID: &str = "spiffe://cluster.local/ns/late/sa/server";

const WAYPOINT: Waypoint = Waypoint {
    namespace: "late",
    name: "wp",
    node: Node::A,
    serves: "service",
    number: 50,
};

/// A namespace that is not in the mesh yet, with a server that nobody has put on a node, behind a Service whose address the
/// API server chooses.
const LATE: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: late}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: server, namespace: late}
---
apiVersion: v1
kind: Service
metadata: {name: server, namespace: late, labels: {istio.io/use-waypoint: wp}}
spec: {selector: {app: server}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: server, namespace: late}
spec:
  replicas: 1
  selector: {matchLabels: {app: server}}
  template:
    metadata: {labels: {app: server}}
    spec:
      serviceAccountName: server
      terminationGracePeriodSeconds: 1
      containers:
      - name: app
        image: culvert/app
        env: [{name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
        readinessProbe: {httpGet: {path: /healthz, port: 8080}}
        securityContext: {capabilities: {drop: [ALL]}}
"#;

const DENY: &str = r#"
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: nobody, namespace: late}
spec: {action: DENY, rules: [{from: [{source: {principals: ["cluster.local/ns/shop/sa/client"]}}]}]}
"#;

/// A redirect, which nobody but the waypoint makes.
const ROUTE: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: server, namespace: late}
spec:
  parentRefs: [{group: "", kind: Service, name: server, port: 80}]
  rules:
  - matches: [{path: {type: PathPrefix, value: /moved}}]
    filters:
    - type: RequestRedirect
      requestRedirect: {hostname: elsewhere.example, statusCode: 302}
  - backendRefs: [{name: server, port: 80}]
"#;

/// One story, since each part of it stands on the one before.
#[test]
fn what_is_applied_at_the_api_comes_to_pass_on_the_nodes_and_outlives_the_server() -> Result<()> {
    let lab = SHARED.lab();
    lab.apply(LATE)?;
    let server = pod_of(lab, "server")?;
    lab.wait_ready(&server)?;
    let target = lab.v4(&server, 9000)?.to_string();

    // Out of the mesh it is spoken to in the clear, as anything outside.
    let report = lab.traffic(CLIENT, &["echo", &target])?;
    ensure!(
        report.is_done() && peer(lab, &report)?.is_empty(),
        "{report:?}"
    );
    lab.label("namespace", "late", &["istio.io/dataplane-mode=ambient"])?;
    eventually("the namespace has joined", PATIENCE, || {
        meshed(lab, &target)
    })?;

    lab.apply(DENY)?;
    eventually("the policy denies", PATIENCE, || refused(lab, &target))?;
    lab.delete("authorizationpolicy", "late/nobody")?;
    eventually("nothing denies any more", PATIENCE, || meshed(lab, &target))?;

    // A Gateway, and no more, makes a waypoint that serves.
    let waypoint = WAYPOINT.deploy(lab)?;
    lab.apply(ROUTE)?;
    eventually("the waypoint redirects", PATIENCE, || {
        let report = lab.traffic(CLIENT, &["get", "server.late:80", "/moved"])?;
        let redirected = report.outcome == Outcome::Failed("status 302".into());
        ensure!(redirected, "{report:?}");
        Ok(())
    })?;
    let report = lab.traffic(CLIENT, &["get", "server.late:80", "/"])?;
    ensure!(report.is_done(), "{report:?}");

    outage(lab, &target)?;

    // One that is deleted is gone everywhere, and its Deployment has another.
    lab.delete("pod", &server)?;
    eventually("the pod is gone, and has a successor", PATIENCE, || {
        let next = pod_of(lab, "server")?;
        ensure!(next != server, "it is still {server}");
        let state = lab.must(&["status", "--output", "json"])?;
        ensure!(!state.contains(&server), "the API server still has it");
        lab.wait_ready(&next)?;
        meshed(lab, &lab.v4(&next, 9000)?.to_string())
    })?;
    // With the Gateway all that was made for it goes.
    lab.delete("gateway", "late/wp")?;
    eventually("the waypoint is gone", PATIENCE, || {
        ensure!(!has_pod(lab, &waypoint)?, "{waypoint} still runs");
        Ok(())
    })
}

/// The server is lost: traffic goes on, in what is open and what is new; when it is back, what was wanted meanwhile holds.
fn outage(lab: &Lab, target: &str) -> Result<()> {
    let held = lab.hold(CLIENT, target.parse().context("an address")?)?;
    lab.hold_down(API_SERVER)?;
    let refused_by_server = lab.apply(DENY);
    ensure!(refused_by_server.is_err(), "there is a server still");
    for _attempt in 0..5 {
        meshed(lab, target)?;
    }
    let held = held.release()?;
    ensure!(held.is_done(), "what was open before: {held:?}");
    lab.let_start(API_SERVER)?;
    eventually("the server takes objects again", PATIENCE, || {
        lab.apply(DENY)
    })?;
    eventually("what was applied then holds", PATIENCE, || {
        refused(lab, target)
    })?;
    lab.delete("authorizationpolicy", "late/nobody")?;
    eventually("and no longer", PATIENCE, || meshed(lab, target))?;
    Ok(())
}

/// The client reaches the server by mutual TLS, and knows whom it speaks to.
fn meshed(lab: &Lab, target: &str) -> Result<()> {
    let report = lab.traffic(CLIENT, &["echo", target])?;
    ensure!(report.is_done(), "{report:?}");
    let peer = peer(lab, &report)?;
    ensure!(peer == SERVER_ID, "the server is taken for {peer:?}");
    Ok(())
}

fn refused(lab: &Lab, target: &str) -> Result<()> {
    let report = lab.traffic(CLIENT, &["echo", target])?;
    ensure!(!report.is_done(), "{report:?}");
    Ok(())
}

/// What the client's proxy says of who was at the other end.
fn peer(lab: &Lab, report: &Report) -> Result<String> {
    let source = report.local.context("the client has connected")?;
    let entry = lab.access_entry(Node::A, "the connection", |entry| {
        entry.is_final() && entry.source() == Some(source)
    })?;
    Ok(entry.field("dst.identity").unwrap_or_default())
}

/// The pod that a Deployment of the namespace has, as `namespace/name`.
fn pod_of(lab: &Lab, deployment: &str) -> Result<String> {
    let prefix = format!("{deployment}-");
    eventually("a pod of the Deployment", PATIENCE, || {
        let pods = lab.state().pods()?;
        let mut names = pods.into_iter().map(|record| record.pod);
        let found = names.find(|pod| pod.namespace == "late" && pod.name.starts_with(&prefix));
        found.map(|pod| pod.to_string()).context("none yet")
    })
}

fn has_pod(lab: &Lab, name: &str) -> Result<bool> {
    let pods = lab.state().pods()?;
    Ok(pods.iter().any(|record| record.pod.to_string() == name))
}
