// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, SystemTime};

use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_RSA_SHA256};
use serde_json::{Value, json};
use spiffe::{SpiffeId, TrustDomain};
use tempfile::TempDir;

use super::*;

const NOW: u64 = 1_800_000_000;

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(NOW)
}

/// A signer of tokens as a cluster has one.
struct Signer {
    id: Option<&'static str>,
    algorithm: Algorithm,
    key: EncodingKey,
}

impl Signer {
    fn new(id: Option<&'static str>, algorithm: Algorithm) -> Self {
        let key = match algorithm {
            Algorithm::ES256 => ec(&KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap()),
            Algorithm::ES384 => ec(&KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap()),
            _ => {
                let key = KeyPair::generate_for(&PKCS_RSA_SHA256).unwrap();
                EncodingKey::from_rsa_pem(key.serialize_pem().as_bytes()).unwrap()
            }
        };
        Self { id, algorithm, key }
    }

    fn jwk(&self) -> Value {
        let mut jwk = Jwk::from_encoding_key(&self.key, self.algorithm).unwrap();
        jwk.common.key_id = self.id.map(str::to_owned);
        serde_json::to_value(jwk).unwrap()
    }

    fn token(&self, claims: &Value) -> String {
        let mut header = Header::new(self.algorithm);
        header.kid = self.id.map(str::to_owned);
        encode(&header, claims, &self.key).unwrap()
    }
}

fn ec(key: &KeyPair) -> EncodingKey {
    EncodingKey::from_ec_pem(key.serialize_pem().as_bytes()).unwrap()
}

fn claims() -> Value {
    json!({
        "iss": "https://cluster", "aud": ["istio-ca"], "sub": "system:serviceaccount:istio-system:ztunnel",
        "exp": NOW + 600, "iat": NOW - 10, "nbf": NOW - 10, "jti": "1",
        "kubernetes.io": {
            "namespace": "istio-system",
            "serviceaccount": {"name": "ztunnel", "uid": "s"},
            "pod": {"name": "ztunnel-a", "uid": "u1"},
            "node": {"name": "a", "uid": "n"},
        },
    })
}

fn caller() -> Caller {
    Caller {
        namespace: "istio-system".to_owned(),
        service_account: "ztunnel".to_owned(),
        pod: BoundPod {
            name: "ztunnel-a".to_owned(),
            uid: "u1".to_owned(),
        },
        node: Some("a".to_owned()),
    }
}

fn expected() -> Expected {
    Expected {
        issuer: "https://cluster".to_owned(),
        audiences: vec!["istio-ca".to_owned()],
        leeway: Expected::DEFAULT_LEEWAY,
    }
}

struct Cluster {
    directory: TempDir,
}

impl Cluster {
    fn with_keys(keys: &[Value]) -> Self {
        let cluster = Self {
            directory: TempDir::new().unwrap(),
        };
        cluster.write(&json!({"keys": keys}).to_string());
        cluster
    }

    fn jwks(&self) -> std::path::PathBuf {
        self.directory.path().join("jwks.json")
    }

