// SPDX-License-Identifier: Apache-2.0
//! The text of a file in, objects and what is wrong with the rest out. Pure.
//!
//! Each document, and each item of a list, stands for itself: one that is broken takes no other with it.

mod complete;
mod names;

use crate::decode::DecodeError;
use crate::kinds::known;
use crate::object::{Kind, Object, ObjectKey, with_type};
use crate::problem::Severity;
use crate::tree::{self, Node, Step, SyntaxError, Value};

use complete::read_typed;
pub(crate) use names::check_label;
pub use names::check_subdomain;
use names::key_of;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Yaml,
    Json,
}

/// What one document, or one item of a list, turned out to be. Lines count from the document's first one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Item {
    Object { line: Option<u32>, object: Object },
    Finding(Finding),
}

/// Something to report.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    pub(crate) line: Option<u32>,
    /// The object that could not be read, if that much is known.
    pub(crate) object: Option<ObjectKey>,
    pub(crate) field: Option<String>,
    pub(crate) reason: String,
}

/// A part of a file that is parsed on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Document<'t> {
    /// How many lines of the file come before it.
    pub(crate) lines_before: u32,
    pub(crate) text: &'t str,
}

/// Cuts a YAML file at its document markers. That is exact: a marker at the first column is nothing else, wherever
/// it stands. Thus a syntax error ends with its document. The marker's line belongs to the document that it begins.
pub(crate) fn documents(text: &str, format: Format) -> Vec<Document<'_>> {
    if format == Format::Json {
        return vec![Document {
            lines_before: 0,
            text,
        }];
    }
    let mut documents = Vec::new();
    let mut begin = |start: usize, end: usize, lines_before: u32| {
        documents.push(Document {
            lines_before,
            text: &text[start..end],
        });
    };
    let (mut start, mut lines_before, mut position) = (0, 0, 0);
    // Comments and directives before a marker belong to the document that it begins.
    let mut only_prologue = true;
    for (number, line) in (0_u32..).zip(text.split_inclusive('\n')) {
        let end = position + line.len();
        if is_marker(line, "---") {
            if !only_prologue {
                begin(start, position, lines_before);
                (start, lines_before) = (position, number);
            }
            only_prologue = false;
        } else if is_marker(line, "...") {
            begin(start, end, lines_before);
            (start, lines_before, only_prologue) = (end, number + 1, true);
        } else {
            only_prologue &= is_prologue(line);
        }
        position = end;
    }
    if !only_prologue || text[start..].lines().any(|line| line.starts_with('%')) {
        begin(start, text.len(), lines_before);
    }
    documents
}

fn is_marker(line: &str, marker: &str) -> bool {
    line.strip_prefix(marker)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
}

fn is_prologue(line: &str) -> bool {
    let line = line.trim_start_matches('\u{feff}').trim();
    line.is_empty() || line.starts_with(['#', '%'])
}

/// Reads one document.
pub(crate) fn parse(text: &str, format: Format) -> Vec<Item> {
    let mut reader = Reader {
        text,
        format,
        items: Vec::new(),
        searches_left: MAX_SEARCHES,
    };
    let nodes = match format {
        Format::Yaml => tree::from_yaml(text),
        Format::Json if text.trim().is_empty() => Ok(Vec::new()),
        Format::Json => tree::from_json(text).map(|node| vec![node]),
    };
    match nodes {
        Ok(nodes) => {
            for node in nodes.iter().filter(|node| !node.is_null()) {
                reader.read(node, &mut Vec::new(), Inherited::default());
            }
        }
        Err(SyntaxError { line, reason }) => reader.items.push(Item::Finding(Finding {
            severity: Severity::Error,
            line,
            object: None,
            field: None,
            reason,
        })),
    }
    reader.items
}

/// Reads the JSON of one object whose kind is known, as an API server hands it out; its own `apiVersion` and `kind`
/// don't count.
pub(crate) fn object(kind: Kind, json: &str) -> Result<Object, Box<Finding>> {
    let node = json_tree(json)?;
    typed(kind, &node)
}

/// As [`object`], of the metadata alone.
pub(crate) fn metadata(kind: Kind, json: &str) -> Result<Object, Box<Finding>> {
    let mut node = json_tree(json)?;
    if let Value::Mapping(entries) = &mut node.value {
        entries.retain(|(field, _)| field == "metadata");
    }
    typed(kind, &node)
}

/// Which object the JSON of one is about.
pub(crate) fn key(kind: Kind, json: &str) -> Result<ObjectKey, Box<Finding>> {
    let node = json_tree(json)?;
    key_of(&node, kind).map_err(|fault| finding(None, fault))
}

fn json_tree(json: &str) -> Result<Node<'_>, Box<Finding>> {
    tree::from_json(json).map_err(|error| {
        let fault = Fault {
            line: 0,
            path: Vec::new(),
            field: None,
            reason: error.reason,
        };
        finding(None, fault)
    })
}

fn typed(kind: Kind, node: &Node<'_>) -> Result<Object, Box<Finding>> {
    let key = key_of(node, kind).map_err(|fault| finding(None, fault))?;
    with_type!(kind, T => read_typed::<T>(node, &key))
        .map_err(|error| finding(Some(key), error.into()))
}

fn finding(object: Option<ObjectKey>, fault: Fault) -> Box<Finding> {
    Box::new(Finding {
        severity: Severity::Error,
        line: None,
        object,
        field: fault.field,
        reason: fault.reason,
    })
}

/// What the items of a typed list leave out.
#[derive(Clone, Copy, Default)]
struct Inherited<'a> {
    api_version: Option<&'a str>,
    kind: Option<&'a str>,
}

