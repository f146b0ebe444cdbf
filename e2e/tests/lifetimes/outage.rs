// SPDX-License-Identifier: Apache-2.0
//! The authority is gone, for less and for more time than certificates live.

use std::time::{Duration, Instant};

use e2e::load::now;

use crate::ground::{LIFETIME, SLOW, bounded, judge, turn, undisturbed};

/// From the start of the authority to new connections: a proxy that is asked in vain tries again every five seconds.
const RECOVERY: Duration = Duration::from_secs(12);

#[test]
fn an_authority_may_be_gone_for_as_long_as_certificates_live() {
    let turn = turn();
    let lab = turn.lab;
    let trial = turn.begin();
    turn.renew_all();
    let renewed = Instant::now();
    lab.hold_down("istiod-lite").unwrap();
    let before = turn.leaves();
    // Every proxy has tried in vain to renew.
    trial.load().go_on(LIFETIME / 2 + LIFETIME / 10);
    assert!(renewed.elapsed() > LIFETIME / 2);
    assert_eq!(turn.leaves(), before);
    lab.let_start("istiod-lite").unwrap();
    turn.until_renewed(&before);
    let so_far = trial.load().so_far();
    let failures = so_far.failures();
    assert!(failures.is_empty(), "{failures:?}");

    let fault = now();
    lab.hold_down("istiod-lite").unwrap();
    let entry = turn.until_refused(&trial, fault, "certificate authority gave no certificate");
    println!("refused: {}", entry.error().unwrap_or_default());
    let back = now();
    lab.let_start("istiod-lite").unwrap();
    trial
        .load()
        .wait_for_visits(back, 20, Duration::from_secs(60))
        .unwrap();
    let verdict = judge("no authority", trial);
    undisturbed(&verdict);
    let recovery = verdict.traffic.recovery(back, SLOW).unwrap();
    bounded(
        "from the authority's start to new connections",
        recovery,
        RECOVERY,
    );
}
