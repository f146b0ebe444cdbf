// SPDX-License-Identifier: Apache-2.0
//! What a match demands besides the path: method, headers, query parameters.
//!
//! In: what a route says; a request. Out: whether all of it holds. Several header lines of one name count as one value,
//! joined by commas (RFC 9110 §5.2). Of a parameter that is repeated the first counts; names and values are compared
//! decoded. What is called a header may be a claim of the request's token: a text, or a list of which one text counts.

use std::cmp::Reverse;

use http::Method;
use http::header::{self, HeaderName, HeaderValue};
use proto::waypoint::value_match::Value as Wire;

use super::Request;
use crate::pattern::Pattern;
use crate::token;

/// What the name of a claim begins with in place of a header's.
const CLAIMS: &str = "@request.auth.claims";

/// All of these have to hold.
#[derive(Debug, Clone, Default)]
pub(super) struct Conditions {
    method: Option<Method>,
    headers: Box<[(Named, Value)]>,
    /// None of these may hold.
    without: Box<[(Named, Value)]>,
    query: Box<[(Box<str>, Value)]>,
}

/// By how much conditions go before others: greater first.
pub(super) type Specificity = Reverse<(bool, usize, usize)>;

/// What a condition looks at by name.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Named {
    Header(HeaderName),
    /// The way to it, from the outside in.
    Claim(Box<[Box<str>]>),
}

#[derive(Debug, Clone)]
enum Value {
    Exact(Box<str>),
    Pattern(Pattern),
    /// It can't be told which: that of a condition that can't be read.
    Some,
}

/// Conditions that may be wider than a route says: what they match, its rule answers with an error.
#[derive(Debug)]
pub(super) struct Compiled {
    /// None where no request can ever meet them.
    pub(super) conditions: Option<Conditions>,
    /// What can't be honoured.
    pub(super) problem: Option<String>,
}

impl Conditions {
    pub(super) fn compile(wire: &proto::waypoint::HttpMatch) -> Compiled {
        let mut problems = Vec::new();
        let mut possible = true;
        let method = match wire.method.as_str() {
            "" => None,
            method => {
                let method = Method::from_bytes(method.as_bytes());
                method
                    .inspect_err(|_| {
                        possible = false;
                        problems.push(format!("{:?} is not a method", wire.method));
                    })
                    .ok()
            }
        };
        let mut headers: Vec<(Named, Value)> = Vec::with_capacity(wire.headers.len());
        let mut without: Vec<(Named, Value)> = Vec::new();
        for condition in &wire.headers {
            let Some(name) = Named::read(&condition.name) else {
                possible = false;
                problems.push(format!("{:?} is not a header's name", condition.name));
                continue;
            };
            if condition.inverted {
                let whose = format!("absent header {}", condition.name);
                let before = problems.len();
                let value = Value::compile(condition, &whose, &mut problems);
                // One that can't be read would rule out everything: what its rule answers is an error anyway.
                if problems.len() == before {
                    without.push((name, value));
                }
                continue;
            }
            // Of two for one header the first counts.
            if !headers.iter().any(|(earlier, _)| *earlier == name) {
                let value = Value::compile(
                    condition,
                    &format!("header {}", condition.name),
                    &mut problems,
                );
                headers.push((name, value));
            }
        }
        let mut query: Vec<(Box<str>, Value)> = Vec::with_capacity(wire.query.len());
        for condition in &wire.query {
            let name = condition.name.as_str();
            if !query.iter().any(|(earlier, _)| **earlier == *name) {
                let whose = format!("query parameter {name:?}");
                query.push((
                    name.into(),
                    Value::compile(condition, &whose, &mut problems),
                ));
            }
        }
        let conditions = Self {
            method,
            headers: headers.into(),
            without: without.into(),
            query: query.into(),
        };
        Compiled {
            conditions: possible.then_some(conditions),
            problem: (!problems.is_empty()).then(|| problems.join("; ")),
        }
    }

    /// Has a method, then more headers, then more parameters.
    pub(super) fn specificity(&self) -> Specificity {
        Reverse((self.method.is_some(), self.headers.len(), self.query.len()))
    }

    pub(super) fn hold(&self, request: &Request<'_>) -> bool {
        let method = self.method.as_ref();
        method.is_none_or(|method| method == request.method)
            && self
                .headers
                .iter()
                .all(|(name, value)| value.is_of(name, request))
            && !self
                .without
                .iter()
                .any(|(name, value)| value.is_of(name, request))
            && self
                .query
                .iter()
                .all(|(name, value)| value.is_parameter(name, request.query))
    }
}

impl Named {
    /// A header's name, or `@request.auth.claims` with a step in each pair of brackets, or behind each dot.
    fn read(text: &str) -> Option<Self> {
        let Some(way) = text.strip_prefix(CLAIMS) else {
            return HeaderName::from_bytes(text.as_bytes())
                .ok()
                .map(Self::Header);
        };
        let steps: Vec<&str> = match way.strip_prefix('.') {
            Some(way) => way.split('.').collect(),
            None => {
                let inner = way.strip_prefix('[')?.strip_suffix(']')?;
                inner.split("][").collect()
            }
        };
        let is_step = |step: &&str| !step.is_empty() && !step.contains(['[', ']']);
        let all = steps.iter().all(is_step);
        all.then(|| Self::Claim(steps.into_iter().map(Into::into).collect()))
    }
}

impl Value {
    fn compile(
        condition: &proto::waypoint::ValueMatch,
        whose: &str,
        problems: &mut Vec<String>,
    ) -> Self {
        match &condition.value {
            Some(Wire::Exact(value)) => Self::Exact(value.as_str().into()),
            Some(Wire::Regex(expression)) => match Pattern::new(expression) {
                Ok(pattern) => Self::Pattern(pattern),
                Err(error) => {
                    problems.push(format!("{whose}: expression {expression:?}: {error}"));
                    Self::Some
                }
            },
            None => {
                problems.push(format!("{whose}: a condition of an unknown kind"));
                Self::Some
            }
        }
    }

