// SPDX-License-Identifier: Apache-2.0
//! Conversations through the mesh keep what TCP promises: every byte, in order, both directions on their own.

#![expect(clippy::unwrap_used, reason = "a test's helpers may end the test")]

use std::net::SocketAddr;

use e2e::environment::Environment;
use e2e::handle::{Lab, Shared};
use e2e::topology::Node;
use e2e::traffic::{Outcome, Report};

static SHARED: Shared = Shared::new("traffic", env!("CARGO_BIN_EXE_e2e"));

fn lab() -> &'static Lab {
    SHARED.lab()
}

fn talk(place: &str, arguments: &[&str]) -> Report {
    let report = lab().traffic(place, arguments).unwrap();
    assert_eq!(
        report.outcome,
        Outcome::Done,
        "{place}: {arguments:?}: {report:?}"
    );
    report
}

fn echo(place: &str, target: SocketAddr, bytes: u64) -> Report {
    let report = talk(
        place,
        &["echo", &target.to_string(), "--bytes", &bytes.to_string()],
    );
    assert_eq!((report.sent, report.received), (bytes, bytes));
    report
}

fn web_b(port: u16) -> SocketAddr {
    lab().v4("shop/web-b", port).unwrap()
}

/// The same suites run on either engine: that they run on the one that was asked for is seen here.
#[test]
fn the_proxies_run_the_engine_that_was_asked_for() {
    let asked = Environment::of_process();
    for node in ["node-a", "node-b"] {
        let dump = talk(node, &["get", "127.0.0.1:15000", "/config_dump"]);
        let dump: serde_json::Value = serde_json::from_str(&dump.answer.unwrap()).unwrap();
        let engine = dump["config"]["hboneEngine"].as_str();
        assert_eq!(engine, Some(asked.hbone_engine()), "{node}");
    }
}

#[test]
fn pod_reaches_pod_on_the_other_node_and_both_proxies_name_both_ends() {
    let report = echo("shop/client", web_b(9000), 1 << 20);
    let source = report.local.unwrap();
    let outbound = lab()
        .access_entry(Node::A, "the connection outbound", |entry| {
            entry.is_final() && entry.source() == Some(source)
        })
        .unwrap();
    assert!(outbound.is("direction", "outbound"), "{outbound}");
    assert!(
        outbound.is("src.identity", "spiffe://cluster.local/ns/shop/sa/client"),
        "{outbound}"
    );
    assert!(
        outbound.is("dst.identity", "spiffe://cluster.local/ns/shop/sa/web"),
        "{outbound}"
    );
    assert_eq!(outbound.number("bytes_sent"), Some(1 << 20), "{outbound}");
    assert_eq!(outbound.number("bytes_recv"), Some(1 << 20), "{outbound}");
    let inbound = lab()
        .access_entry(Node::B, "the connection inbound", |entry| {
            entry.is_final()
                && entry.is_inbound()
                && entry.is("src.workload", "client")
                && entry.number("bytes_recv") == Some(1 << 20)
        })
        .unwrap();
    assert!(
        inbound.is("src.identity", "spiffe://cluster.local/ns/shop/sa/client"),
        "{inbound}"
    );
    assert!(
        inbound.is("dst.identity", "spiffe://cluster.local/ns/shop/sa/web"),
        "{inbound}"
    );
}

#[test]
fn pod_reaches_pod_on_the_same_node() {
    echo(
        "shop/client",
        lab().v4("shop/web-a", 9000).unwrap(),
        1 << 20,
    );
}

#[test]
fn pods_reach_each_other_from_both_nodes() {
    echo(
        "shop/web-b",
        lab().v4("shop/client", 9000).unwrap(),
        100_000,
    );
}

#[test]
fn the_application_sees_the_address_of_the_pod_that_calls() {
    let report = talk("shop/client", &["get", &web_b(8080).to_string()]);
    let client = lab().pod("shop/client").unwrap().addresses.unwrap();
    let page = report.answer.unwrap();
    assert!(
        page.contains(&format!("\"client\":\"{}:", client.v4)),
        "{page}"
    );
}

#[test]
fn a_service_is_answered_by_its_endpoints_on_both_nodes() {
    let mut answered = std::collections::BTreeSet::new();
    for _request in 0..40 {
        let page = talk("shop/client", &["get", "10.96.0.10:80"])
            .answer
            .unwrap();
        let page: serde_json::Value = serde_json::from_str(&page).unwrap();
        answered.insert(page["pod"].as_str().unwrap().to_owned());
        if answered.len() == 2 {
            return;
        }
    }
    panic!("only {answered:?} answered");
}

#[test]
fn a_service_is_reached_over_ipv6() {
    echo("shop/client", "[fd96::10]:9000".parse().unwrap(), 100_000);
}

#[test]
fn pods_reach_each_other_over_ipv6() {
    echo(
        "shop/client",
        lab().v6("shop/web-b", 9000).unwrap(),
        100_000,
    );
    echo(
        "shop/client",
        lab().v6("shop/web-a", 9000).unwrap(),
        100_000,
    );
}

