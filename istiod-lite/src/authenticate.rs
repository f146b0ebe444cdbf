// SPDX-License-Identifier: Apache-2.0
//! Who asks, and for which identity may they.
//!
//! ```text
//!  bearer token ─► keys (JWKS): signature ─► claims: issuer, audience, time, pod ─► Caller
//!           or ─► review: the API server's word ───────────────────────────────────────┘
//!  Caller + requested identity + pods ─► node: may it? ─► yes, or a Refusal
//! ```
//!
//! A caller is told nothing but that it was refused; the log says why.

pub mod claims;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
pub mod keys;
pub mod node;
pub mod review;

use std::path::Path;
use std::time::SystemTime;

use claims::{ClaimsError, Expected};
use keys::{KeysError, TokenKeys};
use review::{ReviewError, Reviewer};

pub use node::{
    NodeAccount, NodeAccountError, NodeAuthorizer, PodFacts, PodLife, PodLookup, Refusal,
};

/// What clients are told when their token or their wish is refused.
pub const OPAQUE_REFUSAL: &str = "authentication failure";
/// What they are told when nobody can say whose token it is.
pub const REVIEW_OUTAGE: &str = "tokens can't be reviewed now";

/// A pod that proved itself by its service-account token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    pub namespace: String,
    pub service_account: String,
    pub pod: BoundPod,
    /// The node that the token names; older clusters' tokens name none.
    pub node: Option<String>,
}

/// The pod that a token was issued for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundPod {
    pub name: String,
    pub uid: String,
}

/// Prints `namespace/service-account (pod web)`.
impl std::fmt::Display for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}/{} (pod {})",
            self.namespace, self.service_account, self.pod.name
        )
    }
}

/// Why a token was not accepted. For the log; clients get [`OPAQUE_REFUSAL`].
#[derive(Debug, thiserror::Error)]
pub enum AuthenticationError {
    #[error("token: {0}")]
    Keys(#[from] KeysError),
    #[error("token: {0}")]
    Claims(#[from] ClaimsError),
    #[error("token: {0}")]
    Review(#[from] ReviewError),
}

impl AuthenticationError {
    /// Whether it is not the token's fault: another time it may be accepted.
    pub fn is_outage(&self) -> bool {
        matches!(self, Self::Review(ReviewError::Request(_)))
    }
}

/// Who knows service-account tokens.
#[derive(Debug)]
pub enum Tokens {
    /// A set of keys, which we read.
    Keys(Authenticator),
    /// The cluster's API server.
    Server(Reviewer),
}

impl Tokens {
    /// Who the bearer of this token is.
    pub async fn caller(
        &self,
        token: &str,
        now: SystemTime,
    ) -> Result<Caller, AuthenticationError> {
        match self {
            Self::Keys(keys) => keys.authenticate(token, now),
            Self::Server(reviewer) => Ok(reviewer.authenticate(token).await?),
        }
    }
}

/// Verifies service-account tokens by a set of keys.
#[derive(Debug)]
pub struct Authenticator {
    keys: TokenKeys,
    expected: Expected,
}

impl Authenticator {
    /// `jwks` is read now and again whenever it changes.
    pub fn open(jwks: &Path, expected: Expected) -> Result<Self, KeysError> {
        Ok(Self {
            keys: TokenKeys::open(jwks)?,
            expected,
        })
    }

    /// Who the bearer of this token is.
    pub fn authenticate(
        &self,
        token: &str,
        now: SystemTime,
    ) -> Result<Caller, AuthenticationError> {
        let claims = self.keys.verify(token)?;
        Ok(claims::caller(claims, &self.expected, now)?)
    }
}

#[cfg(test)]
mod tests;
