// SPDX-License-Identifier: Apache-2.0
//! What is told of requests beyond their answers: which access logs, which metrics, which traces. Pure.
//!
//! In: [`proto::waypoint::Telemetry`]; a request that has ended. Out: lines, and what is left out of metrics.

pub mod expression;
pub mod format;
mod metrics;
pub mod records;

use std::fmt;
use std::sync::Arc;

use http::{HeaderMap, HeaderName};
use proto::waypoint::{self as wire, access_log, custom_tag};
use tracing::warn;

pub use self::expression::{Expression, Headers, Told};
pub use self::format::Format;
pub use self::metrics::{Changed, Changes};

/// Bytes of a header's value that are kept for logs.
const LONGEST: usize = 1024;

/// What holds for a service, or for all that is served here.
#[derive(Debug, Default)]
pub struct Telemetry {
    /// None: the waypoint's own line for each request.
    access_logs: Option<Box<[AccessLog]>>,
    /// None: metrics are told as they are by default.
    pub metrics: Option<Arc<Changes>>,
    /// None: the contexts of traces are passed on as they come.
    pub tracing: Option<Tracing>,
    /// Headers that logs and filters look at, of requests and of answers.
    wanted: [Vec<HeaderName>; 2],
}

/// A message, compiled, if there is one; what of it is not understood is logged.
pub fn compiled(message: Option<&wire::Telemetry>, of: &str) -> Option<Arc<Telemetry>> {
    let (telemetry, problems) = Telemetry::compile(message?);
    for problem in problems {
        warn!(of, problem, "telemetry can't be told as it is written");
    }
    Some(Arc::new(telemetry))
}

/// Whether and how requests are traced.
#[derive(Debug)]
pub struct Tracing {
    /// Who is told of spans.
    pub collector: Option<Arc<Collector>>,
    /// Of requests without a context.
    pub sampled_per_million: u32,
    /// B3's headers are written in any case.
    pub b3: bool,
    /// Whether spans say which workloads are concerned.
    pub mesh_tags: bool,
    /// Whether endpoints are told of the trace.
    pub propagation: bool,
    /// Attributes of each span.
    pub tags: Box<[(String, Tag)]>,
}

/// Where an attribute's value comes from.
#[derive(Debug)]
pub enum Tag {
    Literal(String),
    /// A header of the request, or else this.
    Header(HeaderName, String),
}

/// A service that takes OTLP.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Collector {
    /// Empty: whichever has such a host.
    pub namespace: Box<str>,
    pub hostname: Box<str>,
    pub port: u16,
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            namespace,
            hostname,
            port,
        } = self;
        match &**namespace {
            "" => write!(f, "{hostname}:{port}"),
            namespace => write!(f, "{namespace}/{hostname}:{port}"),
        }
    }
}

impl Collector {
    fn read(wire: &wire::Collector) -> Result<Arc<Self>, String> {
        let port = u16::try_from(wire.port).ok().filter(|port| *port > 0);
        let port = port.ok_or_else(|| format!("the collector's port is {}", wire.port))?;
        Ok(Arc::new(Self {
            namespace: wire.namespace.as_str().into(),
            hostname: wire.hostname.as_str().into(),
            port,
        }))
    }
}

/// One access log.
#[derive(Debug)]
struct AccessLog {
    filter: Option<Expression>,
    way: Way,
}

#[derive(Debug)]
enum Way {
    /// The waypoint's own line.
    Own,
    /// To standard output.
    Line(Format),
    /// To a collector: what it is told, beside what every record has.
    Export(Arc<Collector>, Format, Box<[(String, Format)]>),
}

/// What is written of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// The waypoint's own line.
    Own,
    Line(String),
    Export(Arc<Collector>, Said),
}

/// What a record for a collector says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    pub body: String,
    pub attributes: Vec<(String, String)>,
}

impl Telemetry {
    /// Compiles a message. What of it is not understood is told: a filter then filters nothing, and a format is the waypoint's
    /// own.
    pub fn compile(telemetry: &wire::Telemetry) -> (Self, Vec<String>) {
        let (mut wanted, mut problems) = ([Vec::new(), Vec::new()], Vec::new());
        let logs = telemetry.access_logs.as_ref().map(|logs| {
            let log = |log| AccessLog::compile(log, &mut wanted, &mut problems);
            logs.each.iter().map(log).collect()
        });
        let tracing = telemetry.tracing.as_ref();
        let tracing =
            tracing.map(|tracing| Tracing::compile(tracing, &mut wanted[0], &mut problems));
        let metrics = Changes::compile(&telemetry.metrics, &mut wanted, &mut problems);
        for wanted in &mut wanted {
            wanted.sort_by(|a, b| a.as_str().cmp(b.as_str()));
            wanted.dedup();
        }
        let compiled = Self {
            access_logs: logs,
            tracing,
            metrics: metrics.map(Arc::new),
            wanted,
        };
        (compiled, problems)
    }

