// SPDX-License-Identifier: Apache-2.0
//! The lab's DNS server: port 53 over UDP and TCP, in a place of its own beside the nodes. It prints a line for each query.

use std::net::{Ipv6Addr, SocketAddr};

use anyhow::{Context as _, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use crate::dns::message::Message;
use crate::dns::zone::{Transport, respond};

/// Serves until the process ends.
pub async fn serve() -> Result<()> {
    let address = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 53);
    let udp = UdpSocket::bind(address).await.context("UDP port 53")?;
    let tcp = TcpListener::bind(address).await.context("TCP port 53")?;
    println!("serving on {address}");
    tokio::try_join!(serve_udp(udp), serve_tcp(tcp)).map(|_| ())
}

async fn serve_udp(socket: UdpSocket) -> Result<()> {
    let mut buffer = vec![0; 65_535];
    loop {
        let (length, peer) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(error) => {
                // The network's word about an earlier answer: no reason to end.
                println!("udp: {error}");
                continue;
            }
        };
        note("udp", peer, &buffer[..length]);
        if let Some(response) = respond(&buffer[..length], Transport::Udp)
            && let Err(error) = socket.send_to(&response, peer).await
        {
            println!("udp {peer}: the answer could not be sent: {error}");
        }
    }
}

async fn serve_tcp(listener: TcpListener) -> Result<()> {
    loop {
        let (socket, peer) = listener.accept().await.context("TCP")?;
        tokio::task::spawn_local(async move {
            // It ends with whoever closes it first.
            let _ended = converse(socket, peer).await;
        });
    }
}

async fn converse(mut socket: TcpStream, peer: SocketAddr) -> Result<()> {
    loop {
        let length = socket.read_u16().await?;
        let mut query = vec![0; length.into()];
        socket.read_exact(&mut query).await?;
        note("tcp", peer, &query);
        if let Some(response) = respond(&query, Transport::Tcp) {
            let length = u16::try_from(response.len())?.to_be_bytes();
            socket.write_all(&[&length[..], &response].concat()).await?;
        }
    }
}

fn note(transport: &str, peer: SocketAddr, query: &[u8]) {
    let peer = peer.ip().to_canonical();
    match Message::parse(query) {
        Ok(message) => {
            for question in message.questions {
                println!(
                    "{transport} {peer} {} {}",
                    question.name, question.record_type
                );
            }
        }
        Err(error) => println!("{transport} {peer} unreadable: {error:#}"),
    }
}
