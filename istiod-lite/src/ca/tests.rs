// SPDX-License-Identifier: Apache-2.0

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use identity::WorkloadCertificate;
use proptest::prelude::*;
use rcgen::{
    BasicConstraints, CustomExtension, DnType, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384,
    PKCS_ECDSA_P521_SHA512, PKCS_ED25519, PKCS_RSA_SHA256,
};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tempfile::TempDir;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;

use super::*;

fn now() -> SystemTime {
    // Whole seconds, as in certificates.
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}

fn identity() -> SpiffeId {
    "spiffe://cluster.local/ns/default/sa/web".parse().unwrap()
}

fn own(state: &TempDir) -> Authority {
    Authority::own(
        state.path(),
        &TrustDomain::default(),
        Lifetimes::default(),
        now(),
    )
    .unwrap()
}

fn request(key: &KeyPair) -> String {
    CertificateParams::default()
        .serialize_request(key)
        .unwrap()
        .pem()
        .unwrap()
}

fn first(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

#[test]
fn the_answer_is_leaf_then_intermediates_then_the_bundle_of_roots() {
    let state = TempDir::new().unwrap();
    let authority = own(&state);
    for algorithm in [
        &PKCS_ECDSA_P256_SHA256,
        &PKCS_ECDSA_P384_SHA384,
        &PKCS_RSA_SHA256,
    ] {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let answer = authority
            .sign(&request(&key), &identity(), 0, now())
            .unwrap();
        assert_eq!(answer.len(), 3);
        assert_eq!(answer[2], authority.root_bundle_pem());
        assert_eq!(
            answer[1],
            fs::read_to_string(state.path().join("ca/ca-cert.pem"))
                .unwrap()
                .replace("\r\n", "\n")
        );
        // As the clients of this CA read it: key, chain, roots and identity fit together.
        WorkloadCertificate::from_pem(Some(&identity()), &answer, &key.serialize_pem()).unwrap();
    }
}

#[test]
fn only_the_key_of_a_request_is_taken_and_all_else_comes_from_us() {
    let state = TempDir::new().unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["evil.example".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, "evil");
    params.subject_alt_names.push(SanType::URI(
        "spiffe://cluster.local/ns/kube-system/sa/admin"
            .try_into()
            .unwrap(),
    ));
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::DataEncipherment,
    ];
    params
        .custom_extensions
        .push(CustomExtension::from_oid_content(&[1, 2, 3, 4], vec![5, 0]));
    let csr = params.serialize_request(&key).unwrap().pem().unwrap();

    let answer = own(&state).sign(&csr, &identity(), 3600, now()).unwrap();
    let der = first(&answer[0]);
    let (_, leaf) = X509Certificate::from_der(&der).unwrap();

    assert_eq!(leaf.public_key().raw, key.subject_public_key_info());
    assert_eq!(leaf.subject().iter().count(), 0);
    assert_eq!(leaf.validity().not_before.timestamp(), 1_800_000_000 - 120);
    assert_eq!(leaf.validity().not_after.timestamp(), 1_800_000_000 + 3600);
    assert!(
        leaf.raw_serial().len() >= 14,
        "128 random bits: {:x?}",
        leaf.raw_serial()
    );
    let (mut sans, mut constraints, mut usages, mut extended) = (0, 0, 0, 0);
    for extension in leaf.extensions() {
        match extension.parsed_extension() {
            ParsedExtension::SubjectAlternativeName(san) => {
                assert!(extension.critical, "it stands in for the subject");
                assert_eq!(san.general_names, [GeneralName::URI(identity().as_str())]);
                sans += 1;
            }
            ParsedExtension::BasicConstraints(found) => {
                assert!(!found.ca);
                constraints += 1;
            }
            ParsedExtension::KeyUsage(usage) => {
                assert_eq!(
                    usage.flags, 0b101,
                    "digital signature and key encipherment: {usage}"
                );
                usages += 1;
            }
            ParsedExtension::ExtendedKeyUsage(usage) => {
                assert!(
                    usage.server_auth && usage.client_auth && !usage.any && usage.other.is_empty()
                );
                extended += 1;
            }
            ParsedExtension::AuthorityKeyIdentifier(_)
            | ParsedExtension::SubjectKeyIdentifier(_) => {}
            other => panic!("unexpected extension {} {other:?}", extension.oid),
        }
    }
    assert_eq!((sans, constraints, usages, extended), (1, 1, 1, 1));
}

