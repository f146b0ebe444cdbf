// SPDX-License-Identifier: Apache-2.0
//! Policies of an endpoint that name the clients for whom its waypoint speaks: its own node decides by them, explains what it
//! would decide, and says what a policy that is tried out would have done.

use std::sync::OnceLock;

use anyhow::ensure;
use e2e::handle::{Lab, eventually};
use e2e::topology::Node;
use e2e::traffic::{Outcome, Report};
use serde_json::Value;

use crate::ground::{CLIENT_ID, PATIENCE, WAYPOINT_ID, lab, talk};

const MANIFEST: &str = r#"
apiVersion: v1
kind: ServiceAccount
metadata: {name: kept, namespace: guarded}
---
apiVersion: v1
kind: Pod
metadata: {name: kept, namespace: guarded, labels: {app: kept}}
spec:
  nodeName: node-b
  serviceAccountName: kept
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
metadata: {name: kept, namespace: guarded, labels: {istio.io/use-waypoint: wp}}
spec:
  selector: {app: kept}
  clusterIP: 10.96.0.78
  clusterIPs: [10.96.0.78]
  ports:
  - {name: http, port: 80, targetPort: 8080}
  - {name: tcp-echo, port: 9000}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: kept, namespace: guarded}
spec:
  selector: {matchLabels: {app: kept}}
  rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/client]}}]}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: kept-closed, namespace: guarded}
spec:
  selector: {matchLabels: {app: kept}}
  action: DENY
  rules: [{to: [{operation: {ports: ["9001"]}}]}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: kept-later, namespace: guarded, annotations: {istio.io/dry-run: "true"}}
spec:
  selector: {matchLabels: {app: kept}}
  action: DENY
  rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/client]}}]}]
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: kept, namespace: guarded}
spec:
  selector: {matchLabels: {app: kept}}
  mtls: {mode: STRICT}
"#;

const REQUEST: [&str; 3] = ["get", "10.96.0.78:80", "/"];

/// With the pod, and its policies at work.
fn kept() -> &'static Lab {
    static APPLIED: OnceLock<()> = OnceLock::new();
    let lab = lab();
    APPLIED.get_or_init(|| {
        lab.apply(MANIFEST).unwrap();
        lab.wait_ready("guarded/kept").unwrap();
        eventually("waypoint and node go by the policy", PATIENCE, || {
            let stranger = ask("shop/stranger", &REQUEST);
            ensure!(!stranger.is_done(), "{stranger:?}");
            let client = ask("shop/client", &REQUEST);
            ensure!(client.is_done(), "{client:?}");
            Ok(())
        })
        .unwrap();
    });
    lab
}

fn ask(who: &str, arguments: &[&str]) -> Report {
    lab().traffic(who, arguments).unwrap()
}

#[test]
fn a_node_decides_by_the_client_for_whom_the_pods_own_waypoint_speaks() {
    let lab = kept();
    // What the waypoint keeps open for one client carries nothing of another.
    for _ in 0..3 {
        let stranger = ask("shop/stranger", &REQUEST);
        assert!(
            matches!(&stranger.outcome, Outcome::Failed(words) if words == "status 503"),
            "{stranger:?}"
        );
        assert!(ask("shop/client", &REQUEST).is_done());
    }
    lab.access_entry(Node::B, "the refusal", |entry| {
        entry.is_final()
            && entry.is("src.identity", WAYPOINT_ID)
            && entry.is("dst.workload", "kept")
            && entry
                .error()
                .is_some_and(|error| error.contains("ALLOW policy guarded/kept"))
    })
    .unwrap();
    let bytes = ["echo", "10.96.0.78:9000"];
    assert!(ask("shop/client", &bytes).is_done());
    assert_eq!(ask("shop/stranger", &bytes).outcome, Outcome::Reset);
    // Who comes without the waypoint is who it is.
    let at = lab.v4("guarded/kept", 9000).unwrap().to_string();
    assert!(ask("shop/client", &["echo", &at]).is_done());
    assert_eq!(ask("shop/stranger", &["echo", &at]).outcome, Outcome::Reset);
}

fn page(node: &str, path: &str) -> Value {
    let report = talk(node, &["get", "127.0.0.1:15000", path]);
    serde_json::from_str(&report.answer.unwrap()).unwrap()
}

fn explained(source: &str, destination: &str) -> Value {
    page(
        "node-a",
        &format!("/debug/explain?source={source}&destination={destination}"),
    )
}

#[test]
fn what_would_become_of_a_connection_is_explained_as_it_is_decided() {
    kept();
    let service = "10.96.0.78&port=80";
    let client = explained("shop/client", service);
    let (first, second) = (&client["hops"][0], &client["hops"][1]);
    assert_eq!(first["server"]["workload"], "guarded/wp", "{client:#}");
    assert_eq!(first["clientIdentity"], CLIENT_ID);
    assert_eq!(second["server"]["workload"], "guarded/kept");
    assert_eq!(second["clientIdentity"], WAYPOINT_ID);
    assert_eq!(second["onBehalfOf"], CLIENT_ID);
    assert_eq!(client["allowed"], true);
    for (source, destination, allowed, why) in [
        (
            "shop/client",
            service,
            true,
            "allowed by policy guarded/kept rule[0]",
        ),
        (
            "shop/stranger",
            service,
            false,
            "not matched by the ALLOW policy guarded/kept",
        ),
        (
            "shop/client",
            "guarded/kept&port=9001",
            false,
            "policy guarded/kept-closed rule[0]",
        ),
        (
            "shop/client",
            "guarded/kept&port=9000",
            true,
            "allowed by policy guarded/kept rule[0]",
        ),
        (
            "outside/legacy",
            "guarded/kept&port=9000",
            false,
            "istio_converted_static_strict",
        ),
    ] {
        let told = explained(source, destination);
        assert_eq!(told["allowed"], allowed, "{told:#}");
        assert!(told["why"].as_str().unwrap().contains(why), "{told:#}");
    }
    let unknown = ask(
        "node-a",
        &[
            "get",
            "127.0.0.1:15000",
            "/debug/explain?source=shop/client&destination=nothing.shop",
        ],
    );
    assert!(
        matches!(&unknown.outcome, Outcome::Failed(words) if words == "status 404"),
        "{unknown:?}"
    );
}

#[test]
fn what_is_tried_out_says_what_it_would_have_denied() {
    kept();
    for target in ["10.96.0.78:9000", "10.96.0.78:9000"] {
        assert!(ask("shop/client", &["echo", target]).is_done());
    }
    let told = page("node-b", "/debug/dry-run");
    let trial = &told["policies"]["guarded/kept-later"];
    assert!(trial["wouldDeny"].as_u64() >= Some(2), "{told:#}");
    let changes = trial["changes"].as_array().unwrap();
    let named = changes.iter().any(|one| {
        one["source"] == WAYPOINT_ID
            && one["caller"] == CLIENT_ID
            && one["pod"] == "guarded/kept"
            && one["port"] == 9000
            && one["change"] == "wouldDeny"
    });
    assert!(named, "{told:#}");
}
