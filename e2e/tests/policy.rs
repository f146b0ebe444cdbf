// SPDX-License-Identifier: Apache-2.0
//! Policies decide who may talk to whom, when a connection opens and for as long as it lasts.
//!
//! Each test has a server of its own, so that policies of one don't reach into another.

#![expect(clippy::unwrap_used, reason = "a test's helpers may end the test")]

use std::time::Duration;

use anyhow::ensure;
use e2e::access_log::Entry;
use e2e::handle::{Lab, Shared, eventually};
use e2e::topology::Node;
use e2e::traffic::Outcome;

static SHARED: Shared = Shared::new("policy", env!("CARGO_BIN_EXE_e2e"));

/// A change takes its way through control plane and proxy well within this.
const SETTLES: Duration = Duration::from_secs(15);

fn lab() -> &'static Lab {
    SHARED.lab()
}

/// A server pod `policy/NAME` on node b, ready.
fn server(name: &str) {
    let manifest = format!(
        "apiVersion: v1
kind: Namespace
metadata: {{name: policy, labels: {{istio.io/dataplane-mode: ambient}}}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {{name: {name}, namespace: policy}}
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: policy, labels: {{app: {name}}}}}
spec:
  nodeName: node-b
  serviceAccountName: {name}
  containers:
  - name: app
    image: culvert/app
    env: [{{name: POD_NAME, value: {name}}}]
    readinessProbe: {{httpGet: {{path: /healthz, port: 8080}}}}
"
    );
    lab().apply(&manifest).unwrap();
    lab().wait_ready(&format!("policy/{name}")).unwrap();
    may("shop/client", name, 9000);
}

/// An AuthorizationPolicy for the server, with its one rule.
fn policy(name: &str, action: &str, rule: &str) {
    let manifest = format!(
        "apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: {name}, namespace: policy}}
spec:
  selector: {{matchLabels: {{app: {name}}}}}
  action: {action}
  rules: [{rule}]
"
    );
    lab().apply(&manifest).unwrap();
}

fn outcome(place: &str, server: &str, port: u16) -> anyhow::Result<Outcome> {
    let target = lab().v4(&format!("policy/{server}"), port)?.to_string();
    let arguments = if port == 9001 {
        vec!["greet", &target]
    } else {
        vec!["echo", &target]
    };
    Ok(lab().traffic(place, &arguments)?.outcome)
}

/// It works, at the latest once all have heard of the latest change.
fn may(place: &str, server: &str, port: u16) {
    eventually(&format!("{place} may use {server}:{port}"), SETTLES, || {
        let outcome = outcome(place, server, port)?;
        ensure!(outcome == Outcome::Done, "{outcome}");
        Ok(())
    })
    .unwrap();
}

/// It does not work, at the latest once all have heard of the latest change; and the proxy says that a policy is why.
fn may_not(place: &str, server: &str, port: u16, policy: &str) -> Entry {
    eventually(
        &format!("{place} may not use {server}:{port}"),
        SETTLES,
        || {
            let outcome = outcome(place, server, port)?;
            ensure!(
                matches!(outcome, Outcome::Reset | Outcome::Closed | Outcome::Refused),
                "{outcome}"
            );
            Ok(())
        },
    )
    .unwrap();
    lab()
        .access_entry(Node::B, &format!("a refusal by {policy}"), |entry| {
            entry.is("dst.workload", server)
                && entry.is_inbound()
                && entry.error().is_some_and(|error| error.contains(policy))
        })
        .unwrap()
}

#[test]
fn allow_by_principal() {
    server("allow-principal");
    policy(
        "allow-principal",
        "ALLOW",
        "{from: [{source: {principals: [cluster.local/ns/shop/sa/client]}}]}",
    );
    may_not(
        "shop/stranger",
        "allow-principal",
        9000,
        "policy/allow-principal",
    );
    may("shop/client", "allow-principal", 9000);
    // Who has no identity is not the one that is named.
    may_not(
        "outside/legacy",
        "allow-principal",
        9000,
        "policy/allow-principal",
    );
}

#[test]
fn deny_by_principal() {
    server("deny-principal");
    policy(
        "deny-principal",
        "DENY",
        "{from: [{source: {principals: [cluster.local/ns/shop/sa/client]}}]}",
    );
    may_not(
        "shop/client",
        "deny-principal",
        9000,
        "policy/deny-principal",
    );
    may("shop/stranger", "deny-principal", 9000);
}

#[test]
fn allow_by_namespace() {
    server("allow-namespace");
    policy(
        "allow-namespace",
        "ALLOW",
        "{from: [{source: {namespaces: [shop]}}]}",
    );
    may_not(
        "strict/ledger",
        "allow-namespace",
        9000,
        "policy/allow-namespace",
    );
    may("shop/client", "allow-namespace", 9000);
}

