// SPDX-License-Identifier: Apache-2.0
//! What the wire carries, seen by capturing it: between captured pods, nothing in the clear.

#![expect(clippy::unwrap_used, reason = "a test's helpers may end the test")]

use std::net::IpAddr;

use e2e::handle::{Lab, Shared};
use e2e::sniff::{Flow, Traffic};
use e2e::topology::Node;

static SHARED: Shared = Shared::new("capture", env!("CARGO_BIN_EXE_e2e"));

const CAPTURED: [&str; 5] = [
    "shop/client",
    "shop/stranger",
    "shop/web-a",
    "shop/web-b",
    "strict/ledger",
];

fn lab() -> &'static Lab {
    SHARED.lab()
}

fn marker() -> String {
    format!("marker-{:032x}", rand::random::<u128>())
}

/// Watches both nodes while something happens.
fn watch(marker: &str, during: impl FnOnce() -> anyhow::Result<()>) -> [Traffic; 2] {
    let on_both = || lab().sniff(Node::B, Some(marker), during);
    let (((), on_b), on_a) = lab().sniff(Node::A, Some(marker), on_both).unwrap();
    [on_a, on_b]
}

fn addresses(pod: &str) -> [IpAddr; 2] {
    lab().pod(pod).unwrap().addresses.unwrap().both()
}

#[test]
fn captured_pods_never_speak_plaintext_to_each_other() {
    let marker = marker();
    let wires = watch(&marker, || {
        for source in CAPTURED {
            for destination in CAPTURED
                .into_iter()
                .filter(|destination| *destination != source)
            {
                for target in [lab().v4(destination, 9000)?, lab().v6(destination, 9000)?] {
                    let report = lab().traffic(
                        source,
                        &[
                            "echo",
                            &target.to_string(),
                            "--bytes",
                            "20000",
                            "--marker",
                            &marker,
                        ],
                    )?;
                    anyhow::ensure!(
                        report.is_done(),
                        "{source} → {destination}: {}",
                        report.outcome
                    );
                }
            }
            for service in ["10.96.0.10:9000", "[fd96::10]:9000", "10.96.0.30:9000"] {
                let report = lab().traffic(
                    source,
                    &["echo", service, "--bytes", "20000", "--marker", &marker],
                )?;
                anyhow::ensure!(report.is_done(), "{source} → {service}: {}", report.outcome);
            }
        }
        Ok(())
    });
    let pods: Vec<IpAddr> = CAPTURED.into_iter().flat_map(addresses).collect();
    let between =
        |flow: &&Flow| pods.contains(&flow.source.ip()) && pods.contains(&flow.destination.ip());
    for wire in &wires {
        assert_eq!(
            wire.with_marker().collect::<Vec<_>>(),
            Vec::<&Flow>::new(),
            "the text stood in the clear"
        );
        let flows: Vec<&Flow> = wire
            .flows
            .iter()
            .filter(between)
            .filter(|flow| flow.bytes > 0)
            .collect();
        assert!(!flows.is_empty(), "nothing was captured");
        for flow in flows {
            assert!(flow.is_tunnel(), "not by the tunnel: {flow:?}");
            assert!(flow.tls, "not TLS: {flow:?}");
        }
    }
}

#[test]
fn the_same_text_is_seen_where_one_end_is_outside_the_mesh() {
    // What proves that the test above would have found it.
    for (source, destination) in [
        ("outside/legacy", "shop/web-b"),
        ("shop/web-b", "outside/legacy"),
    ] {
        let marker = marker();
        let target = lab().v4(destination, 9000).unwrap().to_string();
        let wires = watch(&marker, || {
            let report = lab().traffic(
                source,
                &["echo", &target, "--bytes", "20000", "--marker", &marker],
            )?;
            anyhow::ensure!(report.is_done(), "{}", report.outcome);
            Ok(())
        });
        for wire in &wires {
            assert!(
                wire.with_marker().count() >= 2,
                "{source} → {destination}: {wire:?}"
            );
        }
    }
}

#[test]
fn both_directions_of_one_connection_pass_the_wire_as_many_bytes_as_were_sent() {
    // A pair that no other test of this file uses.
    let target = lab().v4("shop/vault", 9000).unwrap().to_string();
    let wires = watch("-", || {
        let report = lab().traffic("shop/client", &["echo", &target, "--bytes", "500000"])?;
        anyhow::ensure!(report.is_done(), "{}", report.outcome);
        Ok(())
    });
    let (client, server) = (addresses("shop/client")[0], addresses("shop/vault")[0]);
    for wire in &wires {
        for direction in [(client, server), (server, client)] {
            let flows = wire
                .between(client, server)
                .filter(|flow| (flow.source.ip(), flow.destination.ip()) == direction);
            let bytes: u64 = flows.map(|flow| flow.bytes).sum();
            // Sealing adds a few bytes to each record, and compression has no place here.
            assert!(
                (500_000..600_000).contains(&bytes),
                "{direction:?}: {bytes} bytes"
            );
        }
    }
}

#[test]
fn health_checks_reach_a_captured_pod_in_the_clear_from_the_address_they_are_known_by() {
    let [ledger, _] = addresses("strict/ledger");
    let wires = watch("-", || {
        // Several rounds of the kubelet's checks.
        std::thread::park_timeout(std::time::Duration::from_millis(2500));
        Ok(())
    });
    let checks: Vec<&Flow> = wires[1]
        .flows
        .iter()
        .filter(|flow| flow.destination == (ledger, 8080).into())
        .collect();
    assert!(
        !checks.is_empty(),
        "no health check was seen: {:?}",
        wires[1]
    );
    for check in checks {
        assert_eq!(
            check.source.ip(),
            IpAddr::from(capture::contract::PROBE_SOURCE_V4),
            "{check:?}"
        );
        assert!(
            check.first.starts_with("PLAINTEXT \"GET /healthz"),
            "{check:?}"
        );
    }
    // Plaintext is refused in this namespace, and yet the pod counts as ready.
    let record = lab().pod("strict/ledger").unwrap();
    assert!(
        record.containers.iter().all(|container| container.ready),
        "{record:?}"
    );
}
