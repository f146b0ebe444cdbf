// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use rustls::pki_types::UnixTime;
use spiffe::SpiffeId;

use super::*;
use crate::path::{self, Presented, Trust};
use crate::testing::{TestAuthority, serial};
use crate::{PeerRole, WorkloadCertificate, tls};

fn web() -> SpiffeId {
    "spiffe://cluster.local/ns/shop/sa/web".parse().unwrap()
}

fn list(texts: &[&str]) -> RevocationList {
    RevocationList::parse(texts.concat().as_bytes()).unwrap()
}

fn revoked(certificate: &WorkloadCertificate, list: &RevocationList) -> Option<bool> {
    certificate
        .revoked_by(list)
        .map(|revoked| revoked.authority)
}

#[test]
fn a_file_is_lists_in_pem_or_one_in_der_or_nothing() {
    let (one, other) = (TestAuthority::new("one"), TestAuthority::new("other"));
    let (first, second) = (one.crl(&[vec![1], vec![2]]), other.crl(&[vec![3]]));
    let check = |bytes: &[u8], issuers: &[&str], certificates: usize| {
        let list = RevocationList::parse(bytes).unwrap();
        assert_eq!(list.issuers().collect::<Vec<_>>(), issuers);
        assert_eq!(list.certificates(), certificates);
    };
    check(b"", &[], 0);
    check(b" \n", &[], 0);
    check(one.root_pem().as_bytes(), &[], 0);
    check(first.as_bytes(), &["CN=one"], 2);
    let mixed = [&*first, one.root_pem(), &*second].concat();
    check(mixed.as_bytes(), &["CN=one", "CN=other"], 3);
    check(
        &pem::parse(&second).unwrap().into_contents(),
        &["CN=other"],
        1,
    );
}

#[test]
fn a_file_that_is_cut_off_or_broken_is_refused_whole() {
    let authority = TestAuthority::new("one");
    let good = authority.crl(&[vec![1]]);
    let check = |bytes: &[u8], expected: &str| {
        let error = RevocationList::parse(bytes).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let cut = [&*good, &good[..good.len() / 2]].concat();
    check(cut.as_bytes(), "cut off before the end of its X509 CRL");
    let der = pem::parse(&good).unwrap().into_contents();
    check(&der[..der.len() - 1], "list 1 cannot be read");
    check(b"no list", "list 1 cannot be read");
    let certificate = authority.root_pem().replace("CERTIFICATE", "X509 CRL");
    check(
        [good, certificate].concat().as_bytes(),
        "list 2 cannot be read",
    );
}

#[test]
fn a_listed_leaf_and_all_beneath_a_listed_authority_are_revoked() {
    let root = TestAuthority::new("root");
    let intermediate = root.intermediate("intermediate");
    let (one, two) = (intermediate.issue(&web()), intermediate.issue(&web()));
    let leaf = list(&[&intermediate.crl(&[serial(&one, 0)])]);
    assert_eq!(
        (revoked(&one, &leaf), revoked(&two, &leaf)),
        (Some(false), None)
    );
    let above = list(&[&root.crl(&[serial(&one, 1)])]);
    assert_eq!(
        (revoked(&one, &above), revoked(&two, &above)),
        (Some(true), Some(true))
    );
    // A list past its next update counts; one of nobody here, or with nothing on it, says nothing.
    let nothing = list(&[
        &root.crl(&[]),
        &TestAuthority::new("x").crl(&[serial(&one, 0)]),
    ]);
    assert_eq!(revoked(&one, &nothing), None);
    let reason = one.revoked_by(&leaf).unwrap().to_string();
    assert!(
        reason.starts_with("certificate with serial ")
            && reason.ends_with(" was revoked by \"CN=intermediate\""),
        "{reason}"
    );
}

#[test]
fn of_two_authorities_with_one_name_each_speaks_for_its_own() {
    let (old, new) = (TestAuthority::new("root"), TestAuthority::new("root"));
    let (by_old, by_new) = (old.issue(&web()), new.issue(&web()));
    let both = [serial(&by_old, 0), serial(&by_new, 0)];
    let list = list(&[&old.crl(&both)]);
    assert_eq!(revoked(&by_old, &list), Some(false));
    assert_eq!(
        revoked(&by_new, &list),
        None,
        "the old one's word is not the new one's"
    );
    assert_eq!(
        revoked(&by_old, &list),
        Some(false),
        "and it is remembered which is which"
    );
}

#[test]
fn another_way_to_a_root_saves_a_certificate() {
    let root = TestAuthority::new("root");
    let issuer = root.intermediate("issuer");
    let leaf = issuer.issue(&web());
    let chain = &leaf.certified_key().cert;
    let list = list(&[&root.crl(&[serial(&leaf, 1)])]);
    let verify = |roots: &Arc<rustls::RootCertStore>| {
        let provider = tls::provider();
        let trust = Trust {
            roots,
            role: PeerRole::Client,
            algorithms: provider.signature_verification_algorithms.all,
            revoked: Some(&list),
        };
        path::verify(Presented::of(chain).unwrap(), &trust, UnixTime::now())
    };
    assert_eq!(
        verify(leaf.roots()),
        Err(rustls::Error::InvalidCertificate(
            rustls::CertificateError::Revoked
        ))
    );
    // Who trusts the issuer itself does not ask the root.
    let mut roots = rustls::RootCertStore::clone(leaf.roots());
    roots.add(chain[1].clone()).unwrap();
    assert_eq!(verify(&Arc::new(roots)), Ok(()));
}

#[test]
fn expiry_is_judged_by_the_time_handed_in() {
    let authority = TestAuthority::new("root");
    let leaf = authority.issue(&web());
    let provider = tls::provider();
    let trust = Trust {
        roots: leaf.roots(),
        role: PeerRole::Server,
        algorithms: provider.signature_verification_algorithms.all,
        revoked: None,
    };
    let at = |time: SystemTime| {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        path::verify(
            Presented::of(&leaf.certified_key().cert).unwrap(),
            &trust,
            UnixTime::since_unix_epoch(since),
        )
    };
    assert_eq!(at(SystemTime::now()), Ok(()));
    let late = at(leaf.not_after() + Duration::from_secs(1))
        .unwrap_err()
        .to_string();
    assert!(late.contains("expired"), "{late}");
    let early = at(leaf.not_before() - Duration::from_secs(1))
        .unwrap_err()
        .to_string();
    assert!(early.contains("not valid yet"), "{early}");
}

proptest! {
    #[test]
    fn no_file_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = RevocationList::parse(&bytes);
    }

    #[test]
    fn a_changed_list_is_refused_or_revokes_nothing_new(at in 0usize..200, bit in 0u8..8) {
        let authority = TestAuthority::new("root");
        let certificate = authority.issue(&web());
        let mut der = pem::parse(authority.crl(&[vec![7; 16]])).unwrap().into_contents();
        let at = at % der.len();
        der[at] ^= 1 << bit;
        if let Ok(list) = RevocationList::parse(&der) {
            prop_assert_eq!(revoked(&certificate, &list), None);
        }
    }
}
