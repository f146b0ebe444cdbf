// SPDX-License-Identifier: Apache-2.0
//! Whether a server is one of those that a rule names, which need not be the one that it was asked by.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use super::Name;

#[derive(Debug)]
pub(super) struct NamedVerifier {
    roots: Arc<RootCertStore>,
    names: Arc<[Name]>,
    provider: Arc<CryptoProvider>,
    signatures: Arc<WebPkiServerVerifier>,
}

impl NamedVerifier {
    /// Of certificates for any of these names.
    ///
    /// # Errors
    /// The roots can't be used.
    pub(super) fn new(
        roots: Arc<RootCertStore>,
        names: Arc<[Name]>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, String> {
        let signatures =
            WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
        Ok(Self {
            signatures: signatures.build().map_err(|error| error.to_string())?,
            roots,
            names,
            provider,
        })
    }
}

impl ServerCertVerifier for NamedVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _asked: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &self.roots,
            intermediates,
            now,
            self.provider.signature_verification_algorithms.all,
        )?;
        let id = identity::tls::peer_identity(std::slice::from_ref(end_entity));
        let is_its = |name: &Name| match name {
            Name::Dns(name) => verify_server_name(&parsed, name).is_ok(),
            Name::Id(name) => id.as_ref() == Some(name),
            Name::Uri(name) => identity::tls::is_named_by_uri(end_entity, name),
        };
        match self.names.iter().any(is_its) {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(Error::InvalidCertificate(CertificateError::NotValidForName)),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signatures
            .verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signatures
            .verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signatures.supported_verify_schemes()
    }
}
