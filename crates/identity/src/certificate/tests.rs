// SPDX-License-Identifier: Apache-2.0
use proptest::prelude::*;
use rcgen::{KeyPair, PublicKeyData};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::ParsedExtension;

use super::*;
use crate::testing::{TestAuthority, Validity, uri};

fn id(text: &str) -> SpiffeId {
    text.parse().unwrap()
}

fn web() -> SpiffeId {
    id("spiffe://cluster.local/ns/shop/sa/web")
}

/// An authority's answer for `web`, with the key that belongs to it.
fn answer() -> (Vec<String>, String) {
    let authority = TestAuthority::new("root");
    let key = KeyPair::generate().unwrap();
    let leaf = authority.sign(&key, vec![uri(&web())], hour());
    (vec![leaf, authority.bundle()], key.serialize_pem())
}

fn hour() -> Validity {
    Validity::lasting(Duration::from_secs(3600))
}

#[track_caller]
fn refusal(chain: &[String], key: &str) -> String {
    WorkloadCertificate::from_pem(Some(&web()), chain, key)
        .expect_err("must be refused")
        .to_string()
}

#[test]
fn request_has_one_critical_uri_san_and_nothing_else() {
    let key = generate_key().unwrap();
    let pem = pem::parse(csr(&web(), &key).unwrap()).unwrap();
    assert_eq!(pem.tag(), "CERTIFICATE REQUEST");
    let (rest, request) = X509CertificationRequest::from_der(pem.contents()).unwrap();
    assert!(rest.is_empty());
    request.verify_signature().unwrap();
    let info = &request.certification_request_info;
    assert_eq!(info.subject.iter().count(), 0, "subject is empty");
    assert_eq!(
        request.signature_algorithm.algorithm.to_id_string(),
        "1.2.840.10045.4.3.2",
        "ECDSA with SHA-256"
    );
    assert_eq!(key.der_bytes().len(), 65, "a P-256 point");
    let attributes: Vec<_> = info.iter_attributes().collect();
    assert_eq!(attributes.len(), 1, "one attribute: the extensions");
    let extensions: Vec<_> = request.requested_extensions().unwrap().collect();
    let [ParsedExtension::SubjectAlternativeName(san)] = extensions.as_slice() else {
        panic!("exactly one extension, the SAN: {extensions:?}");
    };
    assert_eq!(san.general_names, [GeneralName::URI(web().as_str())]);
    // OID 2.5.29.17, then BOOLEAN TRUE: the SAN is critical.
    let critical = [0x06, 0x03, 0x55, 0x1d, 0x11, 0x01, 0x01, 0xff];
    assert!(
        pem.contents()
            .windows(critical.len())
            .any(|w| w == critical)
    );
}

#[test]
fn every_request_has_a_fresh_key() {
    let (first, second) = (generate_key().unwrap(), generate_key().unwrap());
    assert_ne!(first.der_bytes(), second.der_bytes());
}

#[test]
fn leaf_intermediates_and_roots_are_told_apart() {
    let (mut chain, key) = answer();
    let intermediate = TestAuthority::new("intermediate").root_pem().to_owned();
    let second_root = TestAuthority::new("second root").root_pem().to_owned();
    chain.insert(1, intermediate.clone());
    chain[2].push_str(&second_root);
    let certificate = WorkloadCertificate::from_pem(None, &chain, &key).unwrap();
    assert_eq!(certificate.identity(), &web());
    assert_eq!(
        certificate.certified_key().cert.len(),
        2,
        "leaf and intermediate"
    );
    assert_eq!(certificate.roots().len(), 2);
    assert_eq!(certificate.chain()[1].pem, intermediate);
    assert_eq!(certificate.root_chain()[1].pem, second_root);
    assert!(certificate.roots_pem().ends_with(&second_root));
    assert!(
        certificate
            .chain_pem()
            .starts_with("-----BEGIN CERTIFICATE-----\n")
    );
}

#[test]
fn only_the_first_block_of_a_leaf_or_intermediate_counts() {
    let (mut chain, key) = answer();
    let extra = TestAuthority::new("extra").root_pem().to_owned();
    chain[0].push_str(&extra);
    let certificate = WorkloadCertificate::from_pem(Some(&web()), &chain, &key).unwrap();
    assert_eq!(certificate.certified_key().cert.len(), 1);
}

#[test]
fn another_identity_is_refused_by_both_names() {
    let (chain, key) = answer();
    let expected = id("spiffe://cluster.local/ns/shop/sa/cart");
    let error = WorkloadCertificate::from_pem(Some(&expected), &chain, &key).unwrap_err();
    assert_eq!(
        error,
        CertificateError::WrongIdentity {
            expected,
            found: web(),
        }
    );
    assert!(error.to_string().contains("sa/web") && error.to_string().contains("sa/cart"));
}

