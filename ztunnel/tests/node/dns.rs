// SPDX-License-Identifier: Apache-2.0
//! Questions of a pod: those about the mesh are answered, all others reach the upstream server and come back unchanged.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use capture::Netns;
use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, QCLASS, QTYPE, Question, RCODE, TYPE};

use crate::harness::{Node, SERVER, SERVICE};

const PORT: u16 = 15053;
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const ECHO: &str = "echo.default.svc.cluster.local";
/// More than a young pod is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// Answers every question with bytes that no library would write, after a while that the name gives.
struct Upstream {
    asked: Arc<AtomicU32>,
}

impl Upstream {
    fn start(netns: &Netns) -> Self {
        let asked = Arc::new(AtomicU32::new(0));
        let address = SocketAddr::from((SERVER, 53));
        let udp = netns.enter(|| UdpSocket::bind(address)).unwrap().unwrap();
        let tcp = netns.enter(|| TcpListener::bind(address)).unwrap().unwrap();
        let count = Arc::clone(&asked);
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok((length, client)) = udp.recv_from(&mut buffer) {
                count.fetch_add(1, Ordering::Relaxed);
                let (query, udp) = (buffer[..length].to_vec(), udp.try_clone().unwrap());
                std::thread::spawn(move || {
                    if let Some(response) = respond(&query) {
                        udp.send_to(&response, client).unwrap();
                    }
                });
            }
        });
        std::thread::spawn(move || {
            for socket in tcp.incoming() {
                let mut socket = socket.unwrap();
                std::thread::spawn(move || {
                    let query = read_framed(&mut socket).unwrap();
                    let mut response = respond(&query).unwrap();
                    response.extend(vec![b'+'; 20_000]);
                    write_framed(&mut socket, &response);
                });
            }
        });
        Self { asked }
    }

    fn asked(&self) -> u32 {
        self.asked.load(Ordering::Relaxed)
    }
}

fn respond(query: &[u8]) -> Option<Vec<u8>> {
    let asked_for = |word: &[u8]| query.windows(word.len()).any(|found| found == word);
    if asked_for(b"silence") {
        return None;
    }
    if asked_for(b"slow") {
        std::thread::park_timeout(Duration::from_millis(700));
    }
    let mut response = query.to_vec();
    if asked_for(b"holds") {
        response[2..8].copy_from_slice(&[0x81, 0x80, 0, 1, 0, 1]);
        // The name above, A, IN, for two minutes.
        response.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 120, 0, 4, 192, 0, 2, 7]);
        return Some(response);
    }
    // Flags and a code that mean nothing to anybody, and a tail that is no record.
    response[2] |= 0x80;
    response[3] = 0x5b;
    response.extend([0xde, 0xad, 0xbe, 0xef]);
    Some(response)
}

fn question(name: &str, record_type: u16) -> Vec<u8> {
    let mut packet = Packet::new_query(rand::random());
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    packet.questions.push(Question::new(
        Name::new_unchecked(name),
        QTYPE::TYPE(TYPE::A),
        QCLASS::CLASS(CLASS::IN),
        false,
    ));
    let mut message = packet.build_bytes_vec().unwrap();
    let at = message.len() - 4;
    message[at..at + 2].copy_from_slice(&record_type.to_be_bytes());
    message
}

/// The same from a client that speaks EDNS.
fn with_edns(mut message: Vec<u8>) -> Vec<u8> {
    message[11] = 1;
    message.extend([0, 0, 41, 0x04, 0xd0, 0, 0, 0, 0, 0, 0]);
    message
}

fn read_framed(socket: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut length = [0; 2];
    socket.read_exact(&mut length)?;
    let mut message = vec![0; u16::from_be_bytes(length).into()];
    socket.read_exact(&mut message)?;
    Ok(message)
}

