// SPDX-License-Identifier: Apache-2.0
//! A Telemetry as far as proxies are concerned, and what several of them come to for a service.
//!
//! ```text
//! root namespace ─► waypoint's namespace ─► service's namespace ─► class ─► Gateway ─► Service, ServiceEntry
//! ```
//!
//! The narrower one counts, section by section (access logs, tracing) and there field by field; of two in one place, the older.
//! What of it can't be honoured is told, and the rest holds: a filter that is not understood filters nothing.

mod expression;
mod merge;
mod provider;
mod read;

use proto::waypoint as wire;

use super::policy::{Target, TargetKey};
use crate::facts::Problem;

pub(crate) use expression::describe;
pub use merge::{connections, merge};
pub use provider::{Sink, provider, sink};
pub use read::read;

/// A Telemetry.
#[derive(Debug, Clone, PartialEq)]
pub struct Telemetry {
    /// When it was made, in seconds.
    pub created: i64,
    /// What it is for.
    pub reach: Reach,
    /// Nothing where nothing is said of them.
    pub access_logs: Vec<Log>,
    /// The one that counts.
    pub tracing: Option<Tracing>,
    /// What is changed of metrics.
    pub metrics: Vec<wire::MetricOverride>,
    /// Where providers are named, and which.
    pub named: Vec<Named>,
    /// What of it is not honoured, whatever the providers are.
    pub faults: Vec<Problem>,
}

/// What a Telemetry is for.
#[derive(Debug, Clone, PartialEq)]
pub enum Reach {
    /// Its namespace, or the mesh.
    All,
    /// What it names.
    Targets(Vec<Target>),
    /// Workloads, of which none is a waypoint.
    Nothing,
}

/// A section of access logs.
#[derive(Debug, Clone, PartialEq)]
pub struct Log {
    /// Whose traffic is meant: what clients send, or what servers get, as waypoints do.
    pub sides: Sides,
    /// None: those of the broader scope.
    pub providers: Vec<String>,
    /// Whether there is none.
    pub disabled: bool,
    /// What is logged; all where there is none.
    pub filter: Option<wire::Expression>,
}

/// Sides of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sides {
    /// What is sent.
    Client,
    /// What is taken.
    Server,
    /// Either.
    Both,
}

/// A section of traces.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tracing {
    /// None: that of the broader scope.
    pub provider: Option<String>,
    /// Of 1,000,000.
    pub sampled: Option<u32>,
    /// Whether spans are kept to oneself.
    pub disable_reporting: Option<bool>,
    /// Whether spans say which workloads are concerned.
    pub mesh_tags: Option<bool>,
    /// Whether endpoints are told of the trace.
    pub propagation: Option<bool>,
    /// Nothing: those of the broader scope.
    pub tags: Vec<wire::CustomTag>,
}

/// A provider that is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// Where.
    pub field: String,
    /// By which name.
    pub name: String,
    /// For what.
    pub signal: Signal,
}

/// What a provider may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Access logs.
    Logs,
    /// Spans.
    Traces,
    /// Metrics.
    Metrics,
}

impl Telemetry {
    /// Whether it is for this very thing.
    pub fn names(&self, key: &TargetKey) -> bool {
        self.targets()
            .iter()
            .any(|target| target.key.as_ref() == Ok(key))
    }

    /// What it names.
    pub fn targets(&self) -> &[Target] {
        match &self.reach {
            Reach::Targets(targets) => targets,
            Reach::All | Reach::Nothing => &[],
        }
    }

    /// What can't be done with the providers that it names.
    pub fn unserved(&self, provider: impl Fn(&str) -> Result<Sink, String>) -> Vec<Problem> {
        let unserved = |named: &Named| {
            let why = provider::unfit(named, &provider)?;
            Some(Problem::new(
                &*named.field,
                format!("{:?} {why}", named.name),
            ))
        };
        self.named.iter().filter_map(unserved).collect()
    }
}

#[cfg(test)]
mod tests;
