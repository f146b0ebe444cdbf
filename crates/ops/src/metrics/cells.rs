// SPDX-License-Identifier: Apache-2.0
//! The values behind the handles: atomics, nothing else.

use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{CounterFn, GaugeFn, HistogramFn};

#[derive(Debug, Default)]
pub(super) struct CounterCell(pub(super) AtomicU64);

impl CounterFn for CounterCell {
    fn increment(&self, value: u64) {
        self.0.fetch_add(value, Ordering::Relaxed);
    }

    fn absolute(&self, value: u64) {
        self.0.fetch_max(value, Ordering::Relaxed);
    }
}

/// An f64 as its bits.
#[derive(Debug, Default)]
pub(super) struct GaugeCell(pub(super) AtomicU64);

impl GaugeCell {
    fn update(&self, change: impl Fn(f64) -> f64) {
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |bits| {
                Some(change(f64::from_bits(bits)).to_bits())
            });
    }
}

impl GaugeFn for GaugeCell {
    fn increment(&self, value: f64) {
        self.update(|old| old + value);
    }

    fn decrement(&self, value: f64) {
        self.update(|old| old - value);
    }

    fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(super) struct HistogramCell {
    pub(super) bounds: &'static [f64],
    /// One more than `bounds`: the last is +Inf. Not cumulative.
    pub(super) counts: Vec<AtomicU64>,
    pub(super) sum: GaugeCell,
}

impl HistogramCell {
    pub(super) fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: GaugeCell::default(),
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.counts.iter().map(|c| c.load(Ordering::Relaxed)).sum()
    }
}

impl HistogramFn for HistogramCell {
    fn record(&self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum.increment(value);
    }
}
