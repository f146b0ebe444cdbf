// SPDX-License-Identifier: Apache-2.0
//! Fetches one set of keys over HTTP or HTTPS: bounded in time, size and redirects, and only from addresses that are not
//! forbidden, whatever names or redirects lead there.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::uri::{Authority, Scheme, Uri};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use webpki_root_certs::TLS_SERVER_ROOT_CERTS;

use super::address;
use crate::translate::authentication::{KeyPlace, KeySource};

/// Sets have a few kilobytes.
const LONGEST: usize = 256 << 10;
const MOST_REDIRECTS: usize = 3;
/// Addresses of one host that are tried.
const MOST_ADDRESSES: usize = 4;

/// What was fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeySet {
    /// JSON with a list `keys`.
    pub keys: String,
    /// How long it is new, as far as its server says.
    pub fresh_for: Option<Duration>,
}

/// Fetches sets of keys.
#[derive(Debug, Clone)]
pub struct Fetcher {
    tls: Connector,
    forbidden: fn(IpAddr) -> Option<&'static str>,
}

#[derive(Clone)]
struct Connector(TlsConnector);

/// Why a set was not fetched.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("{0:?} is no http or https address")]
    Address(String),
    #[error("{host} can't be resolved: {error}")]
    Unresolved { host: String, error: io::Error },
    #[error("{host} is {address}, which {reason}: nothing is fetched from there")]
    Forbidden {
        host: String,
        address: IpAddr,
        reason: &'static str,
    },
    #[error("{host} has no address")]
    NoAddress { host: String },
    #[error("can't connect to {to}: {error}")]
    Connect { to: SocketAddr, error: io::Error },
    #[error("TLS with {host}: {error}")]
    Tls { host: String, error: io::Error },
    #[error("{host}: {error}")]
    Http { host: String, error: hyper::Error },
    #[error("{host} answered {status}")]
    Status { host: String, status: StatusCode },
    #[error("what {host} sends broke off, or is longer than {LONGEST} bytes: {error}")]
    Body {
        host: String,
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("it was redirected {MOST_REDIRECTS} times and is to be once more")]
    Redirects,
    #[error("it was redirected to {0:?}, which is no address, or one without TLS behind one with")]
    Redirect(String),
    #[error("{0}")]
    Content(String),
    #[error("it took longer than {0:?}")]
    Late(Duration),
}

