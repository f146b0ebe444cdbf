// SPDX-License-Identifier: Apache-2.0
//! Pods that are deleted while they are spoken to: the other end hears of it, the log says why, and nothing is left.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::access_log::Entry;
use e2e::handle::{Held, Lab, eventually};
use e2e::load::{Event, Line, Load, Tally, Volume, What};
use e2e::sniff::Flow;
use e2e::topology::Node;
use e2e::traffic::Outcome;

use crate::ground::{TRAFFIC, bounded, judge, timed, turn};

const ENDS: [(Node, &str); 2] = [(Node::A, "outbound"), (Node::B, "inbound")];

/// What a node has told of connections that the client had to an address and that have ended. By their ports they can't
/// be told apart: where one was used a moment ago, the redirecting rule takes another for the proxy's side.
fn told_of(lab: &Lab, node: Node, direction: &str, to: SocketAddr) -> Result<Vec<Entry>> {
    let mut entries = lab.access_log(node)?;
    entries.retain(|entry| {
        entry.is_final()
            && entry.is("direction", direction)
            && entry.is("src.workload", "client")
            && entry.is("dst.workload", "brief")
            && entry.is("dst.hbone_addr", &to.to_string())
    });
    Ok(entries)
}

#[test]
fn a_deleted_pod_ends_its_connections_on_both_sides_and_leaves_nothing_behind() {
    let turn = turn();
    let lab = turn.lab;
    turn.apply_pod("shop/brief", Node::B);
    lab.wait_ready("shop/brief").unwrap();
    turn.remove_pod("shop/brief");
    let before = Node::ALL.map(|node| turn.holding(node).unwrap());
    println!("before: {before:?}");
    let trial = turn.begin();
    for round in 0..3 {
        turn.apply_pod("shop/brief", Node::B);
        lab.wait_ready("shop/brief").unwrap();
        // A pod may run before the client's proxy has heard of it, which then knows nothing of who is there.
        turn.spoken_to("shop/brief");
        let target = turn.echo("shop/brief");
        let open = |from: &str, to| {
            eventually("it is spoken to", Duration::from_secs(10), || {
                lab.hold(from, to)
            })
            .unwrap()
        };
        let to_it: Vec<Held> = (0..10).map(|_| open("shop/client", target)).collect();
        let from_it: Vec<Held> = (0..10)
            .map(|_| open("shop/brief", turn.echo("shop/web-a")))
            .collect();
        let told_before =
            ENDS.map(|(node, direction)| told_of(lab, node, direction, target).unwrap().len());
        lab.delete("pod", "shop/brief").unwrap();
        let (reports, took) = timed(|| {
            to_it
                .into_iter()
                .map(|held| held.ended(Duration::from_secs(20)).unwrap())
                .collect::<Vec<_>>()
        });
        bounded("until every peer knew", took, Duration::from_secs(10));
        for report in &reports {
            assert!(
                matches!(report.outcome, Outcome::Reset | Outcome::Closed),
                "{report:?}"
            );
        }
        for ((node, direction), before) in ENDS.into_iter().zip(told_before) {
            let what = format!("{node} tells how all connections of round {round} ended");
            eventually(&what, Duration::from_secs(10), || {
                let told = told_of(lab, node, direction, target)?;
                let (latest, told) = (told.last().cloned(), told.len() - before);
                ensure!(told >= reports.len(), "it tells of {told}: {latest:?}");
                Ok(())
            })
            .unwrap();
        }
        drop(from_it);
        turn.wait_until_gone("shop/brief");
    }
    let verdict = judge("a pod deleted", trial);
    let failures = verdict.traffic.failures();
    assert!(failures.is_empty(), "{failures:?}");
    for (node, before) in Node::ALL.into_iter().zip(before) {
        turn.until_released(node, before, TRAFFIC);
    }
}

#[test]
fn a_pod_that_is_deleted_in_the_middle_of_transfers_ends_each_with_no_wrong_byte() {
    let turn = turn();
    let lab = turn.lab;
    turn.apply_pod("shop/brief", Node::B);
    lab.wait_ready("shop/brief").unwrap();
    turn.spoken_to("shop/brief");
    let volume = Volume {
        transfers: 8,
        rate: 2 << 20,
        talks: 0,
        visits: 0,
        ..Volume::default()
    };
    let marker = format!("brief-{:016x}", rand::random::<u64>());
    let wires = Node::ALL.map(|node| lab.start_sniffing(node, Some(&marker)).unwrap());
    let targets = [turn.echo("shop/brief")];
    let load = Load::start(lab, "shop/client", &targets, &volume, &marker).unwrap();
    load.go_on(Duration::from_secs(1));
    let before = load.so_far();
    let ended = |tally: &Tally| {
        let ends = tally.events.iter().filter_map(|event| match &event.what {
            What::Ended {
                outcome,
                sent,
                received,
                ..
            } => Some((outcome.clone(), *sent, *received)),
            _ => None,
        });
        ends.collect::<Vec<_>>()
    };
    assert_eq!(ended(&before), [], "they were in the middle");
    lab.delete("pod", "shop/brief").unwrap();
    let wanted = |events: &[Event]| {
        let ends = events.iter().filter(|event| event.line == Line::Transfer);
        let ends = ends.filter(|event| matches!(event.what, What::Ended { .. }));
        (ends.count() >= 8).then_some(())
    };
    let ((), took) = timed(|| {
        load.wait(Duration::from_secs(20), "the end of all transfers", wanted)
            .unwrap()
    });
    bounded(
        "until every transfer had ended",
        took,
        Duration::from_secs(10),
    );
    turn.wait_until_gone("shop/brief");
    for (outcome, sent, received) in ended(&load.stop().unwrap()) {
        // Told as a break by the pod or its proxy, or as the application's own end; never as success, for it was none.
        assert!(
            matches!(outcome, Outcome::Reset | Outcome::Closed),
            "{outcome:?}"
        );
        assert!(
            received > 100_000 && received <= sent,
            "{received} of {sent}"
        );
    }
    for wire in wires.map(|wire| wire.finish().unwrap()) {
        let plain: Vec<_> = wire.with_marker().collect();
        assert!(plain.is_empty(), "in the clear: {plain:?}");
        let tunnelled = |flow: &Flow| flow.is_tunnel() && flow.tls_records > 0;
        assert!(wire.flows.iter().any(tunnelled), "{wire:?}");
    }
}
