// SPDX-License-Identifier: Apache-2.0

use super::*;
use proto::waypoint::Cors as Wire;

fn list(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn wire(origins: &str, methods: &str, headers: &str, credentials: bool) -> Wire {
    Wire {
        allow_origins: list(origins),
        allow_credentials: credentials,
        allow_methods: list(methods),
        allow_headers: list(headers),
        ..Wire::default()
    }
}

/// C1 to C5 of the conformance suite.
fn route(name: &str) -> Cors {
    let mut c1 = wire(
        "https://www.foo.com https://*.bar.com",
        "GET OPTIONS",
        "x-header-1 x-header-2",
        true,
    );
    c1.expose_headers = list("x-header-3 x-header-4");
    c1.max_age = 3600;
    let wire = match name {
        "C1" => c1,
        "C2" => wire("https://www.foo.com", "*", "", false),
        "C3" => wire("*", "PUT", "", false),
        "C4" => wire("https://*.foo.com", "*", "*", true),
        _ => wire("https://*.foo.com", "*", "*", false),
    };
    Cors::compile(&wire).unwrap()
}

/// The CORS headers of the response, without the prefix that all have, or what else becomes of the request.
fn answer(cors: &Cors, method: &str, origin: &str, asked: &[(&str, &str)]) -> String {
    let mut headers = HeaderMap::new();
    if !origin.is_empty() {
        headers.insert("origin", origin.parse().unwrap());
    }
    for (name, value) in asked {
        let name: HeaderName = format!("access-control-request-{name}").parse().unwrap();
        headers.insert(name, value.parse().unwrap());
    }
    let shown = |headers: &HeaderMap| {
        let own = headers.iter().filter_map(|(name, value)| {
            let name = name.as_str().strip_prefix("access-control-")?;
            Some(format!("{name}: {}", value.to_str().unwrap()))
        });
        let mut own: Vec<_> = own.collect();
        own.sort();
        own.join("; ")
    };
    match cors.judge(&method.parse().unwrap(), &headers) {
        Verdict::Plain => "plain".into(),
        Verdict::Refused => "refused".into(),
        Verdict::Preflight(answer) => shown(&answer),
        Verdict::Granted(grant) => {
            let mut response = HeaderMap::new();
            cors.grant(&grant, &mut response);
            shown(&response)
        }
    }
}

#[track_caller]
fn check(
    case: &str,
    route_name: &str,
    method: &str,
    origin: &str,
    asked: &[(&str, &str)],
    expected: &str,
) {
    let seen = answer(&route(route_name), method, origin, asked);
    assert_eq!(seen, expected, "{case}");
}

#[test]
fn cases_of_the_suite() {
    const GET: &[(&str, &str)] = &[("method", "GET")];
    const POST: &[(&str, &str)] = &[("method", "POST")];
    const PUT: &[(&str, &str)] = &[("method", "PUT"), ("headers", "x-header-1, x-header-2")];
    for (case, origin) in [
        ("O01", "https://www.foo.com"),
        ("O02", "https://www.bar.com"),
        ("O03", "https://xpto.www.bar.com"),
    ] {
        let expected = format!(
            "allow-credentials: true; allow-headers: x-header-1, x-header-2; allow-methods: GET, OPTIONS; \
             allow-origin: {origin}; expose-headers: x-header-3, x-header-4; max-age: 3600"
        );
        check(case, "C1", "OPTIONS", origin, GET, &expected);
        let plain = format!(
            "allow-credentials: true; allow-origin: {origin}; expose-headers: x-header-3, x-header-4"
        );
        check("O05", "C1", "GET", origin, &[], &plain);
    }
    check("O04", "C1", "OPTIONS", "https://foobar.com", GET, "refused");
    check("O06", "C1", "GET", "https://foobar.com", &[], "plain");
    let expected = "allow-methods: *; allow-origin: https://www.foo.com; max-age: 5";
    check(
        "O07",
        "C2",
        "OPTIONS",
        "https://www.foo.com",
        POST,
        expected,
    );
    for (case, origin) in [
        ("O08", "https://foobar.com"),
        ("O09", "https://foobar.com:12345"),
    ] {
        check(
            case,
            "C3",
            "OPTIONS",
            origin,
            PUT,
            &format!("allow-methods: PUT; allow-origin: {origin}; max-age: 5"),
        );
        check(
            case,
            "C3",
            "PUT",
            origin,
            &[],
            &format!("allow-origin: {origin}"),
        );
    }
    check(
        "O10",
        "C4",
        "OPTIONS",
        "https://other.foo.com",
        PUT,
        "allow-credentials: true; allow-headers: x-header-1, x-header-2; allow-methods: PUT; \
         allow-origin: https://other.foo.com; max-age: 5",
    );
    check(
        "O11",
        "C5",
        "OPTIONS",
        "https://other.foo.com",
        PUT,
        "allow-headers: *; allow-methods: *; allow-origin: https://other.foo.com; max-age: 5",
    );
    check(
        "O11, nothing asked",
        "C5",
        "OPTIONS",
        "https://other.foo.com",
        POST,
        "allow-methods: *; allow-origin: https://other.foo.com; max-age: 5",
    );
    check(
        "O12",
        "C4",
        "GET",
        "https://other.foo.com",
        &[],
        "allow-credentials: true; allow-origin: https://other.foo.com",
    );
    check(
        "O12",
        "C5",
        "GET",
        "https://other.foo.com",
        &[],
        "allow-origin: https://other.foo.com",
    );
}

#[test]
fn only_browsers_are_answered() {
    check(
        "no origin",
        "C1",
        "OPTIONS",
        "",
        &[("method", "GET")],
        "plain",
    );
    // Not a preflight: OPTIONS for its own sake.
    check(
        "no method asked",
        "C3",
        "OPTIONS",
        "https://a",
        &[],
        "allow-origin: https://a",
    );
    check(
        "not OPTIONS",
        "C3",
        "GET",
        "https://a",
        &[("method", "GET")],
        "allow-origin: https://a",
    );
}

#[test]
fn origins_are_compared_whole() {
    let allows = |pattern: &str, origin: &str| {
        let cors = Cors::compile(&wire(pattern, "", "", false)).unwrap();
        cors.allows(&origin.parse().unwrap())
    };
    for (pattern, origin, expected) in [
        ("https://a.com", "https://a.com", true),
        ("https://a.com", "https://A.COM:443", true),
        ("https://a.com:443", "https://a.com", true),
        ("http://a.com", "http://a.com:80", true),
        ("https://a.com", "http://a.com", false),
        ("https://a.com", "https://a.com:8443", false),
        ("https://a.com:8443", "https://a.com:8443", true),
        ("https://a.com", "https://a.com.evil.org", false),
        ("https://a.com", "https://xa.com", false),
        ("https://*.a.com", "https://b.a.com", true),
        ("https://*.a.com", "https://c.b.a.com", true),
        ("https://*.a.com", "https://a.com", false),
        ("https://*.a.com", "https://.a.com", false),
        ("https://*.a.com", "https://xa.com", false),
        ("https://*.a.com", "https://evil.org/x.a.com", false),
        ("https://*.a.com", "https://evil.org@b.a.com", false),
        ("https://*", "https://anything.org", true),
        ("https://*", "https://anything.org:8443", false),
        ("https://*:8443", "https://anything.org:8443", true),
        ("https://a.*", "https://a.org", true),
        ("https://ab*ba", "https://aba", false),
        ("https://[fd00::1]:8443", "https://[fd00::1]:8443", true),
        ("https://a.com", "null", false),
        ("*", "null", true),
        ("", "https://a.com", false),
    ] {
        assert_eq!(allows(pattern, origin), expected, "{pattern} {origin}");
    }
}

#[test]
fn what_is_no_filter_says_why() {
    let why = |wire: Wire| Cors::compile(&wire).unwrap_err().to_string();
    for origin in [
        "a.com",
        "https://",
        "://a",
        "https://a.com/x",
        "https://*.*.com",
        "https://a b",
        "https://a:x",
    ] {
        assert_eq!(
            why(Wire {
                allow_origins: vec![origin.into()],
                ..Wire::default()
            }),
            format!("{origin:?} is not an origin")
        );
    }
    assert_eq!(
        why(wire("* https://a", "", "", false)),
        "* stands beside other origins"
    );
    assert_eq!(
        why(wire("*", "GET *", "", false)),
        "* stands beside other methods"
    );
    assert_eq!(
        why(wire("*", "", "* a", false)),
        "* stands beside other headers"
    );
    let odd = Wire {
        allow_headers: vec!["a b".into()],
        ..Wire::default()
    };
    assert_eq!(why(odd), "\"a b\" can't be one of the headers");
}

#[test]
fn all_headers_are_exposed_to_those_without_credentials_only() {
    for (credentials, expected) in [(false, true), (true, false)] {
        let mut wire = wire("*", "", "", credentials);
        wire.expose_headers = list("*");
        let seen = answer(&Cors::compile(&wire).unwrap(), "GET", "https://a", &[]);
        assert_eq!(seen.contains("expose-headers: *"), expected);
    }
}

#[test]
fn origins_may_be_told_by_expressions_and_other_preflights_may_go_on() {
    const GET: &[(&str, &str)] = &[("method", "GET")];
    let mut said = wire("https://exact.com", "GET", "", false);
    said.origin_patterns = list(r"https://[a-c]\.example http://.*");
    let cors = Cors::compile(&said).unwrap();
    let origin = |origin: &str| answer(&cors, "GET", origin, &[]);
    for good in ["https://exact.com", "https://b.example", "http://any:81"] {
        assert_eq!(origin(good), format!("allow-origin: {good}"));
    }
    assert_eq!(origin("https://d.example"), "plain");
    assert_eq!(origin("https://b.example.org"), "plain", "as a whole");
    assert_eq!(
        answer(&cors, "OPTIONS", "https://d.example", GET),
        "refused"
    );
    said.forward_preflights = true;
    let cors = Cors::compile(&said).unwrap();
    assert_eq!(answer(&cors, "OPTIONS", "https://d.example", GET), "plain");
    said.origin_patterns = list("(");
    let bad = Cors::compile(&said).unwrap_err();
    assert_eq!(bad.to_string(), "origin \"(\": unclosed group");
}
