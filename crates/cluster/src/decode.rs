// SPDX-License-Identifier: Apache-2.0
//! From a tree to a typed object; an error says at which line and in which field.
//!
//! As in Kubernetes, a field whose value is `null` counts as absent.

use std::fmt;

use serde::de::{self, DeserializeOwned, DeserializeSeed, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;

use crate::tree::{Node, Step, Value};

/// What keeps a tree from becoming a typed object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DecodeError {
    /// 0 when unknown.
    pub(crate) line: u32,
    /// Innermost step first, since it is found from within.
    steps: Vec<Step>,
    pub(crate) reason: String,
}

impl DecodeError {
    fn new(reason: String) -> Self {
        Self {
            line: 0,
            steps: Vec::new(),
            reason,
        }
    }

    fn within(mut self, step: Step, line: u32) -> Self {
        if self.line == 0 {
            self.line = line;
        }
        self.steps.push(step);
        self
    }

    /// The steps from the root.
    pub(crate) fn path(&self) -> Vec<Step> {
        self.steps.iter().rev().cloned().collect()
    }

    /// As in `spec.rules[0].from`; none when the object as a whole is wrong.
    pub(crate) fn field(&self) -> Option<String> {
        let mut field = String::new();
        for step in self.steps.iter().rev() {
            match step {
                Step::Index(index) => field.push_str(&format!("[{index}]")),
                // A key such as a label's name holds dots of its own.
                Step::Field(name) if name.contains('.') => field.push_str(&format!("[{name:?}]")),
                Step::Field(name) if field.is_empty() => field.push_str(name),
                Step::Field(name) => {
                    field.push('.');
                    field.push_str(name);
                }
            }
        }
        Some(field).filter(|field| !field.is_empty())
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for DecodeError {}

impl de::Error for DecodeError {
    fn custom<T: fmt::Display>(reason: T) -> Self {
        Self::new(reason.to_string())
    }

    fn invalid_type(found: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::new(format!("expected {}, found {found}", plain(expected)))
    }

    fn invalid_value(found: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::new(format!("expected {}, found {found}", plain(expected)))
    }
}

/// Rust's names of types in words.
fn plain(expected: &dyn de::Expected) -> String {
    match expected.to_string().as_str() {
        "i8" | "i16" | "i32" | "i64" => "an integer".to_owned(),
        "u8" | "u16" | "u32" | "u64" => "an integer that is not negative".to_owned(),
        other => other.to_owned(),
    }
}

/// Makes a typed object of a tree.
pub(crate) fn decode<T: DeserializeOwned>(node: &Node<'_>) -> Result<T, DecodeError> {
    T::deserialize(NodeDeserializer { node }).map_err(|mut error| {
        if error.line == 0 {
            error.line = node.line;
        }
        error
    })
}

#[derive(Clone, Copy)]
struct NodeDeserializer<'a, 'i> {
    node: &'a Node<'i>,
}

impl<'de> de::Deserializer<'de> for NodeDeserializer<'_, '_> {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match &self.node.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Integer(value) => visitor.visit_i64(*value),
            Value::Unsigned(value) => visitor.visit_u64(*value),
            Value::Float(value) => visitor.visit_f64(*value),
            Value::Text(text) => visitor.visit_str(text),
            Value::Sequence(items) => visitor.visit_seq(Items {
                items: items.iter(),
                index: 0,
            }),
            Value::Mapping(entries) => visitor.visit_map(Entries {
                entries: entries.iter(),
                value: None,
            }),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.node.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match self.node.text() {
            Some(text) => visitor.visit_enum(text.into_deserializer()),
            None => Err(DecodeError::new("expected a text".to_owned())),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        unit unit_struct seq tuple tuple_struct map struct identifier
    }
}

struct Items<'a, 'i> {
    items: std::slice::Iter<'a, Node<'i>>,
    index: usize,
}

impl<'de> de::SeqAccess<'de> for Items<'_, '_> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, DecodeError> {
        let Some(node) = self.items.next() else {
            return Ok(None);
        };
        let index = self.index;
        self.index += 1;
        seed.deserialize(NodeDeserializer { node })
            .map(Some)
            .map_err(|error| error.within(Step::Index(index), node.line))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

struct Entries<'a, 'i> {
    entries: std::slice::Iter<'a, (std::borrow::Cow<'i, str>, Node<'i>)>,
    value: Option<(&'a str, &'a Node<'i>)>,
}

impl<'de> de::MapAccess<'de> for Entries<'_, '_> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, DecodeError> {
        let Some((key, node)) = self.entries.find(|(_, node)| !node.is_null()) else {
            return Ok(None);
        };
        self.value = Some((key, node));
        seed.deserialize(KeyDeserializer { key })
            .map(Some)
            .map_err(|error| error.within(Step::Field(key.to_string()), node.line))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, DecodeError> {
        let (key, node) = self
            .value
            .take()
            .expect("broken invariant: a value is asked for after its key");
        seed.deserialize(NodeDeserializer { node })
            .map_err(|error| error.within(Step::Field(key.to_owned()), node.line))
    }
}

/// Keys are text in the tree, also those of maps from numbers.
struct KeyDeserializer<'a> {
    key: &'a str,
}

macro_rules! integer_keys {
    ($($method:ident => $visit:ident,)+) => {
        $(
            fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
                match self.key.parse() {
                    Ok(number) => visitor.$visit(number),
                    Err(_) => Err(DecodeError::new(format!("expected a number as key, found {:?}", self.key))),
                }
            }
        )+
    };
}

impl<'de> de::Deserializer<'de> for KeyDeserializer<'_> {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_str(self.key)
    }

    integer_keys! {
        deserialize_i8 => visit_i8,
        deserialize_i16 => visit_i16,
        deserialize_i32 => visit_i32,
        deserialize_i64 => visit_i64,
        deserialize_u8 => visit_u8,
        deserialize_u16 => visit_u16,
        deserialize_u32 => visit_u32,
        deserialize_u64 => visit_u64,
    }

    forward_to_deserialize_any! {
        bool i128 u128 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct
        seq tuple tuple_struct map struct enum identifier ignored_any
    }
}
