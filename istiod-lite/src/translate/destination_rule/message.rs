// SPDX-License-Identifier: Apache-2.0
//! What a DestinationRule says of a port, as waypoints are told it.

use cluster::kinds::destination_rule as dr;
use proto::waypoint::{self as wire, hash_key::From, load_balancer::Choice};

use super::{super::route::is_token, Told, locality};

#[derive(Clone, Copy)]
pub(super) struct Parts<'a> {
    pub(super) balancer: Option<&'a dr::LoadBalancer>,
    pub(super) pool: Option<&'a dr::ConnectionPool>,
    pub(super) outliers: Option<&'a dr::OutlierDetection>,
    pub(super) budget: Option<&'a dr::RetryBudget>,
}

impl Parts<'_> {
    pub(super) fn message(self, at: &str, told: &mut Told) -> wire::TrafficPolicy {
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
            tls: None,
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
        locality: given
            .locality_lb_setting
            .as_ref()
            .map(|given| locality::read(given, &format!("{at}.localityLbSetting"), told)),
    }
}

fn hash_key(given: &dr::ConsistentHash, at: &str, told: &mut Told) -> Option<wire::HashKey> {
    told.unknown(at, &given.unknown_fields);
    // Who gets what changes with them, but not that the same gets the same.
    told.unused(
        at,
        &[
            (given.ring_hash.is_some(), "ringHash"),
            (given.maglev.is_some(), "maglev"),
            (given.minimum_ring_size.is_some(), "minimumRingSize"),
        ],
    );
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
    if !is_token(name) {
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
        interval: told.time(at, "interval", given.interval.as_deref()),
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
