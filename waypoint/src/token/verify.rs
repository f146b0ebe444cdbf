// SPDX-License-Identifier: Apache-2.0
//! Whether one token is good for one rule.

use jsonwebtoken::{Algorithm, Validation, decode};
use serde_json::{Map, Value};

use super::TokenRule;

/// The longest token that is looked at.
const LONGEST: usize = 16 << 10;

/// How far clocks may differ, in seconds.
const LEEWAY: i64 = 60;

/// Why a token is refused, in the words that clients get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadToken {
    #[error("Jwt is not in the form of Header.Payload.Signature with two dots and 3 sections")]
    Form,
    #[error("Jwt header is an invalid Base64url input or an invalid JSON")]
    Header,
    #[error("Jwt header [alg] field value is invalid")]
    Algorithm,
    #[error("Jwt payload is an invalid Base64")]
    PayloadEncoding,
    #[error("Jwt payload is an invalid JSON")]
    Payload,
    #[error("Jwt signature is an invalid Base64url input")]
    SignatureEncoding,
    #[error("Jwt issuer is not configured")]
    Issuer,
    #[error("Jwt not yet valid")]
    NotYet,
    #[error("Jwt is expired")]
    Expired,
    #[error("Audiences in Jwt are not allowed")]
    Audience,
    #[error("Jwks remote fetch is failed")]
    NoKeys,
    #[error("Jwks doesn't have key to match kid or alg from Jwt")]
    NoKey,
    #[error("Jwt verification fails")]
    Signature,
    #[error("Jwt is given too many times")]
    TooMany,
}

/// The claims of a token that is good at `now`, in seconds since the epoch.
pub(super) fn verify(
    token: &str,
    rule: &TokenRule,
    now: i64,
) -> Result<Map<String, Value>, BadToken> {
    if token.len() > LONGEST {
        return Err(BadToken::Form);
    }
    let mut parts = token.split('.');
    let (Some(header), Some(payload), Some(signature), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(BadToken::Form);
    };
    let header = decoded(header).and_then(|bytes| object(&bytes));
    let header = header.ok_or(BadToken::Header)?;
    let algorithm = header.get("alg").and_then(Value::as_str);
    let algorithm = algorithm.and_then(|name| name.parse::<Algorithm>().ok());
    let algorithm = algorithm.ok_or(BadToken::Algorithm)?;
    let payload = decoded(payload).ok_or(BadToken::PayloadEncoding)?;
    let claims = object(&payload).ok_or(BadToken::Payload)?;
    decoded(signature).ok_or(BadToken::SignatureEncoding)?;

    let issuer = claims.get("iss").and_then(Value::as_str);
    if !rule.issuer.is_empty() && issuer != Some(&*rule.issuer) {
        return Err(BadToken::Issuer);
    }
    // A time that is none proves nothing.
    let time = |name: &str| match claims.get(name) {
        None => Ok(None),
        Some(value) => value.as_f64().map(Some).ok_or(BadToken::Payload),
    };
    if time("nbf")?.is_some_and(|from| from > (now + LEEWAY) as f64) {
        return Err(BadToken::NotYet);
    }
    if time("exp")?.is_some_and(|until| until < (now - LEEWAY) as f64) {
        return Err(BadToken::Expired);
    }
    if !rule.audiences.is_empty() && !is_for(&claims, &rule.audiences) {
        return Err(BadToken::Audience);
    }
    if rule.keys.problem().is_some() {
        return Err(BadToken::NoKeys);
    }
    let id = header.get("kid").and_then(Value::as_str);
    let mut why = BadToken::NoKey;
    for key in rule.keys.fitting(algorithm, id) {
        match decode::<Value>(token, &key.key, &signature_only(key.algorithm)) {
            Ok(_) => return Ok(claims),
            Err(_) => why = BadToken::Signature,
        }
    }
    Err(why)
}

fn is_for(claims: &Map<String, Value>, audiences: &[Box<str>]) -> bool {
    let ours = |text: &str| audiences.iter().any(|own| **own == *text);
    match claims.get("aud") {
        Some(Value::String(text)) => ours(text),
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).any(ours),
        _ => false,
    }
}

fn signature_only(algorithm: Algorithm) -> Validation {
    let mut validation = Validation::new(algorithm);
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_nbf = false;
    validation.validate_aud = false;
    validation
}

fn object(bytes: &[u8]) -> Option<Map<String, Value>> {
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(object)) => Some(object),
        _ => None,
    }
}

/// Base64url without padding (RFC 4648 §5), and with no bits left over.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut held, mut bits) = (0_u32, 0);
    for letter in text.bytes() {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'-' => 62,
            b'_' => 63,
            _ => return None,
        };
        held = held << 6 | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits & 0xff) as u8);
        }
    }
    (text.len() % 4 != 1 && held & ((1 << bits) - 1) == 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64url_is_read_exactly() {
        for (text, bytes) in [
            ("", Some(&b""[..])),
            ("Zg", Some(b"f")),
            ("Zm8", Some(b"fo")),
            ("Zm9v", Some(b"foo")),
            ("-_8", Some(b"\xfb\xff")),
            ("Z", None),
            ("Zh", None),
            ("Zg==", None),
            ("+/8", None),
        ] {
            assert_eq!(decoded(text).as_deref(), bytes, "{text}");
        }
    }
}
