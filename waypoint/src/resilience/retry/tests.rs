// SPDX-License-Identifier: Apache-2.0

use super::*;
use proto::waypoint::Retry;
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use Outcome::{BrokeOff, Crossed, NotConnected, NotProcessed, Status, TooLong};

fn stated(attempts: u32, codes: &[u32]) -> RetryPolicy {
    let wire = Retry {
        attempts,
        codes: codes.to_vec(),
        backoff: None,
    };
    RetryPolicy::compile(Some(&wire)).unwrap()
}

fn attempt(outcome: Outcome, retries: u32) -> Attempt {
    Attempt {
        outcome,
        retries,
        replayable: true,
        left: None,
    }
}

/// How a request ends whose attempts end so, one after the other: the number of attempts, and why there were no more.
fn run(policy: &RetryPolicy, outcomes: &[Outcome]) -> (usize, Stop) {
    let mut rng = StdRng::seed_from_u64(1);
    for (retries, outcome) in (0..).zip(outcomes) {
        if let Next::Stop(why) = policy.decide(attempt(*outcome, retries), || true, &mut rng) {
            return (retries as usize + 1, why);
        }
    }
    panic!("it goes on");
}

#[test]
fn cases_of_the_suite() {
    let ok = Status(200);
    let of = |codes: &[u32], attempts| stated(attempts, codes);
    let bad = Status(500);
    assert_eq!(
        run(&of(&[500], 3), &[bad, bad, ok]),
        (3, Stop::Final),
        "K06"
    );
    assert_eq!(run(&of(&[500], 3), &[bad; 4]), (4, Stop::Attempts), "K07");
    assert_eq!(run(&of(&[500], 3), &[Status(503)]), (1, Stop::Final), "K08");
    for code in [500, 502, 503, 504] {
        let policy = of(&[500, 502, 503, 504], 2);
        assert_eq!(run(&policy, &[Status(code), ok]), (2, Stop::Final), "K09");
        assert_eq!(run(&policy, &[Status(code); 3]), (3, Stop::Attempts), "K10");
    }
    assert_eq!(
        run(&of(&[], 3), &[BrokeOff, BrokeOff, ok]),
        (3, Stop::Final),
        "K11"
    );
    assert_eq!(run(&of(&[], 3), &[BrokeOff; 4]), (4, Stop::Attempts), "K12");
    assert_eq!(
        run(&of(&[], 2), &[TooLong, TooLong, ok]),
        (3, Stop::Final),
        "K13"
    );
    assert_eq!(run(&of(&[], 2), &[TooLong; 3]), (3, Stop::Attempts), "K14");
}

/// K15, K16: the request's own limit spans its retries.
#[test]
fn no_retry_outlives_the_request() {
    let mut rng = StdRng::seed_from_u64(1);
    let policy = stated(5, &[500]);
    let with = |left| Attempt {
        left: Some(Duration::from_millis(left)),
        ..attempt(Status(500), 0)
    };
    assert!(matches!(
        policy.decide(with(300), || true, &mut rng),
        Next::Retry(_)
    ));
    assert_eq!(
        policy.decide(with(25), || true, &mut rng),
        Next::Stop(Stop::Time)
    );
    assert_eq!(
        policy.decide(with(0), || true, &mut rng),
        Next::Stop(Stop::Time)
    );
}

#[test]
fn without_a_policy_only_what_does_no_harm_is_tried_again() {
    let safe = RetryPolicy::compile(None).unwrap();
    assert!(!safe.has_codes());
    for outcome in [NotConnected, NotProcessed, Crossed] {
        assert_eq!(run(&safe, &[outcome; 3]), (3, Stop::Attempts));
    }
    for outcome in [BrokeOff, TooLong, Status(503), Status(500)] {
        assert_eq!(run(&safe, &[outcome]), (1, Stop::Final));
    }
    // An endpoint that isn't there doesn't make the client wait.
    let mut rng = StdRng::seed_from_u64(1);
    let first = safe.decide(attempt(NotConnected, 0), || true, &mut rng);
    assert_eq!(first, Next::Retry(Duration::ZERO));
    let Next::Retry(second) = safe.decide(attempt(NotConnected, 1), || true, &mut rng) else {
        panic!()
    };
    assert!(second >= BACK_OFF);
}

