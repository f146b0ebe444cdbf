// SPDX-License-Identifier: Apache-2.0
//! The authority's files, as an operator would make and exchange them.

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// A root with its key, and an intermediate that signs workloads.
#[derive(Debug)]
pub struct Ca {
    name: String,
    root_key: String,
    pub root: String,
    intermediate: String,
    key: String,
}

const FOREVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);

fn params(name: &str, lives: Duration) -> CertificateParams {
    let now = SystemTime::now();
    let mut params = CertificateParams::default();
    // Well before, for clocks that will be behind.
    params.not_before = (now - FOREVER).into();
    params.not_after = (now + lives).into();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

impl Ca {
    pub fn new(name: &str) -> Result<Self> {
        let key = KeyPair::generate().context("a root's key")?;
        Self::of_key(name, &key, FOREVER)
    }

    /// The same root, issued anew for its key, with another intermediate; both end soon.
    pub fn ending(&self, lives: Duration) -> Result<Self> {
        let key = KeyPair::from_pem(&self.root_key).context("a root's key")?;
        Self::of_key(&self.name, &key, lives)
    }

    fn of_key(name: &str, root_key: &KeyPair, lives: Duration) -> Result<Self> {
        let root = params(name, lives);
        let issuer = Issuer::from_params(&root, root_key);
        let key = KeyPair::generate().context("an intermediate's key")?;
        let intermediate = params(&format!("{name}, intermediate"), lives);
        let signed = intermediate.signed_by(&key, &issuer);
        Ok(Self {
            name: name.into(),
            root_key: root_key.serialize_pem(),
            root: root.self_signed(root_key).context("a root")?.pem(),
            intermediate: signed.context("an intermediate")?.pem(),
            key: key.serialize_pem(),
        })
    }

    /// What an authority reads to sign as this one, and have everybody trust these roots: names and contents.
    pub fn parts(&self, roots: &[&str]) -> [(&'static str, String); 4] {
        [
            ("root-cert.pem", roots.concat()),
            ("cert-chain.pem", self.intermediate.clone()),
            ("ca-key.pem", self.key.clone()),
            ("ca-cert.pem", self.intermediate.clone()),
        ]
    }

    /// Has this one sign, and everybody trust these roots.
    pub fn put(&self, folder: &Path, roots: &[&str]) -> Result<()> {
        for (name, text) in self.parts(roots) {
            let beside = folder.join(format!("{name}.new"));
            std::fs::write(&beside, text).context("a file of the authority")?;
            std::fs::rename(&beside, folder.join(name)).context("a file of the authority")?;
        }
        Ok(())
    }
}
