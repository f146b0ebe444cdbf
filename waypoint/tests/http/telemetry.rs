// SPDX-License-Identifier: Apache-2.0
//! How much a route takes, and what is told of requests beyond the answers.

use http::Request;
use http_body_util::Full;
use proto::waypoint::{
    Destination, HttpBackend, HttpMatch, HttpRoute, HttpRule, PathMatch, Protocol, RateLimit,
    RouteTable, http_backend::Target, path_match::Kind, rate_limit::By,
};

use waypoint::record::Wish;

use crate::harness::{World, application, get, host, soon};

fn limited(limit: Option<RateLimit>) -> RouteTable {
    let rule = |prefix: &str| HttpRule {
        matches: vec![HttpMatch {
            path: Some(PathMatch {
                kind: Some(Kind::Prefix(prefix.into())),
            }),
            ..HttpMatch::default()
        }],
        backends: vec![HttpBackend {
            weight: 1,
            target: Some(Target::Destination(Destination {
                namespace: "shop".into(),
                hostname: host("app").to_string(),
                port: 80,
                protocol: Protocol::Http1.into(),
                traffic_policy: None,
            })),
            filters: vec![],
        }],
        ..HttpRule::default()
    };
    RouteTable {
        http: vec![HttpRoute {
            kind: "HTTPRoute".into(),
            namespace: "shop".into(),
            name: "limited".into(),
            created: 1,
            rules: vec![rule("/a"), rule("/b")],
            rate_limit: limit,
        }],
        ..RouteTable::default()
    }
}

fn hourly(requests: u32, by: Option<By>) -> RateLimit {
    RateLimit {
        requests,
        per: Some(prost_types::Duration {
            seconds: 3600,
            nanos: 0,
        }),
        burst: 0,
        by,
    }
}

#[tokio::test]
async fn a_route_takes_as_many_requests_as_it_says_and_tells_when_it_takes_more() {
    let mut world = World::new().await;
    let to = world.service("app", &[application("one").await]);
    let serve = |limit| world.serve_tables("app", Protocol::Http1, vec![limited(limit)], None);
    serve(Some(hourly(2, None)));
    let first = world.get(to, "/a").await;
    assert_eq!((first.status, first.header("x-app")), (200, "one"));
    let told = [
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
        "retry-after",
    ];
    assert_eq!(told.map(|name| first.header(name)), ["2", "1", "1800", ""]);
    // Another rule of the same route.
    assert_eq!(
        world.get(to, "/b").await.header("x-ratelimit-remaining"),
        "0"
    );
    let refused = world.get(to, "/a").await;
    assert_eq!(refused.status, 429, "{refused:?}");
    assert_eq!(refused.body, "RL: too many requests\n");
    assert_eq!(
        told.map(|name| refused.header(name)),
        ["2", "0", "3600", "1800"]
    );
    let route = "route=\"HTTPRoute shop/limited\"";
    world
        .until_counted(&["culvert_rate_limited_requests_total{", route, "} 1"])
        .await;
    world
        .until_counted(&[
            "istio_requests_total{",
            "response_code=\"429\"",
            "response_flags=\"RL\"",
        ])
        .await;
    // A push of the same fills nothing; one without a limit lifts it.
    serve(Some(hourly(2, None)));
    assert_eq!(world.get(to, "/a").await.status, 429);
    serve(None);
    let free = world.get(to, "/a").await;
    assert_eq!((free.status, free.header("x-ratelimit-limit")), (200, ""));
}

#[tokio::test]
async fn each_value_of_a_header_has_a_limit_of_its_own_and_grpc_is_told_in_its_words() {
    let mut world = World::new().await;
    let to = world.service("app", &[application("one").await]);
    let limit = hourly(1, Some(By::Header("x-key".into())));
    world.serve_tables("app", Protocol::Http1, vec![limited(Some(limit))], None);
    let with = |key: &str, kind: &str| {
        let request = Request::builder().uri("/a").header("host", "app.shop");
        let request = request.header("x-key", key).header("content-type", kind);
        request.body(Full::default()).unwrap()
    };
    for (key, status) in [("k", 200), ("l", 200), ("k", 429), ("l", 429)] {
        assert_eq!(
            world.ask(to, with(key, "text/plain")).await.status,
            status,
            "{key}"
        );
    }
    assert_eq!(world.ask(to, get("/a")).await.status, 200);
    assert_eq!(world.ask(to, get("/a")).await.status, 429);
    let refused = world.ask(to, with("k", "application/grpc")).await;
    assert_eq!((refused.status, refused.header("grpc-status")), (200, "14"));
    assert_ne!(refused.header("retry-after"), "");
}

#[tokio::test]
async fn a_limit_that_cannot_be_honoured_lets_nobody_in() {
    let mut world = World::new().await;
    let to = world.service("app", &[application("one").await]);
    world.serve_tables(
        "app",
        Protocol::Http1,
        vec![limited(Some(hourly(0, None)))],
        None,
    );
    let refused = world.get(to, "/a").await;
    assert_eq!(
        (refused.status, refused.body.as_str()),
        (500, "the route can't be followed\n")
    );
    // Why is for who runs the waypoint: in log and configuration dump.
    let mut grpc = get("/a");
    let kind = "application/grpc".parse().unwrap();
    grpc.headers_mut().insert("content-type", kind);
    let refused = world.ask(to, grpc).await;
    assert_eq!(
        refused.header("grpc-message"),
        "the route can't be followed"
    );
}

#[tokio::test]
async fn who_looks_on_sees_the_requests_that_were_asked_for_as_they_end() {
    let mut world = World::new().await;
    let to = world.service("app", &[application("one").await]);
    world.serve_tables("app", Protocol::Http1, vec![limited(None)], None);
    let watchers = world.process().recorder.watchers();
    let wish = |key: &str, value: &str| Wish::read(&[(key.into(), value.into())]).unwrap();
    let mut all = watchers.watch(wish("source", "sa/client")).unwrap();
    let mut failed = watchers.watch(wish("status", "4xx")).unwrap();
    assert_eq!(world.get(to, "/a?b=c").await.status, 200);
    assert_eq!(world.get(to, "/nowhere").await.status, 404);
    let (first, second) = (
        soon(all.recv()).await.unwrap(),
        soon(all.recv()).await.unwrap(),
    );
    let first: serde_json::Value = serde_json::from_slice(&first).unwrap();
    for (key, value) in [
        ("method", "GET"),
        ("path", "/a?b=c"),
        ("authority", "app.shop"),
        ("flags", "-"),
        ("service", "app.shop.svc.cluster.local"),
        ("route", "HTTPRoute shop/limited rule #0"),
    ] {
        assert_eq!(first[key], value, "{first}");
    }
    assert_eq!(
        (&first["status"], &first["attempts"]),
        (&200.into(), &1.into())
    );
    assert_eq!(soon(failed.recv()).await.unwrap(), second);
    let second: serde_json::Value = serde_json::from_slice(&second).unwrap();
    assert_eq!(
        (&second["status"], &second["flags"]),
        (&404.into(), &"NR".into())
    );
    let [(_, routes), _] = world.process().recorder.by_rule();
    let counted = "route=\"HTTPRoute shop/limited rule #0\",response_code_class=\"2xx\"";
    assert_eq!(routes.get(counted), Some(&1), "{routes:?}");
}
