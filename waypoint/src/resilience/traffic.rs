// SPDX-License-Identifier: Apache-2.0
//! How the endpoints of a service's port are chosen and spared: what is configured, compiled once.
//!
//! In: [`proto::waypoint::TrafficPolicy`]. Out: the figures that the other modules here go by; for what is not configured,
//! their own.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use proto::waypoint as wire;
use proto::waypoint::load_balancer::{Choice, Simple};

use super::affinity::Source;
use super::limits::Limits;
use super::locality::Locality;
use super::outlier;
use super::retry::Budget;
use super::slow_start::SlowStart;
use crate::tls::Tls;

/// The longest time that is one; anything beyond is as good as for ever.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Of one port of a service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TrafficPolicy {
    pub balancing: Balancing,
    pub slow_start: SlowStart,
    pub outliers: outlier::Policy,
    pub limits: Limits,
    pub budget: Budget,
    pub connections: Connections,
    /// Endpoints that count; none: all of them.
    pub members: Option<Members>,
    /// Which of them, by where they are; none: as the service has it.
    pub locality: Option<Locality>,
    /// What is begun on connections to them, if anything.
    pub tls: Option<Arc<Tls>>,
}

/// A part of a service's endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Members {
    /// What it is called.
    pub name: Arc<str>,
    /// By their workload's uid.
    pub workloads: Arc<BTreeSet<String>>,
}

/// How one of several endpoints that are as good is chosen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Balancing {
    #[default]
    PeakEwma,
    LeastRequest,
    RoundRobin,
    Random,
    /// By what the request has in common with others.
    Hash(Source),
}

/// What connections to endpoints are held to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Connections {
    /// How long it may take to make one; none: as for any other.
    pub connect_timeout: Option<Duration>,
    /// How long one may wait for a request; none: as for any other.
    pub idle: Option<Duration>,
    /// How many requests one carries; none: as many as come.
    pub requests: Option<u32>,
}

impl TrafficPolicy {
    /// # Errors
    /// Names the field that can't be honoured.
    pub fn compile(policy: Option<&wire::TrafficPolicy>) -> Result<Self, String> {
        let Some(policy) = policy else {
            return Ok(Self::default());
        };
        let balancer = policy.load_balancer.as_ref();
        let warmup = balancer.and_then(|balancer| balancer.warmup.as_ref());
        let limits = policy.limits.as_ref();
        let budget = policy.retry_budget.as_ref();
        let compiled = Self {
            balancing: Balancing::compile(balancer.and_then(|balancer| balancer.choice.as_ref()))?,
            slow_start: warmup.map_or(Ok(SlowStart::default()), slow_start)?,
            outliers: match &policy.outlier_detection {
                Some(detection) => outliers(detection)?,
                None => outlier::Policy::default(),
            },
            limits: limits.map_or(Limits::default(), most),
            budget: match budget {
                Some(budget) => Budget {
                    percent: percent("retry_budget.percent", budget.percent)?,
                    least: budget.least,
                },
                None => Budget::default(),
            },
            connections: limits.map_or(Ok(Connections::default()), connections)?,
            members: policy.members.as_ref().map(|members| Members {
                name: members.name.as_str().into(),
                workloads: Arc::new(members.workloads.iter().cloned().collect()),
            }),
            locality: balancer
                .and_then(|balancer| balancer.locality.as_ref())
                .map(Locality::compile)
                .transpose()?,
            tls: policy
                .tls
                .as_ref()
                .map(|tls| Tls::compile(tls).map(Arc::new))
                .transpose()?,
        };
        Ok(compiled)
    }

    /// What the part is called that it is of; none where it is of the whole service.
    pub fn part(&self) -> Option<&Arc<str>> {
        self.members.as_ref().map(|members| &members.name)
    }

    /// The endpoints that count, by their workload's uid; none: all of them.
    pub fn workloads(&self) -> Option<&Arc<BTreeSet<String>>> {
        self.members.as_ref().map(|members| &members.workloads)
    }
}

impl Balancing {
    fn compile(choice: Option<&Choice>) -> Result<Self, String> {
        Ok(match choice {
            None => Self::PeakEwma,
            Some(Choice::Simple(simple)) => match Simple::try_from(*simple) {
                Ok(Simple::PeakEwma) => Self::PeakEwma,
                Ok(Simple::LeastRequest) => Self::LeastRequest,
                Ok(Simple::RoundRobin) => Self::RoundRobin,
                Ok(Simple::Random) => Self::Random,
                Err(_) => return Err(format!("load_balancer.simple: {simple} is not known")),
            },
            Some(Choice::Hash(key)) => Self::Hash(Source::compile(key)?),
        })
    }
}

fn slow_start(warmup: &wire::Warmup) -> Result<SlowStart, String> {
    let own = SlowStart::default();
    Ok(SlowStart {
        window: time("load_balancer.warmup.duration", warmup.duration)?.unwrap_or(own.window),
        least: match percent(
            "load_balancer.warmup.minimum_percent",
            warmup.minimum_percent,
        )? {
            0 => own.least,
            least => least,
        },
    })
}

fn outliers(detection: &wire::OutlierDetection) -> Result<outlier::Policy, String> {
    let own = outlier::Policy::default();
    let first = time("outlier_detection.base_ejection", detection.base_ejection)?;
    let first = first.unwrap_or(own.first);
    Ok(outlier::Policy {
        gateway: detection.consecutive_gateway,
        any: detection.consecutive_5xx,
        first,
        longest: own.longest.max(first),
        interval: time("outlier_detection.interval", detection.interval)?,
        most: percent("outlier_detection.max_percent", detection.max_percent)?,
        least_well: percent(
            "outlier_detection.min_health_percent",
            detection.min_health_percent,
        )?,
    })
}

