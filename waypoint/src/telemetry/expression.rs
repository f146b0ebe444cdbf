// SPDX-License-Identifier: Apache-2.0
//! Filters, as the control plane has parsed them: whether one holds for a request.
//!
//! As the Common Expression Language has it, what can't be said (a header that is not there, a text compared with a number)
//! spoils what depends on it, unless the other side of an AND or OR decides. A filter that can't be said doesn't hold.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use http::HeaderName;
use proto::waypoint::{self as wire, Known, Operation, expression::Kind};

use crate::pattern::Pattern;

/// Calls within each other.
const DEEPEST: usize = 64;

/// Headers that were kept.
pub type Headers = Vec<(HeaderName, Box<str>)>;

/// All that can be told of a request that has ended, or of a connection, which is no request.
#[derive(Debug)]
pub struct Told<'e> {
    pub started: SystemTime,
    pub took: Duration,
    pub method: Option<&'e str>,
    /// With its query, as it came.
    pub path: Option<&'e str>,
    pub authority: Option<&'e str>,
    pub version: Option<http::Version>,
    pub request_headers: &'e [(HeaderName, Box<str>)],
    pub answer_headers: &'e [(HeaderName, Box<str>)],
    pub request_id: Option<&'e str>,
    pub user_agent: Option<&'e str>,
    pub received: u64,
    pub sent: u64,
    /// 0 where there was no answer.
    pub status: Option<u16>,
    pub grpc_status: Option<u8>,
    pub flags: &'static str,
    /// Why the answer is the waypoint's own, or did not come to its end.
    pub error: Option<&'e str>,
    pub source: SocketAddr,
    pub identity: &'e str,
    /// What the client's tunnel asked for: a host or an address, and a port.
    pub asked: &'e str,
    pub endpoint: Option<SocketAddr>,
    pub service: Option<&'e str>,
    pub route: Option<&'e str>,
}

impl Told<'_> {
    /// Where the answer comes from, in Envoy's words as far as they fit.
    pub fn details(&self) -> Cow<'static, str> {
        match self.error {
            None => "via_upstream".into(),
            Some(error) => error.replace(' ', "_").into(),
        }
    }

    fn port(&self) -> Option<u16> {
        self.asked.rsplit_once(':')?.1.parse().ok()
    }
}

/// The value of a header that was kept.
pub(super) fn value_of<'e>(
    headers: &'e [(HeaderName, Box<str>)],
    header: &HeaderName,
) -> Option<&'e str> {
    let found = headers.iter().find(|(name, _)| name == header);
    found.map(|(_, value)| &**value)
}

/// A filter.
#[derive(Debug)]
pub enum Expression {
    Operand(Known, Option<HeaderName>),
    Text(Box<str>),
    Number(f64),
    Truth(bool),
    Matches(Box<Self>, Pattern),
    Call(Operation, Box<[Self]>),
}

#[derive(Debug, PartialEq)]
enum Value<'e> {
    Text(Cow<'e, str>),
    Number(f64),
    Truth(bool),
}

impl Expression {
    /// # Errors
    /// Says what is not understood.
    pub(super) fn compile(wire: &wire::Expression) -> Result<Self, String> {
        Self::within(wire, 0)
    }

    fn within(wire: &wire::Expression, depth: usize) -> Result<Self, String> {
        if depth > DEEPEST {
            return Err(format!("is nested deeper than {DEEPEST}"));
        }
        Ok(match &wire.kind {
            None => return Err("an expression of an unknown kind".into()),
            Some(Kind::Text(text)) => Self::Text(text.as_str().into()),
            Some(Kind::Number(number)) => Self::Number(*number),
            Some(Kind::Truth(truth)) => Self::Truth(*truth),
            Some(Kind::Operand(operand)) => {
                let known = Known::try_from(operand.known).ok();
                let known = known.filter(|known| *known != Known::Nothing);
                let known =
                    known.ok_or_else(|| format!("attribute {} is not known", operand.known))?;
                let is_header = matches!(known, Known::AnyRequestHeader | Known::AnyResponseHeader);
                let header = is_header.then(|| {
                    let name = operand.key.parse::<HeaderName>();
                    name.map_err(|_| format!("{:?} is no header's name", operand.key))
                });
                Self::Operand(known, header.transpose()?)
            }
            Some(Kind::Call(call)) => {
                let arguments = call
                    .arguments
                    .iter()
                    .map(|one| Self::within(one, depth + 1));
                let arguments = arguments.collect::<Result<Vec<_>, _>>()?;
                Self::call(call.operation, arguments)?
            }
        })
    }

