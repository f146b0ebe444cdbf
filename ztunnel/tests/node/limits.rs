// SPDX-License-Identifier: Apache-2.0
//! More than a pod, or the process, can take: refused with a reason, and over when it is over.

use std::io::Read as _;

use crate::harness::{Node, SERVER, echoes, is_refused};

const CLIENT_ID: &str = "spiffe://cluster.local/ns/default/sa/client";

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_has_all_it_may_refuses_and_takes_again_what_was_given_back() {
    let settings = [
        ("MAX_CONNECTIONS_PER_POD", "4"),
        ("ZTUNNEL_WORKER_THREADS", "1"),
    ];
    let (node, _agent) = Node::start_set(vec![], &settings).await;
    // At the server the tunnel of the one worker, and the three that it carries.
    let mut open: Vec<_> = (0..3).map(|_| node.connect().unwrap()).collect();
    for socket in &mut open {
        echoes(socket, b"x").unwrap();
    }
    for _ in 0..10 {
        assert!(is_refused(node.connect()));
    }
    let line = node
        .logged(&[
            "connection failed",
            "direction=\"inbound\"",
            "MAX_CONNECTIONS_PER_POD",
        ])
        .await;
    assert!(line.contains("the pod has 4 connections already"), "{line}");
    assert!(
        line.contains(&format!("src.identity=\"{CLIENT_ID}\"")),
        "{line}"
    );
    node.eventually("all are counted", |node| {
        let reason = ["reason=\"connections\""];
        // Of those that follow each other closely some have no place at the client's end either.
        let failed = ["response_flags=\"LIMIT\""];
        node.counted("culvert_connections_refused_total", &reason) == 10
            && node.counted("istio_tcp_connections_failed_total", &failed) == 10
    })
    .await;
    let told = node.log().matches("MAX_CONNECTIONS_PER_POD)").count();
    assert!(told < 10, "told {told} times");
    let dump = node.get(15000, "/config_dump");
    let body: serde_json::Value =
        serde_json::from_str(dump.split_once("\r\n\r\n").unwrap().1).unwrap();
    let gate = &body["limits"]["default/server"]["connections"];
    assert_eq!(gate["most"], 4);
    assert!(gate["refused"].as_u64() > Some(0), "{gate}");
    let refusals = body["refusals"].as_array().unwrap();
    assert!(
        refusals
            .iter()
            .any(|refusal| refusal["flag"] == "LIMIT" && refusal["srcIdentity"] == CLIENT_ID),
        "{refusals:?}"
    );
    drop(open);
    node.eventually("there is room again", |node| {
        node.connect()
            .is_ok_and(|mut socket| echoes(&mut socket, b"x").is_ok())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn handshakes_that_never_end_are_few_and_an_open_tunnel_is_none_of_them() {
    let (node, _agent) = Node::start_set(vec![], &[("MAX_HALF_OPEN_TUNNELS_PER_POD", "2")]).await;
    let mut before = node.connect().unwrap();
    echoes(&mut before, b"x").unwrap();
    let tunnel_port = (SERVER, 15008).into();
    let mut silent: Vec<_> = (0..2)
        .map(|_| node.connect_plainly(tunnel_port).unwrap())
        .collect();
    // Whoever comes takes the place of the one that has stood there longest.
    let newest = node.connect_plainly(tunnel_port).unwrap();
    let mut byte = [0];
    assert_eq!(silent.remove(0).read(&mut byte).unwrap(), 0);
    let line = node
        .logged(&["connection failed", "MAX_HALF_OPEN_TUNNELS_PER_POD"])
        .await;
    assert!(
        line.contains("dst.addr=10.77.0.2:15008") && line.contains("direction=\"inbound\""),
        "{line}"
    );
    echoes(&mut before, b"still there").unwrap();
    assert_eq!(
        node.counted(
            "culvert_connections_refused_total",
            &["reason=\"half_open_tunnels\""]
        ),
        1
    );
    drop((silent, newest));
    node.eventually("there is room again", |node| {
        let dump = node.get(15000, "/config_dump");
        let body: serde_json::Value =
            serde_json::from_str(dump.split_once("\r\n\r\n").unwrap().1).unwrap();
        body["limits"]["default/server"]["halfOpenTunnels"]["open"] == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_without_descriptors_says_so_and_goes_on_when_it_has_some() {
    let (mut node, _agent) = Node::start(vec![]).await;
    echoes(&mut node.connect().unwrap(), b"x").unwrap();
    node.limit_descriptors(node.descriptors());
    let waiting: Vec<_> = (0..20).filter_map(|_| node.connect().ok()).collect();
    node.logged(&["cannot accept: the process is out of resources"])
        .await;
    node.limit_descriptors(1000);
    node.logged(&["accepting again", "failed="]).await;
    assert!(node.counted("culvert_accept_exhausted_total", &["listener=\"outbound\""]) > 0);
    drop(waiting);
    echoes(&mut node.connect().unwrap(), b"as before").unwrap();
    assert!(node.is_running());
}
