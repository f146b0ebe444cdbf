// SPDX-License-Identifier: Apache-2.0
//! What a mesh of many workloads costs the ztunnel of a node, from the outside: how long until it is ready, and its
//! memory. The real program, with nothing to do but to know the mesh; no node agent, no pods.
//!
//! ```text
//!  nothing to know ───────────────────┐
//!  the mesh as a local file ──────────┼─► ztunnel starts ─► it knows the mesh ─► one pod changes ─► at rest
//!  the mesh from the control plane ───┘
//! ```

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use serde::Serialize;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use super::control_plane::median;
use super::files::{Files, Layout, Size};
use crate::binaries;
use crate::environment::Environment;
use crate::plane::{self, ControlPlane, free_port, get, memory_kib};

/// Bounds for what comes from the control plane.
const MOST_READY: Duration = Duration::from_millis(500);
const MOST_MIB: f64 = 50.0;
/// ztunnel answers here whatever is configured.
const READINESS: &str = "127.0.0.1:15021";
/// What a person or the log is told while the mesh is not known.
const UNKNOWN: &str = "state manager";
const PATIENCE: Duration = Duration::from_secs(300);
/// Buffers of the start are gone by then.
const AT_REST: Duration = Duration::from_secs(1);
const PODS_PER_NAMESPACE: usize = 500;

/// How to measure.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// Workloads in the mesh
    #[arg(long, default_value_t = 50_000)]
    workloads: usize,
    /// Services in the mesh
    #[arg(long, default_value_t = 5_000)]
    services: usize,
    /// Each value is the median of so many runs
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Use the programs in this folder and build nothing
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
}

/// What one way to learn of the mesh came to.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Row {
    pub from: &'static str,
    /// From the start of the program until it knows the mesh, in milliseconds.
    pub ready: f64,
    /// Processor time by then, user and system, in milliseconds.
    pub cpu: f64,
    /// Resident memory at rest, the part of it that is the program's own (no file behind it), and the highest ever.
    pub mib: f64,
    pub own_mib: f64,
    pub peak_mib: f64,
}

const NOTHING: &str = "nothing";
const FILE: &str = "local file";
const PLANE: &str = "control plane";

impl Row {
    fn holds(&self) -> bool {
        self.from != PLANE || (self.ready <= MOST_READY.as_secs_f64() * 1e3 && self.mib <= MOST_MIB)
    }
}

/// Measures and prints. Returns whether all bounds hold.
pub fn run(plan: &Plan, environment: &Environment) -> Result<bool> {
    ensure!(
        plan.runs > 0 && plan.workloads > 0,
        "there is nothing to measure"
    );
    let programs = match &plan.bin_dir {
        Some(folder) => folder.clone(),
        None => binaries::build(environment, &std::env::current_exe()?)?,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let rows = runtime.block_on(measure(&programs, plan))?;
    if plan.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        print_table(&rows);
    }
    Ok(rows.iter().all(Row::holds))
}

async fn measure(programs: &Path, plan: &Plan) -> Result<Vec<Row>> {
    let namespaces = plan.workloads.div_ceil(PODS_PER_NAMESPACE);
    let size = Size {
        pods: plan.workloads,
        services: plan.services.div_ceil(namespaces).max(1),
    };
    let files = Files::write(size, Layout::FileEach)?;
    let plane = ControlPlane::start(
        programs,
        files.root(),
        plane::Source::Directory(&files.manifests()),
    )
    .await?;
    let folder = tempfile::tempdir().context("a folder for ztunnel")?;
    let put = |name: &str, text: &str| -> Result<PathBuf> {
        let path = folder.path().join(name);
        std::fs::write(&path, text)?;
        Ok(path)
    };
    put("token", plane.token())?;
    let empty = put("empty.yaml", "{}\n")?;
    let mesh = put("mesh.yaml", &local_file(size))?;
    let ways = [
        (NOTHING, Source::File(empty)),
        (FILE, Source::File(mesh)),
        (PLANE, Source::ControlPlane),
    ];
    let mut rows = Vec::new();
    let mut version = 0;
    for (name, from) in &ways {
        let mut runs = Vec::new();
        for number in 1..=plan.runs {
            if !plan.json {
                eprintln!("{name}, run {number} of {}", plan.runs);
            }
            version += 1;
            runs.push(one(programs, &plane, &files, version, &folder, name, from).await?);
        }
        rows.push(medians(&runs));
    }
    plane.stop().await?;
    Ok(rows)
}

/// Where ztunnel learns of the mesh.
enum Source {
    File(PathBuf),
    ControlPlane,
}

