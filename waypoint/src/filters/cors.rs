// SPDX-License-Identifier: Apache-2.0
//! Cross-origin requests: which scripts of other origins may ask, and what they may read.
//!
//! In: what a route allows; a request's method and headers. Out: the answer to a preflight, or the headers that the
//! response gets. Who asks without leave is answered as ever (it is the browser that keeps the answer from the script);
//! only a preflight is refused, or goes on where the route says so.

use http::Method;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};

use crate::pattern::{BadPattern, Pattern};

/// What a route allows to scripts of other origins.
#[derive(Debug, Clone)]
pub struct Cors {
    origins: Origins,
    credentials: bool,
    methods: Allowed,
    headers: Allowed,
    expose: Option<HeaderValue>,
    max_age: HeaderValue,
    /// Whether the backend answers preflights of other origins.
    forward: bool,
}

#[derive(Debug, Clone)]
enum Origins {
    Any,
    These(Box<[Origin]>, Box<[Pattern]>),
}

/// `scheme://host:port`; a `*` in the host stands for one or more characters.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Origin {
    scheme: Box<str>,
    /// What stands before and behind the `*`; without one, the host and nothing.
    host: (Box<str>, Option<Box<str>>),
    port: Option<u16>,
}

#[derive(Debug, Clone)]
enum Allowed {
    Any,
    /// As a header's value; none for an empty list.
    These(Option<HeaderValue>),
}

/// What a request is to the filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// No script of another origin asks, or one that may not: nothing is added.
    Plain,
    /// A script that may ask: [`Cors::grant`] its origin, once there is a response.
    Granted(Grant),
    /// A browser asks for leave, and gets it: 204 with these headers.
    Preflight(HeaderMap),
    /// A browser asks for leave for an origin that gets none: 403.
    Refused,
}

/// An origin whose scripts may read the response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant(HeaderValue);

/// Why a route's CORS filter can't be honoured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadCors {
    /// Not `scheme://host(:port)` with at most one `*`, in the host.
    #[error("{0:?} is not an origin")]
    Origin(String),
    /// `*` means all, beside which nothing can stand.
    #[error("* stands beside other {0}")]
    Mixed(&'static str),
    /// Not an expression that can be used.
    #[error("origin {0:?}: {1}")]
    Pattern(String, BadPattern),
    /// Not a method or a header's name.
    #[error("{1:?} can't be one of the {0}")]
    Token(&'static str, String),
}

impl Cors {
    pub(super) fn compile(cors: &proto::waypoint::Cors) -> Result<Self, BadCors> {
        let origins = match is_any(&cors.allow_origins, "origins")? {
            true => Origins::Any,
            false => {
                let origins = cors.allow_origins.iter();
                let compiled: Result<_, _> = origins.map(|origin| compile_origin(origin)).collect();
                let patterns = cors.origin_patterns.iter().map(|text| {
                    let bad = |why| BadCors::Pattern(text.clone(), why);
                    Pattern::new(text).map_err(bad)
                });
                Origins::These(compiled?, patterns.collect::<Result<_, _>>()?)
            }
        };
        let expose = match Allowed::compile(&cors.expose_headers, "exposed headers")? {
            // To a request with credentials a browser takes it for a header of that name.
            Allowed::Any => (!cors.allow_credentials).then(|| HeaderValue::from_static("*")),
            Allowed::These(list) => list,
        };
        Ok(Self {
            origins,
            credentials: cors.allow_credentials,
            methods: Allowed::compile(&cors.allow_methods, "methods")?,
            headers: Allowed::compile(&cors.allow_headers, "headers")?,
            expose,
            max_age: HeaderValue::from(match cors.max_age {
                // Gateway API's default.
                0 => 5,
                seconds => seconds,
            }),
            forward: cors.forward_preflights,
        })
    }

    /// What to do with a request.
    pub fn judge(&self, method: &Method, headers: &HeaderMap) -> Verdict {
        let Some(origin) = headers.get(header::ORIGIN) else {
            return Verdict::Plain;
        };
        let asked_method = headers.get(header::ACCESS_CONTROL_REQUEST_METHOD);
        let is_granted = self.allows(origin);
        match asked_method.filter(|_| method == Method::OPTIONS) {
            None if is_granted => Verdict::Granted(Grant(origin.clone())),
            None => Verdict::Plain,
            Some(_) if !is_granted && self.forward => Verdict::Plain,
            Some(_) if !is_granted => Verdict::Refused,
            Some(asked_method) => {
                let mut answer = HeaderMap::new();
                self.grant(&Grant(origin.clone()), &mut answer);
                let asked_headers = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS);
                for (name, allowed, asked) in [
                    (
                        header::ACCESS_CONTROL_ALLOW_METHODS,
                        &self.methods,
                        Some(asked_method),
                    ),
                    (
                        header::ACCESS_CONTROL_ALLOW_HEADERS,
                        &self.headers,
                        asked_headers,
                    ),
                ] {
                    if let Some(value) = allowed.answer(asked, self.credentials) {
                        answer.insert(name, value);
                    }
                }
                answer.insert(header::ACCESS_CONTROL_MAX_AGE, self.max_age.clone());
                Verdict::Preflight(answer)
            }
        }
    }

    /// Lets the origin's scripts read the response with these headers.
    pub fn grant(&self, grant: &Grant, headers: &mut HeaderMap) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, grant.0.clone());
        // The answer differs by origin, which caches have to know.
        let _ = headers.try_append(header::VARY, HeaderValue::from_static("origin"));
        if self.credentials {
            let yes = HeaderValue::from_static("true");
            headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, yes);
        }
        if let Some(expose) = &self.expose {
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, expose.clone());
        }
    }

    fn allows(&self, origin: &HeaderValue) -> bool {
        match &self.origins {
            Origins::Any => true,
            Origins::These(origins, patterns) => {
                let asked = origin.to_str().ok().and_then(split_origin);
                asked.is_some_and(|asked| origins.iter().any(|origin| origin.matches(asked)))
                    || patterns
                        .iter()
                        .any(|pattern| pattern.matches(origin.as_bytes()))
            }
        }
    }
}