    fn write(&self, text: &str) {
        // As a writer that means well does, so that the file is another one each time.
        let new = self.directory.path().join("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.jwks()).unwrap();
    }

    fn authenticator(&self) -> Authenticator {
        Authenticator::open(&self.jwks(), expected()).unwrap()
    }
}

#[test]
fn tokens_of_each_kind_of_key_are_accepted() {
    for algorithm in [Algorithm::ES256, Algorithm::ES384, Algorithm::RS256] {
        let signer = Signer::new(Some("k"), algorithm);
        let cluster = Cluster::with_keys(&[signer.jwk()]);
        let found = cluster
            .authenticator()
            .authenticate(&signer.token(&claims()), now())
            .unwrap();
        assert_eq!(found, caller(), "{algorithm:?}");
    }
}

#[test]
fn one_odd_key_does_not_void_the_set() {
    let signer = Signer::new(Some("k"), Algorithm::ES256);
    let mut encryption = Signer::new(Some("e"), Algorithm::ES256).jwk();
    encryption["use"] = json!("enc");
    let odd = [
        json!({"kty": "future", "kid": "f"}),
        json!({"kty": "EC", "crv": "P-521", "x": "AA", "y": "AA"}),
        json!({"kty": "oct", "k": "c2VjcmV0", "alg": "HS256"}),
        json!({"kty": "RSA", "n": "AQAB", "e": "AQAB", "alg": "ES256"}),
        json!("nonsense"),
        encryption,
        signer.jwk(),
    ];
    let cluster = Cluster::with_keys(&odd);
    cluster
        .authenticator()
        .authenticate(&signer.token(&claims()), now())
        .unwrap();

    for useless in [
        "",
        "{}",
        "{\"keys\": []}",
        "{\"keys\": [{\"kty\": \"oct\", \"k\": \"AA\"}]}",
    ] {
        cluster.write(useless);
        assert!(
            Authenticator::open(&cluster.jwks(), expected()).is_err(),
            "{useless}"
        );
    }
    fs::remove_file(cluster.jwks()).unwrap();
    let error = Authenticator::open(&cluster.jwks(), expected()).unwrap_err();
    assert!(error.to_string().contains("jwks.json"), "{error}");
}

#[test]
fn keys_are_found_by_id_and_without_one_by_trying() {
    let (one, two) = (
        Signer::new(Some("1"), Algorithm::ES256),
        Signer::new(Some("2"), Algorithm::ES256),
    );
    let nameless = Signer::new(None, Algorithm::RS256);
    let authenticator = Cluster::with_keys(&[one.jwk(), nameless.jwk(), two.jwk()]).authenticator();
    for signer in [&one, &two, &nameless] {
        authenticator
            .authenticate(&signer.token(&claims()), now())
            .unwrap();
    }
    let anonymous = Signer { id: None, ..two };
    authenticator
        .authenticate(&anonymous.token(&claims()), now())
        .unwrap();
}

#[test]
fn a_token_that_no_key_of_ours_signed_is_refused() {
    let signer = Signer::new(Some("k"), Algorithm::ES256);
    let authenticator = Cluster::with_keys(&[signer.jwk()]).authenticator();
    let check = |token: &str, expected: &str| {
        let error = authenticator
            .authenticate(token, now())
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{error}\n{expected}");
        assert!(
            token.len() < 20 || !error.contains(token),
            "tokens are not for logs"
        );
    };
    check(
        &Signer::new(Some("k"), Algorithm::ES256).token(&claims()),
        "the signature does not match",
    );
    check(
        &Signer::new(Some("other"), Algorithm::ES256).token(&claims()),
        "key \"other\", which is not in the key set",
    );
    // What the token says of its algorithm is not believed.
    check(
        &Signer::new(Some("k"), Algorithm::RS256).token(&claims()),
        "algorithm RS256 is not that of the key, ES256",
    );
    let mut header = Header::new(Algorithm::HS256);
    header.kid = Some("k".to_owned());
    let public = signer.jwk()["x"].as_str().unwrap().to_owned();
    let confused = encode(
        &header,
        &claims(),
        &EncodingKey::from_secret(public.as_bytes()).unwrap(),
    )
    .unwrap();
    check(&confused, "algorithm HS256 is not that of the key, ES256");
    let good = signer.token(&claims());
    let (message, signature) = good.rsplit_once('.').unwrap();
    // {"alg":"none"}
    let unsigned = format!(
        "eyJhbGciOiJub25lIn0.{}.",
        message.split_once('.').unwrap().1
    );
    check(&unsigned, "not a signed JWT");
    let forged = encode(
        &Header::new(Algorithm::ES256),
        &json!({"sub": "x"}),
        &signer.key,
    )
    .unwrap();
    check(
        &format!("{}.{signature}", forged.rsplit_once('.').unwrap().0),
        "the signature does not match",
    );
    for malformed in ["", "a", "a.b", "a.b.c", "..", "\u{0}.\u{0}.\u{0}"] {
        check(malformed, "not a signed JWT");
    }
    check(&"a".repeat(20_000), "longer than");
}

#[test]
fn claims_are_checked_one_by_one() {
    let signer = Signer::new(Some("k"), Algorithm::ES256);
    let authenticator = Cluster::with_keys(&[signer.jwk()]).authenticator();
    let check = |pointer: &str, value: Value, expected: Result<(), &str>| {
        let mut changed = claims();
        *changed.pointer_mut(pointer).unwrap() = value.clone();
        match (
            authenticator.authenticate(&signer.token(&changed), now()),
            expected,
        ) {
            (Ok(_), Ok(())) => {}
            (Err(error), Err(expected)) if error.to_string().contains(expected) => {}
            (found, _) => panic!("{pointer} = {value}: {found:?}, expected {expected:?}"),
        }
    };
    check(
        "/iss",
        json!("https://other"),
        Err("issuer is Some(\"https://other\")"),
    );
    check("/iss", Value::Null, Err("issuer is None"));
    check("/aud", json!("istio-ca"), Ok(()));
    check("/aud", json!(["x", "istio-ca"]), Ok(()));
    check("/aud", json!(["x"]), Err("audiences are [\"x\"]"));
    check("/aud", json!([]), Err("audiences are []"));
    check("/exp", json!(NOW - 59), Ok(()));
    check("/exp", json!(NOW - 60), Err("expired at"));
    check("/exp", Value::Null, Err("has no expiry"));
    check("/exp", json!("soon"), Err("claims can't be read"));
    check("/nbf", json!(NOW + 60), Ok(()));
    check("/nbf", json!(NOW + 61), Err("is not valid before"));
    check("/nbf", Value::Null, Ok(()));
    check("/sub", json!("system:node:a"), Err("subject is"));
    check(
        "/sub",
        json!("system:serviceaccount:istio-system"),
        Err("subject is"),
    );
    check(
        "/sub",
        json!("system:serviceaccount:istio-system:ztunnel:x"),
        Err("subject is"),
    );
    check(
        "/sub",
        json!("system:serviceaccount::ztunnel"),
        Err("subject is"),
    );
    check(
        "/sub",
        json!("system:serviceaccount:default:ztunnel"),
        Err("contradict each other"),
    );
    check(
        "/kubernetes.io/serviceaccount/name",
        json!("other"),
        Err("contradict each other"),
    );
    check(
        "/kubernetes.io/namespace",
        Value::Null,
        Err("contradict each other"),
    );
    check("/kubernetes.io", Value::Null, Err("is not bound to a pod"));
    check(
        "/kubernetes.io/pod",
        Value::Null,
        Err("is not bound to a pod"),
    );
    check(
        "/kubernetes.io/pod/uid",
        json!(""),
        Err("is not bound to a pod"),
    );
    check(
        "/kubernetes.io/pod",
        json!({"name": "ztunnel-a"}),
        Err("is not bound to a pod"),
    );
    check("/kubernetes.io/node", Value::Null, Ok(()));
}

#[test]
fn the_key_set_is_read_again_when_it_changes_and_kept_when_it_breaks() {
    let (old, new) = (
        Signer::new(Some("old"), Algorithm::ES256),
        Signer::new(Some("new"), Algorithm::ES256),
    );
    let cluster = Cluster::with_keys(&[old.jwk()]);
    let authenticator = cluster.authenticator();
    let accepts = |signer: &Signer| {
        authenticator
            .authenticate(&signer.token(&claims()), now())
            .is_ok()
    };
    assert_eq!((accepts(&old), accepts(&new)), (true, false));
    cluster.write(&json!({"keys": [old.jwk(), new.jwk()]}).to_string());
    assert_eq!((accepts(&old), accepts(&new)), (true, true));
    cluster.write("{");
    assert_eq!((accepts(&old), accepts(&new)), (true, true));
    fs::remove_file(cluster.jwks()).unwrap();
    assert_eq!((accepts(&old), accepts(&new)), (true, true));
    cluster.write(&json!({"keys": [new.jwk()]}).to_string());
    assert_eq!((accepts(&old), accepts(&new)), (false, true));
}

/// Pods by namespace and name.
struct Pods(BTreeMap<(&'static str, &'static str), PodFacts>);

impl PodLookup for Pods {
    fn pod(&self, namespace: &str, name: &str) -> Option<PodFacts> {
        self.0.get(&(namespace, name)).cloned()
    }

