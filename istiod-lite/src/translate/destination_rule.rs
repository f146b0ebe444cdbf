// SPDX-License-Identifier: Apache-2.0
//! A DestinationRule: how the endpoints of a host are chosen and spared, and which of them belong together. Pure.
//!
//! What would only make traffic better and can't be honoured is told and left out; what changes what goes over the wire
//! closes the host: nothing is sent there until somebody says otherwise.

use std::collections::BTreeMap;

use cluster::kinds::{self, destination_rule as dr};
use proto::waypoint::{self as wire, hash_key::From, load_balancer::Choice};

use super::{
    Mesh,
    route::{Host, fraction},
};
use crate::facts::{Labels, Problem, Read, created, endpoint::is_host, service::port_number};

const MAX_SUBSETS: usize = 256;
const MAX_PORTS: usize = 256;

/// A DestinationRule, checked as far as it goes by itself.
#[derive(Debug, Clone, PartialEq)]
pub struct DestinationRule {
    /// When it was made: the oldest of a namespace counts.
    pub created: i64,
    /// The host that it is for; none where its name makes no sense.
    pub host: Option<Host>,
    /// What holds for all of it.
    policy: Policy,
    subsets: BTreeMap<String, Subset>,
    /// Why nothing may be sent to the host; empty where it may.
    pub closed: String,
    /// What is told to its author, by field.
    pub notes: Vec<Problem>,
}

/// What holds for a host or for a part of it, by port.
#[derive(Debug, Clone, Default, PartialEq)]
struct Policy {
    all: Option<wire::TrafficPolicy>,
    /// In place of that.
    ports: BTreeMap<u16, wire::TrafficPolicy>,
}

/// Endpoints of a host that belong together.
#[derive(Debug, Clone, PartialEq)]
struct Subset {
    labels: Labels,
    policy: Policy,
}

impl Policy {
    fn at(&self, port: u16) -> Option<&wire::TrafficPolicy> {
        self.ports.get(&port).or(self.all.as_ref())
    }
}

impl DestinationRule {
    /// What holds for a port of the host as a whole.
    pub fn policy(&self, port: u16) -> Option<wire::TrafficPolicy> {
        self.policy.at(port).cloned()
    }

    /// The labels of a part of the host, and what holds for a port of it.
    pub fn subset(&self, name: &str, port: u16) -> Option<(&Labels, wire::TrafficPolicy)> {
        let subset = self.subsets.get(name)?;
        let policy = subset.policy.at(port).or_else(|| self.policy.at(port));
        Some((&subset.labels, policy.cloned().unwrap_or_default()))
    }

    /// Whether it tells endpoints apart.
    pub fn has_subsets(&self) -> bool {
        !self.subsets.is_empty()
    }
}

/// Collects what is wrong.
#[derive(Default)]
struct Told {
    notes: Vec<Problem>,
    closed: Vec<String>,
}

impl Told {
    fn note(&mut self, field: impl Into<String>, words: &str) {
        self.notes.push(Problem::new(field, words));
    }

    fn close(&mut self, field: impl Into<String>, words: &str) {
        let problem = Problem::new(field, words);
        self.closed.push(problem.to_string());
        self.notes.push(problem);
    }

    fn unused(&mut self, at: &str, given: &[(bool, &str)]) {
        for (given, field) in given {
            if *given {
                self.note(format!("{at}.{field}"), "is not used by waypoints");
            }
        }
    }

    fn unknown(&mut self, at: &str, fields: &kinds::UnknownFields) {
        for field in fields.keys() {
            self.note(format!("{at}.{field}"), "is not known, and left out");
        }
    }

    /// A number that fits; 0 where none is given.
    fn number(&mut self, at: &str, field: &str, given: Option<i64>) -> u32 {
        let Some(given) = given else { return 0 };
        u32::try_from(given).unwrap_or_else(|_| {
            self.note(
                format!("{at}.{field}"),
                &format!("{given} is no number that can be used"),
            );
            0
        })
    }

    fn percent(&mut self, at: &str, field: &str, given: Option<i64>) -> u32 {
        match self.number(at, field, given) {
            percent @ 0..=100 => percent,
            other => {
                self.note(
                    format!("{at}.{field}"),
                    &format!("{other} is more than 100"),
                );
                100
            }
        }
    }

