// SPDX-License-Identifier: Apache-2.0
//! Why a connection or request failed, told three ways: a text for a person, a flag for metrics, a status for the client.
//!
//! The exhaustive matches below are the only place that gives flags and statuses.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hbone::wire::MalformedRequest;
use hbone::{OpenError, TunnelError};
use http::StatusCode;
use mesh::NoEndpoint;

use crate::destination::Unserved;
use crate::resilience::limits::Overflow;
use crate::token::BadToken;

#[derive(Debug, Clone, thiserror::Error)]
pub enum Failure {
    /// It is not ours to serve, or not yet.
    #[error("{0}")]
    Unserved(#[from] Unserved),
    /// A policy, or the absence of one that this waypoint's pod names, forbids it.
    #[error("{0}")]
    Denied(Arc<str>),
    /// Whom a policy asks has not allowed it.
    #[error("{0}")]
    NotAuthorized(Arc<str>),
    /// A token of the request is no good.
    #[error("{0}")]
    Token(BadToken),
    /// It was allowed once.
    #[error("closed because policy changed: {0}")]
    PolicyChanged(Arc<str>),
    /// It is no CONNECT request at all.
    #[error("malformed request: {0}")]
    Malformed(MalformedRequest),
    #[error("handshake with the client failed: {0}")]
    ClientHandshake(Arc<str>),
    /// The client's certificate, or one above it, has been taken back.
    #[error("{0}")]
    Revoked(Arc<str>),
    #[error("the client's tunnel broke the protocol: {0}")]
    ClientProtocol(TunnelError),
    /// What the client says is no HTTP.
    #[error("the client broke HTTP: {0}")]
    ClientHttp(Arc<str>),
    /// What the client says is no TLS.
    #[error("the client broke TLS: {0}")]
    ClientTls(Arc<str>),
    #[error("no certificate for this waypoint: {0}")]
    Certificate(Arc<str>),
    #[error("there are {0} connections, as many as there may be")]
    Full(usize),
    #[error("{name} cannot take it: {reason}")]
    NoEndpoint { name: Arc<str>, reason: NoEndpoint },
    #[error("workload {workload} cannot be reached from here: {reason}")]
    Unreachable {
        workload: Arc<str>,
        reason: &'static str,
    },
    #[error("host {host} of an endpoint: {error}")]
    Unresolved { host: Arc<str>, error: Arc<str> },
    #[error("cannot connect to {to}: {error}")]
    Connect {
        to: SocketAddr,
        error: Arc<io::Error>,
    },
    #[error("connecting to {to} took longer than {limit:?}")]
    ConnectTimeout { to: SocketAddr, limit: Duration },
    #[error("{0}")]
    Tunnel(OpenError),
    /// An endpoint doesn't prove to be who it should be, or speaks no TLS.
    #[error("TLS with {server} at {to}: {reason}")]
    Tls {
        to: SocketAddr,
        server: Arc<str>,
        reason: Arc<str>,
    },
    /// What TLS is to be begun with can't be used.
    #[error("TLS with {server} can't be begun: {reason}")]
    TlsSettings { server: Arc<str>, reason: Arc<str> },
    /// Its route takes no more at this time.
    #[error("{0} takes no more requests of this kind now")]
    RateLimited(Arc<str>),
    /// A route says that it goes nowhere.
    #[error("{reason}")]
    Routed { flag: Flag, reason: Arc<str> },
    /// The endpoint's connection broke, or what it says is no HTTP.
    #[error("{to}: {error}")]
    Http { to: SocketAddr, error: Arc<str> },
    #[error("there are {0} requests under way to the endpoint, as many as there may be")]
    Overflow(usize),
    /// A limit of the destination's own.
    #[error("{0}")]
    Limit(#[from] Overflow),
    #[error("it took longer than its route allows")]
    Timeout,
    /// An established connection broke on the far side.
    #[error("connection broke: {0}")]
    Broken(Arc<str>),
    /// The client has left, or broke its own connection.
    #[error("the client has left: {0}")]
    ClientGone(Arc<str>),
    /// Not the connection's fault: this process is going away.
    #[error("closed by drain")]
    Drained,
}

/// The `response_flags` label, in Envoy's letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Flag {
    None,
    /// No route leads there.
    NoRoute,
    /// No endpoint can take it.
    NoHealthyUpstream,
    /// The endpoint could not be connected to.
    UpstreamConnectionFailure,
    /// The endpoint broke an established connection.
    UpstreamConnectionTermination,
    /// It took longer than it may.
    UpstreamTimeout,
    /// It failed, and so did every further attempt.
    UpstreamRetryLimit,
    /// There are too many already.
    Overflow,
    /// Its route takes no more at this time.
    RateLimited,
    /// The client left before it was answered.
    DownstreamConnectionTermination,
    /// The client broke the protocol.
    DownstreamProtocolError,
    /// A policy forbids it.
    Denied,
    /// Whom a policy asks forbids it, or could not be asked.
    ExternalAuthorization,
    /// Who the client is, or who this process is, can't be proven.
    Identity,
    /// A route answers with an error on purpose.
    FaultInjected,
}

impl Flag {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "-",
            Self::NoRoute => "NR",
            Self::NoHealthyUpstream => "UH",
            Self::UpstreamConnectionFailure => "UF",
            Self::UpstreamConnectionTermination => "UC",
            Self::UpstreamTimeout => "UT",
            Self::UpstreamRetryLimit => "URX",
            Self::Overflow => "UO",
            Self::RateLimited => "RL",
            Self::DownstreamConnectionTermination => "DC",
            Self::DownstreamProtocolError => "DPE",
            Self::Denied => "DENY",
            Self::ExternalAuthorization => "UAEX",
            Self::Identity => "IDENTITY_ERROR",
            Self::FaultInjected => "FI",
        }
    }

    /// Whether somebody may not do what was asked for: that is never kept quiet.
    pub fn is_refusal(self) -> bool {
        matches!(
            self,
            Self::Denied | Self::ExternalAuthorization | Self::Identity | Self::RateLimited
        )
    }
}

