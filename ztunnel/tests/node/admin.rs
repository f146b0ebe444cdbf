// SPDX-License-Identifier: Apache-2.0
//! What an operator sees: the dump, the log level, profiles, metrics, the drain.

use std::collections::BTreeSet;
use std::io::Read as _;

use prost::Message as _;
use serde_json::Value;
use ztunnel::admin::pprof_format::Profile;

use crate::harness::{Node, deny_client, echoes, is_reset};

/// The head and the body of an answer.
fn parts(answer: &[u8]) -> (String, &[u8]) {
    let end = answer
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .expect("is an answer");
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    (head, &answer[end + 4..])
}

fn post(node: &Node, path: &str) -> String {
    let answer = node.ask(15000, &format!("POST {path}"), "Content-Length: 0\r\n");
    String::from_utf8_lossy(&answer).into_owned()
}

fn dump(node: &Node) -> Value {
    let answer = node.get(15000, "/config_dump");
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

#[track_caller]
fn has_keys(object: &Value, keys: &[&str]) {
    let found: BTreeSet<&str> = object
        .as_object()
        .unwrap_or_else(|| panic!("{object} is no object"))
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(found, keys.iter().copied().collect(), "{object}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dump_has_the_shape_that_istioctl_reads() {
    let (node, _agent) = Node::start(vec![deny_client("stays-out")]).await;
    let mut denied = node.connect().unwrap();
    assert!(is_reset(&mut denied));
    let all = dump(&node);
    has_keys(
        &all,
        &[
            "workloads",
            "services",
            "policies",
            "stagedServices",
            "staticConfig",
            "version",
            "config",
            "certificates",
            "workloadState",
            // Ours.
            "dnsUpstreams",
            "refusals",
            "predecessors",
            "ejectedEndpoints",
            "limits",
        ],
    );
    has_keys(
        &all["version"],
        &[
            "version",
            "gitRevision",
            "rustVersion",
            "buildProfile",
            "buildStatus",
            "istioVersion",
            "cryptoProvider",
        ],
    );
    let rust = all["version"]["rustVersion"].as_str().unwrap();
    assert!(rust.starts_with("rustc "), "{rust}");
    has_keys(&all["staticConfig"], &["workloads", "policies", "services"]);
    let certificate = &all["certificates"][0];
    has_keys(
        certificate,
        &["identity", "state", "certChain", "rootCerts"],
    );
    has_keys(
        &certificate["certChain"][0],
        &["pem", "serialNumber", "validFrom", "expirationTime"],
    );
    let serial = certificate["certChain"][0]["serialNumber"]
        .as_str()
        .unwrap();
    assert!(serial.chars().all(|c| c.is_ascii_digit()), "{serial}");
    assert_eq!(all["policies"][0]["action"], "Deny");
    let pod = &all["workloadState"]["uid-server"];
    has_keys(pod, &["state", "info", "connections"]);
    has_keys(&pod["info"], &["name", "namespace", "serviceAccount"]);
    has_keys(&pod["connections"], &["inbound", "outbound"]);
    let refusal = &all["refusals"][0];
    assert_eq!(refusal["direction"], "inbound", "{all}");
    let reason = refusal["reason"].as_str().unwrap();
    assert!(reason.contains("default/stays-out rule[0]"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_local_file_is_shown_as_it_is_now() {
    let node = Node::start_from_file(
        "workloads: [{uid: c, name: client, namespace: default, workloadIps: [10.77.0.1], services: {}}]",
    )
    .await;
    node.eventually("the admin port answers", |node| {
        !node.get(15000, "/config_dump").is_empty()
    })
    .await;
    let all = dump(&node);
    assert_eq!(all["staticConfig"]["workloads"], all["workloads"]);
    assert_eq!(all["staticConfig"]["workloads"][0]["uid"], "c");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_level_of_one_target_changes_at_run_time() {
    let (node, _agent) = Node::start(vec![]).await;
    let talk = || echoes(&mut node.connect().unwrap(), b"x").unwrap();
    talk();
    node.logged(&["connection complete", "direction=\"outbound\""])
        .await;
    assert!(!node.log().contains("connection opened"));
    let answer = post(&node, "/logging?level=access=debug");
    assert!(
        answer.ends_with("current log level is info,ztunnel=debug,access=debug\n"),
        "{answer}"
    );
    talk();
    node.logged(&["connection opened", "direction=\"outbound\""])
        .await;
    let answer = post(&node, "/logging?level=access=off");
    assert!(
        answer.ends_with("info,ztunnel=debug,access=off\n"),
        "{answer}"
    );
    let refused = post(&node, "/logging?level=access&reset");
    assert!(refused.starts_with("HTTP/1.1 400 "), "{refused}");
    assert!(refused.contains("does not end in a level"), "{refused}");
    let answer = post(&node, "/logging");
    assert!(
        answer.ends_with("access=off\n"),
        "nothing was reset: {answer}"
    );
    let answer = post(&node, "/logging?reset=1&level=access=warn");
    assert!(
        answer.ends_with("info,ztunnel=debug,access=warn\n"),
        "{answer}"
    );
    let get = node.get(15000, "/logging");
    assert!(
        get.starts_with("HTTP/1.1 405 ") && get.contains("usage: "),
        "{get}"
    );
}

/// Whether a profile shows a worker, and the tunnel's code on it.
fn names_what_ran(answer: &[u8]) -> bool {
    let (_, body) = parts(answer);
    let Ok(profile) = Profile::decode(body) else {
        return false;
    };
    let named = |part: &str| profile.string_table.iter().any(|text| text.contains(part));
    named("proxy-") && (named("hbone::") || named("rustls::") || named("h2::"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_processor_profile_names_what_ran() {
    let (node, _agent) = Node::start(vec![]).await;
    let mut socket = node.connect().unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let answer = std::thread::scope(|scope| {
        scope.spawn(|| {
            let block = vec![7; 256 << 10];
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                echoes(&mut socket, &block).unwrap();
            }
        });
        let path = "GET /debug/pprof/profile?seconds=1&frequency=1000";
        // A sample says where a thread was, and one second on a busy machine may hold few of them.
        let mut answer = node.ask(15000, path, "");
        for _ in 0..10 {
            if names_what_ran(&answer) {
                break;
            }
            answer = node.ask(15000, path, "");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        answer
    });
    let (head, body) = parts(&answer);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let profile = Profile::decode(body).unwrap();
    assert!(profile.duration_nanos >= 1_000_000_000);
    assert!(!profile.sample.is_empty());
    assert!(names_what_ran(&answer), "{:?}", profile.string_table);
    let bad = node.get(15000, "/debug/pprof/profile?seconds=301");
    assert!(bad.starts_with("HTTP/1.1 400 "), "{bad}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heap_profile_is_there_once_it_is_switched_on_or_its_absence_explained() {
    let (node, _agent) = Node::start(vec![]).await;
    let first = node.get(15000, "/debug/pprof/heap");
    assert!(first.starts_with("HTTP/1.1 500 "), "{first}");
    if !cfg!(feature = "jemalloc") {
        assert!(first.contains("--features jemalloc"), "{first}");
        return;
    }
    let on = node.get(15000, "/debug/pprof/heap/profiling?activate=true");
    assert!(on.ends_with("heap profiling is active\n"), "{on}");
    for _ in 0..20 {
        echoes(&mut node.connect().unwrap(), &vec![1; 1 << 20]).unwrap();
    }
    let answer = node.ask(15000, "GET /debug/pprof/heap", "");
    let (head, body) = parts(&answer);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let mut profile = Vec::new();
    flate2::read::GzDecoder::new(body)
        .read_to_end(&mut profile)
        .unwrap();
    assert!(!Profile::decode(&*profile).unwrap().sample.is_empty());
    let bad = node.get(15000, "/debug/pprof/heap/profiling?activate=perhaps");
    assert!(bad.starts_with("HTTP/1.1 400 "), "{bad}");
    let off = node.get(15000, "/debug/pprof/heap/profiling?activate=false");
    assert!(off.ends_with("heap profiling is inactive\n"), "{off}");
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_compressed_for_who_asks_and_say_what_may_change() {
    let (node, _agent) = Node::start(vec![]).await;
    echoes(&mut node.connect().unwrap(), b"x").unwrap();
    let answer = node.ask(15020, "GET /metrics", "Accept-Encoding: zstd, gzip\r\n");
    let (head, body) = parts(&answer);
    assert!(head.contains("content-encoding: gzip"), "{head}");
    let mut page = String::new();
    flate2::read::GzDecoder::new(body)
        .read_to_string(&mut page)
        .unwrap();
    assert!(page.ends_with("# EOF\n"), "{page}");
    for sample in [
        "tokio_num_workers 2",
        "tokio_num_alive_tasks ",
        "tokio_global_queue_depth ",
        "tokio_worker_total_busy_duration_seconds_total{worker=\"1\"} ",
        "tokio_worker_park_count_total{worker=\"0\"} ",
        "tokio_worker_park_unpark_count_total{worker=\"0\"} ",
        "workload_manager_active_proxy_count 2",
        "istio_build{component=\"ztunnel\",tag=\"unknown\"} 1",
        "process_open_fds ",
    ] {
        assert!(
            page.lines().any(|line| line.starts_with(sample)),
            "{sample} in {page}"
        );
    }
    let stable = [
        "istio_build",
        "istio_tcp_connections_opened",
        "istio_tcp_connections_closed",
        "istio_tcp_received_bytes",
        "istio_tcp_sent_bytes",
    ];
    for line in page.lines() {
        let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|l| l.split_once(' '))
        else {
            continue;
        };
        let may_change =
            !stable.contains(&name) && !name.starts_with("tokio_") && !name.starts_with("process_");
        assert_eq!(help.contains("unstable"), may_change, "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_can_be_begun_and_watched() {
    let (mut node, _agent) = Node::start(vec![]).await;
    let mut socket = node.connect().unwrap();
    echoes(&mut socket, b"x").unwrap();
    let state = |answer: String| -> Value {
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    };
    let before = state(node.get(15000, "/debug/drain"));
    assert_eq!(before["draining"], false);
    assert_eq!(before["openByPod"]["default/client"], 1);
    assert_eq!(state(post(&node, "/debug/drain"))["draining"], true);
    node.eventually("not ready", |node| {
        node.get(15021, "/healthz/ready").contains("pending: drain")
    })
    .await;
    echoes(&mut socket, b"still served").unwrap();
    drop(socket);
    assert!(node.exited().await.success());
}