    fn time(
        &mut self,
        at: &str,
        field: &str,
        given: Option<&str>,
    ) -> Option<prost_types::Duration> {
        match fraction(given?) {
            Ok(time) => prost_types::Duration::try_from(time).ok(),
            Err(words) => {
                self.note(format!("{at}.{field}"), &words);
                None
            }
        }
    }
}

/// Reads a DestinationRule.
pub fn read(rule: &kinds::DestinationRule, mesh: &Mesh) -> Read<DestinationRule> {
    let spec = &rule.spec;
    let mut told = Told::default();
    told.unknown("spec", &spec.unknown_fields);
    if spec.workload_selector.is_some() {
        told.note(
            "spec.workloadSelector",
            "chooses clients, which waypoints are not: the rule is left out",
        );
    }
    let namespace = rule.metadata.namespace.as_deref().unwrap_or_default();
    let host = spec.host.to_ascii_lowercase();
    let host: Option<Host> = match is_host(&host) {
        _ if spec.workload_selector.is_some() => None,
        true if host.contains('.') => Some(host.into()),
        true => Some(mesh.hostname(namespace, &host).into()),
        false => {
            told.note(
                "spec.host",
                &format!("{host:?} is no host name that can be followed"),
            );
            None
        }
    };
    let policy = policy(
        spec.traffic_policy.as_ref(),
        "spec.trafficPolicy",
        &mut told,
    );
    if spec.subsets.len() > MAX_SUBSETS {
        let words = format!("has {} entries, {MAX_SUBSETS} may be", spec.subsets.len());
        told.note("spec.subsets", &words);
    }
    let mut subsets = BTreeMap::new();
    for (position, subset) in spec.subsets.iter().take(MAX_SUBSETS).enumerate() {
        let at = format!("spec.subsets[{position}]");
        told.unknown(&at, &subset.unknown_fields);
        let read = Subset {
            labels: subset.labels.clone(),
            policy: self::policy(
                subset.traffic_policy.as_ref(),
                &format!("{at}.trafficPolicy"),
                &mut told,
            ),
        };
        if subsets.insert(subset.name.clone(), read).is_some() {
            told.note(
                format!("{at}.name"),
                &format!("{:?} stands there twice: the last counts", subset.name),
            );
        }
    }
    Read {
        facts: DestinationRule {
            created: created(&rule.metadata).unwrap_or_default(),
            host,
            policy,
            subsets,
            closed: told.closed.join("; "),
            notes: told.notes.clone(),
        },
        problems: told.notes,
    }
}

fn policy(given: Option<&dr::TrafficPolicy>, at: &str, told: &mut Told) -> Policy {
    let Some(given) = given else {
        return Policy::default();
    };
    told.unknown(at, &given.unknown_fields);
    for (given, field) in [
        (given.proxy_protocol.is_some(), "proxyProtocol"),
        (given.tunnel.is_some(), "tunnel"),
    ] {
        if given {
            told.close(
                format!("{at}.{field}"),
                "is not supported: nothing is sent to the host",
            );
        }
    }
    tls(given.tls.as_ref(), at, told);
    let parts = Parts {
        balancer: given.load_balancer.as_ref(),
        pool: given.connection_pool.as_ref(),
        outliers: given.outlier_detection.as_ref(),
        budget: given.retry_budget.as_ref(),
    };
    let mut ports = BTreeMap::new();
    for (position, one) in given.port_level_settings.iter().take(MAX_PORTS).enumerate() {
        let at = format!("{at}.portLevelSettings[{position}]");
        told.unknown(&at, &one.unknown_fields);
        tls(one.tls.as_ref(), &at, told);
        let number = one.port.as_ref().and_then(|port| port.number);
        let port = number
            .and_then(|number| i32::try_from(number).ok())
            .and_then(port_number);
        let Some(port) = port else {
            told.note(format!("{at}.port"), "names no port");
            continue;
        };
        let parts = Parts {
            balancer: one.load_balancer.as_ref(),
            pool: one.connection_pool.as_ref(),
            outliers: one.outlier_detection.as_ref(),
            budget: None,
        };
        ports.insert(port, parts.message(&at, told));
    }
    Policy {
        all: Some(parts.message(at, told)),
        ports,
    }
}

