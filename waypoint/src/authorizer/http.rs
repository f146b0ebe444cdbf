// SPDX-License-Identifier: Apache-2.0
//! Asked over HTTP: with the request's own method and path, where 200 allows, an error of a server's is no answer,
//! and everything else denies.

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use http::{StatusCode, response};
use proto::waypoint as wire;

use super::answer::{Edit, How};
use super::{Allowed, Answer, BadAnswer, Call, Denied, PARTIAL_BODY, Question, is_of_message};
use crate::authz::{Case, Pattern};

const REMOVE: HeaderName = HeaderName::from_static("x-envoy-auth-headers-to-remove");

/// What of a request is told, and what of an answer is used.
#[derive(Debug)]
pub(super) struct Rules {
    path_prefix: Box<str>,
    request_headers: Names,
    added: Box<[(HeaderName, HeaderValue)]>,
    upstream_on_allow: Names,
    /// None: all are told.
    downstream_on_deny: Option<Names>,
    downstream_on_allow: Names,
}

/// Names of headers.
#[derive(Debug)]
struct Names(Box<[Pattern]>);

impl Names {
    fn compile(patterns: &[wire::Pattern]) -> Result<Self, String> {
        let each = patterns.iter();
        let each = each.map(|pattern| Pattern::compile(pattern, Case::Ignored));
        each.collect::<Result<_, _>>().map(Self)
    }

    fn hold(&self, name: &HeaderName) -> bool {
        let mut patterns = self.0.iter();
        patterns.any(|pattern| pattern.matches(name.as_str(), Case::Ignored))
    }
}

impl Rules {
    pub(super) fn compile(http: &wire::HttpAuthorizer) -> Result<Self, String> {
        let added = http.added_headers.iter().map(|added| {
            let (name, value) = (added.name.parse::<HeaderName>(), added.value.parse());
            match (name, value) {
                (Ok(name), Ok(value)) => Ok((name, value)),
                _ => Err(format!("{:?} is no header", added.name)),
            }
        });
        let on_deny = Names::compile(&http.downstream_on_deny)?;
        Ok(Self {
            path_prefix: http.path_prefix.as_str().into(),
            request_headers: Names::compile(&http.request_headers)?,
            added: added.collect::<Result<_, String>>()?,
            upstream_on_allow: Names::compile(&http.upstream_on_allow)?,
            downstream_on_deny: (!http.downstream_on_deny.is_empty()).then_some(on_deny),
            downstream_on_allow: Names::compile(&http.downstream_on_allow)?,
        })
    }

    pub(super) fn call(&self, question: &Question<'_>) -> Result<Call, BadAnswer> {
        let path = format!("{}{}", self.path_prefix, question.path_and_query);
        let path = PathAndQuery::try_from(path).map_err(|_| BadAnswer::Question("its path"))?;
        let host = HeaderValue::from_str(question.authority);
        let host = host.map_err(|_| BadAnswer::Question("its host"))?;
        let mut headers = HeaderMap::new();
        for (name, value) in &question.head.headers {
            let is_told = *name == header::AUTHORIZATION || self.request_headers.hold(name);
            if is_told && !is_of_message(name) {
                headers.append(name, value.clone());
            }
        }
        for (name, value) in &self.added {
            headers.insert(name, value.clone());
        }
        headers.insert(header::HOST, host);
        let mut body = Bytes::new();
        if let Some(told) = question.body {
            let partial = if told.whole { "false" } else { "true" };
            headers.insert(PARTIAL_BODY, HeaderValue::from_static(partial));
            body = told.bytes.clone();
        }
        Ok(Call {
            method: question.head.method.clone(),
            path,
            headers,
            body,
        })
    }

    pub(super) fn answer(&self, head: &response::Parts, body: Bytes) -> Result<Answer, BadAnswer> {
        if head.status.is_server_error() || head.status.is_informational() {
            return Err(BadAnswer::Status(head.status.as_u16()));
        }
        let lines = || head.headers.iter().filter(|(name, _)| !is_of_message(name));
        if head.status != StatusCode::OK {
            let is_told = |name: &HeaderName| match &self.downstream_on_deny {
                None => true,
                Some(names) => {
                    matches!(*name, header::WWW_AUTHENTICATE | header::LOCATION) || names.hold(name)
                }
            };
            let told = lines().filter(|(name, _)| is_told(name));
            return Ok(Answer::Denied(Denied {
                status: head.status,
                headers: told
                    .map(|(name, value)| (name.clone(), value.clone()))
                    .collect(),
                body,
            }));
        }
        let removed = head.headers.get_all(REMOVE).iter();
        let removed = removed.filter_map(|line| line.to_str().ok());
        let removed = removed.flat_map(|line| line.split(','));
        let removed = removed.filter_map(|name| name.trim().parse::<HeaderName>().ok());
        let mut upstream: Vec<Edit> = Vec::new();
        for (name, value) in lines().filter(|(name, _)| self.upstream_on_allow.hold(name)) {
            // All lines of one name take the place of what the client said.
            let is_first = upstream.iter().all(|edit| edit.name != *name);
            upstream.push(Edit {
                name: name.clone(),
                value: value.clone(),
                how: if is_first { How::Set } else { How::Append },
            });
        }
        let downstream = lines().filter(|(name, _)| self.downstream_on_allow.hold(name));
        Ok(Answer::Allowed(Allowed {
            remove: removed.filter(|name| !is_of_message(name)).collect(),
            upstream,
            downstream: downstream
                .map(|(name, value)| Edit {
                    name: name.clone(),
                    value: value.clone(),
                    how: How::Append,
                })
                .collect(),
        }))
    }
}
