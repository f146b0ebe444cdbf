// SPDX-License-Identifier: Apache-2.0
//! A cgroup for each pod, named as the kubelet names it, so that the node agent can tell whose a process is.
//!
//! ```text
//!  <cgroup file system>/culvert-<number>/kubepods/pod<uid>     every process of the pod
//! ```
//! Nothing is limited by it. Where this user may make no cgroups, as in most user namespaces, a lab goes without: then an
//! agent that has lost its memory finds no pod.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::lab::progress;

/// The cgroups of one lab, gone with it.
#[derive(Debug)]
pub struct Cgroups {
    /// None: none can be made.
    root: Option<PathBuf>,
}

impl Cgroups {
    /// Of the lab whose process this is.
    pub fn make() -> Self {
        match Self::try_to_make() {
            Ok(root) => Self { root: Some(root) },
            Err(error) => {
                progress(format!("pods have no cgroups: {error:#}"));
                Self { root: None }
            }
        }
    }

    /// Whether pods of labs that this user starts have cgroups.
    pub fn are_possible() -> bool {
        Self::make().root.is_some()
    }

    fn try_to_make() -> Result<PathBuf> {
        let mounts =
            std::fs::read_to_string("/proc/self/mountinfo").context("/proc/self/mountinfo")?;
        let mount = unified(&mounts).context("no file system of type cgroup2 is mounted")?;
        let root = mount.join(format!("culvert-{:08x}", rand::random::<u32>()));
        let root = root.join("kubepods");
        std::fs::create_dir_all(&root)
            .with_context(|| format!("cannot make {}", root.display()))?;
        Ok(root)
    }

    /// The cgroup of a pod, made if need be.
    pub fn of_pod(&self, uid: &str) -> Option<PathBuf> {
        let path = self.root.as_ref()?.join(format!("pod{uid}"));
        match std::fs::create_dir_all(&path) {
            Ok(()) => Some(path),
            Err(error) => {
                progress(format!("{}: {error}", path.display()));
                None
            }
        }
    }

    /// The pod's processes have ended.
    pub fn remove(&self, uid: &str) {
        if let Some(root) = &self.root {
            // What still ends in it keeps it; then it goes with the lab.
            let _kept = std::fs::remove_dir(root.join(format!("pod{uid}")));
        }
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        let Some(root) = &self.root else { return };
        for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
            let _kept = std::fs::remove_dir(entry.path());
        }
        let _kept = std::fs::remove_dir(root);
        if let Some(lab) = root.parent() {
            let _kept = std::fs::remove_dir(lab);
        }
    }
}

/// Puts the calling process into a cgroup.
pub fn enter(cgroup: &Path) -> Result<()> {
    let file = cgroup.join("cgroup.procs");
    // 0 is whoever writes it.
    std::fs::write(&file, "0").with_context(|| format!("cannot enter {}", file.display()))
}

/// Where cgroups of the second version are mounted, from `/proc/self/mountinfo`.
fn unified(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        let is_unified = file_system.split_whitespace().next() == Some("cgroup2");
        let place = mount.split_whitespace().nth(4)?;
        is_unified.then(|| place.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unified_hierarchy_is_found_among_the_mounts() {
        let mounts = "24 30 0:22 / /proc rw,nosuid - proc proc rw\n\
            35 25 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
            36 25 0:31 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(unified(mounts), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(unified("24 30 0:22 / /proc rw - proc proc rw\n"), None);
    }
}
