// SPDX-License-Identifier: Apache-2.0
//! Endpoints that don't connect: nobody notices while there is another, and what is refused stays refused.

use std::time::{Duration, Instant};

use crate::harness::{Agent, Node, echoes, is_refused};

/// The client, the server that works, and endpoints of the same service as given, one a line.
fn mesh(others: &[&str], policies: &str) -> String {
    let service = "services: {\"default/echo.default.svc.cluster.local\": {15001: 8080}}";
    let others = others.join("\n");
    format!(
        r#"
workloads:
- {{uid: c, name: client, namespace: default, serviceAccount: client, workloadIps: ["10.77.0.1"], protocol: HBONE,
   node: n1, services: {{}}}}
- {{uid: s, name: server, namespace: default, serviceAccount: server, workloadIps: ["10.77.0.2"], protocol: HBONE,
   node: n1, {service}}}
{others}
policies: {policies}
services:
- {{name: echo, namespace: default, hostname: echo.default.svc.cluster.local, vips: ["/10.99.0.9"], ports: {{15001: 8080}}}}
"#
    )
}

/// An endpoint without a proxy, on a port that nobody serves.
const CLOSED: &str = "- {uid: closed, name: closed, namespace: default, workloadIps: [\"10.77.0.2\"], node: n2, \
                      services: {\"default/echo.default.svc.cluster.local\": {15001: 9999}}}";
/// An endpoint whose proxy answers and whose application doesn't.
const CRASHED: &str = "- {uid: crashed, name: crashed, namespace: default, serviceAccount: server, node: n2, \
                       workloadIps: [\"10.77.0.2\"], protocol: HBONE, \
                       services: {\"default/echo.default.svc.cluster.local\": {15001: 9998}}}";
/// An endpoint where nobody is.
const GONE: &str = "- {uid: gone, name: gone, namespace: default, serviceAccount: server, node: n2, \
                    workloadIps: [\"10.77.0.3\"], protocol: HBONE, \
                    services: {\"default/echo.default.svc.cluster.local\": {15001: 8080}}}";

async fn node(others: &[&str], policies: &str) -> (Node, Agent) {
    serving(&mesh(others, policies)).await
}

async fn serving(mesh: &str) -> (Node, Agent) {
    let node = Node::start_from_file(mesh).await;
    let agent = node.accept_agent().await;
    node.hand_over(&agent).await;
    node.until_ready().await;
    (node, agent)
}

/// Connections that each prove that they work, one after the other.
fn all_work(node: &Node, count: usize) {
    for number in 0..count {
        let mut socket = node.connect().unwrap();
        echoes(&mut socket, b"hello").unwrap_or_else(|error| panic!("{number}: {error}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_that_refuse_cost_no_connection() {
    let (node, _agent) = node(&[CLOSED, CRASHED], "[]").await;
    all_work(&node, 30);
    let retries = |reason: &str| {
        let reason = format!("reason=\"{reason}\"");
        let service = "destination_service=\"echo.default.svc.cluster.local\"";
        node.counted("culvert_connect_retries_total", &[service, &reason])
    };
    assert!(retries("refused") >= 1 && retries("status") >= 1);
    assert!(
        retries("refused") + retries("status") < 15,
        "they are not avoided"
    );
    node.eventually("both are avoided at once", |node| {
        // On a slow machine one may be on trial again.
        all_work(node, 1);
        let page = node.get(15020, "/metrics");
        let dump = node.get(15000, "/config_dump");
        page.contains("\nculvert_ejected_endpoints 2\n")
            && [
                "closed\",\n      \"port\": 9999",
                "crashed\",\n      \"port\": 9998",
            ]
            .iter()
            .all(|ejected| dump.contains(&format!("\"workloadUid\": \"{ejected}")))
    })
    .await;
    let line = node
        .logged(&["connection complete", "direction=\"outbound\"", "attempts="])
        .await;
    assert!(line.contains("dst.workload=\"server\""), "{line}");
    assert!(!line.contains("error="), "{line}");
    node.eventually("every connection is counted as closed", |node| {
        let counted = |name| node.counted(name, &["reporter=\"source\""]);
        let opened = counted("istio_tcp_connections_opened_total");
        let closed = counted("istio_tcp_connections_closed_total");
        let failed = counted("istio_tcp_connections_failed_total");
        (opened, failed) == (closed, 0)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_never_answers_costs_seconds_and_no_connection() {
    let (node, _agent) = node(&[GONE], "[]").await;
    let start = Instant::now();
    all_work(&node, 30);
    // One attempt of three seconds, and as many more as its absence was forgotten.
    assert!(start.elapsed() < Duration::from_secs(9));
    let line = node
        .logged(&[
            "connection complete",
            "direction=\"outbound\"",
            "attempts=2",
        ])
        .await;
    assert!(line.contains("dst.addr=10.77.0.2:15008"), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn where_every_endpoint_fails_the_last_failure_is_told() {
    // The application that works is on another port than these.
    let (node, _agent) =
        serving(&mesh(&[CLOSED, CRASHED], "[]").replace("15001: 8080", "15001: 9997")).await;
    for _ in 0..2 {
        assert!(is_refused(node.connect()));
    }
    let line = node
        .logged(&[
            "connection complete",
            "direction=\"outbound\"",
            "attempts=3",
        ])
        .await;
    assert!(line.contains("error="), "{line}");
    node.eventually("both count as failed", |node| {
        node.counted(
            "istio_tcp_connections_failed_total",
            &["reporter=\"source\""],
        ) == 2
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_policy_refuses_is_not_tried_elsewhere() {
    let policies = "[{name: nobody, namespace: default, scope: Namespace, action: Deny, dryRun: false, rules: [[[\
                    {principals: [{Exact: cluster.local/ns/default/sa/client}]}]]]}]";
    let (node, _agent) = node(&[CRASHED], policies).await;
    for _ in 0..8 {
        assert!(is_refused(node.connect()));
    }
    node.eventually("each was denied once", |node| {
        let denied = ["reporter=\"destination\"", "response_flags=\"DENY\""];
        node.counted("istio_tcp_connections_failed_total", &denied) == 8
    })
    .await;
    assert_eq!(node.counted("culvert_connect_retries_total", &[]), 0);
    assert!(!node.log().contains("attempts="), "{}", node.log());
    assert!(
        node.get(15000, "/config_dump")
            .contains("\"ejectedEndpoints\": []")
    );
}
