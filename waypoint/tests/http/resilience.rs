// SPDX-License-Identifier: Apache-2.0
//! Endpoints that answer with errors, too much at a time, and clients that come back to where they were.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use proto::waypoint::hash_key::From;
use proto::waypoint::http_backend::Target;
use proto::waypoint::load_balancer::{Choice, Simple};
use proto::waypoint::{
    ConnectionLimits, Destination, HashCookie, HashKey, HttpBackend, HttpMatch, HttpRule,
    LoadBalancer, Members, PathMatch, Protocol, Retry, TrafficPolicy,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::harness::{World, application, converse, get, host, soon, speaking};

fn balanced(choice: Choice) -> Option<TrafficPolicy> {
    Some(TrafficPolicy {
        load_balancer: Some(LoadBalancer {
            choice: Some(choice),
            warmup: None,
            locality: None,
        }),
        ..TrafficPolicy::default()
    })
}

fn limited(limits: ConnectionLimits) -> Option<TrafficPolicy> {
    Some(TrafficPolicy {
        limits: Some(limits),
        ..TrafficPolicy::default()
    })
}

#[tokio::test]
async fn an_endpoint_that_answers_with_errors_is_left_alone() {
    let mut world = World::new().await;
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let bad = speaking(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        async {
            let mut response = Response::new(Full::from("broken"));
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            response
        }
    })
    .await;
    let to = world.service("app", &[bad, application("good").await]);
    // In turn, so that nothing but its errors keeps anybody away.
    let in_turn = balanced(Choice::Simple(Simple::RoundRobin.into()));
    world.serve_by("app", Protocol::Http1, vec![], in_turn);
    let mut good = 0;
    for _ in 0..40 {
        good += usize::from(world.get(to, "/").await.status == 200);
    }
    assert_eq!((asked.load(Ordering::SeqCst), good), (5, 35));
    world
        .until_counted(&["culvert_endpoint_ejections_total 1"])
        .await;
}

/// An application that answers once it is let.
async fn held(let_go: &Arc<Semaphore>, asked: &Arc<AtomicUsize>) -> SocketAddr {
    let (let_go, asked) = (Arc::clone(let_go), Arc::clone(asked));
    speaking(move |_: Request<Incoming>| {
        asked.fetch_add(1, Ordering::SeqCst);
        let let_go = Arc::clone(&let_go);
        async move {
            let_go.acquire().await.unwrap().forget();
            Response::new(Full::from("at last"))
        }
    })
    .await
}

