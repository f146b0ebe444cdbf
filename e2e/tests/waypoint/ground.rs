// SPDX-License-Identifier: Apache-2.0
//! A waypoint of a namespace, a server behind it, and one that is not; what each party says of a connection.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use e2e::access_log::{self, Entry};
use e2e::handle::{Lab, Shared, eventually};
use e2e::telemetry::Metrics;
use e2e::topology::Node;
use e2e::traffic::{Outcome, Report};

static SHARED: Shared = Shared::new("waypoint", env!("CARGO_BIN_EXE_e2e"));

pub(crate) const CLIENT_ID: &str = "spiffe://cluster.local/ns/shop/sa/client";
pub(crate) const WAYPOINT_ID: &str = "spiffe://cluster.local/ns/guarded/sa/wp";
pub(crate) const SERVER_ID: &str = "spiffe://cluster.local/ns/guarded/sa/server";

/// The waypoint stands on the node of neither, as far as two nodes allow: with the server, and away from the client.
const MANIFEST: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: guarded, labels: {istio.io/dataplane-mode: ambient}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: wp, namespace: guarded}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: server, namespace: guarded}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: direct, namespace: guarded}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata:
  name: wp
  namespace: guarded
  labels: {istio.io/waypoint-for: all}
spec:
  gatewayClassName: istio-waypoint
  listeners: [{name: mesh, port: 15008, protocol: HBONE}]
status: {addresses: [{type: Hostname, value: wp.guarded.svc.cluster.local}]}
---
apiVersion: v1
kind: Service
metadata: {name: wp, namespace: guarded}
spec:
  selector: {gateway.networking.k8s.io/gateway-name: wp}
  clusterIP: 10.96.0.70
  clusterIPs: [10.96.0.70, "fd96::70"]
  ipFamilies: [IPv4, IPv6]
  ipFamilyPolicy: PreferDualStack
  ports: [{name: mesh, port: 15008}]
---
apiVersion: v1
kind: Pod
metadata:
  name: wp
  namespace: guarded
  labels:
    gateway.networking.k8s.io/gateway-name: wp
    istio.io/dataplane-mode: none
    networking.istio.io/tunnel: http
spec:
  nodeName: node-a
  serviceAccountName: wp
  terminationGracePeriodSeconds: 5
  volumes:
  - name: tokens
    projected: {sources: [{serviceAccountToken: {audience: istio-ca, expirationSeconds: 43200, path: istio-token}}]}
  containers:
  - name: istio-proxy
    image: culvert/waypoint
    args: [proxy, waypoint]
    env:
    - {name: GATEWAY_NAME, value: wp}
    - {name: CA_ADDRESS, value: $(LAB_CONTROL_PLANE)}
    - {name: XDS_ADDRESS, value: $(LAB_CONTROL_PLANE)}
    - {name: CA_ROOT_CA, value: $(LAB_ROOT_CERTIFICATES)}
    - {name: XDS_ROOT_CA, value: $(LAB_ROOT_CERTIFICATES)}
    - {name: AUTH_TOKEN, value: $(LAB_VOLUMES)/tokens/istio-token}
    - {name: ISTIO_META_CLUSTER_ID, value: $(LAB_CLUSTER_ID)}
    - {name: NETWORK, value: $(LAB_NETWORK)}
    - {name: TERMINATION_GRACE_PERIOD_SECONDS, value: "5"}
    - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
    - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    - {name: INSTANCE_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: SERVICE_ACCOUNT, valueFrom: {fieldRef: {fieldPath: spec.serviceAccountName}}}
    - {name: LOG_FORMAT, value: json}
    - {name: RUST_LOG, value: info}
    - {name: RUST_BACKTRACE, value: "1"}
    securityContext: {capabilities: {drop: [ALL]}}
    readinessProbe: {httpGet: {path: /healthz/ready, port: 15021}}
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
    eventually(
        &format!("the waypoint's log shows {what}"),
        PATIENCE,
        || {
            let entries = access_log::parse(&lab().log("guarded/wp")?);
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
pub(crate) struct Direct {
    process: Child,
    _lifeline: ChildStdin,
    said: BufReader<ChildStdout>,
    port: u16,
}

impl Direct {
    pub(crate) fn to(to: SocketAddr) -> Self {
        let (to, through) = (
            to.to_string(),
            lab().v4("guarded/wp", 15008).unwrap().ip().to_string(),
        );
        let token = lab()
            .state()
            .node(Node::B)
            .join("volumes/guarded_direct/tokens/istio-token");
        let roots = lab().state().root_certificates();
        let arguments = [
            "native",
            "forward",
            "--account=guarded/direct",
            "--control-plane=https://istiod.istio-system.svc:15012",
            &format!("--token={}", token.display()),
            &format!("--roots={}", roots.display()),
            "--to",
            &to,
            "--through",
            &through,
            "--expect",
            WAYPOINT_ID,
        ];
        let mut command = lab().tool("guarded/direct", &arguments);
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lifeline = process.stdin.take().unwrap();
        let mut said = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        Self {
            process,
            _lifeline: lifeline,
            said,
            port: line.trim().parse().unwrap(),
        }
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// What the waypoint answered to a connection that it refused.
    pub(crate) fn refusal(&mut self) -> String {
        let report = lab()
            .traffic("guarded/direct", &["echo", &self.address()])
            .unwrap();
        assert_eq!(report.outcome, Outcome::Reset, "{report:?}");
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        let _already_gone = self.process.kill();
        let _reaped = self.process.wait();
    }
}