#[test]
fn every_endpoint_of_a_headless_service_is_reached_by_its_own_address() {
    for pod in ["web-a", "web-b"] {
        let target = lab().v4(&format!("shop/{pod}"), 9001).unwrap();
        let greeting = talk("shop/client", &["greet", &target.to_string()])
            .answer
            .unwrap();
        assert_eq!(greeting, format!("welcome to {pod}"));
    }
}

#[test]
fn a_pod_outside_reaches_pods_of_the_mesh_on_both_nodes() {
    echo("outside/legacy", web_b(9000), 1 << 20);
    echo(
        "outside/legacy",
        lab().v4("shop/web-a", 9000).unwrap(),
        1 << 20,
    );
    echo(
        "outside/legacy",
        lab().v6("shop/web-b", 9000).unwrap(),
        10_000,
    );
}

#[test]
fn pods_of_the_mesh_reach_a_pod_outside_from_both_nodes() {
    let legacy = lab().v4("outside/legacy", 9000).unwrap();
    echo("shop/client", legacy, 1 << 20);
    echo("shop/web-b", legacy, 1 << 20);
    echo(
        "shop/web-b",
        lab().v6("outside/legacy", 9000).unwrap(),
        10_000,
    );
}

#[test]
fn a_pod_reaches_itself_by_its_own_address() {
    echo(
        "shop/client",
        lab().v4("shop/client", 9000).unwrap(),
        10_000,
    );
}

#[test]
fn a_server_may_speak_first() {
    for target in [
        web_b(9001),
        lab().v4("shop/web-a", 9001).unwrap(),
        "10.96.0.10:9001".parse().unwrap(),
    ] {
        talk("shop/client", &["greet", &target.to_string()]);
    }
    talk("outside/legacy", &["greet", &web_b(9001).to_string()]);
}

#[test]
fn the_client_may_close_its_half_and_still_be_answered() {
    let target = web_b(9002).to_string();
    for place in ["shop/client", "outside/legacy"] {
        talk(
            place,
            &["finish-after-sending", &target, "--bytes", "3000000"],
        );
        talk(place, &["finish-after-sending", &target, "--bytes", "0"]);
    }
}

#[test]
fn the_server_may_close_its_half_and_still_be_told() {
    let (target, receipts) = (web_b(9003).to_string(), web_b(8080).to_string());
    for place in ["shop/client", "outside/legacy"] {
        talk(
            place,
            &[
                "finish-after-server",
                &target,
                "--receipts",
                &receipts,
                "--bytes",
                "3000000",
            ],
        );
    }
}

#[test]
fn a_gibibyte_arrives_both_ways_unchanged() {
    echo("shop/client", web_b(9000), 1 << 30);
}

#[test]
fn two_thousand_connections_are_open_at_once() {
    let report = talk(
        "shop/client",
        &[
            "parallel",
            &web_b(9000).to_string(),
            "--connections",
            "2000",
        ],
    );
    assert_eq!(report.connections, 2000);
}

#[test]
fn a_million_writes_of_one_byte_arrive() {
    let report = talk(
        "shop/client",
        &["drip", &web_b(9000).to_string(), "--writes", "1000000"],
    );
    assert_eq!((report.sent, report.received), (1_000_000, 1_000_000));
}

#[test]
fn a_port_nobody_listens_on_is_no_success() {
    for place in ["shop/client", "outside/legacy"] {
        let target = web_b(7777).to_string();
        let report = lab().traffic(place, &["echo", &target]).unwrap();
        assert!(
            matches!(
                report.outcome,
                Outcome::Refused | Outcome::Reset | Outcome::Closed
            ),
            "{place}: {report:?}"
        );
    }
}

#[test]
fn what_passed_is_counted_by_both_proxies() {
    let labels = |reporter| {
        [
            ("reporter", reporter),
            ("source_workload", "stranger"),
            (
                "destination_principal",
                "spiffe://cluster.local/ns/shop/sa/web",
            ),
            ("connection_security_policy", "mutual_tls"),
        ]
    };
    let count = |node, reporter, name: &str| {
        lab().metrics(node).unwrap().sum(name, &labels(reporter)) as u64
    };
    let sides = [(Node::A, "source"), (Node::B, "destination")];
    let before =
        sides.map(|(node, reporter)| count(node, reporter, "istio_tcp_received_bytes_total"));
    echo("shop/stranger", web_b(9000), 123_456);
    for ((node, reporter), before) in sides.into_iter().zip(before) {
        e2e::handle::eventually(
            "the bytes are counted",
            std::time::Duration::from_secs(5),
            || {
                let counted = count(node, reporter, "istio_tcp_received_bytes_total") - before;
                anyhow::ensure!(counted == 123_456, "{reporter} counted {counted}");
                Ok(())
            },
        )
        .unwrap();
    }
}
