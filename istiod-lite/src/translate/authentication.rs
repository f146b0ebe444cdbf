// SPDX-License-Identifier: Apache-2.0
//! A RequestAuthentication as waypoints verify tokens by it.
//!
//! ztunnel sees no tokens: one that chooses workloads is enforced by nobody, and its author is told. A rule that can't be
//! taken as written refuses the tokens of its issuer.

use std::fmt;
use std::time::Duration;

use cluster::kinds;
use http::HeaderName;
use proto::waypoint as wire;

use super::policy::{Target, targets};
use super::route::fraction;
use crate::facts::{Problem, Read};

/// A RequestAuthentication, as far as waypoints are concerned.
#[derive(Debug, Clone, PartialEq)]
pub struct Authentication {
    /// What it is for.
    pub targets: Vec<Target>,
    /// Whose tokens are taken.
    pub rules: Vec<Rule>,
    /// What is not done as it is written.
    pub faults: Vec<Problem>,
}

/// Whose tokens are taken.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// What waypoints are told, but for keys that are fetched.
    pub told: wire::TokenRule,
    /// Where keys are fetched from, if they are.
    pub keys_from: Option<KeySource>,
}

/// Where a set of keys is fetched from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeySource {
    /// Where it is.
    pub place: KeyPlace,
    /// How long a fetch may take.
    pub timeout: Duration,
}

/// Where a set of keys is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyPlace {
    /// At this address.
    Uri(String),
    /// Where this issuer says it to be.
    Issuer(String),
}

/// How long a fetch may take where nothing is said, and at most.
const PATIENCE: Duration = Duration::from_secs(5);
const PATIENCE_MOST: Duration = Duration::from_secs(60);

/// Keys of one set that waypoints use.
const KEYS_MOST: usize = 64;

/// How many keys a set holds, if it is one.
fn keys_of(set: &str) -> Option<usize> {
    let set: serde_json::Value = serde_json::from_str(set).ok()?;
    set.get("keys")?.as_array().map(Vec::len)
}

impl KeySource {
    /// A set at an address.
    pub fn uri(uri: impl Into<String>, timeout: Duration) -> Self {
        Self {
            place: KeyPlace::Uri(uri.into()),
            timeout,
        }
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            KeyPlace::Uri(uri) => f.write_str(uri),
            KeyPlace::Issuer(issuer) => write!(f, "issuer {issuer}"),
        }
    }
}

/// Translates a RequestAuthentication.
pub fn translate(
    written: &kinds::RequestAuthentication,
    root_namespace: &str,
) -> Read<Authentication> {
    let spec = &written.spec;
    let meta = &written.metadata;
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let mut problems = Vec::new();
    let mut report = |field: String, reason: &str| problems.push(Problem::new(field, reason));
    for field in spec.unknown_fields.keys() {
        report(format!("spec.{field}"), "is not known; it is ignored");
    }
    if spec.selector.is_some() || spec.target_ref.is_none() && spec.target_refs.is_empty() {
        report(
            "spec".into(),
            "is for workloads, whose nodes see no tokens: nothing enforces it; targetRefs name what waypoints serve",
        );
    }
    let references = (spec.target_ref.as_ref(), spec.target_refs.as_slice());
    let targets = targets(references, namespace, root_namespace, &mut problems);
    let of = format!("{namespace}/{}", meta.name.as_deref().unwrap_or_default());
    let rules = spec.jwt_rules.iter().enumerate().map(|(index, written)| {
        let path = format!("spec.jwtRules[{index}]");
        rule(written, &path, &of, &mut problems)
    });
    let rules = rules.collect();
    let faults = problems.clone();
    Read {
        facts: Authentication {
            targets,
            rules,
            faults,
        },
        problems,
    }
}

