// SPDX-License-Identifier: Apache-2.0
//! Requests with tokens: who gets through, what the others are told, what the endpoint hears, and what policies make of
//! it.

use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use proto::waypoint as wire;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use serde_json::json;
use waypoint::settings::Settings;
use wire::pattern::Kind;

use crate::harness::{World, application, get};

#[tokio::test]
async fn tokens_decide_with_policies_and_tell_the_endpoint_who_asks() {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let key = EncodingKey::from_ec_pem(key.serialize_pem().as_bytes()).unwrap();
    let jwk = Jwk::from_encoding_key(&key, Algorithm::ES256).unwrap();
    let token = |exp: u64| {
        let claims = json!({"iss": "https://a", "sub": "me", "exp": exp, "role": "admin"});
        encode(&Header::new(Algorithm::ES256), &claims, &key).unwrap()
    };
    let far = 4_000_000_000;

    let mut world = World::new().await;
    let app = application("app").await;
    let to = world.service("app", &[app]);
    let is_admin = wire::Condition {
        attribute: wire::Attribute::Claim.into(),
        key: vec!["role".into()],
        patterns: vec![wire::Pattern {
            kind: Some(Kind::Exact("admin".into())),
        }],
        ..wire::Condition::default()
    };
    let allow = wire::Policy {
        namespace: "shop".into(),
        name: "admins".into(),
        rules: vec![wire::PolicyRule {
            index: 0,
            clauses: vec![wire::PolicyClause {
                matches: vec![wire::PolicyMatch {
                    conditions: vec![is_admin],
                }],
            }],
        }],
        ..wire::Policy::default()
    };
    world.serve_under("app", wire::Protocol::Http1, vec![], vec![allow]);
    let rules = wire::Waypoint {
        token_rules: vec![wire::TokenRule {
            of: "shop/jwt".into(),
            issuer: "https://a".into(),
            keys: json!({"keys": [jwk]}).to_string(),
            claim_headers: vec![wire::ClaimHeader {
                header: "x-user".into(),
                claim: "sub".into(),
            }],
            ..wire::TokenRule::default()
        }],
        ..wire::Waypoint::default()
    };
    let settings = Settings::compile(&rules).unwrap();
    world.state.update_settings(Some(settings));

    let with = |token: &str| {
        let mut request = get("/who");
        let headers = request.headers_mut();
        headers.insert("authorization", format!("Bearer {token}").parse().unwrap());
        headers.insert("x-user", "made-up".parse().unwrap());
        request
    };
    let answer = world.ask(to, with(&token(far))).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let seen = answer.seen();
    assert_eq!(seen["headers"]["x-user"], "me");
    assert!(seen["headers"].get("authorization").is_none(), "{seen}");

    // No token: none is needed, but the policy asks for a claim.
    let answer = world.get(to, "/who").await;
    assert_eq!((answer.status, &*answer.body), (403, "RBAC: access denied"));

    let answer = world.ask(to, with(&token(1))).await;
    assert_eq!((answer.status, &*answer.body), (401, "Jwt is expired"));
    let challenge = "Bearer realm=\"http://app.shop/who\", error=\"invalid_token\"";
    assert_eq!(answer.header("www-authenticate"), challenge);
    let counted = ["culvert_tokens_refused_total", "reason=\"Jwt is expired\""];
    world.until_counted(&counted).await;
    let mut grpc = with("x");
    let kind = "application/grpc".parse().unwrap();
    grpc.headers_mut().insert("content-type", kind);
    let answer = world.ask(to, grpc).await;
    assert_eq!((answer.status, answer.header("grpc-status")), (200, "16"));
}

#[tokio::test]
async fn a_route_may_go_by_claims_of_a_token_that_was_verified() {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let key = EncodingKey::from_ec_pem(key.serialize_pem().as_bytes()).unwrap();
    let jwk = Jwk::from_encoding_key(&key, Algorithm::ES256).unwrap();
    let mut world = World::new().await;
    let (everyone, admins) = (application("everyone").await, application("admins").await);
    let to = world.service("app", &[everyone]);
    world.service("admins", &[admins]);
    let rule = |name: &str, backend: &str| wire::HttpRule {
        matches: vec![wire::HttpMatch {
            headers: Some(name)
                .filter(|name| !name.is_empty())
                .map(|name| wire::ValueMatch {
                    name: name.into(),
                    value: Some(wire::value_match::Value::Exact("admin".into())),
                    inverted: false,
                })
                .into_iter()
                .collect(),
            ..wire::HttpMatch::default()
        }],
        backends: vec![crate::routes::to(backend, 1)],
        ..wire::HttpRule::default()
    };
    let rules = vec![
        rule("@request.auth.claims[role]", "admins"),
        rule("", "app"),
    ];
    world.serve("app", wire::Protocol::Http1, rules);
    let settings = Settings::compile(&wire::Waypoint {
        token_rules: vec![wire::TokenRule {
            of: "shop/jwt".into(),
            issuer: "https://a".into(),
            keys: json!({"keys": [jwk]}).to_string(),
            ..wire::TokenRule::default()
        }],
        ..wire::Waypoint::default()
    });
    world.state.update_settings(Some(settings.unwrap()));
    for (role, app) in [("admin", "admins"), ("guest", "everyone")] {
        let claims = json!({"iss": "https://a", "sub": "me", "role": role});
        let token = encode(&Header::new(Algorithm::ES256), &claims, &key).unwrap();
        let mut request = get("/");
        let token = format!("Bearer {token}").parse().unwrap();
        request.headers_mut().insert("authorization", token);
        let answer = world.ask(to, request).await;
        assert_eq!(answer.header("x-app"), app);
    }
    assert_eq!(world.get(to, "/").await.header("x-app"), "everyone");
}
