// SPDX-License-Identifier: Apache-2.0
//! TLS that is not ended here: by the name of the server that a client asks for.

use std::net::SocketAddr;
use std::sync::Arc;

use proto::waypoint::pattern::Kind;
use proto::waypoint::tcp_backend::Target;
use proto::waypoint::{
    Attribute, Destination, PolicyAction, Protocol, RouteTable, TcpBackend, TlsRoute,
};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::harness::{World, host, soon};
use crate::policies::{condition, policy};

/// A client's first message.
fn hello(server: &str) -> Vec<u8> {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = server.to_owned().try_into().unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut message = Vec::new();
    client.write_tls(&mut message).unwrap();
    message
}

/// Says its name, then what it is told.
async fn parrot(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.2", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                socket.write_all(name.as_bytes()).await.unwrap();
                let (mut read, mut write) = socket.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
            });
        }
    });
    address
}

fn route(name: &str, hostname: &str) -> TlsRoute {
    TlsRoute {
        namespace: "shop".into(),
        name: name.into(),
        created: 1,
        hostnames: vec![hostname.into()],
        backends: vec![TcpBackend {
            weight: 1,
            target: Some(Target::Destination(Destination {
                namespace: "shop".into(),
                hostname: host(name).to_string(),
                port: 80,
                protocol: Protocol::Tls.into(),
                traffic_policy: None,
            })),
        }],
    }
}

#[tokio::test]
async fn a_connection_goes_where_its_server_name_leads_and_nowhere_else() {
    let mut world = World::new().await;
    let to = world.service("front", &[]);
    for name in ["exact", "other"] {
        world.service(name, &[parrot(name).await]);
        world.serve(name, Protocol::Tls, vec![]);
    }
    let table = RouteTable {
        tls: vec![
            route("exact", "a.example.com"),
            route("other", "*.example.com"),
        ],
        ..RouteTable::default()
    };
    world.serve_tables("front", Protocol::Tls, vec![table], None);
    for (server, expected) in [("A.example.com", "exact"), ("b.example.com", "other")] {
        let mut stream = world.connect(to).await;
        let message = hello(server);
        // However it comes.
        let (first, rest) = message.split_at(message.len() / 3);
        stream.write_all(first).await.unwrap();
        stream.flush().await.unwrap();
        tokio::task::yield_now().await;
        stream.write_all(rest).await.unwrap();
        let expected = [expected.as_bytes(), &message].concat();
        let mut heard = vec![0; expected.len()];
        soon(stream.read_exact(&mut heard)).await.unwrap();
        assert_eq!(heard, expected, "{server}");
    }
    for (bytes, flag) in [
        (hello("example.org"), "NR"),
        (hello("10.0.0.1"), "NR"),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "DPE"),
    ] {
        let mut stream = world.connect(to).await;
        stream.write_all(&bytes).await.unwrap();
        assert!(soon(stream.read(&mut [0; 16])).await.is_err(), "{flag}");
        let flag = format!("flag=\"{flag}\"");
        world
            .until_counted(&["culvert_connections_refused_total", &flag])
            .await;
    }
}

#[tokio::test]
async fn policies_may_ask_which_server_a_client_wants() {
    let mut world = World::new().await;
    let to = world.service("app", &[parrot("app").await]);
    let named = |name: &str, action, server: &str| {
        let server = condition(Attribute::ServerName, Kind::Suffix(server.into()));
        policy(name, action, &[&[server]])
    };
    let policies = vec![
        named("yes", PolicyAction::Allow, ".example.com"),
        named("no", PolicyAction::Deny, "b.example.com"),
    ];
    // Without any route, and with one.
    for tables in [
        vec![],
        vec![RouteTable {
            tls: vec![route("app", "*.example.com")],
            ..RouteTable::default()
        }],
    ] {
        world.serve_tables_under("app", Protocol::Tls, tables, policies.clone());
        let message = hello("a.Example.com");
        let mut stream = world.connect(to).await;
        stream.write_all(&message).await.unwrap();
        let mut heard = vec![0; 3 + message.len()];
        soon(stream.read_exact(&mut heard)).await.unwrap();
        assert_eq!(heard, [b"app", &*message].concat());
        for server in ["b.example.com", "a.example.org", "10.0.0.1"] {
            let mut stream = world.connect(to).await;
            stream.write_all(&hello(server)).await.unwrap();
            assert!(soon(stream.read(&mut [0; 16])).await.is_err(), "{server}");
        }
    }
    for (policy, result) in [
        ("shop/yes", "allowed"),
        ("shop/no", "denied"),
        ("", "denied"),
    ] {
        let (policy, result) = (
            format!("policy=\"{policy}\""),
            format!("result=\"{result}\""),
        );
        let name = "culvert_authorization_decisions_total";
        world.until_counted(&[name, &policy, &result]).await;
    }
}
