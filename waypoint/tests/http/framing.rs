// SPDX-License-Identifier: Apache-2.0
//! Where messages begin and end on a connection: what is in doubt is refused, and trailers are passed on.

use hbone::Stream;
use proto::waypoint::Protocol;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::harness::{World, application, soon};

/// Everything that is said until the end.
async fn heard(stream: &mut Stream) -> String {
    let mut heard = Vec::new();
    // A reset is an end too.
    let _ = soon(stream.read_to_end(&mut heard)).await;
    String::from_utf8(heard).unwrap()
}

#[tokio::test]
async fn a_request_whose_end_is_in_doubt_is_refused_wherever_it_stands() {
    let mut world = World::new().await;
    let to = world.service("app", &[application("one").await]);
    world.serve("app", Protocol::Http1, vec![]);
    let good = "GET /good HTTP/1.1\r\nhost: a\r\n\r\n";
    let chunked = "POST /chunked HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n\
                   5\r\nhello\r\n0\r\n\r\n";
    for bad in [
        "content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
        "content-length: 5\r\ncontent-length: 5\r\n\r\nhello",
        "x: a\r\n folded\r\n\r\n",
        "x: a\n\r\n",
        "x: a\rb\r\n\r\n",
        "x: a\0b\r\n\r\n",
    ] {
        let bad = format!("POST /bad HTTP/1.1\r\nhost: a\r\n{bad}");
        for before in ["", good, chunked] {
            let mut stream = world.connect(to).await;
            let all = format!("{before}{bad}{good}");
            stream.write_all(all.as_bytes()).await.unwrap();
            let heard = heard(&mut stream).await;
            let answers: Vec<_> = heard.match_indices("HTTP/1.1 ").collect();
            let statuses: Vec<_> = answers
                .iter()
                .map(|(at, _)| &heard[at + 9..at + 12])
                .collect();
            let expected: &[&str] = match before {
                "" => &["400"],
                _ => &["200", "400"],
            };
            assert_eq!(statuses, expected, "{all:?}: {heard}");
        }
    }
    world
        .until_counted(&[
            "istio_requests_total",
            "response_code=\"400\"",
            "response_flags=\"DPE\"",
        ])
        .await;
}

#[tokio::test]
async fn trailers_that_are_announced_are_passed_both_ways() {
    let mut world = World::new().await;
    let listener = TcpListener::bind(("127.0.0.2", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (said, heard_there) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n0\r\nx-sum: 7\r\n\r\n") {
            assert_ne!(
                socket.read_buf(&mut request).await.unwrap(),
                0,
                "{}",
                String::from_utf8_lossy(&request)
            );
        }
        let answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-took\r\n\r\n\
                      2\r\nhi\r\n0\r\nx-took: 9\r\n\r\n";
        socket.write_all(answer.as_bytes()).await.unwrap();
        let _ = said.send(String::from_utf8(request).unwrap());
    });
    let to = world.service("app", &[address]);
    world.serve("app", Protocol::Http1, vec![]);
    let mut stream = world.connect(to).await;
    let request = "POST / HTTP/1.1\r\nhost: a\r\nte: trailers\r\nconnection: te\r\ntrailer: x-sum\r\n\
                   transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx-sum: 7\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let there = soon(heard_there).await.unwrap().to_lowercase();
    assert!(there.contains("trailer: x-sum"), "{there}");
    let mut back = Vec::new();
    while !back.ends_with(b"\r\n0\r\nx-took: 9\r\n\r\n") {
        assert_ne!(soon(stream.read_buf(&mut back)).await.unwrap(), 0);
    }
}
