// SPDX-License-Identifier: Apache-2.0
//! What is open, so that it can be shown, and ended once a change of policy forbids it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hbone::Stop;
use parking_lot::Mutex;

use crate::authorize::{Facts, Verdict};

#[derive(Default)]
pub struct Connections {
    open: Mutex<HashMap<u64, Open>>,
    next: AtomicU64,
}

struct Open {
    seen: Arc<Seen>,
    stop: Stop,
}

/// What is known of a connection.
struct Seen {
    facts: Facts,
    /// Once it is clear that nobody looks into what it carries.
    bytes: AtomicBool,
}

/// What is known of what a connection carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carried {
    /// Requests, or it is not clear yet.
    Requests,
    /// Bytes that nobody looks into.
    Bytes,
}

/// A connection that is open until this is dropped.
pub struct Tracked {
    connections: Arc<Connections>,
    number: u64,
    seen: Arc<Seen>,
    stop: Stop,
}

impl Connections {
    pub fn track(self: &Arc<Self>, facts: Facts) -> Tracked {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let stop = Stop::new();
        let seen = Arc::new(Seen {
            facts,
            bytes: AtomicBool::new(false),
        });
        let open = Open {
            seen: Arc::clone(&seen),
            stop: stop.clone(),
        };
        self.open.lock().insert(number, open);
        Tracked {
            connections: Arc::clone(self),
            number,
            seen,
            stop,
        }
    }

    /// Ends those that are denied now, and says how many. A policy that is on its way ends nothing that is open.
    pub fn decide_again(&self, decide: impl Fn(&Facts, Carried) -> Verdict) -> usize {
        let open = self.open.lock();
        let denied = open.values().filter_map(|open| {
            let carried = match open.seen.bytes.load(Ordering::Acquire) {
                true => Carried::Bytes,
                false => Carried::Requests,
            };
            match decide(&open.seen.facts, carried) {
                Verdict::Denied(words) => Some((&open.stop, words)),
                Verdict::Allowed | Verdict::Missing(_) => None,
            }
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

    pub fn facts(&self) -> &Facts {
        &self.seen.facts
    }

    /// Nobody looks into what it carries. Say so before it is decided on: what changes in between is decided on again.
    pub fn carries_bytes(&self) {
        self.seen.bytes.store(true, Ordering::Release);
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
            destination_ips: [[10, 0, 0, 2].into()].into(),
            service: None,
            server_name: std::sync::OnceLock::new(),
        };
        let (kept, ended) = (connections.track(facts(1)), connections.track(facts(2)));
        ended.carries_bytes();
        let count = connections.decide_again(|facts, carried| match facts.destination.port() {
            2 if carried == Carried::Requests => Verdict::Allowed,
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
