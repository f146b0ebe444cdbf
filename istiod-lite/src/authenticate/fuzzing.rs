// SPDX-License-Identifier: Apache-2.0
//! What hostile tokens, claims and key sets reach. Built for the fuzz targets only.

use std::time::SystemTime;

use super::claims::{self, Claims, Expected};
use super::keys;

/// Checks a token against a key set. True if the signature is good.
pub fn token(token: &str, jwks: &str) -> bool {
    keys::parse(jwks).is_ok_and(|keys| keys::verify(token, &keys).is_ok())
}

/// Judges claims as if their signature were good. Who is accepted has a name in every part.
pub fn claims(json: &[u8], expected: &Expected, now: SystemTime) {
    let Ok(claims) = serde_json::from_slice::<Claims>(json) else {
        return;
    };
    if let Ok(caller) = claims::caller(claims, expected, now) {
        assert!(!caller.namespace.is_empty() && !caller.service_account.is_empty());
        assert!(!caller.pod.name.is_empty() && !caller.pod.uid.is_empty());
        assert_ne!(caller.node.as_deref(), Some(""));
    }
}
