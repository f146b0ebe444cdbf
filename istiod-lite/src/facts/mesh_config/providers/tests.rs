// SPDX-License-Identifier: Apache-2.0
use serde_json::json;
use wire::authorizer::Protocol;
use wire::pattern::Kind;

use super::*;

fn one(written: Value) -> Provider {
    let mut read = read(vec![written]);
    assert_eq!(read.len(), 1);
    read.remove(0)
}

fn authorizer(written: Value) -> wire::Authorizer {
    match one(written).kind.expect("usable") {
        ProviderKind::Authorizer(authorizer) => *authorizer,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_authorizer_over_http_is_read_with_all_its_fields() {
    let read = authorizer(json!({
        "name": "opa",
        "envoyExtAuthzHttp": {
            "service": "auth/opa.auth.svc.cluster.local",
            "port": 8000,
            "timeout": "1.5s",
            "pathPrefix": "/check",
            "failOpen": true,
            "statusOnError": "503",
            "clearRouteCache": true,
            "includeRequestHeadersInCheck": ["Cookie", "x-ext-*"],
            "includeAdditionalHeadersInCheck": {"X-Mesh": "yes"},
            "includeRequestBodyInCheck": {
                "maxRequestBytes": 4096, "allowPartialMessage": true, "packAsBytes": true
            },
            "headersToUpstreamOnAllow": ["*-user"],
            "headersToDownstreamOnDeny": ["set-cookie"],
            "headersToDownstreamOnAllow": ["x-a"],
        }
    }));
    let pattern = |kind| wire::Pattern { kind: Some(kind) };
    assert_eq!(
        read,
        wire::Authorizer {
            name: "opa".into(),
            invalid: String::new(),
            namespace: "auth".into(),
            hostname: "opa.auth.svc.cluster.local".into(),
            port: 8000,
            timeout: Some(prost_types::Duration {
                seconds: 1,
                nanos: 500_000_000
            }),
            fail_open: true,
            status_on_error: 503,
            body: Some(wire::AuthorizerBody {
                max_bytes: 4096,
                allow_partial: true,
                as_bytes: true
            }),
            protocol: Some(Protocol::Http(wire::HttpAuthorizer {
                path_prefix: "/check".into(),
                request_headers: vec![
                    pattern(Kind::Exact("cookie".into())),
                    pattern(Kind::Prefix("x-ext-".into()))
                ],
                added_headers: vec![wire::AddedHeader {
                    name: "x-mesh".into(),
                    value: "yes".into()
                }],
                upstream_on_allow: vec![pattern(Kind::Suffix("-user".into()))],
                downstream_on_deny: vec![pattern(Kind::Exact("set-cookie".into()))],
                downstream_on_allow: vec![pattern(Kind::Exact("x-a".into()))],
            })),
        }
    );
    let plain = json!({"name": "a", "envoyExtAuthzGrpc": {"service": "a.b", "port": 9000}});
    let read = authorizer(plain);
    assert_eq!(read.protocol, Some(Protocol::Grpc(())));
    assert_eq!((&*read.namespace, &*read.hostname), ("", "a.b"));
    assert!(!read.fail_open && read.body.is_none() && read.timeout.is_none());
}

#[test]
fn what_cannot_be_used_says_which_field_is_wrong() {
    for (kind, fields, words) in [
        (
            "envoyExtAuthzGrpc",
            json!({"port": 1}),
            "envoyExtAuthzGrpc.service: ",
        ),
        (
            "envoyExtAuthzGrpc",
            json!({"service": "a/b/c", "port": 1}),
            "service: ",
        ),
        ("envoyExtAuthzGrpc", json!({"service": "a"}), "port: "),
        (
            "envoyExtAuthzGrpc",
            json!({"service": "a", "port": 65536}),
            "port: ",
        ),
        (
            "envoyExtAuthzGrpc",
            json!({"service": "a", "port": 1, "timeout": "soon"}),
            "timeout: ",
        ),
        (
            "envoyExtAuthzGrpc",
            json!({"service": "a", "port": 1, "timeout": "0s"}),
            "timeout: ",
        ),
        (
            "envoyExtAuthzGrpc",
            json!({"service": "a", "port": 1, "failOpen": "yes"}),
            "failOpen: ",
        ),
        (
            "envoyExtAuthzGrpc",
            json!({"service": "a", "port": 1, "statusOnError": "100"}),
            "statusOnError: ",
        ),
        (
            "envoyExtAuthzGrpc",
            json!({"service": "a", "port": 1, "limit": 1}),
            "limit: is not known",
        ),
        (
            "envoyExtAuthzGrpc",
            json!({"service": "a", "port": 1, "pathPrefix": "/"}),
            "pathPrefix: is not known",
        ),
        (
            "envoyExtAuthzHttp",
            json!({"service": "a", "port": 1, "pathPrefix": "x"}),
            "pathPrefix: ",
        ),
        (
            "envoyExtAuthzHttp",
            json!({"service": "a", "port": 1, "headersToUpstreamOnAllow": ["*"]}),
            "headersToUpstreamOnAllow[0]: ",
        ),
        (
            "envoyExtAuthzHttp",
            json!({"service": "a", "port": 1, "headersToUpstreamOnAllow": ["*x*"]}),
            "headersToUpstreamOnAllow[0]: ",
        ),
        (
            "envoyExtAuthzHttp",
            json!({"service": "a", "port": 1, "includeAdditionalHeadersInCheck": {"a b": "c"}}),
            "includeAdditionalHeadersInCheck",
        ),
        (
            "envoyExtAuthzHttp",
            json!({"service": "a", "port": 1, "includeRequestBodyInCheck": {}}),
            "includeRequestBodyInCheck.maxRequestBytes: ",
        ),
        (
            "envoyExtAuthzHttp",
            json!({"service": "a", "port": 1, "includeRequestBodyInCheck": {"maxRequestBytes": 2_000_000}}),
            "maxRequestBytes: ",
        ),
        (
            "opentelemetry",
            json!({"service": "a"}),
            "opentelemetry.port: ",
        ),
    ] {
        let reason = one(json!({"name": "x", kind: fields}))
            .kind
            .expect_err(words);
        assert!(reason.contains(words), "{reason} / {words}");
    }
    assert!(one(json!({"name": "x"})).kind.is_err());
    assert!(one(json!({"name": "x", "a": {}, "b": {}})).kind.is_err());
    let twice = json!({"name": "x", "prometheus": {}});
    let read = read(vec![
        twice.clone(),
        json!({"prometheus": {}}),
        json!(3),
        twice,
    ]);
    assert_eq!(read.len(), 1);
    assert_eq!(read[0].kind, Err("is there more than once".to_owned()));
}

#[test]
fn any_other_kind_is_kept_as_it_is_written() {
    let written = json!({"name": "otel", "opentelemetry": {
        "service": "tracing/otel.tracing.svc.cluster.local", "port": 4317, "maxTagLength": 8
    }});
    let Ok(ProviderKind::Other {
        key,
        backend,
        settings,
    }) = one(written).kind
    else {
        panic!("usable");
    };
    assert_eq!(key, "opentelemetry");
    let backend = backend.expect("said");
    assert_eq!((&*backend.namespace, backend.port), ("tracing", 4317));
    assert_eq!(settings["maxTagLength"], 8);
    for written in [
        json!({"name": "p", "prometheus": {}}),
        json!({"name": "p", "prometheus": null}),
    ] {
        let kind = one(written).kind.expect("usable");
        assert!(
            matches!(kind, ProviderKind::Other { backend: None, .. }),
            "{kind:?}"
        );
    }
}
