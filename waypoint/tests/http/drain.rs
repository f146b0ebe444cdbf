// SPDX-License-Identifier: Apache-2.0
//! A waypoint that is to end: what is under way is carried to its end, and nobody is cut off who was about to speak.

use proto::waypoint::Protocol;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::harness::{World, application, soon};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: app.shop\r\n\r\n";

/// All that is said until the end of the stream.
async fn to_the_end(stream: &mut hbone::Stream) -> String {
    let mut heard = Vec::new();
    soon(stream.read_to_end(&mut heard)).await.unwrap();
    String::from_utf8(heard).unwrap().to_lowercase()
}

#[tokio::test]
async fn who_is_about_to_ask_is_answered_for_the_last_time() {
    let mut world = World::new().await;
    let to = world.service("app", &[application("app").await]);
    world.serve("app", Protocol::Http1, vec![]);
    let (mut used, mut fresh) = (world.connect(to).await, world.connect(to).await);
    used.write_all(REQUEST).await.unwrap();
    let mut heard = Vec::new();
    while !String::from_utf8_lossy(&heard).contains("\r\n\r\n") {
        assert_ne!(soon(used.read_buf(&mut heard)).await.unwrap(), 0);
    }
    let said = String::from_utf8_lossy(&heard).to_lowercase();
    assert!(!said.contains("connection: close"), "{said}");
    world.drain();
    for stream in [&mut used, &mut fresh] {
        stream.write_all(REQUEST).await.unwrap();
        let said = to_the_end(stream).await;
        assert!(said.contains("http/1.1 200"), "{said}");
        assert!(said.contains("connection: close"), "{said}");
    }
}

#[tokio::test]
async fn who_keeps_silent_is_let_go_after_a_while_and_what_was_upgraded_goes_on() {
    let mut world = World::new().await;
    let to = world.service("app", &[application("app").await]);
    world.serve("app", Protocol::Http1, vec![]);
    let listener = tokio::net::TcpListener::bind(("127.0.0.2", 0))
        .await
        .unwrap();
    let chat = world.service("chat", &[listener.local_addr().unwrap()]);
    world.serve("chat", Protocol::Http1, vec![]);
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut head = [0; 4096];
        assert_ne!(socket.read(&mut head).await.unwrap(), 0);
        let said = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
        socket.write_all(said).await.unwrap();
        let (mut read, mut write) = socket.split();
        let _ = tokio::io::copy(&mut read, &mut write).await;
    });
    let mut talking = world.connect(chat).await;
    let head =
        b"GET / HTTP/1.1\r\nhost: chat.shop\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n";
    talking.write_all(head).await.unwrap();
    let mut heard = Vec::new();
    while !heard.ends_with(b"\r\n\r\n") {
        assert_ne!(soon(talking.read_buf(&mut heard)).await.unwrap(), 0);
    }
    let mut silent = world.connect(to).await;
    world.drain();
    assert_eq!(to_the_end(&mut silent).await, "");
    talking.write_all(b"still here").await.unwrap();
    let mut back = [0; 10];
    soon(talking.read_exact(&mut back)).await.unwrap();
    assert_eq!(&back, b"still here");
}
