// SPDX-License-Identifier: Apache-2.0
//! The last step before a program of the lab runs: enter its network namespace, hold exactly the capabilities that it is
//! granted, die with whoever started it, then become the program.
//!
//! A step of its own (`e2e launch`) because it changes the process it runs in, which a process with threads must not do
//! to itself.

use std::ffi::{CString, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::lab::cgroups;
use crate::namespaces::{join_network, resolve_by};

/// How a program of the lab is started.
#[derive(Debug, Clone, clap::Args)]
pub struct Launch {
    /// Network namespace to run in
    #[arg(long)]
    pub netns: Option<PathBuf>,
    /// File to resolve names by instead of the node's
    #[arg(long)]
    pub resolv_conf: Option<PathBuf>,
    /// Cgroup to run in
    #[arg(long)]
    pub cgroup: Option<PathBuf>,
    /// Capabilities to keep, as NET_ADMIN,SYS_ADMIN; `none` drops all; absent keeps what the lab has
    #[arg(long)]
    pub capabilities: Option<String>,
    #[arg(trailing_var_arg = true, required = true)]
    pub command: Vec<OsString>,
}

impl Launch {
    /// The command line that runs `program` this way, by way of the executable `e2e`.
    pub fn command(
        executable: &Path,
        surroundings: Surroundings<'_>,
        grant: &Grant,
        program: &Path,
    ) -> Command {
        let mut command = Command::new(executable);
        command.arg("launch");
        if let Some(netns) = surroundings.netns {
            command.arg("--netns").arg(netns);
        }
        if let Some(file) = surroundings.resolv_conf {
            command.arg("--resolv-conf").arg(file);
        }
        if let Some(cgroup) = surroundings.cgroup {
            command.arg("--cgroup").arg(cgroup);
        }
        if let Grant::Exactly(capabilities) = grant {
            command.arg("--capabilities").arg(spell(*capabilities));
        }
        command.arg("--").arg(program);
        command
    }

    /// Becomes the program. Returns only to say why not.
    pub fn exec(self) -> Result<()> {
        if let Some(cgroup) = &self.cgroup {
            cgroups::enter(cgroup)?;
        }
        if let Some(netns) = &self.netns {
            join_network(netns)?;
        }
        if let Some(file) = &self.resolv_conf {
            resolve_by(file)?;
        }
        if let Some(names) = &self.capabilities {
            keep_only(parse(names)?)?;
        }
        set_parent_process_death_signal(Some(Signal::KILL))
            .context("cannot tie the program to its parent")?;
        let (program, arguments) = self.command.split_first().context("no program given")?;
        let error = Command::new(program).args(arguments).exec();
        Err(error).with_context(|| format!("cannot run {}", Path::new(program).display()))
    }
}

/// What a program finds around itself; the lab's own where nothing is said.
#[derive(Debug, Clone, Copy, Default)]
pub struct Surroundings<'a> {
    pub netns: Option<&'a Path>,
    pub resolv_conf: Option<&'a Path>,
    pub cgroup: Option<&'a Path>,
}

/// The capabilities a program runs with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grant {
    /// What the lab process itself has: for what a node's root would run.
    Everything,
    Exactly(CapabilitySet),
}

impl Grant {
    pub const NOTHING: Self = Self::Exactly(CapabilitySet::empty());

    /// Reads a container's `securityContext.capabilities`; the words are Kubernetes', `drop: [ALL]` first.
    ///
    /// Without `drop: [ALL]` a container starts from the set that container runtimes grant by default.
    pub fn from_security_context(add: &[String], drop: &[String]) -> Result<Self> {
        let mut granted = default_of_runtimes();
        for name in drop {
            granted &= if name.eq_ignore_ascii_case("all") {
                CapabilitySet::empty()
            } else {
                !named(name)?
            };
        }
        for name in add {
            granted |= if name.eq_ignore_ascii_case("all") {
                CapabilitySet::all()
            } else {
                named(name)?
            };
        }
        Ok(Self::Exactly(granted))
    }
}

