// SPDX-License-Identifier: Apache-2.0
//! The lines that a connection leaves in the log, with Istio's field names, in Istio's order.
//!
//! All are of target `access`, which `RUST_LOG=access=off` (or `warn`, or `debug` for more) controls. What a policy
//! forbids is told under target `denied` where the access log is off: nobody shall be kept out without a trace.

use std::net::SocketAddr;

use spiffe::SpiffeId;
use tracing::Level;

use super::{Labels, Record};
use crate::failure::{Failure, Flag};

/// The two ends of a connection. What is not known of them is left out.
pub(super) struct Ends<'a> {
    pub(super) labels: &'a Labels,
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    pub(super) authority: Option<&'a str>,
}

impl<'a> Ends<'a> {
    fn source_identity(&self) -> Option<&'a str> {
        self.labels.source_identity().map(SpiffeId::as_str)
    }

    fn destination_identity(&self) -> Option<&'a str> {
        self.labels.destination_identity().map(SpiffeId::as_str)
    }
}

fn known(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// A level is part of a log line's static description, so there is one description per level.
macro_rules! access_line {
    ($ends:expr, $level:expr, $message:literal $(, $name:ident = $value:expr)* $(,)?) => {{
        let ends: &Ends<'_> = $ends;
        let (from, to) = (&ends.labels.source, &ends.labels.destination);
        let service = ends.labels.service.as_ref();
        tracing::event!(
            target: "access",
            parent: None,
            $level,
            {
                src.addr = %ends.source,
                src.workload = from.log_name(),
                src.namespace = known(&from.namespace),
                src.identity = ends.source_identity(),
                src.cluster = known(&from.cluster),
                dst.addr = %ends.destination,
                dst.hbone_addr = ends.authority.map(tracing::field::display),
                dst.service = service.and_then(|service| known(&service.hostname)),
                dst.workload = to.log_name(),
                dst.namespace = known(&to.namespace),
                dst.identity = ends.destination_identity(),
                dst.cluster = known(&to.cluster),
                direction = ends.labels.reporter.direction(),
                transport = ends.labels.security.transport(),
                $($name = $value,)*
            },
            $message
        )
    }};
}

impl Record {
    fn ends(&self) -> Ends<'_> {
        Ends {
            labels: &self.labels,
            source: self.source,
            destination: self.destination,
            authority: self.authority.as_deref(),
        }
    }

    pub(super) fn log_opened(&self) {
        access_line!(&self.ends(), Level::DEBUG, "connection opened");
    }

    pub(super) fn log_complete(&self, failure: Option<&Failure>) {
        let ends = self.ends();
        let (sent, received) = (self.meter.sent(), self.meter.received());
        let duration = format!("{}ms", self.opened_at.elapsed().as_millis());
        let attempts = (self.attempts > 1).then_some(self.attempts);
        let error = failure.map(Failure::to_string);
        macro_rules! complete {
            ($level:expr) => {
                access_line!(
                    &ends,
                    $level,
                    "connection complete",
                    bytes_sent = sent,
                    bytes_recv = received,
                    duration = duration.as_str(),
                    attempts = attempts,
                    error = error.as_deref(),
                )
            };
        }
        let Some(failure) = failure else {
            return complete!(Level::INFO);
        };
        complete!(Level::ERROR);
        if !tracing::enabled!(target: "access", Level::ERROR) {
            denied(&ends, failure);
        }
    }
}

/// A connection that ended before anything could be said about its other end; of the source only what it has proven.
pub(super) fn failed(ends: &Ends<'_>, failure: &Failure) {
    let error = failure.to_string();
    tracing::event!(
        target: "access",
        parent: None,
        Level::WARN,
        {
            src.addr = %ends.source,
            src.identity = ends.source_identity(),
            dst.addr = %ends.destination,
            direction = ends.labels.reporter.direction(),
            error = error.as_str(),
        },
        "connection failed"
    );
    if !tracing::enabled!(target: "access", Level::WARN) {
        denied(ends, failure);
    }
}

/// Where the access log does not tell of it.
fn denied(ends: &Ends<'_>, failure: &Failure) {
    if failure.flag() != Flag::Deny {
        return;
    }
    let error = failure.to_string();
    let (from, to) = (&ends.labels.source, &ends.labels.destination);
    tracing::event!(
        target: "denied",
        parent: None,
        Level::WARN,
        {
            src.addr = %ends.source,
            src.workload = from.log_name(),
            src.namespace = known(&from.namespace),
            src.identity = ends.source_identity(),
            dst.addr = %ends.destination,
            dst.workload = to.log_name(),
            dst.namespace = known(&to.namespace),
            direction = ends.labels.reporter.direction(),
            error = error.as_str(),
        },
        "connection denied"
    );
}
