// SPDX-License-Identifier: Apache-2.0
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use ::http::{HeaderValue, Request, Response};
use prost::Message as _;
use proto::auth;
use wire::pattern::Kind;

use super::*;

fn asking(protocol: wire::authorizer::Protocol) -> Asking {
    let written = wire::Authorizer {
        name: "a".into(),
        hostname: "a.b".into(),
        port: 9000,
        body: Some(wire::AuthorizerBody {
            max_bytes: 8,
            ..wire::AuthorizerBody::default()
        }),
        protocol: Some(protocol),
        ..wire::Authorizer::default()
    };
    Authorizer::compile(&written).asking.unwrap()
}

fn grpc_asked() -> Asking {
    asking(wire::authorizer::Protocol::Grpc(()))
}

fn names(names: &[&str]) -> Vec<wire::Pattern> {
    let pattern = |name: &&str| {
        let kind = match name.strip_suffix('*') {
            Some(prefix) => Kind::Prefix(prefix.into()),
            None => Kind::Exact((*name).into()),
        };
        wire::Pattern { kind: Some(kind) }
    };
    names.iter().map(pattern).collect()
}

fn http_asked(change: impl FnOnce(&mut wire::HttpAuthorizer)) -> Asking {
    let mut written = wire::HttpAuthorizer::default();
    change(&mut written);
    asking(wire::authorizer::Protocol::Http(written))
}

fn call(asking: &Asking, headers: &[(&str, &str)], told: Option<&Told>) -> Call {
    let mut request = Request::post("/x").body(()).unwrap();
    for (name, value) in headers {
        let name: HeaderName = name.parse().unwrap();
        request.headers_mut().append(name, value.parse().unwrap());
    }
    let (head, ()) = request.into_parts();
    let party = Party {
        address: "10.0.0.1:7".parse().unwrap(),
        principal: "spiffe://t/ns/n/sa/s",
    };
    let question = Question {
        head: &head,
        authority: "app:80",
        path_and_query: "/p?q=1",
        body: told,
        source: party,
        destination: Party {
            principal: "",
            ..party
        },
        at: SystemTime::UNIX_EPOCH + Duration::from_secs(3),
    };
    asking.call(&question).unwrap()
}

#[test]
fn what_cannot_be_used_of_an_authorizer_is_why_it_cannot_be_asked() {
    let whole = wire::Authorizer {
        hostname: "a".into(),
        port: 1,
        protocol: Some(wire::authorizer::Protocol::Grpc(())),
        ..wire::Authorizer::default()
    };
    let usable = Authorizer::compile(&whole).asking.unwrap();
    assert_eq!(usable.timeout, Duration::from_secs(600));
    assert_eq!(usable.on_error, OnError::Deny(StatusCode::FORBIDDEN));
    type Spoil = fn(&mut wire::Authorizer);
    let spoils: [(Spoil, &str); 7] = [
        (|a| a.invalid = "gone".into(), "gone"),
        (|a| a.port = 70_000, "no port"),
        (|a| a.hostname.clear(), "host name"),
        (|a| a.protocol = None, "protocol"),
        (|a| a.status_on_error = 101, "101 is no status"),
        (
            |a| a.timeout = Some(prost_types::Duration::default()),
            "timeout",
        ),
        (
            |a| a.body = Some(wire::AuthorizerBody::default()),
            "0 bytes",
        ),
    ];
    for (spoil, words) in spoils {
        let mut written = whole.clone();
        spoil(&mut written);
        let reason = Authorizer::compile(&written).asking.unwrap_err();
        assert!(reason.contains(words), "{reason}");
    }
}

