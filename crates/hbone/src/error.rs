// SPDX-License-Identifier: Apache-2.0
//! What can go wrong with a tunnel, each variant named for the party or step at fault.
//!
//! Everything is `Clone`, because several connections may wait for one tunnel and share its failure.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use spiffe::SpiffeId;

/// Why [`Pool::open`](crate::Pool::open) gave no stream.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OpenError {
    /// The source has no usable certificate.
    #[error("no certificate for {identity}: {reason}")]
    Certificate {
        /// Whose certificate.
        identity: SpiffeId,
        /// Why not.
        reason: Arc<str>,
    },
    /// The certificate of the source did not arrive in time.
    #[error("no certificate for {identity} within {after:?}")]
    CertificateTimeout {
        /// Whose certificate.
        identity: SpiffeId,
        /// How long it was waited for.
        after: Duration,
    },
    /// The peer's TCP port refused or could not be reached.
    #[error("connect to {address}: {source}")]
    Dial {
        /// The peer.
        address: SocketAddr,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// The peer's TCP port did not answer; often a NetworkPolicy that blocks port 15008.
    #[error(
        "connect to {address}: no answer within {after:?} (is port 15008 allowed by network policies?)"
    )]
    DialTimeout {
        /// The peer.
        address: SocketAddr,
        /// How long it was waited for.
        after: Duration,
    },
    /// TLS or HTTP/2 could not be set up.
    #[error("handshake with {address}: {source}")]
    Handshake {
        /// The peer.
        address: SocketAddr,
        /// What went wrong.
        source: Arc<io::Error>,
    },
    /// The handshake did not end in time.
    #[error("handshake with {address}: not done within {after:?}")]
    HandshakeTimeout {
        /// The peer.
        address: SocketAddr,
        /// How long it was waited for.
        after: Duration,
    },
    /// The peer proved another identity than those that the destination may have.
    #[error("peer {address} is not one of {expected:?}: {reason}")]
    PeerIdentity {
        /// The peer.
        address: SocketAddr,
        /// Who was expected.
        expected: Arc<[SpiffeId]>,
        /// What the verifier said.
        reason: Arc<str>,
    },
    /// The tunnel broke, or the peer broke the protocol, before the answer came.
    #[error("tunnel to {address}: {source}")]
    Tunnel {
        /// The peer.
        address: SocketAddr,
        /// What went wrong.
        source: TunnelError,
    },
    /// The peer did not answer the CONNECT in time.
    #[error("peer {address} gave no answer to CONNECT {authority} within {after:?}")]
    ResponseTimeout {
        /// The peer.
        address: SocketAddr,
        /// What was asked for.
        authority: Arc<str>,
        /// How long it was waited for.
        after: Duration,
    },
    /// The peer answered with something else than 200.
    #[error("peer {address} refused CONNECT {authority} with status {status}")]
    Refused {
        /// The peer.
        address: SocketAddr,
        /// What was asked for.
        authority: Arc<str>,
        /// Its answer.
        status: u16,
    },
    /// The request could not be written as HTTP; names the part.
    #[error("CONNECT {authority} cannot be sent: {reason}")]
    Request {
        /// What was asked for.
        authority: Arc<str>,
        /// Which part is at fault.
        reason: Arc<str>,
    },
    /// The gateway was reached, and the tunnel through it to the destination itself could not be opened.
    #[error("behind gateway {gateway}: {source}")]
    Behind {
        /// Who carries the tunnel.
        gateway: SocketAddr,
        /// What went wrong with the destination.
        source: BehindError,
    },
    /// The pool was closed: its pod is gone, or the process is ending.
    #[error("the pool of tunnels is closed")]
    PoolClosed,
}

/// What was wrong with a destination behind a gateway, which has no address that is known here.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BehindError {
    /// TLS or HTTP/2 could not be set up; also what is seen when the gateway cannot reach the destination.
    #[error("handshake with the destination: {0}")]
    Handshake(Arc<io::Error>),
    /// The handshake did not end in time.
    #[error("handshake with the destination: not done within {0:?}")]
    HandshakeTimeout(Duration),
    /// The destination proved another identity than those that it may have.
    #[error("the destination is not one of {expected:?}: {reason}")]
    PeerIdentity {
        /// Who was expected.
        expected: Arc<[SpiffeId]>,
        /// What the verifier said.
        reason: Arc<str>,
    },
    /// The tunnel broke, or the destination broke the protocol, before the answer came.
    #[error("tunnel to the destination: {0}")]
    Tunnel(TunnelError),
    /// The destination did not answer the CONNECT in time.
    #[error("the destination gave no answer to CONNECT {authority} within {after:?}")]
    ResponseTimeout {
        /// What was asked for.
        authority: Arc<str>,
        /// How long it was waited for.
        after: Duration,
    },
    /// The destination answered with something else than 200.
    #[error("the destination refused CONNECT {authority} with status {status}")]
    Refused {
        /// What was asked for.
        authority: Arc<str>,
        /// Its answer.
        status: u16,
    },
}

