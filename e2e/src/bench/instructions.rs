// SPDX-License-Identifier: Apache-2.0
//! How many instructions the data path's pure work takes, counted by callgrind and compared with figures on file.
//!
//! Times say little on a shared machine; instructions are nearly the same every time, so that a few per cent more are a
//! change of ours. Each piece of work is run a few times and many times, and the difference counts. Left out is what
//! chooses its code by the processor it finds: the ciphers of AWS-LC, and libraries of the system.
//!
//! The programs are those of the gate's own tests (profile dev, optimised a little): nothing is built for this alone.

mod callgrind;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::environment::Environment;

const WORKSPACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// The figures, beside the other results.
const FIGURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/bench/instructions.json");

/// Programs that do the work: examples of ztunnel and of waypoint.
const PROGRAMS: [&str; 2] = ["instructions", "waypoint_instructions"];

/// Each work with the program that does it and the two numbers of times.
const CASES: [(&str, &str, u64, u64); 10] = [
    ("record-16k", PROGRAMS[0], 4, 36),
    ("record-64", PROGRAMS[0], 50, 550),
    ("frames-64", PROGRAMS[0], 5, 105),
    ("connect-request", PROGRAMS[0], 10, 310),
    ("route", PROGRAMS[0], 30, 630),
    ("authorize", PROGRAMS[0], 30, 630),
    ("remember", PROGRAMS[0], 100, 2100),
    ("request-1", PROGRAMS[1], 30, 630),
    ("request-1000", PROGRAMS[1], 30, 630),
    ("remember-request", PROGRAMS[1], 100, 2100),
];

/// How to compare.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// Per cent by which a figure may be off, either way
    #[arg(long, default_value_t = 5.0)]
    tolerance: f64,
    /// Take what is counted for the figures from now on
    #[arg(long)]
    accept: bool,
    /// The figures
    #[arg(long, value_name = "FILE", default_value = FIGURES)]
    figures: PathBuf,
}

/// What the work took, by name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Figures {
    /// The cargo that came with the compiler. Another one makes other code: a reason for differences that nobody made.
    compiler: String,
    instructions: BTreeMap<String, u64>,
}

/// How a figure compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Same,
    /// A regression.
    More,
    /// The figure on file is no guard any more.
    Less,
    /// There is no figure on file.
    New,
    /// It is on file and was not counted.
    Gone,
}

impl Verdict {
    fn of(before: Option<u64>, now: Option<u64>, tolerance: f64) -> Self {
        let (before, now) = match (before, now) {
            (Some(before), Some(now)) => (before as f64, now as f64),
            (None, _) => return Self::New,
            (_, None) => return Self::Gone,
        };
        let change = (now - before) / before * 100.0;
        match change {
            change if change > tolerance => Self::More,
            change if change < -tolerance => Self::Less,
            _ => Self::Same,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Same => "",
            Self::More => "MORE: a regression, or the price of something: then --accept it",
            Self::Less => "LESS: well done; --accept it, so that it stays so",
            Self::New => "NEW: not on file; --accept it",
            Self::Gone => "GONE: on file and not counted; --accept that",
        }
    }
}

/// Counts and compares. Returns whether every figure is as on file.
pub fn run(plan: &Plan, environment: &Environment) -> Result<bool> {
    let programs = build(environment)?;
    let mut counted = BTreeMap::new();
    for (case, program, few, many) in CASES {
        let program = programs.get(program);
        let program = program.with_context(|| format!("cargo names no program for {case}"))?;
        let (few_cost, many_cost) = (count(program, case, few)?, count(program, case, many)?);
        let difference = many_cost.checked_sub(few_cost);
        let difference = difference.with_context(|| format!("{case}: more work took less"))?;
        counted.insert(case.to_owned(), difference / (many - few));
    }
    let now = Figures {
        compiler: compiler(environment)?,
        instructions: counted,
    };
    if plan.accept {
        let text = serde_json::to_string_pretty(&now)? + "\n";
        std::fs::write(&plan.figures, text)
            .with_context(|| format!("cannot write {}", plan.figures.display()))?;
    }
    let before = read(&plan.figures)?;
    if before.compiler != now.compiler {
        println!(
            "The figures are of {}, this is {}: other code from the same sources.\n",
            before.compiler, now.compiler
        );
    }
    let (text, good) = table(&before, &now, plan.tolerance);
    print!("{text}");
    Ok(good)
}

fn read(file: &Path) -> Result<Figures> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("cannot read the figures in {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} holds no figures", file.display()))
}

