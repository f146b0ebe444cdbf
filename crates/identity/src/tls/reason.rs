// SPDX-License-Identifier: Apache-2.0
//! What a failed handshake was about, as one word for a counter.

use std::error::Error as StdError;
use std::io;

use rustls::{AlertDescription, CertificateError, Error, OtherError};

use super::{PeerRefused, TlsError};

/// Sorts an error of a handshake; what nobody has a word for is `other`.
///
/// Takes the error as rustls or the socket gave it, wrapped or not.
pub fn handshake_reason(error: &(dyn StdError + 'static)) -> &'static str {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<Error>() {
            return of_rustls(error);
        }
        if let Some(error) = error.downcast_ref::<TlsError>() {
            return match error {
                TlsError::Protocol { .. } => "protocol",
                TlsError::NoPeerIdentity => "no_identity",
                TlsError::Config { .. } | TlsError::NobodyExpected => "other",
            };
        }
        next = match error.downcast_ref::<io::Error>() {
            // An io::Error shows its content only through `get_ref`.
            Some(io) => match io.get_ref() {
                Some(inner) => Some(inner as &(dyn StdError + 'static)),
                None => return of_socket(io.kind()),
            },
            None => error.source(),
        };
    }
    "other"
}

fn of_socket(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::InvalidData => "not_tls",
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe => "gone",
        _ => "other",
    }
}

fn of_rustls(error: &Error) -> &'static str {
    match error {
        Error::NoCertificatesPresented => "no_certificate",
        Error::InvalidCertificate(reason) => of_certificate(reason),
        Error::PeerIncompatible(_) => "incompatible",
        Error::NoApplicationProtocol => "protocol",
        Error::InvalidMessage(_) => "not_tls",
        Error::AlertReceived(AlertDescription::CloseNotify) => "gone",
        Error::AlertReceived(_) => "refused_by_peer",
        Error::PeerMisbehaved(_)
        | Error::InappropriateMessage { .. }
        | Error::InappropriateHandshakeMessage { .. }
        | Error::DecryptError => "misbehaved",
        _ => "other",
    }
}

fn of_certificate(reason: &CertificateError) -> &'static str {
    match reason {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "expired",
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "not_valid_yet"
        }
        CertificateError::UnknownIssuer => "unknown_issuer",
        CertificateError::Revoked => "revoked",
        CertificateError::BadSignature => "bad_signature",
        CertificateError::Other(OtherError(inner)) => match inner.downcast_ref() {
            Some(PeerRefused::NoIdentity { .. }) => "no_identity",
            Some(PeerRefused::WrongTrustDomain { .. }) => "trust_domain",
            Some(PeerRefused::WrongIdentity { .. }) => "wrong_identity",
            None => "bad_certificate",
        },
        _ => "bad_certificate",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn each_way_to_fail_has_a_word_however_it_is_wrapped() {
        let check = |error: Error, expected| {
            assert_eq!(handshake_reason(&error), expected, "{error}");
            let wrapped = io::Error::new(io::ErrorKind::InvalidData, error);
            assert_eq!(handshake_reason(&wrapped), expected);
        };
        check(Error::NoCertificatesPresented, "no_certificate");
        check(CertificateError::Expired.into(), "expired");
        check(CertificateError::UnknownIssuer.into(), "unknown_issuer");
        check(CertificateError::Revoked.into(), "revoked");
        let two_names = PeerRefused::NoIdentity {
            expected: "one".into(),
        };
        let two_names = CertificateError::Other(OtherError(Arc::new(two_names)));
        check(two_names.into(), "no_identity");
        check(
            Error::AlertReceived(AlertDescription::UnknownCA),
            "refused_by_peer",
        );
        let other = io::Error::other(TlsError::Protocol { found: "".into() });
        assert_eq!(handshake_reason(&other), "protocol");
        let garbage = io::Error::from(io::ErrorKind::InvalidData);
        assert_eq!(handshake_reason(&garbage), "not_tls");
        let left = io::Error::from(io::ErrorKind::UnexpectedEof);
        assert_eq!(handshake_reason(&left), "gone");
    }
}
