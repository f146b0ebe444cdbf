// SPDX-License-Identifier: Apache-2.0
//! What a waypoint costs, beside Envoy doing the same work in its place: the same client and server, the same ztunnels, and
//! between them one of the two, which takes a tunnel, goes by a header, judges the request and sends it on by tunnel.
//!
//! ```text
//!  client ─► ztunnel ═► culvert or envoy ═► ztunnel ─► server        processor time and memory: of the one in the middle
//! ```
//! Rounds alternate between the two, so that what else the machine does falls on both alike.

mod envoy;
mod ground;
mod results;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;

use self::ground::{Ground, MANY_WORTH};
use self::results::{Memory, Results, Sample};
use super::data_path::{self, load::REST};
use crate::binaries;
use crate::environment::Environment;

/// How to measure.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// Each value is the median of so many rounds
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long each of the two does each work in each round
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// So many connections at a time, each with one request after the other
    #[arg(long, value_delimiter = ',', default_value = "16,64,256,2000")]
    connections: Vec<usize>,
    /// A crowd of connections, to be measured and held for its memory; 0: none
    #[arg(long, default_value_t = 15_000)]
    crowd: usize,
    /// So many routes instead of one; 0: leave that out
    #[arg(long, default_value_t = 1000)]
    routes: usize,
    /// Envoy's program; otherwise $ENVOY, or `envoy` on the path
    #[arg(long, value_name = "PROGRAM")]
    envoy: Option<PathBuf>,
    /// Leave Envoy out
    #[arg(long, conflicts_with = "envoy")]
    no_envoy: bool,
    /// Print the raw numbers of every round, in place of the tables
    #[arg(long)]
    json: bool,
    /// Use the programs in this folder and build nothing
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
}

/// Measures and tells. Returns whether nothing went wrong on the way, and in a release build the aims are met.
pub fn run(plan: &Plan, environment: &Environment) -> Result<bool> {
    ensure!(
        plan.rounds > 0 && plan.seconds > 0.0 && !plan.connections.is_empty(),
        "there is nothing to measure"
    );
    let programs = match &plan.bin_dir {
        Some(folder) => folder.canonicalize()?,
        None => binaries::build(environment, &std::env::current_exe()?)?,
    };
    let named = plan
        .envoy
        .clone()
        .or_else(|| super::envoy::find(environment));
    let envoy = named.filter(|_| !plan.no_envoy);
    if envoy.is_none() {
        eprintln!(
            "without Envoy: no --envoy, $ENVOY names none and none is on the path, or it is not wanted"
        );
    }
    let contestants = 1 + usize::from(envoy.is_some());
    let minutes = (plan.takes(contestants).as_secs_f64() / 60.0).ceil();
    eprintln!(
        "{contestants} to be measured, {} rounds: this takes about {minutes} min",
        plan.rounds
    );
    let mut results = Results {
        machine: data_path::machine(&programs)?,
        rounds: plan.rounds,
        seconds: plan.seconds,
        crowd: plan.crowd,
        routes: plan.routes,
        samples: Vec::new(),
        memory: Vec::new(),
    };
    let mut ground = Ground::start(environment, &programs, envoy)?;
    // What was measured before something failed is told all the same: it took minutes.
    let ended = measure_all(plan, &mut ground, &mut results);
    match plan.json {
        true => println!("{}", serde_json::to_string_pretty(&results)?),
        false => print!("{}", results.markdown()),
    }
    ended?;
    Ok(results.is_sound())
}

fn measure_all(plan: &Plan, ground: &mut Ground, results: &mut Results) -> Result<()> {
    let Results {
        samples, memory, ..
    } = results;
    memory.extend(remember(ground, "idle")?);
    if plan.crowd > 0 {
        // Before anything was at work, so that it is the crowd that is seen and not what work has left.
        let held = ground.hold(plan.crowd)?.into_iter();
        memory.extend(held.map(|(contestant, bytes)| Memory {
            contestant,
            when: format!("{} connections", plan.crowd),
            bytes,
        }));
    }
    for round in 0..plan.rounds {
        for connections in &plan.connections {
            measure(plan, ground, (*connections, 1, round), samples)?;
        }
    }
    if plan.crowd > 0 {
        for round in 0..plan.rounds {
            measure(plan, ground, (plan.crowd, 1, round), samples)?;
        }
    }
    if plan.routes > 0 {
        ground.add_routes(plan.routes)?;
        memory.extend(remember(ground, &format!("{} routes", plan.routes))?);
        for round in 0..plan.rounds {
            measure(plan, ground, (MANY_WORTH, plan.routes, round), samples)?;
        }
    }
    Ok(())
}

