// SPDX-License-Identifier: Apache-2.0
//! A certificate authority in memory, for tests of the crates above.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams,
    CertificateSigningRequestParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, PublicKeyData, RevokedCertParams, SanType,
    SerialNumber,
};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use spiffe::SpiffeId;

use crate::certificate::generate_key;
use crate::{
    BoxFuture, CaClient, CertificateError, CsrRequest, Revocation, WorkloadCertificate, tls,
};

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

/// A root that issues workload certificates, or an intermediate below one.
pub struct TestAuthority {
    issuer: Issuer<'static, KeyPair>,
    /// From the issuer up to the root, without it.
    intermediates: Vec<String>,
    root_pem: String,
    /// Further roots that workloads of this authority trust.
    also_trusted: Vec<String>,
}

impl TestAuthority {
    /// A fresh root with this common name.
    pub fn new(name: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        let params = authority_params(name);
        let root_pem = params.self_signed(&key).expect("a root").pem();
        Self {
            issuer: Issuer::new(params, key),
            intermediates: Vec::new(),
            root_pem,
            also_trusted: Vec::new(),
        }
    }

    /// A fresh intermediate with this common name, certified by this authority.
    pub fn intermediate(&self, name: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        let params = authority_params(name);
        let certificate = params.signed_by(&key, &self.issuer);
        let own = certificate.expect("an intermediate").pem();
        Self {
            issuer: Issuer::new(params, key),
            intermediates: [vec![own], self.intermediates.clone()].concat(),
            root_pem: self.root_pem.clone(),
            also_trusted: self.also_trusted.clone(),
        }
    }

    /// A revocation list of this authority in PEM, with these serial numbers, that was due to be replaced an hour ago.
    pub fn crl(&self, serials: &[Vec<u8>]) -> String {
        let now = SystemTime::now();
        let revoked = serials.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from_slice(serial),
            revocation_time: now.into(),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: (now - Duration::from_secs(7200)).into(),
            next_update: (now - Duration::from_secs(3600)).into(),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = params.signed_by(&self.issuer).expect("a list");
        list.pem().expect("PEM")
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

    /// A certificate for an hour, whose peers are checked against what is revoked.
    pub fn issue_checking(
        &self,
        id: &SpiffeId,
        revocation: &Revocation,
    ) -> Arc<WorkloadCertificate> {
        let validity = Validity::lasting(Duration::from_secs(3600));
        Arc::new(self.make(id, validity).checking(revocation.clone()))
    }

    /// A certificate for as long as you like.
    pub fn issue_valid(&self, id: &SpiffeId, validity: Validity) -> Arc<WorkloadCertificate> {
        Arc::new(self.make(id, validity))
    }

    fn make(&self, id: &SpiffeId, validity: Validity) -> WorkloadCertificate {
        let key = generate_key().expect("a key");
        let leaf = self.sign(&*key, vec![uri(id)], validity);
        let chain = self.chain(leaf);
        let key_pem = key.serialize_pem();
        WorkloadCertificate::from_pem(Some(id), &chain, &key_pem).expect("a certificate")
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
        self.chain(self.sign(&csr.public_key, vec![uri(id)], validity))
    }

    fn chain(&self, leaf: String) -> Vec<String> {
        let mut chain = vec![leaf];
        chain.extend(self.intermediates.iter().cloned());
        chain.push(self.bundle());
        chain
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

/// The serial number of one certificate of a chain, the leaf being number 0.
pub fn serial(certificate: &WorkloadCertificate, index: usize) -> Vec<u8> {
    let der = &certificate.certified_key().cert[index];
    let parsed = crate::certificate::parse(der).expect("a certificate");
    parsed.raw_serial().to_vec()
}

/// The serial number of a certificate in PEM.
pub fn serial_of_pem(pem: &str) -> Vec<u8> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate in PEM");
    let parsed = crate::certificate::parse(&der).expect("a certificate");
    parsed.raw_serial().to_vec()
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// The SAN of an identity.
pub fn uri(id: &SpiffeId) -> SanType {
    SanType::URI(id.as_str().try_into().expect("an id is ASCII"))
}
