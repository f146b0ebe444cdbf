// SPDX-License-Identifier: Apache-2.0
//! Values that stand in several places of routes.

use std::time::Duration;

use regex::bytes::RegexBuilder;

/// Compiled, an expression may take this many bytes: as many as the waypoint grants it.
const MAX_EXPRESSION_BYTES: usize = 1 << 18;

/// Reads a duration: up to four groups of 1 to 5 digits with `h`, `m`, `s` or `ms` behind (GEP-2257).
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no duration such as 1m30s or 500ms");
    let mut rest = text;
    let mut total = Duration::ZERO;
    for _ in 0..4 {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        if !(1..=5).contains(&digits) {
            return Err(wrong());
        }
        let (number, behind) = rest.split_at(digits);
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let letters = behind.bytes().take_while(u8::is_ascii_lowercase).count();
        let (unit, behind) = behind.split_at(letters);
        total += match unit {
            "h" => Duration::from_secs(number * 3600),
            "m" => Duration::from_secs(number * 60),
            "s" => Duration::from_secs(number),
            "ms" => Duration::from_millis(number),
            _ => return Err(wrong()),
        };
        rest = behind;
        if rest.is_empty() {
            return Ok(total);
        }
    }
    Err(wrong())
}

/// Reads a duration as Istio's kinds have it: one number, maybe with a fraction, per unit, in any order of size.
pub(crate) fn fraction(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no duration such as 2.5s or 1m30s");
    let mut rest = text;
    let mut total = 0.0;
    while !rest.is_empty() {
        let digits = rest
            .bytes()
            .take_while(|b| b.is_ascii_digit() || *b == b'.')
            .count();
        let (number, behind) = rest.split_at(digits);
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let letters = behind.bytes().take_while(u8::is_ascii_lowercase).count();
        let (unit, behind) = behind.split_at(letters);
        total += number
            * match unit {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "us" => 1e-6,
                "ns" => 1e-9,
                _ => return Err(wrong()),
            };
        rest = behind;
    }
    // Longer ones are no time that anybody waits.
    if text.is_empty() || !(0.0..=1e9).contains(&total) {
        return Err(wrong());
    }
    Ok(Duration::from_secs_f64(total))
}

/// A duration as messages have it.
pub(super) fn wire(duration: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(duration.subsec_nanos()).unwrap_or_default(),
    }
}

/// Whether a text can be the name of a header or method, or another token (RFC 9110, 5.6.2).
pub(crate) fn is_token(text: &str) -> bool {
    let special = |byte: u8| b"!#$%&'*+-.^_`|~".contains(&byte);
    let token = |byte: u8| byte.is_ascii_alphanumeric() || special(byte);
    (1..=256).contains(&text.len()) && text.bytes().all(token)
}

/// Why a header is not a route's to change, by its name in lower case; the waypoint refuses the same ones.
pub(super) fn why_unchangeable(name: &str) -> Option<&'static str> {
    match name {
        "host" => Some("is changed by a URLRewrite"),
        "x-forwarded-client-cert" => Some("says who the client is, which no route may"),
        "connection" | "content-length" | "http2-settings" | "keep-alive" | "proxy-connection"
        | "te" | "trailer" | "transfer-encoding" | "upgrade" => Some("is the connection's"),
        _ => None,
    }
}

/// Whether a text can be the value of a header: no control characters, no blanks around it (RFC 9110, 5.5).
pub(super) fn is_header_value(text: &str) -> bool {
    let blank = |c: char| c == ' ' || c == '\t';
    let visible = |byte: u8| byte == b'\t' || (byte >= b' ' && byte != 0x7f);
    (1..=4096).contains(&text.len())
        && text.bytes().all(visible)
        && text.trim_matches(blank) == text
}

/// Whether an expression can be used, as the waypoint will: as a whole, on bytes, with ASCII classes.
pub(crate) fn expression(text: &str) -> Result<(), String> {
    let compile = |text: &str| {
        let compiled = RegexBuilder::new(text)
            .unicode(false)
            .size_limit(MAX_EXPRESSION_BYTES)
            .build();
        compiled.map(drop)
    };
    // By itself first: `a)|(b` would be one between the brackets alone.
    match compile(text).and_then(|()| compile(&format!(r"\A(?:{text})\z"))) {
        Ok(()) => Ok(()),
        Err(regex::Error::CompiledTooBig(_)) => {
            Err(format!("the expression {text:?} is too large"))
        }
        Err(_) => Err(format!("{text:?} is no regular expression")),
    }
}

