// SPDX-License-Identifier: Apache-2.0
//! ztunnel is upgraded under load: nothing is refused, nothing is reset, nothing is plain, and the old process ends when
//! its last connection has.

#![expect(clippy::unwrap_used, reason = "a test's helpers may end the test")]

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::ensure;
use e2e::handle::{Lab, Process, Shared, eventually};
use e2e::load::{Line, Load, Volume, What, now};
use e2e::topology::Node;
use e2e::traffic::Outcome;
use e2e::trial::{Course, Trial};

static SHARED: Shared = Shared::new("upgrade", env!("CARGO_BIN_EXE_e2e"));
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> (MutexGuard<'static, ()>, &'static Lab) {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    (turn, SHARED.lab())
}

/// Longer than a relieved process stands ready to go on; then tunnels are asked to move, too.
const PROBATION: Duration = Duration::from_secs(12);

fn volume() -> Volume {
    Volume {
        transfers: 3,
        talks: 2,
        visits: 40,
        ..Volume::default()
    }
}

fn begin(lab: &'static Lab) -> Trial<'static> {
    let course = Course {
        from: "shop/client",
        to: vec![
            lab.v4("shop/web-b", 9000).unwrap(),
            lab.v4("shop/web-a", 9000).unwrap(),
        ],
        volume: volume(),
    };
    Trial::begin(lab, &course).unwrap()
}

/// Upgrades a proxy and waits until the new process serves; returns the old one.
fn upgrade(lab: &Lab, trial: &Trial<'_>, daemon: &str) -> Process {
    let words = "this process serves in its place";
    let before = trial.log(daemon).unwrap().matches(words).count();
    let old = lab.upgrade(daemon, &[]).unwrap();
    eventually("the new process serves", Duration::from_secs(20), || {
        let now = trial.log(daemon)?.matches(words).count();
        ensure!(now > before, "{}", trial.log(daemon)?);
        Ok(())
    })
    .unwrap();
    old
}

fn ended(process: Process, within: Duration) -> Duration {
    let begun = Instant::now();
    eventually("the old process has ended", within, || {
        ensure!(!process.is_running(), "process {} still runs", process.pid);
        Ok(())
    })
    .unwrap();
    begun.elapsed()
}

#[test]
fn upgrades_under_load_cost_no_connection_and_no_byte_and_policies_go_on_to_hold() {
    let (_turn, lab) = turn();
    let held = lab
        .hold("shop/client", lab.v4("shop/vault", 9000).unwrap())
        .unwrap();
    let trial = begin(lab);
    let back = [lab.v4("shop/client", 9000).unwrap()];
    let other_way = Load::start(lab, "shop/web-b", &back, &volume(), trial.marker()).unwrap();
    let mut old = Vec::new();
    let mut second = None;
    for daemon in ["ztunnel-b", "ztunnel-a", "ztunnel-a"] {
        let since = now();
        let process = upgrade(lab, &trial, daemon);
        trial
            .load()
            .wait_for_visits(since, 40, Duration::from_secs(20))
            .unwrap();
        trial.load().go_on(PROBATION);
        assert!(process.is_running(), "{daemon} still carries connections");
        old.push(process);
        if daemon == "ztunnel-a" && second.is_none() {
            // For the next one to carry.
            let target = lab.v4("shop/web-b", 9000).unwrap();
            second = Some(lab.hold("shop/client", target).unwrap());
        }
    }
    // Both processes before the present one report to it, and one of them was relieved by another.
    let dump = lab
        .traffic("node-a", &["get", "127.0.0.1:15000", "/config_dump"])
        .unwrap();
    let dump: serde_json::Value = serde_json::from_str(&dump.answer.unwrap()).unwrap();
    let predecessors = dump["predecessors"].as_array().unwrap();
    assert_eq!(predecessors.len(), 2, "{predecessors:#?}");
    for predecessor in predecessors {
        assert!(
            predecessor["connections"].as_u64() > Some(0),
            "{predecessor}"
        );
        assert!(
            predecessor["pods"]["shop/client"].as_u64() > Some(0),
            "{predecessor}"
        );
    }
    for process in &old {
        println!(
            "a relieved process holds {} KiB",
            process.memory().unwrap() >> 10
        );
    }

    let other_way = other_way.stop().unwrap();
    let verdict = trial.end().unwrap();
    verdict.check().unwrap();
    for (from, tally) in [
        ("shop/client", &verdict.traffic),
        ("shop/web-b", &other_way),
    ] {
        let failures = tally.failures();
        assert!(failures.is_empty(), "from {from}: {failures:?}");
        assert_eq!(tally.wrong(), Vec::<String>::new());
        let ends = tally.events.iter().filter(|event| {
            event.line == Line::Transfer && matches!(event.what, What::Ended { .. })
        });
        assert_eq!(
            ends.count(),
            3,
            "from {from}: each transfer was one connection"
        );
        println!(
            "from {from}: {} visits, {} bytes on transfers, visits: {}",
            tally.answered(Line::Visit),
            tally.bytes(),
            tally.latency(Line::Visit).unwrap(),
        );
    }
    // What the second of node a has left ends in order.
    let report = second.unwrap().release().unwrap();
    assert!(report.is_done() && report.sent > 100, "{report:?}");
    let last = old.pop().unwrap();
    let took = ended(last, Duration::from_secs(10));
    println!("ended {took:?} after the last connection");
    assert!(old.iter().all(Process::is_running), "the held one is open");
    for process in &old {
        println!("now it holds {} KiB", process.memory().unwrap() >> 10);
    }

    // By now the first one keeps no more of the mesh than it needs for this.
    lab.apply(
        "apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: nobody-to-the-vault, namespace: shop}
spec:
  selector: {matchLabels: {app: vault}}
  action: DENY
  rules: [{}]
",
    )
    .unwrap();
    let report = held.ended(Duration::from_secs(10)).unwrap();
    assert_eq!(report.outcome, Outcome::Reset, "{report:?}");
    lab.access_entry(Node::B, "why it ended", |entry| {
        let error = entry.error();
        error.is_some_and(|error| error.contains("nobody-to-the-vault"))
    })
    .unwrap();
    for process in old {
        ended(process, Duration::from_secs(10));
    }
    lab.delete("authorizationpolicy", "shop/nobody-to-the-vault")
        .unwrap();
}

#[test]
fn a_new_process_that_fails_at_once_or_later_costs_nothing() {
    let (_turn, lab) = turn();
    let trial = begin(lab);
    let old = lab
        .upgrade("ztunnel-a", &[("KEEPALIVE_TIME", "soon")])
        .unwrap();
    let restored = |lab: &Lab| {
        let present = lab.process("ztunnel-a")?;
        ensure!(present == old, "{present:?} is there instead of {old:?}");
        Ok(())
    };
    eventually("the old one is back", Duration::from_secs(10), || {
        restored(lab)
    })
    .unwrap();
    assert!(lab.log("ztunnel-a").unwrap().contains("KEEPALIVE_TIME"));

    let again = upgrade(lab, &trial, "ztunnel-a");
    assert_eq!(again, old);
    let fault = now();
    eventually("the new one is known", Duration::from_secs(5), || {
        ensure!(lab.process("ztunnel-a")? != old, "it is not known yet");
        Ok(())
    })
    .unwrap();
    lab.kill("ztunnel-a").unwrap();
    trial
        .load()
        .wait_for_visits(fault, 40, Duration::from_secs(20))
        .unwrap();
    eventually("the old one is back", Duration::from_secs(10), || {
        restored(lab)
    })
    .unwrap();
    let verdict = trial.end().unwrap();
    verdict.check().unwrap();
    // What the killed process had taken on is lost with it; what the old one carries is not.
    let transfers = verdict.traffic.failed(Line::Transfer);
    assert!(transfers.is_empty(), "{transfers:?}");
    let refused = verdict.traffic.failures().into_iter().filter(|event| {
        matches!(
            event.what,
            What::Refused {
                outcome: Outcome::Refused,
                ..
            }
        )
    });
    assert_eq!(refused.count(), 0, "no listener was ever closed");
    assert!(lab.process("ztunnel-a").unwrap().is_running());
}
