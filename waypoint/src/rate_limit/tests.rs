// SPDX-License-Identifier: Apache-2.0

use proptest::prelude::*;

use super::*;

const SECOND: u64 = 1_000_000_000;

fn limit(requests: u32, seconds: i64, burst: u32, by: Option<WireBy>) -> RateLimit {
    let wire = wire::RateLimit {
        requests,
        per: Some(prost_types::Duration { seconds, nanos: 0 }),
        burst,
        by,
    };
    RateLimit::compile("HTTPRoute shop/r".into(), &wire).unwrap()
}

#[test]
fn a_burst_passes_and_then_one_at_a_time() {
    let (limit, buckets) = (limit(2, 1, 3, None), Buckets::default());
    let take = |now| buckets.take_at(&limit, b"", now);
    let remaining: Vec<_> = (0..3).map(|_| take(0).remaining).collect();
    assert_eq!(remaining, [2, 1, 0]);
    let refused = take(0);
    assert_eq!(refused.wait, Some(Duration::from_millis(500)));
    assert_eq!(refused.reset, Duration::from_millis(1500));
    assert!(take(SECOND / 2 - 1).wait.is_some());
    assert_eq!(take(SECOND / 2).wait, None);
    assert!(take(SECOND / 2).wait.is_some(), "one was let in already");
    assert_eq!(
        take(100 * SECOND).remaining,
        2,
        "no more than a burst is saved up"
    );
}

#[test]
fn a_burst_that_takes_ages_to_fill_is_a_limit_still() {
    let (limit, buckets) = (limit(1, 86_400, MOST_REQUESTS, None), Buckets::default());
    let now = 1000 * SECOND;
    let passed = (0..60_000).filter(|_| buckets.take_at(&limit, b"", now).wait.is_none());
    assert_eq!(
        passed.count(),
        53_375,
        "as many as fill in a century and a half"
    );
}

#[test]
fn each_client_has_its_own_and_so_has_each_route() {
    let alice: SpiffeId = "spiffe://td/ns/a/sa/alice".parse().unwrap();
    let bob: SpiffeId = "spiffe://td/ns/a/sa/bob".parse().unwrap();
    let buckets = Buckets::default();
    let check = |limit: &RateLimit, who: &SpiffeId, header: Option<&'static str>, may: bool| {
        let mut headers = HeaderMap::new();
        headers.extend(header.map(|value| {
            (
                HeaderName::from_static("x-user"),
                HeaderValue::from_static(value),
            )
        }));
        let taken = buckets.take(limit, who, &headers);
        assert_eq!(taken.wait.is_none(), may, "{who} {header:?}");
    };
    let by_identity = limit(1, 3600, 0, Some(WireBy::Identity(())));
    check(&by_identity, &alice, None, true);
    check(&by_identity, &alice, Some("u"), false);
    check(&by_identity, &bob, None, true);
    let mut other = limit(1, 3600, 0, Some(WireBy::Header("X-User".into())));
    other.route = "HTTPRoute shop/other".into();
    check(&other, &alice, Some("u"), true);
    check(&other, &bob, Some("u"), false);
    check(&other, &bob, Some("v"), true);
    check(&other, &bob, None, true);
    check(&other, &alice, None, false);
    let mut all = limit(1, 3600, 0, None);
    all.route = "HTTPRoute shop/all".into();
    check(&all, &alice, Some("u"), true);
    check(&all, &bob, Some("v"), false);
}

#[test]
fn a_push_of_the_same_route_fills_no_bucket() {
    let buckets = Buckets::default();
    assert_eq!(buckets.take_at(&limit(1, 60, 0, None), b"", 0).wait, None);
    assert!(
        buckets
            .take_at(&limit(1, 60, 0, None), b"", 0)
            .wait
            .is_some()
    );
}

#[test]
fn invented_clients_share_what_is_left_and_room_is_made_once_buckets_are_full() {
    let (limit, buckets) = (limit(1, 60, 0, None), Buckets::default());
    let mut refused = 0;
    for client in 0..3 * MOST {
        let taken = buckets.take_at(&limit, &client.to_be_bytes(), 0);
        refused += usize::from(taken.wait.is_some());
    }
    assert!(buckets.count() <= MOST, "{}", buckets.count());
    // One of all that share a bucket may come.
    assert!(refused >= 2 * MOST - 1, "{refused}");
    let later = buckets.take_at(&limit, b"somebody new", 61 * SECOND);
    assert_eq!(later.wait, None);
    assert!(buckets.count() < MOST);
}

#[test]
fn the_client_is_told_in_whole_seconds() {
    let (limit, buckets) = (limit(1, 90, 2, None), Buckets::default());
    let tell = |now| {
        let mut headers = HeaderMap::new();
        buckets.take_at(&limit, b"", now).tell(&mut headers);
        [
            "x-ratelimit-limit",
            "x-ratelimit-remaining",
            "x-ratelimit-reset",
            "retry-after",
        ]
        .map(|name| {
            headers
                .get(name)
                .map(|value| value.to_str().unwrap().to_owned())
        })
    };
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(tell(0), [some("2"), some("1"), some("90"), None]);
    assert_eq!(tell(1), [some("2"), some("0"), some("180"), None]);
    assert_eq!(tell(2), [some("2"), some("0"), some("180"), some("90")]);
}

#[test]
fn what_is_no_limit_is_refused_by_name() {
    let check = |change: fn(&mut wire::RateLimit), words: &str| {
        let mut wire = wire::RateLimit {
            requests: 1,
            per: Some(prost_types::Duration {
                seconds: 1,
                nanos: 0,
            }),
            ..wire::RateLimit::default()
        };
        change(&mut wire);
        let error = RateLimit::compile("r".into(), &wire).unwrap_err();
        assert!(error.contains(words), "{error}");
    };
    check(
        |wire| wire.requests = 0,
        "rate_limit.requests 0 is not from 1 to 1000000",
    );
    check(|wire| wire.burst = 1_000_001, "rate_limit.burst");
    check(|wire| wire.per = None, "rate_limit.per");
    check(
        |wire| {
            wire.per = Some(prost_types::Duration {
                seconds: -1,
                nanos: 0,
            })
        },
        "rate_limit.per",
    );
    check(
        |wire| wire.by = Some(WireBy::Header("a b".into())),
        "rate_limit.header",
    );
}

proptest! {
    /// In any time no more pass than a burst and what the rate gives for that time.
    #[test]
    fn no_more_than_the_rate_passes(
        requests in 1u32..50, burst in 1u32..50,
        steps in prop::collection::vec(0u64..SECOND / 4, 1..200),
    ) {
        let (limit, buckets) = (limit(requests, 1, burst, None), Buckets::default());
        let (mut now, mut passed) = (0, 0u64);
        for step in steps {
            now += step;
            let taken = buckets.take_at(&limit, b"", now);
            prop_assert!(taken.remaining <= burst);
            passed += u64::from(taken.wait.is_none());
            prop_assert!(passed <= u64::from(burst) + now / limit.rate.every, "{passed} by {now}");
            if let Some(wait) = taken.wait {
                // Who waits as long as it was told may come.
                let mut bucket = Bucket(now + nanoseconds(taken.reset));
                let then = now + nanoseconds(wait);
                prop_assert_eq!(limit.rate.take(&mut bucket, then).wait, None);
            }
        }
    }
}
