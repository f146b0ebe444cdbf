// SPDX-License-Identifier: Apache-2.0
//! Changes the headers of a request or a response.
//!
//! In: what a route sets, adds and removes. Out: the changed headers, or why that may not be done. Whom a message is
//! for and where it ends are not a route's to say: the headers that carry it are refused.

use std::collections::HashSet;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

/// What a modifier does. No header is named twice.
#[derive(Debug, Clone, Default)]
pub struct HeaderEdit {
    set: Box<[(HeaderName, HeaderValue)]>,
    add: Box<[(HeaderName, HeaderValue)]>,
    remove: Box<[HeaderName]>,
}

/// Why headers can't be changed so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadEdit {
    /// Not a header's name; neither is a pseudo-header's.
    #[error("{0:?} is not a header's name")]
    Name(String),
    /// The named header can't have this value.
    #[error("the value of {0} holds bytes that no header may")]
    Value(HeaderName),
    /// Headers of the connection and of the message's frame.
    #[error("{0} is the connection's, not a route's")]
    Connection(HeaderName),
    /// A rewrite of the host name says that.
    #[error("the host is changed by a rewrite, not by a header")]
    Host,
    /// The waypoint's own word, which backends trust.
    #[error("{0} says who the client is, which no route may")]
    Identity(HeaderName),
    /// Two things to do with one header.
    #[error("more than one action on {0}")]
    Several(HeaderName),
}

/// Of one connection only (RFC 9110 §7.6.1), or where the message ends.
const OF_CONNECTION: [HeaderName; 9] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("http2-settings"),
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

impl HeaderEdit {
    /// Compiles a modifier. Of two names that differ in case only, within one list, the first counts.
    ///
    /// # Errors
    /// If a header can't be changed so.
    pub fn compile(edit: &proto::waypoint::HeaderModifier) -> Result<Self, BadEdit> {
        let mut named = HashSet::new();
        let set = values(&edit.set, &mut named)?;
        let add = values(&edit.add, &mut named)?;
        let mut remove = Vec::new();
        for text in &edit.remove {
            let name = route_header(text)?;
            if !remove.contains(&name) {
                remove.push(name);
            }
        }
        for name in &remove {
            if !named.insert(name.clone()) {
                return Err(BadEdit::Several(name.clone()));
            }
        }
        Ok(Self {
            set,
            add,
            remove: remove.into(),
        })
    }

    /// Sets, adds and removes. An added value gets a line of its own, which means the same as a comma (RFC 9110 §5.3)
    /// and is right for `Set-Cookie` too.
    pub fn apply(&self, headers: &mut HeaderMap) {
        for name in &self.remove {
            headers.remove(name);
        }
        for (name, value) in &self.set {
            headers.insert(name.clone(), value.clone());
        }
        for (name, value) in &self.add {
            // Fails only where a message has more headers than could be read.
            let _ = headers.try_append(name.clone(), value.clone());
        }
    }
}

/// The names and values of one list, and its names to those of the others.
fn values(
    list: &[proto::waypoint::Header],
    named: &mut HashSet<HeaderName>,
) -> Result<Box<[(HeaderName, HeaderValue)]>, BadEdit> {
    let mut values: Vec<(HeaderName, HeaderValue)> = Vec::with_capacity(list.len());
    for header in list {
        let name = route_header(&header.name)?;
        if values.iter().any(|(earlier, _)| *earlier == name) {
            continue;
        }
        if !named.insert(name.clone()) {
            return Err(BadEdit::Several(name));
        }
        let value = HeaderValue::from_str(header.value.trim());
        let value = value.map_err(|_| BadEdit::Value(name.clone()))?;
        values.push((name, value));
    }
    Ok(values.into())
}

/// Who the client is, proven by its tunnel. A route of a client's own namespace must not say otherwise to a service.
const IDENTITY: HeaderName = HeaderName::from_static("x-forwarded-client-cert");

