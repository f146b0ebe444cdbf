// SPDX-License-Identifier: Apache-2.0
//! Policies for what a waypoint serves, as an operator writes them: who passes, and what each party says of it.

use std::sync::OnceLock;

use anyhow::ensure;
use e2e::handle::eventually;
use e2e::traffic::{Outcome, Report};
use serde_json::Value;

use crate::ground::{
    CLIENT_ID, PATIENCE, lab, talk, waypoint_dump, waypoint_entry, waypoint_metrics,
};

/// Two services before one server: what is written for the one is not for the other.
const MANIFEST: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: judged, namespace: guarded, labels: {istio.io/use-waypoint: wp}}
spec:
  selector: {app: server}
  clusterIP: 10.96.0.76
  clusterIPs: [10.96.0.76]
  ports:
  - {name: http, port: 80, targetPort: 8080}
  - {name: tcp-echo, port: 9000}
---
apiVersion: v1
kind: Service
metadata: {name: unjudged, namespace: guarded, labels: {istio.io/use-waypoint: wp}}
spec:
  selector: {app: server}
  clusterIP: 10.96.0.77
  clusterIPs: [10.96.0.77]
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: allowed, namespace: guarded}
spec:
  targetRefs: [{group: "", kind: Service, name: judged}]
  rules:
  - from: [{source: {principals: [cluster.local/ns/shop/sa/client]}}]
    to: [{operation: {methods: [GET], paths: [/open*], hosts: ["10.96.0.76:*"]}}]
  - when: [{key: "request.headers[x-pass]", values: [sesame]}]
  - to: [{operation: {methods: [PUT], paths: [/put]}}]
  - to: [{operation: {hosts: [elsewhere.example], paths: [/host]}}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: denied, namespace: guarded}
spec:
  targetRefs: [{group: "", kind: Service, name: judged}]
  action: DENY
  rules: [{to: [{operation: {paths: ["/{*}/secret", /open/closed*]}}]}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: later, namespace: guarded, annotations: {istio.io/dry-run: "true"}}
spec:
  targetRefs: [{group: "", kind: Service, name: judged}]
  action: DENY
  rules: [{to: [{operation: {paths: [/open/later]}}]}]
"#;

const JUDGED: &str = "10.96.0.76:80";

/// The policies are applied, and the waypoint goes by them.
fn judged() {
    static APPLIED: OnceLock<()> = OnceLock::new();
    let lab = lab();
    APPLIED.get_or_init(|| {
        lab.apply(MANIFEST).unwrap();
        eventually("the waypoint goes by the policies", PATIENCE, || {
            let passes = ask("shop/client", "/open", &[]);
            ensure!(passes.is_done(), "{passes:?}");
            let denied = ask("shop/client", "/anything", &[]);
            ensure!(status(&denied) == "status 403", "{denied:?}");
            Ok(())
        })
        .unwrap();
    });
}

fn ask(who: &str, path: &str, more: &[&str]) -> Report {
    let arguments = [&["get", JUDGED, path], more].concat();
    lab().traffic(who, &arguments).unwrap()
}

/// What the waypoint says that would become of a request to the service.
fn explained(who: &str, path: &str, header: Option<&str>) -> Value {
    let account = who.replace('/', "/sa/");
    let mut question = format!(
        "/debug/explain?service=guarded/judged.guarded.svc.cluster.local&port=80\
         &source=spiffe://cluster.local/ns/{account}&path={path}&header=host:{JUDGED}"
    );
    if let Some(header) = header {
        question += &format!("&header={}", header.replace(' ', ""));
    }
    let report = talk("guarded/wp", &["get", "127.0.0.1:15000", &question]);
    serde_json::from_str(&report.answer.unwrap()).unwrap()
}

fn status(report: &Report) -> String {
    match &report.outcome {
        Outcome::Failed(words) => words.clone(),
        other => other.to_string(),
    }
}

#[test]
fn requests_pass_by_method_path_principal_header_and_host_and_by_nothing_else() {
    judged();
    for (who, path, header, passes) in [
        ("shop/client", "/open/x", None, true),
        ("shop/stranger", "/open/x", None, false),
        ("shop/stranger", "/any", Some("x-pass: sesame"), true),
        ("shop/stranger", "/any", Some("x-pass: Sesame"), false),
        ("shop/client", "/put", None, false),
        ("shop/client", "/host", None, false),
        ("shop/client", "/open/../any", None, false),
        ("shop/client", "/any/../open/x", None, true),
        ("shop/client", "/open/secret", None, false),
        (
            "shop/client",
            "/open/closed/x",
            Some("x-pass: sesame"),
            false,
        ),
    ] {
        let header: Vec<&str> = header
            .iter()
            .flat_map(|header| ["--header", header])
            .collect();
        let report = ask(who, path, &header);
        let expected = if passes {
            Outcome::Done.to_string()
        } else {
            "status 403".into()
        };
        assert_eq!(
            status(&report),
            expected,
            "{who} {path} {header:?}: {report:?}"
        );
        let told = explained(who, path, header.get(1).copied());
        assert_eq!(told["allowed"], passes, "{who} {path}: {told:#}");
        let why = if passes {
            "allowed by policy "
        } else {
            "denied"
        };
        assert!(told["why"].as_str().unwrap().starts_with(why), "{told:#}");
    }
    // Bytes carry none of what the rules ask for.
    let bytes = lab()
        .traffic("shop/client", &["echo", "10.96.0.76:9000"])
        .unwrap();
    assert_eq!(bytes.outcome, Outcome::Reset, "{bytes:?}");
    // What is for one service is for no other before the same server.
    let other = lab().traffic("shop/stranger", &["get", "10.96.0.77:80", "/open/secret"]);
    assert!(other.unwrap().is_done());
}

#[test]
fn a_denial_names_its_rule_in_log_metric_and_admin_view() {
    judged();
    let report = ask("shop/client", "/told/secret", &[]);
    assert_eq!(status(&report), "status 403");
    let entry = waypoint_entry("the denial", |entry| entry.is("path", "/told/secret"));
    let by = "denied by policy guarded/denied rule 0";
    for (field, value) in [
        ("response_code", "403"),
        ("response_flags", "DENY"),
        ("src.identity", CLIENT_ID),
        ("policy", by),
        ("error", by),
    ] {
        assert!(entry.is(field, value), "{field} of {entry}");
    }
    let labels = [
        ("policy", "guarded/denied"),
        ("rule", "0"),
        ("result", "denied"),
    ];
    let counted = waypoint_metrics().sum("culvert_authorization_decisions_total", &labels);
    assert!(counted >= 1.0, "{counted}");
    let dump = waypoint_dump();
    let refusals = dump["refusals"].as_array().unwrap();
    let told = refusals.iter().any(|refusal| refusal["reason"] == by);
    assert!(told, "{refusals:?}");
}

#[test]
fn a_policy_that_is_tried_out_lets_pass_and_says_so() {
    judged();
    let report = ask("shop/client", "/open/later", &[]);
    assert!(report.is_done(), "{report:?}");
    let entry = waypoint_entry("the request", |entry| entry.is("path", "/open/later"));
    for (field, value) in [
        ("response_code", "200"),
        ("policy", "allowed by policy guarded/allowed rule 0"),
        ("dry_run", "denied by policy guarded/later rule 0"),
    ] {
        assert!(entry.is(field, value), "{field} of {entry}");
    }
}
