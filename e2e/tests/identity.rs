// SPDX-License-Identifier: Apache-2.0
//! Who gets which certificate, and which one is shown on the wire.

#![expect(clippy::unwrap_used, reason = "a test's helpers may end the test")]

use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use e2e::handle::{Lab, Shared, eventually};
use e2e::peers::Answer;
use e2e::topology::Node;

static SHARED: Shared = Shared::new("identity", env!("CARGO_BIN_EXE_e2e"));

fn lab() -> &'static Lab {
    SHARED.lab()
}

fn token(node: Node) -> PathBuf {
    let proxy = e2e::handle::proxy_of(node);
    lab()
        .state()
        .node(node)
        .join(format!("volumes/istio-system_{proxy}/tokens/istio-token"))
}

fn text(path: PathBuf) -> String {
    path.to_str().unwrap().to_owned()
}

/// Asks the control plane with the token of a node's proxy.
fn certificate(node: Node, identity: &str) -> Answer {
    let (token, roots) = (text(token(node)), text(lab().state().root_certificates()));
    lab()
        .answer(
            node.name(),
            &[
                "certificate",
                identity,
                "--token",
                &token,
                "--roots",
                &roots,
            ],
        )
        .unwrap()
}

/// Dials a pod's tunnel port as the client, from its node.
fn dial(pod: &str, more: &[&str]) -> Answer {
    let target = lab().v4(pod, 15008).unwrap().to_string();
    let (token, roots) = (
        text(token(Node::A)),
        text(lab().state().root_certificates()),
    );
    let mut arguments = vec![
        "peer", &target, "--as", CLIENT, "--token", &token, "--roots", &roots,
    ];
    arguments.extend(more);
    lab().answer("node-a", &arguments).unwrap()
}

const CLIENT: &str = "spiffe://cluster.local/ns/shop/sa/client";
/// Runs on node b alone.
const VAULT: &str = "spiffe://cluster.local/ns/shop/sa/vault";

#[test]
fn an_identity_is_granted_to_the_node_its_pod_runs_on_and_to_no_other() {
    for (node, identity, granted) in [
        (Node::A, CLIENT, true),
        (Node::B, CLIENT, false),
        (Node::B, VAULT, true),
        (Node::A, VAULT, false),
    ] {
        let answer = certificate(node, identity);
        match granted {
            true => {
                assert_eq!(answer.error, None, "{node} asks for {identity}");
                assert_eq!(answer.identity.as_deref(), Some(identity));
                assert_eq!(answer.names, [identity], "one name and no other");
                assert!(answer.seconds_left.unwrap() > 60, "{answer:?}");
            }
            false => {
                let refusal = answer
                    .error
                    .unwrap_or_else(|| panic!("{node} was granted {identity}"));
                assert!(
                    !refusal.contains("pod"),
                    "the refusal tells too much: {refusal}"
                );
            }
        }
    }
}

#[test]
fn identities_of_nobody_and_of_foreign_trust_domains_are_refused() {
    for identity in [
        "spiffe://cluster.local/ns/shop/sa/nobody",
        "spiffe://elsewhere.example/ns/shop/sa/client",
        "spiffe://cluster.local/ns/istio-system/sa/istiod",
    ] {
        assert!(
            certificate(Node::A, identity).error.is_some(),
            "{identity} was granted"
        );
    }
}

#[test]
fn without_a_token_there_is_no_certificate() {
    let roots = text(lab().state().root_certificates());
    let answer: Answer = lab()
        .answer("node-a", &["certificate", CLIENT, "--roots", &roots])
        .unwrap();
    assert!(answer.error.is_some(), "{answer:?}");
}

#[test]
fn an_identity_ends_with_its_last_pod() {
    let manifest = "apiVersion: v1
kind: ServiceAccount
metadata: {name: brief, namespace: shop}
---
apiVersion: v1
kind: Pod
metadata: {name: brief, namespace: shop}
spec:
  nodeName: node-a
  serviceAccountName: brief
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: culvert/app}]
";
    lab().apply(manifest).unwrap();
    lab().wait_ready("shop/brief").unwrap();
    let identity = "spiffe://cluster.local/ns/shop/sa/brief";
    assert_eq!(certificate(Node::A, identity).error, None);
    lab().delete("pod", "shop/brief").unwrap();
    eventually("the identity is refused", Duration::from_secs(10), || {
        ensure!(
            certificate(Node::A, identity).error.is_some(),
            "still granted"
        );
        Ok(())
    })
    .unwrap();
}

#[test]
fn every_certificate_on_the_wire_is_the_pods_own() {
    for (pod, identity) in [
        ("shop/client", CLIENT),
        ("shop/web-a", "spiffe://cluster.local/ns/shop/sa/web"),
        ("shop/web-b", "spiffe://cluster.local/ns/shop/sa/web"),
        ("shop/vault", VAULT),
        (
            "strict/ledger",
            "spiffe://cluster.local/ns/strict/sa/ledger",
        ),
    ] {
        let answer = dial(pod, &[]);
        assert_eq!(answer.error, None, "{pod}");
        assert_eq!(
            answer.names,
            [identity],
            "{pod} shows its own name and no other"
        );
        assert_eq!(answer.tls.as_deref(), Some("TLSv1_3"), "{pod}");
        assert_eq!(
            answer.key_exchange.as_deref(),
            Some("X25519MLKEM768"),
            "{pod}"
        );
        assert_eq!(answer.protocol.as_deref(), Some("h2"), "{pod}");
    }
}

#[test]
fn a_client_without_a_certificate_is_refused() {
    let answer = dial("shop/web-b", &["--anonymous"]);
    assert!(answer.error.is_some(), "{answer:?}");
}

#[test]
fn no_log_ever_names_the_proxy_as_an_end_of_a_connection() {
    for target in [
        lab().v4("shop/web-a", 9000).unwrap(),
        lab().v4("shop/web-b", 9000).unwrap(),
    ] {
        assert!(
            lab()
                .traffic("shop/client", &["echo", &target.to_string()])
                .unwrap()
                .is_done()
        );
    }
    for node in Node::ALL {
        let entries = lab().access_log(node).unwrap();
        assert!(!entries.is_empty(), "{node} logged nothing");
        for entry in entries {
            for field in ["src.identity", "dst.identity"] {
                let identity = entry.field(field).unwrap_or_default();
                assert!(!identity.contains("/sa/ztunnel"), "{entry}");
            }
        }
    }
}
