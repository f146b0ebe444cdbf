// SPDX-License-Identifier: Apache-2.0
//! Which trace a request belongs to: its context is read from its headers, and written for the endpoint. Pure.
//!
//! W3C's (`traceparent`, `tracestate`) goes before B3's single header (`b3`), and that before its several ones
//! (`x-b3-traceid` and so on). What is no context is none, and goes no further: whoever reads it next could read it otherwise.

use hbone::wire::TraceParent;
use http::{HeaderMap, HeaderName, HeaderValue};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
const B3: HeaderName = HeaderName::from_static("b3");
const B3_TRACE: HeaderName = HeaderName::from_static("x-b3-traceid");
const B3_SPAN: HeaderName = HeaderName::from_static("x-b3-spanid");
const B3_PARENT: HeaderName = HeaderName::from_static("x-b3-parentspanid");
const B3_SAMPLED: HeaderName = HeaderName::from_static("x-b3-sampled");
const B3_FLAGS: HeaderName = HeaderName::from_static("x-b3-flags");

/// A place in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    /// Not 0.
    pub trace: u128,
    /// The span that the request comes from; not 0.
    pub span: u64,
    /// Whether whoever began the trace wants it recorded; nothing where that is left to others.
    pub sampled: Option<bool>,
    /// How it was written.
    pub form: Form,
}

/// How a context is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    W3c,
    B3Single,
    B3Several,
}

/// The span of a request here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub trace: u128,
    pub id: u64,
    /// Who asked.
    pub parent: Option<u64>,
    pub sampled: bool,
    form: Form,
}

/// What a client says of the sampling alone, without a trace.
fn wish(headers: &HeaderMap) -> Option<bool> {
    match text(headers, &B3) {
        Some("0") => Some(false),
        Some("1" | "d") => Some(true),
        _ => several_sampled(headers),
    }
}

impl Context {
    /// The context of a request, if it has one.
    pub fn read(headers: &HeaderMap) -> Option<Self> {
        let w3c = text(headers, &TRACEPARENT).and_then(w3c);
        let single = || text(headers, &B3).and_then(single);
        w3c.or_else(single).or_else(|| several(headers))
    }
}

impl Span {
    /// Of a request with these headers; `draw` gives numbers from 0 to 999,999, `random` any.
    pub fn begin(
        headers: &HeaderMap,
        sampled_per_million: u32,
        draw: impl FnOnce() -> u32,
        mut random: impl FnMut() -> u128,
    ) -> Self {
        let found = Context::read(headers);
        let wish = found.map_or_else(|| wish(headers), |context| context.sampled);
        let sampled = wish.unwrap_or_else(|| draw() < sampled_per_million);
        // None of them is ever 0.
        let id = u64::try_from(random() & u128::from(u64::MAX))
            .unwrap_or(1)
            .max(1);
        Self {
            trace: found.map_or_else(|| random().max(1), |context| context.trace),
            id,
            parent: found.map(|context| context.span),
            sampled,
            form: found.map_or(Form::W3c, |context| context.form),
        }
    }

    /// The same, of which nothing is recorded.
    pub fn unsampled(self) -> Self {
        Self {
            sampled: false,
            ..self
        }
    }

    /// Writes the context for the endpoint: always in W3C's form, and in B3's where it came so or `b3` is wanted.
    pub fn write(&self, headers: &mut HeaderMap, b3: bool) {
        let Self {
            trace,
            id,
            parent,
            sampled,
            form,
        } = self;
        if *form != Form::W3c || self.parent.is_none() {
            // Of another trace, or of none that could be read.
            headers.remove(TRACESTATE);
        }
        for name in [&B3, &B3_TRACE, &B3_SPAN, &B3_PARENT, &B3_SAMPLED, &B3_FLAGS] {
            headers.remove(name);
        }
        let mut set = |name: HeaderName, value: String| {
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(name, value);
            }
        };
        let flag = u8::from(*sampled);
        let context = TraceParent::new(*trace, *id).sampled(*sampled);
        set(TRACEPARENT, context.to_string());
        match form {
            Form::B3Single => set(B3, format!("{trace:032x}-{id:016x}-{flag}")),
            Form::B3Several => {}
            Form::W3c if !b3 => return,
            Form::W3c => {}
        }
        if *form == Form::B3Single && !b3 {
            return;
        }
        set(B3_TRACE, format!("{trace:032x}"));
        set(B3_SPAN, format!("{id:016x}"));
        set(B3_SAMPLED, flag.to_string());
        if let Some(parent) = parent {
            set(B3_PARENT, format!("{parent:016x}"));
        }
    }
}

