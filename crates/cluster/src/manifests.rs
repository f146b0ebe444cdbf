// SPDX-License-Identifier: Apache-2.0
//! What all files together say: contents of files in, batches of changes out. Pure.
//!
//! ```text
//! read(file, contents) ─┐
//! forget(file) ─────────┼─► files, statements ──► commit() ─► Batch: what differs from the last one
//! ```
//!
//! Three rules keep one mistake from spreading. What a broken document said before stays in force; a file that is
//! broken as a whole takes nothing back; of two definitions of one object the first known one stays.

mod file;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh64::xxh64;

use crate::object::{Object, ObjectKey};
use crate::overlay::{self, PartialFile, STATUS_DIRECTORY, Statement};
use crate::problem::{Problem, Severity};
use crate::source::{Batch, Event};

use file::{Definition, File, place, text};

/// Problems beyond these are counted, not listed.
const MAX_PROBLEMS: usize = 1000;

/// What was found where a file should be.
pub(crate) type Contents = Result<Vec<u8>, String>;

#[derive(Debug, Default)]
pub(crate) struct Manifests {
    files: BTreeMap<PathBuf, File>,
    /// Which files define an object; the first is in force.
    definers: HashMap<ObjectKey, Vec<PathBuf>>,
    statements: HashMap<ObjectKey, BTreeMap<String, PartialFile>>,
    statement_problems: BTreeMap<PathBuf, Problem>,
    /// Problems of what was merged, by object.
    merge_problems: BTreeMap<ObjectKey, Vec<Problem>>,
    /// Problems of the directory itself.
    directory_problems: Vec<Problem>,
    /// Objects defined more than once.
    contested: BTreeSet<ObjectKey>,
    /// Objects to look at in the next commit.
    touched: BTreeSet<ObjectKey>,
    /// What the readers know. Fingerprints, since they keep what they need of the objects themselves.
    published: HashMap<ObjectKey, Fingerprint>,
    published_problems: Option<Vec<Problem>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fingerprint(u64, u64);

/// How an object is to be seen.
enum Effective {
    Absent,
    Present(Object),
    /// It can't be told; what was said before stays in force.
    Unclear,
}

impl Manifests {
    /// Takes the contents of a file, a manifest or a status by its place. `path` is relative to the directory.
    pub(crate) fn read(&mut self, path: &Path, contents: Contents) {
        if path.starts_with(STATUS_DIRECTORY) {
            self.read_statement(path, contents);
        } else {
            self.read_manifest(path, contents);
        }
    }

    /// The file is gone.
    pub(crate) fn forget(&mut self, path: &Path) {
        if path.starts_with(STATUS_DIRECTORY) {
            self.statement_problems.remove(path);
            if let Ok(statement) = Statement::from_path(path) {
                self.take_back(&statement);
            }
        } else if let Some(file) = self.files.remove(path) {
            for key in file.objects.keys() {
                self.undefine(key, path);
            }
        }
    }

    /// The files that are known below a directory; all of them for an empty path.
    pub(crate) fn known_below(&self, directory: &Path) -> Vec<PathBuf> {
        let below = |path: &PathBuf| path.starts_with(directory);
        let manifests = self
            .files
            .range::<Path, _>((Bound::Included(directory), Bound::Unbounded));
        let mut known: Vec<PathBuf> = manifests
            .map(|(path, _)| path)
            .take_while(|path| below(path))
            .cloned()
            .collect();
        if directory.as_os_str().is_empty() || directory.starts_with(STATUS_DIRECTORY) {
            known.extend(
                self.statement_problems
                    .keys()
                    .filter(|path| below(path))
                    .cloned(),
            );
            // The directory of one object comes and goes with it: that must not cost a look at all objects.
            match Statement::from_path(&directory.join("any.json")) {
                Ok(Statement { object, .. }) => known.extend(self.statement_paths(&object)),
                Err(_) => known.extend(
                    self.statements
                        .keys()
                        .flat_map(|key| self.statement_paths(key))
                        .filter(below),
                ),
            }
        }
        known
    }

