// SPDX-License-Identifier: Apache-2.0
//! Regular expressions of routes: match the whole value, or replace what they match in it, in linear time, in bounded
//! memory.
//!
//! In: what a route says, written for RE2. Out: a matcher, or why it can't be one. Classes such as `\d` and `\w` are
//! ASCII, as in RE2, and values are bytes, since headers need not be text.

use regex::bytes::{Captures, Regex, RegexBuilder};

/// Longest expression taken, in bytes. Gateway API allows 4096 for a header's.
const LONGEST: usize = 4096;

/// Bytes that a compiled expression may take, and those of what it remembers of earlier matches.
const SIZE: usize = 1 << 18;

/// An expression that has to match a value from its first byte to its last.
#[derive(Debug, Clone)]
pub struct Pattern(Regex);

/// Puts something in place of whatever an expression matches.
#[derive(Debug, Clone)]
pub struct Substitution {
    expression: Regex,
    parts: Box<[Part]>,
}

/// A part of what is put there.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(Box<str>),
    /// What a group has matched; 0: all of it.
    Group(usize),
}

/// Longest text that a substitution makes.
const LONGEST_RESULT: usize = 16 * 1024;

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
    /// What is to stand in its place names a group that it doesn't have, or nothing that is known.
    #[error("the substitution has {0:?}, which is no group of the expression")]
    Group(String),
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

impl Substitution {
    /// Reads an expression and, in RE2's words, what stands in place of each of its matches: `\\1` to `\\9` for its groups,
    /// `\\0` for all of the match, `\\\\` for a backslash.
    ///
    /// # Errors
    /// If either can't be used.
    pub fn new(expression: &str, text: &str) -> Result<Self, BadPattern> {
        for length in [expression.len(), text.len()] {
            if length > LONGEST {
                return Err(BadPattern::Long(length));
            }
        }
        let expression = build(expression)?;
        let groups = expression.captures_len();
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text.chars();
        while let Some(letter) = rest.next() {
            if letter != '\\' {
                literal.push(letter);
                continue;
            }
            let escaped = rest.next();
            match escaped.map(|escaped| (escaped, escaped.to_digit(10))) {
                Some(('\\', _)) => literal.push('\\'),
                Some((_, Some(group))) if (group as usize) < groups => {
                    parts.push(Part::Text(std::mem::take(&mut literal).into()));
                    parts.push(Part::Group(group as usize));
                }
                _ => {
                    let shown = escaped.map_or_else(|| "\\".to_owned(), |c| format!("\\{c}"));
                    return Err(BadPattern::Group(shown));
                }
            }
        }
        parts.push(Part::Text(literal.into()));
        Ok(Self {
            expression,
            parts: parts.into(),
        })
    }

    /// The value with all matches replaced, from left to right; none where that is no text any more, or too long.
    pub fn apply(&self, value: &str) -> Option<String> {
        let mut made = Vec::with_capacity(value.len());
        let mut from = 0;
        for found in self.expression.captures_iter(value.as_bytes()) {
            let whole = found.get(0)?;
            made.extend_from_slice(value.as_bytes().get(from..whole.start())?);
            self.put(&found, &mut made);
            from = whole.end();
            if made.len() > LONGEST_RESULT {
                return None;
            }
        }
        made.extend_from_slice(value.as_bytes().get(from..)?);
        let made = String::from_utf8(made).ok()?;
        (made.len() <= LONGEST_RESULT.max(value.len())).then_some(made)
    }

    fn put(&self, found: &Captures<'_>, made: &mut Vec<u8>) {
        for part in &self.parts {
            match part {
                Part::Text(text) => made.extend_from_slice(text.as_bytes()),
                Part::Group(group) => {
                    let matched = found.get(*group).map_or(&b""[..], |group| group.as_bytes());
                    made.extend_from_slice(matched);
                }
            }
        }
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
    fn what_matches_is_replaced() {
        let check = |expression: &str, text: &str, value: &str, expected: Option<&str>| {
            let substitution = Substitution::new(expression, text).unwrap();
            assert_eq!(
                substitution.apply(value).as_deref(),
                expected,
                "{expression} {text}"
            );
        };
        check(
            "^/service/([^/]+)(/.*)$",
            r"\2/instance/\1",
            "/service/foo/v1/api",
            Some("/v1/api/instance/foo"),
        );
        check(
            "one",
            "two",
            "/xxx/one/yyy/one/zzz",
            Some("/xxx/two/yyy/two/zzz"),
        );
        check(
            "^(.*?)one(.*)$",
            r"\1two\2",
            "/xxx/one/yyy/one/zzz",
            Some("/xxx/two/yyy/one/zzz"),
        );
        check("(?i)/xxx/", "/yyy/", "/aaa/XxX/bbb", Some("/aaa/yyy/bbb"));
        check("nothing", "x", "/a", Some("/a"));
        check("(b)?c", r"[\1]", "/bc/c", Some("/[b]/[]"));
        check("a", r"\\\0", "/a", Some(r"/\a"));
        // Half a letter is no text.
        check(r"(?-u)\xc3", "", "/é", None);
        // However much is asked for, so much is made.
        let wide = "x".repeat(4096);
        check("a", &wide, &"a".repeat(4096), None);
        let long = "b".repeat(LONGEST_RESULT + 1);
        check("a", "x", &long, Some(&long));
    }

    #[test]
    fn a_substitution_of_no_group_says_which() {
        let why = |expression: &str, text: &str| {
            Substitution::new(expression, text).unwrap_err().to_string()
        };
        let said = r#"the substitution has "\\2", which is no group of the expression"#;
        assert_eq!(why("(a)", r"\2"), said);
        assert!(why("(a)", r"\x").contains("no group"));
        assert!(why("(a)", r"a\").contains("no group"));
        assert_eq!(why("(a", ""), "unclosed group");
        assert!(why("a", &"x".repeat(4097)).contains("4097 bytes"));
    }

    #[test]
    fn verbose_mode_does_not_swallow_the_end() {
        // In verbose mode a comment would run into what is put behind the expression.
        assert!(Pattern::new("(?x)a#").is_err_and(|error| matches!(error, BadPattern::Syntax(_))));
    }
}
