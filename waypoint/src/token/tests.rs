// SPDX-License-Identifier: Apache-2.0

use http::Request;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use serde_json::json;

use super::*;

const NOW: i64 = 1_800_000_000;

/// An issuer, with its key.
struct Issuer {
    name: &'static str,
    key: EncodingKey,
}

impl Issuer {
    fn new(name: &'static str) -> Self {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let key = EncodingKey::from_ec_pem(key.serialize_pem().as_bytes()).unwrap();
        Self { name, key }
    }

    fn keys(&self) -> String {
        let mut jwk = Jwk::from_encoding_key(&self.key, Algorithm::ES256).unwrap();
        jwk.common.key_id = Some(self.name.to_owned());
        // Odd ones beside it take nothing away.
        json!({"keys": [{"kty": "odd"}, jwk, {"kty": "oct", "k": "c2VjcmV0"}]}).to_string()
    }

    fn token(&self, more: Value) -> String {
        let mut claims = json!({"iss": self.name, "sub": "me", "exp": NOW + 10});
        for (name, value) in more.as_object().unwrap() {
            claims[name] = value.clone();
        }
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some(self.name.to_owned());
        encode(&header, &claims, &self.key).unwrap()
    }

    fn rule(&self) -> wire::TokenRule {
        wire::TokenRule {
            of: "shop/jwt".into(),
            issuer: self.name.into(),
            keys: self.keys(),
            ..wire::TokenRule::default()
        }
    }
}

