// SPDX-License-Identifier: Apache-2.0
//! Which places of a directory tree to look at again, from inotify.
//!
//! A file is named once it is closed after writing, or renamed; a directory when it appears or goes. What is there
//! now, only a look can tell: a change says where to look, not what happened. So nothing is lost when events are
//! merged, and when the kernel's queue runs over the answer is to look everywhere.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::io;
use std::ops::Bound;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask, Watches};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::overlay::STATUS_DIRECTORY;

/// Where to look again. Paths are relative to the root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    pub(crate) files: BTreeSet<PathBuf>,
    /// Everything at and below these.
    pub(crate) directories: BTreeSet<PathBuf>,
    /// Files whose permissions may have changed: worth a look only if they could not be read before.
    pub(crate) permissions: BTreeSet<PathBuf>,
}

impl Changes {
    pub(crate) fn everything() -> Self {
        Self {
            directories: BTreeSet::from([PathBuf::new()]),
            ..Self::default()
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.directories.is_empty() && self.permissions.is_empty()
    }
}

/// What a name in a directory is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// May hold a manifest or a status.
    File,
    /// May be a directory to descend into.
    Directory,
    Ignored,
}

/// Judges a name by its place in the tree; whether it is a file or a directory is up to the caller.
pub(crate) fn judge(path: &Path, is_directory: bool) -> Place {
    let Some(name) = path.file_name().and_then(OsStr::to_str) else {
        return Place::Ignored;
    };
    let hidden = name.starts_with('.') && path != Path::new(STATUS_DIRECTORY);
    match path.extension().and_then(OsStr::to_str) {
        _ if hidden => Place::Ignored,
        _ if is_directory => Place::Directory,
        Some("json") => Place::File,
        Some("yaml" | "yml") if !path.starts_with(STATUS_DIRECTORY) => Place::File,
        _ => Place::Ignored,
    }
}

/// Kubernetes mounts a volume's files as links through `..data`, and swaps that link when they change.
fn is_volume_swap(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b"..")
}

#[derive(Debug)]
pub(crate) struct Watcher {
    inotify: Inotify,
    buffer: Vec<u8>,
    watches: Watches,
    root: PathBuf,
    paths: HashMap<WatchDescriptor, PathBuf>,
    descriptors: BTreeMap<PathBuf, WatchDescriptor>,
}

impl Watcher {
    pub(crate) fn new(root: PathBuf) -> io::Result<Self> {
        let inotify = Inotify::init()?;
        Ok(Self {
            watches: inotify.watches(),
            inotify,
            buffer: vec![0; 64 * 1024],
            root,
            paths: HashMap::new(),
            descriptors: BTreeMap::new(),
        })
    }

    /// Watches a directory, itself alone.
    pub(crate) fn watch(&mut self, directory: &Path) -> io::Result<()> {
        let mask = WatchMask::CLOSE_WRITE
            | WatchMask::CREATE
            | WatchMask::MOVED_TO
            | WatchMask::MOVED_FROM
            | WatchMask::DELETE
            | WatchMask::ATTRIB
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF
            | WatchMask::ONLYDIR;
        let descriptor = self.watches.add(self.root.join(directory), mask)?;
        if let Some(elsewhere) = self.paths.insert(descriptor.clone(), directory.to_owned()) {
            self.descriptors.remove(&elsewhere);
        }
        self.descriptors.insert(directory.to_owned(), descriptor);
        Ok(())
    }

    /// Stops to watch a directory and all below.
    pub(crate) fn unwatch(&mut self, directory: &Path) {
        let below: Vec<PathBuf> = self
            .descriptors
            .range::<Path, _>((Bound::Included(directory), Bound::Unbounded))
            .map(|(path, _)| path)
            .take_while(|path| path.starts_with(directory))
            .cloned()
            .collect();
        for path in below {
            if let Some(descriptor) = self.descriptors.remove(&path) {
                self.paths.remove(&descriptor);
                // It fails when the directory is gone and its watch with it: then all is as it should be.
                let _gone = self.watches.remove(descriptor);
            }
        }
    }

