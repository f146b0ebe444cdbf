// SPDX-License-Identifier: Apache-2.0
//! A directory of manifests as a source of events: looks where the watch says and feeds what it finds to the manifests.
//!
//! A thread of its own reads and parses, so that a large change delays nobody else's work. It hands over one batch at
//! a time: a slow reader stalls only this thread, and finds everything that happened meanwhile in its next batch.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::manifests::{Contents, Manifests};
use crate::object::ObjectKey;
use crate::overlay::STATUS_DIRECTORY;
use crate::problem::{Problem, Severity};
use crate::source::{Batch, OpenError, Source};
use crate::watch::{Changes, Place, Watcher, Woken, judge, pause};

/// Larger files are refused.
pub(crate) const MAX_FILE_BYTES: u64 = 64 << 20;
const MAX_STATUS_BYTES: u64 = 1 << 20;
/// Directories nested deeper are not read.
const MAX_DEPTH: usize = 16;

/// Changes that follow each other this closely come in one batch …
const QUIET: Duration = Duration::from_millis(5);
/// … but none waits for longer than this.
const LATEST: Duration = Duration::from_millis(50);
/// How often to look while something can't be watched.
const POLL: Duration = Duration::from_secs(1);

/// A watched directory. Use it through the [`Source`] that `open` gives.
///
/// - Files named `*.yaml`, `*.yml` and `*.json` are read, in subdirectories too; other files and names that begin
///   with a dot are not, except for `.status`, which holds what [`StatusWriter`](crate::StatusWriter)s say.
/// - YAML files may hold several documents; lists (`List`, `PodList`) stand for their items.
/// - An object that no file defines any more is deleted. Of two definitions the one known first stays in force.
/// - What is broken keeps its last good state, and is listed in the batches' problems until it is mended.
/// - If the directory itself goes away, all objects stay until it is back.
#[derive(Debug)]
pub struct Directory {
    batches: mpsc::Receiver<Batch>,
    /// Its end tells the thread that nobody reads any more.
    _open: PipeWriter,
}

impl Directory {
    /// Starts to read and to watch `path`. Needs no runtime; the thread ends when the source is dropped.
    pub fn open(path: impl AsRef<Path>) -> Result<Source, OpenError> {
        let root = path.as_ref().to_owned();
        fs::read_dir(&root).map_err(|source| OpenError::Directory {
            path: root.clone(),
            source,
        })?;
        let watch = |source| OpenError::Watch {
            path: root.clone(),
            source,
        };
        let (closed, open) = io::pipe().map_err(watch)?;
        let watcher = Watcher::new(root.clone()).map_err(watch)?;
        let (sender, batches) = mpsc::channel(1);
        let reader = Reader {
            root,
            closed,
            watcher,
            manifests: Manifests::default(),
            troubles: Troubles::default(),
            unread: BTreeSet::new(),
        };
        std::thread::Builder::new()
            .name("cluster-directory".to_owned())
            .spawn(move || reader.run(&sender))
            .map_err(OpenError::Thread)?;
        Ok(Self {
            batches,
            _open: open,
        }
        .into())
    }

    pub(crate) async fn next(&mut self) -> Batch {
        self.batches
            .recv()
            .await
            .expect("broken invariant: the reading thread outlives its source")
    }
}

struct Reader {
    root: PathBuf,
    closed: PipeReader,
    watcher: Watcher,
    manifests: Manifests,
    troubles: Troubles,
    /// Files that are there and could not be read. Whatever it was may pass without their being touched: descriptors or
    /// memory that are short, a disk or a server that comes back.
    unread: BTreeSet<PathBuf>,
}

/// What can't be read or watched right now, other than single files.
#[derive(Default)]
struct Troubles {
    problems: std::collections::BTreeMap<PathBuf, Problem>,
}

impl Troubles {
    fn note(&mut self, path: &Path, severity: Severity, reason: String) {
        let problem = Problem {
            severity,
            file: path.to_owned(),
            line: None,
            object: None::<ObjectKey>,
            field: None,
            reason,
        };
        self.problems.insert(path.to_owned(), problem);
    }

    fn forget_below(&mut self, directory: &Path) {
        self.problems.retain(|path, _| !path.starts_with(directory));
    }

    /// Whether waiting for events is not enough.
    fn need_polling(&self) -> bool {
        self.problems
            .values()
            .any(|problem| problem.severity == Severity::Error)
    }
}

impl Reader {
    fn run(mut self, batches: &mpsc::Sender<Batch>) {
        let mut changes = Changes::everything();
        loop {
            self.look(&changes);
            if let Some(batch) = self.manifests.commit()
                && batches.blocking_send(batch).is_err()
            {
                return;
            }
            match self.changes() {
                Some(next) => changes = next,
                None => return,
            }
        }
    }

    /// Waits until something happened and then until it is quiet again. None when nobody reads any more.
    fn changes(&mut self) -> Option<Changes> {
        let mut changes = Changes::default();
        let poll = self.troubles.need_polling() || !self.unread.is_empty();
        let mut until = poll.then(|| Instant::now() + POLL);
        let mut latest = None;
        loop {
            match self.watcher.wait(until, self.closed.as_fd(), &mut changes) {
                Ok(Woken::Closed) => return None,
                Ok(Woken::Events) if changes.is_empty() => {}
                Ok(Woken::Events) => {
                    let latest = *latest.get_or_insert_with(|| Instant::now() + LATEST);
                    until = Some(latest.min(Instant::now() + QUIET));
                }
                Ok(Woken::Timeout) if changes.is_empty() => return Some(self.another_look()),
                Ok(Woken::Timeout) => return Some(changes),
                Err(error) => {
                    // Not known to happen; then looking from time to time must do.
                    tracing::error!(directory = %self.root.display(), %error, "watching for changes");
                    return pause(POLL, self.closed.as_fd()).then(Changes::everything);
                }
            }
        }
    }

