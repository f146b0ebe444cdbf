// SPDX-License-Identifier: Apache-2.0
//! CUSTOM policies, and authorizers over gRPC and HTTP that are asked: what they hear, what they change, and what becomes
//! of a request where they are silent.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use parking_lot::Mutex;
use proto::auth::authorization_server::{Authorization, AuthorizationServer};
use proto::auth::check_response::HttpResponse;
use proto::{auth, waypoint as wire};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use waypoint::settings::Settings;
use wire::authorizer::Protocol;

use crate::harness::{World, application, get, host, soon, speaking};
use crate::policies::{path_prefix, policy};

/// An authorizer of the contract's own: it denies what says so, and remembers what it was asked.
#[derive(Clone, Default)]
struct Judge(Arc<Mutex<Vec<auth::CheckRequest>>>);

#[tonic::async_trait]
impl Authorization for Judge {
    async fn check(
        &self,
        request: tonic::Request<auth::CheckRequest>,
    ) -> Result<tonic::Response<auth::CheckResponse>, tonic::Status> {
        let asked = request.into_inner();
        self.0.lock().push(asked.clone());
        let http = asked.attributes.and_then(|one| one.request?.http).unwrap();
        let option = |key: &str, value: &str| auth::HeaderValueOption {
            header: Some(auth::HeaderValue {
                key: key.into(),
                value: value.into(),
                raw_value: Vec::new(),
            }),
            ..auth::HeaderValueOption::default()
        };
        let (code, answer) = match http.headers.get("x-say").map(String::as_str) {
            Some("no") => (
                7,
                HttpResponse::DeniedResponse(auth::DeniedHttpResponse {
                    status: Some(auth::HttpStatus { code: 401 }),
                    headers: vec![option("www-authenticate", "Basic")],
                    body: "who are you".into(),
                }),
            ),
            Some("error") => return Err(tonic::Status::unavailable("out for lunch")),
            Some("never") => std::future::pending().await,
            _ => (
                0,
                HttpResponse::OkResponse(auth::OkHttpResponse {
                    headers: vec![option("x-user", "ann")],
                    headers_to_remove: vec!["x-secret".into()],
                    response_headers_to_add: vec![option("x-judged", "yes")],
                    ..auth::OkHttpResponse::default()
                }),
            ),
        };
        Ok(tonic::Response::new(auth::CheckResponse {
            status: Some(auth::Status {
                code,
                message: String::new(),
            }),
            http_response: Some(answer),
        }))
    }
}

