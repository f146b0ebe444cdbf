// SPDX-License-Identifier: Apache-2.0
//! Connections that should work, and those that must not be made.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};

use proto::zds::{SnapshotSent, workload_request};

use crate::harness::{
    CLIENT, Node, SERVER, SERVICE, UNKNOWN, echoes, is_refused, is_reset, server_of,
};

const CLIENT_ID: &str = "spiffe://cluster.local/ns/default/sa/client";
const SERVER_ID: &str = "spiffe://cluster.local/ns/default/sa/server";

#[tokio::test(flavor = "multi_thread")]
async fn two_pods_talk_through_a_tunnel_under_their_own_identities() {
    let (node, _agent) = Node::start(vec![]).await;
    let mut socket = node.connect().unwrap();
    echoes(&mut socket, b"hello").unwrap();
    socket.shutdown(Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    socket.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());

    let (source, destination) = (
        format!("src.identity=\"{CLIENT_ID}\""),
        format!("dst.identity=\"{SERVER_ID}\""),
    );
    for direction in ["outbound", "inbound"] {
        let direction = format!("direction=\"{direction}\"");
        let line = node
            .logged(&[
                "connection complete",
                &direction,
                &source,
                &destination,
                "bytes_sent=5",
                "bytes_recv=5",
            ])
            .await;
        assert!(line.contains("10.77.0.2:8080"), "{line}");
        assert!(
            line.contains("dst.service=\"echo.default.svc.cluster.local\""),
            "{line}"
        );
        assert!(!line.contains("error="), "{line}");
    }
    for reporter in ["reporter=\"source\"", "reporter=\"destination\""] {
        let mutual = [
            reporter,
            "connection_security_policy=\"mutual_tls\"",
            "response_flags=\"-\"",
        ];
        assert_eq!(
            node.counted("istio_tcp_connections_opened_total", &mutual),
            1
        );
        assert_eq!(
            node.counted("istio_tcp_connections_closed_total", &mutual),
            1
        );
        assert_eq!(node.counted("istio_tcp_received_bytes_total", &mutual), 5);
        assert_eq!(node.counted("istio_tcp_sent_bytes_total", &mutual), 5);
        assert_eq!(
            node.counted("istio_tcp_connections_failed_total", &[reporter]),
            0
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_file_is_enough_without_a_control_plane() {
    let node = Node::start_from_file(
        r#"
workloads:
- {uid: c, name: client, namespace: default, serviceAccount: client, trustDomain: cluster.local,
   workloadIps: ["10.77.0.1"], protocol: HBONE, node: n1, network: "", services: {}}
- uid: s
  name: server
  namespace: default
  serviceAccount: server
  trustDomain: cluster.local
  workloadIps: ["10.77.0.2"]
  protocol: HBONE
  node: n1
  services:
    "default/echo.default.svc.cluster.local":
      15001: 8080
policies: []
services:
- name: echo
  namespace: default
  hostname: echo.default.svc.cluster.local
  vips: ["/10.99.0.9"]
  ports:
    15001: 8080
"#,
    )
    .await;
    let agent = node.accept_agent().await;
    node.hand_over(&agent).await;
    node.until_ready().await;
    let mut socket = node.connect().unwrap();
    echoes(&mut socket, b"hello").unwrap();
    drop(socket);
    node.logged(&[
        "connection complete",
        "direction=\"inbound\"",
        CLIENT_ID,
        SERVER_ID,
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dump_shows_what_the_process_believes_while_a_connection_is_open() {
    let (node, _agent) = Node::start(vec![]).await;
    let mut socket = node.connect().unwrap();
    echoes(&mut socket, b"x").unwrap();
    let answer = node.get(15000, "/config_dump");
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    let dump: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(dump["workloads"].as_array().unwrap().len(), 2);
    assert_eq!(dump["services"].as_array().unwrap().len(), 1);
    assert_eq!(dump["certificates"].as_array().unwrap().len(), 2);
    assert_eq!(dump["certificates"][0]["state"], "Available");
    assert_eq!(dump["config"]["nodeName"], "n1");
    let client = &dump["workloadState"]["uid-client"];
    assert_eq!(client["state"], "Up");
    assert_eq!(client["connections"]["outbound"][0]["protocol"], "HBONE");
    let inbound = &dump["workloadState"]["uid-server"]["connections"]["inbound"][0];
    assert_eq!(inbound["actualDst"], "10.77.0.2:8080");
    assert_eq!(inbound["verdict"], "allowed: no ALLOW policy applies");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_connections_and_much_data_arrive_unharmed() {
    let (node, _agent) = Node::start(vec![]).await;
    let clients: Vec<_> = (0..20u8)
        .map(|seed| {
            let mut socket = node.connect().unwrap();
            std::thread::spawn(move || {
                let block = vec![seed; 64 << 10];
                for _ in 0..16 {
                    echoes(&mut socket, &block).unwrap();
                }
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
    let megabytes = 20 * (1 << 20);
    node.eventually("all bytes counted", |node| {
        node.counted(
            "istio_tcp_received_bytes_total",
            &["reporter=\"destination\""],
        ) == megabytes
            && node.counted(
                "istio_tcp_connections_closed_total",
                &["response_flags=\"-\""],
            ) == 40
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_is_not_the_pods_own_cannot_speak_for_it() {
    let (node, _agent) = Node::start(vec![]).await;
    assert!(is_refused(node.connect_from(UNKNOWN, SERVICE)));
    node.logged(&[
        "connection failed",
        "10.99.0.8 does not belong to workload default/client",
    ])
    .await;
    assert!(
        node.counted(
            "istio_tcp_connections_failed_total",
            &["response_flags=\"WRONG_POD\""]
        ) == 1
    );
    assert!(
        node.get(15000, "/config_dump")
            .contains("10.99.0.8 does not belong to workload default/client")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn namespaces_handed_over_under_each_others_names_speak_for_nobody() {
    let node = Node::start_without_pods(vec![]).await;
    let agent = node.accept_agent().await;
    assert_eq!(agent.add("client", &node.server).await, "");
    assert_eq!(agent.add("server", &node.client).await, "");
    let sent = workload_request::Payload::SnapshotSent(SnapshotSent {});
    assert_eq!(agent.ask(sent).await, "");
    node.until_ready().await;
    let why = "the network namespace handed over as pod default/server has none of the addresses of that workload (10.77.0.2)";
    assert!(is_refused(node.connect()));
    node.logged(&["connection failed", why]).await;
    let labels = ["reporter=\"source\"", "response_flags=\"WRONG_POD\""];
    assert_eq!(
        node.counted("istio_tcp_connections_failed_total", &labels),
        1
    );
    let dump = node.get(15000, "/config_dump");
    let dump: serde_json::Value =
        serde_json::from_str(dump.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(dump["workloadState"]["uid-server"]["unbound"], why);

    // And a tunnel that reaches one of them is not served either.
    let mut tunnel = node
        .connect_plainly(SocketAddr::from((SERVER, 15008)))
        .unwrap();
    assert_eq!(tunnel.read(&mut [0; 1]).unwrap_or(0), 0);
    node.logged(&["direction=\"inbound\"", "handed over as pod default/client"])
        .await;

    for name in ["client", "server"] {
        assert_eq!(agent.delete(name).await, "");
    }
    assert_eq!(agent.add("client", &node.client).await, "");
    assert_eq!(agent.add("server", &node.server).await, "");
    let mut socket = node.connect().unwrap();
    echoes(&mut socket, b"put right").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_waits_for_the_control_plane_to_speak_of_it_and_not_of_its_predecessor() {
    let (node, _agent) = Node::start(vec![]).await;
    node.plane.push_address(server_of("uid-before")).await;
    let why = "the node agent handed over pod default/server with UID uid-server, but the mesh speaks of the one with UID uid-before";
    node.eventually("the mesh speaks of another pod", |node| {
        let dump = node.get(15000, "/config_dump");
        let dump: serde_json::Value =
            serde_json::from_str(dump.split_once("\r\n\r\n").unwrap().1).unwrap();
        dump["workloadState"]["uid-server"]["unbound"] == why
    })
    .await;
    assert!(is_refused(node.connect()));
    node.logged(&["direction=\"inbound\"", why]).await;
    let labels = ["reporter=\"destination\"", "response_flags=\"OTHER_POD\""];
    assert_eq!(
        node.counted("istio_tcp_connections_failed_total", &labels),
        1
    );

    node.plane.push_address(server_of("uid-server")).await;
    node.eventually("the mesh speaks of this one", |node| {
        let mut socket = node.connect().unwrap();
        echoes(&mut socket, b"put right").is_ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_would_come_back_to_the_proxy_is_refused() {
    let (mut node, _agent) = Node::start(vec![]).await;
    for to in [UNKNOWN, CLIENT] {
        // A reset is told once, by whichever call comes first.
        let sent = node.connect_from(CLIENT, to).and_then(|mut socket| {
            socket.write_all(b"x")?;
            Ok(socket)
        });
        match sent {
            Ok(mut socket) => assert!(is_reset(&mut socket)),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }
    // The client hears of it before it is counted.
    node.eventually("both are counted", |node| {
        node.counted(
            "istio_tcp_connections_failed_total",
            &["response_flags=\"NO_ROUTE\""],
        ) == 2
    })
    .await;
    assert!(node.is_running());
}
