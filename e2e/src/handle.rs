// SPDX-License-Identifier: Apache-2.0
//! A lab from the outside: start one, run programs in its pods and nodes, change its cluster, read its logs.
//!
//! The tour and the tests use this and nothing else, and everything goes by the `e2e` program, so what they do a person
//! can do by hand. The caller's process stays as it is: it enters no namespace.

mod access;
mod forward;
mod held;
mod link;
mod process;
mod sniffing;

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

pub use self::access::Finished;
pub use self::forward::{Forward, Tunnel};
pub use self::held::Held;
pub use self::link::Link;
pub use self::process::{Process, memory, processor_seconds};
pub use self::sniffing::Sniffing;
use crate::environment::Environment;
use crate::lab::Message;
use crate::lab::container::Programs;
use crate::state::{Disks, StateDir};
use crate::topology::{Layout, Node};

/// How to start a lab.
#[derive(Debug, Clone)]
pub struct Start {
    pub name: String,
    /// The `e2e` program.
    pub executable: PathBuf,
    pub bin_dir: PathBuf,
    pub manifests: Option<PathBuf>,
    pub layout: Layout,
    pub keep: bool,
    pub disks: Disks,
    /// Keep its objects in an API server.
    pub api_server: bool,
}

/// A running lab. It ends when this is dropped, or with this process.
#[derive(Debug)]
pub struct Lab {
    access: Access,
    process: Child,
    /// The lab lives as long as this is open.
    lifeline: Option<ChildStdin>,
}

/// The way into a running lab, whoever started it.
#[derive(Debug, Clone)]
pub struct Access {
    state: StateDir,
    name: String,
    executable: PathBuf,
}

impl Lab {
    /// Starts a lab and waits until it is ready. What it says meanwhile goes to `watch`.
    pub fn start(
        environment: &Environment,
        start: &Start,
        mut watch: impl FnMut(&str),
    ) -> Result<Self> {
        let state = StateDir::of_lab(&environment.state_root()?, &start.name)?;
        drop(state.lock()?);
        clear(&state)?;
        let programs = Programs {
            executable: start.executable.clone(),
            bin_dir: start.bin_dir.clone(),
        };
        for program in crate::binaries::PROGRAMS {
            programs.of_mesh(program)?;
        }
        let mut command = Command::new(&start.executable);
        command.arg("enter-lab").args(["--lab", &start.name]);
        command
            .arg("--state")
            .arg(state.root())
            .arg("--bin-dir")
            .arg(&start.bin_dir)
            .args(["--layout", start.layout.name()])
            .args(["--disks", start.disks.name()]);
        if let Some(folder) = &start.manifests {
            command.arg("--manifests").arg(folder);
        }
        if start.keep {
            command.arg("--keep");
        }
        if start.api_server {
            command.arg("--api-server");
        }
        // A group of its own: an interrupt from the terminal ends the lab by its lifeline, in order.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the lab's process")?;
        let lifeline = process.stdin.take();
        let output = process.stdout.take().context("the lab's output")?;
        let access = Access {
            state,
            name: start.name.clone(),
            executable: start.executable.clone(),
        };
        let mut lab = Self {
            access,
            process,
            lifeline,
        };
        for line in BufReader::new(output).lines() {
            let line = line.context("the lab's output")?;
            match serde_json::from_str(&line) {
                Ok(Message::Progress { text }) => watch(&text),
                Ok(Message::Ready) => {
                    let state = lab.access.state.clone();
                    lab.access.state = state.from_outside(&lab.access.state.read_record()?);
                    return Ok(lab);
                }
                Ok(Message::Failed { error }) => bail!("{error}"),
                Err(_) => watch(&line),
            }
        }
        bail!(
            "the lab ended before it was ready; its logs: {}",
            lab.access.state.logs().display()
        )
    }

    pub fn access(&self) -> &Access {
        &self.access
    }

    /// Ends the lab and waits until it is gone.
    pub fn stop(mut self) -> Result<()> {
        self.end()
    }

    /// Whether the lab still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    fn end(&mut self) -> Result<()> {
        drop(self.lifeline.take());
        self.process
            .wait()
            .map(drop)
            .context("cannot wait for the lab to end")
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.lifeline.is_some() {
            let _reported_nowhere = self.end();
        }
    }
}