#[test]
fn serials_differ() {
    let state = TempDir::new().unwrap();
    let authority = own(&state);
    let csr = request(&KeyPair::generate().unwrap());
    let serial = || {
        let der = first(&authority.sign(&csr, &identity(), 0, now()).unwrap()[0]);
        X509Certificate::from_der(&der)
            .unwrap()
            .1
            .raw_serial()
            .to_vec()
    };
    assert_ne!(serial(), serial());
}

#[test]
fn lifetimes_have_a_default_a_maximum_and_the_signers_end() {
    let state = TempDir::new().unwrap();
    let authority = own(&state);
    let csr = request(&KeyPair::generate().unwrap());
    let lifetime = |asked: i64, now: SystemTime| {
        let der = first(&authority.sign(&csr, &identity(), asked, now).unwrap()[0]);
        let end = X509Certificate::from_der(&der)
            .unwrap()
            .1
            .validity()
            .not_after
            .timestamp();
        end - i64::try_from(
            now.duration_since(SystemTime::UNIX_EPOCH)
                .unwrap()
                .as_secs(),
        )
        .unwrap()
    };
    let day = 24 * 60 * 60;
    assert_eq!(lifetime(0, now()), day);
    assert_eq!(lifetime(-5, now()), day);
    assert_eq!(lifetime(1, now()), 1);
    assert_eq!(lifetime(90 * day, now()), 90 * day);
    let error = authority
        .sign(&csr, &identity(), 90 * day + 1, now())
        .unwrap_err();
    assert_eq!(
        error,
        SignError::TooLong {
            asked: 90 * day + 1,
            max: 90 * 24 * 60 * 60
        }
    );
    assert_eq!(error.code(), Code::InvalidArgument);

    let end = authority.not_after();
    assert_eq!(
        lifetime(0, end - Duration::from_secs(60)),
        60,
        "no certificate outlives its signer"
    );
    let error = authority.sign(&csr, &identity(), 0, end).unwrap_err();
    assert!(matches!(error, SignError::SignerExpired(_)), "{error}");
    assert_eq!(error.code(), Code::Internal);
}

#[test]
fn bad_requests_are_refused_with_a_reason() {
    let state = TempDir::new().unwrap();
    let authority = own(&state);
    let check = |csr: &str, expected: &str| {
        let error = authority.sign(csr, &identity(), 0, now()).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(error.code(), Code::InvalidArgument);
    };
    check("", "not a PEM");
    check(
        "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n",
        "not a PKCS #10",
    );
    check(authority.root_bundle_pem(), "not a PEM");
    check(&"x".repeat(100_000), "larger than");
    for algorithm in [&PKCS_ED25519, &PKCS_ECDSA_P521_SHA512] {
        check(
            &request(&KeyPair::generate_for(algorithm).unwrap()),
            "accepted are ECDSA P-256",
        );
    }
    // Somebody else's key under one's own signature.
    let der = pem::parse(request(&KeyPair::generate().unwrap()))
        .unwrap()
        .into_contents();
    let mut forged = der.clone();
    let last = forged.len() - 1;
    forged[last] ^= 1;
    check(
        &pem::encode(&pem::Pem::new("CERTIFICATE REQUEST", forged)),
        "signature does not match",
    );
    let mut longer = der;
    longer.push(0);
    check(
        &pem::encode(&pem::Pem::new("CERTIFICATE REQUEST", longer)),
        "bytes follow",
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_damaged_request_never_gives_another_key_and_never_panics(place in any::<prop::sample::Index>(), flip in 1_u8..) {
        let key = KeyPair::generate().unwrap();
        let mut der = pem::parse(request(&key)).unwrap().into_contents();
        let place = place.index(der.len());
        der[place] ^= flip;
        // A few bits, such as the count of unused ones, are covered by no signature and say nothing.
        if let Ok(found) = csr::public_key(&pem::encode(&pem::Pem::new("CERTIFICATE REQUEST", der))) {
            prop_assert_eq!(found.der_bytes(), key.der_bytes());
        }
    }

    #[test]
    fn arbitrary_text_is_no_request(text in any::<String>()) {
        prop_assert!(csr::public_key(&text).is_err());
    }
}

#[test]
fn our_own_root_is_made_once_and_its_keys_are_ours_alone() {
    let state = TempDir::new().unwrap();
    let roots = own(&state).root_bundle_pem().to_owned();
    assert_eq!(own(&state).root_bundle_pem(), roots);
    let mode = |name: &str| {
        fs::metadata(state.path().join(name))
            .unwrap()
            .permissions()
            .mode()
            & 0o777
    };
    assert_eq!(mode("ca"), 0o700);
    assert_eq!(mode("ca/root-key.pem"), 0o600);
    assert_eq!(mode("ca/ca-key.pem"), 0o600);
    let names: Vec<_> = fs::read_dir(state.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["ca"], "nothing is left over");
    // A root that is damaged is never replaced by another.
    fs::remove_file(state.path().join("ca/ca-key.pem")).unwrap();
    let error = Authority::own(
        state.path(),
        &TrustDomain::default(),
        Lifetimes::default(),
        now(),
    )
    .unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("is incomplete: ca-key.pem is missing"),
        "{error}"
    );
}

