// SPDX-License-Identifier: Apache-2.0
//! What a hostile peer's certificate reaches: the verifiers of both ends, and the reader of a CA's answer.
//!
//! Built for the fuzz targets only.

use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;

use super::{ChainVerifier, ClientVerifier, ServerVerifier, peer_identity, server_name};
use crate::WorkloadCertificate;

/// Both verifiers of one workload.
pub struct Verifiers {
    client: ClientVerifier,
    server: ServerVerifier,
}

impl Verifiers {
    /// As the workload of this certificate would verify.
    pub fn of(certificate: &WorkloadCertificate) -> Self {
        Self {
            client: ClientVerifier {
                chain: ChainVerifier::of(certificate),
                own: certificate.identity().clone(),
            },
            server: ServerVerifier {
                chain: ChainVerifier::of(certificate),
                expected: [certificate.identity().clone()].into(),
            },
        }
    }

    /// Judges a peer's chain. Whom both ends accept must have an identity, and the expected one.
    pub fn judge(&self, chain: &[CertificateDer<'_>], now: UnixTime) {
        let Some((leaf, intermediates)) = chain.split_first() else {
            return;
        };
        let identity = peer_identity(chain);
        let client = self.client.verify_client_cert(leaf, intermediates, now);
        if client.is_ok() {
            let identity = identity
                .as_ref()
                .expect("an accepted client has an identity");
            assert_eq!(identity.trust_domain(), self.client.own.trust_domain());
        }
        let server = self
            .server
            .verify_server_cert(leaf, intermediates, &server_name(), &[], now);
        if server.is_ok() {
            assert_eq!(identity.as_ref(), Some(&self.server.expected[0]));
        }
    }
}

/// Reads a CA's answer to a request made with `key`.
pub fn answer(chain: &[String], key: &str) {
    if let Ok(certificate) = WorkloadCertificate::from_pem(None, chain, key) {
        let again = [certificate.chain_pem(), certificate.roots_pem()];
        WorkloadCertificate::from_pem(Some(certificate.identity()), &again, key)
            .expect("what was read can be read again");
        let _ = (certificate.chain(), certificate.root_chain());
        let _ = certificate.refresh_after(certificate.not_before(), 1.0);
    }
}