async fn judge() -> (Judge, SocketAddr) {
    let judge = Judge::default();
    let listener = TcpListener::bind(("127.0.0.3", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tonic::transport::Server::builder()
        .add_service(AuthorizationServer::new(judge.clone()))
        .serve_with_incoming(TcpListenerStream::new(listener));
    tokio::spawn(server);
    (judge, address)
}

/// An application whose paths below `/ask` are for this authorizer to allow.
async fn asking(
    at: Option<SocketAddr>,
    protocol: Protocol,
    change: impl FnOnce(&mut wire::Authorizer),
) -> (World, SocketAddr) {
    let mut world = World::new().await;
    let app = application("app").await;
    let to = world.service("app", &[app]);
    if let Some(at) = at {
        world.service("judge", &[at]);
    }
    let mut authorizer = wire::Authorizer {
        name: "judge".into(),
        hostname: host("judge").to_string(),
        port: 80,
        timeout: Some(prost_types::Duration {
            seconds: 0,
            nanos: 500_000_000,
        }),
        protocol: Some(protocol),
        ..wire::Authorizer::default()
    };
    change(&mut authorizer);
    let settings = Settings::compile(&wire::Waypoint {
        authorizers: vec![authorizer],
        explain: true,
        ..wire::Waypoint::default()
    });
    world.state.update_settings(Some(settings.unwrap()));
    let custom = |name: &str, path: &str| wire::Policy {
        authorizer: "judge".into(),
        ..policy(name, wire::PolicyAction::Custom, &[&[path_prefix(path)]])
    };
    let tried = wire::Policy {
        dry_run: true,
        ..custom("try", "/try")
    };
    let custom = custom("ask", "/ask");
    let deny = policy(
        "never",
        wire::PolicyAction::Deny,
        &[&[path_prefix("/ask/never")]],
    );
    world.serve_under(
        "app",
        wire::Protocol::Http1,
        vec![],
        vec![custom, tried, deny],
    );
    (world, to)
}

fn ask(say: &str) -> Request<Full<Bytes>> {
    let mut request = get("/ask?q=1");
    for (name, value) in [
        ("x-say", say),
        ("x-secret", "s"),
        ("x-user", "liar"),
        ("x-forwarded-client-cert", "By=liar"),
    ] {
        let name: http::HeaderName = name.parse().unwrap();
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    request
}

/// What a policy in dry run is told changes nothing.
#[tokio::test]
async fn who_is_tried_out_is_asked_and_changes_nothing() {
    let (judge, at) = judge().await;
    let (world, to) = asking(Some(at), Protocol::Grpc(()), |_| {}).await;
    for (say, result) in [("yes", "allowed"), ("no", "denied"), ("error", "denied")] {
        let mut request = ask(say);
        *request.uri_mut() = "/try".parse().unwrap();
        let answer = world.ask(to, request).await;
        assert_eq!(answer.status, 200, "{say}");
        assert_eq!(answer.header("x-judged"), "", "{say}");
        assert_eq!(answer.seen()["headers"]["x-user"], "liar", "{say}");
        assert_eq!(judge.0.lock().len(), 1, "{say}");
        judge.0.lock().clear();
        if result == "denied" {
            let denied = [
                "culvert_authorization_decisions_total",
                "mode=\"dry-run\"",
                "policy=\"shop/try\"",
                "result=\"denied\"",
            ];
            world.until_counted(&denied).await;
        }
    }
}

fn posting(bytes: usize) -> Request<Full<Bytes>> {
    Request::post("/ask")
        .header("host", "app.shop")
        .body(Full::from(vec![b'x'; bytes]))
        .unwrap()
}

#[tokio::test]
async fn who_is_asked_over_grpc_hears_of_the_request_and_its_answer_holds() {
    let (judge, at) = judge().await;
    let (world, to) = asking(Some(at), Protocol::Grpc(()), |_| {}).await;
    assert_eq!(world.get(to, "/").await.status, 200);
    assert_eq!(judge.0.lock().len(), 0, "no rule asked for it");

    let answer = world.ask(to, ask("yes")).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("x-judged"), "yes");
    let seen = answer.seen();
    assert_eq!(seen["headers"]["x-user"], "ann");
    assert_eq!(seen["headers"].get("x-secret"), None);
    let asked = judge.0.lock().pop().unwrap();
    let attributes = asked.attributes.unwrap();
    let source = attributes.source.unwrap();
    assert_eq!(source.principal, crate::harness::CLIENT);
    let http = attributes.request.unwrap().http.unwrap();
    assert_eq!(
        (&*http.path, &*http.host, &*http.method),
        ("/ask?q=1", "app.shop", "GET")
    );
    let cert = &http.headers["x-forwarded-client-cert"];
    assert!(
        cert.ends_with(&format!("URI={}", crate::harness::CLIENT)),
        "{cert}"
    );

    let answer = world.ask(to, ask("no")).await;
    assert_eq!((answer.status, &*answer.body), (401, "who are you"));
    assert_eq!(answer.header("www-authenticate"), "Basic");
    let words = answer.header("x-culvert-policy");
    assert_eq!(
        words,
        "denied by policy shop/ask rule 0: authorizer \"judge\": it answered 401"
    );
    for parts in [
        [
            "istio_requests_total",
            "response_code=\"401\"",
            "response_flags=\"UAEX\"",
        ],
        [
            "culvert_authorizer_questions_total",
            "authorizer=\"judge\"",
            "result=\"denied\"",
        ],
        [
            "culvert_authorization_decisions_total",
            "policy=\"shop/ask\"",
            "result=\"denied\"",
        ],
    ] {
        world.until_counted(&parts).await;
    }
    let refusals = world.refusals();
    assert_eq!(
        (refusals[0].flag, refusals.len()),
        ("UAEX", 1),
        "{refusals:?}"
    );

    let mut request = ask("no");
    let grpc = "application/grpc".parse().unwrap();
    request.headers_mut().insert("content-type", grpc);
    let answer = world.ask(to, request).await;
    assert_eq!((answer.status, answer.header("grpc-status")), (200, "16"));
    assert_eq!(answer.header("grpc-message"), "who are you");

    // What it allows, another policy may deny.
    assert_eq!(world.get(to, "/ask/never").await.status, 403);
}

#[tokio::test]
async fn without_an_answer_requests_are_denied_or_pass_as_is_wanted() {
    let (_judge, at) = judge().await;
    let (world, to) = asking(Some(at), Protocol::Grpc(()), |one| {
        one.status_on_error = 503
    })
    .await;
    for (say, words) in [
        ("error", "gRPC status 14: out for lunch"),
        ("never", "no answer within 500ms"),
    ] {
        let answer = world.ask(to, ask(say)).await;
        assert_eq!(
            (answer.status, &*answer.body),
            (503, "UAEX: not authorized\n")
        );
        let said = answer.header("x-culvert-policy").to_owned();
        assert!(said.contains(words), "{said}");
    }
    world
        .until_counted(&[
            "culvert_authorizer_questions_total",
            "result=\"error\"",
            " 2",
        ])
        .await;

    let (world, to) = asking(Some(at), Protocol::Grpc(()), |one| one.fail_open = true).await;
    assert_eq!(world.ask(to, ask("error")).await.status, 200);
    assert_eq!(world.ask(to, ask("no")).await.status, 401);
    assert_eq!(world.get(to, "/ask/never").await.status, 403);
    world
        .until_counted(&["culvert_authorizer_questions_total", "result=\"passed\""])
        .await;

    // Nobody is there, or nobody that speaks.
    let nobody = TcpListener::bind(("127.0.0.4", 0)).await.unwrap();
    let refusing = nobody.local_addr().unwrap();
    drop(nobody);
    for (at, words) in [
        (None, "no service judge.shop"),
        (Some(refusing), "cannot connect"),
    ] {
        let (world, to) = asking(at, Protocol::Grpc(()), |_| {}).await;
        let answer = world.ask(to, ask("yes")).await;
        assert_eq!(answer.status, 403);
        let said = answer.header("x-culvert-policy").to_owned();
        assert!(said.contains(words), "{said}");
    }
    let (world, to) = asking(None, Protocol::Grpc(()), |one| {
        one.invalid = "is odd".into()
    })
    .await;
    let answer = world.ask(to, ask("yes")).await;
    assert_eq!((answer.status, &*answer.body), (403, "RBAC: access denied"));
}

#[tokio::test]
async fn who_is_asked_over_http_hears_what_it_is_to_hear() {
    let at = speaking(|request: Request<hyper::body::Incoming>| async move {
        let (head, body) = request.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes().len();
        let has = |name: &str| head.headers.contains_key(name);
        let mut response = Response::new(Full::from(format!("{bytes} bytes")));
        let status = match (head.headers.get("x-say"), head.uri.path()) {
            (Some(say), "/check/ask") if say == "no" => 302,
            (_, "/check/ask") if has("x-secret") => 500,
            (_, "/check/ask") => 200,
            _ => 404,
        };
        *response.status_mut() = http::StatusCode::from_u16(status).unwrap();
        let headers = response.headers_mut();
        headers.insert("location", "/login".parse().unwrap());
        headers.insert("x-user", bytes.to_string().parse().unwrap());
        headers.insert("x-own", "1".parse().unwrap());
        response
    })
    .await;
    let exact = |name: &str| wire::Pattern {
        kind: Some(wire::pattern::Kind::Exact(name.into())),
    };
    let protocol = || {
        Protocol::Http(wire::HttpAuthorizer {
            path_prefix: "/check".into(),
            request_headers: vec![exact("x-say")],
            upstream_on_allow: vec![exact("x-user")],
            downstream_on_allow: vec![exact("x-own")],
            downstream_on_deny: vec![exact("x-user")],
            ..wire::HttpAuthorizer::default()
        })
    };
    let (world, to) = asking(Some(at), protocol(), |_| {}).await;
    let answer = world.ask(to, ask("yes")).await;
    assert_eq!((answer.status, answer.header("x-own")), (200, "1"));
    assert_eq!(answer.seen()["headers"]["x-user"], "0");
    let answer = world.ask(to, ask("no")).await;
    assert_eq!((answer.status, &*answer.body), (302, "0 bytes"));
    assert_eq!(answer.header("location"), "/login");
    assert_eq!(answer.header("x-own"), "");

    let body = |allow_partial| wire::AuthorizerBody {
        max_bytes: 1000,
        allow_partial,
        as_bytes: false,
    };
    for (bytes, allow_partial, status, told) in [
        (0, false, 200, "0"),
        (1000, false, 200, "1000"),
        (1001, false, 413, ""),
        (200_000, true, 200, "1000"),
    ] {
        let change = |one: &mut wire::Authorizer| one.body = Some(body(allow_partial));
        let (world, to) = asking(Some(at), protocol(), change).await;
        let answer = soon(world.ask(to, posting(bytes))).await;
        assert_eq!(answer.status, status, "{bytes}");
        if status == 200 {
            let seen = answer.seen();
            assert_eq!(seen["headers"]["x-user"], told);
            assert_eq!(seen["bytes"], bytes, "the endpoint gets all of it");
        }
    }
}

#[tokio::test]
async fn an_authorizer_that_was_restarted_is_asked_anew() {
    let listener = TcpListener::bind(("127.0.0.3", 0)).await.unwrap();
    let at = listener.local_addr().unwrap();
    let serve = |listener: TcpListener| {
        tokio::spawn(
            tonic::transport::Server::builder()
                .add_service(AuthorizationServer::new(Judge::default()))
                .serve_with_incoming(TcpListenerStream::new(listener)),
        )
    };
    let serving = serve(listener);
    let (world, to) = asking(Some(at), Protocol::Grpc(()), |_| {}).await;
    assert_eq!(world.ask(to, ask("yes")).await.status, 200);
    serving.abort();
    // Its connections end with it, at their next turn.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let listener = soon(async {
        loop {
            match TcpListener::bind(at).await {
                Ok(listener) => return listener,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    });
    let _serving = serve(listener.await);
    assert_eq!(world.ask(to, ask("yes")).await.status, 200);
}
