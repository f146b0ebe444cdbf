// SPDX-License-Identifier: Apache-2.0
//! Counts the bytes of one connection while it lives.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A metric that adds up bytes as they pass.
pub trait Count: Send + Sync {
    /// Adds `bytes`; called once per write, so it should cost about one atomic addition.
    fn add(&self, bytes: u64);
}

/// Bytes of one connection so far. "Sent" is what came from the near socket and went to the far side (the tunnel, or
/// the second socket); "received" is the other way. A byte counts once the receiving end has taken it.
#[derive(Default)]
pub struct Meter {
    sent: AtomicU64,
    received: AtomicU64,
    count_sent: Option<Arc<dyn Count>>,
    count_received: Option<Arc<dyn Count>>,
}

impl Meter {
    /// A meter that only counts for itself.
    pub fn new() -> Self {
        Self::default()
    }

    /// A meter that also feeds two metrics, resolved once for the connection.
    pub fn with_counters(sent: Arc<dyn Count>, received: Arc<dyn Count>) -> Self {
        Self {
            count_sent: Some(sent),
            count_received: Some(received),
            ..Self::default()
        }
    }

    /// Bytes near → far so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Bytes far → near so far.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, way: Way, bytes: usize) {
        let bytes = bytes as u64;
        let (own, metric) = match way {
            Way::Sent => (&self.sent, &self.count_sent),
            Way::Received => (&self.received, &self.count_received),
        };
        own.fetch_add(bytes, Ordering::Relaxed);
        if let Some(metric) = metric {
            metric.add(bytes);
        }
    }
}

impl std::fmt::Debug for Meter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meter")
            .field("sent", &self.sent())
            .field("received", &self.received())
            .finish_non_exhaustive()
    }
}

/// One of the two directions of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Sent,
    Received,
}
