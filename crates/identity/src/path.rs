// SPDX-License-Identifier: Apache-2.0
//! The way from a peer's certificate up to a root that we trust.
//!
//! In: what the peer presented, our roots, the time, and what has been revoked. Out: the way that holds, or the reason
//! why none does. Where there are several ways, a revoked one does not count. Pure.

use std::sync::Arc;

use rustls::pki_types::{
    CertificateDer, SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::{CertificateError, OtherError, RootCertStore};
use webpki::{EndEntityCert, KeyUsage};

use crate::revocation::{PeerRole, RevocationList, Revoked};

/// A certificate authority as certificates and revocation lists name it, and the key that proves that it is the one.
/// Two authorities may share a name: the next root often has that of the last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Issuer {
    /// The distinguished name in DER, without the outer tag.
    pub(crate) name: Box<[u8]>,
    pub(crate) key: SubjectPublicKeyInfoDer<'static>,
}

/// One certificate of a path: its number, and who gave it that.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub(crate) serial: Box<[u8]>,
    pub(crate) issuer: Arc<Issuer>,
}

/// The certificates of a verified chain below the root, the leaf first.
#[derive(Debug, Clone)]
pub(crate) struct Path(pub(crate) Box<[Link]>);

/// What a peer presents.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Presented<'a> {
    pub(crate) leaf: &'a CertificateDer<'a>,
    pub(crate) intermediates: &'a [CertificateDer<'a>],
}

impl<'a> Presented<'a> {
    /// From a chain, leaf first; none if it is empty.
    pub(crate) fn of(chain: &'a [CertificateDer<'a>]) -> Option<Self> {
        let (leaf, intermediates) = chain.split_first()?;
        Some(Self {
            leaf,
            intermediates,
        })
    }
}

/// Whom to trust, and for what.
pub(crate) struct Trust<'a> {
    pub(crate) roots: &'a RootCertStore,
    /// What the one who presents is in the connection.
    pub(crate) role: PeerRole,
    pub(crate) algorithms: &'a [&'static dyn SignatureVerificationAlgorithm],
    pub(crate) revoked: Option<&'a RevocationList>,
}

/// Verifies what was presented.
///
/// # Errors
/// As rustls words them; a path that was revoked is [`CertificateError::Revoked`].
pub(crate) fn verify(
    presented: Presented<'_>,
    trust: &Trust<'_>,
    now: UnixTime,
) -> Result<(), rustls::Error> {
    walk(presented, trust, now, |_| ())
}

/// As [`verify`], and gives back the way.
pub(crate) fn find(
    presented: Presented<'_>,
    trust: &Trust<'_>,
    now: UnixTime,
) -> Result<Path, rustls::Error> {
    walk(presented, trust, now, links)
}

fn walk<P>(
    presented: Presented<'_>,
    trust: &Trust<'_>,
    now: UnixTime,
    take: impl FnOnce(&webpki::VerifiedPath<'_>) -> P,
) -> Result<P, rustls::Error> {
    let leaf = EndEntityCert::try_from(presented.leaf).map_err(refused)?;
    let usage = match trust.role {
        PeerRole::Client => KeyUsage::client_auth(),
        PeerRole::Server => KeyUsage::server_auth(),
    };
    let judge = |path: &webpki::VerifiedPath<'_>| -> Result<(), webpki::Error> {
        let Some(list) = trust.revoked.filter(|list| !list.is_empty()) else {
            return Ok(());
        };
        match list.find(&links(path)) {
            Some(Revoked { .. }) => Err(webpki::Error::CertRevoked),
            None => Ok(()),
        }
    };
    let path = leaf
        .verify_for_usage(
            trust.algorithms,
            &trust.roots.roots,
            presented.intermediates,
            now,
            usage,
            None,
            Some(&judge),
        )
        .map_err(refused)?;
    Ok(take(&path))
}

fn links(path: &webpki::VerifiedPath<'_>) -> Path {
    let leaf: &webpki::Cert<'_> = path.end_entity();
    let above: Vec<_> = path.intermediate_certificates().collect();
    let certificates = std::iter::once(leaf).chain(above.iter().copied());
    let links = certificates.enumerate().map(|(index, certificate)| {
        let key = match above.get(index) {
            Some(issuer) => issuer.subject_public_key_info(),
            None => webpki::spki_for_anchor(path.anchor()),
        };
        Link {
            serial: certificate.serial().into(),
            issuer: Arc::new(Issuer {
                name: certificate.issuer().into(),
                key,
            }),
        }
    });
    Path(links.collect())
}

/// The library's reason in rustls' words, so that logs read alike for either end.
fn refused(error: webpki::Error) -> rustls::Error {
    use webpki::Error as E;
    let reason = match error {
        E::BadDer | E::BadDerTime | E::TrailingData(_) => CertificateError::BadEncoding,
        E::CertExpired { time, not_after } => CertificateError::ExpiredContext { time, not_after },
        E::CertNotValidYet { time, not_before } => {
            CertificateError::NotValidYetContext { time, not_before }
        }
        E::InvalidCertValidity => CertificateError::Expired,
        E::InvalidSignatureForPublicKey => CertificateError::BadSignature,
        E::UnknownIssuer => CertificateError::UnknownIssuer,
        E::CertRevoked => CertificateError::Revoked,
        other => CertificateError::Other(OtherError(Arc::new(other))),
    };
    rustls::Error::InvalidCertificate(reason)
}
