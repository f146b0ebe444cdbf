// SPDX-License-Identifier: Apache-2.0
//! Puts the CNI plugin on the node and keeps it there: its program beside the other plugins, and itself at the end of the
//! list by which the container runtime starts pods.
//!
//! [`conflist`] decides what the runtime's folder should hold; here it is read, watched and written. Level-triggered: a
//! look compares what is with what should be, and changes no file that is right. Files appear whole, by a rename. The
//! plugin asks the agent about everything, so it needs no kubeconfig, and no token of ours lies on the node.

pub mod conflist;
mod contest;

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use inotify::{Inotify, WatchMask};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ops::health::ReadyHandle;
use ops::shutdown::DrainSignal;
use tracing::{info, warn};

use conflist::{Change, Folder, Missing, Wanted};
use contest::Contest;

/// More than any network configuration.
const MAX_FILE: u64 = 1024 * 1024;
/// More files than any runtime's folder has.
const MAX_FILES: usize = 256;
/// A thread listens for so long at a time, and outlives the installer by no more.
const LISTEN_MS: u8 = 200;
/// A look is due so often even if nothing was heard.
const CHECK: Duration = Duration::from_secs(10);
/// Writers that rename several files are let finish.
const SETTLE: Duration = Duration::from_millis(20);

/// Where the plugin goes, as this process sees the node's folders.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The runtime's network configurations, `/etc/cni/net.d` of the node.
    pub net_dir: PathBuf,
    /// The runtime's plugins, `/opt/cni/bin` of the node.
    pub bin_dir: PathBuf,
    /// The plugin's program, as it came with the agent.
    pub plugin: PathBuf,
    pub wanted: Wanted,
}

/// Why the plugin is not, or not for certain, asked about each pod.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("{what} {}: {cause}", .path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        cause: io::Error,
    },
    #[error("{}: more than {MAX_FILES} files", .0.display())]
    Crowded(PathBuf),
    #[error(transparent)]
    Missing(#[from] Missing),
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> InstallError {
    let path = path.to_owned();
    move |cause| InstallError::Io { what, path, cause }
}

/// What a look found and did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// The configuration by which the runtime asks the plugin.
    pub file: String,
    pub repaired: bool,
}

impl Settings {
    /// Makes it so, if it is not. The program comes first: a configuration that names a missing one starts no pod.
    ///
    /// # Errors
    /// A folder or file that can't be read or written, and [`Missing`].
    pub fn look(&self) -> Result<Look, InstallError> {
        let program = self.install_program()?;
        let plan = conflist::plan(&read_folder(&self.net_dir)?, &self.wanted);
        let repaired = program || !plan.changes.is_empty();
        for change in &plan.changes {
            self.make(change)?;
        }
        let file = plan.file?;
        Ok(Look { file, repaired })
    }

    /// Takes the plugin out of all configurations; true if it was in one. Its program stays where it is: a runtime that
    /// remembers by which list a pod came calls it once more as that pod goes, and would keep the pod for ever without it.
    ///
    /// # Errors
    /// A folder or file that can't be read or written.
    pub fn remove(&self) -> Result<bool, InstallError> {
        let changes = conflist::removal(&read_folder(&self.net_dir)?, &self.wanted);
        for change in &changes {
            self.make(change)?;
        }
        Ok(!changes.is_empty())
    }

