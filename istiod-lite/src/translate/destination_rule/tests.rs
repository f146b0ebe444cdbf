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
            json!({"tls": {"mode": "SIMPLE"}}),
            "spec.trafficPolicy.tls.mode",
        ),
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
            "spec.trafficPolicy.portLevelSettings[0].tls.mode",
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
        "loadBalancer": {"simple": "PASSTHROUGH", "localityLbSetting": {}},
        "connectionPool": {"tcp": {"maxConnections": -1, "connectTimeout": "soon"}, "http": {"h2UpgradePolicy": "UPGRADE"}},
        "outlierDetection": {"maxEjectionPercent": 101},
    }});
    let told = notes(spec).join("\n");
    for field in [
        "spec.later",
        "spec.trafficPolicy.loadBalancer.simple",
        "spec.trafficPolicy.loadBalancer.localityLbSetting",
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
