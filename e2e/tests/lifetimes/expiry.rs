// SPDX-License-Identifier: Apache-2.0
//! The authority's own certificates run out, root and all, and another one is put in its place.

use std::time::{Duration, Instant};

use anyhow::ensure;
use e2e::authority::Ca;
use e2e::handle::eventually;
use e2e::load::now;
use e2e::topology::Node;

use crate::ground::{SLOW, bounded, judge, turn, undisturbed};

/// From the files of a valid authority to new connections: the authority looks each second and takes what has settled,
/// and so do the proxies with the roots that it then publishes.
const RECOVERY: Duration = Duration::from_secs(15);

#[test]
fn an_expired_root_closes_the_mesh_until_there_is_another_one() {
    let mut turn = turn();
    let trial = turn.begin();
    let fault = now();
    let ending = turn.ca.ending(Duration::from_secs(8)).unwrap();
    turn.put_ca(&ending, &[&ending.root]);
    turn.until_ca("has expired", |report| {
        ensure!(report["signs"] == false);
        let problem = report["problem"].as_str().unwrap_or_default();
        ensure!(problem.contains("ca-cert.pem expired on "), "{problem:?}");
        Ok(())
    });
    let log = turn.lab.log("istiod-lite").unwrap();
    let named = |log: &str| {
        log.lines()
            .any(|line| line.contains("\terror\t") && line.contains("ca-cert.pem expired on "))
    };
    assert!(named(&log), "{log}");
    // Nothing but certificates is missing: what changes in the cluster is still told.
    turn.lab
        .apply("{apiVersion: v1, kind: Service, metadata: {name: told, namespace: shop}, spec: {clusterIP: 10.97.9.9, ports: [{port: 80}]}}")
        .unwrap();
    eventually("the proxies are told", Duration::from_secs(20), || {
        let dump = turn.dump(Node::A)?.to_string();
        ensure!(dump.contains("told.shop.svc"), "no service told");
        Ok(())
    })
    .unwrap();
    let entry = turn.until_refused(&trial, fault, "the CA itself expired on ");
    println!("refused: {}", entry.error().unwrap_or_default());

    // Started like this it says so, stays, and looks on.
    turn.lab.kill("istiod-lite").unwrap();
    eventually("it has started", Duration::from_secs(20), || {
        turn.ca_report()
    })
    .unwrap();
    let process = turn.lab.process("istiod-lite").unwrap();
    trial.load().go_on(Duration::from_secs(2));
    assert_eq!(turn.lab.process("istiod-lite").unwrap(), process);
    let report = turn.ca_report().unwrap();
    assert_eq!(report["signs"], false, "{report}");

    let next = Ca::new("root after expiry").unwrap();
    let (fixed, started) = (now(), Instant::now());
    turn.put_ca(&next, &[&next.root]);
    *turn.ca = next;
    trial
        .load()
        .wait_for_visits(fixed, 20, Duration::from_secs(60))
        .unwrap();
    println!("seen to work after {:?}", started.elapsed());
    let verdict = judge("an expired root", trial);
    undisturbed(&verdict);
    let recovery = verdict.traffic.recovery(fixed, SLOW).unwrap();
    bounded("from another root to new connections", recovery, RECOVERY);
    turn.lab.delete("service", "shop/told").unwrap();
}