impl std::ops::Deref for Lab {
    type Target = Access;

    fn deref(&self) -> &Access {
        &self.access
    }
}

/// What an ended lab left is not this one's.
fn clear(state: &StateDir) -> Result<()> {
    for entry in std::fs::read_dir(state.root()).context("the lab's state directory")? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name == "lock") {
            continue;
        }
        let removed = if path.is_dir() {
            std::fs::remove_dir_all(&path)
        } else {
            std::fs::remove_file(&path)
        };
        removed
            .with_context(|| format!("cannot remove {}, left by an earlier lab", path.display()))?;
    }
    Ok(())
}

/// The pod that is the proxy of a node.
pub fn proxy_of(node: Node) -> &'static str {
    match node {
        Node::A => "ztunnel-a",
        Node::B => "ztunnel-b",
    }
}

/// Tries again until it holds; the last reason is the error.
pub fn eventually<T>(
    what: &str,
    within: Duration,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    let deadline = Instant::now() + within;
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(error) if Instant::now() >= deadline => {
                return Err(error).with_context(|| format!("within {within:?}: {what}"));
            }
            Err(_) => std::thread::park_timeout(Duration::from_millis(100)),
        }
    }
}

/// The lab of a test file: started by the first test that wants it, shared by all, ended with the process.
pub struct Shared {
    file: &'static str,
    executable: &'static str,
    layout: Layout,
    /// Makes a manifest that is applied before anything starts.
    changes: Option<fn() -> String>,
    disks: Disks,
    api_server: bool,
    lab: OnceLock<Result<Lab, String>>,
}

impl Shared {
    /// `executable` is `env!("CARGO_BIN_EXE_e2e")` of the test.
    pub const fn new(file: &'static str, executable: &'static str) -> Self {
        Self::of_layout(Layout::OneCluster, file, executable)
    }

    /// The same with other clusters than the usual one.
    pub const fn of_layout(layout: Layout, file: &'static str, executable: &'static str) -> Self {
        Self {
            file,
            executable,
            layout,
            changes: None,
            disks: Disks::Shared,
            api_server: false,
            lab: OnceLock::new(),
        }
    }

    /// The same, with its objects in an API server.
    pub const fn on_api_server(file: &'static str, executable: &'static str) -> Self {
        let mut shared = Self::new(file, executable);
        shared.api_server = true;
        shared
    }

    /// The same, where disks are soon full.
    pub const fn on_small_disks(file: &'static str, executable: &'static str) -> Self {
        Self {
            file,
            executable,
            layout: Layout::OneCluster,
            changes: None,
            disks: Disks::Small,
            api_server: false,
            lab: OnceLock::new(),
        }
    }

    /// The same, of a cluster that differs from the built-in one by these objects.
    pub const fn changed(
        file: &'static str,
        executable: &'static str,
        changes: fn() -> String,
    ) -> Self {
        Self {
            file,
            executable,
            layout: Layout::OneCluster,
            changes: Some(changes),
            disks: Disks::Shared,
            api_server: false,
            lab: OnceLock::new(),
        }
    }

    /// The running lab. Panics, with the reason, in every test if it could not be started.
    pub fn lab(&self) -> &Lab {
        let started = self
            .lab
            .get_or_init(|| self.start().map_err(|error| format!("{error:#}")));
        match started {
            Ok(lab) => lab,
            Err(reason) => panic!("the lab of these tests could not be started: {reason}"),
        }
    }

    fn start(&self) -> Result<Lab> {
        let environment = Environment::of_process();
        let executable = PathBuf::from(self.executable);
        // Read when the lab starts, and of no use after that.
        let folder = tempfile::tempdir().context("a folder for manifests")?;
        let manifests = match self.changes {
            Some(changes) => {
                let file = folder.path().join("changes.yaml");
                std::fs::write(file, changes()).context("the manifests of these tests")?;
                Some(folder.path().to_owned())
            }
            None => None,
        };
        let start = Start {
            // Test runs may overlap; each has labs of its own.
            name: format!("{}-{}", self.file, std::process::id()),
            bin_dir: crate::binaries::build(&environment, &executable)?,
            executable,
            manifests,
            layout: self.layout,
            keep: false,
            disks: self.disks,
            api_server: self.api_server,
        };
        Lab::start(&environment, &start, |_progress| {})
    }
}
