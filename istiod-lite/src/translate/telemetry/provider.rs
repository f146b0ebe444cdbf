// SPDX-License-Identifier: Apache-2.0
//! Where telemetry goes: the mesh's `extensionProviders` that are no authorizers.

use std::collections::BTreeMap;

use proto::waypoint::{self as wire, access_log::Format};
use serde_json::{Map, Value};

use super::{Named, Signal};

/// Istio's name for logs on standard output, in Envoy's words.
pub(super) const ENVOY: &str = "envoy";
/// Istio's name for who scrapes metrics.
const PROMETHEUS: &str = "prometheus";

/// Envoy's default line.
const DEFAULT_TEXT: &str = "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" \
%RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% \
\"%UPSTREAM_TRANSPORT_FAILURE_REASON%\" %BYTES_RECEIVED% %BYTES_SENT% %DURATION% \
%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% \"%REQ(X-FORWARDED-FOR)%\" \"%REQ(USER-AGENT)%\" \"%REQ(X-REQUEST-ID)%\" \
\"%REQ(:AUTHORITY)%\" \"%UPSTREAM_HOST%\" %UPSTREAM_CLUSTER_RAW% %UPSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_LOCAL_ADDRESS% \
%DOWNSTREAM_REMOTE_ADDRESS% %REQUESTED_SERVER_NAME% %ROUTE_NAME%";

/// What a provider is.
#[derive(Debug, Clone, PartialEq)]
pub enum Sink {
    /// Lines on standard output, or records and spans for a collector.
    Log(wire::AccessLog),
    /// B3's headers, and no spans.
    Zipkin,
}

/// A provider by its name; some are there without being configured.
///
/// # Errors
/// Why nothing can be sent to it.
pub fn sink(
    name: &str,
    configured: impl FnOnce(&str) -> Option<Result<Sink, String>>,
) -> Result<Sink, String> {
    match configured(name) {
        Some(found) => found,
        None if name == ENVOY => Ok(Sink::Log(wire::AccessLog {
            format: Some(Format::Text(DEFAULT_TEXT.to_owned())),
            ..wire::AccessLog::default()
        })),
        None => Err("is not among the mesh's extensionProviders".to_owned()),
    }
}

/// Why a provider can't do what it is named for.
pub(super) fn unfit(
    named: &Named,
    provider: impl Fn(&str) -> Result<Sink, String>,
) -> Option<String> {
    let words = match (named.signal, provider(&named.name)) {
        (Signal::Metrics, _) if named.name == PROMETHEUS => return None,
        (Signal::Metrics, _) => "takes no metrics of waypoints: they are for Prometheus to fetch",
        (Signal::Logs, Ok(Sink::Log(_))) => return None,
        (Signal::Traces, Ok(Sink::Log(log))) if log.collector.is_some() => return None,
        (Signal::Traces, Ok(Sink::Log(_))) => "takes no spans",
        (Signal::Traces, Ok(Sink::Zipkin)) => {
            "is told of no spans: contexts are passed on in its form (B3), spans go out by OTLP alone"
        }
        (Signal::Logs, Ok(Sink::Zipkin)) => "takes no logs; the proxy's own line is written",
        (Signal::Logs, Err(why)) => return Some(format!("{why}; the proxy's own line is written")),
        (Signal::Traces, Err(why)) => {
            return Some(format!(
                "{why}; contexts are passed on, spans are not reported"
            ));
        }
    };
    Some(words.to_owned())
}

/// Reads a provider that is no authorizer.
///
/// # Errors
/// Why nothing can be sent to it.
pub fn provider(
    key: &str,
    collector: Option<wire::Collector>,
    settings: &Map<String, Value>,
) -> Result<Sink, String> {
    let text = |field: &str| settings.get(field).and_then(Value::as_str);
    match key {
        "opentelemetry" if settings.contains_key("http") => {
            Err("opentelemetry.http: waypoints speak OTLP over gRPC".to_owned())
        }
        "opentelemetry" | "envoyOtelAls" => {
            let collector = collector.ok_or_else(|| format!("{key}.service: is missing"))?;
            let (format, mut attributes) = format(settings);
            if let Some(name) = text("logName") {
                attributes.insert("log_name".to_owned(), name.replace('%', "%%"));
            }
            Ok(Sink::Log(wire::AccessLog {
                format: Some(format),
                collector: Some(collector),
                attributes,
                filter: None,
            }))
        }
        "zipkin" => Ok(Sink::Zipkin),
        "envoyFileAccessLog" => {
            if text("path").is_some_and(|path| path != "/dev/stdout") {
                return Err(format!("{key}.path: waypoints log to /dev/stdout"));
            }
            let has_text = settings
                .get("logFormat")
                .is_some_and(|format| format.get("text").is_some());
            let (format, fields) = format(settings);
            let format = match fields.is_empty() || has_text {
                true => format,
                false => Format::Json(wire::JsonFormat { fields }),
            };
            Ok(Sink::Log(wire::AccessLog {
                format: Some(format),
                ..wire::AccessLog::default()
            }))
        }
        _ => Err(format!("is of kind {key}, which waypoints can't send to")),
    }
}

/// The text of a line, and what else is told by name.
fn format(settings: &Map<String, Value>) -> (Format, BTreeMap<String, String>) {
    let format = settings.get("logFormat");
    let text = format.and_then(|format| format.get("text")?.as_str());
    let text = text.map_or(DEFAULT_TEXT, |text| text.trim_end_matches('\n'));
    let labels = format.and_then(|format| format.get("labels")?.as_object());
    let labels = labels.into_iter().flatten();
    let labels = labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    (Format::Text(text.to_owned()), labels.collect())
}
