// SPDX-License-Identifier: Apache-2.0
//! What graphs are drawn by: each edge of the traffic once for each who reports it, with names at both ends. The labels are
//! those that Kiali and Istio's dashboards group by.

use std::collections::BTreeMap;

use anyhow::ensure;
use e2e::handle::eventually;
use e2e::telemetry::Sample;
use e2e::topology::Node;

use crate::ground::{CLIENT_ID, PATIENCE, WAYPOINT_ID, lab, talk, waypoint_metrics};
use crate::routes::routed;

/// By which an end of an edge is found.
const NAMES: [&str; 16] = [
    "source_workload",
    "source_workload_namespace",
    "source_canonical_service",
    "source_canonical_revision",
    "source_app",
    "source_version",
    "source_cluster",
    "destination_service",
    "destination_service_name",
    "destination_service_namespace",
    "destination_workload",
    "destination_workload_namespace",
    "destination_canonical_service",
    "destination_app",
    "destination_principal",
    "destination_cluster",
];

/// The services that requests come to here.
const SERVICES: [&str; 3] = ["front", "old", "new"];

fn of<'s>(sample: &'s Sample, label: &str) -> &'s str {
    sample.labels.get(label).map_or("", String::as_str)
}

/// The series of the edges between client, waypoint and services.
fn edges() -> anyhow::Result<Vec<Sample>> {
    let all = [
        lab().metrics(Node::A)?,
        lab().metrics(Node::B)?,
        waypoint_metrics(),
    ];
    let samples = all.iter().flat_map(|metrics| metrics.samples());
    let is_edge = |sample: &&Sample| {
        let is_family = ["istio_requests_total", "istio_tcp_connections_opened_total"]
            .contains(&sample.name.as_str());
        is_family
            && [CLIENT_ID, WAYPOINT_ID].contains(&of(sample, "source_principal"))
            && SERVICES.contains(&of(sample, "destination_service_name"))
    };
    Ok(samples.filter(is_edge).cloned().collect())
}

#[test]
fn every_edge_is_reported_once_by_each_and_nobody_in_it_is_unknown() {
    routed();
    talk("shop/client", &["get", "10.96.0.71:80", "/edges"]);
    // Reporter, source, service, destination.
    let has = |edges: &[Sample], expected: [&str; 4]| {
        let labels = [
            "reporter",
            "source_workload",
            "destination_service_name",
            "destination_workload",
        ];
        let mut edges = edges.iter();
        edges.any(|edge| labels.map(|label| of(edge, label)) == expected)
    };
    let edges = eventually("each hop has reported", PATIENCE, || {
        let edges = edges()?;
        for expected in [
            ["source", "client", "front", "wp"],
            ["waypoint", "client", "old", "old"],
            ["destination", "wp", "old", "old"],
        ] {
            ensure!(has(&edges, expected), "{expected:?} is not in {edges:?}");
        }
        Ok(edges)
    })
    .unwrap();
    let mut seen = BTreeMap::new();
    for edge in &edges {
        for label in NAMES {
            let name = of(edge, label);
            assert!(!["", "unknown"].contains(&name), "{label} in {edge:?}");
        }
        // What is told apart beyond the ends: how it was asked, and what became of it.
        let key = [
            "reporter",
            "source_workload",
            "source_workload_namespace",
            "destination_service",
            "destination_workload",
            "connection_security_policy",
            "request_protocol",
            "response_code",
            "response_flags",
            "grpc_response_status",
        ];
        let key = (edge.name.as_str(), key.map(|label| of(edge, label)));
        let before = seen.insert(key, edge);
        assert_eq!(before, None, "{edge:?} is there twice");
    }
}
