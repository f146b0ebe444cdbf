// SPDX-License-Identifier: Apache-2.0
//! What is told to others beside the traffic, such as spans and log records: put down in passing, sent by somebody else.
//!
//! ```text
//!  any thread: tell ─► queue ─► Outgoing::run ─► a queue and a task for each destination ─► Deliver
//!               full: dropped                     full, or too many: dropped                failed: dropped
//! ```
//!
//! Whoever tells something never waits, and a destination that is slow or away costs its own items and nobody else's.
//! What is dropped is counted, by reason.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use metrics::Counter;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::warn;

use crate::metrics::Metrics;

/// Items that may wait to be sorted by destination.
const QUEUE: usize = 4096;
/// Items that may wait for one destination.
const LANE: usize = 1024;
/// Destinations at a time.
const MOST_LANES: usize = 16;
/// Items that are sent at a time.
const BATCH: usize = 512;
/// How long they are gathered.
const GATHER: Duration = Duration::from_millis(500);
/// How long a destination may take for a batch.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a destination is remembered that is told nothing.
const IDLE: Duration = Duration::from_secs(300);

const TAKEN: (&str, &str) = (
    "culvert_telemetry_exported_total",
    "Spans and log records that a collector has taken (unstable)",
);
const DROPPED: (&str, &str) = (
    "culvert_telemetry_dropped_total",
    "Spans and log records that were dropped: the queue was full (queue), there are too many collectors (collectors), or theirs didn't take them (collector) (unstable)",
);

/// Takes what is for one destination.
pub trait Deliver<T>: Send + 'static {
    /// Sends a batch; what fails is not sent again.
    fn deliver(&mut self, batch: Vec<T>) -> impl Future<Output = Result<(), String>> + Send;
}

/// Where items of one kind are left; `K` is a destination.
pub struct Exporter<K, T> {
    queue: mpsc::Sender<(K, T)>,
    /// Until somebody sends what is in it.
    outgoing: Mutex<Option<Outgoing<K, T>>>,
    dropped: Counter,
}

/// What was left, for whoever sends it.
pub struct Outgoing<K, T> {
    queued: mpsc::Receiver<(K, T)>,
    counts: Counts,
}

#[derive(Clone)]
struct Counts {
    signal: &'static str,
    metrics: Metrics,
}

impl Counts {
    fn dropped(&self, reason: &str) -> Counter {
        let labels = [("reason", reason), ("signal", self.signal)];
        self.metrics.counter(DROPPED.0, &labels)
    }
}

impl<K, T> Exporter<K, T> {
    /// One for items of this kind, in the words of metrics: `traces`, `logs`.
    pub fn new(signal: &'static str, metrics: Metrics) -> Self {
        for (name, help) in [TAKEN, DROPPED] {
            metrics.describe(name, help);
        }
        let (queue, queued) = mpsc::channel(QUEUE);
        let counts = Counts { signal, metrics };
        Self {
            dropped: counts.dropped("queue"),
            queue,
            outgoing: Mutex::new(Some(Outgoing { queued, counts })),
        }
    }

    /// Leaves something for a destination; never waits.
    pub fn tell(&self, to: K, item: T) {
        if self.queue.try_send((to, item)).is_err() {
            self.dropped.increment(1);
        }
    }

    /// What is left, once.
    pub fn outgoing(&self) -> Option<Outgoing<K, T>> {
        self.outgoing.lock().take()
    }
}

impl<K, T> Outgoing<K, T>
where
    K: Hash + Eq + Clone + std::fmt::Display + Send + 'static,
    T: Send + 'static,
{
    /// Sends all, for as long as there is somebody to tell something; `open` makes what a destination is reached by.
    pub async fn run<D: Deliver<T>>(mut self, open: impl Fn(&K) -> D) {
        let mut lanes: HashMap<K, mpsc::Sender<T>> = HashMap::new();
        let mut tasks = JoinSet::new();
        while let Some((to, item)) = self.queued.recv().await {
            while tasks.try_join_next().is_some() {}
            if lanes.get(&to).is_none_or(mpsc::Sender::is_closed) {
                lanes.retain(|_, lane| !lane.is_closed());
                if lanes.len() >= MOST_LANES {
                    self.counts.dropped("collectors").increment(1);
                    continue;
                }
                let (lane, items) = mpsc::channel(LANE);
                let way = open(&to);
                tasks.spawn(carry(to.to_string(), items, way, self.counts.clone()));
                lanes.insert(to.clone(), lane);
            }
            if let Some(lane) = lanes.get(&to)
                && lane.try_send(item).is_err()
            {
                self.counts.dropped("queue").increment(1);
            }
        }
    }
}

