// SPDX-License-Identifier: Apache-2.0
//! A Telemetry as it is written → what is kept of it, and what of it is not honoured.

use cluster::kinds::{
    self, UnknownFields,
    extension::{self, LogSelector, ProviderReference, TagOperation, WorkloadMode},
};
use proto::waypoint as wire;

use super::{Log, Named, Reach, Sides, Signal, Telemetry, Tracing, expression};
use crate::{
    facts::{Problem, Read, created},
    translate::policy::targets,
};

/// Characters of a tag's name.
const LONGEST_TAG: usize = 128;

/// Reads a Telemetry.
pub fn read(written: &kinds::Telemetry, root_namespace: &str) -> Read<Telemetry> {
    let (spec, meta) = (&written.spec, &written.metadata);
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let mut told = Told::default();
    told.unknown("spec", &spec.unknown_fields);
    let is_targeted = spec.target_ref.is_some() || !spec.target_refs.is_empty();
    let reach = if is_targeted {
        let references = (spec.target_ref.as_ref(), spec.target_refs.as_slice());
        Reach::Targets(targets(
            references,
            namespace,
            root_namespace,
            &mut told.problems,
        ))
    } else if spec.selector.is_some() {
        let words = "chooses workloads: waypoints are named by targetRefs, and nothing goes by it";
        told.say("spec.selector", words);
        Reach::Nothing
    } else {
        Reach::All
    };
    let logs = spec.access_logging.iter().enumerate();
    let access_logs =
        logs.map(|(i, log)| access_log(log, &format!("spec.accessLogging[{i}]"), &mut told));
    let access_logs = access_logs.collect();
    let tracing = tracing(&spec.tracing, &mut told);
    let mut metrics = Vec::new();
    for (i, section) in spec.metrics.iter().enumerate() {
        let at = format!("spec.metrics[{i}]");
        told.unknown(&at, &section.unknown_fields);
        told.named(&at, &section.providers, Signal::Metrics);
        if section.reporting_interval.is_some() {
            let words = "has no effect: connections are counted as they go";
            told.say(format!("{at}.reportingInterval"), words);
        }
        let overrides = section.overrides.iter().enumerate();
        metrics.extend(
            overrides
                .filter_map(|(j, one)| metric(one, &format!("{at}.overrides[{j}]"), &mut told)),
        );
    }
    Read {
        facts: Telemetry {
            created: created(meta).unwrap_or_default(),
            reach,
            access_logs,
            tracing,
            metrics,
            named: told.named,
            faults: told.problems.clone(),
        },
        problems: told.problems,
    }
}

/// What is found on the way.
#[derive(Default)]
struct Told {
    problems: Vec<Problem>,
    named: Vec<Named>,
}

impl Told {
    fn say(&mut self, field: impl Into<String>, words: impl Into<String>) {
        self.problems.push(Problem::new(field, words));
    }

    fn unknown(&mut self, at: &str, fields: &UnknownFields) {
        for field in fields.keys() {
            self.say(format!("{at}.{field}"), "is not known; it is ignored");
        }
    }

    fn named(&mut self, at: &str, providers: &[ProviderReference], signal: Signal) {
        let named = providers.iter().enumerate();
        self.named.extend(named.map(|(i, provider)| Named {
            field: format!("{at}.providers[{i}].name"),
            name: provider.name.clone(),
            signal,
        }));
    }
}

fn sides(mode: Option<&WorkloadMode>) -> Sides {
    match mode {
        Some(WorkloadMode::Client) => Sides::Client,
        Some(WorkloadMode::Server) => Sides::Server,
        _ => Sides::Both,
    }
}

fn mode_of(selector: Option<&LogSelector>) -> Option<&WorkloadMode> {
    selector.and_then(|selector| selector.mode.as_ref())
}

