// SPDX-License-Identifier: Apache-2.0
//! A process of the lab as the machine around it sees it: to be killed, stopped, measured and held down.
//!
//! The lab has process ids of its own; outside each of its processes has another one. What counts here is the latter, so
//! that nothing need be run inside.

use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::process::{Resource, Rlimit};

use super::Access;
use crate::kubernetes::API_SERVER;
use crate::state::{LabRecord, StateDir, process_start};
use crate::topology::{Cluster, Node, PodName, SYSTEM_NAMESPACE};

/// One process of the lab. It may be gone at any time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Outside of the lab.
    pub pid: u32,
    started: u64,
}

impl Access {
    /// The process of a daemon (`istiod-lite`, `kube-apiserver`, `ztunnel-a`, `istio-cni-node-a`) or of a pod's first container.
    pub fn process(&self, name: &str) -> Result<Process> {
        let inside = inside_pid(self.state(), name)?;
        let pid = outside_pid(&self.state().read_record()?, inside)
            .with_context(|| format!("process {inside} of {name}"))?;
        let started = process_start(pid).with_context(|| format!("{name} has just ended"))?;
        Ok(Process { pid, started })
    }

    /// Ends a daemon or pod at once; whoever keeps it running starts it again. Returns once it is gone.
    pub fn kill(&self, name: &str) -> Result<()> {
        let process = self.process(name)?;
        process.signal(Signal::SIGKILL)?;
        process.wait_until_gone()
    }

    /// As [`Self::kill`], and nobody starts it again until [`Self::let_start`].
    pub fn hold_down(&self, name: &str) -> Result<()> {
        std::fs::write(self.state().held_down(&log_name(name)?), [])
            .with_context(|| format!("cannot hold {name} down"))?;
        self.kill(name)
    }

    /// Takes a node's power away and gives it back; returns once it is back, when nothing on it runs yet.
    pub fn reboot(&self, node: Node) -> Result<()> {
        let order = self.state().reboot_order(node);
        std::fs::write(&order, []).with_context(|| format!("cannot reboot {node}"))?;
        super::eventually(
            &format!("{node} has its power back"),
            std::time::Duration::from_secs(20),
            || {
                ensure!(!order.exists(), "the lab is still at it");
                Ok(())
            },
        )
    }

    /// Starts another process of a daemon beside the one that runs, with more variables for it, and returns the old one.
    /// Whether it takes over is between the two.
    pub fn upgrade(&self, name: &str, variables: &[(&str, &str)]) -> Result<Process> {
        let old = self.process(name)?;
        let order = self.state().upgrade_order(&log_name(name)?);
        let text: String = variables
            .iter()
            .map(|(name, value)| format!("{name}={value}\n"))
            .collect();
        crate::state::write_atomically(&order, text.as_bytes())?;
        super::eventually(
            &format!("another process of {name} has started"),
            std::time::Duration::from_secs(10),
            || {
                ensure!(!order.exists(), "the order stands");
                Ok(())
            },
        )?;
        Ok(old)
    }

    /// Ends what [`Self::hold_down`] began.
    pub fn let_start(&self, name: &str) -> Result<()> {
        std::fs::remove_file(self.state().held_down(&log_name(name)?))
            .with_context(|| format!("{name} is not held down"))
    }
}

