// SPDX-License-Identifier: Apache-2.0

use serde_json::{Value, json};

use super::*;

fn read_at(filters: Value, kind: Kind, prefix: Prefix) -> (Vec<Filter>, Vec<String>) {
    let filters: Vec<kinds::RouteFilter> = serde_json::from_value(filters).expect("filters");
    let place = Place {
        namespace: &"x".into(),
        kind,
        prefix,
    };
    let mut faults = Faults::default();
    let read = read(&filters, "r", place, &mut faults);
    (read, faults.0.iter().map(ToString::to_string).collect())
}

#[track_caller]
fn refused(filters: Value, expected: &[&str]) {
    let (_, faults) = read_at(filters, Kind::HTTPRoute, Prefix::None);
    assert_eq!(faults, expected);
}

fn one(kind: &str, field: &str, value: Value) -> Value {
    json!({"type": kind, field: value})
}

#[test]
fn filters_that_exclude_each_other_are_refused() {
    let redirect = one("RequestRedirect", "requestRedirect", json!({}));
    let rewrite = one("URLRewrite", "urlRewrite", json!({}));
    refused(
        json!([redirect.clone(), rewrite]),
        &["r.filters: RequestRedirect and URLRewrite exclude each other"],
    );
    refused(
        json!([redirect.clone(), redirect]),
        &["r.filters[1]: RequestRedirect stands there twice"],
    );
    let mirror = one(
        "RequestMirror",
        "requestMirror",
        json!({"backendRef": {"name": "a", "port": 80}}),
    );
    refused(json!([mirror.clone(), mirror]), &[]);
}

#[test]
fn a_header_is_changed_in_one_way_and_the_first_of_a_list_counts() {
    let headers = json!({
        "set": [{"name": "A", "value": "1"}, {"name": "a", "value": "2"}],
        "add": [{"name": "b", "value": "1"}], "remove": ["c", "C"]});
    let (read, faults) = read_at(
        json!([one(
            "RequestHeaderModifier",
            "requestHeaderModifier",
            headers
        )]),
        Kind::GRPCRoute,
        Prefix::None,
    );
    assert_eq!(faults, [""; 0]);
    let [
        Filter::Ready(wire::HttpFilter {
            kind: Some(http_filter::Kind::RequestHeaders(read)),
        }),
    ] = &read[..]
    else {
        panic!("{read:?}")
    };
    assert_eq!(
        (read.set.len(), read.add.len(), read.remove.len()),
        (1, 1, 1)
    );
    refused(
        json!([one(
            "ResponseHeaderModifier",
            "responseHeaderModifier",
            json!({
            "set": [{"name": "a", "value": "1"}, {"name": "x", "value": "a\r\nb: c"}],
            "add": [{"name": "A", "value": "1"}], "remove": ["a b"]})
        )]),
        &[
            "r.filters[0].set[1]: the value of x can't be one of a header",
            "r.filters[0].add[0]: A is changed in two ways",
            "r.filters[0].remove[0]: \"a b\" is no name of a header",
        ],
    );
}

#[test]
fn no_route_says_where_a_message_ends_or_who_sent_it() {
    let value = |name: &str| json!({"name": name, "value": "1"});
    let headers = json!({
        "set": [value("Host"), value("X-Forwarded-Client-Cert")],
        "add": [value("Transfer-Encoding")], "remove": ["TE", "x-forwarded-for"]});
    let filter = one("RequestHeaderModifier", "requestHeaderModifier", headers);
    refused(
        json!([filter]),
        &[
            "r.filters[0].set[0]: host is changed by a URLRewrite",
            "r.filters[0].set[1]: x-forwarded-client-cert says who the client is, which no route may",
            "r.filters[0].add[0]: transfer-encoding is the connection's",
            "r.filters[0].remove[0]: te is the connection's",
        ],
    );
}

