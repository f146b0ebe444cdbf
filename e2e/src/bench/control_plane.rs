// SPDX-License-Identifier: Apache-2.0
//! What a cluster of many pods costs the control plane, from the outside: the real program over a folder of manifests,
//! and clients that speak to it as ztunnels do.
//!
//! ```text
//!  files ─► istiod-lite starts ─► first client holds all ─► many clients hold all
//!                                   one pod's file changes ─► the last of them has the push       (several times)
//!                                   all come back, listing what they hold ─► nothing is sent again
//! ```

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde::Serialize;
use tokio::task::JoinSet;

use super::api_server;
use super::files::{Files, Layout, Size};
use crate::binaries;
use crate::environment::Environment;
use crate::plane::client::{Client, Clients, Held};
use crate::plane::{ControlPlane, Source};

/// A change of one pod has to be at the last client within this.
const MOST_PUSH: Duration = Duration::from_millis(100);
/// Memory for each pod, once the state is complete.
const MOST_KIB_PER_POD: f64 = 10.0;
/// Changes of one pod in each run.
pub(super) const CHANGES: usize = 5;

/// How to measure.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// Sizes of the cluster
    #[arg(long, value_delimiter = ',', default_value = "10000,50000")]
    pub(super) pods: Vec<usize>,
    /// Clients that are connected at once
    #[arg(long, default_value_t = 100)]
    pub(super) clients: usize,
    /// Each value is the median of so many runs
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Over a real API server instead of a folder, with objects that are put there; each value is of one run
    #[arg(long)]
    api_server: bool,
    /// Services there
    #[arg(long, default_value_t = 2000, requires = "api_server")]
    pub(super) services: usize,
    /// Policies there
    #[arg(long, default_value_t = 500, requires = "api_server")]
    pub(super) policies: usize,
    /// Pods that others take the places of there
    #[arg(long, default_value_t = 1000, requires = "api_server")]
    pub(super) replaced: usize,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    /// Use the programs in this folder and build nothing
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
}

/// What one size of cluster came to; times in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Row {
    pub pods: usize,
    /// From the start of the program until it has read the cluster.
    pub ready: f64,
    /// From the start of the program until its first client holds everything.
    pub first_state: f64,
    /// Resident memory then.
    pub kib_per_pod: f64,
    /// Until all clients hold everything, and resident memory at its highest.
    pub all_clients: f64,
    pub peak_mib: f64,
    /// From the change of a pod's own file until the last client has it.
    pub push: f64,
    /// The same where all pods are in one file.
    pub push_one_file: f64,
    /// Until all clients that come back are answered, and what they were sent again.
    pub reconnect: f64,
    pub sent_again: usize,
}

impl Row {
    fn holds(&self) -> bool {
        let most = MOST_PUSH.as_secs_f64() * 1e3;
        self.push <= most && self.kib_per_pod <= MOST_KIB_PER_POD && self.sent_again == 0
    }
}

/// Measures and prints. Returns whether all bounds hold.
pub fn run(plan: &Plan, environment: &Environment) -> Result<bool> {
    ensure!(
        plan.runs > 0 && plan.clients > 0,
        "there is nothing to measure"
    );
    if plan.api_server {
        return api_server::run(plan, environment);
    }
    let programs = programs(plan, environment)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let mut rows = Vec::new();
    for pods in &plan.pods {
        let mut runs = Vec::new();
        for number in 1..=plan.runs {
            if !plan.json {
                eprintln!("{pods} pods, run {number} of {}", plan.runs);
            }
            runs.push(runtime.block_on(measure(&programs, *pods, plan.clients))?);
        }
        rows.push(medians(&runs));
    }
    if plan.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        print_table(&rows, plan.clients);
    }
    Ok(rows.iter().all(Row::holds))
}

pub(super) fn programs(plan: &Plan, environment: &Environment) -> Result<PathBuf> {
    match &plan.bin_dir {
        Some(folder) => Ok(folder.clone()),
        None => binaries::build(environment, &std::env::current_exe()?),
    }
}

async fn measure(programs: &std::path::Path, pods: usize, clients: usize) -> Result<Row> {
    let apart = Files::write(size(pods), Layout::FileEach)?;
    let started = Instant::now();
    let plane = ControlPlane::start(
        programs,
        apart.root(),
        Source::Directory(&apart.manifests()),
    )
    .await?;
    let ready = started.elapsed();
    let who = Clients::new(&plane)?;
    let (first, held) = Client::open(&who, 0, &Held::default())
        .await?
        .complete()
        .await?;
    let first_state = started.elapsed();
    ensure!(
        held.len() >= pods,
        "only {} of {pods} pods arrived",
        held.len()
    );
    let kib_per_pod = plane.memory_kib("VmRSS")? as f64 / pods as f64;

    let began = Instant::now();
    let mut all = join(1..clients, |number| {
        let who = who.clone();
        async move {
            Client::open(&who, number, &Held::default())
                .await?
                .complete()
                .await
                .map(|(client, _)| client)
        }
    })
    .await?;
    all.push(first);
    let all_clients = began.elapsed();
    let peak_mib = plane.memory_kib("VmHWM")? as f64 / 1024.0;

    let mut pushes = Vec::new();
    for version in 1..=CHANGES {
        let (push, heard) = change(&apart, version, all).await?;
        pushes.push(push);
        all = heard;
    }

    // Those that come back hold all but the last changes, which one of them has seen.
    let held = current(&who).await?;
    drop(all);
    let began = Instant::now();
    let answered = join(0..clients, |number| {
        let (who, held) = (who.clone(), held.clone());
        async move {
            Client::open(&who, number, &held)
                .await?
                .complete()
                .await
                .map(|(_, again)| again.len())
        }
    })
    .await?;
    let reconnect = began.elapsed();
    plane.stop().await?;

    let push_one_file = change_in_one_file(programs, pods).await?;
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    Ok(Row {
        pods,
        ready: milliseconds(ready),
        first_state: milliseconds(first_state),
        kib_per_pod,
        all_clients: milliseconds(all_clients),
        peak_mib,
        push: milliseconds(median(&mut pushes)),
        push_one_file: milliseconds(push_one_file),
        reconnect: milliseconds(reconnect),
        sent_again: answered.iter().sum(),
    })
}