/// How long a crowd is at work at least: its first requests alone, for which connections have to be made, take seconds.
const CROWD_SECONDS: f64 = 10.0;

/// Connections, one after the other, that are opened in a second, with their requests and without, by a slow machine.
const OPENED: f64 = 2000.0;

/// What else takes time: to start all, and to do so once more with many routes.
const START: f64 = 20.0;

impl Plan {
    /// How long so many connections are at work, in seconds.
    fn seconds(&self, connections: usize) -> f64 {
        match connections == self.crowd {
            true => self.seconds.max(CROWD_SECONDS),
            false => self.seconds,
        }
    }

    /// How long it takes to measure all, about.
    fn takes(&self, contestants: usize) -> Duration {
        let work = |connections: usize| self.seconds(connections) + connections as f64 / OPENED;
        let crowd = (self.crowd > 0).then_some(self.crowd);
        let many = (self.routes > 0).then_some(MANY_WORTH);
        let works = self.connections.iter().copied().chain(crowd).chain(many);
        let rounds = self.rounds as f64 * works.map(work).sum::<f64>();
        let held = match self.crowd {
            0 => 0.0,
            crowd => crowd as f64 / OPENED + REST.as_secs_f64(),
        };
        let starts = START * if self.routes > 0 { 2.0 } else { 1.0 };
        Duration::from_secs_f64(starts + contestants as f64 * (rounds + held))
    }
}

fn remember(ground: &Ground, when: &str) -> Result<Vec<Memory>> {
    let each = ground.contestants().into_iter();
    each.map(|contestant| {
        Ok(Memory {
            contestant: contestant.into(),
            when: when.into(),
            bytes: ground.memory(contestant)?,
        })
    })
    .collect()
}

/// One round of one work, by each of them.
fn measure(
    plan: &Plan,
    ground: &Ground,
    (connections, routes, round): (usize, usize, usize),
    samples: &mut Vec<Sample>,
) -> Result<()> {
    let contestants = ground.contestants();
    for index in 0..contestants.len() {
        // Neither is always the first.
        let contestant = contestants[(index + round) % contestants.len()];
        let seconds = plan.seconds(connections);
        let (done, processor) = ground.measure(contestant, connections, seconds)?;
        let sample = Sample {
            contestant: contestant.into(),
            connections,
            routes,
            round,
            requests: done.units,
            seconds: done.seconds,
            rate: done.units as f64 / done.seconds,
            cpu_per_10k: processor / done.units as f64 * 10_000.0,
            p50_us: done.p50_us.unwrap_or_default(),
            p99_us: done.p99_us.unwrap_or_default(),
            errors: done.errors,
        };
        eprintln!(
            "round {}, {connections} connections, {routes} routes, {contestant}: {:.0} requests/s, {:.3} s/10,000, p99 {:.0} µs, {} errors",
            round + 1,
            sample.rate,
            sample.cpu_per_10k,
            sample.p99_us,
            sample.errors
        );
        samples.push(sample);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        plan: Plan,
    }

    #[test]
    fn how_long_it_takes_follows_from_what_is_asked_for() {
        let takes = |arguments: &[&str], contestants| {
            let all = ["bench"].iter().chain(arguments);
            let command = Command::try_parse_from(all).unwrap();
            command.plan.takes(contestants).as_secs()
        };
        let one = ["--rounds", "1", "--seconds", "2", "--connections", "2000"];
        let little = [&one[..], &["--crowd", "0", "--routes", "0"]].concat();
        assert_eq!((takes(&little, 1), takes(&little, 2)), (23, 26));
        let crowd = [&one[..], &["--crowd", "16000", "--routes", "0"]].concat();
        assert_eq!(takes(&crowd, 1), 23 + 18 + 8 + 8);
        assert!(takes(&[], 2) < 20 * 60, "{}", takes(&[], 2));
    }
}
