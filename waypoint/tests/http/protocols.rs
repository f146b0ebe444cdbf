// SPDX-License-Identifier: Apache-2.0
//! What is spoken: versions, trailers, bodies of any length, and bytes that are no HTTP.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use proto::waypoint::Protocol;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::harness::{CLIENT, WAYPOINT, World, answer, application, get, soon, speaking};

#[tokio::test]
async fn the_application_is_told_who_asks_and_nothing_of_the_clients_connection() {
    let mut world = World::new().await;
    let to = world.service("app", &[application("one").await]);
    world.serve("app", Protocol::Http1, vec![]);
    let request = Request::builder()
        .uri("/a/../b?c=d")
        .header("host", "app.shop")
        .header(
            "x-forwarded-client-cert",
            "By=me;URI=spiffe://cluster.local/ns/a/sa/forged",
        )
        .header("connection", "x-mine")
        .header("x-mine", "hidden")
        .header("x-forwarded-for", "10.9.9.9")
        .body(Full::default())
        .unwrap();
    let answer = world.ask(to, request).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("x-app"), "one");
    assert_eq!(answer.header("keep-alive"), "");
    let seen = answer.seen();
    assert_eq!(seen["uri"], "/b?c=d");
    let headers = &seen["headers"];
    assert_eq!(headers["host"], "app.shop");
    assert_eq!(
        headers["x-forwarded-client-cert"],
        format!("By={WAYPOINT};URI={CLIENT}")
    );
    assert_eq!(headers["x-forwarded-for"], "10.9.9.9, 127.0.0.1");
    assert_eq!(headers["x-request-id"].as_str().unwrap().len(), 36);
    assert!(headers.get("x-mine").is_none(), "{headers}");
    let source = format!("source_principal=\"{CLIENT}\"");
    world
        .until_counted(&[
            "istio_requests_total",
            "reporter=\"waypoint\"",
            &source,
            "destination_service=\"app.shop.svc.cluster.local\"",
            "response_code=\"200\"",
            "} 1",
        ])
        .await;
}

#[tokio::test]
async fn one_connection_carries_many_requests_and_so_does_the_one_behind() {
    let mut world = World::new().await;
    let connections = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let listener = TcpListener::bind(("127.0.0.2", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let counted = std::sync::Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            tokio::spawn(async move {
                let mut head = [0; 4096];
                while matches!(socket.read(&mut head).await, Ok(1..)) {
                    let said = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";
                    socket.write_all(said).await.unwrap();
                }
            });
        }
    });
    let to = world.service("app", &[address]);
    world.serve("app", Protocol::Http1, vec![]);
    let stream = world.connect(to).await;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    for _ in 0..20 {
        let said = answer(soon(sender.send_request(get("/"))).await.unwrap()).await;
        assert_eq!((said.status, said.body.as_str()), (200, "hi"));
    }
    assert_eq!(connections.load(std::sync::atomic::Ordering::SeqCst), 1);
}

/// Z01, of a port that declares HTTP/2 without TLS.
#[tokio::test]
async fn http2_by_prior_knowledge_with_trailers_as_grpc_has_them() {
    let mut world = World::new().await;
    // Over HTTP/2, so that trailers have a place.
    let listener = TcpListener::bind(("127.0.0.2", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        let service =
            hyper::service::service_fn(|request: Request<hyper::body::Incoming>| async move {
                assert_eq!(request.headers()["te"], "trailers");
                // An answer before the message would end the request, perhaps before the message has passed.
                let asked = request.into_body().collect().await.unwrap().to_bytes();
                assert_eq!(asked, "\0\0\0\0\x07message");
                let mut trailers = http::HeaderMap::new();
                trailers.insert("grpc-status", "0".parse().unwrap());
                let frames = [
                    // Two messages, cut within the head of the second.
                    Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from_static(
                        b"\0\0\0\0\x01m\0\0",
                    ))),
                    Ok(Frame::data(Bytes::from_static(b"\0\0\x01n"))),
                    Ok(Frame::trailers(trailers)),
                ];
                let body = StreamBody::new(futures_util::stream::iter(frames));
                let mut response = Response::new(body);
                let kind = "application/grpc".parse().unwrap();
                response.headers_mut().insert("content-type", kind);
                Ok::<_, std::convert::Infallible>(response)
            });
        let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(socket), service)
            .await;
    });
    let to = world.service("app", &[address]);
    world.serve("app", Protocol::Grpc, vec![]);
    let stream = world.connect(to).await;
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    let request = Request::builder()
        .method("POST")
        .uri("http://app.shop/pkg.Service/Method")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::<Bytes>::from("\0\0\0\0\x07message"))
        .unwrap();
    let said = answer(soon(sender.send_request(request)).await.unwrap()).await;
    let messages = "\0\0\0\0\x01m\0\0\0\0\x01n";
    assert_eq!((said.status, said.body.as_str()), (200, messages));
    assert_eq!(said.trailers.unwrap()["grpc-status"], "0");
    world
        .until_counted(&[
            "istio_requests_total",
            "request_protocol=\"grpc\"",
            "grpc_response_status=\"0\"",
        ])
        .await;
    for (family, count) in [
        ("istio_request_messages_total{", "} 1"),
        ("istio_response_messages_total{", "} 2"),
    ] {
        world
            .until_counted(&[family, "grpc_response_status=\"0\"", count])
            .await;
    }
}

