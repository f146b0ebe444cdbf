// SPDX-License-Identifier: Apache-2.0
//! The log as its readers parse it: fields, order, levels, and what no setting hides.

use crate::harness::{Node, deny_client, echoes, is_refused};

/// Of a connection between two pods of the mesh, in Istio's order.
const COMPLETE: [&str; 17] = [
    "src.addr",
    "src.workload",
    "src.namespace",
    "src.identity",
    "src.cluster",
    "dst.addr",
    "dst.hbone_addr",
    "dst.service",
    "dst.workload",
    "dst.namespace",
    "dst.identity",
    "dst.cluster",
    "direction",
    "bytes_sent",
    "bytes_recv",
    "duration",
    "error",
];

/// The names of a plain line's fields, in their order.
fn plain_fields(line: &str) -> Vec<&str> {
    let fields = line.split('\t').nth(4).unwrap();
    let named = fields
        .split(' ')
        .filter_map(|field| Some(field.split_once('=')?.0));
    named.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_access_lines_have_istios_fields_in_istios_order() {
    let (node, _agent) = Node::start_set(vec![], &[("RUST_LOG", "access=debug")]).await;
    echoes(&mut node.connect().unwrap(), b"hello").unwrap();
    for direction in ["outbound", "inbound"] {
        let direction = format!("direction=\"{direction}\"");
        let line = node.logged(&["connection complete", &direction]).await;
        assert_eq!(plain_fields(&line), COMPLETE[..16]);
        let columns: Vec<_> = line.split('\t').collect();
        assert_eq!(
            columns[1..4],
            ["info", "access", "connection complete"],
            "{line}"
        );
        assert!(
            columns[0].ends_with('Z') && columns[0].len() == 27,
            "{line}"
        );
        assert!(
            line.contains(" bytes_sent=5 bytes_recv=5 duration=\""),
            "{line}"
        );
        assert!(line.ends_with("ms\""), "{line}");
        let opened = node.logged(&["connection opened", &direction]).await;
        assert_eq!(plain_fields(&opened), COMPLETE[..13]);
        assert!(opened.contains("\tdebug\taccess\t"), "{opened}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_json_line_is_an_object_and_access_lines_have_the_same_fields() {
    let settings = [("LOG_FORMAT", "json"), ("RUST_LOG", "debug")];
    let (node, _agent) = Node::start_set(vec![deny_client("stays-out")], &settings).await;
    assert!(is_refused(node.connect()));
    let line = node
        .logged(&["\"scope\":\"access\"", "complete", "\"inbound\""])
        .await;
    let keys: Vec<_> = line
        .split("\",\"")
        .flat_map(|part| part.split(",\""))
        .filter_map(|part| Some(part.split_once("\":")?.0.trim_start_matches("{\"")))
        .collect();
    let expected = ["level", "time", "scope", "message"];
    let expected: Vec<_> = expected.into_iter().chain(COMPLETE).collect();
    assert_eq!(keys, expected, "{line}");
    assert!(
        line.starts_with("{\"level\":\"error\",\"time\":\""),
        "{line}"
    );
    assert!(line.contains("default/stays-out rule[0]"), "{line}");
    for line in node.log().lines() {
        let value: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        for key in ["level", "time", "scope", "message"] {
            assert!(value[key].is_string(), "{key} of {line}");
        }
    }
    let decision = node.logged(&["\"message\":\"policy decision\""]).await;
    let decision: serde_json::Value = serde_json::from_str(&decision).unwrap();
    let id = decision["inbound"]["id"].as_str().unwrap();
    assert_eq!(id.len(), 32, "{decision}");
    assert_eq!(
        decision["inbound"]["peer"],
        "spiffe://cluster.local/ns/default/sa/client"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn whom_a_policy_keeps_out_is_told_without_an_access_log_too() {
    for filter in ["info,access=off", "off"] {
        let settings = [("RUST_LOG", filter)];
        let (node, _agent) = Node::start_set(vec![deny_client("stays-out")], &settings).await;
        assert!(is_refused(node.connect()));
        let line = node.logged(&["connection denied"]).await;
        for part in [
            "\twarn\tdenied\t",
            "src.addr=10.77.0.1:",
            "src.identity=\"spiffe://cluster.local/ns/default/sa/client\"",
            "dst.workload=\"server\"",
            "direction=\"inbound\"",
            "denied by policy default/stays-out rule[0]",
        ] {
            assert!(line.contains(part), "{filter}: {part} in {line}");
        }
        let log = node.log();
        assert!(!log.contains("\taccess\t"), "{filter}: {log}");
        assert_eq!(
            log.matches("connection denied").count(),
            1,
            "{filter}: {log}"
        );
    }
}
