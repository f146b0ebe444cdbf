// SPDX-License-Identifier: Apache-2.0
//! One record per connection, closed exactly once → access log line and `istio_tcp_*` metrics.
//!
//! In: who speaks to whom, the bytes as they pass, and how it ended. Out: log lines with Istio's field names, counters
//! with Istio's labels, and the latest refusals for whoever asks why. Counters are looked up once per connection and
//! per label set; a byte costs two atomic additions.
//!
//! Directions: Istio's metrics call what the client sends `received`, for both reporters. The access log speaks from
//! the pod's view: what the pod sends is `bytes_sent`.

mod labels;
mod lines;
mod refusals;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use hbone::{Count, Meter};
use metrics::{Counter, Gauge};
use ops::export::Exporter;
use ops::metrics::{Handles, Metrics};
use proto::opentelemetry::proto::logs::v1::LogRecord;

pub use self::labels::{End, Labels, Reporter, Security, ServiceName};
pub use self::refusals::{RefusalEntry, Refusals};
use crate::failure::{Failure, Flag};
use crate::otlp;
use crate::telling::{Collector, Telling};
use ops::workers::WorkerId;

/// Label sets whose counters stay at hand on each worker.
const CACHED_LABEL_SETS: usize = 4096;

const FAMILIES: &[(&str, &str)] = &[
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
        "istio_tcp_connections_failed_total",
        "The total number of TCP connections that failed (unstable)",
    ),
    (
        "istio_tcp_sockets_open",
        "The number of accepted sockets open now (unstable)",
    ),
];

/// The counters of one label set.
struct Counters {
    labels: Arc<Labels>,
    opened: Counter,
    closed: Counter,
    received: Arc<dyn Count>,
    sent: Arc<dyn Count>,
}

impl Counters {
    fn meter(&self, reporter: Reporter) -> Arc<Meter> {
        let (from_client, to_client) = (Arc::clone(&self.received), Arc::clone(&self.sent));
        Arc::new(match reporter {
            Reporter::Source => Meter::with_counters(from_client, to_client),
            Reporter::Destination => Meter::with_counters(to_client, from_client),
        })
    }
}

pub struct Recorder {
    metrics: Metrics,
    cached: Handles<Arc<Labels>, Counters>,
    refusals: Refusals,
    sockets: [Gauge; 2],
    telling: Arc<Telling>,
    exporter: Exporter<Arc<Collector>, LogRecord>,
}

/// What is known of a connection once its route is.
pub struct Opening {
    pub labels: Labels,
    pub source: SocketAddr,
    /// The next hop on outbound; the address that the client reached on inbound.
    pub destination: SocketAddr,
    /// The CONNECT authority, where there is one.
    pub authority: Option<Arc<str>>,
}

/// A byte counter as the relay feeds it.
struct Total(Counter);

impl Count for Total {
    fn add(&self, bytes: u64) {
        self.0.increment(bytes);
    }
}

/// An open connection's record. Dropping it without a result closes it as drained.
pub struct Record {
    recorder: Arc<Recorder>,
    source: SocketAddr,
    destination: SocketAddr,
    authority: Option<Arc<str>>,
    labels: Arc<Labels>,
    counters: Arc<Counters>,
    meter: Arc<Meter>,
    /// Endpoints tried.
    attempts: u32,
    opened_at: Instant,
    closed: Closed,
}

#[derive(PartialEq, Eq)]
enum Closed {
    No,
    Yes,
}

/// An accepted socket that is counted as open until this is dropped.
pub struct SocketCount(Gauge);

impl Drop for SocketCount {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

impl Recorder {
    pub fn new(metrics: Metrics, workers: usize) -> Arc<Self> {
        for (name, help) in FAMILIES {
            metrics.describe(name, help);
        }
        let sockets = |reporter: Reporter| {
            metrics.gauge("istio_tcp_sockets_open", &[("reporter", reporter.as_str())])
        };
        Arc::new(Self {
            sockets: [sockets(Reporter::Source), sockets(Reporter::Destination)],
            cached: Handles::new(workers, CACHED_LABEL_SETS),
            refusals: Refusals::new(),
            telling: Arc::default(),
            exporter: Exporter::new("logs", metrics.clone()),
            metrics,
        })
    }

    /// What is told of connections beside the log.
    pub fn telling(&self) -> &Arc<Telling> {
        &self.telling
    }

    /// What collectors are told by.
    pub fn exporter(&self) -> &Exporter<Arc<Collector>, LogRecord> {
        &self.exporter
    }

    pub fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    pub fn socket(&self, reporter: Reporter) -> SocketCount {
        let gauge = match reporter {
            Reporter::Source => &self.sockets[0],
            Reporter::Destination => &self.sockets[1],
        };
        gauge.increment(1.0);
        SocketCount(gauge.clone())
    }

    pub fn open(self: &Arc<Self>, worker: WorkerId, opening: Opening) -> Record {
        let counters = self.counters(worker, &opening.labels);
        counters.opened.increment(1);
        let record = Record {
            recorder: Arc::clone(self),
            meter: counters.meter(opening.labels.reporter),
            attempts: 1,
            labels: Arc::clone(&counters.labels),
            counters,
            source: opening.source,
            destination: opening.destination,
            authority: opening.authority,
            opened_at: Instant::now(),
            closed: Closed::No,
        };
        record.log_opened();
        record
    }

