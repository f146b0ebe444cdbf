// SPDX-License-Identifier: Apache-2.0

use cluster::kinds;
use serde_json::{Value, json};
use wire::access_log::Format;

use super::*;
use crate::facts::Read;

fn telemetry(namespace: &str, spec: Value) -> Read<Telemetry> {
    let written = json!({"metadata": {"name": "t", "namespace": namespace}, "spec": spec});
    let written: kinds::Telemetry = serde_json::from_value(written).expect("a Telemetry");
    read(&written, "istio-system")
}

fn sound(spec: Value) -> Telemetry {
    let read = telemetry("shop", spec);
    assert_eq!(read.problems, []);
    read.facts
}

/// Providers as a mesh may have them.
fn named(name: &str) -> Result<Sink, String> {
    sink(name, configured)
}

fn configured(name: &str) -> Option<Result<Sink, String>> {
    let collector = Some(wire::Collector {
        namespace: String::new(),
        hostname: "otel.obs".to_owned(),
        port: 4317,
    });
    let own = json!({"logFormat": {"labels": {"code": "%RESPONSE_CODE%"}}});
    Some(match name {
        "otel" => provider("opentelemetry", collector, &serde_json::Map::new()),
        "als" => provider("envoyOtelAls", collector, own.as_object().expect("one")),
        "zip" => provider("zipkin", None, &serde_json::Map::new()),
        "own" => provider("envoyFileAccessLog", None, own.as_object().expect("one")),
        _ => return None,
    })
}

fn merged(specs: &[Value]) -> Option<wire::Telemetry> {
    let levels: Vec<Telemetry> = specs.iter().cloned().map(sound).collect();
    let levels: Vec<&Telemetry> = levels.iter().collect();
    merge(&levels, named)
}

fn formats(specs: &[Value]) -> Option<Vec<String>> {
    let logs = merged(specs)?.access_logs?;
    let each = logs.each.iter().map(|log| {
        let to = match (&log.format, &log.collector) {
            (Some(Format::Text(_)), Some(_)) if log.attributes.contains_key("code") => {
                "collector code"
            }
            (Some(Format::Text(_)), Some(_)) => "collector",
            (Some(Format::Text(_)), None) => "text",
            (Some(Format::Json(_)), None) => "json",
            (Some(Format::Own(())), None) => "own",
            _ => "nothing",
        };
        let filter = log
            .filter
            .as_ref()
            .map(|filter| format!(" if {}", describe(filter)));
        format!("{to}{}", filter.unwrap_or_default())
    });
    Some(each.collect())
}

