// SPDX-License-Identifier: Apache-2.0
//! One record per request, closed exactly once → access log line and `istio_request*` metrics.
//!
//! It begins with the request's head and ends with the last byte of its answer, or with whatever else ends it.

mod telling;

use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, StatusCode, header, request};
use hyper::body::Frame;
use metrics::{Counter, Histogram};
use ops::metrics::{Handles, Metrics};
use ops::workers::WorkerId;
use tracing::Level;

use crate::endpoints::{Begun, Chosen, Using};
use crate::failure::{Failure, Flag};
use crate::messages::{Messages, Received};
use crate::record::{Decided, End, Ends, Labels, Recorder, Security, Seen, ServiceNames};
use crate::telemetry::{Changed, Changes};
use telling::Telling;

/// Label sets whose metrics stay at hand on each worker.
const CACHED_LABEL_SETS: usize = 4096;

/// As Envoy has them, in milliseconds.
const MILLISECONDS: &[f64] = &[
    0.5,
    1.0,
    5.0,
    10.0,
    25.0,
    50.0,
    100.0,
    250.0,
    500.0,
    1000.0,
    2500.0,
    5000.0,
    10_000.0,
    30_000.0,
    60_000.0,
    300_000.0,
    600_000.0,
    1_800_000.0,
    3_600_000.0,
];

/// Of bodies, in bytes.
const BYTES: &[f64] = &[
    0.0,
    64.0,
    256.0,
    1024.0,
    4096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    16_777_216.0,
    268_435_456.0,
];

const FAMILIES: [(&str, &str); 6] = [
    ("istio_requests_total", "The total number of requests"),
    (
        "istio_request_duration_milliseconds",
        "How long requests took, to the last byte of their answers",
    ),
    ("istio_request_bytes", "The size of requests' bodies"),
    ("istio_response_bytes", "The size of answers' bodies"),
    (
        "istio_request_messages_total",
        "The total number of gRPC messages that clients sent",
    ),
    (
        "istio_response_messages_total",
        "The total number of gRPC messages that clients got",
    ),
];

pub(crate) const BY_ROUTE: (&str, &str) = (
    "culvert_route_requests_total",
    "Requests by the rule of the route that decided about them, and by class of their answers",
);

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    labels: Labels,
    grpc: bool,
    code: u16,
    flag: &'static str,
    grpc_status: Option<u8>,
    /// What is told otherwise than by default.
    changed: Option<Changed>,
}

/// By what differs most: equal keys are found in few steps, and to hash all of their names costs more than that.
impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Labels {
            source,
            destination,
            ..
        } = &self.labels;
        source.workload.hash(state);
        destination.workload.hash(state);
        self.code.hash(state);
    }
}

struct Counted {
    requests: Counter,
    milliseconds: Histogram,
    request_bytes: Histogram,
    response_bytes: Histogram,
    /// Of gRPC alone: sent by the client, and to it.
    messages: Option<[Counter; 2]>,
}

/// The metrics of requests.
pub struct Requests {
    metrics: Metrics,
    cached: Handles<Key, Counted>,
    by_route: Handles<(Arc<str>, u16), Counter>,
}

impl Requests {
    pub fn new(metrics: Metrics, workers: usize) -> Self {
        for (name, help) in FAMILIES.into_iter().chain([BY_ROUTE]) {
            metrics.describe(name, help);
        }
        metrics.buckets("istio_request_duration_milliseconds", MILLISECONDS);
        metrics.buckets("istio_request_bytes", BYTES);
        metrics.buckets("istio_response_bytes", BYTES);
        Self {
            metrics,
            cached: Handles::new(workers, CACHED_LABEL_SETS),
            by_route: Handles::new(workers, CACHED_LABEL_SETS),
        }
    }

    pub(crate) fn let_go(&self) {
        self.cached.let_go();
        self.by_route.let_go();
    }

    fn counted(&self, worker: WorkerId, key: &Key) -> Arc<Counted> {
        self.cached
            .of(worker, key, || (key.clone(), self.look_up(key)))
    }

