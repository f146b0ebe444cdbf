// SPDX-License-Identifier: Apache-2.0
//! Requests whose tokens say who asks: a good one leads where its claims lead, a bad one nowhere.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::ensure;
use e2e::handle::eventually;
use e2e::traffic::{Outcome, Report};
use jsonwebtoken::jwk::{Jwk, JwkSet};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::json;

use crate::ground::{PATIENCE, lab, waypoint_entry};
use crate::routes::{ask_of, pod, routed};

const ISSUER: &str = "https://issuer.example";
const KEY_ID: &str = "first";
const CLAIMED: &str = "10.96.0.89:80";

fn manifest(keys: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Service
metadata: {{name: claimed, namespace: guarded, labels: {{istio.io/use-waypoint: wp}}}}
spec:
  selector: {{app: old}}
  clusterIP: 10.96.0.89
  clusterIPs: [10.96.0.89]
  ports: [{{name: http, port: 80, targetPort: 8080}}]
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {{name: claimed, namespace: guarded}}
spec:
  targetRefs: [{{group: "", kind: Service, name: claimed}}]
  jwtRules: [{{issuer: "{ISSUER}", jwks: '{keys}'}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: claimed, namespace: guarded}}
spec:
  hosts: [claimed]
  http:
  - match: [{{headers: {{"@request.auth.claims.role": {{exact: editor}}}}}}]
    route: [{{destination: {{host: new}}}}]
  - route: [{{destination: {{host: old}}}}]
"#
    )
}

fn key() -> EncodingKey {
    let pem = rcgen::KeyPair::generate().unwrap().serialize_pem();
    EncodingKey::from_ec_pem(pem.as_bytes()).unwrap()
}

/// The issuer's key, by which the waypoint goes.
fn claimed() -> &'static EncodingKey {
    static APPLIED: OnceLock<EncodingKey> = OnceLock::new();
    routed();
    APPLIED.get_or_init(|| {
        let key = key();
        let mut public = Jwk::from_encoding_key(&key, Algorithm::ES256).unwrap();
        public.common.key_id = Some(KEY_ID.into());
        let keys = JwkSet { keys: vec![public] };
        let keys = serde_json::to_string(&keys).unwrap();
        lab().apply(&manifest(&keys)).unwrap();
        eventually("the waypoint goes by tokens", PATIENCE, || {
            let report = ask("/", &token(&key, "editor", 600))?;
            ensure!(report.is_done() && pod(&report) == "new", "{report:?}");
            Ok(())
        })
        .unwrap();
        key
    })
}

/// A token of this role that ends in so many seconds.
fn token(key: &EncodingKey, role: &str, ends: i64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let now = i64::try_from(Duration::as_secs(&now)).unwrap();
    let mut header = Header::new(Algorithm::ES256);
    header.kid = Some(KEY_ID.into());
    let claims = json!({
        "iss": ISSUER, "sub": "someone", "iat": now - 1000, "exp": now + ends, "role": role,
    });
    jsonwebtoken::encode(&header, &claims, key).unwrap()
}

fn ask(path: &str, token: &str) -> anyhow::Result<Report> {
    ask_of(
        CLAIMED,
        path,
        Some(&format!("authorization: Bearer {token}")),
    )
}

#[test]
fn a_good_token_leads_where_its_claims_lead() {
    let key = claimed();
    for (role, expected) in [("editor", "new"), ("reader", "old"), ("Editor", "old")] {
        let report = ask("/claimed", &token(key, role, 600)).unwrap();
        assert_eq!(pod(&report), expected, "{role}: {report:?}");
    }
    let without = ask_of(CLAIMED, "/claimed/by-nobody", None).unwrap();
    assert_eq!(pod(&without), "old", "{without:?}");
    // A header of the claim's own name is no claim.
    let forged = Some("@request.auth.claims.role: editor");
    let forged = ask_of(CLAIMED, "/claimed/by-hand", forged).unwrap();
    assert_ne!(pod(&forged), "new", "{forged:?}");
}

#[test]
fn a_bad_token_leads_nowhere() {
    let good = claimed();
    for (path, token) in [
        ("/claimed/forged", token(&key(), "editor", 600)),
        ("/claimed/over", token(good, "editor", -600)),
    ] {
        let report = ask(path, &token).unwrap();
        let expected = Outcome::Failed("status 401".to_owned());
        assert_eq!(report.outcome, expected, "{path}: {report:?}");
        let entry = waypoint_entry("the refusal", |entry| entry.is("path", path));
        assert!(entry.is("response_code", "401"), "{entry}");
        assert!(entry.error().is_some(), "{entry}");
    }
}
