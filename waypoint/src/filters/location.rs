// SPDX-License-Identifier: Apache-2.0
//! Where a request goes instead: the `Location` of a redirect, the path and host of a rewrite.
//!
//! In: what a route says, what was asked, how much of the path the rule's prefix matched. Out: another URL or path. The
//! query stays in both. Gateway API's table for prefixes holds for both.

use http::StatusCode;
use http::header::HeaderValue;
use http::uri::PathAndQuery;
use proto::waypoint::path_rewrite::Kind;

use crate::hygiene::split_host;
use crate::pattern::{BadPattern, Substitution};
use crate::route::Request;

/// Another path.
#[derive(Debug, Clone)]
pub enum PathChange {
    /// This one.
    Full(Box<str>),
    /// This in place of the prefix that the rule matched; without a slash at its end.
    Prefix(Box<str>),
    /// What an expression matches in it, replaced.
    Regex(Substitution),
}

/// Sends the client elsewhere. What is not set is as the request has it.
#[derive(Debug, Clone)]
pub struct Redirect {
    scheme: Option<Scheme>,
    host: Option<Box<str>>,
    port: Option<u16>,
    pub(super) path: Option<PathChange>,
    /// 301, 302, 303, 307 or 308.
    pub status: StatusCode,
}

/// What the backend sees instead.
#[derive(Debug, Clone)]
pub struct Rewrite {
    /// Its name for itself.
    pub host: Option<HeaderValue>,
    /// The path that it is asked for.
    pub path: Option<PathChange>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

/// Why one can't be sent there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadChange {
    /// Neither http nor https.
    #[error("scheme {0:?} is neither http nor https")]
    Scheme(String),
    /// Not a host's name without a port.
    #[error("{0:?} is not a host")]
    Host(String),
    /// Not a port.
    #[error("{0} is not a port")]
    Port(u32),
    /// None of those that redirect.
    #[error("{0} is not a status of a redirect")]
    Status(u32),
    /// Not a path, or more than one.
    #[error("{0:?} is not a path")]
    Path(String),
    /// An expression that can't be used, or what is to stand in its place.
    #[error("path expression {0:?}: {1}")]
    Expression(String, BadPattern),
    /// A change of the path that this waypoint doesn't know.
    #[error("a path change of an unknown kind")]
    Unset,
}

impl PathChange {
    fn compile(change: &proto::waypoint::PathRewrite) -> Result<Self, BadChange> {
        let path = match change.kind.as_ref().ok_or(BadChange::Unset)? {
            Kind::Full(path) | Kind::Prefix(path) => path,
            Kind::Regex(change) => {
                let read = Substitution::new(&change.pattern, &change.substitution);
                let bad = |why| BadChange::Expression(change.pattern.clone(), why);
                return read.map(Self::Regex).map_err(bad);
            }
        };
        let slashed = match path.starts_with('/') {
            true => path.clone(),
            false => format!("/{path}"),
        };
        let is_path = slashed.parse::<PathAndQuery>().is_ok() && !slashed.contains(['?', '#']);
        if !is_path {
            return Err(BadChange::Path(path.clone()));
        }
        Ok(match change.kind {
            Some(Kind::Prefix(_)) => Self::Prefix(slashed.trim_end_matches('/').into()),
            _ => Self::Full(slashed.into()),
        })
    }

    /// What becomes of a path whose first `prefix` bytes the rule matched, with its query; none where that is no path, or
    /// too long for one.
    pub fn apply(&self, path: &str, query: Option<&str>, prefix: usize) -> Option<String> {
        let replaced;
        let (start, rest) = match self {
            Self::Full(full) => (&**full, ""),
            Self::Prefix(replacement) => (&**replacement, path.get(prefix..).unwrap_or_default()),
            Self::Regex(substitution) => {
                replaced = substitution.apply(path)?;
                let is_path = replaced.starts_with('/') && !replaced.contains(['?', '#']);
                (is_path.then_some(&*replaced)?, "")
            }
        };
        let query_room = query.map_or(0, |query| query.len() + 1);
        let mut changed = String::with_capacity(start.len() + rest.len() + 1 + query_room);
        changed.push_str(start);
        changed.push_str(rest);
        if !changed.starts_with('/') {
            changed.insert(0, '/');
        }
        push_query(&mut changed, query);
        Some(changed)
    }
}

fn push_query(path: &mut String, query: Option<&str>) {
    if let Some(query) = query {
        path.push('?');
        path.push_str(query);
    }
}

impl Redirect {
    pub(super) fn compile(redirect: &proto::waypoint::Redirect) -> Result<Self, BadChange> {
        let scheme = match redirect.scheme.as_str() {
            "" => None,
            "http" => Some(Scheme::Http),
            "https" => Some(Scheme::Https),
            other => return Err(BadChange::Scheme(other.to_owned())),
        };
        let status = match redirect.status {
            301 => StatusCode::MOVED_PERMANENTLY,
            // Gateway API's default.
            0 | 302 => StatusCode::FOUND,
            303 => StatusCode::SEE_OTHER,
            307 => StatusCode::TEMPORARY_REDIRECT,
            308 => StatusCode::PERMANENT_REDIRECT,
            other => return Err(BadChange::Status(other)),
        };
        let port = match redirect.port {
            0 => None,
            port => Some(u16::try_from(port).map_err(|_| BadChange::Port(port))?),
        };
        Ok(Self {
            scheme,
            host: host(&redirect.hostname)?.map(Into::into),
            port,
            path: redirect
                .path
                .as_ref()
                .map(PathChange::compile)
                .transpose()?,
            status,
        })
    }

    /// The URL to go to. A port is named where the scheme doesn't say it; without one of its own it is that of the new
    /// scheme, else the one that the service was asked on, and never the one in `Host`. None where the request names no
    /// host, or the change leads to no path.
    pub fn location(&self, asked: &Request<'_>, prefix: usize) -> Option<HeaderValue> {
        let scheme = self.scheme.unwrap_or(match asked.scheme {
            "https" => Scheme::Https,
            _ => Scheme::Http,
        });
        let host = match &self.host {
            Some(host) => host,
            None => split_host(asked.authority)?.0,
        };
        let (name, well_known) = match scheme {
            Scheme::Http => ("http", 80),
            Scheme::Https => ("https", 443),
        };
        let port = match (self.port, self.scheme) {
            (Some(port), _) => port,
            (None, Some(_)) => well_known,
            (None, None) => asked.port,
        };
        let mut url = format!("{name}://{host}");
        if port != well_known {
            url.push(':');
            url.push_str(&port.to_string());
        }
        match &self.path {
            Some(change) => url.push_str(&change.apply(asked.path, asked.query, prefix)?),
            None => {
                url.push_str(asked.path);
                push_query(&mut url, asked.query);
            }
        }
        HeaderValue::try_from(url).ok()
    }
}

impl Rewrite {
    pub(super) fn compile(rewrite: &proto::waypoint::Rewrite) -> Result<Self, BadChange> {
        let bad = |_| BadChange::Host(rewrite.hostname.clone());
        let host = host(&rewrite.hostname)?;
        Ok(Self {
            host: host.map(HeaderValue::from_str).transpose().map_err(bad)?,
            path: rewrite.path.as_ref().map(PathChange::compile).transpose()?,
        })
    }
}

fn host(hostname: &str) -> Result<Option<&str>, BadChange> {
    if hostname.is_empty() {
        return Ok(None);
    }
    match split_host(hostname) {
        Some((host, None)) => Ok(Some(host)),
        _ => Err(BadChange::Host(hostname.to_owned())),
    }
}