#[test]
fn a_policy_can_say_never() {
    assert_eq!(
        run(&stated(0, &[500]), &[NotConnected]),
        (1, Stop::Attempts)
    );
    assert!(stated(0, &[500]).has_codes());
    assert_eq!(stated(5000, &[]).attempts, MOST_ATTEMPTS);
}

#[test]
fn what_cannot_be_sent_again_is_not() {
    let mut rng = StdRng::seed_from_u64(1);
    let once = Attempt {
        replayable: false,
        ..attempt(NotConnected, 0)
    };
    assert_eq!(
        stated(3, &[]).decide(once, || true, &mut rng),
        Next::Stop(Stop::Body)
    );
}

#[test]
fn the_budget_is_asked_last() {
    let mut rng = StdRng::seed_from_u64(1);
    let policy = stated(1, &[500]);
    assert_eq!(
        policy.decide(attempt(Status(500), 0), || false, &mut rng),
        Next::Stop(Stop::Budget)
    );
    let never = || panic!("nothing is to be retried");
    assert_eq!(
        policy.decide(attempt(Status(200), 0), never, &mut rng),
        Next::Stop(Stop::Final)
    );
    assert_eq!(
        policy.decide(attempt(Status(500), 1), never, &mut rng),
        Next::Stop(Stop::Attempts)
    );
}

#[test]
fn waits_grow_and_differ() {
    let mut rng = StdRng::seed_from_u64(1);
    let back_off = Some(prost_types::Duration {
        seconds: 0,
        nanos: 100_000_000,
    });
    let wire = Retry {
        attempts: 100,
        codes: vec![],
        backoff: back_off,
    };
    let policy = RetryPolicy::compile(Some(&wire)).unwrap();
    for (retries, longest) in [
        (0, 200),
        (1, 400),
        (2, 800),
        (3, 1000),
        (50, 1000),
        (99, 1000),
    ] {
        let mut waits = Vec::new();
        for _ in 0..200 {
            let Next::Retry(wait) = policy.decide(attempt(BrokeOff, retries), || true, &mut rng)
            else {
                panic!()
            };
            waits.push(wait.as_millis());
        }
        let (least, most) = (waits.iter().min().unwrap(), waits.iter().max().unwrap());
        assert!(
            (100..100 + longest / 10).contains(least),
            "{retries}: {least}"
        );
        assert!(
            (longest * 9 / 10..=longest).contains(most),
            "{retries}: {most}"
        );
    }
}

#[test]
fn budgets_follow_what_is_under_way() {
    let budget = Budget::default();
    for (under_way, retrying, allowed) in [
        (0, 0, true),
        (1, 2, true),
        (1, 3, false),
        (15, 3, false),
        (20, 3, true),
        (100, 19, true),
        (100, 20, false),
    ] {
        assert_eq!(
            budget.allows(under_way, retrying),
            allowed,
            "{under_way} {retrying}"
        );
    }
    let none = Budget {
        percent: 0,
        least: 0,
    };
    assert!(!none.allows(1000, 0));
    assert!(
        Budget {
            percent: 100,
            least: 0
        }
        .allows(u32::MAX, u32::MAX - 1)
    );
}

#[test]
fn bad_policies_say_why() {
    let why = |codes: &[u32], seconds| {
        let backoff = Some(prost_types::Duration { seconds, nanos: 0 });
        RetryPolicy::compile(Some(&Retry {
            attempts: 1,
            codes: codes.to_vec(),
            backoff,
        }))
        .unwrap_err()
    };
    assert_eq!(why(&[200], 1), "retry: 200 is not a status of an error");
    assert_eq!(why(&[600], 1), "retry: 600 is not a status of an error");
    assert_eq!(
        why(&[500, 70_000], 1),
        "retry: 70000 is not a status of an error"
    );
    assert_eq!(why(&[], -1), "retry: the back-off is negative");
}
