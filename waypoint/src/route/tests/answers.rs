// SPDX-License-Identifier: Apache-2.0
//! What a rule's filters, backends, sessions and faults make of a request.

use std::time::Duration;

use mesh::Endpoint;
use proto::waypoint::http_filter::Kind;
use proto::waypoint::{
    Cors, Header, HeaderModifier, Mirror, Retry, Rewrite, SessionPersistence, Timeouts,
};

use super::*;
use crate::resilience::retry::RetryPolicy;

fn header(name: &str, value: &str) -> Header {
    Header {
        name: name.into(),
        value: value.into(),
    }
}

fn set(name: &str, value: &str) -> HeaderModifier {
    HeaderModifier {
        set: vec![header(name, value)],
        ..HeaderModifier::default()
    }
}

fn table_of(rule: HttpRule) -> HttpTable {
    HttpTable::compile(&[route("r", [rule])])
}

#[track_caller]
fn forwarded<'t>(table: &'t HttpTable, asked: &Asked) -> Forward<'t> {
    match table.answer(&asked.request(), NOW, &mut rng()) {
        Answer::Forward(forward) => forward,
        other => panic!("{other:?}"),
    }
}

/// Why it is refused, in words.
#[track_caller]
fn refused(table: &HttpTable, request: &str) -> String {
    match table.answer(&Asked::new(request).request(), NOW, &mut rng()) {
        Answer::Refuse { reason, rule } => {
            assert_eq!(reason.status(), 500);
            assert!(rule.is_some());
            reason.to_string()
        }
        other => panic!("{other:?}"),
    }
}

/// W02, R05, R06, R09, M06, M08, M22: filters of the rule, then those of the backend that was drawn.
#[test]
fn filters_follow_the_backend() {
    let mut rule = rule("/ -> v1*10 v2*10");
    rule.filters
        .push(filter(Kind::RequestHeaders(set("rule", "r"))));
    rule.filters.push(filter(Kind::Rewrite(Rewrite {
        hostname: "test.example.org".into(),
        path: None,
    })));
    for backend in &mut rule.backends {
        let Some(http_backend::Target::Destination(to)) = &backend.target else {
            unreachable!()
        };
        let edit = set("backend", &to.hostname);
        backend.filters.push(filter(Kind::RequestHeaders(edit)));
    }
    let table = table_of(rule);
    let asked = Asked::new("/ rule:sent");
    let mut rng = rng();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..100 {
        let Answer::Forward(forward) = table.answer(&asked.request(), NOW, &mut rng) else {
            panic!()
        };
        let mut headers = asked.headers.clone();
        forward.edit_request(&mut headers);
        assert_eq!(headers["backend"], *forward.destination.hostname);
        assert_eq!(headers["rule"], "r");
        assert_eq!(forward.host().unwrap(), "test.example.org");
        seen.insert(forward.destination.hostname.clone());
    }
    assert_eq!(seen.len(), 2);
}

/// Y08, M18: both directions in one rule; on the way back the rule has the last word.
#[test]
fn requests_and_responses_are_edited() {
    let mut rule = rule("/ -> v1");
    rule.filters
        .push(filter(Kind::RequestHeaders(set("to", "backend"))));
    rule.filters
        .push(filter(Kind::ResponseHeaders(set("by", "rule"))));
    rule.backends[0]
        .filters
        .push(filter(Kind::ResponseHeaders(HeaderModifier {
            set: vec![header("by", "backend"), header("also", "backend")],
            ..HeaderModifier::default()
        })));
    let table = table_of(rule);
    let forward = forwarded(&table, &Asked::new("/"));
    let mut request = HeaderMap::new();
    forward.edit_request(&mut request);
    assert_eq!(
        (&request["to"], request.len()),
        (&HeaderValue::from_static("backend"), 1)
    );
    let mut response = HeaderMap::new();
    forward.response_edits().apply(&mut response);
    assert_eq!(
        (&response["by"], &response["also"]),
        (
            &HeaderValue::from_static("rule"),
            &HeaderValue::from_static("backend")
        )
    );
    assert_eq!(response.len(), 2);
}

/// N01-N04.
#[test]
fn copies_are_drawn_each_for_itself() {
    let mirror = |name: &str, numerator, denominator| {
        let destination = Some(destination(name, 80));
        filter(Kind::Mirror(Mirror {
            destination,
            numerator,
            denominator,
        }))
    };
    let mut rule = rule("/mirror -> v1");
    rule.filters = vec![
        mirror("v2", 100, 100),
        mirror("v3", 25, 50),
        filter(Kind::Mirror(Mirror::default())),
    ];
    rule.backends[0].filters.push(mirror("v4", 35, 100));
    let table = table_of(rule);
    let forward = forwarded(&table, &Asked::new("/mirror"));
    assert_eq!(&*forward.destination.hostname, "v1");
    let mut rng = rng();
    let mut counts = HashMap::<&str, u32>::new();
    for _ in 0..5000 {
        for copy in forward.mirrors(&mut rng) {
            *counts.entry(&copy.hostname).or_default() += 1;
        }
    }
    assert_eq!(counts["v2"], 5000);
    assert!((2300..2700).contains(&counts["v3"]), "{counts:?}");
    assert!((1600..1900).contains(&counts["v4"]), "{counts:?}");
    assert_eq!(counts.len(), 3);
}

