// SPDX-License-Identifier: Apache-2.0
//! Routes at work: shares, headers, redirects, copies, retries, limits; and what is answered where nobody can.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::{Request, Response, StatusCode};
use http_body_util::Full;
use proto::waypoint::{
    Destination, DirectResponse, Fault, Header, HeaderModifier, HttpBackend, HttpFilter, HttpMatch,
    HttpRule, Mirror, Protocol, Redirect, Retry, Share, Timeouts, ValueMatch,
    fault::{Abort, Delay, abort::Status},
    http_backend::Target,
    http_filter::Kind,
    value_match::Value,
};

use crate::harness::{World, application, get, host, speaking};

fn destination(name: &str) -> Destination {
    Destination {
        namespace: "shop".into(),
        hostname: host(name).to_string(),
        port: 80,
        protocol: Protocol::Http1.into(),
        traffic_policy: None,
    }
}

pub(crate) fn to(name: &str, weight: u32) -> HttpBackend {
    HttpBackend {
        weight,
        target: Some(Target::Destination(destination(name))),
        filters: vec![],
    }
}

fn rule(backends: Vec<HttpBackend>) -> HttpRule {
    HttpRule {
        backends,
        ..HttpRule::default()
    }
}

fn filter(kind: Kind) -> HttpFilter {
    HttpFilter { kind: Some(kind) }
}

fn if_header(name: &str, value: &str) -> HttpMatch {
    HttpMatch {
        headers: vec![ValueMatch {
            name: name.into(),
            value: Some(Value::Exact(value.into())),
            inverted: false,
        }],
        ..HttpMatch::default()
    }
}

#[tokio::test]
async fn shares_headers_and_edits_are_kept() {
    let mut world = World::new().await;
    let front = world.service("front", &[application("front").await]);
    world.service("old", &[application("old").await]);
    world.service("new", &[application("new").await]);
    let mut chosen = rule(vec![to("new", 1)]);
    chosen.matches = vec![if_header("x-version", "new")];
    chosen.filters = vec![
        filter(Kind::RequestHeaders(HeaderModifier {
            set: vec![Header {
                name: "x-set".into(),
                value: "by-route".into(),
            }],
            ..HeaderModifier::default()
        })),
        filter(Kind::ResponseHeaders(HeaderModifier {
            remove: vec!["x-app".into()],
            ..HeaderModifier::default()
        })),
    ];
    let split = rule(vec![to("old", 90), to("new", 10)]);
    world.serve("front", Protocol::Http1, vec![chosen, split]);

    let mut request = get("/");
    request
        .headers_mut()
        .insert("x-version", "new".parse().unwrap());
    let answer = world.ask(front, request).await;
    assert_eq!(answer.seen()["app"], "new");
    assert_eq!(answer.seen()["headers"]["x-set"], "by-route");
    assert_eq!(answer.header("x-app"), "");

    let mut new = 0;
    for _ in 0..200 {
        new += u32::from(world.get(front, "/").await.seen()["app"] == "new");
    }
    // 20 are expected; the standard deviation is 4.2.
    assert!((3..=45).contains(&new), "{new} of 200");
    world
        .until_counted(&[
            "istio_requests_total",
            "destination_service=\"new.shop.svc.cluster.local\"",
        ])
        .await;
}

#[tokio::test]
async fn some_answers_need_no_endpoint() {
    let mut world = World::new().await;
    let front = world.service("front", &[application("front").await]);
    let mut redirect = rule(vec![]);
    redirect.matches = vec![if_header("x-go", "elsewhere")];
    redirect.filters = vec![filter(Kind::Redirect(Redirect {
        hostname: "elsewhere.example".into(),
        status: 302,
        ..Redirect::default()
    }))];
    let mut invalid = rule(vec![HttpBackend {
        weight: 1,
        target: Some(Target::Invalid("Service shop/gone does not exist".into())),
        filters: vec![],
    }]);
    invalid.matches = vec![if_header("x-go", "nowhere")];
    world.serve("front", Protocol::Http1, vec![redirect, invalid]);
    let ask = async |value: &str| {
        let mut request = get("/path?q");
        request.headers_mut().insert("x-go", value.parse().unwrap());
        world.ask(front, request).await
    };
    let answer = ask("elsewhere").await;
    assert_eq!(answer.status, 302);
    assert_eq!(answer.header("location"), "http://elsewhere.example/path?q");
    let answer = ask("nowhere").await;
    assert_eq!(answer.status, 500);
    let answer = ask("anything").await;
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (404, "NR: no route\n")
    );
    world
        .until_counted(&["istio_requests_total", "response_flags=\"NR\"", "\"404\""])
        .await;
}

