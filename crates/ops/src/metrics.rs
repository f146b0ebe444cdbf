// SPDX-License-Identifier: Apache-2.0
//! The registry: counters, gauges and histograms, exposed as OpenMetrics text.
//!
//! It is a recorder for the `metrics` crate, so that any code may count with its macros, but the hot path never looks
//! a series up: [`Metrics::counter`] and its siblings resolve a label set once and return a handle that is one atomic
//! away from its value. Handles to the same label set share that value.
//!
//! Two bounds keep a busy node's memory flat. A series that no handle outside the registry can count into any more,
//! and that has not changed for [`Limits::idle`], is dropped by [`Metrics::expire`]; a live handle is never detached
//! from what is exposed. And a family holds at most [`Limits::series_per_family`] series: what comes on top counts into
//! one series labelled `overflow="true"`, so that sums stay right and the loss of detail can be seen.

mod cells;
mod handles;
mod text;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use parking_lot::RwLock;

use cells::{CounterCell, GaugeCell, HistogramCell};
pub use handles::Handles;
use text::escape;

/// The bounds of a registry.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Most label sets of one family, the overflow series not counted.
    pub series_per_family: usize,
    /// How long a series without a live handle is still exposed.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            series_per_family: 20_000,
            idle: Duration::from_secs(15 * 60),
        }
    }
}

/// Seconds, for histograms that nobody described.
const DEFAULT_BUCKETS: &[f64] = &[0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0];

const OVERFLOW: &str = "overflow=\"true\"";

/// All series of a process; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Metrics(Arc<Registry>);

#[derive(Debug, Default)]
struct Registry {
    limits: Limits,
    families: RwLock<BTreeMap<String, Family>>,
    before_scrape: Hooks,
}

type Hook = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct Hooks(RwLock<Vec<Hook>>);

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} hooks", self.0.read().len())
    }
}

#[derive(Debug, Default)]
struct Family {
    help: String,
    buckets: Option<&'static [f64]>,
    /// Its gauges only ever rise.
    rises: bool,
    series: HashMap<Arc<str>, Series>,
}

#[derive(Debug, Clone)]
struct Series {
    cell: Cell,
    last: Last,
}

#[derive(Debug, Clone, Copy)]
struct Last {
    value: u64,
    changed: Instant,
}

