// SPDX-License-Identifier: Apache-2.0
//! The token that a request carries.

use tonic::metadata::MetadataMap;

/// The bearer token, if there is one.
pub fn token(metadata: &MetadataMap) -> Option<&str> {
    let value = metadata.get("authorization")?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bearer_token_counts() {
        let check = |header: &str, expected: Option<&str>| {
            let mut metadata = MetadataMap::new();
            metadata.insert("authorization", header.parse().expect("a header"));
            assert_eq!(token(&metadata), expected, "{header:?}");
        };
        check("Bearer abc", Some("abc"));
        check("bearer  abc ", Some("abc"));
        check("Bearer", None);
        check("Bearer ", None);
        check("Basic abc", None);
        assert_eq!(token(&MetadataMap::new()), None);
    }
}
