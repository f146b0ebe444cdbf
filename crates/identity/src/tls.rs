// SPDX-License-Identifier: Apache-2.0
//! Mutual TLS between workloads: a peer is who its SPIFFE id says.
//!
//! In: our certificate and, as a client, the identities that the server may
//! have. Out: rustls configurations. TLS 1.3 only; neither side looks at DNS
//! names, sends one, or resumes a session (a resumed session would outlive the
//! certificate it was made with).

#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod reason;

use std::sync::{Arc, LazyLock};
use std::time::SystemTime;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, IpAddr, Ipv4Addr, ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::{
    ClientConfig, CommonState, DigitallySignedStruct, DistinguishedName, Error, OtherError,
    ProtocolVersion, RootCertStore, ServerConfig, SignatureScheme,
};
use spiffe::SpiffeId;

pub use self::reason::handshake_reason;
use crate::certificate::{names_uri, parse, sole_spiffe_id, validity};
use crate::path::{self, Presented, Trust};
use crate::{PeerRole, Revocation, RevocationList, Standing, WorkloadCertificate};

/// The one application protocol of the mesh.
pub const ALPN_H2: &[u8] = b"h2";

/// Why a configuration could not be made, or a finished handshake is not good enough.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TlsError {
    /// rustls refuses the certificate, key or roots of ours.
    #[error("TLS configuration of {identity}: {reason}")]
    Config {
        /// Whose configuration.
        identity: SpiffeId,
        /// What rustls said.
        reason: String,
    },
    /// A client must say whom it wants to reach.
    #[error("no identity is expected of the server")]
    NobodyExpected,
    /// The peer negotiated another application protocol, or none.
    #[error("peer negotiated application protocol {found:?}, expected \"h2\"")]
    Protocol {
        /// What was negotiated; empty if nothing.
        found: String,
    },
    /// The handshake ended without a peer identity, or has not ended.
    #[error("peer has no SPIFFE id")]
    NoPeerIdentity,
}

/// Why a peer's certificate was refused, beyond what X.509 itself says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerRefused {
    /// The certificate carries no SPIFFE id, or more than one.
    #[error("peer's certificate does not carry exactly one SPIFFE id, expected {expected}")]
    NoIdentity {
        /// Who was expected.
        expected: String,
    },
    /// The server is somebody else.
    #[error("peer is {found}, expected {expected}")]
    WrongIdentity {
        /// Who was expected.
        expected: String,
        /// Who answered.
        found: SpiffeId,
    },
    /// The client comes from another trust domain.
    #[error("peer is {found} of another trust domain, expected {expected}")]
    WrongTrustDomain {
        /// Our own trust domain.
        expected: String,
        /// Who came.
        found: SpiffeId,
    },
}

/// The cryptography of the mesh: AES-GCM, the 256-bit suite first, and the hybrid
/// post-quantum group offered before X25519 and P-256.
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
        Arc::new(CryptoProvider {
            cipher_suites: vec![
                aws_lc_rs::cipher_suite::TLS13_AES_256_GCM_SHA384,
                aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256,
            ],
            kx_groups: vec![
                aws_lc_rs::kx_group::X25519MLKEM768,
                aws_lc_rs::kx_group::X25519,
                aws_lc_rs::kx_group::SECP256R1,
            ],
            ..aws_lc_rs::default_provider()
        })
    });
    Arc::clone(&PROVIDER)
}

/// What two ends of the mesh agree on, as both prefer it, in words.
pub fn preferred() -> String {
    let provider = provider();
    let suite = provider.cipher_suites.first();
    let group = provider.kx_groups.first();
    let suite = suite.map(|suite| format!("{:?}", suite.suite()));
    let group = group.map(|group| format!("{:?}", group.name()));
    format!(
        "TLS 1.3, {}, {}",
        suite.unwrap_or_default(),
        group.unwrap_or_default()
    )
}

/// The name to hand to rustls where a peer has no DNS name; never sent.
pub fn server_name() -> ServerName<'static> {
    ServerName::IpAddress(IpAddr::V4(Ipv4Addr::from([0, 0, 0, 0])))
}

