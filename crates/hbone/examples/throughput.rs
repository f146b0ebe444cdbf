// SPDX-License-Identifier: Apache-2.0
//! A rough measure of the tunnel: one process, two current-thread runtimes, loopback.
//!
//! `cargo run --release -p hbone --example throughput [GiB]` prints bulk and round-trip figures of the pair
//! application → relay → tunnel → relay → application.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use hbone::wire::{Authority, ConnectRequest};
use hbone::{BoxFuture, Config, Dial, Handler, Incoming, Meter, Pool, PoolKey, Server, Stop};
use identity::FixedCertificates;
use identity::testing::TestAuthority;
use spiffe::SpiffeId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

struct Loopback;

impl Dial for Loopback {
    fn dial(&self, to: SocketAddr) -> BoxFuture<'_, std::io::Result<TcpStream>> {
        Box::pin(TcpStream::connect(to))
    }
}

struct Forward;

impl Handler for Forward {
    async fn connect(self: Arc<Self>, incoming: Incoming) {
        let Authority::Addr(address) = incoming.request.authority else {
            return;
        };
        let Ok(socket) = TcpStream::connect(address).await else {
            return;
        };
        if let Ok(stream) = incoming.accept(None) {
            stream
                .relay(socket, &Arc::new(Meter::new()), &Stop::new())
                .await;
        }
    }
}

fn id(account: &str) -> SpiffeId {
    format!("spiffe://cluster.local/ns/test/sa/{account}")
        .parse()
        .expect("a legal id")
}

/// Runs a part of the mesh on a thread and runtime of its own, as workers do.
fn worker<F: Future<Output = ()>>(part: impl FnOnce() -> F + Send + 'static) {
    std::thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime")
            .block_on(part());
    });
}

fn listen() -> (std::net::TcpListener, SocketAddr) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("non-blocking");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

fn main() {
    let gib: usize = std::env::args()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(4);
    let authority = TestAuthority::new("root");
    let (server, client) = (
        authority.issue(&id("server")),
        authority.issue(&id("client")),
    );
    let (echo, echo_address) = listen();
    let (accepting, tunnel_address) = listen();
    let (captured, captured_address) = listen();

    worker(move || async move {
        let listener = TcpListener::from_std(accepting).expect("a listener");
        let (_drain, draining) = watch::channel(false);
        let serving = Server::new(Config::default());
        while let Ok((socket, _)) = listener.accept().await {
            let (serving, server, draining) =
                (serving.clone(), Arc::clone(&server), draining.clone());
            tokio::spawn(async move {
                let _ = serving
                    .serve(socket, server, Arc::new(Forward), draining)
                    .await;
            });
        }
    });
    worker(move || async move {
        let listener = TcpListener::from_std(captured).expect("a listener");
        let certificates: FixedCertificates = [client].into_iter().collect();
        let pool = Pool::new(Config::default(), Arc::new(certificates));
        let key = PoolKey {
            source: id("client"),
            destination: Arc::new([id("server")]),
            address: tunnel_address,
            source_ip: tunnel_address.ip(),
        };
        while let Ok((socket, _)) = listener.accept().await {
            let (pool, key) = (pool.clone(), key.clone());
            tokio::spawn(async move {
                let request = ConnectRequest::new(echo_address.into());
                match pool.open(&key, &Loopback, request).await {
                    Ok((stream, _)) => drop(
                        stream
                            .relay(socket, &Arc::new(Meter::new()), &Stop::new())
                            .await,
                    ),
                    Err(error) => eprintln!("open: {error}"),
                }
            });
        }
    });
    worker(move || async move {
        let listener = TcpListener::from_std(echo).expect("a listener");
        while let Ok((mut socket, _)) = listener.accept().await {
            let _ = socket.set_nodelay(true);
            tokio::spawn(async move {
                // The first byte says what is wanted: an echo, or bytes to be thrown away and counted.
                match socket.read_u8().await {
                    Ok(b'e') => {
                        let (mut read, mut write) = socket.split();
                        let _ = tokio::io::copy(&mut read, &mut write).await;
                    }
                    _ => {
                        let mut buffer = vec![0; 256 * 1024];
                        let mut total = 0u64;
                        while let Ok(count @ 1..) = socket.read(&mut buffer).await {
                            total += count as u64;
                        }
                        let _ = socket.write_u64(total).await;
                    }
                }
            });
        }
    });
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(async {
            bulk(captured_address, gib).await.expect("bulk");
            round_trips(captured_address).await.expect("round trips");
            connections(captured_address).await.expect("connections");
        });
}

async fn bulk(to: SocketAddr, gib: usize) -> std::io::Result<()> {
    let mut socket = TcpStream::connect(to).await?;
    let start = Instant::now();
    socket.write_u8(b'b').await?;
    let block = vec![7; 256 * 1024];
    for _ in 0..gib * 4096 {
        socket.write_all(&block).await?;
    }
    socket.shutdown().await?;
    let total = socket.read_u64().await?;
    assert_eq!(total, (gib as u64) << 30);
    let seconds = start.elapsed().as_secs_f64();
    println!("bulk: {:.2} Gbit/s", total as f64 * 8e-9 / seconds);
    Ok(())
}

async fn round_trips(to: SocketAddr) -> std::io::Result<()> {
    const COUNT: u32 = 20_000;
    let mut socket = TcpStream::connect(to).await?;
    socket.set_nodelay(true)?;
    socket.write_u8(b'e').await?;
    let start = Instant::now();
    for _ in 0..COUNT {
        socket.write_u8(1).await?;
        socket.read_u8().await?;
    }
    println!("round trip: {:?}", start.elapsed() / COUNT);
    Ok(())
}

async fn connections(to: SocketAddr) -> std::io::Result<()> {
    const COUNT: u32 = 5_000;
    let start = Instant::now();
    for _ in 0..COUNT {
        let mut socket = TcpStream::connect(to).await?;
        socket.write_all(b"e1").await?;
        socket.read_u8().await?;
    }
    println!("connect, ask, hear, close: {:?}", start.elapsed() / COUNT);
    Ok(())
}
