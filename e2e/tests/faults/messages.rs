// SPDX-License-Identifier: Apache-2.0
//! Messages that are broken, too long, or lies, over the sockets by which the daemons speak with each other: each is
//! refused with a reason and counted, nobody else notices, and nothing is left behind.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::ensure;
use capture::seqpacket::{SeqPacket, SeqPacketListener};
use e2e::handle::eventually;
use e2e::hostile::crowd::Crowded;
use e2e::hostile::grpc::Answered;
use e2e::telemetry::Metrics;
use e2e::topology::Node;

use crate::ground::{Background, Turn, bounded, judge, timed, turn, until_let_go};

/// What a metric of a daemon's page adds up to.
fn counted(turn: &Turn, place: &str, address: &str, name: &str, labels: &[(&str, &str)]) -> f64 {
    let page = turn.get(place, address, "/metrics").unwrap();
    Metrics::parse(&page).sum(name, labels)
}

fn agent_counted(turn: &Turn, name: &str, labels: &[(&str, &str)]) -> f64 {
    counted(turn, "node-b", "127.0.0.1:15014", name, labels)
}

fn in_runtime<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(work)
}

/// How a new pod fares: it runs in time, and is spoken to through the mesh.
fn a_pod_starts(turn: &Turn) {
    turn.apply_pod("shop/late", Node::B);
    let (ready, took) = timed(|| turn.lab.wait_ready("shop/late"));
    ready.unwrap();
    bounded("  until a new pod ran", took, Duration::from_secs(30));
    turn.spoken_to("shop/late");
    turn.remove_pod("shop/late");
}

#[test]
fn ztunnels_that_talk_nonsense_to_the_agent_are_dropped_and_pods_start_beside_them() {
    let turn = turn();
    let trial = turn.begin();
    let agent = turn.lab.process("istio-cni-node-b").unwrap();
    let held = agent.descriptors().unwrap();
    let path = turn.lab.state().node(Node::B).join("ztunnel.sock");
    let before = agent_counted(&turn, "redirect_ztunnel_dropped_total", &[]);
    in_runtime(async {
        let null = File::open("/dev/null").unwrap();
        // No hello, one that is none, one that is too long, one with a descriptor.
        let silent = SeqPacket::connect(&path).unwrap();
        for (bytes, fds) in [
            (vec![0xff; 40], vec![]),
            (vec![0x0a; 5000], vec![]),
            (vec![0x08, 0x01], vec![null.as_fd()]),
            (vec![0x0a, 0x7f, 0x01], vec![]),
        ] {
            let socket = SeqPacket::connect(&path).unwrap();
            socket.send_with(&bytes, &fds).await.unwrap();
            let patience = Duration::from_secs(20);
            let packet = tokio::time::timeout(patience, socket.recv(4096))
                .await
                .unwrap();
            // Closed, or reset with what was not read.
            assert!(
                packet.is_ok_and(|packet| packet.is_end()),
                "{bytes:?} was answered"
            );
        }
        drop(silent);
        // A hello in order, and then an answer that nobody asked for: whatever it was given, it serves nothing.
        let liar = SeqPacket::connect(&path).unwrap();
        liar.send(&[0x08, 0x01], None).await.unwrap();
        liar.send(&[0xff; 30], None).await.unwrap();
        let dropped = async { while liar.recv(4096).await.is_ok_and(|packet| !packet.is_end()) {} };
        tokio::time::timeout(Duration::from_secs(20), dropped)
            .await
            .unwrap();
        // As many as there may be, none of them with a word to say, while a pod starts.
        let _silent: Vec<_> = (0..8).map(|_| SeqPacket::connect(&path).unwrap()).collect();
        a_pod_starts(&turn);
    });
    let log = trial.log("istio-cni-node-b").unwrap();
    for reason in ["hello: ", "answer: "] {
        let line = log
            .lines()
            .find(|line| line.contains("ztunnel connection dropped") && line.contains(reason));
        println!("{}", line.unwrap_or_else(|| panic!("no word of {reason}")));
    }
    let dropped = agent_counted(&turn, "redirect_ztunnel_dropped_total", &[]) - before;
    assert!(dropped >= 5.0, "{dropped} are counted");
    until_let_go(&agent, held + 2);
    let verdict = judge("nonsense to the agent", trial);
    assert!(verdict.traffic.failures().is_empty());
}

