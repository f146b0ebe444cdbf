// SPDX-License-Identifier: Apache-2.0
//! One record per connection, closed exactly once → access log line, `istio_tcp_*` metrics, and the latest failures.
//!
//! As in all of Istio's metrics, what the client sends is `received`.

mod decisions;
mod labels;
mod refusals;
mod telling;
mod watch;

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use hbone::{Count, Meter};
use metrics::Counter;
use ops::metrics::{Handles, Metrics};
use ops::workers::WorkerId;
use spiffe::SpiffeId;
use tracing::Level;

pub use self::decisions::Decided;
use self::decisions::Decisions;
pub use self::labels::{End, Labels, Security, ServiceNames};
pub use self::refusals::{Refusal, Refusals};
pub use self::watch::{Filter, Seen, Watchers, Wish};
use crate::authz::Decision;
use crate::exchange::{self, Requests};
use crate::failure::{Failure, Flag};
use crate::otlp::Exporters;
use crate::telemetry::{Changed, Changes, Telemetry};
use crate::token::BadToken;

/// Label sets whose counters stay at hand on each worker.
const CACHED_LABEL_SETS: usize = 4096;

const FAMILIES: [(&str, &str); 7] = [
    (
        "istio_tcp_connections_opened_total",
        "The total number of TCP connections opened",
    ),
    (
        "istio_tcp_connections_closed_total",
        "The total number of TCP connections closed",
    ),
    (
        "istio_tcp_received_bytes_total",
        "The total number of bytes received from clients",
    ),
    (
        "istio_tcp_sent_bytes_total",
        "The total number of bytes sent to clients",
    ),
    (
        "culvert_connections_refused_total",
        "Connections and tunnels that were refused, by flag",
    ),
    (
        "culvert_connect_retries_total",
        "Attempts to connect that were made again at another endpoint",
    ),
    (
        "culvert_endpoint_ejections_total",
        "Endpoints that were left alone for a while because of their errors",
    ),
];

const ASKED: (&str, &str) = (
    "culvert_authorizer_questions_total",
    "Questions to those whom CUSTOM policies ask, by what came of them: allowed, denied, error, or passed without an answer",
);

const TOKENS: (&str, &str) = (
    "culvert_tokens_refused_total",
    "Requests that were refused for their token, by what is wrong with it",
);

const LIMITED: (&str, &str) = (
    "culvert_rate_limited_requests_total",
    "Requests that were refused because their route takes no more at that time, by route",
);

pub struct Recorder {
    metrics: Metrics,
    cached: Handles<Key, TcpCounters>,
    requests: Requests,
    decisions: Decisions,
    refusals: Refusals,
    watchers: Watchers,
    exporters: Exporters,
}

/// What came of a question to an authorizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    Allowed,
    Denied,
    /// There was no answer, and the request was denied.
    Error,
    /// There was none, and it passed.
    Passed,
}

impl Asked {
    fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Error => "error",
            Self::Passed => "passed",
        }
    }
}

/// The two ends of a connection, as far as they are known.
#[derive(Debug, Clone)]
pub struct Ends {
    /// Where the client's tunnel comes from.
    pub source: SocketAddr,
    pub identity: SpiffeId,
    /// What was asked for.
    pub authority: Arc<str>,
}

/// What counters are told apart by.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    labels: Labels,
    /// What is told otherwise than by default.
    changed: Option<Changed>,
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.labels.hash(state);
    }
}

impl Key {
    /// The counter of a connection that ended so; nothing where it isn't counted.
    fn counter(&self, metrics: &Metrics, name: &str, flag: Flag) -> Counter {
        let more = [
            ("request_protocol", "tcp"),
            ("response_flags", flag.as_str()),
        ];
        let of = |labels: &[(&str, &str)]| metrics.counter(name, labels);
        let with =
            |labels: &[(&str, &str)]| Changes::apply(self.changed.as_ref(), name, labels, of);
        let counter = self.labels.with(&more, with);
        counter.unwrap_or_else(Counter::noop)
    }
}