/// Sends what is for one destination, until there was nothing for a while.
async fn carry<T: Send, D: Deliver<T>>(
    to: String,
    mut items: mpsc::Receiver<T>,
    mut way: D,
    counts: Counts,
) {
    let signal = counts.signal;
    let taken = counts.metrics.counter(TAKEN.0, &[("signal", signal)]);
    let mut batch = Vec::new();
    loop {
        match timeout(IDLE, items.recv_many(&mut batch, BATCH)).await {
            // What was put in at this very moment is still to be sent.
            Err(_) => {
                items.close();
                continue;
            }
            Ok(0) => return,
            Ok(_) => {}
        }
        if batch.len() < BATCH {
            sleep(GATHER).await;
            while batch.len() < BATCH
                && let Ok(more) = items.try_recv()
            {
                batch.push(more);
            }
        }
        let count = batch.len();
        let sending = timeout(PATIENCE, way.deliver(std::mem::take(&mut batch)));
        let sent = sending.await;
        match sent.unwrap_or_else(|_| Err(format!("no answer within {PATIENCE:?}"))) {
            Ok(()) => taken.increment(count as u64),
            Err(error) => {
                counts.dropped("collector").increment(count as u64);
                warn!(
                    signal,
                    collector = to,
                    error,
                    "telemetry was dropped: the collector did not take it"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Which destination got what.
    type Got = Arc<Mutex<Vec<(&'static str, Vec<u32>)>>>;

    /// Keeps what it is told, or hangs, or fails.
    struct Way {
        name: &'static str,
        got: Got,
    }

    impl Deliver<u32> for Way {
        async fn deliver(&mut self, batch: Vec<u32>) -> Result<(), String> {
            match self.name {
                "slow" => std::future::pending().await,
                "broken" => Err("it is broken".to_owned()),
                name => {
                    self.got.lock().push((name, batch));
                    Ok(())
                }
            }
        }
    }

    struct World {
        metrics: Metrics,
        exporter: Exporter<&'static str, u32>,
        got: Got,
    }

    fn world() -> World {
        let metrics = Metrics::default();
        World {
            exporter: Exporter::new("logs", metrics.clone()),
            metrics,
            got: Arc::default(),
        }
    }

    impl World {
        fn run(&self) {
            let got = Arc::clone(&self.got);
            let outgoing = self.exporter.outgoing().unwrap();
            tokio::spawn(outgoing.run(move |name: &&'static str| Way {
                name,
                got: Arc::clone(&got),
            }));
        }

        fn dropped(&self, reason: &str) -> u64 {
            let labels = format!("reason=\"{reason}\",signal=\"logs\"");
            let dropped = self.metrics.counters(DROPPED.0);
            dropped.get(&labels).copied().unwrap_or_default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_told_within_a_moment_is_sent_together() {
        let world = world();
        world.run();
        world.exporter.tell("a", 1);
        world.exporter.tell("b", 2);
        sleep(GATHER / 2).await;
        world.exporter.tell("a", 3);
        sleep(GATHER).await;
        let mut got = world.got.lock().clone();
        got.sort();
        assert_eq!(got, [("a", vec![1, 3]), ("b", vec![2])]);
        let taken = world.metrics.counters(TAKEN.0);
        assert_eq!(taken.get("signal=\"logs\""), Some(&3), "{taken:?}");
        // One that was forgotten meanwhile is reached anew.
        sleep(IDLE * 2).await;
        world.exporter.tell("a", 4);
        sleep(GATHER * 2).await;
        assert_eq!(world.got.lock().last(), Some(&("a", vec![4])));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_slow_or_broken_costs_its_own_items_alone() {
        let world = world();
        world.run();
        for number in 0..u32::try_from(LANE).unwrap() + 700 {
            world.exporter.tell("slow", number);
            if number % 500 == 0 {
                // Lets them be sorted.
                sleep(GATHER).await;
            }
        }
        world.exporter.tell("broken", 1);
        world.exporter.tell("a", 1);
        sleep(GATHER * 2).await;
        assert_eq!(*world.got.lock(), [("a", vec![1])]);
        assert_eq!(world.dropped("collector"), 1);
        assert!(world.dropped("queue") > 0);
        sleep(PATIENCE).await;
        assert!(world.dropped("collector") > 1, "it was given up");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_where_nobody_sends() {
        let world = world();
        for number in 0..u32::try_from(QUEUE).unwrap() + 5 {
            world.exporter.tell("a", number);
        }
        assert_eq!(world.dropped("queue"), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn destinations_are_not_without_end() {
        let world = world();
        world.run();
        let name = |number: usize| -> &'static str { format!("n{number}").leak() };
        for number in 0..MOST_LANES + 2 {
            world.exporter.tell(name(number), 1);
        }
        sleep(GATHER * 2).await;
        assert_eq!(world.got.lock().len(), MOST_LANES);
        assert_eq!(world.dropped("collectors"), 2);
    }
}