/// Says something to the plugin's socket and returns the whole answer.
fn say(path: &Path, bytes: &[u8]) -> String {
    let mut socket = UnixStream::connect(path).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    // What is refused early is not read to its end.
    let _refused_early = socket.write_all(bytes);
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match socket.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
            Err(error) => panic!("no answer in time: {error}"),
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}

fn post(path: &str, body: &str) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

#[test]
fn plugins_that_talk_nonsense_to_the_agent_are_refused_and_pods_start_beside_them() {
    let turn = turn();
    let trial = turn.begin();
    let agent = turn.lab.process("istio-cni-node-b").unwrap();
    let held = agent.descriptors().unwrap();
    let path = turn
        .lab
        .state()
        .node(Node::B)
        .join("istio-cni/pluginevent.sock");
    let address = turn.lab.v4("shop/web-b", 0).unwrap().ip();
    let add = |namespace: &str, pod: &str, netns: &str| {
        let body = serde_json::json!({
            "Netns": netns, "PodName": pod, "PodNamespace": namespace,
            "IPs": [{"Address": {"IP": address}}],
        });
        post("/cmdadd", &body.to_string())
    };
    let of = |pod: &str| turn.lab.pod(pod).unwrap().netns.display().to_string();
    let deep = "[".repeat(60_000);
    let unfinished = b"POST /cmdadd HTTP/1.1\r\nHost: x\r\nContent-Length: 9000\r\n\r\n{".to_vec();
    // What is said, how it is answered, and the counter's word for it where it is no question at all.
    let cases: [(&str, Vec<u8>, &str, Option<&str>); 11] = [
        ("no HTTP", vec![0xa5; 512], "400", None),
        ("half a request", b"POST /cmdadd HTT".to_vec(), "", None),
        ("half a body", unfinished, "408", Some("timeout")),
        ("no JSON", post("/cmdadd", "{"), "400", Some("json")),
        (
            "another's JSON",
            post("/cmddel", "{\"a\": 1}"),
            "400",
            Some("json"),
        ),
        ("deep JSON", post("/cmdadd", &deep), "400", Some("json")),
        (
            "too much",
            post("/cmdadd", &"x".repeat(100_000)),
            "500",
            Some("body"),
        ),
        ("nowhere", post("/no/such/place", "{}"), "404", Some("path")),
        (
            "nobody's pod",
            add("shop", "nobody", &of("shop/web-b")),
            "500",
            None,
        ),
        (
            "no namespace",
            add("shop", "web-b", "/no/such/netns"),
            "500",
            None,
        ),
        (
            "another's namespace",
            add("shop", "web-b", &of("shop/vault")),
            "500",
            None,
        ),
    ];
    let refused =
        |word: &str| agent_counted(&turn, "redirect_plugin_refused_total", &[("reason", word)]);
    for (what, bytes, status, word) in &cases {
        let before = word.map(refused);
        let answer = say(&path, bytes);
        let first = answer.lines().next().unwrap_or_default();
        let last = answer.lines().last().unwrap_or_default();
        println!("{what}: {first}: {last}");
        assert!(first.contains(status), "{what}: {answer}");
        assert!(!first.contains(" 200 "), "{what}: {answer}");
        if let (Some(word), Some(before)) = (word, before) {
            assert_eq!(refused(word) - before, 1.0, "{what} as {word}");
        }
    }
    // Many who say nothing keep nobody out.
    let silent: Vec<_> = (0..200)
        .map(|_| UnixStream::connect(&path).unwrap())
        .collect();
    a_pod_starts(&turn);
    drop(silent);
    let log = trial.log("istio-cni-node-b").unwrap();
    for reason in [
        "reading the body",
        "nothing is at POST /no/such/place",
        "/no/such/netns",
    ] {
        assert!(log.contains(reason), "no word of {reason}");
    }
    // What was said of web-b and vault changed nothing.
    for pod in ["shop/web-b", "shop/vault"] {
        turn.spoken_to(pod);
    }
    until_let_go(&agent, held + 2);
    let verdict = judge("nonsense of plugins", trial);
    assert!(verdict.traffic.failures().is_empty());
}