#[tokio::test]
async fn a_body_is_passed_on_while_it_comes() {
    let mut world = World::new().await;
    let (arrived_in, mut arrived) = tokio::sync::mpsc::unbounded_channel();
    let application = speaking(move |request: Request<hyper::body::Incoming>| {
        let arrived = arrived_in.clone();
        async move {
            let mut body = request.into_body();
            let mut bytes = 0;
            while let Some(Ok(frame)) = body.frame().await {
                bytes += frame.data_ref().map_or(0, Bytes::len);
                let _ = arrived.send(bytes);
            }
            Response::new(Full::from(bytes.to_string()))
        }
    })
    .await;
    let to = world.service("app", &[application]);
    world.serve("app", Protocol::Http1, vec![]);
    let mut stream = world.connect(to).await;
    let head = "POST / HTTP/1.1\r\nhost: app.shop\r\ncontent-length: 10\r\n\r\nfirst";
    stream.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(soon(arrived.recv()).await, Some(5));
    stream.write_all(b"later").await.unwrap();
    let mut said = vec![0; 4096];
    let count = soon(stream.read(&mut said)).await.unwrap();
    let said = String::from_utf8_lossy(&said[..count]);
    assert!(said.starts_with("HTTP/1.1 200"), "{said}");
}

#[tokio::test]
async fn a_client_that_waits_for_a_go_ahead_gets_the_applications() {
    let mut world = World::new().await;
    let listener = TcpListener::bind(("127.0.0.2", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut head = [0; 4096];
        let count = socket.read(&mut head).await.unwrap();
        let head = String::from_utf8_lossy(&head[..count]).to_lowercase();
        assert!(head.contains("expect: 100-continue"), "{head}");
        assert!(!head.contains("body"), "{head}");
        socket
            .write_all(b"HTTP/1.1 100 Continue\r\n\r\n")
            .await
            .unwrap();
        let mut body = [0; 4];
        socket.read_exact(&mut body).await.unwrap();
        let said = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        socket.write_all(said.as_bytes()).await.unwrap();
    });
    let to = world.service("app", &[address]);
    world.serve("app", Protocol::Http1, vec![]);
    let mut stream = world.connect(to).await;
    let head =
        "POST / HTTP/1.1\r\nhost: app.shop\r\nexpect: 100-continue\r\ncontent-length: 4\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut heard = Vec::new();
    while !heard.ends_with(b"\r\n\r\n") {
        assert_ne!(soon(stream.read_buf(&mut heard)).await.unwrap(), 0);
    }
    assert!(heard.starts_with(b"HTTP/1.1 100"));
    stream.write_all(b"body").await.unwrap();
    heard.clear();
    while !heard.ends_with(b"\r\n\r\n") {
        assert_ne!(soon(stream.read_buf(&mut heard)).await.unwrap(), 0);
    }
    assert!(heard.starts_with(b"HTTP/1.1 200"));
}

#[tokio::test]
async fn whoever_speaks_first_is_heard_where_nothing_is_declared() {
    let mut world = World::new().await;
    let listener = TcpListener::bind(("127.0.0.2", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                socket.write_all(b"220 ready\r\n").await.unwrap();
                let (mut read, mut write) = socket.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
            });
        }
    });
    let to = world.service("mail", &[address]);
    world.serve("mail", Protocol::Detect, vec![]);
    let mut stream = world.connect(to).await;
    let mut greeting = [0; 11];
    soon(stream.read_exact(&mut greeting)).await.unwrap();
    assert_eq!(&greeting, b"220 ready\r\n");
    stream.write_all(b"EHLO me\r\n").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut rest = String::new();
    soon(stream.read_to_string(&mut rest)).await.unwrap();
    assert_eq!(rest, "EHLO me\r\n");

    // The same port might as well have been HTTP's.
    let to = world.service("web", &[application("web").await]);
    world.serve("web", Protocol::Detect, vec![]);
    for _ in 0..3 {
        assert_eq!(world.get(to, "/").await.seen()["app"], "web");
    }
}

#[tokio::test]
async fn what_can_be_read_in_two_ways_is_refused_in_few_words() {
    let mut world = World::new().await;
    let to = world.service("app", &[application("one").await]);
    world.serve("app", Protocol::Http1, vec![]);
    for (request, expected) in [
        ("GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 400"),
        (
            "GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
            "HTTP/1.1 400",
        ),
        ("GET / HTTP/1.0\r\nhost: a\r\n\r\n", "HTTP/1.0 426"),
        (
            "CONNECT a:80 HTTP/1.1\r\nhost: a:80\r\n\r\n",
            "HTTP/1.1 404",
        ),
        ("GET /%00 HTTP/1.1\r\nhost: a\r\n\r\n", "HTTP/1.1 400"),
    ] {
        let mut stream = world.connect(to).await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut said = vec![0; 4096];
        let count = soon(stream.read(&mut said)).await.unwrap();
        let said = String::from_utf8_lossy(&said[..count]);
        assert!(said.starts_with(expected), "{request:?}: {said}");
    }
    let many = format!(
        "GET / HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n",
        "y".repeat(70_000)
    );
    let mut stream = world.connect(to).await;
    // It may be answered before all is said.
    let _ = stream.write_all(many.as_bytes()).await;
    let mut said = vec![0; 4096];
    let count = soon(stream.read(&mut said)).await.unwrap();
    let said = String::from_utf8_lossy(&said[..count]);
    assert!(said.starts_with("HTTP/1.1 431"), "{said}");
    world
        .until_counted(&["culvert_connections_refused_total", "flag=\"DPE\""])
        .await;
}
