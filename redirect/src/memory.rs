// SPDX-License-Identifier: Apache-2.0
//! Which sandbox each pod of this node runs in, kept on disk so that an agent that restarts knows its pods again.
//!
//! One file for each pod, `pods/<uid>.json` in the run directory, written beside and renamed.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use capture::NetnsId;
use serde::{Deserialize, Serialize};

/// A pod's network namespace, as the runtime announced it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub container_id: Option<String>,
    pub netns: PathBuf,
    pub dev: u64,
    pub ino: u64,
    pub ips: Vec<IpAddr>,
    /// Rules of ours may be in it.
    #[serde(default)]
    pub captured: bool,
}

impl Sandbox {
    pub fn netns_id(&self) -> NetnsId {
        NetnsId {
            dev: self.dev,
            ino: self.ino,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    #[error("{path}: {cause}")]
    Io { path: PathBuf, cause: io::Error },
    #[error("pod UID {0:?} can't name a file")]
    Uid(String),
}

#[derive(Debug)]
pub struct Memory {
    folder: PathBuf,
}

impl Memory {
    pub fn open(run_dir: &Path) -> Result<Self, MemoryError> {
        let folder = run_dir.join("pods");
        fs::create_dir_all(&folder).map_err(|cause| MemoryError::Io {
            path: folder.clone(),
            cause,
        })?;
        Ok(Self { folder })
    }

    /// All that is remembered, and what can't be read; a broken file costs that pod's memory alone.
    pub fn load(&self) -> Result<(BTreeMap<String, Sandbox>, Vec<MemoryError>), MemoryError> {
        let (mut sandboxes, mut broken) = (BTreeMap::new(), Vec::new());
        let failed = |path: PathBuf| move |cause| MemoryError::Io { path, cause };
        for entry in fs::read_dir(&self.folder).map_err(failed(self.folder.clone()))? {
            let path = entry.map_err(failed(self.folder.clone()))?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                // Left by a write that was cut off.
                _ = fs::remove_file(&path);
                continue;
            }
            match read(&path) {
                Ok(sandbox) => {
                    sandboxes.insert(sandbox.uid.clone(), sandbox);
                }
                Err(error) => broken.push(error),
            }
        }
        Ok((sandboxes, broken))
    }

    pub fn remember(&self, sandbox: &Sandbox) -> Result<(), MemoryError> {
        let path = self.file(&sandbox.uid)?;
        let beside = path.with_extension("tmp");
        let text =
            serde_json::to_vec_pretty(sandbox).expect("broken invariant: a sandbox is valid JSON");
        let written = fs::File::create(&beside).and_then(|mut file| {
            file.write_all(&text)?;
            file.sync_all()
        });
        written
            .and_then(|()| fs::rename(&beside, &path))
            .inspect_err(|_| {
                // On a full disk it would only take room.
                let _leftover = fs::remove_file(&beside);
            })
            .map_err(|cause| MemoryError::Io { path, cause })
    }

    pub fn forget(&self, uid: &str) -> Result<(), MemoryError> {
        let path = self.file(uid)?;
        match fs::remove_file(&path) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                Err(MemoryError::Io { path, cause })
            }
            _ => Ok(()),
        }
    }

    fn file(&self, uid: &str) -> Result<PathBuf, MemoryError> {
        let safe = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if uid.is_empty() || uid.len() > 200 || uid.starts_with('.') || !uid.chars().all(safe) {
            return Err(MemoryError::Uid(uid.to_owned()));
        }
        Ok(self.folder.join(format!("{uid}.json")))
    }
}

fn read(path: &Path) -> Result<Sandbox, MemoryError> {
    let failed = |cause| MemoryError::Io {
        path: path.to_owned(),
        cause,
    };
    let text = fs::read(path).map_err(failed)?;
    serde_json::from_slice(&text).map_err(|cause| failed(cause.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(uid: &str) -> Sandbox {
        Sandbox {
            uid: uid.into(),
            namespace: "shop".into(),
            name: "web".into(),
            container_id: None,
            netns: "/run/netns/web".into(),
            dev: 4,
            ino: 4026532000,
            ips: vec!["10.77.0.2".parse().unwrap()],
            captured: true,
        }
    }

    #[test]
    fn what_is_remembered_is_there_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let memory = Memory::open(folder.path()).unwrap();
        memory.remember(&sandbox("a")).unwrap();
        memory.remember(&sandbox("b")).unwrap();
        memory.forget("b").unwrap();
        memory.forget("b").unwrap();
        let (found, broken) = Memory::open(folder.path()).unwrap().load().unwrap();
        assert_eq!(found, [("a".to_owned(), sandbox("a"))].into());
        assert!(broken.is_empty());
    }

    #[test]
    fn a_broken_file_costs_one_pod_alone() {
        let folder = tempfile::tempdir().unwrap();
        let memory = Memory::open(folder.path()).unwrap();
        memory.remember(&sandbox("a")).unwrap();
        fs::write(folder.path().join("pods/b.json"), "{").unwrap();
        fs::write(folder.path().join("pods/c.tmp"), "{").unwrap();
        let (found, broken) = memory.load().unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(broken.len(), 1);
        assert!(broken[0].to_string().contains("b.json"), "{}", broken[0]);
        assert!(!folder.path().join("pods/c.tmp").exists());
    }

    #[test]
    fn a_uid_never_leaves_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let memory = Memory::open(folder.path()).unwrap();
        for uid in ["", "../x", "a/b", ".hidden"] {
            assert!(memory.remember(&sandbox(uid)).is_err(), "{uid:?}");
        }
    }
}
