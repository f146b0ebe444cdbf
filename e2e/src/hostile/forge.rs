// SPDX-License-Identifier: Apache-2.0
//! Certificates that nobody should have: signed with the mesh's own stolen key, or with one that only looks like it.

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};

use crate::state::StateDir;
use crate::topology::TRUST_DOMAIN;

const HOUR: Duration = Duration::from_secs(3600);

/// Whoever signs.
pub struct Forger {
    issuer: Issuer<'static, KeyPair>,
    /// The signing certificate, which is shown along.
    chain: String,
}

/// When a forged certificate holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    /// An hour before and after this moment.
    Now,
    /// Until an hour ago.
    Over,
    /// From in an hour on.
    NotYet,
}

impl Validity {
    fn bounds(self) -> (SystemTime, SystemTime) {
        let now = SystemTime::now();
        match self {
            Self::Now => (now - HOUR, now + HOUR),
            Self::Over => (now - 2 * HOUR, now - HOUR),
            Self::NotYet => (now + HOUR, now + 2 * HOUR),
        }
    }
}

impl Forger {
    /// Has the key that the lab's control plane signs with.
    pub fn with_the_stolen_key(state: &StateDir) -> Result<Self> {
        let folder = state.istiod().join("ca");
        let (certificate, key) = (
            read(&folder.join("ca-cert.pem"))?,
            read(&folder.join("ca-key.pem"))?,
        );
        let key = KeyPair::from_pem(&key).context("the mesh's signing key")?;
        Ok(Self {
            issuer: Issuer::from_ca_cert_pem(&certificate, key)
                .context("the mesh's signing certificate")?,
            chain: certificate,
        })
    }

    /// Has the names of the mesh's authority on a certificate of its own, and not the key.
    pub fn with_a_likeness() -> Result<Self> {
        let key = KeyPair::generate().context("a key")?;
        let mut likeness = CertificateParams::default();
        likeness.distinguished_name = DistinguishedName::new();
        for (kind, value) in [
            (DnType::OrganizationName, TRUST_DOMAIN),
            (DnType::CommonName, "Intermediate CA"),
        ] {
            likeness.distinguished_name.push(kind, value);
        }
        likeness.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        likeness.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let chain = likeness.self_signed(&key).context("the likeness")?.pem();
        Ok(Self {
            issuer: Issuer::new(likeness, key),
            chain,
        })
    }

    /// A certificate for these names, URIs or of hosts, with its chain and its key, as one PEM text.
    pub fn certificate(&self, names: &[&str], validity: Validity) -> Result<String> {
        let key = KeyPair::generate().context("a key")?;
        let mut params = CertificateParams::default();
        let (from, until) = validity.bounds();
        (params.not_before, params.not_after) = (from.into(), until.into());
        params.distinguished_name = DistinguishedName::new();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.subject_alt_names = names
            .iter()
            .map(|name| {
                Ok(match name.contains("://") {
                    true => SanType::URI((*name).try_into()?),
                    false => SanType::DnsName((*name).try_into()?),
                })
            })
            .collect::<Result<_, rcgen::Error>>()
            .context("a name")?;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .context("the certificate")?;
        Ok(certificate.pem() + &self.chain + &key.serialize_pem())
    }
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
