// SPDX-License-Identifier: Apache-2.0
//! Two tunnels and somebody in the middle: what the ends see of each other is what they would see without.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{Mesh, config, echo, id, key, listen, soon, tcp_pair};
use bytes::Bytes;
use hbone::wire::{Authority, ConnectRequest};
use hbone::{
    End, Handler, Heard, Incoming, Meter, Outcome, Pool, Server, Side, Stop, relay_streams,
};
use http::StatusCode;
use identity::FixedCertificates;
use identity::testing::TestAuthority;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

/// Takes tunnels in, and sends what comes in them on by tunnels of its own.
struct Middle {
    far: Mesh,
    heard: Heard,
    stop: Stop,
    meter: Meter,
    outcomes: mpsc::UnboundedSender<Outcome>,
}

impl Handler for Middle {
    async fn connect(self: Arc<Self>, incoming: Incoming) {
        let Authority::Addr(to) = incoming.request.authority else {
            return incoming.reject(StatusCode::BAD_REQUEST);
        };
        let (far, _) = self.far.open(to).await.unwrap();
        let near = incoming.accept(None).unwrap();
        let relay = relay_streams(near, far, self.heard.clone(), &self.meter, &self.stop);
        let _ = self.outcomes.send(relay.await);
    }
}

/// An application's connection to a server, through the middle.
struct Through {
    client: TcpStream,
    outcomes: mpsc::UnboundedReceiver<Outcome>,
    stop: Stop,
    _drain: watch::Sender<bool>,
}

impl Through {
    async fn to(server: std::net::SocketAddr) -> Self {
        Self::saying(Heard::default(), server).await
    }

    /// The middle says something first, as if the ends had.
    async fn saying(heard: Heard, server: std::net::SocketAddr) -> Self {
        let (outcomes_in, outcomes) = mpsc::unbounded_channel();
        let stop = Stop::new();
        let middle = Arc::new(Middle {
            far: Mesh::new().await,
            heard,
            stop: stop.clone(),
            meter: Meter::new(),
            outcomes: outcomes_in,
        });
        let authority = TestAuthority::new("root");
        let certificate = authority.issue(&id("server"));
        let (listener, address) = listen().await;
        let (drain, draining) = watch::channel(false);
        tokio::spawn(async move {
            let (socket, _) = listener.accept().await.unwrap();
            let server = Server::new(config());
            let _ = server.serve(socket, certificate, middle, draining).await;
        });
        let certificates: FixedCertificates =
            [authority.issue(&id("client"))].into_iter().collect();
        let pool = Pool::new(config(), Arc::new(certificates));
        let request = ConnectRequest::new(server.into());
        let dial = crate::common::Loopback::default();
        let (stream, _) = soon(pool.open(&key(address), &dial, request))
            .await
            .unwrap();
        let (client, captured) = tcp_pair().await;
        tokio::spawn(async move {
            let _pool = pool;
            let meter = Arc::new(Meter::new());
            stream.relay(captured, &meter, &Stop::new()).await
        });
        Self {
            client,
            outcomes,
            stop,
            _drain: drain,
        }
    }

    async fn outcome(&mut self) -> Outcome {
        soon(self.outcomes.recv()).await.unwrap()
    }
}

async fn accept(listener: &TcpListener) -> TcpStream {
    soon(listener.accept()).await.unwrap().0
}

fn reset(socket: TcpStream) {
    socket.set_zero_linger().unwrap();
    drop(socket);
}

