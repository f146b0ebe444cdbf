// SPDX-License-Identifier: Apache-2.0
//! Requests: found out by their first bytes, judged, sent on, and counted one by one.

use e2e::topology::Node;
use serde_json::Value;

use crate::ground::{
    CLIENT_ID, SERVER_ID, WAYPOINT_ID, lab, talk, waypoint_entry, waypoint_metrics,
};

fn page(target: &str, path: &str) -> Value {
    let report = talk("shop/client", &["get", target, path]);
    serde_json::from_str(&report.answer.unwrap()).unwrap()
}

#[test]
fn a_request_is_told_who_asks_and_counted_once_at_each_hop() {
    let target = lab().v4("guarded/server", 8080).unwrap().to_string();
    let labels = [
        ("reporter", "waypoint"),
        ("source_principal", CLIENT_ID),
        ("destination_principal", SERVER_ID),
        ("request_protocol", "http"),
        ("response_code", "200"),
        ("connection_security_policy", "mutual_tls"),
    ];
    let counted = || waypoint_metrics().sum("istio_requests_total", &labels);
    let before = counted();
    let seen = page(&target, "/by-way-of-a-waypoint");
    assert_eq!(seen["pod"], "server");
    let headers: Vec<&str> = seen["headers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|header| header.as_str().unwrap())
        .collect();
    let certificate = format!("x-forwarded-client-cert: By={WAYPOINT_ID};URI={CLIENT_ID}");
    assert!(headers.contains(&certificate.as_str()), "{headers:?}");
    let client = lab().pod("shop/client").unwrap().addresses.unwrap().v4;
    let forwarded = format!("x-forwarded-for: {client}");
    assert!(headers.contains(&forwarded.as_str()), "{headers:?}");

    let entry = waypoint_entry("the request", |entry| {
        entry.is("path", "/by-way-of-a-waypoint")
    });
    for (field, value) in [
        ("method", "GET"),
        ("response_code", "200"),
        ("response_flags", "-"),
        ("src.identity", CLIENT_ID),
        ("dst.identity", SERVER_ID),
        ("dst.addr", &target),
    ] {
        assert!(entry.is(field, value), "{field} of {entry}");
    }
    assert!(counted() >= before + 1.0);
    // The endpoint's own node saw the waypoint.
    lab()
        .access_entry(Node::B, "the waypoint's connection", |entry| {
            entry.is_inbound() && entry.is("src.identity", WAYPOINT_ID)
        })
        .map(drop)
        .or_else(|_| {
            // Kept open for the next request, it has no line yet; the metric of its opening has.
            let metrics = lab().metrics(Node::B)?;
            let opened = metrics.sum(
                "istio_tcp_connections_opened_total",
                &[("source_principal", WAYPOINT_ID)],
            );
            anyhow::ensure!(opened > 0.0, "no connection of the waypoint's");
            Ok::<(), anyhow::Error>(())
        })
        .unwrap();
}
