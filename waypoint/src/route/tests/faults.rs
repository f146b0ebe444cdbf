// SPDX-License-Identifier: Apache-2.0
//! What can't be honoured or read, what is meant by what can, and who goes first of equals.

use proto::waypoint::http_filter::Kind;
use proto::waypoint::{Mirror, Retry, Rewrite, SessionPersistence, Timeouts};

use super::*;

/// Why it is refused, in words.
#[track_caller]
fn refused(table: &HttpTable, request: &str) -> String {
    match table.answer(&Asked::new(request).request(), NOW, &mut rng()) {
        Answer::Here(Here::Refuse { reason, rule }) => {
            assert_eq!(reason.status(), 500);
            assert!(rule.is_some());
            reason.to_string()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_cannot_be_honoured_is_answered_and_the_rest_works() {
    let unknown = |name: &str| filter(Kind::Unknown(name.into()));
    let mut bad_filter = rule("/filter -> v1");
    bad_filter.filters.push(unknown("acme.io/Teapot shop/t"));
    let mut bad_backend = rule("/backend -> v1");
    bad_backend.backends[0].filters.push(HttpFilter::default());
    let mut no_target = rule("/target -> v1");
    no_target.backends[0].target = None;
    let mut bad_port = rule("/port -> v1");
    bad_port.backends[0].target =
        Some(http_backend::Target::Destination(destination("v1", 70_000)));
    let mut bad_time = rule("/time -> v1");
    bad_time.timeouts = Some(Timeouts {
        request: Some(prost_types::Duration {
            seconds: -1,
            nanos: 0,
        }),
        backend_request: None,
    });
    let mut bad_retry = rule("/retry -> v1");
    bad_retry.retry = Some(Retry {
        attempts: 1,
        codes: vec![200],
        backoff: None,
    });
    let mut bad_session = rule("/session -> v1");
    bad_session.session_persistence = Some(SessionPersistence {
        name: "a b".into(),
        ..SessionPersistence::default()
    });
    let mut twice = rule("/twice -> v1");
    twice.filters = vec![
        filter(Kind::Rewrite(Rewrite::default())),
        filter(Kind::Rewrite(Rewrite::default())),
    ];
    let mut many = rule("/many -> v1");
    many.filters = vec![filter(Kind::Mirror(Mirror::default())); 17];
    let mut both = rule("/both -> v1");
    both.filters = vec![
        filter(Kind::Redirect(Default::default())),
        filter(Kind::Rewrite(Rewrite::default())),
    ];
    let rules = [
        bad_filter,
        bad_backend,
        no_target,
        bad_port,
        bad_time,
        bad_retry,
        bad_session,
        twice,
        many,
        both,
        rule("/said -> v1 ! the reference is not granted"),
        rule("/none"),
        rule("/zero -> v1*0"),
        rule("/good -> v1"),
    ];
    let table = HttpTable::compile(&[route("r", rules)]);
    for (request, why) in [
        (
            "/filter",
            "the route's rule is invalid: extension acme.io/Teapot shop/t is not known",
        ),
        (
            "/backend",
            "the route's backend is invalid: a filter of an unknown kind",
        ),
        (
            "/target",
            "the route's backend is invalid: it names no target",
        ),
        (
            "/port",
            "the route's backend is invalid: 70000 is not a port",
        ),
        (
            "/time",
            "the route's rule is invalid: the request timeout is negative",
        ),
        (
            "/retry",
            "the route's rule is invalid: retry: 200 is not a status of an error",
        ),
        (
            "/session",
            "the route's rule is invalid: session persistence: \"a b\" is not a cookie's name",
        ),
        (
            "/twice",
            "the route's rule is invalid: more than one rewrite filter",
        ),
        (
            "/many",
            "the route's rule is invalid: 17 filters, more than 16",
        ),
        (
            "/both",
            "the route's rule is invalid: a redirect and a rewrite in one rule",
        ),
        (
            "/said",
            "the route's rule is invalid: the reference is not granted",
        ),
        ("/none", "the route's rule has no backend"),
        ("/zero", "the route's rule has no backend"),
    ] {
        assert_eq!(refused(&table, request), why);
    }
    assert_eq!(outcome(&table, "/good"), "v1");
    assert_eq!(table.problems().count(), 11);
}

/// A condition that can't be read is taken for all that it might be, and no more.
#[test]
fn unreadable_conditions_hold_for_all_that_they_might() {
    let table = table(&[
        "x~( -> v1",
        "?p~( -> v1",
        "~/admin/( -> v1",
        "G(T -> v1",
        "/ -> v2",
        "/known -> v3",
    ]);
    let header = "the route's rule is invalid: header x: expression \"(\": unclosed group";
    assert_eq!(refused(&table, "/ x:1"), header);
    assert_eq!(
        refused(&table, "/?p=1"),
        "the route's rule is invalid: query parameter \"p\": expression \"(\": unclosed group"
    );
    assert_eq!(
        refused(&table, "/admin/a"),
        "the route's rule is invalid: path expression \"/admin/(\": unclosed group"
    );
    for (request, expected) in [
        ("/", "v2"),
        ("/?q=1", "v2"),
        ("/other", "v2"),
        ("/known x:1", "v3"),
    ] {
        assert_eq!(outcome(&table, request), expected, "{request}");
    }
    assert_eq!(table.problems().count(), 4);
}

#[test]
fn values_are_compared_as_they_are_meant() {
    let table = table(&[
        "x:a,b -> joined",
        "?q=a~b -> decoded",
        r"?q~\w+ -> pattern",
        "y~(?i)yes -> cased",
    ]);
    for (request, expected) in [
        ("/ x:a x:b", "joined"),
        ("/ x:a,b", "joined"),
        ("/ x:a", "404"),
        ("/?q=a%7eb", "decoded"),
        ("/?q=a%7Eb&q=c", "decoded"),
        ("/?%71=a~b", "decoded"),
        ("/?q=c&q=a~b", "pattern"),
        ("/?q=%63", "pattern"),
        ("/?q=a+b", "404"),
        ("/?q", "404"),
        ("/?q=%zz", "404"),
        ("/ y:YES", "cased"),
    ] {
        assert_eq!(outcome(&table, request), expected, "{request}");
    }
}

/// Older first, then by name, then by place.
#[test]
fn ties_go_to_the_older_route() {
    let at = |name: &str, created, rules: &[&str]| HttpRoute {
        rate_limit: None,
        created,
        ..route(name, rules.iter().map(|text| rule(text)))
    };
    let table = |routes: &[HttpRoute]| outcome(&HttpTable::compile(routes), "/");
    assert_eq!(
        table(&[at("a", 2, &["/ -> a"]), at("b", 1, &["/ -> b"])]),
        "b"
    );
    assert_eq!(
        table(&[at("b", 1, &["/ -> b"]), at("a", 1, &["/ -> a"])]),
        "a"
    );
    assert_eq!(
        table(&[at("a", 1, &["/ -> first", "/ -> second"])]),
        "first"
    );
}

/// A thousand routes do not make a request's way longer: what is looked at is the same.
#[test]
fn many_routes_are_found_at_once() {
    let routes: Vec<_> = (0..1000)
        .map(|at| {
            route(
                &format!("r{at}"),
                [rule(&format!("/app-{at} or =/exact/{at} -> b{at}"))],
            )
        })
        .collect();
    let table = HttpTable::compile(&routes);
    for at in [0, 1, 500, 999] {
        assert_eq!(outcome(&table, &format!("/app-{at}/x/y")), format!("b{at}"));
        assert_eq!(outcome(&table, &format!("/exact/{at}")), format!("b{at}"));
    }
    assert_eq!(outcome(&table, "/app-1000"), "404");
}