#[test]
fn an_authority_that_ran_out_says_so_at_start() {
    let state = TempDir::new().unwrap();
    let end = own(&state).not_after();
    let start = |now| {
        Authority::own(
            state.path(),
            &TrustDomain::default(),
            Lifetimes::default(),
            now,
        )
    };
    let error = start(end).unwrap_err();
    assert!(matches!(error, CaError::Expired { .. }), "{error}");
    assert!(
        error.to_string().contains("ca-cert.pem expired on "),
        "{error}"
    );
    let error = start(now() - Duration::from_secs(3600)).unwrap_err();
    assert!(matches!(error, CaError::NotYetValid { .. }), "{error}");
}

/// A root, two intermediates in a row, and their keys.
struct Hierarchy {
    root: rcgen::Certificate,
    upper: rcgen::Certificate,
    lower: rcgen::Certificate,
    lower_key: KeyPair,
}

fn ca_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.not_before = (now() - DAY).into();
    params.not_after = (now() + 365 * DAY).into();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

fn hierarchy() -> Hierarchy {
    let (root_key, upper_key, lower_key) = (
        KeyPair::generate().unwrap(),
        KeyPair::generate().unwrap(),
        KeyPair::generate_for(&PKCS_RSA_SHA256).unwrap(),
    );
    let (root, upper) = (ca_params("root"), ca_params("upper"));
    let root_issuer = Issuer::from_params(&root, &root_key);
    let upper_issuer = Issuer::from_params(&upper, &upper_key);
    Hierarchy {
        root: root.self_signed(&root_key).unwrap(),
        upper: upper.signed_by(&upper_key, &root_issuer).unwrap(),
        lower: ca_params("lower")
            .signed_by(&lower_key, &upper_issuer)
            .unwrap(),
        lower_key,
    }
}

fn plugged_in(files: &[(&str, String)]) -> Result<Authority, CaError> {
    let directory = TempDir::new().unwrap();
    for (name, text) in files {
        fs::write(directory.path().join(name), text).unwrap();
    }
    Authority::plugged_in(directory.path(), Lifetimes::default(), now())
}

