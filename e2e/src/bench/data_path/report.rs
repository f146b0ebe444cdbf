// SPDX-License-Identifier: Apache-2.0
//! Results as a person reads them: a table in Markdown, which terminals show well enough, and where it goes in a file.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use super::results::{DIRECT, Results};

/// Between these the table stands in a document.
const BEGIN: &str = "<!-- data-path: written by `e2e bench data-path` -->";
const END: &str = "<!-- data-path: end -->";

/// The whole report.
pub fn markdown(results: &Results) -> String {
    let mut text = String::new();
    let machine = &results.machine;
    let _ = writeln!(
        text,
        "{} CPUs ({}), {:.0} GiB, Linux {}; {} profile; {} rounds of {} s. Of each value the median; × is the rate over that of \
         `{DIRECT}` in the same round, CPU the seconds of all proxies for a GiB or for 10,000.\n",
        machine.cpus,
        machine.processor,
        machine.memory_gib,
        machine.kernel,
        machine.profile,
        results.rounds,
        results.seconds,
    );
    if machine.profile != "release" {
        text.push_str(
            "**Not of a release build: this shows how it is measured, and nothing about speed.**\n\n",
        );
    }
    let others = || results.contestants.iter().filter(|one| one.name != DIRECT);
    let _ = write!(text, "| work | {DIRECT} |");
    for one in others() {
        let _ = write!(text, " {} |", one.name);
    }
    let _ = writeln!(text, "\n|---|---|{}", "---|".repeat(others().count()));
    for work in results.works() {
        let direct = results.cell(work, DIRECT);
        let rate = direct.map_or("-".into(), |cell| amount(cell.rate));
        let p99 = direct.and_then(|cell| cell.p99_us).map(latency);
        let p99 = p99.map_or(String::new(), |p99| format!(", p99 {p99}"));
        let _ = write!(text, "| {} ({}) | {rate}{p99} |", work.title, work.unit());
        for one in others() {
            let cell = results.cell(work, &one.name).map_or("-".into(), |cell| {
                let p99 = cell.p99_us.map(latency);
                let p99 = p99.map_or(String::new(), |p99| format!("; p99 {p99}"));
                let errors = match cell.errors {
                    0 => String::new(),
                    errors => format!("; {errors} errors"),
                };
                let (ratio, cpu, per) = (cell.ratio, cell.cpu, work.per());
                format!("{ratio:.2} ×; {cpu:.2} s/{per}{p99}{errors}")
            });
            let _ = write!(text, " {cell} |");
        }
        text.push('\n');
    }
    text.push('\n');
    for one in &results.contestants {
        let _ = writeln!(text, "- `{}`: {}", one.name, one.about);
    }
    if !results.memory.is_empty() {
        let _ = writeln!(
            text,
            "\n| idle connections | memory of both proxies before | with them | for each, on one side |\n|---|---|---|---|"
        );
    }
    for memory in &results.memory {
        let _ = writeln!(
            text,
            "| {} × {} | {:.1} MiB | {:.1} MiB | {:.2} KiB |",
            memory.contestant,
            memory.connections,
            memory.idle_mib,
            memory.open_mib,
            memory.kib_per_connection_and_side,
        );
    }
    text
}

/// The document with this report in the place of its last one.
pub fn put_into(document: &str, report: &str) -> Result<String> {
    let (before, rest) = document
        .split_once(BEGIN)
        .with_context(|| format!("the document has no line {BEGIN}"))?;
    let (_, after) = rest
        .split_once(END)
        .with_context(|| format!("the document has no line {END}"))?;
    Ok(format!(
        "{before}{BEGIN}\n\n{}\n\n{END}{after}",
        report.trim()
    ))
}

fn amount(value: f64) -> String {
    match value {
        value if value >= 1000.0 => format!("{:.1}k", value / 1000.0),
        value if value >= 100.0 => format!("{value:.0}"),
        value => format!("{value:.1}"),
    }
}

fn latency(us: f64) -> String {
    match us {
        us if us >= 1000.0 => format!("{:.1} ms", us / 1000.0),
        us => format!("{us:.0} µs"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::{results, sample};
    use super::*;

    #[test]
    fn a_row_says_rate_ratio_cpu_and_latency() {
        let samples = vec![
            sample("http-16", DIRECT, 0, 50_000.0),
            sample("http-16", "culvert", 0, 20_000.0),
        ];
        let text = markdown(&results(samples));
        let row = "| HTTP keep-alive, 16 connections (requests/s) | 50.0k, p99 100 µs | 0.40 ×; 0.50 s/10,000; p99 100 µs; 1 errors |";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("- `culvert`: about culvert"), "{text}");
        assert!(!text.contains("Not of a release build"), "{text}");
        let mut slow = results(vec![]);
        slow.machine.profile = "debug".into();
        assert!(markdown(&slow).contains("Not of a release build"));
    }

    #[test]
    fn a_report_replaces_the_last_one_and_nothing_else() {
        let document = format!("# Head\n{BEGIN}\nold\n{END}\ntail\n");
        let once = put_into(&document, "new\n").unwrap();
        assert_eq!(once, format!("# Head\n{BEGIN}\n\nnew\n\n{END}\ntail\n"));
        assert_eq!(put_into(&once, "new").unwrap(), once);
        assert!(put_into("no place", "new").is_err());
    }
}
