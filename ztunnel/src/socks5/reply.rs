// SPDX-License-Identifier: Apache-2.0
//! What a client is told of its request (RFC 1928 §6): one code for each kind of failure.

use std::io;

use hbone::{BehindError, OpenError};

use crate::binding::Unbound;
use crate::failure::Failure;
use crate::route::Refusal;

/// The reply's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// The connection is open.
    Succeeded = 0,
    /// Nothing more precise fits.
    GeneralFailure = 1,
    /// A policy forbids it, or the mesh does.
    NotAllowed = 2,
    /// No route of the pod leads there.
    NetworkUnreachable = 3,
    /// Nobody answers there, or nobody knows where that is.
    HostUnreachable = 4,
    /// Nobody listens there.
    ConnectionRefused = 5,
    /// Something else than CONNECT was asked for.
    CommandNotSupported = 7,
    /// The address is of no known kind.
    AddressTypeNotSupported = 8,
}

impl Reply {
    /// The whole reply. No address was bound that would mean anything to the client.
    pub fn bytes(self) -> [u8; 10] {
        [5, self as u8, 0, 1, 0, 0, 0, 0, 0, 0]
    }

    /// What a failure means to who has asked for the connection.
    pub fn of(failure: &Failure) -> Self {
        match failure {
            Failure::Denied(_)
            | Failure::PolicyChanged(_)
            | Failure::Loop(_)
            | Failure::Unbound(
                Unbound::ForeignNamespace { .. }
                | Unbound::OtherPod { .. }
                | Unbound::ForeignAddress { .. }
                | Unbound::TakenAddress { .. }
                | Unbound::UnconfiguredAddress { .. },
            ) => Self::NotAllowed,
            Failure::NoRoute(refusal) => Self::of_refusal(refusal),
            Failure::Connect { error, .. } => Self::of_io(error),
            Failure::ConnectTimeout { .. } | Failure::Name(_) => Self::HostUnreachable,
            Failure::Refused { status, .. } => Self::of_status(*status),
            Failure::Tunnel(error) => Self::of_tunnel(error),
            Failure::Unbound(Unbound::Unknown(_))
            | Failure::Unlearned { .. }
            | Failure::NotServed(_)
            | Failure::Malformed(_)
            | Failure::ClientProtocol(_)
            | Failure::Certificate { .. }
            | Failure::LocalTls(_)
            | Failure::Unvouched { .. }
            | Failure::ClientHandshake { .. }
            | Failure::Revoked(_)
            | Failure::Copy(_)
            | Failure::Socks5(_)
            | Failure::Socks5Slow(_)
            | Failure::Socks5Unfinished
            | Failure::PodGone
            | Failure::Limit(_)
            | Failure::Drained => Self::GeneralFailure,
        }
    }

    fn of_refusal(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::Loop(_) | Refusal::NobodyExpected { .. } => Self::NotAllowed,
            Refusal::NoGateway { .. } | Refusal::NotAService { .. } => Self::NetworkUnreachable,
            Refusal::NoEndpoint { .. }
            | Refusal::UnknownHop { .. }
            | Refusal::NoHopEndpoint { .. }
            | Refusal::NoAddress(_)
            | Refusal::NoHost { .. } => Self::HostUnreachable,
        }
    }

    fn of_io(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::ConnectionRefused,
            io::ErrorKind::NetworkUnreachable | io::ErrorKind::NetworkDown => {
                Self::NetworkUnreachable
            }
            io::ErrorKind::HostUnreachable
            | io::ErrorKind::TimedOut
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::AddrNotAvailable => Self::HostUnreachable,
            _ => Self::GeneralFailure,
        }
    }

    fn of_tunnel(error: &OpenError) -> Self {
        match error {
            OpenError::Dial { source, .. } => Self::of_io(source),
            OpenError::DialTimeout { .. }
            | OpenError::HandshakeTimeout { .. }
            | OpenError::ResponseTimeout { .. } => Self::HostUnreachable,
            OpenError::PeerIdentity { .. } => Self::NotAllowed,
            OpenError::Refused { status, .. } => Self::of_status(*status),
            OpenError::Behind { source, .. } => match source {
                BehindError::PeerIdentity { .. } => Self::NotAllowed,
                BehindError::Refused { status, .. } => Self::of_status(*status),
                _ => Self::HostUnreachable,
            },
            OpenError::Certificate { .. }
            | OpenError::CertificateTimeout { .. }
            | OpenError::Handshake { .. }
            | OpenError::Tunnel { .. }
            | OpenError::Request { .. }
            | OpenError::PoolClosed => Self::GeneralFailure,
        }
    }

    /// What the destination's proxy has answered: 401 and 403 are its policies', 502 to 504 say that its application was
    /// not there.
    fn of_status(status: u16) -> Self {
        match status {
            401 | 403 => Self::NotAllowed,
            502..=504 => Self::ConnectionRefused,
            _ => Self::GeneralFailure,
        }
    }
}
