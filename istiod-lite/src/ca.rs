// SPDX-License-Identifier: Apache-2.0
//! The certificate authority: from a CSR only its public key, from us everything else.
//!
//! ```text
//!  directory ─┐                                    ┌─► sign: CSR + identity → leaf, intermediates, roots
//!             ├─► material ─► chain (checked) ─► Authority
//!  Secret ────┘                                    └─► issue_serving: our own TLS certificate
//!
//!  origin changes ─► LiveAuthority: which Authority is in force ◄─ rotation: what may be by now ◄─ ledger: who holds what
//!                                                                                      ▲─ replicas: and of the others
//! ```
//!
//! Who may have which identity is decided before, in `authenticate`; this module issues what it is told to.

mod chain;
mod csr;
mod material;
mod origin;
mod replicas;
mod rotation;

#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod ledger;
mod live;
mod report;
mod serving;
mod store;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{
    CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, SanType, SerialNumber, SignatureAlgorithm, SigningKey,
};
use rustls_pki_types::PrivatePkcs8KeyDer;
use spiffe::{SpiffeId, TrustDomain};
use time::OffsetDateTime;
use tonic::Code;
use zeroize::Zeroize;

use chain::Chain;
pub use live::{LiveAuthority, News};
pub use material::{Material, Place};
pub use origin::{Origin, Secrets};
pub use replicas::Record;
pub use report::Report;
use rotation::{Anchor, Root, Trust};
pub use serving::{ServingCertificate, ServingName};
pub use store::open_or_create;

/// Certificates are valid from a little before they are issued, for clients whose clock is behind.
const CLOCK_SKEW: Duration = Duration::from_secs(120);

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How long our own TLS certificate is valid.
const SERVING_TTL: Duration = Duration::from_secs(90 * 24 * 60 * 60);

/// How long before the end of the CA itself it is worth a warning.
const EXPIRES_SOON: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// How long workload certificates are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// When the client names none (`DEFAULT_WORKLOAD_CERT_TTL`).
    pub default: Duration,
    /// What a client may ask for at most (`MAX_WORKLOAD_CERT_TTL`).
    pub max: Duration,
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self {
            default: DAY,
            max: 90 * DAY,
        }
    }
}

/// Why there is no authority to start with.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    #[error("the CA's {place}: {error}")]
    Io {
        place: String,
        error: std::io::Error,
    },
    #[error("the CA in {place} is incomplete: {missing} is missing")]
    Incomplete { place: Place, missing: &'static str },
    #[error("the CA's {place}: {reason}")]
    Part { place: String, reason: String },
    #[error("the CA's key in {key} does not belong to the certificate in {certificate}")]
    KeyMismatch { key: String, certificate: String },
    #[error("the CA's certificate {subject:?} in {place} expired on {not_after}")]
    Expired {
        place: String,
        subject: String,
        not_after: OffsetDateTime,
    },
    #[error("the CA's certificate {subject:?} in {place} is not valid before {not_before}")]
    NotYetValid {
        place: String,
        subject: String,
        not_before: OffsetDateTime,
    },
    #[error("creating a root of our own: {0}")]
    Create(rcgen::Error),
    #[error("the CA's certificate in {place} does not sign well: {reason}")]
    SelfTest { place: String, reason: String },
    #[error("Secret {namespace}/{name}: {error}")]
    Secret {
        namespace: String,
        name: String,
        error: cluster::RequestError,
    },
    #[error(
        "Secrets cacerts and istio-ca-secret of namespace {namespace} are gone: a restart makes another root"
    )]
    Gone { namespace: String },
}

impl CaError {
    /// Whether the API server has understood what it was asked for, and won't.
    fn is_refusal(&self) -> bool {
        let Self::Secret { error, .. } = self else {
            return false;
        };
        // Who asks too often is asked to come again.
        error
            .code()
            .is_some_and(|code| (400..500).contains(&code) && code != 429)
    }
}