/// The only value of a header.
fn text<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?.trim();
    values.next().is_none().then_some(value)
}

fn w3c(text: &str) -> Option<Context> {
    let parent = TraceParent::parse(text)?;
    Some(Context {
        trace: parent.trace(),
        span: parent.parent(),
        sampled: Some(parent.is_sampled()),
        form: Form::W3c,
    })
}

/// `{trace}-{span}`, then maybe `-{sampling}` and maybe `-{parent}`.
fn single(text: &str) -> Option<Context> {
    let mut parts = text.split('-');
    let (trace, span) = (b3_trace(parts.next()?)?, b3_span(parts.next()?)?);
    let sampled = match parts.next() {
        None => None,
        Some("1" | "d") => Some(true),
        Some("0") => Some(false),
        Some(_) => return None,
    };
    if let Some(parent) = parts.next() {
        b3_span(parent)?;
    }
    parts.next().is_none().then_some(Context {
        trace,
        span,
        sampled,
        form: Form::B3Single,
    })
}

fn several(headers: &HeaderMap) -> Option<Context> {
    Some(Context {
        trace: b3_trace(text(headers, &B3_TRACE)?)?,
        span: b3_span(text(headers, &B3_SPAN)?)?,
        sampled: several_sampled(headers),
        form: Form::B3Several,
    })
}

fn several_sampled(headers: &HeaderMap) -> Option<bool> {
    if text(headers, &B3_FLAGS) == Some("1") {
        // To debug: in any case.
        return Some(true);
    }
    match text(headers, &B3_SAMPLED)? {
        "1" | "true" => Some(true),
        "0" | "false" => Some(false),
        _ => None,
    }
}

fn b3_trace(text: &str) -> Option<u128> {
    let short = || any_hex::<16>(text);
    any_hex::<32>(text)
        .or_else(short)
        .filter(|trace| *trace != 0)
}

fn b3_span(text: &str) -> Option<u64> {
    let span = u64::try_from(any_hex::<16>(text)?).ok()?;
    (span != 0).then_some(span)
}

