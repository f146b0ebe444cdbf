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
    match parts.is_empty() {
        true => "nothing said".to_owned(),
        false => parts.join("; "),
    }
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
