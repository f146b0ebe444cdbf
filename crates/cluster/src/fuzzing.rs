// SPDX-License-Identifier: Apache-2.0
//! What hostile manifests and status files reach, without a directory around them.
//!
//! Built for the fuzz targets only.

use std::path::Path;

use crate::object::Object;
use crate::overlay::{self, Statement};
use crate::parse::{self, Format, Item};

/// The objects of a file's text.
pub fn manifests(text: &str, json: bool) -> Vec<Object> {
    let format = if json { Format::Json } else { Format::Yaml };
    let mut objects = Vec::new();
    // A lone carriage return breaks a line in YAML as well.
    let breaks = text.matches(['\n', '\r']).count();
    let lines = u32::try_from(breaks).unwrap_or(u32::MAX);
    for document in parse::documents(text, format) {
        for item in parse::parse(document.text, format) {
            match item {
                Item::Object { object, .. } => objects.push(object),
                Item::Finding(finding) => {
                    assert!(!finding.reason.is_empty());
                    let line = finding.line.map_or(0, |line| line + document.lines_before);
                    assert!(
                        line <= lines.saturating_add(1),
                        "line {line} of {lines}: {finding:?}"
                    );
                }
            }
        }
    }
    objects
}

/// Lays what a status file says over each of the objects of its kind.
pub fn status(path: &Path, text: &str, objects: &[Object]) {
    let Ok(statement) = Statement::from_path(path) else {
        return;
    };
    assert_eq!(statement.path(), path, "a place has one name");
    let Ok(mut partial) = overlay::parse(text, statement.object.kind) else {
        return;
    };
    for object in objects {
        if object.key().kind == statement.object.kind {
            partial.uid = object.uid().to_owned();
            let said = [(&statement.manager, &partial)];
            let _ = overlay::merge(object, said);
        }
    }
}
