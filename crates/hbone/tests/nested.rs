// SPDX-License-Identifier: Apache-2.0
//! A connection through a gateway is as good as a direct one: every byte, every end, every reset, and a destination
//! that has proven who it is to the source itself.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{Loopback, ServerSide, config, echo, id, listen, soon, tcp_pair};
use hbone::wire::{Authority, ConnectRequest};
use hbone::{
    Behind, BehindError, Config, End, Handler, Incoming, Meter, OpenError, Outcome, Pool, PoolKey,
    Server, Side, Stop, Stream, TunnelInfo,
};
use http::StatusCode;
use identity::FixedCertificates;
use identity::testing::TestAuthority;
use parking_lot::Mutex;
use proptest::prelude::{ProptestConfig, prop_assert, prop_assert_eq, proptest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The name by which source, gateway and destination know the service.
const SERVICE: &str = "echo.test.svc.cluster.local:80";

/// Passes what comes for [`SERVICE`] on to one destination and keeps all that it saw.
struct Gateway {
    destination: SocketAddr,
    asked: Mutex<Vec<ConnectRequest>>,
    seen: Mutex<Vec<u8>>,
    open: AtomicUsize,
    /// While true, nothing passes through the gateway.
    stalled: watch::Sender<bool>,
}

impl Handler for Gateway {
    async fn connect(self: Arc<Self>, incoming: Incoming) {
        self.asked.lock().push(incoming.request.clone());
        if incoming.request.authority.to_string() != SERVICE {
            return incoming.reject(StatusCode::NOT_FOUND);
        }
        let Ok(onward) = TcpStream::connect(self.destination).await else {
            return incoming.reject(StatusCode::SERVICE_UNAVAILABLE);
        };
        // In between sits a tap, so that the test sees what any process on the gateway could see.
        let (near, tapped) = tcp_pair().await;
        let tap = tokio::spawn(tap(Arc::clone(&self), tapped, onward));
        self.open.fetch_add(1, Ordering::SeqCst);
        if let Ok(stream) = incoming.accept(None) {
            stream
                .relay(near, &Arc::new(Meter::new()), &Stop::new())
                .await;
        }
        self.open.fetch_sub(1, Ordering::SeqCst);
        let _ = tap.await;
    }
}

async fn tap(gateway: Arc<Gateway>, near: TcpStream, far: TcpStream) {
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    tokio::join!(
        pass(&gateway, near_read, far_write),
        pass(&gateway, far_read, near_write)
    );
}

async fn pass(
    gateway: &Gateway,
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
) {
    let mut buffer = vec![0; 64 * 1024];
    let mut stalled = gateway.stalled.subscribe();
    loop {
        let _ = stalled.wait_for(|stalled| !stalled).await;
        let Ok(count @ 1..) = from.read(&mut buffer).await else {
            break;
        };
        gateway.seen.lock().extend_from_slice(&buffer[..count]);
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

/// A source, a gateway and a destination, each with an identity of its own.
struct Networks {
    pool: Pool,
    dial: Loopback,
    key: PoolKey,
    gateway: Arc<Gateway>,
    destination: ServerSide,
    meter: Arc<Meter>,
    _drain: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl Networks {
    async fn new() -> Self {
        Self::with(config()).await
    }

    async fn with(config: Config) -> Self {
        let authority = TestAuthority::new("root");
        let destination =
            ServerSide::start(config.clone(), authority.issue(&id("destination"))).await;
        let (listener, address) = listen().await;
        let (drain, draining) = watch::channel(false);
        let gateway = Arc::new(Gateway {
            destination: destination.address,
            asked: Mutex::default(),
            seen: Mutex::default(),
            open: AtomicUsize::new(0),
            stalled: watch::channel(false).0,
        });
        let handler = Arc::clone(&gateway);
        let certificate = authority.issue(&id("gateway"));
        let server = Server::new(config.clone());
        let serving = tokio::spawn(async move {
            let mut tunnels = tokio::task::JoinSet::new();
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let (server, certificate) = (server.clone(), Arc::clone(&certificate));
                let (handler, draining) = (Arc::clone(&handler), draining.clone());
                tunnels.spawn(async move {
                    let _ = server.serve(socket, certificate, handler, draining).await;
                });
            }
        });
        let certificates: FixedCertificates =
            [authority.issue(&id("client"))].into_iter().collect();
        Self {
            pool: Pool::new(config, Arc::new(certificates)),
            dial: Loopback::default(),
            key: PoolKey {
                source: id("client"),
                destination: Arc::new([id("gateway")]),
                address,
                source_ip: address.ip(),
            },
            gateway,
            destination,
            meter: Arc::default(),
            _drain: drain,
            serving,
        }
    }

    /// Asks the destination for `authority`, if it is `expected`.
    async fn open(
        &self,
        expected: &[&str],
        authority: Authority,
    ) -> Result<(Stream, TunnelInfo), OpenError> {
        let behind = Behind {
            to_gateway: ConnectRequest::new(SERVICE.parse().unwrap()),
            expected: expected.iter().map(|account| id(account)).collect(),
            to_destination: ConnectRequest {
                network: Some("network-1".into()),
                ..ConnectRequest::new(authority)
            },
        };
        soon(self.pool.open_behind(&self.key, &self.dial, behind)).await
    }

    /// An application's connection to an application behind the gateway.
    async fn connect(&self, to: SocketAddr) -> (TcpStream, JoinHandle<Outcome>) {
        self.connect_with(to, Stop::new()).await
    }

    async fn connect_with(&self, to: SocketAddr, stop: Stop) -> (TcpStream, JoinHandle<Outcome>) {
        let (stream, _) = self.open(&["destination"], to.into()).await.unwrap();
        let (application, captured) = tcp_pair().await;
        let meter = Arc::clone(&self.meter);
        let relay = tokio::spawn(async move { stream.relay(captured, &meter, &stop).await });
        (application, relay)
    }

    /// Nothing of a connection is left: no stream in the outer tunnel, no connection at the gateway.
    async fn settled(&self) {
        soon(async {
            while self.pool.streams() + self.gateway.open.load(Ordering::SeqCst) > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

async fn end_of(relay: JoinHandle<Outcome>) -> End {
    soon(relay).await.unwrap().end
}

async fn expect_reset(socket: &mut TcpStream) {
    let mut rest = Vec::new();
    let error = soon(socket.read_to_end(&mut rest)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn the_source_learns_who_the_destination_is_and_not_who_the_gateway_is() {
    let mut networks = Networks::new().await;
    let target = echo().await;
    let (_stream, info) = networks
        .open(&["other", "destination"], target.into())
        .await
        .unwrap();
    assert_eq!(info.peer, id("destination"));
    assert!(!info.reused);
    let baggage = info.baggage.unwrap();
    assert_eq!(baggage.service.as_deref(), Some("destination"));

    let asked = networks.gateway.asked.lock().clone();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].authority.to_string(), SERVICE);
    assert_eq!(asked[0].network, None);
    let seen = soon(networks.destination.seen.recv()).await.unwrap();
    assert_eq!(seen.network.as_deref(), Some("network-1"));
}

#[tokio::test]
async fn another_identity_behind_the_gateway_is_refused_and_nothing_is_left() {
    let networks = Networks::new().await;
    for expected in [&["somebody-else"][..], &["gateway"], &[]] {
        let error = networks
            .open(expected, echo().await.into())
            .await
            .unwrap_err();
        let OpenError::Behind {
            gateway,
            source: BehindError::PeerIdentity { .. },
        } = &error
        else {
            panic!("{expected:?}: {error}");
        };
        assert_eq!(*gateway, networks.key.address);
        networks.settled().await;
    }
    assert_eq!(networks.pool.tunnels(), 1, "the gateway is not to blame");
}

#[tokio::test]
async fn another_identity_of_the_gateway_is_refused_before_anything_is_asked() {
    let mut networks = Networks::new().await;
    networks.key.destination = Arc::new([id("destination")]);
    let error = networks
        .open(&["destination"], echo().await.into())
        .await
        .unwrap_err();
    assert!(matches!(error, OpenError::PeerIdentity { .. }), "{error}");
    assert!(networks.gateway.asked.lock().is_empty());
}

#[tokio::test]
async fn the_gateway_sees_nothing_in_the_clear() {
    let networks = Networks::new().await;
    let (mut application, relay) = networks.connect(echo().await).await;
    let secret = b"nobody between the two ends may read this".repeat(100);
    application.write_all(&secret).await.unwrap();
    application.shutdown().await.unwrap();
    let mut back = Vec::new();
    soon(application.read_to_end(&mut back)).await.unwrap();
    assert_eq!(back, secret);
    assert!(matches!(end_of(relay).await, End::Finished));
    networks.settled().await;
    let seen = networks.gateway.seen.lock();
    assert!(seen.len() > 2 * secret.len(), "both directions were seen");
    let has = |text: &[u8]| seen.windows(text.len()).any(|window| window == text);
    assert!(!has(b"nobody between"));
    assert!(!has(b"PRI * HTTP/2.0"), "not even HTTP/2 shows");
}

#[tokio::test]
async fn connections_share_the_outer_tunnel_and_each_has_an_inner_one() {
    let mut networks = Networks::new().await;
    let target = echo().await;
    let mut open = Vec::new();
    for _ in 0..10 {
        open.push(networks.connect(target).await);
    }
    assert_eq!((networks.dial.count(), networks.pool.tunnels()), (1, 1));
    assert_eq!(networks.pool.streams(), 10);
    for (mut application, relay) in open {
        application.shutdown().await.unwrap();
        assert!(matches!(end_of(relay).await, End::Finished));
    }
    networks.settled().await;
    for _ in 0..10 {
        let ended = soon(networks.destination.ended.recv()).await.unwrap();
        assert!(ended.is_ok(), "{ended:?}");
    }
    assert_eq!(networks.pool.tunnels(), 1, "the outer tunnel is kept");
}

#[tokio::test]
async fn each_direction_has_an_end_of_its_own() {
    let networks = Networks::new().await;
    let (listener, target) = listen().await;
    let (mut application, relay) = networks.connect(target).await;
    let (mut server, _) = listener.accept().await.unwrap();

    application.write_all(b"question").await.unwrap();
    application.shutdown().await.unwrap();
    let mut question = String::new();
    soon(server.read_to_string(&mut question)).await.unwrap();
    assert_eq!(question, "question");

    // Long after the client has said its last, the server still answers.
    let answer = vec![7; 300_000];
    server.write_all(&answer).await.unwrap();
    drop(server);
    let mut received = Vec::new();
    soon(application.read_to_end(&mut received)).await.unwrap();
    assert_eq!(received, answer);
    let outcome = soon(relay).await.unwrap();
    assert!(matches!(outcome.end, End::Finished), "{outcome:?}");
    assert_eq!((outcome.sent, outcome.received), (8, 300_000));
    networks.settled().await;
}

#[tokio::test]
async fn what_a_slow_gateway_still_holds_when_all_is_said_arrives() {
    let networks = Networks::new().await;
    let (listener, target) = listen().await;
    let (mut application, relay) = networks.connect(target).await;
    let (mut server, _) = listener.accept().await.unwrap();
    server.shutdown().await.unwrap();
    assert_eq!(soon(application.read(&mut [0; 1])).await.unwrap(), 0);
    networks.gateway.stalled.send_replace(true);

    // The last words of a connection whose other direction is over: nothing waits for an answer any more.
    // As much as may be on its way before the destination has said anything.
    let last = vec![7; 60_000];
    soon(application.write_all(&last)).await.unwrap();
    drop(application);
    assert!(matches!(end_of(relay).await, End::Finished));
    tokio::time::sleep(Duration::from_millis(100)).await;
    networks.gateway.stalled.send_replace(false);
    let mut received = Vec::new();
    soon(server.read_to_end(&mut received)).await.unwrap();
    assert!(
        received == last,
        "{} of {} bytes",
        received.len(),
        last.len()
    );
    networks.settled().await;
}

#[tokio::test]
async fn resets_are_mirrored_from_either_end() {
    let networks = Networks::new().await;
    let (listener, target) = listen().await;

    let (application, relay) = networks.connect(target).await;
    let (mut server, _) = listener.accept().await.unwrap();
    application.set_zero_linger().unwrap();
    drop(application);
    expect_reset(&mut server).await;
    assert!(matches!(end_of(relay).await, End::Reset { by: Side::Near }));
    networks.settled().await;

    let (mut application, relay) = networks.connect(target).await;
    let (server, _) = listener.accept().await.unwrap();
    server.set_zero_linger().unwrap();
    drop(server);
    expect_reset(&mut application).await;
    assert!(matches!(end_of(relay).await, End::Reset { by: Side::Far }));
    networks.settled().await;
}

#[tokio::test]
async fn a_connection_that_is_stopped_ends_at_both_sides_with_its_reason() {
    let networks = Networks::new().await;
    let (listener, target) = listen().await;
    let stop = Stop::new();
    let (mut application, relay) = networks.connect_with(target, stop.clone()).await;
    let (mut server, _) = listener.accept().await.unwrap();
    stop.stop("permission lost");
    let end = end_of(relay).await;
    assert!(
        matches!(&end, End::Stopped { reason } if &**reason == "permission lost"),
        "{end:?}"
    );
    expect_reset(&mut application).await;
    expect_reset(&mut server).await;
    networks.settled().await;
}

#[tokio::test]
async fn what_ends_the_outer_tunnel_ends_what_it_carries() {
    let networks = Networks::new().await;
    let (listener, target) = listen().await;
    let (mut application, relay) = networks.connect(target).await;
    let (_server, _) = listener.accept().await.unwrap();
    networks.pool.abort();
    let end = end_of(relay).await;
    assert!(
        matches!(
            &end,
            End::Failed {
                side: Side::Far,
                ..
            }
        ),
        "{end:?}"
    );
    expect_reset(&mut application).await;
}

#[tokio::test]
async fn a_gateway_that_dies_fails_its_connections_with_a_reason() {
    let networks = Networks::new().await;
    let (mut application, relay) = networks.connect(echo().await).await;
    networks.serving.abort();
    let End::Failed { side, error } = end_of(relay).await else {
        panic!("not a failure");
    };
    assert_eq!(side, Side::Far);
    assert!(!error.to_string().is_empty());
    expect_reset(&mut application).await;
}

#[tokio::test]
async fn a_destination_that_vanishes_fails_the_connection_and_not_the_gateway() {
    let networks = Networks::new().await;
    let (mut application, relay) = networks.connect(echo().await).await;
    networks.destination.accepting.abort();
    assert!(matches!(
        end_of(relay).await,
        End::Failed {
            side: Side::Far,
            ..
        }
    ));
    expect_reset(&mut application).await;
    networks.settled().await;
    assert_eq!(networks.pool.tunnels(), 1);

    let error = networks
        .open(&["destination"], echo().await.into())
        .await
        .unwrap_err();
    assert!(
        matches!(error, OpenError::Refused { status: 503, .. }),
        "{error}"
    );
}

#[tokio::test]
async fn a_refusal_tells_which_of_the_two_refused() {
    let networks = Networks::new().await;
    let error = networks
        .open(&["destination"], "reject:401".parse().unwrap())
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "behind gateway {}: the destination refused CONNECT reject:401 with status 401",
            networks.key.address
        )
    );
    networks.settled().await;

    let behind = Behind {
        to_gateway: ConnectRequest::new("unknown.test:80".parse().unwrap()),
        expected: Arc::new([id("destination")]),
        to_destination: ConnectRequest::new(SERVICE.parse().unwrap()),
    };
    let error = soon(
        networks
            .pool
            .open_behind(&networks.key, &networks.dial, behind),
    )
    .await
    .unwrap_err();
    assert!(
        matches!(error, OpenError::Refused { status: 404, .. }),
        "{error}"
    );
}

#[tokio::test]
async fn a_destination_that_never_answers_is_given_up_in_time() {
    let networks = Networks::with(Config {
        response_timeout: Duration::from_millis(200),
        handshake_timeout: Duration::from_millis(200),
        ..config()
    })
    .await;
    let error = networks
        .open(&["destination"], "hang:1".parse().unwrap())
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            OpenError::Behind {
                source: BehindError::ResponseTimeout { .. },
                ..
            }
        ),
        "{error}"
    );
    networks.settled().await;
}

#[tokio::test]
async fn a_caller_that_gives_up_leaves_nothing_behind() {
    let networks = Networks::new().await;
    let behind = Behind {
        to_gateway: ConnectRequest::new(SERVICE.parse().unwrap()),
        expected: Arc::new([id("destination")]),
        to_destination: ConnectRequest::new("hang:1".parse().unwrap()),
    };
    let open = networks
        .pool
        .open_behind(&networks.key, &networks.dial, behind);
    assert!(
        tokio::time::timeout(Duration::from_millis(200), open)
            .await
            .is_err()
    );
    networks.settled().await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever is written before the end arrives, however soon the end follows and however slowly it is read.
    #[test]
    fn nothing_is_lost_at_the_end(
        pieces in proptest::collection::vec(0usize..200_000, 1..12),
        slow in proptest::bool::ANY,
        by_server in proptest::bool::ANY,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (sent, received, outcome) = runtime.block_on(async {
            let networks = Networks::new().await;
            let (listener, target) = listen().await;
            let (application, relay) = networks.connect(target).await;
            let (server, _) = listener.accept().await.unwrap();
            let (mut writer, mut reader) = if by_server { (server, application) } else { (application, server) };
            let sent: Vec<u8> = pieces
                .iter()
                .enumerate()
                .flat_map(|(n, len)| std::iter::repeat_n(n as u8, *len))
                .collect();
            let all = sent.clone();
            let writing = tokio::spawn(async move {
                let mut rest = &all[..];
                for len in pieces {
                    let (piece, after) = rest.split_at(len);
                    writer.write_all(piece).await.unwrap();
                    rest = after;
                }
                writer.shutdown().await.unwrap();
                writer
            });
            if slow {
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
            let mut received = Vec::new();
            soon(reader.read_to_end(&mut received)).await.unwrap();
            let writer = soon(writing).await.unwrap();
            drop((reader, writer));
            let outcome = soon(relay).await.unwrap();
            networks.settled().await;
            (sent, received, outcome)
        });
        prop_assert!(sent == received);
        prop_assert!(matches!(outcome.end, End::Finished), "{:?}", outcome);
        let counted = if by_server { outcome.received } else { outcome.sent };
        prop_assert_eq!(counted, sent.len() as u64);
    }
}