impl Process {
    pub fn is_running(&self) -> bool {
        // A zombie still has its line; its state is the field after the name.
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        let zombie = stat
            .rsplit_once(')')
            .is_some_and(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']));
        process_start(self.pid) == Some(self.started) && !zombie
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        ensure!(self.is_running(), "process {} has ended", self.pid);
        let pid = i32::try_from(self.pid).context("a process id")?;
        kill(Pid::from_raw(pid), signal)
            .with_context(|| format!("cannot signal process {}", self.pid))
    }

    fn wait_until_gone(&self) -> Result<()> {
        super::eventually(
            &format!("process {} is gone", self.pid),
            std::time::Duration::from_secs(10),
            || {
                ensure!(!self.is_running(), "it still runs");
                Ok(())
            },
        )
    }

    /// How many descriptors it holds.
    pub fn descriptors(&self) -> Result<usize> {
        let folder = format!("/proc/{}/fd", self.pid);
        let entries =
            std::fs::read_dir(&folder).with_context(|| format!("cannot list {folder}"))?;
        Ok(entries.count())
    }

    /// Seconds of processor time that it has taken so far, in the kernel and out of it.
    pub fn processor_seconds(&self) -> Result<f64> {
        processor_seconds(self.pid)
    }

    /// Bytes of memory that are its own now.
    pub fn memory(&self) -> Result<u64> {
        memory(self.pid)
    }

    /// Allows it descriptors up to this many; `None` allows what its hard limit does. Those it holds stay.
    pub fn limit_descriptors(&self, most: Option<u64>) -> Result<()> {
        let maximum = self.hard_limit()?;
        let pid = i32::try_from(self.pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw)
            .context("a process id")?;
        let limit = Rlimit {
            current: most.or(maximum),
            maximum,
        };
        rustix::process::prlimit(Some(pid), Resource::Nofile, limit)
            .map(drop)
            .context("cannot limit a process's descriptors")
    }

    fn hard_limit(&self) -> Result<Option<u64>> {
        let path = format!("/proc/{}/limits", self.pid);
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let line = text.lines().find(|line| line.starts_with("Max open files"));
        let hard = line.and_then(|line| line.split_whitespace().nth(4));
        match hard.with_context(|| format!("{path} names no limit of open files"))? {
            "unlimited" => Ok(None),
            number => Ok(Some(number.parse().context("the limit of open files")?)),
        }
    }
}

/// Bytes of memory that are a process's own now.
pub fn memory(pid: u32) -> Result<u64> {
    let kibibytes: u64 = status_field(pid, "RssAnon")?
        .split_whitespace()
        .next()
        .unwrap_or_default()
        .parse()
        .context("RssAnon is no number")?;
    Ok(kibibytes << 10)
}

/// Seconds of processor time that a process has taken so far.
pub fn processor_seconds(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).with_context(|| format!("process {pid} is gone"))?;
    // Its name may hold anything; the fields after it are numbered from 3. 14 and 15 are wanted.
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
    let mut fields = fields.split_whitespace().skip(11);
    let mut ticks = || -> Option<f64> { fields.next()?.parse().ok() };
    let total = ticks().zip(ticks()).map(|(user, system)| user + system);
    let rate = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)?.unwrap_or(100);
    let total = total.with_context(|| format!("{path} has no times"))?;
    Ok(total / rate as f64)
}

/// Its process id in the lab.
fn inside_pid(state: &StateDir, name: &str) -> Result<u32> {
    if let Some(cluster) = control_plane(name) {
        let path = state.of_cluster(cluster).control_plane_pid();
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        return text
            .trim()
            .parse()
            .context("the control plane's process id");
    }
    if name == API_SERVER {
        let path = state.api_server_pid();
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        return text.trim().parse().context("the API server's process id");
    }
    let record = state.read_pod(&pod_name(name)?)?;
    let container = record.containers.first();
    container
        .and_then(|container| container.pid)
        .with_context(|| format!("{name} does not run now"))
}

fn pod_name(name: &str) -> Result<PodName> {
    match name.contains('/') {
        true => name.parse().map_err(anyhow::Error::msg),
        false => Ok(PodName::new(SYSTEM_NAMESPACE, name)),
    }
}

/// Under which name its log goes.
fn log_name(name: &str) -> Result<String> {
    match control_plane(name) {
        Some(cluster) => Ok(cluster.daemon().to_owned()),
        None if name == API_SERVER => Ok(name.to_owned()),
        None => Ok(pod_name(name)?.slug()),
    }
}

/// The cluster whose control plane has this name.
fn control_plane(name: &str) -> Option<Cluster> {
    [Cluster::First, Cluster::Second]
        .into_iter()
        .find(|cluster| cluster.daemon() == name)
}

fn outside_pid(lab: &LabRecord, inside: u32) -> Result<u32> {
    let namespace = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let ours = namespace(lab.pid).context("the lab is gone")?;
    for entry in std::fs::read_dir("/proc").context("cannot list processes")? {
        let Some(pid) = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let innermost = status_field(pid, "NSpid")
            .ok()
            .and_then(|ids| ids.split_whitespace().last()?.parse().ok());
        if innermost == Some(inside) && namespace(pid).as_ref() == Some(&ours) {
            return Ok(pid);
        }
    }
    bail!("there is no such process")
}

fn status_field(pid: u32, name: &str) -> Result<String> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(Path::new(&path))
        .with_context(|| format!("process {pid} is gone"))?;
    let found = text.lines().find_map(|line| {
        line.strip_prefix(name)
            .and_then(|rest| rest.strip_prefix(':'))
    });
    Ok(found
        .with_context(|| format!("{path} has no {name}"))?
        .trim()
        .to_owned())
}