#[derive(Debug, Clone)]
enum Cell {
    Counter(Arc<CounterCell>),
    Gauge(Arc<GaugeCell>),
    Histogram(Arc<HistogramCell>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Metrics {
    /// A registry with the given bounds.
    pub fn new(limits: Limits) -> Self {
        Self(Arc::new(Registry {
            limits,
            ..Registry::default()
        }))
    }

    /// Makes this registry the one that the macros of the `metrics` crate count into.
    ///
    /// # Errors
    /// Fails if the process already has one.
    pub fn install(&self) -> Result<(), metrics::SetRecorderError<Self>> {
        metrics::set_global_recorder(self.clone())
    }

    /// Gives a family its HELP text; a counter's name ends in `_total`.
    pub fn describe(&self, name: &str, help: &str) {
        let mut families = self.0.families.write();
        families.entry(name.to_owned()).or_default().help = help.to_owned();
    }

    /// Sets the upper bounds of a histogram's buckets, ascending, without +Inf; before its first sample.
    pub fn buckets(&self, name: &str, bounds: &'static [f64]) {
        let mut families = self.0.families.write();
        families.entry(name.to_owned()).or_default().buckets = Some(bounds);
    }

    /// Says that the gauges of a family, whose name ends in `_total`, only ever rise: it is exposed as a counter, one
    /// that may have fractions.
    pub fn rises(&self, name: &str) {
        let mut families = self.0.families.write();
        families.entry(name.to_owned()).or_default().rises = true;
    }

    /// The counter of a label set, with a value of zero from now on.
    pub fn counter(&self, name: &str, labels: &[(&str, &str)]) -> Counter {
        match self.cell(name, &label_text(labels.iter().copied()), Kind::Counter) {
            Some(Cell::Counter(cell)) => Counter::from_arc(cell),
            _ => Counter::noop(),
        }
    }

    /// The gauge of a label set.
    pub fn gauge(&self, name: &str, labels: &[(&str, &str)]) -> Gauge {
        match self.cell(name, &label_text(labels.iter().copied()), Kind::Gauge) {
            Some(Cell::Gauge(cell)) => Gauge::from_arc(cell),
            _ => Gauge::noop(),
        }
    }

    /// The histogram of a label set.
    pub fn histogram(&self, name: &str, labels: &[(&str, &str)]) -> Histogram {
        match self.cell(name, &label_text(labels.iter().copied()), Kind::Histogram) {
            Some(Cell::Histogram(cell)) => Histogram::from_arc(cell),
            _ => Histogram::noop(),
        }
    }

    /// Has `update` bring values up to date that are known only when they are asked for.
    pub fn before_scrape(&self, update: impl Fn() + Send + Sync + 'static) {
        self.0.before_scrape.0.write().push(Arc::new(update));
    }

    /// The counters of a family as they are now: their labels as exposed, and their values; for admin views.
    pub fn counters(&self, name: &str) -> BTreeMap<String, u64> {
        let families = self.0.families.read();
        let series = families
            .get(name)
            .into_iter()
            .flat_map(|family| &family.series);
        let counters = series.filter_map(|(labels, series)| match &series.cell {
            Cell::Counter(cell) => Some((labels.to_string(), cell.0.load(Ordering::Relaxed))),
            Cell::Gauge(_) | Cell::Histogram(_) => None,
        });
        counters.collect()
    }

    /// How many series are held, of all families.
    pub fn series(&self) -> usize {
        let families = self.0.families.read();
        families.values().map(|family| family.series.len()).sum()
    }

    /// Drops the series that nobody counts into and that have not changed for [`Limits::idle`]; call it now and then.
    pub fn expire(&self, now: Instant) {
        let idle = self.0.limits.idle;
        let mut families = self.0.families.write();
        for family in families.values_mut() {
            family.series.retain(|_, series| {
                let value = series.cell.fingerprint();
                if value != series.last.value || series.cell.is_shared() {
                    series.last = Last {
                        value,
                        changed: now,
                    };
                }
                now.saturating_duration_since(series.last.changed) < idle
            });
        }
    }

    /// The exposition in OpenMetrics text, families and series sorted; families without a sample are left out.
    pub fn render(&self) -> String {
        // A copy: a hook may register series or further hooks.
        let hooks = self.0.before_scrape.0.read().clone();
        hooks.iter().for_each(|update| update());
        let mut out = String::with_capacity(16 * 1024);
        let families = self.0.families.read();
        for (name, family) in families.iter() {
            text::render_family(&mut out, name, family);
        }
        text::render_process(&mut out);
        out.push_str("# EOF\n");
        out
    }

    /// `None` if the family already has series of another kind: such a sample would make the whole page unreadable.
    fn cell(&self, name: &str, labels: &str, kind: Kind) -> Option<Cell> {
        {
            let families = self.0.families.read();
            let known = families.get(name).and_then(|f| f.series.get(labels));
            if let Some(series) = known {
                return (series.cell.kind() == kind).then(|| series.cell.clone());
            }
        }
        let mut families = self.0.families.write();
        let family = families.entry(name.to_owned()).or_default();
        let of_kind = |series: &Series| series.cell.kind() == kind;
        if !family.series.values().next().is_none_or(of_kind) {
            tracing::error!(
                metric = name,
                ?kind,
                "metric is already registered as another kind"
            );
            return None;
        }
        let full = family.series.len() >= self.0.limits.series_per_family
            && !family.series.contains_key(labels);
        let labels = if full { OVERFLOW } else { labels };
        if let Some(series) = family.series.get(labels) {
            return Some(series.cell.clone());
        }
        let cell = match kind {
            Kind::Counter => Cell::Counter(Arc::default()),
            Kind::Gauge => Cell::Gauge(Arc::default()),
            Kind::Histogram => {
                let bounds = family.buckets.unwrap_or(DEFAULT_BUCKETS);
                Cell::Histogram(Arc::new(HistogramCell::new(bounds)))
            }
        };
        let series = Series {
            cell: cell.clone(),
            last: Last {
                value: 0,
                changed: Instant::now(),
            },
        };
        family.series.insert(labels.into(), series);
        Some(cell)
    }

    fn of_key(&self, key: &Key, kind: Kind) -> Option<Cell> {
        let labels = label_text(key.labels().map(|label| (label.key(), label.value())));
        self.cell(key.name(), &labels, kind)
    }
}

impl Recorder for Metrics {
    fn describe_counter(&self, key: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(key.as_str(), &help);
    }

    fn describe_gauge(&self, key: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(key.as_str(), &help);
    }

    fn describe_histogram(&self, key: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(key.as_str(), &help);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match self.of_key(key, Kind::Counter) {
            Some(Cell::Counter(cell)) => Counter::from_arc(cell),
            _ => Counter::noop(),
        }
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        match self.of_key(key, Kind::Gauge) {
            Some(Cell::Gauge(cell)) => Gauge::from_arc(cell),
            _ => Gauge::noop(),
        }
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        match self.of_key(key, Kind::Histogram) {
            Some(Cell::Histogram(cell)) => Histogram::from_arc(cell),
            _ => Histogram::noop(),
        }
    }
}

impl Cell {
    fn kind(&self) -> Kind {
        match self {
            Self::Counter(_) => Kind::Counter,
            Self::Gauge(_) => Kind::Gauge,
            Self::Histogram(_) => Kind::Histogram,
        }
    }

    /// Whether a handle outside the registry exists.
    fn is_shared(&self) -> bool {
        let holders = match self {
            Self::Counter(cell) => Arc::strong_count(cell),
            Self::Gauge(cell) => Arc::strong_count(cell),
            Self::Histogram(cell) => Arc::strong_count(cell),
        };
        holders > 1
    }

    /// A number that changes whenever the value does.
    fn fingerprint(&self) -> u64 {
        match self {
            Self::Counter(cell) => cell.0.load(Ordering::Relaxed),
            Self::Gauge(cell) => cell.0.load(Ordering::Relaxed),
            Self::Histogram(cell) => cell.count(),
        }
    }
}

/// `a="x",b="y"` in the order given: callers always name labels in one order, so that equal sets have equal text.
fn label_text<'a>(labels: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut text = String::with_capacity(256);
    for (key, value) in labels {
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(key);
        text.push_str("=\"");
        escape(&mut text, value);
        text.push('"');
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    fn samples(metrics: &Metrics) -> Vec<String> {
        let text = metrics.render();
        text.lines()
            .filter(|line| !line.starts_with('#') && !line.starts_with("process_"))
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn the_exposition_is_open_metrics_text() {
        let metrics = Metrics::default();
        metrics.describe("requests_total", "Requests, \"all\".");
        metrics
            .counter("requests_total", &[("code", "2\"0\\0\n")])
            .increment(3);
        metrics.gauge("open", &[]).set(1.5);
        metrics.buckets("seconds", &[0.1, 1.0]);
        let seconds = metrics.histogram("seconds", &[("a", "b")]);
        for value in [0.1, 0.5, 7.0] {
            seconds.record(value);
        }
        let text = metrics.render();
        let (ours, rest) = text.split_once("# HELP process_open_fds").unwrap();
        assert_eq!(
            ours,
            "# HELP open \n# TYPE open gauge\nopen 1.5\n\
             # HELP requests Requests, \\\"all\\\".\n# TYPE requests counter\n\
             requests_total{code=\"2\\\"0\\\\0\\n\"} 3\n\
             # HELP seconds \n# TYPE seconds histogram\n\
             seconds_bucket{a=\"b\",le=\"0.1\"} 1\n\
             seconds_bucket{a=\"b\",le=\"1\"} 2\n\
             seconds_bucket{a=\"b\",le=\"+Inf\"} 3\n\
             seconds_count{a=\"b\"} 3\nseconds_sum{a=\"b\"} 7.6\n"
        );
        assert!(rest.ends_with("# EOF\n"), "{rest}");
    }

    #[test]
    fn handles_and_macros_of_one_label_set_share_a_value() {
        let metrics = Metrics::default();
        let first = metrics.counter("x_total", &[("a", "1")]);
        let second = metrics.counter("x_total", &[("a", "1")]);
        first.increment(1);
        second.increment(2);
        metrics::with_local_recorder(&metrics, || {
            metrics::counter!("x_total", "a" => "1").increment(4)
        });
        assert_eq!(samples(&metrics), ["x_total{a=\"1\"} 7"]);
    }

    #[test]
    fn a_series_expires_only_when_idle_and_without_a_live_handle() {
        let metrics = Metrics::new(Limits {
            idle: Duration::from_secs(60),
            ..Limits::default()
        });
        let held = metrics.counter("x_total", &[("a", "held")]);
        metrics.counter("x_total", &[("a", "dropped")]).increment(1);
        let start = Instant::now();
        metrics.expire(start);
        assert_eq!(metrics.series(), 2, "changed a moment ago");
        metrics.expire(start + Duration::from_secs(61));
        assert_eq!(samples(&metrics), ["x_total{a=\"held\"} 0"]);
        held.increment(5);
        assert_eq!(
            samples(&metrics),
            ["x_total{a=\"held\"} 5"],
            "a live handle was detached"
        );
    }

    #[test]
    fn what_exceeds_the_bound_counts_into_one_overflow_series() {
        let metrics = Metrics::new(Limits {
            series_per_family: 2,
            ..Limits::default()
        });
        for name in ["a", "b", "c", "d", "a"] {
            metrics.counter("x_total", &[("n", name)]).increment(1);
        }
        assert_eq!(
            samples(&metrics),
            [
                "x_total{n=\"a\"} 2",
                "x_total{n=\"b\"} 1",
                "x_total{overflow=\"true\"} 2"
            ]
        );
    }

    #[test]
    fn what_is_known_only_when_asked_for_is_up_to_date_at_each_scrape() {
        let metrics = Metrics::default();
        let (gauge, asked) = (metrics.gauge("x", &[]), Arc::new(AtomicU64::new(0)));
        let counted = Arc::clone(&asked);
        metrics.before_scrape(move || {
            gauge.set(counted.fetch_add(1, Ordering::Relaxed) as f64);
        });
        assert_eq!(samples(&metrics), ["x 0"]);
        assert_eq!(samples(&metrics), ["x 1"]);
    }

    #[test]
    fn a_gauge_that_only_rises_is_exposed_as_a_counter_with_fractions() {
        let metrics = Metrics::default();
        metrics.rises("busy_seconds_total");
        metrics.gauge("busy_seconds_total", &[]).set(1.25);
        let text = metrics.render();
        assert!(
            text.contains("# TYPE busy_seconds counter\nbusy_seconds_total 1.25\n"),
            "{text}"
        );
    }

    #[test]
    fn a_name_used_as_another_kind_does_not_spoil_the_page() {
        let metrics = Metrics::default();
        metrics.counter("x_total", &[]).increment(1);
        metrics.gauge("x_total", &[("a", "b")]).set(2.0);
        assert_eq!(samples(&metrics), ["x_total 1"]);
    }
}
