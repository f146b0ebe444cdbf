// SPDX-License-Identifier: Apache-2.0
//! Spans and log records on their way to collectors, by OTLP over gRPC.
//!
//! Requests leave them with an [`Exporter`], which never lets them wait. Collectors are services of the mesh, reached as any
//! other endpoint, under the waypoint's own identity.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use hbone::wire::{Authority, ConnectRequest};
use http::Uri;
use hyper_util::rt::TokioIo;
use ops::export::{Deliver, Exporter};
use ops::metrics::Metrics;
use ops::workers::WorkerId;
use proto::opentelemetry::proto as otlp;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::{Channel, Endpoint};

use crate::config::Own;
use crate::destination::{Destination, Unserved};
use crate::failure::Failure;
use crate::listener::Arrival;
use crate::record::End;
use crate::telemetry::Collector;
use crate::upstream::{self, Upstream};
use crate::waypoint::Waypoint;

use otlp::collector::logs::v1::{self as logs_service, logs_service_client::LogsServiceClient};
use otlp::collector::trace::v1::{self as trace_service, trace_service_client::TraceServiceClient};
use otlp::{common, logs, resource, trace};

/// How long a collector may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of a text that is told: what clients say may be long.
const LONGEST: usize = 2048;

/// Where requests leave what they have to tell.
pub struct Exporters {
    pub spans: Exporter<Arc<Collector>, trace::v1::Span>,
    pub records: Exporter<Arc<Collector>, logs::v1::LogRecord>,
}

impl Exporters {
    pub fn new(metrics: &Metrics) -> Self {
        Self {
            spans: Exporter::new("traces", metrics.clone()),
            records: Exporter::new("logs", metrics.clone()),
        }
    }
}

/// Sends what is left, for as long as the waypoint lives; to be run once, on this worker.
pub fn run(waypoint: &Arc<Waypoint>, worker: WorkerId) -> impl Future<Output = ()> + use<> {
    let exporters = waypoint.recorder.exporters();
    let (spans, records) = (exporters.spans.outgoing(), exporters.records.outgoing());
    let resource = this(&waypoint.own);
    // Not held: its end is this task's end.
    let waypoint = Arc::downgrade(waypoint);
    let open = move |to: &Arc<Collector>| Lane {
        channel: channel_to(&waypoint, worker, to),
        resource: resource.clone(),
    };
    async move {
        if let (Some(spans), Some(records)) = (spans, records) {
            tokio::join!(spans.run(&open), records.run(&open));
        }
    }
}

/// The way to a collector.
struct Lane {
    channel: Channel,
    resource: resource::v1::Resource,
}

impl Deliver<trace::v1::Span> for Lane {
    async fn deliver(&mut self, spans: Vec<trace::v1::Span>) -> Result<(), String> {
        let request = trace_service::ExportTraceServiceRequest {
            resource_spans: vec![trace::v1::ResourceSpans {
                resource: Some(self.resource.clone()),
                scope_spans: vec![trace::v1::ScopeSpans { spans }],
            }],
        };
        let mut client = TraceServiceClient::new(self.channel.clone());
        let answer = client.export(request).await;
        answer.map(|_| ()).map_err(|status| words(&status))
    }
}

impl Deliver<logs::v1::LogRecord> for Lane {
    async fn deliver(&mut self, log_records: Vec<logs::v1::LogRecord>) -> Result<(), String> {
        let request = logs_service::ExportLogsServiceRequest {
            resource_logs: vec![logs::v1::ResourceLogs {
                resource: Some(self.resource.clone()),
                scope_logs: vec![logs::v1::ScopeLogs { log_records }],
            }],
        };
        let mut client = LogsServiceClient::new(self.channel.clone());
        let answer = client.export(request).await;
        answer.map(|_| ()).map_err(|status| words(&status))
    }
}

/// Why it failed; what failed beneath says more than "transport error".
fn words(status: &tonic::Status) -> String {
    let mut words = format!("{:?}: {}", status.code(), status.message());
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        words.push_str(": ");
        words.push_str(&error.to_string());
        cause = error.source();
    }
    words
}

/// Who tells it.
fn this(own: &Own) -> resource::v1::Resource {
    let name = format!("{}.{}", own.gateway, own.namespace);
    resource::v1::Resource {
        attributes: vec![
            text("service.name", &name),
            text("k8s.cluster.name", &own.cluster_id),
            text("k8s.namespace.name", &own.namespace),
            text("k8s.pod.name", &own.pod),
        ],
    }
}

/// A text, not without end.
pub fn any(value: &str) -> common::v1::AnyValue {
    let mut end = value.len().min(LONGEST);
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    common::v1::AnyValue {
        value: Some(common::v1::any_value::Value::StringValue(
            value[..end].to_owned(),
        )),
    }
}

/// An attribute.
pub fn text(key: &str, value: &str) -> common::v1::KeyValue {
    common::v1::KeyValue {
        key: key.to_owned(),
        value: Some(any(value)),
    }
}

/// An attribute that is a number.
pub fn number(key: &str, value: u64) -> common::v1::KeyValue {
    let value = i64::try_from(value).unwrap_or(i64::MAX);
    common::v1::KeyValue {
        key: key.to_owned(),
        value: Some(common::v1::AnyValue {
            value: Some(common::v1::any_value::Value::IntValue(value)),
        }),
    }
}

fn channel_to(waypoint: &Weak<Waypoint>, worker: WorkerId, to: &Arc<Collector>) -> Channel {
    let (waypoint, to) = (Weak::clone(waypoint), Arc::clone(to));
    let connector = tower::service_fn(move |_: Uri| {
        let (waypoint, to) = (waypoint.upgrade(), Arc::clone(&to));
        async move {
            let waypoint = waypoint.ok_or_else(|| io::Error::other("the waypoint has ended"))?;
            let reached = Box::pin(reach(&waypoint, worker, &to)).await;
            let reached = reached.map_err(io::Error::other)?;
            Ok::<_, io::Error>(TokioIo::new(Reached(reached)))
        }
    });
    Endpoint::from_static("http://collector")
        .timeout(PATIENCE)
        .connect_timeout(PATIENCE)
        .connect_with_connector_lazy(connector)
}

/// Connects to a collector as this pod itself.
async fn reach(waypoint: &Waypoint, worker: WorkerId, to: &Collector) -> Result<Upstream, Failure> {
    let Collector {
        namespace,
        hostname,
        port,
    } = to;
    let destination = {
        let known = waypoint.state.read();
        let service = match &**namespace {
            "" => known.mesh.services_by_host(hostname).next(),
            namespace => known.mesh.service(namespace, hostname),
        };
        let service = service.cloned();
        let unknown = || Failure::from(Unserved::UnknownHost(hostname.to_string()));
        Destination::Routed {
            service: service.ok_or_else(unknown)?,
            port: *port,
            policy: Arc::default(),
        }
    };
    let own = &waypoint.own;
    let arrival = Arrival {
        worker,
        peer: (own.address, 0).into(),
        identity: own.identity.clone(),
        request: ConnectRequest::new(Authority::Host(hostname.to_string(), *port)),
        source: End::default(),
    };
    upstream::connect(waypoint, &arrival, &destination).await
}

/// A connection, with all that has to live as long.
struct Reached(Upstream);

impl AsyncRead for Reached {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0.leg).poll_read(cx, buf)
    }
}

impl AsyncWrite for Reached {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0.leg).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0.leg).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0.leg).poll_shutdown(cx)
    }
}
