// SPDX-License-Identifier: Apache-2.0
//! What TLS is begun with: certificates and keys from files, read again when they may have changed.
//!
//! In: [`Tls`]. Out: a configuration of rustls, the same one while its files are the same, so that sessions are resumed.
//! What is kept of a key is what signs with it; its bytes are wiped. No content of a file stands in any error.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{Context, SHA256};
use parking_lot::Mutex;
use rustls::crypto::aws_lc_rs as cryptography;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore};
use zeroize::{Zeroize as _, Zeroizing};

use super::verifier::NamedVerifier;
use super::{Authorities, Shown, Tls};

/// How long what was read counts, and that it can't be used.
const KEPT: Duration = Duration::from_secs(30);
const FAILURE_KEPT: Duration = Duration::from_secs(1);

const MOST: usize = 1024;
const LONGEST_FILE: u64 = 1 << 20;

type Built = Result<Arc<ClientConfig>, Arc<str>>;

/// Those that were asked for lately.
#[derive(Default)]
pub struct Configs(Mutex<HashMap<Tls, Kept>>);

struct Kept {
    built: Built,
    digest: [u8; 32],
    until: Instant,
}

/// The files that there are; a key is wiped behind them.
#[derive(Default)]
struct Contents {
    authorities: Option<Vec<u8>>,
    shown: Option<(Vec<u8>, Zeroizing<Vec<u8>>)>,
}

impl Configs {
    /// For a waypoint of this namespace.
    ///
    /// # Errors
    /// What can't be used of it.
    pub(super) async fn get(
        &self,
        tls: &Tls,
        namespace: &str,
    ) -> Result<Arc<ClientConfig>, String> {
        if let Some(Shown { namespace: own, .. }) = &tls.shown
            && !own.is_empty()
            && **own != *namespace
        {
            return Err(format!(
                "its rule is of namespace {own}, and only waypoints of that show its certificate"
            ));
        }
        let now = Instant::now();
        let kept = |kept: &HashMap<Tls, Kept>| {
            let kept = kept.get(tls).filter(|kept| now < kept.until)?;
            Some(kept.built.clone())
        };
        if let Some(built) = kept(&self.0.lock()) {
            return built.map_err(|reason| reason.to_string());
        }
        let wanted = tls.clone();
        let reading = tokio::task::spawn_blocking(move || Contents::read(&wanted));
        let read = reading.await.unwrap_or_else(|error| Err(error.to_string()));
        let mut all = self.0.lock();
        let (built, digest): (Built, _) = match read {
            Err(reason) => (Err(reason.into()), [0; 32]),
            Ok(contents) => {
                let digest = contents.digest();
                let same = all.get(tls).filter(|kept| kept.digest == digest);
                let same = same.and_then(|kept| kept.built.clone().ok());
                let built = match same {
                    Some(config) => Ok(config),
                    None => build(tls, &contents).map(Arc::new).map_err(Arc::from),
                };
                (built, digest)
            }
        };
        if all.len() >= MOST {
            all.retain(|_, kept| now < kept.until);
            // What is asked for anew then is read anew.
            if all.len() >= MOST {
                all.clear();
            }
        }
        let until = now + if built.is_ok() { KEPT } else { FAILURE_KEPT };
        let kept = Kept {
            built: built.clone(),
            digest,
            until,
        };
        all.insert(tls.clone(), kept);
        built.map_err(|reason| reason.to_string())
    }
}

impl Contents {
    fn read(tls: &Tls) -> Result<Self, String> {
        let authorities = match &tls.authorities {
            Authorities::File(path) => Some(read_file(path)),
            Authorities::System | Authorities::Given(_) => None,
        };
        let shown = tls.shown.as_ref().map(|shown| {
            let key = read_file(&shown.key).map(Zeroizing::new)?;
            Ok::<_, String>((read_file(&shown.chain)?, key))
        });
        Ok(Self {
            authorities: authorities.transpose()?,
            shown: shown.transpose()?,
        })
    }