    fn call(operation: i32, mut arguments: Vec<Self>) -> Result<Self, String> {
        let known = Operation::try_from(operation).ok();
        let known = known.filter(|known| *known != Operation::NoneOfThese);
        let known = known.ok_or_else(|| format!("operation {operation} is not known"))?;
        let takes = match known {
            Operation::Not | Operation::Has | Operation::ToText => arguments.len() == 1,
            Operation::And | Operation::Or | Operation::OneOf => !arguments.is_empty(),
            _ => arguments.len() == 2,
        };
        if !takes {
            let (count, name) = (arguments.len(), known.as_str_name());
            return Err(format!("{name} of {count} arguments"));
        }
        if known != Operation::Matches {
            return Ok(Self::Call(known, arguments.into()));
        }
        let pattern = match arguments.pop() {
            // Anywhere in the text, while patterns are for the whole of one.
            Some(Self::Text(text)) => Pattern::new(&format!("(?s:.*)(?:{text})(?s:.*)")),
            _ => return Err("MATCHES takes a text".into()),
        };
        let pattern = pattern.map_err(|error| error.to_string())?;
        let subject = arguments.pop().ok_or("MATCHES of nothing")?;
        Ok(Self::Matches(Box::new(subject), pattern))
    }

    /// The headers that it looks at, of requests and of answers.
    pub(super) fn headers(&self, wanted: &mut [Vec<HeaderName>; 2]) {
        match self {
            Self::Operand(known, header) => {
                let of_answer = usize::from(*known == Known::AnyResponseHeader);
                wanted[of_answer].extend(header.clone());
            }
            Self::Matches(subject, _) => subject.headers(wanted),
            Self::Call(_, arguments) => arguments.iter().for_each(|one| one.headers(wanted)),
            Self::Text(_) | Self::Number(_) | Self::Truth(_) => {}
        }
    }

    /// Whether it holds.
    pub fn holds(&self, told: &Told<'_>) -> bool {
        self.value(told) == Some(Value::Truth(true))
    }

    /// What it says, as a text.
    pub(super) fn text<'e>(&'e self, told: &Told<'e>) -> Option<Cow<'e, str>> {
        Some(match self.value(told)? {
            Value::Text(text) => text,
            Value::Number(number) => number.to_string().into(),
            Value::Truth(truth) => truth.to_string().into(),
        })
    }

    fn truth(&self, told: &Told<'_>) -> Option<bool> {
        match self.value(told)? {
            Value::Truth(truth) => Some(truth),
            Value::Text(_) | Value::Number(_) => None,
        }
    }

    fn value<'e>(&'e self, told: &Told<'e>) -> Option<Value<'e>> {
        match self {
            Self::Operand(known, header) => operand(*known, header.as_ref(), told),
            Self::Text(text) => Some(Value::Text((&**text).into())),
            Self::Number(number) => Some(Value::Number(*number)),
            Self::Truth(truth) => Some(Value::Truth(*truth)),
            Self::Matches(subject, pattern) => match subject.value(told)? {
                Value::Text(text) => Some(Value::Truth(pattern.matches(text.as_bytes()))),
                Value::Number(_) | Value::Truth(_) => None,
            },
            Self::Call(Operation::ToText, arguments) => {
                arguments.first()?.text(told).map(Value::Text)
            }
            Self::Call(operation, arguments) => {
                called(*operation, arguments, told).map(Value::Truth)
            }
        }
    }
}

