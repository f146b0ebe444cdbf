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
    spliced: AtomicU64,
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

    /// A meter of one relay for two who count it, each from its own side: the near socket is `near`'s own, the far one
    /// `far`'s.
    pub fn of_both_ends(near: &Arc<Self>, far: &Arc<Self>) -> Self {
        let both = |way| {
            let (near, far) = (Arc::clone(near), Arc::clone(far));
            Arc::new(BothEnds { near, far, way })
        };
        Self::with_counters(both(Way::Sent), both(Way::Received))
    }

    /// Bytes near → far so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Bytes far → near so far.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Bytes of either way that never entered this process; they count as sent or received too.
    pub fn spliced(&self) -> u64 {
        self.spliced.load(Ordering::Relaxed)
    }

    /// Counts bytes that whoever relays has moved by itself before.
    pub fn moved_before(&self, sent: usize, received: usize) {
        self.add(Way::Sent, sent);
        self.add(Way::Received, received);
    }

    pub(crate) fn add_spliced(&self, way: Way, bytes: usize) {
        self.spliced.fetch_add(bytes as u64, Ordering::Relaxed);
        self.add(way, bytes);
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

/// One way of a relay that has a meter at each of its ends.
struct BothEnds {
    near: Arc<Meter>,
    far: Arc<Meter>,
    way: Way,
}

impl Count for BothEnds {
    fn add(&self, bytes: u64) {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.near.add(self.way, bytes);
        self.far.add(self.way.back(), bytes);
    }
}

/// One of the two directions of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Sent,
    Received,
}

impl Way {
    /// The same bytes as the other end calls them.
    fn back(self) -> Self {
        match self {
            Self::Sent => Self::Received,
            Self::Received => Self::Sent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_end_sends_the_other_receives() {
        let (near, far) = (Arc::new(Meter::new()), Arc::new(Meter::new()));
        let relay = Meter::of_both_ends(&near, &far);
        relay.add(Way::Sent, 7);
        relay.add_spliced(Way::Received, 5);
        assert_eq!((relay.sent(), relay.received(), relay.spliced()), (7, 5, 5));
        assert_eq!((near.sent(), near.received()), (7, 5));
        assert_eq!((far.sent(), far.received()), (5, 7));
    }
}