    fn count_route(&self, worker: WorkerId, route: &Arc<str>, code: u16) {
        let key = (Arc::clone(route), code / 100);
        let look_up = || {
            let class = format!("{}xx", code / 100);
            let labels = [("route", &**route), ("response_code_class", &class)];
            (key.clone(), self.metrics.counter(BY_ROUTE.0, &labels))
        };
        self.by_route.of(worker, &key, look_up).increment(1);
    }

    fn look_up(&self, key: &Key) -> Counted {
        let code = key.code.to_string();
        let mut more = vec![
            ("request_protocol", if key.grpc { "grpc" } else { "http" }),
            ("response_code", code.as_str()),
            ("response_flags", key.flag),
        ];
        let status = key.grpc_status.map(|status| status.to_string());
        if let Some(status) = &status {
            more.push(("grpc_response_status", status));
        }
        let metrics = &self.metrics;
        let changed = key.changed.as_ref();
        key.labels.with(&more, |labels| {
            let counter = |name| {
                let of = |labels: &[(&str, &str)]| metrics.counter(name, labels);
                Changes::apply(changed, name, labels, of).unwrap_or_else(Counter::noop)
            };
            let histogram = |name| {
                let of = |labels: &[(&str, &str)]| metrics.histogram(name, labels);
                Changes::apply(changed, name, labels, of).unwrap_or_else(Histogram::noop)
            };
            Counted {
                requests: counter("istio_requests_total"),
                milliseconds: histogram("istio_request_duration_milliseconds"),
                request_bytes: histogram("istio_request_bytes"),
                response_bytes: histogram("istio_response_bytes"),
                messages: key.grpc.then(|| {
                    let names = [
                        "istio_request_messages_total",
                        "istio_response_messages_total",
                    ];
                    names.map(counter)
                }),
            }
        })
    }
}

/// A request that is being answered. Dropping it unfinished counts as the client's leaving.
pub struct Exchange {
    recorder: Arc<Recorder>,
    worker: WorkerId,
    ends: Ends,
    labels: Labels,
    method: http::Method,
    path: Box<str>,
    version: http::Version,
    authority: Box<str>,
    request_id: Option<Box<str>>,
    user_agent: Option<Box<str>>,
    forwarded_for: Option<Box<str>>,
    grpc: bool,
    grpc_status: Option<u8>,
    route: Option<Arc<str>>,
    decided: Decided,
    upstream: Option<SocketAddr>,
    using: Option<Using>,
    under_way: Option<Begun>,
    retrying: Option<Begun>,
    attempts: u32,
    received: Arc<Received>,
    sent: u64,
    messages: Option<Messages>,
    code: u16,
    /// Why the answer is our own.
    local: Option<(Flag, Box<str>)>,
    /// What Telemetry wants told of it; most often nothing.
    telling: Option<Box<Telling>>,
    started_at: Instant,
    finished: bool,
}

impl Exchange {
    pub fn begin(
        recorder: &Arc<Recorder>,
        worker: WorkerId,
        ends: Ends,
        (source, service): (End, Option<ServiceNames>),
        head: &request::Parts,
    ) -> Box<Self> {
        let text = |name: &HeaderName| text_of(&head.headers, name);
        let content_type = head.headers.get(header::CONTENT_TYPE);
        let is_grpc =
            content_type.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
        Box::new(Self {
            recorder: Arc::clone(recorder),
            worker,
            ends,
            labels: Labels {
                source,
                destination: End::default(),
                service,
                security: Security::MutualTls,
            },
            method: head.method.clone(),
            path: head
                .uri
                .path_and_query()
                .map_or("", |path| path.as_str())
                .into(),
            version: head.version,
            authority: head.uri.authority().map_or_else(
                || text(&header::HOST).unwrap_or_default(),
                |authority| authority.as_str().into(),
            ),
            request_id: text(&REQUEST_ID),
            user_agent: text(&header::USER_AGENT),
            forwarded_for: text(&FORWARDED_FOR),
            grpc: is_grpc,
            grpc_status: None,
            route: None,
            decided: Decided::default(),
            upstream: None,
            using: None,
            under_way: None,
            retrying: None,
            attempts: 0,
            received: Arc::new(Received::new(is_grpc)),
            sent: 0,
            messages: is_grpc.then(Messages::default),
            code: 0,
            local: None,
            telling: None,
            started_at: Instant::now(),
            finished: false,
        })
    }

