// SPDX-License-Identifier: Apache-2.0
//! A pod that leaves the mesh while its connections are open.

use crate::harness::{Node, echoes, is_reset, plain_server};

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_let_go_keeps_what_is_open_and_serves_late_peers_until_it_is_deleted() {
    let (node, agent) = Node::start(vec![]).await;
    let mut before = node.connect().unwrap();
    echoes(&mut before, b"before").unwrap();
    assert_eq!(agent.release("server").await, Ok((1, false)));
    echoes(&mut before, b"meanwhile").unwrap();
    // The client has not heard: it comes by the tunnel still.
    let mut late = node.connect().unwrap();
    echoes(&mut late, b"late").unwrap();
    assert_eq!(agent.release("server").await, Ok((2, false)));
    node.eventually("shown as draining", |node| {
        node.get(15000, "/config_dump").contains("\"Draining\"")
    })
    .await;

    node.plane.push_address(plain_server()).await;
    let mut plain = false;
    for _ in 0..200 {
        plain = agent.release("server").await == Ok((2, true));
        if plain {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(plain, "{}", node.log());
    echoes(&mut before, b"after").unwrap();
    drop(late);
    node.eventually("one is left", |node| {
        node.log()
            .lines()
            .any(|line| line.contains("inbound") && line.contains("bytes_sent=4"))
    })
    .await;
    assert_eq!(agent.release("server").await, Ok((1, true)));

    // The deadline.
    assert_eq!(agent.delete("server").await, "");
    assert!(is_reset(&mut before));
    node.logged(&[
        "connection complete",
        "direction=\"inbound\"",
        "connection closed because its pod is no longer served here",
    ])
    .await;
    assert!(agent.release("server").await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_comes_back_is_served_as_before() {
    let (node, agent) = Node::start(vec![]).await;
    let mut socket = node.connect().unwrap();
    echoes(&mut socket, b"before").unwrap();
    assert_eq!(agent.release("client").await, Ok((1, false)));
    assert_eq!(agent.add("client", &node.client).await, "");
    assert!(!node.get(15000, "/config_dump").contains("\"Draining\""));
    echoes(&mut socket, b"after").unwrap();
    let mut another = node.connect().unwrap();
    echoes(&mut another, b"another").unwrap();
}
