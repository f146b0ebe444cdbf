// SPDX-License-Identifier: Apache-2.0

use proto::waypoint::load_balancer::Choice;
use serde_json::{Value, json};

use super::*;

fn read_spec(spec: Value) -> DestinationRule {
    let mesh = Mesh {
        cluster_id: "c".into(),
        cluster_domain: "cluster.local".into(),
        trust_domain: Default::default(),
        root_namespace: "root".into(),
        auto_allocate: None,
        dry_run_at_ztunnels: true,
    };
    let rule = json!({"metadata": {"namespace": "shop", "name": "r"}, "spec": spec});
    read(&serde_json::from_value(rule).expect("a rule"), &mesh).facts
}

fn notes(spec: Value) -> Vec<String> {
    let rule = read_spec(spec);
    rule.notes.iter().map(ToString::to_string).collect()
}

#[test]
fn a_port_or_a_subset_has_its_own_word_in_place_of_the_wider_one() {
    use wire::load_balancer::Simple;

    let rule = read_spec(json!({
        "host": "books",
        "trafficPolicy": {
            "loadBalancer": {"simple": "RANDOM"}, "outlierDetection": {},
            "portLevelSettings": [{"port": {"number": 81}, "connectionPool": {"tcp": {"maxConnections": 3}}}],
        },
        "subsets": [
            {"name": "plain", "labels": {"v": "1"}},
            {"name": "own", "labels": {"v": "2"}, "trafficPolicy": {"loadBalancer": {"simple": "LEAST_CONN"}}},
        ],
    }));
    assert_eq!(rule.host.as_deref(), Some("books.shop.svc.cluster.local"));
    let simple = |policy: &wire::TrafficPolicy| {
        let choice = policy.load_balancer.as_ref()?.choice.as_ref()?;
        match choice {
            Choice::Simple(simple) => Simple::try_from(*simple).ok(),
            Choice::Hash(_) => None,
        }
    };
    let all = rule.policy(80).expect("a policy");
    assert_eq!(simple(&all), Some(Simple::Random));
    let outliers = all.outlier_detection.expect("asked for");
    assert_eq!((outliers.consecutive_5xx, outliers.max_percent), (5, 10));
    let port = rule.policy(81).expect("a policy");
    assert_eq!(
        (simple(&port), port.limits.map(|limits| limits.connections)),
        (None, Some(3))
    );
    let of = |name: &str| {
        rule.subset(name, 80)
            .map(|(labels, policy)| (labels["v"].clone(), simple(&policy)))
    };
    assert_eq!(of("plain"), Some(("1".to_owned(), Some(Simple::Random))));
    assert_eq!(
        of("own"),
        Some(("2".to_owned(), Some(Simple::LeastRequest)))
    );
    assert_eq!(of("none"), None);
    assert!(
        rule.closed.is_empty() && rule.notes.is_empty(),
        "{:?}",
        rule.notes
    );
}

#[test]
fn what_would_go_out_otherwise_closes_the_host() {
    for (policy, field) in [
        (
            json!({"tls": {"mode": "LATER"}}),
            "spec.trafficPolicy.tls.mode",
        ),
        (
            json!({"proxyProtocol": {"version": "V2"}}),
            "spec.trafficPolicy.proxyProtocol",
        ),
        (
            json!({"portLevelSettings": [{"port": {"number": 1}, "tls": {"mode": "MUTUAL"}}]}),
            "spec.trafficPolicy.portLevelSettings[0].tls.clientCertificate",
        ),
        (
            json!({"tls": {"mode": "SIMPLE", "insecureSkipVerify": true}}),
            "spec.trafficPolicy.tls.insecureSkipVerify",
        ),
        (
            json!({"tls": {"mode": "SIMPLE", "caCrl": "/crl.pem"}}),
            "spec.trafficPolicy.tls.caCrl",
        ),
        (
            json!({"tls": {"mode": "SIMPLE", "sni": "*.example.com"}}),
            "spec.trafficPolicy.tls.sni",
        ),
        (
            json!({"tls": {"mode": "SIMPLE", "subjectAltNames": ["a.example", "http://x"]}}),
            "spec.trafficPolicy.tls.subjectAltNames[1]",
        ),
        (
            json!({"tls": {"mode": "SIMPLE", "caCertificates": "/etc/../shadow"}}),
            "spec.trafficPolicy.tls.caCertificates",
        ),
        (
            json!({"tls": {"mode": "SIMPLE", "credentialName": "../other"}}),
            "spec.trafficPolicy.tls.credentialName",
        ),
        (
            json!({"tls": {"mode": "SIMPLE", "credentialName": "a", "caCertificates": "/b"}}),
            "spec.trafficPolicy.tls.caCertificates",
        ),
    ] {
        let rule = read_spec(json!({"host": "a.example.com", "trafficPolicy": policy}));
        assert!(rule.closed.starts_with(field), "{}", rule.closed);
    }
    for mode in ["DISABLE", "ISTIO_MUTUAL"] {
        let policy = json!({"tls": {"mode": mode}});
        let rule = read_spec(json!({"host": "a.example.com", "trafficPolicy": policy}));
        assert_eq!(rule.closed, "");
    }
}

