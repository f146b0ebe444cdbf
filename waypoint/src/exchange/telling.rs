// SPDX-License-Identifier: Apache-2.0
//! What Telemetry wants told of a request that has ended: lines, records for collectors, a span, and other labels.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderMap;

use super::Exchange;
use crate::failure::Flag;
use crate::telemetry::{Changed, Headers, Telemetry, Told, records};
use crate::trace::Span;

/// What is kept of a request for that.
pub(super) struct Telling {
    telemetry: Arc<Telemetry>,
    /// Its place in a trace, where requests are traced.
    span: Option<Span>,
    /// Of the request and of its answer, as far as anything looks at them.
    headers: [Headers; 2],
}

impl Telling {
    pub(super) fn answered(&mut self, headers: &HeaderMap) {
        self.headers[1] = self.telemetry.of_answer(headers);
    }
}

impl Exchange {
    /// What is to be told of it. Where requests are traced, its trace is continued here, or begun.
    pub fn told_by(&mut self, telemetry: &Arc<Telemetry>, headers: &HeaderMap) {
        let span = telemetry.tracing.as_ref().map(|tracing| {
            let draw = || rand::random_range(0..1_000_000);
            Span::begin(headers, tracing.sampled_per_million, draw, rand::random)
        });
        self.telling = Some(Box::new(Telling {
            span,
            headers: [telemetry.of_request(headers), Headers::default()],
            telemetry: Arc::clone(telemetry),
        }));
    }

    /// Tells the endpoint of the trace, by the headers that it gets.
    pub fn propagate(&self, headers: &mut HeaderMap) {
        if let Some((span, b3)) = self.propagated() {
            span.write(headers, b3);
        }
    }

    /// Tells whoever gets a copy of the trace, of which the copy is no part.
    pub fn propagate_to_copy(&self, headers: &mut HeaderMap) {
        if let Some((span, b3)) = self.propagated() {
            span.unsampled().write(headers, b3);
        }
    }

    fn propagated(&self) -> Option<(Span, bool)> {
        let telling = self.telling.as_ref()?;
        let tracing = telling.telemetry.tracing.as_ref()?;
        let span = telling.span.filter(|_| tracing.propagation)?;
        Some((span, tracing.b3))
    }

    /// How its metrics are told otherwise than by default.
    pub(super) fn changed(
        &self,
        flag: Flag,
        words: Option<&str>,
        took: Duration,
    ) -> Option<Changed> {
        let telling = self.telling.as_ref()?;
        let changes = telling.telemetry.metrics.as_ref()?;
        Some(Changed::of(changes, &self.told(telling, flag, words, took)))
    }

    /// To whoever is to hear of it.
    pub(super) fn tell(&self, flag: Flag, words: Option<&str>, took: Duration) {
        let own = || self.log(flag, words, took);
        let Some(telling) = &self.telling else {
            return own();
        };
        let told = self.told(telling, flag, words, took);
        let span = telling.span.as_ref();
        self.recorder
            .write(&telling.telemetry, &told, span, flag, own);
        if let Some(span) = span.filter(|span| span.sampled)
            && let Some(tracing) = &telling.telemetry.tracing
            && let Some(to) = &tracing.collector
        {
            let span = records::span(&told, span, &self.labels, tracing);
            let exporters = self.recorder.exporters();
            exporters.spans.tell(Arc::clone(to), span);
        }
    }

    fn told<'e>(
        &'e self,
        telling: &'e Telling,
        flag: Flag,
        error: Option<&'e str>,
        took: Duration,
    ) -> Told<'e> {
        let [request_headers, answer_headers] = &telling.headers;
        Told {
            started: SystemTime::now().checked_sub(took).unwrap_or(UNIX_EPOCH),
            took,
            method: Some(self.method.as_str()),
            path: Some(&self.path),
            authority: Some(&self.authority),
            version: Some(self.version),
            request_headers,
            answer_headers,
            request_id: self.request_id.as_deref(),
            user_agent: self.user_agent.as_deref(),
            received: self.received.bytes(),
            sent: self.sent,
            status: Some(self.code),
            grpc_status: self.grpc_status,
            flags: flag.as_str(),
            error,
            source: self.ends.source,
            identity: self.ends.identity.as_str(),
            asked: &self.ends.authority,
            endpoint: self.upstream,
            service: self.labels.service.as_ref().map(|names| &*names[0]),
            route: self.route.as_deref(),
        }
    }
}
