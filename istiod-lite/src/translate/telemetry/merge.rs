// SPDX-License-Identifier: Apache-2.0
//! What several Telemetries come to, from the broadest to the narrowest. Pure.

use proto::telemetry::{ConnectionLogs, Logs};
use proto::waypoint::{self as wire, access_log::Format};

use super::provider::ENVOY;
use super::{Log, Sides, Sink, Telemetry, Tracing};

/// What several come to for a waypoint, the broadest first; nothing where they say nothing.
pub fn merge(
    levels: &[&Telemetry],
    provider: impl Fn(&str) -> Result<Sink, String>,
) -> Option<wire::Telemetry> {
    let metrics = levels.iter().flat_map(|level| level.metrics.iter());
    let merged = wire::Telemetry {
        access_logs: logs(levels, Sides::Server, &provider).map(|each| wire::AccessLogs { each }),
        tracing: tracing(levels, &provider),
        metrics: metrics.cloned().collect(),
    };
    (merged != wire::Telemetry::default()).then_some(merged)
}

/// The access logs of one side; nothing where nothing is said of them.
pub(crate) fn logs(
    levels: &[&Telemetry],
    side: Sides,
    provider: &impl Fn(&str) -> Result<Sink, String>,
) -> Option<Vec<wire::AccessLog>> {
    let (mut providers, mut sections): (Vec<String>, Vec<&Log>) = (vec![ENVOY.to_owned()], vec![]);
    for level in levels {
        let here = level.access_logs.iter();
        let here: Vec<&Log> = here
            .filter(|log| log.sides == Sides::Both || log.sides == side)
            .collect();
        if here.is_empty() {
            continue;
        }
        let named = here.iter().flat_map(|log| log.providers.iter().cloned());
        let named: Vec<String> = named.collect();
        if !named.is_empty() {
            providers = named;
        }
        sections = here;
    }
    if sections.is_empty() {
        return None;
    }
    let mut each: Vec<wire::AccessLog> = Vec::new();
    for log in sections.into_iter().filter(|log| !log.disabled) {
        let own = Some(&log.providers).filter(|own| !own.is_empty());
        for name in own.unwrap_or(&providers) {
            let mut to = match provider(name) {
                Ok(Sink::Log(to)) => to,
                // Where nothing else is possible, what happened is told in the proxy's own words.
                _ => wire::AccessLog {
                    format: Some(Format::Own(())),
                    ..wire::AccessLog::default()
                },
            };
            to.filter.clone_from(&log.filter);
            if !each.contains(&to) {
                each.push(to);
            }
        }
    }
    Some(each)
}

/// What several come to for the connections of a namespace; nothing where they say nothing of logs.
///
/// What is filtered by what requests have is not for connections: where nothing else is left, the proxy's own line is.
pub fn connections(
    namespace: &str,
    everywhere: bool,
    levels: &[&Telemetry],
    provider: &impl Fn(&str) -> Result<Sink, String>,
) -> Option<ConnectionLogs> {
    let of = |side| {
        let all = logs(levels, side, provider)?;
        let unfiltered = all.iter().filter(|log| log.filter.is_none());
        let collectors = unfiltered.clone().filter_map(|log| log.collector.clone());
        let mut collectors: Vec<wire::Collector> = collectors.collect();
        // Of two that want other words of one: connections are told in the proxy's words alone.
        let mut seen: Vec<wire::Collector> = Vec::new();
        collectors.retain(|to| {
            let is_new = !seen.contains(to);
            seen.push(to.clone());
            is_new
        });
        let is_line = |log: &wire::AccessLog| log.collector.is_none();
        let only_filtered = !all.is_empty() && unfiltered.clone().next().is_none();
        Some(Logs {
            own_line: only_filtered || unfiltered.clone().any(is_line),
            collectors,
        })
    };
    let (sent, taken) = (of(Sides::Client), of(Sides::Server));
    (sent.is_some() || taken.is_some()).then(|| ConnectionLogs {
        namespace: namespace.to_owned(),
        everywhere,
        sent,
        taken,
    })
}

fn tracing(
    levels: &[&Telemetry],
    provider: &impl Fn(&str) -> Result<Sink, String>,
) -> Option<wire::Tracing> {
    /// Where nobody says: one of a hundred.
    const SAMPLED: u32 = 10_000;
    let mut merged: Option<Tracing> = None;
    for level in levels.iter().filter_map(|level| level.tracing.as_ref()) {
        let broader = merged.take().unwrap_or_default();
        let tags = Some(&level.tags).filter(|tags| !tags.is_empty()).cloned();
        merged = Some(Tracing {
            provider: level.provider.clone().or(broader.provider),
            sampled: level.sampled.or(broader.sampled),
            disable_reporting: level.disable_reporting.or(broader.disable_reporting),
            mesh_tags: level.mesh_tags.or(broader.mesh_tags),
            propagation: level.propagation.or(broader.propagation),
            tags: tags.unwrap_or(broader.tags),
        });
    }
    let merged = merged?;
    let sink = merged.provider.as_deref().map(provider);
    let (collector, b3) = match sink {
        Some(Ok(Sink::Log(log))) => (log.collector, false),
        Some(Ok(Sink::Zipkin)) => (None, true),
        Some(Err(_)) | None => (None, false),
    };
    Some(wire::Tracing {
        collector,
        sampled_per_million: merged.sampled.unwrap_or(SAMPLED),
        disable_reporting: merged.disable_reporting.unwrap_or_default(),
        b3,
        tags: merged.tags,
        no_mesh_tags: merged.mesh_tags == Some(false),
        no_propagation: merged.propagation == Some(false),
    })
}
