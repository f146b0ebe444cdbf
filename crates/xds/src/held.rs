// SPDX-License-Identifier: Apache-2.0
//! What is held of a type, name by name: there are as many as the mesh has pods, so each takes little.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

/// Versions by name. The names are those that the handler was given, in the same memory.
#[derive(Debug, Default)]
pub(crate) struct Held(HashMap<Arc<str>, Version>);

/// A version as the control plane wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Version {
    /// Most are hashes or counters: a number in lowercase hexadecimal digits, without zeros in front.
    Number(u64),
    /// Anything else.
    Text(Box<str>),
}

impl From<&str> for Version {
    fn from(text: &str) -> Self {
        let digits = text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let printed_alike = digits && (text == "0" || !text.starts_with('0'));
        match u64::from_str_radix(text, 16) {
            Ok(number) if printed_alike => Self::Number(number),
            _ => Self::Text(text.into()),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number:x}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl Held {
    pub(crate) fn insert(&mut self, name: Arc<str>, version: Version) {
        self.0.insert(name, version);
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// As a first request lists it.
    pub(crate) fn listed(&self) -> BTreeMap<String, String> {
        let listed = self.0.iter();
        listed
            .map(|(name, version)| (name.to_string(), version.to_string()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Version) {
        assert_eq!(Version::from(text), expected);
        assert_eq!(expected.to_string(), text);
    }

    #[test]
    fn only_what_prints_alike_is_kept_as_a_number() {
        check("0", Version::Number(0));
        check("7f", Version::Number(0x7f));
        check("ffffffffffffffff", Version::Number(u64::MAX));
        for text in [
            "",
            "00",
            "07f",
            "7F",
            "+7",
            "-1",
            "0x7",
            "1ffffffffffffffff",
            "v1",
            "2026-01-01/7",
        ] {
            check(text, Version::Text(text.into()));
        }
    }

    #[test]
    fn a_version_takes_three_words_at_most() {
        assert!(size_of::<Version>() <= 24);
    }

    proptest! {
        #[test]
        fn versions_print_as_they_were_written(text in "[0-9a-fA-F+x]{0,18}|\\PC*") {
            prop_assert_eq!(Version::from(text.as_str()).to_string(), text);
        }
    }
}