#[test]
fn a_question_over_grpc_tells_of_the_request_and_of_both_ends() {
    let told = Told {
        bytes: Bytes::from_static(b"beginning"),
        whole: false,
    };
    let headers = [
        ("x-a", "1"),
        ("x-a", "2"),
        ("host", "liar"),
        ("content-length", "99"),
    ];
    let call = call(&grpc_asked(), &headers, Some(&told));
    assert_eq!(call.path, "/envoy.service.auth.v3.Authorization/Check");
    assert_eq!(call.headers["host"], "a.b:9000");
    assert_eq!(call.headers["grpc-timeout"], "600000m");
    assert_eq!(call.body[0], 0);
    let length = u32::from_be_bytes(call.body[1..5].try_into().unwrap());
    assert_eq!(length as usize, call.body.len() - 5);
    let asked = auth::CheckRequest::decode(&call.body[5..]).unwrap();
    let attributes = asked.attributes.unwrap();
    let source = attributes.source.unwrap();
    assert_eq!(source.principal, "spiffe://t/ns/n/sa/s");
    assert!(source.address.is_some());
    let request = attributes.request.unwrap();
    assert_eq!(request.time.unwrap().seconds, 3);
    let http = request.http.unwrap();
    assert_eq!(
        (&*http.method, &*http.path, &*http.host),
        ("POST", "/p?q=1", "app:80")
    );
    assert_eq!(
        (&*http.scheme, &*http.protocol, http.size),
        ("http", "HTTP/1.1", 99)
    );
    assert_eq!((&*http.body, &*http.raw_body), ("beginning", &[][..]));
    assert_eq!(http.headers["x-a"], "1,2");
    assert_eq!(http.headers[":authority"], "app:80");
    assert_eq!(http.headers["x-envoy-auth-partial-body"], "true");
    assert!(!http.headers.contains_key("host"));
}

#[test]
fn a_question_over_http_tells_what_is_asked_for_and_no_more() {
    let asking = http_asked(|http| {
        http.path_prefix = "/check".into();
        http.request_headers = names(&["x-told-*", "cookie", "content-length", "connection"]);
        http.added_headers = vec![wire::AddedHeader {
            name: "x-mesh".into(),
            value: "m".into(),
        }];
    });
    let told = Told {
        bytes: Bytes::from_static(b"all"),
        whole: true,
    };
    let headers = [
        ("authorization", "Bearer t"),
        ("x-told-a", "1"),
        ("x-told-a", "2"),
        ("x-secret", "s"),
        ("cookie", "c"),
        ("content-length", "3"),
        ("connection", "close"),
        ("x-mesh", "liar"),
        ("x-forwarded-client-cert", "liar"),
    ];
    let call = call(&asking, &headers, Some(&told));
    assert_eq!(
        (call.method.as_str(), call.path.as_str()),
        ("POST", "/check/p?q=1")
    );
    let mut said: Vec<String> = call
        .headers
        .iter()
        .map(|(name, value)| format!("{name}={}", value.to_str().unwrap()))
        .collect();
    said.sort();
    assert_eq!(
        said,
        [
            "authorization=Bearer t",
            "cookie=c",
            "host=app:80",
            "x-envoy-auth-partial-body=false",
            "x-mesh=m",
            "x-told-a=1",
            "x-told-a=2",
        ]
    );
    assert_eq!(&call.body[..], b"all");
}

fn heard(
    asking: &Asking,
    status: u16,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Result<Answer, BadAnswer> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    for (name, value) in headers {
        let name: HeaderName = name.parse().unwrap();
        response.headers_mut().append(name, value.parse().unwrap());
    }
    let (head, ()) = response.into_parts();
    asking.answer(&head, Bytes::copy_from_slice(body), None)
}

fn message(response: &auth::CheckResponse) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend_from_slice(&u32::try_from(response.encoded_len()).unwrap().to_be_bytes());
    response.encode(&mut bytes).unwrap();
    bytes
}

fn option(key: &str, value: &str, append: Option<bool>, action: i32) -> auth::HeaderValueOption {
    auth::HeaderValueOption {
        header: Some(auth::HeaderValue {
            key: key.into(),
            value: value.into(),
            raw_value: Vec::new(),
        }),
        append,
        append_action: action,
        keep_empty_value: false,
    }
}

fn allowing(ok: auth::OkHttpResponse) -> auth::CheckResponse {
    auth::CheckResponse {
        status: Some(auth::Status::default()),
        http_response: Some(auth::check_response::HttpResponse::OkResponse(ok)),
    }
}

