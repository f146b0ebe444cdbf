// SPDX-License-Identifier: Apache-2.0

use super::*;

fn sources(variables: &[(&str, &str)]) -> Sources {
    let variables = variables
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    Sources {
        variables,
        mesh_config: None,
        cpus: 8,
    }
}

fn config(variables: &[(&str, &str)]) -> Config {
    match Config::from_sources(&sources(variables)) {
        Ok(config) => config,
        Err(error) => panic!("{error}"),
    }
}

fn mistakes(variables: &[(&str, &str)]) -> Vec<String> {
    match Config::from_sources(&sources(variables)) {
        Ok(_) => Vec::new(),
        Err(error) => error
            .mistakes
            .into_iter()
            .map(|mistake| mistake.variable)
            .collect(),
    }
}

#[test]
fn connections_with_a_header_may_be_handed_to_the_pods_address() {
    let config = config(&[("LOCALHOST_APP_TUNNEL", "false")]);
    assert_eq!(config.inpod.app_tunnel, AppTunnel::PodAddress);
}

#[test]
fn the_same_node_shortcut_is_off_unless_it_is_asked_for_by_name() {
    let allows = |value: &str, source: &str, destination: &str| {
        let variables = [("SAME_NODE_SHORTCUT", value)];
        config(&variables).same_node.allows(source, destination)
    };
    assert_eq!(config(&[]).same_node, SameNode::Never);
    for (value, within, across) in [
        ("", false, false),
        ("false", false, false),
        ("true", true, true),
        ("shop", true, false),
        ("pay, shop", true, true),
        ("pay", false, false),
    ] {
        assert_eq!(allows(value, "shop", "shop"), within, "{value}");
        assert_eq!(allows(value, "shop", "pay"), across, "{value}");
        assert_eq!(allows(value, "pay", "shop"), across, "{value}");
    }
    for bad in [
        "True",
        "shop,",
        "true,shop",
        "shop pay",
        "*",
        "-shop",
        "yes!",
    ] {
        let found = mistakes(&[("SAME_NODE_SHORTCUT", bad)]);
        assert!(!found.is_empty(), "{bad:?} was taken");
        assert!(found.iter().all(|name| name == "SAME_NODE_SHORTCUT"));
    }
}

#[test]
fn an_empty_environment_yields_the_defaults() {
    let config = config(&[]);
    assert_eq!(
        config.xds.map(|xds| xds.address).as_deref(),
        Some("https://localhost:15012")
    );
    assert_eq!(config.ca.address, "https://localhost:15012");
    assert_eq!(
        config.inpod.socket.to_str(),
        Some("/var/run/ztunnel/ztunnel.sock")
    );
    assert_eq!(config.inpod.mark, 1337);
    assert_eq!(config.inpod.app_tunnel, AppTunnel::Loopback);
    assert_eq!(config.secret_ttl, Duration::from_secs(24 * 3600));
    assert_eq!(config.drain_deadline, Duration::from_secs(5));
    assert_eq!(config.workers, 2);
    assert_eq!(config.hbone.stream_window, 4 << 20);
    assert_eq!(
        (
            config.ports.admin,
            config.ports.stats,
            config.ports.readiness
        ),
        (15000, 15020, 15021)
    );
}

#[test]
fn all_mistakes_are_reported_at_once_with_their_variables() {
    let found = mistakes(&[
        ("FAKE_CA", "true"),
        ("XDS_ON_DEMAND", "perhaps"),
        ("SECRET_TTL", "soon"),
        ("KEEPALIVE_RETRIES", "-1"),
        ("IPV6_ENABLED", "yes"),
        ("CA_ADDRESS", "http://ca:1"),
        ("ISTIO_METAJSON_LABELS", "{"),
        ("LOCAL_XDS", "x"),
        ("LOCAL_XDS_PATH", "y"),
        ("HTTP2_FRAME_SIZE", "5"),
        ("HBONE_ENGINE", "fast"),
    ]);
    for variable in [
        "FAKE_CA",
        "XDS_ON_DEMAND",
        "SECRET_TTL",
        "KEEPALIVE_RETRIES",
        "IPV6_ENABLED",
        "CA_ADDRESS",
        "ISTIO_METAJSON_LABELS",
        "LOCAL_XDS",
        "HTTP2_FRAME_SIZE",
        "HBONE_ENGINE",
    ] {
        assert_eq!(
            found.iter().filter(|name| *name == variable).count(),
            1,
            "{variable} in {found:?}"
        );
    }
    assert_eq!(found.len(), 10);
}