#[test]
fn an_agent_that_talks_nonsense_costs_the_proxy_nothing_but_news() {
    let turn = turn();
    let trial = turn.begin();
    let proxy = turn.lab.process("ztunnel-b").unwrap();
    let held = proxy.descriptors().unwrap();
    let path: PathBuf = turn.lab.state().node(Node::B).join("ztunnel.sock");
    let refused = |word: &str| {
        let metrics = turn.lab.metrics(Node::B).unwrap();
        metrics.sum("culvert_zds_refused_total", &[("reason", word)])
    };
    let before = ["unreadable", "protocol", "pod"].map(refused);
    turn.lab.hold_down("istio-cni-node-b").unwrap();
    in_runtime(async {
        let listener = SeqPacketListener::bind(&path).unwrap();
        let null = File::open("/dev/null").unwrap();
        let other = File::open("/proc/self/exe").unwrap();
        // `add` of uid "x", with no more; of uid "x", named; and what is in no order.
        let nameless = [0x0a, 0x03, 0x0a, 0x01, b'x'];
        let named = [
            0x0a, 0x0e, 0x0a, 0x01, b'x', 0x12, 0x09, 0x0a, 0x01, b'p', 0x12, 0x01, b'n', 0x1a,
            0x01, b's',
        ];
        let nothing: Vec<std::os::fd::BorrowedFd<'_>> = vec![];
        let one = vec![null.as_fd()];
        let two = vec![null.as_fd(), other.as_fd()];
        let patience = Duration::from_secs(30);
        for (what, bytes, fds) in [
            ("no message", vec![0xff; 40], &nothing),
            ("one that is too long", vec![0x0a; 9000], &nothing),
            ("two descriptors", named.to_vec(), &two),
            ("a pod without a name", nameless.to_vec(), &one),
            ("a pod without a namespace", named.to_vec(), &nothing),
            ("a pod whose namespace is none", named.to_vec(), &one),
            ("an unknown kind", vec![0xda, 0x3e, 0x00], &nothing),
        ] {
            let agent = tokio::time::timeout(patience, listener.accept()).await;
            let agent = agent.expect("it does not come back").unwrap();
            tokio::time::timeout(patience, agent.recv(64))
                .await
                .unwrap()
                .unwrap();
            agent.send_with(&bytes, fds).await.unwrap();
            let answer = tokio::time::timeout(patience, agent.recv(4096)).await;
            let answer = answer.expect("it says nothing").unwrap();
            let text = String::from_utf8_lossy(&answer.bytes).into_owned();
            println!("{what}: {}", text.trim());
            assert!(text.len() > 10, "{what} is not refused with a reason");
        }
    });
    for (word, before) in ["unreadable", "protocol", "pod"].into_iter().zip(before) {
        println!("{word}: {}", refused(word) - before);
    }
    assert!(refused("unreadable") - before[0] >= 3.0);
    assert!(refused("pod") - before[2] >= 3.0);
    turn.lab.let_start("istio-cni-node-b").unwrap();
    turn.all_ready();
    a_pod_starts(&turn);
    until_let_go(&proxy, held + 40);
    let verdict = judge("nonsense of an agent", trial);
    assert!(
        verdict.traffic.failures().is_empty(),
        "{:?}",
        verdict.traffic.failures()
    );
}

