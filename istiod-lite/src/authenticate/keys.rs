// SPDX-License-Identifier: Apache-2.0
//! The keys that tokens are signed with, from a JWKS file (RFC 7517) that is read again when it changes.
//!
//! Which algorithm a signature has follows from the key; what a token says of itself is compared, never believed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use ops::file::FileState;
use parking_lot::Mutex;
use serde::Deserialize;

use super::claims::Claims;

/// Key sets are a few kilobytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Tokens are around one kilobyte.
const MAX_TOKEN_BYTES: usize = 16 << 10;

/// Why there are no keys, or why a token fits to none.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    #[error("key set {path}: {error}", path = path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("key set {path}: {reason}", path = path.display())]
    File { path: PathBuf, reason: String },
    #[error("longer than {MAX_TOKEN_BYTES} bytes")]
    TooLong,
    #[error("not a signed JWT: {0}")]
    Malformed(jsonwebtoken::errors::Error),
    #[error("signed with key {0:?}, which is not in the key set")]
    UnknownKey(String),
    #[error("its algorithm {found:?} is not that of the key, {expected:?}")]
    Algorithm {
        found: Algorithm,
        expected: Algorithm,
    },
    #[error("the signature does not match")]
    Signature,
    #[error("its claims can't be read: {0}")]
    Claims(jsonwebtoken::errors::Error),
}

/// A key set and where it comes from.
#[derive(Debug)]
pub(super) struct TokenKeys {
    path: PathBuf,
    current: Mutex<Loaded>,
}

#[derive(Clone, Debug)]
struct Loaded {
    keys: Arc<Vec<TokenKey>>,
    /// Of the file that was looked at last, even if it was no good.
    state: FileState,
}

/// One key that we can verify with.
#[derive(Clone, Debug)]
pub(super) struct TokenKey {
    id: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
}

impl TokenKeys {
    pub(super) fn open(path: &Path) -> Result<Self, KeysError> {
        let io = |error| KeysError::Io {
            path: path.to_owned(),
            error,
        };
        let state = FileState::of(path).map_err(io)?;
        let keys = Arc::new(read(path)?);
        Ok(Self {
            path: path.to_owned(),
            current: Mutex::new(Loaded { keys, state }),
        })
    }

    /// The claims of a token whose signature is good.
    pub(super) fn verify(&self, token: &str) -> Result<Claims, KeysError> {
        verify(token, &self.current())
    }

    /// The keys as the file has them now. A file that has become unreadable leaves those that were known.
    fn current(&self) -> Arc<Vec<TokenKey>> {
        let mut current = self.current.lock();
        match FileState::of(&self.path) {
            Ok(state) if state == current.state => {}
            Ok(state) => {
                current.state = state;
                match read(&self.path) {
                    Ok(keys) => {
                        tracing::info!(path = %self.path.display(), keys = keys.len(), "read the key set anew");
                        current.keys = Arc::new(keys);
                    }
                    Err(error) => tracing::error!(%error, "the keys that were known stay in use"),
                }
            }
            Err(error) => {
                let path = self.path.display();
                tracing::error!(%path, %error, "reading the key set; the keys that were known stay in use");
            }
        }
        Arc::clone(&current.keys)
    }
}

fn read(path: &Path) -> Result<Vec<TokenKey>, KeysError> {
    let io = |error| KeysError::Io {
        path: path.to_owned(),
        error,
    };
    if fs::metadata(path).map_err(io)?.len() > MAX_FILE_BYTES {
        return Err(io(io::Error::other("larger than 1 MiB")));
    }
    let text = fs::read_to_string(path).map_err(io)?;
    parse(&text).map_err(|reason| KeysError::File {
        path: path.to_owned(),
        reason,
    })
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<serde_json::Value>,
}

/// Reads each key on its own, so that one that is odd doesn't void the set.
pub(super) fn parse(text: &str) -> Result<Vec<TokenKey>, String> {
    let set: KeySet = serde_json::from_str(text).map_err(|error| format!("not a JWKS: {error}"))?;
    let mut keys = Vec::new();
    let mut odd = Vec::new();
    for (index, value) in set.keys.into_iter().enumerate() {
        match parse_key(value) {
            Ok(key) => keys.push(key),
            Err(reason) => odd.push(format!("keys[{index}]: {reason}")),
        }
    }
    if keys.is_empty() {
        return Err(format!(
            "holds no key that can be used ({})",
            odd.join("; ")
        ));
    }
    for reason in odd {
        tracing::warn!(reason, "a key of the key set is left aside");
    }
    Ok(keys)
}

