// SPDX-License-Identifier: Apache-2.0
//! A directory with a CA's files in, its signing key and the checked way from there to a root out.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rcgen::{KeyPair, PublicKeyData};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use time::OffsetDateTime;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;
use zeroize::Zeroizing;

use super::CaError;
use super::rotation::{Anchor, Root};

/// A way from the signing certificate up to a root.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    /// Where the signing certificate was read.
    pub(super) path: PathBuf,
    pub(super) signer: CertificateDer<'static>,
    pub(super) subject: String,
    /// The signer, its issuer and so on, up to but without the root. Empty when the root itself signs.
    pub(super) intermediates: Vec<CertificateDer<'static>>,
    pub(super) intermediates_pem: Vec<String>,
    /// Where the way ends.
    pub(super) root: Anchor,
    /// All that are to be trusted; that one is among them.
    pub(super) roots: Vec<Root>,
    /// Of the signer, its issuer and so on, the root included.
    pub(super) validity: Vec<Validity>,
}

impl Chain {
    /// When the first of them all expires.
    pub(super) fn not_after(&self) -> OffsetDateTime {
        let ends = self
            .validity
            .iter()
            .map(|certificate| certificate.not_after);
        ends.min().expect("broken invariant: the signer is there")
    }

    /// Whether what is signed now could be verified.
    pub(super) fn check_time(&self, now: SystemTime) -> Result<(), CaError> {
        let now = OffsetDateTime::from(now);
        self.validity.iter().try_for_each(|one| one.check(now))
    }
}

/// When a certificate on the way is valid.
#[derive(Clone, Debug)]
pub(super) struct Validity {
    path: PathBuf,
    subject: String,
    not_before: OffsetDateTime,
    not_after: OffsetDateTime,
}

impl Validity {
    fn check(&self, now: OffsetDateTime) -> Result<(), CaError> {
        let (path, subject) = (self.path.clone(), self.subject.clone());
        if self.not_after <= now {
            return Err(CaError::Expired {
                path,
                subject,
                not_after: self.not_after,
            });
        }
        if self.not_before > now {
            return Err(CaError::NotYetValid {
                path,
                subject,
                not_before: self.not_before,
            });
        }
        Ok(())
    }
}

/// One of the two sets of names that the files may have.
struct Names {
    certificate: &'static str,
    key: &'static str,
    roots: &'static str,
    /// The intermediates, if not in the certificate's file.
    chain: Option<&'static str>,
}

const ISTIO: Names = Names {
    certificate: "ca-cert.pem",
    key: "ca-key.pem",
    roots: "root-cert.pem",
    chain: Some("cert-chain.pem"),
};
const CERT_MANAGER: Names = Names {
    certificate: "tls.crt",
    key: "tls.key",
    roots: "ca.crt",
    chain: None,
};

impl Names {
    fn all(&self) -> impl Iterator<Item = &'static str> {
        [
            Some(self.certificate),
            Some(self.key),
            Some(self.roots),
            self.chain,
        ]
        .into_iter()
        .flatten()
    }
}

/// Certificates with the file they were read from.
struct Certificates {
    path: PathBuf,
    certificates: Vec<CertificateDer<'static>>,
}

/// The files that a CA may consist of, whether they are there or not.
pub(super) fn files(directory: &Path) -> Vec<PathBuf> {
    let names = ISTIO.all().chain(CERT_MANAGER.all());
    names.map(|name| directory.join(name)).collect()
}

/// Reads and checks all but the time.
pub(super) fn load(directory: &Path) -> Result<(Chain, KeyPair), CaError> {
    let present = |name: &str| directory.join(name).exists();
    let names = if CERT_MANAGER.all().any(present) && !ISTIO.all().any(present) {
        &CERT_MANAGER
    } else {
        &ISTIO
    };
    if let Some(missing) = names.all().find(|name| !present(name)) {
        return Err(CaError::Incomplete {
            directory: directory.to_owned(),
            missing,
        });
    }
    let own = read_certificates(&directory.join(names.certificate))?;
    let roots = read_certificates(&directory.join(names.roots))?;
    let above = match names.chain {
        Some(name) => read_certificates(&directory.join(name))?,
        None => Certificates {
            path: own.path.clone(),
            certificates: own.certificates.clone(),
        },
    };
    let key_path = directory.join(names.key);
    let key = read_key(&key_path)?;
    let chain = build(&own, &above, &roots)?;
    let signer = parse(&own.path, &chain.signer)?;
    if signer.public_key().raw != key.subject_public_key_info() {
        return Err(CaError::KeyMismatch {
            key: key_path,
            certificate: own.path,
        });
    }
    Ok((chain, key))
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, CaError> {
    const MAX_BYTES: u64 = 1 << 20;
    let io = |error| CaError::Io {
        path: path.to_owned(),
        error,
    };
    if fs::metadata(path).map_err(io)?.len() > MAX_BYTES {
        return Err(io(io::Error::other("larger than 1 MiB")));
    }
    fs::read(path).map(Zeroizing::new).map_err(io)
}

fn read_certificates(path: &Path) -> Result<Certificates, CaError> {
    let refuse = |reason: String| CaError::File {
        path: path.to_owned(),
        reason,
    };
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&read(path)?)
        .collect::<Result<_, _>>()
        .map_err(|error| refuse(format!("not valid PEM: {error}")))?;
    if certificates.is_empty() {
        return Err(refuse("holds no certificate".to_owned()));
    }
    Ok(Certificates {
        path: path.to_owned(),
        certificates,
    })
}