    /// What is to be kept of a request's headers.
    pub fn of_request(&self, headers: &HeaderMap) -> Headers {
        kept(&self.wanted[0], headers)
    }

    /// What is to be kept of an answer's.
    pub fn of_answer(&self, headers: &HeaderMap) -> Headers {
        kept(&self.wanted[1], headers)
    }

    /// What is written of a request or a connection.
    pub fn lines(&self, told: &Told<'_>) -> Vec<Written> {
        let Some(logs) = &self.access_logs else {
            return vec![Written::Own];
        };
        let wanted = logs.iter().filter(|log| {
            let holds = |filter: &Expression| filter.holds(told);
            log.filter.as_ref().is_none_or(holds)
        });
        let written = wanted.map(|log| match &log.way {
            Way::Own => Written::Own,
            Way::Line(format) => Written::Line(format.line(told)),
            Way::Export(to, body, attributes) => {
                let attributes = attributes.iter();
                let attributes = attributes.map(|(key, format)| (key.clone(), format.line(told)));
                let said = Said {
                    body: body.line(told),
                    attributes: attributes.collect(),
                };
                Written::Export(Arc::clone(to), said)
            }
        });
        written.collect()
    }
}

impl AccessLog {
    fn compile(
        log: &wire::AccessLog,
        wanted: &mut [Vec<HeaderName>; 2],
        problems: &mut Vec<String>,
    ) -> Self {
        let filter = log.filter.as_ref().and_then(|filter| {
            let read = Expression::compile(filter);
            told(read, "filter of an access log", problems)
        });
        if let Some(filter) = &filter {
            filter.headers(wanted);
        }
        let read = match &log.format {
            Some(access_log::Format::Text(text)) => Some(Format::text(text)),
            Some(access_log::Format::Json(json)) => Some(Format::json(&json.fields)),
            Some(access_log::Format::Own(())) | None => None,
        };
        let format = read.and_then(|read| told(read, "format of an access log", problems));
        let collector = log.collector.as_ref().map(Collector::read);
        let collector = collector.and_then(|read| told(read, "access log", problems));
        let attributes = log.attributes.iter().filter_map(|(key, text)| {
            let read = told(Format::text(text), key, problems)?;
            Some((key.clone(), read))
        });
        let attributes: Box<[_]> = attributes.collect();
        let formats = format.iter().chain(attributes.iter().map(|(_, one)| one));
        formats.for_each(|format| format.headers(wanted));
        let way = match (collector, format) {
            (Some(to), Some(format)) => Way::Export(to, format, attributes),
            (None, Some(format)) if log.collector.is_none() => Way::Line(format),
            (_, _) => Way::Own,
        };
        Self { filter, way }
    }
}

impl Tracing {
    fn compile(
        tracing: &wire::Tracing,
        wanted: &mut Vec<HeaderName>,
        problems: &mut Vec<String>,
    ) -> Self {
        let tag = |tag: &wire::CustomTag| {
            let value = match tag.value.as_ref()? {
                custom_tag::Value::Literal(text) => Tag::Literal(text.clone()),
                custom_tag::Value::Header(header) => {
                    let name = header.name.parse::<HeaderName>().ok()?;
                    wanted.push(name.clone());
                    Tag::Header(name, header.default_value.clone())
                }
            };
            Some((tag.name.clone(), value))
        };
        let tags = tracing.tags.iter().filter_map(tag).collect();
        let collector = tracing.collector.as_ref();
        let collector = collector.filter(|_| !tracing.disable_reporting);
        let collector = collector.map(Collector::read);
        Self {
            tags,
            collector: collector.and_then(|read| told(read, "traces", problems)),
            sampled_per_million: tracing.sampled_per_million,
            b3: tracing.b3,
            mesh_tags: !tracing.no_mesh_tags,
            propagation: !tracing.no_propagation,
        }
    }
}

/// What was understood; what was not is told.
fn told<T>(read: Result<T, String>, of: &str, problems: &mut Vec<String>) -> Option<T> {
    read.inspect_err(|why| problems.push(format!("{of}: {why}")))
        .ok()
}

fn kept(wanted: &[HeaderName], headers: &HeaderMap) -> Headers {
    let kept = wanted.iter().filter_map(|name| {
        // Of visible ASCII, which can be cut anywhere.
        let value = headers.get(name)?.to_str().ok()?;
        let value = value.get(..LONGEST).unwrap_or(value);
        Some((name.clone(), value.into()))
    });
    kept.collect()
}

#[cfg(test)]
mod tests;