impl Allowed {
    fn compile(list: &[String], what: &'static str) -> Result<Self, BadCors> {
        if is_any(list, what)? {
            return Ok(Self::Any);
        }
        for entry in list {
            // Names of headers and methods are tokens alike.
            if HeaderName::from_bytes(entry.as_bytes()).is_err() {
                return Err(BadCors::Token(what, entry.clone()));
            }
        }
        let joined = list.join(", ");
        let bad = |_| BadCors::Token(what, joined.clone());
        let value = HeaderValue::from_str(&joined).map_err(bad)?;
        Ok(Self::These((!list.is_empty()).then_some(value)))
    }

    /// What a preflight that asks for something is told.
    fn answer(&self, asked: Option<&HeaderValue>, credentials: bool) -> Option<HeaderValue> {
        match self {
            Self::These(list) => list.clone(),
            // With credentials, "*" would be a name like any other.
            Self::Any if credentials => asked.cloned(),
            Self::Any => asked.map(|_| HeaderValue::from_static("*")),
        }
    }
}

fn is_any(list: &[String], what: &'static str) -> Result<bool, BadCors> {
    match list.iter().any(|entry| entry == "*") {
        true if list.len() > 1 => Err(BadCors::Mixed(what)),
        any => Ok(any),
    }
}

fn compile_origin(text: &str) -> Result<Origin, BadCors> {
    let bad = || BadCors::Origin(text.to_owned());
    let (scheme, host, port) = split_origin(text).ok_or_else(bad)?;
    let host = match host.split_once('*') {
        None => (host.into(), None),
        Some((_, behind)) if behind.contains('*') => return Err(bad()),
        Some((before, behind)) => (before.into(), Some(behind.into())),
    };
    Ok(Origin {
        scheme: scheme.into(),
        host,
        port,
    })
}

/// Scheme, host and port of an origin; none if it isn't one (`null` is not). A scheme's own port counts as named.
fn split_origin(origin: &str) -> Option<(&str, &str, Option<u16>)> {
    let (scheme, authority) = origin.split_once("://")?;
    if authority.contains(['/', '@', '?', '#', ' ', ',']) {
        return None;
    }
    // A colon within brackets is an IPv6 address's.
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port.parse().ok()?)),
        _ => (authority, None),
    };
    let known = match scheme {
        scheme if scheme.eq_ignore_ascii_case("http") => Some(80),
        scheme if scheme.eq_ignore_ascii_case("https") => Some(443),
        _ => None,
    };
    (!scheme.is_empty() && !host.is_empty()).then_some((scheme, host, port.or(known)))
}

impl Origin {
    fn matches(&self, (scheme, host, port): (&str, &str, Option<u16>)) -> bool {
        let host_matches = match &self.host {
            (whole, None) => whole.eq_ignore_ascii_case(host),
            (before, Some(behind)) => {
                // Bytes: a foreign host may be cut anywhere.
                let host = host.as_bytes();
                host.len() > before.len() + behind.len()
                    && host[..before.len()].eq_ignore_ascii_case(before.as_bytes())
                    && host[host.len() - behind.len()..].eq_ignore_ascii_case(behind.as_bytes())
            }
        };
        host_matches && self.port == port && self.scheme.eq_ignore_ascii_case(scheme)
    }
}

#[cfg(test)]
mod tests;