    fn has_live_pod(&self, node: &str, namespace: &str, service_account: &str) -> bool {
        self.0.iter().any(|((of, _), pod)| {
            *of == namespace
                && pod.node.as_deref() == Some(node)
                && pod.service_account == service_account
                && pod.life == PodLife::Live
        })
    }
}

fn pod(uid: &str, service_account: &str, node: &str) -> PodFacts {
    PodFacts {
        uid: uid.to_owned(),
        service_account: service_account.to_owned(),
        node: Some(node.to_owned()).filter(|node| !node.is_empty()),
        life: PodLife::Live,
    }
}

fn pods() -> Pods {
    Pods(BTreeMap::from([
        (("istio-system", "ztunnel-a"), pod("u1", "ztunnel", "a")),
        (("istio-system", "ztunnel-b"), pod("u2", "ztunnel", "b")),
        (("default", "web"), pod("u3", "web", "a")),
        (("default", "other"), pod("u4", "other", "b")),
        (
            ("default", "done"),
            PodFacts {
                life: PodLife::Ended,
                ..pod("u5", "done", "a")
            },
        ),
    ]))
}

fn authorizer() -> NodeAuthorizer {
    NodeAuthorizer::new(
        TrustDomain::default(),
        ["istio-system/ztunnel".parse().unwrap()],
    )
}

#[test]
fn an_identity_is_granted_only_for_a_live_pod_on_the_callers_node() {
    let check = |caller: &Caller, pods: &Pods, requested: &str, expected: Result<(), &str>| {
        let requested: SpiffeId = requested.parse().unwrap();
        match (
            authorizer().may_impersonate(caller, &requested, pods),
            expected,
        ) {
            (Ok(()), Ok(())) => {}
            (Err(refusal), Err(expected)) => {
                assert!(
                    refusal.to_string().contains(expected),
                    "{refusal}\n{expected}"
                );
                assert_eq!(refusal.for_client(), OPAQUE_REFUSAL);
            }
            (found, _) => panic!("{requested}: {found:?}, expected {expected:?}"),
        }
    };
    let web = "spiffe://cluster.local/ns/default/sa/web";
    check(&caller(), &pods(), web, Ok(()));
    check(
        &caller(),
        &pods(),
        "spiffe://cluster.local/ns/default/sa/other",
        Err("no live pod on node a runs as spiffe://cluster.local/ns/default/sa/other"),
    );
    check(
        &caller(),
        &pods(),
        "spiffe://cluster.local/ns/default/sa/done",
        Err("no live pod on node a"),
    );
    check(
        &caller(),
        &pods(),
        "spiffe://cluster.local/ns/kube-system/sa/web",
        Err("no live pod on node a"),
    );
    check(
        &caller(),
        &pods(),
        "spiffe://elsewhere/ns/default/sa/web",
        Err("spiffe://elsewhere/ns/default/sa/web is not of trust domain cluster.local"),
    );

    let mut not_trusted = caller();
    (not_trusted.namespace, not_trusted.service_account) = ("default".to_owned(), "web".to_owned());
    check(
        &not_trusted,
        &pods(),
        web,
        Err("default/web is not among the accounts trusted"),
    );

    let with = |facts: Option<PodFacts>| {
        let mut pods = pods();
        match facts {
            Some(facts) => pods.0.insert(("istio-system", "ztunnel-a"), facts),
            None => pods.0.remove(&("istio-system", "ztunnel-a")),
        };
        pods
    };
    check(
        &caller(),
        &with(None),
        web,
        Err("pod istio-system/ztunnel-a does not exist"),
    );
    check(
        &caller(),
        &with(Some(pod("u9", "ztunnel", "a"))),
        web,
        Err("has uid u9, the token is for u1"),
    );
    check(
        &caller(),
        &with(Some(pod("u1", "else", "a"))),
        web,
        Err("runs as else, the token is for ztunnel"),
    );
    let ended = PodFacts {
        life: PodLife::Ended,
        ..pod("u1", "ztunnel", "a")
    };
    check(&caller(), &with(Some(ended)), web, Err("has ended"));
    check(
        &caller(),
        &with(Some(pod("u1", "ztunnel", ""))),
        web,
        Err("is not scheduled to a node"),
    );
    check(
        &caller(),
        &with(Some(pod("u1", "ztunnel", "b"))),
        web,
        Err("runs on node b, the token is for a"),
    );
    // A token that names no node is as good: the pod says where it runs.
    let nodeless = Caller {
        node: None,
        ..caller()
    };
    check(&nodeless, &pods(), web, Ok(()));
    check(
        &nodeless,
        &with(Some(pod("u1", "ztunnel", "b"))),
        web,
        Err("no live pod on node b"),
    );
}

#[test]
fn without_trusted_accounts_nobody_acts_for_others() {
    let nobody = NodeAuthorizer::new(TrustDomain::default(), []);
    let requested = "spiffe://cluster.local/ns/default/sa/web".parse().unwrap();
    assert!(matches!(
        nobody.may_impersonate(&caller(), &requested, &pods()),
        Err(Refusal::NotTrusted { .. })
    ));
}

#[test]
fn anybody_may_have_its_own_identity_while_its_pod_lives() {
    let web = Caller {
        namespace: "default".to_owned(),
        service_account: "web".to_owned(),
        pod: BoundPod {
            name: "web".to_owned(),
            uid: "u3".to_owned(),
        },
        node: None,
    };
    let found = authorizer().own_identity(&web, &pods()).unwrap();
    assert_eq!(found.as_str(), "spiffe://cluster.local/ns/default/sa/web");
    let stale = Caller {
        pod: BoundPod {
            uid: "u0".to_owned(),
            ..web.pod.clone()
        },
        ..web
    };
    assert!(matches!(
        authorizer().own_identity(&stale, &pods()),
        Err(Refusal::OtherUid { .. })
    ));
}

#[test]
fn node_accounts_are_written_as_namespace_and_name() {
    let account: NodeAccount = "istio-system/ztunnel".parse().unwrap();
    assert_eq!(
        (account.namespace.as_str(), account.service_account.as_str()),
        ("istio-system", "ztunnel")
    );
    for text in ["", "ztunnel", "/ztunnel", "istio-system/", "a/b/c"] {
        assert!(text.parse::<NodeAccount>().is_err(), "{text}");
    }
}
