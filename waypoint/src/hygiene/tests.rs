// SPDX-License-Identifier: Apache-2.0
use super::*;

/// `GET / HTTP/1.1` and headers, a line each.
struct Message {
    method: Method,
    version: Version,
    uri: Uri,
    headers: HeaderMap,
}

fn message(text: &str) -> Message {
    let mut lines = text.lines().map(str::trim);
    let mut first = lines.next().unwrap().split(' ');
    let mut next = || first.next().unwrap();
    let (method, uri, version) = (next(), next(), next());
    let mut headers = HeaderMap::new();
    for line in lines {
        let (name, value) = header(line);
        headers.append(name, value);
    }
    Message {
        method: method.parse().unwrap(),
        uri: uri.parse().unwrap(),
        version: match version {
            "HTTP/1.0" => Version::HTTP_10,
            "HTTP/2" => Version::HTTP_2,
            _ => Version::HTTP_11,
        },
        headers,
    }
}

fn header(line: &str) -> (HeaderName, HeaderValue) {
    let (name, value) = line.split_once(": ").unwrap_or((line, ""));
    (name.parse().unwrap(), value.parse().unwrap())
}

/// Authority, path and query, or the refusal.
#[track_caller]
fn check(text: &str, expected: Result<(&str, &str, Option<&str>), Malformed>) {
    let message = message(text);
    let target = read(
        &message.method,
        message.version,
        &message.uri,
        &message.headers,
    );
    let seen = target.map(|target| (target.authority, target.path, target.query));
    assert_eq!(seen, expected);
}

#[test]
fn a_request_is_for_one_thing() {
    check(
        "GET /a?b=c HTTP/1.1\nHost: x:80",
        Ok(("x:80", "/a", Some("b=c"))),
    );
    check("GET /a? HTTP/1.1\nHost: x", Ok(("x", "/a", Some(""))));
    check(
        "GET / HTTP/1.1\nHost: [fd00::1]:8080",
        Ok(("[fd00::1]:8080", "/", None)),
    );
    check("GET http://y/a HTTP/1.1\nHost: x", Ok(("y", "/a", None)));
    check("GET http://y HTTP/1.1\nHost: x", Ok(("y", "/", None)));
    check("OPTIONS * HTTP/1.1\nHost: x", Ok(("x", "*", None)));
    check("GET http://y/ HTTP/2", Ok(("y", "/", None)));
    check("GET http://y/ HTTP/2\nHost: Y", Ok(("y", "/", None)));
    check("GET /a HTTP/2\nHost: y", Ok(("y", "/a", None)));
}

#[test]
fn what_may_be_read_in_two_ways_is_refused() {
    check("GET / HTTP/1.0\nHost: x", Err(Malformed::Old));
    check("GET / HTTP/1.1", Err(Malformed::NoHost));
    check("GET / HTTP/1.1\nHost", Err(Malformed::NoHost));
    check("GET / HTTP/2", Err(Malformed::NoHost));
    check(
        "GET / HTTP/1.1\nHost: x\nHost: x",
        Err(Malformed::SeveralHosts),
    );
    check(
        "GET http://y/ HTTP/1.1\nHost: x\nHost: z",
        Err(Malformed::SeveralHosts),
    );
    check(
        "GET http://y/ HTTP/2\nHost: x",
        Err(Malformed::SeveralHosts),
    );
    for host in [
        "a@b", "a b", "x/y", "x:", "x:99999", "x:80:80", "fd00::1", "[::1", "[x]", "[::1]x",
        "x:+1", "x,y", "x?",
    ] {
        check(
            &format!("GET / HTTP/1.1\nHost: {host}"),
            Err(Malformed::BadHost),
        );
    }
    check("GET http://a@b/ HTTP/1.1\nHost: b", Err(Malformed::BadHost));
    check("GET * HTTP/1.1\nHost: x", Err(Malformed::Target));
    check("GET x:80 HTTP/1.1\nHost: x", Err(Malformed::Target));
    check("CONNECT x:80 HTTP/1.1\nHost: x:80", Err(Malformed::Connect));
}

#[test]
fn a_message_ends_in_one_place() {
    let with = |lines: &str| format!("POST / HTTP/1.1\nHost: x\n{lines}");
    check(&with("Transfer-Encoding: Chunked"), Ok(("x", "/", None)));
    for coding in [
        "gzip, chunked",
        "chunked, chunked",
        "xchunked",
        "identity",
        "chunked\nTransfer-Encoding: chunked",
    ] {
        check(
            &with(&format!("Transfer-Encoding: {coding}")),
            Err(Malformed::Coding),
        );
    }
    check(&with("Expect: 100-Continue"), Ok(("x", "/", None)));
    check(&with("Expect: 200-ok"), Err(Malformed::Expectation));
    for name in [
        "Host",
        "content-length",
        "close, Cookie",
        "close\nConnection: authorization",
    ] {
        check(
            &with(&format!("Connection: {name}")),
            Err(Malformed::Connection),
        );
    }
    check(&with("Connection: close, x-mine"), Ok(("x", "/", None)));
}

#[test]
fn hop_by_hop_headers_go_no_further() {
    let mut headers = HeaderMap::new();
    for line in [
        "Connection: close, X-Mine",
        "Connection: x-other,,",
        "Keep-Alive: 5",
        "Proxy-Connection: a",
        "TE: gzip, trailers",
        "Transfer-Encoding: chunked",
        "Upgrade: websocket",
        "X-Mine: a",
        "X-Mine: b",
        "X-Other: c",
        "HTTP2-Settings: a",
        "Kept: d",
        "Proxy-Authorization: e",
    ] {
        let (name, value) = header(line);
        headers.append(name, value);
    }
    remove_hop_by_hop(&mut headers);
    let mut left: Vec<_> = headers
        .iter()
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        .collect();
    left.sort();
    assert_eq!(left, ["kept: d", "proxy-authorization: e", "te: trailers"]);
}

#[test]
fn an_upgrade_is_asked_for_in_both_places() {
    let asks = |text: &str| {
        let message = message(text);
        upgrade(message.version, &message.headers).map(|value| value.to_str().unwrap().to_owned())
    };
    let websocket = Some("websocket".to_owned());
    assert_eq!(
        asks("GET / HTTP/1.1\nConnection: keep-alive, Upgrade\nUpgrade: websocket"),
        websocket
    );
    assert_eq!(asks("GET / HTTP/1.1\nUpgrade: websocket"), None);
    assert_eq!(asks("GET / HTTP/1.1\nConnection: upgrade"), None);
    assert_eq!(
        asks("GET / HTTP/1.1\nConnection: upgrade\nUpgrade: h2c"),
        None
    );
    assert_eq!(
        asks("GET / HTTP/1.1\nConnection: upgrade\nUpgrade: websocket, h2c"),
        None
    );
    assert_eq!(
        asks("GET / HTTP/2\nConnection: upgrade\nUpgrade: websocket"),
        None
    );
}
