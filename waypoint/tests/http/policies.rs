// SPDX-License-Identifier: Apache-2.0
//! Requests and bytes under policies: who passes, what the others are told, and what is told of them.

use std::net::SocketAddr;

use http::Request;
use http_body_util::Full;
use proto::waypoint as wire;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use waypoint::settings::Settings;
use wire::pattern::Kind;

use crate::harness::{World, application, get, soon};

pub(crate) fn condition(attribute: wire::Attribute, kind: Kind) -> wire::Condition {
    wire::Condition {
        attribute: attribute.into(),
        patterns: vec![wire::Pattern { kind: Some(kind) }],
        ..wire::Condition::default()
    }
}

pub(crate) fn policy(
    name: &str,
    action: wire::PolicyAction,
    rules: &[&[wire::Condition]],
) -> wire::Policy {
    let rules = rules
        .iter()
        .zip(0..)
        .map(|(conditions, index)| wire::PolicyRule {
            index,
            clauses: conditions
                .iter()
                .map(|condition| wire::PolicyClause {
                    matches: vec![wire::PolicyMatch {
                        conditions: vec![condition.clone()],
                    }],
                })
                .collect(),
        });
    wire::Policy {
        namespace: "shop".into(),
        name: name.into(),
        action: action.into(),
        rules: rules.collect(),
        ..wire::Policy::default()
    }
}

pub(crate) fn path_prefix(prefix: &str) -> wire::Condition {
    condition(wire::Attribute::Path, Kind::Prefix(prefix.into()))
}

async fn under(policies: Vec<wire::Policy>, protocol: wire::Protocol) -> (World, SocketAddr) {
    let mut world = World::new().await;
    let app = application("app").await;
    let to = world.service("app", &[app]);
    world.serve_under("app", protocol, vec![], policies);
    (world, to)
}

#[tokio::test]
async fn a_denied_request_is_told_so_and_nothing_more_and_the_rule_is_counted() {
    let deny = policy(
        "no-admin",
        wire::PolicyAction::Deny,
        &[&[path_prefix("/admin")]],
    );
    let (world, to) = under(vec![deny], wire::Protocol::Http1).await;
    assert_eq!(world.get(to, "/public").await.status, 200);
    for path in ["/admin", "/x/../admin/y", r"/x\..\admin"] {
        let answer = world.get(to, path).await;
        assert_eq!(answer.status, 403, "{path}");
        assert_eq!(answer.body, "RBAC: access denied");
        assert_eq!(answer.header("content-type"), "text/plain");
        assert!(answer.headers.get("x-culvert-policy").is_none());
    }
    let decisions = "culvert_authorization_decisions_total";
    let counted = [
        decisions,
        "policy=\"shop/no-admin\"",
        "rule=\"0\"",
        "result=\"denied\"",
    ];
    world.until_counted(&counted).await;
    world
        .until_counted(&[
            "istio_requests_total",
            "response_code=\"403\"",
            "response_flags=\"DENY\"",
        ])
        .await;
    let mut request = get("/admin");
    request
        .headers_mut()
        .insert("content-type", "application/grpc".parse().unwrap());
    let answer = world.ask(to, request).await;
    assert_eq!((answer.status, answer.header("grpc-status")), (200, "7"));
    assert_eq!(answer.header("grpc-message"), "RBAC: access denied");
}

#[tokio::test]
async fn policies_are_those_of_the_moment_and_of_waypoint_and_service_together() {
    let method = |method: &str| condition(wire::Attribute::Method, Kind::Exact(method.into()));
    let allow = policy("gets", wire::PolicyAction::Allow, &[&[method("GET")]]);
    let (world, to) = under(vec![allow.clone()], wire::Protocol::Http1).await;
    let put = || {
        Request::put("/")
            .header("host", "app")
            .body(Full::default())
            .unwrap()
    };
    assert_eq!(world.get(to, "/").await.status, 200);
    assert_eq!(world.ask(to, put()).await.status, 403);
    let whole = wire::Waypoint {
        policies: vec![policy(
            "puts",
            wire::PolicyAction::Allow,
            &[&[method("PUT")]],
        )],
        explain: true,
        ..wire::Waypoint::default()
    };
    let settings = Settings::compile(&whole).unwrap();
    world.state.update_settings(Some(settings));
    let answer = world.ask(to, put()).await;
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.header("x-culvert-policy"),
        "allowed by policy shop/puts rule 0"
    );
    world.state.update_settings(None);
    let stream = world.try_connect(to).await;
    assert!(stream.is_err_and(|error| error.contains("503")));
}