/// Inside the mesh tunnels carry it; what begins another TLS would go out in plain without it.
fn tls(given: Option<&dr::ClientTls>, at: &str, told: &mut Told) {
    use dr::TlsMode;
    match given.and_then(|tls| tls.mode.as_ref()) {
        None | Some(TlsMode::Disable | TlsMode::IstioMutual) => {}
        Some(mode @ (TlsMode::Simple | TlsMode::Mutual | TlsMode::Unknown(_))) => {
            let words = format!("{mode} is not supported: nothing is sent to the host");
            told.close(format!("{at}.tls.mode"), &words);
        }
    }
}

#[derive(Clone, Copy)]
struct Parts<'a> {
    balancer: Option<&'a dr::LoadBalancer>,
    pool: Option<&'a dr::ConnectionPool>,
    outliers: Option<&'a dr::OutlierDetection>,
    budget: Option<&'a dr::RetryBudget>,
}

impl Parts<'_> {
    fn message(self, at: &str, told: &mut Told) -> wire::TrafficPolicy {
        wire::TrafficPolicy {
            load_balancer: self
                .balancer
                .map(|given| balancer(given, &format!("{at}.loadBalancer"), told)),
            outlier_detection: self
                .outliers
                .map(|given| outliers(given, &format!("{at}.outlierDetection"), told)),
            limits: self
                .pool
                .map(|given| limits(given, &format!("{at}.connectionPool"), told)),
            retry_budget: self.budget.map(|given| wire::RetryBudget {
                percent: given.percent.map_or(20, whole_percent),
                least: told.number(
                    at,
                    "retryBudget.minRetryConcurrency",
                    given.min_retry_concurrency.or(Some(3)),
                ),
            }),
            members: None,
        }
    }
}

fn whole_percent(given: f64) -> u32 {
    // Within what it is held to there is nothing to lose.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped"
    )]
    let whole = given.clamp(0.0, 100.0).round() as u32;
    whole
}

fn balancer(given: &dr::LoadBalancer, at: &str, told: &mut Told) -> wire::LoadBalancer {
    use dr::SimpleBalancer as Given;
    use wire::load_balancer::Simple;
    told.unknown(at, &given.unknown_fields);
    told.unused(
        at,
        &[(given.locality_lb_setting.is_some(), "localityLbSetting")],
    );
    let simple = |simple: Simple| Some(Choice::Simple(simple.into()));
    let choice = match (&given.consistent_hash, &given.simple) {
        (Some(hash), _) => hash_key(hash, &format!("{at}.consistentHash"), told).map(Choice::Hash),
        (None, None | Some(Given::Unspecified)) => None,
        (None, Some(Given::LeastConnection | Given::LeastRequest)) => simple(Simple::LeastRequest),
        (None, Some(Given::RoundRobin)) => simple(Simple::RoundRobin),
        (None, Some(Given::Random)) => simple(Simple::Random),
        (None, Some(other @ (Given::Passthrough | Given::Unknown(_)))) => {
            told.note(
                format!("{at}.simple"),
                &format!("{other} is not supported, and left out"),
            );
            None
        }
    };
    let warmup = given.warmup.as_ref().map(|warmup| {
        let at = format!("{at}.warmup");
        told.unknown(&at, &warmup.unknown_fields);
        told.unused(
            &at,
            &[(
                warmup.aggression.is_some_and(|given| given != 1.0),
                "aggression",
            )],
        );
        wire::Warmup {
            duration: told.time(&at, "duration", warmup.duration.as_deref()),
            minimum_percent: warmup.minimum_percent.map_or(0, whole_percent),
        }
    });
    let older = given
        .warmup_duration_secs
        .as_deref()
        .map(|duration| wire::Warmup {
            duration: told.time(at, "warmupDurationSecs", Some(duration)),
            minimum_percent: 0,
        });
    wire::LoadBalancer {
        choice,
        warmup: warmup.or(older),
    }
}

