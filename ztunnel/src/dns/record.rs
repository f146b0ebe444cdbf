// SPDX-License-Identifier: Apache-2.0
//! What is written down of a lookup: Istio's `istio_dns_*` metrics, a debug line for each, a warning for each refusal.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mesh::Workload;
use ops::metrics::Metrics;
use parking_lot::Mutex;
use tracing::{debug, warn};

use super::answer::Transport;
use super::lookup::Refusal;
use super::message::{Query, Rcode};
use crate::failure::Flag;
use crate::pods::PodInfo;
use crate::record::Recorder;

const REQUESTS: &str = "istio_dns_requests_total";
const UPSTREAM_REQUESTS: &str = "istio_dns_upstream_requests_total";
const UPSTREAM_FAILURES: &str = "istio_dns_upstream_failures_total";
const UPSTREAM_DURATION: &str = "istio_dns_upstream_request_duration_seconds";
const REFUSED: &str = "culvert_dns_refused_total";

const FAMILIES: &[(&str, &str)] = &[
    (REQUESTS, "The total number of DNS requests (unstable)"),
    (
        UPSTREAM_REQUESTS,
        "The total number of DNS requests forwarded to upstream servers (unstable)",
    ),
    (
        UPSTREAM_FAILURES,
        "The total number of forwarded DNS requests that failed (unstable)",
    ),
    (
        UPSTREAM_DURATION,
        "How long forwarded DNS requests took, in seconds (unstable)",
    ),
    (
        REFUSED,
        "The total number of DNS requests that were refused here, by reason (unstable)",
    ),
];

/// A pod that asks what is refused asks again and again; more warnings a second would tell nothing new.
const WARNINGS_A_SECOND: u32 = 10;

pub(super) struct Lookups {
    metrics: Metrics,
    warnings: Mutex<Warnings>,
}

struct Warnings {
    since: Instant,
    given: u32,
    withheld: u32,
}

/// The labels of one lookup.
#[derive(Debug, Clone)]
pub(super) struct Labels {
    query_type: &'static str,
    transport: Transport,
    service: Arc<str>,
    revision: Arc<str>,
}

impl Labels {
    pub(super) fn of(query: &Query, transport: Transport, source: Option<&Workload>) -> Self {
        Self {
            query_type: query.record_type.label(),
            transport,
            service: source
                .map(|it| it.canonical_name.clone())
                .unwrap_or_default(),
            revision: source
                .map(|it| it.canonical_revision.clone())
                .unwrap_or_default(),
        }
    }

    fn texts(&self) -> [(&str, &str); 4] {
        fn known(text: &str) -> &str {
            if text.is_empty() { "unknown" } else { text }
        }
        [
            ("request_query_type", self.query_type),
            ("request_protocol", self.transport.as_str()),
            ("source_canonical_service", known(&self.service)),
            ("source_canonical_revision", known(&self.revision)),
        ]
    }
}

/// Who answered.
#[derive(Debug, Clone, Copy)]
pub(super) enum By {
    Mesh,
    Upstream,
    /// An upstream server, before.
    Cache,
}

impl Lookups {
    pub(super) fn new(metrics: Metrics) -> Self {
        for (name, help) in FAMILIES {
            metrics.describe(name, help);
        }
        metrics.buckets(UPSTREAM_DURATION, &[0.0005, 0.001, 0.01, 0.1, 1.0, 5.0]);
        Self {
            metrics,
            warnings: Mutex::new(Warnings {
                since: Instant::now(),
                given: 0,
                withheld: 0,
            }),
        }
    }

    pub(super) fn requested(&self, labels: &Labels) {
        self.metrics.counter(REQUESTS, &labels.texts()).increment(1);
    }

    pub(super) fn forwarded(&self, labels: &Labels) {
        let counter = self.metrics.counter(UPSTREAM_REQUESTS, &labels.texts());
        counter.increment(1);
    }

    pub(super) fn upstream_answered(&self, labels: &Labels, took: Duration) {
        let histogram = self.metrics.histogram(UPSTREAM_DURATION, &labels.texts());
        histogram.record(took.as_secs_f64());
    }

    pub(super) fn upstream_failed(&self, labels: &Labels) {
        let counter = self.metrics.counter(UPSTREAM_FAILURES, &labels.texts());
        counter.increment(1);
    }

    pub(super) fn answered(
        &self,
        pod: &PodInfo,
        query: &Query,
        rcode: Rcode,
        endpoints: usize,
        by: By,
    ) {
        debug!(
            target: "dns",
            {
                src.workload = &*pod.name,
                src.namespace = &*pod.namespace,
                query = query.record_type.label(),
                domain = query.shown_name(),
                result = rcode.name(),
                endpoints,
                by = match by {
                    By::Mesh => "mesh",
                    By::Upstream => "upstream",
                    By::Cache => "cache",
                },
            },
            "lookup"
        );
    }

    /// `query` is none where it couldn't be read.
    pub(super) fn refused(
        &self,
        recorder: &Recorder,
        pod: &PodInfo,
        asked: Asked<'_>,
        refusal: &Refusal,
    ) {
        self.metrics
            .counter(REFUSED, &[("reason", refusal.label())])
            .increment(1);
        let reason = refusal.to_string();
        let domain = asked.query.map(Query::shown_name);
        let rcode = refusal.rcode().map_or("none", Rcode::name);
        debug!(
            target: "dns",
            {
                src.workload = &*pod.name,
                src.namespace = &*pod.namespace,
                query = asked.query.map(|query| query.record_type.label()),
                domain,
                result = rcode,
                endpoints = 0,
                error = reason,
            },
            "lookup"
        );
        if let Some(withheld) = self.may_warn(Instant::now()) {
            warn!(
                {
                    src.workload = &*pod.name,
                    src.namespace = &*pod.namespace,
                    domain,
                    result = rcode,
                    withheld,
                    error = reason,
                },
                "DNS query refused"
            );
        }
        let about = domain.map_or(reason.clone(), |domain| format!("{domain} {reason}"));
        recorder.refuse_lookup(asked.peer, asked.listener, Flag::Dns, about);
    }

    /// How many warnings were withheld before this one, if it may be given.
    fn may_warn(&self, now: Instant) -> Option<u32> {
        let mut warnings = self.warnings.lock();
        if now.saturating_duration_since(warnings.since) >= Duration::from_secs(1) {
            warnings.since = now;
            warnings.given = 0;
        }
        if warnings.given >= WARNINGS_A_SECOND {
            warnings.withheld = warnings.withheld.saturating_add(1);
            return None;
        }
        warnings.given += 1;
        Some(std::mem::take(&mut warnings.withheld))
    }
}

/// What was asked, by whom, where.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) query: Option<&'a Query>,
    pub(super) peer: SocketAddr,
    pub(super) listener: SocketAddr,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_bounded_and_what_was_withheld_is_said() {
        let lookups = Lookups::new(Metrics::default());
        let start = lookups.warnings.lock().since;
        for _ in 0..WARNINGS_A_SECOND {
            assert_eq!(lookups.may_warn(start), Some(0));
        }
        assert_eq!(lookups.may_warn(start), None);
        assert_eq!(lookups.may_warn(start), None);
        assert_eq!(lookups.may_warn(start + Duration::from_secs(1)), Some(2));
        assert_eq!(lookups.may_warn(start + Duration::from_secs(1)), Some(0));
    }
}