    fn is_of(&self, name: &Named, request: &Request<'_>) -> bool {
        match name {
            Named::Header(name) => self.is_header(name, request),
            Named::Claim(way) => {
                let found = request.claims.and_then(|claims| token::claim(claims, way));
                match found {
                    Some(serde_json::Value::String(text)) => self.is(text.as_bytes()),
                    Some(serde_json::Value::Array(list)) => {
                        let mut texts = list.iter().filter_map(serde_json::Value::as_str);
                        texts.any(|text| self.is(text.as_bytes()))
                    }
                    _ => false,
                }
            }
        }
    }

    fn is_header(&self, name: &HeaderName, request: &Request<'_>) -> bool {
        if *name == header::HOST {
            return self.is(request.authority.as_bytes());
        }
        let mut lines = request.headers.get_all(name).iter();
        let Some(first) = lines.next() else {
            return false;
        };
        match lines.next() {
            None => self.is(first.as_bytes()),
            Some(second) => {
                let lines = [first, second].into_iter().chain(lines);
                let lines: Vec<_> = lines.map(HeaderValue::as_bytes).collect();
                self.is(&lines.join(&b','))
            }
        }
    }

    fn is_parameter(&self, name: &str, query: Option<&str>) -> bool {
        let parameters = query.unwrap_or_default().split('&');
        let mut named = parameters.filter_map(|parameter| {
            let (given, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            decoded(given).eq(name.bytes()).then_some(value)
        });
        let Some(value) = named.next() else {
            return false;
        };
        match self {
            Self::Exact(expected) => decoded(value).eq(expected.bytes()),
            Self::Pattern(_) if value.contains(['%', '+']) => {
                self.is(&decoded(value).collect::<Vec<_>>())
            }
            _ => self.is(value.as_bytes()),
        }
    }

    fn is(&self, value: &[u8]) -> bool {
        match self {
            Self::Exact(expected) => expected.as_bytes() == value,
            Self::Pattern(pattern) => pattern.matches(value),
            Self::Some => true,
        }
    }
}

/// The bytes that a parameter's name or value stands for, as in forms: `%20` and `+` are a space.
fn decoded(text: &str) -> impl Iterator<Item = u8> {
    let mut rest = text.as_bytes();
    std::iter::from_fn(move || {
        let (byte, length) = match rest {
            [] => return None,
            [b'+', ..] => (b' ', 1),
            [b'%', high, low, ..] => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, 3),
                _ => (b'%', 1),
            },
            [byte, ..] => (*byte, 1),
        };
        rest = &rest[length..];
        Some(byte)
    })
}

fn hex(digit: u8) -> Option<u8> {
    let value = char::from(digit).to_digit(16)?;
    u8::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use proto::waypoint::{HttpMatch, ValueMatch};
    use serde_json::{Value as Json, json};

    use super::super::tests::Asked;
    use super::*;

    fn holds(name: &str, value: Wire, inverted: bool, claims: Option<&Json>) -> Option<bool> {
        let wire = HttpMatch {
            headers: vec![ValueMatch {
                name: name.into(),
                value: Some(value),
                inverted,
            }],
            ..HttpMatch::default()
        };
        let mut asked = Asked::new("");
        asked.claims = claims.and_then(|claims| claims.as_object().cloned());
        let compiled = Conditions::compile(&wire);
        assert_eq!(
            compiled.conditions.is_none(),
            compiled.problem.is_some(),
            "{name}"
        );
        compiled
            .conditions
            .map(|conditions| conditions.hold(&asked.request()))
    }

    #[test]
    fn a_claim_is_looked_for_on_its_way() {
        let claims = json!({
            "role": "admin", "groups": ["a", "b"], "n": 1, "realm": {"x.y": "deep", "k": {"l": "deeper"}},
        });
        let exact = |text: &str| Wire::Exact(text.into());
        for (name, value, expected) in [
            ("@request.auth.claims.role", exact("admin"), true),
            ("@request.auth.claims[role]", exact("admin"), true),
            ("@request.auth.claims[role]", exact("adm"), false),
            (
                "@request.auth.claims[role]",
                Wire::Regex("adm.*".into()),
                true,
            ),
            ("@request.auth.claims.groups", exact("b"), true),
            ("@request.auth.claims.groups", exact("a,b"), false),
            ("@request.auth.claims[realm][x.y]", exact("deep"), true),
            ("@request.auth.claims.realm.k.l", exact("deeper"), true),
            ("@request.auth.claims[realm]", exact("deep"), false),
            ("@request.auth.claims.n", exact("1"), false),
            ("@request.auth.claims.gone", exact("x"), false),
        ] {
            assert_eq!(
                holds(name, value.clone(), false, Some(&claims)),
                Some(expected),
                "{name}"
            );
            assert_eq!(
                holds(name, value.clone(), true, Some(&claims)),
                Some(!expected),
                "{name}"
            );
            // Without a token there are none.
            assert_eq!(
                holds(name, value.clone(), false, None),
                Some(false),
                "{name}"
            );
            assert_eq!(holds(name, value, true, None), Some(true), "{name}");
        }
        for name in [
            "@request.auth.claims",
            "@request.auth.claims.",
            "@request.auth.claims[]",
            "@request.auth.claims[a]b",
            "@request.auth.claimsx",
            "@request.auth",
        ] {
            assert_eq!(
                holds(name, exact("x"), false, Some(&claims)),
                None,
                "{name}"
            );
        }
    }
}