fn hash_key(given: &dr::ConsistentHash, at: &str, told: &mut Told) -> Option<wire::HashKey> {
    told.unknown(at, &given.unknown_fields);
    let text = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let from = if let Some(header) = text(&given.http_header_name) {
        From::Header(header)
    } else if let Some(cookie) = &given.http_cookie {
        told.unknown(&format!("{at}.httpCookie"), &cookie.unknown_fields);
        // What no cookie can have, no client sends back.
        let fits = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b';';
        let path = cookie.path.clone().unwrap_or_default();
        let path = match path.bytes().all(fits) {
            true => path,
            false => {
                told.note(
                    format!("{at}.httpCookie.path"),
                    &format!("{path:?} is no path of a cookie, and left out"),
                );
                String::new()
            }
        };
        From::Cookie(wire::HashCookie {
            name: cookie.name.clone(),
            path,
            ttl: told.time(at, "httpCookie.ttl", cookie.ttl.as_deref()),
        })
    } else if let Some(parameter) = text(&given.http_query_parameter_name) {
        From::Query(parameter)
    } else if given.use_source_ip == Some(true) {
        From::SourceIp(())
    } else {
        told.note(at, "names nothing to go by, and is left out");
        return None;
    };
    let name = match &from {
        From::Header(name) | From::Query(name) => name.as_str(),
        From::Cookie(cookie) => cookie.name.as_str(),
        From::SourceIp(()) => "x",
    };
    // What is no name of a header or cookie can't come with a request.
    if !super::route::is_token(name) {
        told.note(
            at,
            &format!("{name:?} is no name that can be used, and left out"),
        );
        return None;
    }
    Some(wire::HashKey { from: Some(from) })
}

fn outliers(given: &dr::OutlierDetection, at: &str, told: &mut Told) -> wire::OutlierDetection {
    told.unknown(at, &given.unknown_fields);
    told.unused(
        at,
        &[
            (
                given.split_external_local_origin_errors == Some(true),
                "splitExternalLocalOriginErrors",
            ),
            (
                given.consecutive_local_origin_failures.is_some(),
                "consecutiveLocalOriginFailures",
            ),
        ],
    );
    wire::OutlierDetection {
        consecutive_5xx: told.number(
            at,
            "consecutive5xxErrors",
            given.consecutive_5xx_errors.or(Some(5)),
        ),
        consecutive_gateway: told.number(
            at,
            "consecutiveGatewayErrors",
            given.consecutive_gateway_errors,
        ),
        base_ejection: told.time(at, "baseEjectionTime", given.base_ejection_time.as_deref()),
        max_percent: told.percent(
            at,
            "maxEjectionPercent",
            given.max_ejection_percent.or(Some(10)),
        ),
        min_health_percent: told.percent(at, "minHealthPercent", given.min_health_percent),
    }
}

fn limits(given: &dr::ConnectionPool, at: &str, told: &mut Told) -> wire::ConnectionLimits {
    told.unknown(at, &given.unknown_fields);
    let mut limits = wire::ConnectionLimits::default();
    if let Some(tcp) = &given.tcp {
        let at = format!("{at}.tcp");
        told.unknown(&at, &tcp.unknown_fields);
        told.unused(
            &at,
            &[
                (tcp.tcp_keepalive.is_some(), "tcpKeepalive"),
                (
                    tcp.max_connection_duration.is_some(),
                    "maxConnectionDuration",
                ),
                (tcp.idle_timeout.is_some(), "idleTimeout"),
            ],
        );
        limits.connections = told.number(&at, "maxConnections", tcp.max_connections);
        limits.connect_timeout = told.time(&at, "connectTimeout", tcp.connect_timeout.as_deref());
    }
    if let Some(http) = &given.http {
        let at = format!("{at}.http");
        told.unknown(&at, &http.unknown_fields);
        let upgrades = matches!(
            http.h2_upgrade_policy,
            Some(dr::UpgradePolicy::Upgrade | dr::UpgradePolicy::Unknown(_))
        );
        told.unused(
            &at,
            &[
                (upgrades, "h2UpgradePolicy"),
                (http.use_client_protocol == Some(true), "useClientProtocol"),
                (
                    http.max_concurrent_streams.is_some(),
                    "maxConcurrentStreams",
                ),
            ],
        );
        limits.pending = told.number(
            &at,
            "http1MaxPendingRequests",
            http.http1_max_pending_requests,
        );
        limits.requests = told.number(&at, "http2MaxRequests", http.http2_max_requests);
        limits.retries = told.number(&at, "maxRetries", http.max_retries);
        limits.requests_per_connection = told.number(
            &at,
            "maxRequestsPerConnection",
            http.max_requests_per_connection,
        );
        limits.idle_timeout = told.time(&at, "idleTimeout", http.idle_timeout.as_deref());
    }
    limits
}

#[cfg(test)]
mod tests {
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
        assert_eq!(notes(json!({"host": "*.example.com"})).len(), 1);
    }
}