#[test]
fn a_key_of_another_certificate_is_refused() {
    let (chain, _) = answer();
    let other = KeyPair::generate().unwrap().serialize_pem();
    assert!(refusal(&chain, &other).contains("does not match the certificate of"));
}

#[test]
fn broken_answers_name_the_element() {
    let (good, key) = answer();
    let (leaf, roots) = (good[0].as_str(), good[1].as_str());
    let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let mixed = format!("{roots}{key}");
    for (chain, expected) in [
        (vec![], "certificate chain is empty"),
        (vec![leaf], "bundle of roots is missing"),
        (vec!["", roots], "element 0 (leaf): not PEM"),
        (
            vec![garbage, roots],
            "element 0 (leaf): not an X.509 certificate",
        ),
        (
            vec![&key, roots],
            "element 0 (leaf): holds a PRIVATE KEY block",
        ),
        (
            vec![leaf, garbage, roots],
            "element 1 (intermediate): not an X.509",
        ),
        (
            vec![leaf, "nothing"],
            "element 1 (roots): holds no usable root",
        ),
        (
            vec![leaf, garbage],
            "element 1 (roots): not an X.509 certificate",
        ),
        (
            vec![leaf, &mixed],
            "element 1 (roots): holds a PRIVATE KEY block",
        ),
    ] {
        let chain: Vec<_> = chain.into_iter().map(String::from).collect();
        let reason = refusal(&chain, &key);
        assert!(reason.contains(expected), "{reason:?} lacks {expected:?}");
    }
}

#[test]
fn a_leaf_that_does_not_name_exactly_one_workload_is_refused() {
    let authority = TestAuthority::new("root");
    let key = KeyPair::generate().unwrap();
    let dns = rcgen::SanType::DnsName("web.shop".try_into().unwrap());
    let other = uri(&id("spiffe://cluster.local/ns/shop/sa/cart"));
    let foreign = rcgen::SanType::URI("spiffe://elsewhere/web".try_into().unwrap());
    for names in [
        vec![dns.clone()],
        vec![uri(&web()), other.clone()],
        vec![other, uri(&web())],
        vec![uri(&web()), foreign],
        vec![uri(&web()), uri(&web())],
    ] {
        let chain = [
            authority.sign(&key, names.clone(), hour()),
            authority.bundle(),
        ];
        assert_eq!(
            refusal(&chain, &key.serialize_pem()),
            "certificate does not carry exactly one SPIFFE id",
            "{names:?}"
        );
    }
    let beside = [
        authority.sign(&key, vec![dns, uri(&web())], hour()),
        authority.bundle(),
    ];
    WorkloadCertificate::from_pem(Some(&web()), &beside, &key.serialize_pem()).unwrap();
}

#[test]
fn refresh_is_due_around_half_of_the_validity() {
    let authority = TestAuthority::new("root");
    let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1_900_000_000);
    let validity = Validity {
        not_before: start,
        not_after: start + Duration::from_secs(2000),
    };
    let certificate = authority.issue_valid(&web(), validity);
    for (received, jitter, expected) in [
        (0, 0.0, 1000),
        (0, 1.0, 1100),
        (0, -1.0, 900),
        (0, 7.0, 1100),
        // Dated back by more than half of its life.
        (1900, 0.0, 50),
        // Received before its time, and after it.
        (-500, 0.0, 1000),
        (2100, 0.0, 0),
    ] {
        let received = match u64::try_from(received) {
            Ok(after) => start + Duration::from_secs(after),
            Err(_) => start - Duration::from_secs(500),
        };
        let after = certificate.refresh_after(received, jitter);
        assert_eq!(
            after.as_secs(),
            expected,
            "received {received:?}, jitter {jitter}"
        );
    }
}

#[test]
fn the_key_never_shows() {
    let (chain, key) = answer();
    let certificate = WorkloadCertificate::from_pem(None, &chain, &key).unwrap();
    let secret = pem::parse(&key).unwrap().into_contents();
    for text in [
        format!("{certificate:?}"),
        certificate.chain_pem(),
        certificate.roots_pem(),
    ] {
        assert!(!text.contains("PRIVATE"), "{text}");
        assert!(!text.contains(&format!("{secret:?}")));
    }
}

proptest! {
    /// Whatever a broken or hostile authority answers is an error, not a panic.
    #[test]
    fn arbitrary_answers_never_panic(
        chain in prop::collection::vec("\\PC{0,80}", 0..4),
        der in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let (_, key) = answer();
        prop_assert!(WorkloadCertificate::from_pem(None, &chain, &key).is_err());
        let block = pem::encode(&pem::Pem::new("CERTIFICATE", der));
        prop_assert!(WorkloadCertificate::from_pem(None, &[block.clone(), block], &key).is_err());
    }
}
