// SPDX-License-Identifier: Apache-2.0
//! Connections that become something else: WebSockets, over HTTP/1.1 and where one side or the other speaks HTTP/2, and what
//! only HTTP/1.1 can ask for.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{Empty, Full};
use hyper::body::Incoming;
use hyper::ext::Protocol as Asked;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use proto::waypoint::Protocol;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::harness::{World, soon};

/// How a client of HTTP/1.1 asks.
const HEAD: &str = "GET /chat HTTP/1.1\r\nhost: app.shop\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
                    sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
/// How an application of HTTP/1.1 agrees.
const SWITCHING: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                         sec-websocket-accept: x\r\nsec-websocket-protocol: chat\r\n\r\nhello";

/// An HTTP/1.1 application that answers so, then says what it is told.
async fn application(answer: &'static str) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.2", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut head = [0; 4096];
            let count = socket.read(&mut head).await.unwrap();
            let head = String::from_utf8_lossy(&head[..count]).to_lowercase();
            assert!(head.starts_with("get /chat http/1.1"), "{head}");
            assert!(head.contains("\r\nconnection: upgrade\r\n"), "{head}");
            assert!(head.contains("\r\nupgrade: websocket\r\n"), "{head}");
            assert!(head.contains("\r\nsec-websocket-version: 13\r\n"), "{head}");
            let key = head
                .lines()
                .find_map(|line| line.strip_prefix("sec-websocket-key: "));
            assert_eq!(key.map(str::len), Some(24), "{head}");
            socket.write_all(answer.as_bytes()).await.unwrap();
            let (mut read, mut write) = socket.split();
            let _ = tokio::io::copy(&mut read, &mut write).await;
        }
    });
    address
}

/// Reads until it has heard this.
async fn heard_to(end: &str, stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut heard = Vec::new();
    while !heard.ends_with(end.as_bytes()) {
        assert_ne!(soon(stream.read_buf(&mut heard)).await.unwrap(), 0);
    }
    String::from_utf8(heard).unwrap()
}

/// Asks over HTTP/2.
async fn ask(world: &World, to: SocketAddr) -> Response<Incoming> {
    let stream = world.connect(to).await;
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    let mut request = Request::builder()
        .method(Method::CONNECT)
        .uri("http://app.shop/chat")
        .header("sec-websocket-version", "13")
        .body(Empty::<Bytes>::new())
        .unwrap();
    let asked = Asked::from_static("websocket");
    request.extensions_mut().insert(asked);
    soon(sender.send_request(request)).await.unwrap()
}

/// Z02 where the port declares WebSockets; one of plain HTTP/1.1 carries them as well.
#[tokio::test]
async fn a_websocket_becomes_bytes_both_ways() {
    for speaks in [Protocol::Websocket, Protocol::Http1] {
        let mut world = World::new().await;
        let to = world.service("app", &[application(SWITCHING).await]);
        world.serve("app", speaks, vec![]);
        let mut stream = world.connect(to).await;
        stream.write_all(HEAD.as_bytes()).await.unwrap();
        let heard = heard_to("hello", &mut stream).await.to_lowercase();
        assert!(heard.starts_with("http/1.1 101"), "{speaks:?}: {heard}");
        assert!(heard.contains("upgrade: websocket"), "{speaks:?}: {heard}");
        stream.write_all(b"ping").await.unwrap();
        assert_eq!(heard_to("ping", &mut stream).await, "ping", "{speaks:?}");
        drop(stream);
        world
            .until_counted(&["istio_requests_total", "response_code=\"101\""])
            .await;
    }
}

#[tokio::test]
async fn a_client_of_http2_meets_an_application_of_http1() {
    let mut world = World::new().await;
    let to = world.service("app", &[application(SWITCHING).await]);
    world.serve("app", Protocol::Http1, vec![]);
    let mut response = ask(&world, to).await;
    assert_eq!(response.status(), 200, "{response:?}");
    assert_eq!(response.headers()["sec-websocket-protocol"], "chat");
    assert!(!response.headers().contains_key("sec-websocket-accept"));
    let upgraded = soon(hyper::upgrade::on(&mut response)).await.unwrap();
    let mut stream = TokioIo::new(upgraded);
    stream.write_all(b"ping").await.unwrap();
    assert_eq!(heard_to("ping", &mut stream).await, "helloping");
    drop(stream);
    world
        .until_counted(&["istio_requests_total", "response_code=\"200\""])
        .await;
}

#[tokio::test]
async fn what_is_no_agreement_is_not_taken_for_one() {
    let mut world = World::new().await;
    let page = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno";
    let to = world.service("app", &[application(page).await]);
    world.serve("app", Protocol::Http1, vec![]);
    assert_eq!(ask(&world, to).await.status(), 502);
    let refusal = "HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno";
    let to = world.service("other", &[application(refusal).await]);
    world.serve("other", Protocol::Http1, vec![]);
    assert_eq!(ask(&world, to).await.status(), 403);
}