fn most(limits: &wire::ConnectionLimits) -> Limits {
    let most = |limit: u32| if limit == 0 { u32::MAX } else { limit };
    Limits {
        connections: most(limits.connections),
        waiting: most(limits.pending),
        requests: most(limits.requests),
        retries: most(limits.retries),
    }
}

fn connections(limits: &wire::ConnectionLimits) -> Result<Connections, String> {
    Ok(Connections {
        connect_timeout: time("limits.connect_timeout", limits.connect_timeout)?,
        idle: time("limits.idle_timeout", limits.idle_timeout)?,
        requests: Some(limits.requests_per_connection).filter(|requests| *requests > 0),
    })
}

fn percent(field: &str, percent: u32) -> Result<u32, String> {
    match percent {
        0..=100 => Ok(percent),
        _ => Err(format!("{field}: {percent} is more than 100")),
    }
}

/// Zero is as good as nothing said.
fn time<D: TryInto<Duration>>(field: &str, wire: Option<D>) -> Result<Option<Duration>, String> {
    let time = wire.map(TryInto::try_into).transpose();
    let time = time.map_err(|_| format!("{field} is negative"))?;
    Ok(time
        .filter(|time| !time.is_zero())
        .map(|time| time.min(LONGEST)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: i64) -> Option<prost_types::Duration> {
        Some(prost_types::Duration { seconds, nanos: 0 })
    }

    #[test]
    fn what_is_not_said_is_as_it_is_without_a_policy() {
        let own = Ok(TrafficPolicy::default());
        assert_eq!(TrafficPolicy::compile(None), own);
        let said = wire::TrafficPolicy {
            load_balancer: Some(wire::LoadBalancer {
                choice: None,
                warmup: Some(wire::Warmup::default()),
                locality: None,
            }),
            limits: Some(wire::ConnectionLimits::default()),
            ..wire::TrafficPolicy::default()
        };
        assert_eq!(TrafficPolicy::compile(Some(&said)), own);
    }

    #[test]
    fn what_is_said_is_kept() {
        let said = wire::TrafficPolicy {
            load_balancer: Some(wire::LoadBalancer {
                choice: Some(Choice::Simple(Simple::RoundRobin.into())),
                warmup: Some(wire::Warmup {
                    duration: seconds(60),
                    minimum_percent: 20,
                }),
                locality: None,
            }),
            outlier_detection: Some(wire::OutlierDetection {
                consecutive_5xx: 7,
                consecutive_gateway: 0,
                base_ejection: seconds(600),
                max_percent: 50,
                min_health_percent: 30,
                interval: seconds(15),
            }),
            limits: Some(wire::ConnectionLimits {
                connections: 1,
                pending: 2,
                requests: 3,
                retries: 0,
                requests_per_connection: 5,
                connect_timeout: seconds(6),
                idle_timeout: seconds(i64::MAX),
            }),
            retry_budget: Some(wire::RetryBudget {
                percent: 0,
                least: 1,
            }),
            members: Some(wire::Members {
                name: "v1".to_owned(),
                workloads: vec!["a".to_owned()],
            }),
            tls: None,
        };
        let policy = TrafficPolicy::compile(Some(&said)).unwrap();
        assert_eq!(policy.balancing, Balancing::RoundRobin);
        assert_eq!(policy.slow_start.window, Duration::from_secs(60));
        assert_eq!(policy.slow_start.least, 20);
        assert_eq!((policy.outliers.gateway, policy.outliers.any), (0, 7));
        assert_eq!(policy.outliers.longest, Duration::from_secs(600));
        assert_eq!((policy.outliers.most, policy.outliers.least_well), (50, 30));
        assert_eq!(policy.outliers.interval, Some(Duration::from_secs(15)));
        assert_eq!(
            policy.limits,
            Limits {
                connections: 1,
                waiting: 2,
                requests: 3,
                retries: u32::MAX,
            }
        );
        let expected = Connections {
            connect_timeout: Some(Duration::from_secs(6)),
            idle: Some(LONGEST),
            requests: Some(5),
        };
        assert_eq!(policy.connections, expected);
        let none = Budget {
            percent: 0,
            least: 1,
        };
        assert_eq!(policy.budget, none);
        assert_eq!(policy.part().map(|name| &**name), Some("v1"));
        let workloads = policy.workloads().unwrap();
        assert!(workloads.contains("a") && workloads.len() == 1);
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let check = |policy: wire::TrafficPolicy, expected: &str| {
            let refused = TrafficPolicy::compile(Some(&policy)).unwrap_err();
            assert_eq!(refused, expected);
        };
        check(
            wire::TrafficPolicy {
                retry_budget: Some(wire::RetryBudget {
                    percent: 101,
                    least: 0,
                }),
                ..Default::default()
            },
            "retry_budget.percent: 101 is more than 100",
        );
        check(
            wire::TrafficPolicy {
                limits: Some(wire::ConnectionLimits {
                    connect_timeout: seconds(-1),
                    ..Default::default()
                }),
                ..Default::default()
            },
            "limits.connect_timeout is negative",
        );
        let balanced = |choice| wire::TrafficPolicy {
            load_balancer: Some(wire::LoadBalancer {
                choice: Some(choice),
                ..Default::default()
            }),
            ..Default::default()
        };
        check(
            balanced(Choice::Simple(77)),
            "load_balancer.simple: 77 is not known",
        );
        check(
            balanced(Choice::Hash(wire::HashKey { from: None })),
            "load_balancer.hash: it says not of what",
        );
    }
}
