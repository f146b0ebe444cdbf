// SPDX-License-Identifier: Apache-2.0
//! What collectors are told of requests, what of traces goes on to endpoints, and what Telemetry changes of metrics.

use std::net::SocketAddr;

use http::Request;
use http_body_util::Full;
use proto::opentelemetry::proto::collector::{logs::v1 as logs, trace::v1 as traces};
use proto::opentelemetry::proto::common::v1::{KeyValue, any_value::Value};
use proto::waypoint::{
    AccessLog, AccessLogs, Collector, CustomTag, Expression, Known, MetricOverride, Operand,
    Protocol, Telemetry, Tracing, access_log::Format, custom_tag, expression::Kind,
};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tonic::{Response, Status};

use crate::harness::{World, application, host, soon};

/// A collector that keeps what it is told.
struct Taking<T>(mpsc::UnboundedSender<T>);

#[tonic::async_trait]
impl traces::trace_service_server::TraceService for Taking<traces::ExportTraceServiceRequest> {
    async fn export(
        &self,
        request: tonic::Request<traces::ExportTraceServiceRequest>,
    ) -> Result<Response<traces::ExportTraceServiceResponse>, Status> {
        self.0.send(request.into_inner()).unwrap();
        Ok(Response::new(traces::ExportTraceServiceResponse {}))
    }
}

#[tonic::async_trait]
impl logs::logs_service_server::LogsService for Taking<logs::ExportLogsServiceRequest> {
    async fn export(
        &self,
        request: tonic::Request<logs::ExportLogsServiceRequest>,
    ) -> Result<Response<logs::ExportLogsServiceResponse>, Status> {
        self.0.send(request.into_inner()).unwrap();
        Ok(Response::new(logs::ExportLogsServiceResponse {}))
    }
}

struct Collected {
    address: SocketAddr,
    traces: mpsc::UnboundedReceiver<traces::ExportTraceServiceRequest>,
    logs: mpsc::UnboundedReceiver<logs::ExportLogsServiceRequest>,
}

