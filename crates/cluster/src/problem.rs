// SPDX-License-Identifier: Apache-2.0
//! What is wrong with the input, in words that a person can act on: which file, line, object and field, and why.

use std::fmt;
use std::path::PathBuf;

use crate::object::ObjectKey;

/// How much a problem matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Nothing is wrong; something was left aside on purpose.
    Info,
    /// Taken as it is, but hardly what its author meant.
    Warning,
    /// Not taken: what was known before stays in force.
    Error,
}

/// One thing that is wrong at this moment. It is listed for as long as it holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Problem {
    pub severity: Severity,
    /// Relative to the directory that is read; empty when no single file is meant.
    pub file: PathBuf,
    /// Counted from 1.
    pub line: Option<u32>,
    pub object: Option<ObjectKey>,
    /// As in `spec.rules[0].from`.
    pub field: Option<String>,
    pub reason: String,
}

/// Problems beyond these are counted, not listed.
pub(crate) const MAX_LISTED: usize = 1000;

/// The worst first, up to a bound.
pub(crate) fn listed(mut problems: Vec<Problem>) -> Vec<Problem> {
    problems.sort_by(|a, b| b.severity.cmp(&a.severity).then_with(|| a.cmp(b)));
    if problems.len() > MAX_LISTED {
        let more = problems.len() - MAX_LISTED;
        problems.truncate(MAX_LISTED);
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

/// Prints `web.yaml:12: Service default/web: spec.ports[0].port: expected an integer`.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.file.as_os_str().is_empty() {
            write!(f, "{}", self.file.display())?;
            if let Some(line) = self.line {
                write!(f, ":{line}")?;
            }
            f.write_str(": ")?;
        }
        if let Some(object) = &self.object {
            write!(f, "{object}: ")?;
        }
        if let Some(field) = &self.field {
            write!(f, "{field}: ")?;
        }
        f.write_str(&self.reason)
    }
}