fn parse_key(value: serde_json::Value) -> Result<TokenKey, String> {
    let jwk: Jwk = serde_json::from_value(value).map_err(|error| error.to_string())?;
    if jwk
        .common
        .public_key_use
        .as_ref()
        .is_some_and(|usage| *usage != PublicKeyUse::Signature)
    {
        return Err("is not meant for signatures".to_owned());
    }
    let algorithm = algorithm(&jwk)?;
    let key = DecodingKey::from_jwk(&jwk).map_err(|error| error.to_string())?;
    Ok(TokenKey {
        id: jwk.common.key_id,
        algorithm,
        key,
    })
}

/// The one algorithm that signatures of this key have.
fn algorithm(jwk: &Jwk) -> Result<Algorithm, String> {
    let of_curve = match &jwk.algorithm {
        AlgorithmParameters::EllipticCurve(key) => match key.curve {
            EllipticCurve::P256 => Algorithm::ES256,
            EllipticCurve::P384 => Algorithm::ES384,
            ref other => return Err(format!("curve {other:?} is not supported")),
        },
        AlgorithmParameters::OctetKeyPair(key) => match key.curve {
            EllipticCurve::Ed25519 => Algorithm::EdDSA,
            ref other => return Err(format!("curve {other:?} is not supported")),
        },
        // Kubernetes names the algorithm of its RSA keys; RS256 is what it has always used.
        AlgorithmParameters::RSA(_) => match jwk.common.key_algorithm {
            None | Some(KeyAlgorithm::RS256) => return Ok(Algorithm::RS256),
            Some(KeyAlgorithm::RS384) => return Ok(Algorithm::RS384),
            Some(KeyAlgorithm::RS512) => return Ok(Algorithm::RS512),
            Some(KeyAlgorithm::PS256) => return Ok(Algorithm::PS256),
            Some(KeyAlgorithm::PS384) => return Ok(Algorithm::PS384),
            Some(KeyAlgorithm::PS512) => return Ok(Algorithm::PS512),
            Some(other) => return Err(format!("algorithm {other} does not belong to an RSA key")),
        },
        AlgorithmParameters::OctetKey(_) => return Err("a shared secret proves nothing".to_owned()),
        _ => return Err("its type is not supported".to_owned()),
    };
    match jwk.common.key_algorithm {
        Some(stated) if stated.to_string() != format!("{of_curve:?}") => {
            Err(format!("algorithm {stated} does not belong to its curve"))
        }
        _ => Ok(of_curve),
    }
}

pub(super) fn verify(token: &str, keys: &[TokenKey]) -> Result<Claims, KeysError> {
    if token.len() > MAX_TOKEN_BYTES {
        return Err(KeysError::TooLong);
    }
    let header = decode_header(token).map_err(KeysError::Malformed)?;
    // A key without id, or a token without, fits until its signature says otherwise.
    let fits = |key: &&TokenKey| match (&key.id, &header.kid) {
        (Some(id), Some(asked)) => id == asked,
        _ => true,
    };
    let mut refused = KeysError::UnknownKey(header.kid.clone().unwrap_or_default());
    for key in keys.iter().filter(fits) {
        if header.alg != key.algorithm {
            refused = KeysError::Algorithm {
                found: header.alg,
                expected: key.algorithm,
            };
            continue;
        }
        match decode::<Claims>(token, &key.key, &signature_only(key.algorithm)) {
            Ok(verified) => return Ok(verified.claims),
            Err(error) => {
                refused = match error.kind() {
                    jsonwebtoken::errors::ErrorKind::InvalidSignature => KeysError::Signature,
                    _ => KeysError::Claims(error),
                };
            }
        }
    }
    Err(refused)
}

/// The claims are judged elsewhere, by a clock that is handed in.
fn signature_only(algorithm: Algorithm) -> Validation {
    let mut validation = Validation::new(algorithm);
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_nbf = false;
    validation.validate_aud = false;
    validation
}