fn rule(written: &kinds::JwtRule, path: &str, of: &str, problems: &mut Vec<Problem>) -> Rule {
    let mut faults = Vec::new();
    for field in written.unknown_fields.keys() {
        match field.as_str() {
            // Istio's control plane doesn't look at it either.
            "presence" => problems.push(Problem::new(
                format!("{path}.{field}"),
                "is not looked at: a policy can ask for a token",
            )),
            _ => faults.push((field.clone(), "is not known".to_owned())),
        }
    }
    let timeout = match written.timeout.as_deref().map(fraction) {
        None => PATIENCE,
        Some(Ok(timeout)) if !timeout.is_zero() && timeout <= PATIENCE_MOST => timeout,
        Some(read) => {
            let why = read.map_or_else(
                |reason| reason,
                |_| format!("is none up to {PATIENCE_MOST:?}"),
            );
            let reason = format!("{why}; {PATIENCE:?} holds");
            problems.push(Problem::new(format!("{path}.timeout"), reason));
            PATIENCE
        }
    };
    let filled = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let (keys, place) = match (filled(&written.jwks), filled(&written.jwks_uri)) {
        (Some(keys), _) => (keys, None),
        (None, Some(uri)) => (String::new(), Some(("jwksUri", KeyPlace::Uri(uri)))),
        (None, None) => {
            let issuer = KeyPlace::Issuer(written.issuer.clone());
            (String::new(), Some(("issuer", issuer)))
        }
    };
    if let Some(held) = keys_of(&keys).filter(|held| *held > KEYS_MOST) {
        problems.push(Problem::new(
            format!("{path}.jwks"),
            format!("holds {held} keys, of which the first {KEYS_MOST} are used"),
        ));
    }
    if let Some((field, KeyPlace::Uri(uri) | KeyPlace::Issuer(uri))) = &place
        && !uri.starts_with("https://")
        && !uri.starts_with("http://")
    {
        let words = format!("{uri:?} is no http or https address, and there are no keys in jwks");
        faults.push(((*field).to_owned(), words));
    }
    let mut is_header = |field: String, name: &str| {
        let is_one = name.parse::<HeaderName>().is_ok();
        if !is_one {
            faults.push((field, format!("{name:?} is no header's name")));
        }
        is_one
    };
    let headers = written
        .from_headers
        .iter()
        .enumerate()
        .filter_map(|(i, header)| {
            let is_one = is_header(format!("fromHeaders[{i}].name"), &header.name);
            is_one.then(|| wire::TokenHeader {
                name: header.name.clone(),
                prefix: header.prefix.clone().unwrap_or_default(),
            })
        });
    let headers = headers.collect();
    let payload = written.output_payload_to_header.as_deref();
    let payload = payload.filter(|name| !name.is_empty());
    let payload = payload.filter(|name| is_header("outputPayloadToHeader".to_owned(), name));
    let claims = written.output_claim_to_headers.iter().enumerate();
    let claims = claims.filter_map(|(i, claim)| {
        let is_one = is_header(format!("outputClaimToHeaders[{i}].header"), &claim.header);
        is_one.then(|| wire::ClaimHeader {
            header: claim.header.clone(),
            claim: claim.claim.clone(),
        })
    });
    let claim_headers = claims.collect();
    let no_keys = faults
        .first()
        .map(|(field, reason)| format!("{path}.{field}: {reason}"));
    problems.extend(faults.into_iter().map(|(field, reason)| {
        let reason = format!("{reason}; tokens of this issuer are refused");
        Problem::new(format!("{path}.{field}"), reason)
    }));
    let keys_from = place.filter(|_| no_keys.is_none());
    let keys_from = keys_from.map(|(_, place)| KeySource { place, timeout });
    let told = wire::TokenRule {
        of: of.to_owned(),
        issuer: written.issuer.clone(),
        audiences: written.audiences.clone(),
        keys,
        no_keys: no_keys.unwrap_or_default(),
        headers,
        params: written.from_params.clone(),
        cookies: written.from_cookies.clone(),
        forward: written.forward_original_token.unwrap_or_default(),
        payload_header: payload.unwrap_or_default().to_owned(),
        claim_headers,
        space_delimited: written.space_delimited_claims.clone(),
    };
    Rule { told, keys_from }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_beyond_those_that_are_used_are_told() {
        let problems = |count: usize| {
            let keys = json!({"keys": vec![json!({"kty": "EC"}); count]}).to_string();
            let written = serde_json::from_value(json!({
                "metadata": {"name": "jwt", "namespace": "shop"},
                "spec": {
                    "targetRefs": [{"kind": "Service", "group": "", "name": "app"}],
                    "jwtRules": [{"issuer": "https://a", "jwks": keys}],
                },
            }));
            translate(&written.expect("an object"), "istio-system").problems
        };
        assert_eq!(problems(64), []);
        let told = problems(65);
        let told: Vec<_> = told.iter().map(|one| (&*one.field, &*one.reason)).collect();
        assert_eq!(
            told,
            [(
                "spec.jwtRules[0].jwks",
                "holds 65 keys, of which the first 64 are used"
            )]
        );
    }
}
