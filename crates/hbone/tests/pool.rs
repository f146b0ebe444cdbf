// SPDX-License-Identifier: Apache-2.0
//! Tunnels are shared, bounded, replaced when dead and let go when unused.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Mesh, ServerSide, config, echo, id, listen, raw, soon};
use futures_util::future::join_all;
use hbone::wire::ConnectRequest;
use hbone::{Config, End, OpenError, Pool, TunnelFault};
use identity::FixedCertificates;
use identity::testing::Validity;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Waits for what happens in other tasks.
async fn until(mut what: impl FnMut() -> bool) {
    soon(async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// The server has seen its tunnel end in order.
async fn ended_well(mesh: &mut Mesh) {
    let ended = soon(mesh.server.ended.recv()).await.unwrap();
    assert!(ended.is_ok(), "{ended:?}");
}

#[tokio::test]
async fn connections_between_the_same_ends_share_a_tunnel() {
    let mesh = Mesh::new().await;
    let target = echo().await;
    let mut streams = Vec::new();
    for _ in 0..20 {
        streams.push(soon(mesh.open(target)).await.unwrap());
    }
    assert_eq!(
        (mesh.dial.count(), mesh.pool.tunnels(), mesh.pool.streams()),
        (1, 1, 20)
    );
    assert!(streams[1..].iter().all(|(_, info)| info.reused));
    drop(streams);
    assert_eq!(mesh.pool.streams(), 0);
}

#[tokio::test]
async fn what_begins_after_a_certificate_has_expired_is_not_let_into_the_tunnel_that_was() {
    let (short, long) = (Duration::from_secs(3), Duration::from_secs(3600));
    for (client, server) in [(short, long), (long, short)] {
        let mut mesh = Mesh::new().await;
        let issue = |account, life| {
            let validity = Validity::lasting(life);
            mesh.authority.issue_valid(&id(account), validity)
        };
        let of_client: FixedCertificates = [issue("client", client)].into_iter().collect();
        mesh.server = ServerSide::start(config(), issue("server", server)).await;
        mesh.pool = Pool::new(config(), Arc::new(of_client));
        mesh.key = crate::common::key(mesh.server.address);
        let target = echo().await;
        let (mut held, _) = soon(mesh.open(target)).await.unwrap();
        // Certificates count in whole seconds, the last one included.
        tokio::time::sleep(short + Duration::from_secs(1)).await;
        let refused = soon(mesh.open(target)).await;
        assert!(refused.is_err(), "client's {client:?}, server's {server:?}");
        assert_eq!(mesh.dial.count(), 2);
        let refused = soon(mesh.server.ended.recv()).await.unwrap();
        assert!(refused.is_err());
        // What was under way goes on to its end, and the tunnel with it.
        held.write_all(b"hello").await.unwrap();
        let mut echoed = [0; 5];
        soon(held.read_exact(&mut echoed)).await.unwrap();
        assert_eq!(&echoed, b"hello");
        drop(held);
        ended_well(&mut mesh).await;
    }
}

#[tokio::test]
async fn concurrent_opens_make_one_tunnel() {
    let mesh = Mesh::new().await;
    let target = echo().await;
    let opened = soon(join_all((0..60).map(|_| mesh.open(target)))).await;
    assert!(opened.iter().all(Result::is_ok));
    assert_eq!(mesh.dial.count(), 1);
}

#[tokio::test]
async fn concurrent_opens_share_a_failure() {
    let mut mesh = Mesh::new().await;
    let (listener, address) = listen().await;
    drop(listener);
    mesh.key = crate::common::key(address);
    let opened = soon(join_all((0..60).map(|_| mesh.open("10.0.0.1:80")))).await;
    assert!(
        opened
            .iter()
            .all(|o| matches!(o, Err(OpenError::Dial { .. })))
    );
    assert_eq!(mesh.dial.count(), 1);
    assert_eq!(mesh.pool.tunnels(), 0);
}

#[tokio::test]
async fn a_maker_that_gives_up_is_succeeded_by_a_waiter() {
    let mesh = Mesh::new().await;
    let (_silent, address) = listen().await;
    let real = mesh.server.address;
    *mesh.dial.instead.lock().unwrap() = Some(address);
    let target = echo().await;
    let mut maker = Box::pin(mesh.open(target));
    let mut waiter = Box::pin(mesh.open(target));
    // The maker dials a peer that never answers the handshake; the waiter waits for it.
    assert!(futures_util::poll!(&mut maker).is_pending());
    assert!(futures_util::poll!(&mut waiter).is_pending());
    *mesh.dial.instead.lock().unwrap() = Some(real);
    drop(maker);
    assert!(soon(waiter).await.is_ok());
    assert_eq!(mesh.dial.count(), 2);
}

#[tokio::test]
async fn a_full_tunnel_is_joined_by_another_and_places_come_back() {
    let config = Config {
        pool_max_streams: 2,
        ..config()
    };
    let mesh = Mesh::with(config).await;
    let target = echo().await;
    let first = soon(mesh.open(target)).await.unwrap();
    let second = soon(mesh.open(target)).await.unwrap();
    let third = soon(mesh.open(target)).await.unwrap();
    assert_eq!((mesh.dial.count(), mesh.pool.tunnels()), (2, 2));
    drop(first);
    let again = soon(mesh.open(target)).await.unwrap();
    assert!(again.1.reused);
    assert_eq!(mesh.dial.count(), 2);
    drop((second, third, again));
    for _ in 0..50 {
        drop(soon(mesh.open(target)).await.unwrap());
    }
    assert_eq!((mesh.dial.count(), mesh.pool.streams()), (2, 0));
}

#[tokio::test]
async fn the_peers_limit_of_streams_is_respected() {
    let server = Config {
        max_streams: 3,
        ..config()
    };
    let mesh = Mesh::between(config(), server).await;
    let target = echo().await;
    let mut streams = Vec::new();
    for _ in 0..7 {
        streams.push(soon(mesh.open(target)).await.unwrap());
    }
    assert_eq!(mesh.dial.count(), 3, "3 + 3 + 1");
}

#[tokio::test]
async fn a_burst_beyond_the_peers_limit_is_spread_over_tunnels() {
    let server = Config {
        max_streams: 5,
        ..config()
    };
    let mesh = Mesh::between(config(), server).await;
    let target = echo().await;
    let opened = soon(join_all((0..20).map(|_| mesh.open(target)))).await;
    let failed: Vec<_> = opened.iter().filter_map(|o| o.as_ref().err()).collect();
    assert!(failed.is_empty(), "{failed:?}");
    assert!(mesh.dial.count() >= 4);
}

#[tokio::test]
async fn the_whole_key_tells_tunnels_apart() {
    let mesh = Mesh::new().await;
    let target = echo().await;
    let keys = [
        mesh.key.clone(),
        hbone::PoolKey {
            source_ip: "127.0.0.2".parse().unwrap(),
            ..mesh.key.clone()
        },
        hbone::PoolKey {
            destination: Arc::new([id("server"), id("other")]),
            ..mesh.key.clone()
        },
    ];
    for key in keys.iter().chain(&keys) {
        let request = ConnectRequest::new(target.into());
        soon(mesh.pool.open(key, &mesh.dial, request))
            .await
            .unwrap();
    }
    assert_eq!((mesh.dial.count(), mesh.pool.tunnels()), (3, 3));
}

#[tokio::test]
async fn the_number_of_kept_tunnels_is_bounded_and_streams_survive_it() {
    let config = Config {
        pool_max_tunnels: 2,
        ..config()
    };
    let mesh = Mesh::with(config).await;
    let target = echo().await;
    let mut streams = Vec::new();
    for last in 1..=5 {
        let key = hbone::PoolKey {
            source_ip: format!("127.0.0.{last}").parse().unwrap(),
            ..mesh.key.clone()
        };
        let request = ConnectRequest::new(target.into());
        let (stream, _) = soon(mesh.pool.open(&key, &mesh.dial, request))
            .await
            .unwrap();
        streams.push(stream);
        assert!(mesh.pool.tunnels() <= 2);
    }
    for stream in &mut streams {
        stream.write_all(b"alive").await.unwrap();
        soon(stream.read_exact(&mut [0; 5])).await.unwrap();
    }
}

#[tokio::test]
async fn a_tunnel_that_died_while_idle_is_replaced() {
    let mesh = Mesh::new().await;
    let target = echo().await;
    drop(soon(mesh.open(target)).await.unwrap());
    let other = ServerSide::start(config(), mesh.authority.issue(&id("server"))).await;
    mesh.server.accepting.abort();
    *mesh.dial.instead.lock().unwrap() = Some(other.address);
    // At once: the pool has not noticed yet.
    let (_stream, info) = soon(mesh.open(target)).await.unwrap();
    assert!(!info.reused);
    assert_eq!((mesh.dial.count(), mesh.pool.tunnels()), (2, 1));
}

#[tokio::test]
async fn a_tunnel_that_dies_under_a_request_is_replaced_once() {
    let mesh = Mesh::new().await;
    let (listener, address) = listen().await;
    *mesh.dial.instead.lock().unwrap() = Some(address);
    let certificate = mesh.authority.issue(&id("server"));
    // Each connection answers its first request and dies under the second.
    let server = tokio::spawn(async move {
        let builder = h2::server::Builder::new();
        loop {
            let mut tunnel = raw::accept(&listener, &certificate, &builder).await;
            let (_request, mut respond) = tunnel.accept().await.unwrap().unwrap();
            let _send = respond
                .send_response(http::Response::new(()), false)
                .unwrap();
            let _ = tunnel.accept().await;
        }
    });
    let first = soon(mesh.open("10.0.0.1:80")).await.unwrap();
    let second = soon(mesh.open("10.0.0.1:80")).await.unwrap();
    assert!(!second.1.reused);
    assert_eq!(mesh.dial.count(), 2);
    drop((first, second));
    server.abort();
}

#[tokio::test]
async fn a_fresh_tunnel_that_dies_is_not_tried_again() {
    let mesh = Mesh::new().await;
    let (listener, address) = listen().await;
    *mesh.dial.instead.lock().unwrap() = Some(address);
    let certificate = mesh.authority.issue(&id("server"));
    let server = tokio::spawn(async move {
        let builder = h2::server::Builder::new();
        loop {
            let mut tunnel = raw::accept(&listener, &certificate, &builder).await;
            let _ = tunnel.accept().await;
        }
    });
    match soon(mesh.open("10.0.0.1:80")).await {
        Err(OpenError::Tunnel { source, .. }) => {
            assert_ne!(source.fault(), TunnelFault::Aborted);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(mesh.dial.count(), 1);
    server.abort();
}

#[tokio::test]
async fn an_unused_tunnel_is_released_and_a_used_one_kept() {
    let config = Config {
        pool_unused_release: Duration::from_millis(150),
        ..config()
    };
    let mut mesh = Mesh::with(config).await;
    let target = echo().await;
    let (stream, _) = soon(mesh.open(target)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(mesh.pool.tunnels(), 1);
    drop(stream);
    until(|| mesh.pool.tunnels() == 0).await;
    ended_well(&mut mesh).await;
    let (_stream, info) = soon(mesh.open(target)).await.unwrap();
    assert!(!info.reused);
}

#[tokio::test]
async fn a_closed_pool_opens_nothing_and_lets_streams_finish() {
    let mut mesh = Mesh::new().await;
    let target = echo().await;
    let (mut client, relay) = mesh.connect(target).await;
    mesh.pool.close();
    assert!(matches!(
        soon(mesh.open(target)).await,
        Err(OpenError::PoolClosed)
    ));
    client.write_all(b"alive").await.unwrap();
    soon(client.read_exact(&mut [0; 5])).await.unwrap();
    drop(client);
    assert!(matches!(soon(relay).await.unwrap().end, End::Finished));
    ended_well(&mut mesh).await;
}

#[tokio::test]
async fn an_aborted_pool_cuts_its_streams() {
    let mesh = Mesh::new().await;
    let (mut client, relay) = mesh.connect(echo().await).await;
    mesh.pool.abort();
    assert!(soon(client.read(&mut [0; 8])).await.is_err());
    assert!(!matches!(soon(relay).await.unwrap().end, End::Finished));
}

#[tokio::test]
async fn a_dropped_pool_lets_go_of_its_tunnels() {
    let mut mesh = Mesh::new().await;
    drop(soon(mesh.open(echo().await)).await.unwrap());
    let certificates: FixedCertificates =
        [mesh.authority.issue(&id("client"))].into_iter().collect();
    mesh.pool = Pool::new(config(), Arc::new(certificates));
    ended_well(&mut mesh).await;
}

#[tokio::test]
async fn opens_that_are_given_up_leak_no_place() {
    let mesh = Mesh::new().await;
    for round in 0..200 {
        let mut open = Box::pin(mesh.open("hang:80"));
        assert!(futures_util::poll!(&mut open).is_pending());
        if round % 2 == 0 {
            let _ = tokio::time::timeout(Duration::from_millis(2), &mut open).await;
        }
        drop(open);
    }
    until(|| mesh.pool.streams() == 0).await;
    assert!(soon(mesh.open(echo().await)).await.is_ok());
}
