// SPDX-License-Identifier: Apache-2.0
//! What one application does to a shared tunnel, its neighbours must not notice.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Mesh, ServerSide, config, echo, id, listen, raw, soon};
use bytes::Bytes;
use hbone::{Config, Meter};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const FRAMES: usize = 60_000;

/// A client of the raw kind, with windows as a mesh peer has them.
fn client() -> h2::client::Builder {
    let mut builder = h2::client::Builder::new();
    builder
        .initial_window_size(4 << 20)
        .initial_connection_window_size(16 << 20);
    builder
}

async fn ask(
    send: &mut h2::client::SendRequest<Bytes>,
    target: &str,
) -> (h2::SendStream<Bytes>, h2::RecvStream) {
    let (response, stream) = send.send_request(raw::request(target), false).unwrap();
    (stream, soon(response).await.unwrap().into_body())
}

/// One round trip on a stream of its own.
async fn neighbour_is_fine(send: &mut h2::client::SendRequest<Bytes>, echo: &str) {
    let (mut stream, mut body) = ask(send, echo).await;
    stream
        .send_data(Bytes::from_static(b"hello"), true)
        .unwrap();
    let heard = soon(body.data()).await.unwrap().unwrap();
    assert_eq!(heard, "hello");
}

/// Sends single bytes until as many have been taken as flow control lets through.
async fn flood(stream: &mut h2::SendStream<Bytes>) {
    for sent in 0..FRAMES {
        stream.send_data(Bytes::from_static(b"x"), false).unwrap();
        if sent % 500 == 0 {
            tokio::task::yield_now().await;
        }
    }
}

/// An application that accepts and reads nothing; its sockets stay open with the task.
async fn deaf() -> std::net::SocketAddr {
    let (listener, address) = listen().await;
    let small = socket2::SockRef::from(&listener);
    small.set_recv_buffer_size(4096).unwrap();
    tokio::spawn(async move {
        let mut sockets = Vec::new();
        while let Ok((socket, _)) = listener.accept().await {
            sockets.push(socket);
        }
    });
    address
}

#[tokio::test]
async fn small_frames_for_a_stalled_application_do_not_end_the_tunnel() {
    let server = ServerSide::start_for_flood().await;
    let certificate = server.1;
    let mut send = raw::connect(server.0.address, &certificate, &client()).await;
    let echo = echo().await.to_string();
    let (mut stalled, _body) = ask(&mut send, &deaf().await.to_string()).await;
    flood(&mut stalled).await;
    for _ in 0..20 {
        neighbour_is_fine(&mut send, &echo).await;
    }
    flood(&mut stalled).await;
    neighbour_is_fine(&mut send, &echo).await;
}

#[tokio::test]
async fn small_frames_before_the_answer_do_not_end_the_tunnel() {
    let server = ServerSide::start_for_flood().await;
    let certificate = server.1;
    let mut send = raw::connect(server.0.address, &certificate, &client()).await;
    let echo = echo().await.to_string();
    let (_response, mut unanswered) = send.send_request(raw::request("hang:80"), false).unwrap();
    flood(&mut unanswered).await;
    for _ in 0..20 {
        neighbour_is_fine(&mut send, &echo).await;
    }
}

#[tokio::test]
async fn small_frames_of_a_server_do_not_end_the_tunnel() {
    let mesh = Mesh::new().await;
    let (listener, address) = listen().await;
    *mesh.dial.instead.lock().unwrap() = Some(address);
    let certificate = mesh.authority.issue(&id("server"));
    let server = tokio::spawn(async move {
        let mut builder = h2::server::Builder::new();
        builder.initial_connection_window_size(16 << 20);
        let mut tunnel = raw::accept(&listener, &certificate, &builder).await;
        let mut bodies = Vec::new();
        while let Some(Ok((request, mut respond))) = tunnel.accept().await {
            let flooding = request.uri().authority().unwrap().as_str() == "flood:80";
            let mut send = respond
                .send_response(http::Response::new(()), false)
                .unwrap();
            bodies.push(request.into_body());
            tokio::spawn(async move {
                if flooding {
                    flood(&mut send).await;
                    std::future::pending::<()>().await;
                }
                send.send_data(Bytes::from_static(b"hello"), true).unwrap();
            });
        }
    });
    let (stream, _) = soon(mesh.open("flood:80")).await.unwrap();
    let (_deaf, captured) = crate::common::tcp_pair().await;
    let relay = tokio::spawn(async move {
        stream
            .relay(captured, &Arc::new(Meter::new()), &hbone::Stop::new())
            .await
    });
    for _ in 0..20 {
        let (mut stream, info) = soon(mesh.open("quiet:80")).await.unwrap();
        assert!(info.reused);
        let mut heard = String::new();
        soon(stream.read_to_string(&mut heard)).await.unwrap();
        assert_eq!(heard, "hello");
    }
    assert_eq!(mesh.dial.count(), 1);
    relay.abort();
    server.abort();
}

