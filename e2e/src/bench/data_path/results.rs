// SPDX-License-Identifier: Apache-2.0
//! What was measured, as it is kept in a file, and what a reader wants to know of it. Pure.
//!
//! Kept is every sample; medians are made when they are read, so that a table can be made anew from the file.

use serde::{Deserialize, Serialize};

use super::works::{WORKS, Work};

/// The contestant that all others are compared with.
pub const DIRECT: &str = "direct";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    pub machine: Machine,
    pub rounds: usize,
    pub seconds: f64,
    /// In the order of the table, the one without a proxy first.
    pub contestants: Vec<Contestant>,
    pub samples: Vec<Sample>,
    pub memory: Vec<Memory>,
}

/// Where it was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub processor: String,
    pub cpus: usize,
    pub memory_gib: f64,
    pub kernel: String,
    /// Of the programs.
    pub profile: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contestant {
    pub name: String,
    /// What it is, for the table's head.
    pub about: String,
}

/// One contestant's share of one round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    pub work: String,
    pub contestant: String,
    pub round: usize,
    /// In the unit of the work.
    pub rate: f64,
    /// Seconds of all proxies of the contestant for a GiB, or for 10,000.
    pub cpu: f64,
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    pub errors: u64,
}

/// What both proxies of a contestant hold for connections on which nothing happens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    pub contestant: String,
    pub connections: u64,
    /// Of both before, and with so many open.
    pub idle_mib: f64,
    pub open_mib: f64,
    pub kib_per_connection_and_side: f64,
}

/// A contestant's part of a row, each value a median over the rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cell {
    pub rate: f64,
    /// Of the rate without a proxy in the same round.
    pub ratio: f64,
    pub cpu: f64,
    pub p99_us: Option<f64>,
    pub errors: u64,
}

impl Results {
    /// The rows that were measured.
    pub fn works(&self) -> impl Iterator<Item = &'static Work> {
        let measured = |work: &&Work| self.samples.iter().any(|sample| sample.work == work.id);
        WORKS.iter().filter(measured)
    }

    /// None where the contestant does no such work.
    pub fn cell(&self, work: &Work, contestant: &str) -> Option<Cell> {
        let of = |name: &str| {
            let wanted = |sample: &&Sample| sample.work == work.id && sample.contestant == name;
            let mut found: Vec<&Sample> = self.samples.iter().filter(wanted).collect();
            found.sort_by_key(|sample| sample.round);
            found
        };
        let (own, direct) = (of(contestant), of(DIRECT));
        let rate = median(own.iter().map(|sample| sample.rate))?;
        let pairs = own.iter().filter_map(|sample| {
            let same = |other: &&&Sample| other.round == sample.round;
            let base = direct.iter().find(same)?;
            (base.rate > 0.0).then(|| sample.rate / base.rate)
        });
        Some(Cell {
            rate,
            ratio: median(pairs)?,
            cpu: median(own.iter().map(|sample| sample.cpu))?,
            p99_us: median(own.iter().filter_map(|sample| sample.p99_us)),
            errors: own.iter().map(|sample| sample.errors).sum(),
        })
    }
}

/// Of an even number the lower of the two in the middle: it was measured.
pub(in crate::bench) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().checked_sub(1)? / 2).copied()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::bench::data_path) fn sample(
        work: &str,
        contestant: &str,
        round: usize,
        rate: f64,
    ) -> Sample {
        Sample {
            work: work.into(),
            contestant: contestant.into(),
            round,
            rate,
            cpu: 0.5,
            p50_us: None,
            p99_us: Some(100.0),
            errors: 1,
        }
    }

    pub(in crate::bench::data_path) fn results(samples: Vec<Sample>) -> Results {
        let contestant = |name: &str| Contestant {
            name: name.into(),
            about: format!("about {name}"),
        };
        Results {
            machine: Machine {
                processor: "Some <CPU> & more".into(),
                cpus: 2,
                memory_gib: 24.0,
                kernel: "6.18".into(),
                profile: "release".into(),
            },
            rounds: 3,
            seconds: 1.0,
            contestants: vec![contestant(DIRECT), contestant("culvert")],
            samples,
            memory: vec![],
        }
    }

    #[test]
    fn ratios_are_made_within_a_round_before_the_median() {
        let rates = [(10.0, 5.0), (20.0, 4.0), (40.0, 12.0)];
        let samples = rates.iter().enumerate().flat_map(|(round, (direct, own))| {
            [
                sample("ping-1", DIRECT, round, *direct),
                sample("ping-1", "culvert", round, *own),
            ]
        });
        let results = results(samples.collect());
        let work = Work::named("ping-1").unwrap();
        let cell = results.cell(work, "culvert").unwrap();
        // 0.5, 0.2, 0.3: not the ratio of the medians, which is 0.25.
        assert_eq!((cell.rate, cell.ratio, cell.errors), (5.0, 0.3, 3));
        assert_eq!(results.cell(work, "nobody"), None);
        assert_eq!(results.works().count(), 1);
    }
}