#[test]
fn clients_that_talk_nonsense_to_the_control_plane_are_refused_and_it_goes_on() {
    let turn = turn();
    let trial = turn.begin();
    let process = turn.lab.process("istiod-lite").unwrap();
    let (held, memory) = (process.descriptors().unwrap(), process.memory().unwrap());
    let member = turn.member(Node::A);
    let call = |method: &str, arguments: &[&str]| -> Answered {
        let mut all = vec!["grpc", "--method", method];
        all.extend(arguments);
        all.extend(member.iter().map(String::as_str));
        turn.hostile(Node::A, None, &all)
    };
    let discovery =
        "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
    let certificates = "/istio.v1.auth.IstioCertificateService/CreateCertificate";
    let refused = |word: &str| {
        let labels = [("reason", word)];
        counted(
            &turn,
            "istiod-lite",
            "127.0.0.1:8080",
            "culvert_xds_refused_total",
            &labels,
        )
    };
    let before = refused("malformed");
    // What is sent, the code it is answered with, and a word of the answer.
    type Call<'a> = (&'a str, &'a str, &'a [&'a str], &'a [i32], &'a str);
    let cases: [Call<'_>; 5] = [
        (
            "a number for a node",
            discovery,
            &["--bytes", "0801"],
            &[3],
            "can't be read",
        ),
        (
            "a message cut short",
            discovery,
            &["--bytes", "0a04", "--times", "1"],
            &[3],
            "can't be read",
        ),
        (
            "five megabytes",
            discovery,
            &["--bytes", "1201", "--times", "2621440"],
            &[3, 8, 11],
            "",
        ),
        ("nobody", discovery, &["--bytes", ""], &[3], "no node id"),
        (
            "no request",
            certificates,
            &["--bytes", "08ff"],
            &[3, 13],
            "",
        ),
    ];
    for (what, method, arguments, codes, text) in cases {
        let answered = call(method, arguments);
        println!("{what}: {answered:?}");
        let (code, said) = answered.status.unwrap_or_else(|| panic!("{what}: no end"));
        assert!(codes.contains(&code), "{what}: {code} {said}");
        assert!(said.contains(text), "{what}: {said}");
        assert_eq!(answered.messages, 0, "{what}");
    }
    assert!(
        refused("malformed") - before >= 2.0,
        "malformed ones are not counted"
    );
    let log = trial.log("istiod-lite").unwrap();
    for word in ["can't be read", "no node id"] {
        let line = log
            .lines()
            .find(|line| line.contains("discovery stream refused") && line.contains(word));
        println!("{}", line.unwrap_or_else(|| panic!("no word of {word}")));
    }
    // And those who do not even speak TLS.
    let address = "10.77.0.10:15012";
    let failures = || {
        counted(
            &turn,
            "istiod-lite",
            "127.0.0.1:8080",
            "culvert_xds_handshake_failures_total",
            &[],
        )
    };
    let failed = failures();
    let arguments = ["crowd", address, "--count", "200", "--manner", "garbage"];
    let crowd = Background::<Crowded>::start(&turn, Node::A, &arguments);
    eventually("they are refused", Duration::from_secs(20), || {
        let now = failures() - failed;
        ensure!(now >= 200.0, "{now} are counted");
        Ok(())
    })
    .unwrap();
    // More than may be in their handshake, who say nothing and come again.
    let arguments = ["crowd", address, "--count", "600", "--again"];
    let silent = Background::<Crowded>::start(&turn, Node::A, &arguments);
    a_pod_starts(&turn);
    eventually("the silent make room", Duration::from_secs(20), || {
        let now = failures() - failed;
        ensure!(now >= 544.0, "{now} are counted");
        Ok(())
    })
    .unwrap();
    let crowded = crowd.end();
    println!("{crowded:?}");
    assert_eq!(crowded.sent_away, 200, "{crowded:?}");
    let silent = silent.end();
    println!("silent: {silent:?}");
    assert!(silent.sent_away >= 344, "{silent:?}");
    let log = trial.log("istiod-lite").unwrap();
    let made_room = |line: &str| line.contains("it made room for another");
    assert!(log.lines().any(made_room), "no word of whoever made room");
    assert!(
        trial
            .log("istiod-lite")
            .unwrap()
            .contains("TLS handshake failed")
    );
    until_let_go(&process, held + 4);
    let grown = process.memory().unwrap().saturating_sub(memory);
    println!("memory grown by {} KiB", grown >> 10);
    assert!(grown < 64 << 20, "{grown} bytes more than before");
    let verdict = judge("nonsense to the control plane", trial);
    assert!(verdict.traffic.failures().is_empty());
}