    fn statement_paths(&self, object: &ObjectKey) -> impl Iterator<Item = PathBuf> {
        let managers = self
            .statements
            .get(object)
            .into_iter()
            .flat_map(BTreeMap::keys);
        managers.map(|manager| {
            Statement {
                object: object.clone(),
                manager: manager.clone(),
            }
            .path()
        })
    }

    /// Replaces the problems of the directory itself.
    pub(crate) fn set_directory_problems(&mut self, problems: Vec<Problem>) {
        self.directory_problems = problems;
    }

    /// Whether the file could not be read or understood.
    pub(crate) fn is_troubled(&self, path: &Path) -> bool {
        self.statement_problems.contains_key(path)
            || self
                .files
                .get(path)
                .is_some_and(|file| !file.problems.is_empty())
    }

    fn read_manifest(&mut self, path: &Path, contents: Contents) {
        let old = self.files.remove(path).unwrap_or_default();
        let new = File::read(path, contents, &old);
        self.replace(path, &old, new);
    }

    /// Puts a file's new contents in place of the old ones.
    fn replace(&mut self, path: &Path, old: &File, new: File) {
        for (key, definition) in &new.objects {
            let before = old.objects.get(key);
            if before.is_some_and(|before| before.object.is_same(&definition.object)) {
                continue;
            }
            if before.is_none() {
                let definers = self.definers.entry(key.clone()).or_default();
                definers.push(path.to_owned());
                if definers.len() > 1 {
                    self.contested.insert(key.clone());
                }
            }
            self.touched.insert(key.clone());
        }
        self.files.insert(path.to_owned(), new);
        for key in old.objects.keys() {
            if !self
                .files
                .get(path)
                .is_some_and(|file| file.objects.contains_key(key))
            {
                self.undefine(key, path);
            }
        }
    }

    fn undefine(&mut self, key: &ObjectKey, path: &Path) {
        if let Some(definers) = self.definers.get_mut(key) {
            definers.retain(|definer| definer != path);
            if definers.len() < 2 {
                self.contested.remove(key);
            }
            if definers.is_empty() {
                self.definers.remove(key);
            }
        }
        self.touched.insert(key.clone());
    }

    fn read_statement(&mut self, path: &Path, contents: Contents) {
        let problem = |severity, line, object, field, reason| Problem {
            severity,
            file: path.to_owned(),
            line,
            object,
            field,
            reason,
        };
        let result = match Statement::from_path(path) {
            Err(reason) => Err(problem(Severity::Info, None, None, None, reason)),
            Ok(statement) => contents
                .and_then(text)
                .map_err(|reason| (None, None, reason))
                .and_then(|text| overlay::parse(&text, statement.object.kind))
                .map(|partial| (statement.clone(), partial))
                .map_err(|(line, field, reason)| {
                    problem(Severity::Error, line, Some(statement.object), field, reason)
                }),
        };
        match result {
            Ok((Statement { object, manager }, partial)) => {
                self.statement_problems.remove(path);
                self.statements
                    .entry(object.clone())
                    .or_default()
                    .insert(manager, partial);
                self.touched.insert(object);
            }
            Err(problem) => {
                self.statement_problems.insert(path.to_owned(), problem);
            }
        }
    }

    fn take_back(&mut self, Statement { object, manager }: &Statement) {
        if let Some(managers) = self.statements.get_mut(object) {
            managers.remove(manager);
            if managers.is_empty() {
                self.statements.remove(object);
            }
            self.touched.insert(object.clone());
        }
    }

