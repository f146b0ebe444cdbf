// SPDX-License-Identifier: Apache-2.0
//! Handles of label sets, at hand on each worker: who counts again what was counted a moment ago looks nothing up in the
//! registry.
//!
//! A handle keeps its series alive, so what is at hand must not stay for ever: [`Handles::let_go`] forgets what nobody
//! asked for since it was called last, and the registry's own expiry does the rest.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::workers::WorkerId;

/// Handles `V` by label set `K`, a bounded number on each worker.
pub struct Handles<K, V> {
    workers: Box<[Mutex<AtHand<K, V>>]>,
    most: usize,
}

type AtHand<K, V> = HashMap<K, Held<V>>;

struct Held<V> {
    handles: Arc<V>,
    /// Since the last [`Handles::let_go`].
    asked_for: bool,
}

impl<K: Eq + Hash, V> Handles<K, V> {
    /// Room for `most` label sets on each worker.
    pub fn new(workers: usize, most: usize) -> Self {
        Self {
            workers: (0..workers).map(|_| Mutex::default()).collect(),
            most,
        }
    }

    /// The handles of a label set; `make` looks them up. Where there is no room, because all that is at hand is in use,
    /// they are looked up each time.
    pub fn of<Q>(&self, worker: WorkerId, key: &Q, make: impl FnOnce() -> (K, V)) -> Arc<V>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        let mut held = self.workers[worker.index()].lock();
        if let Some(held) = held.get_mut(key) {
            held.asked_for = true;
            return Arc::clone(&held.handles);
        }
        if held.len() >= self.most {
            held.retain(|_, held| Arc::strong_count(&held.handles) > 1);
        }
        let (key, handles) = make();
        let handles = Arc::new(handles);
        if held.len() < self.most {
            let new = Held {
                handles: Arc::clone(&handles),
                asked_for: true,
            };
            held.insert(key, new);
        }
        handles
    }

    /// Forgets what nobody asked for since this was called last; whoever still holds it counts on. Call it now and then.
    pub fn let_go(&self) {
        for worker in &self.workers {
            let mut held = worker.lock();
            held.retain(|_, held| std::mem::take(&mut held.asked_for));
            if held.len() < held.capacity() / 4 {
                held.shrink_to_fit();
            }
        }
    }

    /// How many label sets are at hand, on all workers.
    pub fn count(&self) -> usize {
        self.workers.iter().map(|held| held.lock().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use metrics::Counter;

    use super::super::{Limits, Metrics};
    use super::*;
    use crate::workers::Workers;

    #[test]
    fn what_nobody_asks_for_any_more_is_let_go_and_its_series_expires() {
        let metrics = Metrics::new(Limits {
            idle: Duration::from_secs(60),
            ..Limits::default()
        });
        let workers = Workers::start(1).unwrap();
        let worker = workers.assign_home();
        let handles: Handles<Box<str>, Counter> = Handles::new(1, 8);
        let count = |name: &str| {
            let make = || (name.into(), metrics.counter("x_total", &[("n", name)]));
            handles.of(worker, name, make).increment(1);
        };
        let start = Instant::now();
        count("once");
        count("again");
        handles.let_go();
        count("again");
        metrics.expire(start);
        handles.let_go();
        assert_eq!(handles.count(), 1, "what is asked for stays at hand");
        count("again");
        metrics.expire(start + Duration::from_secs(61));
        assert_eq!(metrics.series(), 1);
        count("once");
        let text = metrics.render();
        assert!(text.contains("x_total{n=\"again\"} 3"), "{text}");
        assert!(text.contains("x_total{n=\"once\"} 1"), "begun anew: {text}");
    }

    #[test]
    fn what_is_in_use_stays_and_what_comes_on_top_is_looked_up_each_time() {
        let workers = Workers::start(1).unwrap();
        let worker = workers.assign_home();
        let handles: Handles<u32, u32> = Handles::new(1, 2);
        let of = |n: u32| handles.of(worker, &n, || (n, n));
        let (first, second) = (of(1), of(2));
        assert_eq!(*of(3), 3);
        assert_eq!(handles.count(), 2);
        drop(second);
        assert_eq!(*of(3), 3);
        assert_eq!(handles.count(), 2, "room was made");
        assert!(Arc::ptr_eq(&first, &of(1)), "what is in use was forgotten");
    }
}
