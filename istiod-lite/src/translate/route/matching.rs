// SPDX-License-Identifier: Apache-2.0
//! What a rule matches. A match that can't be read matches nothing, and breaks its rule.

use cluster::kinds::{self, PathMatchType, ValueMatchType};
use proto::waypoint as wire;

use super::{Faults, values};

/// Matches of one rule, and of a whole route.
const MAX_MATCHES: usize = 64;
pub(super) const MAX_MATCHES_OF_ROUTE: usize = 128;
/// Headers, or parameters of the query, in one match.
const MAX_VALUES: usize = 16;
const MAX_PATH: usize = 1024;
const MAX_HEADER: usize = 4096;
const MAX_QUERY: usize = 1024;

pub(super) const METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
];

/// Reads the matches of a rule at `at`.
pub(super) fn http(
    matches: &[kinds::HTTPRouteMatch],
    at: &str,
    faults: &mut Faults,
) -> Vec<wire::HttpMatch> {
    faults.at_most(MAX_MATCHES, matches.len(), &format!("{at}.matches"));
    let read = matches.iter().take(MAX_MATCHES).enumerate();
    read.filter_map(|(position, one)| http_match(one, &format!("{at}.matches[{position}]"), faults))
        .collect()
}

fn http_match(
    one: &kinds::HTTPRouteMatch,
    at: &str,
    faults: &mut Faults,
) -> Option<wire::HttpMatch> {
    let before = faults.0.len();
    faults.unknown(at, &one.unknown_fields);
    let path = one.path.as_ref().and_then(|path| {
        let value = path.value.as_deref().unwrap_or("/");
        path_match(path.match_type.as_ref(), value)
            .map_err(|words| faults.add(format!("{at}.path"), words))
            .ok()
    });
    let method = one.method.clone().unwrap_or_default();
    if !method.is_empty() && !METHODS.contains(&method.as_str()) {
        faults.add(
            format!("{at}.method"),
            format!("{method:?} is no method that can be matched"),
        );
    }
    let headers = headers(&one.headers, at, faults);
    let query = values(
        &one.query_params,
        &format!("{at}.queryParams"),
        faults,
        query_match,
    );
    (faults.0.len() == before).then(|| wire::HttpMatch {
        path: path.map(|kind| wire::PathMatch { kind: Some(kind) }),
        headers,
        query: once_each(query, |name| name.to_owned()),
        method,
        grpc: None,
    })
}

/// Reads the matches of a rule of a GRPCRoute at `at`.
pub(super) fn grpc(
    matches: &[kinds::GRPCRouteMatch],
    at: &str,
    faults: &mut Faults,
) -> Vec<wire::HttpMatch> {
    faults.at_most(MAX_MATCHES, matches.len(), &format!("{at}.matches"));
    let read = matches.iter().take(MAX_MATCHES).enumerate();
    read.filter_map(|(position, one)| grpc_match(one, &format!("{at}.matches[{position}]"), faults))
        .collect()
}

fn grpc_match(
    one: &kinds::GRPCRouteMatch,
    at: &str,
    faults: &mut Faults,
) -> Option<wire::HttpMatch> {
    let before = faults.0.len();
    faults.unknown(at, &one.unknown_fields);
    let grpc = one.method.as_ref().and_then(|method| {
        grpc_method(method)
            .map_err(|words| faults.add(format!("{at}.method"), words))
            .ok()
    });
    let headers = headers(&one.headers, at, faults);
    (faults.0.len() == before).then(|| wire::HttpMatch {
        headers,
        grpc,
        ..wire::HttpMatch::default()
    })
}

