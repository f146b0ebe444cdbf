// SPDX-License-Identifier: Apache-2.0
//! Bytes that are nobody's business: a pod's waypoint judges who may come and sends them straight on.

use e2e::topology::Node;
use e2e::traffic::Outcome;

use crate::ground::{
    CLIENT_ID, PATIENCE, SERVER_ID, WAYPOINT_ID, direct, lab, outbound, talk, waypoint_dump,
    waypoint_entry, waypoint_metrics,
};

#[test]
fn a_pods_connections_pass_by_its_waypoint_and_all_three_tell_of_it() {
    let server = lab().v4("guarded/server", 9000).unwrap();
    let counted = |name: &str| {
        let labels = [
            ("reporter", "waypoint"),
            ("source_principal", CLIENT_ID),
            ("destination_principal", SERVER_ID),
            ("destination_workload", "server"),
            ("request_protocol", "tcp"),
            ("connection_security_policy", "mutual_tls"),
        ];
        waypoint_metrics().sum(name, &labels)
    };
    let before = [
        counted("istio_tcp_received_bytes_total"),
        counted("istio_tcp_sent_bytes_total"),
    ];
    let bytes = 3_000_000;
    let (target, volume) = (server.to_string(), bytes.to_string());
    let report = talk("shop/client", &["echo", &target, "--bytes", &volume]);

    let at_the_client = outbound(&report).unwrap();
    for (field, value) in [
        ("dst.identity", WAYPOINT_ID),
        ("dst.hbone_addr", &*target),
        ("bytes_sent", &volume),
    ] {
        assert!(at_the_client.is(field, value), "{field} of {at_the_client}");
    }
    let at_the_waypoint = waypoint_entry("the connection", |entry| {
        entry.is("bytes_recv", &volume) && entry.is("dst.hbone_addr", &target)
    });
    for (field, value) in [
        ("src.identity", CLIENT_ID),
        ("src.workload", "client"),
        ("dst.addr", &*target),
        ("dst.identity", SERVER_ID),
        ("bytes_sent", &volume),
        ("response_flags", "-"),
    ] {
        assert!(
            at_the_waypoint.is(field, value),
            "{field} of {at_the_waypoint}"
        );
    }
    let client = lab().pod("shop/client").unwrap().addresses.unwrap().v4;
    assert_eq!(at_the_waypoint.source().unwrap().ip(), client);
    lab()
        .access_entry(Node::B, "the waypoint's connection", |entry| {
            entry.is_final()
                && entry.is_inbound()
                && entry.is("src.identity", WAYPOINT_ID)
                && entry.is("dst.workload", "server")
                && entry.number("bytes_recv") == Some(bytes)
        })
        .unwrap();
    let after = [
        counted("istio_tcp_received_bytes_total"),
        counted("istio_tcp_sent_bytes_total"),
    ];
    for (before, after) in before.into_iter().zip(after) {
        assert!(after - before >= bytes as f64, "{before} then {after}");
    }
}

#[test]
fn tcp_keeps_its_promises_through_a_waypoint() {
    let at = |port: u16| lab().v4("guarded/server", port).unwrap().to_string();
    talk("shop/client", &["greet", &at(9001)]);
    talk(
        "shop/client",
        &["finish-after-sending", &at(9002), "--bytes", "100000"],
    );
    talk(
        "shop/client",
        &[
            "finish-after-server",
            &at(9003),
            "--receipts",
            &at(8080),
            "--bytes",
            "100000",
        ],
    );
    talk("shop/client", &["drip", &at(9000)]);
    talk(
        "shop/client",
        &["parallel", &at(9000), "--connections", "50"],
    );
}

#[test]
fn what_nobody_listens_to_is_reset_and_the_waypoint_says_why() {
    let target = lab().v4("guarded/server", 4).unwrap().to_string();
    let report = lab().traffic("shop/client", &["echo", &target]).unwrap();
    assert_eq!(report.outcome, Outcome::Reset, "{report:?}");
    let entry = waypoint_entry("the refusal", |entry| entry.is("dst.hbone_addr", &target));
    assert!(entry.is("response_flags", "UF"), "{entry}");
}

#[test]
fn only_what_is_bound_to_it_is_served() {
    // Without a waypoint, and known to everybody.
    let elsewhere = lab().v4("shop/web-b", 9000).unwrap();
    let refused = || waypoint_metrics().sum("culvert_connections_refused_total", &[("flag", "NR")]);
    let before = refused();
    let words = direct(elsewhere).refusal().unwrap();
    assert!(words.contains("404"), "{words}");
    let entry = waypoint_entry("the refusal", |entry| {
        entry.is("dst.hbone_addr", &elsewhere.to_string())
    });
    let error = entry.error().unwrap();
    assert!(
        error.contains("web-b") && error.contains("is not bound to waypoint guarded/wp"),
        "{error}"
    );
    assert!(entry.is("response_flags", "NR"), "{entry}");
    assert!(refused() > before);
    let dump = waypoint_dump();
    let refusals = dump["refusals"].as_array().unwrap();
    assert!(
        refusals
            .iter()
            .any(|refusal| refusal["reason"] == error.as_str()),
        "{refusals:?}"
    );

    // The same client may have what is.
    let allowed = direct(lab().v4("guarded/server", 9000).unwrap());
    talk("guarded/direct", &["echo", &allowed.address()]);
}

#[test]
fn a_policy_that_forbids_ends_what_is_open() {
    let target = lab().v4("guarded/server", 9000).unwrap();
    let held = lab().hold("shop/stranger", target).unwrap();
    let policy = "apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-strangers, namespace: guarded}
spec:
  selector: {matchLabels: {gateway.networking.k8s.io/gateway-name: wp}}
  action: DENY
  rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/stranger]}}]}]
";
    lab().apply(policy).unwrap();
    assert_eq!(held.ended(PATIENCE).unwrap().outcome, Outcome::Reset);
    let stranger = "spiffe://cluster.local/ns/shop/sa/stranger";
    let entry = waypoint_entry("what was ended", |entry| {
        entry.is("src.identity", stranger) && entry.is("response_flags", "DENY")
    });
    let error = entry.error().unwrap();
    assert!(error.contains("guarded/no-strangers"), "{error}");
    let report = lab()
        .traffic("shop/stranger", &["echo", &target.to_string()])
        .unwrap();
    assert_eq!(report.outcome, Outcome::Reset, "{report:?}");
    talk("shop/client", &["echo", &target.to_string()]);
    lab()
        .delete("authorizationpolicy", "guarded/no-strangers")
        .unwrap();
}