    /// A connection that ended before anything could be said about its other end.
    pub fn refuse_early(
        &self,
        labels: &Labels,
        source: SocketAddr,
        destination: SocketAddr,
        failure: &Failure,
    ) {
        self.count_refusal(labels, failure);
        let opening = lines::Ends {
            labels,
            source,
            destination,
            authority: None,
        };
        lines::failed(&opening, failure);
        self.list(labels, source, destination, failure);
    }

    /// Of refusals that are too many to be told one by one.
    pub fn count_refusal(&self, labels: &Labels, failure: &Failure) {
        self.failed(labels, failure.flag()).increment(1);
    }

    fn list(
        &self,
        labels: &Labels,
        source: SocketAddr,
        destination: SocketAddr,
        failure: &Failure,
    ) {
        self.refusals
            .push(RefusalEntry::new(labels, source, destination, failure));
    }

    /// A pod's question that was not answered with what it asked for.
    pub fn refuse_lookup(
        &self,
        source: SocketAddr,
        listener: SocketAddr,
        flag: Flag,
        reason: String,
    ) {
        let (reporter, refusals) = (Reporter::Source, &self.refusals);
        refusals.push(RefusalEntry::of(reporter, source, listener, flag, reason));
    }

    fn failed(&self, labels: &Labels, flag: Flag) -> Counter {
        labels.with_flag(flag, |labels| {
            self.metrics
                .counter("istio_tcp_connections_failed_total", labels)
        })
    }

    /// Lets the series of those expire who have not been heard of for a while; call it now and then.
    pub fn let_go(&self) {
        self.cached.let_go();
    }

    fn counters(&self, worker: WorkerId, labels: &Labels) -> Arc<Counters> {
        self.cached.of(worker, labels, || {
            let all = Arc::new(labels.clone());
            let counters = labels.with_flag(Flag::None, |labels| {
                let counter = |name: &str| self.metrics.counter(name, labels);
                Counters {
                    labels: Arc::clone(&all),
                    opened: counter("istio_tcp_connections_opened_total"),
                    closed: counter("istio_tcp_connections_closed_total"),
                    received: Arc::new(Total(counter("istio_tcp_received_bytes_total"))),
                    sent: Arc::new(Total(counter("istio_tcp_sent_bytes_total"))),
                }
            });
            (all, counters)
        })
    }
}

impl Record {
    /// For the relay whose near socket is the pod's own: the client on outbound, the application on inbound.
    pub fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// The connection goes on to another endpoint, as the attempt before failed. Where that one counts under other
    /// labels, the connection is closed there and opened here, so that each series stays balanced; it has not failed.
    pub fn moved(&mut self, worker: WorkerId, opening: Opening, failed: Flag) {
        let counters = self.recorder.counters(worker, &opening.labels);
        let labels = Arc::clone(&counters.labels);
        if !labels.count_as(&self.labels) {
            self.count_closed(failed);
            counters.opened.increment(1);
        }
        self.meter = counters.meter(labels.reporter);
        (self.labels, self.counters) = (labels, counters);
        (self.source, self.destination) = (opening.source, opening.destination);
        self.authority = opening.authority;
        self.log_opened();
    }

    /// How many endpoints were tried.
    pub fn tried(&mut self, attempts: u32) {
        self.attempts = attempts;
    }

    pub fn close(mut self, result: Result<(), Failure>) {
        self.finish(&result);
    }

    fn count_closed(&self, flag: Flag) {
        if flag == Flag::None {
            return self.counters.closed.increment(1);
        }
        let metrics = &self.recorder.metrics;
        let closed =
            |labels: &[(&str, &str)]| metrics.counter("istio_tcp_connections_closed_total", labels);
        self.labels.with_flag(flag, closed).increment(1);
    }

    fn finish(&mut self, result: &Result<(), Failure>) {
        if std::mem::replace(&mut self.closed, Closed::Yes) == Closed::Yes {
            return;
        }
        let flag = result.as_ref().err().map_or(Flag::None, Failure::flag);
        let recorder = &self.recorder;
        self.count_closed(flag);
        if flag != Flag::None {
            recorder.failed(&self.labels, flag).increment(1);
        }
        if let Err(failure) = result
            && flag != Flag::None
        {
            recorder.list(&self.labels, self.source, self.destination, failure);
        }
        self.tell(result.as_ref().err(), flag);
    }

    /// To the log, and to whoever else is to hear of it. What was refused is in the log in any case.
    fn tell(&self, failure: Option<&Failure>, flag: Flag) {
        let labels = &self.labels;
        let own = match labels.reporter {
            Reporter::Source => &labels.source,
            Reporter::Destination => &labels.destination,
        };
        let Some(told) = self.recorder.telling.of(labels.reporter, &own.namespace) else {
            return self.log_complete(failure);
        };
        if told.own_line || flag != Flag::None {
            self.log_complete(failure);
        }
        if told.collectors.is_empty() {
            return;
        }
        let bytes = [self.meter.sent(), self.meter.received()];
        let record = otlp::record(&otlp::Ended {
            labels,
            source: self.source,
            destination: self.destination,
            authority: self.authority.as_deref(),
            took: self.opened_at.elapsed(),
            bytes,
            flag: flag.as_str(),
            error: failure.map(Failure::to_string),
        });
        for to in &told.collectors {
            self.recorder.exporter.tell(Arc::clone(to), record.clone());
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.finish(&Err(Failure::Drained));
    }
}

#[cfg(test)]
mod tests;
