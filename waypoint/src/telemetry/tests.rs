// SPDX-License-Identifier: Apache-2.0

use std::time::{Duration, UNIX_EPOCH};

use proptest::prelude::*;
use proto::waypoint::{Known, Operation, expression::Kind};

use super::*;

fn headers() -> (Headers, Headers) {
    let header = |name: &'static str, value: &str| (HeaderName::from_static(name), value.into());
    (
        vec![header("x-user", "ann"), header("user-agent", "curl/8")],
        vec![header("server", "mine")],
    )
}

fn told<'e>((request, answer): &'e (Headers, Headers)) -> Told<'e> {
    Told {
        started: UNIX_EPOCH + Duration::from_millis(951_827_696_789),
        took: Duration::from_micros(12_345),
        method: Some("GET"),
        path: Some("/cart/1?x=y"),
        authority: Some("app.shop"),
        version: Some(http::Version::HTTP_11),
        request_headers: request,
        answer_headers: answer,
        request_id: Some("id-1"),
        user_agent: Some("curl/8"),
        received: 5,
        sent: 70,
        status: Some(503),
        grpc_status: None,
        flags: "UF",
        error: Some("cannot connect"),
        source: "10.0.0.1:1234".parse().unwrap(),
        identity: "spiffe://td/ns/shop/sa/client",
        asked: "app.shop.svc.cluster.local:80",
        endpoint: Some("10.0.0.2:80".parse().unwrap()),
        service: Some("app.shop.svc.cluster.local"),
        route: Some("HTTPRoute shop/r rule #0"),
    }
}

fn kind(kind: Kind) -> wire::Expression {
    wire::Expression { kind: Some(kind) }
}

fn operand(known: Known, key: &str) -> wire::Expression {
    kind(Kind::Operand(wire::Operand {
        known: known.into(),
        key: key.into(),
    }))
}

fn call(operation: Operation, arguments: impl Into<Vec<wire::Expression>>) -> wire::Expression {
    kind(Kind::Call(wire::Call {
        operation: operation.into(),
        arguments: arguments.into(),
    }))
}

fn text(text: &str) -> wire::Expression {
    kind(Kind::Text(text.into()))
}

fn number(number: f64) -> wire::Expression {
    kind(Kind::Number(number))
}

#[test]
fn a_filter_holds_or_not_and_what_cannot_be_said_does_not_hold() {
    use Operation as Op;
    let headers = headers();
    let check = |wire: &wire::Expression, holds: bool| {
        let compiled = Expression::compile(wire).unwrap();
        assert_eq!(compiled.holds(&told(&headers)), holds, "{wire:?}");
    };
    let code = || operand(Known::ResponseCode, "");
    let path = || operand(Known::RequestPath, "");
    let missing = || operand(Known::AnyRequestHeader, "x-none");
    check(&call(Op::AtLeast, [code(), number(500.0)]), true);
    check(&call(Op::Less, [code(), number(500.0)]), false);
    check(&call(Op::StartsWith, [path(), text("/cart")]), true);
    check(&call(Op::Matches, [path(), text("art/[0-9]")]), true);
    check(&call(Op::Matches, [path(), text("^art")]), false);
    check(&call(Op::OneOf, [code(), number(1.0), number(503.0)]), true);
    check(
        &call(
            Op::Equal,
            [operand(Known::AnyRequestHeader, "x-user"), text("ann")],
        ),
        true,
    );
    check(
        &call(
            Op::Equal,
            [operand(Known::RequestUrlPath, ""), text("/cart/1")],
        ),
        true,
    );
    check(&call(Op::Has, [missing()]), false);
    check(&call(Op::Not, [call(Op::Has, [missing()])]), true);
    // Neither equal nor unequal: it isn't there.
    check(&call(Op::Equal, [missing(), text("a")]), false);
    check(&call(Op::Unequal, [missing(), text("a")]), false);
    check(&call(Op::Equal, [code(), text("503")]), false);
    let unsaid = || call(Op::Equal, [missing(), text("a")]);
    let (yes, no) = (|| kind(Kind::Truth(true)), || kind(Kind::Truth(false)));
    check(&call(Op::Or, [unsaid(), yes()]), true);
    check(&call(Op::Or, [unsaid(), no()]), false);
    check(&call(Op::Not, [call(Op::And, [unsaid(), no()])]), true);
    check(&call(Op::Not, [unsaid()]), false);
    check(&operand(Known::ConnectionMtls, ""), true);
    check(
        &call(
            Op::Equal,
            [operand(Known::AnyResponseHeader, "server"), text("mine")],
        ),
        true,
    );
    check(
        &call(Op::Equal, [call(Op::ToText, [code()]), text("503")]),
        true,
    );
    check(
        &call(Op::Equal, [operand(Known::RequestQuery, ""), text("x=y")]),
        true,
    );
    check(&code(), false);
}