    pub fn is_grpc(&self) -> bool {
        self.grpc
    }

    pub fn started_at(&self) -> Instant {
        self.started_at
    }

    /// What the client has sent of its body so far.
    pub fn received(&self) -> &Arc<Received> {
        &self.received
    }

    pub fn by_route(&mut self, rule: Arc<str>) {
        self.route = Some(rule);
    }

    /// What policies have said of it.
    pub fn decided(&mut self, decided: Decided) {
        self.decided = decided;
    }

    /// The ends of the connection.
    pub fn ends(&self) -> &Ends {
        &self.ends
    }

    pub fn of_request_id(&mut self, id: &str) {
        self.request_id = Some(id.into());
    }

    /// It is sent to this endpoint, maybe after others.
    pub fn tried(&mut self, chosen: &Chosen, service: Option<ServiceNames>) {
        self.attempts += 1;
        self.upstream = Some(chosen.address);
        let (end, security) = chosen.end();
        (self.labels.destination, self.labels.security) = (end, security);
        if let Some(service) = service {
            self.labels.service = Some(service);
        }
    }

    /// The endpoint carries it until it is over.
    pub fn use_until_the_end(&mut self, using: Using) {
        self.using = Some(using);
    }

    /// It counts among its destination's requests until it is over.
    pub fn under_way(&mut self, begun: Begun) {
        self.under_way = Some(begun);
    }

    /// And among those that are tried again.
    pub fn retrying(&mut self, begun: Option<Begun>) {
        self.retrying = begun;
    }

    /// What was carried after it became something else.
    pub fn carried(&mut self, received: u64, sent: u64) {
        self.received.add(received);
        self.sent += sent;
    }

    /// The head of the answer is known.
    pub fn answered(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.code = status.as_u16();
        if let Some(telling) = &mut self.telling {
            telling.answered(headers);
        }
        if self.grpc {
            self.grpc_status = grpc_status(headers);
        }
    }

    /// The answer is made here, for this reason.
    pub fn answered_here(&mut self, flag: Flag, words: impl Into<Box<str>>) {
        self.local = Some((flag, words.into()));
    }

    /// A piece of the answer.
    pub fn note(&mut self, frame: &Frame<Bytes>) {
        if let Some(data) = frame.data_ref() {
            self.sent += data.len() as u64;
            if let Some(messages) = &mut self.messages {
                messages.pass(data);
            }
        } else if let Some(trailers) = frame.trailers_ref()
            && self.grpc
        {
            self.grpc_status = grpc_status(trailers);
        }
    }

    pub fn finish(mut self: Box<Self>, result: Result<(), Failure>) {
        self.close(result);
    }

