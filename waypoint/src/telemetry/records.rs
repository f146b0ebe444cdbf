// SPDX-License-Identifier: Apache-2.0
//! A request as OTLP has it: its span, and its record in a log. Pure.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proto::opentelemetry::proto::{common, logs, trace};

use super::{Said, Tag, Told, Tracing, expression::value_of};
use crate::otlp::{any, number, text};
use crate::record::Labels;
use crate::trace::Span;

/// The span of a request, with Istio's attributes.
pub fn span(told: &Told<'_>, of: &Span, labels: &Labels, tracing: &Tracing) -> trace::v1::Span {
    let mut attributes = attributes(told);
    let ends = [
        ("istio.downstream.workload", &labels.source.workload),
        ("istio.downstream.namespace", &labels.source.namespace),
        ("istio.upstream.workload", &labels.destination.workload),
        ("istio.upstream.namespace", &labels.destination.namespace),
        (
            "istio.canonical_service",
            &labels.destination.canonical_service,
        ),
        (
            "istio.canonical_revision",
            &labels.destination.canonical_revision,
        ),
    ];
    let ends = ends.into_iter();
    let ends = ends.filter(|(_, value)| tracing.mesh_tags && !value.is_empty());
    attributes.extend(ends.map(|(key, value)| text(key, value)));
    attributes.extend(tracing.tags.iter().map(|(name, tag)| {
        let value = match tag {
            Tag::Literal(value) => value,
            Tag::Header(header, or_else) => {
                value_of(told.request_headers, header).unwrap_or(or_else)
            }
        };
        text(name, value)
    }));
    let is_error = told
        .status
        .is_none_or(|status| status >= 500 || status == 0);
    trace::v1::Span {
        trace_id: of.trace.to_be_bytes().to_vec(),
        span_id: of.id.to_be_bytes().to_vec(),
        parent_span_id: of
            .parent
            .map_or_else(Vec::new, |parent| parent.to_be_bytes().to_vec()),
        name: told
            .service
            .or(told.authority)
            .unwrap_or(told.asked)
            .to_owned(),
        kind: trace::v1::span::SpanKind::Server.into(),
        start_time_unix_nano: nanoseconds(told.started),
        end_time_unix_nano: nanoseconds(told.started + told.took),
        attributes,
        status: is_error.then(|| trace::v1::Status {
            message: told.error.unwrap_or_default().to_owned(),
            code: trace::v1::status::StatusCode::Error.into(),
        }),
    }
}

/// The record of a request or a connection in a log.
pub fn log(told: &Told<'_>, said: Said, of: Option<&Span>) -> logs::v1::LogRecord {
    let mut attributes = attributes(told);
    let more = said.attributes.iter();
    attributes.extend(more.map(|(key, value)| text(key, value)));
    logs::v1::LogRecord {
        time_unix_nano: nanoseconds(told.started),
        body: Some(any(&said.body)),
        attributes,
        trace_id: of.map_or_else(Vec::new, |of| of.trace.to_be_bytes().to_vec()),
        span_id: of.map_or_else(Vec::new, |of| of.id.to_be_bytes().to_vec()),
    }
}

fn attributes(told: &Told<'_>) -> Vec<common::v1::KeyValue> {
    let mut attributes = vec![
        text("component", "proxy"),
        text("response_flags", told.flags),
        text("peer.address", &told.source.ip().to_string()),
        text("source.principal", told.identity),
        number("request_size", told.received),
        number("response_size", told.sent),
    ];
    let url = told.authority.zip(told.path);
    let url = url.map(|(authority, path)| format!("http://{authority}{path}"));
    let status = told.status.map(|status| status.to_string());
    let more = [
        ("http.method", told.method),
        ("http.url", url.as_deref()),
        ("http.protocol", told.version.map(super::format::version)),
        ("http.status_code", status.as_deref()),
        ("guid:x-request-id", told.request_id),
        ("user_agent", told.user_agent),
        ("upstream_cluster", told.service),
        ("route", told.route),
        ("error", told.error),
    ];
    let more = more
        .into_iter()
        .filter_map(|(key, value)| Some(text(key, value?)));
    attributes.extend(more);
    attributes.extend(
        told.endpoint
            .map(|endpoint| text("upstream_cluster.address", &endpoint.to_string())),
    );
    attributes.extend(
        told.grpc_status
            .map(|status| text("grpc.status_code", &status.to_string())),
    );
    attributes
}

fn nanoseconds(time: SystemTime) -> u64 {
    let since: Duration = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
