// SPDX-License-Identifier: Apache-2.0
//! The parts of an authority in, its signing key and the checked way from there to a root out.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rcgen::{KeyPair, PublicKeyData};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use time::OffsetDateTime;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use super::CaError;
use super::material::{Material, Place};
use super::rotation::{Anchor, Root};

/// A way from the signing certificate up to a root.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    /// Where its parts were read.
    pub(super) place: Place,
    /// Where among them the signing certificate was.
    pub(super) path: String,
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
    place: String,
    subject: String,
    not_before: OffsetDateTime,
    not_after: OffsetDateTime,
}

impl Validity {
    fn check(&self, now: OffsetDateTime) -> Result<(), CaError> {
        let (place, subject) = (self.place.clone(), self.subject.clone());
        if self.not_after <= now {
            return Err(CaError::Expired {
                place,
                subject,
                not_after: self.not_after,
            });
        }
        if self.not_before > now {
            return Err(CaError::NotYetValid {
                place,
                subject,
                not_before: self.not_before,
            });
        }
        Ok(())
    }
}

/// One of the two sets of names that the parts may have.
pub(super) struct Names {
    pub(super) certificate: &'static str,
    key: &'static str,
    pub(super) roots: &'static str,
    /// The intermediates, if not beside the certificate.
    pub(super) chain: Option<&'static str>,
}

pub(super) const ISTIO: Names = Names {
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

/// Certificates with where they were read.
struct Certificates {
    place: String,
    certificates: Vec<CertificateDer<'static>>,
}

/// The files that a CA may consist of, whether they are there or not.
pub(super) fn files(directory: &Path) -> Vec<PathBuf> {
    let names = ISTIO.all().chain(CERT_MANAGER.all());
    names.map(|name| directory.join(name)).collect()
}

/// Reads and checks all but the time.
pub(super) fn load(material: &Material) -> Result<(Chain, KeyPair), CaError> {
    let present = |name: &str| material.part(name).is_some();
    let names = if CERT_MANAGER.all().any(present) && !ISTIO.all().any(present) {
        &CERT_MANAGER
    } else {
        &ISTIO
    };
    if let Some(missing) = names.all().find(|name| !present(name)) {
        return Err(CaError::Incomplete {
            place: material.place.clone(),
            missing,
        });
    }
    let own = read_certificates(material, names.certificate)?;
    let roots = read_certificates(material, names.roots)?;
    let above = match names.chain {
        Some(name) => read_certificates(material, name)?,
        None => Certificates {
            place: own.place.clone(),
            certificates: own.certificates.clone(),
        },
    };
    let key = read_key(material, names.key)?;
    let chain = build(&material.place, &own, &above, &roots)?;
    let signer = parse(&own.place, &chain.signer)?;
    if signer.public_key().raw != key.subject_public_key_info() {
        return Err(CaError::KeyMismatch {
            key: material.place.of(names.key),
            certificate: own.place,
        });
    }
    Ok((chain, key))
}

fn read_certificates(material: &Material, name: &str) -> Result<Certificates, CaError> {
    let place = material.place.of(name);
    let refuse = |reason: String| CaError::Part {
        place: place.clone(),
        reason,
    };
    let certificates: Vec<_> =
        CertificateDer::pem_slice_iter(material.part(name).unwrap_or_default())
            .collect::<Result<_, _>>()
            .map_err(|error| refuse(format!("not valid PEM: {error}")))?;
    if certificates.is_empty() {
        return Err(refuse("holds no certificate".to_owned()));
    }
    Ok(Certificates {
        place,
        certificates,
    })
}

fn read_key(material: &Material, name: &str) -> Result<KeyPair, CaError> {
    let refuse = |reason: String| CaError::Part {
        place: material.place.of(name),
        reason,
    };
    let key = PrivateKeyDer::from_pem_slice(material.part(name).unwrap_or_default())
        .map_err(|error| refuse(format!("not a private key in PEM: {error}")))?;
    KeyPair::try_from(&key).map_err(|error| refuse(format!("not a key that can sign: {error}")))
}

fn parse<'c>(
    place: &str,
    certificate: &'c CertificateDer<'_>,
) -> Result<X509Certificate<'c>, CaError> {
    match X509Certificate::from_der(certificate) {
        Ok(([], certificate)) => Ok(certificate),
        Ok(_) => Err(CaError::Part {
            place: place.to_owned(),
            reason: "bytes follow a certificate".to_owned(),
        }),
        Err(error) => Err(CaError::Part {
            place: place.to_owned(),
            reason: format!("not a certificate: {error}"),
        }),
    }
}

/// Climbs from the signer to a root, each step proven by a signature.
fn build(
    from: &Place,
    own: &Certificates,
    above: &Certificates,
    roots: &Certificates,
) -> Result<Chain, CaError> {
    let signer = own.certificates[0].clone();
    let subject = parse(&own.place, &signer)?.subject().to_string();
    let mut intermediates: Vec<CertificateDer<'static>> = Vec::new();
    let mut validity = Vec::new();
    let mut current = signer.clone();
    let mut place = own.place.clone();
    loop {
        let certificate = parse(&place, &current)?;
        validity.push(check_ca(&place, &certificate)?);
        if roots.certificates.contains(&current) {
            break;
        }
        intermediates.push(current.clone());
        let issuers = || {
            let roots = roots.certificates.iter().map(|root| (root, &roots.place));
            roots.chain(
                above
                    .certificates
                    .iter()
                    .map(|certificate| (certificate, &above.place)),
            )
        };
        // A certificate that was climbed before leads in a circle.
        let next = issuers()
            .filter(|(issuer, _)| !intermediates.contains(issuer))
            .find(|(issuer, place)| {
                parse(place, issuer).is_ok_and(|issuer| {
                    issuer.subject().as_raw() == certificate.issuer().as_raw()
                        && certificate
                            .verify_signature(Some(issuer.public_key()))
                            .is_ok()
                })
            });
        let Some((issuer, issuer_place)) = next else {
            return Err(CaError::Part {
                reason: format!(
                    "{:?} is signed by {:?}, which is neither a root in {} nor an intermediate in {}",
                    certificate.subject().to_string(),
                    certificate.issuer().to_string(),
                    roots.place,
                    above.place
                ),
                place,
            });
        };
        (current, place) = (issuer.clone(), issuer_place.clone());
    }
    Ok(Chain {
        place: from.clone(),
        path: own.place.clone(),
        signer,
        subject,
        intermediates_pem: intermediates
            .iter()
            .map(|certificate| pem(certificate))
            .collect(),
        intermediates,
        root: Anchor::of(&parse(&place, &current)?),
        roots: roots
            .certificates
            .iter()
            .map(|certificate| {
                Ok(Root::of(
                    &parse(&roots.place, certificate)?,
                    pem(certificate),
                ))
            })
            .collect::<Result<_, CaError>>()?,
        validity,
    })
}

/// Gives back when it is valid.
fn check_ca(place: &str, certificate: &X509Certificate<'_>) -> Result<Validity, CaError> {
    let subject = || certificate.subject().to_string();
    let refuse = |reason: &str| CaError::Part {
        place: place.to_owned(),
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
        place: place.to_owned(),
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
    let parse = |certificate| parse("", certificate).map_err(|error| error.to_string());
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