#[test]
fn what_is_not_known_or_not_filled_in_is_refused() {
    refused(
        json!([{"type": "Teapot"}]),
        &["r.filters[0].type: Teapot is not supported"],
    );
    refused(json!([{}]), &["r.filters[0].type: is required"]);
    refused(
        json!([{"type": "URLRewrite", "requestRedirect": {}}]),
        &["r.filters[0]: URLRewrite is not filled in"],
    );
    refused(
        json!([{"type": "CORS", "cors": {}, "later": 1}]),
        &["r.filters[0].later: is not known"],
    );
    let rewrite = json!([one("URLRewrite", "urlRewrite", json!({}))]);
    let (_, faults) = read_at(rewrite, Kind::GRPCRoute, Prefix::None);
    assert_eq!(
        faults,
        ["r.filters[0].type: URLRewrite is no filter of a GRPCRoute"]
    );
}

#[test]
fn redirects_and_rewrites_are_checked() {
    refused(
        json!([one(
            "RequestRedirect",
            "requestRedirect",
            json!({
            "scheme": "ftp", "hostname": "a b", "port": 0, "statusCode": 304,
            "path": {"type": "ReplaceFullPath", "replaceFullPath": "a"}})
        )]),
        &[
            "r.filters[0].scheme: \"ftp\" is neither http nor https",
            "r.filters[0].port: 0 is no port number",
            "r.filters[0].statusCode: 304 is none of 301, 302, 303, 307 and 308",
            "r.filters[0].hostname: \"a b\" is not a name: a-z, 0-9 and - inside",
            "r.filters[0].path.replaceFullPath: \"a\" is no path",
        ],
    );
    let prefix = json!([one(
        "URLRewrite",
        "urlRewrite",
        json!({
        "path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": ""}})
    )]);
    let (_, faults) = read_at(prefix.clone(), Kind::HTTPRoute, Prefix::One);
    assert_eq!(faults, [""; 0]);
    let (_, faults) = read_at(prefix, Kind::HTTPRoute, Prefix::None);
    assert_eq!(
        faults,
        [
            "r.filters[0].path: a prefix can be replaced only where the rule has one match, by PathPrefix"
        ]
    );
}

#[test]
fn a_mirror_takes_a_share_at_most() {
    let mirror = |share: Value| {
        let mut wanted = json!({"backendRef": {"name": "a", "port": 80}});
        wanted
            .as_object_mut()
            .expect("an object")
            .extend(share.as_object().cloned().unwrap_or_default());
        let (read, faults) = read_at(
            json!([one("RequestMirror", "requestMirror", wanted)]),
            Kind::HTTPRoute,
            Prefix::None,
        );
        match &read[..] {
            [
                Filter::Mirror {
                    numerator,
                    denominator,
                    ..
                },
            ] if faults.is_empty() => Some((*numerator, *denominator)),
            _ => None,
        }
    };
    assert_eq!(mirror(json!({})), Some((100, 100)));
    assert_eq!(mirror(json!({"percent": 0})), Some((0, 100)));
    assert_eq!(
        mirror(json!({"fraction": {"numerator": 1, "denominator": 3}})),
        Some((1, 3))
    );
    for wrong in [
        json!({"percent": 101}),
        json!({"percent": -1}),
        json!({"fraction": {"numerator": 2, "denominator": 1}}),
        json!({"fraction": {"numerator": 0, "denominator": 0}}),
        json!({"percent": 1, "fraction": {"numerator": 1}}),
    ] {
        assert_eq!(mirror(wrong.clone()), None, "{wrong}");
    }
}

#[test]
fn cors_lists_are_checked() {
    for good in ["http://a.example", "https://*.a.example:8443", "http://*"] {
        assert!(is_origin(good), "{good}");
    }
    for wrong in [
        "a.example",
        "ftp://a",
        "http://a:0",
        "http://a b",
        "http://",
        "null",
    ] {
        assert!(!is_origin(wrong), "{wrong}");
    }
    refused(
        json!([one(
            "CORS",
            "cors",
            json!({
            "allowOrigins": ["*", "http://a"], "allowMethods": ["a b"], "maxAge": 0})
        )]),
        &[
            "r.filters[0].cors.allowOrigins: * stands for all and goes with no others",
            "r.filters[0].cors.allowMethods[0]: \"a b\" can't be one of these",
            "r.filters[0].cors.maxAge: 0 is no number of seconds from 1",
        ],
    );
}