async fn until(count: &AtomicUsize, expected: usize) {
    let reached = async {
        while count.load(Ordering::SeqCst) < expected {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    soon(reached).await;
}

#[tokio::test]
async fn what_is_beyond_a_limit_of_requests_is_refused_at_once() {
    let mut world = World::new().await;
    let (let_go, asked) = (Arc::new(Semaphore::new(0)), Arc::default());
    let to = world.service("app", &[held(&let_go, &asked).await]);
    let one = ConnectionLimits {
        requests: 1,
        ..ConnectionLimits::default()
    };
    world.serve_by("app", Protocol::Http1, vec![], limited(one));
    let first = world.get(to, "/");
    let others = async {
        until(&asked, 1).await;
        let refused = world.get(to, "/").await;
        assert_eq!(refused.status, 503, "{refused:?}");
        assert_eq!(refused.header("x-envoy-overloaded"), "true");
        assert!(refused.body.contains("UO"), "{refused:?}");
        let_go.add_permits(2);
    };
    let (first, ()) = tokio::join!(first, others);
    assert_eq!((first.status, first.body.as_str()), (200, "at last"));
    // What was answered counts no more.
    assert_eq!(world.get(to, "/").await.status, 200);
    world
        .until_counted(&["istio_requests_total", "response_flags=\"UO\"", "} 1"])
        .await;
}

#[tokio::test]
async fn parts_of_a_service_have_limits_of_their_own() {
    let mut world = World::new().await;
    let (let_go, asked) = (Arc::new(Semaphore::new(0)), Arc::default());
    let apps = [held(&let_go, &asked).await, application("second").await];
    let to = world.service("app", &apps);
    let part = |number: usize| {
        let mut policy = limited(ConnectionLimits {
            requests: 1,
            ..ConnectionLimits::default()
        });
        if let Some(policy) = &mut policy {
            policy.members = Some(Members {
                name: format!("part-{number}"),
                workloads: vec![format!("c//Pod/shop/app-{number}")],
            });
        }
        let path = proto::waypoint::path_match::Kind::Prefix(format!("/{number}"));
        HttpRule {
            matches: vec![HttpMatch {
                path: Some(PathMatch { kind: Some(path) }),
                ..HttpMatch::default()
            }],
            backends: vec![HttpBackend {
                weight: 1,
                target: Some(Target::Destination(Destination {
                    namespace: "shop".into(),
                    hostname: host("app").to_string(),
                    port: 80,
                    protocol: Protocol::Http1.into(),
                    traffic_policy: policy.map(Box::new),
                })),
                filters: vec![],
            }],
            ..HttpRule::default()
        }
    };
    world.serve("app", Protocol::Http1, vec![part(0), part(1)]);
    let first = world.get(to, "/0");
    let others = async {
        until(&asked, 1).await;
        assert_eq!(world.get(to, "/0").await.status, 503);
        // What one part has to do is nothing to the other.
        assert_eq!(world.get(to, "/1").await.seen()["app"], "second");
        let_go.add_permits(1);
    };
    let (first, ()) = tokio::join!(first, others);
    assert_eq!((first.status, first.body.as_str()), (200, "at last"));
}

#[tokio::test]
async fn requests_wait_for_a_connection_as_far_as_they_may() {
    let mut world = World::new().await;
    let (let_go, asked) = (Arc::new(Semaphore::new(0)), Arc::default());
    let to = world.service("app", &[held(&let_go, &asked).await]);
    let one = ConnectionLimits {
        connections: 1,
        pending: 1,
        ..ConnectionLimits::default()
    };
    world.serve_by("app", Protocol::Http1, vec![], limited(one));
    let world = &world;
    let second = async {
        until(&asked, 1).await;
        world.get(to, "/second").await
    };
    let third = async {
        until(&asked, 1).await;
        // Whichever comes later of the two that wait.
        world.get(to, "/third").await
    };
    let release = async {
        until(&asked, 1).await;
        world
            .until_counted(&["istio_requests_total", "response_flags=\"UO\"", "} 1"])
            .await;
        assert_eq!(asked.load(Ordering::SeqCst), 1, "one connection at a time");
        let_go.add_permits(2);
    };
    let (first, second, third, ()) =
        Box::pin(async { tokio::join!(world.get(to, "/first"), second, third, release) }).await;
    assert_eq!(first.status, 200);
    let mut statuses = [second.status, third.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 503]);
}

/// An endpoint that keeps its connections, and how many it was opened.
async fn keeping(version: Protocol) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(("127.0.0.2", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            let answer = |_| async { Response::new(Full::<Bytes>::from("hi")) };
            match version {
                Protocol::Http2 => {
                    let answer = service_fn(move |asked| answer(asked).map(Ok::<_, Infallible>));
                    let server = http2::Builder::new(TokioExecutor::new());
                    tokio::spawn(server.serve_connection(TokioIo::new(socket), answer));
                }
                _ => {
                    tokio::spawn(converse(socket, answer));
                }
            }
        }
    });
    (address, connections)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_shares_the_few_connections_that_there_may_be() {
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let mut world = World::new().await;
        let (first, at_first) = keeping(protocol).await;
        let (second, at_second) = keeping(protocol).await;
        let to = world.service("app", &[first, second]);
        let few = ConnectionLimits {
            connections: 2,
            ..ConnectionLimits::default()
        };
        world.serve_by("app", protocol, vec![], limited(few));
        let crowd = (0..16).map(|_| async {
            for _ in 0..25 {
                assert_eq!(world.get(to, "/").await.status, 200);
            }
        });
        futures_util::future::join_all(crowd).await;
        let opened = at_first.load(Ordering::SeqCst) + at_second.load(Ordering::SeqCst);
        assert!(opened <= 100, "{protocol:?}: {opened} for 400 requests");
    }
}