#[tokio::test]
async fn rules_answer_delay_and_fail_on_purpose() {
    const DELAY: Duration = Duration::from_millis(300);
    let mut world = World::new().await;
    let front = world.service("front", &[application("front").await]);
    let all = Some(Share {
        numerator: 1,
        denominator: 1,
    });
    let mut direct = rule(vec![]);
    direct.matches = vec![if_header("x-try", "direct")];
    direct.direct_response = Some(DirectResponse {
        status: 418,
        body: b"short and stout".to_vec(),
    });
    direct.filters = vec![filter(Kind::ResponseHeaders(HeaderModifier {
        set: vec![Header {
            name: "content-type".into(),
            value: "text/x-tea".into(),
        }],
        ..HeaderModifier::default()
    }))];
    let abort = |status| Fault {
        delay: None,
        abort: Some(Abort {
            share: all,
            status: Some(status),
        }),
    };
    let mut failing = rule(vec![to("front", 1)]);
    failing.matches = vec![if_header("x-try", "abort")];
    failing.fault = Some(abort(Status::Http(507)));
    let mut unavailable = rule(vec![to("front", 1)]);
    unavailable.matches = vec![if_header("x-try", "grpc")];
    unavailable.fault = Some(abort(Status::Grpc(8)));
    let mut slow = rule(vec![to("front", 1)]);
    slow.fault = Some(Fault {
        delay: Some(Delay {
            share: all,
            duration: Some(DELAY.try_into().unwrap()),
        }),
        abort: None,
    });
    // Its time begins after the delay.
    slow.timeouts = Some(Timeouts {
        request: Some((DELAY * 9 / 10).try_into().unwrap()),
        backend_request: None,
    });
    let rules = vec![direct, failing, unavailable, slow];
    world.serve("front", Protocol::Http1, rules);
    let asking = |value: &str| {
        let mut request = get("/");
        let value = value.parse().unwrap();
        request.headers_mut().insert("x-try", value);
        request
    };
    let answer = world.ask(front, asking("direct")).await;
    assert_eq!((answer.status, &*answer.body), (418, "short and stout"));
    assert_eq!(answer.header("content-type"), "text/x-tea");
    let answer = world.ask(front, asking("abort")).await;
    assert_eq!((answer.status, &*answer.body), (507, "fault filter abort"));
    let answer = world.ask(front, asking("grpc")).await;
    assert_eq!(answer.status, 429, "as it translates");
    let mut request = asking("grpc");
    let grpc = "application/grpc".parse().unwrap();
    request.headers_mut().insert("content-type", grpc);
    let answer = world.ask(front, request).await;
    assert_eq!((answer.status, answer.header("grpc-status")), (200, "8"));
    let began = Instant::now();
    let answer = world.get(front, "/").await;
    assert_eq!(answer.seen()["app"], "front");
    assert!(began.elapsed() >= DELAY);
    world
        .until_counted(&["istio_requests_total", "response_flags=\"FI\"", "\"507\""])
        .await;
}

#[tokio::test]
async fn a_service_without_endpoints_is_answered_503_and_says_why() {
    let mut world = World::new().await;
    let empty = world.service("empty", &[]);
    world.serve("empty", Protocol::Http1, vec![]);
    let answer = world.get(empty, "/").await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.body, "UH: no healthy upstream\n");
}