async fn collector() -> Collected {
    let listener = TcpListener::bind(("127.0.0.2", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (spans, traces) = mpsc::unbounded_channel();
    let (records, logs) = mpsc::unbounded_channel();
    let server = tonic::transport::Server::builder()
        .add_service(traces::trace_service_server::TraceServiceServer::new(
            Taking(spans),
        ))
        .add_service(logs::logs_service_server::LogsServiceServer::new(Taking(
            records,
        )))
        .serve_with_incoming(tonic::transport::server::TcpIncoming::from(listener));
    tokio::spawn(server);
    Collected {
        address,
        traces,
        logs,
    }
}

fn value(attributes: &[KeyValue], key: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == key);
    match found.and_then(|found| found.value.as_ref()?.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        other => panic!("{key}: {other:?} in {attributes:?}"),
    }
}

fn to_collector() -> Option<Collector> {
    Some(Collector {
        namespace: "shop".into(),
        hostname: host("otel").to_string(),
        port: 80,
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

#[tokio::test]
async fn a_trace_goes_on_through_the_waypoint_and_its_span_to_the_collector() {
    let mut world = World::new().await;
    let mut collected = collector().await;
    world.service("otel", &[collected.address]);
    let to = world.service("app", &[application("one").await]);
    world.serve("app", Protocol::Http1, vec![]);
    world.tell_by(&Telemetry {
        tracing: Some(Tracing {
            collector: to_collector(),
            tags: vec![CustomTag {
                name: "cell".into(),
                value: Some(custom_tag::Value::Literal("7".into())),
            }],
            ..Tracing::default()
        }),
        access_logs: Some(AccessLogs {
            each: vec![AccessLog {
                format: Some(Format::Text("%REQ(:METHOD)% %RESPONSE_CODE%".into())),
                collector: to_collector(),
                ..AccessLog::default()
            }],
        }),
        ..Telemetry::default()
    });
    let parent = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let asked = Request::builder().uri("/a?b").header("host", "app.shop");
    let asked = asked
        .header("traceparent", &parent)
        .header("tracestate", "v=1");
    let answer = world.ask(to, asked.body(Full::default()).unwrap()).await;
    let seen = answer.seen();
    let on = seen["headers"]["traceparent"].as_str().unwrap().to_owned();
    assert!(
        on.starts_with(&format!("00-{TRACE}-")) && on.ends_with("-01"),
        "{on}"
    );
    assert_ne!(on, parent, "the endpoint's parent is the waypoint");
    assert_eq!(seen["headers"]["tracestate"], "v=1");

    let told = soon(collected.traces.recv()).await.unwrap();
    let [of] = &told.resource_spans[..] else {
        panic!("{told:?}");
    };
    let resource = of.resource.as_ref().unwrap();
    assert_eq!(value(&resource.attributes, "service.name"), "wp.shop");
    let span = &of.scope_spans[0].spans[0];
    assert_eq!(hex(&span.trace_id), TRACE);
    assert_eq!(hex(&span.parent_span_id), "00f067aa0ba902b7");
    assert_eq!(hex(&span.span_id), on[36..52]);
    assert_eq!(span.name, "app.shop.svc.cluster.local");
    assert!(span.start_time_unix_nano <= span.end_time_unix_nano);
    for (key, expected) in [
        ("http.method", "GET"),
        ("http.url", "http://app.shop/a?b"),
        ("http.status_code", "200"),
        ("istio.upstream.workload", "app"),
        ("cell", "7"),
    ] {
        assert_eq!(value(&span.attributes, key), expected);
    }
    let told = soon(collected.logs.recv()).await.unwrap();
    let record = &told.resource_logs[0].scope_logs[0].log_records[0];
    let body = record.body.as_ref().and_then(|body| body.value.clone());
    assert_eq!(body, Some(Value::StringValue("GET 200".into())));
    assert_eq!(hex(&record.trace_id), TRACE);

    // Nobody asked for it to be recorded, and none of a million is: the context goes on all the same.
    let answer = world.get(to, "/b").await;
    let seen = answer.seen();
    let on = seen["headers"]["traceparent"].as_str().unwrap();
    assert!(on.ends_with("-00"), "{on}");
    let told = soon(collected.logs.recv()).await.unwrap();
    let record = &told.resource_logs[0].scope_logs[0].log_records[0];
    assert_eq!(value(&record.attributes, "http.url"), "http://app.shop/b");
    assert!(
        collected.traces.try_recv().is_err(),
        "a span of what is not sampled"
    );
    let exported = ["culvert_telemetry_exported_total", "signal=\"logs\"", "} 2"];
    world.until_counted(&exported).await;
}

#[tokio::test]
async fn a_collector_that_is_not_there_costs_a_counter_and_no_request() {
    let mut world = World::new().await;
    let to = world.service("app", &[application("one").await]);
    world.serve("app", Protocol::Http1, vec![]);
    world.tell_by(&Telemetry {
        tracing: Some(Tracing {
            collector: to_collector(),
            sampled_per_million: 1_000_000,
            ..Tracing::default()
        }),
        ..Telemetry::default()
    });
    assert_eq!(world.get(to, "/a").await.status, 200);
    let dropped = [
        "culvert_telemetry_dropped_total",
        "reason=\"collector\"",
        "signal=\"traces\"",
        "} 1",
    ];
    world.until_counted(&dropped).await;
}

#[tokio::test]
async fn metrics_lose_what_telemetry_takes_from_them() {
    let mut world = World::new().await;
    let to = world.service("app", &[application("one").await]);
    world.serve("app", Protocol::Http1, vec![]);
    let path = Expression {
        kind: Some(Kind::Operand(Operand {
            known: Known::RequestUrlPath.into(),
            key: String::new(),
        })),
    };
    world.tell_by(&Telemetry {
        metrics: vec![
            MetricOverride {
                metric: "istio_request_bytes".into(),
                disabled: Some(true),
                ..MetricOverride::default()
            },
            MetricOverride {
                metric: "istio_requests_total".into(),
                disabled: None,
                removed_tags: vec!["source_principal".into()],
                tags: [("path".to_owned(), path)].into(),
            },
        ],
        ..Telemetry::default()
    });
    assert_eq!(world.get(to, "/a").await.status, 200);
    world
        .until_counted(&["istio_response_bytes_count", "source_principal=\"spiffe"])
        .await;
    let page = world.metrics.render();
    let count = page
        .lines()
        .find(|line| line.starts_with("istio_requests_total{"));
    let count = count.unwrap();
    assert!(!count.contains("source_principal"), "{count}");
    assert!(count.contains("path=\"/a\""), "{count}");
    assert!(!page.contains("istio_request_bytes_count"), "{page}");
}

/// Traced, with so many of a million sampled.
fn traced(sampled_per_million: u32) -> Tracing {
    Tracing {
        collector: to_collector(),
        sampled_per_million,
        ..Tracing::default()
    }
}

#[tokio::test]
async fn b3_goes_on_in_kind_and_as_w3c_and_the_span_has_its_parent() {
    let mut world = World::new().await;
    let mut collected = collector().await;
    world.service("otel", &[collected.address]);
    let to = world.service("app", &[application("one").await]);
    world.serve("app", Protocol::Http1, vec![]);
    world.tell_by(&Telemetry {
        tracing: Some(traced(0)),
        ..Telemetry::default()
    });
    let asked = Request::builder().uri("/a").header("host", "app.shop");
    let asked = asked
        .header("x-b3-traceid", TRACE)
        .header("x-b3-spanid", "00f067aa0ba902b7")
        .header("x-b3-sampled", "1")
        .header("tracestate", "of=another");
    let answer = world.ask(to, asked.body(Full::default()).unwrap()).await;
    let headers = &answer.seen()["headers"];
    let span = headers["x-b3-spanid"].as_str().unwrap();
    assert_eq!(headers["x-b3-traceid"], TRACE);
    assert_eq!(headers["x-b3-parentspanid"], "00f067aa0ba902b7");
    assert_eq!(headers["x-b3-sampled"], "1");
    assert_eq!(headers["traceparent"], format!("00-{TRACE}-{span}-01"));
    assert_eq!(headers.get("tracestate"), None);
    let told = soon(collected.traces.recv()).await.unwrap();
    let told = &told.resource_spans[0].scope_spans[0].spans[0];
    assert_eq!(hex(&told.trace_id), TRACE);
    assert_eq!(hex(&told.span_id), span);
    assert_eq!(hex(&told.parent_span_id), "00f067aa0ba902b7");
}

#[tokio::test]
async fn who_is_refused_has_a_span_too_and_sampling_all_begins_traces() {
    let mut world = World::new().await;
    let mut collected = collector().await;
    world.service("otel", &[collected.address]);
    let to = world.service("app", &[]);
    world.serve("app", Protocol::Http1, vec![]);
    world.tell_by(&Telemetry {
        tracing: Some(traced(1_000_000)),
        ..Telemetry::default()
    });
    assert_eq!(world.get(to, "/a").await.status, 503);
    let told = soon(collected.traces.recv()).await.unwrap();
    let told = &told.resource_spans[0].scope_spans[0].spans[0];
    assert_eq!(value(&told.attributes, "response_flags"), "UH");
    assert_eq!(value(&told.attributes, "http.status_code"), "503");
    assert_eq!(hex(&told.parent_span_id), "");
    let status = told.status.as_ref().map(|status| status.code);
    assert_eq!(status, Some(2), "{told:?}");
}

#[tokio::test]
async fn traces_end_here_for_endpoints_where_that_is_wanted() {
    let mut world = World::new().await;
    let to = world.service("app", &[application("one").await]);
    world.serve("app", Protocol::Http1, vec![]);
    world.tell_by(&Telemetry {
        tracing: Some(Tracing {
            no_propagation: true,
            ..traced(1_000_000)
        }),
        ..Telemetry::default()
    });
    let answer = world.get(to, "/a").await;
    assert_eq!(answer.seen()["headers"].get("traceparent"), None);
}