/// What is known of a connection to an endpoint as it is opened.
pub struct Opening {
    pub ends: Ends,
    /// The endpoint.
    pub upstream: SocketAddr,
    pub labels: Labels,
    pub near: Near,
    pub telemetry: Option<Arc<Telemetry>>,
}

/// The counters of one label set.
struct TcpCounters {
    opened: Counter,
    received: Arc<dyn Count>,
    sent: Arc<dyn Count>,
}

struct Total(Counter);

impl Count for Total {
    fn add(&self, bytes: u64) {
        self.0.increment(bytes);
    }
}

/// Whose bytes a relay calls sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Near {
    Client,
    Endpoint,
}

/// An open connection's record. Dropping it without a result closes it as drained.
pub struct Connection {
    recorder: Arc<Recorder>,
    ends: Ends,
    /// The endpoint.
    upstream: SocketAddr,
    key: Key,
    telemetry: Option<Arc<Telemetry>>,
    near: Near,
    meter: Arc<Meter>,
    decided: Decided,
    opened_at: Instant,
    closed: bool,
}

impl Recorder {
    pub fn new(metrics: Metrics, workers: usize) -> Arc<Self> {
        for (name, help) in FAMILIES.into_iter().chain([ASKED, TOKENS, LIMITED]) {
            metrics.describe(name, help);
        }
        Arc::new(Self {
            requests: Requests::new(metrics.clone(), workers),
            decisions: Decisions::new(metrics.clone(), workers),
            exporters: Exporters::new(&metrics),
            metrics,
            cached: Handles::new(workers, CACHED_LABEL_SETS),
            refusals: Refusals::default(),
            watchers: Watchers::default(),
        })
    }

    /// What collectors are told by.
    pub fn exporters(&self) -> &Exporters {
        &self.exporters
    }

    /// Who looks on.
    pub fn watchers(&self) -> &Watchers {
        &self.watchers
    }

