// SPDX-License-Identifier: Apache-2.0
//! What our own TLS certificate consists of.

use std::net::IpAddr;
use std::str::FromStr;
use std::time::SystemTime;

use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::SignError;

/// A name that our own server is reached by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServingName {
    Dns(String),
    Ip(IpAddr),
}

impl FromStr for ServingName {
    type Err = SignError;

    fn from_str(name: &str) -> Result<Self, SignError> {
        if let Ok(ip) = name.parse() {
            return Ok(Self::Ip(ip));
        }
        let refuse = |reason| {
            Err(SignError::Name {
                name: name.to_owned(),
                reason,
            })
        };
        let label = |label: &str| {
            let bytes = label.as_bytes();
            !bytes.is_empty()
                && bytes.len() <= 63
                && bytes
                    .iter()
                    .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        match name {
            _ if name.len() > 253 => refuse("is longer than 253 characters"),
            _ if !name.split('.').all(label) => refuse("is neither a host name nor an IP address"),
            _ => Ok(Self::Dns(name.to_owned())),
        }
    }
}

/// Our own TLS certificate.
pub struct ServingCertificate {
    /// The leaf and the intermediates.
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
    /// When half of its life is over: time for another one.
    pub renew_at: SystemTime,
}

impl std::fmt::Debug for ServingCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServingCertificate")
            .field("renew_at", &self.renew_at)
            .finish_non_exhaustive()
    }
}