/// Why a certificate was not issued.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    #[error("certificate request: {0}")]
    Request(String),
    #[error("certificate request: the signature does not match the key")]
    Signature,
    #[error(
        "certificate request: {0}; accepted are ECDSA P-256, ECDSA P-384 and RSA of 2048 to 8192 bits"
    )]
    Key(String),
    #[error("a validity of {asked} s was asked for, at most {max} s are granted")]
    TooLong { asked: i64, max: u64 },
    #[error("the CA itself expired on {0}")]
    SignerExpired(OffsetDateTime),
    #[error("the CA itself is not valid before {0}")]
    SignerNotYetValid(OffsetDateTime),
    #[error("name {name:?} of the serving certificate: {reason}")]
    Name { name: String, reason: &'static str },
    #[error("signing: {0}")]
    Signing(String),
}

impl SignError {
    /// Whose fault it is, in gRPC's words.
    pub fn code(&self) -> Code {
        match self {
            Self::Request(_) | Self::Signature | Self::Key(_) | Self::TooLong { .. } => {
                Code::InvalidArgument
            }
            Self::SignerExpired(_)
            | Self::SignerNotYetValid(_)
            | Self::Name { .. }
            | Self::Signing(_) => Code::Internal,
        }
    }

    /// Whether the authority's own time is over, or has not come.
    pub fn is_of_time(&self) -> bool {
        matches!(self, Self::SignerExpired(_) | Self::SignerNotYetValid(_))
    }
}

/// A private key that leaves nothing in memory.
struct SecretKey(KeyPair);

impl Drop for SecretKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl PublicKeyData for SecretKey {
    fn der_bytes(&self) -> &[u8] {
        self.0.der_bytes()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        PublicKeyData::algorithm(&self.0)
    }
}

impl SigningKey for SecretKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        self.0.sign(message)
    }
}

/// Signs certificates. Clones share the key.
#[derive(Clone)]
pub struct Authority {
    signing: Arc<Signing>,
    bundle: Arc<Bundle>,
    lifetimes: Lifetimes,
}

/// The key, and the way from its certificate up to a root.
struct Signing {
    issuer: Issuer<'static, SecretKey>,
    chain: Chain,
}

/// The roots that are handed out.
struct Bundle {
    roots: Vec<Root>,
    anchors: Arc<BTreeSet<Anchor>>,
    pem: String,
}

impl Bundle {
    fn new(roots: Vec<Root>) -> Arc<Self> {
        Arc::new(Self {
            anchors: Arc::new(roots.iter().map(|root| root.anchor.clone()).collect()),
            pem: roots.iter().map(|root| root.pem.as_str()).collect(),
            roots,
        })
    }

    /// Whether it holds the same certificates; their order means nothing.
    fn is_like(&self, other: &Self) -> bool {
        let has = |bundle: &Self, pem: &str| bundle.roots.iter().any(|root| root.pem == pem);
        self.roots.iter().all(|root| has(other, &root.pem))
            && other.roots.iter().all(|root| has(self, &root.pem))
    }
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority")
            .field("subject", &self.signing.chain.subject)
            .field("not_after", &self.signing.chain.not_after())
            .finish_non_exhaustive()
    }
}

impl Authority {
    /// A root of our own, kept below `state`: made at the first start, the same ever after.
    pub fn own(
        state: &Path,
        trust_domain: &TrustDomain,
        lifetimes: Lifetimes,
        now: SystemTime,
    ) -> Result<Self, CaError> {
        let directory = open_or_create(state, trust_domain, now)?;
        Self::plugged_in(&directory, lifetimes, now)
    }

    /// The intermediate of somebody else's root: `ca-cert.pem`, `ca-key.pem`, `root-cert.pem`, `cert-chain.pem`, or
    /// `tls.crt`, `tls.key`, `ca.crt` (Istio page "Plug in CA Certificates").
    pub fn plugged_in(
        directory: &Path,
        lifetimes: Lifetimes,
        now: SystemTime,
    ) -> Result<Self, CaError> {
        let authority = Self::read(&Material::in_directory(directory)?, lifetimes)?;
        authority.check_time(now)?;
        Ok(authority)
    }

