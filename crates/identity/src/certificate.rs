// SPDX-License-Identifier: Apache-2.0
//! A workload's key, certificate chain and roots, parsed once.
//!
//! In: what a certificate authority answered (PEM) and the key that the request
//! was made with. Out: a value that can be used as it is, or a reason that names
//! what is wrong. It knows nothing of how the answer was fetched.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};
use spiffe::SpiffeId;
use time::OffsetDateTime;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};
use zeroize::Zeroizing;

use crate::path::{self, Path, Presented, Trust};
use crate::{PeerRole, Revocation, RevocationList, Revoked, Standing, tls};

/// Why there is no certificate for an identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// Our side could not make a key or a request.
    #[error("cannot prepare a certificate request for {identity}: {reason}")]
    Request {
        /// Whose certificate.
        identity: SpiffeId,
        /// What failed.
        reason: String,
    },
    /// The authority could not be reached, or refused.
    #[error("certificate authority gave no certificate for {identity}: {reason}")]
    Authority {
        /// Whose certificate.
        identity: SpiffeId,
        /// What the authority or the transport said.
        reason: String,
    },
    /// The authority did not answer in time.
    #[error("certificate authority did not answer for {identity} within {after:?}")]
    TimedOut {
        /// Whose certificate.
        identity: SpiffeId,
        /// How long was waited.
        after: Duration,
    },
    /// The answer has no certificate at all.
    #[error("certificate chain is empty")]
    Empty,
    /// The answer has a certificate, but no roots.
    #[error("certificate chain has a single element: the bundle of roots is missing")]
    NoRoots,
    /// One element of the answer cannot be used.
    #[error("certificate chain element {index} ({role}): {reason}")]
    Element {
        /// Position in the answer, from 0.
        index: usize,
        /// Leaf, intermediate or roots.
        role: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The leaf carries no SPIFFE id, or more than one.
    #[error("certificate does not carry exactly one SPIFFE id")]
    NoIdentity,
    /// The leaf is somebody else's.
    #[error("certificate is for {found}, expected {expected}")]
    WrongIdentity {
        /// What was asked for.
        expected: SpiffeId,
        /// What was issued.
        found: SpiffeId,
    },
    /// The private key is not usable, or is not the leaf's.
    #[error("private key of the certificate: {0}")]
    Key(String),
    /// The certificate ran out and no newer one could be had.
    #[error("certificate of {identity} has expired and could not be renewed: {reason}")]
    Expired {
        /// Whose certificate.
        identity: SpiffeId,
        /// Why the renewal failed, as far as known.
        reason: String,
    },
    /// The authority issued one for later, and a good one is held.
    #[error(
        "the certificate that the authority issued for {identity} is not valid before {not_before}; do their clocks differ?"
    )]
    NotYetValid {
        /// Whose certificate.
        identity: SpiffeId,
        /// Start of validity.
        not_before: OffsetDateTime,
    },
    /// The identity was dropped while somebody waited for its certificate.
    #[error("certificate of {0} is no longer needed on this node")]
    Forgotten(SpiffeId),
    /// A fixed set of certificates does not have it.
    #[error("no certificate for {0}")]
    Unknown(SpiffeId),
}

/// One certificate as an operator would look at it.
#[derive(Debug, Clone)]
pub struct Issued {
    /// The certificate alone, in PEM.
    pub pem: String,
    /// The serial number, in decimal.
    pub serial: String,
    /// Start of validity.
    pub not_before: SystemTime,
    /// End of validity.
    pub not_after: SystemTime,
}

/// A certificate ready for use, with its key and the roots it trusts.
pub struct WorkloadCertificate {
    identity: SpiffeId,
    not_before: SystemTime,
    not_after: SystemTime,
    key: Arc<CertifiedKey>,
    roots: Arc<RootCertStore>,
    root_certificates: Vec<CertificateDer<'static>>,
    /// What peers are checked against beyond the roots.
    revocation: Option<Revocation>,
    path: OnceLock<Option<Path>>,
    pub(crate) server_config: OnceLock<Arc<ServerConfig>>,
}