const DONE: [(&str, &str); 1] = [("grpc-status", "0")];

#[test]
fn an_answer_over_grpc_changes_headers_as_each_of_them_says() {
    let ok = auth::OkHttpResponse {
        headers: vec![
            option("x-set", "new", None, 0),
            option("x-more", "2", Some(true), 0),
            option("x-kept", "no", None, 1),
            option("x-fresh", "yes", None, 1),
            option("x-there", "new", None, 3),
            option("x-missing", "no", None, 3),
        ],
        headers_to_remove: vec!["x-gone".into(), ":path".into(), "Host".into()],
        response_headers_to_add: vec![option("x-down", "1", None, 0)],
        ..auth::OkHttpResponse::default()
    };
    let answer = heard(&grpc_asked(), 200, &DONE, &message(&allowing(ok))).unwrap();
    let Answer::Allowed(allowed) = answer else {
        panic!("{answer:?}");
    };
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("host", "h"),
        ("x-set", "old"),
        ("x-more", "1"),
        ("x-kept", "yes"),
        ("x-there", "old"),
        ("x-gone", "x"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    allowed.change(&mut headers);
    let mut said: Vec<String> = headers
        .iter()
        .map(|(name, value)| format!("{name}={}", value.to_str().unwrap()))
        .collect();
    said.sort();
    assert_eq!(
        said,
        [
            "host=h",
            "x-fresh=yes",
            "x-kept=yes",
            "x-more=1",
            "x-more=2",
            "x-set=new",
            "x-there=new"
        ]
    );
    let mut down = HeaderMap::new();
    allowed.change_answer(&mut down);
    assert_eq!(down["x-down"], "1");
}

#[test]
fn only_an_answer_that_can_be_read_in_full_allows() {
    let plain = auth::CheckResponse::default();
    let status = |code| auth::CheckResponse {
        status: Some(auth::Status {
            code,
            message: String::new(),
        }),
        http_response: None,
    };
    let denied = |code, headers| auth::CheckResponse {
        http_response: Some(auth::check_response::HttpResponse::DeniedResponse(
            auth::DeniedHttpResponse {
                status: Some(auth::HttpStatus { code }),
                headers,
                body: "no".into(),
            },
        )),
        ..status(7)
    };
    let of = |answer: Result<Answer, BadAnswer>| match answer {
        Ok(Answer::Allowed(_)) => "allowed".to_owned(),
        Ok(Answer::Denied(denied)) => {
            format!(
                "{} {}",
                denied.status.as_u16(),
                String::from_utf8_lossy(&denied.body)
            )
        }
        Err(_) => "none".to_owned(),
    };
    let query = auth::OkHttpResponse {
        query_parameters_to_remove: vec!["q".into()],
        ..auth::OkHttpResponse::default()
    };
    let host = auth::OkHttpResponse {
        headers: vec![option("host", "x", None, 0)],
        ..auth::OkHttpResponse::default()
    };
    let path = auth::OkHttpResponse {
        headers: vec![option(":path", "/x", None, 0)],
        ..auth::OkHttpResponse::default()
    };
    let mut compressed = message(&plain);
    compressed[0] = 1;
    let mut long = message(&plain);
    long.push(0);
    let both = auth::CheckResponse {
        http_response: denied(403, vec![]).http_response,
        ..status(0)
    };
    for (head, trailer, body, expected) in [
        (200, Some("0"), message(&plain), "allowed"),
        (200, Some("0"), message(&status(0)), "allowed"),
        (200, Some("0"), message(&status(16)), "403 "),
        (200, Some("0"), message(&denied(401, vec![])), "401 no"),
        (200, Some("0"), message(&denied(0, vec![])), "403 no"),
        (200, Some("0"), message(&denied(100, vec![])), "none"),
        (200, Some("0"), message(&denied(70_000, vec![])), "none"),
        (
            200,
            Some("0"),
            message(&denied(403, vec![option("a b", "", None, 0)])),
            "none",
        ),
        (200, Some("0"), message(&both), "none"),
        (200, Some("0"), message(&allowing(query)), "none"),
        (200, Some("0"), message(&allowing(host)), "none"),
        (200, Some("0"), message(&allowing(path)), "none"),
        (200, Some("14"), message(&plain), "none"),
        (200, None, message(&plain), "none"),
        (503, Some("0"), message(&plain), "none"),
        (200, Some("0"), vec![], "none"),
        (200, Some("0"), compressed, "none"),
        (200, Some("0"), long, "none"),
        (200, Some("0"), vec![0, 0, 0, 0, 1, 0xff], "none"),
    ] {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::from_u16(head).unwrap();
        let (parts, ()) = response.into_parts();
        let trailers = trailer.map(|code| {
            HeaderMap::from_iter([(
                HeaderName::from_static("grpc-status"),
                code.parse().unwrap(),
            )])
        });
        let said = grpc_asked().answer(&parts, body.clone().into(), trailers.as_ref());
        assert_eq!(of(said), expected, "{head} {trailer:?} {body:?}");
    }
    for (status, expected) in [
        (200, "allowed"),
        (201, "201 why"),
        (302, "302 why"),
        (401, "401 why"),
        (101, "none"),
        (500, "none"),
        (503, "none"),
    ] {
        let said = heard(&http_asked(|_| {}), status, &[], b"why");
        assert_eq!(
            of(said).trim_end_matches(" why"),
            expected.trim_end_matches(" why")
        );
    }
}

#[test]
fn an_answer_over_http_tells_each_side_the_headers_that_are_for_it() {
    let said = [
        ("x-user", "u"),
        ("x-user", "v"),
        ("x-down", "d"),
        ("set-cookie", "c"),
        ("location", "/login"),
        ("content-length", "0"),
        ("connection", "close"),
        ("x-envoy-auth-headers-to-remove", "x-gone, Host"),
    ];
    let told = |headers: &HeaderMap| {
        let mut told: Vec<String> = headers
            .iter()
            .map(|(name, value)| format!("{name}={}", value.to_str().unwrap()))
            .collect();
        told.sort();
        told.join(" ")
    };
    let asking = http_asked(|http| {
        http.upstream_on_allow = names(&["x-user", "content-*"]);
        http.downstream_on_allow = names(&["x-down"]);
        http.downstream_on_deny = names(&["set-cookie"]);
    });
    let Answer::Allowed(allowed) = heard(&asking, 200, &said, b"").unwrap() else {
        panic!("denied");
    };
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("host", "h"),
        ("x-user", "liar"),
        ("x-gone", "x"),
        ("x-down", "own"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    allowed.change(&mut headers);
    assert_eq!(told(&headers), "host=h x-down=own x-user=u x-user=v");
    let mut down = HeaderMap::new();
    allowed.change_answer(&mut down);
    assert_eq!(told(&down), "x-down=d");
    let Answer::Denied(denied) = heard(&asking, 403, &said, b"").unwrap() else {
        panic!("allowed");
    };
    assert_eq!(told(&denied.headers), "location=/login set-cookie=c");
    let Answer::Denied(denied) = heard(&http_asked(|_| {}), 403, &said, b"").unwrap() else {
        panic!("allowed");
    };
    assert_eq!(
        told(&denied.headers),
        "location=/login set-cookie=c x-down=d x-user=u x-user=v"
    );
}

#[test]
fn what_an_authorizer_says_of_an_error_is_read_as_it_is_meant() {
    for (said, expected) in [
        ("out%20for lunch", "out for lunch"),
        ("100%", "100%"),
        ("%zz%c3%a4", "%zzä"),
        ("%ff", "\u{fffd}"),
        ("", ""),
    ] {
        let error = heard(
            &grpc_asked(),
            200,
            &[("grpc-status", "2"), ("grpc-message", said)],
            b"",
        );
        let expected = BadAnswer::Grpc {
            code: "2".into(),
            message: expected.into(),
        };
        assert_eq!(error, Err(expected));
    }
}