fn table(before: &Figures, now: &Figures, tolerance: f64) -> (String, bool) {
    let mut text = String::from("| work | on file | now | change | |\n|---|---|---|---|---|\n");
    let mut good = true;
    let names = before.instructions.keys().chain(now.instructions.keys());
    let names: std::collections::BTreeSet<_> = names.collect();
    for name in names {
        let (old, new) = (
            before.instructions.get(name).copied(),
            now.instructions.get(name).copied(),
        );
        let verdict = Verdict::of(old, new, tolerance);
        good &= verdict == Verdict::Same;
        let number = |number: Option<u64>| number.map_or("-".into(), |number| number.to_string());
        let change = old.zip(new).map_or("-".into(), |(old, new)| {
            format!("{:+.1} %", (new as f64 - old as f64) / old as f64 * 100.0)
        });
        text.push_str(&format!(
            "| {name} | {} | {} | {change} | {} |\n",
            number(old),
            number(new),
            verdict.words()
        ));
    }
    (text, good)
}

/// Builds the programs that do the work, with the features of the whole workspace, as the tests have been.
fn build(environment: &Environment) -> Result<BTreeMap<String, PathBuf>> {
    let mut command = Command::new(environment.cargo()?);
    command
        .current_dir(WORKSPACE)
        .args(["build", "--workspace"])
        .args(PROGRAMS.map(|program| format!("--example={program}")))
        .args(["--message-format", "json-render-diagnostics", "--quiet"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    let output = command.output().context("cannot run cargo")?;
    ensure!(output.status.success(), "building the work failed");
    let messages = String::from_utf8_lossy(&output.stdout);
    let programs = messages.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let name = message["target"]["name"].as_str()?.to_owned();
        let program = message["executable"].as_str()?;
        Some((name, PathBuf::from(program)))
    });
    Ok(programs.collect())
}

fn compiler(environment: &Environment) -> Result<String> {
    // Its version goes with the compiler's, which need not be on the path.
    let output = Command::new(environment.cargo()?).arg("--version").output();
    let version = output.context("cannot run cargo")?.stdout;
    let text = String::from_utf8_lossy(&version);
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

/// The instructions of a whole run that are ours.
fn count(program: &Path, case: &str, times: u64) -> Result<u64> {
    let folder = tempfile::tempdir().context("a folder for callgrind")?;
    let out = folder.path().join("callgrind.out");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program)
        .args([case, &times.to_string()])
        .stdin(Stdio::null())
        .output()
        .context("cannot run valgrind; Debian has it as the package valgrind")?;
    ensure!(
        output.status.success(),
        "{case} × {times} under callgrind ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let text = std::fs::read_to_string(&out).context("callgrind left no counts")?;
    let costs = callgrind::costs(&text).with_context(|| format!("counts of {case}"))?;
    let program = program.to_string_lossy();
    let ours = costs
        .iter()
        .filter(|(place, _)| place.object == program && !place.file.contains("/aws-lc-sys-"));
    let total = ours.map(|(_, cost)| cost).sum();
    ensure!(total > 0, "callgrind saw nothing of {program}");
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(all: &[(&str, u64)]) -> Figures {
        let all = all.iter().map(|(name, count)| ((*name).to_owned(), *count));
        Figures {
            compiler: "rustc".into(),
            instructions: all.collect(),
        }
    }

    #[test]
    fn whatever_is_not_as_on_file_is_said_and_fails() {
        for (old, new, verdict) in [
            (Some(1000), Some(1050), Verdict::Same),
            (Some(1000), Some(950), Verdict::Same),
            (Some(1000), Some(1051), Verdict::More),
            (Some(1000), Some(949), Verdict::Less),
            (None, Some(1), Verdict::New),
            (Some(1), None, Verdict::Gone),
        ] {
            assert_eq!(Verdict::of(old, new, 5.0), verdict, "{old:?} {new:?}");
        }
        let (text, good) = table(
            &figures(&[("route", 100)]),
            &figures(&[("route", 120)]),
            5.0,
        );
        assert!(
            !good && text.contains("| route | 100 | 120 | +20.0 % | MORE"),
            "{text}"
        );
        assert!(table(&figures(&[("a", 1)]), &figures(&[("a", 1)]), 5.0).1);
        assert!(!table(&figures(&[("a", 1)]), &figures(&[]), 5.0).1);
    }

    #[test]
    fn the_figures_on_file_are_of_the_work_there_is() {
        let figures = read(Path::new(FIGURES)).unwrap();
        let names: Vec<_> = figures.instructions.keys().map(String::as_str).collect();
        let mut cases = CASES.map(|(name, ..)| name);
        cases.sort_unstable();
        assert_eq!(names, cases);
    }
}
