// SPDX-License-Identifier: Apache-2.0
//! The parts of an authority before anybody has checked them, wherever they are kept.
//!
//! In: a directory, or a Secret. Out: bytes by name, with words for where each of them is, so that who checks them can say
//! what to mend.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use cluster::k8s_openapi::api::core::v1::Secret;
use zeroize::Zeroizing;

use super::CaError;
use super::chain;

/// Of one part, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Where an authority's parts are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Directory(PathBuf),
    Secret { namespace: String, name: String },
}

impl Place {
    /// Words for where one part is.
    pub(super) fn of(&self, part: &str) -> String {
        match self {
            Self::Directory(directory) => directory.join(part).display().to_string(),
            Self::Secret { .. } => format!("{self}, key {part}"),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(directory) => directory.display().fmt(f),
            Self::Secret { namespace, name } => write!(f, "Secret {namespace}/{name}"),
        }
    }
}

/// What an authority is to be made of.
pub struct Material {
    pub(super) place: Place,
    parts: BTreeMap<String, Zeroizing<Vec<u8>>>,
}

/// The rest is secret.
impl fmt::Debug for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Material({})", self.place)
    }
}

impl Material {
    /// Reads the files that an authority may consist of, those that are there.
    ///
    /// # Errors
    /// A file that can't be read, or is too large.
    pub fn in_directory(directory: &Path) -> Result<Self, CaError> {
        let mut parts = BTreeMap::new();
        for path in chain::files(directory) {
            let at = |error| CaError::Io {
                place: path.display().to_string(),
                error,
            };
            match fs::metadata(&path) {
                Ok(found) if found.len() > MAX_BYTES => {
                    return Err(at(io::Error::other("larger than 1 MiB")));
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(at(error)),
            }
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let bytes = fs::read(&path).map_err(at)?;
            parts.insert(name.into_owned(), Zeroizing::new(bytes));
        }
        Ok(Self {
            place: Place::Directory(directory.to_owned()),
            parts,
        })
    }

    /// Takes what a Secret holds; empty parts count as absent, as Istio leaves them. The server bounds the rest.
    pub fn in_secret(namespace: &str, name: &str, secret: Secret) -> Self {
        let data = secret.data.unwrap_or_default().into_iter();
        let parts = data.map(|(name, bytes)| (name, Zeroizing::new(bytes.0)));
        Self {
            place: Place::Secret {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            },
            parts: parts.filter(|(_, bytes)| !bytes.is_empty()).collect(),
        }
    }

    /// Where nobody names the roots or the way there, the signing certificate is its own root.
    #[must_use]
    pub fn or_self_signed(mut self) -> Self {
        if let Some(own) = self.parts.get(chain::ISTIO.certificate).cloned() {
            let absent = [Some(chain::ISTIO.roots), chain::ISTIO.chain];
            for part in absent.into_iter().flatten() {
                self.parts
                    .entry(part.to_owned())
                    .or_insert_with(|| own.clone());
            }
        }
        self
    }

    pub(super) fn part(&self, name: &str) -> Option<&[u8]> {
        self.parts.get(name).map(|bytes| bytes.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use cluster::k8s_openapi::ByteString;
    use spiffe::TrustDomain;

    use super::super::{Authority, Lifetimes, store};
    use super::*;

    /// What a root of our own is kept as, without some of its parts.
    fn kept(without: &[&str]) -> Material {
        let parts = store::self_signed(&TrustDomain::default(), SystemTime::now()).unwrap();
        let parts = parts.iter().filter(|(name, _)| !without.contains(name));
        let data = parts.map(|(name, text)| {
            let bytes = ByteString(text.as_bytes().to_vec());
            ((*name).to_owned(), bytes)
        });
        let secret = Secret {
            data: Some(data.collect()),
            ..Secret::default()
        };
        Material::in_secret("istio-system", "istio-ca-secret", secret)
    }

    #[test]
    fn a_self_signed_root_needs_no_more_than_its_certificate_and_key() {
        for without in [&[][..], &["root-cert.pem", "cert-chain.pem", "key.pem"]] {
            let material = kept(without).or_self_signed();
            let authority = Authority::read(&material, Lifetimes::default()).unwrap();
            let own = material.part("ca-cert.pem").unwrap();
            let roots = authority.root_bundle_pem().replace("\r\n", "\n");
            assert_eq!(roots.as_bytes(), own);
        }
    }

    #[test]
    fn what_is_missing_is_named_by_secret_and_key() {
        let check = |material: Material, expected: &str| {
            let error = Authority::read(&material, Lifetimes::default()).unwrap_err();
            assert_eq!(error.to_string(), expected);
        };
        let secret = "the CA in Secret istio-system/istio-ca-secret is incomplete";
        check(kept(&[]), &format!("{secret}: cert-chain.pem is missing"));
        check(
            kept(&["ca-key.pem"]).or_self_signed(),
            &format!("{secret}: ca-key.pem is missing"),
        );
        check(
            kept(&["ca-cert.pem"]).or_self_signed(),
            &format!("{secret}: ca-cert.pem is missing"),
        );
    }
}
