// SPDX-License-Identifier: Apache-2.0
//! Pods that are deleted while they are spoken to: the other end hears of it, the log says why, and nothing is left.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::access_log::Entry;
use e2e::handle::{Held, Lab, eventually};
use e2e::topology::Node;
use e2e::traffic::Outcome;

use crate::ground::{bounded, timed, turn};

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
    for (node, before) in Node::ALL.into_iter().zip(before) {
        turn.until_released(node, before, 0);
    }
}
