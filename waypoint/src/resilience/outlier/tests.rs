// SPDX-License-Identifier: Apache-2.0

use super::*;

fn at(place: usize) -> Endpoint {
    Endpoint {
        workload: format!("pod-{place}").into(),
        port: 80,
    }
}

/// A service of ten endpoints, and a clock.
struct Service {
    policy: Policy,
    outliers: Outliers,
    endpoints: usize,
    now: Instant,
}

impl Service {
    fn new(endpoints: usize) -> Self {
        Self {
            policy: Policy::default(),
            outliers: Outliers::default(),
            endpoints,
            now: Instant::now(),
        }
    }

    fn ended(&mut self, place: usize, outcomes: &[Outcome]) -> Option<u64> {
        let mut last = None;
        for outcome in outcomes {
            let Self {
                policy,
                outliers,
                endpoints,
                now,
            } = self;
            last = outliers.ended(policy, &at(place), *outcome, *endpoints, *now);
        }
        last.map(|time| time.as_secs())
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    fn is_out(&self, place: usize) -> bool {
        self.outliers.is_out(&at(place), self.now)
    }
}

const BAD: [Outcome; 5] = [Outcome::Status(503); 5];
const GOOD: Outcome = Outcome::Status(200);

#[test]
fn errors_in_a_row_put_an_endpoint_out_for_a_while() {
    let mut service = Service::new(10);
    assert_eq!(service.ended(1, &BAD[1..]), None);
    assert_eq!(service.ended(1, &[GOOD]), None);
    assert_eq!(service.ended(1, &BAD[1..]), None, "not in a row");
    assert_eq!(service.ended(1, &BAD[..1]), Some(30));
    assert!(service.is_out(1) && !service.is_out(2));
    // What began before it was out changes nothing.
    assert_eq!(service.ended(1, &BAD), None);
    service.pass(30);
    assert!(!service.is_out(1));
    // Each time longer, up to the longest.
    for expected in [60, 90, 120, 150, 180, 210, 240, 270, 300, 300] {
        assert_eq!(service.ended(1, &BAD), Some(expected));
        service.pass(expected);
    }
    // Well for long, it begins anew.
    service.pass(301);
    service.ended(1, &[GOOD]);
    assert_eq!(service.ended(1, &BAD), Some(30));
}

#[test]
fn what_an_endpoint_is_not_to_blame_for_does_not_count() {
    for (outcome, gateway, all) in [
        (Outcome::Status(500), false, true),
        (Outcome::Status(502), true, true),
        (Outcome::Status(504), true, true),
        (Outcome::Status(404), false, false),
        (Outcome::BrokeOff, true, true),
        (Outcome::TooLong, true, true),
        // These are counted where connections are made.
        (Outcome::NotConnected, false, false),
        (Outcome::NotProcessed, false, false),
    ] {
        for (limits, expected) in [((5, 0), gateway), ((0, 5), all)] {
            let mut service = Service::new(10);
            (service.policy.gateway, service.policy.any) = limits;
            assert_eq!(
                service.ended(1, &[outcome; 5]).is_some(),
                expected,
                "{outcome:?} {limits:?}"
            );
        }
    }
    let mut never = Service::new(10);
    never.policy.gateway = 0;
    assert_eq!(never.ended(1, &BAD), None);
}

#[test]
fn each_kind_of_errors_has_a_run_of_its_own() {
    let mut service = Service::new(10);
    (service.policy.gateway, service.policy.any) = (3, 5);
    let of = |status| [Outcome::Status(status)];
    // A plain 500 ends the run of the others, and goes on with that of all.
    for status in [503, 502, 500, 504] {
        assert_eq!(service.ended(1, &of(status)), None, "{status}");
    }
    assert_eq!(service.ended(1, &of(500)), Some(30));
    assert_eq!(service.ended(2, &[BAD[0]; 3]), None, "the share is used up");
    service.pass(30);
    assert_eq!(service.ended(2, &BAD[..1]), Some(30));
}

#[test]
fn no_more_than_a_share_is_out() {
    for (endpoints, percent, most) in [
        (10, 10, 1),
        (10, 50, 5),
        (3, 10, 1),
        (2, 100, 1),
        (1, 100, 0),
        (0, 100, 0),
        (10, 100, 9),
    ] {
        let mut service = Service::new(endpoints);
        service.policy.most = percent;
        let out = (0..endpoints)
            .filter(|place| service.ended(*place, &BAD).is_some())
            .count();
        assert_eq!(out, most, "{endpoints} {percent}");
    }
    // Who could not be put out is as soon as there is room, at its next error.
    let mut service = Service::new(10);
    service.ended(1, &BAD);
    assert_eq!(service.ended(2, &BAD), None);
    service.pass(30);
    assert_eq!(service.ended(2, &BAD[..1]), Some(30));
}

#[test]
fn endpoints_that_come_and_go_leave_nothing() {
    let mut service = Service::new(3);
    for place in 0..10_000 {
        service.ended(place, &BAD[..1]);
    }
    assert!(service.outliers.suspects.len() <= 16);
    let mut well = Service::new(3);
    well.ended(1, &[Outcome::Status(503), GOOD]);
    assert!(well.outliers.suspects.is_empty());
}

#[test]
fn with_an_interval_endpoints_come_back_at_its_multiples_and_are_forgiven_by_it() {
    let mut service = Service::new(10);
    service.policy.interval = Some(Duration::from_secs(20));
    assert_eq!(service.ended(1, &BAD), Some(40));
    service.pass(41);
    assert_eq!(service.ended(1, &BAD), Some(60));
    // Well for one interval after the second time: it counts as once.
    service.pass(60 + 21);
    assert_eq!(service.ended(1, &[GOOD]), None);
    assert_eq!(service.ended(1, &BAD), Some(60));
    service.pass(60 + 41);
    assert_eq!(service.ended(1, &[GOOD]), None);
    assert_eq!(service.ended(1, &BAD), Some(40));
}