#[test]
fn a_plugged_in_authority_may_come_in_either_set_of_names() {
    let Hierarchy {
        root,
        upper,
        lower,
        lower_key,
    } = hierarchy();
    let key = KeyPair::generate().unwrap();
    let istio = [
        ("ca-cert.pem", lower.pem()),
        ("ca-key.pem", lower_key.serialize_pem()),
        ("root-cert.pem", root.pem()),
        // In any order, and with the root among them.
        ("cert-chain.pem", root.pem() + &upper.pem() + &lower.pem()),
    ];
    let cert_manager = [
        ("tls.crt", lower.pem() + &upper.pem()),
        ("tls.key", lower_key.serialize_pem()),
        ("ca.crt", root.pem()),
    ];
    for files in [&istio[..], &cert_manager[..]] {
        let answer = plugged_in(files)
            .unwrap()
            .sign(&request(&key), &identity(), 0, now())
            .unwrap();
        let pem = |pem: String| pem.replace("\r\n", "\n");
        assert_eq!(
            answer[1..],
            [pem(lower.pem()), pem(upper.pem()), pem(root.pem())]
        );
        WorkloadCertificate::from_pem(Some(&identity()), &answer, &key.serialize_pem()).unwrap();
    }
}

#[test]
fn a_root_may_sign_by_itself_and_several_roots_are_all_handed_out() {
    let key = KeyPair::generate().unwrap();
    let root = ca_params("root").self_signed(&key).unwrap();
    let other = hierarchy().root;
    let authority = plugged_in(&[
        ("ca-cert.pem", root.pem()),
        ("ca-key.pem", key.serialize_pem()),
        ("root-cert.pem", other.pem() + &root.pem()),
        ("cert-chain.pem", root.pem()),
    ])
    .unwrap();
    let workload = KeyPair::generate().unwrap();
    let answer = authority
        .sign(&request(&workload), &identity(), 0, now())
        .unwrap();
    assert_eq!(answer.len(), 2);
    assert_eq!(answer[1].matches("BEGIN CERTIFICATE").count(), 2);
    WorkloadCertificate::from_pem(Some(&identity()), &answer, &workload.serialize_pem()).unwrap();
}

#[test]
fn a_plugged_in_authority_that_is_not_sound_is_refused_by_name() {
    let Hierarchy {
        root,
        upper,
        lower,
        lower_key,
    } = hierarchy();
    let good = || {
        vec![
            ("ca-cert.pem", lower.pem()),
            ("ca-key.pem", lower_key.serialize_pem()),
            ("root-cert.pem", root.pem()),
            ("cert-chain.pem", lower.pem() + &upper.pem()),
        ]
    };
    plugged_in(&good()).unwrap();
    for missing in [
        "ca-cert.pem",
        "ca-key.pem",
        "root-cert.pem",
        "cert-chain.pem",
    ] {
        let files: Vec<_> = good()
            .into_iter()
            .filter(|(name, _)| *name != missing)
            .collect();
        let error = plugged_in(&files).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with(&format!("is incomplete: {missing} is missing")),
            "{error}"
        );
    }
    let error = plugged_in(&[]).unwrap_err();
    assert!(matches!(error, CaError::Incomplete { .. }), "{error}");
    let error = plugged_in(&[("tls.crt", lower.pem()), ("ca.crt", root.pem())]).unwrap_err();
    assert!(error.to_string().ends_with("tls.key is missing"), "{error}");

    let self_signed = |change: &dyn Fn(&mut CertificateParams)| {
        let key = KeyPair::generate().unwrap();
        let mut params = ca_params("other");
        change(&mut params);
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    };
    let with = |name: &'static str, text: String| {
        let mut files = good();
        files.retain(|(present, _)| *present != name);
        files.push((name, text));
        plugged_in(&files).unwrap_err().to_string()
    };
    let foreign_key = KeyPair::generate().unwrap().serialize_pem();
    for (error, expected) in [
        (
            with("ca-key.pem", foreign_key),
            "does not belong to the certificate",
        ),
        (
            with("ca-key.pem", "nonsense".to_owned()),
            "not a private key in PEM",
        ),
        (
            with("ca-cert.pem", "nonsense".to_owned()),
            "holds no certificate",
        ),
        (
            with("cert-chain.pem", lower.pem()),
            "is signed by \"CN=upper\", which is neither a root in",
        ),
        (
            with("root-cert.pem", self_signed(&|_| {}).0),
            "which is neither a root in",
        ),
    ] {
        assert!(error.contains(expected), "{error}\n{expected}");
    }
    type Change = fn(&mut CertificateParams);
    let changes: [(Change, &str); 4] = [
        (
            |params| params.is_ca = IsCa::ExplicitNoCa,
            "is not a CA certificate",
        ),
        (
            |params| params.key_usages = vec![KeyUsagePurpose::DigitalSignature],
            "may not sign certificates",
        ),
        (
            |params| params.not_after = (now() - Duration::from_secs(1)).into(),
            "expired on",
        ),
        (
            |params| params.not_before = (now() + DAY).into(),
            "is not valid before",
        ),
    ];
    for (change, expected) in changes {
        let (certificate, key) = self_signed(&change);
        let error = plugged_in(&[
            ("ca-cert.pem", certificate.clone()),
            ("ca-key.pem", key),
            ("root-cert.pem", certificate.clone()),
            ("cert-chain.pem", certificate),
        ])
        .unwrap_err();
        assert!(error.to_string().contains(expected), "{error}\n{expected}");
    }
}

