// SPDX-License-Identifier: Apache-2.0
//! Bad configuration, a broken agent, pods that go, and the end of the process.

use std::process::Command;

use proto::zds::{KeepWorkload, SnapshotSent, workload_request};

use crate::harness::{Node, echoes, is_reset};

#[test]
fn all_mistakes_of_the_configuration_are_reported_at_once() {
    let output = Command::new(env!("CARGO_BIN_EXE_ztunnel"))
        .env_clear()
        .env("FAKE_CA", "true")
        .env("KEEPALIVE_TIME", "soon")
        .env("XDS_ON_DEMAND", "perhaps")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    for variable in ["FAKE_CA", "KEEPALIVE_TIME", "XDS_ON_DEMAND"] {
        assert!(
            text.contains(&format!("\n  {variable}: ")),
            "{variable} in {text}"
        );
    }
}

#[test]
fn help_names_every_variable_and_an_unknown_argument_is_an_error() {
    let run = |argument| {
        Command::new(env!("CARGO_BIN_EXE_ztunnel"))
            .arg(argument)
            .output()
            .unwrap()
    };
    let help = run("help");
    assert!(help.status.success());
    assert!(
        String::from_utf8(help.stdout)
            .unwrap()
            .contains("LOCAL_XDS_PATH")
    );
    assert!(run("version").status.success());
    assert_eq!(run("halp").status.code(), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_agent_costs_its_connection_and_nothing_else() {
    let mut node = Node::start_without_pods(vec![]).await;
    let garbage = node.accept_agent().await;
    garbage.send(&[0xff; 40]).await;
    assert!(garbage.acknowledged().await.contains("WorkloadRequest"));
    assert!(garbage.closed().await);

    let late = node.accept_agent().await;
    node.hand_over(&late).await;
    node.until_ready().await;
    let mut socket = node.connect().unwrap();
    echoes(&mut socket, b"before").unwrap();
    let keep = workload_request::Payload::Keep(KeepWorkload {
        uid: "uid-client".into(),
    });
    assert!(late.ask(keep).await.contains("after the snapshot"));
    assert!(late.closed().await);
    node.eventually("not ready", |node| {
        node.get(15021, "/healthz/ready")
            .contains("workload proxy manager")
    })
    .await;
    echoes(&mut socket, b"pods don't notice").unwrap();

    let sound = node.accept_agent().await;
    node.hand_over(&sound).await;
    node.until_ready().await;
    echoes(&mut socket, b"nor now").unwrap();
    assert!(node.is_running());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_the_snapshot_lacks_is_let_go() {
    let (node, agent) = Node::start(vec![]).await;
    drop(agent);
    let next = node.accept_agent().await;
    assert_eq!(next.add("server", &node.server).await, "");
    assert_eq!(
        next.ask(workload_request::Payload::SnapshotSent(SnapshotSent {}))
            .await,
        ""
    );
    node.eventually("the client's listener is closed", |node| {
        node.connect().is_err()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_pods_listeners_close_and_its_connections_are_cut() {
    let (node, agent) = Node::start(vec![]).await;
    let mut socket = node.connect().unwrap();
    echoes(&mut socket, b"x").unwrap();
    assert_eq!(agent.delete("client").await, "");
    assert!(is_reset(&mut socket));
    node.eventually("the listener is closed", |node| node.connect().is_err())
        .await;
    // And it can come back.
    assert_eq!(agent.add("client", &node.client).await, "");
    let mut socket = node.connect().unwrap();
    echoes(&mut socket, b"x").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_pods_cannot_share_one_namespace() {
    let (node, agent) = Node::start(vec![]).await;
    let error = agent.add("other", &node.client).await;
    assert!(error.contains("uid-client"), "{error}");
    node.eventually("not ready", |node| {
        node.get(15021, "/healthz/ready")
            .contains("workload proxy manager")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proxys_own_namespace_is_no_pods() {
    let (node, agent) = Node::start(vec![]).await;
    let error = agent.add("other", &node.netns).await;
    assert!(error.contains("this proxy's own"), "{error}");
    node.until_ready().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_lets_open_connections_end_by_themselves() {
    let (mut node, _agent) = Node::start(vec![]).await;
    let mut socket = node.connect().unwrap();
    echoes(&mut socket, b"before").unwrap();
    node.terminate();
    node.eventually("no longer ready", |node| {
        node.get(15021, "/healthz/ready").contains("drain")
    })
    .await;
    node.eventually("no longer accepting", |node| node.connect().is_err())
        .await;
    echoes(&mut socket, b"during").unwrap();
    drop(socket);
    assert!(node.exited().await.success());
    node.logged(&[
        "connection complete",
        "direction=\"outbound\"",
        "bytes_sent=12",
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_ends_at_its_deadline_and_what_was_open_is_told_so() {
    let (mut node, _agent) = Node::start(vec![]).await;
    let mut socket = node.connect().unwrap();
    echoes(&mut socket, b"x").unwrap();
    node.terminate();
    assert!(node.exited().await.success());
    assert!(is_reset(&mut socket));
    node.logged(&[
        "connection complete",
        "direction=\"outbound\"",
        "closed by drain",
    ])
    .await;
    // The other end is cut as well, and may see its peer go first.
    node.logged(&["connection complete", "direction=\"inbound\""])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_does_not_wait() {
    let (mut node, _agent) = Node::start(vec![]).await;
    let mut socket = node.connect().unwrap();
    echoes(&mut socket, b"x").unwrap();
    node.terminate();
    node.eventually("draining", |node| node.log().contains("draining"))
        .await;
    let asked = std::time::Instant::now();
    node.terminate();
    assert!(node.exited().await.success());
    assert!(
        asked.elapsed() < std::time::Duration::from_secs(4),
        "waited for the deadline"
    );
}
