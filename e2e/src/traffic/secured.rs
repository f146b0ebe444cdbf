// SPDX-License-Identifier: Apache-2.0
//! TLS as applications have it, whatever the mesh does: a server shows a certificate of its own to whoever asks, a client
//! asks for a server by its name.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client};

/// Ends a client's TLS with the chain and the key of a file. With it comes the server that the client asked for.
pub(super) async fn accept(
    stream: TcpStream,
    file: Option<&Path>,
) -> io::Result<(TlsStream<TcpStream>, Option<String>)> {
    // Read each time, as the file is written anew while the server runs.
    let secured = TlsAcceptor::from(config(file)?).accept(stream).await?;
    let asked = secured.get_ref().1.server_name().map(str::to_owned);
    Ok((secured, asked))
}

/// Begins TLS with the server of this name, which somebody in the file has to certify.
pub(super) async fn begin(
    stream: TcpStream,
    name: &str,
    trusts: &Path,
) -> io::Result<client::TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    let text = std::fs::read(trusts)?;
    for root in CertificateDer::pem_slice_iter(&text) {
        let root = root.map_err(io::Error::other)?;
        roots.add(root).map_err(io::Error::other)?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
}

fn config(file: Option<&Path>) -> io::Result<Arc<ServerConfig>> {
    let file = file.ok_or_else(|| io::Error::other("TLS_FILE is not set"))?;
    let text = std::fs::read(file)
        .map_err(|error| io::Error::other(format!("TLS_FILE {}: {error}", file.display())))?;
    let chain = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(io::Error::other)?;
    let key = PrivateKeyDer::from_pem_slice(&text).map_err(io::Error::other)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key));
    let mut config = config.map_err(io::Error::other)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
