// SPDX-License-Identifier: Apache-2.0
//! What was measured, and what a reader wants to know of it. Pure.

use std::fmt::Write as _;

use serde::Serialize;

use crate::bench::data_path::results::{Machine, median};

pub(super) const OURS: &str = "culvert";
pub(super) const ENVOY: &str = "envoy";

/// What a crowd is held against: the most connections up to here.
const SOME: usize = 256;

#[derive(Debug, Serialize)]
pub(super) struct Results {
    pub(super) machine: Machine,
    pub(super) rounds: usize,
    pub(super) seconds: f64,
    pub(super) crowd: usize,
    pub(super) routes: usize,
    pub(super) samples: Vec<Sample>,
    pub(super) memory: Vec<Memory>,
}

/// One contestant's share of one round.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Sample {
    pub(super) contestant: String,
    pub(super) connections: usize,
    pub(super) routes: usize,
    pub(super) round: usize,
    pub(super) requests: u64,
    pub(super) seconds: f64,
    /// Requests a second.
    pub(super) rate: f64,
    /// Seconds of the contestant's processor time for 10,000 requests.
    pub(super) cpu_per_10k: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) errors: u64,
}

/// What a contestant holds.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Memory {
    pub(super) contestant: String,
    pub(super) when: String,
    pub(super) bytes: u64,
}

/// Something that is to be, and whether it is.
struct Aim {
    what: String,
    value: f64,
    holds: bool,
}

impl Results {
    /// Whether nothing of ours failed, and where speed means something, the aims are met.
    pub(super) fn is_sound(&self) -> bool {
        let own = self.samples.iter();
        let own = own.filter(|sample| sample.contestant == OURS);
        let errors: u64 = own.map(|sample| sample.errors).sum();
        let met = self.aims().iter().all(|aim| aim.holds);
        errors == 0 && (met || self.machine.profile != "release")
    }

    /// Each work that was measured: connections and routes.
    fn works(&self) -> Vec<(usize, usize)> {
        let mut works = Vec::new();
        for sample in &self.samples {
            let work = (sample.connections, sample.routes);
            if !works.contains(&work) {
                works.push(work);
            }
        }
        works
    }

    /// The median over the rounds of one value of a contestant's.
    fn of(
        &self,
        contestant: &str,
        (connections, routes): (usize, usize),
        value: impl Fn(&Sample) -> f64,
    ) -> Option<f64> {
        let own = self.samples.iter().filter(|sample| {
            sample.contestant == contestant
                && (sample.connections, sample.routes) == (connections, routes)
        });
        median(own.map(value))
    }

    fn memory(&self, contestant: &str, when: &str) -> Option<f64> {
        let mut all = self.memory.iter();
        let found = all.find(|memory| memory.contestant == contestant && memory.when == when);
        found.map(|memory| memory.bytes as f64)
    }