#[test]
fn what_this_build_does_not_do_is_refused_by_name() {
    let cases = [
        ("FAKE_CA", "true"),
        ("TLS12_ENABLED", "true"),
        ("ENABLE_PROXY", "false"),
        ("PROXY_MODE", "dedicated"),
        ("PROXY_MODE", "both"),
        ("COMPLIANCE_POLICY", "pqc"),
    ];
    for (name, value) in cases {
        assert_eq!(mistakes(&[(name, value)]), [name], "{name}={value}");
    }
}

#[test]
fn socks5_is_offered_where_that_is_asked_for() {
    assert_eq!(config(&[]).socks5, Socks5::Off);
    let said = |word: &str| config(&[("UNSTABLE_ENABLE_SOCKS5", word)]).socks5;
    assert_eq!(said("true"), Socks5::On);
    assert_eq!(said("false"), Socks5::Off);
    let unclear = [("UNSTABLE_ENABLE_SOCKS5", "maybe")];
    assert_eq!(mistakes(&unclear), ["UNSTABLE_ENABLE_SOCKS5"]);
}

#[test]
fn dns_is_served_unless_something_else_than_true_is_said() {
    let served = |variables: &[(&str, &str)]| config(variables).dns;
    let dns = served(&[]).expect("is on");
    assert_eq!(dns.listen, DnsListen::Localhost(15053));
    assert_eq!(&*dns.cluster_domain, "cluster.local");
    let resolv_conf = config(&[]).resolv_conf;
    assert_eq!(resolv_conf.to_str(), Some("/etc/resolv.conf"));
    assert!(served(&[("ISTIO_META_DNS_CAPTURE", "TRUE")]).is_some());
    for word in ["false", "FALSE", "no", ""] {
        assert!(
            served(&[("ISTIO_META_DNS_CAPTURE", word)]).is_none(),
            "{word}"
        );
    }
    let by_document = [("PROXY_CONFIG", "proxyMetadata: {DNS_CAPTURE: \"false\"}")];
    assert!(served(&by_document).is_none());
    let over_it = [by_document[0], ("ISTIO_META_DNS_CAPTURE", "true")];
    assert!(served(&over_it).is_some());
    let named = served(&[
        ("CLUSTER_DOMAIN", "Corp.Example."),
        ("PREFERED_SERVICE_NAMESPACE", "base"),
        ("ISTIO_META_DNS_PROXY_ADDR", "127.0.0.1:5353"),
    ])
    .expect("is on");
    assert_eq!(&*named.cluster_domain, "corp.example");
    assert_eq!(named.preferred_namespace.as_deref(), Some("base"));
    assert_eq!(named.listen.port(), 5353);
    for (variable, value) in [
        ("ISTIO_META_DNS_PROXY_ADDR", "somewhere"),
        ("ISTIO_META_DNS_PROXY_ADDR", "0.0.0.0:15053"),
        ("CLUSTER_DOMAIN", "."),
    ] {
        assert_eq!(mistakes(&[(variable, value)]), [variable], "{value}");
    }
}

#[test]
fn on_demand_needs_a_control_plane_and_goes_without_dns() {
    assert_eq!(config(&[]).following, Following::Everything);
    let on = ("XDS_ON_DEMAND", "true");
    let no_dns = ("ISTIO_META_DNS_CAPTURE", "false");
    assert_eq!(config(&[on, no_dns]).following, Following::OnDemand);
    let mistaken = ["XDS_ON_DEMAND"];
    assert_eq!(mistakes(&[on, no_dns, ("XDS_ADDRESS", "")]), mistaken);
    assert_eq!(
        mistakes(&[on]),
        mistaken,
        "DNS is on unless it is turned off"
    );
}

#[test]
fn an_empty_control_plane_address_means_none_but_an_empty_authority_is_a_mistake() {
    assert!(config(&[("XDS_ADDRESS", "")]).xds.is_none());
    assert_eq!(mistakes(&[("CA_ADDRESS", "")]), ["CA_ADDRESS"]);
}

#[test]
fn addresses_without_a_scheme_mean_https() {
    let config = config(&[
        ("XDS_ADDRESS", "istiod:15012"),
        ("CA_ADDRESS", "10.0.0.1:15012"),
    ]);
    assert_eq!(
        config.xds.map(|xds| xds.address).as_deref(),
        Some("https://istiod:15012")
    );
    assert_eq!(config.ca.address, "https://10.0.0.1:15012");
}

