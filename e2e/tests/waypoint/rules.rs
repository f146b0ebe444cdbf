// SPDX-License-Identifier: Apache-2.0
//! Istio's own traffic rules: a VirtualService with subsets of a DestinationRule, and a plugin that is not run.

use std::sync::OnceLock;

use anyhow::ensure;
use e2e::handle::eventually;
use e2e::traffic::{Outcome, Report};

use crate::ground::{PATIENCE, lab, waypoint_entry};
use crate::routes::{ask_of, pod, routed};

/// Both pods of the routes' tests behind one service, told apart by a label; and one whose requests a plugin should see.
const MANIFEST: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: books, namespace: guarded, labels: {istio.io/use-waypoint: wp}}
spec:
  selector: {shelf: books}
  clusterIP: 10.96.0.74
  clusterIPs: [10.96.0.74]
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: plugged, namespace: guarded, labels: {istio.io/use-waypoint: wp}}
spec:
  selector: {app: new}
  clusterIP: 10.96.0.75
  clusterIPs: [10.96.0.75]
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: books, namespace: guarded}
spec:
  host: books
  trafficPolicy: {loadBalancer: {simple: ROUND_ROBIN}}
  subsets:
  - {name: old, labels: {app: old}}
  - {name: new, labels: {app: new}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: books, namespace: guarded}
spec:
  hosts: [books]
  http:
  - match: [{uri: {prefix: /gone}}]
    route: [{destination: {host: books, subset: gone}}]
  - match: [{headers: {x-version: {exact: new}}, withoutHeaders: {x-old: {}}}]
    route: [{destination: {host: books, subset: new}}]
  - match: [{uri: {exact: /tea}}]
    directResponse: {status: 418, body: {string: short and stout}}
  - match: [{uri: {prefix: /broken}}]
    fault: {abort: {httpStatus: 507}, delay: {fixedDelay: 200ms}}
    route: [{destination: {host: books}}]
  - match: [{uri: {prefix: /v1/}}]
    rewrite: {uriRegexRewrite: {match: "^/v([0-9]+)/(.*)$", rewrite: '/\2/of/\1'}}
    route: [{destination: {host: books, subset: new}}]
  - match: [{uri: {prefix: /left}}]
    delegate: {name: left}
  - match: [{uri: {prefix: /any}}]
    route: [{destination: {host: books}}]
  - route: [{destination: {host: books, subset: old}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: left, namespace: guarded}
spec:
  http:
  - match: [{uri: {prefix: /left/new}}]
    route: [{destination: {host: books, subset: new}}]
  - directResponse: {status: 404, body: {string: nothing is left}}
---
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: closed, namespace: guarded}
spec:
  targetRefs: [{group: "", kind: Service, name: plugged}]
  url: oci://registry.example/auth
  match: [{ports: [{number: 80}]}]
"#;

const BOOKS: &str = "10.96.0.74:80";
const PLUGGED: &str = "10.96.0.75:80";

fn is_refused(report: &Report) -> bool {
    report.outcome == Outcome::Failed("status 500".to_owned())
}

fn ruled() {
    static APPLIED: OnceLock<()> = OnceLock::new();
    routed();
    APPLIED.get_or_init(|| {
        lab().apply(MANIFEST).unwrap();
        eventually("the waypoint goes by the rules", PATIENCE, || {
            let report = ask_of(BOOKS, "/", Some("x-version: new"))?;
            ensure!(report.is_done() && pod(&report) == "new", "{report:?}");
            let report = ask_of(PLUGGED, "/", None)?;
            ensure!(is_refused(&report), "{report:?}");
            Ok(())
        })
        .unwrap();
    });
}

#[test]
fn rules_of_a_virtual_service_choose_among_the_subsets_of_a_destination_rule() {
    ruled();
    for at in 0..10 {
        let report = ask_of(BOOKS, &format!("/{at}"), None).unwrap();
        assert_eq!(pod(&report), "old", "{report:?}");
        let report = ask_of(BOOKS, &format!("/{at}"), Some("x-version: new")).unwrap();
        assert_eq!(pod(&report), "new", "{report:?}");
    }
    // The service as a whole takes turns.
    let asked = (0..4).map(|_| pod(&ask_of(BOOKS, "/any", None).unwrap()));
    let asked: std::collections::BTreeSet<String> = asked.collect();
    assert_eq!(asked.into_iter().collect::<Vec<_>>(), ["new", "old"]);
    let report = ask_of(BOOKS, "/gone", None).unwrap();
    assert!(is_refused(&report), "{report:?}");
    let entry = waypoint_entry("the request", |entry| entry.is("path", "/gone"));
    let why = entry.to_string();
    assert!(why.contains("has a subset"), "{why}");
}

#[test]
fn rules_of_a_virtual_service_answer_fail_rewrite_and_leave_to_others() {
    ruled();
    let status = |path: &str, status: &str| {
        let report = ask_of(BOOKS, path, None).unwrap();
        let expected = Outcome::Failed(format!("status {status}"));
        assert_eq!(report.outcome, expected, "{path}: {report:?}");
    };
    status("/tea", "418");
    status("/broken", "507");
    let entry = waypoint_entry("the failure", |entry| entry.is("path", "/broken"));
    assert!(entry.is("response_flags", "FI"), "{entry}");
    let report = ask_of(BOOKS, "/v1/a/b", None).unwrap();
    assert_eq!(pod(&report), "new", "{report:?}");
    let answer = report.answer.unwrap();
    assert!(answer.contains("/a/b/of/1"), "{answer}");
    let report = ask_of(BOOKS, "/left/new", None).unwrap();
    assert_eq!(pod(&report), "new", "{report:?}");
    status("/left/over", "404");
}

#[test]
fn what_a_plugin_should_have_seen_is_refused_with_that_reason() {
    ruled();
    let report = ask_of(PLUGGED, "/plugged", None).unwrap();
    assert!(is_refused(&report), "{report:?}");
    let entry = waypoint_entry("the request", |entry| entry.is("path", "/plugged"));
    let why = entry.to_string();
    assert!(
        why.contains("WasmPlugin guarded/closed is not run"),
        "{why}"
    );
}