impl Fetcher {
    /// One that trusts the system's certificate authorities (where there are none, those that browsers do), and those in a
    /// file beside them if it is there.
    ///
    /// # Errors
    /// If that file can't be read.
    pub fn new(more_roots: &Path) -> anyhow::Result<Self> {
        use anyhow::Context as _;
        let mut roots = RootCertStore::empty();
        let found = rustls_native_certs::load_native_certs();
        for error in &found.errors {
            tracing::warn!(%error, "some of the system's certificate authorities can't be read");
        }
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            // An image may hold nothing but this program.
            roots.add_parsable_certificates(TLS_SERVER_ROOT_CERTS.iter().cloned());
        }
        if more_roots.exists() {
            let reading = || format!("reading {}", more_roots.display());
            let before = roots.len();
            let more = CertificateDer::pem_file_iter(more_roots);
            for root in more.with_context(reading)? {
                roots
                    .add(root.with_context(reading)?)
                    .with_context(reading)?;
            }
            anyhow::ensure!(
                roots.len() > before,
                "{}: it holds no certificate",
                reading()
            );
        }
        Self::with(roots, address::forbidden)
    }

    fn with(
        roots: RootCertStore,
        forbidden: fn(IpAddr) -> Option<&'static str>,
    ) -> anyhow::Result<Self> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self {
            tls: Connector(TlsConnector::from(Arc::new(config))),
            forbidden,
        })
    }

    /// Fetches a set; the reason where that fails.
    ///
    /// # Errors
    /// Says what is wrong, and with whom.
    pub async fn fetch(&self, source: &KeySource) -> Result<KeySet, String> {
        let fetching = Box::pin(self.fetch_from(&source.place));
        let fetched = timeout(source.timeout, fetching).await;
        let fetched = fetched.unwrap_or(Err(FetchError::Late(source.timeout)));
        fetched.map_err(|error| error.to_string())
    }

    async fn fetch_from(&self, place: &KeyPlace) -> Result<KeySet, FetchError> {
        let uri = match place {
            KeyPlace::Uri(uri) => uri.clone(),
            KeyPlace::Issuer(issuer) => self.discover(issuer).await?,
        };
        let (body, headers) = self.get(&uri).await?;
        let content = |reason: String| FetchError::Content(format!("{uri}: {reason}"));
        let text = String::from_utf8(body.into()).map_err(|_| content("is no text".into()))?;
        let read: serde_json::Value =
            serde_json::from_str(&text).map_err(|error| content(format!("is no JSON: {error}")))?;
        if !read.get("keys").is_some_and(serde_json::Value::is_array) {
            return Err(content("is no key set: it has no list of keys".into()));
        }
        Ok(KeySet {
            keys: text,
            fresh_for: fresh_for(&headers),
        })
    }

    /// Where an issuer says that its keys are (OpenID Connect Discovery §4).
    async fn discover(&self, issuer: &str) -> Result<String, FetchError> {
        let uri = format!(
            "{}/.well-known/openid-configuration",
            issuer.trim_end_matches('/')
        );
        let (body, _) = self.get(&uri).await?;
        let content = |reason: String| FetchError::Content(format!("{uri}: {reason}"));
        let read: serde_json::Value = serde_json::from_slice(&body)
            .map_err(|error| content(format!("is no JSON: {error}")))?;
        let text = |name: &str| read.get(name).and_then(serde_json::Value::as_str);
        // What tells of another issuer must not be taken for this one's (§4.3).
        let same = |said: &str| said.trim_end_matches('/') == issuer.trim_end_matches('/');
        match (text("issuer"), text("jwks_uri")) {
            (Some(said), _) if !same(said) => Err(content(format!("tells of issuer {said:?}"))),
            (_, Some(keys)) => Ok(keys.to_owned()),
            (_, None) => Err(content("has no jwks_uri".into())),
        }
    }

    /// What is there, after redirects.
    async fn get(&self, uri: &str) -> Result<(Bytes, HeaderMap), FetchError> {
        let mut uri = parse(uri)?;
        for _ in 0..=MOST_REDIRECTS {
            let host = uri.host().unwrap_or_default().to_owned();
            let (status, headers, body) = self.ask(&uri, &host).await?;
            match status {
                StatusCode::OK => return Ok((body, headers)),
                StatusCode::MOVED_PERMANENTLY
                | StatusCode::FOUND
                | StatusCode::SEE_OTHER
                | StatusCode::TEMPORARY_REDIRECT
                | StatusCode::PERMANENT_REDIRECT => uri = redirected(&uri, &headers)?,
                status => return Err(FetchError::Status { host, status }),
            }
        }
        Err(FetchError::Redirects)
    }

    async fn ask(
        &self,
        uri: &Uri,
        host: &str,
    ) -> Result<(StatusCode, HeaderMap, Bytes), FetchError> {
        let is_tls = uri.scheme() == Some(&Scheme::HTTPS);
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let socket = self.connect(host, port).await?;
        if !is_tls {
            return exchange(socket, uri, host).await;
        }
        let bare = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let name = ServerName::try_from(bare);
        let name = name.map_err(|_| FetchError::Address(uri.to_string()))?;
        let tls = self.tls.0.connect(name, socket).await;
        let tls = tls.map_err(|error| FetchError::Tls {
            host: host.to_owned(),
            error,
        })?;
        exchange(tls, uri, host).await
    }

    /// Resolves once, and connects to what was looked at: no second answer can lead elsewhere.
    async fn connect(&self, host: &str, port: u16) -> Result<TcpStream, FetchError> {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let found = lookup_host((bare, port)).await;
        let found = found.map_err(|error| FetchError::Unresolved {
            host: host.to_owned(),
            error,
        })?;
        let mut last = FetchError::NoAddress {
            host: host.to_owned(),
        };
        for to in found.take(MOST_ADDRESSES) {
            if let Some(reason) = (self.forbidden)(to.ip()) {
                last = FetchError::Forbidden {
                    host: host.to_owned(),
                    address: to.ip(),
                    reason,
                };
                continue;
            }
            match TcpStream::connect(to).await {
                Ok(socket) => return Ok(socket),
                Err(error) => last = FetchError::Connect { to, error },
            }
        }
        Err(last)
    }
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsConnector")
    }
}

