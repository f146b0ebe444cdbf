// SPDX-License-Identifier: Apache-2.0
//! The exposition: families as OpenMetrics text.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::cells::HistogramCell;
use super::{Cell, Family, Kind};

pub(super) fn escape(out: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
}

pub(super) fn render_family(out: &mut String, name: &str, family: &Family) {
    let Some(first) = family.series.values().next() else {
        return;
    };
    let kind = first.cell.kind();
    let (type_name, family_name) = match kind {
        Kind::Counter => ("counter", name.strip_suffix("_total").unwrap_or(name)),
        Kind::Gauge if family.rises => ("counter", name.strip_suffix("_total").unwrap_or(name)),
        Kind::Gauge => ("gauge", name),
        Kind::Histogram => ("histogram", name),
    };
    let _ = write!(out, "# HELP {family_name} ");
    escape(out, &family.help);
    let _ = writeln!(out, "\n# TYPE {family_name} {type_name}");
    let mut series: Vec<_> = family.series.iter().collect();
    series.sort_by_key(|(labels, _)| Arc::clone(labels));
    for (labels, series) in series {
        let braced = if labels.is_empty() {
            String::new()
        } else {
            format!("{{{labels}}}")
        };
        match &series.cell {
            Cell::Counter(cell) => {
                let value = cell.0.load(Ordering::Relaxed);
                let _ = writeln!(out, "{family_name}_total{braced} {value}");
            }
            Cell::Gauge(cell) => {
                let value = f64::from_bits(cell.0.load(Ordering::Relaxed));
                let total = if family.rises { "_total" } else { "" };
                let _ = writeln!(out, "{family_name}{total}{braced} {value}");
            }
            Cell::Histogram(cell) => render_histogram(out, family_name, labels, &braced, cell),
        }
    }
}

fn render_histogram(
    out: &mut String,
    name: &str,
    labels: &str,
    braced: &str,
    cell: &HistogramCell,
) {
    let comma = if labels.is_empty() { "" } else { "," };
    let mut total = 0;
    for (i, count) in cell.counts.iter().enumerate() {
        total += count.load(Ordering::Relaxed);
        let bound = match cell.bounds.get(i) {
            Some(bound) => bound.to_string(),
            None => "+Inf".to_owned(),
        };
        let _ = writeln!(
            out,
            "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {total}"
        );
    }
    let sum = f64::from_bits(cell.sum.0.load(Ordering::Relaxed));
    let _ = writeln!(
        out,
        "{name}_count{braced} {total}\n{name}_sum{braced} {sum}"
    );
}

/// What every process exposes about itself; read from /proc at the moment of the scrape.
pub(super) fn render_process(out: &mut String) {
    let open = std::fs::read_dir("/proc/self/fd").map(|dir| dir.count().saturating_sub(1));
    if let Ok(open) = open {
        let _ = writeln!(
            out,
            "# HELP process_open_fds Number of open file descriptors.\n\
             # TYPE process_open_fds gauge\nprocess_open_fds {open}"
        );
    }
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let soft = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    if let Some(soft) = soft {
        let _ = writeln!(
            out,
            "# HELP process_max_fds Soft limit of open file descriptors.\n\
             # TYPE process_max_fds gauge\nprocess_max_fds {soft}"
        );
    }
}