struct Reader<'t> {
    text: &'t str,
    format: Format,
    items: Vec<Item>,
    /// How many more lines may be searched for in JSON, since each search reads the whole text.
    searches_left: usize,
}

const MAX_SEARCHES: usize = 20;

/// An error without the name of the object it is about.
struct Fault {
    line: u32,
    path: Vec<Step>,
    field: Option<String>,
    reason: String,
}

impl Fault {
    fn new(node: &Node<'_>, fields: &[&str], reason: impl Into<String>) -> Self {
        Self {
            line: node.line,
            path: fields
                .iter()
                .map(|field| Step::Field((*field).to_owned()))
                .collect(),
            field: Some(fields.join(".")).filter(|field| !field.is_empty()),
            reason: reason.into(),
        }
    }
}

impl From<DecodeError> for Fault {
    fn from(error: DecodeError) -> Self {
        Self {
            line: error.line,
            path: error.path(),
            field: error.field(),
            reason: error.reason,
        }
    }
}

impl Reader<'_> {
    /// Reads a node that should be an object or a list of them. `path` leads to it from the document's root.
    fn read(&mut self, node: &Node<'_>, path: &mut Vec<Step>, inherited: Inherited<'_>) {
        let (api_version, kind_name) = match type_of(node, inherited) {
            Ok(found) => found,
            Err(fault) => return self.fault(path, None, fault),
        };
        if let Some(items) = list_items(node, kind_name) {
            return self.read_list(
                items,
                path,
                Inherited {
                    api_version: Some(api_version).filter(|_| kind_name != "List"),
                    kind: kind_name
                        .strip_suffix("List")
                        .filter(|kind| !kind.is_empty()),
                },
            );
        }
        match known::find(api_version, kind_name) {
            known::Found::Read(kind) => {
                let line = self.line(node, path);
                match key_of(node, kind) {
                    Ok(key) => match with_type!(kind, T => read_typed::<T>(node, &key)) {
                        Ok(object) => self.items.push(Item::Object { line, object }),
                        Err(error) => self.fault(path, Some(key), error.into()),
                    },
                    Err(fault) => self.fault(path, None, fault),
                }
            }
            known::Found::NotRead => {}
            known::Found::UnknownVersion(kind) => {
                let reason = format!(
                    "version {api_version} of {kind_name} is not understood; understood are {}",
                    kind.versions().join(", ")
                );
                let key = key_of(node, kind).ok();
                self.fault(path, key, Fault::new(node, &["apiVersion"], reason));
            }
            known::Found::UnknownKind => {
                let line = self.line(node, path);
                self.items.push(Item::Finding(Finding {
                    severity: Severity::Info,
                    line,
                    object: None,
                    field: None,
                    reason: format!("ignored: kind {kind_name} of {api_version} is not known"),
                }));
            }
        }
    }

    fn read_list(&mut self, items: &[Node<'_>], path: &mut Vec<Step>, inherited: Inherited<'_>) {
        path.push(Step::Field("items".to_owned()));
        for (index, item) in items.iter().enumerate() {
            path.push(Step::Index(index));
            self.read(item, path, inherited);
            path.pop();
        }
        path.pop();
    }

    fn fault(&mut self, path: &[Step], object: Option<ObjectKey>, fault: Fault) {
        let line = match self.format {
            Format::Yaml => Some(fault.line).filter(|line| *line > 0),
            Format::Json if self.searches_left == 0 => None,
            Format::Json => {
                self.searches_left -= 1;
                let full: Vec<Step> = path.iter().chain(&fault.path).cloned().collect();
                // The field itself may be missing; then the object's line has to do.
                tree::json_line(self.text, &full).or_else(|| tree::json_line(self.text, path))
            }
        };
        self.items.push(Item::Finding(Finding {
            severity: Severity::Error,
            line,
            object,
            field: fault.field,
            reason: fault.reason,
        }));
    }

    /// JSON's lines cost a search, and an object that is all right needs its own only when it is defined twice.
    fn line(&self, node: &Node<'_>, path: &[Step]) -> Option<u32> {
        match self.format {
            Format::Yaml => Some(node.line),
            Format::Json if path.is_empty() => Some(1),
            Format::Json => None,
        }
    }
}

fn type_of<'n>(node: &'n Node<'_>, inherited: Inherited<'n>) -> Result<(&'n str, &'n str), Fault> {
    if !matches!(node.value, Value::Mapping(_)) {
        return Err(Fault::new(
            node,
            &[],
            "expected an object with apiVersion, kind and metadata",
        ));
    }
    let text =
        |field: &'static str, inherited: Option<&'n str>| match (node.field(field), inherited) {
            (Some(value), _) => value
                .text()
                .ok_or_else(|| Fault::new(value, &[field], "expected a text")),
            (None, Some(inherited)) => Ok(inherited),
            (None, None) => Err(Fault::new(node, &[field], "is required")),
        };
    Ok((
        text("apiVersion", inherited.api_version)?,
        text("kind", inherited.kind)?,
    ))
}

/// The items if this is a list: `List`, or a known kind's name with `List` behind.
fn list_items<'n, 'i>(node: &'n Node<'i>, kind: &str) -> Option<&'n [Node<'i>]> {
    let item_kind = kind.strip_suffix("List")?;
    if !item_kind.is_empty() && !known::is_name(item_kind) {
        return None;
    }
    match &node.field("items")?.value {
        Value::Sequence(items) => Some(items),
        Value::Null => Some(&[]),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
