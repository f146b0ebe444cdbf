// SPDX-License-Identifier: Apache-2.0
//! An authenticated gRPC channel to the control plane.
//!
//! In: an address, the roots to trust, a service-account token. Out: a tonic
//! channel whose every request carries the token as it is at that moment. Token
//! and root files are rotated by the kubelet under our feet, so neither is kept:
//! the token is read at each request, the roots at each connection.

mod authentication;
pub use authentication::{Authentication, Secret, TokenSource};

mod roots;
pub use roots::RootSource;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};

use self::roots::HostVerifier;
use crate::tls::{self, ALPN_H2};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
const TCP_KEEPALIVE_IDLE: Duration = Duration::from_secs(300);
const TCP_KEEPALIVE_INTERVAL: Duration = Duration::from_secs(75);
const TCP_KEEPALIVE_PROBES: u32 = 9;
/// As large as HTTP/2 allows: many small frames must not look like a flood to h2,
/// and one stream's window bounds the memory.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
const STREAM_WINDOW: u32 = 4 << 20;

/// Why there is no channel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControlPlaneError {
    /// The address is not one of an https server.
    #[error("control plane address {address:?}: {reason}")]
    Address {
        /// As configured.
        address: String,
        /// What is wrong.
        reason: String,
    },
    /// An extra header cannot be sent.
    #[error("control plane header {name:?}: {reason}")]
    Header {
        /// As configured.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// The roots cannot be read.
    #[error("roots of the control plane from {from}: {reason}")]
    Roots {
        /// A file, or what else was configured.
        from: String,
        /// What is wrong.
        reason: String,
    },
    /// The server cannot be reached, or is not whom we trust.
    #[error("connect to control plane {address}: {reason}")]
    Connect {
        /// As configured.
        address: String,
        /// What failed.
        reason: String,
    },
}

/// Which control plane, and how to speak to it.
#[derive(Debug, Clone)]
pub struct ControlPlaneConfig {
    /// `https://host:port`, or `host:port`.
    pub address: String,
    /// Who vouches for it.
    pub root: RootSource,
    /// How we prove who we are.
    pub token: TokenSource,
    /// Sent as `clusterid`, which names the cluster that can check the token.
    pub cluster_id: String,
    /// A second name that the server's certificate may carry.
    pub alt_hostname: Option<String>,
    /// Further headers of each request.
    pub headers: Vec<(String, String)>,
}

/// A channel whose requests are authenticated.
pub type AuthenticatedChannel = InterceptedService<Channel, Authentication>;

/// A control plane that channels can be opened to. Clones share everything.
#[derive(Clone)]
pub struct ControlPlane {
    dial: Arc<Dial>,
    authentication: Authentication,
}

impl ControlPlane {
    /// Checks the configuration; nothing is read or connected yet.
    pub fn new(config: ControlPlaneConfig) -> Result<Self, ControlPlaneError> {
        let authentication = Authentication::new(&config)?;
        let dial = Arc::new(Dial::new(config)?);
        Ok(Self {
            dial,
            authentication,
        })
    }

    /// What the file of roots holds now, if there is a file and it can be read.
    pub(crate) fn root_file(&self) -> Option<Vec<u8>> {
        match &self.dial.root {
            RootSource::File(path) => std::fs::read(path).ok(),
            RootSource::Inline(_) | RootSource::System => None,
        }
    }

    /// A connected channel. It connects again by itself when the connection is
    /// lost, each time with the roots of that moment.
    pub async fn channel(&self) -> Result<AuthenticatedChannel, ControlPlaneError> {
        let dial = Arc::clone(&self.dial);
        let connector = tower::service_fn(move |_: Uri| {
            let dial = Arc::clone(&dial);
            async move { dial.connect().await.map(TokioIo::new) }
        });
        let channel = self
            .dial
            .endpoint()?
            .connect_with_connector(connector)
            .await
            .map_err(|error| self.dial.failed(innermost(&error)))?;
        Ok(InterceptedService::new(
            channel,
            self.authentication.clone(),
        ))
    }
}

impl fmt::Debug for ControlPlane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ControlPlane")
            .field(&self.dial.address)
            .finish()
    }
}

