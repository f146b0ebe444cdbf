// SPDX-License-Identifier: Apache-2.0
//! A certificate authority in memory, for tests of the crates above.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData,
    SanType,
};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use spiffe::SpiffeId;

use crate::certificate::generate_key;
use crate::{BoxFuture, CaClient, CertificateError, CsrRequest, WorkloadCertificate, tls};

/// From when until when a certificate holds.
#[derive(Debug, Clone, Copy)]
pub struct Validity {
    /// Start.
    pub not_before: SystemTime,
    /// End.
    pub not_after: SystemTime,
}

impl Validity {
    /// From two minutes ago, for `ttl` from now.
    pub fn lasting(ttl: Duration) -> Self {
        let now = SystemTime::now();
        Self {
            not_before: now - Duration::from_secs(120),
            not_after: now + ttl,
        }
    }

    /// Over since an hour.
    pub fn expired() -> Self {
        let now = SystemTime::now();
        Self {
            not_before: now - Duration::from_secs(2 * 3600),
            not_after: now - Duration::from_secs(3600),
        }
    }
}

/// A root that issues workload certificates.
pub struct TestAuthority {
    issuer: Issuer<'static, KeyPair>,
    root_pem: String,
    /// Further roots that workloads of this authority trust.
    also_trusted: Vec<String>,
}

impl TestAuthority {
    /// A fresh root with this common name.
    pub fn new(name: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let root_pem = params.self_signed(&key).expect("a root").pem();
        Self {
            issuer: Issuer::new(params, key),
            root_pem,
            also_trusted: Vec::new(),
        }
    }

    /// Bundles of this authority hold the other's root too.
    #[must_use]
    pub fn also_trusting(mut self, other: &Self) -> Self {
        self.also_trusted.push(other.root_pem.clone());
        self
    }

    /// The own root alone.
    pub fn root_pem(&self) -> &str {
        &self.root_pem
    }

    /// The bundle that comes last in each chain.
    pub fn bundle(&self) -> String {
        let mut bundle = self.root_pem.clone();
        for root in &self.also_trusted {
            bundle.push_str(root);
        }
        bundle
    }

    /// A certificate for an hour.
    pub fn issue(&self, id: &SpiffeId) -> Arc<WorkloadCertificate> {
        self.issue_valid(id, Validity::lasting(Duration::from_secs(3600)))
    }

    /// A certificate for as long as you like.
    pub fn issue_valid(&self, id: &SpiffeId, validity: Validity) -> Arc<WorkloadCertificate> {
        let key = generate_key().expect("a key");
        let chain = [self.sign(&*key, vec![uri(id)], validity), self.bundle()];
        let key_pem = key.serialize_pem();
        Arc::new(WorkloadCertificate::from_pem(Some(id), &chain, &key_pem).expect("a certificate"))
    }

    /// A leaf for any key and any names, in PEM.
    pub fn sign(
        &self,
        key: &impl PublicKeyData,
        names: Vec<SanType>,
        validity: Validity,
    ) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = names;
        params.not_before = validity.not_before.into();
        params.not_after = validity.not_after.into();
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
        ];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params
            .signed_by(key, &self.issuer)
            .expect("a leaf certificate")
            .pem()
    }

    /// What a certificate service answers to a request for `id`.
    pub fn answer(&self, csr_pem: &str, id: &SpiffeId, validity: Validity) -> Vec<String> {
        let csr = CertificateSigningRequestParams::from_pem(csr_pem).expect("a valid request");
        vec![
            self.sign(&csr.public_key, vec![uri(id)], validity),
            self.bundle(),
        ]
    }

    /// How a control plane with this DNS name serves (no client certificates, h2).
    pub fn serving_config(&self, dns_name: &str) -> Arc<ServerConfig> {
        let key = KeyPair::generate().expect("a key");
        let name = SanType::DnsName(dns_name.try_into().expect("a DNS name"));
        let leaf = self.sign(
            &key,
            vec![name],
            Validity::lasting(Duration::from_secs(3600)),
        );
        let leaf = pem::parse(leaf).expect("PEM").into_contents();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(tls::provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3")
            .with_no_client_auth()
            .with_single_cert(vec![CertificateDer::from(leaf)], key)
            .expect("a serving certificate");
        config.alpn_protocols = vec![tls::ALPN_H2.to_vec()];
        Arc::new(config)
    }
}

/// Signs whatever it is asked for.
impl CaClient for TestAuthority {
    fn sign(&self, request: CsrRequest) -> BoxFuture<'_, Result<Vec<String>, CertificateError>> {
        let validity = Validity::lasting(request.ttl);
        let chain = self.answer(&request.csr_pem, &request.identity, validity);
        Box::pin(std::future::ready(Ok(chain)))
    }
}

/// The SAN of an identity.
pub fn uri(id: &SpiffeId) -> SanType {
    SanType::URI(id.as_str().try_into().expect("an id is ASCII"))
}
