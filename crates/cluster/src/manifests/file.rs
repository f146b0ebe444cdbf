// SPDX-License-Identifier: Apache-2.0
//! One file of manifests: its contents and what it said before in, what it says now out.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;
use std::sync::Arc;

use xxhash_rust::xxh64::xxh64;

use super::Contents;
use crate::object::{Object, ObjectKey};
use crate::parse::{self, Finding, Format, Item};
use crate::problem::{Problem, Severity};

/// Problems beyond these are counted, not listed.
pub(super) const MAX_PROBLEMS_PER_FILE: usize = 100;

#[derive(Debug, Default)]
pub(super) struct File {
    pub(super) objects: HashMap<ObjectKey, Definition>,
    pub(super) problems: Vec<Problem>,
    /// What each document's text was found to say, so that one changed pod in a file of thousands costs one pod.
    parsed: HashMap<u64, Arc<Vec<Item>>>,
}

#[derive(Clone, Debug)]
pub(super) struct Definition {
    pub(super) line: Option<u32>,
    pub(super) object: Object,
}

impl File {
    pub(super) fn read(path: &Path, contents: Contents, old: &Self) -> Self {
        let mut new = Self::default();
        let mut report = Report {
            path,
            problems: Vec::new(),
            left_out: 0,
        };
        let kept = match contents.and_then(text) {
            Ok(text) => new.take(&text, format(path), old, &mut report),
            Err(reason) => {
                report.add(Severity::Error, None, None, None, reason);
                new.parsed.clone_from(&old.parsed);
                Kept::All
            }
        };
        let kept: Vec<&ObjectKey> = match &kept {
            Kept::All => old.objects.keys().collect(),
            Kept::These(keys) => keys.iter().collect(),
        };
        for key in kept {
            if let Some(definition) = old.objects.get(key) {
                new.objects
                    .entry(key.clone())
                    .or_insert_with(|| definition.clone());
            }
        }
        new.problems = report.finish();
        new
    }

    /// Takes what the documents say; gives back what must not be taken back.
    fn take(&mut self, text: &str, format: Format, old: &Self, report: &mut Report<'_>) -> Kept {
        let mut kept = Vec::new();
        let mut unclear = false;
        for document in parse::documents(text, format) {
            for item in self.parse(document.text, format, old).iter() {
                match item {
                    Item::Object { line, object } => {
                        let line = line.map(|line| line + document.lines_before);
                        self.define(
                            Definition {
                                line,
                                object: object.clone(),
                            },
                            report,
                        );
                    }
                    Item::Finding(finding) => {
                        report.finding(finding, document.lines_before);
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
    fn parse(&mut self, text: &str, format: Format, old: &Self) -> Arc<Vec<Item>> {
        let hash = xxh64(text.as_bytes(), 0);
        let known = self.parsed.get(&hash).or_else(|| old.parsed.get(&hash));
        let items = known.map_or_else(|| Arc::new(parse::parse(text, format)), Arc::clone);
        self.parsed.insert(hash, Arc::clone(&items));
        items
    }

    /// Adds a definition unless the file has one of that object already.
    fn define(&mut self, definition: Definition, report: &mut Report<'_>) {
        match self.objects.entry(definition.object.key()) {
            Entry::Vacant(entry) => {
                entry.insert(definition);
            }
            Entry::Occupied(first) => {
                let first = place(report.path, first.get().line);
                let reason = format!("is already defined in {first}, which stays in force");
                report.add(
                    Severity::Error,
                    definition.line,
                    Some(definition.object.key()),
                    None,
                    reason,
                );
            }
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