    /// Waits for something to happen and adds what it says to `changes`.
    pub(crate) fn wait(
        &mut self,
        until: Option<Instant>,
        closed: BorrowedFd<'_>,
        changes: &mut Changes,
    ) -> io::Result<Woken> {
        let timeout = match until {
            None => PollTimeout::NONE,
            // Rounded up, so that the deadline has passed when the time is over.
            Some(until) => {
                let left = until
                    .saturating_duration_since(Instant::now())
                    .as_micros()
                    .div_ceil(1000);
                PollTimeout::from(u16::try_from(left).unwrap_or(u16::MAX))
            }
        };
        let mut ready = [
            PollFd::new(self.inotify.as_fd(), PollFlags::POLLIN),
            PollFd::new(closed, PollFlags::POLLIN),
        ];
        match poll(&mut ready, timeout) {
            Err(nix::errno::Errno::EINTR) => return Ok(Woken::Events),
            Err(error) => return Err(error.into()),
            Ok(0) => return Ok(Woken::Timeout),
            Ok(_) if ready[1].any().unwrap_or(true) => return Ok(Woken::Closed),
            Ok(_) => {}
        }
        match self.inotify.read_events(&mut self.buffer) {
            Ok(events) => {
                for event in events {
                    note(&self.paths, event, changes, &self.root);
                }
                Ok(Woken::Events)
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                Ok(Woken::Events)
            }
            Err(error) => Err(error),
        }
    }
}

/// Waits; false as soon as nobody is interested any more.
pub(crate) fn pause(time: std::time::Duration, closed: BorrowedFd<'_>) -> bool {
    let milliseconds = u16::try_from(time.as_millis()).unwrap_or(u16::MAX);
    poll(
        &mut [PollFd::new(closed, PollFlags::POLLIN)],
        PollTimeout::from(milliseconds),
    ) == Ok(0)
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    Events,
    Timeout,
    /// Nobody is interested any more.
    Closed,
}

fn note(
    paths: &HashMap<WatchDescriptor, PathBuf>,
    event: inotify::Event<&OsStr>,
    changes: &mut Changes,
    root: &Path,
) {
    if event.mask.contains(EventMask::Q_OVERFLOW) {
        changes.directories.insert(PathBuf::new());
        return;
    }
    // Events of watches that were given up may still be on their way.
    let Some(directory) = paths.get(&event.wd) else {
        return;
    };
    let Some(name) = event.name else {
        // About the directory itself. Its parent says the same, except for the root, which has none.
        let gone =
            EventMask::DELETE_SELF | EventMask::MOVE_SELF | EventMask::UNMOUNT | EventMask::IGNORED;
        if directory.as_os_str().is_empty() && event.mask.intersects(gone) {
            changes.directories.insert(PathBuf::new());
        }
        return;
    };
    if is_volume_swap(name) {
        if event
            .mask
            .intersects(EventMask::MOVED_TO | EventMask::CREATE)
        {
            changes.directories.insert(directory.clone());
        }
        return;
    }
    let path = directory.join(name);
    let is_directory = event.mask.contains(EventMask::ISDIR);
    match judge(&path, is_directory) {
        Place::Directory => {
            if !event.mask.contains(EventMask::ATTRIB) {
                changes.directories.insert(path);
            }
        }
        Place::File if event.mask.contains(EventMask::ATTRIB) => {
            changes.permissions.insert(path);
        }
        Place::File => {
            // A new file is read once its writer closes it. Links are never written, nor closed.
            let unfinished = event.mask.contains(EventMask::CREATE) && !is_link(&root.join(&path));
            if !unfinished {
                changes.files.insert(path);
            }
        }
        Place::Ignored => {}
    }
}

/// A symbolic link, or a second name of a file.
fn is_link(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink() || found.nlink() > 1)
}
