// SPDX-License-Identifier: Apache-2.0
use std::net::{IpAddr, SocketAddr};

use proptest::prelude::*;

use super::*;

#[test]
fn authorities_are_read_as_written_or_refused_with_a_reason() {
    let address = |text: &str| Ok(Authority::Addr(text.parse::<SocketAddr>().unwrap()));
    let host = |name: &str, port| Ok(Authority::Host(name.into(), port));
    let port = |text: &str| Err(AuthorityError::Port(text.into()));
    let bad = |text: &str| Err(AuthorityError::Host(text.into()));
    for (text, expected) in [
        ("10.0.0.1:80", address("10.0.0.1:80")),
        ("[fd00::1]:15008", address("[fd00::1]:15008")),
        ("[::ffff:10.0.0.1]:80", address("10.0.0.1:80")),
        ("Web.Default.svc:8080", host("web.default.svc", 8080)),
        ("", Err(AuthorityError::Missing)),
        ("10.0.0.1", port("10.0.0.1")),
        ("10.0.0.1:0", port("10.0.0.1:0")),
        ("10.0.0.1:+80", port("10.0.0.1:+80")),
        ("10.0.0.1:65536", port("10.0.0.1:65536")),
        ("web:", port("web:")),
        ("fd00::1:80", bad("fd00::1:80")),
        ("[10.0.0.1]:80", bad("[10.0.0.1]:80")),
        ("[fe80::1%eth0]:80", bad("[fe80::1%eth0]:80")),
        ("user@host:80", bad("user@host:80")),
        (":80", bad(":80")),
    ] {
        assert_eq!(text.parse::<Authority>(), expected, "{text}");
    }
}

#[test]
fn baggage_has_the_order_and_omissions_of_the_contract() {
    let baggage = Baggage {
        cluster: Some("Kubernetes".into()),
        namespace: Some("default".into()),
        workload: Some((WorkloadKind::Deployment, "web".into())),
        service: Some("web".into()),
        revision: Some(String::new()),
        region: None,
        zone: Some("a,b".into()),
    };
    assert_eq!(
        baggage.to_header(),
        "k8s.cluster.name=Kubernetes,k8s.namespace.name=default,k8s.deployment.name=web,service.name=web"
    );
    assert_eq!(Baggage::default().to_header(), "");
}

#[test]
fn baggage_lines_are_merged_and_what_is_unknown_is_skipped() {
    let lines = [
        HeaderValue::from_static("k8s.namespace.name=a=b,unknown=1,service.name="),
        HeaderValue::from_static("k8s.job.name=j,,=,cloud.region"),
    ];
    assert_eq!(
        Baggage::from_headers(lines.iter()),
        Some(Baggage {
            namespace: Some("a".into()),
            workload: Some((WorkloadKind::Job, "j".into())),
            ..Baggage::default()
        })
    );
    let not_ascii = [HeaderValue::from_bytes(b"service.name=\xe4").unwrap()];
    assert_eq!(Baggage::from_headers(not_ascii.iter()), None);
    assert_eq!(Baggage::from_headers([].iter()), None);
}

#[test]
fn forwarded_is_read_with_and_without_quotes_and_in_lower_case_only() {
    let check = |text: &str, source: Option<&str>, host: Option<&str>| {
        let expected = Forwarded {
            source: source.map(|s| s.parse().unwrap()),
            host: host.map(str::to_owned),
        };
        let found = Forwarded::parse(text).unwrap_or_default();
        assert_eq!(found, expected, "{text}");
    };
    check("for=\"10.0.0.1:80\"", Some("10.0.0.1:80"), None);
    check("for=\"[::1]:80\";host=a.b", Some("[::1]:80"), Some("a.b"));
    check(
        " for = 10.0.0.1:80 ; host = \"a\" ",
        Some("10.0.0.1:80"),
        Some("a"),
    );
    check("For=10.0.0.1:80;HOST=a", None, None);
    check("for=_hidden;host=", None, None);
    check("host=first;host=second", None, Some("first"));
    check(";;=;host", None, None);
}

#[test]
fn forwarded_is_written_as_the_contract_says() {
    let forwarded = Forwarded {
        source: Some("[::1]:80".parse().unwrap()),
        host: Some("web.default.svc.cluster.local".into()),
    };
    assert_eq!(
        forwarded.to_header().unwrap(),
        "for=\"[::1]:80\";host=web.default.svc.cluster.local"
    );
    assert_eq!(Forwarded::default().to_header(), None);
}

