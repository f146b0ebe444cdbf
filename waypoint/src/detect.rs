// SPDX-License-Identifier: Apache-2.0
//! What a client speaks, by its first bytes. Pure.

use crate::upstream::Version;

/// How HTTP/2 begins (RFC 9113 §3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The longest method that is taken for one.
const LONGEST_METHOD: usize = 32;

/// So much of a first line is looked at; what is longer is no request.
pub const LONGEST: usize = 16 * 1024;

/// What the first bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spoken {
    /// More of them would tell.
    Unclear,
    Http(Version),
    /// Something else.
    Other,
}

/// Of a port where anything may be spoken.
pub fn anything(first: &[u8]) -> Spoken {
    match begins_as_http2(first) {
        Spoken::Other => request_line(first),
        spoken => spoken,
    }
}

/// Of a port where HTTP is spoken: which version.
pub fn http(first: &[u8]) -> Spoken {
    match begins_as_http2(first) {
        Spoken::Other => Spoken::Http(Version::Http1),
        spoken => spoken,
    }
}

fn begins_as_http2(first: &[u8]) -> Spoken {
    let common = first.len().min(PREFACE.len());
    if first[..common] != PREFACE[..common] {
        Spoken::Other
    } else if common == PREFACE.len() {
        Spoken::Http(Version::Http2)
    } else {
        Spoken::Unclear
    }
}

/// A method, a target and a version, as HTTP/1 begins.
fn request_line(first: &[u8]) -> Spoken {
    let line_end = first.iter().position(|byte| *byte == b'\n');
    let line = &first[..line_end.unwrap_or(first.len())];
    let method_end = line.iter().position(|byte| *byte == b' ');
    let method = &line[..method_end.unwrap_or(line.len())];
    let is_method = method.len() <= LONGEST_METHOD
        && method
            .iter()
            .all(|byte| byte.is_ascii_uppercase() || *byte == b'-' || *byte == b'_');
    let has_control = line
        .iter()
        .any(|byte| byte.is_ascii_control() && *byte != b'\r');
    if !is_method || has_control || (method_end.is_some() && method.is_empty()) {
        return Spoken::Other;
    }
    match line_end {
        None if first.len() >= LONGEST => Spoken::Other,
        None => Spoken::Unclear,
        Some(_) => {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let version = line.rsplit(|byte| *byte == b' ').next();
            match (method_end, version) {
                (Some(_), Some(b"HTTP/1.1" | b"HTTP/1.0")) => Spoken::Http(Version::Http1),
                _ => Spoken::Other,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_beginning_tells_or_waits() {
        for (text, expected) in [
            ("", Spoken::Unclear),
            ("G", Spoken::Unclear),
            ("GET /", Spoken::Unclear),
            ("GET / HTTP/1.1\r\n", Spoken::Http(Version::Http1)),
            ("GET / HTTP/1.0\n", Spoken::Http(Version::Http1)),
            ("M-SEARCH * HTTP/1.1\r\nhost", Spoken::Http(Version::Http1)),
            ("PRI", Spoken::Unclear),
            (
                "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nrest",
                Spoken::Http(Version::Http2),
            ),
            ("PRI * HTTP/2.0\r\n\r\nXX", Spoken::Other),
            ("EHLO there\r\n", Spoken::Other),
            ("get / HTTP/1.1\r\n", Spoken::Other),
            (" / HTTP/1.1\r\n", Spoken::Other),
            ("HELP\r\n", Spoken::Other),
            ("\u{16}\u{3}\u{1}", Spoken::Other),
            ("GET / HTTP/3\r\n", Spoken::Other),
        ] {
            assert_eq!(anything(text.as_bytes()), expected, "{text:?}");
        }
        let endless = [b"GET /", vec![b'a'; LONGEST].as_slice()].concat();
        assert_eq!(anything(&endless), Spoken::Other);
        let no_method = vec![b'A'; LONGEST_METHOD + 1];
        assert_eq!(anything(&no_method), Spoken::Other);
    }

    #[test]
    fn every_split_of_a_beginning_says_the_same_in_the_end() {
        for text in [&b"POST /x?y HTTP/1.1\r\n"[..], PREFACE, b"SSH-2.0-x\r\n"] {
            let whole = anything(text);
            for end in 0..text.len() {
                let part = anything(&text[..end]);
                assert!(
                    part == Spoken::Unclear || part == whole,
                    "{end} of {text:?}"
                );
            }
        }
    }

    #[test]
    fn where_http_is_declared_only_its_version_is_asked() {
        assert_eq!(http(b""), Spoken::Unclear);
        assert_eq!(http(b"P"), Spoken::Unclear);
        assert_eq!(http(b"PO"), Spoken::Http(Version::Http1));
        assert_eq!(http(b"\0"), Spoken::Http(Version::Http1));
        assert_eq!(http(PREFACE), Spoken::Http(Version::Http2));
    }
}
