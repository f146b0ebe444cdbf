// SPDX-License-Identifier: Apache-2.0
//! Two pods of one node without a tunnel between them: only where it is allowed, under the same rules, and never called
//! what it is not.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use crate::harness::{Agent, Node, deny_client, echoes, is_refused, is_reset};

const OPENED: &str = "istio_tcp_connections_opened_total";
const PLAIN: &str = "connection_security_policy=\"none\"";
const MUTUAL: &str = "connection_security_policy=\"mutual_tls\"";
const CLIENT_ID: &str = "spiffe://cluster.local/ns/default/sa/client";
const SERVER_ID: &str = "spiffe://cluster.local/ns/default/sa/server";

/// With these settings, and both certificates at hand.
async fn start(settings: &[(&str, &str)]) -> (Node, Agent) {
    let (node, agent) = Node::start_set(vec![], settings).await;
    node.eventually("both certificates", |node| {
        let dump = node.get(15000, "/config_dump?certificates");
        dump.matches("\"Available\"").count() == 2
    })
    .await;
    (node, agent)
}

async fn allowed() -> (Node, Agent) {
    start(&[("SAME_NODE_SHORTCUT", "true")]).await
}

/// Sends so much there and back that both ways become bulk.
fn bulk(socket: &TcpStream) -> u64 {
    const BLOCK: usize = 256 << 10;
    const BLOCKS: usize = 64;
    let mut writer = socket.try_clone().unwrap();
    let block: Vec<u8> = (0..BLOCK).map(|byte| (byte % 251) as u8).collect();
    let sent = block.clone();
    let writing = std::thread::spawn(move || {
        for _ in 0..BLOCKS {
            writer.write_all(&sent).unwrap();
        }
    });
    let (mut reader, mut back) = (socket, vec![0; BLOCK]);
    for _ in 0..BLOCKS {
        reader.read_exact(&mut back).unwrap();
        assert!(back == block, "bulk came back changed");
    }
    writing.join().unwrap();
    (BLOCK * BLOCKS) as u64
}

