// SPDX-License-Identifier: Apache-2.0
//! Certificates from the outside: ask the control plane for one, and see which one a pod's tunnel port shows.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use identity::{
    CaClient as _, ControlPlane, ControlPlaneConfig, CsrRequest, IstioCa, RootSource, TokenSource,
    WorkloadCertificate, tls,
};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use serde::{Deserialize, Serialize};
use spiffe::SpiffeId;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use crate::topology::{CLUSTER_ID, CONTROL_PLANE_NAME, CONTROL_PLANE_PORT};

/// A request for a certificate, as a node's proxy makes it.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Example (the proxy of node-a asks for an account that runs on node-a):\n  e2e exec node-a -- e2e certificate --token STATE/node-a/volumes/istio-system_ztunnel-a/tokens/istio-token \\\n      --roots STATE/istiod/root-cert.pem spiffe://cluster.local/ns/shop/sa/client"
)]
pub struct Certificate {
    /// Whose certificate is asked for
    pub identity: SpiffeId,
    /// File with the token that says who asks
    #[arg(long)]
    pub token: Option<PathBuf>,
    /// File with the roots that vouch for the control plane
    #[arg(long)]
    pub roots: PathBuf,
}

/// A call at a pod's tunnel port.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Run it in a node's namespace; there nothing is captured.")]
pub struct Peer {
    /// The pod's address with port 15008
    pub target: SocketAddr,
    /// Dial as this workload; it must run on the node whose token is given
    #[arg(long = "as", value_name = "SPIFFE_ID")]
    pub identity: SpiffeId,
    /// File with the token of the node's proxy
    #[arg(long)]
    pub token: PathBuf,
    /// File with the roots that vouch for the control plane
    #[arg(long)]
    pub roots: PathBuf,
    /// Show no certificate
    #[arg(long)]
    pub anonymous: bool,
}

/// What was answered.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Why there is none.
    pub error: Option<String>,
    /// Who the certificate speaks for.
    pub identity: Option<String>,
    /// Every name in it.
    pub names: Vec<String>,
    /// Whether it may sign others.
    pub signs: bool,
    /// Certificates from the leaf up, without the root.
    pub chain: usize,
    pub seconds_left: Option<i64>,
    pub tls: Option<String>,
    pub key_exchange: Option<String>,
    pub protocol: Option<String>,
}

impl Answer {
    fn refused(error: impl Into<String>) -> Self {
        Self {
            error: Some(error.into()),
            ..Self::default()
        }
    }
}

const PATIENCE: Duration = Duration::from_secs(10);

/// Asks for a certificate; a refusal is an answer.
pub async fn request(request: &Certificate) -> Result<Answer> {
    let token = request
        .token
        .clone()
        .map_or(TokenSource::None, TokenSource::File);
    match sign(&request.identity, token, &request.roots).await {
        Ok((chain, _key)) => {
            let mut answer = leaf(&chain)?;
            answer.chain = chain.len().saturating_sub(1);
            Ok(answer)
        }
        Err(refusal) => Ok(Answer::refused(format!("{refusal:#}"))),
    }
}

/// Dials a tunnel port; a refusal is an answer.
pub async fn dial(peer: &Peer) -> Result<Answer> {
    let (chain, key) = sign(
        &peer.identity,
        TokenSource::File(peer.token.clone()),
        &peer.roots,
    )
    .await?;
    let own = WorkloadCertificate::from_pem(Some(&peer.identity), &chain, &key)
        .context("the own certificate")?;
    let config = client_config(&own, peer.anonymous)?;
    let attempt = tokio::time::timeout(PATIENCE, handshake(peer.target, config)).await;
    Ok(match attempt {
        Ok(Ok(answer)) => answer,
        Ok(Err(refusal)) => Answer::refused(format!("{refusal:#}")),
        Err(_) => Answer::refused(format!("no answer within {PATIENCE:?}")),
    })
}

async fn sign(
    identity: &SpiffeId,
    token: TokenSource,
    roots: &std::path::Path,
) -> Result<(Vec<String>, String)> {
    let (csr_pem, key) = signing_request(identity)?;
    let control_plane = ControlPlane::new(ControlPlaneConfig {
        address: format!("https://{CONTROL_PLANE_NAME}:{CONTROL_PLANE_PORT}"),
        root: RootSource::File(roots.to_owned()),
        token,
        cluster_id: CLUSTER_ID.into(),
        alt_hostname: None,
        headers: Vec::new(),
    })
    .context("the control plane's address")?;
    let request = CsrRequest {
        csr_pem,
        identity: identity.clone(),
        ttl: Duration::from_secs(3600),
    };
    let authority = IstioCa::new(control_plane);
    let signing = tokio::time::timeout(PATIENCE, authority.sign(request)).await;
    let chain = signing.context("the control plane did not answer")??;
    Ok((chain, key))
}

/// A request for a certificate, and the key that it is for, as PEM.
pub(crate) fn signing_request(identity: &SpiffeId) -> Result<(String, String)> {
    signing_request_of(identity, |_| {})
}

