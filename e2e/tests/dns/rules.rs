// SPDX-License-Identifier: Apache-2.0
//! Which pods' DNS is captured.

use std::time::Duration;

use anyhow::ensure;
use e2e::handle::eventually;
use e2e::traffic::Outcome;

use crate::ground::{UNCAPTURED, addresses, answer, ask, asked_upstream, lab, lab_alone, pod};

#[test]
fn a_pod_without_dns_capture_asks_for_itself_and_is_captured_otherwise() {
    let (lab, _peace) = lab();
    let plain = lab.v4("names/plain", 0).unwrap().ip();
    let answered = ask(lab, "names/plain", &["web.shop"]);
    assert_eq!(answered.message().unwrap().rcode, "NXDOMAIN");
    assert!(asked_upstream(lab, "web.shop.", &["A"]).contains(&format!("udp {plain} web.shop. A")));
    let direct = answer(lab, "names/plain", &["host.lab.example", "A", "--tcp"]);
    assert_eq!(addresses(&direct, "A"), ["10.77.0.53"]);
    // Its connections are the mesh's.
    let report = lab
        .traffic("names/plain", &["get", "10.96.0.10:80"])
        .unwrap();
    assert_eq!(report.outcome, Outcome::Done);
    lab.access_entry(e2e::topology::Node::A, "its connection", |entry| {
        entry.is_final()
            && entry.is("src.workload", "plain")
            && entry.is("dst.identity", "spiffe://cluster.local/ns/shop/sa/web")
    })
    .unwrap();
}

#[test]
fn a_pod_outside_of_the_mesh_asks_for_itself() {
    let (lab, _peace) = lab();
    let answered = ask(lab, "outside/legacy", &["web.shop"]);
    assert_eq!(answered.message().unwrap().rcode, "NXDOMAIN");
}

#[test]
fn capture_follows_the_pods_annotation_while_it_runs() {
    let (lab, _alone) = lab_alone();
    let becomes = |annotations: &str, rcode: &str| {
        lab.apply(&pod("asker", "asker", "node-a", annotations))
            .unwrap();
        eventually("the rules have changed", Duration::from_secs(10), || {
            let answered = ask(lab, "names/asker", &["web.shop"]);
            ensure!(answered.message()?.rcode == rcode, "{answered:?}");
            Ok(())
        })
        .unwrap();
    };
    becomes(UNCAPTURED, "NXDOMAIN");
    becomes("{}", "NOERROR");
}