#[test]
fn what_no_control_plane_of_ours_says_is_refused() {
    let check = |wire: wire::Expression, words: &str| {
        let error = Expression::compile(&wire).unwrap_err();
        assert!(error.contains(words), "{error}");
    };
    check(wire::Expression::default(), "unknown kind");
    check(operand(Known::Nothing, ""), "attribute 0 is not known");
    check(operand(Known::AnyRequestHeader, "a b"), "no header's name");
    check(call(Operation::NoneOfThese, []), "operation 0 is not known");
    check(
        call(Operation::Equal, [number(1.0)]),
        "EQUAL of 1 arguments",
    );
    check(call(Operation::Matches, [number(1.0), text("(")]), "");
    let deep = (0..80).fold(number(1.0), |within, _| call(Operation::Not, [within]));
    check(deep, "nested deeper than 64");
}

#[test]
fn lines_are_as_envoy_writes_them() {
    let headers = headers();
    let check = |format: &str, line: &str| {
        let format = Format::text(format).unwrap();
        assert_eq!(format.line(&told(&headers)), line);
    };
    check(
        "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" %RESPONSE_CODE% %RESPONSE_FLAGS%",
        "[2000-02-29T12:34:56.789Z] \"GET /cart/1?x=y HTTP/1.1\" 503 UF",
    );
    check(
        "%RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% \"%UPSTREAM_TRANSPORT_FAILURE_REASON%\" %BYTES_RECEIVED% %BYTES_SENT% %DURATION%",
        "cannot_connect - \"cannot connect\" 5 70 12",
    );
    check(
        "%REQ(USER-AGENT)% %REQ(X-REQUEST-ID)% %REQ(:AUTHORITY)% %REQ(X-FORWARDED-FOR)% %RESP(SERVER)% %RESP(X-OTHER)%",
        "curl/8 id-1 app.shop - mine -",
    );
    check(
        "%UPSTREAM_HOST% %UPSTREAM_CLUSTER_RAW% %DOWNSTREAM_REMOTE_ADDRESS% %DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT% %ROUTE_NAME% %REQ(X-USER):2% 100%%",
        "10.0.0.2:80 app.shop.svc.cluster.local 10.0.0.1:1234 10.0.0.1 HTTPRoute shop/r rule #0 an 100%",
    );
}

#[test]
fn json_keeps_numbers_and_says_null_where_there_is_nothing() {
    let fields = [
        ("code", "%RESPONSE_CODE%"),
        (
            "who",
            "%REQ(X-USER)% from %DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
        ),
        ("local", "%UPSTREAM_LOCAL_ADDRESS%"),
        ("fixed", "a\"b"),
    ];
    let fields = fields.map(|(key, text)| (key.to_owned(), text.to_owned()));
    let line = Format::json(&fields.into())
        .unwrap()
        .line(&told(&headers()));
    assert_eq!(
        line,
        r#"{"code":503,"fixed":"a\"b","local":null,"who":"ann from 10.0.0.1"}"#
    );
}

#[test]
fn an_operator_that_is_not_known_is_named() {
    for format in [
        "%NOPE%",
        "%REQ(a b)%",
        "%REQ%",
        "%RESPONSE_CODE(x)%",
        "%REQ(X):y%",
        "%REQ(X",
    ] {
        assert!(Format::text(format).is_err(), "{format}");
    }
    let error = Format::text("a %NOPE% b").unwrap_err();
    assert_eq!(error, "operator %NOPE% is not known");
}

#[test]
fn what_is_not_understood_costs_a_filter_or_a_format_and_nothing_else() {
    let wire = wire::Telemetry {
        access_logs: Some(wire::AccessLogs {
            each: vec![wire::AccessLog {
                filter: Some(wire::Expression::default()),
                format: Some(access_log::Format::Text("%NOPE%".into())),
                ..wire::AccessLog::default()
            }],
        }),
        ..wire::Telemetry::default()
    };
    let (telemetry, problems) = Telemetry::compile(&wire);
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert_eq!(telemetry.lines(&told(&headers())), [Written::Own]);
}

#[test]
fn nothing_said_is_the_own_line_and_no_log_is_none() {
    let headers = headers();
    assert_eq!(Telemetry::default().lines(&told(&headers)), [Written::Own]);
    let wire = wire::Telemetry {
        access_logs: Some(wire::AccessLogs::default()),
        ..wire::Telemetry::default()
    };
    assert_eq!(Telemetry::compile(&wire).0.lines(&told(&headers)), []);
}

