// SPDX-License-Identifier: Apache-2.0
//! Daemons that are killed at once, and what that costs: the control plane nobody, the agent nobody but new pods, a proxy
//! its own connections.

use std::time::Duration;

use e2e::load::{Line, now};
use e2e::topology::Node;
use e2e::traffic::Outcome;

use crate::ground::{bounded, judge, timed, turn};

/// A visit that takes longer has met the fault.
const SLOW: Duration = Duration::from_secs(1);

#[test]
fn a_killed_control_plane_disturbs_no_traffic_and_new_pods_wait_for_it() {
    let turn = turn();
    let lab = turn.lab;
    let trial = turn.begin();
    lab.hold_down("istiod-lite").unwrap();
    turn.apply_pod("shop/late", Node::B);
    lab.wait_ready("shop/late").unwrap();
    // It runs, captured; but nobody has heard of it yet, so it neither speaks nor is it spoken to.
    let out = lab
        .traffic("shop/late", &["echo", &turn.echo("shop/web-a").to_string()])
        .unwrap();
    assert!(!out.is_done(), "{out:?}");
    let entry = lab
        .access_entry(Node::B, "why the new pod may not speak", |entry| {
            entry.source() == out.local
        })
        .unwrap();
    let error = entry.error().unwrap_or_default();
    assert!(error.contains("not known to the mesh"), "{entry}");
    trial.load().go_on(Duration::from_secs(2));

    lab.let_start("istiod-lite").unwrap();
    let (report, took) = timed(|| {
        e2e::handle::eventually("the new pod speaks", Duration::from_secs(30), || {
            let report =
                lab.traffic("shop/late", &["echo", &turn.echo("shop/web-a").to_string()])?;
            anyhow::ensure!(report.is_done(), "{report:?}");
            Ok(report)
        })
    });
    report.unwrap();
    bounded(
        "from the control plane's start to a new pod's first connection",
        took,
        Duration::from_secs(20),
    );
    let verdict = judge("control plane killed", trial);
    let failures = verdict.traffic.failures();
    assert!(failures.is_empty(), "{failures:?}");
    turn.remove_pod("shop/late");
}

#[test]
fn a_killed_proxy_costs_its_connections_and_no_more() {
    let turn = turn();
    for victim in ["ztunnel-b", "ztunnel-a"] {
        let trial = turn.begin();
        let fault = now();
        turn.lab.kill(victim).unwrap();
        trial
            .load()
            .wait_for_visits(fault, 20, Duration::from_secs(40))
            .unwrap();
        trial
            .load()
            .wait_for_connections(fault, Duration::from_secs(20))
            .unwrap();
        let verdict = judge(&format!("{victim} killed"), trial);
        for failure in verdict.traffic.failed(Line::Transfer) {
            println!("  {failure:?}");
        }
        assert!(
            !verdict.traffic.failed(Line::Talk).is_empty(),
            "the kill was not noticed"
        );
        let recovery = verdict.traffic.recovery(fault, SLOW).unwrap();
        bounded(
            &format!("{victim}: until new connections worked"),
            recovery,
            Duration::from_secs(15),
        );
        turn.all_ready();
    }
}

#[test]
fn a_killed_agent_disturbs_no_traffic_and_no_pod_starts_without_it() {
    let turn = turn();
    let lab = turn.lab;
    let trial = turn.begin();
    lab.hold_down("istio-cni-node-b").unwrap();
    turn.apply_pod("shop/late", Node::B);
    let refused = e2e::handle::eventually("CNI refuses", Duration::from_secs(10), || {
        let record = lab.pod("shop/late")?;
        let message = record.message.unwrap_or_default();
        anyhow::ensure!(message.contains("not ready for the mesh"), "{message}");
        anyhow::ensure!(record.containers.is_empty(), "a container runs");
        Ok(message)
    })
    .unwrap();
    println!("CNI said: {refused}");
    trial.load().go_on(Duration::from_secs(1));

    lab.let_start("istio-cni-node-b").unwrap();
    let (ready, took) = timed(|| lab.wait_ready("shop/late"));
    ready.unwrap();
    bounded(
        "from the agent's start to a new pod that runs",
        took,
        Duration::from_secs(20),
    );
    let report = e2e::handle::eventually("the new pod speaks", Duration::from_secs(10), || {
        let report = lab.traffic("shop/late", &["echo", &turn.echo("shop/web-a").to_string()])?;
        anyhow::ensure!(report.outcome == Outcome::Done, "{report:?}");
        Ok(report)
    })
    .unwrap();
    assert_eq!(report.received, 1024);
    let verdict = judge("agent killed", trial);
    let failures = verdict.traffic.failures();
    assert!(failures.is_empty(), "{failures:?}");
    turn.remove_pod("shop/late");
}

/// All that node b's pods depend on.
const NODE_B: [&str; 2] = ["istio-cni-node-b", "ztunnel-b"];

#[test]
fn daemons_may_come_back_in_any_order() {
    let turn = turn();
    let lab = turn.lab;
    for order in [
        ["istio-cni-node-b", "ztunnel-b", "istiod-lite"],
        ["ztunnel-b", "istiod-lite", "istio-cni-node-b"],
        ["istiod-lite", "ztunnel-b", "istio-cni-node-b"],
    ] {
        let trial = turn.begin();
        let fault = now();
        for daemon in order {
            lab.hold_down(daemon).unwrap();
        }
        for daemon in order {
            // The next one starts while this one still does.
            lab.let_start(daemon).unwrap();
            trial.load().go_on(Duration::from_millis(700));
        }
        let last = now();
        trial
            .load()
            .wait_for_visits(fault, 20, Duration::from_secs(60))
            .unwrap_or_else(|error| panic!("{order:?}: {error:#}"));
        trial
            .load()
            .wait_for_connections(last, Duration::from_secs(20))
            .unwrap_or_else(|error| panic!("{order:?}: {error:#}"));
        let verdict = judge(&order.join(", "), trial);
        let recovery = verdict.traffic.recovery(last, SLOW).unwrap();
        bounded(
            "  from the last one's start until new connections worked",
            recovery,
            Duration::from_secs(20),
        );
        turn.all_ready();
    }
}

#[test]
fn daemons_killed_again_and_again_while_they_start_leave_nothing_broken() {
    let turn = turn();
    let lab = turn.lab;
    let trial = turn.begin();
    // Not all at the same pace, so that each meets the others at many moments of their start.
    for round in 0..12_u64 {
        for (index, daemon) in NODE_B.into_iter().chain(["istiod-lite"]).enumerate() {
            let index = index as u64;
            // It may be between two lives.
            if round % (index + 1) == 0
                && let Ok(process) = lab.process(daemon)
            {
                let _just_ended = process.signal(nix::sys::signal::Signal::SIGKILL);
            }
        }
        trial
            .load()
            .go_on(Duration::from_millis(150 + 137 * (round % 5)));
    }
    let last = now();
    trial
        .load()
        .wait_for_visits(last, 20, Duration::from_secs(60))
        .unwrap();
    turn.all_ready();
    trial
        .load()
        .wait_for_connections(now(), Duration::from_secs(20))
        .unwrap();
    let verdict = judge("killed again and again", trial);
    let recovery = verdict.traffic.recovery(last, SLOW).unwrap();
    bounded(
        "from the last kill until new connections worked",
        recovery,
        Duration::from_secs(30),
    );
}
