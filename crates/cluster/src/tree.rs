// SPDX-License-Identifier: Apache-2.0
//! The text of one document as a tree whose nodes know their line.
//!
//! YAML and JSON end up in the same tree, so that all that follows has one way to read and one way to say where
//! something is wrong. YAML scalars are resolved by the core schema of YAML 1.2: `yes` and `on` are text. Bounds hold
//! for nesting and for what aliases may expand to.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use granit_parser::{Event, Options, Parser, ScalarStyle, Tag};

mod json;

pub(crate) use json::{from_json, json_line};

/// No manifest nests deeper; what does is no manifest.
pub(crate) const MAX_DEPTH: usize = 64;

/// How many nodes the aliases of one document may add to it.
const MAX_ALIASED_NODES: usize = 100_000;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node<'i> {
    /// Counted from 1; 0 when unknown, as in JSON until somebody asks.
    pub(crate) line: u32,
    pub(crate) value: Value<'i>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value<'i> {
    Null,
    Bool(bool),
    Integer(i64),
    Unsigned(u64),
    Float(f64),
    Text(Cow<'i, str>),
    Sequence(Vec<Node<'i>>),
    Mapping(Vec<(Cow<'i, str>, Node<'i>)>),
}

impl<'i> Node<'i> {
    pub(crate) fn field(&self, name: &str) -> Option<&Self> {
        match &self.value {
            Value::Mapping(entries) => entries
                .iter()
                .find(|(key, _)| key == name)
                .map(|(_, node)| node),
            _ => None,
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn is_null(&self) -> bool {
        matches!(self.value, Value::Null)
    }

    fn size(&self) -> usize {
        match &self.value {
            Value::Sequence(items) => 1 + items.iter().map(Self::size).sum::<usize>(),
            Value::Mapping(entries) => {
                1 + entries.iter().map(|(_, node)| node.size()).sum::<usize>()
            }
            _ => 1,
        }
    }
}

/// One step from a node to a node within.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Field(String),
    Index(usize),
}

/// Why a text is not a document.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SyntaxError {
    pub(crate) line: Option<u32>,
    pub(crate) reason: String,
}

impl SyntaxError {
    fn new(line: u32, reason: impl Into<String>) -> Self {
        Self {
            line: Some(line),
            reason: reason.into(),
        }
    }
}

/// Reads YAML. One text may hold several documents when they are ended by `...`.
pub(crate) fn from_yaml(text: &str) -> Result<Vec<Node<'_>>, SyntaxError> {
    let mut options = Options::default();
    options.flow_nesting_limit = MAX_DEPTH;
    options.block_nesting_limit = MAX_DEPTH;
    options.set_emit_comments(false);
    let mut builder = Builder::default();
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, span) = event.map_err(|error| SyntaxError {
            line: line(error.marker().line()),
            reason: format!("not valid YAML: {}", error.info()),
        })?;
        builder.event(event, line(span.start.line()).unwrap_or(0))?;
    }
    Ok(builder.documents)
}

fn line(line: usize) -> Option<u32> {
    u32::try_from(line).ok().filter(|line| *line > 0)
}

/// Puts the parser's events together. A stack of its own instead of recursion.
#[derive(Default)]
struct Builder<'i> {
    documents: Vec<Node<'i>>,
    open: Vec<Open<'i>>,
    anchors: HashMap<usize, Node<'i>>,
    aliased: usize,
}

/// A collection whose end has not been seen yet.
struct Open<'i> {
    line: u32,
    anchor: usize,
    content: Content<'i>,
}

enum Content<'i> {
    Sequence(Vec<Node<'i>>),
    Mapping {
        entries: Vec<(Cow<'i, str>, Node<'i>)>,
        merges: Vec<Node<'i>>,
        key: Option<Key<'i>>,
    },
}

enum Key<'i> {
    Field(Cow<'i, str>),
    /// `<<`: the value's entries are taken over unless they are given here.
    Merge,
}

impl<'i> Builder<'i> {
    fn event(&mut self, event: Event<'i>, line: u32) -> Result<(), SyntaxError> {
        match event {
            Event::DocumentStart(..) => {
                self.anchors.clear();
                self.aliased = 0;
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.scalar(text, style, anchor, tag.as_deref(), line)
            }
            Event::SequenceStart(_, anchor, _) => {
                self.start(line, anchor, Content::Sequence(Vec::new()))
            }
            Event::MappingStart(_, anchor, _) => self.start(
                line,
                anchor,
                Content::Mapping {
                    entries: Vec::new(),
                    merges: Vec::new(),
                    key: None,
                },
            ),
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => self.alias(anchor, line),
            _ => Ok(()),
        }
    }

    fn start(&mut self, line: u32, anchor: usize, content: Content<'i>) -> Result<(), SyntaxError> {
        if self.open.len() == MAX_DEPTH {
            return Err(SyntaxError::new(
                line,
                format!("nested more than {MAX_DEPTH} levels deep"),
            ));
        }
        self.open.push(Open {
            line,
            anchor,
            content,
        });
        Ok(())
    }

