// SPDX-License-Identifier: Apache-2.0
//! What a request asks for, read in one way only.

use http::request::Parts;
use http::uri::PathAndQuery;

use super::reply::Reply;
use crate::authz;
use crate::hygiene;
use crate::path::{self, Normalization};
use crate::token::Accepted;

/// What a request asks for, read in one way only.
pub(super) struct Read {
    pub(super) authority: Box<str>,
    pub(super) path: Box<str>,
    pub(super) query: Option<Box<str>>,
}

pub(super) fn read(head: &Parts, normalization: Normalization) -> Result<Read, Reply> {
    let target = hygiene::read(&head.method, head.version, &head.uri, &head.headers)?;
    let path = path::normalize(target.path, normalization)?;
    Ok(Read {
        authority: target.authority.into(),
        path: path.into(),
        query: target.query.map(Into::into),
    })
}

impl Read {
    /// As policies look at it, with a token that was verified.
    pub(super) fn as_policies_see_it<'r>(
        &'r self,
        head: &'r Parts,
        token: Option<&'r Accepted>,
    ) -> authz::Request<'r> {
        authz::Request {
            method: head.method.as_str(),
            authority: &self.authority,
            path: &self.path,
            headers: &head.headers,
            token: token.map(|token| authz::Token {
                claims: &token.claims,
            }),
            doubt: None,
        }
    }

    pub(super) fn path_and_query(&self) -> Result<PathAndQuery, Reply> {
        let text = match &self.query {
            Some(query) => format!("{}?{query}", self.path),
            None => self.path.to_string(),
        };
        PathAndQuery::try_from(text).map_err(|_| Reply::malformed("the path is not one"))
    }
}
