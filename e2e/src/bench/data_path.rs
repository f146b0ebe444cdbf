// SPDX-License-Identifier: Apache-2.0
//! What the data path costs: the same work without any proxy, through ours, and through others, side by side in the lab.
//!
//! ```text
//!  for each round ─► for each work ─► for each contestant, in another order each time ─► rate, latency, processor time
//!  then, connections on which nothing happens ─► memory
//! ```
//! Rates are compared within a round, so that what else the machine does falls on all alike.

mod envoy;
pub(super) mod ground;
pub mod load;
pub mod plot;
pub mod report;
pub mod results;
pub mod works;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use self::ground::{Ground, Runner};
use self::results::{Machine, Memory, Results, Sample};
use self::works::{WORKS, Work};
use crate::binaries;
use crate::cli::Output;
use crate::environment::Environment;

/// How to measure, and where to.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// Each value is the median of so many rounds
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long each contestant does each work in each round
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// These works only, by name
    #[arg(long, value_delimiter = ',', value_name = "WORK")]
    works: Vec<String>,
    /// Compare with this program as well, in ztunnel's place; may be given several times
    #[arg(long, value_name = "PROGRAM")]
    ztunnel: Vec<PathBuf>,
    /// Leave Envoy out, even if $ENVOY names it or it is on the path
    #[arg(long)]
    no_envoy: bool,
    /// Connections that are held for their memory, of one pod (a proxy takes a quarter of its descriptors of each); 0: none
    #[arg(long, default_value_t = 2000)]
    idle: usize,
    /// How to print what came of it
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    /// Keep the results in this file, as JSON
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Measure nothing: read results from this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["save", "rounds", "works", "ztunnel"])]
    from: Option<PathBuf>,
    /// Put the table into this document, between its marks
    #[arg(long, value_name = "FILE")]
    document: Option<PathBuf>,
    /// Draw the ratios into this file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Use the programs in this folder and build nothing
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
}

/// Measures, or reads what was measured, and tells. Returns whether nothing went wrong on the way.
pub fn run(plan: &Plan, environment: &Environment) -> Result<bool> {
    let results = match &plan.from {
        Some(file) => {
            let text = std::fs::read_to_string(file)
                .with_context(|| format!("cannot read {}", file.display()))?;
            serde_json::from_str(&text)
                .with_context(|| format!("{} holds no results", file.display()))?
        }
        None => measure(plan, environment)?,
    };
    if let Some(file) = &plan.save {
        write(file, &(serde_json::to_string_pretty(&results)? + "\n"))?;
    }
    if let Some(file) = &plan.plot {
        write(file, &plot::svg(&results))?;
    }
    let report = report::markdown(&results);
    if let Some(file) = &plan.document {
        let document = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read {}", file.display()))?;
        let document = report::put_into(&document, &report);
        write(file, &document.with_context(|| file.display().to_string())?)?;
    }
    match plan.output {
        Output::Table => print!("{report}"),
        Output::Json => println!("{}", serde_json::to_string_pretty(&results)?),
    }
    Ok(results.samples.iter().all(|sample| sample.errors == 0))
}

fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn measure(plan: &Plan, environment: &Environment) -> Result<Results> {
    ensure!(
        plan.rounds > 0 && plan.seconds > 0.0,
        "there is nothing to measure"
    );
    let works = chosen(&plan.works)?;
    let programs = match &plan.bin_dir {
        Some(folder) => folder.canonicalize()?,
        None => binaries::build(environment, &std::env::current_exe()?)?,
    };
    let mut grounds = vec![Ground::start(
        environment,
        "culvert",
        &programs,
        &programs.join("ztunnel"),
    )?];
    for (number, program) in plan.ztunnel.iter().enumerate() {
        let name = format!("other{number}");
        let program = program
            .canonicalize()
            .with_context(|| format!("--ztunnel {}", program.display()))?;
        grounds.push(Ground::start(environment, &name, &programs, &program)?);
    }
    let envoy = super::envoy::find(environment).filter(|_| !plan.no_envoy);
    if envoy.is_none() {
        eprintln!("without Envoy: $ENVOY names none and none is on the path, or it is not wanted");
    }
    let mut runners = Runner::of_ours(&grounds, envoy.as_deref())?;
    for (number, program) in plan.ztunnel.iter().enumerate() {
        let name = ground::name_of(program);
        let taken = runners.iter().any(|runner| runner.about.name == name);
        let name = match taken || name == "ztunnel" {
            true => format!("{name}-{}", number + 2),
            false => name,
        };
        runners.push(Runner::of_other(&grounds, number + 1, &name, program)?);
    }
    for runner in &runners {
        runner.warm(&grounds)?;
    }
    let mut samples = Vec::new();
    for round in 0..plan.rounds {
        for work in &works {
            for index in 0..runners.len() {
                // No contestant is always the first.
                let runner = &runners[(index + round) % runners.len()];
                if !runner.does(work) {
                    continue;
                }
                let sample = sample(runner, &grounds, work, round, plan.seconds)?;
                eprintln!(
                    "round {}, {}, {}: {:.2} {}, {:.3} s/{}",
                    round + 1,
                    work.id,
                    sample.contestant,
                    sample.rate,
                    work.unit(),
                    sample.cpu,
                    work.per()
                );
                samples.push(sample);
            }
        }
    }
    let mut memory = Vec::new();
    if plan.idle > 0 {
        for runner in runners.iter().filter(|runner| runner.is_node_proxy()) {
            memory.push(remember(runner, &grounds, plan.idle)?);
        }
    }
    Ok(Results {
        machine: machine(&programs)?,
        rounds: plan.rounds,
        seconds: plan.seconds,
        contestants: runners.iter().map(|runner| runner.about.clone()).collect(),
        samples,
        memory,
    })
}

fn chosen(names: &[String]) -> Result<Vec<&'static Work>> {
    if names.is_empty() {
        return Ok(WORKS.iter().collect());
    }
    let find = |name: &String| {
        Work::named(name).with_context(|| {
            let all: Vec<_> = WORKS.iter().map(|work| work.id).collect();
            format!("there is no work {name:?}; there are {}", all.join(", "))
        })
    };
    names.iter().map(find).collect()
}

fn sample(
    runner: &Runner,
    grounds: &[Ground],
    work: &Work,
    round: usize,
    seconds: f64,
) -> Result<Sample> {
    let name = &runner.about.name;
    let (done, processor) = runner
        .measure(grounds, work, seconds)
        .with_context(|| format!("{} by {name}", work.id))?;
    Ok(Sample {
        work: work.id.into(),
        contestant: name.clone(),
        round,
        rate: work.rate(done.units, done.seconds),
        cpu: processor / work.portions(done.units),
        p50_us: done.p50_us,
        p99_us: done.p99_us,
        errors: done.errors,
    })
}

fn remember(runner: &Runner, grounds: &[Ground], connections: usize) -> Result<Memory> {
    let memory = || grounds[runner.ground].memory();
    let before = memory()?;
    let held = runner.hold(grounds, connections)?;
    let open = memory()?;
    drop(held);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let more = open.saturating_sub(before) as f64;
    Ok(Memory {
        contestant: runner.about.name.clone(),
        connections: connections as u64,
        idle_mib: mib(before),
        open_mib: mib(open),
        kib_per_connection_and_side: more / 1024.0 / connections as f64 / 2.0,
    })
}

pub(super) fn machine(programs: &Path) -> Result<Machine> {
    let processors = std::fs::read_to_string("/proc/cpuinfo").context("/proc/cpuinfo")?;
    let named = processors
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let memory = std::fs::read_to_string("/proc/meminfo").context("/proc/meminfo")?;
    let kib: f64 = memory
        .split_whitespace()
        .nth(1)
        .and_then(|number| number.parse().ok())
        .context("/proc/meminfo begins with the machine's memory")?;
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").context("osrelease")?;
    let profile = programs.file_name().and_then(|name| name.to_str());
    Ok(Machine {
        processor: named.map_or("unnamed", |(_, name)| name.trim()).into(),
        cpus: std::thread::available_parallelism()?.get(),
        memory_gib: kib / f64::from(1 << 20),
        // What distributions and hosters append says nothing to others.
        kernel: kernel.trim().split('-').next().unwrap_or_default().into(),
        profile: profile.unwrap_or("unknown").into(),
    })
}
