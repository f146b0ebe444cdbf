// SPDX-License-Identifier: Apache-2.0
//! TLS as a server outside of any mesh ends it: with a certificate of its own, whoever asks.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

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