#[test]
fn traceparent_is_unsampled_and_only_legal_ones_are_read() {
    let text = TraceParent::new(0xabc, 0).to_string();
    assert_eq!(
        text,
        "00-00000000000000000000000000000abc-0000000000000001-00"
    );
    for (text, legal) in [
        (
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            true,
        ),
        (
            "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            true,
        ),
        (
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            false,
        ),
        (
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            false,
        ),
        (
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            false,
        ),
        (
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            false,
        ),
        ("", false),
    ] {
        assert_eq!(TraceParent::parse(text).is_some(), legal, "{text}");
    }
}

#[test]
fn other_methods_and_bad_authorities_are_refused_by_name() {
    let mut request = Request::new(());
    assert_eq!(
        ConnectRequest::from_http(&request),
        Err(MalformedRequest::Method("GET".into()))
    );
    *request.method_mut() = Method::CONNECT;
    assert_eq!(
        ConnectRequest::from_http(&request),
        Err(MalformedRequest::Authority(AuthorityError::Missing))
    );
}

fn text() -> impl Strategy<Value = Option<String>> {
    proptest::option::of("[a-zA-Z0-9._/-]{1,40}")
}

fn kind() -> impl Strategy<Value = WorkloadKind> {
    proptest::sample::select(WorkloadKind::ALL.to_vec())
}

fn baggage() -> impl Strategy<Value = Baggage> {
    let workload = proptest::option::of((kind(), "[a-z0-9-]{1,40}"));
    (text(), text(), workload, text(), text(), text(), text()).prop_map(
        |(cluster, namespace, workload, service, revision, region, zone)| Baggage {
            cluster,
            namespace,
            workload,
            service,
            revision,
            region,
            zone,
        },
    )
}

fn authority() -> impl Strategy<Value = Authority> {
    prop_oneof![
        (any::<IpAddr>(), 1u16..).prop_map(|(ip, port)| SocketAddr::new(ip, port).into()),
        ("[a-z][a-z0-9.-]{0,60}", 1u16..).prop_map(|(host, port)| Authority::Host(host, port)),
    ]
}

fn request() -> impl Strategy<Value = ConnectRequest> {
    let forwarded =
        (proptest::option::of((any::<IpAddr>(), 1u16..)), text()).prop_map(|(source, host)| {
            Forwarded {
                source: source.map(|(ip, port)| SocketAddr::new(ip.to_canonical(), port)),
                host,
            }
        });
    let trace =
        (any::<u128>(), any::<u64>()).prop_map(|(trace, parent)| TraceParent::new(trace, parent));
    (
        authority(),
        proptest::option::of(baggage()),
        proptest::option::of(forwarded),
        proptest::option::of(trace),
        text(),
        proptest::option::of(("[a-z0-9-]{1,20}", "[a-z0-9-]{1,20}")),
    )
        .prop_map(
            |(authority, baggage, forwarded, traceparent, network, caller)| ConnectRequest {
                authority,
                baggage,
                forwarded: forwarded.filter(|f| *f != Forwarded::default()),
                traceparent,
                network,
                caller: caller.map(|(namespace, account)| {
                    let id = format!("spiffe://cluster.local/ns/{namespace}/sa/{account}");
                    id.parse().unwrap()
                }),
            },
        )
}

proptest! {
    #[test]
    fn what_is_printed_is_read_back(request in request()) {
        let http = request.to_http().unwrap();
        prop_assert_eq!(ConnectRequest::from_http(&http), Ok(request));
    }

    #[test]
    fn authority_printed_is_read_back(authority in authority()) {
        prop_assert_eq!(authority.to_string().parse::<Authority>(), Ok(authority));
    }

    #[test]
    fn foreign_text_never_panics(text in "\\PC{0,200}") {
        if let Ok(authority) = text.parse::<Authority>() {
            prop_assert_eq!(authority.to_string().parse::<Authority>(), Ok(authority));
        }
        Baggage::parse(&text).to_header();
        if let Some(forwarded) = Forwarded::parse(&text) {
            forwarded.to_header();
        }
        TraceParent::parse(&text);
    }

    #[test]
    fn near_misses_never_panic(text in "[\\[\\]:;=,\"a-f0-9. -]{0,80}") {
        if let Ok(authority) = text.parse::<Authority>() {
            prop_assert_eq!(authority.to_string().parse::<Authority>(), Ok(authority));
        }
        let again = Baggage::parse(&text);
        prop_assert_eq!(&Baggage::parse(again.to_header().to_str().unwrap()).namespace, &again.namespace);
        if let Some(forwarded) = Forwarded::parse(&text) {
            forwarded.to_header();
        }
    }
}
