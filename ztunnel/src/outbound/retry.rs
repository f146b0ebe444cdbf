// SPDX-License-Identifier: Apache-2.0
//! What a failed attempt to connect means: whether another endpoint may be tried, and whether this one is to blame.
//!
//! Until a connect succeeds no byte of the application has left, so trying elsewhere repeats nothing. What a peer
//! refuses to this source, by policy or because the request makes no sense to it, others would refuse as well, or must
//! not be asked: that is final. So is what fails here, before any peer is involved.

use std::io;

use hbone::{BehindError, OpenError, TunnelFault};

use crate::failure::Failure;

/// What stands at the other end of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The destination itself.
    Destination,
    /// Somebody who connects on to the destination: a waypoint, a gateway.
    Intermediary,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Final,
    Elsewhere { cause: Cause, blame: Blame },
}

/// Who is not asked again by this connection, and whether others had better avoid it too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blame {
    /// The endpoint, and everybody should.
    Endpoint,
    /// The endpoint, by this connection alone.
    Nobody,
    /// What lies behind the gateway that was asked.
    Behind,
}

/// The `reason` of a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    Refused,
    Timeout,
    Unreachable,
    Handshake,
    PeerIdentity,
    TunnelBroke,
    Status,
}

impl Cause {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Timeout => "timeout",
            Self::Unreachable => "unreachable",
            Self::Handshake => "handshake",
            Self::PeerIdentity => "peer_identity",
            Self::TunnelBroke => "tunnel",
            Self::Status => "status",
        }
    }
}

pub(super) fn judge(failure: &Failure, role: Role) -> Verdict {
    match failure {
        Failure::Connect { error, .. } => of_connect(error),
        Failure::ConnectTimeout { .. } => elsewhere(Cause::Timeout),
        Failure::Tunnel(error) => of_tunnel(error, role),
        Failure::Refused { status, .. } if is_unavailable(*status) => elsewhere(Cause::Status),
        _ => Verdict::Final,
    }
}

fn elsewhere(cause: Cause) -> Verdict {
    Verdict::Elsewhere {
        cause,
        blame: Blame::Endpoint,
    }
}

/// Only what the network or the peer answered; want of descriptors or permission is this node's own trouble.
fn of_connect(error: &io::Error) -> Verdict {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => elsewhere(Cause::Refused),
        io::ErrorKind::TimedOut => elsewhere(Cause::Timeout),
        io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable
        | io::ErrorKind::NetworkDown
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted => elsewhere(Cause::Unreachable),
        _ => Verdict::Final,
    }
}

fn of_tunnel(error: &OpenError, role: Role) -> Verdict {
    match error {
        OpenError::Dial { source, .. } => of_connect(source),
        OpenError::DialTimeout { .. }
        | OpenError::HandshakeTimeout { .. }
        | OpenError::ResponseTimeout { .. } => elsewhere(Cause::Timeout),
        // An alert may be about the certificate of this source, which says nothing of the endpoint to others.
        OpenError::Handshake { source, .. } if source.kind() == io::ErrorKind::InvalidData => {
            Verdict::Elsewhere {
                cause: Cause::Handshake,
                blame: Blame::Nobody,
            }
        }
        OpenError::Handshake { .. } => elsewhere(Cause::Handshake),
        // Nothing was said to whoever answered there: most likely the address has a new owner.
        OpenError::PeerIdentity { .. } => elsewhere(Cause::PeerIdentity),
        OpenError::Tunnel { source, .. } if source.fault() == TunnelFault::Aborted => {
            Verdict::Final
        }
        OpenError::Tunnel { .. } => elsewhere(Cause::TunnelBroke),
        OpenError::Refused { status, .. } if is_unavailable(*status) => Verdict::Elsewhere {
            cause: Cause::Status,
            blame: match role {
                Role::Destination => Blame::Endpoint,
                // It may speak of what lies behind it, and other services are behind it too.
                Role::Intermediary => Blame::Nobody,
            },
        },
        OpenError::Behind { source, .. } => of_what_is_behind(source),
        OpenError::Refused { .. }
        | OpenError::Certificate { .. }
        | OpenError::CertificateTimeout { .. }
        | OpenError::Request { .. }
        | OpenError::PoolClosed => Verdict::Final,
    }
}

/// Which of the endpoints behind a gateway answered is not known here.
fn of_what_is_behind(error: &BehindError) -> Verdict {
    let cause = match error {
        BehindError::Handshake(_) => Cause::Handshake,
        BehindError::HandshakeTimeout(_) | BehindError::ResponseTimeout { .. } => Cause::Timeout,
        BehindError::PeerIdentity { .. } => Cause::PeerIdentity,
        BehindError::Tunnel(_) => Cause::TunnelBroke,
        BehindError::Refused { status, .. } if is_unavailable(*status) => Cause::Status,
        BehindError::Refused { .. } => return Verdict::Final,
    };
    Verdict::Elsewhere {
        cause,
        blame: Blame::Behind,
    }
}