fn head(uri: &str, headers: &[(&str, &str)]) -> request::Parts {
    let mut request = Request::get(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap().into_parts().0
}

fn judge(
    rules: &[wire::TokenRule],
    head: &mut request::Parts,
) -> Result<Option<Accepted>, BadToken> {
    let rules: Vec<TokenRule> = rules
        .iter()
        .map(|rule| TokenRule::compile(rule).unwrap())
        .collect();
    authenticate(rules.iter(), head, NOW)
}

fn bearing(token: &str) -> request::Parts {
    head("/", &[("authorization", &format!("Bearer {token}"))])
}

fn refused(rules: &[wire::TokenRule], token: &str) -> Option<BadToken> {
    judge(rules, &mut bearing(token)).err()
}

#[test]
fn a_good_token_gives_its_claims_and_ends_here_unless_it_is_to_go_on() {
    let issuer = Issuer::new("https://a");
    let token = issuer.token(json!({"scope": "read write", "realm": {"level": 3}}));
    let mut head = bearing(&token);
    let accepted = judge(&[issuer.rule()], &mut head).unwrap().unwrap();
    assert_eq!(accepted.claims["sub"], "me");
    assert_eq!(accepted.claims["scope"], json!(["read", "write"]));
    assert!(!head.headers.contains_key("authorization"));
    let rule = wire::TokenRule {
        forward: true,
        payload_header: "x-payload".into(),
        claim_headers: [
            ("x-level", "realm.level"),
            ("x-sub", "sub"),
            ("x-none", "realm"),
        ]
        .map(|(header, claim)| wire::ClaimHeader {
            header: header.into(),
            claim: claim.into(),
        })
        .into(),
        ..issuer.rule()
    };
    let mut head = bearing(&token);
    head.headers.insert("x-none", "made up".parse().unwrap());
    judge(std::slice::from_ref(&rule), &mut head).unwrap();
    let said = |name: &str| head.headers.get(name).map(|value| value.to_str().unwrap());
    assert_eq!(said("authorization"), Some(&*format!("Bearer {token}")));
    assert_eq!(said("x-payload"), token.split('.').nth(1));
    assert_eq!(
        (said("x-level"), said("x-sub"), said("x-none")),
        (Some("3"), Some("me"), None)
    );
    // What tokens would say, nobody else can.
    let mut without = head_with_claims();
    assert!(judge(&[rule], &mut without).unwrap().is_none());
    assert!(without.headers.is_empty());
}

fn head_with_claims() -> request::Parts {
    head("/", &[("x-level", "9"), ("x-payload", "e30")])
}

#[test]
fn each_fault_of_a_token_has_its_words() {
    let (issuer, other) = (Issuer::new("https://a"), Issuer::new("https://b"));
    let rule = wire::TokenRule {
        audiences: vec!["app".into()],
        ..issuer.rule()
    };
    let good = issuer.token(json!({"aud": ["x", "app"]}));
    let [header, payload, signature] = *good.split('.').collect::<Vec<_>>() else {
        panic!()
    };
    let forged = Issuer::new("https://a").token(json!({"aud": "app"}));
    let of = |header: &str| format!("{header}.{payload}.{signature}");
    for (token, why) in [
        (good.clone(), None),
        (issuer.token(json!({"aud": "app", "exp": NOW - 59})), None),
        (issuer.token(json!({"aud": "app", "nbf": NOW + 59})), None),
        ("a.b".to_owned(), Some(BadToken::Form)),
        (format!("{good}.x"), Some(BadToken::Form)),
        ("a".repeat(20_000), Some(BadToken::Form)),
        (of("!"), Some(BadToken::Header)),
        (of("e30"), Some(BadToken::Algorithm)),
        // {"alg":"none"}
        (of("eyJhbGciOiJub25lIn0"), Some(BadToken::Algorithm)),
        // {"alg":"HS256"}: no key of the set signs so.
        (of("eyJhbGciOiJIUzI1NiJ9"), Some(BadToken::NoKey)),
        (
            format!("{header}.!.{signature}"),
            Some(BadToken::PayloadEncoding),
        ),
        (
            format!("{header}.Zm9v.{signature}"),
            Some(BadToken::Payload),
        ),
        (
            format!("{header}.{payload}.!"),
            Some(BadToken::SignatureEncoding),
        ),
        (other.token(json!({"aud": "app"})), Some(BadToken::Issuer)),
        (
            issuer.token(json!({"aud": "app", "exp": NOW - 61})),
            Some(BadToken::Expired),
        ),
        (
            issuer.token(json!({"aud": "app", "nbf": NOW + 61})),
            Some(BadToken::NotYet),
        ),
        (
            issuer.token(json!({"aud": "app", "exp": "soon"})),
            Some(BadToken::Payload),
        ),
        (
            issuer.token(json!({"aud": "other"})),
            Some(BadToken::Audience),
        ),
        (issuer.token(json!({})), Some(BadToken::Audience)),
        (forged, Some(BadToken::Signature)),
    ] {
        assert_eq!(refused(std::slice::from_ref(&rule), &token), why, "{token}");
    }
    let without = wire::TokenRule {
        no_keys: "not fetched".into(),
        ..rule
    };
    assert_eq!(refused(&[without], &good), Some(BadToken::NoKeys));
}

#[test]
fn keys_that_are_not_used_are_told_with_their_place() {
    let issuer = Issuer::new("https://a");
    let problems = |rule: &wire::TokenRule| -> Vec<String> {
        TokenRule::compile(rule).unwrap().problems().collect()
    };
    let told = problems(&issuer.rule());
    assert_eq!(told.len(), 2, "{told:?}");
    let start = "RequestAuthentication shop/jwt, issuer \"https://a\", jwks: ";
    assert!(
        told[0].starts_with(&format!("{start}keys[0]: ")),
        "{told:?}"
    );
    assert!(
        told[1].starts_with(&format!("{start}keys[2]: ")),
        "{told:?}"
    );
    let jwk = Jwk::from_encoding_key(&issuer.key, Algorithm::ES256).unwrap();
    let of = |count: usize| wire::TokenRule {
        keys: json!({"keys": vec![jwk.clone(); count]}).to_string(),
        ..issuer.rule()
    };
    assert_eq!(problems(&of(64)), Vec::<String>::new());
    assert_eq!(
        problems(&of(66)),
        [format!(
            "{start}keys[64] and those behind it: of the 66 keys of a set the first 64 are used"
        )]
    );
    let none = wire::TokenRule {
        no_keys: "not fetched".into(),
        ..issuer.rule()
    };
    assert_eq!(problems(&none), [format!("{start}not fetched")]);
}

#[test]
fn tokens_are_found_where_the_rule_says_and_nowhere_else() {
    let issuer = Issuer::new("https://a");
    let token = issuer.token(json!({}));
    let rule = wire::TokenRule {
        headers: vec![wire::TokenHeader {
            name: "x-token".into(),
            prefix: "T ".into(),
        }],
        params: vec!["t".into()],
        cookies: vec!["c".into()],
        ..issuer.rule()
    };
    let places = |token: &str| {
        [
            head("/", &[("x-token", &format!("T {token}"))]),
            head(&format!("/?a=b&t={token}"), &[]),
            head("/", &[("cookie", &format!("x=y; c={token}"))]),
        ]
    };
    for mut head in places(&token) {
        assert!(
            judge(std::slice::from_ref(&rule), &mut head)
                .unwrap()
                .is_some(),
            "{head:?}"
        );
    }
    let elsewhere = [bearing(&token), head("/", &[("x-token", &token)])];
    for mut head in elsewhere.into_iter().chain([head_with_claims()]) {
        assert!(
            judge(std::slice::from_ref(&rule), &mut head)
                .unwrap()
                .is_none(),
            "{head:?}"
        );
    }
    let mut by_default = head(&format!("/?access_token={token}"), &[]);
    assert!(judge(&[issuer.rule()], &mut by_default).unwrap().is_some());
}

#[test]
fn more_tokens_than_are_looked_at_are_refused() {
    let issuer = Issuer::new("https://a");
    let token = format!("Bearer {}", issuer.token(json!({})));
    let rules = [issuer.rule()];
    let carrying = |forged: usize| {
        let mut tokens = vec![("authorization", token.as_str()); places::MOST];
        tokens.extend(vec![("authorization", "Bearer forged"); forged]);
        judge(&rules, &mut head("/", &tokens)).err()
    };
    assert_eq!(carrying(0), None);
    assert_eq!(carrying(1), Some(BadToken::TooMany));
}

#[test]
fn of_several_rules_one_good_token_is_enough_and_a_bad_one_alone_is_refused() {
    let (a, b) = (Issuer::new("https://a"), Issuer::new("https://b"));
    let rules = [a.rule(), b.rule()];
    for issuer in [&a, &b] {
        let mut head = bearing(&issuer.token(json!({})));
        let accepted = judge(&rules, &mut head).unwrap().unwrap();
        assert_eq!(accepted.claims["iss"], issuer.name);
    }
    assert_eq!(
        refused(&rules, &b.token(json!({"exp": 1}))),
        Some(BadToken::Expired)
    );
    assert_eq!(refused(&rules, "x"), Some(BadToken::Form));
    assert!(judge(&rules, &mut head("/", &[])).unwrap().is_none());
    let mut preflight = bearing("x");
    preflight.method = Method::OPTIONS;
    for name in ["origin", "access-control-request-method"] {
        preflight
            .headers
            .insert(HeaderName::from_static(name), HeaderValue::from_static("x"));
    }
    assert!(judge(&rules, &mut preflight).unwrap().is_none());
}
