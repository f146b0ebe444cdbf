// SPDX-License-Identifier: Apache-2.0
//! Which server a TLS client asks for, by its first message; the connection itself is not ended here.
//!
//! In: the client's bytes as they come. Out: the name, or that it has none, or that this is no TLS. What is read is kept by
//! the caller, who passes it on.

use std::io::{self, Read};

use rustls::server::Acceptor;

/// So much is read of a client before its first message has to be there.
pub const LONGEST: usize = 64 * 1024;

/// Reads a client's first message.
#[derive(Default)]
pub struct Hello(Acceptor);

/// What the client says is not how TLS begins.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the client begins with no TLS: {0}")]
pub struct NoTls(pub String);

/// The message is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// In small letters; none where the client names none.
    pub server: Option<Box<str>>,
}

impl Hello {
    /// The next bytes; nothing while the message is not whole.
    ///
    /// # Errors
    /// If it is none.
    pub fn read(&mut self, mut bytes: &[u8]) -> Result<Option<Asked>, NoTls> {
        while !bytes.is_empty() {
            match self.0.read_tls(&mut (&mut bytes as &mut dyn Read)) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(NoTls(error.to_string())),
            }
            match self.0.accept() {
                Ok(None) => {}
                Ok(Some(accepted)) => {
                    let hello = accepted.client_hello();
                    let server = hello.server_name();
                    return Ok(Some(Asked {
                        server: server.map(|name| name.to_ascii_lowercase().into()),
                    }));
                }
                Err((error, _alert)) => return Err(NoTls(error.to_string())),
            }
        }
        Ok(None)
    }
}

/// A client's first message, for tests.
#[cfg(test)]
pub(crate) fn message(server: &str) -> Vec<u8> {
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = server.to_owned().try_into().unwrap();
    let mut client = ClientConnection::new(config.into(), name).unwrap();
    let mut message = Vec::new();
    client.write_tls(&mut message).unwrap();
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn named(server: &str) -> Result<Option<Asked>, NoTls> {
        Ok(Some(Asked {
            server: Some(server.into()),
        }))
    }

    #[test]
    fn the_name_is_found_however_the_message_comes() {
        let whole = message("Shop.example.com");
        for size in [1, 7, 100, whole.len()] {
            let mut hello = Hello::default();
            let mut pieces = whole.chunks(size).peekable();
            while let Some(piece) = pieces.next() {
                let read = hello.read(piece);
                match pieces.peek() {
                    Some(_) => assert_eq!(read, Ok(None), "in pieces of {size}"),
                    None => assert_eq!(read, named("shop.example.com"), "in pieces of {size}"),
                }
            }
        }
        // What comes with it is not looked at.
        let more = [&*whole, b"\x17\x03\x03\x00\x01x"].concat();
        assert_eq!(Hello::default().read(&more), named("shop.example.com"));
    }

    #[test]
    fn a_client_may_name_no_server_and_what_is_no_tls_is_told() {
        // An address is no server's name.
        let unnamed = Hello::default().read(&message("10.0.0.1"));
        assert_eq!(unnamed, Ok(Some(Asked { server: None })));
        for bytes in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"\x16\x03\x01\xff\xff\x02",
            b"\x15\x03\x01\x00\x02\x01\x00",
        ] {
            assert!(Hello::default().read(bytes).is_err(), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn bytes_of_any_kind_are_refused_or_waited_for(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            at in 0..200_usize,
        ) {
            let _ = Hello::default().read(&bytes);
            // Damage in a message that was good.
            let mut message = message("shop.example.com");
            let end = message.len().min(at + bytes.len().min(3));
            let damaged = at.min(end)..end;
            let length = damaged.len();
            message[damaged].copy_from_slice(&bytes[..length]);
            let _ = Hello::default().read(&message);
        }
    }
}
