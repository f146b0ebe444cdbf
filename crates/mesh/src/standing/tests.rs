// SPDX-License-Identifier: Apache-2.0

use proptest::prelude::*;

use super::*;

const BACK_OFF: BackOff = BackOff {
    first: Duration::from_secs(2),
    longest: Duration::from_secs(10),
    trial: Duration::from_secs(3),
    forget: Duration::from_secs(100),
    remembered: 3,
};

fn endpoint(name: &str) -> Endpoint {
    Endpoint {
        workload: name.into(),
        port: 80,
    }
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[test]
fn each_failure_in_a_row_keeps_an_endpoint_out_for_longer() {
    let mut standings = Standings::new(BACK_OFF);
    let a = endpoint("a");
    let mut now = Instant::now();
    for expected in [2, 4, 8, 10, 10] {
        assert!(!standings.is_out(&a, now));
        assert_eq!(standings.failed(&a, now), Some(seconds(expected)));
        assert!(standings.is_out(&a, now + seconds(expected) - Duration::from_millis(1)));
        now += seconds(expected);
    }
}

#[test]
fn a_crowd_that_fails_together_is_one_failure() {
    let mut standings = Standings::new(BACK_OFF);
    let (a, now) = (endpoint("a"), Instant::now());
    assert_eq!(standings.failed(&a, now), Some(seconds(2)));
    for _ in 0..100 {
        assert_eq!(standings.failed(&a, now + seconds(1)), None);
    }
    assert_eq!(standings.failed(&a, now + seconds(2)), Some(seconds(4)));
}

#[test]
fn who_is_not_tried_any_more_is_forgotten() {
    let mut standings = Standings::new(BACK_OFF);
    let (a, start) = (endpoint("a"), Instant::now());
    standings.failed(&a, start);
    assert!(standings.is_failing(&a));
    standings.forget(start + seconds(101));
    assert!(standings.is_failing(&a));
    standings.forget(start + seconds(102));
    assert!(!standings.is_failing(&a) && standings.all_trusted());
}

#[test]
fn one_attempt_at_a_time_is_made_on_trial() {
    let mut standings = Standings::new(BACK_OFF);
    let (a, start) = (endpoint("a"), Instant::now());
    standings.failed(&a, start);
    let back = start + seconds(2);
    assert!(!standings.is_out(&a, back));
    standings.began(&a, back);
    assert!(standings.is_out(&a, back), "others wait for its outcome");
    assert!(
        !standings.is_out(&a, back + seconds(3)),
        "an attempt that never ends blocks nothing"
    );
    assert_eq!(
        standings.failed(&a, back + seconds(1)),
        Some(seconds(4)),
        "the trial's own failure counts"
    );
}

#[test]
fn success_forgives_and_so_does_time() {
    let mut standings = Standings::new(BACK_OFF);
    let (a, now) = (endpoint("a"), Instant::now());
    standings.failed(&a, now);
    assert!(standings.succeeded(&a));
    assert!(!standings.succeeded(&a));
    assert!(standings.all_trusted());
    assert_eq!(standings.failed(&a, now), Some(seconds(2)));
    let long_after = now + seconds(2 + 100);
    assert_eq!(standings.failed(&a, long_after), Some(seconds(2)));
}

#[test]
fn ports_of_a_workload_stand_and_fall_alone() {
    let mut standings = Standings::new(BACK_OFF);
    let (a, now) = (endpoint("a"), Instant::now());
    let other = Endpoint {
        port: 81,
        ..a.clone()
    };
    standings.failed(&a, now);
    standings.began(&a, now);
    assert!(!standings.is_out(&other, now));
    assert_eq!((standings.load(&a), standings.load(&other)), (1, 0));
}

#[test]
fn when_too_many_fail_the_one_that_comes_back_first_is_dropped() {
    let mut standings = Standings::new(BACK_OFF);
    let now = Instant::now();
    for (name, after) in [("a", 1), ("b", 0), ("c", 1), ("d", 1)] {
        standings.failed(&endpoint(name), now + seconds(after));
    }
    let mut out: Vec<_> = standings
        .out(now + seconds(1))
        .map(|(endpoint, _)| endpoint.workload.to_string())
        .collect();
    out.sort();
    assert_eq!(out, ["a", "c", "d"]);
}

#[derive(Debug, Clone)]
enum Step {
    Begin(u8),
    End(u8),
    Fail(u8),
    Succeed(u8),
    Wait(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..6_u8).prop_map(Step::Begin),
        (0..6_u8).prop_map(Step::End),
        (0..6_u8).prop_map(Step::Fail),
        (0..6_u8).prop_map(Step::Succeed),
        (0..5_000_u16).prop_map(Step::Wait),
    ]
}

proptest! {
    /// Whatever happens: loads are what was begun and not ended, memory is bounded, and nobody is out for longer than
    /// the longest back-off.
    #[test]
    fn loads_and_bounds_hold_whatever_happens(steps in prop::collection::vec(step(), 0..200)) {
        let mut standings = Standings::new(BACK_OFF);
        let mut open = [0_u32; 6];
        let mut now = Instant::now();
        for step in steps {
            let named = |index: u8| endpoint(&index.to_string());
            match step {
                Step::Begin(index) => {
                    standings.began(&named(index), now);
                    open[usize::from(index)] += 1;
                }
                Step::End(index) if open[usize::from(index)] > 0 => {
                    standings.ended(&named(index));
                    open[usize::from(index)] -= 1;
                }
                Step::End(_) => {}
                Step::Fail(index) => {
                    let out_for = standings.failed(&named(index), now);
                    prop_assert!(standings.is_out(&named(index), now));
                    prop_assert!(out_for.is_none_or(|out_for| out_for <= BACK_OFF.longest));
                }
                Step::Succeed(index) => {
                    standings.succeeded(&named(index));
                    prop_assert!(!standings.is_out(&named(index), now));
                }
                Step::Wait(milliseconds) => now += Duration::from_millis(milliseconds.into()),
            }
            for (index, open) in open.iter().enumerate() {
                prop_assert_eq!(standings.load(&endpoint(&index.to_string())), *open);
            }
            prop_assert!(standings.failing.len() <= BACK_OFF.remembered);
            prop_assert_eq!(standings.out(now + BACK_OFF.longest).count(), 0);
        }
    }
}