    fn end(&mut self) -> Result<(), SyntaxError> {
        let Some(Open {
            line,
            anchor,
            content,
        }) = self.open.pop()
        else {
            return Ok(());
        };
        let value = match content {
            Content::Sequence(items) => Value::Sequence(items),
            Content::Mapping {
                mut entries,
                merges,
                ..
            } => {
                refuse_duplicates(&entries)?;
                for merge in merges {
                    merge_into(&mut entries, merge)?;
                }
                Value::Mapping(entries)
            }
        };
        self.place(Node { line, value }, anchor)
    }

    fn alias(&mut self, anchor: usize, line: u32) -> Result<(), SyntaxError> {
        let Some(node) = self.anchors.get(&anchor) else {
            return Err(SyntaxError::new(
                line,
                "an alias inside of what it stands for",
            ));
        };
        self.aliased += node.size();
        if self.aliased > MAX_ALIASED_NODES {
            return Err(SyntaxError::new(
                line,
                format!("aliases expand to more than {MAX_ALIASED_NODES} nodes"),
            ));
        }
        let node = node.clone();
        if self.open.len() + depth(&node) > MAX_DEPTH {
            return Err(SyntaxError::new(
                line,
                format!("nested more than {MAX_DEPTH} levels deep"),
            ));
        }
        self.place(node, 0)
    }

    fn scalar(
        &mut self,
        text: Cow<'i, str>,
        style: ScalarStyle,
        anchor: usize,
        tag: Option<&Tag>,
        line: u32,
    ) -> Result<(), SyntaxError> {
        // A mapping's key is text however it looks; only a plain << is special.
        if let Some(Open {
            content: Content::Mapping {
                key: key @ None, ..
            },
            ..
        }) = self.open.last_mut()
        {
            let merge = text == "<<" && style == ScalarStyle::Plain;
            *key = Some(if merge { Key::Merge } else { Key::Field(text) });
            return Ok(());
        }
        let value = match tag {
            Some(tag) if tag.is_custom() => {
                return Err(SyntaxError::new(
                    line,
                    format!("unknown tag {}", tag.original()),
                ));
            }
            Some(tag) if tag.is_yaml_core_schema_tag("str") => Value::Text(text),
            _ if style == ScalarStyle::Plain => resolve(text),
            _ => Value::Text(text),
        };
        self.place(Node { line, value }, anchor)
    }

    /// Puts a finished node where it belongs: into the innermost open collection, or out as a document.
    fn place(&mut self, node: Node<'i>, anchor: usize) -> Result<(), SyntaxError> {
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut().map(|open| &mut open.content) {
            None => self.documents.push(node),
            Some(Content::Sequence(items)) => items.push(node),
            Some(Content::Mapping {
                entries,
                merges,
                key,
            }) => match key.take() {
                Some(Key::Field(name)) => entries.push((name, node)),
                Some(Key::Merge) => merges.push(node),
                None => return Err(SyntaxError::new(node.line, "a key must be a plain text")),
            },
        }
        Ok(())
    }
}

fn depth(node: &Node<'_>) -> usize {
    match &node.value {
        Value::Sequence(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Mapping(entries) => {
            1 + entries
                .iter()
                .map(|(_, node)| depth(node))
                .max()
                .unwrap_or(0)
        }
        _ => 0,
    }
}

fn refuse_duplicates(entries: &[(Cow<'_, str>, Node<'_>)]) -> Result<(), SyntaxError> {
    let mut seen = HashSet::with_capacity(entries.len());
    match entries.iter().find(|(key, _)| !seen.insert(key.as_ref())) {
        None => Ok(()),
        Some((key, node)) => Err(SyntaxError::new(
            node.line,
            format!("key {key:?} is given twice"),
        )),
    }
}

fn merge_into<'i>(
    entries: &mut Vec<(Cow<'i, str>, Node<'i>)>,
    from: Node<'i>,
) -> Result<(), SyntaxError> {
    match from.value {
        Value::Mapping(more) => {
            for (key, node) in more {
                if !entries.iter().any(|(present, _)| *present == key) {
                    entries.push((key, node));
                }
            }
            Ok(())
        }
        Value::Sequence(several) => several
            .into_iter()
            .try_for_each(|one| merge_into(entries, one)),
        _ => Err(SyntaxError::new(
            from.line,
            "<< takes a mapping or a list of mappings",
        )),
    }
}

/// What a plain scalar means.
fn resolve(text: Cow<'_, str>) -> Value<'_> {
    match text.as_ref() {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        other => number(other).unwrap_or(Value::Text(text)),
    }
}

fn number(text: &str) -> Option<Value<'static>> {
    if let Some(hex) = text.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok().map(Value::Unsigned);
    }
    if let Some(octal) = text.strip_prefix("0o") {
        return u64::from_str_radix(octal, 8).ok().map(Value::Unsigned);
    }
    // Rust also takes `inf`, `nan` and the like, which are text here.
    if !text.bytes().any(|byte| byte.is_ascii_digit())
        || !text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'))
    {
        return None;
    }
    text.parse()
        .map(Value::Integer)
        .or_else(|_| text.parse().map(Value::Unsigned))
        .or_else(|_| text.parse().map(Value::Float))
        .ok()
}

#[cfg(test)]
mod tests;
