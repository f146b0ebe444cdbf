// SPDX-License-Identifier: Apache-2.0
//! What a match demands besides the path: method, headers, query parameters.
//!
//! In: what a route says; a request. Out: whether all of it holds. Several header lines of one name count as one value,
//! joined by commas (RFC 9110 §5.2). Of a parameter that is repeated the first counts; names and values are compared
//! decoded.

use std::cmp::Reverse;

use http::Method;
use http::header::{self, HeaderName, HeaderValue};
use proto::waypoint::value_match::Value as Wire;

use super::Request;
use crate::pattern::Pattern;

/// All of these have to hold.
#[derive(Debug, Clone, Default)]
pub(super) struct Conditions {
    method: Option<Method>,
    headers: Box<[(HeaderName, Value)]>,
    /// None of these may hold.
    without: Box<[(HeaderName, Value)]>,
    query: Box<[(Box<str>, Value)]>,
}

/// By how much conditions go before others: greater first.
pub(super) type Specificity = Reverse<(bool, usize, usize)>;

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
        let mut headers: Vec<(HeaderName, Value)> = Vec::with_capacity(wire.headers.len());
        let mut without: Vec<(HeaderName, Value)> = Vec::new();
        for condition in &wire.headers {
            let Ok(name) = HeaderName::from_bytes(condition.name.as_bytes()) else {
                possible = false;
                problems.push(format!("{:?} is not a header's name", condition.name));
                continue;
            };
            if condition.inverted {
                let whose = format!("absent header {name}");
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
                let value = Value::compile(condition, &format!("header {name}"), &mut problems);
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
                .all(|(name, value)| value.is_header(name, request))
            && !self
                .without
                .iter()
                .any(|(name, value)| value.is_header(name, request))
            && self
                .query
                .iter()
                .all(|(name, value)| value.is_parameter(name, request.query))
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
