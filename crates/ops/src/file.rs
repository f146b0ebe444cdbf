// SPDX-License-Identifier: Apache-2.0
//! Files that somebody else replaces while the process runs: mounted secrets, lists, key sets.
//!
//! They are looked at again and again, by their inode, length and times. No watch can be lost on the way, links that are
//! swapped count as what they lead to, and a file that is still being written is left until it has settled.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at};

/// How often a followed file is looked at. A change is taken once two looks in a row have found the same.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Tells one version of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileState {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileState {
    /// Of what `path` leads to now.
    ///
    /// # Errors
    /// It leads nowhere, or may not be looked at.
    pub fn of(path: &Path) -> io::Result<Self> {
        let metadata = std::fs::metadata(path)?;
        Ok(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            length: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

/// Which of several files are there, and in which version.
type Seen = Vec<Option<FileState>>;

/// Pure: what was taken for the files' state, and what may become it.
#[derive(Debug)]
struct Settling {
    taken: Seen,
    candidate: Option<Seen>,
}

impl Settling {
    /// Takes a look into account; true if the files have changed and settled.
    fn observe(&mut self, seen: Seen) -> bool {
        if seen == self.taken {
            self.candidate = None;
            return false;
        }
        if self.candidate.as_ref() != Some(&seen) {
            self.candidate = Some(seen);
            return false;
        }
        self.candidate = None;
        self.taken = seen;
        true
    }
}

/// Follows files that belong together.
#[derive(Debug)]
pub struct Followed {
    paths: Vec<PathBuf>,
    settling: Settling,
    ticks: tokio::time::Interval,
}

impl Followed {
    /// What the files are now counts as known. To be made before they are read: a change in between is then not missed.
    pub fn new(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let paths: Vec<_> = paths.into_iter().collect();
        let mut ticks = interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            settling: Settling {
                taken: look(&paths),
                candidate: None,
            },
            paths,
            ticks,
        }
    }

    /// Waits for the next look; true if the files have changed and settled since they were last said to. Dropping the
    /// future loses nothing.
    pub async fn look(&mut self) -> bool {
        self.ticks.tick().await;
        self.settling.observe(look(&self.paths))
    }

    /// Waits until the files have changed and settled. Dropping the future loses nothing.
    pub async fn changed(&mut self) {
        while !self.look().await {}
    }
}

fn look(paths: &[PathBuf]) -> Seen {
    paths.iter().map(|path| FileState::of(path).ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn state(length: u64) -> Option<FileState> {
        Some(FileState {
            device: 1,
            inode: 1,
            length,
            modified: (0, 0),
            changed: (0, 0),
        })
    }

    #[test]
    fn a_change_is_taken_once_it_has_settled_and_only_once() {
        let mut settling = Settling {
            taken: vec![state(1), None],
            candidate: None,
        };
        let mut check = |seen: [Option<FileState>; 2], expected: bool| {
            assert_eq!(settling.observe(seen.to_vec()), expected, "{seen:?}");
        };
        check([state(1), None], false);
        check([state(2), None], false);
        // Still being written.
        check([state(3), None], false);
        check([state(3), None], true);
        check([state(3), None], false);
        check([state(3), state(4)], false);
        // Back as it was before it settled.
        check([state(3), None], false);
        check([None, None], false);
        check([None, None], true);
    }

    #[tokio::test(start_paused = true)]
    async fn a_swapped_link_is_a_change_as_is_a_file_that_comes_and_goes() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for version in ["v1", "v2"] {
            fs::create_dir(at(version)).unwrap();
            fs::write(at(version).join("file"), version).unwrap();
        }
        symlink("v1", at("data")).unwrap();
        let mut followed = Followed::new([at("data").join("file"), at("other")]);
        assert!(!followed.look().await && !followed.look().await);
        symlink("v2", at("new")).unwrap();
        fs::rename(at("new"), at("data")).unwrap();
        followed.changed().await;
        fs::write(at("other"), "x").unwrap();
        followed.changed().await;
        fs::remove_file(at("other")).unwrap();
        let start = Instant::now();
        followed.changed().await;
        assert_eq!(start.elapsed(), LOOK_EVERY * 2);
    }
}
