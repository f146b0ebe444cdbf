// SPDX-License-Identifier: Apache-2.0
//! Where tokens are looked for.

use http::header::{self, HeaderMap, HeaderName};
use proto::waypoint as wire;

/// Tokens of one request that a rule looks at; a client has one. What has more is refused: nobody would have looked at them.
pub(super) const MOST: usize = 8;

#[derive(Debug)]
pub(super) struct Places(Box<[Place]>);

#[derive(Debug)]
enum Place {
    /// Behind a prefix.
    Header(HeaderName, Box<str>),
    Param(Box<str>),
    Cookie(Box<str>),
}

/// A token, and the header it stood in by itself.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) token: String,
    pub(super) header: Option<HeaderName>,
}

impl Places {
    pub(super) fn compile<E>(
        rule: &wire::TokenRule,
        name: impl Fn(&str) -> Result<HeaderName, E>,
    ) -> Result<Self, E> {
        let mut places = Vec::new();
        for place in &rule.headers {
            places.push(Place::Header(
                name(&place.name)?,
                place.prefix.as_str().into(),
            ));
        }
        let texts = |texts: &'_ [String]| -> Vec<Box<str>> {
            texts.iter().map(|text| text.as_str().into()).collect()
        };
        places.extend(texts(&rule.params).into_iter().map(Place::Param));
        places.extend(texts(&rule.cookies).into_iter().map(Place::Cookie));
        if places.is_empty() {
            places.push(Place::Header(header::AUTHORIZATION, "Bearer ".into()));
            places.push(Place::Param("access_token".into()));
        }
        Ok(Self(places.into()))
    }

    /// The tokens that a request carries at these places; of more than [`MOST`] one more.
    pub(super) fn find(&self, headers: &HeaderMap, query: Option<&str>) -> Vec<Found> {
        let found = self.0.iter().flat_map(|place| -> Vec<Found> {
            let texts = |name: &HeaderName| {
                let values = headers.get_all(name).iter();
                values.filter_map(|value| value.to_str().ok())
            };
            let anywhere = |token: &str| Found {
                token: token.to_owned(),
                header: None,
            };
            match place {
                Place::Header(name, prefix) => texts(name)
                    .filter_map(|text| text.strip_prefix(&**prefix))
                    .map(|token| Found {
                        token: token.trim().to_owned(),
                        header: Some(name.clone()),
                    })
                    .collect(),
                Place::Param(name) => {
                    let pairs = query.into_iter().flat_map(|query| query.split('&'));
                    let pairs = pairs.filter_map(|pair| pair.split_once('='));
                    let own = pairs.filter(|(key, _)| *key == &**name);
                    own.map(|(_, token)| anywhere(token)).collect()
                }
                Place::Cookie(name) => {
                    let pairs = texts(&header::COOKIE).flat_map(|line| line.split(';'));
                    let pairs = pairs.filter_map(|pair| pair.trim().split_once('='));
                    let own = pairs.filter(|(key, _)| *key == &**name);
                    own.map(|(_, token)| anywhere(token)).collect()
                }
            }
        });
        found
            .filter(|found| !found.token.is_empty())
            .take(MOST + 1)
            .collect()
    }
}
