// SPDX-License-Identifier: Apache-2.0
//! One file of manifests: its contents and what it said before in, what it says now out.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;
use std::sync::Arc;

use xxhash_rust::xxh64::xxh64;

use super::Contents;
use crate::object::ObjectKey;
use crate::packed::Packed;
use crate::parse::{self, Finding, Format, Item};
use crate::problem::{Problem, Severity};

/// Problems beyond these are counted, not listed.
pub(super) const MAX_PROBLEMS_PER_FILE: usize = 100;

/// Most files hold one object, and there are many of them: what a file says is kept in sorted slices of exact size.
#[derive(Debug, Default)]
pub(super) struct File {
    objects: Box<[(Arc<ObjectKey>, Definition)]>,
    pub(super) problems: Vec<Problem>,
    /// What each document's text was found to say, so that one changed pod in a file of thousands costs one pod.
    parsed: Box<[(u64, Arc<[Piece]>)]>,
}

#[derive(Clone, Debug)]
pub(super) struct Definition {
    pub(super) line: Option<u32>,
    pub(super) object: Packed,
}

/// What is kept of an [`Item`].
#[derive(Debug)]
enum Piece {
    Object {
        line: Option<u32>,
        key: Arc<ObjectKey>,
        object: Packed,
    },
    Finding(Box<Finding>),
}

impl From<Item> for Piece {
    fn from(item: Item) -> Self {
        match item {
            Item::Object { line, object } => Self::Object {
                line,
                key: Arc::new(object.key()),
                object: Packed::new(&object),
            },
            Item::Finding(finding) => Self::Finding(Box::new(finding)),
        }
    }
}

impl File {
    pub(super) fn read(path: &Path, contents: Contents, old: &Self) -> Self {
        let mut reading = Reading {
            old,
            objects: HashMap::new(),
            parsed: HashMap::new(),
            report: Report {
                path,
                problems: Vec::new(),
                left_out: 0,
            },
        };
        let kept = match contents.and_then(text) {
            Ok(text) => reading.take(&text, format(path)),
            Err(reason) => {
                reading
                    .report
                    .add(Severity::Error, None, None, None, reason);
                reading.parsed.extend(old.parsed.iter().cloned());
                Kept::All
            }
        };
        let kept: Vec<(&Arc<ObjectKey>, &Definition)> = match &kept {
            Kept::All => old.definitions().collect(),
            Kept::These(keys) => {
                let known = keys.iter().filter_map(|key| old.entry(key));
                known.collect()
            }
        };
        for (key, definition) in kept {
            reading
                .objects
                .entry(Arc::clone(key))
                .or_insert_with(|| definition.clone());
        }
        reading.finish()
    }

    pub(super) fn definitions(&self) -> impl Iterator<Item = (&Arc<ObjectKey>, &Definition)> {
        self.objects
            .iter()
            .map(|(key, definition)| (key, definition))
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &Arc<ObjectKey>> {
        self.objects.iter().map(|(key, _)| key)
    }

    pub(super) fn definition(&self, key: &ObjectKey) -> Option<&Definition> {
        self.entry(key).map(|(_, definition)| definition)
    }

    fn entry(&self, key: &ObjectKey) -> Option<(&Arc<ObjectKey>, &Definition)> {
        let found = self
            .objects
            .binary_search_by(|(known, _)| (**known).cmp(key));
        let (key, definition) = &self.objects[found.ok()?];
        Some((key, definition))
    }

    fn parsed(&self, hash: u64) -> Option<&Arc<[Piece]>> {
        let found = self.parsed.binary_search_by_key(&hash, |(known, _)| *known);
        Some(&self.parsed[found.ok()?].1)
    }
}

/// A file while it is being read.
struct Reading<'a> {
    old: &'a File,
    objects: HashMap<Arc<ObjectKey>, Definition>,
    parsed: HashMap<u64, Arc<[Piece]>>,
    report: Report<'a>,
}

