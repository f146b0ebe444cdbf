// SPDX-License-Identifier: Apache-2.0
//! What policies do to connections, at the start and later.

use std::time::{Duration, Instant};

use crate::harness::{Node, allow_all, deny_client, echoes, is_refused, is_reset};

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_client_is_reset_and_the_rule_is_named() {
    let (node, _agent) = Node::start(vec![deny_client("no-client")]).await;
    assert!(is_refused(node.connect()));
    node.logged(&[
        "direction=\"inbound\"",
        "denied by policy default/no-client rule[0]",
    ])
    .await;
    node.logged(&["direction=\"outbound\"", "status 401"]).await;
    let at = |reporter, flag| node.counted("istio_tcp_connections_failed_total", &[reporter, flag]);
    assert_eq!(at("reporter=\"destination\"", "response_flags=\"DENY\""), 1);
    assert_eq!(at("reporter=\"source\"", "response_flags=\"CONNECT\""), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_connection_ends_when_a_policy_forbids_it() {
    let (node, _agent) = Node::start(vec![]).await;
    let mut socket = node.connect().unwrap();
    echoes(&mut socket, b"still fine").unwrap();
    node.plane.push_policy(deny_client("from-now-on")).await;
    assert!(is_reset(&mut socket));
    node.logged(&[
        "direction=\"inbound\"",
        "policy changed",
        "default/from-now-on rule[0]",
    ])
    .await;
    node.eventually("counted", |node| {
        node.counted(
            "istio_tcp_connections_failed_total",
            &["response_flags=\"DENY\""],
        ) == 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_has_not_arrived_holds_connections_until_it_does() {
    let node = Node::start_with(vec![], vec!["default/later".into()]).await;
    let agent = node.accept_agent().await;
    node.hand_over(&agent).await;
    node.until_ready().await;
    let mut socket = node.connect().unwrap();
    let plane = node.plane.clone();
    tokio::spawn(async move {
        let mut tried_out = deny_client("tried-out");
        tried_out.dry_run = true;
        plane.push_policy(tried_out).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        plane.push_policy(allow_all("later")).await;
    });
    let asked = Instant::now();
    echoes(&mut socket, b"patience").unwrap();
    assert!(
        asked.elapsed() >= Duration::from_millis(400),
        "was not held"
    );
    // Looked at once for each policy that came meanwhile, it is one connection all the same.
    let tried_out = node.counted(
        "culvert_authorization_decisions_total",
        &["mode=\"dry-run\"", "result=\"denied\""],
    );
    assert_eq!(tried_out, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_never_arrives_denies() {
    let node = Node::start_with(vec![], vec!["default/never".into()]).await;
    let agent = node.accept_agent().await;
    node.hand_over(&agent).await;
    node.until_ready().await;
    assert!(is_refused(node.connect()));
    node.logged(&[
        "direction=\"inbound\"",
        "policy default/never",
        "has not arrived",
    ])
    .await;
}