#[test]
fn the_narrower_access_log_counts_and_inherits_what_it_does_not_name() {
    let check = |specs: &[Value], expected: Option<&[&str]>| {
        let found = formats(specs);
        let found = found
            .as_ref()
            .map(|all| all.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(found.as_deref(), expected, "{specs:?}");
    };
    let logs = |logs: Value| json!({"accessLogging": logs});
    check(&[], None);
    check(&[json!({"tracing": [{}]})], None);
    check(&[logs(json!([{}]))], Some(&["text"]));
    check(
        &[logs(
            json!([{"providers": [{"name": "own"}, {"name": "als"}]}]),
        )],
        Some(&["json", "collector code"]),
    );
    check(&[logs(json!([{"disabled": true}]))], Some(&[]));
    let filtered = json!([{"filter": {"expression": "response.code >= 500"}}]);
    check(
        &[
            logs(json!([{"providers": [{"name": "own"}]}])),
            logs(filtered),
        ],
        Some(&["json if AT_LEAST(RESPONSE_CODE, 500)"]),
    );
    check(
        &[logs(json!([{"disabled": true}])), logs(json!([{}]))],
        Some(&["text"]),
    );
    // What can't be reached is told in the waypoint's own words.
    check(
        &[logs(json!([{"providers": [{"name": "lost"}]}]))],
        Some(&["own"]),
    );
    // A client's is not a waypoint's.
    check(
        &[logs(
            json!([{"match": {"mode": "CLIENT"}, "disabled": true}]),
        )],
        None,
    );
}

#[test]
fn traces_are_merged_field_by_field_and_tags_as_a_whole() {
    let all = merged(&[
        json!({"tracing": [{"providers": [{"name": "otel"}], "randomSamplingPercentage": 10,
            "customTags": {"a": {"literal": {"value": "1"}}, "b": {"header": {"name": "X-B", "defaultValue": "-"}}}}]}),
        json!({"tracing": [{"disableSpanReporting": true}]}),
        json!({"tracing": [{"randomSamplingPercentage": 0.5, "customTags": {"c": {"literal": {"value": "2"}}}}]}),
    ]);
    let tracing = all.and_then(|all| all.tracing).expect("tracing");
    assert_eq!(tracing.collector.map(|to| to.port), Some(4317));
    assert_eq!(tracing.sampled_per_million, 5000);
    assert!(tracing.disable_reporting && !tracing.b3);
    let tags: Vec<_> = tracing.tags.iter().map(|tag| tag.name.as_str()).collect();
    assert_eq!(tags, ["c"]);
    let zipkin = merged(&[json!({"tracing": [{"providers": [{"name": "zip"}]}]})]);
    let zipkin = zipkin.and_then(|all| all.tracing).expect("tracing");
    assert_eq!(
        (zipkin.collector, zipkin.b3, zipkin.sampled_per_million),
        (None, true, 10_000)
    );
}

#[test]
fn what_cannot_be_honoured_is_told_by_field() {
    let check = |spec: Value, field: &str, words: &str| {
        let problems = telemetry("shop", spec).problems;
        let told = problems
            .iter()
            .any(|problem| problem.field == field && problem.reason.contains(words));
        assert!(told, "{field}: {problems:?}");
    };
    check(
        json!({"selector": {"matchLabels": {"a": "b"}}}),
        "spec.selector",
        "chooses workloads",
    );
    check(json!({"other": 1}), "spec.other", "is not known");
    check(
        json!({"accessLogging": [{"filter": {"expression": "xds.a == 1"}}]}),
        "spec.accessLogging[0].filter.expression",
        "\"xds.a\" is not known; everything is logged",
    );
    check(
        json!({"tracing": [{}, {}]}),
        "spec.tracing[1]",
        "the first one counts",
    );
    check(
        json!({"tracing": [{"randomSamplingPercentage": 101.0}]}),
        "spec.tracing[0].randomSamplingPercentage",
        "0 to 100",
    );
    check(
        json!({"tracing": [{"customTags": {"x": {"environment": {"name": "A"}}}}]}),
        "spec.tracing[0].customTags[x]",
        "is of kind environment: waypoints know literals and headers; it is ignored",
    );
    check(
        json!({"tracing": [{"useRequestIdForTraceSampling": true}]}),
        "spec.tracing[0].useRequestIdForTraceSampling",
        "has no effect",
    );
    check(
        json!({"metrics": [{"reportingInterval": "5s"}]}),
        "spec.metrics[0].reportingInterval",
        "has no effect",
    );
    check(
        json!({"metrics": [{"overrides": [{"tagOverrides": {"t": {"value": "no.such"}}}]}]}),
        "spec.metrics[0].overrides[0].tagOverrides[t].value",
        "\"no.such\" is not known; the tag stays as it is",
    );
    check(
        json!({"metrics": [{"overrides": [{"tagOverrides": {"9": {"operation": "REMOVE"}}}]}]}),
        "spec.metrics[0].overrides[0].tagOverrides[9]",
        "is no label's name",
    );
    check(
        json!({"metrics": [{"overrides": [{"match": {"metric": "NOPE"}}]}]}),
        "spec.metrics[0].overrides[0].match",
        "NOPE",
    );
}

#[test]
fn metrics_are_named_as_they_are_exposed() {
    let facts = sound(json!({"metrics": [{"overrides": [
        {"match": {"metric": "REQUEST_COUNT", "mode": "SERVER"}, "tagOverrides":
            {"source_app": {"operation": "REMOVE"}, "host": {"value": "request.host"}}},
        {"match": {"metric": "REQUEST_SIZE", "mode": "CLIENT"}, "disabled": true},
        {"disabled": true},
    ]}]}));
    let metrics: Vec<_> = facts
        .metrics
        .iter()
        .map(|one| {
            let tags = one.tags.iter();
            let tags = tags.map(|(tag, value)| format!(";{tag}={}", describe(value)));
            (
                one.metric.as_str(),
                one.disabled,
                one.removed_tags.join(",") + &tags.collect::<String>(),
            )
        })
        .collect();
    assert_eq!(
        metrics,
        [
            (
                "istio_requests_total",
                None,
                "source_app;host=REQUEST_AUTHORITY".to_owned()
            ),
            ("", Some(true), String::new())
        ]
    );
}

#[test]
fn providers_that_cannot_do_it_are_told_where_they_are_named() {
    let facts = sound(json!({
        "accessLogging": [{"providers": [{"name": "als"}, {"name": "zip"}, {"name": "lost"}]}],
        "tracing": [{"providers": [{"name": "own"}]}],
        "metrics": [{"providers": [{"name": "prometheus"}, {"name": "otel"}]}],
    }));
    let told = facts.unserved(named);
    let told: Vec<String> = told.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "spec.accessLogging[0].providers[1].name: \"zip\" takes no logs; the proxy's own line is written",
            "spec.accessLogging[0].providers[2].name: \"lost\" is not among the mesh's extensionProviders; the proxy's own line is written",
            "spec.tracing[0].providers[0].name: \"own\" takes no spans",
            "spec.metrics[0].providers[1].name: \"otel\" takes no metrics of waypoints: they are for Prometheus to fetch",
        ]
    );
}

#[test]
fn the_sides_of_traffic_have_logs_of_their_own() {
    let facts = sound(json!({"accessLogging": [
        {"match": {"mode": "CLIENT"}, "providers": [{"name": "als"}]},
        {"match": {"mode": "SERVER"}, "disabled": true},
    ]}));
    let of = |side| merge::logs(&[&facts], side, &named).map(|each| each.len());
    assert_eq!((of(Sides::Client), of(Sides::Server)), (Some(1), Some(0)));
}