async fn one(
    programs: &Path,
    plane: &ControlPlane,
    files: &Files,
    version: usize,
    folder: &TempDir,
    name: &'static str,
    from: &Source,
) -> Result<Row> {
    let readiness: SocketAddr = READINESS.parse()?;
    ensure!(
        get(readiness, "/healthz/ready").await.is_err(),
        "another program answers at {READINESS}"
    );
    let url = format!("https://{}", plane.address());
    let (admin, stats) = (free_port()?.port(), free_port()?.port());
    let log = std::fs::File::create(folder.path().join("log"))?;
    let mut command = Command::new(programs.join("ztunnel"));
    command
        .env_clear()
        .env("NODE_NAME", "node-0")
        .env("POD_NAME", "ztunnel-0")
        .env("POD_NAMESPACE", "istio-system")
        .env("CA_ADDRESS", &url)
        .env("CA_ROOT_CA", plane.roots())
        .env("XDS_ROOT_CA", plane.roots())
        .env("AUTH_TOKEN", folder.path().join("token"))
        .env("INPOD_UDS", folder.path().join("nobody.sock"))
        .env(
            "PROXY_CONFIG",
            format!("{{proxyAdminPort: {admin}, statsPort: {stats}}}"),
        )
        .stdin(Stdio::null())
        .stderr(log.try_clone()?)
        .stdout(log)
        .kill_on_drop(true);
    match from {
        Source::File(path) => command.env("XDS_ADDRESS", "").env("LOCAL_XDS_PATH", path),
        Source::ControlPlane => command.env("XDS_ADDRESS", &url),
    };
    let started = Instant::now();
    let mut process = command
        .spawn()
        .with_context(|| format!("cannot run ztunnel of {}", programs.display()))?;
    loop {
        // Without a node agent it is never ready as a whole.
        if let Ok(answer) = get(readiness, "/healthz/ready").await
            && answer.starts_with("HTTP/1.1 ")
            && !answer.contains(UNKNOWN)
        {
            break;
        }
        if let Some(status) = process.try_wait()? {
            let log = std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
            bail!("ztunnel ended ({status}): {log}");
        }
        ensure!(
            started.elapsed() < PATIENCE,
            "ztunnel does not know the mesh after {PATIENCE:?}"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let ready = started.elapsed();
    let cpu = cpu(&process)?;
    // In a mesh that lives, something changes all the time.
    files.prepare(version)?.put()?;
    tokio::time::sleep(AT_REST).await;
    let mib = |field| memory_kib(&process, field).map(|kib| kib as f64 / 1024.0);
    let row = Row {
        from: name,
        ready: ready.as_secs_f64() * 1e3,
        cpu: cpu.as_secs_f64() * 1e3,
        mib: mib("VmRSS")?,
        own_mib: mib("RssAnon")?,
        peak_mib: mib("VmHWM")?,
    };
    process.kill().await.context("cannot end ztunnel")?;
    Ok(row)
}

/// User and system time of a process so far (proc_pid_stat(5), fields 14 and 15).
fn cpu(process: &Child) -> Result<Duration> {
    let id = process.id().context("ztunnel has ended")?;
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat"))?;
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks: u64 = after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|ticks| ticks.parse::<u64>().unwrap_or_default())
        .sum();
    Ok(Duration::from_millis(ticks * 10))
}

/// The cluster of [`Files`] as a local file.
fn local_file(Size { pods, services }: Size) -> String {
    let mut text = String::from("services:\n");
    for namespace in 0..pods.div_ceil(PODS_PER_NAMESPACE) {
        for service in 0..services {
            let number = namespace * services + service;
            let (high, low) = (number / 256 % 256, number % 256);
            let _ = writeln!(
                text,
                "- {{name: s{service}, namespace: ns-{namespace}, hostname: s{service}.ns-{namespace}.svc.cluster.local, vips: [/172.20.{high}.{low}], ports: {{80: 8080}}}}"
            );
        }
    }
    text.push_str("workloads:\n");
    for index in 0..pods {
        let (namespace, app, node) = (index / PODS_PER_NAMESPACE, index % services, index / 100);
        let [_, a, b, c] = u32::try_from(index).unwrap_or_default().to_be_bytes();
        let zone = node % 3;
        let _ = write!(
            text,
            "- uid: Kubernetes//Pod/ns-{namespace}/a{app}-7d8f9c6b5-{index}
  name: a{app}-7d8f9c6b5-{index}
  namespace: ns-{namespace}
  serviceAccount: a{app}
  workloadIps: [10.{a}.{b}.{c}]
  protocol: HBONE
  node: node-{node}
  workloadName: a{app}
  workloadType: pod
  canonicalName: a{app}
  canonicalRevision: v0
  locality: {{region: r, zone: z{zone}, subzone: ''}}
  services: {{ns-{namespace}/s{app}.ns-{namespace}.svc.cluster.local: {{80: 8080}}}}
"
        );
    }
    text
}

fn medians(runs: &[Row]) -> Row {
    let of = |value: fn(&Row) -> f64| median(&mut runs.iter().map(value).collect::<Vec<_>>());
    Row {
        from: runs[0].from,
        ready: of(|row| row.ready),
        cpu: of(|row| row.cpu),
        mib: of(|row| row.mib),
        own_mib: of(|row| row.own_mib),
        peak_mib: of(|row| row.peak_mib),
    }
}

fn print_table(rows: &[Row]) {
    println!(
        "| mesh from | known (ms) | processor (ms) | resident (MiB) | of it own (MiB) | peak (MiB) | within bounds |"
    );
    println!("|---|---|---|---|---|---|---|");
    for row in rows {
        println!(
            "| {} | {:.0} | {:.0} | {:.1} | {:.1} | {:.1} | {} |",
            row.from,
            row.ready,
            row.cpu,
            row.mib,
            row.own_mib,
            row.peak_mib,
            if row.holds() { "yes" } else { "no" },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(from: &'static str, ready: f64, mib: f64) -> Row {
        Row {
            from,
            ready,
            cpu: 0.0,
            mib,
            own_mib: 0.0,
            peak_mib: 0.0,
        }
    }

    #[test]
    fn bounds_are_for_what_comes_from_the_control_plane() {
        assert!(row(PLANE, 500.0, 50.0).holds());
        assert!(!row(PLANE, 500.1, 50.0).holds());
        assert!(!row(PLANE, 500.0, 50.1).holds());
        assert!(row(FILE, 5000.0, 90.0).holds());
    }

    #[test]
    fn the_local_file_is_one_that_ztunnel_reads() {
        let size = Size {
            pods: 1001,
            services: 3,
        };
        let mesh = mesh::LocalConfig::parse(&local_file(size)).expect("a local file");
        assert_eq!((mesh.workloads.len(), mesh.services.len()), (1001, 9));
        assert!(mesh.workloads.iter().all(|pod| pod.services.len() == 1));
    }
}