fn write_framed(socket: &mut TcpStream, message: &[u8]) {
    let length = u16::try_from(message.len()).unwrap().to_be_bytes();
    socket.write_all(&[&length[..], message].concat()).unwrap();
}

fn udp_in(pod: &Netns, to: IpAddr) -> UdpSocket {
    let any: IpAddr = match to {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = pod.enter(|| UdpSocket::bind((any, 0))).unwrap().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.connect((to, PORT)).unwrap();
    socket
}

fn tcp_in(pod: &Netns) -> TcpStream {
    let connect = || TcpStream::connect((LOOPBACK, PORT));
    let socket = pod.enter(connect).unwrap().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn receive(socket: &UdpSocket) -> std::io::Result<Vec<u8>> {
    let mut buffer = [0; 4096];
    let length = socket.recv(&mut buffer)?;
    Ok(buffer[..length].to_vec())
}

fn over_udp(pod: &Netns, to: IpAddr, message: &[u8]) -> Vec<u8> {
    let socket = udp_in(pod, to);
    socket.send(message).unwrap();
    receive(&socket).unwrap()
}

fn over_tcp(pod: &Netns, message: &[u8]) -> Vec<u8> {
    let mut socket = tcp_in(pod);
    write_framed(&mut socket, message);
    read_framed(&mut socket).unwrap()
}

fn addresses(message: &[u8]) -> Vec<String> {
    let packet = Packet::parse(message).unwrap();
    assert_eq!(packet.rcode(), RCODE::NoError);
    let answers = packet.answers.iter();
    answers
        .map(|record| match &record.rdata {
            RData::A(a) => Ipv4Addr::from_bits(a.address).to_string(),
            RData::CNAME(name) => format!("→ {}", **name),
            other => panic!("{other:?}"),
        })
        .collect()
}

fn code(message: &[u8]) -> u8 {
    message[3] & 0x0f
}

/// The reason in a refusal to a client that speaks EDNS.
fn reason(message: &[u8]) -> String {
    let packet = Packet::parse(message).unwrap();
    let option = &packet.opt().unwrap().opt_codes[0];
    assert_eq!(option.code, 15);
    String::from_utf8(option.data[2..].to_vec()).unwrap()
}

const LOGGED: (&str, &str) = ("RUST_LOG", "info,ztunnel=debug,dns=debug");

#[tokio::test(flavor = "multi_thread")]
async fn names_of_the_mesh_are_answered_over_both_transports_and_families() {
    let (node, _agent) = Node::start_with_settings(&[LOGGED]).await;
    let upstream = Upstream::start(&node.server);
    let vip = SERVICE.to_string();
    for name in [ECHO, "echo", "echo.default", "Echo.Default.svc"] {
        let asked = question(name, 1);
        let v6 = Ipv6Addr::LOCALHOST.into();
        assert_eq!(
            addresses(&over_udp(&node.client, LOOPBACK, &asked)),
            [vip.as_str()]
        );
        assert_eq!(
            addresses(&over_udp(&node.client, v6, &asked)),
            [vip.as_str()]
        );
        assert_eq!(addresses(&over_tcp(&node.client, &asked)), [vip.as_str()]);
    }
    let searched = question("echo.default.default.svc.cluster.local", 1);
    assert_eq!(
        addresses(&over_udp(&node.client, LOOPBACK, &searched)),
        ["→ echo.default", &vip]
    );
    assert_eq!(
        addresses(&over_udp(&node.client, LOOPBACK, &question(ECHO, 28))),
        [""; 0],
        "it has no IPv6 address"
    );
    assert_eq!(upstream.asked(), 0);
    let labels = [
        "request_query_type=\"a\"",
        "request_protocol=\"tcp\"",
        "source_canonical_service=\"client\"",
        "source_canonical_revision=\"unknown\"",
    ];
    assert_eq!(node.counted("istio_dns_requests_total", &labels), 4);
    assert_eq!(node.counted("istio_dns_requests_total", &[]), 14);
    assert_eq!(node.counted("istio_dns_upstream_requests_total", &[]), 0);
    node.logged(&[
        "lookup",
        "src.workload=\"client\"",
        "query=\"aaaa\"",
        "domain=\"echo.default.svc.cluster.local.\"",
        "result=\"NOERROR\"",
        "endpoints=0",
        "by=\"mesh\"",
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_else_comes_back_as_the_upstream_gave_it() {
    let (node, _agent) = Node::start(vec![]).await;
    let upstream = Upstream::start(&node.server);
    // Types known and unknown, and one of a name that the mesh has.
    for (name, record_type) in [
        ("example.com", 1),
        ("example.com", 33),
        ("example.com", 65280),
        (ECHO, 16),
    ] {
        let asked = with_edns(question(name, record_type));
        let expected = respond(&asked).unwrap();
        assert_eq!(over_udp(&node.client, LOOPBACK, &asked), expected, "{name}");
        let long = over_tcp(&node.client, &asked);
        assert_eq!(long[..expected.len()], expected, "{name}");
        assert_eq!(long.len(), expected.len() + 20_000);
    }
    assert_eq!(upstream.asked(), 4);
    let udp = ["request_protocol=\"udp\""];
    assert_eq!(node.counted("istio_dns_upstream_requests_total", &udp), 4);
    assert_eq!(node.counted("istio_dns_upstream_requests_total", &[]), 8);
    assert_eq!(
        node.counted("istio_dns_upstream_request_duration_seconds_count", &[]),
        8
    );
    assert_eq!(node.counted("istio_dns_upstream_failures_total", &[]), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_still_holds_is_not_asked_for_again_by_the_same_pod() {
    let (node, _agent) = Node::start_with_settings(&[LOGGED]).await;
    let upstream = Upstream::start(&node.server);
    for pod in [&node.client, &node.client, &node.server, &node.client] {
        let asked = question("holds.example", 1);
        let response = over_udp(pod, LOOPBACK, &asked);
        assert_eq!(response[..2], asked[..2], "the id of this very question");
        assert_eq!(addresses(&response), ["192.0.2.7"]);
        let seconds = response[response.len() - 7];
        assert!((60..=120).contains(&seconds), "{seconds} s");
    }
    assert_eq!(upstream.asked(), 2, "once by each pod");
    assert_eq!(node.counted("istio_dns_requests_total", &[]), 4);
    assert_eq!(node.counted("istio_dns_upstream_requests_total", &[]), 2);
    node.logged(&["lookup", "domain=\"holds.example.\"", "by=\"cache\""])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_upstream_is_a_failure_with_a_reason_and_stops_no_name_of_the_mesh() {
    let (node, _agent) = Node::start(vec![]).await;
    let _upstream = Upstream::start(&node.server);
    let sockets: Vec<UdpSocket> = (0..300)
        .map(|_| {
            let socket = udp_in(&node.client, LOOPBACK);
            socket
                .send(&with_edns(question("silence.example", 1)))
                .unwrap();
            socket
        })
        .collect();
    let refused: Vec<String> = sockets
        .iter()
        .map(|socket| {
            let response = receive(socket).unwrap();
            assert_eq!(code(&response), 2);
            reason(&response)
        })
        .collect();
    let told = |part: &str| {
        refused
            .iter()
            .filter(|reason| reason.contains(part))
            .count()
    };
    assert_eq!(told("256 queries of this pod"), 300 - 256);
    assert_eq!(told("10.77.0.2:53: no answer within 1s"), 256);
    assert_eq!(
        node.counted("culvert_dns_refused_total", &["reason=\"pod_busy\""]),
        44
    );
    assert_eq!(
        node.counted("culvert_dns_refused_total", &["reason=\"upstream\""]),
        256
    );
    assert_eq!(node.counted("istio_dns_upstream_failures_total", &[]), 256);
    assert_eq!(
        addresses(&over_udp(&node.client, LOOPBACK, &question(ECHO, 1))).len(),
        1
    );
    let dump = node.get(15000, "/config_dump");
    assert!(
        dump.contains(
            "silence.example. no upstream server answered: 10.77.0.2:53: no answer within 1s"
        ),
        "{dump}"
    );
    assert!(dump.contains("\"10.77.0.2:53\""), "{dump}");
    let warnings = node
        .log()
        .lines()
        .filter(|line| line.contains("DNS query refused"))
        .count();
    assert!((1..=40).contains(&warnings), "{warnings} warnings");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_the_mesh_does_not_know_is_refused() {
    let (node, agent) = Node::start(vec![]).await;
    let stranger = Netns::create().unwrap();
    stranger.loopback_up().unwrap();
    assert_eq!(agent.add("stranger", &stranger).await, "");
    let response = over_udp(&stranger, LOOPBACK, &with_edns(question(ECHO, 1)));
    assert_eq!(code(&response), 2);
    assert!(reason(&response).contains("workload default/stranger is not known"));
    let unknown = ["reason=\"unknown_source\""];
    assert_eq!(node.counted("culvert_dns_refused_total", &unknown), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_messages_cost_nothing_but_themselves() {
    let (mut node, _agent) = Node::start(vec![]).await;
    let socket = udp_in(&node.client, LOOPBACK);
    let good = question(ECHO, 1);
    // Too short to be answered.
    socket.send(&good[..5]).unwrap();
    socket.send(&[]).unwrap();
    let check = |message: &[u8], expected: u8| {
        socket.send(message).unwrap();
        let response = receive(&socket).unwrap();
        assert_eq!(response[..2], message[..2]);
        assert_eq!(code(&response), expected, "{message:?}");
        assert!(response.len() <= message.len());
    };
    let changed = |at: usize, byte: u8| {
        let mut message = good.clone();
        message[at] = byte;
        message
    };
    check(&good[..20], 1);
    check(&vec![0; 5000], 1);
    check(&changed(2, 0x81), 1);
    check(&changed(2, 0x28), 4);
    check(&changed(5, 9), 1);
    check(&changed(12, 0xff), 1);
    check(&question(ECHO, 252), 4);
    for _ in 0..2000 {
        let mut message = good.clone();
        for _ in 0..4 {
            let at = rand::random_range(0..message.len());
            message[at] = rand::random();
        }
        socket
            .send(&message[..rand::random_range(0..=message.len())])
            .unwrap();
    }
    // A length that is not kept, a length of nothing, and a message that is too long.
    let mut half = tcp_in(&node.client);
    half.write_all(&[0x10, 0, 1, 2, 3]).unwrap();
    let mut empty = tcp_in(&node.client);
    empty.write_all(&[0, 0]).unwrap();
    let mut long = tcp_in(&node.client);
    write_framed(&mut long, &vec![0; 9000]);
    assert_eq!(code(&read_framed(&mut long).unwrap()), 1);
    let mut rest = Vec::new();
    let _ended = long.read_to_end(&mut rest);
    assert!(rest.is_empty());
    assert_eq!(addresses(&over_udp(&node.client, LOOPBACK, &good)).len(), 1);
    assert_eq!(addresses(&over_tcp(&node.client, &good)).len(), 1);
    assert!(node.is_running());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_carries_many_queries_and_is_closed_when_idle() {
    let (node, _agent) = Node::start(vec![]).await;
    let _upstream = Upstream::start(&node.server);
    let mut socket = tcp_in(&node.client);
    let slow = question("slow.example", 1);
    write_framed(&mut socket, &slow);
    let quick: Vec<Vec<u8>> = (0..100).map(|_| question(ECHO, 1)).collect();
    for message in &quick {
        write_framed(&mut socket, message);
    }
    let mut ids: Vec<[u8; 2]> = Vec::new();
    for _ in 0..=quick.len() {
        let response = read_framed(&mut socket).unwrap();
        ids.push([response[0], response[1]]);
    }
    assert_eq!(
        ids.last(),
        Some(&[slow[0], slow[1]]),
        "the slow one held the others up"
    );
    ids.pop();
    let mut asked: Vec<[u8; 2]> = quick.iter().map(|query| [query[0], query[1]]).collect();
    asked.sort();
    ids.sort();
    assert_eq!(ids, asked);
    let idle_since = Instant::now();
    let mut rest = Vec::new();
    socket.read_to_end(&mut rest).unwrap();
    let idle = idle_since.elapsed();
    assert!(
        (Duration::from_secs(3)..Duration::from_secs(7)).contains(&idle),
        "closed after {idle:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_frees_the_port_at_once_and_answers_what_it_has_taken() {
    let (mut node, _agent) = Node::start(vec![]).await;
    let upstream = Upstream::start(&node.server);
    let early = udp_in(&node.client, LOOPBACK);
    early.send(&question("slow.example", 1)).unwrap();
    let mut connection = tcp_in(&node.client);
    write_framed(&mut connection, &question("slow.example", 1));
    node.eventually("forwarded", |_| upstream.asked() == 1)
        .await;
    node.terminate();
    node.eventually("the port is free", |node| {
        let late = udp_in(&node.client, LOOPBACK);
        let sent = late.send(&question(ECHO, 1)).and_then(|_| receive(&late));
        sent.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    })
    .await;
    assert_eq!(code(&receive(&early).unwrap()), 0x0b);
    assert_eq!(code(&read_framed(&mut connection).unwrap()), 0x0b);
    assert!(node.exited().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_shares_the_port_and_takes_over() {
    let (mut first, _agent) = Node::start(vec![]).await;
    let answered = |pod: &Netns, times: u32| {
        for _ in 0..times {
            assert_eq!(
                addresses(&over_udp(pod, LOOPBACK, &question(ECHO, 1))).len(),
                1
            );
        }
    };
    let pod = first.client.clone();
    let _second = first.overlap(MESH).await;
    answered(&pod, 100);
    first.terminate();
    answered(&pod, 300);
    assert!(first.exited().await.success());
    answered(&pod, 100);
}

const MESH: &str = r#"
workloads:
- {uid: c, name: client, namespace: default, serviceAccount: client, trustDomain: cluster.local,
   workloadIps: ["10.77.0.1"], protocol: HBONE, node: n1, network: "", services: {}}
policies: []
services:
- {name: echo, namespace: default, hostname: echo.default.svc.cluster.local, vips: ["/10.99.0.9"], ports: {15001: 8080}}
"#;

#[tokio::test(flavor = "multi_thread")]
async fn dns_that_is_switched_off_is_not_listened_for() {
    let (node, _agent) = Node::start_with_settings(&[("ISTIO_META_DNS_CAPTURE", "false")]).await;
    let socket = udp_in(&node.client, LOOPBACK);
    socket.send(&question(ECHO, 1)).unwrap();
    let error = receive(&socket).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    let connected = node
        .client
        .enter(|| TcpStream::connect((LOOPBACK, PORT)))
        .unwrap();
    assert!(connected.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_dns_port_is_taken_is_not_acknowledged() {
    let (node, agent) = Node::start(vec![]).await;
    let taken = Netns::create().unwrap();
    taken.loopback_up().unwrap();
    let squatter = taken
        .enter(|| UdpSocket::bind((LOOPBACK, PORT)))
        .unwrap()
        .unwrap();
    let error = agent.add("taken", &taken).await;
    assert!(error.contains("cannot listen on port 15053"), "{error}");
    drop(squatter);
    node.eventually("taken over", |_| {
        let socket = udp_in(&taken, LOOPBACK);
        socket.send(&question(ECHO, 1)[..12]).unwrap();
        receive(&socket).is_ok()
    })
    .await;
}
