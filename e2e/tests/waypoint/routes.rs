// SPDX-License-Identifier: Apache-2.0
//! Routes as an operator writes them: applied to the cluster, told to the waypoint, seen by clients.

use std::sync::OnceLock;

use anyhow::{Context as _, ensure};
use e2e::handle::eventually;
use e2e::topology::Node;
use e2e::traffic::{Outcome, Report};

use crate::ground::{CLIENT_ID, PATIENCE, lab, talk, waypoint_entry, waypoint_metrics};

/// A service of the waypoint's, and two that its routes lead to.
const MANIFEST: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: front, namespace: guarded, labels: {istio.io/use-waypoint: wp}}
spec:
  selector: {app: old}
  clusterIP: 10.96.0.71
  clusterIPs: [10.96.0.71]
  ports:
  - {name: http, port: 80, targetPort: 8080}
  - {name: tcp-echo, port: 9000}
---
apiVersion: v1
kind: Service
metadata: {name: old, namespace: guarded}
spec:
  selector: {app: old}
  clusterIP: 10.96.0.72
  clusterIPs: [10.96.0.72]
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: new, namespace: guarded}
spec:
  selector: {app: new}
  clusterIP: 10.96.0.73
  clusterIPs: [10.96.0.73]
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Pod
metadata: {name: old, namespace: guarded, labels: {app: old, shelf: books}}
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
apiVersion: v1
kind: Pod
metadata: {name: new, namespace: guarded, labels: {app: new, shelf: books}}
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
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: front, namespace: guarded}
spec:
  parentRefs: [{group: "", kind: Service, name: front, port: 80}]
  rules:
  - matches: [{headers: [{name: x-version, value: new}]}]
    backendRefs: [{name: new, port: 80}]
  - matches: [{path: {type: PathPrefix, value: /moved}}]
    filters:
    - type: RequestRedirect
      requestRedirect:
        hostname: elsewhere.example
        path: {type: ReplacePrefixMatch, replacePrefixMatch: /here}
        statusCode: 302
  - matches: [{path: {type: PathPrefix, value: /copied}}]
    filters: [{type: RequestMirror, requestMirror: {backendRef: {name: new, port: 80}}}]
    backendRefs: [{name: old, port: 80}]
  - matches: [{path: {type: PathPrefix, value: /fail}}]
    retry: {codes: [503], attempts: 2, backoff: 10ms}
    backendRefs: [{name: old, port: 80}]
  - matches: [{path: {type: PathPrefix, value: /nowhere}}]
    backendRefs: [{name: gone, port: 80}]
  - backendRefs:
    - {name: old, port: 80, weight: 90}
    - {name: new, port: 80, weight: 10}
"#;

const FRONT: &str = "10.96.0.71:80";

/// The route is applied, and the waypoint goes by it.
pub(crate) fn routed() {
    static APPLIED: OnceLock<()> = OnceLock::new();
    let lab = lab();
    APPLIED.get_or_init(|| {
        lab.apply(MANIFEST).unwrap();
        for pod in ["guarded/old", "guarded/new"] {
            lab.wait_ready(pod).unwrap();
        }
        eventually("the waypoint goes by the route", PATIENCE, || {
            let report = ask("/", Some("x-version: new"))?;
            ensure!(report.is_done() && pod(&report) == "new", "{report:?}");
            Ok(())
        })
        .unwrap();
    });
}

fn ask(path: &str, header: Option<&str>) -> anyhow::Result<Report> {
    ask_of(FRONT, path, header)
}

pub(crate) fn ask_of(to: &str, path: &str, header: Option<&str>) -> anyhow::Result<Report> {
    let mut arguments = vec!["get", to, path];
    if let Some(header) = header {
        arguments.extend(["--header", header]);
    }
    lab().traffic("shop/client", &arguments)
}

