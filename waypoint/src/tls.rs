// SPDX-License-Identifier: Apache-2.0
//! TLS that is begun here, with servers outside of the mesh: what a service's rules say of it, and the handshake.
//!
//! ```text
//! rule ─► Tls ─► configs: files, read again when they are old ─┐
//!          └► part of what tells pooled connections apart       ├─► handshake ─► the connection's other bytes
//! connection to an endpoint ───────────────────────────────────┘
//! ```
//!
//! The server always has to prove who it is. What it is to prove, by whose authority, and what is shown to it, rules say by
//! names of files; a key leaves its file only for the handshake.

mod configs;
mod verifier;

use std::net::SocketAddr;
use std::sync::Arc;

use proto::waypoint as wire;
use rustls::pki_types::ServerName;
use spiffe::SpiffeId;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub use self::configs::Configs;
use crate::failure::Failure;
use crate::upstream::Version;

/// How it is begun with the endpoints of a service.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tls {
    server: ServerName<'static>,
    /// Of these one has to be the server's; none: the name that it is asked by.
    names: Arc<[Name]>,
    authorities: Authorities,
    shown: Option<Shown>,
}

/// Who certifies servers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Authorities {
    /// Whom the system trusts.
    System,
    /// Those of a file.
    File(Arc<str>),
    /// These, in PEM.
    Given(Arc<str>),
}

/// What a certificate may say of its owner.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Name {
    Dns(ServerName<'static>),
    Id(SpiffeId),
    Uri(Arc<str>),
}

/// Files with what is shown of ourselves.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Shown {
    chain: Arc<str>,
    key: Arc<str>,
    /// Whose waypoints alone may show it; empty: anybody's.
    namespace: Arc<str>,
}

impl Tls {
    /// # Errors
    /// Names the field that can't be honoured.
    pub fn compile(wire: &wire::Tls) -> Result<Self, String> {
        let server = |name: &str| ServerName::try_from(name.to_owned());
        let named = server(&wire.server_name);
        let names = wire.subject_alt_names.iter().map(|name| {
            if let Ok(id) = name.parse() {
                return Ok(Name::Id(id));
            }
            match name.parse::<http::Uri>() {
                Ok(uri) if uri.scheme().is_some() => Ok(Name::Uri(name.as_str().into())),
                _ => server(name)
                    .map(Name::Dns)
                    .map_err(|_| format!("tls.subject_alt_names: {name:?} is none")),
            }
        });
        let authorities = match (wire.given_authorities.as_str(), wire.authorities.as_str()) {
            ("", "") => Authorities::System,
            ("", file) => Authorities::File(file.into()),
            (given, _) => Authorities::Given(given.into()),
        };
        Ok(Self {
            server: named
                .map_err(|_| format!("tls.server_name: {:?} is none", wire.server_name))?,
            names: names.collect::<Result<_, _>>()?,
            authorities,
            shown: wire.certificate.as_ref().map(|shown| Shown {
                chain: shown.chain.as_str().into(),
                key: shown.key.as_str().into(),
                namespace: shown.namespace.as_str().into(),
            }),
        })
    }

    /// Begins it on a connection, for a version of HTTP or for bytes of any kind.
    ///
    /// # Errors
    /// What there is to show or to trust can't be used, which is not the server's fault; or it is not who it should be, or
    /// speaks something else.
    pub async fn begin<T>(
        &self,
        configs: &Configs,
        namespace: &str,
        version: Option<Version>,
        (carrier, to): (T, SocketAddr),
    ) -> Result<TlsStream<T>, Failure>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let config = configs.get(self, namespace).await;
        let mut config = config.map_err(|reason| Failure::TlsSettings {
            server: self.server.to_str().into(),
            reason: reason.into(),
        })?;
        let failed = |reason: String| Failure::Tls {
            to,
            server: self.server.to_str().into(),
            reason: reason.into(),
        };
        let protocol = version.map(|version| match version {
            Version::Http1 => b"http/1.1".as_slice(),
            Version::Http2 => b"h2",
        });
        if let Some(protocol) = protocol {
            let config = Arc::make_mut(&mut config);
            config.alpn_protocols = vec![protocol.to_vec()];
        }
        let connector = TlsConnector::from(config);
        let begun = connector.connect(self.server.clone(), carrier).await;
        let begun = begun.map_err(|error| failed(error.to_string()))?;
        let agreed = begun.get_ref().1.alpn_protocol();
        if version == Some(Version::Http2) && agreed != protocol {
            return Err(failed("it does not speak HTTP/2".to_owned()));
        }
        Ok(begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_name_is_told() {
        let check = |server: &str, name: &str, expected: &str| {
            let wire = wire::Tls {
                server_name: server.into(),
                subject_alt_names: vec![name.into()],
                ..wire::Tls::default()
            };
            let compiled = Tls::compile(&wire);
            assert_eq!(compiled.err().unwrap_or_default(), expected);
        };
        check("a.example.com", "b.example.com", "");
        check("a.example.com", "spiffe://td/ns/a/sa/b", "");
        check("", "b", "tls.server_name: \"\" is none");
        check("a", "http://b/c", "");
        check("a", "b c", "tls.subject_alt_names: \"b c\" is none");
    }
}