fn grpc_method(method: &kinds::GRPCMethodMatch) -> Result<wire::GrpcMethodMatch, String> {
    let service = method.service.clone().unwrap_or_default();
    let name = method.method.clone().unwrap_or_default();
    if service.is_empty() && name.is_empty() {
        return Err("names neither a service nor a method".to_owned());
    }
    let regex = match &method.match_type {
        None | Some(ValueMatchType::Exact) => false,
        Some(ValueMatchType::RegularExpression) => true,
        Some(ValueMatchType::Unknown(other)) => return Err(unknown_type(other)),
    };
    let word = |text: &str| {
        let mut bytes = text.bytes();
        bytes
            .next()
            .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
            && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    let package = |text: &str| text.strip_prefix('.').unwrap_or(text).split('.').all(word);
    for (what, text) in [("service", &service), ("method", &name)] {
        let length = text.len();
        if length > MAX_PATH {
            return Err(format!("the {what} has {length} bytes, {MAX_PATH} may be"));
        }
        if regex {
            values::expression(text)?;
        } else if !text.is_empty()
            && !(if what == "service" {
                package(text)
            } else {
                word(text)
            })
        {
            return Err(format!("{text:?} is no name of a gRPC {what}"));
        }
    }
    Ok(wire::GrpcMethodMatch {
        service,
        method: name,
        regex,
    })
}

fn path_match(how: Option<&PathMatchType>, value: &str) -> Result<wire::path_match::Kind, String> {
    use wire::path_match::Kind;
    if value.len() > MAX_PATH {
        return Err(format!("has {} bytes, {MAX_PATH} may be", value.len()));
    }
    match how {
        Some(PathMatchType::Exact) => plain_path(value).map(|()| Kind::Exact(value.to_owned())),
        None | Some(PathMatchType::PathPrefix) => {
            plain_path(value)?;
            // By elements, `/a/` is the same as `/a`.
            let shorter = value.strip_suffix('/').filter(|rest| !rest.is_empty());
            Ok(Kind::Prefix(shorter.unwrap_or(value).to_owned()))
        }
        Some(PathMatchType::RegularExpression) => {
            values::expression(value).map(|()| Kind::Regex(value.to_owned()))
        }
        Some(PathMatchType::Unknown(other)) => Err(unknown_type(other)),
    }
}

/// Whether a value is a path as a request can have it.
pub(super) fn plain_path(value: &str) -> Result<(), String> {
    let no = |words: &str| Err(format!("{value:?} {words}"));
    if !value.starts_with('/') {
        return no("does not begin with a slash");
    }
    let lower = value.to_ascii_lowercase();
    let climbs = ["//", "/./", "/../", "%2f"]
        .iter()
        .any(|part| lower.contains(part));
    if climbs || value.ends_with("/.") || value.ends_with("/..") {
        return no("has //, /./, /../ or %2F in it, which no path has");
    }
    if !is_uri_path(value) {
        return no("has characters that no path has");
    }
    Ok(())
}

/// Whether all characters may stand in a path (RFC 3986, 3.3).
pub(super) fn is_uri_path(text: &str) -> bool {
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let good = match byte {
            b'%' => {
                let mut hex = || bytes.next().is_some_and(|b| b.is_ascii_hexdigit());
                hex() && hex()
            }
            _ => byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/".contains(&byte),
        };
        if !good {
            return false;
        }
    }
    true
}

fn headers(
    wanted: &[kinds::RouteValueMatch],
    at: &str,
    faults: &mut Faults,
) -> Vec<wire::ValueMatch> {
    let read = values(wanted, &format!("{at}.headers"), faults, header_match);
    once_each(read, str::to_ascii_lowercase)
}

fn values(
    wanted: &[kinds::RouteValueMatch],
    at: &str,
    faults: &mut Faults,
    check: impl Fn(&kinds::RouteValueMatch) -> Result<(), String>,
) -> Vec<wire::ValueMatch> {
    faults.at_most(MAX_VALUES, wanted.len(), at);
    let mut read = Vec::new();
    for (position, one) in wanted.iter().take(MAX_VALUES).enumerate() {
        match check(one).and_then(|()| value_match(one)) {
            Ok(one) => read.push(one),
            Err(words) => faults.add(format!("{at}[{position}]"), words),
        }
    }
    read
}

fn header_match(one: &kinds::RouteValueMatch) -> Result<(), String> {
    if !values::is_token(&one.name) {
        return Err(format!("{:?} is no name of a header", one.name));
    }
    length(&one.value, MAX_HEADER)
}

fn query_match(one: &kinds::RouteValueMatch) -> Result<(), String> {
    if one.name.is_empty() || one.name.len() > 256 {
        return Err(format!("{:?} is no name of a parameter", one.name));
    }
    length(&one.value, MAX_QUERY)
}

fn length(value: &str, most: usize) -> Result<(), String> {
    match value.len() {
        0 => Err("has no value".to_owned()),
        length if length > most => Err(format!("its value has {length} bytes, {most} may be")),
        _ => Ok(()),
    }
}

fn value_match(one: &kinds::RouteValueMatch) -> Result<wire::ValueMatch, String> {
    use wire::value_match::Value;
    let value = match &one.match_type {
        None | Some(ValueMatchType::Exact) => Value::Exact(one.value.clone()),
        Some(ValueMatchType::RegularExpression) => {
            values::expression(&one.value)?;
            Value::Regex(one.value.clone())
        }
        Some(ValueMatchType::Unknown(other)) => return Err(unknown_type(other)),
    };
    Ok(wire::ValueMatch {
        name: one.name.clone(),
        value: Some(value),
        inverted: false,
    })
}

fn unknown_type(text: &str) -> String {
    format!("type {text:?} is not known")
}