    /// At what could not be seen last time.
    fn another_look(&self) -> Changes {
        if self.troubles.need_polling() {
            return Changes::everything();
        }
        Changes {
            files: self.unread.clone(),
            ..Changes::default()
        }
    }

    /// Looks at what may have changed.
    fn look(&mut self, changes: &Changes) {
        for directory in &changes.directories {
            self.look_at_directory(directory);
        }
        for file in &changes.files {
            if !changes
                .directories
                .iter()
                .any(|directory| file.starts_with(directory))
            {
                self.look_at_file(file);
            }
        }
        for file in &changes.permissions {
            if self.manifests.is_troubled(file) {
                self.look_at_file(file);
            }
        }
        self.manifests
            .set_directory_problems(self.troubles.problems.values().cloned().collect());
    }

    /// Compares everything at and below a directory with what is known.
    fn look_at_directory(&mut self, directory: &Path) {
        self.troubles.forget_below(directory);
        self.watcher.unwatch(directory);
        let mut found = BTreeSet::new();
        let mut lost = BTreeSet::new();
        self.walk(directory, &mut found, &mut lost);
        for known in self.manifests.known_below(directory) {
            // What can't be seen may still be there.
            if !found.contains(&known) && !lost.iter().any(|lost: &PathBuf| known.starts_with(lost))
            {
                self.manifests.forget(&known);
            }
        }
        for file in &found {
            self.look_at_file(file);
        }
    }

    /// Watches each directory before listing it, so that what appears in between is noticed.
    fn walk(
        &mut self,
        directory: &Path,
        found: &mut BTreeSet<PathBuf>,
        lost: &mut BTreeSet<PathBuf>,
    ) {
        let is_root = directory.as_os_str().is_empty();
        if directory.components().count() > MAX_DEPTH {
            self.troubles.note(
                directory,
                Severity::Warning,
                format!("not read: more than {MAX_DEPTH} directories deep"),
            );
            return;
        }
        let watched = self.watcher.watch(directory);
        let listed = fs::read_dir(self.root.join(directory))
            .and_then(|entries| entries.collect::<io::Result<Vec<_>>>());
        match (watched, listed) {
            (_, Err(error)) if is_absence(&error) && !is_root => {}
            (_, Err(error)) => {
                lost.insert(directory.to_owned());
                self.troubles.note(
                    directory,
                    Severity::Error,
                    format!("reading the directory: {error}"),
                );
            }
            (watched, Ok(entries)) => {
                if let Err(error) = watched {
                    let reason = format!(
                        "watching for changes (it is looked at each second instead): {error}"
                    );
                    self.troubles.note(directory, Severity::Error, reason);
                }
                for entry in entries {
                    self.walk_entry(directory, &entry, found, lost);
                }
            }
        }
    }

    fn walk_entry(
        &mut self,
        directory: &Path,
        entry: &fs::DirEntry,
        found: &mut BTreeSet<PathBuf>,
        lost: &mut BTreeSet<PathBuf>,
    ) {
        let path = directory.join(entry.file_name());
        let Ok(kind) = entry.file_type() else { return };
        match judge(&path, kind.is_dir()) {
            Place::Directory => self.walk(&path, found, lost),
            Place::File => {
                found.insert(path);
            }
            Place::Ignored if kind.is_symlink() && judge(&path, true) == Place::Directory => {
                let leads_to_directory =
                    fs::metadata(self.root.join(&path)).is_ok_and(|target| target.is_dir());
                if leads_to_directory {
                    let reason = "not read: a symbolic link to a directory".to_owned();
                    self.troubles.note(&path, Severity::Info, reason);
                }
            }
            Place::Ignored => {}
        }
    }

    fn look_at_file(&mut self, path: &Path) {
        self.unread.remove(path);
        match read(&self.root.join(path), limit(path)) {
            Found::Contents(contents) => self.manifests.read(path, contents),
            Found::Unreadable(error) => {
                self.unread.insert(path.to_owned());
                self.manifests.read(path, Err(error.to_string()));
            }
            Found::Nothing => self.manifests.forget(path),
        }
    }
}

enum Found {
    Contents(Contents),
    Unreadable(io::Error),
    Nothing,
}

fn limit(path: &Path) -> u64 {
    if path.starts_with(STATUS_DIRECTORY) {
        MAX_STATUS_BYTES
    } else {
        MAX_FILE_BYTES
    }
}

fn is_absence(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn read(path: &Path, limit: u64) -> Found {
    let contents = (|| {
        // Looked at first, since opening a pipe would wait for its other end.
        let metadata = fs::metadata(path)?;
        if !metadata.is_file() {
            return Ok(Err("not a regular file".to_owned()));
        }
        let mut bytes =
            Vec::with_capacity(usize::try_from(metadata.len().min(limit)).unwrap_or_default() + 1);
        fs::File::open(path)?
            .take(limit + 1)
            .read_to_end(&mut bytes)?;
        if bytes.len() as u64 > limit {
            return Ok(Err(format!("larger than {} MiB", limit >> 20)));
        }
        Ok(Ok(bytes))
    })();
    match contents {
        Ok(contents) => Found::Contents(contents),
        Err(error) if is_absence(&error) => Found::Nothing,
        Err(error) => Found::Unreadable(error),
    }
}
