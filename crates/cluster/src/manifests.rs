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
use std::sync::Arc;

use crate::object::ObjectKey;
use crate::overlay::{self, Partials, STATUS_DIRECTORY, Statement};
use crate::packed::{Fingerprint, Packed};
use crate::problem::{self, Problem, Severity};
use crate::source::{Batch, Events};

use file::{Definition, File, place, text};

/// What was found where a file should be.
pub(crate) type Contents = Result<Vec<u8>, String>;

#[derive(Debug, Default)]
pub(crate) struct Manifests {
    files: BTreeMap<Arc<Path>, File>,
    objects: HashMap<Arc<ObjectKey>, Known>,
    statements: HashMap<ObjectKey, Partials>,
    statement_problems: BTreeMap<PathBuf, Problem>,
    /// Problems of what was merged, by object.
    merge_problems: BTreeMap<ObjectKey, Vec<Problem>>,
    /// Problems of the directory itself.
    directory_problems: Vec<Problem>,
    /// Objects defined more than once.
    contested: BTreeSet<Arc<ObjectKey>>,
    /// Objects to look at in the next commit.
    touched: BTreeSet<Arc<ObjectKey>>,
    published_problems: Option<Vec<Problem>>,
}

/// What is known of an object, apart from what it says.
#[derive(Debug, Default)]
struct Known {
    /// The files that define it; the first is in force.
    definers: Vec<Arc<Path>>,
    /// What the readers know of it. A fingerprint, since they keep what they need of the object themselves.
    published: Option<Fingerprint>,
}

impl Known {
    fn is_forgotten(&self) -> bool {
        self.definers.is_empty() && self.published.is_none()
    }
}

/// How an object is to be seen.
enum Effective {
    Absent,
    Present(Packed),
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
            for key in file.keys() {
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
            .take_while(|path| path.starts_with(directory))
            .map(|path| path.to_path_buf())
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
            .flat_map(Partials::managers);
        managers.map(|manager| {
            Statement {
                object: object.clone(),
                manager: manager.to_owned(),
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
        let (path, old) = match self.files.remove_entry(path) {
            Some(known) => known,
            None => (Arc::from(path), File::default()),
        };
        let new = File::read(&path, contents, &old);
        self.replace(path, &old, new);
    }

    /// Puts a file's new contents in place of the old ones.
    fn replace(&mut self, path: Arc<Path>, old: &File, new: File) {
        for (key, definition) in new.definitions() {
            let before = old.definition(key);
            if before.is_some_and(|before| before.object.is_same(&definition.object)) {
                continue;
            }
            if before.is_none() {
                let known = self.objects.entry(Arc::clone(key)).or_default();
                if known.definers.is_empty() {
                    // Hardly any object has more than one.
                    known.definers.reserve_exact(1);
                }
                known.definers.push(Arc::clone(&path));
                if known.definers.len() > 1 {
                    self.contested.insert(Arc::clone(key));
                }
            }
            self.touched.insert(Arc::clone(key));
        }
        for key in old.keys() {
            if new.definition(key).is_none() {
                self.undefine(key, &path);
            }
        }
        self.files.insert(path, new);
    }

    fn undefine(&mut self, key: &Arc<ObjectKey>, path: &Path) {
        if let Some(known) = self.objects.get_mut(key) {
            known.definers.retain(|definer| **definer != *path);
            if known.definers.len() < 2 {
                self.contested.remove(key);
            }
            if known.is_forgotten() {
                self.objects.remove(key);
            }
        }
        self.touched.insert(Arc::clone(key));
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
                self.touch(&object);
                self.statements
                    .entry(object)
                    .or_default()
                    .insert(&manager, partial);
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
            self.touch(object);
        }
    }

    /// Has the next commit look at an object, if any file defines it or the readers know of it.
    fn touch(&mut self, object: &ObjectKey) {
        if let Some((key, _)) = self.objects.get_key_value(object) {
            self.touched.insert(Arc::clone(key));
        }
    }

    /// What changed since the last commit; None when nothing did. The first commit always gives a batch.
    pub(crate) fn commit(&mut self) -> Option<Batch> {
        let mut events = Events::default();
        let mut applied = Events::default();
        for key in std::mem::take(&mut self.touched) {
            match self.effective(&key) {
                Effective::Absent => {
                    self.merge_problems.remove(&*key);
                    let known = self.objects.remove(&key);
                    if known.is_some_and(|known| known.published.is_some()) {
                        events.deleted(ObjectKey::clone(&key));
                    }
                }
                Effective::Present(object) => {
                    let fingerprint = Some(object.fingerprint());
                    let known = self.objects.entry(key).or_default();
                    if known.published != fingerprint {
                        known.published = fingerprint;
                        applied.applied(object);
                    }
                }
                Effective::Unclear => {}
            }
        }
        events.append(applied);
        let problems = self.problems();
        let first = self.published_problems.is_none();
        let news = self.published_problems.as_ref() != Some(&problems);
        if events.is_empty() && !news && !first {
            return None;
        }
        self.published_problems = Some(problems.clone());
        Some(Batch { events, problems })
    }

    /// The object's manifest in force with all that is said about it.
    fn effective(&mut self, key: &ObjectKey) -> Effective {
        let definer = self
            .objects
            .get(key)
            .and_then(|known| known.definers.first());
        let file = definer.and_then(|definer| self.files.get(definer));
        let Some(Definition { object: base, .. }) = file.and_then(|file| file.definition(key))
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
        let (effective, problems) = match overlay::merge(&base.unpack(), &partials.read()) {
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
                (
                    Effective::Present(Packed::new(&merged.object)),
                    problems.collect(),
                )
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
        let mut problems = self.directory_problems.clone();
        problems.extend(self.contested.iter().flat_map(|key| self.contest(key)));
        problems.extend(self.merge_problems.values().flatten().cloned());
        problems.extend(self.statement_problems.values().cloned());
        problems.extend(self.files.values().flat_map(|file| &file.problems).cloned());
        problem::listed(problems)
    }

    fn contest<'s>(&'s self, key: &'s ObjectKey) -> impl Iterator<Item = Problem> + 's {
        let known = self.objects.get(key);
        let definers = known.map_or(&[][..], |known| known.definers.as_slice());
        let definition = |path: &Path| self.files.get(path).and_then(|file| file.definition(key));
        let place = definers.first().map(|path| {
            place(
                path,
                definition(path).and_then(|definition| definition.line),
            )
        });
        definers.iter().skip(1).map(move |path| Problem {
            severity: Severity::Error,
            file: path.to_path_buf(),
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

#[cfg(test)]
mod tests;