async fn expect_reset(socket: &mut TcpStream) {
    let mut rest = Vec::new();
    let error = soon(socket.read_to_end(&mut rest)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn bulk_passes_whole_both_ways_at_once_and_is_counted() {
    const BYTES: usize = 5_000_000;
    let mut through = Through::to(echo().await).await;
    let bytes: Vec<u8> = (0..BYTES).map(|n| (n * 7 + n / 251) as u8).collect();
    let expected = bytes.clone();
    let (mut reading, mut writing) = through.client.split();
    let write = async {
        writing.write_all(&bytes).await.unwrap();
        writing.shutdown().await.unwrap();
    };
    let mut back = Vec::new();
    let read = reading.read_to_end(&mut back);
    let ((), read) =
        tokio::time::timeout(Duration::from_secs(60), async { tokio::join!(write, read) })
            .await
            .unwrap();
    read.unwrap();
    assert!(back == expected, "{} bytes came back", back.len());
    let outcome = through.outcome().await;
    assert!(matches!(outcome.end, End::Finished), "{:?}", outcome.end);
    assert_eq!(
        (outcome.sent, outcome.received),
        (BYTES as u64, BYTES as u64)
    );
}

#[tokio::test]
async fn what_was_read_already_goes_ahead() {
    let (listener, address) = listen().await;
    let heard = Heard {
        near: Bytes::from_static(b"first, "),
        far: Bytes::from_static(b"at once, "),
    };
    let mut through = Through::saying(heard, address).await;
    through.client.write_all(b"then").await.unwrap();
    through.client.shutdown().await.unwrap();
    let mut at_server = String::new();
    let mut server = accept(&listener).await;
    soon(server.read_to_string(&mut at_server)).await.unwrap();
    assert_eq!(at_server, "first, then");
    server.write_all(b"later").await.unwrap();
    drop(server);
    let mut at_client = String::new();
    soon(through.client.read_to_string(&mut at_client))
        .await
        .unwrap();
    assert_eq!(at_client, "at once, later");
    let outcome = through.outcome().await;
    assert_eq!((outcome.sent, outcome.received), (11, 14));
}

#[tokio::test]
async fn whoever_ends_first_still_hears_the_other() {
    let (listener, address) = listen().await;
    let mut through = Through::to(address).await;
    let mut server = accept(&listener).await;
    server.write_all(b"bye").await.unwrap();
    server.shutdown().await.unwrap();
    let mut heard = String::new();
    soon(through.client.read_to_string(&mut heard))
        .await
        .unwrap();
    assert_eq!(heard, "bye");
    through.client.write_all(b"and yet").await.unwrap();
    through.client.shutdown().await.unwrap();
    heard.clear();
    soon(server.read_to_string(&mut heard)).await.unwrap();
    assert_eq!(heard, "and yet");
    let outcome = through.outcome().await;
    assert!(matches!(outcome.end, End::Finished), "{:?}", outcome.end);
}

#[tokio::test]
async fn a_reset_passes_either_way() {
    let (listener, address) = listen().await;
    let mut through = Through::to(address).await;
    let mut server = accept(&listener).await;
    through.client.write_all(b"x").await.unwrap();
    soon(server.read_u8()).await.unwrap();
    reset(through.client);
    expect_reset(&mut server).await;
    let end = soon(through.outcomes.recv()).await.unwrap().end;
    assert!(matches!(end, End::Reset { by: Side::Near }), "{end:?}");

    let mut through = Through::to(address).await;
    let mut server = accept(&listener).await;
    through.client.write_all(b"x").await.unwrap();
    soon(server.read_u8()).await.unwrap();
    reset(server);
    expect_reset(&mut through.client).await;
    let end = through.outcome().await.end;
    assert!(matches!(end, End::Reset { by: Side::Far }), "{end:?}");
}

#[tokio::test]
async fn a_reset_after_a_half_close_is_noticed_without_another_byte() {
    let (listener, address) = listen().await;
    let mut through = Through::to(address).await;
    let mut server = accept(&listener).await;
    through.client.shutdown().await.unwrap();
    assert_eq!(soon(server.read(&mut [0; 8])).await.unwrap(), 0);
    reset(server);
    expect_reset(&mut through.client).await;
    let end = through.outcome().await.end;
    assert!(matches!(end, End::Reset { by: Side::Far }), "{end:?}");
}

#[tokio::test]
async fn a_reset_passes_while_nobody_reads() {
    let (listener, address) = listen().await;
    let mut through = Through::to(address).await;
    let server = accept(&listener).await;
    // More than all that buffers in between can hold.
    let piece = vec![0; 1 << 20];
    let mut stuck = 0;
    while stuck < 20 {
        let writing = through.client.write(&piece);
        match tokio::time::timeout(Duration::from_millis(50), writing).await {
            Ok(written) => {
                written.unwrap();
            }
            Err(_) => stuck += 1,
        }
    }
    reset(server);
    let end = through.outcome().await.end;
    assert!(matches!(end, End::Reset { by: Side::Far }), "{end:?}");
}

#[tokio::test]
async fn stop_resets_both_sides_and_gives_its_reason() {
    let (listener, address) = listen().await;
    let mut through = Through::to(address).await;
    let mut server = accept(&listener).await;
    through.client.write_all(b"x").await.unwrap();
    soon(server.read_u8()).await.unwrap();
    through.stop.stop("no longer allowed");
    expect_reset(&mut through.client).await;
    expect_reset(&mut server).await;
    match through.outcome().await.end {
        End::Stopped { reason } => assert_eq!(&*reason, "no longer allowed"),
        end => panic!("{end:?}"),
    }
}
