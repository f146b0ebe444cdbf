// SPDX-License-Identifier: Apache-2.0
//! Pods that are deleted while they are spoken to: the other end hears of it, the log says why, and nothing is left.

use std::time::Duration;

use e2e::handle::{Held, eventually};
use e2e::topology::Node;
use e2e::traffic::Outcome;

use crate::ground::{bounded, timed, turn};

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
        for (node, direction) in [(Node::A, "outbound"), (Node::B, "inbound")] {
            for (number, report) in reports.iter().enumerate() {
                let entry = lab
                    .access_entry(node, &format!("how {report:?} ended"), |entry| {
                        entry.is_final()
                            && entry.is("direction", direction)
                            && entry.is("src.workload", "client")
                            && entry.is("dst.workload", "brief")
                            && (node == Node::B || entry.source() == report.local)
                    })
                    .unwrap_or_else(|error| {
                        let of_it = |entry: &e2e::access_log::Entry| entry.source() == report.local;
                        let found = lab.access_log(node).unwrap();
                        let found: Vec<_> = found.iter().filter(|entry| of_it(entry)).collect();
                        panic!("round {round}: {error:#}; of its address: {found:#?}")
                    });
                if number == 0 {
                    println!("{entry}");
                }
            }
        }
        drop(from_it);
        turn.wait_until_gone("shop/brief");
    }
    for (node, before) in Node::ALL.into_iter().zip(before) {
        turn.until_released(node, before, 0);
    }
}