    /// As [`Self::plugged_in`], whether it is valid now or not.
    fn read(material: &Material, lifetimes: Lifetimes) -> Result<Self, CaError> {
        let (chain, key) = chain::load(material)?;
        let place = chain.path.clone();
        let bad = |error: rcgen::Error| CaError::Part {
            place: place.clone(),
            reason: error.to_string(),
        };
        let issuer = Issuer::from_ca_cert_der(&chain.signer, SecretKey(key)).map_err(bad)?;
        let bundle = Bundle::new(chain.roots.clone());
        let authority = Self {
            signing: Arc::new(Signing { issuer, chain }),
            bundle,
            lifetimes,
        };
        authority.self_test()?;
        Ok(authority)
    }

    /// The same, handing out these roots.
    fn with_roots(&self, roots: Vec<Root>) -> Self {
        Self {
            bundle: Bundle::new(roots),
            ..self.clone()
        }
    }

    /// Whether what it signs now could be verified; the error names the file, the certificate and the date.
    pub fn check_time(&self, now: SystemTime) -> Result<(), CaError> {
        self.signing.chain.check_time(now)
    }

    fn trust(&self) -> Trust<'_> {
        Trust {
            signer: &self.signing.chain.root,
            roots: &self.bundle.roots,
        }
    }

    /// The roots to trust, as PEM.
    pub fn root_bundle_pem(&self) -> &str {
        &self.bundle.pem
    }

    /// When the first certificate above the leaves expires.
    pub fn not_after(&self) -> SystemTime {
        self.signing.chain.not_after().into()
    }

    /// Certifies the request's key for `identity`. `validity_seconds` of 0 or less stands for the default. The answer
    /// is the leaf, then each intermediate, then the bundle of roots.
    pub fn sign(
        &self,
        csr_pem: &str,
        identity: &SpiffeId,
        validity_seconds: i64,
        now: SystemTime,
    ) -> Result<Vec<String>, SignError> {
        self.certify(csr_pem, identity, validity_seconds, now)
            .map(|(answer, _)| answer)
    }

    /// As [`Self::sign`], with the end of the leaf's validity.
    fn certify(
        &self,
        csr_pem: &str,
        identity: &SpiffeId,
        validity_seconds: i64,
        now: SystemTime,
    ) -> Result<(Vec<String>, SystemTime), SignError> {
        let ttl = self.ttl(validity_seconds)?;
        let key = csr::public_key(csr_pem)?;
        let uri = identity
            .as_str()
            .try_into()
            .map_err(|error: rcgen::Error| SignError::Signing(error.to_string()))?;
        let usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let leaf = self.issue(&key, vec![SanType::URI(uri)], usages, Validity { ttl, now })?;
        let mut answer = vec![leaf.pem()];
        answer.extend(self.signing.chain.intermediates_pem.iter().cloned());
        answer.push(self.bundle.pem.clone());
        Ok((answer, self.not_after().min(now + ttl)))
    }

    /// A TLS certificate and a new key for ourselves.
    pub fn issue_serving(
        &self,
        names: &[ServingName],
        now: SystemTime,
    ) -> Result<ServingCertificate, SignError> {
        if names.is_empty() {
            return Err(SignError::Name {
                name: String::new(),
                reason: "at least one is needed",
            });
        }
        let signing = |error: rcgen::Error| SignError::Signing(error.to_string());
        let names = names
            .iter()
            .map(|name| match name {
                ServingName::Dns(name) => {
                    Ok(SanType::DnsName(name.as_str().try_into().map_err(signing)?))
                }
                ServingName::Ip(ip) => Ok(SanType::IpAddress(*ip)),
            })
            .collect::<Result<_, SignError>>()?;
        let key = SecretKey(KeyPair::generate().map_err(signing)?);
        let validity = Validity {
            ttl: SERVING_TTL,
            now,
        };
        let leaf = self.issue(
            &key,
            names,
            vec![ExtendedKeyUsagePurpose::ServerAuth],
            validity,
        )?;
        let mut chain = vec![leaf.der().clone()];
        chain.extend(self.signing.chain.intermediates.iter().cloned());
        let lives = SERVING_TTL.min(self.not_after().duration_since(now).unwrap_or_default());
        Ok(ServingCertificate {
            chain,
            key: PrivatePkcs8KeyDer::from(key.0.serialized_der().to_vec()).into(),
            renew_at: now + lives / 2,
        })
    }

    fn ttl(&self, validity_seconds: i64) -> Result<Duration, SignError> {
        match u64::try_from(validity_seconds) {
            Err(_) | Ok(0) => Ok(self.lifetimes.default),
            Ok(seconds) if seconds > self.lifetimes.max.as_secs() => Err(SignError::TooLong {
                asked: validity_seconds,
                max: self.lifetimes.max.as_secs(),
            }),
            Ok(seconds) => Ok(Duration::from_secs(seconds)),
        }
    }

    fn issue(
        &self,
        key: &impl PublicKeyData,
        names: Vec<SanType>,
        usages: Vec<ExtendedKeyUsagePurpose>,
        validity: Validity,
    ) -> Result<rcgen::Certificate, SignError> {
        match self.check_time(validity.now) {
            Ok(()) => {}
            Err(CaError::NotYetValid { not_before, .. }) => {
                return Err(SignError::SignerNotYetValid(not_before));
            }
            Err(_) => return Err(SignError::SignerExpired(self.signing.chain.not_after())),
        }
        let Validity { ttl, now } = validity;
        let not_after = OffsetDateTime::from(now + ttl).min(self.signing.chain.not_after());
        self.leaf(key, names, usages, ((now - CLOCK_SKEW).into(), not_after))
            .map_err(|error| SignError::Signing(error.to_string()))
    }

    fn leaf(
        &self,
        key: &impl PublicKeyData,
        names: Vec<SanType>,
        usages: Vec<ExtendedKeyUsagePurpose>,
        (not_before, not_after): (OffsetDateTime, OffsetDateTime),
    ) -> Result<rcgen::Certificate, rcgen::Error> {
        let mut params = CertificateParams::default();
        params.not_before = not_before;
        params.not_after = not_after;
        params.serial_number = Some(serial());
        params.subject_alt_names = names;
        // Without a subject the name in the SAN counts alone, and the SAN becomes critical (RFC 5280 §4.2.1.6).
        params.distinguished_name = DistinguishedName::new();
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
        ];
        params.extended_key_usages = usages;
        params.use_authority_key_identifier_extension = true;
        params.signed_by(key, &self.signing.issuer)
    }

    /// Issues one certificate and checks it against the CA's: better now than in every handshake.
    fn self_test(&self) -> Result<(), CaError> {
        let Signing { issuer, chain } = &*self.signing;
        let fail = |reason: String| CaError::SelfTest {
            place: chain.path.clone(),
            reason,
        };
        let probe = vec![SanType::IpAddress(IpAddr::from([127, 0, 0, 1]))];
        let end = chain.not_after();
        let leaf = self
            .leaf(issuer.key(), probe, Vec::new(), (end - DAY, end))
            .map_err(|error| fail(error.to_string()))?;
        chain::check_issued(leaf.der(), &chain.signer).map_err(fail)
    }
}

#[derive(Clone, Copy)]
struct Validity {
    ttl: Duration,
    now: SystemTime,
}

fn serial() -> SerialNumber {
    SerialNumber::from_slice(&rand::random::<[u8; 16]>())
}

#[cfg(test)]
mod tests;
