// SPDX-License-Identifier: Apache-2.0
//! Who vouches for the control plane, and for which names.
//!
//! In: where the roots are. Out: a verifier for one connection, by the roots of
//! that moment.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{DigitallySignedStruct, Error as RustlsError, RootCertStore, SignatureScheme};

use super::ControlPlaneError;
use crate::tls;

/// Where a distribution keeps the platform's roots.
const SYSTEM_BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Where the roots that vouch for the control plane come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RootSource {
    /// A PEM file, read at each connection.
    File(PathBuf),
    /// PEM text.
    Inline(String),
    /// The platform's own roots.
    System,
}

/// As `CA_ROOT_CA` and `XDS_ROOT_CA` say it: `SYSTEM`, PEM text, or else a path. A file may appear later than the process
/// that follows it, as mounted files do.
impl From<String> for RootSource {
    fn from(given: String) -> Self {
        if given == "SYSTEM" {
            Self::System
        } else if given.contains("-----BEGIN") {
            Self::Inline(given)
        } else {
            Self::File(given.into())
        }
    }
}

/// Checks the server by its DNS name (or address), or by the alternative name.
#[derive(Debug)]
pub(super) struct HostVerifier {
    roots: RootCertStore,
    alt_name: Option<ServerName<'static>>,
    provider: Arc<CryptoProvider>,
}

impl HostVerifier {
    /// Reads the roots.
    pub(super) fn new(
        root: &RootSource,
        alt_name: Option<ServerName<'static>>,
    ) -> Result<Self, ControlPlaneError> {
        Ok(Self {
            roots: read_roots(root)?,
            alt_name,
            provider: tls::provider(),
        })
    }
}

impl ServerCertVerifier for HostVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, RustlsError> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(
            &certificate,
            &self.roots,
            intermediates,
            now,
            self.provider.signature_verification_algorithms.all,
        )?;
        verify_server_name(&certificate, server_name).or_else(|error| match &self.alt_name {
            Some(alt_name) => verify_server_name(&certificate, alt_name),
            None => Err(error),
        })?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, RustlsError> {
        Err(RustlsError::General("TLS 1.2 is not spoken here".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, RustlsError> {
        rustls::crypto::verify_tls13_signature(
            message,
            cert,
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

fn read_roots(source: &RootSource) -> Result<RootCertStore, ControlPlaneError> {
    let (from, pem) = match source {
        RootSource::Inline(pem) => ("configuration".to_owned(), pem.clone()),
        RootSource::File(path) => {
            let from = path.display().to_string();
            let pem = std::fs::read_to_string(path).map_err(|error| ControlPlaneError::Roots {
                from: from.clone(),
                reason: error.to_string(),
            })?;
            (from, pem)
        }
        RootSource::System => SYSTEM_BUNDLES
            .iter()
            .find_map(|path| Some(((*path).to_owned(), std::fs::read_to_string(path).ok()?)))
            .ok_or_else(|| ControlPlaneError::Roots {
                from: "the system".into(),
                reason: format!("none of {} can be read", SYSTEM_BUNDLES.join(", ")),
            })?,
    };
    let refuse = |reason: String| ControlPlaneError::Roots {
        from: from.clone(),
        reason,
    };
    let mut roots = RootCertStore::empty();
    let blocks = pem::parse_many(&pem).map_err(|error| refuse(format!("not PEM: {error}")))?;
    let certificates = blocks
        .into_iter()
        .filter(|block| block.tag() == "CERTIFICATE");
    roots.add_parsable_certificates(
        certificates.map(|block| CertificateDer::from(block.into_contents())),
    );
    if roots.is_empty() {
        return Err(refuse("holds no usable certificate".into()));
    }
    Ok(roots)
}
