// SPDX-License-Identifier: Apache-2.0
//! What a rule's filters, backends and sessions make of a request.

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
