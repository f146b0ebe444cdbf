// SPDX-License-Identifier: Apache-2.0
//! What a client of a tunnel meets: identities, answers, time-outs, drain and cut.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Mesh, ServerSide, config, echo, id, key, listen, raw, soon};
use hbone::wire::{Baggage, ConnectRequest, Forwarded, TraceParent, WorkloadKind};
use hbone::{Config, End, OpenError, Pool, ServeError, TunnelFault};
use identity::FixedCertificates;
use identity::testing::TestAuthority;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn short(change: impl FnOnce(&mut Config)) -> Config {
    let mut settings = config();
    change(&mut settings);
    settings
}

const SHORT: Duration = Duration::from_millis(200);

/// The server has seen its tunnel end in order.
async fn ended_well(mesh: &mut Mesh) {
    let ended = soon(mesh.server.ended.recv()).await.unwrap();
    assert!(ended.is_ok(), "{ended:?}");
}

#[tokio::test]
async fn server_that_speaks_first_is_heard() {
    let mesh = Mesh::new().await;
    let (listener, address) = listen().await;
    let (mut client, _relay) = mesh.connect(address).await;
    let (mut server, _) = soon(listener.accept()).await.unwrap();
    server.write_all(b"220 ready").await.unwrap();
    let mut heard = [0; 9];
    soon(client.read_exact(&mut heard)).await.unwrap();
    assert_eq!(&heard, b"220 ready");
}

#[tokio::test]
async fn headers_arrive_and_the_answer_describes_the_destination() {
    let mut mesh = Mesh::new().await;
    let request = ConnectRequest {
        authority: echo().await.into(),
        baggage: Some(Baggage {
            namespace: Some("test".into()),
            workload: Some((WorkloadKind::Deployment, "client".into())),
            ..Baggage::default()
        }),
        forwarded: Some(Forwarded {
            source: Some("10.0.0.1:80".parse().unwrap()),
            host: Some("server.test.svc".into()),
        }),
        traceparent: Some(TraceParent::new(1, 2)),
        network: Some("other".into()),
        caller: Some(id("caller")),
    };
    let opened = mesh.pool.open(&mesh.key, &mesh.dial, request.clone());
    let (_stream, info) = soon(opened).await.unwrap();
    assert_eq!(soon(mesh.server.seen.recv()).await, Some(request));
    assert_eq!(info.peer, id("server"));
    assert!(!info.reused);
    assert_eq!(
        info.baggage.unwrap().service.as_deref(),
        Some("destination")
    );
}

#[tokio::test]
async fn refusals_carry_their_status_and_leave_the_tunnel_alone() {
    let mesh = Mesh::new().await;
    for (target, expected) in [
        ("reject:401", 401),
        ("reject:503", 503),
        ("unknown-host:80", 400),
        ("drop:80", 503),
    ] {
        match soon(mesh.open(target)).await {
            Err(OpenError::Refused { status, .. }) => assert_eq!(status, expected, "{target}"),
            other => panic!("{target}: {other:?}"),
        }
    }
    match soon(mesh.open("panic:80")).await {
        Err(OpenError::Refused { status: 503, .. } | OpenError::Tunnel { .. }) => {}
        other => panic!("{other:?}"),
    }
    assert!(soon(mesh.open(echo().await)).await.is_ok());
    assert_eq!(mesh.dial.count(), 1);
    assert_eq!(mesh.pool.streams(), 0);
}

#[tokio::test]
async fn malformed_requests_get_400_are_told_and_leave_the_tunnel_alone() {
    let mut mesh = Mesh::new().await;
    let certificate = mesh.authority.issue(&id("client"));
    let builder = h2::client::Builder::new();
    let mut send = raw::connect(mesh.server.address, &certificate, &builder).await;
    let get = http::Request::get("https://example.com/").body(()).unwrap();
    for request in [get, raw::request("no-port"), raw::request("10.0.0.1:0")] {
        let (response, _body) = send.send_request(request, false).unwrap();
        assert_eq!(soon(response).await.unwrap().status(), 400);
    }
    for words in ["method is GET", "authority", "authority"] {
        let (peer, error) = soon(mesh.server.malformed.recv()).await.unwrap();
        assert_eq!(peer, id("client"));
        assert!(error.starts_with(words), "{error}");
    }
    let (response, _body) = send
        .send_request(raw::request("reject:401"), false)
        .unwrap();
    assert_eq!(soon(response).await.unwrap().status(), 401);
}