impl Reading<'_> {
    /// Takes what the documents say; gives back what must not be taken back.
    fn take(&mut self, text: &str, format: Format) -> Kept {
        let mut kept = Vec::new();
        let mut unclear = false;
        for document in parse::documents(text, format) {
            for piece in self.parse(document.text, format).iter() {
                match piece {
                    Piece::Object { line, key, object } => {
                        let line = line.map(|line| line + document.lines_before);
                        let object = object.clone();
                        self.define(key, Definition { line, object });
                    }
                    Piece::Finding(finding) => {
                        self.report.finding(finding, document.lines_before);
                        if finding.severity == Severity::Error {
                            unclear |= finding.object.is_none();
                            kept.extend(finding.object.clone());
                        }
                    }
                }
            }
        }
        if unclear {
            Kept::All
        } else {
            Kept::These(kept)
        }
    }

    /// Parses a document, unless its text was parsed before.
    fn parse(&mut self, text: &str, format: Format) -> Arc<[Piece]> {
        let hash = xxh64(text.as_bytes(), 0);
        let known = self.parsed.get(&hash).or_else(|| self.old.parsed(hash));
        let pieces = known.map_or_else(
            || {
                parse::parse(text, format)
                    .into_iter()
                    .map(Piece::from)
                    .collect()
            },
            Arc::clone,
        );
        self.parsed.insert(hash, Arc::clone(&pieces));
        pieces
    }

    /// Adds a definition unless the file has one of that object already.
    fn define(&mut self, key: &Arc<ObjectKey>, definition: Definition) {
        match self.objects.entry(Arc::clone(key)) {
            Entry::Vacant(entry) => {
                entry.insert(definition);
            }
            Entry::Occupied(first) => {
                let first = place(self.report.path, first.get().line);
                let reason = format!("is already defined in {first}, which stays in force");
                let object = Some(ObjectKey::clone(key));
                self.report
                    .add(Severity::Error, definition.line, object, None, reason);
            }
        }
    }

    fn finish(self) -> File {
        let mut objects: Box<[_]> = self.objects.into_iter().collect();
        objects.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let mut parsed: Box<[_]> = self.parsed.into_iter().collect();
        parsed.sort_unstable_by_key(|(hash, _)| *hash);
        File {
            objects,
            problems: self.report.finish(),
            parsed,
        }
    }
}

/// Which objects keep their last good definition unless the file gives a new one.
enum Kept {
    /// Those whose definition is broken.
    These(Vec<ObjectKey>),
    /// Nobody knows which objects the broken part speaks of.
    All,
}

/// Collects a file's problems, up to a bound.
struct Report<'p> {
    path: &'p Path,
    problems: Vec<Problem>,
    left_out: usize,
}

impl Report<'_> {
    fn add(
        &mut self,
        severity: Severity,
        line: Option<u32>,
        object: Option<ObjectKey>,
        field: Option<String>,
        reason: String,
    ) {
        if self.problems.len() < MAX_PROBLEMS_PER_FILE {
            let file = self.path.to_owned();
            self.problems.push(Problem {
                severity,
                file,
                line,
                object,
                field,
                reason,
            });
        } else {
            self.left_out += 1;
        }
    }

    fn finding(&mut self, finding: &Finding, lines_before: u32) {
        let line = finding.line.map(|line| line + lines_before);
        let Finding {
            object,
            field,
            reason,
            ..
        } = finding.clone();
        self.add(finding.severity, line, object, field, reason);
    }

    fn finish(mut self) -> Vec<Problem> {
        if self.left_out > 0 {
            self.problems.push(Problem {
                severity: Severity::Error,
                file: self.path.to_owned(),
                line: None,
                object: None,
                field: None,
                reason: format!("{} more problems are not listed", self.left_out),
            });
        }
        self.problems
    }
}

pub(super) fn place(path: &Path, line: Option<u32>) -> String {
    match line {
        Some(line) => format!("{}:{line}", path.display()),
        None => path.display().to_string(),
    }
}

pub(super) fn text(bytes: Vec<u8>) -> Result<String, String> {
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.iter().filter(|byte| **byte == b'\n').count() + 1;
        format!("not valid UTF-8 in line {line}")
    })
}

fn format(path: &Path) -> Format {
    match path.extension().and_then(std::ffi::OsStr::to_str) {
        Some("json") => Format::Json,
        _ => Format::Yaml,
    }
}
