// SPDX-License-Identifier: Apache-2.0
//! A root of our own and an intermediate, made once and kept on disk.
//!
//! ```text
//! <state>/ca/          0700, appears complete or not at all
//!   root-cert.pem      ten years
//!   root-key.pem       0600; signs intermediates only
//!   ca-cert.pem        the intermediate that signs workloads
//!   ca-key.pem         0600
//!   cert-chain.pem     ca-cert.pem and root-cert.pem
//! ```
//!
//! What is there is never made anew: all that trusts the old root would stop to work.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384,
};
use spiffe::TrustDomain;
use zeroize::Zeroizing;

use super::{CLOCK_SKEW, CaError, SecretKey, serial};

const LIFETIME: Duration = Duration::from_secs(3650 * 24 * 60 * 60);

/// Gives back the directory with the CA's files.
///
/// # Errors
/// It can't be made.
pub fn open_or_create(
    state: &Path,
    trust_domain: &TrustDomain,
    now: SystemTime,
) -> Result<PathBuf, CaError> {
    let directory = state.join("ca");
    if directory.exists() {
        return Ok(directory);
    }
    let made = make(trust_domain, now).map_err(CaError::Create)?;
    let temporary = state.join(format!(".ca.{}", std::process::id()));
    fs::create_dir_all(state).map_err(at(state))?;
    // Left over from a start that was cut short under the same process id.
    if temporary.exists() {
        fs::remove_dir_all(&temporary).map_err(at(&temporary))?;
    }
    if let Err(error) = fill(&temporary, &made) {
        // Half of it, keys among them, is of use to nobody.
        let _told_by_the_error = fs::remove_dir_all(&temporary);
        return Err(error);
    }
    match fs::rename(&temporary, &directory) {
        Ok(()) => sync(state).map_err(at(state))?,
        // Another process was faster: its root is the root.
        Err(_) if directory.exists() => fs::remove_dir_all(&temporary).map_err(at(&temporary))?,
        Err(error) => {
            return Err(at(&directory)(error));
        }
    }
    tracing::info!(directory = %directory.display(), %trust_domain, "made a root certificate of our own");
    Ok(directory)
}

/// An error at that path.
fn at(path: &Path) -> impl FnOnce(io::Error) -> CaError {
    let place = path.display().to_string();
    move |error| CaError::Io { place, error }
}

/// Makes the directory, and the files in it.
fn fill(directory: &Path, files: &[NamedFile]) -> Result<(), CaError> {
    fs::DirBuilder::new()
        .mode(0o700)
        .create(directory)
        .map_err(at(directory))?;
    for (name, mode, text) in files {
        let path = directory.join(name);
        write(&path, *mode, text.as_bytes()).map_err(at(&path))?;
    }
    sync(directory).map_err(at(directory))
}

fn write(path: &Path, mode: u32, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

type NamedFile = (&'static str, u32, Zeroizing<String>);

fn make(trust_domain: &TrustDomain, now: SystemTime) -> Result<[NamedFile; 5], rcgen::Error> {
    let root_key = SecretKey(KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384)?);
    let root_params = params(
        trust_domain,
        "Root CA",
        BasicConstraints::Unconstrained,
        now,
    );
    let root = root_params.self_signed(&root_key)?;

    let key = SecretKey(KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?);
    let intermediate: Certificate = params(
        trust_domain,
        "Intermediate CA",
        BasicConstraints::Constrained(0),
        now,
    )
    .signed_by(&key, &Issuer::from_params(&root_params, &root_key))?;

    let secret = |key: &SecretKey| Zeroizing::new(key.0.serialize_pem());
    Ok([
        ("root-key.pem", 0o600, secret(&root_key)),
        ("ca-key.pem", 0o600, secret(&key)),
        ("root-cert.pem", 0o644, root.pem().into()),
        ("ca-cert.pem", 0o644, intermediate.pem().into()),
        (
            "cert-chain.pem",
            0o644,
            (intermediate.pem() + &root.pem()).into(),
        ),
    ])
}

/// A root that signs workloads itself, as Istio's, so that either can go on with it. For where all keys lie together, so
/// that an intermediate would protect nothing.
pub(super) fn self_signed(
    trust_domain: &TrustDomain,
    now: SystemTime,
) -> Result<[(&'static str, Zeroizing<String>); 5], rcgen::Error> {
    let key = SecretKey(KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?);
    let constraints = BasicConstraints::Unconstrained;
    let root = params(trust_domain, "Root CA", constraints, now).self_signed(&key)?;
    let none = || Zeroizing::new(String::new());
    Ok([
        ("ca-cert.pem", root.pem().into()),
        ("ca-key.pem", Zeroizing::new(key.0.serialize_pem())),
        ("cert-chain.pem", none()),
        ("key.pem", none()),
        ("root-cert.pem", root.pem().into()),
    ])
}

fn params(
    trust_domain: &TrustDomain,
    role: &str,
    constraints: BasicConstraints,
    now: SystemTime,
) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.not_before = (now - CLOCK_SKEW).into();
    params.not_after = (now + LIFETIME).into();
    params.serial_number = Some(serial());
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, trust_domain.as_str());
    params.distinguished_name.push(DnType::CommonName, role);
    params.is_ca = IsCa::Ca(constraints);
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    params.use_authority_key_identifier_extension = true;
    params
}