impl WorkloadCertificate {
    /// Reads an authority's answer: leaf first, intermediates, and the bundle of
    /// roots as the last element.
    ///
    /// Without an `expected` identity, the leaf's own is taken.
    pub fn from_pem(
        expected: Option<&SpiffeId>,
        cert_chain: &[String],
        key_pkcs8_pem: &str,
    ) -> Result<Self, CertificateError> {
        let key =
            Zeroizing::new(first_pem(key_pkcs8_pem, "PRIVATE KEY").map_err(CertificateError::Key)?);
        Self::from_parts(expected, cert_chain, &key)
    }

    /// As [`Self::from_pem`], with the key as PKCS#8 DER.
    pub(crate) fn from_parts(
        expected: Option<&SpiffeId>,
        cert_chain: &[String],
        key_pkcs8: &[u8],
    ) -> Result<Self, CertificateError> {
        let (bundle, issued) = cert_chain.split_last().ok_or(CertificateError::Empty)?;
        if issued.is_empty() {
            return Err(CertificateError::NoRoots);
        }
        let chain = parse_issued(issued)?;
        let (root_certificates, roots) = parse_roots(issued.len(), bundle)?;

        let leaf = parse(&chain[0]).map_err(|reason| element(0, "leaf", reason))?;
        let identity = sole_spiffe_id(&leaf).ok_or(CertificateError::NoIdentity)?;
        if let Some(expected) = expected
            && *expected != identity
        {
            return Err(CertificateError::WrongIdentity {
                expected: expected.clone(),
                found: identity,
            });
        }
        let (not_before, not_after) = validity(&leaf);

        // Borrowed, so that the library makes no copy that nobody wipes.
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key_pkcs8));
        let key = rustls::crypto::aws_lc_rs::sign::any_ecdsa_type(&key)
            .or_else(|_| rustls::crypto::aws_lc_rs::sign::any_supported_type(&key))
            .map_err(|error| CertificateError::Key(error.to_string()))?;
        let key = CertifiedKey::new(chain, key);
        key.keys_match().map_err(|error| {
            CertificateError::Key(format!(
                "does not match the certificate of {identity}: {error}"
            ))
        })?;

        Ok(Self {
            identity,
            not_before,
            not_after,
            key: Arc::new(key),
            roots: Arc::new(roots),
            root_certificates,
            revocation: None,
            path: OnceLock::new(),
            server_config: OnceLock::new(),
        })
    }

    /// Peers will be checked against what is revoked, in the handshake and for as long as they are connected.
    #[must_use]
    pub fn checking(mut self, revocation: Revocation) -> Self {
        self.revocation = Some(revocation);
        self
    }

    /// What peers are checked against beyond the roots.
    pub(crate) fn revocation(&self) -> Option<&Revocation> {
        self.revocation.as_ref()
    }

    /// Why peers that know what we do refuse this very certificate, if they do.
    pub fn revoked(&self) -> Option<Revoked> {
        self.revoked_by(&self.revocation.as_ref()?.list())
    }

    /// Why peers that know of this list refuse this very certificate, if they do.
    pub fn revoked_by(&self, list: &RevocationList) -> Option<Revoked> {
        if list.is_empty() {
            return None;
        }
        list.find(self.path.get_or_init(|| self.own_path()).as_ref()?)
    }

    /// What this certificate is worth without a handshake, to one that stands in for both ends of a connection: its
    /// standing, to be kept for as long as the connection lives.
    ///
    /// # Errors
    /// Says why a peer that knows what we do would refuse it: out of its time, on no path to a root, or revoked.
    pub fn vouch(&self, role: PeerRole) -> Result<Standing, Unvouched> {
        let path = self.good_path()?;
        let Some(revocation) = &self.revocation else {
            return Ok(Standing::unconditional());
        };
        Ok(revocation.admit(role, Some(path.clone())))
    }

    /// Whether [`Self::vouch`] would do so now.
    pub fn is_good(&self) -> bool {
        self.good_path().is_ok()
    }

    fn good_path(&self) -> Result<&Path, Unvouched> {
        let now = SystemTime::now();
        if now < self.not_before || now >= self.not_after {
            return Err(Unvouched::OutOfTime);
        }
        let path = self.path.get_or_init(|| self.own_path());
        let path = path.as_ref().ok_or(Unvouched::NoPath)?;
        let revoked = self.revocation.as_ref().map(Revocation::list);
        match revoked.and_then(|list| list.find(path)) {
            Some(revoked) => Err(Unvouched::Revoked(revoked)),
            None => Ok(path),
        }
    }

    /// Our own way to a root of ours, as a peer with the same roots would go it.
    fn own_path(&self) -> Option<Path> {
        let provider = tls::provider();
        let trust = Trust {
            roots: &self.roots,
            role: PeerRole::Server,
            algorithms: provider.signature_verification_algorithms.all,
            revoked: None,
        };
        // Whether it is valid now is another question.
        let during = self
            .not_before
            .duration_since(SystemTime::UNIX_EPOCH)
            .ok()?;
        let during = UnixTime::since_unix_epoch(during);
        path::find(Presented::of(&self.key.cert)?, &trust, during).ok()
    }

    /// Whose certificate this is.
    pub fn identity(&self) -> &SpiffeId {
        &self.identity
    }

    /// Start of validity.
    pub fn not_before(&self) -> SystemTime {
        self.not_before
    }

    /// End of validity.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// The chain as presented to peers (leaf, then intermediates) with its key.
    pub fn certified_key(&self) -> &Arc<CertifiedKey> {
        &self.key
    }

    /// Whom this workload trusts.
    pub fn roots(&self) -> &Arc<RootCertStore> {
        &self.roots
    }

    /// How long after it was `received` to renew it: half of the validity that was left, moved by up to a tenth of that.
    /// What lies before does not count: authorities date certificates back for clocks that are behind, which is more
    /// than a short life has. `jitter` is drawn from -1.0 to 1.0, so that the certificates of a node that started at
    /// once are not all renewed at once.
    pub fn refresh_after(&self, received: SystemTime, jitter: f64) -> Duration {
        const SPREAD: f64 = 0.1;
        let start = self.not_before.max(received);
        let half = self.not_after.duration_since(start).unwrap_or_default() / 2;
        half.mul_f64(1.0 + SPREAD * jitter.clamp(-1.0, 1.0))
    }

    /// Leaf and intermediates, for the admin dump.
    pub fn chain(&self) -> Vec<Issued> {
        self.key.cert.iter().filter_map(issued).collect()
    }

    /// The roots, for the admin dump.
    pub fn root_chain(&self) -> Vec<Issued> {
        self.root_certificates.iter().filter_map(issued).collect()
    }

    /// Leaf and intermediates as one PEM text.
    pub fn chain_pem(&self) -> String {
        self.key.cert.iter().map(to_pem).collect()
    }

    /// The roots as one PEM text.
    pub fn roots_pem(&self) -> String {
        self.root_certificates.iter().map(to_pem).collect()
    }
}