/// How many groups an expression has that need not match as a whole, the match itself among them.
pub(super) fn groups(text: &str) -> Result<usize, String> {
    expression(text)?;
    let compiled = RegexBuilder::new(text).unicode(false).build();
    let groups = compiled.map(|compiled| compiled.captures_len());
    groups.map_err(|_| format!("{text:?} is no regular expression"))
}

/// Whether a text can stand in place of what an expression with so many groups matches, as the waypoint will read it.
pub(super) fn substitution(text: &str, groups: usize) -> Result<(), String> {
    const LONGEST: usize = 4096;
    if text.len() > LONGEST {
        return Err(format!("has {} bytes, {LONGEST} may be", text.len()));
    }
    if text.contains(['?', '#']) {
        return Err(format!("{text:?} has what is no part of a path"));
    }
    let mut rest = text.chars();
    while let Some(letter) = rest.next() {
        if letter != '\\' {
            continue;
        }
        let group = match rest.next() {
            Some('\\') => continue,
            other => other.and_then(|digit| digit.to_digit(10)),
        };
        if group.is_none_or(|group| group as usize >= groups) {
            let words = "names a group by \\ that the expression doesn't have";
            return Err(format!("{text:?} {words}"));
        }
    }
    Ok(())
}

/// A status of gRPC, by number or by the name that its protocol gives it.
pub(super) fn grpc_status(text: &str) -> Option<u32> {
    const NAMES: [&str; 17] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];
    let named = NAMES.iter().position(|name| *name == text);
    let number = named.or_else(|| text.parse().ok().filter(|code| *code < NAMES.len()))?;
    u32::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_what_gep_2257_says() {
        let millis = |text: &str| duration(text).map(|d| d.as_millis()).ok();
        assert_eq!(millis("0s"), Some(0));
        assert_eq!(millis("1h30m5s10ms"), Some(5_405_010));
        assert_eq!(millis("99999h"), Some(359_996_400_000));
        for wrong in [
            "",
            "1",
            "s",
            "1.5s",
            "-1s",
            "1s2s3s4s5s",
            "100000s",
            "1d",
            "1 s",
            "1µs",
        ] {
            assert_eq!(millis(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn durations_of_istio_may_have_fractions() {
        let millis = |text: &str| fraction(text).map(|d| d.as_millis()).ok();
        assert_eq!(millis("2.5s"), Some(2500));
        assert_eq!(millis("1h30m0.25s"), Some(5_400_250));
        assert_eq!(millis("0s"), Some(0));
        for wrong in ["", "1", "s", "1.2.3s", "-1s", "1d", "1e9s", "999999999h"] {
            assert_eq!(millis(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_substitution_names_groups_that_there_are() {
        assert_eq!(groups("^/a/([^/]+)(/.*)$"), Ok(3));
        assert!(groups("(").is_err());
        assert_eq!(substitution(r"/b\2\\\0", 3), Ok(()));
        for wrong in [r"\3", r"\x", "\\", "/a?b"] {
            assert!(substitution(wrong, 3).is_err(), "{wrong}");
        }
    }

    #[test]
    fn statuses_of_grpc_have_names_and_numbers() {
        assert_eq!(grpc_status("UNAVAILABLE"), Some(14));
        assert_eq!(grpc_status("16"), Some(16));
        assert_eq!(grpc_status("17"), None);
        assert_eq!(grpc_status("unavailable"), None);
    }

    #[test]
    fn an_expression_is_bounded() {
        assert_eq!(expression("v[0-9]+"), Ok(()));
        assert!(expression("(").is_err());
        assert!(expression(r"(\w{500}){500}").is_err_and(|words| words.contains("too large")));
        assert!(
            expression("a)|(b").is_err(),
            "it can't escape from being whole"
        );
    }
}
