// SPDX-License-Identifier: Apache-2.0

use std::fs;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::super::{DAY, Place};
use super::*;
use crate::authenticate::BoundPod;

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}

/// A root, and an intermediate that signs for it.
struct Ca {
    root: String,
    intermediate: String,
    key: String,
}

fn params(name: &str, ends: SystemTime) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.not_before = (now() - DAY).into();
    params.not_after = ends.into();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

impl Ca {
    fn new(name: &str, ends: SystemTime) -> Self {
        Self::of_key(name, ends, &KeyPair::generate().unwrap())
    }

    fn of_key(name: &str, ends: SystemTime, root_key: &KeyPair) -> Self {
        let root = params(name, ends);
        let key = KeyPair::generate().unwrap();
        let issuer = Issuer::from_params(&root, root_key);
        let intermediate = params(&format!("{name} intermediate"), ends);
        Self {
            root: root.self_signed(root_key).unwrap().pem(),
            intermediate: intermediate.signed_by(&key, &issuer).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }

    fn put(&self, directory: &TempDir, roots: &[&Self]) {
        let roots: String = roots.iter().map(|ca| ca.root.as_str()).collect();
        for (name, text) in [
            ("ca-cert.pem", &self.intermediate),
            ("ca-key.pem", &self.key),
            ("cert-chain.pem", &self.intermediate),
            ("root-cert.pem", &roots),
        ] {
            fs::write(directory.path().join(name), text).unwrap();
        }
    }
}

fn open(directory: &TempDir) -> LiveAuthority {
    let material = Material::in_directory(directory.path()).unwrap();
    LiveAuthority::open(&material, Lifetimes::default(), now()).unwrap()
}

fn proxy(node: &str) -> Caller {
    Caller {
        namespace: "istio-system".into(),
        service_account: "ztunnel".into(),
        pod: BoundPod {
            name: format!("ztunnel-{node}"),
            uid: node.into(),
        },
        node: None,
    }
}

fn identity() -> SpiffeId {
    "spiffe://cluster.local/ns/shop/sa/web".parse().unwrap()
}

fn renew(live: &LiveAuthority, caller: &Caller) -> Result<Vec<String>, SignError> {
    let csr = CertificateParams::default()
        .serialize_request(&KeyPair::generate().unwrap())
        .unwrap()
        .pem()
        .unwrap();
    live.sign(&csr, &identity(), caller, 0, now())
}

/// Reads the files again.
fn read(live: &LiveAuthority) {
    let Place::Directory(directory) = live.in_force().signing.chain.place.clone() else {
        panic!("it came from a directory");
    };
    live.take(Material::in_directory(&directory));
}

fn reload(live: &LiveAuthority) -> News {
    read(live);
    live.advance(now(), |_, _| true)
}

fn report(live: &LiveAuthority) -> Value {
    serde_json::to_value(live.report(now(), |_, _| true)).unwrap()
}

/// How many certificates are signed under each root in force, and how many came with it.
fn roots(live: &LiveAuthority) -> Vec<(String, u64, u64)> {
    let report = report(live);
    let roots = report["roots"].as_array().unwrap().iter();
    let mut roots: Vec<_> = roots
        .map(|root| {
            (
                root["subject"].as_str().unwrap().to_owned(),
                root["signedUnder"].as_u64().unwrap(),
                root["trustedBy"].as_u64().unwrap(),
            )
        })
        .collect();
    roots.sort();
    roots
}

/// As if everybody had had the time to take what they got.
fn settle(live: &LiveAuthority) {
    live.ledger.settle();
}

#[test]
fn a_root_is_changed_in_steps_each_of_which_waits_for_everybody() {
    let directory = TempDir::new().unwrap();
    let (old, new) = (
        Ca::new("old", now() + 365 * DAY),
        Ca::new("new", now() + 365 * DAY),
    );
    old.put(&directory, &[&old]);
    let live = open(&directory);
    let proxies = ["a", "b"].map(proxy);
    for caller in &proxies {
        renew(&live, caller).unwrap();
    }
    assert_eq!(roots(&live), [("CN=old".into(), 2, 2)]);

    // (a) Both are handed out at once.
    old.put(&directory, &[&old, &new]);
    let news = reload(&live);
    assert_eq!((news.roots, news.signer), (true, false));
    let answer = renew(&live, &proxies[0]).unwrap();
    assert_eq!(answer[2].matches("BEGIN CERTIFICATE").count(), 2);
    // (b) was made too early: proxy b has not heard of the new root.
    new.put(&directory, &[&old, &new]);
    assert_eq!(reload(&live), News::default());
    settle(&live);
    assert_eq!(live.advance(now(), |_, _| true), News::default());
    assert_eq!(
        roots(&live),
        [("CN=new".into(), 0, 1), ("CN=old".into(), 2, 2)]
    );
    assert_eq!(
        report(&live)["waits"][0]
            .as_str()
            .unwrap()
            .split(" waits for ")
            .last(),
        Some(
            "1 who do not trust it yet, such as spiffe://cluster.local/ns/shop/sa/web by \
             istio-system/ztunnel (pod ztunnel-b)"
        )
    );
    renew(&live, &proxies[1]).unwrap();
    assert_eq!(
        live.advance(now(), |_, _| true),
        News::default(),
        "what was sent just now may not have arrived"
    );
    settle(&live);
    let news = live.advance(now(), |_, _| true);
    assert_eq!((news.roots, news.signer), (false, true));
    assert_eq!(report(&live)["waits"], json!([]));
    // (c) waits until nothing is signed under the old root.
    new.put(&directory, &[&new]);
    renew(&live, &proxies[0]).unwrap();
    assert_eq!(reload(&live), News::default());
    assert_eq!(
        roots(&live),
        [("CN=new".into(), 1, 2), ("CN=old".into(), 1, 2)]
    );
    assert!(
        report(&live)["waits"][0]
            .as_str()
            .unwrap()
            .starts_with("dropping \"CN=old\"")
    );
    // The pod that proxy b held it for is gone.
    let news = live.advance(now(), |caller, _| caller.pod.uid == "a");
    assert_eq!((news.roots, news.signer), (true, false));
    assert_eq!(roots(&live), [("CN=new".into(), 1, 1)]);
}

#[test]
fn an_authority_that_has_expired_signs_nothing_until_any_other_is_put_in_its_place() {
    let directory = TempDir::new().unwrap();
    let old = Ca::new("old", now() - Duration::from_secs(1));
    old.put(&directory, &[&old]);
    let live = open(&directory);
    assert_eq!(live.advance(now(), |_, _| true), News::default());
    let error = renew(&live, &proxy("a")).unwrap_err();
    assert!(matches!(error, SignError::SignerExpired(_)), "{error}");
    let told = report(&live);
    assert_eq!(told["signs"], false);
    let problem = told["problem"].as_str().unwrap();
    assert!(
        problem.contains("ca-cert.pem expired on 2027-01-15"),
        "{problem}"
    );
    // What is not valid yet is no help, and becomes one.
    let new = Ca::new("new", now() + 365 * DAY);
    new.put(&directory, &[&new]);
    read(&live);
    let early = now() - 2 * DAY;
    assert_eq!(live.advance(early, |_, _| true), News::default());
    let news = live.advance(now(), |_, _| true);
    assert_eq!((news.roots, news.signer), (true, true));
    renew(&live, &proxy("a")).unwrap();
    assert_eq!(report(&live)["problem"], Value::Null);
}

#[test]
fn a_root_that_was_issued_anew_for_its_key_is_the_same_root() {
    let directory = TempDir::new().unwrap();
    let key = KeyPair::generate().unwrap();
    let old = Ca::of_key("root", now() + DAY, &key);
    old.put(&directory, &[&old]);
    let live = open(&directory);
    renew(&live, &proxy("a")).unwrap();
    let longer = Ca::of_key("root", now() + 365 * DAY, &key);
    longer.put(&directory, &[&longer]);
    let news = reload(&live);
    assert_eq!((news.roots, news.signer), (true, true));
    assert_eq!(roots(&live), [("CN=root".into(), 1, 1)]);
}

#[test]
fn files_that_are_no_authority_change_nothing() {
    let directory = TempDir::new().unwrap();
    let ends = now() + 365 * DAY;
    let (old, new) = (Ca::new("old", ends), Ca::new("new", ends));
    old.put(&directory, &[&old]);
    let live = open(&directory);
    renew(&live, &proxy("a")).unwrap();
    let check = |expected: &str| {
        assert_eq!(reload(&live), News::default());
        let told = report(&live);
        let problem = told["problem"].as_str().unwrap_or_default();
        assert!(problem.contains(expected), "{problem}\n{expected}");
        assert_eq!(told["signs"], true);
        renew(&live, &proxy("a")).unwrap();
    };
    new.put(&directory, &[&new]);
    check("root-cert.pem lacks \"CN=old\"");
    fs::write(directory.path().join("ca-key.pem"), &old.key).unwrap();
    check("does not belong to the certificate");
    fs::remove_file(directory.path().join("ca-key.pem")).unwrap();
    check("ca-key.pem is missing");
    let expired = Ca::new("old", now());
    expired.put(&directory, &[&old, &expired]);
    check("expired on");
    old.put(&directory, &[&old]);
    assert_eq!(reload(&live), News::default());
    assert_eq!(report(&live)["problem"], Value::Null);
}

#[test]
fn others_certificates_count_no_longer_than_they_are_valid() {
    let directory = TempDir::new().unwrap();
    let ca = Ca::new("root", now() + 365 * DAY);
    ca.put(&directory, &[&ca]);
    let live = open(&directory);
    renew(&live, &proxy("a")).unwrap();
    let count = |at| {
        let report = serde_json::to_value(live.report(at, |_, _| true)).unwrap();
        report["certificates"].as_u64().unwrap()
    };
    assert_eq!(count(now() + DAY - Duration::from_secs(1)), 1);
    assert_eq!(count(now() + DAY), 0);
}

#[test]
fn a_start_amid_a_change_of_roots_goes_by_the_files_alone_and_trusts_no_more_than_they_do() {
    let directory = TempDir::new().unwrap();
    let ends = now() + 365 * DAY;
    let (old, new) = (Ca::new("old", ends), Ca::new("new", ends));
    let caller = proxy("a");
    type Roots<'a> = &'a [(&'a str, u64, u64)];
    let named = |expected: Roots<'_>| -> Vec<_> {
        let of = |(name, under, trust): &(&str, u64, u64)| (format!("CN={name}"), *under, *trust);
        expected.iter().map(of).collect()
    };
    // What the running process makes of a step, and a start that knows of nobody.
    let check = |live: LiveAuthority, waits: usize, running: Roots<'_>, started: Roots<'_>| {
        settle(&live);
        read(&live);
        live.advance(now(), |_, _| true);
        assert_eq!(roots(&live), named(running));
        assert_eq!(report(&live)["waits"].as_array().unwrap().len(), waits);
        drop(live);
        let live = open(&directory);
        assert_eq!(live.advance(now(), |_, _| true), News::default());
        assert_eq!(report(&live)["waits"], json!([]));
        assert_eq!(roots(&live), named(started));
        live
    };
    old.put(&directory, &[&old]);
    let live = open(&directory);
    renew(&live, &caller).unwrap();
    // (a) Both are handed out as before.
    old.put(&directory, &[&old, &new]);
    let both = [("new", 0, 0), ("old", 1, 1)];
    let live = check(live, 0, &both, &[("new", 0, 0), ("old", 0, 0)]);
    let answer = renew(&live, &caller).unwrap();
    assert_eq!(answer[2].matches("BEGIN CERTIFICATE").count(), 2);
    // (b) waits for who has the old root alone; a start signs, and hands out both.
    old.put(&directory, &[&old]);
    reload(&live);
    renew(&live, &caller).unwrap();
    old.put(&directory, &[&old, &new]);
    reload(&live);
    new.put(&directory, &[&old, &new]);
    let live = check(live, 1, &both, &[("new", 0, 0), ("old", 0, 0)]);
    let answer = renew(&live, &caller).unwrap();
    assert_eq!(answer[2].matches("BEGIN CERTIFICATE").count(), 2);
    assert_eq!(roots(&live), named(&[("new", 1, 1), ("old", 0, 1)]));
    // (c) waits for who is signed under the old root; a start knows of nobody, and trusts the new one alone.
    old.put(&directory, &[&old, &new]);
    reload(&live);
    renew(&live, &proxy("b")).unwrap();
    new.put(&directory, &[&new]);
    let left = [("new", 1, 2), ("old", 1, 2)];
    let live = check(live, 1, &left, &[("new", 0, 0)]);
    renew(&live, &caller).unwrap();
    assert_eq!(roots(&live), named(&[("new", 1, 1)]));
}
