// SPDX-License-Identifier: Apache-2.0
//! What a slow application makes a proxy hold, and what it does to its neighbours.

#![allow(clippy::unwrap_used, reason = "a test's helpers may end the test")]

mod common;

use std::time::{Duration, Instant};

use common::{Mesh, echo, listen, soon};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Beyond the sockets, each of the two proxies.
const HELD: u64 = 512 * 1024;

/// Offers bytes without end.
fn pour(mut client: TcpStream) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        let block = vec![b'x'; 256 * 1024];
        while client.write_all(&block).await.is_ok() {}
    })
}

#[tokio::test]
async fn a_slow_reader_makes_both_proxies_hold_little() {
    let mesh = Mesh::new().await;
    let (listener, address) = listen().await;
    let (client, _relay) = mesh.connect(address).await;
    let (mut server, _) = soon(listener.accept()).await.unwrap();
    let pouring = pour(client);
    // 125 KB/s.
    let mut buffer = vec![0; 12_500];
    let until = Instant::now() + Duration::from_secs(4);
    let mut most = 0;
    while Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(100)).await;
        server.read_exact(&mut buffer).await.unwrap();
        most = most.max(mesh.meter.sent() - mesh.server.meter.received());
    }
    assert!(
        most <= 2 * HELD,
        "{most} bytes between the two applications' sockets"
    );
    pouring.abort();
}

#[tokio::test]
async fn a_stream_that_stalls_after_its_window_grew_soon_holds_little() {
    let mesh = Mesh::new().await;
    let (listener, address) = listen().await;
    let (client, _relay) = mesh.connect(address).await;
    let (mut server, _) = soon(listener.accept()).await.unwrap();
    let pouring = pour(client);
    let mut buffer = vec![0; 1 << 20];
    for _ in 0..128 {
        soon(server.read_exact(&mut buffer)).await.unwrap();
    }
    // Stalls, then reads again, by no means fast.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let started = Instant::now();
    loop {
        let held = mesh.meter.sent() - mesh.server.meter.received();
        if held <= 2 * HELD {
            break;
        }
        assert!(started.elapsed() < Duration::from_secs(5), "{held}");
        soon(server.read_exact(&mut buffer[..100_000]))
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    pouring.abort();
}

#[tokio::test]
async fn neighbours_of_a_hundred_stalled_streams_are_served_at_once() {
    let mesh = Mesh::with(hbone::Config {
        pool_max_streams: 150,
        ..common::config()
    })
    .await;
    let (listener, deaf) = listen().await;
    let mut stalled = Vec::new();
    for _ in 0..99 {
        let (client, relay) = mesh.connect(deaf).await;
        let server = soon(listener.accept()).await.unwrap().0;
        stalled.push((pour(client), relay, server));
    }
    let (mut client, _relay) = mesh.connect(echo().await).await;
    // Until all of them are full.
    let mut before = 0;
    while mesh.meter.sent() != before {
        before = mesh.meter.sent();
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let mut slowest = Duration::ZERO;
    for _ in 0..200 {
        let asked = Instant::now();
        client.write_all(b"hello").await.unwrap();
        soon(client.read_exact(&mut [0; 5])).await.unwrap();
        slowest = slowest.max(asked.elapsed());
    }
    assert!(slowest < Duration::from_millis(500), "{slowest:?}");
    assert_eq!(mesh.dial.count(), 1, "all in one tunnel");
    let held = mesh.meter.sent() - mesh.server.meter.received();
    assert!(held < 99 * HELD, "{held} bytes in 99 stalled streams");
}