/// From the change of a pod until the last client has it.
async fn change(
    files: &Files,
    version: usize,
    clients: Vec<Client>,
) -> Result<(Duration, Vec<Client>)> {
    let prepared = files.prepare(version)?;
    let mut waiting = JoinSet::new();
    for client in clients {
        waiting.spawn(client.next_push());
    }
    // They are all waiting by the time that the file has changed.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let began = Instant::now();
    prepared.put()?;
    let mut heard = Vec::new();
    while let Some(push) = waiting.join_next().await {
        let (client, resources) = push??;
        ensure!(
            resources == 1,
            "one pod changed, and {resources} resources were sent"
        );
        heard.push(client);
    }
    Ok((began.elapsed(), heard))
}

async fn change_in_one_file(programs: &std::path::Path, pods: usize) -> Result<Duration> {
    let together = Files::write(size(pods), Layout::OneFile)?;
    let plane = ControlPlane::start(
        programs,
        together.root(),
        Source::Directory(&together.manifests()),
    )
    .await?;
    let who = Clients::new(&plane)?;
    let (client, _) = Client::open(&who, 0, &Held::default())
        .await?
        .complete()
        .await?;
    let (mut pushes, mut clients) = (Vec::new(), vec![client]);
    for version in 1..=CHANGES {
        let (push, heard) = change(&together, version, clients).await?;
        pushes.push(push);
        clients = heard;
    }
    drop(clients);
    plane.stop().await?;
    Ok(median(&mut pushes))
}

/// What a client holds that has heard of everything.
async fn current(who: &Clients) -> Result<Held> {
    let client = Client::open(who, 0, &Held::default()).await?;
    Ok(client.complete().await?.1)
}

fn size(pods: usize) -> Size {
    Size { pods, services: 10 }
}

/// Does work for each number, all at once.
pub(super) async fn join<T: Send + 'static, F>(
    numbers: std::ops::Range<usize>,
    work: impl Fn(usize) -> F,
) -> Result<Vec<T>>
where
    F: Future<Output = Result<T>> + Send + 'static,
{
    let mut running = JoinSet::new();
    numbers.for_each(|number| drop(running.spawn(work(number))));
    let mut done = Vec::new();
    while let Some(one) = running.join_next().await {
        done.push(one.context("a client panicked")??);
    }
    Ok(done)
}

pub(super) fn median<T: Copy + PartialOrd>(values: &mut [T]) -> T {
    values.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    values[values.len() / 2]
}

fn medians(runs: &[Row]) -> Row {
    let of = |value: fn(&Row) -> f64| median(&mut runs.iter().map(value).collect::<Vec<_>>());
    Row {
        pods: runs[0].pods,
        ready: of(|row| row.ready),
        first_state: of(|row| row.first_state),
        kib_per_pod: of(|row| row.kib_per_pod),
        all_clients: of(|row| row.all_clients),
        peak_mib: of(|row| row.peak_mib),
        push: of(|row| row.push),
        push_one_file: of(|row| row.push_one_file),
        reconnect: of(|row| row.reconnect),
        // Nothing may be sent again in any run.
        sent_again: runs
            .iter()
            .map(|row| row.sent_again)
            .max()
            .unwrap_or_default(),
    }
}

fn print_table(rows: &[Row], clients: usize) {
    println!(
        "| pods | cluster read (ms) | first client complete (ms) | KiB/pod | {clients} clients complete (ms) | peak (MiB) | change to last of {clients} (ms) | same, one file (ms) | {clients} reconnect (ms) | sent again | within bounds |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    for row in rows {
        println!(
            "| {} | {:.0} | {:.0} | {:.1} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {} | {} |",
            row.pods,
            row.ready,
            row.first_state,
            row.kib_per_pod,
            row.all_clients,
            row.peak_mib,
            row.push,
            row.push_one_file,
            row.reconnect,
            row.sent_again,
            if row.holds() { "yes" } else { "no" },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(push: f64, kib_per_pod: f64, sent_again: usize) -> Row {
        Row {
            pods: 1,
            ready: 0.0,
            first_state: 0.0,
            kib_per_pod,
            all_clients: 0.0,
            peak_mib: 0.0,
            push,
            push_one_file: 0.0,
            reconnect: 0.0,
            sent_again,
        }
    }

    #[test]
    fn a_median_hides_an_odd_run_but_nothing_that_was_sent_again() {
        let runs = [row(30.0, 8.0, 0), row(900.0, 8.0, 3), row(40.0, 8.0, 0)];
        let median = medians(&runs);
        assert_eq!((median.push, median.sent_again), (40.0, 3));
        assert!(!median.holds());
    }

    #[test]
    fn bounds_are_checked_one_by_one() {
        assert!(row(100.0, 10.0, 0).holds());
        assert!(!row(100.1, 10.0, 0).holds());
        assert!(!row(100.0, 10.1, 0).holds());
    }
}