    fn make(&self, change: &Change) -> Result<(), InstallError> {
        match change {
            Change::Write { name, list } => {
                let path = self.net_dir.join(name);
                let mut text = serde_json::to_vec_pretty(list)
                    .expect("broken invariant: a JSON value is valid JSON");
                text.push(b'\n');
                // Others may have reasons for the mode of theirs; what is ours is for root alone.
                let mode = fs::metadata(&path).map_or(0o600, |found| found.permissions().mode());
                replace(&path, &text, mode)
            }
            Change::Remove { name } => {
                let path = self.net_dir.join(name);
                match fs::remove_file(&path) {
                    Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                        Err(failed("removing", &path)(cause))
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    fn install_program(&self) -> Result<bool, InstallError> {
        let target = self.bin_dir.join(conflist::PLUGIN);
        let wanted = fs::read(&self.plugin).map_err(failed("the plugin", &self.plugin))?;
        let executable =
            fs::metadata(&target).is_ok_and(|found| found.permissions().mode() & 0o111 != 0);
        if executable && fs::read(&target).is_ok_and(|found| found == wanted) {
            return Ok(false);
        }
        // A program that runs can't be written to, but another may take its name.
        replace(&target, &wanted, 0o755)?;
        Ok(true)
    }
}

/// What the runtime may read, by name; a file that we can't read has the reason in its place.
fn read_folder(path: &Path) -> Result<Folder, InstallError> {
    let mut folder = BTreeMap::new();
    for entry in fs::read_dir(path).map_err(failed("folder", path))? {
        let entry = entry.map_err(failed("folder", path))?;
        let Some(name) = entry.file_name().to_str().map(str::to_owned) else {
            continue;
        };
        if !conflist::is_configuration(&name) {
            continue;
        }
        if folder.len() == MAX_FILES {
            return Err(InstallError::Crowded(path.to_owned()));
        }
        folder.insert(name, read(&entry.path()));
    }
    Ok(folder)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(|cause| cause.to_string())?;
    let length = file.take(MAX_FILE + 1).read_to_end(&mut bytes);
    match length.map_err(|cause| cause.to_string())? as u64 {
        length if length > MAX_FILE => Err(format!("larger than {MAX_FILE} bytes")),
        _ => Ok(bytes),
    }
}

/// Writes beside and renames: nobody ever sees half a file. What an earlier try left beside is written over.
fn replace(path: &Path, bytes: &[u8], mode: u32) -> Result<(), InstallError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = path.with_file_name(format!(".{name}.new"));
    let written = fs::File::create(&beside).and_then(|mut file| {
        file.set_permissions(Permissions::from_mode(mode & 0o7777))?;
        file.write_all(bytes)?;
        file.sync_all()
    });
    written
        .and_then(|()| fs::rename(&beside, path))
        .inspect_err(|_| {
            // On a full disk it would only take room.
            let _leftover = fs::remove_file(&beside);
        })
        .map_err(failed("writing", path))
}

/// Keeps the plugin installed until the drain is asked for, and says in `ready` whether it is.
pub async fn keep(settings: Settings, ready: ReadyHandle, drain: DrainSignal) {
    let mut contest = Contest::default();
    let mut last: Option<String> = None;
    loop {
        // A new one before each look, so that nothing which happens meanwhile is missed; a folder that is not there is
        // an error of the look.
        let watch = watcher(&settings).ok();
        let looking = settings.clone();
        let found = tokio::task::spawn_blocking(move || looking.look())
            .await
            .expect("broken invariant: a look neither panics nor is cancelled");
        let said = match &found {
            Ok(Look { file, .. }) => {
                ready.ready();
                format!("installed in {file}")
            }
            Err(error) => {
                ready.not_ready();
                error.to_string()
            }
        };
        if last.as_ref() != Some(&said) {
            match &found {
                Ok(_) => info!(plugin = conflist::PLUGIN, "{said}"),
                Err(error) => warn!(%error, "the CNI plugin is not installed"),
            }
        }
        let first = last.replace(said).is_none();
        let repaired = matches!(found, Ok(Look { repaired: true, .. })) && !first;
        if repaired {
            metrics::counter!("redirect_cni_repaired_total").increment(1);
            info!("the CNI plugin was not as it was installed, and has been put back");
        }
        if let Some(pause) = contest.pause(repaired, Instant::now()) {
            warn!(
                ?pause,
                "something takes the CNI plugin away again and again; where it is Cilium, set `cni.exclusive=false` there"
            );
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = drain.requested() => return,
            }
        }
        tokio::select! {
            () = changed(watch) => {}
            () = tokio::time::sleep(CHECK) => {}
            () = drain.requested() => return,
        }
        tokio::time::sleep(SETTLE).await;
    }
}

fn watcher(settings: &Settings) -> io::Result<Inotify> {
    let inotify = Inotify::init()?;
    let mask = WatchMask::CLOSE_WRITE
        | WatchMask::MOVED_TO
        | WatchMask::MOVED_FROM
        | WatchMask::DELETE
        | WatchMask::ATTRIB
        | WatchMask::DELETE_SELF
        | WatchMask::MOVE_SELF
        | WatchMask::ONLYDIR;
    for folder in [&settings.net_dir, &settings.bin_dir] {
        inotify.watches().add(folder, mask)?;
    }
    Ok(inotify)
}

/// Waits until something happens in a folder; for ever where none could be watched.
async fn changed(watch: Option<Inotify>) {
    let Some(inotify) = watch.map(Arc::new) else {
        return std::future::pending().await;
    };
    loop {
        let waiting = Arc::clone(&inotify);
        let heard = move || {
            let mut ready = [PollFd::new(waiting.as_fd(), PollFlags::POLLIN)];
            poll(&mut ready, PollTimeout::from(LISTEN_MS)) != Ok(0)
        };
        if tokio::task::spawn_blocking(heard).await.unwrap_or(true) {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
