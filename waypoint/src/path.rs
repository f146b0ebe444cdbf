// SPDX-License-Identifier: Apache-2.0
//! One spelling of a path, before anything decides by it: policies, routes and the application see the same.
//!
//! In: the path of a request as it came, without query. Out: the normalised one, borrowed where nothing had to change.
//! Modes are those of the mesh's `pathNormalization`; dot segments are removed as RFC 3986 §5.2.4 says.

use std::borrow::Cow;

/// How far spellings are made one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Normalization {
    /// The path stays as it came.
    None,
    /// Dot segments removed, backslashes made slashes.
    #[default]
    Base,
    /// As [`Self::Base`], and several slashes in a row made one.
    MergeSlashes,
    /// `%2F` and `%5C` decoded, then as [`Self::MergeSlashes`].
    DecodeAndMergeSlashes,
}

/// Why a path is refused with 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadPath {
    /// It does not begin with a slash, and is not the `*` of OPTIONS.
    #[error("the path does not begin with a slash")]
    Relative,
    /// Some take what follows for the path's end.
    #[error("the path holds an encoded NUL")]
    Nul,
    /// A fragment is no part of a request.
    #[error("the path holds a fragment")]
    Fragment,
}

/// Makes a path's spelling one.
///
/// # Errors
/// For a path that parties are known to read in different ways, whatever the mode.
pub fn normalize(path: &str, mode: Normalization) -> Result<Cow<'_, str>, BadPath> {
    if path == "*" {
        return Ok(Cow::Borrowed(path));
    }
    let root: &[char] = match mode {
        Normalization::None => &['/'],
        _ => &['/', '\\'],
    };
    if !path.starts_with(root) {
        return Err(BadPath::Relative);
    }
    if path.contains("%00") {
        return Err(BadPath::Nul);
    }
    if path.contains('#') {
        return Err(BadPath::Fragment);
    }
    if mode == Normalization::None || is_normal(path, mode) {
        return Ok(Cow::Borrowed(path));
    }
    let mut slashed = path.replace('\\', "/");
    if mode == Normalization::DecodeAndMergeSlashes {
        slashed = decode_slashes(&slashed);
    }
    let mut normal = remove_dots(&slashed);
    if mode != Normalization::Base {
        // Behind the dots, as Istio's proxies do: "/a//../b" is "/a/b".
        let mut after_slash = false;
        normal.retain(|byte| {
            let again = after_slash && byte == '/';
            after_slash = byte == '/';
            !again
        });
    }
    Ok(Cow::Owned(normal))
}

/// Nothing to do, as for nearly every path.
fn is_normal(path: &str, mode: Normalization) -> bool {
    let bytes = path.as_bytes();
    let mut after_slash = false;
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'\\' => return false,
            // A segment that begins with a dot is looked at properly.
            b'.' if after_slash => return false,
            b'%' if after_slash && is_dot(&bytes[at..]).is_some() => return false,
            b'%' if mode == Normalization::DecodeAndMergeSlashes && slash_at(&bytes[at..]) => {
                return false;
            }
            b'/' if after_slash && mode != Normalization::Base => return false,
            _ => {}
        }
        after_slash = *byte == b'/';
    }
    true
}

/// Whether `%2F` or `%5C` stands here.
fn slash_at(bytes: &[u8]) -> bool {
    matches!(
        bytes,
        [b'%', b'2', b'f' | b'F', ..] | [b'%', b'5', b'c' | b'C', ..]
    )
}

fn decode_slashes(path: &str) -> String {
    let mut decoded = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find('%') {
        decoded.push_str(&rest[..at]);
        if slash_at(&rest.as_bytes()[at..]) {
            decoded.push('/');
            rest = &rest[at + 3..];
        } else {
            decoded.push('%');
            rest = &rest[at + 1..];
        }
    }
    decoded + rest
}

/// How many bytes a dot takes that stands here, plain or encoded.
fn is_dot(bytes: &[u8]) -> Option<usize> {
    match bytes {
        [b'.', ..] => Some(1),
        [b'%', b'2', b'e' | b'E', ..] => Some(3),
        _ => None,
    }
}

/// How many dots a segment is made of, if of nothing else.
fn dots(segment: &str) -> Option<usize> {
    let mut rest = segment.as_bytes();
    let mut count = 0;
    while !rest.is_empty() {
        rest = &rest[is_dot(rest)?..];
        count += 1;
    }
    Some(count)
}