#[tokio::test]
async fn stalled_streams_do_not_hold_up_their_neighbours() {
    let config = Config {
        // More stalled bytes than the smallest connection window has room for.
        first_window: 1 << 20,
        stream_window: 1 << 20,
        connection_window: 2 << 20,
        ..config()
    };
    let mesh = Mesh::with(config).await;
    let deaf = deaf().await;
    let mut stalled = Vec::new();
    for _ in 0..8 {
        let (client, relay) = mesh.connect(deaf).await;
        stalled.push((client, relay));
    }
    let block = vec![b'x'; 1 << 20];
    for (client, _) in &stalled {
        // Until the whole way to the deaf application is full.
        let mut still = 0;
        while still < 5 {
            match client.try_write(&block) {
                Ok(_) => still = 0,
                Err(_) => still += 1,
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    let held = mesh.meter.sent() - mesh.server.meter.received();
    assert!(held > 4 << 20, "the streams are stalled: {held}");
    let (mut client, _relay) = mesh.connect(echo().await).await;
    for _ in 0..50 {
        client.write_all(b"hello").await.unwrap();
        soon(client.read_exact(&mut [0; 5])).await.unwrap();
    }
    assert_eq!(mesh.dial.count(), 1);
}

#[tokio::test]
async fn single_bytes_written_by_applications_all_arrive() {
    let mesh = Mesh::new().await;
    let (listener, address) = listen().await;
    let (client, _relay) = mesh.connect(address).await;
    let (mut server, _) = soon(listener.accept()).await.unwrap();
    client.set_nodelay(true).unwrap();
    let count = 50_000;
    let writer = tokio::spawn(async move {
        let mut client: TcpStream = client;
        for n in 0..count {
            client.write_all(&[(n % 251) as u8]).await.unwrap();
        }
    });
    let mut seen = Vec::new();
    soon(server.read_to_end(&mut seen)).await.unwrap();
    soon(writer).await.unwrap();
    assert_eq!(seen.len(), count);
    assert!(
        seen.iter()
            .enumerate()
            .all(|(n, byte)| usize::from(*byte) == n % 251)
    );
}

#[tokio::test]
async fn thousands_of_aborted_transfers_leave_the_tunnel_and_its_places_alone() {
    let config = Config {
        stream_window: 256 << 10,
        ..config()
    };
    let mesh = Mesh::with(config).await;
    let (listener, talker) = listen().await;
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move { while socket.write_all(&[7; 16_384]).await.is_ok() {} });
        }
    });
    for _ in 0..30 {
        // Eighty at a time are cut while the talker has much in flight.
        let aborts = (0..80).map(|_| async {
            let (mut client, relay) = mesh.connect(talker).await;
            soon(client.read_exact(&mut [0; 1000])).await.unwrap();
            client.set_zero_linger().unwrap();
            drop(client);
            soon(relay).await.unwrap()
        });
        futures_util::future::join_all(aborts).await;
    }
    assert_eq!(
        (mesh.dial.count(), mesh.pool.tunnels(), mesh.pool.streams()),
        (1, 1, 0)
    );
    let (mut client, _relay) = mesh.connect(echo().await).await;
    client.write_all(b"hello").await.unwrap();
    soon(client.read_exact(&mut [0; 5])).await.unwrap();
    assert_eq!(mesh.dial.count(), 1);
}

impl ServerSide {
    async fn start_for_flood() -> (Self, Arc<identity::WorkloadCertificate>) {
        let authority = identity::testing::TestAuthority::new("root");
        let side = Self::start(config(), authority.issue(&id("server"))).await;
        (side, authority.issue(&id("client")))
    }
}
