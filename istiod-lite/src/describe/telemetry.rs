// SPDX-License-Identifier: Apache-2.0
//! What a waypoint is told to tell of traffic, as people read it.

use proto::telemetry::{ConnectionLogs, Logs};
use proto::waypoint as wire;
use serde_json::Value;
use wire::{access_log::Format, custom_tag::Value as Tag};

use super::Fields;
use crate::translate::telemetry::describe;

pub(super) fn telemetry(telemetry: &wire::Telemetry) -> Value {
    let mut out = Fields::default();
    if let Some(logs) = &telemetry.access_logs {
        let each = logs.each.iter().map(access_log).collect::<Vec<_>>();
        match each.is_empty() {
            true => out.add("accessLogs", "none"),
            false => out.add("accessLogs", each),
        }
    }
    out.add("tracing", telemetry.tracing.as_ref().map(tracing));
    let metrics = telemetry.metrics.iter().map(|one| {
        let metric = Some(one.metric.as_str()).filter(|metric| !metric.is_empty());
        let disabled = match one.disabled {
            Some(true) => " off",
            Some(false) => " on",
            None => "",
        };
        let removed = Some(&one.removed_tags).filter(|tags| !tags.is_empty());
        let removed =
            removed.map_or_else(String::new, |tags| format!(" without {}", tags.join(", ")));
        let tags = one.tags.iter();
        let tags = tags.map(|(tag, value)| format!(" {tag}={}", describe(value)));
        let tags: String = tags.collect();
        format!("{}{disabled}{removed}{tags}", metric.unwrap_or("*"))
    });
    out.add("metrics", metrics.collect::<Vec<_>>());
    out.into()
}

/// What nodes' proxies tell of the connections of a namespace.
pub(super) fn connections(logs: &ConnectionLogs) -> Value {
    let mut out = Fields::default();
    out.add("namespace", &logs.namespace);
    out.add("everywhere", logs.everywhere);
    let side = |logs: &Logs| {
        let own = logs.own_line.then(|| "own".to_owned());
        let to = logs.collectors.iter().map(collector);
        let all: Vec<String> = own.into_iter().chain(to).collect();
        match all.is_empty() {
            true => "none".to_owned(),
            false => all.join(", "),
        }
    };
    out.add("sent", logs.sent.as_ref().map(side));
    out.add("taken", logs.taken.as_ref().map(side));
    out.into()
}

fn access_log(log: &wire::AccessLog) -> String {
    let format = match &log.format {
        Some(Format::Text(text)) => format!("text {text}"),
        Some(Format::Json(json)) => format!("json {:?}", json.fields),
        Some(Format::Own(())) | None => "own".to_owned(),
    };
    let to = match &log.collector {
        None => format,
        Some(to) if log.attributes.is_empty() => format!("{} {format}", collector(to)),
        Some(to) => format!("{} {format} {:?}", collector(to), log.attributes),
    };
    match &log.filter {
        None => to,
        Some(filter) => format!("{to}, if {}", describe(filter)),
    }
}

fn collector(to: &wire::Collector) -> String {
    let namespace = Some(&to.namespace).filter(|namespace| !namespace.is_empty());
    let namespace = namespace.map_or_else(String::new, |namespace| format!("{namespace}/"));
    format!("otlp {namespace}{}:{}", to.hostname, to.port)
}

fn tracing(tracing: &wire::Tracing) -> Value {
    let mut out = Fields::default();
    out.add("collector", tracing.collector.as_ref().map(collector));
    out.add("sampledPerMillion", tracing.sampled_per_million);
    out.add("disableReporting", tracing.disable_reporting);
    out.add("b3", tracing.b3);
    out.add("noMeshTags", tracing.no_mesh_tags);
    out.add("noPropagation", tracing.no_propagation);
    let tags = tracing.tags.iter().map(|tag| match &tag.value {
        Some(Tag::Literal(text)) => format!("{}={text:?}", tag.name),
        Some(Tag::Header(header)) => format!(
            "{}=header {} or {:?}",
            tag.name, header.name, header.default_value
        ),
        None => tag.name.clone(),
    });
    out.add("tags", tags.collect::<Vec<_>>());
    out.into()
}