    /// What rules of routes and of policies did, by their labels.
    pub fn by_rule(&self) -> [(&'static str, BTreeMap<String, u64>); 2] {
        [exchange::BY_ROUTE.0, decisions::FAMILY.0].map(|name| (name, self.metrics.counters(name)))
    }

    pub fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// Lets the series of those expire who have not been heard of for a while; call it now and then.
    pub fn let_go(&self) {
        self.cached.let_go();
        self.requests.let_go();
        self.decisions.let_go();
    }

    pub fn requests(&self) -> &Requests {
        &self.requests
    }

    /// A connection to an endpoint that was reached.
    pub fn open(self: &Arc<Self>, worker: WorkerId, opening: Opening) -> Connection {
        let changed = opening.changed();
        let Opening {
            ends,
            upstream,
            labels,
            near,
            telemetry,
        } = opening;
        let key = Key { labels, changed };
        let counters = self.counters(worker, &key);
        counters.opened.increment(1);
        let (received, sent) = (Arc::clone(&counters.received), Arc::clone(&counters.sent));
        let meter = match near {
            Near::Client => Meter::with_counters(received, sent),
            Near::Endpoint => Meter::with_counters(sent, received),
        };
        Connection {
            recorder: Arc::clone(self),
            ends,
            upstream,
            key,
            telemetry,
            near,
            meter: Arc::new(meter),
            decided: Decided::default(),
            opened_at: Instant::now(),
            closed: false,
        }
    }

    /// Counts what policies have decided; returns what the log is to say of it.
    pub fn decided(&self, worker: WorkerId, decision: &Decision<'_>) -> Decided {
        self.decisions.count(worker, decision)
    }

    /// A question to whom a policy names.
    pub fn asked(&self, authorizer: &str, asked: Asked) {
        let labels = [("authorizer", authorizer), ("result", asked.as_str())];
        self.metrics.counter(ASKED.0, &labels).increment(1);
    }

    /// A request that is refused for its token: counted, and for the admin view.
    pub fn refuse_token(&self, ends: &Ends, why: BadToken) {
        let labels = [("reason", &*why.to_string())];
        self.metrics.counter(TOKENS.0, &labels).increment(1);
        self.denied(ends, &Failure::Token(why));
    }

    /// A request that is refused because its route takes no more: counted, and for the admin view.
    pub fn limited(&self, ends: &Ends, failure: &Failure, route: &str) {
        let counter = self.metrics.counter(LIMITED.0, &[("route", route)]);
        counter.increment(1);
        self.denied(ends, failure);
    }

    /// A request that is denied, for the admin view; its log line and metrics are its exchange's.
    pub fn denied(&self, ends: &Ends, failure: &Failure) {
        let (identity, authority) = (ends.identity.as_str(), &*ends.authority);
        self.refusals
            .push(ends.source, Some(identity), Some(authority), failure);
    }

    /// A connection that reached no endpoint.
    pub fn refuse(&self, ends: &Ends, failure: &Failure) {
        let (identity, authority) = (ends.identity.as_str(), &*ends.authority);
        self.note(ends.source, Some(identity), Some(authority), failure);
        tracing::event!(
            target: "access",
            parent: None,
            Level::WARN,
            {
                src.addr = %ends.source,
                src.identity = identity,
                dst.hbone_addr = authority,
                direction = "waypoint",
                response_flags = failure.flag().as_str(),
                error = %failure,
            },
            "connection failed"
        );
    }

    /// A tunnel that nobody was let in by.
    pub fn refuse_tunnel(&self, source: SocketAddr, failure: &Failure) {
        self.note(source, None, None, failure);
        tracing::event!(
            target: "access",
            parent: None,
            Level::WARN,
            {
                src.addr = %source,
                direction = "waypoint",
                response_flags = failure.flag().as_str(),
                error = %failure,
            },
            "tunnel failed"
        );
    }

    pub fn retried(&self) {
        self.metrics
            .counter("culvert_connect_retries_total", &[])
            .increment(1);
    }

    pub fn ejected(&self) {
        self.metrics
            .counter("culvert_endpoint_ejections_total", &[])
            .increment(1);
    }

    fn note(
        &self,
        source: SocketAddr,
        identity: Option<&str>,
        destination: Option<&str>,
        failure: &Failure,
    ) {
        let flag = failure.flag().as_str();
        self.metrics
            .counter("culvert_connections_refused_total", &[("flag", flag)])
            .increment(1);
        self.refusals.push(source, identity, destination, failure);
    }

    fn counters(&self, worker: WorkerId, key: &Key) -> Arc<TcpCounters> {
        self.cached.of(worker, key, || {
            let counter = |name: &str| key.counter(&self.metrics, name, Flag::None);
            let counters = TcpCounters {
                opened: counter("istio_tcp_connections_opened_total"),
                received: Arc::new(Total(counter("istio_tcp_received_bytes_total"))),
                sent: Arc::new(Total(counter("istio_tcp_sent_bytes_total"))),
            };
            (key.clone(), counters)
        })
    }
}

impl Connection {
    /// For the relay whose near side is what the record was opened with.
    pub fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// What policies have said of it.
    pub fn decided(&mut self, decided: Decided) {
        self.decided = decided;
    }

    pub fn close(mut self, result: Result<(), Failure>) {
        self.finish(&result);
    }

    fn finish(&mut self, result: &Result<(), Failure>) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        let flag = result.as_ref().err().map_or(Flag::None, Failure::flag);
        let metrics = &self.recorder.metrics;
        let closed = "istio_tcp_connections_closed_total";
        self.key.counter(metrics, closed, flag).increment(1);
        let failure = result.as_ref().err();
        if let Some(failure) = failure.filter(|_| flag != Flag::None) {
            let ends = &self.ends;
            let (identity, authority) = (ends.identity.as_str(), &*ends.authority);
            self.recorder
                .refusals
                .push(ends.source, Some(identity), Some(authority), failure);
        }
        self.tell(flag, failure);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.finish(&Err(Failure::Drained));
    }
}