fn access_log(written: &extension::AccessLogging, at: &str, told: &mut Told) -> Log {
    told.unknown(at, &written.unknown_fields);
    told.named(at, &written.providers, Signal::Logs);
    let filter = written.filter.as_ref();
    let text = filter.and_then(|filter| filter.expression.as_deref());
    let filter = text.filter(|text| !text.is_empty()).and_then(|text| {
        let read = expression::filter(text);
        let tell = |error: &String| {
            let words = format!("{error}; everything is logged");
            told.say(format!("{at}.filter.expression"), words);
        };
        read.inspect_err(tell).ok()
    });
    let providers = written.providers.iter();
    Log {
        sides: sides(mode_of(written.r#match.as_ref())),
        providers: providers.map(|provider| provider.name.clone()).collect(),
        disabled: written.disabled.unwrap_or_default(),
        filter,
    }
}

/// The first one that is for servers, as waypoints are.
fn tracing(all: &[extension::Tracing], told: &mut Told) -> Option<Tracing> {
    let is_for_servers =
        |one: &&extension::Tracing| sides(mode_of(one.r#match.as_ref())) != Sides::Client;
    let (i, written) = all
        .iter()
        .enumerate()
        .find(|(_, one)| is_for_servers(one))?;
    if let Some(other) = all[i + 1..].iter().position(|one| is_for_servers(&one)) {
        let field = format!("spec.tracing[{}]", i + 1 + other);
        told.say(field, "is ignored: the first one counts");
    }
    let at = format!("spec.tracing[{i}]");
    told.unknown(&at, &written.unknown_fields);
    if written.providers.len() > 1 {
        told.say(
            format!("{at}.providers[1]"),
            "is ignored: the first one counts",
        );
    }
    let first = written.providers.get(..1).unwrap_or_default();
    told.named(&at, first, Signal::Traces);
    let sampled = written.random_sampling_percentage.and_then(|percent| {
        let read = per_million(percent);
        if read.is_none() {
            let words = format!("{percent} is not from 0 to 100; it is ignored");
            told.say(format!("{at}.randomSamplingPercentage"), words);
        }
        read
    });
    if written.use_request_id_for_trace_sampling == Some(true) {
        let words = "has no effect: the context of a request, or chance, decides";
        told.say(format!("{at}.useRequestIdForTraceSampling"), words);
    }
    let tags = written.custom_tags.iter().filter_map(|(name, value)| {
        let read = tag(name, value);
        if let Err(words) = &read {
            told.say(
                format!("{at}.customTags[{name}]"),
                format!("{words}; it is ignored"),
            );
        }
        read.ok()
    });
    let tags = tags.collect();
    Some(Tracing {
        provider: first.first().map(|provider| provider.name.clone()),
        sampled,
        disable_reporting: written.disable_span_reporting,
        mesh_tags: written.enable_istio_tags,
        propagation: written.disable_context_propagation.map(|off| !off),
        tags,
    })
}

fn per_million(percent: f64) -> Option<u32> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "in range, and rounded"
    )]
    let whole = |percent: f64| (percent * 10_000.0).round() as u32;
    (0.0..=100.0).contains(&percent).then(|| whole(percent))
}

fn tag(name: &str, written: &serde_json::Value) -> Result<wire::CustomTag, String> {
    use wire::custom_tag::Value;
    if name.is_empty() || name.len() > LONGEST_TAG {
        return Err(format!("is not named by 1 to {LONGEST_TAG} characters"));
    }
    let only = written.as_object().and_then(|kinds| kinds.iter().next());
    let (kind, fields) = only.ok_or("says nothing")?;
    let text = |field: &str| fields.get(field).and_then(serde_json::Value::as_str);
    let value = match kind.as_str() {
        "literal" => Value::Literal(text("value").ok_or("literal.value: is missing")?.to_owned()),
        "header" => {
            let header = text("name").and_then(|name| name.parse::<http::HeaderName>().ok());
            Value::Header(wire::HeaderTag {
                name: header
                    .ok_or("header.name: is no header's name")?
                    .to_string(),
                default_value: text("defaultValue").unwrap_or_default().to_owned(),
            })
        }
        kind => {
            return Err(format!(
                "is of kind {kind}: waypoints know literals and headers"
            ));
        }
    };
    Ok(wire::CustomTag {
        name: name.to_owned(),
        value: Some(value),
    })
}

/// As they are called in Telemetry, and how they are exposed.
const METRICS: [(&str, &str); 11] = [
    ("ALL_METRICS", ""),
    ("REQUEST_COUNT", "istio_requests_total"),
    ("REQUEST_DURATION", "istio_request_duration_milliseconds"),
    ("REQUEST_SIZE", "istio_request_bytes"),
    ("RESPONSE_SIZE", "istio_response_bytes"),
    (
        "TCP_OPENED_CONNECTIONS",
        "istio_tcp_connections_opened_total",
    ),
    (
        "TCP_CLOSED_CONNECTIONS",
        "istio_tcp_connections_closed_total",
    ),
    ("TCP_SENT_BYTES", "istio_tcp_sent_bytes_total"),
    ("TCP_RECEIVED_BYTES", "istio_tcp_received_bytes_total"),
    ("GRPC_REQUEST_MESSAGES", "istio_request_messages_total"),
    ("GRPC_RESPONSE_MESSAGES", "istio_response_messages_total"),
];

fn metric(
    written: &extension::MetricsOverride,
    at: &str,
    told: &mut Told,
) -> Option<wire::MetricOverride> {
    let selector = written.r#match.as_ref();
    if sides(selector.and_then(|selector| selector.mode.as_ref())) == Sides::Client {
        return None;
    }
    told.unknown(at, &written.unknown_fields);
    let named = selector.and_then(|selector| selector.metric.as_deref());
    let named = named.unwrap_or("ALL_METRICS");
    let custom = selector.and_then(|selector| selector.custom_metric.as_deref());
    let known = METRICS.iter().find(|(name, _)| *name == named);
    let (None, Some((_, metric))) = (custom, known) else {
        let name = custom.unwrap_or(named);
        let words = format!("{name:?} is no metric of waypoints; it is ignored");
        told.say(format!("{at}.match"), words);
        return None;
    };
    let mut read = wire::MetricOverride {
        metric: (*metric).to_owned(),
        disabled: written.disabled,
        ..wire::MetricOverride::default()
    };
    for (tag, change) in &written.tag_overrides {
        let field = || format!("{at}.tagOverrides[{tag}]");
        if !is_label(tag) {
            told.say(field(), "is no label's name; it is ignored");
            continue;
        }
        let value = change.value.as_deref().unwrap_or_default();
        match &change.operation {
            Some(TagOperation::Remove) => read.removed_tags.push(tag.clone()),
            None | Some(TagOperation::Upsert) => match expression::parse(value) {
                Ok(value) => {
                    read.tags.insert(tag.clone(), value);
                }
                Err(error) => told.say(
                    format!("{}.value", field()),
                    format!("{error}; the tag stays as it is"),
                ),
            },
            Some(_) => told.say(
                format!("{}.operation", field()),
                "is neither UPSERT nor REMOVE; it is ignored",
            ),
        }
    }
    Some(read)
}

/// As Prometheus has them.
fn is_label(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let starts = name
        .bytes()
        .next()
        .is_some_and(|byte| !byte.is_ascii_digit());
    starts && name.len() <= LONGEST_TAG && !name.starts_with("__") && name.bytes().all(is_part)
}
