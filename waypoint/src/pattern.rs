// SPDX-License-Identifier: Apache-2.0
//! Regular expressions of routes: match the whole value, in linear time, in bounded memory.
//!
//! In: what a route says, written for RE2. Out: a matcher, or why it can't be one. Classes such as `\d` and `\w` are
//! ASCII, as in RE2, and values are bytes, since headers need not be text.

use regex::bytes::{Regex, RegexBuilder};

/// Longest expression taken, in bytes. Gateway API allows 4096 for a header's.
const LONGEST: usize = 4096;

/// Bytes that a compiled expression may take, and those of what it remembers of earlier matches.
const SIZE: usize = 1 << 18;

/// An expression that has to match a value from its first byte to its last.
#[derive(Debug, Clone)]
pub struct Pattern(Regex);

/// Why an expression can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPattern {
    /// It is longer than any that a route may hold.
    #[error("it has {0} bytes, more than {LONGEST}")]
    Long(usize),
    /// Compiled it would take too much memory.
    #[error("it takes more than {SIZE} bytes when compiled")]
    Large,
    /// It is not one.
    #[error("{0}")]
    Syntax(String),
}

impl Pattern {
    /// Compiles an expression.
    ///
    /// # Errors
    /// If it is too long, too large, or not one.
    pub fn new(expression: &str) -> Result<Self, BadPattern> {
        if expression.len() > LONGEST {
            return Err(BadPattern::Long(expression.len()));
        }
        // By itself first: what is only valid between the parentheses below (`a)|(b`) is not valid.
        build(expression)?;
        build(&format!(r"\A(?:{expression})\z")).map(Self)
    }

    /// Whether the whole value matches.
    pub fn matches(&self, value: &[u8]) -> bool {
        self.0.is_match(value)
    }
}

fn build(expression: &str) -> Result<Regex, BadPattern> {
    let built = RegexBuilder::new(expression)
        .unicode(false)
        .size_limit(SIZE)
        .dfa_size_limit(SIZE)
        .build();
    built.map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => BadPattern::Large,
        // Its last line says what is wrong; those before it draw where.
        other => {
            let text = other.to_string();
            let last = text.lines().last().unwrap_or_default();
            BadPattern::Syntax(last.trim_start_matches("error: ").to_owned())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(expression: &str, value: &str, matches: bool) {
        let pattern = Pattern::new(expression).unwrap();
        assert_eq!(pattern.matches(value.as_bytes()), matches);
    }

    #[test]
    fn whole_values_match() {
        check("a|b", "a", true);
        check("a|b", "ab", false);
        check("a+", "aab", false);
        check("(?i)abc", "ABC", true);
        check(".*", "", true);
        check(r"\d+", "٣", false);
        check("a$", "a\n", false);
        check("caf.+", "café", true);
        check("a # no comment", "a # no comment", true);
    }

    #[test]
    fn what_is_no_expression_says_why() {
        let why = |expression: &str| Pattern::new(expression).unwrap_err().to_string();
        assert_eq!(why("("), "unclosed group");
        assert_eq!(why("a)|(b"), "unopened group");
        assert_eq!(why("(?x)a)#"), "unopened group");
        assert_eq!(why(&"a".repeat(4097)), "it has 4097 bytes, more than 4096");
        assert_eq!(
            why("(((a{50}){50}){50}){50}"),
            "it takes more than 262144 bytes when compiled"
        );
    }

    #[test]
    fn verbose_mode_does_not_swallow_the_end() {
        // In verbose mode a comment would run into what is put behind the expression.
        assert!(Pattern::new("(?x)a#").is_err_and(|error| matches!(error, BadPattern::Syntax(_))));
    }
}