    /// What changed since the last commit; None when nothing did. The first commit always gives a batch.
    pub(crate) fn commit(&mut self) -> Option<Batch> {
        let mut deleted = Vec::new();
        let mut applied = Vec::new();
        for key in std::mem::take(&mut self.touched) {
            match self.effective(&key) {
                Effective::Absent => {
                    self.merge_problems.remove(&key);
                    if self.published.remove(&key).is_some() {
                        deleted.push(Event::Deleted(key));
                    }
                }
                Effective::Present(object) => {
                    let fingerprint = Fingerprint::of(&object);
                    if self.published.get(&key) != Some(&fingerprint) {
                        self.published.insert(key, fingerprint);
                        applied.push(Event::Applied(object));
                    }
                }
                Effective::Unclear => {}
            }
        }
        let problems = self.problems();
        let first = self.published_problems.is_none();
        let news = self.published_problems.as_ref() != Some(&problems);
        if deleted.is_empty() && applied.is_empty() && !news && !first {
            return None;
        }
        self.published_problems = Some(problems.clone());
        deleted.append(&mut applied);
        Some(Batch {
            events: deleted,
            problems,
        })
    }

    /// The object's manifest in force with all that is said about it.
    fn effective(&mut self, key: &ObjectKey) -> Effective {
        let definer = self.definers.get(key).and_then(|definers| definers.first());
        let file = definer.and_then(|definer| self.files.get(definer));
        let Some(Definition { object: base, .. }) = file.and_then(|file| file.objects.get(key))
        else {
            return Effective::Absent;
        };
        let Some(partials) = self.statements.get(key) else {
            self.merge_problems.remove(key);
            return Effective::Present(base.clone());
        };
        let problem = |file: PathBuf, field, reason| Problem {
            severity: Severity::Error,
            file,
            line: None,
            object: Some(key.clone()),
            field,
            reason,
        };
        let (effective, problems) = match overlay::merge(base, partials) {
            Ok(merged) => {
                let problems = merged.conflicts.into_iter().map(|conflict| {
                    let statement = Statement {
                        object: key.clone(),
                        manager: conflict.other,
                    };
                    let reason = format!(
                        "is already written by {}, which is believed",
                        conflict.believed
                    );
                    problem(statement.path(), Some(conflict.field), reason)
                });
                (Effective::Present(merged.object), problems.collect())
            }
            Err(error) => {
                let file = overlay::object_directory(key);
                (
                    Effective::Unclear,
                    vec![problem(file, Some("status".to_owned()), error.to_string())],
                )
            }
        };
        if problems.is_empty() {
            self.merge_problems.remove(key);
        } else {
            self.merge_problems.insert(key.clone(), problems);
        }
        effective
    }

    fn problems(&self) -> Vec<Problem> {
        let mut problems: Vec<Problem> = self.directory_problems.clone();
        problems.extend(self.contested.iter().flat_map(|key| self.contest(key)));
        problems.extend(self.merge_problems.values().flatten().cloned());
        problems.extend(self.statement_problems.values().cloned());
        problems.extend(self.files.values().flat_map(|file| &file.problems).cloned());
        problems.sort_by(|a, b| b.severity.cmp(&a.severity).then_with(|| a.cmp(b)));
        if problems.len() > MAX_PROBLEMS {
            let more = problems.len() - MAX_PROBLEMS;
            problems.truncate(MAX_PROBLEMS);
            problems.push(Problem {
                severity: Severity::Error,
                file: PathBuf::new(),
                line: None,
                object: None,
                field: None,
                reason: format!("{more} more problems are not listed"),
            });
        }
        problems
    }

    fn contest<'s>(&'s self, key: &'s ObjectKey) -> impl Iterator<Item = Problem> + 's {
        let definers = self.definers.get(key).map_or(&[][..], Vec::as_slice);
        let definition = |path: &Path| self.files.get(path).and_then(|file| file.objects.get(key));
        let place = definers.first().map(|path| {
            place(
                path,
                definition(path).and_then(|definition| definition.line),
            )
        });
        definers.iter().skip(1).map(move |path| Problem {
            severity: Severity::Error,
            file: path.clone(),
            line: definition(path).and_then(|definition| definition.line),
            object: Some(key.clone()),
            field: None,
            reason: format!(
                "is already defined in {}, which stays in force",
                place.as_deref().unwrap_or_default()
            ),
        })
    }
}

impl Fingerprint {
    fn of(object: &Object) -> Self {
        let text = object.to_json();
        Self(xxh64(&text, 1), xxh64(&text, 2))
    }
}

#[cfg(test)]
mod tests;
