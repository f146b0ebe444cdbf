// SPDX-License-Identifier: Apache-2.0
//! Clocks are set: of a proxy, of the control plane, forward and back.

use std::time::{Duration, Instant};

use e2e::handle::proxy_of;
use e2e::load::{Line, now};
use e2e::topology::Node;

use crate::ground::{LIFETIME, SLOW, bounded, judge, turn, undisturbed};

/// From the moment that a clock is right, or right enough, to new connections.
const RECOVERY: Duration = Duration::from_secs(8);
const HOUR: i64 = 3600;

#[test]
fn a_proxy_whose_clock_is_set_renews_at_once_and_refuses_what_it_cannot_judge() {
    let turn = turn();
    let trial = turn.begin();
    // By no more than its peers' certificates have left at any time.
    let before = turn.leaves_of(Node::A);
    let started = Instant::now();
    turn.set_clock(Node::A.name(), 3);
    turn.until_renewed(&before);
    bounded(
        "from a clock set to other certificates",
        started.elapsed(),
        RECOVERY,
    );
    let log = trial.log(proxy_of(Node::A)).unwrap();
    assert!(log.contains("3 s forward"), "no step was noticed");
    let so_far = trial.load().so_far();
    let failures = so_far.failures();
    assert!(failures.is_empty(), "{failures:?}");

    let mut recoveries = Vec::new();
    for (offset, reason) in [
        // All that there is has expired by this clock, what the authority issues just now as well.
        (HOUR, "do their clocks differ?"),
        // By more than certificates are dated back.
        (-HOUR, "not valid yet"),
    ] {
        let wrong = now();
        turn.set_clock(Node::A.name(), offset);
        let entry = turn.until_refused(&trial, wrong, reason);
        println!("{offset} s: {}", entry.error().unwrap_or_default());
        let right = now();
        turn.set_clock(Node::A.name(), 0);
        trial
            .load()
            .wait_for_visits(right, 20, Duration::from_secs(60))
            .unwrap();
        recoveries.push((right, now()));
    }
    let verdict = judge("a proxy's clock", trial);
    undisturbed(&verdict);
    for (right, end) in recoveries {
        let recovery = verdict.traffic.between(0, end).recovery(right, SLOW);
        bounded(
            "from a clock set right to new connections",
            recovery.unwrap(),
            RECOVERY,
        );
    }
}

#[test]
fn a_control_plane_whose_clock_is_set_takes_no_good_certificate_away() {
    let turn = turn();
    let trial = turn.begin();
    for (offset, told) in [
        // What it issues is not valid before an hour from now.
        (HOUR, "is not valid before"),
        // By its clock tokens are not valid yet, so that it issues nothing.
        (-HOUR, "Unauthenticated"),
    ] {
        turn.renew_all();
        let log = || trial.log(proxy_of(Node::A)).unwrap();
        let words_before = log().matches(told).count();
        turn.set_clock("istiod", offset);
        let before = turn.leaves();
        // More than half of a life: all proxies have asked, and were given what nobody would take.
        trial.load().go_on(LIFETIME * 6 / 10);
        assert_eq!(turn.leaves(), before, "{offset} s");
        let log = log();
        println!(
            "{offset} s: {}",
            log.lines()
                .rfind(|line| line.contains("warn"))
                .unwrap_or_default()
        );
        assert!(
            log.matches(told).count() > words_before,
            "no word of {told}"
        );
        let right = Instant::now();
        turn.set_clock("istiod", 0);
        turn.until_renewed(&before);
        bounded(
            "from the control plane's clock set right to other certificates",
            right.elapsed(),
            RECOVERY,
        );
    }
    let verdict = judge("the control plane's clock", trial);
    let failures = verdict.traffic.failed(Line::Visit);
    assert!(failures.is_empty(), "{failures:?}");
    undisturbed(&verdict);
}
