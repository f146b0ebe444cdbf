// SPDX-License-Identifier: Apache-2.0
//! Who a request comes from, by the tokens it carries. Pure.
//!
//! In: [`proto::waypoint::TokenRule`]; a request's headers and query, the time. Out: the claims of a token that is good,
//! none where there is no token, or why it is refused with 401, in the words that Istio's users know.
//!
//! ```text
//! each rule: its places ─► tokens ─► form, issuer, time, audience, key, signature ─► claims
//! all rules: one good token passes ─ none is there passes, without claims ─ else 401
//! ```
//!
//! What a rule tells the endpoint in headers, no client can say itself: those headers are removed first.

mod keys;
mod places;
mod verify;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, request};
use proto::waypoint as wire;
use serde_json::{Map, Value};

use self::keys::Keys;
use self::places::{Found, Places};
pub use self::verify::BadToken;

/// Claims of which each word counts, whatever a rule says.
const SPACE_DELIMITED: [&str; 2] = ["scope", "permission"];

/// Whose tokens are taken, and where they are looked for.
#[derive(Debug)]
pub struct TokenRule {
    /// The object that it is from, "namespace/name".
    of: Box<str>,
    issuer: Box<str>,
    /// One has to be among the token's; none: all are taken.
    audiences: Box<[Box<str>]>,
    keys: Keys,
    places: Places,
    /// Whether the token goes on to the endpoint.
    forward: bool,
    payload_header: Option<HeaderName>,
    claim_headers: Box<[(HeaderName, Box<str>)]>,
    space_delimited: Box<[Box<str>]>,
}

/// Why a rule can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("token rule of {of}: {field} {name:?} is no header's name")]
pub struct BadRule {
    of: String,
    field: &'static str,
    name: String,
}

/// A token that is good.
#[derive(Debug)]
pub struct Accepted {
    /// Those whose words count are lists of them.
    pub claims: Map<String, Value>,
}

impl TokenRule {
    /// Compiles a rule. Keys that can't be used are the rule's own answer: tokens of its issuer are refused.
    ///
    /// # Errors
    /// If it names headers that are none.
    pub fn compile(rule: &wire::TokenRule) -> Result<Self, BadRule> {
        let header = |field, name: &str| {
            name.parse::<HeaderName>().map_err(|_| BadRule {
                of: rule.of.clone(),
                field,
                name: name.to_owned(),
            })
        };
        let payload = Some(&rule.payload_header).filter(|name| !name.is_empty());
        let claims = rule.claim_headers.iter().map(|one| {
            let name = header("claim_headers", &one.header)?;
            Ok((name, one.claim.as_str().into()))
        });
        let texts = |texts: &[String]| texts.iter().map(|text| text.as_str().into()).collect();
        Ok(Self {
            of: rule.of.as_str().into(),
            issuer: rule.issuer.as_str().into(),
            audiences: texts(&rule.audiences),
            keys: Keys::read(&rule.keys, &rule.no_keys),
            places: Places::compile(rule, |name| header("headers", name))?,
            forward: rule.forward,
            payload_header: payload
                .map(|name| header("payload_header", name))
                .transpose()?,
            claim_headers: claims.collect::<Result<_, BadRule>>()?,
            space_delimited: texts(&rule.space_delimited),
        })
    }

    /// Why keys of it can't be used, naming object and issuer; for log and admin view.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        let Self { of, issuer, .. } = self;
        let each = self.keys.problems();
        each.map(move |why| format!("RequestAuthentication {of}, issuer {issuer:?}, jwks: {why}"))
    }

    /// Whether there is no key at all by which a token could be good.
    pub fn is_keyless(&self) -> bool {
        self.keys.problem().is_some()
    }
}

/// Judges the tokens of a request, and edits its headers as the rules say. `now` is in seconds since the epoch.
///
/// # Errors
/// Why it is refused.
pub fn authenticate<'r>(
    rules: impl Iterator<Item = &'r TokenRule> + Clone,
    head: &mut request::Parts,
    now: i64,
) -> Result<Option<Accepted>, BadToken> {
    for rule in rules.clone() {
        let names = rule.claim_headers.iter().map(|(name, _)| name);
        for name in names.chain(&rule.payload_header) {
            head.headers.remove(name);
        }
    }
    if is_preflight(&head.method, &head.headers) {
        return Ok(None);
    }
    let mut accepted = None;
    let mut refused: Option<BadToken> = None;
    let mut good = Vec::new();
    for rule in rules {
        let found = rule.places.find(&head.headers, head.uri.query());
        if found.len() > places::MOST {
            return Err(BadToken::TooMany);
        }
        let judged: Result<Vec<_>, BadToken> = found
            .iter()
            .map(|found| Ok((found, verify::verify(&found.token, rule, now)?)))
            .collect();
        match judged {
            Ok(tokens) => {
                let edits = tokens
                    .into_iter()
                    .map(|(found, claims)| (rule, found.clone(), claims));
                good.extend(edits);
            }
            // That a token is another's says less than what is wrong with it.
            Err(why) if refused.is_none_or(|known| known == BadToken::Issuer) => {
                refused = Some(why)
            }
            Err(_) => {}
        }
    }
    if let (true, Some(why)) = (good.is_empty(), refused) {
        return Err(why);
    }
    for (rule, found, claims) in good {
        rule.edit(&found, &claims, &mut head.headers);
        accepted.get_or_insert_with(|| Accepted {
            claims: rule.in_words(claims),
        });
    }
    Ok(accepted)
}

impl TokenRule {
    fn edit(&self, found: &Found, claims: &Map<String, Value>, headers: &mut HeaderMap) {
        if let (false, Some(name)) = (self.forward, &found.header) {
            headers.remove(name);
        }
        if let Some(name) = &self.payload_header
            && let Some(payload) = found.token.split('.').nth(1)
            && let Ok(value) = HeaderValue::from_str(payload)
        {
            headers.insert(name, value);
        }
        for (name, claim) in &self.claim_headers {
            let mut steps = claim.split('.');
            let first = steps.next().and_then(|step| claims.get(step));
            let found = steps.fold(first, |value, step| value?.get(step));
            let text = match found {
                Some(Value::String(text)) => text.clone(),
                Some(value @ (Value::Number(_) | Value::Bool(_))) => value.to_string(),
                _ => continue,
            };
            if let Ok(value) = HeaderValue::from_str(&text) {
                headers.insert(name, value);
            }
        }
    }

    /// Claims of which each word counts become lists of words.
    fn in_words(&self, mut claims: Map<String, Value>) -> Map<String, Value> {
        let own = self.space_delimited.iter().map(|name| &**name);
        for name in SPACE_DELIMITED.into_iter().chain(own) {
            if let Some(claim) = claims.get_mut(name)
                && let Value::String(text) = claim
            {
                let words = text.split(' ').filter(|word| !word.is_empty());
                *claim = words.map(Value::from).collect();
            }
        }
        claims
    }
}

/// What stands at the end of a way through claims, from the outside in.
pub fn claim<'c, S: AsRef<str>>(claims: &'c Map<String, Value>, way: &[S]) -> Option<&'c Value> {
    let (first, rest) = way.split_first()?;
    let first = claims.get(first.as_ref())?;
    rest.iter()
        .try_fold(first, |found, step| found.get(step.as_ref()))
}

/// A browser's question about cross-origin requests carries no token.
fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    *method == Method::OPTIONS
        && headers.contains_key(header::ORIGIN)
        && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

#[cfg(test)]
mod tests;
