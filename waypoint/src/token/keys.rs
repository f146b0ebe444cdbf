// SPDX-License-Identifier: Apache-2.0
//! The keys that an issuer signs with. Which algorithm a signature has follows from the key; what a token says of itself
//! is compared, never believed.

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;

/// Keys of one set that are kept.
const MOST: usize = 64;

#[derive(Debug)]
pub(super) struct Keys {
    keys: Box<[Key]>,
    /// Why there are none.
    problem: Box<str>,
    /// Those of the set that are not used, and why.
    left_out: Box<[String]>,
}

/// One key that we can verify with.
#[derive(Debug)]
pub(super) struct Key {
    id: Option<String>,
    pub(super) algorithm: Algorithm,
    pub(super) key: DecodingKey,
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<serde_json::Value>,
}

impl Keys {
    /// Reads each key on its own, so that one that is odd doesn't void the set. `missing` says why there is no set.
    pub(super) fn read(text: &str, missing: &str) -> Self {
        let none = |problem: String| Self {
            keys: Box::default(),
            problem: problem.into(),
            left_out: Box::default(),
        };
        if !missing.is_empty() {
            return none(missing.to_owned());
        }
        let set: KeySet = match serde_json::from_str(text) {
            Ok(set) => set,
            Err(error) => return none(format!("not a key set: {error}")),
        };
        let mut keys = Vec::new();
        let mut odd = Vec::new();
        let held = set.keys.len();
        for (index, value) in set.keys.into_iter().take(MOST).enumerate() {
            match key(value) {
                Ok(key) => keys.push(key),
                Err(reason) => odd.push(format!("keys[{index}]: {reason}")),
            }
        }
        if keys.is_empty() {
            return none(format!("no key can be used ({})", odd.join("; ")));
        }
        if held > MOST {
            odd.push(format!(
                "keys[{MOST}] and those behind it: of the {held} keys of a set the first {MOST} are used"
            ));
        }
        Self {
            keys: keys.into(),
            problem: Box::default(),
            left_out: odd.into(),
        }
    }

    pub(super) fn problem(&self) -> Option<&str> {
        Some(&*self.problem).filter(|problem| !problem.is_empty())
    }

    /// Why keys of the set are not used, or the whole set.
    pub(super) fn problems(&self) -> impl Iterator<Item = &str> {
        let left_out = self.left_out.iter().map(|why| &**why);
        self.problem().into_iter().chain(left_out)
    }

    /// Those that may have signed what says this of itself. A key without id, or a token without, fits until its signature
    /// says otherwise.
    pub(super) fn fitting<'k>(
        &'k self,
        algorithm: Algorithm,
        id: Option<&'k str>,
    ) -> impl Iterator<Item = &'k Key> {
        self.keys.iter().filter(move |key| {
            let named = match (&key.id, id) {
                (Some(known), Some(asked)) => known == asked,
                _ => true,
            };
            named && key.algorithm == algorithm
        })
    }
}

fn key(value: serde_json::Value) -> Result<Key, String> {
    let jwk: Jwk = serde_json::from_value(value).map_err(|error| error.to_string())?;
    if let Some(usage) = &jwk.common.public_key_use
        && *usage != PublicKeyUse::Signature
    {
        return Err("is not meant for signatures".to_owned());
    }
    let algorithm = algorithm(&jwk)?;
    let key = DecodingKey::from_jwk(&jwk).map_err(|error| error.to_string())?;
    Ok(Key {
        id: jwk.common.key_id,
        algorithm,
        key,
    })
}

/// The one algorithm that signatures of this key have; RS256 of an RSA key that says nothing, as everywhere.
fn algorithm(jwk: &Jwk) -> Result<Algorithm, String> {
    let stated = jwk.common.key_algorithm;
    let by_type = match &jwk.algorithm {
        AlgorithmParameters::EllipticCurve(key) => match key.curve {
            EllipticCurve::P256 => Algorithm::ES256,
            EllipticCurve::P384 => Algorithm::ES384,
            ref other => return Err(format!("curve {other:?} is not supported")),
        },
        AlgorithmParameters::OctetKeyPair(key) => match key.curve {
            EllipticCurve::Ed25519 => Algorithm::EdDSA,
            ref other => return Err(format!("curve {other:?} is not supported")),
        },
        AlgorithmParameters::RSA(_) => {
            return Ok(match stated {
                None | Some(KeyAlgorithm::RS256) => Algorithm::RS256,
                Some(KeyAlgorithm::RS384) => Algorithm::RS384,
                Some(KeyAlgorithm::RS512) => Algorithm::RS512,
                Some(KeyAlgorithm::PS256) => Algorithm::PS256,
                Some(KeyAlgorithm::PS384) => Algorithm::PS384,
                Some(KeyAlgorithm::PS512) => Algorithm::PS512,
                Some(other) => return Err(format!("algorithm {other} is none of an RSA key")),
            });
        }
        AlgorithmParameters::OctetKey(_) => return Err("a shared secret proves nothing".to_owned()),
        _ => return Err("its type is not supported".to_owned()),
    };
    match stated {
        Some(stated) if stated.to_string() != format!("{by_type:?}") => {
            Err(format!("algorithm {stated} is none of its curve"))
        }
        _ => Ok(by_type),
    }
}
