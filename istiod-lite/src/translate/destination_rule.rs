// SPDX-License-Identifier: Apache-2.0
//! A DestinationRule: how the endpoints of a host are chosen and spared, and which of them belong together. Pure.
//!
//! What would only make traffic better and can't be honoured is told and left out; what changes what goes over the wire
//! closes the host: nothing is sent there until somebody says otherwise.

mod locality;
mod message;
mod tls;

use std::collections::BTreeMap;

use cluster::kinds::{self, destination_rule as dr};
use proto::waypoint as wire;

use self::message::Parts;
use super::{
    Mesh,
    route::{Host, fraction, pattern},
};
use crate::facts::{Labels, Problem, Read, created, endpoint::is_host, service::port_number};

const MAX_SUBSETS: usize = 256;
const MAX_PORTS: usize = 256;

/// A DestinationRule, checked as far as it goes by itself.
#[derive(Debug, Clone, PartialEq)]
pub struct DestinationRule {
    /// When it was made: the oldest of a namespace counts.
    pub created: i64,
    /// The host that it is for, or those that a wildcard stands for; none where its name makes no sense.
    pub host: Option<Host>,
    /// The namespaces that see it, as `exportTo` has them; none: all.
    pub export_to: Vec<String>,
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
    all: Option<Spoken>,
    /// In place of that.
    ports: BTreeMap<u16, Spoken>,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Spoken {
    /// Without TLS.
    message: wire::TrafficPolicy,
    tls: tls::Said,
}

/// Endpoints of a host that belong together.
#[derive(Debug, Clone, PartialEq)]
struct Subset {
    labels: Labels,
    policy: Policy,
}

impl Policy {
    fn at(&self, port: u16) -> Option<&Spoken> {
        self.ports.get(&port).or(self.all.as_ref())
    }
}

impl Spoken {
    /// What is not said here is as the wider one has it.
    fn within(&self, wider: &Self) -> wire::TrafficPolicy {
        let (own, wide) = (self.message.clone(), wider.message.clone());
        wire::TrafficPolicy {
            load_balancer: own.load_balancer.or(wide.load_balancer),
            outlier_detection: own.outlier_detection.or(wide.outlier_detection),
            limits: own.limits.or(wide.limits),
            retry_budget: own.retry_budget.or(wide.retry_budget),
            members: own.members,
            tls: self.tls.or(&wider.tls).cloned(),
        }
    }
}

impl DestinationRule {
    /// What holds for a port of the host as a whole.
    pub fn policy(&self, port: u16) -> Option<wire::TrafficPolicy> {
        let spoken = self.policy.at(port)?;
        Some(spoken.within(&Spoken::default()))
    }

    /// The labels of a part of the host, and what holds for a port of it.
    pub fn subset(&self, name: &str, port: u16) -> Option<(&Labels, wire::TrafficPolicy)> {
        let subset = self.subsets.get(name)?;
        let nothing = Spoken::default();
        let wide = self.policy.at(port).unwrap_or(&nothing);
        let own = subset.policy.at(port).unwrap_or(&nothing);
        Some((&subset.labels, own.within(wide)))
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
        _ if host.starts_with('*') => {
            let all = pattern(&host);
            if all.is_none() {
                told.note(
                    "spec.host",
                    &format!("{host:?} is no wildcard that can be followed"),
                );
            }
            all
        }
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
    // What stands for all namespaces stands for their waypoints, too.
    let users = match namespace == mesh.root_namespace {
        true => "",
        false => namespace,
    };
    let policy = policy(
        spec.traffic_policy.as_ref(),
        "spec.trafficPolicy",
        users,
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
                users,
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
            export_to: spec.export_to.clone(),
            policy,
            subsets,
            closed: told.closed.join("; "),
            notes: told.notes.clone(),
        },
        problems: told.notes,
    }
}

fn policy(given: Option<&dr::TrafficPolicy>, at: &str, users: &str, told: &mut Told) -> Policy {
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
    let parts = Parts {
        balancer: given.load_balancer.as_ref(),
        pool: given.connection_pool.as_ref(),
        outliers: given.outlier_detection.as_ref(),
        budget: given.retry_budget.as_ref(),
    };
    if given.port_level_settings.len() > MAX_PORTS {
        let length = given.port_level_settings.len();
        let words = format!("has {length} entries, {MAX_PORTS} may be: the others are left out");
        told.close(format!("{at}.portLevelSettings"), &words);
    }
    let mut ports = BTreeMap::new();
    for (position, one) in given.port_level_settings.iter().take(MAX_PORTS).enumerate() {
        let at = format!("{at}.portLevelSettings[{position}]");
        told.unknown(&at, &one.unknown_fields);
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
        let spoken = Spoken {
            message: parts.message(&at, told),
            tls: tls::read(one.tls.as_ref(), &at, users, told),
        };
        if ports.insert(port, spoken).is_some() {
            let words = format!("{port} stands there twice: the last counts");
            told.note(format!("{at}.port"), &words);
        }
    }
    Policy {
        all: Some(Spoken {
            message: parts.message(at, told),
            tls: tls::read(given.tls.as_ref(), at, users, told),
        }),
        ports,
    }
}

#[cfg(test)]
mod tests;
