// SPDX-License-Identifier: Apache-2.0
//! Into the lab: how its first process comes to live in namespaces of its own, and how later commands join it.
//!
//! Everything here wants a process with a single thread, so it runs before any runtime starts. Two steps are needed,
//! because a process that unshares its pid namespace stays outside of it and only its children are inside:
//!
//! ```text
//!  e2e up / a test ──► `e2e enter-lab`: unshare, map the user ──► `e2e run-lab`: pid 1 of the lab, ends with its stdin
//! ```
//! When pid 1 ends, for whatever reason, the kernel ends every process of the lab and drops its mounts and networks.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::{Context as _, Result, bail};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use rustix::thread::CapabilitySet;

use crate::state::{LabRecord, StateDir, process_start};

/// Leaves the namespaces of whoever called for fresh ones; as an ordinary user by a user namespace first, in which this
/// user is root. Children are born inside the new pid namespace; this process itself stays in the old one.
pub fn unshare_everything() -> Result<()> {
    let mut flags = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWPID;
    let (uid, gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
    let as_user = !privileged()?;
    if as_user {
        flags |= CloneFlags::CLONE_NEWUSER;
    }
    unshare(flags).context(if as_user {
        "cannot make a user namespace; run as root, or allow them (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone)"
    } else {
        "cannot make namespaces although this process is root; is it in a container without CAP_SYS_ADMIN?"
    })?;
    if as_user {
        std::fs::write("/proc/self/setgroups", "deny")
            .context("cannot give up setgroups in the new user namespace")?;
        std::fs::write("/proc/self/uid_map", format!("0 {uid} 1\n"))
            .context("cannot map this user to root of the lab")?;
        std::fs::write("/proc/self/gid_map", format!("0 {gid} 1\n"))
            .context("cannot map this group to root's of the lab")?;
    }
    mount_privately().context(
        "cannot change mounts in the lab's own namespace; where AppArmor confines user namespaces, run as root or \
         set kernel.apparmor_restrict_unprivileged_userns=0",
    )
}

/// Whether this process may make network and mount namespaces without a user namespace of its own.
fn privileged() -> Result<bool> {
    let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN;
    let held = rustix::thread::capabilities(None)
        .context("cannot read the capabilities of this process")?;
    Ok(nix::unistd::geteuid().is_root() && held.effective.contains(needed))
}

/// From here on no mount of the lab shows outside of it.
fn mount_privately() -> nix::Result<()> {
    mount(
        None::<&str>,
        "/",
        None::<&str>,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        None::<&str>,
    )
}

/// Shows the lab's own processes under /proc. Needs to run inside the new pid namespace.
///
/// Not vital: where a container hides parts of /proc the kernel refuses, and the outer view serves as well.
pub fn mount_proc() -> nix::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), "/proc", Some("proc"), flags, None::<&str>)
}

/// Puts a small disk of its own in the place of a directory, in the lab's mount namespace.
pub fn mount_small_disk(directory: &Path) -> Result<()> {
    mount(
        Some("small-disk"),
        directory,
        Some("tmpfs"),
        MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC,
        Some(SMALL_DISK),
    )
    .with_context(|| format!("cannot mount a small disk at {}", directory.display()))
}

/// Enough for what a test writes there, and soon full.
const SMALL_DISK: &str = "size=8m,mode=0700";

/// Takes a small disk away, whoever still has files of it open.
pub fn unmount_small_disk(directory: &Path) -> Result<()> {
    umount2(directory, MntFlags::MNT_DETACH)
        .with_context(|| format!("cannot unmount {}", directory.display()))
}

/// Puts the lab's hosts file where the resolver looks.
pub fn mount_hosts(hosts: &Path) -> Result<()> {
    mount(
        Some(hosts),
        "/etc/hosts",
        None::<&str>,
        MsFlags::MS_BIND,
        None::<&str>,
    )
    .context("cannot put the lab's hosts file over /etc/hosts in the lab's mount namespace")
}

/// Puts a resolv.conf(5) where the C library looks, in the mount namespace of the calling process.
pub fn mount_resolv_conf(file: &Path) -> Result<()> {
    const PLACE: &str = "/etc/resolv.conf";
    mount(
        Some(file),
        PLACE,
        None::<&str>,
        MsFlags::MS_BIND,
        None::<&str>,
    )
    .with_context(|| format!("cannot put {} over {PLACE}", file.display()))
}

/// Gives the calling process a mount namespace of its own, in which it resolves names by this file.
pub fn resolve_by(file: &Path) -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).context("cannot make a mount namespace")?;
    mount_privately().context("cannot change mounts in a mount namespace")?;
    mount_resolv_conf(file)
}

/// Which of the lab's namespaces a command joins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joining {
    /// The lab's files and rights. The process may start threads afterwards.
    Files,
    /// Its processes too: children are born in the lab, and no thread can be started any more.
    FilesAndProcesses,
}

/// Takes this process into the lab's user and mount namespaces, and its children into the pid namespace.
pub fn join(lab: &LabRecord, joining: Joining) -> Result<()> {
    if process_start(lab.pid) != Some(lab.started) {
        bail!(
            "the lab `{}` is gone (its process {} ended); start it again with `e2e up`",
            lab.name,
            lab.pid
        );
    }
    let folder = std::env::current_dir().context("the current directory")?;
    let open = |kind: &str| {
        let path = format!("/proc/{}/ns/{kind}", lab.pid);
        File::open(&path)
            .with_context(|| format!("cannot open {path}; does the lab belong to another user?"))
    };
    let (user, mounts, pids) = (
        open("user")?,
        open("mnt")?,
        open("pid_for_children").or_else(|_| open("pid"))?,
    );
    let own = std::fs::metadata("/proc/self/ns/user").context("/proc/self/ns/user")?;
    if own.ino() != user.metadata()?.ino() {
        setns(user, CloneFlags::CLONE_NEWUSER).context("cannot join the lab's user namespace")?;
    }
    if joining == Joining::FilesAndProcesses {
        setns(pids, CloneFlags::CLONE_NEWPID).context("cannot join the lab's pid namespace")?;
    }
    setns(mounts, CloneFlags::CLONE_NEWNS).context("cannot join the lab's mount namespace")?;
    // Joining a mount namespace moves to its root directory.
    std::env::set_current_dir(&folder)
        .or_else(|_| std::env::set_current_dir("/"))
        .context("no directory to work in")
}

/// Takes this process into the network namespace behind `path`.
pub fn join_network(path: &Path) -> Result<()> {
    let netns =
        File::open(path).with_context(|| format!("no network namespace at {}", path.display()))?;
    setns(netns, CloneFlags::CLONE_NEWNET)
        .with_context(|| format!("cannot enter the network namespace {}", path.display()))
}

/// Runs a command to its end and passes its exit status on.
pub fn run_through(mut command: Command) -> Result<ExitCode> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command
        .status()
        .with_context(|| format!("cannot run {program}"))?;
    Ok(exit_code(status))
}

/// An exit status as shells report it: 128 + signal for a process that was killed.
pub fn exit_code(status: ExitStatus) -> ExitCode {
    use std::os::unix::process::ExitStatusExt as _;
    let code = status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}

/// Joins the lab of a state directory.
pub fn join_lab(state: &StateDir, joining: Joining) -> Result<LabRecord> {
    let lab = state.read_record()?;
    join(&lab, joining)?;
    Ok(lab)
}