/// Opens TLS connections to one server.
struct Dial {
    address: String,
    authority: String,
    host: String,
    port: u16,
    server_name: ServerName<'static>,
    alt_name: Option<ServerName<'static>>,
    root: RootSource,
}

impl Dial {
    fn new(config: ControlPlaneConfig) -> Result<Self, ControlPlaneError> {
        let address = config.address;
        let refuse = |reason: String| ControlPlaneError::Address {
            address: address.clone(),
            reason,
        };
        let uri: Uri = match address.contains("://") {
            true => address.parse(),
            false => format!("https://{address}").parse(),
        }
        .map_err(|error: http::uri::InvalidUri| refuse(error.to_string()))?;
        if uri.scheme_str() != Some("https") {
            return Err(refuse("only https is spoken to a control plane".into()));
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(refuse("must not have a path".into()));
        }
        let authority = uri
            .authority()
            .ok_or_else(|| refuse("has no host".into()))?;
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let name = |host: &str| {
            ServerName::try_from(host.to_owned())
                .map_err(|error| refuse(format!("{host:?}: {error}")))
        };
        Ok(Self {
            server_name: name(&host)?,
            alt_name: config.alt_hostname.as_deref().map(name).transpose()?,
            port: authority.port_u16().unwrap_or(443),
            authority: authority.to_string(),
            host,
            root: config.root,
            address: address.clone(),
        })
    }

    fn endpoint(&self) -> Result<Endpoint, ControlPlaneError> {
        let refuse = |error: &dyn std::error::Error| ControlPlaneError::Address {
            address: self.address.clone(),
            reason: crate::chain(error),
        };
        let origin: Uri = format!("https://{}", self.authority)
            .parse()
            .map_err(|error: http::uri::InvalidUri| refuse(&error))?;
        // TLS is our connector's work: with an https address tonic would want to do it too.
        let endpoint = Endpoint::from_shared(format!("http://{}", self.authority))
            .map_err(|error| refuse(&error))?
            .origin(origin)
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        Ok(endpoint)
    }

    async fn connect(&self) -> Result<TlsStream<TcpStream>, ControlPlaneError> {
        tokio::time::timeout(CONNECT_TIMEOUT, self.handshake())
            .await
            .map_err(|_| self.failed(format!("no connection within {CONNECT_TIMEOUT:?}")))?
    }

    async fn handshake(&self) -> Result<TlsStream<TcpStream>, ControlPlaneError> {
        let config = self.tls_config()?;
        let failed = |step: &str, error: std::io::Error| {
            self.failed(format!("{step}: {}", crate::chain(&error)))
        };
        let tcp = TcpStream::connect((self.host.as_str(), self.port))
            .await
            .map_err(|error| failed("TCP", error))?;
        tune(&tcp).map_err(|error| failed("socket options", error))?;
        let stream = TlsConnector::from(config)
            .connect(self.server_name.clone(), tcp)
            .await
            .map_err(|error| failed("TLS", error))?;
        match stream.get_ref().1.alpn_protocol() {
            Some(ALPN_H2) => Ok(stream),
            _ => Err(self.failed("server does not negotiate HTTP/2".into())),
        }
    }

    fn tls_config(&self) -> Result<Arc<ClientConfig>, ControlPlaneError> {
        let verifier = HostVerifier::new(&self.root, self.alt_name.clone())?;
        let mut config = ClientConfig::builder_with_provider(tls::provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| self.failed(error.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        config.alpn_protocols = vec![ALPN_H2.to_vec()];
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }

    fn failed(&self, reason: String) -> ControlPlaneError {
        ControlPlaneError::Connect {
            address: self.address.clone(),
            reason,
        }
    }
}

/// The last cause: tonic and hyper wrap our own error in words without content.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    match last.downcast_ref::<ControlPlaneError>() {
        Some(ControlPlaneError::Connect { reason, .. }) => reason.clone(),
        Some(other) => other.to_string(),
        None => crate::chain(error),
    }
}

fn tune(tcp: &TcpStream) -> std::io::Result<()> {
    tcp.set_nodelay(true)?;
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(TCP_KEEPALIVE_IDLE)
        .with_interval(TCP_KEEPALIVE_INTERVAL)
        .with_retries(TCP_KEEPALIVE_PROBES);
    socket2::SockRef::from(tcp).set_tcp_keepalive(&keepalive)
}
