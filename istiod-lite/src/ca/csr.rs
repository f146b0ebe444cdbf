// SPDX-License-Identifier: Apache-2.0
//! A certificate request in, its public key out: proven to be the sender's and of a kind that we sign.
//!
//! Names and extensions of a request are not even looked at.

use rcgen::SubjectPublicKeyInfo;
use rustls_pki_types::CertificateSigningRequestDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::oid_registry::{OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_NIST_EC_P384};
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;

use super::SignError;

/// Requests are around one kilobyte.
const MAX_BYTES: usize = 64 << 10;

pub(super) fn public_key(pem: &str) -> Result<SubjectPublicKeyInfo, SignError> {
    if pem.len() > MAX_BYTES {
        return Err(SignError::Request(format!("larger than {MAX_BYTES} bytes")));
    }
    let der = CertificateSigningRequestDer::from_pem_slice(pem.as_bytes())
        .map_err(|error| SignError::Request(format!("not a PEM certificate request: {error}")))?;
    let (rest, request) = X509CertificationRequest::from_der(&der).map_err(|error| {
        SignError::Request(format!("not a PKCS #10 certificate request: {error}"))
    })?;
    if !rest.is_empty() {
        return Err(SignError::Request(
            "bytes follow the certificate request".to_owned(),
        ));
    }
    let key = &request.certification_request_info.subject_pki;
    check(key)?;
    request
        .verify_signature()
        .map_err(|_| SignError::Signature)?;
    SubjectPublicKeyInfo::from_der(key.raw).map_err(|error| SignError::Key(error.to_string()))
}

fn check(key: &x509_parser::x509::SubjectPublicKeyInfo<'_>) -> Result<(), SignError> {
    match key.parsed() {
        Ok(PublicKey::RSA(rsa)) if (2048..=8192).contains(&rsa.key_size()) => Ok(()),
        Ok(PublicKey::RSA(rsa)) => Err(SignError::Key(format!(
            "an RSA key of {} bits",
            rsa.key_size()
        ))),
        Ok(PublicKey::EC(_)) if key.algorithm.algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY => {
            match key
                .algorithm
                .parameters
                .as_ref()
                .and_then(|curve| curve.as_oid().ok())
            {
                Some(curve) if curve == OID_EC_P256 || curve == OID_NIST_EC_P384 => Ok(()),
                Some(curve) => Err(SignError::Key(format!("a key on curve {curve}"))),
                None => Err(SignError::Key(
                    "an elliptic curve key without a named curve".to_owned(),
                )),
            }
        }
        Ok(_) => Err(SignError::Key(format!(
            "a key of type {}",
            key.algorithm.algorithm
        ))),
        Err(error) => Err(SignError::Key(format!("an unreadable key ({error})"))),
    }
}