fn remove_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    // What follows the last slash; a path that ends in a dot segment ends in a slash.
    let mut segments = path[1..].split('/').peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match dots(segment) {
            Some(1) => {}
            Some(2) => {
                kept.pop();
            }
            _ => {
                kept.push(segment);
                continue;
            }
        }
        if is_last {
            kept.push("");
        }
    }
    let mut normal = String::with_capacity(path.len());
    for segment in &kept {
        normal.push('/');
        normal.push_str(segment);
    }
    if normal.is_empty() {
        normal.push('/');
    }
    normal
}

#[cfg(test)]
mod tests {
    use super::Normalization::{Base, DecodeAndMergeSlashes, MergeSlashes, None};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spellings_become_one() {
        // path, none, base, merged, decoded and merged
        const TABLE: [[&str; 5]; 21] = [
            ["/", "/", "/", "/", "/"],
            ["/a/b", "/a/b", "/a/b", "/a/b", "/a/b"],
            ["/a/", "/a/", "/a/", "/a/", "/a/"],
            ["/a/./b", "/a/./b", "/a/b", "/a/b", "/a/b"],
            ["/a/../b", "/a/../b", "/b", "/b", "/b"],
            ["/a/b/..", "/a/b/..", "/a/", "/a/", "/a/"],
            ["/a/.", "/a/.", "/a/", "/a/", "/a/"],
            ["/..", "/..", "/", "/", "/"],
            ["/../../a", "/../../a", "/a", "/a", "/a"],
            ["/a/%2e%2E/b", "/a/%2e%2E/b", "/b", "/b", "/b"],
            ["/a/.%2e/b", "/a/.%2e/b", "/b", "/b", "/b"],
            ["/.../a", "/.../a", "/.../a", "/.../a", "/.../a"],
            ["/.a/..b", "/.a/..b", "/.a/..b", "/.a/..b", "/.a/..b"],
            [r"/a\b", r"/a\b", "/a/b", "/a/b", "/a/b"],
            [r"/a\..\b", r"/a\..\b", "/b", "/b", "/b"],
            ["//a///b//", "//a///b//", "//a///b//", "/a/b/", "/a/b/"],
            ["/a//../b", "/a//../b", "/a/b", "/a/b", "/a/b"],
            ["/a%2Fb", "/a%2Fb", "/a%2Fb", "/a%2Fb", "/a/b"],
            ["/a%5cb%2f", "/a%5cb%2f", "/a%5cb%2f", "/a%5cb%2f", "/a/b/"],
            [
                "/a%2F..%2Fb",
                "/a%2F..%2Fb",
                "/a%2F..%2Fb",
                "/a%2F..%2Fb",
                "/b",
            ],
            ["/a%252Fb", "/a%252Fb", "/a%252Fb", "/a%252Fb", "/a%252Fb"],
        ];
        for [path, expected @ ..] in TABLE {
            let modes = [None, Base, MergeSlashes, DecodeAndMergeSlashes];
            for (mode, expected) in modes.into_iter().zip(expected) {
                let normal = normalize(path, mode);
                assert_eq!(normal.as_deref(), Ok(expected), "{path} {mode:?}");
            }
        }
    }

    #[test]
    fn nothing_is_copied_where_nothing_changes() {
        for path in ["*", "/", "/a/b.c/d..", "/a%20b/~x"] {
            let normal = normalize(path, DecodeAndMergeSlashes);
            assert!(matches!(normal, Ok(Cow::Borrowed(_))), "{path}");
        }
    }

    #[test]
    fn ambiguous_paths_are_refused() {
        assert_eq!(normalize("a/b", Base), Err(BadPath::Relative));
        assert_eq!(normalize("", Base), Err(BadPath::Relative));
        assert_eq!(normalize(r"\a", None), Err(BadPath::Relative));
        assert_eq!(normalize(r"\a", Base).as_deref(), Ok("/a"));
        assert_eq!(normalize("/a%00b", None), Err(BadPath::Nul));
        assert_eq!(normalize("/a#b", Base), Err(BadPath::Fragment));
    }

    proptest! {
        #[test]
        fn a_normal_path_stays_and_never_climbs(path in r"/([./\\a%2fFeEcC5]|%2[eEfF]|%5[cC]){0,24}") {
            for mode in [Base, MergeSlashes, DecodeAndMergeSlashes] {
                let Ok(normal) = normalize(&path, mode) else { continue };
                prop_assert!(normal.starts_with('/'));
                prop_assert!(!normal.contains('\\'));
                prop_assert!(!normal.split('/').any(|segment| matches!(dots(segment), Some(1 | 2))));
                if mode != Base {
                    prop_assert!(!normal.contains("//"));
                }
                let again = normalize(&normal, mode);
                if mode != DecodeAndMergeSlashes {
                    // Decoding once is not decoding twice: %2%2Ff would be.
                    prop_assert_eq!(again.as_deref(), Ok(&*normal));
                }
            }
        }
    }
}
