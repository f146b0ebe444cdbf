// SPDX-License-Identifier: Apache-2.0
//! A process that takes over from another one: no connection is refused, none is cut, and a successor that fails costs
//! nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use capture::seqpacket::SeqPacket;
use prost::Message as _;
use proto::handover::{Hello, Request, Response, request, response};

use crate::harness::{Node, echoes};

const TAKEN_OVER: &str = "this process serves in its place";

#[tokio::test(flavor = "multi_thread")]
async fn a_new_process_takes_over_and_the_old_one_carries_on_what_is_open_and_then_ends() {
    let (mut node, _agent) = Node::start(vec![]).await;
    let mut before = node.connect().unwrap();
    echoes(&mut before, b"before").unwrap();

    let mut successor = node.start_successor("log2", &[]);
    let agent = node.accept_agent().await;
    node.hand_over(&agent).await;
    successor.logged(TAKEN_OVER).await;
    for part in ["handed_over=3", "readiness changed"] {
        assert!(successor.log().contains(part), "{}", successor.log());
    }
    let mut after = node.connect().unwrap();
    echoes(&mut after, b"after").unwrap();
    echoes(&mut before, b"meanwhile").unwrap();
    node.until_ready().await;
    // The process's own ports are the successor's, which knows what the other one still carries.
    node.eventually("the report of the process before", |node| {
        let dump = node.get(15000, "/config_dump");
        dump.contains("\"secondsSinceHandover\"") && dump.contains("\"default/server\": 1")
    })
    .await;
    // The node agent's word still reaches the old process's pods.
    assert_eq!(agent.release("client").await, Ok((1, false)));
    assert_eq!(agent.add("client", &node.client).await, "");

    drop(before);
    assert!(node.exited().await.success());
    assert!(node.log().contains("the last connection has ended"));
    assert!(!node.log().contains("connection failed"), "{}", node.log());
    echoes(&mut after, b"still here").unwrap();
    successor
        .logged("a process before this one has ended")
        .await;
    drop(after);
    successor.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_connection_is_refused_while_processes_change() {
    let (node, _agent) = Node::start(vec![]).await;
    let node = Arc::new(node);
    let stop = Arc::new(AtomicBool::new(false));
    let knocking: Vec<_> = (0..4)
        .map(|_| {
            let (node, stop) = (Arc::clone(&node), Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut served = 0_u32;
                while !stop.load(Ordering::Relaxed) {
                    let mut socket = node.connect().expect("is accepted");
                    echoes(&mut socket, b"knock").expect("is served");
                    served += 1;
                }
                served
            })
        })
        .collect();
    let mut others = Vec::new();
    for log in ["log2", "log3"] {
        let next = node.start_successor(log, &[]);
        let agent = node.accept_agent().await;
        node.hand_over(&agent).await;
        next.logged(TAKEN_OVER).await;
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        if log == "log2" {
            // Only a process that is past its probation may be relieved itself.
            tokio::time::sleep(ztunnel::handover::PROBATION).await;
        }
        others.push((next, agent));
    }
    stop.store(true, Ordering::Relaxed);
    for thread in knocking {
        assert!(thread.join().expect("no knock failed") > 20);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_a_successor_dies_the_process_before_goes_on() {
    let (mut node, _agent) = Node::start(vec![]).await;
    let mut before = node.connect().unwrap();
    echoes(&mut before, b"before").unwrap();
    let mut successor = node.start_successor("log2", &[]);
    let agent = node.accept_agent().await;
    node.hand_over(&agent).await;
    successor.logged(TAKEN_OVER).await;
    successor.kill();
    drop(agent);
    let mut after = node.connect().unwrap();
    echoes(&mut after, b"after").unwrap();
    echoes(&mut before, b"too").unwrap();
    node.eventually("its ports answer again", |node| {
        node.get(15021, "/healthz/ready").contains(" 200 ")
    })
    .await;
    assert!(
        node.log()
            .contains("the successor failed, this process goes on")
    );
    assert!(node.is_running());

    // And the next one may try.
    let another = node.start_successor("log3", &[]);
    let agent = node.accept_agent().await;
    node.hand_over(&agent).await;
    another.logged(TAKEN_OVER).await;
    let mut later = node.connect().unwrap();
    echoes(&mut later, b"later").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_successor_that_never_gets_that_far_changes_nothing() {
    let (mut node, _agent) = Node::start(vec![]).await;
    let mut hopeless = node.start_successor("log2", &[("KEEPALIVE_TIME", "soon")]);
    assert_eq!(hopeless.exited().await.code(), Some(1));
    // This one greets, and then has no pods to serve.
    let mut waiting = node.start_successor("log3", &[]);
    let agent = node.accept_agent().await;
    let refused = ask(&node, 1).await;
    assert!(refused.is_err_and(|reason| reason.contains("just now")));
    waiting.kill();
    drop(agent);
    let mut socket = node.connect().unwrap();
    echoes(&mut socket, b"as before").unwrap();
    assert!(node.get(15021, "/healthz/ready").contains(" 200 "));
    assert!(node.is_running());
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_speaks_another_version_or_nonsense_is_turned_away_with_the_reason() {
    let (mut node, _agent) = Node::start(vec![]).await;
    let refused = ask(&node, 2).await;
    assert!(refused.is_err_and(|reason| reason.contains("version 2")));
    let channel = SeqPacket::connect(node.handover_socket()).unwrap();
    channel.send(&[0xff; 30], None).await.unwrap();
    let answer = response_of(&channel).await;
    assert!(matches!(answer, Some(response::Kind::Refused(_))));
    drop(channel);
    assert!(ask(&node, 1).await.is_ok());
    use std::os::unix::fs::MetadataExt as _;
    let mode = std::fs::metadata(node.handover_socket()).unwrap().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut socket = node.connect().unwrap();
    echoes(&mut socket, b"as before").unwrap();
    assert!(node.is_running());
}

/// Says hello as a successor of this version; the reason where it is refused.
async fn ask(node: &Node, version: u32) -> Result<(), String> {
    let channel = SeqPacket::connect(node.handover_socket()).unwrap();
    let hello = Request {
        kind: Some(request::Kind::Hello(Hello {
            version,
            pid: 1,
            ..Hello::default()
        })),
    };
    // Whoever comes at the wrong time is refused unheard.
    let _ = channel.send(&hello.encode_to_vec(), None).await;
    match response_of(&channel).await {
        Some(response::Kind::Hello(_)) => Ok(()),
        Some(response::Kind::Refused(refused)) => Err(refused.reason),
        other => panic!("{other:?}"),
    }
}

async fn response_of(channel: &SeqPacket) -> Option<response::Kind> {
    let packet = tokio::time::timeout(std::time::Duration::from_secs(10), channel.recv(4096));
    let packet = packet.await.expect("answers").unwrap();
    Response::decode(packet.bytes.as_slice()).unwrap().kind
}