/// A header that a route may have a say in.
pub(crate) fn route_header(text: &str) -> Result<HeaderName, BadEdit> {
    let name = HeaderName::from_bytes(text.as_bytes());
    let name = name.map_err(|_| BadEdit::Name(text.to_owned()))?;
    if name == header::HOST {
        return Err(BadEdit::Host);
    }
    if name == IDENTITY {
        return Err(BadEdit::Identity(name));
    }
    if OF_CONNECTION.contains(&name) {
        return Err(BadEdit::Connection(name));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::waypoint::{Header, HeaderModifier};

    fn header(name: &str, value: &str) -> Header {
        Header {
            name: name.into(),
            value: value.into(),
        }
    }

    /// `set a: 1`, `add b: 2`, `remove c`.
    fn compile(actions: &[&str]) -> Result<HeaderEdit, BadEdit> {
        let mut edit = HeaderModifier::default();
        for action in actions {
            let (what, rest) = action.split_once(' ').unwrap();
            let (name, value) = rest.split_once(": ").unwrap_or((rest, ""));
            match what {
                "set" => edit.set.push(header(name, value)),
                "add" => edit.add.push(header(name, value)),
                _ => edit.remove.push(name.into()),
            }
        }
        HeaderEdit::compile(&edit)
    }

    #[track_caller]
    fn check(actions: &[&str], sent: &[(&str, &str)], expected: &[(&str, &str)]) {
        let mut headers = HeaderMap::new();
        for (name, value) in sent {
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, value.parse().unwrap());
        }
        compile(actions).unwrap().apply(&mut headers);
        let mut seen: Vec<(String, String)> = Vec::new();
        for name in headers.keys() {
            let values: Vec<_> = headers
                .get_all(name)
                .iter()
                .map(|v| v.to_str().unwrap())
                .collect();
            seen.push((name.to_string(), values.join(",")));
        }
        seen.sort();
        let expected: Vec<_> = expected
            .iter()
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
            .collect();
        assert_eq!(seen, expected);
    }

    /// Cases X01-X14, Y01-Y07 and G06 (metadata are headers): the same edits in a rule or a backend, of requests or responses.
    #[test]
    fn headers_are_set_added_and_removed() {
        let set = ["set X-Header-Set: set-overwrites-values"];
        check(&set, &[], &[("x-header-set", "set-overwrites-values")]);
        check(
            &set,
            &[("X-Header-Set", "some-other-value")],
            &[("x-header-set", "set-overwrites-values")],
        );
        check(
            &set,
            &[("x-header-set", "a"), ("x-header-set", "b")],
            &[("x-header-set", "set-overwrites-values")],
        );
        let add = ["add X-Header-Add: add-appends-values"];
        check(&add, &[], &[("x-header-add", "add-appends-values")]);
        check(
            &add,
            &[("X-Header-Add", "some-other-value")],
            &[("x-header-add", "some-other-value,add-appends-values")],
        );
        check(
            &["remove X-Header-Remove"],
            &[("X-Header-Remove", "val")],
            &[],
        );
        check(
            &["remove X-Header-Remove"],
            &[
                ("x-header-remove", "a"),
                ("x-header-remove", "b"),
                ("kept", "c"),
            ],
            &[("kept", "c")],
        );
        let many = [
            "set X-Set-1: s1",
            "set X-Set-2: s2",
            "add X-Add-1: a1",
            "add X-Add-2: a2",
            "add X-Add-3: a3",
            "remove X-Remove-1",
            "remove X-Remove-2",
        ];
        check(
            &many,
            &[
                ("x-set-2", "old"),
                ("x-add-1", "o1"),
                ("x-remove-1", "r"),
                ("x-remove-2", "r"),
                ("another", "val"),
            ],
            &[
                ("another", "val"),
                ("x-add-1", "o1,a1"),
                ("x-add-2", "a2"),
                ("x-add-3", "a3"),
                ("x-set-1", "s1"),
                ("x-set-2", "s2"),
            ],
        );
        check(
            &[
                "set x-LOWER-set: s",
                "add X-mixed-Add: a",
                "remove X-REMOVE",
            ],
            &[
                ("X-Lower-Set", "o"),
                ("x-Mixed-add", "o"),
                ("x-remove", "o"),
            ],
            &[("x-lower-set", "s"), ("x-mixed-add", "o,a")],
        );
    }

    #[test]
    fn the_first_of_equal_names_counts() {
        check(
            &[
                "set a: 1", "set A: 2", "add b: 1", "add B: 2", "remove C", "remove c",
            ],
            &[("c", "")],
            &[("a", "1"), ("b", "1")],
        );
    }

    #[test]
    fn cookies_stay_lines() {
        let mut headers = HeaderMap::new();
        headers.append("set-cookie", "a=1".parse().unwrap());
        compile(&["add set-cookie: b=2"])
            .unwrap()
            .apply(&mut headers);
        assert_eq!(headers.get_all("set-cookie").iter().count(), 2);
    }

    #[test]
    fn a_route_does_not_frame_messages() {
        let why = |action: &str| compile(&[action]).unwrap_err().to_string();
        for name in [
            "Connection",
            "Content-Length",
            "TE",
            "Trailer",
            "Transfer-Encoding",
            "Upgrade",
            "HTTP2-Settings",
            "Keep-Alive",
            "Proxy-Connection",
        ] {
            let expected = format!("{} is the connection's, not a route's", name.to_lowercase());
            assert_eq!(why(&format!("set {name}: x")), expected);
            assert_eq!(why(&format!("add {name}: x")), expected);
            assert_eq!(why(&format!("remove {name}")), expected);
        }
        assert_eq!(why("set :path: /"), "\":path\" is not a header's name");
        assert_eq!(
            why("remove :authority"),
            "\":authority\" is not a header's name"
        );
        for action in ["set", "add", "remove"] {
            let expected = "x-forwarded-client-cert says who the client is, which no route may";
            assert_eq!(
                why(&format!("{action} X-Forwarded-Client-Cert: URI=a")),
                expected
            );
        }
        assert_eq!(
            why("set hOST: evil"),
            "the host is changed by a rewrite, not by a header"
        );
        assert_eq!(why("set a b: c"), "\"a b\" is not a header's name");
        assert_eq!(why("remove "), "\"\" is not a header's name");
        assert_eq!(
            why("set a: b\r\nc"),
            "the value of a holds bytes that no header may"
        );
        assert_eq!(
            why("add a: \0"),
            "the value of a holds bytes that no header may"
        );
    }

    #[test]
    fn one_action_per_header() {
        let why = |actions: &[&str]| compile(actions).unwrap_err().to_string();
        assert_eq!(why(&["set a: 1", "add A: 1"]), "more than one action on a");
        assert_eq!(why(&["set a: 1", "remove A"]), "more than one action on a");
        assert_eq!(why(&["add a: 1", "remove a"]), "more than one action on a");
    }
}