fn called(operation: Operation, arguments: &[Expression], told: &Told<'_>) -> Option<bool> {
    let decided = |by: bool| {
        let mut known = true;
        for argument in arguments {
            match argument.truth(told) {
                Some(truth) if truth == by => return Some(by),
                Some(_) => {}
                None => known = false,
            }
        }
        known.then_some(!by)
    };
    let (first, rest) = arguments.split_first()?;
    match operation {
        Operation::And => return decided(false),
        Operation::Or => return decided(true),
        Operation::Not => return first.truth(told).map(|truth| !truth),
        Operation::Has => return Some(first.value(told).is_some()),
        _ => {}
    }
    let first = first.value(told)?;
    if operation == Operation::OneOf {
        let values = rest.iter().map(|one| one.value(told));
        return Some(values.flatten().any(|value| value == first));
    }
    let second = rest.first()?.value(told)?;
    match (&first, &second) {
        (Value::Text(a), Value::Text(b)) => match operation {
            Operation::StartsWith => Some(a.starts_with(&**b)),
            Operation::EndsWith => Some(a.ends_with(&**b)),
            Operation::Contains => Some(a.contains(&**b)),
            _ => compared(operation, a.partial_cmp(b)?),
        },
        (Value::Number(a), Value::Number(b)) => compared(operation, a.partial_cmp(b)?),
        (Value::Truth(a), Value::Truth(b)) => compared(operation, a.partial_cmp(b)?),
        _ => None,
    }
}

fn compared(operation: Operation, order: std::cmp::Ordering) -> Option<bool> {
    Some(match operation {
        Operation::Equal => order.is_eq(),
        Operation::Unequal => order.is_ne(),
        Operation::Less => order.is_lt(),
        Operation::AtMost => order.is_le(),
        Operation::Greater => order.is_gt(),
        Operation::AtLeast => order.is_ge(),
        _ => return None,
    })
}

fn operand<'e>(known: Known, header: Option<&HeaderName>, told: &Told<'e>) -> Option<Value<'e>> {
    let text = |text: &'e str| Some(Value::Text(text.into()));
    // Exact up to what a body can hold in practice.
    let count = |number: u64| Some(Value::Number(number as f64));
    let query = || {
        told.path
            .map(|path| path.split_once('?').unwrap_or((path, "")))
    };
    match known {
        Known::Nothing => None,
        Known::RequestPath => text(told.path?),
        Known::RequestUrlPath => text(query()?.0),
        Known::RequestQuery => text(query()?.1),
        Known::RequestAuthority => text(told.authority?),
        // What a waypoint takes in is plain within its tunnel.
        Known::RequestScheme => told.method.and(Some(Value::Text("http".into()))),
        Known::RequestMethod => text(told.method?),
        Known::RequestVersion => text(super::format::version(told.version?)),
        Known::RequestId => text(told.request_id?),
        Known::RequestUserAgent => text(told.user_agent?),
        Known::RequestSize => count(told.received),
        Known::ResponseCode => count(told.status?.into()),
        Known::ResponseGrpcStatus => count(told.grpc_status?.into()),
        Known::ResponseSize => count(told.sent),
        Known::ResponseCodeDetails => Some(Value::Text(told.details())),
        // What comes by a tunnel has proven who it is.
        Known::ConnectionMtls => Some(Value::Truth(true)),
        Known::SourceAddress => Some(Value::Text(told.source.to_string().into())),
        Known::SourcePort => count(told.source.port().into()),
        Known::SourceIdentity => text(told.identity),
        Known::AskedPort => count(told.port()?.into()),
        Known::UpstreamAddress => Some(Value::Text(told.endpoint?.to_string().into())),
        Known::AnyRequestHeader => text(value_of(told.request_headers, header?)?),
        Known::AnyResponseHeader => text(value_of(told.answer_headers, header?)?),
    }
}