#[test]
fn names_of_the_server_are_host_names_or_addresses() {
    for (text, expected) in [
        (
            "istiod.istio-system.svc",
            Some(ServingName::Dns("istiod.istio-system.svc".to_owned())),
        ),
        (
            "10.0.0.1",
            Some(ServingName::Ip("10.0.0.1".parse().unwrap())),
        ),
        ("fd77::1", Some(ServingName::Ip("fd77::1".parse().unwrap()))),
        ("", None),
        ("a..b", None),
        ("-a", None),
        ("a b", None),
        ("*.example", None),
    ] {
        assert_eq!(text.parse::<ServingName>().ok(), expected, "{text}");
    }
}

#[test]
fn our_own_serving_certificate_is_trusted_under_each_of_its_names() {
    let state = TempDir::new().unwrap();
    // Handshakes look at the real clock.
    let now = SystemTime::now();
    let authority = Authority::own(
        state.path(),
        &TrustDomain::default(),
        Lifetimes::default(),
        now,
    )
    .unwrap();
    let names: Vec<ServingName> = ["istiod.istio-system.svc", "10.0.0.1"]
        .iter()
        .map(|name| name.parse().unwrap())
        .collect();
    let serving = authority.issue_serving(&names, now).unwrap();
    assert!(serving.renew_at > now && serving.renew_at < now + SERVING_TTL);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let server = Arc::new(
        ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(serving.chain, serving.key)
            .unwrap(),
    );
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(authority.root_bundle_pem().as_bytes()) {
        roots.add(root.unwrap()).unwrap();
    }
    let client = Arc::new(
        ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth(),
    );
    for (name, trusted) in [
        ("istiod.istio-system.svc", true),
        ("10.0.0.1", true),
        ("other.svc", false),
    ] {
        let name = ServerName::try_from(name).unwrap();
        let mut client = ClientConnection::new(Arc::clone(&client), name.clone()).unwrap();
        let mut server = ServerConnection::new(Arc::clone(&server)).unwrap();
        let shaken = shake_hands(&mut client, &mut server);
        assert_eq!(shaken.is_ok(), trusted, "{name:?}: {shaken:?}");
    }
    assert!(authority.issue_serving(&[], now).is_err());
}

fn shake_hands(
    client: &mut ClientConnection,
    server: &mut ServerConnection,
) -> Result<(), rustls::Error> {
    fn pass(from: &mut dyn FnMut(&mut dyn Write), to: &mut dyn FnMut(&mut dyn Read)) {
        let mut wire = Vec::new();
        from(&mut wire);
        to(&mut wire.as_slice());
    }
    for _ in 0..10 {
        pass(
            &mut |wire| {
                while client.wants_write() {
                    client.write_tls(&mut &mut *wire).map(drop).unwrap()
                }
            },
            &mut |wire| while server.read_tls(&mut &mut *wire).unwrap() > 0 {},
        );
        server.process_new_packets()?;
        pass(
            &mut |wire| {
                while server.wants_write() {
                    server.write_tls(&mut &mut *wire).map(drop).unwrap()
                }
            },
            &mut |wire| while client.read_tls(&mut &mut *wire).unwrap() > 0 {},
        );
        client.process_new_packets()?;
        if !client.is_handshaking() && !server.is_handshaking() {
            return Ok(());
        }
    }
    panic!("the handshake does not end");
}