// The key stays out of logs.
impl fmt::Debug for WorkloadCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkloadCertificate")
            .field("identity", &self.identity)
            .field("not_before", &self.not_before)
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

/// Why a certificate stands for nobody.
#[derive(Debug, thiserror::Error)]
pub enum Unvouched {
    /// Expired, or not valid yet.
    #[error("certificate is not valid at this time")]
    OutOfTime,
    /// Nothing leads from it to a root that came with it.
    #[error("certificate leads to none of its roots")]
    NoPath,
    /// It, or one above it, has been taken back.
    #[error("{0}")]
    Revoked(Revoked),
}

/// A fresh P-256 key; wiped when dropped.
pub(crate) fn generate_key() -> Result<Zeroizing<rcgen::KeyPair>, rcgen::Error> {
    rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map(Zeroizing::new)
}

/// A PEM request with an empty subject and one critical URI SAN.
pub(crate) fn csr(identity: &SpiffeId, key: &rcgen::KeyPair) -> Result<String, rcgen::Error> {
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.subject_alt_names = vec![rcgen::SanType::URI(identity.as_str().try_into()?)];
    params.serialize_request(key)?.pem()
}

/// The SPIFFE id of a certificate: the one URI SAN of that scheme. A certificate that names two speaks for nobody, since
/// two readers could take it for two different workloads (X.509-SVID §2).
pub(crate) fn sole_spiffe_id(certificate: &X509Certificate<'_>) -> Option<SpiffeId> {
    let names = certificate.subject_alternative_name().ok()??;
    let mut ids = names
        .value
        .general_names
        .iter()
        .filter_map(|name| match name {
            GeneralName::URI(uri) if uri.starts_with("spiffe://") => Some(*uri),
            _ => None,
        });
    match (ids.next(), ids.next()) {
        (Some(only), None) => only.parse().ok(),
        _ => None,
    }
}

