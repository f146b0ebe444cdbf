// SPDX-License-Identifier: Apache-2.0
//! Traffic secrets of a TLS 1.3 connection (RFC 8446 §7): caught from the handshake, turned into keys, renewed.
//!
//! They are plain values, so that a connection may later be handed to another process with all that it needs to go on.
//! Each is wiped when it is dropped, and none is ever printed.

use aws_lc_rs::{aead, hkdf};
use parking_lot::Mutex;
use tokio_rustls::rustls::{CipherSuite, KeyLog};
use zeroize::Zeroizing;

/// The longest secret: SHA-384.
const MOST: usize = 48;

/// Bytes of the static part of a nonce.
pub(super) const IV: usize = 12;

/// The cipher suites of the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Suite {
    Aes128GcmSha256,
    Aes256GcmSha384,
}

impl Suite {
    pub(crate) fn of(suite: CipherSuite) -> Option<Self> {
        match suite {
            CipherSuite::TLS13_AES_128_GCM_SHA256 => Some(Self::Aes128GcmSha256),
            CipherSuite::TLS13_AES_256_GCM_SHA384 => Some(Self::Aes256GcmSha384),
            _ => None,
        }
    }

    pub(super) fn aead(self) -> &'static aead::Algorithm {
        match self {
            Self::Aes128GcmSha256 => &aead::AES_128_GCM,
            Self::Aes256GcmSha384 => &aead::AES_256_GCM,
        }
    }

    fn hkdf(self) -> hkdf::Algorithm {
        match self {
            Self::Aes128GcmSha256 => hkdf::HKDF_SHA256,
            Self::Aes256GcmSha384 => hkdf::HKDF_SHA384,
        }
    }

    fn secret_len(self) -> usize {
        match self {
            Self::Aes128GcmSha256 => 32,
            Self::Aes256GcmSha384 => 48,
        }
    }
}

/// The secret of one direction and generation. Not `Clone`: two owners could use one nonce twice.
pub(crate) struct TrafficSecret {
    suite: Suite,
    bytes: Zeroizing<[u8; MOST]>,
}

impl TrafficSecret {
    /// `None` if the length is not that of the suite's hash.
    pub(crate) fn new(suite: Suite, secret: &[u8]) -> Option<Self> {
        if secret.len() != suite.secret_len() {
            return None;
        }
        let mut bytes = Zeroizing::new([0; MOST]);
        bytes[..secret.len()].copy_from_slice(secret);
        Some(Self { suite, bytes })
    }

    pub(super) fn suite(&self) -> Suite {
        self.suite
    }

    /// The write key and the static part of its nonces (RFC 8446 §7.3).
    pub(super) fn key_and_iv(&self) -> (Zeroizing<Vec<u8>>, [u8; IV]) {
        let mut key = Zeroizing::new(vec![0; self.suite.aead().key_len()]);
        self.expand(b"key", &mut key);
        let mut iv = [0; IV];
        self.expand(b"iv", &mut iv);
        (key, iv)
    }

    /// The next generation (RFC 8446 §7.2).
    pub(super) fn next(&self) -> Self {
        let mut bytes = Zeroizing::new([0; MOST]);
        self.expand(b"traffic upd", &mut bytes[..self.suite.secret_len()]);
        Self {
            suite: self.suite,
            bytes,
        }
    }

    /// HKDF-Expand-Label with an empty context (RFC 8446 §7.1).
    fn expand(&self, label: &[u8], out: &mut [u8]) {
        struct Length(usize);
        impl hkdf::KeyType for Length {
            fn len(&self) -> usize {
                self.0
            }
        }
        let secret = &self.bytes[..self.suite.secret_len()];
        let prk = hkdf::Prk::new_less_safe(self.suite.hkdf(), secret);
        let length = (out.len() as u16).to_be_bytes();
        let label_len = [(b"tls13 ".len() + label.len()) as u8];
        let info = [&length[..], &label_len, b"tls13 ", label, &[0]];
        prk.expand(&info, Length(out.len()))
            .and_then(|okm| okm.fill(out))
            .expect("broken invariant: HKDF expands to far more than a key");
    }
}

impl std::fmt::Debug for TrafficSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TrafficSecret")
            .field("suite", &self.suite)
            .finish_non_exhaustive()
    }
}

/// The secrets of both directions.
#[derive(Debug)]
pub(crate) struct Secrets {
    pub(crate) client: TrafficSecret,
    pub(crate) server: TrafficSecret,
}

/// Catches the first traffic secrets of one connection; to be set as its key log.
#[derive(Default)]
pub(crate) struct Catcher(Mutex<Caught>);

#[derive(Default)]
struct Caught {
    client: Option<Zeroizing<Vec<u8>>>,
    server: Option<Zeroizing<Vec<u8>>>,
}

impl Catcher {
    /// Takes the secrets out; `None` if the handshake has not come so far.
    pub(crate) fn take(&self, suite: Suite) -> Option<Secrets> {
        let Caught { client, server } = std::mem::take(&mut *self.0.lock());
        Some(Secrets {
            client: TrafficSecret::new(suite, &client?)?,
            server: TrafficSecret::new(suite, &server?)?,
        })
    }
}

impl KeyLog for Catcher {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        let mut caught = self.0.lock();
        let place = match label {
            "CLIENT_TRAFFIC_SECRET_0" => &mut caught.client,
            "SERVER_TRAFFIC_SECRET_0" => &mut caught.server,
            _ => return,
        };
        *place = Some(Zeroizing::new(secret.to_vec()));
    }

    fn will_log(&self, label: &str) -> bool {
        matches!(label, "CLIENT_TRAFFIC_SECRET_0" | "SERVER_TRAFFIC_SECRET_0")
    }
}

impl std::fmt::Debug for Catcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Catcher").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
            .collect()
    }

    /// RFC 8448 §3: the server's application traffic secret and what is derived from it.
    #[test]
    fn keys_are_those_of_the_published_trace() {
        let secret = TrafficSecret::new(
            Suite::Aes128GcmSha256,
            &hex("a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643"),
        )
        .unwrap();
        let (key, iv) = secret.key_and_iv();
        assert_eq!(*key, hex("9f02283b6c9c07efc26bb9f2ac92e356"));
        assert_eq!(iv[..], hex("cf782b88dd83549aadf1e984"));
    }

    #[test]
    fn a_secret_of_the_wrong_length_is_none() {
        assert!(TrafficSecret::new(Suite::Aes256GcmSha384, &[0; 32]).is_none());
        assert!(TrafficSecret::new(Suite::Aes128GcmSha256, &[0; 48]).is_none());
    }

    #[test]
    fn nothing_secret_is_printed() {
        let secret = TrafficSecret::new(Suite::Aes128GcmSha256, &[0xab; 32]).unwrap();
        let catcher = Catcher::default();
        catcher.log("CLIENT_TRAFFIC_SECRET_0", &[], &[0xab; 32]);
        let printed = format!("{secret:?} {catcher:?}");
        assert!(!printed.contains("171") && !printed.contains("ab, "));
    }
}