/// Of entries with equal names the first counts.
fn once_each(
    mut all: Vec<wire::ValueMatch>,
    key: impl Fn(&str) -> String,
) -> Vec<wire::ValueMatch> {
    let mut seen = std::collections::BTreeSet::new();
    all.retain(|one| seen.insert(key(&one.name)));
    all
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use wire::path_match::Kind;

    use super::*;

    fn read(one: Value) -> Result<wire::HttpMatch, Vec<String>> {
        let one: kinds::HTTPRouteMatch = serde_json::from_value(one).expect("a match");
        let mut faults = Faults::default();
        let read = http(&[one], "r", &mut faults);
        match read.into_iter().next() {
            Some(read) => Ok(read),
            None => Err(faults.0.iter().map(ToString::to_string).collect()),
        }
    }

    fn path(how: &str, value: &str) -> Option<Kind> {
        let read = read(json!({"path": {"type": how, "value": value}})).ok()?;
        read.path?.kind
    }

    #[test]
    fn a_path_is_one_that_a_request_can_have() {
        assert_eq!(path("Exact", "/a/"), Some(Kind::Exact("/a/".into())));
        assert_eq!(path("PathPrefix", "/a/"), Some(Kind::Prefix("/a".into())));
        assert_eq!(path("PathPrefix", "/"), Some(Kind::Prefix("/".into())));
        assert_eq!(
            path("Exact", "/a%20b@c"),
            Some(Kind::Exact("/a%20b@c".into()))
        );
        let long = format!("/{}", "a".repeat(1024));
        for wrong in [
            "", "a", "//", "/a//b", "/./a", "/a/../b", "/a/.", "/a/..", "/a%2Fb", "/a%2fb", "/a#b",
            "/a?b", "/a b", "/a%2", "/ä", &long,
        ] {
            assert_eq!(path("Exact", wrong), None, "{wrong}");
            assert_eq!(path("PathPrefix", wrong), None, "{wrong}");
        }
        assert_eq!(
            path("RegularExpression", "/a.*"),
            Some(Kind::Regex("/a.*".into()))
        );
        assert_eq!(path("RegularExpression", "("), None);
        assert_eq!(path("Glob", "/a"), None);
    }

    #[test]
    fn the_first_of_equal_names_counts() {
        let header = |name: &str, value: &str| json!({"name": name, "value": value});
        let both = json!({
            "headers": [header("foo", "1"), header("Foo", "2"), header("bar", "3")],
            "queryParams": [header("a", "1"), header("A", "2"), header("a", "3")]});
        let read = read(both).expect("a match");
        let names =
            |of: &[wire::ValueMatch]| of.iter().map(|one| one.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&read.headers), ["foo", "bar"]);
        assert_eq!(names(&read.query), ["a", "A"]);
    }

    #[test]
    fn what_is_not_known_is_said_and_matches_nothing() {
        for (one, expected) in [
            (
                json!({"method": "get"}),
                "r.matches[0].method: \"get\" is no method that can be matched",
            ),
            (json!({"cookies": []}), "r.matches[0].cookies: is not known"),
            (
                json!({"headers": [{"name": "a b", "value": "1"}]}),
                "r.matches[0].headers[0]: \"a b\" is no name of a header",
            ),
            (
                json!({"headers": [{"type": "Glob", "name": "a", "value": "1"}]}),
                "r.matches[0].headers[0]: type \"Glob\" is not known",
            ),
            (
                json!({"queryParams": [{"name": "a"}]}),
                "r.matches[0].queryParams[0]: has no value",
            ),
        ] {
            assert_eq!(read(one), Err(vec![expected.to_owned()]));
        }
    }

    #[test]
    fn a_grpc_method_has_a_service_or_a_method() {
        let read = |one: Value| {
            let one: kinds::GRPCMethodMatch = serde_json::from_value(one).expect("a match");
            grpc_method(&one).ok()
        };
        let exact = read(json!({"service": "a.b.C", "method": "Do"})).expect("both");
        assert_eq!(
            (exact.service.as_str(), exact.method.as_str(), exact.regex),
            ("a.b.C", "Do", false)
        );
        assert!(
            read(json!({"type": "RegularExpression", "service": "a.*"})).is_some_and(|m| m.regex)
        );
        for wrong in [
            json!({}),
            json!({"service": ""}),
            json!({"service": "a/b"}),
            json!({"method": "Do/It"}),
            json!({"type": "RegularExpression", "method": "("}),
            json!({"type": "Prefix", "method": "Do"}),
        ] {
            assert_eq!(read(wrong.clone()), None, "{wrong}");
        }
    }
}