/// Whether one of the URIs that a certificate names is this, to the letter.
pub(crate) fn names_uri(certificate: &X509Certificate<'_>, wanted: &str) -> bool {
    let names = certificate.subject_alternative_name().ok().flatten();
    let names = names.iter().flat_map(|names| &names.value.general_names);
    let mut uris = names.filter_map(|name| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    uris.any(|uri| uri == wanted)
}

/// Parses DER; the reason is what the parser said.
pub(crate) fn parse<'a>(der: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, String> {
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Ok(certificate),
        Ok((rest, _)) => Err(format!("{} bytes follow the certificate", rest.len())),
        Err(error) => Err(format!("not an X.509 certificate: {error}")),
    }
}

/// Leaf and intermediates: one certificate per element, further blocks ignored.
fn parse_issued(elements: &[String]) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let mut chain = Vec::with_capacity(elements.len());
    for (index, pem) in elements.iter().enumerate() {
        let role = if index == 0 { "leaf" } else { "intermediate" };
        let der = first_pem(pem, "CERTIFICATE").map_err(|reason| element(index, role, reason))?;
        let der = CertificateDer::from(der);
        parse(&der).map_err(|reason| element(index, role, reason))?;
        chain.push(der);
    }
    Ok(chain)
}

type Roots = (Vec<CertificateDer<'static>>, RootCertStore);

/// Every certificate of the bundle becomes a trust anchor.
fn parse_roots(index: usize, bundle: &str) -> Result<Roots, CertificateError> {
    let refuse = |reason: String| element(index, "roots", reason);
    let mut certificates = Vec::new();
    let mut store = RootCertStore::empty();
    let blocks = pem::parse_many(bundle).map_err(|error| refuse(format!("not PEM: {error}")))?;
    for block in blocks {
        if block.tag() != "CERTIFICATE" {
            return Err(refuse(format!("holds a {} block", block.tag())));
        }
        let der = CertificateDer::from(block.into_contents());
        parse(&der).map_err(refuse)?;
        // A certificate that cannot be an anchor (X.509 v1, say) must not cost us the others.
        match store.add(der.clone()) {
            Ok(()) => certificates.push(der),
            Err(error) => {
                tracing::warn!(%error, "root certificate skipped: not usable as trust anchor")
            }
        }
    }
    if store.is_empty() {
        return Err(refuse("holds no usable root certificate".into()));
    }
    Ok((certificates, store))
}

/// The contents of the first PEM block, which must carry `label`.
fn first_pem(text: &str, label: &str) -> Result<Vec<u8>, String> {
    let block = pem::parse(text).map_err(|error| format!("not PEM: {error}"))?;
    if block.tag() != label {
        return Err(format!("holds a {} block, expected {label}", block.tag()));
    }
    Ok(block.into_contents())
}

fn element(index: usize, role: &'static str, reason: String) -> CertificateError {
    CertificateError::Element {
        index,
        role,
        reason,
    }
}

/// Start and end.
pub(crate) fn validity(certificate: &X509Certificate<'_>) -> (SystemTime, SystemTime) {
    let validity = certificate.validity();
    (
        system_time(validity.not_before.timestamp()),
        system_time(validity.not_after.timestamp()),
    )
}

/// Before 1970 counts as 1970: no certificate of ours is that old.
fn system_time(seconds: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

fn issued(der: &CertificateDer<'static>) -> Option<Issued> {
    let certificate = parse(der).ok()?;
    let (not_before, not_after) = validity(&certificate);
    Some(Issued {
        pem: to_pem(der),
        serial: certificate.tbs_certificate.serial.to_string(),
        not_before,
        not_after,
    })
}

fn to_pem(der: &CertificateDer<'static>) -> String {
    let lines = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new("CERTIFICATE", der.to_vec()), lines)
}

#[cfg(test)]
mod tests;