#[test]
fn a_connection_that_is_no_request_is_told_as_far_as_it_goes() {
    let headers = headers();
    let told = Told {
        method: None,
        path: None,
        authority: None,
        version: None,
        status: None,
        user_agent: None,
        request_id: None,
        ..told(&headers)
    };
    let line = Format::text("%REQ(:METHOD)% %REQ(:PATH)% %PROTOCOL% %RESPONSE_CODE% %BYTES_SENT%");
    assert_eq!(line.unwrap().line(&told), "- - - 0 70");
    let code = call(
        Operation::Less,
        [operand(Known::ResponseCode, ""), number(500.0)],
    );
    assert!(!Expression::compile(&code).unwrap().holds(&told));
    let is_80 = call(
        Operation::Equal,
        [operand(Known::AskedPort, ""), number(80.0)],
    );
    assert!(Expression::compile(&is_80).unwrap().holds(&told));
}

#[test]
fn what_goes_to_a_collector_has_attributes_of_its_own() {
    let log = |port| wire::AccessLog {
        format: Some(access_log::Format::Text("%RESPONSE_CODE%".into())),
        collector: Some(wire::Collector {
            hostname: "otel.obs".into(),
            port,
            ..wire::Collector::default()
        }),
        attributes: [("who".to_owned(), "%REQ(X-USER)%".to_owned())].into(),
        ..wire::AccessLog::default()
    };
    let wire = |port| wire::Telemetry {
        access_logs: Some(wire::AccessLogs {
            each: vec![log(port)],
        }),
        ..wire::Telemetry::default()
    };
    let (telemetry, problems) = Telemetry::compile(&wire(4317));
    assert_eq!(problems, [""; 0]);
    let headers = headers();
    let [Written::Export(to, said)] = &telemetry.lines(&told(&headers))[..] else {
        panic!("{telemetry:?}");
    };
    assert_eq!(to.to_string(), "otel.obs:4317");
    assert_eq!(said.body, "503");
    assert_eq!(said.attributes, [("who".to_owned(), "ann".to_owned())]);
    // Where it can't be sent, it is not kept quiet.
    let (telemetry, problems) = Telemetry::compile(&wire(0));
    assert_eq!(problems, ["access log: the collector's port is 0"]);
    assert_eq!(telemetry.lines(&told(&headers)), [Written::Own]);
}

#[test]
fn metrics_are_left_out_or_lose_tags_or_have_others() {
    let change = |metric: &str, disabled, removed: &[&str], tags: &[(&str, Known)]| {
        let tag = |(tag, known): &(&str, Known)| ((*tag).to_owned(), operand(*known, "x-user"));
        wire::MetricOverride {
            metric: metric.into(),
            disabled,
            removed_tags: removed.iter().map(|tag| (*tag).to_owned()).collect(),
            tags: tags.iter().map(tag).collect(),
        }
    };
    let compile = |overrides: &[wire::MetricOverride]| {
        let mut wanted = Default::default();
        let changes = Changes::compile(overrides, &mut wanted, &mut Vec::new());
        (changes.map(Arc::new), wanted)
    };
    assert!(compile(&[]).0.is_none());
    let (changes, wanted) = compile(&[
        change(
            "",
            Some(true),
            &["source_app"],
            &[("code", Known::ResponseCode)],
        ),
        change(
            "istio_requests_total",
            Some(false),
            &["reporter"],
            &[
                ("who", Known::AnyRequestHeader),
                ("status", Known::ResponseGrpcStatus),
            ],
        ),
    ]);
    assert_eq!(wanted[0], [HeaderName::from_static("x-user")]);
    let headers = headers();
    let changed = changes.map(|changes| Changed::of(&changes, &told(&headers)));
    let labels = [("reporter", "waypoint"), ("source_app", "a"), ("code", "1")];
    let with = |changed: Option<&Changed>, metric: &str| {
        let said = |labels: &[(&str, &str)]| {
            let each = labels.iter().map(|(name, value)| format!("{name}={value}"));
            each.collect::<Vec<_>>().join(" ")
        };
        Changes::apply(changed, metric, &labels, said)
    };
    assert_eq!(
        with(changed.as_ref(), "istio_requests_total").as_deref(),
        Some("code=503 status=unknown who=ann")
    );
    assert_eq!(with(changed.as_ref(), "istio_request_bytes"), None);
    assert_eq!(
        with(None, "istio_request_bytes").as_deref(),
        Some("reporter=waypoint source_app=a code=1")
    );
}

proptest! {
    #[test]
    fn no_format_is_too_odd(format in "[%A-Z_():?a-z0-9é ]{0,40}") {
        if let Ok(format) = Format::text(&format) {
            let _ = format.line(&told(&headers()));
        }
    }
}
