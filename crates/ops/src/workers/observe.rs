// SPDX-License-Identifier: Apache-2.0
//! How busy the workers are, as metrics: tokio's own counts of their runtimes, read at each scrape.

use metrics::{Counter, Gauge};
use tokio::runtime::Handle;

use super::Workers;
use crate::metrics::Metrics;

const BUSY: &str = "tokio_worker_total_busy_duration_seconds_total";

const FAMILIES: [(&str, &str); 6] = [
    ("tokio_num_workers", "Number of proxy worker threads"),
    (
        "tokio_global_queue_depth",
        "Tasks handed to the proxy workers that none has looked at yet",
    ),
    ("tokio_num_alive_tasks", "Tasks of the proxy workers"),
    (BUSY, "Time that a proxy worker was busy"),
    (
        "tokio_worker_park_count_total",
        "Times that a proxy worker had nothing to do",
    ),
    (
        "tokio_worker_park_unpark_count_total",
        "Times that a proxy worker had nothing to do, and that it went on",
    ),
];

/// One worker's runtime and what is said of it.
struct Observed {
    runtime: Handle,
    busy: Gauge,
    parks: Counter,
    parks_and_unparks: Counter,
}

impl Observed {
    fn update(&self) {
        let seen = self.runtime.metrics();
        // Each runtime has one worker, its thread.
        self.busy
            .set(seen.worker_total_busy_duration(0).as_secs_f64());
        self.parks.absolute(seen.worker_park_count(0));
        self.parks_and_unparks
            .absolute(seen.worker_park_unpark_count(0));
    }
}

impl Workers {
    /// Exposes what the runtimes count.
    pub fn observe(&self, metrics: &Metrics) {
        for (name, help) in FAMILIES {
            metrics.describe(name, help);
        }
        metrics.rises(BUSY);
        let observed = self.workers.iter().enumerate().map(|(index, worker)| {
            let index = index.to_string();
            let labels = [("worker", index.as_str())];
            Observed {
                runtime: worker.runtime.clone(),
                busy: metrics.gauge(BUSY, &labels),
                parks: metrics.counter("tokio_worker_park_count_total", &labels),
                parks_and_unparks: metrics.counter("tokio_worker_park_unpark_count_total", &labels),
            }
        });
        let observed: Vec<_> = observed.collect();
        metrics
            .gauge("tokio_num_workers", &[])
            .set(observed.len() as f64);
        let queued = metrics.gauge("tokio_global_queue_depth", &[]);
        let alive = metrics.gauge("tokio_num_alive_tasks", &[]);
        metrics.before_scrape(move || {
            observed.iter().for_each(Observed::update);
            let sum = |count: fn(&Handle) -> usize| -> usize {
                observed.iter().map(|worker| count(&worker.runtime)).sum()
            };
            queued.set(sum(|runtime| runtime.metrics().global_queue_depth()) as f64);
            alive.set(sum(|runtime| runtime.metrics().num_alive_tasks()) as f64);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn what_a_worker_did_can_be_read() {
        let workers = Workers::start(2).unwrap();
        let metrics = Metrics::default();
        workers.observe(&metrics);
        let home = workers.assign_home();
        let (done, wait) = std::sync::mpsc::channel();
        workers.spawn(home, async move {
            let end = Instant::now() + Duration::from_millis(50);
            while Instant::now() < end {}
            let _ = done.send(());
            std::future::pending::<()>().await;
        });
        wait.recv().unwrap();
        let page = metrics.render();
        let value = |sample: &str| -> f64 {
            let line = page.lines().find_map(|line| line.strip_prefix(sample));
            line.unwrap_or_else(|| panic!("{sample} in {page}"))
                .trim()
                .parse()
                .unwrap()
        };
        assert!((value("tokio_num_workers ") - 2.0).abs() < f64::EPSILON);
        assert!(value("tokio_num_alive_tasks ") >= 1.0);
        // The busy time of a turn is counted when it is over.
        let end = Instant::now() + Duration::from_secs(5);
        while !metrics.render().lines().any(|line| {
            line.starts_with("tokio_worker_total_busy_duration_seconds_total{worker=\"0\"} 0.0")
        }) {
            assert!(Instant::now() < end, "{}", metrics.render());
        }
    }
}