fn is_unavailable(status: u16) -> bool {
    (500..600).contains(&status)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::time::Duration;

    use nix::errno::Errno;

    use super::*;
    use crate::route::Refusal;

    const AT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 80);

    fn check(failure: &Failure, expected: Option<(Cause, Blame)>) {
        let expected = match expected {
            Some((cause, blame)) => Verdict::Elsewhere { cause, blame },
            None => Verdict::Final,
        };
        assert_eq!(judge(failure, Role::Destination), expected, "{failure}");
    }

    fn refused(status: u16) -> Failure {
        Failure::Tunnel(OpenError::Refused {
            address: AT,
            authority: "a:1".into(),
            status,
        })
    }

    #[test]
    fn what_the_network_answers_is_tried_elsewhere_and_own_trouble_is_not() {
        let blamed = |cause| Some((cause, Blame::Endpoint));
        for (code, expected) in [
            (Errno::ECONNREFUSED, blamed(Cause::Refused)),
            (Errno::ETIMEDOUT, blamed(Cause::Timeout)),
            (Errno::EHOSTUNREACH, blamed(Cause::Unreachable)),
            (Errno::ENETUNREACH, blamed(Cause::Unreachable)),
            (Errno::ECONNRESET, blamed(Cause::Unreachable)),
            (Errno::EMFILE, None),
            (Errno::ENFILE, None),
            (Errno::EADDRNOTAVAIL, None),
            (Errno::EPERM, None),
            (Errno::EACCES, None),
        ] {
            let error = || io::Error::from(code);
            check(
                &Failure::Connect {
                    to: AT,
                    error: error(),
                },
                expected,
            );
            let dial = OpenError::Dial {
                address: AT,
                source: Arc::new(error()),
            };
            check(&Failure::Tunnel(dial), expected);
        }
    }

    #[test]
    fn a_status_is_final_unless_it_says_unavailable() {
        for status in [400, 401, 403, 404, 429] {
            check(&refused(status), None);
        }
        for status in [500, 502, 503, 504] {
            check(&refused(status), Some((Cause::Status, Blame::Endpoint)));
            let between = judge(&refused(status), Role::Intermediary);
            let (cause, blame) = (Cause::Status, Blame::Nobody);
            assert_eq!(between, Verdict::Elsewhere { cause, blame });
        }
    }

    #[test]
    fn what_fails_behind_a_gateway_is_not_the_gateways_fault() {
        let behind = |source| {
            Failure::Tunnel(OpenError::Behind {
                gateway: AT,
                source,
            })
        };
        let refused = |status| {
            behind(BehindError::Refused {
                authority: "a:1".into(),
                status,
            })
        };
        check(&refused(503), Some((Cause::Status, Blame::Behind)));
        check(&refused(401), None);
        let slow = behind(BehindError::HandshakeTimeout(Duration::from_secs(1)));
        check(&slow, Some((Cause::Timeout, Blame::Behind)));
    }

    #[test]
    fn refusals_and_troubles_of_this_side_are_final() {
        let identity: spiffe::SpiffeId = "spiffe://cluster.local/ns/a/sa/b".parse().unwrap();
        for failure in [
            Failure::Denied("no".into()),
            Failure::PolicyChanged("no".into()),
            Failure::Loop(AT),
            Failure::NoRoute(Refusal::Loop(AT)),
            Failure::Drained,
            Failure::Copy("broke".into()),
            Failure::Tunnel(OpenError::PoolClosed),
            Failure::Tunnel(OpenError::CertificateTimeout {
                identity: identity.clone(),
                after: Duration::from_secs(1),
            }),
            Failure::Tunnel(OpenError::Certificate {
                identity,
                reason: "none".into(),
            }),
        ] {
            check(&failure, None);
        }
    }

    #[test]
    fn a_peer_that_cannot_be_spoken_with_is_one_of_several() {
        let after = Duration::from_secs(1);
        let timeouts = [
            Failure::ConnectTimeout {
                to: AT,
                limit: after,
            },
            Failure::Tunnel(OpenError::DialTimeout { address: AT, after }),
            Failure::Tunnel(OpenError::HandshakeTimeout { address: AT, after }),
            Failure::Tunnel(OpenError::ResponseTimeout {
                address: AT,
                authority: "a:1".into(),
                after,
            }),
        ];
        for failure in timeouts {
            check(&failure, Some((Cause::Timeout, Blame::Endpoint)));
        }
        let handshake = |kind: io::ErrorKind| {
            Failure::Tunnel(OpenError::Handshake {
                address: AT,
                source: Arc::new(kind.into()),
            })
        };
        let (cause, eof) = (Cause::Handshake, io::ErrorKind::UnexpectedEof);
        check(&handshake(eof), Some((cause, Blame::Endpoint)));
        let alert = io::ErrorKind::InvalidData;
        check(&handshake(alert), Some((cause, Blame::Nobody)));
        let impostor = Failure::Tunnel(OpenError::PeerIdentity {
            address: AT,
            expected: Arc::default(),
            reason: "another".into(),
        });
        check(&impostor, Some((Cause::PeerIdentity, Blame::Endpoint)));
    }
}