fn read_key(path: &Path) -> Result<KeyPair, CaError> {
    let refuse = |reason: String| CaError::File {
        path: path.to_owned(),
        reason,
    };
    let key = PrivateKeyDer::from_pem_slice(&read(path)?)
        .map_err(|error| refuse(format!("not a private key in PEM: {error}")))?;
    KeyPair::try_from(&key).map_err(|error| refuse(format!("not a key that can sign: {error}")))
}

fn parse<'c>(
    path: &Path,
    certificate: &'c CertificateDer<'_>,
) -> Result<X509Certificate<'c>, CaError> {
    match X509Certificate::from_der(certificate) {
        Ok(([], certificate)) => Ok(certificate),
        Ok(_) => Err(CaError::File {
            path: path.to_owned(),
            reason: "bytes follow a certificate".to_owned(),
        }),
        Err(error) => Err(CaError::File {
            path: path.to_owned(),
            reason: format!("not a certificate: {error}"),
        }),
    }
}

/// Climbs from the signer to a root, each step proven by a signature.
fn build(own: &Certificates, above: &Certificates, roots: &Certificates) -> Result<Chain, CaError> {
    let signer = own.certificates[0].clone();
    let subject = parse(&own.path, &signer)?.subject().to_string();
    let mut intermediates: Vec<CertificateDer<'static>> = Vec::new();
    let mut validity = Vec::new();
    let mut current = signer.clone();
    let mut path = own.path.clone();
    loop {
        let certificate = parse(&path, &current)?;
        validity.push(check_ca(&path, &certificate)?);
        if roots.certificates.contains(&current) {
            break;
        }
        intermediates.push(current.clone());
        let issuers = || {
            let roots = roots.certificates.iter().map(|root| (root, &roots.path));
            roots.chain(
                above
                    .certificates
                    .iter()
                    .map(|certificate| (certificate, &above.path)),
            )
        };
        // A certificate that was climbed before leads in a circle.
        let next = issuers()
            .filter(|(issuer, _)| !intermediates.contains(issuer))
            .find(|(issuer, path)| {
                parse(path, issuer).is_ok_and(|issuer| {
                    issuer.subject().as_raw() == certificate.issuer().as_raw()
                        && certificate
                            .verify_signature(Some(issuer.public_key()))
                            .is_ok()
                })
            });
        let Some((issuer, issuer_path)) = next else {
            return Err(CaError::File {
                reason: format!(
                    "{:?} is signed by {:?}, which is neither a root in {} nor an intermediate in {}",
                    certificate.subject().to_string(),
                    certificate.issuer().to_string(),
                    roots.path.display(),
                    above.path.display()
                ),
                path,
            });
        };
        (current, path) = (issuer.clone(), issuer_path.clone());
    }
    Ok(Chain {
        path: own.path.clone(),
        signer,
        subject,
        intermediates_pem: intermediates
            .iter()
            .map(|certificate| pem(certificate))
            .collect(),
        intermediates,
        root: Anchor::of(&parse(&path, &current)?),
        roots: roots
            .certificates
            .iter()
            .map(|certificate| {
                Ok(Root::of(
                    &parse(&roots.path, certificate)?,
                    pem(certificate),
                ))
            })
            .collect::<Result<_, CaError>>()?,
        validity,
    })
}

/// Gives back when it is valid.
fn check_ca(path: &Path, certificate: &X509Certificate<'_>) -> Result<Validity, CaError> {
    let subject = || certificate.subject().to_string();
    let refuse = |reason: &str| CaError::File {
        path: path.to_owned(),
        reason: format!("{:?} {reason}", subject()),
    };
    if !certificate.is_ca() {
        return Err(refuse("is not a CA certificate"));
    }
    let usage = certificate
        .key_usage()
        .map_err(|error| refuse(&format!("has a bad key usage: {error}")))?;
    if usage.is_some_and(|usage| !usage.value.key_cert_sign()) {
        return Err(refuse("may not sign certificates by its key usage"));
    }
    Ok(Validity {
        path: path.to_owned(),
        subject: subject(),
        not_before: certificate.validity().not_before.to_datetime(),
        not_after: certificate.validity().not_after.to_datetime(),
    })
}

/// Whether those who verify `leaf` would take `signer` for its issuer.
pub(super) fn check_issued(
    leaf: &CertificateDer<'_>,
    signer: &CertificateDer<'_>,
) -> Result<(), String> {
    let parse = |certificate| parse(Path::new(""), certificate).map_err(|error| error.to_string());
    let (leaf, signer) = (parse(leaf)?, parse(signer)?);
    if leaf.issuer().as_raw() != signer.subject().as_raw() {
        return Err(format!(
            "its subject {:?} can't be repeated byte by byte",
            signer.subject().to_string()
        ));
    }
    leaf.verify_signature(Some(signer.public_key()))
        .map_err(|error| error.to_string())
}

/// RFC 7468.
pub(super) fn pem(certificate: &CertificateDer<'_>) -> String {
    pem::encode_config(
        &pem::Pem::new("CERTIFICATE", certificate.to_vec()),
        pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF),
    )
}
