// SPDX-License-Identifier: Apache-2.0
//! Names while something is gone: an upstream server, the control plane, the proxy itself.

use std::time::{Duration, Instant};

use anyhow::ensure;
use e2e::handle::{Lab, eventually};
use e2e::traffic::Outcome;

use crate::ground::{addresses, answer, ask, lab_alone};

/// From the kill of the proxy until names are answered again: half a second until it is started, then its first word
/// from the control plane and from the agent.
const BACK_WITHIN: Duration = Duration::from_secs(8);

#[test]
fn names_of_the_mesh_outlive_the_control_plane() {
    let (lab, _alone) = lab_alone();
    lab.hold_down("istiod-lite").unwrap();
    for name in ["web.shop", "api.test", "web-headless.shop"] {
        assert!(!addresses(&answer(lab, "shop/client", &[name]), "A").is_empty());
    }
    let report = lab.traffic("shop/client", &["get", "web.shop:80"]).unwrap();
    assert_eq!(report.outcome, Outcome::Done, "{report:?}");
    let elsewhere = answer(lab, "shop/client", &["host.lab.example"]);
    assert_eq!(addresses(&elsewhere, "A"), ["10.77.0.53"]);
    lab.let_start("istiod-lite").unwrap();
}

#[test]
fn names_come_back_with_a_killed_proxy_and_nobody_waits_for_it_in_vain() {
    let (lab, _alone) = lab_alone();
    let question = ["web.shop", "A", "--udp", "--patience", "1500"];
    answer(lab, "shop/client", &question);
    let killed = Instant::now();
    lab.kill("ztunnel-a").unwrap();
    let mut refused = 0;
    loop {
        let answered = ask(lab, "shop/client", &question);
        match answered.outcome {
            Outcome::Done => break,
            // The kernel says at once that nobody is there: a resolver goes on to its next try without waiting.
            Outcome::Refused => refused += 1,
            other => panic!("{other:?} after {:?}", killed.elapsed()),
        }
        assert!(killed.elapsed() < BACK_WITHIN, "names are not back");
    }
    println!(
        "names were back after {:?}, {refused} queries were refused",
        killed.elapsed()
    );
    assert!(refused > 0, "it was never gone");
    let report = lab.traffic("shop/client", &["get", "web.shop:80"]).unwrap();
    assert_eq!(report.outcome, Outcome::Done, "{report:?}");
}

#[test]
fn another_upstream_server_is_asked_where_the_first_is_silent() {
    let (lab, _alone) = lab_alone();
    let usual = std::fs::read_to_string(lab.state().resolv_conf()).unwrap();
    // Nobody has the first address. Written in place: the nodes see this very file.
    let with_silent = format!("nameserver 10.77.0.99\n{usual}options timeout:1\n");
    std::fs::write(lab.state().resolv_conf(), &with_silent).unwrap();
    upstreams_become(lab, &["10.77.0.99:53", "10.77.0.53:53"]);
    let first = answer(lab, "shop/client", &["host-1.lab.example"]);
    assert_eq!(addresses(&first, "A"), ["10.77.0.53"]);
    assert!((900..4000).contains(&first.milliseconds), "{first:?}");
    let second = answer(lab, "shop/client", &["host-2.lab.example"]);
    assert!(second.milliseconds < 500, "{second:?}");
    let over_tcp = answer(lab, "shop/client", &["host-3.lab.example", "A", "--tcp"]);
    assert!(over_tcp.milliseconds < 500, "{over_tcp:?}");
    std::fs::write(lab.state().resolv_conf(), &usual).unwrap();
    upstreams_become(lab, &["10.77.0.53:53"]);
}

fn upstreams_become(lab: &Lab, expected: &[&str]) {
    eventually(
        "the proxy has read the file",
        Duration::from_secs(10),
        || {
            let report = lab.traffic("node-a", &["get", "127.0.0.1:15000", "/config_dump"])?;
            let dump: serde_json::Value = serde_json::from_str(&report.answer.unwrap_or_default())?;
            let found = &dump["dnsUpstreams"];
            ensure!(*found == serde_json::json!(expected), "{found}");
            Ok(())
        },
    )
    .unwrap();
}