/// Why [`Server::serve`](crate::Server::serve) ended early.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Our own certificate could not be used.
    #[error("own certificate: {0}")]
    Certificate(Arc<str>),
    /// The client failed the TLS or HTTP/2 handshake.
    #[error("handshake: {0}")]
    Handshake(io::Error),
    /// The client did not finish the handshake in time.
    #[error("handshake: not done within {0:?}")]
    HandshakeTimeout(Duration),
    /// The client's certificate names no SPIFFE identity.
    #[error("the client's certificate holds no SPIFFE identity")]
    PeerIdentity,
    /// The connection broke, or the client broke the protocol.
    #[error("tunnel: {0}")]
    Tunnel(TunnelError),
    /// The client may no longer be who it proved to be; its streams ended with this reason.
    #[error("{0}")]
    Withdrawn(Arc<str>),
}

impl From<TunnelError> for ServeError {
    fn from(error: TunnelError) -> Self {
        match error.fault {
            TunnelFault::Withdrawn => Self::Withdrawn(error.message),
            _ => Self::Tunnel(error),
        }
    }
}

/// A fault of a tunnel or of one stream in it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct TunnelError {
    fault: TunnelFault,
    message: Arc<str>,
}

/// The kinds of [`TunnelError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunnelFault {
    /// The stream alone was reset; the code is HTTP/2's (RFC 9113 §7).
    Reset {
        /// The error code.
        code: u32,
    },
    /// The peer is going away and did not take the stream.
    GoAway {
        /// The error code.
        code: u32,
    },
    /// The connection underneath broke or was closed.
    Connection,
    /// The peer stayed silent for too long.
    PingTimeout,
    /// One side broke the protocol.
    Protocol,
    /// This side gave the tunnel up.
    Aborted,
    /// The peer may no longer be who it proved to be.
    Withdrawn,
}

impl TunnelError {
    /// What kind of fault it was.
    pub fn fault(&self) -> TunnelFault {
        self.fault
    }

    pub(crate) fn new(fault: TunnelFault, message: impl Into<Arc<str>>) -> Self {
        Self {
            fault,
            message: message.into(),
        }
    }

    pub(crate) fn closed() -> Self {
        Self::new(TunnelFault::Connection, "the tunnel was closed")
    }

    pub(crate) fn reset(reason: h2::Reason) -> Self {
        Self::new(
            TunnelFault::Reset {
                code: reason.into(),
            },
            format!("stream reset: {}", reason.description()),
        )
    }

    /// Whether the peer has certainly not acted on a request that failed so.
    pub(crate) fn was_not_processed(&self) -> bool {
        match self.fault {
            TunnelFault::Reset { code } => code == u32::from(h2::Reason::REFUSED_STREAM),
            TunnelFault::GoAway { .. } => true,
            _ => false,
        }
    }

    /// Whether the tunnel itself, not only one stream of it, is of no more use.
    pub(crate) fn is_fatal_to_tunnel(&self) -> bool {
        !matches!(self.fault, TunnelFault::Reset { .. })
    }

    pub(crate) fn into_io(self) -> io::Error {
        let kind = match self.fault {
            TunnelFault::Reset { .. } => io::ErrorKind::ConnectionReset,
            TunnelFault::PingTimeout => io::ErrorKind::TimedOut,
            TunnelFault::Protocol => io::ErrorKind::InvalidData,
            _ => io::ErrorKind::ConnectionAborted,
        };
        io::Error::new(kind, self)
    }
}

impl From<h2::Error> for TunnelError {
    fn from(error: h2::Error) -> Self {
        let code = error.reason().map(u32::from).unwrap_or_default();
        let fault = if error.is_io() {
            TunnelFault::Connection
        } else if error.is_go_away() && error.is_remote() {
            TunnelFault::GoAway { code }
        } else if error.is_reset() {
            TunnelFault::Reset { code }
        } else {
            TunnelFault::Protocol
        };
        match error.get_io() {
            Some(error) => Self::new(fault, words(error)),
            None => Self::new(fault, error.to_string()),
        }
    }
}

impl From<io::Error> for TunnelError {
    fn from(error: io::Error) -> Self {
        Self::new(TunnelFault::Connection, words(&error))
    }
}

/// rustls explains a missing close_notify to programmers; here a person reads it.
fn words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the peer closed the tunnel without notice".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_just_leaves_is_told_in_words_for_a_person() {
        let rustls =
            "peer closed connection without sending TLS close_notify: https://docs.rs/rustls";
        let error = TunnelError::from(io::Error::new(io::ErrorKind::UnexpectedEof, rustls));
        assert_eq!(error.fault(), TunnelFault::Connection);
        assert_eq!(
            error.to_string(),
            "the peer closed the tunnel without notice"
        );
    }
}