#[tokio::test]
async fn a_server_of_another_identity_is_refused() {
    let mesh = Mesh::new().await;
    let mut key = mesh.key.clone();
    key.destination = Arc::new([id("somebody"), id("else")]);
    let request = ConnectRequest::new("10.0.0.1:80".parse().unwrap());
    match soon(mesh.pool.open(&key, &mesh.dial, request)).await {
        Err(error @ OpenError::PeerIdentity { .. }) => {
            assert!(error.to_string().contains("sa/server"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn one_of_several_accepted_identities_is_enough() {
    let mesh = Mesh::new().await;
    let mut key = mesh.key.clone();
    key.destination = Arc::new([id("somebody"), id("server")]);
    let request = ConnectRequest::new(echo().await.into());
    assert!(
        soon(mesh.pool.open(&key, &mesh.dial, request))
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn a_client_of_another_trust_domain_or_root_is_refused() {
    let mut mesh = Mesh::new().await;
    let foreign = "spiffe://other.domain/ns/test/sa/client".parse().unwrap();
    let stranger = TestAuthority::new("another root").also_trusting(&mesh.authority);
    for certificate in [
        mesh.authority.issue(&foreign),
        stranger.issue(&id("client")),
    ] {
        let mut key = mesh.key.clone();
        key.source = certificate.identity().clone();
        let source: FixedCertificates = [certificate].into_iter().collect();
        let pool = Pool::new(config(), Arc::new(source));
        let request = ConnectRequest::new(echo().await.into());
        match soon(pool.open(&key, &mesh.dial, request)).await {
            Err(OpenError::Tunnel { .. } | OpenError::Handshake { .. }) => {}
            other => panic!("{other:?}"),
        }
        let served = soon(mesh.server.ended.recv()).await.unwrap();
        assert!(
            matches!(served, Err(ServeError::Handshake(_))),
            "{served:?}"
        );
    }
}

#[tokio::test]
async fn a_source_without_certificate_is_named() {
    let mesh = Mesh::new().await;
    let mut key = mesh.key.clone();
    key.source = id("nobody");
    let request = ConnectRequest::new("10.0.0.1:80".parse().unwrap());
    match soon(mesh.pool.open(&key, &mesh.dial, request)).await {
        Err(OpenError::Certificate { identity, .. }) => assert_eq!(identity, id("nobody")),
        other => panic!("{other:?}"),
    }
    assert_eq!(mesh.dial.count(), 0);
}

#[tokio::test]
async fn a_silent_client_is_dropped_after_the_handshake_time() {
    let mut mesh = Mesh::with(short(|c| c.handshake_timeout = SHORT)).await;
    let mut client = TcpStream::connect(mesh.server.address).await.unwrap();
    let served = soon(mesh.server.ended.recv()).await.unwrap();
    assert!(
        matches!(served, Err(ServeError::HandshakeTimeout(_))),
        "{served:?}"
    );
    assert_eq!(soon(client.read(&mut [0; 8])).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn a_silent_server_fails_the_handshake_in_time() {
    let mut mesh = Mesh::with(short(|c| c.handshake_timeout = SHORT)).await;
    let (_listener, address) = listen().await;
    mesh.key = key(address);
    match soon(mesh.open("10.0.0.1:80")).await {
        Err(OpenError::HandshakeTimeout { .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_closed_port_and_a_time_out_are_told_apart() {
    let mut mesh = Mesh::with(short(|c| c.connect_timeout = SHORT)).await;
    let (listener, address) = listen().await;
    drop(listener);
    mesh.key = key(address);
    match soon(mesh.open("10.0.0.1:80")).await {
        Err(OpenError::Dial { source, .. }) => {
            assert_eq!(source.kind(), std::io::ErrorKind::ConnectionRefused);
        }
        other => panic!("{other:?}"),
    }
    struct Never;
    impl hbone::Dial for Never {
        fn dial(
            &self,
            _to: std::net::SocketAddr,
        ) -> hbone::BoxFuture<'_, std::io::Result<TcpStream>> {
            Box::pin(std::future::pending())
        }
    }
    let request = ConnectRequest::new("10.0.0.1:80".parse().unwrap());
    match soon(mesh.pool.open(&mesh.key, &Never, request)).await {
        Err(OpenError::DialTimeout { .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_unanswered_request_times_out_and_gives_its_place_back() {
    let mesh = Mesh::with(short(|c| c.response_timeout = SHORT)).await;
    match soon(mesh.open("hang:80")).await {
        Err(OpenError::ResponseTimeout { authority, .. }) => assert_eq!(&*authority, "hang:80"),
        other => panic!("{other:?}"),
    }
    assert_eq!(mesh.pool.streams(), 0);
}

#[tokio::test]
async fn a_peer_that_falls_silent_is_given_up() {
    let client = short(|c| {
        c.ping_interval = SHORT;
        c.ping_timeout = SHORT;
    });
    let mesh = Mesh::between(client, config()).await;
    let (listener, address) = listen().await;
    *mesh.dial.instead.lock().unwrap() = Some(address);
    let certificate = mesh.authority.issue(&id("server"));
    let server = tokio::spawn(async move {
        let builder = h2::server::Builder::new();
        let mut tunnel = raw::accept(&listener, &certificate, &builder).await;
        let (_request, mut respond) = tunnel.accept().await.unwrap().unwrap();
        let _send = respond
            .send_response(http::Response::new(()), false)
            .unwrap();
        let flush = std::future::poll_fn(|cx| {
            let _ = tunnel.poll_accept(cx);
            std::task::Poll::Ready(())
        });
        flush.await;
        // From here on nobody drives the tunnel, while its socket stays open.
        std::future::pending::<()>().await;
    });
    let (mut client, relay) = mesh.connect("10.0.0.1:80".parse().unwrap()).await;
    let outcome = soon(relay).await.unwrap();
    match outcome.end {
        End::Failed { .. } | End::Reset { .. } => {}
        other => panic!("{other:?}"),
    }
    assert!(soon(client.read(&mut [0; 8])).await.is_err());
    assert_eq!(mesh.pool.tunnels(), 0);
    server.abort();
}

#[tokio::test]
async fn a_quiet_but_living_peer_is_kept() {
    let config = short(|c| {
        c.ping_interval = Duration::from_millis(50);
        c.ping_timeout = Duration::from_millis(100);
    });
    let mesh = Mesh::with(config).await;
    let (mut client, _relay) = mesh.connect(echo().await).await;
    tokio::time::sleep(Duration::from_millis(800)).await;
    client.write_all(b"still").await.unwrap();
    soon(client.read_exact(&mut [0; 5])).await.unwrap();
    assert_eq!(mesh.dial.count(), 1);
}

#[tokio::test]
async fn drain_finishes_live_streams_and_takes_no_new_ones() {
    let mut mesh = Mesh::new().await;
    let (mut client, relay) = mesh.connect(echo().await).await;
    let other = ServerSide::start(config(), mesh.authority.issue(&id("server"))).await;
    mesh.server.drain.send(true).unwrap();
    *mesh.dial.instead.lock().unwrap() = Some(other.address);
    // The live stream goes on ...
    for _ in 0..20 {
        client.write_all(b"alive").await.unwrap();
        soon(client.read_exact(&mut [0; 5])).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(mesh.server.ended.try_recv().is_err());
    // ... a new one goes to a new tunnel ...
    let (_stream, info) = soon(mesh.open(echo().await)).await.unwrap();
    assert!(!info.reused);
    assert_eq!(mesh.dial.count(), 2);
    // ... and the old tunnel ends with its last stream.
    drop(client);
    assert!(matches!(soon(relay).await.unwrap().end, End::Finished));
    ended_well(&mut mesh).await;
}

#[tokio::test]
async fn a_tunnel_without_streams_drains_at_once() {
    let mut mesh = Mesh::new().await;
    drop(soon(mesh.open(echo().await)).await.unwrap());
    mesh.server.drain.send(true).unwrap();
    ended_well(&mut mesh).await;
}

#[tokio::test]
async fn a_cut_tunnel_resets_the_applications_at_both_ends() {
    let mesh = Mesh::new().await;
    let (listener, address) = listen().await;
    let (mut client, relay) = mesh.connect(address).await;
    let (mut server, _) = soon(listener.accept()).await.unwrap();
    mesh.server.accepting.abort();
    for socket in [&mut client, &mut server] {
        let error = soon(socket.read(&mut [0; 8])).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    let outcome = soon(relay).await.unwrap();
    assert!(!matches!(outcome.end, End::Finished), "{outcome:?}");
}

#[tokio::test]
async fn faults_of_streams_and_tunnels_are_told_apart() {
    let mesh = Mesh::new().await;
    let (listener, address) = listen().await;
    *mesh.dial.instead.lock().unwrap() = Some(address);
    let certificate = mesh.authority.issue(&id("server"));
    let server = tokio::spawn(async move {
        let builder = h2::server::Builder::new();
        let mut tunnel = raw::accept(&listener, &certificate, &builder).await;
        let (_request, mut respond) = tunnel.accept().await.unwrap().unwrap();
        respond.send_reset(h2::Reason::CONNECT_ERROR);
        while tunnel.accept().await.is_some() {}
    });
    match soon(mesh.open("10.0.0.1:80")).await {
        Err(OpenError::Tunnel { source, .. }) => {
            let code = u32::from(h2::Reason::CONNECT_ERROR);
            assert_eq!(source.fault(), TunnelFault::Reset { code });
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(
        mesh.pool.tunnels(),
        1,
        "one stream's fault is not the tunnel's"
    );
    server.abort();
}