    fn aims(&self) -> Vec<Aim> {
        let mut aims = Vec::new();
        let mut add = |what: String, value: Option<f64>, holds: fn(f64) -> bool| {
            aims.extend(value.map(|value| Aim {
                what,
                value,
                holds: holds(value),
            }));
        };
        let over = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a / b);
        for work in self.works() {
            let (connections, routes) = work;
            let title = format!("{connections} connections, {routes} routes");
            let cpu = |one: &str| self.of(one, work, |sample| sample.cpu_per_10k);
            add(
                format!("requests for a CPU second, of Envoy's, at least 2 ({title})"),
                over(cpu(ENVOY), cpu(OURS)),
                |value| value >= 2.0,
            );
            let p99 = |one: &str| self.of(one, work, |sample| sample.p99_us);
            add(
                format!("p99, of Envoy's, below 1 ({title})"),
                over(p99(OURS), p99(ENVOY)),
                |value| value < 1.0,
            );
        }
        let mut whens: Vec<&str> = Vec::new();
        for memory in &self.memory {
            if !whens.contains(&&*memory.when) {
                whens.push(&memory.when);
            }
        }
        for when in whens {
            add(
                format!("memory, of Envoy's, at most 0.5 ({when})"),
                over(self.memory(OURS, when), self.memory(ENVOY, when)),
                |value| value <= 0.5,
            );
        }
        let rate = |work| self.of(OURS, work, |sample| sample.rate);
        let some = self.works().into_iter();
        let some = some.filter(|(connections, routes)| *connections <= SOME && *routes == 1);
        if let Some(some) = some.max_by_key(|(connections, _)| *connections) {
            add(
                format!(
                    "rate at {} connections, of that at {}, at least 0.8",
                    self.crowd, some.0
                ),
                over(rate((self.crowd, 1)), rate(some)),
                |value| value >= 0.8,
            );
        }
        for (connections, routes) in self.works().into_iter().filter(|(_, routes)| *routes != 1) {
            add(
                format!(
                    "rate with {routes} routes, of that with one, at least 0.95 ({connections} connections)"
                ),
                over(rate((connections, routes)), rate((connections, 1))),
                |value| value >= 0.95,
            );
        }
        aims
    }

    /// Tables in Markdown, which terminals show well enough.
    pub(super) fn markdown(&self) -> String {
        let machine = &self.machine;
        let mut text = format!(
            "{} CPUs ({}), {:.0} GiB, Linux {}; {} profile; medians of {} rounds of {} s.\n\n",
            machine.cpus,
            machine.processor,
            machine.memory_gib,
            machine.kernel,
            machine.profile,
            self.rounds,
            self.seconds
        );
        if machine.profile != "release" {
            text.push_str("**Not of a release build: this shows how it is measured, and nothing about speed.**\n\n");
        }
        text.push_str("| connections | routes | | requests/s | CPU for 10,000 | p50 | p99 | errors |\n|---|---|---|---|---|---|---|---|\n");
        for work in self.works() {
            for one in [OURS, ENVOY] {
                let of = |value: fn(&Sample) -> f64| self.of(one, work, value);
                let Some(rate) = of(|sample| sample.rate) else {
                    continue;
                };
                let _ = writeln!(
                    text,
                    "| {} | {} | {one} | {rate:.0} | {:.3} s | {:.0} µs | {:.0} µs | {:.0} |",
                    work.0,
                    work.1,
                    of(|sample| sample.cpu_per_10k).unwrap_or_default(),
                    of(|sample| sample.p50_us).unwrap_or_default(),
                    of(|sample| sample.p99_us).unwrap_or_default(),
                    of(|sample| sample.errors as f64).unwrap_or_default(),
                );
            }
        }
        text.push_str("\n| memory | | |\n|---|---|---|\n");
        for memory in &self.memory {
            let mib = memory.bytes as f64 / f64::from(1 << 20);
            let _ = writeln!(
                text,
                "| {} | {} | {mib:.1} MiB |",
                memory.when, memory.contestant
            );
        }
        text.push('\n');
        for Aim { what, value, holds } in self.aims() {
            let mark = if holds { "met" } else { "missed" };
            let _ = writeln!(text, "- {what}: {value:.2}, {mark}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(contestant: &str, (connections, routes): (usize, usize), rate: f64) -> Sample {
        Sample {
            contestant: contestant.into(),
            connections,
            routes,
            round: 0,
            requests: 1,
            seconds: 1.0,
            rate,
            cpu_per_10k: 1000.0 / rate,
            p50_us: 1.0,
            p99_us: 1e6 / rate,
            errors: 0,
        }
    }

    fn results(profile: &str, crowd_rate: f64) -> Results {
        let memory = |contestant: &str, bytes| Memory {
            contestant: contestant.into(),
            when: "idle".into(),
            bytes,
        };
        Results {
            machine: Machine {
                processor: "p".into(),
                cpus: 2,
                memory_gib: 1.0,
                kernel: "k".into(),
                profile: profile.into(),
            },
            rounds: 1,
            seconds: 1.0,
            crowd: 15_000,
            routes: 1000,
            samples: vec![
                sample(OURS, (256, 1), 2000.0),
                sample(OURS, (2000, 1), 1900.0),
                sample(ENVOY, (256, 1), 1000.0),
                sample(OURS, (15_000, 1), crowd_rate),
                sample(OURS, (256, 1000), 1950.0),
            ],
            memory: vec![memory(OURS, 5), memory(ENVOY, 10)],
        }
    }

    #[test]
    fn aims_are_held_against_the_same_run_and_count_in_release_only() {
        let met = results("release", 1700.0);
        assert_eq!(met.aims().len(), 5);
        assert!(met.is_sound(), "{}", met.markdown());
        let missed = results("release", 1500.0);
        assert!(!missed.is_sound());
        assert!(
            missed.markdown().contains("at least 0.8: 0.75, missed"),
            "{}",
            missed.markdown()
        );
        assert!(results("debug", 1500.0).is_sound());
        let mut failed = results("debug", 1700.0);
        failed.samples[0].errors = 1;
        assert!(!failed.is_sound());
    }
}