#[tokio::test]
async fn a_connection_carries_no_more_requests_than_it_may() {
    let mut world = World::new().await;
    let (address, connections) = keeping(Protocol::Http1).await;
    let to = world.service("app", &[address]);
    let two = ConnectionLimits {
        requests_per_connection: 2,
        ..ConnectionLimits::default()
    };
    world.serve_by("app", Protocol::Http1, vec![], limited(two));
    let mut stream = world.connect(to).await;
    for _ in 0..6 {
        let request = b"GET / HTTP/1.1\r\nhost: app.shop\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut heard = Vec::new();
        while !heard.ends_with(b"hi") {
            assert_ne!(soon(stream.read_buf(&mut heard)).await.unwrap(), 0);
        }
    }
    assert_eq!(connections.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn clients_come_back_by_a_header_or_by_a_cookie_that_is_made() {
    let mut world = World::new().await;
    let applications = [
        application("a").await,
        application("b").await,
        application("c").await,
    ];
    let to = world.service("app", &applications);
    let by = |from| balanced(Choice::Hash(HashKey { from: Some(from) }));
    let header = by(From::Header("x-user".into()));
    world.serve_by("app", Protocol::Http1, vec![], header);
    let with = |name: &str, value: &str| -> Request<Full<Bytes>> {
        let mut request = get("/");
        let name: http::HeaderName = name.parse().unwrap();
        request.headers_mut().insert(name, value.parse().unwrap());
        request
    };
    let mut all = BTreeSet::new();
    for user in 0..100 {
        let user = format!("user-{user}");
        let mut seen = BTreeSet::new();
        for _ in 0..3 {
            let answer = world.ask(to, with("x-user", &user)).await;
            seen.insert(answer.header("x-app").to_owned());
        }
        assert_eq!(seen.len(), 1, "{user}: {seen:?}");
        all.extend(seen);
    }
    assert_eq!(all.len(), 3);

    let cookie = by(From::Cookie(HashCookie {
        name: "place".into(),
        path: String::new(),
        ttl: Some(prost_types::Duration {
            seconds: 60,
            nanos: 0,
        }),
    }));
    world.serve_by("app", Protocol::Http1, vec![], cookie);
    for _ in 0..5 {
        let first = world.get(to, "/").await;
        let (app, cookie) = (first.header("x-app"), first.header("set-cookie"));
        let cookie = cookie.split(';').next().unwrap();
        assert!(cookie.starts_with("place="), "{first:?}");
        for _ in 0..3 {
            let next = world.ask(to, with("cookie", cookie)).await;
            assert_eq!((next.header("x-app"), next.header("set-cookie")), (app, ""));
        }
    }
}

#[tokio::test]
async fn an_endpoint_whose_name_leads_here_is_avoided() {
    let mut world = World::new().await;
    let to = world.service("app", &[]);
    world.named("app", "127.0.0.2");
    world.serve("app", Protocol::Http1, vec![]);
    let refused = world.get(to, "/").await;
    assert_eq!(refused.status, 503);
    assert!(refused.body.contains("UF"), "{refused:?}");
    // Where there is another, it is asked instead.
    let to = world.service("other", &[application("good").await]);
    world.named("other", "127.0.0.2");
    world.serve("other", Protocol::Http1, vec![]);
    for _ in 0..10 {
        assert_eq!(world.get(to, "/").await.status, 200);
    }
}

#[tokio::test]
async fn a_request_is_tried_again_by_the_limits_of_where_it_is_sent() {
    let mut world = World::new().await;
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let backend = speaking(move |_| {
        let before = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            let mut response = Response::new(Full::from("answer"));
            if before < 2 {
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            }
            response
        }
    })
    .await;
    world.service("backend", &[backend]);
    let to = world.service("front", &[]);
    let rule = HttpRule {
        backends: vec![HttpBackend {
            weight: 1,
            target: Some(Target::Destination(Destination {
                namespace: "shop".into(),
                hostname: host("backend").to_string(),
                port: 80,
                protocol: Protocol::Http1.into(),
                traffic_policy: limited(ConnectionLimits {
                    retries: 1,
                    ..ConnectionLimits::default()
                })
                .map(Box::new),
            })),
            filters: vec![],
        }],
        retry: Some(Retry {
            attempts: 3,
            codes: vec![503],
            backoff: None,
        }),
        ..HttpRule::default()
    };
    // One at a time is as many as a request needs.
    world.serve("front", Protocol::Http1, vec![rule]);
    assert_eq!(world.get(to, "/").await.status, 200);
    assert_eq!(asked.load(Ordering::SeqCst), 3);
}

/// An application whose connections answer once, and end where a second request comes. Counts requests.
async fn short_of_breath(asked: &Arc<AtomicUsize>) -> SocketAddr {
    async fn head(stream: &mut tokio::net::TcpStream) -> bool {
        let mut seen = Vec::new();
        while !seen.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            if !matches!(stream.read(&mut byte).await, Ok(1)) {
                return false;
            }
            seen.push(byte[0]);
        }
        true
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::clone(asked);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let asked = Arc::clone(&asked);
            tokio::spawn(async move {
                if !head(&mut stream).await {
                    return;
                }
                asked.fetch_add(1, Ordering::SeqCst);
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\none";
                if stream.write_all(answer).await.is_ok() && head(&mut stream).await {
                    asked.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn a_request_that_crosses_with_the_end_of_its_connection_is_sent_again_if_it_may_be() {
    let mut world = World::new().await;
    let asked = Arc::default();
    let to = world.service("app", &[short_of_breath(&asked).await]);
    world.serve("app", Protocol::Http1, vec![]);
    for sent in [1, 3] {
        let answer = world.get(to, "/").await;
        assert_eq!((answer.status, answer.body.as_str()), (200, "one"));
        assert_eq!(asked.load(Ordering::SeqCst), sent);
    }
    // Twice could be once too often.
    let mut order = get("/");
    *order.method_mut() = http::Method::POST;
    let refused = world.ask(to, order).await;
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.body.contains("UC"), "{refused:?}");
    assert_eq!(asked.load(Ordering::SeqCst), 4);
}
