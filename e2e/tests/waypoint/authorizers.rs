// SPDX-License-Identifier: Apache-2.0
//! Whom a CUSTOM policy names, running in a pod: what it allows passes, what it denies does not, and without it nothing does.

use std::sync::OnceLock;

use anyhow::ensure;
use e2e::handle::eventually;
use e2e::topology::Node;
use e2e::traffic::{Outcome, Report};

use crate::ground::{PATIENCE, lab, waypoint_entry};
use crate::routes::{ask_of, pod, routed};

/// The authorizer answers 403 where a path says so, and 200 elsewhere.
const MANIFEST: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |
    extensionProviders:
    - name: judge
      envoyExtAuthzHttp:
        service: judge.guarded.svc.cluster.local
        port: 80
        timeout: 2s
---
apiVersion: v1
kind: Pod
metadata: {name: judge, namespace: guarded, labels: {app: judge}}
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
kind: Service
metadata: {name: judge, namespace: guarded}
spec:
  selector: {app: judge}
  clusterIP: 10.96.0.86
  clusterIPs: [10.96.0.86]
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: asked-for, namespace: guarded, labels: {istio.io/use-waypoint: wp}}
spec:
  selector: {app: old}
  clusterIP: 10.96.0.87
  clusterIPs: [10.96.0.87]
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: asked-for, namespace: guarded}
spec:
  targetRefs: [{group: "", kind: Service, name: asked-for}]
  action: CUSTOM
  provider: {name: judge}
  rules: [{to: [{operation: {notPaths: [/unasked*]}}]}]
"#;

const ASKED_FOR: &str = "10.96.0.87:80";

fn ask(path: &str) -> anyhow::Result<Report> {
    ask_of(ASKED_FOR, path, None)
}

/// How often a pod was asked for a path, by who does not go by way of the waypoint.
fn times(name: &str, path: &str) -> String {
    let target = lab().v4(&format!("guarded/{name}"), 8080).unwrap();
    let (target, path) = (target.to_string(), format!("/asked{path}"));
    let asked = lab().traffic(Node::B.name(), &["get", &target, &path]);
    asked.unwrap().answer.unwrap()
}

/// Nobody lets it pass.
fn is_denied(path: &str) -> anyhow::Result<()> {
    let report = ask(path)?;
    let denied = Outcome::Failed("status 403".to_owned());
    ensure!(report.outcome == denied, "{report:?}");
    Ok(())
}

#[test]
fn an_authorizer_allows_and_denies_and_without_it_nothing_passes() {
    static APPLIED: OnceLock<()> = OnceLock::new();
    routed();
    APPLIED.get_or_init(|| {
        lab().apply(MANIFEST).unwrap();
        lab().wait_ready("guarded/judge").unwrap();
        eventually("the waypoint asks", PATIENCE, || {
            is_denied("/status/403/first")?;
            let report = ask("/first")?;
            ensure!(report.is_done(), "{report:?}");
            Ok(())
        })
        .unwrap();
    });
    let report = ask("/judged").unwrap();
    assert_eq!(pod(&report), "old", "{report:?}");
    assert_eq!(times("judge", "/judged"), "1");
    assert_eq!(times("old", "/judged"), "1");

    is_denied("/status/403/judged").unwrap();
    assert_eq!(times("judge", "/status/403/judged"), "1");
    assert_eq!(times("old", "/status/403/judged"), "0");
    let entry = waypoint_entry("the denial", |entry| entry.is("path", "/status/403/judged"));
    assert!(entry.is("response_flags", "UAEX"), "{entry}");
    assert!(entry.to_string().contains("judge"), "{entry}");

    lab().delete("pod", "guarded/judge").unwrap();
    eventually("nothing passes", PATIENCE, || is_denied("/judged/later")).unwrap();
    let entry = waypoint_entry("the refusal", |entry| {
        entry.is("path", "/judged/later") && entry.is("response_code", "403")
    });
    assert!(entry.is("response_flags", "UAEX"), "{entry}");
    assert!(entry.error().unwrap().contains("judge"), "{entry}");
    // Of what nobody is to be asked, nobody is.
    let report = ask("/unasked").unwrap();
    assert_eq!(pod(&report), "old", "{report:?}");
}