fn parse(text: &str) -> Result<Uri, FetchError> {
    let bad = || FetchError::Address(text.to_owned());
    let uri: Uri = text.parse().map_err(|_| bad())?;
    let is_known = matches!(uri.scheme_str(), Some("http" | "https"));
    // What stands before a host says who asks, which nobody does here.
    let is_plain = |authority: &Authority| !authority.as_str().contains('@');
    match is_known && uri.authority().is_some_and(is_plain) {
        true => Ok(uri),
        false => Err(bad()),
    }
}

fn redirected(from: &Uri, headers: &HeaderMap) -> Result<Uri, FetchError> {
    let location = headers
        .get(header::LOCATION)
        .and_then(|value| value.to_str().ok());
    let location = location.unwrap_or_default();
    let bad = || FetchError::Redirect(location.to_owned());
    let to = if location.starts_with('/') && !location.starts_with("//") {
        let mut parts = from.clone().into_parts();
        parts.path_and_query = Some(location.parse().map_err(|_| bad())?);
        Uri::from_parts(parts).map_err(|_| bad())?
    } else {
        parse(location).map_err(|_| bad())?
    };
    match (from.scheme_str(), to.scheme_str()) {
        (Some("https"), Some("http")) => Err(bad()),
        _ => Ok(to),
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    uri: &Uri,
    host: &str,
) -> Result<(StatusCode, HeaderMap, Bytes), FetchError> {
    let http = |error| FetchError::Http {
        host: host.to_owned(),
        error,
    };
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(http)?;
    // Ends with the sender; its error is the sender's.
    let _connection = Aborting(tokio::spawn(async move {
        let _ = connection.await;
    }));
    let mut request = Request::new(Empty::<Bytes>::new());
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = path.parse().unwrap_or_default();
    let authority = uri.authority().map_or("", Authority::as_str);
    if let Ok(authority) = HeaderValue::from_str(authority) {
        request.headers_mut().insert(header::HOST, authority);
    }
    let json = HeaderValue::from_static("application/json");
    request.headers_mut().insert(header::ACCEPT, json);
    let response = sender.send_request(request).await.map_err(http)?;
    let (head, body) = response.into_parts();
    let body = Limited::new(body, LONGEST).collect().await;
    let body = body.map_err(|error| FetchError::Body {
        host: host.to_owned(),
        error,
    })?;
    Ok((head.status, head.headers, body.to_bytes()))
}

/// A task that ends when nobody waits for it any more.
struct Aborting(tokio::task::JoinHandle<()>);

impl Drop for Aborting {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// `max-age` (RFC 9111 §5.2.2.1).
fn fresh_for(headers: &HeaderMap) -> Option<Duration> {
    let lines = headers.get_all(header::CACHE_CONTROL).iter();
    let directives = lines
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','));
    let mut ages = directives.filter_map(|one| {
        let (name, value) = one.trim().split_once('=')?;
        let is_age = name.eq_ignore_ascii_case("max-age");
        is_age.then(|| value.trim_matches('"').parse().ok())?
    });
    ages.next().map(Duration::from_secs)
}

#[cfg(test)]
mod tests;
