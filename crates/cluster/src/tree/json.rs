// SPDX-License-Identifier: Apache-2.0
//! JSON's way into the tree, and from a place in the tree back to its line.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::{MAX_DEPTH, Node, Step, SyntaxError, Value, line, refuse_duplicates};

/// Reads JSON. The nodes don't know their lines; [`json_line`] finds one when it is asked for.
pub(crate) fn from_json(text: &str) -> Result<Node<'_>, SyntaxError> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    JsonNode { depth: 0 }
        .deserialize(&mut deserializer)
        .and_then(|node| deserializer.end().map(|()| node))
        .map_err(|error| SyntaxError {
            line: line(error.line()),
            reason: format!("not valid JSON: {error}"),
        })
}

/// The line on which the node at `path` begins.
pub(crate) fn json_line(text: &str, path: &[Step]) -> Option<u32> {
    let mut node: &RawValue = serde_json::from_str(text).ok()?;
    for step in path {
        node = match step {
            Step::Field(name) => {
                let fields: HashMap<String, &RawValue> = serde_json::from_str(node.get()).ok()?;
                *fields.get(name)?
            }
            Step::Index(index) => {
                let items: Vec<&RawValue> = serde_json::from_str(node.get()).ok()?;
                *items.get(*index)?
            }
        };
    }
    let offset = (node.get().as_ptr() as usize).checked_sub(text.as_ptr() as usize)?;
    let before = text.as_bytes().get(..offset)?;
    line(before.iter().filter(|byte| **byte == b'\n').count() + 1)
}

#[derive(Clone, Copy)]
struct JsonNode {
    depth: usize,
}

impl JsonNode {
    fn deeper<E: de::Error>(self) -> Result<Self, E> {
        match self.depth {
            MAX_DEPTH => Err(E::custom(format!(
                "nested more than {MAX_DEPTH} levels deep"
            ))),
            depth => Ok(Self { depth: depth + 1 }),
        }
    }
}

impl<'de> DeserializeSeed<'de> for JsonNode {
    type Value = Node<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node<'de>, D::Error> {
        deserializer
            .deserialize_any(self)
            .map(|value| Node { line: 0, value })
    }
}

impl<'de> Visitor<'de> for JsonNode {
    type Value = Value<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value<'de>, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value<'de>, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value<'de>, E> {
        Ok(Value::Integer(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value<'de>, E> {
        Ok(i64::try_from(value).map_or(Value::Unsigned(value), Value::Integer))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value<'de>, E> {
        Ok(Value::Float(value))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Value<'de>, E> {
        Ok(Value::Text(Cow::Borrowed(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value<'de>, E> {
        Ok(Value::Text(Cow::Owned(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Value<'de>, A::Error> {
        let inner = self.deeper()?;
        let mut items = Vec::new();
        while let Some(item) = sequence.next_element_seed(inner)? {
            items.push(item);
        }
        Ok(Value::Sequence(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut mapping: A) -> Result<Value<'de>, A::Error> {
        let inner = self.deeper()?;
        let mut entries = Vec::new();
        while let Some(key) = mapping.next_key::<String>()? {
            entries.push((Cow::Owned(key), mapping.next_value_seed(inner)?));
        }
        refuse_duplicates(&entries).map_err(|error| de::Error::custom(error.reason))?;
        Ok(Value::Mapping(entries))
    }
}