/// How a workload accepts tunnels: clients must show a certificate of its roots
/// and its trust domain. Made once per certificate.
pub fn server_config(certificate: &WorkloadCertificate) -> Result<Arc<ServerConfig>, TlsError> {
    if let Some(config) = certificate.server_config.get() {
        return Ok(Arc::clone(config));
    }
    let refuse = |error: &dyn std::error::Error| TlsError::Config {
        identity: certificate.identity().clone(),
        reason: crate::chain(error),
    };
    let verifier = ClientVerifier {
        chain: ChainVerifier::of(certificate),
        own: certificate.identity().clone(),
    };
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| refuse(&error))?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(
            certificate.certified_key(),
        ))));
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::clone(
        certificate.server_config.get_or_init(|| Arc::new(config)),
    ))
}

/// How a workload opens tunnels: the server must show a certificate of our roots
/// for one of the `expected` identities.
pub fn client_config(
    certificate: &WorkloadCertificate,
    expected: &[SpiffeId],
) -> Result<Arc<ClientConfig>, TlsError> {
    if expected.is_empty() {
        return Err(TlsError::NobodyExpected);
    }
    let verifier = ServerVerifier {
        chain: ChainVerifier::of(certificate),
        expected: expected.into(),
    };
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| TlsError::Config {
            identity: certificate.identity().clone(),
            reason: error.to_string(),
        })?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(
            certificate.certified_key(),
        ))));
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    config.enable_sni = false;
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Who a certificate speaks for: the sole SPIFFE URI SAN of the leaf.
pub fn peer_identity(certificates: &[CertificateDer<'_>]) -> Option<SpiffeId> {
    let leaf = parse(certificates.first()?).ok()?;
    sole_spiffe_id(&leaf)
}

/// Whether a certificate names this URI.
pub fn is_named_by_uri(certificate: &CertificateDer<'_>, uri: &str) -> bool {
    parse(certificate).is_ok_and(|certificate| names_uri(&certificate, uri))
}

/// Who is at the other end of a finished handshake.
///
/// Call it before the first byte is trusted: it also refuses a peer that did not
/// negotiate h2, which rustls by itself lets pass when a peer offers no protocol.
pub fn authenticated_peer(connection: &CommonState) -> Result<SpiffeId, TlsError> {
    let protocol = connection.alpn_protocol().unwrap_or_default();
    if protocol != ALPN_H2 {
        return Err(TlsError::Protocol {
            found: String::from_utf8_lossy(protocol).into_owned(),
        });
    }
    debug_assert_eq!(
        connection.protocol_version(),
        Some(ProtocolVersion::TLSv1_3)
    );
    connection
        .peer_certificates()
        .and_then(peer_identity)
        .ok_or(TlsError::NoPeerIdentity)
}

/// Registers the peer of a finished handshake with the revocation that `certificate`, our own, is kept by, and notes
/// when either end's certificate expires. To be kept for as long as the connection lives.
pub fn standing(
    connection: &CommonState,
    certificate: &WorkloadCertificate,
    peer: PeerRole,
) -> Standing {
    let theirs = connection.peer_certificates().and_then(peer_not_after);
    let own = certificate.not_after();
    let end = theirs.map_or(own, |theirs| own.min(theirs));
    let Some(revocation) = certificate.revocation() else {
        return Standing::unconditional().until(end);
    };
    // The handshake proved that a path holds and told nobody which.
    let path = connection
        .peer_certificates()
        .and_then(Presented::of)
        .and_then(|presented| {
            let verifier = ChainVerifier::of(certificate);
            path::find(presented, &verifier.trust(peer, None), UnixTime::now()).ok()
        });
    revocation.admit(peer, path).until(end)
}

fn peer_not_after(certificates: &[CertificateDer<'_>]) -> Option<SystemTime> {
    let leaf = parse(certificates.first()?).ok()?;
    Some(validity(&leaf).1)
}

/// The refusal inside a failed handshake's error, if it was about the identity.
pub fn peer_refusal<'e>(error: &'e (dyn std::error::Error + 'static)) -> Option<&'e PeerRefused> {
    match invalid_certificate(error)? {
        rustls::CertificateError::Other(OtherError(inner)) => inner.downcast_ref::<PeerRefused>(),
        _ => None,
    }
}

/// Whether a handshake failed because the peer's certificate, or one above it, was revoked.
pub fn is_revoked(error: &(dyn std::error::Error + 'static)) -> bool {
    matches!(
        invalid_certificate(error),
        Some(rustls::CertificateError::Revoked)
    )
}

/// What was wrong with the peer's certificate, if that is what failed a handshake on our side.
fn invalid_certificate<'e>(
    error: &'e (dyn std::error::Error + 'static),
) -> Option<&'e rustls::CertificateError> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(Error::InvalidCertificate(reason)) = error.downcast_ref::<Error>() {
            return Some(reason);
        }
        // An io::Error shows its content only through `get_ref`.
        next = match error.downcast_ref::<std::io::Error>() {
            Some(io) => io
                .get_ref()
                .map(|inner| inner as &(dyn std::error::Error + 'static)),
            None => error.source(),
        };
    }
    None
}

/// Checks chains: our roots, and what has been revoked at that moment.
#[derive(Debug)]
struct ChainVerifier {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
    revocation: Option<Revocation>,
}

impl ChainVerifier {
    fn of(certificate: &WorkloadCertificate) -> Self {
        Self {
            roots: Arc::clone(certificate.roots()),
            provider: provider(),
            revocation: certificate.revocation().cloned(),
        }
    }

    fn trust<'a>(&'a self, role: PeerRole, revoked: Option<&'a RevocationList>) -> Trust<'a> {
        Trust {
            roots: &self.roots,
            role,
            algorithms: self.provider.signature_verification_algorithms.all,
            revoked,
        }
    }

    fn verify(&self, role: PeerRole, presented: Presented<'_>, now: UnixTime) -> Result<(), Error> {
        let Some(revocation) = &self.revocation else {
            return path::verify(presented, &self.trust(role, None), now);
        };
        let list = revocation.list();
        let verified = path::verify(presented, &self.trust(role, Some(&list)), now);
        if matches!(
            verified,
            Err(Error::InvalidCertificate(rustls::CertificateError::Revoked))
        ) {
            revocation.rejected(role);
        }
        verified
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// Checks clients: their chain, then our trust domain.
#[derive(Debug)]
struct ClientVerifier {
    chain: ChainVerifier,
    own: SpiffeId,
}

impl ClientCertVerifier for ClientVerifier {
    /// Names of roots only make the handshake longer: clients have one certificate.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let presented = Presented {
            leaf: end_entity,
            intermediates,
        };
        self.chain.verify(PeerRole::Client, presented, now)?;
        let domain = self.own.trust_domain();
        let found = identity_of(end_entity).ok_or_else(|| {
            refused(PeerRefused::NoIdentity {
                expected: format!("one of trust domain {domain}"),
            })
        })?;
        if found.trust_domain() != domain {
            return Err(refused(PeerRefused::WrongTrustDomain {
                expected: domain.to_string(),
                found,
            }));
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

/// Checks servers: their chain, then one of the expected identities.
#[derive(Debug)]
struct ServerVerifier {
    chain: ChainVerifier,
    expected: Box<[SpiffeId]>,
}

impl ServerVerifier {
    fn expectation(&self) -> String {
        let names: Vec<_> = self.expected.iter().map(SpiffeId::as_str).collect();
        names.join(" or ")
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let presented = Presented {
            leaf: end_entity,
            intermediates,
        };
        self.chain.verify(PeerRole::Server, presented, now)?;
        let found = identity_of(end_entity).ok_or_else(|| {
            refused(PeerRefused::NoIdentity {
                expected: self.expectation(),
            })
        })?;
        if !self.expected.contains(&found) {
            return Err(refused(PeerRefused::WrongIdentity {
                expected: self.expectation(),
                found,
            }));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

fn identity_of(leaf: &CertificateDer<'_>) -> Option<SpiffeId> {
    peer_identity(std::slice::from_ref(leaf))
}

fn refused(reason: PeerRefused) -> Error {
    Error::InvalidCertificate(rustls::CertificateError::Other(OtherError(Arc::new(
        reason,
    ))))
}

/// Both configurations offer TLS 1.3 alone, so rustls never gets here.
fn tls12() -> Error {
    Error::General("TLS 1.2 is not spoken in the mesh".into())
}
