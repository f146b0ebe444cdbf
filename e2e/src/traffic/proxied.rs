// SPDX-License-Identifier: Apache-2.0
//! A server that is told by the PROXY protocol, version 2, where its connections come from. It reads the header by the
//! protocol's own text and says on its page what it was told.

use std::io;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, BufReader};
use tokio::net::TcpStream;

use crate::traffic::http;

/// What a connection's header told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    pub source: SocketAddr,
    pub destination: SocketAddr,
    /// Values of the mesh: whose connection it is, and which service was meant.
    pub identity: Option<String>,
    pub service: Option<String>,
    /// Who really connected, and who was told.
    pub peer: SocketAddr,
    pub pod: String,
}

const SIGNATURE: [u8; 12] = [
    0x0d, 0x0a, 0x0d, 0x0a, 0x00, 0x0d, 0x0a, 0x51, 0x55, 0x49, 0x54, 0x0a,
];
const SOURCE_IDENTITY: u8 = 0xd0;
const SERVICE_HOST: u8 = 0xd1;

/// Answers one request.
pub(super) async fn page(mut stream: TcpStream, peer: SocketAddr, pod: &str) -> io::Result<()> {
    let mut head = [0; 16];
    stream.read_exact(&mut head).await?;
    let length = usize::from(u16::from_be_bytes([head[14], head[15]]));
    let mut rest = vec![0; length];
    stream.read_exact(&mut rest).await?;
    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    let told = read(&head, &rest, peer, pod).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("no PROXY header: {head:?} {rest:?}"),
        )
    })?;
    let mut stream = BufReader::new(stream);
    http::read_head(&mut stream).await?;
    let body = serde_json::to_string(&told)? + "\n";
    http::answer(&mut stream, 200, "application/json", &body).await
}

fn read(head: &[u8; 16], rest: &[u8], peer: SocketAddr, pod: &str) -> Option<Told> {
    if head[..12] != SIGNATURE || head[12] != 0x21 {
        return None;
    }
    let (ips, after) = match head[13] {
        0x11 => rest.split_at_checked(8)?,
        0x21 => rest.split_at_checked(32)?,
        _ => return None,
    };
    let (source, destination) = ips.split_at(ips.len() / 2);
    let ip = |bytes: &[u8]| -> Option<IpAddr> {
        match bytes.len() {
            4 => Some(<[u8; 4]>::try_from(bytes).ok()?.into()),
            _ => Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical()),
        }
    };
    let (ports, mut values) = after.split_at_checked(4)?;
    let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
    let (mut identity, mut service) = (None, None);
    while let Some((&[kind, high, low], after)) = values.split_first_chunk::<3>() {
        let (value, after) =
            after.split_at_checked(usize::from(u16::from_be_bytes([high, low])))?;
        let text = || String::from_utf8(value.to_vec()).ok();
        match kind {
            SOURCE_IDENTITY => identity = text(),
            SERVICE_HOST => service = text(),
            _ => {}
        }
        values = after;
    }
    values.is_empty().then_some(Told {
        source: SocketAddr::new(ip(source)?, port(0)),
        destination: SocketAddr::new(ip(destination)?, port(2)),
        identity,
        service,
        peer,
        pod: pod.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(head: &[u8], rest: &[u8]) -> Option<Told> {
        let peer = "127.0.0.1:1".parse().unwrap();
        read(head.try_into().unwrap(), rest, peer, "p")
    }

    #[test]
    fn a_header_is_read_to_its_end() {
        let head = [&SIGNATURE[..], &[0x21, 0x11, 0, 20]].concat();
        let rest = [
            &[10, 0, 0, 1, 10, 96, 0, 2, 0x9c, 0x40, 0, 80][..],
            &[0xd0, 0, 1, b'x', 0xd1, 0, 1, b'y'],
        ]
        .concat();
        let seen = told(&head, &rest).unwrap();
        assert_eq!(seen.source, "10.0.0.1:40000".parse().unwrap());
        assert_eq!(seen.destination, "10.96.0.2:80".parse().unwrap());
        assert_eq!(seen.identity.as_deref(), Some("x"));
        assert_eq!(seen.service.as_deref(), Some("y"));
        for short in 0..rest.len() {
            let cut = told(&head, &rest[..short]);
            // Only between values a shorter header is a header as well.
            assert_eq!(cut.is_some(), [12, 16].contains(&short), "{short} bytes");
        }
        assert_eq!(told(&[0; 16], &rest), None);
    }
}