impl Failure {
    pub fn flag(&self) -> Flag {
        match self {
            Self::Unserved(_) => Flag::NoRoute,
            Self::Denied(_) | Self::PolicyChanged(_) => Flag::Denied,
            Self::NotAuthorized(_) => Flag::ExternalAuthorization,
            Self::Malformed(_)
            | Self::ClientProtocol(_)
            | Self::ClientHttp(_)
            | Self::ClientTls(_) => Flag::DownstreamProtocolError,
            Self::Token(_) | Self::ClientHandshake(_) | Self::Revoked(_) | Self::Certificate(_) => {
                Flag::Identity
            }
            Self::Full(_) | Self::Overflow(_) | Self::Limit(_) => Flag::Overflow,
            Self::RateLimited(_) => Flag::RateLimited,
            Self::Timeout => Flag::UpstreamTimeout,
            Self::Routed { flag, .. } => *flag,
            Self::NoEndpoint { .. } | Self::Unreachable { .. } => Flag::NoHealthyUpstream,
            Self::Unresolved { .. }
            | Self::Connect { .. }
            | Self::ConnectTimeout { .. }
            | Self::Tunnel(_)
            | Self::Tls { .. }
            | Self::TlsSettings { .. } => Flag::UpstreamConnectionFailure,
            Self::Broken(_) | Self::Http { .. } => Flag::UpstreamConnectionTermination,
            Self::ClientGone(_) => Flag::DownstreamConnectionTermination,
            Self::Drained => Flag::None,
        }
    }

    /// The answer to a CONNECT, or to a request.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Unserved(
                Unserved::NotOurs { .. }
                | Unserved::UnknownAddress(_)
                | Unserved::UnknownHost(_)
                | Unserved::NoPort { .. },
            )
            | Self::Routed { .. } => StatusCode::NOT_FOUND,
            Self::Token(_) => StatusCode::UNAUTHORIZED,
            Self::Denied(_) | Self::NotAuthorized(_) | Self::PolicyChanged(_) => {
                StatusCode::FORBIDDEN
            }
            Self::Malformed(_)
            | Self::ClientProtocol(_)
            | Self::ClientHttp(_)
            | Self::ClientTls(_) => StatusCode::BAD_REQUEST,
            Self::RateLimited(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Timeout => StatusCode::GATEWAY_TIMEOUT,
            Self::Unserved(Unserved::OwnPod(_) | Unserved::Unsettled | Unserved::NotTold(_))
            | Self::ClientHandshake(_)
            | Self::Revoked(_)
            | Self::Certificate(_)
            | Self::Full(_)
            | Self::Overflow(_)
            | Self::Limit(_)
            | Self::Http { .. }
            | Self::NoEndpoint { .. }
            | Self::Unreachable { .. }
            | Self::Unresolved { .. }
            | Self::Connect { .. }
            | Self::ConnectTimeout { .. }
            | Self::Tunnel(_)
            | Self::Tls { .. }
            | Self::TlsSettings { .. }
            | Self::Broken(_)
            | Self::ClientGone(_)
            | Self::Drained => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Whether another endpoint may do better: nothing was delivered, and nobody but this one is at fault.
    pub fn is_the_endpoints(&self) -> bool {
        match self {
            Self::Unresolved { .. }
            | Self::Connect { .. }
            | Self::ConnectTimeout { .. }
            | Self::Tls { .. } => true,
            Self::Tunnel(error) => !matches!(
                error,
                OpenError::Certificate { .. }
                    | OpenError::CertificateTimeout { .. }
                    | OpenError::Request { .. }
                    | OpenError::PoolClosed
                    // Its node has decided.
                    | OpenError::Refused { status: 401 | 403, .. }
            ),
            _ => false,
        }
    }
}
