// SPDX-License-Identifier: Apache-2.0
//! What is open, so that it can be shown, and ended once a change of policy forbids it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hbone::Stop;
use parking_lot::Mutex;

use crate::authorize::{Facts, Verdict};

#[derive(Default)]
pub struct Connections {
    open: Mutex<HashMap<u64, Open>>,
    next: AtomicU64,
}

struct Open {
    facts: Facts,
    stop: Stop,
}

/// A connection that is open until this is dropped.
pub struct Tracked {
    connections: Arc<Connections>,
    number: u64,
    stop: Stop,
}

impl Connections {
    pub fn track(self: &Arc<Self>, facts: Facts) -> Tracked {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let stop = Stop::new();
        let open = Open {
            facts,
            stop: stop.clone(),
        };
        self.open.lock().insert(number, open);
        Tracked {
            connections: Arc::clone(self),
            number,
            stop,
        }
    }

    /// Ends those that are denied now, and says how many. A policy that is on its way ends nothing that is open.
    pub fn decide_again(&self, decide: impl Fn(&Facts) -> Verdict) -> usize {
        let open = self.open.lock();
        let denied = open.values().filter_map(|open| match decide(&open.facts) {
            Verdict::Denied(words) => Some((&open.stop, words)),
            Verdict::Allowed | Verdict::Missing(_) => None,
        });
        denied.map(|(stop, words)| stop.stop(words)).count()
    }

    pub fn count(&self) -> usize {
        self.open.lock().len()
    }
}

impl Tracked {
    pub fn stop(&self) -> &Stop {
        &self.stop
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.connections.open.lock().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_denied_is_ended_and_what_is_over_is_forgotten() {
        let connections = Arc::<Connections>::default();
        let facts = |port| Facts {
            source_ip: [10, 0, 0, 1].into(),
            identity: "spiffe://cluster.local/ns/a/sa/b".parse().unwrap(),
            destination: ([10, 0, 0, 2], port).into(),
        };
        let (kept, ended) = (connections.track(facts(1)), connections.track(facts(2)));
        let count = connections.decide_again(|facts| match facts.destination.port() {
            2 => Verdict::Denied("no".into()),
            _ => Verdict::Missing("late".into()),
        });
        assert_eq!((count, connections.count()), (1, 2));
        assert_eq!(ended.stop().reason().as_deref(), Some("no"));
        assert_eq!(kept.stop().reason(), None);
        drop(kept);
        assert_eq!(connections.count(), 1);
    }
}
