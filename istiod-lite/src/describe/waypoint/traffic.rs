// SPDX-License-Identifier: Apache-2.0
//! How the endpoints of a port are chosen and spared, in a line.

use proto::waypoint::{self as wire, hash_key::From, load_balancer::Choice};

use super::seconds;

pub(super) fn policy(policy: &wire::TrafficPolicy) -> String {
    let mut parts = Vec::new();
    if let Some(members) = &policy.members {
        parts.push(format!(
            "subset {} of {:?}",
            members.name, members.workloads
        ));
    }
    if let Some(balancer) = &policy.load_balancer {
        parts.extend(balancer.choice.as_ref().map(choice));
        parts.extend(balancer.warmup.as_ref().map(|warmup| {
            let duration = warmup.duration.map_or_else(String::new, seconds);
            format!("warmup {duration} from {} %", warmup.minimum_percent)
        }));
        parts.extend(balancer.locality.as_ref().map(locality));
    }
    if let Some(outliers) = &policy.outlier_detection {
        parts.push(format!(
            "outliers after {} of 5xx or {} of gateway, out for {}, at most {} %, unless under {} % are well",
            outliers.consecutive_5xx,
            outliers.consecutive_gateway,
            outliers.base_ejection.map_or_else(|| "-".to_owned(), seconds),
            outliers.max_percent,
            outliers.min_health_percent
        ));
        parts.extend(
            outliers
                .interval
                .map(|time| format!("looked at each {}", seconds(time))),
        );
    }
    if let Some(limits) = &policy.limits {
        let most = [
            ("connections", limits.connections),
            ("pending", limits.pending),
            ("requests", limits.requests),
            ("retries", limits.retries),
            ("requests per connection", limits.requests_per_connection),
        ];
        let said = most.into_iter().filter(|(_, most)| *most > 0);
        parts.extend(said.map(|(what, most)| format!("at most {most} {what}")));
        for (what, time) in [
            ("connect", limits.connect_timeout),
            ("idle", limits.idle_timeout),
        ] {
            parts.extend(time.map(|time| format!("{what} {}", seconds(time))));
        }
    }
    if let Some(budget) = &policy.retry_budget {
        parts.push(format!(
            "retry budget {} %, at least {}",
            budget.percent, budget.least
        ));
    }
    parts.extend(policy.tls.as_ref().map(tls));
    match parts.is_empty() {
        true => "nothing said".to_owned(),
        false => parts.join("; "),
    }
}

fn locality(locality: &wire::LocalityPreference) -> String {
    let mut parts = Vec::new();
    for distribution in &locality.distribute {
        let to = distribution.to.iter();
        let to: Vec<_> = to
            .map(|share| format!("{} {}", share.to, share.weight))
            .collect();
        parts.push(format!(
            "from {} to {}",
            distribution.from,
            to.join(" and ")
        ));
    }
    let scopes: Vec<_> = locality.scopes().map(|scope| scope.as_str_name()).collect();
    if !scopes.is_empty() {
        parts.push(format!("by {}", scopes.join("/")));
    }
    let failover = locality.failover.iter();
    parts.extend(failover.map(|one| format!("then from {} to {}", one.from, one.to)));
    match parts.is_empty() {
        true => "wherever they are".to_owned(),
        false => format!("locality {}", parts.join(", ")),
    }
}

fn tls(tls: &wire::Tls) -> String {
    let mut text = format!("TLS with {}", tls.server_name);
    if !tls.subject_alt_names.is_empty() {
        text += &format!(" as {:?}", tls.subject_alt_names);
    }
    text += &match (tls.given_authorities.as_str(), tls.authorities.as_str()) {
        ("", "") => " by the system's authorities".to_owned(),
        ("", file) => format!(" by {file}"),
        (given, _) => {
            let count = given.matches("-----BEGIN CERTIFICATE-----").count();
            format!(" by {count} given authorities")
        }
    };
    if let Some(shown) = &tls.certificate {
        text += &format!(" showing {}", shown.chain);
        if !shown.namespace.is_empty() {
            text += &format!(" of waypoints of {}", shown.namespace);
        }
    }
    text
}

fn choice(choice: &Choice) -> String {
    match choice {
        Choice::Simple(simple) => wire::load_balancer::Simple::try_from(*simple)
            .map_or("?", |simple| simple.as_str_name())
            .to_owned(),
        Choice::Hash(key) => match &key.from {
            Some(From::Header(name)) => format!("hash of header {name}"),
            Some(From::Cookie(cookie)) => format!("hash of cookie {}", cookie.name),
            Some(From::Query(name)) => format!("hash of parameter {name}"),
            Some(From::SourceIp(())) => "hash of the client's address".to_owned(),
            None => "?".to_owned(),
        },
    }
}