/// Which pod answered.
pub(crate) fn pod(report: &Report) -> String {
    let answer = report.answer.as_deref().unwrap_or_default();
    let page: serde_json::Value = serde_json::from_str(answer).unwrap_or_default();
    page["pod"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn requests_are_shared_out_and_headers_decide() {
    routed();
    let mut new = 0;
    for _ in 0..60 {
        let report = ask("/shared", None).unwrap();
        assert!(report.is_done(), "{report:?}");
        new += u32::from(pod(&report) == "new");
    }
    // 6 are expected; the standard deviation is 2.3.
    assert!(new <= 18, "{new} of 60 went to the one of weight 10 of 100");
    let report = ask("/chosen", Some("x-version: new")).unwrap();
    assert_eq!(pod(&report), "new");
    let entry = waypoint_entry("the request", |entry| entry.is("path", "/chosen"));
    for (field, value) in [
        ("src.identity", CLIENT_ID),
        ("dst.service", "new.guarded.svc.cluster.local"),
        ("dst.workload", "new"),
        ("response_code", "200"),
    ] {
        assert!(entry.is(field, value), "{field} of {entry}");
    }
    let route = entry.field("route_name").context("a route").unwrap();
    assert!(route.contains("HTTPRoute guarded/front"), "{entry}");
    let counted = waypoint_metrics().sum(
        "istio_requests_total",
        &[
            ("destination_service", "old.guarded.svc.cluster.local"),
            ("response_code", "200"),
        ],
    );
    assert!(counted >= 60.0 - f64::from(new), "{counted}");
}

#[test]
fn what_a_route_answers_itself_needs_no_endpoint() {
    routed();
    let status = |path: &str| match ask(path, None).unwrap().outcome {
        Outcome::Failed(words) => words,
        other => other.to_string(),
    };
    assert_eq!(status("/moved/on"), "status 302");
    let entry = waypoint_entry("the redirect", |entry| entry.is("path", "/moved/on"));
    assert!(entry.is("response_code", "302"), "{entry}");
    assert_eq!(status("/nowhere"), "status 500");
    let entry = waypoint_entry("the refusal", |entry| entry.is("path", "/nowhere"));
    assert!(entry.error().unwrap().contains("invalid"), "{entry}");
}

#[test]
fn what_a_route_mirrors_is_answered_by_one_and_seen_by_both() {
    routed();
    for at in 0..3 {
        let report = ask(&format!("/copied/{at}"), None).unwrap();
        assert_eq!(pod(&report), "old", "{report:?}");
    }
    for (name, expected) in [("new", "3"), ("old", "3")] {
        eventually(&format!("{name} was asked"), PATIENCE, || {
            let mut times = 0;
            for at in 0..3 {
                // In plaintext from its own node: not by way of the waypoint itself.
                let target = lab().v4(&format!("guarded/{name}"), 8080)?.to_string();
                let path = format!("/asked/copied/{at}");
                let asked = lab().traffic(Node::B.name(), &["get", &target, &path])?;
                times += asked.answer.unwrap_or_default().parse::<u32>()?;
            }
            ensure!(times.to_string() == expected, "{times} times");
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn what_a_route_tries_again_is_one_answer_for_the_client() {
    routed();
    let report = ask("/fail/2/enough", None).unwrap();
    assert_eq!(pod(&report), "old", "{report:?}");
    let entry = waypoint_entry("the request", |entry| entry.is("path", "/fail/2/enough"));
    for (field, value) in [("response_code", "200"), ("attempts", "3")] {
        assert!(entry.is(field, value), "{field} of {entry}");
    }
    let report = ask("/fail/3/too-often", None).unwrap();
    assert_eq!(report.outcome, Outcome::Failed("status 503".to_owned()));
    let entry = waypoint_entry("the request", |entry| entry.is("path", "/fail/3/too-often"));
    for (field, value) in [
        ("response_code", "503"),
        ("response_flags", "URX"),
        ("attempts", "3"),
    ] {
        assert!(entry.is(field, value), "{field} of {entry}");
    }
}

#[test]
fn bytes_of_a_service_pass_where_its_port_says_so() {
    routed();
    talk(
        "shop/client",
        &["echo", "10.96.0.71:9000", "--bytes", "300000"],
    );
    let entry = waypoint_entry("the connection", |entry| {
        entry.is("dst.hbone_addr", "10.96.0.71:9000")
    });
    assert!(
        entry.is("dst.service", "front.guarded.svc.cluster.local"),
        "{entry}"
    );
    assert!(entry.is("bytes_recv", "300000"), "{entry}");
}