/// The same with more in it.
pub(crate) fn signing_request_of(
    identity: &SpiffeId,
    more: impl FnOnce(&mut rcgen::CertificateParams),
) -> Result<(String, String)> {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)
        .context("cannot make a key")?;
    let mut parameters = rcgen::CertificateParams::default();
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    let name = identity
        .to_string()
        .try_into()
        .context("the identity as a name")?;
    parameters.subject_alt_names = vec![rcgen::SanType::URI(name)];
    more(&mut parameters);
    let request = parameters
        .serialize_request(&key)
        .context("cannot make a request")?;
    let request = request.pem().context("the request as PEM")?;
    Ok((request, key.serialize_pem()))
}

async fn handshake(target: SocketAddr, config: Arc<ClientConfig>) -> Result<Answer> {
    let stream = TcpStream::connect(target)
        .await
        .with_context(|| format!("cannot connect to {target}"))?;
    let mut stream = TlsConnector::from(config)
        .connect(tls::server_name(), stream)
        .await
        .context("handshake")?;
    // In TLS 1.3 a server judges the client after the client is done; its first frame says that it did not object.
    let mut first = [0; 1];
    let count = stream
        .read(&mut first)
        .await
        .context("the server refused this client")?;
    anyhow::ensure!(count == 1, "the server ended the connection");
    let (_, session) = stream.get_ref();
    let certificates = session
        .peer_certificates()
        .context("the server showed no certificate")?;
    let mut answer = describe(
        certificates
            .first()
            .context("the server showed no certificate")?,
    )?;
    answer.chain = certificates.len();
    answer.tls = session
        .protocol_version()
        .map(|version| format!("{version:?}"));
    answer.key_exchange = session
        .negotiated_key_exchange_group()
        .map(|group| format!("{:?}", group.name()));
    answer.protocol = session
        .alpn_protocol()
        .map(|name| String::from_utf8_lossy(name).into_owned());
    Ok(answer)
}

fn client_config(own: &WorkloadCertificate, anonymous: bool) -> Result<Arc<ClientConfig>> {
    let verifier = AnyMember::new(own.roots().clone())?;
    let builder = ClientConfig::builder_with_provider(tls::provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .context("TLS 1.3")?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = if anonymous {
        builder.with_no_client_auth()
    } else {
        let resolver = rustls::sign::SingleCertAndKey::from(own.certified_key().clone());
        builder.with_client_cert_resolver(Arc::new(resolver))
    };
    config.alpn_protocols = vec![tls::ALPN_H2.to_vec()];
    config.enable_sni = false;
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Accepts whoever holds a certificate of the mesh: the point is to learn who it is.
#[derive(Debug)]
struct AnyMember {
    roots: Arc<RootCertStore>,
    signatures: Arc<WebPkiServerVerifier>,
}

impl AnyMember {
    fn new(roots: Arc<RootCertStore>) -> Result<Self> {
        let signatures =
            WebPkiServerVerifier::builder_with_provider(roots.clone(), tls::provider()).build();
        Ok(Self {
            roots,
            signatures: signatures.context("the mesh's roots")?,
        })
    }
}

impl ServerCertVerifier for AnyMember {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let leaf = rustls::server::ParsedCertificate::try_from(end_entity)?;
        let algorithms = tls::provider().signature_verification_algorithms.all;
        rustls::client::verify_server_cert_signed_by_trust_anchor(
            &leaf,
            &self.roots,
            intermediates,
            now,
            algorithms,
        )?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General(
            "TLS 1.2 is not spoken in the mesh".into(),
        ))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signatures
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signatures.supported_verify_schemes()
    }
}

/// What the first of a chain of PEM elements says.
pub(crate) fn leaf(chain: &[String]) -> Result<Answer> {
    let leaf = chain
        .first()
        .context("the control plane answered with no certificate")?;
    let (_, block) =
        x509_parser::pem::parse_x509_pem(leaf.as_bytes()).context("the certificate is no PEM")?;
    describe(&block.contents)
}

fn describe(der: &[u8]) -> Result<Answer> {
    let (_, certificate) =
        X509Certificate::from_der(der).context("the certificate can't be read")?;
    let alternatives = certificate
        .subject_alternative_name()
        .context("its names can't be read")?;
    let names: Vec<String> = alternatives
        .iter()
        .flat_map(|extension| &extension.value.general_names)
        .map(|name| match name {
            GeneralName::URI(uri) => (*uri).to_owned(),
            other => other.to_string(),
        })
        .collect();
    let now = time::OffsetDateTime::now_utc().unix_timestamp();
    Ok(Answer {
        identity: names
            .iter()
            .find(|name| name.parse::<SpiffeId>().is_ok())
            .cloned(),
        names,
        signs: certificate.is_ca(),
        seconds_left: Some(certificate.validity().not_after.timestamp() - now),
        ..Answer::default()
    })
}
