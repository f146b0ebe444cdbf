// SPDX-License-Identifier: Apache-2.0
//! What requests that are to meet at one endpoint have in common, and the cookie that gives them something.
//!
//! In: a request's headers, its query, its client's address. Out: the key that [`super::hash`] goes by, and what the
//! answer tells the client to keep. A request without the key goes by load, as any other.

use std::net::IpAddr;
use std::time::Duration;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use proto::waypoint::hash_key::From;
use proto::waypoint::{HashCookie, HashKey};

use super::hash::Key;

/// Cookies of one request that are looked at.
const MOST_COOKIES: usize = 256;

/// Where the key is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Header(HeaderName),
    /// A cookie of this name, which may be made here.
    Cookie(Box<str>, Option<Made>),
    /// The first parameter of this name, as it stands in the query.
    Query(Box<str>),
    SourceIp,
}

/// How a cookie is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    path: Box<str>,
    /// None: as long as the client likes.
    age: Option<Duration>,
}

/// What a request has to say.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'r> {
    pub headers: &'r HeaderMap,
    pub query: Option<&'r str>,
    pub client: IpAddr,
}

impl Source {
    pub(super) fn compile(key: &HashKey) -> Result<Self, String> {
        let bad = |why: String| format!("load_balancer.hash: {why}");
        match &key.from {
            Some(From::Header(name)) => {
                let header = HeaderName::from_bytes(name.as_bytes());
                header
                    .map(Self::Header)
                    .map_err(|_| bad(format!("{name:?} is not a header's name")))
            }
            Some(From::Cookie(cookie)) => Self::cookie(cookie).map_err(bad),
            Some(From::Query(name)) if !name.is_empty() => Ok(Self::Query(name.as_str().into())),
            Some(From::Query(_)) => Err(bad("the parameter has no name".to_owned())),
            Some(From::SourceIp(())) => Ok(Self::SourceIp),
            None => Err(bad("it says not of what".to_owned())),
        }
    }

    fn cookie(cookie: &HashCookie) -> Result<Self, String> {
        let HashCookie { name, path, ttl } = cookie;
        // A token, as a header's name is (RFC 6265 §4.1.1).
        HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| format!("{name:?} is not a cookie's name"))?;
        let is_of_path = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b';';
        if !path.bytes().all(is_of_path) {
            return Err(format!("{path:?} is not a cookie's path"));
        }
        let age = ttl.map(Duration::try_from).transpose();
        let age = age.map_err(|_| "the cookie's ttl is negative".to_owned())?;
        let made = age.map(|age| Made {
            path: if path.is_empty() { "/" } else { path }.into(),
            age: Some(age).filter(|age| !age.is_zero()),
        });
        Ok(Self::Cookie(name.as_str().into(), made))
    }

    /// The request's key; none where it has none.
    pub fn key(&self, facts: Facts<'_>) -> Option<Key> {
        let value = match self {
            Self::Header(name) => facts.headers.get(name)?.as_bytes(),
            Self::Cookie(name, _) => cookie(facts.headers, name)?,
            Self::Query(name) => parameter(facts.query?, name)?.as_bytes(),
            Self::SourceIp => {
                return Some(match facts.client.to_canonical() {
                    IpAddr::V4(ip) => Key::new(&ip.octets()),
                    IpAddr::V6(ip) => Key::new(&ip.octets()),
                });
            }
        };
        (!value.is_empty()).then(|| Key::new(value))
    }

    /// For a client that has no cookie and is to have one: its key, and what the answer says. `random` decides who it is.
    pub fn make(&self, random: u64) -> Option<(Key, HeaderValue)> {
        let Self::Cookie(name, Some(made)) = self else {
            return None;
        };
        let value = format!("{random:016x}");
        let path = &made.path;
        let age = made.age.map(|age| format!("; Max-Age={}", age.as_secs()));
        let age = age.unwrap_or_default();
        let cookie = format!("{name}={value}; Path={path}{age}; HttpOnly");
        let cookie = HeaderValue::try_from(cookie).ok()?;
        Some((Key::new(value.as_bytes()), cookie))
    }
}

fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h [u8]> {
    let lines = headers.get_all(header::COOKIE).iter();
    let cookies = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    cookies.take(MOST_COOKIES).find_map(|cookie| {
        let value = cookie.trim_ascii().strip_prefix(name.as_bytes())?;
        value.strip_prefix(b"=")
    })
}

fn parameter<'q>(query: &'q str, name: &str) -> Option<&'q str> {
    let mut parameters = query.split('&');
    parameters.find_map(|parameter| match parameter.split_once('=') {
        Some((key, value)) => (key == name).then_some(value),
        None => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 7));

    fn source(from: From) -> Result<Source, String> {
        Source::compile(&HashKey { from: Some(from) })
    }

    fn named(name: &str, path: &str, seconds: Option<i64>) -> From {
        From::Cookie(HashCookie {
            name: name.into(),
            path: path.into(),
            ttl: seconds.map(|seconds| prost_types::Duration { seconds, nanos: 0 }),
        })
    }

    #[track_caller]
    fn check(from: From, headers: &[(&str, &str)], query: Option<&str>, expected: Option<&[u8]>) {
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| {
                let name: HeaderName = name.parse().unwrap();
                (name, HeaderValue::from_str(value).unwrap())
            })
            .collect();
        let facts = Facts {
            headers: &headers,
            query,
            client: CLIENT,
        };
        let key = source(from).unwrap().key(facts);
        assert_eq!(key, expected.map(Key::new));
    }

    #[test]
    fn the_key_is_where_it_is_said_to_be() {
        let user = || From::Header("X-User".into());
        check(user(), &[("x-user", "me")], None, Some(b"me"));
        check(user(), &[("x-user", "")], None, None);
        check(user(), &[], None, None);
        let cookies = [("cookie", "a=1; user=me"), ("cookie", "user=you")];
        check(named("user", "", None), &cookies, None, Some(b"me"));
        check(named("use", "", None), &cookies, None, None);
        let page = || From::Query("page".into());
        check(page(), &[], Some("x&page=7&page=8"), Some(b"7"));
        check(page(), &[], Some("pages=7&page"), None);
        check(page(), &[], None, None);
        check(From::SourceIp(()), &[], None, Some(&[10, 0, 0, 7]));
    }

    #[test]
    fn a_cookie_that_is_made_leads_back() {
        let source = source(named("c", "/x", Some(60))).unwrap();
        let (key, cookie) = source.make(0xab).unwrap();
        let text = cookie.to_str().unwrap();
        assert_eq!(text, "c=00000000000000ab; Path=/x; Max-Age=60; HttpOnly");
        let mut headers = HeaderMap::new();
        let back = text.split(';').next().unwrap();
        headers.insert(header::COOKIE, back.parse().unwrap());
        let facts = Facts {
            headers: &headers,
            query: None,
            client: CLIENT,
        };
        assert_eq!(source.key(facts), Some(key));
    }

    #[test]
    fn a_cookie_is_made_only_where_it_is_asked_for() {
        let made = |seconds| source(named("c", "", seconds)).unwrap().make(1);
        assert!(made(None).is_none());
        let (_, cookie) = made(Some(0)).unwrap();
        assert_eq!(cookie, "c=0000000000000001; Path=/; HttpOnly");
        let header = source(From::Header("x".into())).unwrap();
        assert!(header.make(1).is_none());
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for (from, expected) in [
            (From::Header("a b".into()), "\"a b\" is not a header's name"),
            (named("a;b", "", None), "\"a;b\" is not a cookie's name"),
            (named("a", "/;x", None), "\"/;x\" is not a cookie's path"),
            (named("a", "", Some(-1)), "the cookie's ttl is negative"),
            (From::Query(String::new()), "the parameter has no name"),
        ] {
            let expected = format!("load_balancer.hash: {expected}");
            assert_eq!(source(from), Err(expected));
        }
    }
}