#[test]
fn what_can_not_be_used_is_told_by_field() {
    let spec = json!({"host": "a.example.com", "later": 1, "trafficPolicy": {
        "loadBalancer": {"simple": "PASSTHROUGH", "localityLbSetting": {
            "distribute": [{"from": "a/b", "to": {"a/*": 60}}, {"from": "*/b", "to": {"a": 100}}],
            "failover": [{"from": "a", "to": "a"}],
            "failoverPriority": ["topology.istio.io/network", "version", "topology.kubernetes.io/zone"],
        }},
        "connectionPool": {"tcp": {"maxConnections": -1, "connectTimeout": "soon"}, "http": {"h2UpgradePolicy": "UPGRADE"}},
        "outlierDetection": {"maxEjectionPercent": 101},
    }});
    let told = notes(spec).join("\n");
    for field in [
        "spec.later",
        "spec.trafficPolicy.loadBalancer.simple",
        "spec.trafficPolicy.loadBalancer.localityLbSetting.distribute[0]",
        "spec.trafficPolicy.loadBalancer.localityLbSetting.distribute[1]",
        "spec.trafficPolicy.loadBalancer.localityLbSetting.failover[0]",
        "spec.trafficPolicy.loadBalancer.localityLbSetting.failoverPriority[1]",
        "spec.trafficPolicy.connectionPool.tcp.maxConnections",
        "spec.trafficPolicy.connectionPool.tcp.connectTimeout",
        "spec.trafficPolicy.connectionPool.http.h2UpgradePolicy",
        "spec.trafficPolicy.outlierDetection.maxEjectionPercent",
    ] {
        assert!(
            told.contains(&format!("{field}: ")),
            "{field} is not in {told}"
        );
    }
    assert_eq!(notes(json!({"host": "*.example.com"})), [""; 0]);
    assert_eq!(notes(json!({"host": "*x.example.com"})).len(), 1);
}

#[test]
fn tls_with_servers_outside_is_told_with_files_of_the_waypoints() {
    let check = |tls: Value, expected: wire::Tls| {
        let rule = read_spec(json!({"host": "a.example.com", "trafficPolicy": {"tls": tls}}));
        assert_eq!(rule.closed, "");
        assert_eq!(
            rule.policy(443).and_then(|policy| policy.tls),
            Some(expected)
        );
    };
    check(
        json!({"mode": "SIMPLE", "caCertificates": "system"}),
        wire::Tls::default(),
    );
    check(
        json!({"mode": "SIMPLE", "sni": "B.example.com", "caCertificates": "/etc/ca.pem",
            "subjectAltNames": ["C.example.com", "spiffe://td/ns/a/sa/b"]}),
        wire::Tls {
            server_name: "b.example.com".into(),
            subject_alt_names: vec!["c.example.com".into(), "spiffe://td/ns/a/sa/b".into()],
            authorities: "/etc/ca.pem".into(),
            ..wire::Tls::default()
        },
    );
    let shown = |chain: &str, key: &str| wire::ClientCertificate {
        chain: chain.into(),
        key: key.into(),
        namespace: "shop".into(),
    };
    check(
        json!({"mode": "MUTUAL", "clientCertificate": "/c.pem", "privateKey": "/k.pem"}),
        wire::Tls {
            certificate: Some(shown("/c.pem", "/k.pem")),
            ..wire::Tls::default()
        },
    );
    let folder = "/var/run/secrets/credentials/far";
    check(
        json!({"mode": "MUTUAL", "credentialName": "far"}),
        wire::Tls {
            authorities: format!("{folder}/ca.crt"),
            certificate: Some(shown(
                &format!("{folder}/tls.crt"),
                &format!("{folder}/tls.key"),
            )),
            ..wire::Tls::default()
        },
    );
}

#[test]
fn a_part_of_a_host_is_spoken_to_as_the_host_is_where_it_says_nothing_else() {
    let rule = read_spec(json!({
        "host": "a.example.com",
        "trafficPolicy": {"tls": {"mode": "SIMPLE"}, "retryBudget": {}},
        "subsets": [
            {"name": "own", "trafficPolicy": {"loadBalancer": {"simple": "RANDOM"}}},
            {"name": "plain", "trafficPolicy": {"tls": {"mode": "DISABLE"}}},
        ],
    }));
    let of = |name: &str| rule.subset(name, 80).expect("a part").1;
    assert!(of("own").tls.is_some() && of("own").retry_budget.is_some());
    assert!(of("own").load_balancer.is_some());
    assert_eq!(of("plain").tls, None);
}

#[test]
fn a_preference_of_places_is_told_as_it_is_given() {
    use wire::locality_preference::Scope;
    let read = |setting: Value| {
        let policy = json!({"loadBalancer": {"localityLbSetting": setting}});
        let rule = read_spec(json!({"host": "a.example.com", "trafficPolicy": policy}));
        assert!(rule.notes.is_empty(), "{:?}", rule.notes);
        let balancer = rule.policy(80).and_then(|policy| policy.load_balancer);
        balancer
            .and_then(|balancer| balancer.locality)
            .expect("told")
    };
    let scopes = |of: &wire::LocalityPreference| of.scopes().collect::<Vec<_>>();
    let own = read(json!({"enabled": true, "failover": [{"from": "a", "to": "b"}]}));
    assert_eq!(scopes(&own), [Scope::Region, Scope::Zone, Scope::Subzone]);
    assert_eq!(
        (own.failover[0].from.as_str(), own.failover[0].to.as_str()),
        ("a", "b")
    );
    assert_eq!(
        read(json!({"enabled": false})),
        wire::LocalityPreference::default()
    );
    let labels =
        json!({"failoverPriority": ["topology.istio.io/cluster", "kubernetes.io/hostname"]});
    assert_eq!(scopes(&read(labels)), [Scope::Cluster, Scope::Node]);
    let to = json!({"a/b/*": 70, "a/c": 30});
    let distributed = read(json!({"distribute": [{"from": "a/*", "to": to}]})).distribute;
    assert_eq!(distributed[0].from, "a/*");
    let to = distributed[0]
        .to
        .iter()
        .map(|share| (share.to.as_str(), share.weight));
    assert_eq!(to.collect::<Vec<_>>(), [("a/b/*", 70), ("a/c", 30)]);
}