#[test]
fn scripts_are_answered_before_backends() {
    let cors = Cors {
        allow_origins: vec!["https://shop.example".into()],
        allow_methods: vec!["PUT".into()],
        ..Cors::default()
    };
    let mut on_rule = rule("/ -> invalid-gone");
    on_rule.filters.push(filter(Kind::Cors(cors.clone())));
    let mut on_backend = rule("/ -> v1");
    on_backend.backends[0]
        .filters
        .push(filter(Kind::Cors(cors)));
    const PREFLIGHT: &str = "OPTIONS / access-control-request-method:PUT";
    for table in [table_of(on_rule.clone()), table_of(on_backend.clone())] {
        assert_eq!(
            outcome(&table, &format!("{PREFLIGHT} origin:https://shop.example")),
            "204"
        );
        assert_eq!(
            outcome(&table, &format!("{PREFLIGHT} origin:https://evil.example")),
            "403"
        );
    }
    assert_eq!(
        outcome(&table_of(on_rule), "GET / origin:https://shop.example"),
        "500"
    );
    // O05, O06: a plain request goes on; the response says whether the script may read it.
    let table = table_of(on_backend);
    for (origin, granted) in [
        ("https://shop.example", true),
        ("https://evil.example", false),
    ] {
        let forward = forwarded(&table, &Asked::new(&format!("GET / origin:{origin}")));
        let mut response = HeaderMap::new();
        forward.response_edits().apply(&mut response);
        assert_eq!(
            response.contains_key("access-control-allow-origin"),
            granted,
            "{origin}"
        );
    }
}

#[test]
fn limits_and_retries_are_told() {
    let second = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    let mut limited = rule("/ -> v1");
    limited.timeouts = Some(Timeouts {
        request: second(3),
        backend_request: second(0),
    });
    limited.retry = Some(Retry {
        attempts: 3,
        codes: vec![500],
        backoff: None,
    });
    let table = HttpTable::compile(&[route("r", [limited, rule("/plain -> v1")])]);
    let forward = forwarded(&table, &Asked::new("/"));
    assert_eq!(forward.timeouts.request, Some(Duration::from_secs(3)));
    assert_eq!(forward.timeouts.attempt, None);
    assert_eq!(forward.retry.attempts, 3);
    let plain = forwarded(&table, &Asked::new("/plain"));
    assert_eq!(*plain.retry, RetryPolicy::safe());
    assert_eq!(plain.timeouts.request, None);
}

#[test]
fn a_session_goes_before_weights() {
    let mut rule = rule("/ -> v1*1 v2*1 invalid-it*1");
    rule.session_persistence = Some(SessionPersistence::default());
    let table = table_of(rule);
    let endpoint = Endpoint {
        workload: "pod-7".into(),
        port: 8080,
    };
    let mut rng = rng();
    for name in ["v1", "v2"] {
        let to = Destination::compile(&destination(name, 8080)).unwrap();
        let mut response = HeaderMap::new();
        let first = loop {
            if let Answer::Forward(forward) =
                table.answer(&Asked::new("/").request(), NOW, &mut rng)
            {
                break forward;
            }
        };
        assert_eq!(first.pin, None);
        first
            .session
            .unwrap()
            .write(None, &to, &endpoint, NOW, &mut response);
        let cookie = response["set-cookie"]
            .to_str()
            .unwrap()
            .split(';')
            .next()
            .unwrap();
        let mut asked = Asked::new("/");
        asked.headers.insert("cookie", cookie.parse().unwrap());
        for _ in 0..20 {
            let Answer::Forward(again) = table.answer(&asked.request(), NOW, &mut rng) else {
                panic!()
            };
            assert_eq!(&*again.destination.hostname, name);
            assert!(again.pin.unwrap().is_at(&endpoint));
        }
    }
    // Where it led is gone: drawn anew, without a pin.
    let gone = Destination::compile(&destination("v3", 8080)).unwrap();
    let mut response = HeaderMap::new();
    let session = forwarded(&table, &Asked::new("/")).session.unwrap();
    session.write(None, &gone, &endpoint, NOW, &mut response);
    let mut asked = Asked::new("/");
    let cookie = response["set-cookie"]
        .to_str()
        .unwrap()
        .split(';')
        .next()
        .unwrap();
    asked.headers.insert("cookie", cookie.parse().unwrap());
    assert_eq!(forwarded(&table, &asked).pin, None);
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
            "the route's rule is invalid: session persistence: \"a b\" is no name",
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
