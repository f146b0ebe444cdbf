// SPDX-License-Identifier: Apache-2.0
//! Pods that are deleted while they are spoken to: the other end hears of it, the log says why, and nothing is left.

use std::time::Duration;

use anyhow::ensure;
use e2e::handle::{Held, eventually, proxy_of};
use e2e::topology::Node;
use e2e::traffic::Outcome;

use crate::ground::{Turn, bounded, timed, turn};

/// What a proxy holds: descriptors, accepted sockets, connections in its own view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Holding {
    descriptors: usize,
    sockets: u64,
    connections: usize,
}

fn holding(turn: &Turn, node: Node) -> anyhow::Result<Holding> {
    let lab = turn.lab;
    let dump = lab.traffic(node.name(), &["get", "127.0.0.1:15000", "/config_dump"])?;
    let dump: serde_json::Value = serde_json::from_str(&dump.answer.unwrap_or_default())?;
    let workloads = dump["workloadState"].as_object();
    ensure!(workloads.is_some(), "the dump has no workloadState: {dump}");
    let lists = workloads.into_iter().flatten().flat_map(|(_, pod)| {
        ["inbound", "outbound"].map(|way| pod["connections"][way].as_array().map_or(0, Vec::len))
    });
    Ok(Holding {
        descriptors: lab.process(proxy_of(node))?.descriptors()?,
        sockets: lab.metrics(node)?.sum("istio_tcp_sockets_open", &[]) as u64,
        connections: lists.sum(),
    })
}

#[test]
fn a_deleted_pod_ends_its_connections_on_both_sides_and_leaves_nothing_behind() {
    let turn = turn();
    let lab = turn.lab;
    turn.apply_pod("shop/brief", Node::B);
    lab.wait_ready("shop/brief").unwrap();
    turn.remove_pod("shop/brief");
    let before = Node::ALL.map(|node| holding(&turn, node).unwrap());
    println!("before: {before:?}");
    for round in 0..3 {
        turn.apply_pod("shop/brief", Node::B);
        lab.wait_ready("shop/brief").unwrap();
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
        // Once is enough for the log; what is left behind shows after several rounds.
        if round == 0 {
            for (node, direction) in [(Node::A, "outbound"), (Node::B, "inbound")] {
                for (number, report) in reports.iter().enumerate() {
                    let entry = lab
                        .access_entry(node, "how it ended", |entry| {
                            entry.is_final()
                                && entry.is("direction", direction)
                                && entry.is("src.workload", "client")
                                && entry.is("dst.workload", "brief")
                                && (node == Node::B || entry.source() == report.local)
                        })
                        .unwrap();
                    if number == 0 {
                        println!("{entry}");
                    }
                }
            }
        }
        drop(from_it);
        turn.wait_until_gone("shop/brief");
    }
    eventually("all is as before", Duration::from_secs(20), || {
        for (node, before) in Node::ALL.into_iter().zip(before) {
            let now = holding(&turn, node)?;
            ensure!(
                now.descriptors <= before.descriptors
                    && now.sockets <= before.sockets
                    && now.connections <= before.connections,
                "{node}: {now:?}, before {before:?}"
            );
        }
        Ok(())
    })
    .unwrap();
}
