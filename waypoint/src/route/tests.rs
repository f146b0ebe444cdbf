// SPDX-License-Identifier: Apache-2.0
//! Routes and requests as short texts, for the tables of the files below.
//!
//! ```text
//! rule     conditions [or conditions]... [-> backend[*weight]...] [! reason]
//! conditions   =/exact  /prefix  ~regex  METHOD  header:value  header~regex  ?parameter=value  ?parameter~regex  grpc:service/method
//! request  [METHOD] [@host] /path[?query] [header:value]...
//! ```

mod answers;
mod conformance;
mod faults;
mod naive;
mod ordered;
mod redirects;
mod rewrites;
mod services;

use http::{HeaderName, Uri};
use proto::waypoint::path_match::Kind as Path;
use proto::waypoint::value_match::Value;
use proto::waypoint::{
    GrpcMethodMatch, HttpBackend, HttpFilter, HttpMatch, HttpRoute, HttpRule, PathMatch,
    ValueMatch, http_backend, http_filter,
};
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use super::*;
use crate::session::UnixTime;

pub(super) fn rng() -> StdRng {
    StdRng::seed_from_u64(7)
}

pub(super) const NOW: UnixTime = UnixTime(1_000_000);

/// A port of the shop's service of this name.
pub(super) fn destination(name: &str, port: u32) -> proto::waypoint::Destination {
    proto::waypoint::Destination {
        namespace: "shop".into(),
        hostname: name.into(),
        port,
        protocol: proto::waypoint::Protocol::Http1.into(),
        traffic_policy: None,
    }
}

fn backend(text: &str) -> HttpBackend {
    let (name, weight) = text.split_once('*').unwrap_or((text, "1"));
    let target = match name.strip_prefix("invalid-") {
        Some(_) => http_backend::Target::Invalid(format!("{name} is not there")),
        None => http_backend::Target::Destination(destination(name, 8080)),
    };
    HttpBackend {
        weight: weight.parse().unwrap(),
        target: Some(target),
        filters: Vec::new(),
    }
}

fn path(kind: Path) -> Option<PathMatch> {
    Some(PathMatch { kind: Some(kind) })
}

fn conditions(text: &str) -> HttpMatch {
    let mut conditions = HttpMatch::default();
    let value = |text: &str, exact: char| {
        let at = text.find([exact, '~']).unwrap();
        let value = text[at + 1..].to_owned();
        ValueMatch {
            name: text[..at].into(),
            value: Some(match text[at..].starts_with('~') {
                true => Value::Regex(value),
                false => Value::Exact(value),
            }),
            inverted: false,
        }
    };
    for word in text.split_whitespace() {
        match (word.split_at(1), word.strip_prefix("grpc:")) {
            (_, Some(grpc)) => {
                let regex = grpc.starts_with('~');
                let (service, method) = grpc.trim_start_matches('~').split_once('/').unwrap();
                conditions.grpc = Some(GrpcMethodMatch {
                    service: service.into(),
                    method: method.into(),
                    regex,
                });
            }
            (("=", exact), _) => conditions.path = path(Path::Exact(exact.into())),
            (("~", regex), _) => conditions.path = path(Path::Regex(regex.into())),
            (("/", _), _) => conditions.path = path(Path::Prefix(word.into())),
            (("?", parameter), _) => conditions.query.push(value(parameter, '=')),
            _ if word.contains([':', '~']) => conditions.headers.push(value(word, ':')),
            _ => conditions.method = word.into(),
        }
    }
    conditions
}

/// A rule.
pub(super) fn rule(text: &str) -> HttpRule {
    let (text, invalid) = text.split_once(" ! ").unwrap_or((text, ""));
    let (matches, backends) = text.split_once("->").unwrap_or((text, ""));
    let matches = matches.split(" or ").filter(|text| !text.trim().is_empty());
    HttpRule {
        matches: matches.map(conditions).collect(),
        backends: backends.split_whitespace().map(backend).collect(),
        invalid: invalid.into(),
        ..HttpRule::default()
    }
}

/// A route of these rules.
pub(super) fn route(name: &str, rules: impl IntoIterator<Item = HttpRule>) -> HttpRoute {
    HttpRoute {
        rate_limit: None,
        kind: "HTTPRoute".into(),
        namespace: "shop".into(),
        name: name.into(),
        created: 0,
        rules: rules.into_iter().collect(),
    }
}

/// A table of one route of these rules.
pub(super) fn table(rules: &[&str]) -> HttpTable {
    HttpTable::compile(&[route("r", rules.iter().map(|text| rule(text)))])
}

/// A filter, put into a rule or a backend.
pub(super) fn filter(kind: http_filter::Kind) -> HttpFilter {
    HttpFilter { kind: Some(kind) }
}

/// A request that owns what [`Request`] borrows.
pub(super) struct Asked {
    pub(super) method: Method,
    pub(super) scheme: &'static str,
    pub(super) authority: String,
    pub(super) port: u16,
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) claims: Option<Map<String, serde_json::Value>>,
}

impl Asked {
    pub(super) fn new(text: &str) -> Self {
        let mut asked = Self {
            method: Method::GET,
            scheme: "http",
            authority: "echo.shop".into(),
            port: 80,
            uri: Uri::from_static("/"),
            headers: HeaderMap::new(),
            claims: None,
        };
        for word in text.split_whitespace() {
            if let Some(host) = word.strip_prefix('@') {
                asked.authority = host.into();
            } else if word.starts_with('/') {
                asked.uri = word.parse().unwrap();
            } else if let Some((name, value)) = word.split_once(':') {
                let name: HeaderName = name.parse().unwrap();
                asked.headers.append(name, value.parse().unwrap());
            } else {
                asked.method = word.parse().unwrap();
            }
        }
        asked
    }

    pub(super) fn request(&self) -> Request<'_> {
        Request {
            method: &self.method,
            scheme: self.scheme,
            authority: &self.authority,
            port: self.port,
            path: self.uri.path(),
            query: self.uri.query(),
            headers: &self.headers,
            claims: self.claims.as_ref(),
        }
    }
}

/// What becomes of a request, in a word: a backend's name or a status.
pub(super) fn outcome(table: &HttpTable, text: &str) -> String {
    let asked = Asked::new(text);
    match table.answer(&asked.request(), NOW, &mut rng()) {
        Answer::Forward(forward) => forward.destination.hostname.to_string(),
        Answer::Here(Here::Redirect { status, .. }) => status.as_str().to_owned(),
        Answer::Here(Here::Preflight { .. }) => "204".to_owned(),
        Answer::Here(Here::Direct { response, .. }) => response.status.as_str().to_owned(),
        Answer::Here(Here::Refuse { reason, .. }) => reason.status().as_str().to_owned(),
    }
}
