// SPDX-License-Identifier: Apache-2.0
//! One handshake with a tunnel port, by somebody who takes whoever answers.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use identity::tls;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme, SupportedProtocolVersion};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Whom to call, and as whom.
#[derive(Debug, Clone, clap::Args)]
pub struct Caller {
    /// The pod's address with port 15008
    pub target: SocketAddr,
    /// PEM file with the chain and the key to show; none to show nothing
    #[arg(long)]
    pub credentials: Option<PathBuf>,
}

#[derive(Debug, Clone, clap::Args)]
pub struct Shake {
    #[command(flatten)]
    pub caller: Caller,
    /// The highest version of TLS to speak: 1.2 or 1.3
    #[arg(long, default_value = "1.3", value_parser = ["1.2", "1.3"])]
    pub tls: String,
    /// The application protocol to offer; empty to offer none
    #[arg(long, default_value = "h2")]
    pub protocol: String,
}

/// What became of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Shaken {
    /// It was let in: the other end has begun to speak HTTP/2.
    pub admitted: bool,
    /// Why not, as the other end said it or this end saw it.
    pub refusal: Option<String>,
    /// From the connect to the end.
    pub took: Duration,
}

const PATIENCE: Duration = Duration::from_secs(30);

pub async fn run(shake: &Shake) -> Result<Shaken> {
    let version = match shake.tls.as_str() {
        "1.2" => &rustls::version::TLS12,
        _ => &rustls::version::TLS13,
    };
    let config = config(
        shake.caller.credentials.as_deref(),
        version,
        &shake.protocol,
    )?;
    let started = Instant::now();
    let attempt = tokio::time::timeout(PATIENCE, hear(&shake.caller, config)).await;
    let refusal = match attempt {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!("no word within {PATIENCE:?}")),
    };
    Ok(Shaken {
        admitted: refusal.is_none(),
        refusal,
        took: started.elapsed(),
    })
}

/// In TLS 1.3 a server judges the client after the client is done; its first frame says that it did not object.
async fn hear(caller: &Caller, config: Arc<ClientConfig>) -> io::Result<()> {
    let mut stream = shake_hands(caller, config).await?;
    let mut first = [0; 1];
    match stream.read(&mut first).await? {
        0 => Err(io::Error::other("the other end closed without a word")),
        _ => Ok(()),
    }
}

async fn shake_hands(
    caller: &Caller,
    config: Arc<ClientConfig>,
) -> io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(caller.target).await?;
    TlsConnector::from(config)
        .connect(tls::server_name(), stream)
        .await
}

/// A tunnel as a member of the mesh has it, before its first frame.
pub(super) async fn tunnel(caller: &Caller) -> Result<TlsStream<TcpStream>> {
    let config = config(caller.credentials.as_deref(), &rustls::version::TLS13, "h2")?;
    let shaken = tokio::time::timeout(PATIENCE, shake_hands(caller, config)).await;
    shaken
        .context("no handshake in time")?
        .with_context(|| format!("handshake with {}", caller.target))
}

fn config(
    credentials: Option<&Path>,
    version: &'static SupportedProtocolVersion,
    protocol: &str,
) -> Result<Arc<ClientConfig>> {
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[version])
        .context("the version")?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody));
    let mut config = match credentials {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let text =
                std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            let chain = CertificateDer::pem_slice_iter(&text)
                .collect::<Result<Vec<_>, _>>()
                .context("--credentials: the chain")?;
            let key = PrivateKeyDer::from_pem_slice(&text).context("--credentials: the key")?;
            builder
                .with_client_auth_cert(chain, key)
                .context("--credentials")?
        }
    };
    if !protocol.is_empty() {
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    }
    config.enable_sni = false;
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Takes whoever answers: it is the other end that is to be careful.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}
