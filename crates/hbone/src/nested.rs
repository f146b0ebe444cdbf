// SPDX-License-Identifier: Apache-2.0
//! A tunnel inside a stream, for a destination that only a gateway can reach ("double HBONE").
//!
//! ```text
//!  source ═════ tunnel, shared ═════► gateway ─── bytes as they are ───► destination
//!     └──── TLS and HTTP/2 end to end with the destination, for one connection ───┘
//! ```
//!
//! The gateway learns where a connection goes and how much it carries, and nothing of what it says. The inner tunnel is
//! never shared: it ends with its connection, and its stream in the outer tunnel ends with it.

use std::net::SocketAddr;
use std::sync::Arc;

use identity::{CertificateSource, tls};
use spiffe::SpiffeId;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use crate::client::{self, Checkout, Connected, Dial, RequestError, TunnelInfo};
use crate::config::Config;
use crate::engine::tunnel::Farewell;
use crate::error::{BehindError, OpenError, TunnelError};
use crate::pool::{Pool, PoolKey};
use crate::stream::Stream;
use crate::wire::ConnectRequest;

/// A destination behind a gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Behind {
    /// What the gateway is asked for: the destination by the name that both sides know it by.
    pub to_gateway: ConnectRequest,
    /// Who the destination may be. Nobody, if empty: the tunnel then never opens.
    pub expected: Arc<[SpiffeId]>,
    /// What the destination is asked for.
    pub to_destination: ConnectRequest,
}

impl Pool {
    /// Opens a stream to a destination behind the gateway at the far end of `key`: over a shared tunnel to the gateway,
    /// and a tunnel of its own inside. What is returned tells of the destination, not of the gateway.
    ///
    /// # Errors
    /// As [`Pool::open`] for the gateway; [`OpenError::Behind`] for what lies behind it.
    pub async fn open_behind(
        &self,
        key: &PoolKey,
        dial: &dyn Dial,
        behind: Behind,
    ) -> Result<(Stream, TunnelInfo), OpenError> {
        let Behind {
            to_gateway,
            expected,
            to_destination,
        } = behind;
        let (carrier, _gateway) = self.open(key, dial, to_gateway).await?;
        let ends = Ends {
            source: &key.source,
            destination: expected,
            gateway: key.address,
        };
        open_inside(
            carrier,
            ends,
            to_destination,
            self.certificates(),
            self.config(),
        )
        .await
    }
}

/// The two ends of a tunnel inside something, and who carries it.
#[derive(Debug, Clone)]
pub struct Ends<'a> {
    /// On whose behalf the tunnel is opened.
    pub source: &'a SpiffeId,
    /// Who the destination may be.
    pub destination: Arc<[SpiffeId]>,
    /// Where the carrier leads to, for errors.
    pub gateway: SocketAddr,
}

/// Opens the one stream of a tunnel inside `carrier`. The tunnel runs on the current runtime and ends with the stream.
///
/// # Errors
/// [`OpenError::Behind`], or what kept the source's own certificate away. The carrier is dropped.
pub async fn open_inside<C>(
    carrier: C,
    ends: Ends<'_>,
    request: ConnectRequest,
    certificates: &dyn CertificateSource,
    config: &Config,
) -> Result<(Stream, TunnelInfo), OpenError>
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let gateway = ends.gateway;
    let behind = |source| OpenError::Behind { gateway, source };
    let authority: Arc<str> = request.authority.to_string().into();
    let http = request.to_http().map_err(|error| OpenError::Request {
        authority: Arc::clone(&authority),
        reason: error.to_string().into(),
    })?;
    let config = Config {
        pool_max_streams: 1,
        ..config.clone()
    };
    let certificate = client::fetch(ends.source, certificates, &config).await?;
    let refused = |reason: String| BehindError::PeerIdentity {
        expected: Arc::clone(&ends.destination),
        reason: reason.into(),
    };
    let tls = tls::client_config(&certificate, &ends.destination).map_err(|error| match error {
        tls::TlsError::NobodyExpected => behind(refused(error.to_string())),
        _ => OpenError::Certificate {
            identity: ends.source.clone(),
            reason: error.to_string().into(),
        },
    })?;
    let handshake = client::handshake(carrier, tls, &certificate, Farewell::Listen, &config);
    let Connected { tunnel, driver } = timeout(config.handshake_timeout, handshake)
        .await
        .map_err(|_| behind(BehindError::HandshakeTimeout(config.handshake_timeout)))?
        .map_err(|error| {
            behind(match tls::peer_refusal(&error) {
                Some(refusal) => refused(refusal.to_string()),
                None => BehindError::Handshake(Arc::new(error)),
            })
        })?;
    let checkout = tunnel.checkout();
    // The only stream: with it the tunnel ends.
    tunnel.retire();
    tokio::spawn(async move {
        if let Err(error) = driver.await {
            tracing::debug!(%gateway, %error, "inner tunnel ended");
        }
    });
    let Checkout::Ready(lease) = checkout else {
        return Err(behind(BehindError::Tunnel(TunnelError::closed())));
    };
    lease
        .request(http, &config)
        .await
        .map_err(|error| behind(BehindError::of(error, authority, &config)))
}

impl BehindError {
    fn of(error: RequestError, authority: Arc<str>, config: &Config) -> Self {
        match error {
            RequestError::Tunnel(error) => Self::Tunnel(error),
            RequestError::TimedOut => Self::ResponseTimeout {
                authority,
                after: config.response_timeout,
            },
            RequestError::Refused(status) => Self::Refused {
                authority,
                status: status.as_u16(),
            },
        }
    }
}
