// SPDX-License-Identifier: Apache-2.0
//! The `traceparent` header (W3C Trace Context): which trace a connection belongs to.

use std::fmt;

use http::HeaderValue;

/// A trace and the span in it that a tunnel was opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceParent {
    trace: u128,
    parent: u64,
    flags: u8,
}

impl TraceParent {
    /// A new, unsampled one from random numbers. Zero is not a legal id and becomes one.
    pub fn new(trace: u128, parent: u64) -> Self {
        Self {
            trace: trace.max(1),
            parent: parent.max(1),
            flags: 0,
        }
    }

    /// The same, whether it is to be recorded.
    pub fn sampled(self, sampled: bool) -> Self {
        Self {
            flags: self.flags & !1 | u8::from(sampled),
            ..self
        }
    }

    /// Whether it is to be recorded.
    pub fn is_sampled(&self) -> bool {
        self.flags & 1 == 1
    }

    /// The trace's id.
    pub fn trace(&self) -> u128 {
        self.trace
    }

    /// The span's id.
    pub fn parent(&self) -> u64 {
        self.parent
    }

    /// Reads `<version>-<trace>-<parent>-<flags>`; versions later than 00 may carry more behind it.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let version = hex(parts.next()?, 2)?;
        let trace = hex(parts.next()?, 32)?;
        let parent = hex(parts.next()?, 16)?;
        let flags = hex(parts.next()?, 2)?;
        let legal = match version {
            0 => parts.next().is_none(),
            0xff => false,
            _ => true,
        };
        (legal && trace != 0 && parent != 0).then_some(Self {
            trace,
            parent: u64::try_from(parent).ok()?,
            flags: u8::try_from(flags).ok()?,
        })
    }

    pub(super) fn to_header(self) -> HeaderValue {
        HeaderValue::try_from(self.to_string())
            .expect("broken invariant: hexadecimal digits are visible ASCII")
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "00-{:032x}-{:016x}-{:02x}",
            self.trace, self.parent, self.flags
        )
    }
}

fn hex(text: &str, digits: usize) -> Option<u128> {
    let legal =
        text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    legal.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}
