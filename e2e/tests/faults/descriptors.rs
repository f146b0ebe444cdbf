// SPDX-License-Identifier: Apache-2.0
//! Daemons that run out of file descriptors: they say so, what is open goes on, and all is well once they have some again.

use std::time::Duration;

use anyhow::ensure;
use e2e::handle::{Process, eventually};
use e2e::hostile::crowd::Crowded;
use e2e::load::{Line, now};
use e2e::telemetry::Metrics;
use e2e::topology::Node;

use crate::ground::{Background, Turn, bounded, judge, timed, turn};

/// A process that may not open anything any more, until this is dropped.
struct Starved(Process);

impl Starved {
    fn new(turn: &Turn, daemon: &str) -> Self {
        let process = turn.lab.process(daemon).unwrap();
        let starved = Self(process);
        let held = u64::try_from(process.descriptors().unwrap()).unwrap();
        // Fewer than it has, so that what it closes meanwhile makes no room.
        process.limit_descriptors(Some(held - held / 4)).unwrap();
        starved
    }
}

impl Drop for Starved {
    fn drop(&mut self) {
        // Another process, where this one has ended, starts with the limit it should have.
        let _gone_anyway = self.0.limit_descriptors(None);
    }
}

#[test]
fn a_proxy_without_descriptors_says_so_and_what_is_open_goes_on() {
    let turn = turn();
    for (daemon, node, listener) in [
        ("ztunnel-a", Node::A, "outbound"),
        ("ztunnel-b", Node::B, "inbound"),
    ] {
        let trial = turn.begin();
        let exhausted = || {
            let metrics = turn.lab.metrics(node)?;
            anyhow::Ok(metrics.sum("culvert_accept_exhausted_total", &[("listener", listener)]))
        };
        let before = exhausted().unwrap();
        let fault = now();
        let starved = Starved::new(&turn, daemon);
        // At the far end new tunnels are what would be accepted: nobody needs one, so somebody comes.
        let target = turn.tunnel("shop/web-b");
        let crowd =
            Background::<Crowded>::start(&turn, Node::A, &["crowd", &target, "--count", "30"]);
        let log = || trial.log(daemon).unwrap();
        eventually("it says so", Duration::from_secs(20), || {
            let log = log();
            ensure!(log.contains("out of resources"), "not yet");
            ensure!(log.contains("Too many open files"), "without the reason");
            Ok(())
        })
        .unwrap();
        trial.load().go_on(Duration::from_secs(2));
        let relief = now();
        drop(starved);
        drop(crowd);
        trial
            .load()
            .wait_for_visits(relief, 20, Duration::from_secs(30))
            .unwrap();
        trial
            .load()
            .wait_for_connections(relief, Duration::from_secs(20))
            .unwrap();
        eventually("it says that it is over", Duration::from_secs(20), || {
            ensure!(log().contains("accepting again"), "not yet");
            Ok(())
        })
        .unwrap();
        assert!(exhausted().unwrap() > before, "{listener} is not counted");
        let verdict = judge(&format!("{daemon} without descriptors"), trial);
        // What was open before is still: the transfers and talks were never made anew.
        for line in [Line::Transfer, Line::Talk] {
            let failed = verdict.traffic.failed(line);
            assert!(failed.is_empty(), "{failed:?}");
        }
        println!(
            "  {} new connections failed meanwhile, of {}",
            verdict
                .traffic
                .between(fault, relief)
                .failed(Line::Visit)
                .len(),
            verdict.traffic.between(fault, relief).answered(Line::Visit),
        );
        let recovery = verdict
            .traffic
            .recovery(relief, Duration::from_secs(1))
            .unwrap();
        bounded(
            "  until new connections worked",
            recovery,
            Duration::from_secs(10),
        );
    }
}

#[test]
fn a_control_plane_without_descriptors_says_so_and_its_clients_keep_what_they_have() {
    let turn = turn();
    let trial = turn.begin();
    let starved = Starved::new(&turn, "istiod-lite");
    let address = "10.77.0.10:15012";
    let crowd = Background::<Crowded>::start(&turn, Node::A, &["crowd", address, "--count", "50"]);
    let log = || trial.log("istiod-lite").unwrap();
    eventually("it says so", Duration::from_secs(20), || {
        ensure!(log().contains("out of resources"), "not yet");
        Ok(())
    })
    .unwrap();
    drop(starved);
    let crowded = crowd.end();
    println!("{crowded:?}");
    eventually("it says that it is over", Duration::from_secs(20), || {
        ensure!(log().contains("accepting again"), "not yet");
        Ok(())
    })
    .unwrap();
    let metrics = turn
        .get("istiod-lite", "127.0.0.1:8080", "/metrics")
        .unwrap();
    let labels = [("listener", "control plane")];
    assert!(Metrics::parse(&metrics).sum("culvert_accept_exhausted_total", &labels) > 0.0);
    turn.apply_pod("shop/late", Node::B);
    let (ready, took) = timed(|| turn.lab.wait_ready("shop/late"));
    ready.unwrap();
    bounded("until a new pod runs", took, Duration::from_secs(30));
    turn.remove_pod("shop/late");
    let verdict = judge("control plane without descriptors", trial);
    assert!(verdict.traffic.failures().is_empty());
}

#[test]
fn an_agent_without_descriptors_starts_no_pod_outside_of_the_mesh_and_all_pods_later() {
    let turn = turn();
    let trial = turn.begin();
    let starved = Starved::new(&turn, "istio-cni-node-b");
    turn.apply_pod("shop/late", Node::B);
    eventually("it says so", Duration::from_secs(30), || {
        let log = trial.log("istio-cni-node-b")?;
        ensure!(log.contains("Too many open files"), "not yet");
        let record = turn.lab.pod("shop/late")?;
        ensure!(record.containers.is_empty(), "a container runs");
        Ok(())
    })
    .unwrap();
    drop(starved);
    let (ready, took) = timed(|| turn.lab.wait_ready("shop/late"));
    ready.unwrap();
    bounded("until the pod ran", took, Duration::from_secs(30));
    turn.spoken_to("shop/late");
    turn.remove_pod("shop/late");
    let verdict = judge("agent without descriptors", trial);
    assert!(verdict.traffic.failures().is_empty());
}