#[tokio::test(flavor = "multi_thread")]
async fn an_allowed_shortcut_carries_all_and_is_called_what_it_is() {
    let (node, _agent) = allowed().await;
    let mut socket = node.connect().unwrap();
    echoes(&mut socket, b"hello").unwrap();
    let total = bulk(&socket) + 5;
    let dump = node.get(15000, "/config_dump");
    assert_eq!(dump.matches("\"SAMENODE\"").count(), 2, "{dump}");
    assert!(dump.contains("allowed: no ALLOW policy applies"), "{dump}");
    socket.shutdown(Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    socket.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());

    let (sent, received) = (format!("bytes_sent={total}"), format!("bytes_recv={total}"));
    for direction in ["direction=\"outbound\"", "direction=\"inbound\""] {
        let line = node
            .logged(&[
                "connection complete",
                direction,
                "transport=\"same-node\"",
                "dst.addr=10.77.0.2:8080",
                "dst.service=\"echo.default.svc.cluster.local\"",
                CLIENT_ID,
                SERVER_ID,
                &sent,
                &received,
            ])
            .await;
        assert!(!line.contains("hbone_addr"), "{line}");
        assert!(!line.contains("error="), "{line}");
    }
    let client = format!("source_principal=\"{CLIENT_ID}\"");
    for reporter in ["reporter=\"source\"", "reporter=\"destination\""] {
        let plain = [reporter, PLAIN, &client, "response_flags=\"-\""];
        assert_eq!(node.counted(OPENED, &plain), 1);
        node.eventually("closed in order", |node| {
            node.counted("istio_tcp_connections_closed_total", &plain) == 1
        })
        .await;
        assert_eq!(
            node.counted("istio_tcp_received_bytes_total", &plain),
            total
        );
        assert_eq!(node.counted("istio_tcp_sent_bytes_total", &plain), total);
        assert_eq!(node.counted(OPENED, &[reporter, MUTUAL]), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_leave_every_connection_takes_the_tunnel() {
    for settings in [&[][..], &[("SAME_NODE_SHORTCUT", "elsewhere")][..]] {
        let (node, _agent) = start(settings).await;
        let mut socket = node.connect().unwrap();
        echoes(&mut socket, b"hello").unwrap();
        assert_eq!(node.counted(OPENED, &[PLAIN]), 0);
        assert_eq!(node.counted(OPENED, &[MUTUAL]), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn namespaces_may_be_named() {
    let (node, _agent) = start(&[("SAME_NODE_SHORTCUT", "other,default")]).await;
    let mut socket = node.connect().unwrap();
    echoes(&mut socket, b"hello").unwrap();
    assert_eq!(node.counted(OPENED, &[PLAIN]), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_denies_the_shortcut_at_first_and_later() {
    let (node, _agent) = allowed().await;
    let mut live = node.connect().unwrap();
    echoes(&mut live, b"still fine").unwrap();
    node.plane.push_policy(deny_client("no-client")).await;
    assert!(is_reset(&mut live));
    let inbound = ["direction=\"inbound\"", "transport=\"same-node\""];
    let changed = ["policy changed", "default/no-client rule[0]"];
    node.logged(&[inbound, changed].concat()).await;

    assert!(is_refused(node.connect()));
    let denied = ["error=\"denied by policy default/no-client rule[0]"];
    node.logged(&[&inbound[..], &denied].concat()).await;
    node.logged(&[
        "direction=\"outbound\"",
        "refused the connection with status 401",
    ])
    .await;
    let failed = |reporter, flag| {
        let labels = [reporter, flag, PLAIN];
        node.counted("istio_tcp_connections_failed_total", &labels)
    };
    assert_eq!(
        failed("reporter=\"destination\"", "response_flags=\"DENY\""),
        2
    );
    assert_eq!(
        failed("reporter=\"source\"", "response_flags=\"CONNECT\""),
        1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_certificate_ends_the_shortcut_and_lends_it_to_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("crl.pem");
    let path = list.to_str().unwrap().to_owned();
    let (node, _agent) = start(&[("SAME_NODE_SHORTCUT", "true"), ("CRL_PATH", &path)]).await;
    let mut live = node.connect().unwrap();
    echoes(&mut live, b"still fine").unwrap();
    assert_eq!(node.counted(OPENED, &[PLAIN]), 2);
    // Whatever serial the client's certificates have had and will have for a while.
    let serials = node.plane.issued(CLIENT_ID);
    std::fs::write(&list, node.plane.revocation_list(&serials)).unwrap();
    assert!(is_reset(&mut live));
    for direction in ["direction=\"outbound\"", "direction=\"inbound\""] {
        let said = [direction, "transport=\"same-node\"", "was revoked by"];
        node.logged(&said).await;
    }
    let cut = ["response_flags=\"CERT_REVOKED\"", PLAIN];
    assert_eq!(node.counted("istio_tcp_connections_closed_total", &cut), 2);
    // By then it has another one, and the shortcut is open again.
    node.eventually("works with a new certificate", |node| {
        node.connect()
            .is_ok_and(|mut socket| echoes(&mut socket, b"again").is_ok())
            && node.counted(OPENED, &[PLAIN]) > 2
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_goes_takes_its_shortcuts_along() {
    let (node, agent) = allowed().await;
    let mut socket = node.connect().unwrap();
    echoes(&mut socket, b"hello").unwrap();
    assert_eq!(agent.delete("server").await, "");
    assert!(is_reset(&mut socket));
    node.logged(&[
        "direction=\"inbound\"",
        "transport=\"same-node\"",
        "its pod is no longer served here",
    ])
    .await;
    let mut late = node.connect();
    assert!(late.as_mut().is_err() || is_reset(late.as_mut().unwrap()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_waits_for_shortcuts_and_cuts_what_stays() {
    let settings = [
        ("SAME_NODE_SHORTCUT", "true"),
        ("CONNECTION_TERMINATION_DEADLINE", "1s"),
    ];
    let (mut node, _agent) = start(&settings).await;
    let mut socket = node.connect().unwrap();
    echoes(&mut socket, b"hello").unwrap();
    node.terminate();
    echoes(&mut socket, b"still open").unwrap();
    assert!(is_reset(&mut socket));
    assert!(node.exited().await.success());
    for direction in ["direction=\"outbound\"", "direction=\"inbound\""] {
        let said = [direction, "transport=\"same-node\"", "closed by drain"];
        node.logged(&said).await;
    }
}