#[tokio::test]
async fn copies_are_sent_and_nobody_waits_for_their_answers() {
    let mut world = World::new().await;
    let seen = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&seen);
    let copy = speaking(move |request: Request<hyper::body::Incoming>| {
        let counted = Arc::clone(&counted);
        async move {
            let bytes = http_body_util::BodyExt::collect(request.into_body())
                .await
                .unwrap()
                .to_bytes()
                .len();
            counted.fetch_add(bytes, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_secs(30)).await;
            Response::new(Full::default())
        }
    })
    .await;
    let front = world.service("front", &[application("front").await]);
    world.service("copy", &[copy]);
    let mut mirrored = rule(vec![to("front", 1)]);
    mirrored.filters = vec![filter(Kind::Mirror(Mirror {
        destination: Some(destination("copy")),
        numerator: 100,
        denominator: 100,
    }))];
    world.serve("front", Protocol::Http1, vec![mirrored]);
    let began = Instant::now();
    let request = Request::post("/")
        .header("host", "app.shop")
        .body(Full::from("12345"))
        .unwrap();
    let answer = world.ask(front, request).await;
    assert_eq!(answer.seen()["bytes"], 5);
    assert!(began.elapsed() < Duration::from_secs(10));
    let end = Instant::now() + Duration::from_secs(5);
    while seen.load(Ordering::SeqCst) != 5 {
        assert!(Instant::now() < end, "the copy has not come");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn what_fails_is_tried_again_as_often_as_the_rule_says() {
    let mut world = World::new().await;
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let moody = speaking(move |_| {
        let nth = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            let mut response = Response::new(Full::default());
            if nth < 2 {
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            }
            response
        }
    })
    .await;
    let front = world.service("front", &[moody]);
    let mut again = rule(vec![to("front", 1)]);
    again.retry = Some(Retry {
        attempts: 2,
        codes: vec![503],
        backoff: None,
    });
    world.serve("front", Protocol::Http1, vec![again]);
    assert_eq!(world.get(front, "/").await.status, 200);
    assert_eq!(asked.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn an_endpoint_that_is_not_there_costs_no_request() {
    let mut world = World::new().await;
    // Nobody listens there.
    let gone = "127.0.0.2:1".parse().unwrap();
    let front = world.service("front", &[gone, application("there").await]);
    world.serve("front", Protocol::Http1, vec![]);
    for _ in 0..20 {
        assert_eq!(world.get(front, "/").await.seen()["app"], "there");
    }
}

/// K02, and K04 where the limit is that of one attempt alone: who answers in time is not touched by it.
#[tokio::test]
async fn whoever_takes_too_long_is_given_up() {
    let mut world = World::new().await;
    let slow = speaking(|_| async {
        tokio::time::sleep(Duration::from_secs(30)).await;
        Response::new(Full::default())
    })
    .await;
    let front = world.service("front", &[slow]);
    let prompt = world.service("prompt", &[application("prompt").await]);
    let limit = Some(prost_types::Duration {
        seconds: 0,
        nanos: 200_000_000,
    });
    let whole = Timeouts {
        request: limit,
        backend_request: None,
    };
    let attempt = Timeouts {
        request: None,
        backend_request: limit,
    };
    for (case, timeouts) in [("K02", whole), ("K04", attempt)] {
        let limited = |name| {
            let mut limited = rule(vec![to(name, 1)]);
            limited.timeouts = Some(timeouts);
            vec![limited]
        };
        world.serve("front", Protocol::Http1, limited("front"));
        world.serve("prompt", Protocol::Http1, limited("prompt"));
        let began = Instant::now();
        let answer = world.get(front, "/").await;
        assert_eq!(answer.status, 504, "{case}");
        assert_eq!(answer.body, "UT: upstream request timeout\n", "{case}");
        assert!(began.elapsed() < Duration::from_secs(5), "{case}");
        assert_eq!(world.get(prompt, "/").await.status, 200, "{case}");
    }
}

/// M19: the address that was dialled says whose routes apply, never the Host of a request.
#[tokio::test]
async fn another_services_host_does_not_bring_its_routes() {
    let mut world = World::new().await;
    let old = world.service("old", &[application("old").await]);
    let new = world.service("new", &[application("new").await]);
    let mut marked = rule(vec![to("old", 1)]);
    marked.filters = vec![filter(Kind::ResponseHeaders(HeaderModifier {
        set: vec![Header {
            name: "x-marked".into(),
            value: "yes".into(),
        }],
        ..HeaderModifier::default()
    }))];
    world.serve("old", Protocol::Http1, vec![marked]);
    world.serve("new", Protocol::Http1, vec![]);
    for (dialled, named, app, is_marked) in [(new, "old", "new", false), (old, "new", "old", true)]
    {
        let mut request = get("/");
        let host = host(named).to_string().parse().unwrap();
        request.headers_mut().insert("host", host);
        let answer = world.ask(dialled, request).await;
        assert_eq!(answer.seen()["app"], app);
        assert_eq!(answer.headers.contains_key("x-marked"), is_marked, "{app}");
    }
}

#[tokio::test]
async fn routes_that_change_count_for_the_next_request_of_an_open_connection() {
    let mut world = World::new().await;
    let front = world.service("front", &[application("front").await]);
    world.service("other", &[application("other").await]);
    world.serve("front", Protocol::Http1, vec![]);
    let stream = world.connect(front).await;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    let first = sender.send_request(get("/")).await.unwrap();
    assert_eq!(crate::harness::answer(first).await.seen()["app"], "front");
    world.serve("front", Protocol::Http1, vec![rule(vec![to("other", 1)])]);
    let second = sender.send_request(get("/")).await.unwrap();
    assert_eq!(crate::harness::answer(second).await.seen()["app"], "other");
}
