// SPDX-License-Identifier: Apache-2.0
//! Why a connection failed, told three ways: a text for a person, a flag for metrics, and whose turn it is to act.
//!
//! Every failure of a connection's life is one of these; the exhaustive match below is the only place that gives flags.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hbone::wire::MalformedRequest;
use hbone::{BehindError, OpenError, TunnelError};
use identity::{CertificateError, Unvouched, tls};

use crate::binding::Unbound;
use crate::limits::{Full, Telling, Untold};
use crate::route::{InboundRefusal, Refusal};

#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A policy, or the absence of one that the workload names, forbids it.
    #[error("{0}")]
    Denied(Arc<str>),
    /// It was allowed once.
    #[error("connection closed because policy changed: {0}")]
    PolicyChanged(Arc<str>),
    #[error("destination {0} is this proxy itself")]
    Loop(SocketAddr),
    /// The pod is not proven to be the workload that it would speak as.
    #[error("{0}")]
    Unbound(#[from] Unbound),
    /// What the application says to the SOCKS5 port is no request, or none that is served.
    #[error("SOCKS5: {0}")]
    Socks5(#[from] crate::socks5::Violation),
    #[error("SOCKS5: the request was not complete within {0:?}")]
    Socks5Slow(Duration),
    #[error("SOCKS5: the client ended in the middle of its request")]
    Socks5Unfinished,
    /// A name was given instead of an address.
    #[error("SOCKS5: {0}")]
    Name(#[from] crate::dns::ResolveError),
    /// Where a destination stands in the mesh is not known, and must not be guessed.
    #[error("cannot learn what {key} is: {reason}")]
    Unlearned {
        key: Arc<str>,
        reason: crate::on_demand::Unlearned,
    },
    #[error("{0}")]
    NoRoute(#[from] Refusal),
    /// The CONNECT request asks for what is not served here.
    #[error("{0}")]
    NotServed(#[from] InboundRefusal),
    /// It is no CONNECT request at all.
    #[error("malformed request: {0}")]
    Malformed(MalformedRequest),
    /// The client's tunnel is over for it.
    #[error("the client's tunnel broke the protocol: {0}")]
    ClientProtocol(TunnelError),
    #[error("cannot connect to {to}: {error}")]
    Connect { to: SocketAddr, error: io::Error },
    #[error("connecting to {to} took longer than {limit:?}")]
    ConnectTimeout { to: SocketAddr, limit: Duration },
    #[error("no certificate for {identity}: {error}")]
    Certificate {
        identity: spiffe::SpiffeId,
        error: Box<CertificateError>,
    },
    #[error("own certificate can't be used for TLS: {0}")]
    LocalTls(Arc<str>),
    #[error("{0}")]
    Tunnel(OpenError),
    /// The destination, a pod of this node, did not take it; its own record says why.
    #[error("{to} refused the connection with status {status}")]
    Refused { to: SocketAddr, status: u16 },
    /// A certificate that a connection within this node would stand on is good for nothing.
    #[error("{identity}: {reason}")]
    Unvouched {
        identity: spiffe::SpiffeId,
        reason: Unvouched,
    },
    #[error("handshake with the client failed: {reason}{}", Untold(*telling))]
    ClientHandshake { reason: String, telling: Telling },
    /// The peer's certificate, or one above it, has been taken back.
    #[error("{0}")]
    Revoked(Arc<str>),
    #[error("connection broke: {0}")]
    Copy(String),
    /// Not the connection's fault: the pod has left this node, or the mesh.
    #[error("connection closed because its pod is no longer served here")]
    PodGone,
    /// The pod has all that it may have.
    #[error("{0}")]
    Limit(Full),
    /// Not the connection's fault: this process or the pod is going away.
    #[error("connection closed by drain")]
    Drained,
}

/// The `response_flags` label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Flag {
    None,
    Deny,
    Connect,
    TlsFailure,
    H2HandshakeFailure,
    NetworkPolicy,
    IdentityError,
    /// No route leads there: unknown waypoint, no healthy endpoint, or something this build doesn't do.
    NoRoute,
    /// The pod that speaks is none that the mesh knows.
    UnknownSource,
    /// The pod is not the one that the mesh knows by its name, or the address is not the pod's.
    WrongPod,
    /// The mesh speaks of another pod of this name, account and address: of the one before, or after.
    OtherPod,
    /// The CONNECT request asks for what this workload doesn't serve.
    BadRequest,
    /// There are too many already.
    Limit,
    /// A name could not be looked up.
    Dns,
    /// The peer's certificate has been revoked.
    CertRevoked,
}

impl Flag {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "-",
            Self::Deny => "DENY",
            Self::Connect => "CONNECT",
            Self::TlsFailure => "TLS_FAILURE",
            Self::H2HandshakeFailure => "H2_HANDSHAKE_FAILURE",
            Self::NetworkPolicy => "NETWORK_POLICY",
            Self::IdentityError => "IDENTITY_ERROR",
            Self::NoRoute => "NO_ROUTE",
            Self::UnknownSource => "UNKNOWN_SOURCE",
            Self::WrongPod => "WRONG_POD",
            Self::OtherPod => "OTHER_POD",
            Self::BadRequest => "BAD_REQUEST",
            Self::Limit => "LIMIT",
            Self::Dns => "DNS",
            Self::CertRevoked => "CERT_REVOKED",
        }
    }
}

impl fmt::Display for Flag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Failure {
    pub fn flag(&self) -> Flag {
        match self {
            Self::Denied(_) | Self::PolicyChanged(_) => Flag::Deny,
            Self::Loop(_)
            | Self::NoRoute(_)
            | Self::Unlearned { .. }
            | Self::NotServed(InboundRefusal::Loop(_)) => Flag::NoRoute,
            Self::Unbound(Unbound::Unknown(_)) => Flag::UnknownSource,
            Self::Unbound(Unbound::OtherPod { .. }) => Flag::OtherPod,
            Self::Unbound(_) => Flag::WrongPod,
            Self::Connect { .. }
            | Self::ConnectTimeout { .. }
            | Self::Copy(_)
            | Self::Refused { .. }
            | Self::ClientHandshake { .. } => Flag::Connect,
            Self::LocalTls(_) => Flag::TlsFailure,
            Self::Revoked(_)
            | Self::Unvouched {
                reason: Unvouched::Revoked(_),
                ..
            } => Flag::CertRevoked,
            Self::Certificate { .. } | Self::Unvouched { .. } => Flag::IdentityError,
            Self::Tunnel(error) => tunnel_flag(error),
            Self::ClientProtocol(_) => Flag::H2HandshakeFailure,
            Self::NotServed(_)
            | Self::Malformed(_)
            | Self::Socks5(_)
            | Self::Socks5Slow(_)
            | Self::Socks5Unfinished => Flag::BadRequest,
            Self::Name(_) => Flag::Dns,
            Self::Limit(_) => Flag::Limit,
            Self::PodGone | Self::Drained => Flag::None,
        }
    }
}

fn tunnel_flag(error: &OpenError) -> Flag {
    match error {
        OpenError::Certificate { .. } | OpenError::CertificateTimeout { .. } => Flag::IdentityError,
        OpenError::DialTimeout { .. } => Flag::NetworkPolicy,
        OpenError::Handshake { source, .. }
        | OpenError::Behind {
            source: BehindError::Handshake(source),
            ..
        } if tls::is_revoked(&**source) => Flag::CertRevoked,
        OpenError::Dial { .. }
        | OpenError::Handshake { .. }
        | OpenError::HandshakeTimeout { .. }
        | OpenError::PeerIdentity { .. }
        | OpenError::ResponseTimeout { .. }
        | OpenError::Refused { .. } => Flag::Connect,
        OpenError::Tunnel { .. }
        | OpenError::Request { .. }
        | OpenError::Behind {
            source: BehindError::Tunnel(_),
            ..
        } => Flag::H2HandshakeFailure,
        // The gateway is fine; what lies behind it did not take the connection.
        OpenError::Behind { .. } => Flag::Connect,
        OpenError::PoolClosed => Flag::None,
    }
}