fn default_of_runtimes() -> CapabilitySet {
    CapabilitySet::CHOWN
        | CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::FSETID
        | CapabilitySet::FOWNER
        | CapabilitySet::MKNOD
        | CapabilitySet::NET_RAW
        | CapabilitySet::SETGID
        | CapabilitySet::SETUID
        | CapabilitySet::SETFCAP
        | CapabilitySet::SETPCAP
        | CapabilitySet::NET_BIND_SERVICE
        | CapabilitySet::SYS_CHROOT
        | CapabilitySet::KILL
        | CapabilitySet::AUDIT_WRITE
}

fn named(name: &str) -> Result<CapabilitySet> {
    let upper = name.to_ascii_uppercase();
    let short = upper.strip_prefix("CAP_").unwrap_or(&upper);
    CapabilitySet::from_name(short)
        .with_context(|| format!("`{name}` is no capability that this lab knows"))
}

fn parse(names: &str) -> Result<CapabilitySet> {
    let mut set = CapabilitySet::empty();
    for name in names
        .split(',')
        .filter(|name| !name.is_empty() && *name != "none")
    {
        set |= named(name)?;
    }
    Ok(set)
}

fn spell(set: CapabilitySet) -> String {
    if set.is_empty() {
        return "none".into();
    }
    set.iter_names()
        .map(|(name, _)| name)
        .collect::<Vec<_>>()
        .join(",")
}

/// From here on, and after exec, this process has these capabilities and can't get others.
fn keep_only(wanted: CapabilitySet) -> Result<()> {
    let held = rustix::thread::capabilities(None)
        .context("cannot read capabilities")?
        .permitted;
    for capability in CapabilitySet::all().iter() {
        // The kernel may be older than the list and not know the last ones.
        let known = rustix::thread::capability_is_in_bounding_set(capability).unwrap_or(false);
        if known && !wanted.contains(capability) {
            rustix::thread::remove_capability_from_bounding_set(capability)
                .context("cannot drop a capability")?;
        }
    }
    rustix::thread::clear_ambient_capability_set().context("cannot clear ambient capabilities")?;
    let kept = wanted & held;
    let sets = CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, sets).context("cannot set capabilities")
}

/// Names this process as `ps` and others find it (at most 15 bytes).
pub fn name_process(name: &str) -> Result<()> {
    let name = CString::new(name).context("a process name")?;
    rustix::thread::set_name(&name).context("cannot name the process")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(list: &[&str]) -> Vec<String> {
        list.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn dropping_all_leaves_what_is_added() {
        let grant = Grant::from_security_context(
            &words(&["NET_ADMIN", "SYS_ADMIN", "NET_RAW"]),
            &words(&["ALL"]),
        )
        .unwrap();
        let expected = CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN | CapabilitySet::NET_RAW;
        assert_eq!(grant, Grant::Exactly(expected));
    }

    #[test]
    fn a_container_gets_no_network_administration_by_default() {
        let Grant::Exactly(set) = Grant::from_security_context(&[], &[]).unwrap() else {
            panic!("a set")
        };
        assert!(
            !set.contains(CapabilitySet::NET_ADMIN)
                && set.contains(CapabilitySet::NET_BIND_SERVICE)
        );
    }

    #[test]
    fn capabilities_survive_the_command_line() {
        let set = CapabilitySet::NET_ADMIN | CapabilitySet::SYS_PTRACE;
        assert_eq!(parse(&spell(set)).unwrap(), set);
        assert_eq!(
            parse(&spell(CapabilitySet::empty())).unwrap(),
            CapabilitySet::empty()
        );
    }

    #[test]
    fn an_unknown_capability_is_named() {
        let error = Grant::from_security_context(&words(&["FLY"]), &[]).unwrap_err();
        assert!(error.to_string().contains("FLY"), "{error}");
    }
}