#[tokio::test]
async fn a_policy_that_is_tried_out_lets_pass_and_says_what_it_would_do() {
    let tried = wire::Policy {
        dry_run: true,
        ..policy("later", wire::PolicyAction::Deny, &[&[]])
    };
    let (world, to) = under(vec![tried], wire::Protocol::Http1).await;
    assert_eq!(world.get(to, "/").await.status, 200);
    let counted = [
        "mode=\"dry-run\"",
        "policy=\"shop/later\"",
        "result=\"denied\"",
    ];
    world.until_counted(&counted).await;
}

#[tokio::test]
async fn what_asks_an_authorizer_that_there_is_not_is_denied() {
    let custom = wire::Policy {
        authorizer: "none".into(),
        ..policy("ask", wire::PolicyAction::Custom, &[&[path_prefix("/ask")]])
    };
    let (world, to) = under(vec![custom], wire::Protocol::Http1).await;
    assert_eq!(world.get(to, "/").await.status, 200);
    assert_eq!(world.get(to, "/ask").await.status, 403);
}

#[tokio::test]
async fn bytes_pass_only_where_no_rule_needs_a_request() {
    let namespace =
        |name: &str| condition(wire::Attribute::SourceNamespace, Kind::Exact(name.into()));
    for (policy, passes) in [
        (
            policy("p", wire::PolicyAction::Allow, &[&[namespace("shop")]]),
            true,
        ),
        (
            policy("p", wire::PolicyAction::Allow, &[&[path_prefix("/")]]),
            false,
        ),
        (
            policy("p", wire::PolicyAction::Deny, &[&[path_prefix("/x")]]),
            false,
        ),
        (
            policy(
                "p",
                wire::PolicyAction::Deny,
                &[&[namespace("evil"), path_prefix("/x")]],
            ),
            true,
        ),
    ] {
        for protocol in [wire::Protocol::Tcp, wire::Protocol::Detect] {
            let mut world = World::new().await;
            let app = crate::harness::echo().await;
            let to = world.service("app", &[app]);
            world.serve_under("app", protocol, vec![], vec![policy.clone()]);
            let arrived = match world.try_connect(to).await {
                Err(error) => {
                    assert!(error.contains("403"), "{error}");
                    assert_eq!(protocol, wire::Protocol::Tcp);
                    false
                }
                Ok(mut stream) => {
                    stream.write_all(b"\x16\x03\x01 no request").await.unwrap();
                    let mut back = [0; 4];
                    soon(stream.read_exact(&mut back)).await.is_ok()
                }
            };
            assert_eq!(arrived, passes, "{policy:?} {protocol:?}");
        }
    }
}

#[tokio::test]
async fn a_connection_that_carries_bytes_ends_with_the_policy_that_allowed_it() {
    let mut world = World::new().await;
    let app = crate::harness::echo().await;
    let to = world.service("app", &[app]);
    world.serve_under("app", wire::Protocol::Tcp, vec![], vec![]);
    let mut stream = world.connect(to).await;
    stream.write_all(b"ping").await.unwrap();
    let mut back = [0; 4];
    soon(stream.read_exact(&mut back)).await.unwrap();
    let deny = policy("end", wire::PolicyAction::Deny, &[&[path_prefix("/")]]);
    world.serve_under("app", wire::Protocol::Tcp, vec![], vec![deny]);
    let stopped = world.decide_again();
    assert_eq!(stopped, 1);
    assert!(soon(stream.read_exact(&mut back)).await.is_err());
}

#[tokio::test]
async fn what_lets_nothing_pass_to_a_pod_says_so_to_requests_and_to_bytes() {
    let world = World::new().await;
    let to = world.pod("alone", application("alone").await);
    let closed = |requests_only| {
        let settings = Settings::compile(&wire::Waypoint {
            closures: vec![wire::Closure {
                why: "the plugin is not run".into(),
                ports: vec![to.port().into()],
                requests_only,
            }],
            ..wire::Waypoint::default()
        });
        world.state.update_settings(Some(settings.unwrap()));
    };
    assert_eq!(world.get(to, "/").await.seen()["app"], "alone");
    for requests_only in [true, false] {
        closed(requests_only);
        let answer = world.get(to, "/").await;
        assert_eq!(
            (answer.status, &*answer.body),
            (500, "the plugin is not run\n")
        );
    }
    // Bytes are no requests.
    closed(true);
    let bytes = b"no request at all, and long enough to be none\r\n\r\n";
    let mut stream = world.connect(to).await;
    stream.write_all(bytes).await.unwrap();
    let mut heard = Vec::new();
    let _ = soon(stream.read_to_end(&mut heard)).await;
    assert!(
        heard.starts_with(b"HTTP/1.1 400"),
        "the application's own word"
    );
    closed(false);
    let mut stream = world.connect(to).await;
    stream.write_all(bytes).await.unwrap();
    let read = soon(stream.read(&mut [0; 10])).await;
    assert!(read.is_err(), "{read:?}");
    let refused = ["culvert_connections_refused_total", "DENY", "} 1"];
    world.until_counted(&refused).await;
}