#[test]
fn deny_by_namespace() {
    server("deny-namespace");
    policy(
        "deny-namespace",
        "DENY",
        "{from: [{source: {namespaces: [shop]}}]}",
    );
    may_not(
        "shop/client",
        "deny-namespace",
        9000,
        "policy/deny-namespace",
    );
    may("strict/ledger", "deny-namespace", 9000);
}

#[test]
fn allow_by_ip_block() {
    server("allow-ip");
    let client = lab().pod("shop/client").unwrap().addresses.unwrap().v4;
    policy(
        "allow-ip",
        "ALLOW",
        &format!("{{from: [{{source: {{ipBlocks: [{client}]}}}}]}}"),
    );
    may_not("shop/stranger", "allow-ip", 9000, "policy/allow-ip");
    may("shop/client", "allow-ip", 9000);
}

#[test]
fn deny_by_ip_block() {
    server("deny-ip");
    policy(
        "deny-ip",
        "DENY",
        "{from: [{source: {ipBlocks: [10.77.1.0/24]}}]}",
    );
    may_not("shop/client", "deny-ip", 9000, "policy/deny-ip");
    may_not("outside/legacy", "deny-ip", 9000, "policy/deny-ip");
    may("strict/ledger", "deny-ip", 9000);
}

#[test]
fn allow_by_port() {
    server("allow-port");
    policy(
        "allow-port",
        "ALLOW",
        "{to: [{operation: {ports: [\"9000\"]}}]}",
    );
    may_not("shop/client", "allow-port", 9001, "policy/allow-port");
    may("shop/client", "allow-port", 9000);
}

#[test]
fn deny_by_port() {
    server("deny-port");
    policy(
        "deny-port",
        "DENY",
        "{to: [{operation: {ports: [\"9001\"]}}]}",
    );
    may_not("shop/client", "deny-port", 9001, "policy/deny-port");
    may("shop/client", "deny-port", 9000);
}

#[test]
fn strict_refuses_plaintext_and_permissive_takes_it_again() {
    server("mode");
    may("outside/legacy", "mode", 9000);
    let mode = |mode: &str| {
        let manifest = format!(
            "apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {{name: mode, namespace: policy}}
spec: {{selector: {{matchLabels: {{app: mode}}}}, mtls: {{mode: {mode}}}}}
"
        );
        lab().apply(&manifest).unwrap();
    };
    mode("STRICT");
    may_not(
        "outside/legacy",
        "mode",
        9000,
        "istio_converted_static_strict",
    );
    may("shop/client", "mode", 9000);
    // A kubelet's health checks are plaintext too, and pass.
    lab().wait_ready("policy/mode").unwrap();
    mode("PERMISSIVE");
    may("outside/legacy", "mode", 9000);
}

#[test]
fn a_connection_that_loses_permission_is_ended_and_others_live_on() {
    server("live");
    let target = lab().v4("policy/live", 9000).unwrap();
    let (client, stranger) = (
        lab().hold("shop/client", target).unwrap(),
        lab().hold("shop/stranger", target).unwrap(),
    );
    let plain = lab().hold("outside/legacy", target).unwrap();
    policy(
        "live",
        "DENY",
        "{from: [{source: {principals: [cluster.local/ns/shop/sa/client]}}]}",
    );
    let ended = client.ended(SETTLES).unwrap();
    assert!(
        matches!(ended.outcome, Outcome::Reset | Outcome::Closed),
        "{ended:?}"
    );
    lab()
        .access_entry(
            Node::B,
            "the end of the connection and its reason",
            |entry| {
                entry.is("dst.workload", "live")
                    && entry.is("src.identity", "spiffe://cluster.local/ns/shop/sa/client")
                    && entry.error().is_some_and(|error| {
                        error.contains("policy changed") && error.contains("policy/live")
                    })
            },
        )
        .unwrap();
    assert_eq!(stranger.release().unwrap().outcome, Outcome::Done);
    assert_eq!(plain.release().unwrap().outcome, Outcome::Done);
}

#[test]
fn a_plaintext_connection_ends_when_strict_comes() {
    server("turns-strict");
    let target = lab().v4("policy/turns-strict", 9000).unwrap();
    let (meshed, plain) = (
        lab().hold("shop/client", target).unwrap(),
        lab().hold("outside/legacy", target).unwrap(),
    );
    let manifest = "apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: turns-strict, namespace: policy}
spec: {selector: {matchLabels: {app: turns-strict}}, mtls: {mode: STRICT}}
";
    lab().apply(manifest).unwrap();
    let ended = plain.ended(SETTLES).unwrap();
    assert!(
        matches!(ended.outcome, Outcome::Reset | Outcome::Closed),
        "{ended:?}"
    );
    assert_eq!(meshed.release().unwrap().outcome, Outcome::Done);
}

#[test]
fn deleting_a_policy_ends_its_effect() {
    server("deleted");
    policy("deleted", "DENY", "{}");
    may_not("shop/client", "deleted", 9000, "policy/deleted");
    lab()
        .delete("authorizationpolicy", "policy/deleted")
        .unwrap();
    may("shop/client", "deleted", 9000);
}