#[tokio::test]
async fn a_client_of_http1_meets_an_application_of_http2() {
    let mut world = World::new().await;
    let listener = TcpListener::bind(("127.0.0.2", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        let service = service_fn(|mut request: Request<Incoming>| async move {
            assert_eq!(request.method(), Method::CONNECT);
            assert_eq!(request.uri().path(), "/chat");
            let asked = request.extensions().get::<Asked>().unwrap();
            assert_eq!(asked.as_str(), "websocket");
            assert!(!request.headers().contains_key("sec-websocket-key"));
            let upgrade = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let mut stream = TokioIo::new(upgrade.await.unwrap());
                let mut heard = [0; 4];
                stream.read_exact(&mut heard).await.unwrap();
                stream.write_all(&heard).await.unwrap();
            });
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
        });
        let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .enable_connect_protocol()
            .serve_connection(TokioIo::new(socket), service)
            .await;
    });
    let to = world.service("app", &[address]);
    world.serve("app", Protocol::Http2, vec![]);
    let mut stream = world.connect(to).await;
    stream.write_all(HEAD.as_bytes()).await.unwrap();
    let heard = heard_to("\r\n\r\n", &mut stream).await;
    assert!(heard.starts_with("HTTP/1.1 101"), "{heard}");
    let accepted = "sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
    assert!(heard.contains(accepted), "{heard}");
    stream.write_all(b"ping").await.unwrap();
    assert_eq!(heard_to("ping", &mut stream).await, "ping");
}

#[tokio::test]
async fn a_protocol_of_anybodys_own_is_agreed_on_and_carried_to_its_end() {
    let mut world = World::new().await;
    let listener = TcpListener::bind(("127.0.0.2", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (told, mut asked) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let head = heard_to("\r\n\r\n", &mut socket).await.to_lowercase();
            let agrees = head.starts_with("get /agree ");
            told.send(head).unwrap();
            if !agrees {
                let said = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno";
                socket.write_all(said.as_bytes()).await.unwrap();
                continue;
            }
            let said = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: tcp-echo/2\r\n\r\n";
            socket.write_all(said.as_bytes()).await.unwrap();
            let (mut read, mut write) = socket.split();
            let _ = tokio::io::copy(&mut read, &mut write).await;
            // Its end is passed on.
            write.shutdown().await.unwrap();
        }
    });
    let to = world.service("app", &[address]);
    // Asked for over HTTP/1.1 whatever is declared: nothing else has a way to.
    for protocol in [Protocol::Http1, Protocol::Http2] {
        world.serve("app", protocol, vec![]);
        let mut stream = world.connect(to).await;
        let ask = "GET /agree HTTP/1.1\r\nhost: app.shop\r\nconnection: keep-alive, Upgrade\r\nupgrade: tcp-echo/2\r\n\r\n";
        stream.write_all(ask.as_bytes()).await.unwrap();
        let heard = heard_to("\r\n\r\n", &mut stream).await.to_lowercase();
        assert!(heard.starts_with("http/1.1 101"), "{heard}");
        assert!(heard.contains("\r\nupgrade: tcp-echo/2\r\n"), "{heard}");
        assert!(!heard.contains("sec-websocket"), "{heard}");
        let seen = soon(asked.recv()).await.unwrap();
        assert!(seen.contains("\r\nconnection: upgrade\r\n"), "{seen}");
        assert!(seen.contains("\r\nupgrade: tcp-echo/2\r\n"), "{seen}");
        stream.write_all(b"no HTTP at all").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut rest = String::new();
        soon(stream.read_to_string(&mut rest)).await.unwrap();
        assert_eq!(rest, "no HTTP at all");
    }
    // Without agreement it stays HTTP.
    let mut stream = world.connect(to).await;
    let ask = "GET /stay HTTP/1.1\r\nhost: app.shop\r\nconnection: Upgrade\r\nupgrade: tcp-echo/2\r\n\r\n";
    stream.write_all(ask.as_bytes()).await.unwrap();
    let heard = heard_to("no", &mut stream).await;
    assert!(heard.starts_with("HTTP/1.1 200"), "{heard}");
}

#[tokio::test]
async fn a_tunnel_to_elsewhere_is_nobodys_to_ask_for() {
    let mut world = World::new().await;
    let to = world.service("app", &[crate::harness::application("app").await]);
    world.serve("app", Protocol::Http2, vec![]);
    let stream = world.connect(to).await;
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    for asked in [None, Some(Asked::from_static("connect-udp"))] {
        let uri = match asked {
            None => "elsewhere.example.com:443",
            Some(_) => "http://app.shop/elsewhere",
        };
        let mut request = Request::builder()
            .method(Method::CONNECT)
            .uri(uri)
            .body(Empty::<Bytes>::new())
            .unwrap();
        if let Some(asked) = asked.clone() {
            request.extensions_mut().insert(asked);
        }
        let answer = soon(sender.send_request(request)).await.unwrap();
        assert_eq!(answer.status(), 404, "{asked:?}");
    }
}