    fn close(&mut self, result: Result<(), Failure>) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        let (flag, words) = match (&self.local, &result) {
            (Some((flag, words)), _) => (*flag, Some(words.to_string())),
            (None, Err(failure)) => (failure.flag(), Some(failure.to_string())),
            (None, Ok(())) => (Flag::None, None),
        };
        let received = self.received.bytes();
        let took = self.started_at.elapsed();
        let key = Key {
            labels: self.labels.clone(),
            grpc: self.grpc,
            code: self.code,
            flag: flag.as_str(),
            grpc_status: self.grpc_status,
            changed: self.changed(flag, words.as_deref(), took),
        };
        let counted = self.recorder.requests().counted(self.worker, &key);
        counted.requests.increment(1);
        counted.milliseconds.record(took.as_secs_f64() * 1000.0);
        counted.request_bytes.record(received as f64);
        counted.response_bytes.record(self.sent as f64);
        if let Some([requests, responses]) = &counted.messages {
            requests.increment(self.received.messages());
            responses.increment(self.messages.as_ref().map_or(0, Messages::count));
        }
        if let Some(route) = &self.route {
            let requests = self.recorder.requests();
            requests.count_route(self.worker, route, self.code);
        }
        if self.recorder.watchers().are_there() {
            self.show(flag, words.as_deref(), took);
        }
        self.tell(flag, words.as_deref(), took);
    }

    /// To those who look on.
    fn show(&self, flag: Flag, words: Option<&str>, took: Duration) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let source = &self.labels.source;
        self.recorder.watchers().tell(&Seen {
            unix_milliseconds: now.unwrap_or_default().as_millis(),
            method: self.method.as_str(),
            path: &self.path,
            authority: &self.authority,
            status: self.code,
            flags: flag.as_str(),
            source: format!("{}/{}", source.namespace, source.workload),
            identity: self.ends.identity.as_str(),
            service: self.labels.service.as_ref().map(|names| &*names[0]),
            endpoint: self.upstream.map(|endpoint| endpoint.to_string()),
            route: self.route.as_deref(),
            policy: self.decided.policy.as_deref(),
            attempts: self.attempts,
            bytes_received: self.received.bytes(),
            bytes_sent: self.sent,
            milliseconds: took.as_secs_f64() * 1000.0,
            request_id: self.request_id.as_deref(),
            error: words,
        });
    }

    /// The waypoint's own line.
    fn log(&self, flag: Flag, words: Option<&str>, took: Duration) {
        let service = self.labels.service.as_ref().map(|names| &*names[0]);
        let to = &self.labels.destination;
        tracing::event!(
            target: "access",
            parent: None,
            Level::INFO,
            {
                src.addr = %self.ends.source,
                src.identity = self.ends.identity.as_str(),
                src.workload = &*self.labels.source.workload,
                dst.hbone_addr = &*self.ends.authority,
                dst.service = service,
                dst.addr = self.upstream.map(tracing::field::display),
                dst.workload = Some(&*to.workload).filter(|name| !name.is_empty()),
                dst.identity = to.principal.as_ref().map(spiffe::SpiffeId::as_str),
                direction = "waypoint",
                method = %self.method,
                path = &*self.path,
                protocol = ?self.version,
                authority = &*self.authority,
                response_code = self.code,
                response_flags = flag.as_str(),
                grpc_status = self.grpc_status,
                route_name = self.route.as_deref(),
                policy = self.decided.policy.as_deref(),
                dry_run = self.decided.dry_run.as_deref(),
                audit = self.decided.audit.as_deref(),
                attempts = (self.attempts > 1).then_some(self.attempts),
                bytes_recv = self.received.bytes(),
                bytes_sent = self.sent,
                duration = format!("{}ms", took.as_millis()),
                request_id = self.request_id.as_deref(),
                user_agent = self.user_agent.as_deref(),
                x_forwarded_for = self.forwarded_for.as_deref(),
                error = words,
            },
            "request complete"
        );
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.close(Err(Failure::ClientGone(
            "it did not wait for an answer".into(),
        )));
    }
}

/// Enough of a header to recognise it in a log.
fn text_of(headers: &HeaderMap, name: &HeaderName) -> Option<Box<str>> {
    const LONGEST: usize = 1024;
    let text = headers.get(name)?.to_str().ok()?;
    Some(text.get(..LONGEST).unwrap_or(text).into())
}

/// As a label, which an endpoint must not make up: what is no status is `UNKNOWN`, as gRPC's clients take it.
fn grpc_status(headers: &HeaderMap) -> Option<u8> {
    const UNKNOWN: u8 = 2;
    let said = headers.get(&GRPC_STATUS)?.to_str().ok();
    let status = said.and_then(|text| text.parse().ok());
    Some(status.filter(|status| *status <= 16).unwrap_or(UNKNOWN))
}