/// Exactly so many digits.
fn any_hex<const DIGITS: usize>(text: &str) -> Option<u128> {
    // What Rust reads besides digits is a sign.
    let fits = text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    fits.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

/// For a fuzz target: what is read is written so that it is read as the same.
#[cfg(fuzzing)]
#[doc(hidden)]
pub fn check(headers: &HeaderMap, b3: bool) {
    let found = Context::read(headers);
    let span = Span::begin(headers, 500_000, || 1, || 7);
    let mut written = headers.clone();
    span.write(&mut written, b3);
    let again = Context::read(&written).expect("what was written is a context");
    assert_eq!(
        (again.trace, again.span, again.sampled),
        (span.trace, span.id, Some(span.sampled))
    );
    if let Some(found) = found {
        assert_eq!((again.trace, span.parent), (found.trace, Some(found.span)));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers(said: &[(&'static str, &str)]) -> HeaderMap {
        let header = |(name, value): &(&'static str, &str)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_str(value).unwrap(),
            )
        };
        said.iter().map(header).collect()
    }

    const TRACE: u128 = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;
    const SPAN: u64 = 0x00f0_67aa_0ba9_02b7;

    #[test]
    fn contexts_are_read_in_all_their_forms() {
        let check = |said: &[(&'static str, &str)], sampled: Option<bool>, form: Form| {
            let expected = Context {
                trace: TRACE,
                span: SPAN,
                sampled,
                form,
            };
            assert_eq!(Context::read(&headers(said)), Some(expected), "{said:?}");
        };
        let w3c = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        check(&[("traceparent", w3c)], Some(true), Form::W3c);
        check(
            &[("traceparent", &w3c.replace("-01", "-00"))],
            Some(false),
            Form::W3c,
        );
        check(
            &[("traceparent", &format!("01{}-later", &w3c[2..]))],
            Some(true),
            Form::W3c,
        );
        let b3 = "4bf92f3577b34da6a3ce929d0e0e4736-00F067AA0BA902B7";
        check(&[("b3", b3)], None, Form::B3Single);
        check(&[("b3", &format!("{b3}-d"))], Some(true), Form::B3Single);
        check(
            &[("b3", &format!("{b3}-0-0000000000000001"))],
            Some(false),
            Form::B3Single,
        );
        let several = [("x-b3-traceid", &b3[..32]), ("x-b3-spanid", &b3[33..])];
        check(&several, None, Form::B3Several);
        check(
            &[several[0], several[1], ("x-b3-sampled", "1")],
            Some(true),
            Form::B3Several,
        );
        check(
            &[several[0], several[1], ("x-b3-flags", "1")],
            Some(true),
            Form::B3Several,
        );
        check(&[("b3", "0"), ("traceparent", w3c)], Some(true), Form::W3c);
        let short = Context::read(&headers(&[("b3", "00000000000000ab-0000000000000001-1")]));
        assert_eq!(short.map(|context| context.trace), Some(0xab));
    }

    #[test]
    fn what_is_no_context_is_none() {
        let w3c = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        for text in [
            "",
            &w3c.to_uppercase(),
            &format!("{w3c}-more"),
            &format!("ff{}", &w3c[2..]),
            &w3c.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &w3c.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &w3c[..w3c.len() - 1],
            &w3c.replace("4bf9", "+bf9"),
        ] {
            assert_eq!(
                Context::read(&headers(&[("traceparent", text)])),
                None,
                "{text}"
            );
        }
        let twice = headers(&[("traceparent", w3c), ("traceparent", w3c)]);
        let mut both = twice.clone();
        both.append("traceparent", HeaderValue::from_str(w3c).unwrap());
        assert_eq!(Context::read(&both), None);
        for text in [
            "1",
            "ab-1",
            "00000000000000ab-0000000000000001-2",
            "00000000000000ab-0000000000000001-1-2",
        ] {
            assert_eq!(Context::read(&headers(&[("b3", text)])), None, "{text}");
        }
    }

    #[test]
    fn a_trace_goes_on_and_who_began_it_decides_on_sampling() {
        let begin = |said: &[(&'static str, &str)], per_million| {
            Span::begin(&headers(said), per_million, || 500_000, || 0x99)
        };
        let w3c = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
        let said = [("traceparent", w3c), ("tracestate", "a=b")];
        let span = begin(&said, 1_000_000);
        assert_eq!(
            (span.trace, span.parent, span.sampled),
            (TRACE, Some(SPAN), false)
        );
        let mut on = headers(&said);
        span.write(&mut on, false);
        assert_eq!(
            on["traceparent"],
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000099-00"
        );
        assert_eq!(on["tracestate"], "a=b");
        assert!(!on.contains_key("b3"));
        assert!(begin(&[], 500_001).sampled);
        assert!(!begin(&[], 500_000).sampled);
        assert!(begin(&[("b3", "1")], 0).sampled);
        assert!(!begin(&[("x-b3-sampled", "0")], 1_000_000).sampled);
    }

    #[test]
    fn b3_is_answered_in_kind_and_what_could_not_be_read_goes_no_further() {
        let said = [
            ("b3", "00000000000000ab-0000000000000001-1"),
            ("tracestate", "a=b"),
        ];
        let mut on = headers(&said);
        Span::begin(&on, 0, || 0, || 0x99).write(&mut on, false);
        assert_eq!(
            on["b3"],
            "000000000000000000000000000000ab-0000000000000099-1"
        );
        assert_eq!(
            on["traceparent"],
            "00-000000000000000000000000000000ab-0000000000000099-01"
        );
        assert!(!on.contains_key("x-b3-traceid") && !on.contains_key("tracestate"));
        let mut on = headers(&[
            ("traceparent", "nonsense"),
            ("tracestate", "a=b"),
            ("b3", "nonsense"),
        ]);
        Span::begin(&on, 0, || 0, || 0x99).write(&mut on, true);
        assert_eq!(
            on["traceparent"],
            format!("00-{:032x}-{:016x}-00", 0x99, 0x99)
        );
        assert!(!on.contains_key("b3") && !on.contains_key("tracestate"));
        assert_eq!(on["x-b3-sampled"], "0");
        assert!(!on.contains_key("x-b3-parentspanid"));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(
            name in prop::sample::select(vec!["traceparent", "b3", "x-b3-traceid"]),
            value in "[0-9a-fA-F]{0,33}(-[0-9a-f]{0,17}){0,3}", b3: bool,
        ) {
            let said = headers(&[(name, &value), ("x-b3-spanid", "00000000000000ab")]);
            let span = Span::begin(&said, 500_000, || 1, || 7);
            let mut on = said;
            span.write(&mut on, b3);
            let again = Context::read(&on).unwrap();
            prop_assert_eq!((again.trace, again.span, again.sampled), (span.trace, span.id, Some(span.sampled)));
        }
    }
}