#[test]
fn the_drain_deadline_leaves_time_before_the_kill() {
    let check = |variables: &[(&str, &str)], seconds: u64| {
        assert_eq!(
            config(variables).drain_deadline,
            Duration::from_secs(seconds),
            "{variables:?}"
        );
    };
    check(&[("TERMINATION_GRACE_PERIOD_SECONDS", "30")], 25);
    check(&[("TERMINATION_GRACE_PERIOD_SECONDS", "10")], 9);
    check(&[("TERMINATION_GRACE_PERIOD_SECONDS", "1")], 1);
    check(&[("TERMINATION_GRACE_PERIOD_SECONDS", "0")], 1);
    check(
        &[
            ("TERMINATION_GRACE_PERIOD_SECONDS", "30"),
            ("CONNECTION_TERMINATION_DEADLINE", "2s"),
        ],
        2,
    );
}

#[test]
fn worker_threads_follow_cpus_limit_request_and_setting() {
    let check = |variables: &[(&str, &str)], threads: usize| {
        assert_eq!(config(variables).workers, threads, "{variables:?}");
    };
    check(&[("ZTUNNEL_WORKER_THREADS", "3")], 3);
    check(&[("ZTUNNEL_WORKER_THREADS", "0")], 8);
    check(&[("ZTUNNEL_WORKER_THREADS", "30%")], 3);
    check(&[("ZTUNNEL_WORKER_THREADS", "1%")], 1);
    check(&[("ZTUNNEL_RESOURCE_CPU_LIMIT", "1500m")], 2);
    check(&[("ZTUNNEL_RESOURCE_CPU_LIMIT", "500m")], 1);
    check(&[("ZTUNNEL_RESOURCE_CPU_REQUEST", "5")], 5);
    check(
        &[
            ("ZTUNNEL_CPU_LIMIT", "4"),
            ("ZTUNNEL_WORKER_THREADS", "50%"),
        ],
        2,
    );
    check(&[("PROXY_CONFIG", "concurrency: 6")], 6);
    check(&[("PROXY_CONFIG", "concurrency: 0")], 8);
}

#[test]
fn metadata_comes_from_proxy_config_then_text_then_json() {
    let mut sources = sources(&[
        ("PROXY_CONFIG", "proxyMetadata: {ISTIO_META_A: own, B: own}"),
        ("ISTIO_META_B", "text"),
        ("ISTIO_META_C", "text"),
        ("ISTIO_METAJSON_C", "{\"x\": 1}"),
    ]);
    sources.mesh_config =
        Some("defaultConfig: {proxyMetadata: {A: mesh, D: mesh}, statsPort: 1234}".to_owned());
    let config = Config::from_sources(&sources).expect("is valid");
    let metadata = config.node.metadata;
    assert_eq!(metadata["A"], "own");
    assert_eq!(metadata["B"], "text");
    assert_eq!(metadata["C"], serde_json::json!({"x": 1}));
    assert_eq!(metadata["D"], "mesh");
    assert_eq!(config.ports.stats, 1234);
}

#[test]
fn cluster_id_of_the_metadata_wins() {
    assert_eq!(
        &*config(&[("CLUSTER_ID", "a"), ("ISTIO_META_CLUSTER_ID", "b")])
            .node
            .cluster_id,
        "b"
    );
    assert_eq!(&*config(&[("CLUSTER_ID", "a")]).node.cluster_id, "a");
    assert_eq!(&*config(&[]).node.cluster_id, "Kubernetes");
}

#[test]
fn secrets_do_not_reach_the_effective_values() {
    let config = config(&[
        ("AUTH_TOKEN", "hush"),
        ("XDS_HEADER_x-key", "hush"),
        ("LOCAL_XDS", "hush"),
    ]);
    assert!(matches!(config.token, Token::Literal(_)));
    let shown = format!("{:?} {:?}", config.effective, config.token);
    assert!(!shown.contains("hush"), "{shown}");
    assert_eq!(config.effective["AUTH_TOKEN"], "(set)");
}

#[test]
fn roots_are_a_file_pem_text_or_the_systems() {
    let root = |value: &str| config(&[("CA_ROOT_CA", value)]).ca.root;
    assert_eq!(root("SYSTEM"), RootSource::System);
    assert_eq!(root("/x/root.pem"), RootSource::File("/x/root.pem".into()));
    let pem = "-----BEGIN CERTIFICATE-----\n";
    assert_eq!(root(pem), RootSource::Inline(pem.to_owned()));
}
