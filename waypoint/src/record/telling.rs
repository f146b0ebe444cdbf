// SPDX-License-Identifier: Apache-2.0
//! What is told of a connection that has ended: the waypoint's own line, or what Telemetry wants instead.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ops::logging::READY_MADE;
use spiffe::SpiffeId;
use tracing::Level;

use super::{Connection, Ends, Labels, Near, Opening, Recorder};
use crate::failure::{Failure, Flag};
use crate::telemetry::{Changed, Telemetry, Told, Written, records};
use crate::trace::Span;

impl Opening {
    /// How its metrics are told otherwise than by default: by what is known as it begins.
    pub(super) fn changed(&self) -> Option<Changed> {
        let changes = self.telemetry.as_ref()?.metrics.as_ref()?;
        let told = told(&self.ends, &self.labels);
        let told = Told {
            endpoint: Some(self.upstream),
            ..told
        };
        Some(Changed::of(changes, &told))
    }
}

/// What a connection has that is no request.
fn told<'c>(ends: &'c Ends, labels: &'c Labels) -> Told<'c> {
    Told {
        started: SystemTime::now(),
        took: Duration::ZERO,
        method: None,
        path: None,
        authority: None,
        version: None,
        request_headers: &[],
        answer_headers: &[],
        request_id: None,
        user_agent: None,
        received: 0,
        sent: 0,
        status: None,
        grpc_status: None,
        flags: Flag::None.as_str(),
        error: None,
        source: ends.source,
        identity: ends.identity.as_str(),
        asked: &ends.authority,
        endpoint: None,
        service: labels.service.as_ref().map(|names| &*names[0]),
        route: None,
    }
}

impl Recorder {
    /// Writes the access logs of a request or a connection. A refusal has a line here in any case.
    pub(crate) fn write(
        &self,
        telemetry: &Telemetry,
        told: &Told<'_>,
        span: Option<&Span>,
        flag: Flag,
        own: impl Fn(),
    ) {
        let mut has_line = false;
        for written in telemetry.lines(told) {
            match written {
                Written::Own => own(),
                Written::Line(line) => {
                    tracing::event!(target: READY_MADE, parent: None, Level::INFO, "{line}");
                }
                Written::Export(to, said) => {
                    let record = records::log(told, said, span);
                    self.exporters.records.tell(to, record);
                    continue;
                }
            }
            has_line = true;
        }
        if !has_line && flag.is_refusal() {
            own();
        }
    }
}

impl Connection {
    /// To whoever is to hear of it.
    pub(super) fn tell(&self, flag: Flag, failure: Option<&Failure>) {
        let error = failure.map(Failure::to_string);
        let own = || self.log(flag, error.as_deref());
        let Some(telemetry) = &self.telemetry else {
            return own();
        };
        let (received, sent) = self.bytes();
        let took = self.opened_at.elapsed();
        let told = Told {
            started: SystemTime::now().checked_sub(took).unwrap_or(UNIX_EPOCH),
            took,
            received,
            sent,
            flags: flag.as_str(),
            error: error.as_deref(),
            endpoint: Some(self.upstream),
            ..told(&self.ends, &self.key.labels)
        };
        self.recorder.write(telemetry, &told, None, flag, own);
    }

    /// Of the client, and to it.
    fn bytes(&self) -> (u64, u64) {
        match self.near {
            Near::Client => (self.meter.sent(), self.meter.received()),
            Near::Endpoint => (self.meter.received(), self.meter.sent()),
        }
    }

    /// The waypoint's own line.
    fn log(&self, flag: Flag, error: Option<&str>) {
        let (received, sent) = self.bytes();
        let labels = &self.key.labels;
        let to = &labels.destination;
        let service = labels.service.as_ref().map(|names| &*names[0]);
        tracing::event!(
            target: "access",
            parent: None,
            Level::INFO,
            {
                src.addr = %self.ends.source,
                src.identity = self.ends.identity.as_str(),
                src.workload = &*labels.source.workload,
                dst.addr = %self.upstream,
                dst.hbone_addr = &*self.ends.authority,
                dst.service = service,
                dst.workload = &*to.workload,
                dst.identity = to.principal.as_ref().map(SpiffeId::as_str),
                direction = "waypoint",
                bytes_recv = received,
                bytes_sent = sent,
                duration = format!("{}ms", self.opened_at.elapsed().as_millis()),
                response_flags = flag.as_str(),
                policy = self.decided.policy.as_deref(),
                dry_run = self.decided.dry_run.as_deref(),
                audit = self.decided.audit.as_deref(),
                error = error,
            },
            "connection complete"
        );
    }
}
