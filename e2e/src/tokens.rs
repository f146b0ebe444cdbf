// SPDX-License-Identifier: Apache-2.0
//! Bound service-account tokens, as a cluster's API server issues them and kubelets renew them.
//!
//! Each lab has a signing key of its own; the control plane checks tokens with the public half, from a JWKS file.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use jsonwebtoken::jwk::{Jwk, JwkSet};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde::Serialize;
use serde_json::{Value, json};

use crate::manifests::random_uid;

/// Who issues the lab's tokens; the control plane is told the same.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
/// The audience by which the mesh's CA is meant.
pub const AUDIENCE: &str = "istio-ca";
const KEY_ID: &str = "lab";

/// The lab's signing key.
pub struct TokenIssuer {
    key: EncodingKey,
}

/// What a token says about its bearer.
#[derive(Debug, Clone, Serialize)]
pub struct Bearer {
    pub namespace: String,
    pub service_account: Named,
    pub pod: Named,
    pub node: Named,
}

/// An object by name and by the uid that tells it from an earlier one of that name.
#[derive(Debug, Clone, Serialize)]
pub struct Named {
    pub name: String,
    pub uid: String,
}

/// What a token is for and how long it lasts.
#[derive(Debug, Clone)]
pub struct Terms {
    pub audience: String,
    pub lifetime: Duration,
    pub issued: SystemTime,
}

impl TokenIssuer {
    /// Makes a new key.
    pub fn generate() -> Result<Self> {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)
            .context("cannot make a signing key")?;
        Self::from_pem(&pair.serialize_pem())
    }

    fn from_pem(pem: &str) -> Result<Self> {
        Ok(Self {
            key: EncodingKey::from_ec_pem(pem.as_bytes()).context("cannot use the signing key")?,
        })
    }

    /// The public half, as the JWKS that an API server publishes.
    pub fn jwks(&self) -> Result<JwkSet> {
        let mut jwk = Jwk::from_encoding_key(&self.key, Algorithm::ES256)
            .context("cannot publish the signing key")?;
        jwk.common.key_id = Some(KEY_ID.into());
        Ok(JwkSet { keys: vec![jwk] })
    }

    /// Signs a token for a bearer.
    pub fn issue(&self, bearer: &Bearer, terms: &Terms) -> Result<String> {
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some(KEY_ID.into());
        jsonwebtoken::encode(&header, &claims(bearer, terms), &self.key)
            .context("cannot sign a token")
    }
}

fn claims(bearer: &Bearer, terms: &Terms) -> Value {
    let issued = terms.issued.duration_since(UNIX_EPOCH).unwrap_or_default();
    json!({
        "iss": ISSUER,
        "aud": [terms.audience],
        "sub": format!("system:serviceaccount:{}:{}", bearer.namespace, bearer.service_account.name),
        "iat": issued.as_secs(),
        "nbf": issued.as_secs(),
        "exp": (issued + terms.lifetime).as_secs(),
        "jti": random_uid(),
        "kubernetes.io": {
            "namespace": bearer.namespace,
            "serviceaccount": bearer.service_account,
            "pod": bearer.pod,
            "node": bearer.node,
        },
    })
}

#[cfg(test)]
mod tests {
    use jsonwebtoken::{DecodingKey, Validation};

    use super::*;

    fn bearer() -> Bearer {
        let named = |name: &str| Named {
            name: name.into(),
            uid: format!("uid-of-{name}"),
        };
        Bearer {
            namespace: "istio-system".into(),
            service_account: named("ztunnel"),
            pod: named("ztunnel-a"),
            node: named("node-a"),
        }
    }

    #[test]
    fn a_token_is_accepted_by_the_published_key_and_names_its_pod() {
        let issuer = TokenIssuer::generate().unwrap();
        let terms = Terms {
            audience: AUDIENCE.into(),
            lifetime: Duration::from_secs(600),
            issued: SystemTime::now(),
        };
        let token = issuer.issue(&bearer(), &terms).unwrap();
        let jwks = issuer.jwks().unwrap();
        let mut validation = Validation::new(Algorithm::ES256);
        validation.set_audience(&[AUDIENCE]);
        validation.set_issuer(&[ISSUER]);
        let key = DecodingKey::from_jwk(&jwks.keys[0]).unwrap();
        let claims = jsonwebtoken::decode::<Value>(&token, &key, &validation)
            .unwrap()
            .claims;
        assert_eq!(claims["sub"], "system:serviceaccount:istio-system:ztunnel");
        assert_eq!(claims["kubernetes.io"]["pod"]["uid"], "uid-of-ztunnel-a");
        assert_eq!(claims["kubernetes.io"]["node"]["name"], "node-a");
    }
}