    /// By which it is known whether anything has changed.
    fn digest(&self) -> [u8; 32] {
        let mut digest = Context::new(&SHA256);
        let shown = self.shown.as_ref();
        let parts = [
            self.authorities.as_deref(),
            shown.map(|(chain, _)| chain.as_slice()),
            shown.map(|(_, key)| key.as_slice()),
        ];
        for part in parts.into_iter().flatten() {
            digest.update(&(part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest.finish().as_ref());
        bytes
    }
}

/// The bytes of a file, of which there are few; nothing that waits or never ends is read.
fn read_file(path: &str) -> Result<Vec<u8>, String> {
    let fault = |words: &dyn std::fmt::Display| format!("file {path}: {words}");
    let known = std::fs::metadata(path).map_err(|error| fault(&error))?;
    if !known.is_file() {
        return Err(fault(&"it is no file"));
    }
    let file = File::open(path).map_err(|error| fault(&error))?;
    // A vector that grows leaves copies behind.
    let mut bytes = Vec::with_capacity(LONGEST_FILE.min(known.len()) as usize + 1);
    let mut file = file.take(LONGEST_FILE + 1);
    let read = file.read_to_end(&mut bytes);
    read.map_err(|error| fault(&error))?;
    if bytes.len() as u64 > LONGEST_FILE {
        return Err(fault(&format_args!(
            "it is longer than {LONGEST_FILE} bytes"
        )));
    }
    Ok(bytes)
}

fn build(tls: &Tls, contents: &Contents) -> Result<ClientConfig, String> {
    let provider = Arc::new(cryptography::default_provider());
    let roots = match (&tls.authorities, &contents.authorities) {
        (Authorities::File(path), Some(pem)) => authorities(&format!("file {path}"), pem)?.into(),
        (Authorities::Given(pem), _) => {
            authorities("the given authorities", pem.as_bytes())?.into()
        }
        _ => Arc::clone(&SYSTEM),
    };
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = match tls.names.is_empty() {
        true => builder.with_root_certificates(roots),
        false => {
            let verifier = NamedVerifier::new(roots, Arc::clone(&tls.names), provider)?;
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(verifier))
        }
    };
    Ok(match (&tls.shown, &contents.shown) {
        (Some(files), Some((chain, key))) => {
            let shown = certified(files, chain, key)?;
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::new(shown))))
        }
        _ => builder.with_no_client_auth(),
    })
}

fn authorities(place: &str, pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(place, pem)? {
        let added = roots.add(certificate);
        added.map_err(|error| format!("{place}: {error}"))?;
    }
    Ok(roots)
}

/// At least one.
fn certificates(place: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    // The parser's own words may show what it stumbled over.
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let read = read.map_err(|_| format!("{place}: it is no PEM"))?;
    match read.is_empty() {
        true => Err(format!("{place}: it holds no certificate")),
        false => Ok(read),
    }
}

fn certified(files: &Shown, chain: &[u8], key: &[u8]) -> Result<CertifiedKey, String> {
    let path = &files.key;
    let certificates = certificates(&format!("file {}", files.chain), chain)?;
    let key = PrivateKeyDer::from_pem_slice(key);
    let mut key = key.map_err(|_| format!("file {path}: it holds no private key in PEM"))?;
    let signing = cryptography::sign::any_supported_type(&key);
    key.zeroize();
    let signing = signing.map_err(|_| format!("file {path}: its key can't be used"))?;
    let certified = CertifiedKey::new(certificates, signing);
    let of_another = |error| {
        format!(
            "the certificate of {} and the key of {path}: {error}",
            files.chain
        )
    };
    certified.keys_match().map_err(of_another)?;
    Ok(certified)
}

/// Whom the system trusts; where it trusts nobody, as in an image that holds nothing but this program, whom browsers do.
static SYSTEM: LazyLock<Arc<RootCertStore>> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "some of the system's certificate authorities can't be read");
    }
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let known = webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter();
        roots.add_parsable_certificates(known.cloned());
    }
    Arc::new(roots)
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_content_of_a_file_stands_in_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(path("secret"), "-----BEGIN hush\nhush hush\n").unwrap();
        let check = |authorities: &str, expected: &str| {
            let tls = Tls::compile(&proto::waypoint::Tls {
                server_name: "a.example.com".into(),
                authorities: authorities.to_owned(),
                ..Default::default()
            });
            let tls = tls.unwrap();
            let built = Contents::read(&tls).and_then(|read| build(&tls, &read));
            let told = built.err().unwrap_or_default();
            assert!(told.contains(expected) && !told.contains("hush"), "{told}");
        };
        check(&path("secret"), "it is no PEM");
        std::fs::write(path("empty"), "").unwrap();
        check(&path("empty"), "it holds no certificate");
        check(&path("none"), "No such file");
        check("/dev/zero", "it is no file");
        let long = File::create(path("long")).unwrap();
        long.set_len(LONGEST_FILE + 1).unwrap();
        check(&path("long"), "longer than");
    }
}
