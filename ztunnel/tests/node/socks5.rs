// SPDX-License-Identifier: Apache-2.0
//! Applications that speak SOCKS5: what they reach, as whom, and what they are told where they reach nothing.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use capture::Netns;

use crate::harness::{
    APPLICATION_PORT, Node, SERVER, SERVICE, UNKNOWN, deny_client, echoes, is_reset,
};

const ON: (&str, &str) = ("UNSTABLE_ENABLE_SOCKS5", "true");
const LISTENER: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 15080);
const PATIENCE: Duration = Duration::from_secs(30);
const ECHO: &str = "echo.default.svc.cluster.local";
/// The service's port, see the module's head of the suite.
const PORT: u16 = 15001;

/// A client as RFC 1928 has it.
struct Socks(TcpStream);

impl Socks {
    fn connect(pod: &Netns) -> std::io::Result<Self> {
        let socket = pod.enter(|| TcpStream::connect(LISTENER)).unwrap()?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Self(socket))
    }

    /// Greets and is greeted.
    fn greeted(pod: &Netns) -> Self {
        let mut client = Self::connect(pod).unwrap();
        client.say(&[5, 2, 2, 0]);
        assert_eq!(client.hear::<2>(), [5, 0]);
        client
    }

    fn say(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    fn hear<const N: usize>(&mut self) -> [u8; N] {
        let mut heard = [0; N];
        self.0.read_exact(&mut heard).unwrap();
        heard
    }

    /// The code of the reply, which names no address.
    fn reply(&mut self) -> u8 {
        let [5, code, 0, 1, rest @ ..] = self.hear::<10>() else {
            panic!("no reply");
        };
        assert_eq!(rest, [0; 6]);
        code
    }

    fn ask(&mut self, target: &[u8], port: u16) -> u8 {
        self.say(&request(1, target, port));
        self.reply()
    }

    /// Nothing follows, and the end is in order.
    fn ends(mut self) {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty(), "{rest:?}");
    }
}

fn request(command: u8, target: &[u8], port: u16) -> Vec<u8> {
    [&[5, command, 0], target, &port.to_be_bytes()].concat()
}

fn v4(address: Ipv4Addr) -> Vec<u8> {
    [&[1][..], &address.octets()].concat()
}

fn host(name: &str) -> Vec<u8> {
    [&[3, u8::try_from(name.len()).unwrap()], name.as_bytes()].concat()
}

/// The code with which a request is answered.
fn asked(node: &Node, target: &[u8], port: u16) -> u8 {
    let mut client = Socks::greeted(&node.client);
    let code = client.ask(target, port);
    if code == 0 {
        echoes(&mut client.0, b"over").unwrap();
    } else {
        client.ends();
    }
    code
}

async fn node(settings: &[(&str, &str)]) -> (Node, crate::harness::Agent) {
    Node::start_set(vec![], &[settings, &[ON]].concat()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn services_and_pods_are_reached_by_name_and_address_through_tunnels_as_the_pod() {
    let (node, _agent) = node(&[]).await;
    for target in [
        v4(SERVICE),
        host(ECHO),
        host("echo"),
        host(&SERVICE.to_string()),
    ] {
        assert_eq!(asked(&node, &target, PORT), 0, "{target:?}");
    }
    assert_eq!(asked(&node, &v4(SERVER), APPLICATION_PORT), 0);
    let line = node
        .logged(&[
            "connection complete",
            "direction=\"outbound\"",
            "src.workload=\"client\"",
            "src.identity=\"spiffe://cluster.local/ns/default/sa/client\"",
            "dst.identity=\"spiffe://cluster.local/ns/default/sa/server\"",
            "dst.service=\"echo.default.svc.cluster.local\"",
            "dst.hbone_addr=10.77.0.2:8080",
            "bytes_sent=4",
        ])
        .await;
    assert!(line.contains("src.addr=10.77.0.1:"), "{line}");
    node.logged(&[
        "connection complete",
        "direction=\"inbound\"",
        "src.identity=\"spiffe://cluster.local/ns/default/sa/client\"",
    ])
    .await;
    let mutual = [
        "connection_security_policy=\"mutual_tls\"",
        "reporter=\"source\"",
    ];
    node.eventually("all five are counted", |node| {
        node.counted("istio_tcp_connections_closed_total", &mutual) == 5
    })
    .await;
    // What is open is shown as any other.
    let mut open = Socks::greeted(&node.client);
    assert_eq!(open.ask(&host(ECHO), PORT), 0);
    echoes(&mut open.0, b"open").unwrap();
    let dump = node.get(15000, "/config_dump");
    assert!(
        dump.contains("\"originalDst\": \"10.99.0.9:15001\""),
        "{dump}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn all_at_once_is_as_good_as_step_by_step() {
    let (node, _agent) = node(&[]).await;
    let mut eager = Socks::connect(&node.client).unwrap();
    // Greeting, request and the application's own bytes in one segment.
    eager.say(&[&[5, 1, 0][..], &request(1, &host(ECHO), PORT), b"eager"].concat());
    assert_eq!(eager.hear::<2>(), [5, 0]);
    assert_eq!(eager.reply(), 0);
    assert_eq!(eager.hear::<5>(), *b"eager");
    // A client that has said all it has to say is answered to the end.
    let mut half = Socks::greeted(&node.client);
    half.say(&[&request(1, &host(ECHO), PORT)[..], b"half"].concat());
    half.0.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(half.reply(), 0);
    let mut rest = Vec::new();
    half.0.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"half");
    let mut slow = Socks::connect(&node.client).unwrap();
    for byte in [5, 1, 0] {
        slow.say(&[byte]);
    }
    assert_eq!(slow.hear::<2>(), [5, 0]);
    for byte in request(1, &host(ECHO), PORT) {
        slow.say(&[byte]);
    }
    assert_eq!(slow.reply(), 0);
    echoes(&mut slow.0, b"slow").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn each_failure_has_its_code_and_its_reason() {
    let (node, _agent) = node(&[]).await;
    let check = async |target: &[u8], port: u16, code: u8, flag: &str, reason: &str| {
        assert_eq!(asked(&node, target, port), code, "{reason}");
        node.logged(&["src.addr=10.77.0.1:", "direction=\"outbound\"", reason])
            .await;
        let flag = format!("response_flags=\"{flag}\"");
        assert!(
            node.counted("istio_tcp_connections_failed_total", &[&flag]) > 0,
            "{flag}"
        );
    };
    // On the client's own loopback, where nobody listens on this port; and where no route leads.
    check(
        &v4(UNKNOWN),
        9,
        5,
        "CONNECT",
        "cannot connect to 10.99.0.8:9",
    )
    .await;
    check(
        &v4(Ipv4Addr::new(192, 0, 2, 1)),
        9,
        3,
        "CONNECT",
        "cannot connect to 192.0.2.1:9",
    )
    .await;
    check(&v4(SERVER), 9, 5, "CONNECT", "with status 503").await;
    check(&v4(SERVICE), 9, 4, "NO_ROUTE", "cannot take the connection").await;
    check(
        &v4(Ipv4Addr::LOCALHOST),
        15080,
        2,
        "NO_ROUTE",
        "destination 127.0.0.1:15080 is this proxy itself",
    )
    .await;
    check(
        &v4(Ipv4Addr::UNSPECIFIED),
        15001,
        2,
        "NO_ROUTE",
        "destination 0.0.0.0:15001 is this proxy itself",
    )
    .await;
    check(
        &host("example.com"),
        80,
        4,
        "DNS",
        "example.com can't be resolved: no upstream server answered",
    )
    .await;
    check(&host("a..b"), 80, 4, "DNS", "\\\"a..b\\\" is no host name").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_denied_is_told_so() {
    let (node, _agent) = Node::start_set(vec![deny_client("no")], &[ON]).await;
    assert_eq!(asked(&node, &v4(SERVER), APPLICATION_PORT), 2);
    node.logged(&["direction=\"outbound\"", "with status 401"])
        .await;
    node.logged(&["direction=\"inbound\"", "default/no"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_request_is_answered_and_named() {
    let (mut node, _agent) = node(&[]).await;
    let mut said = Vec::new();
    let mut check =
        |greeting: &[u8], request: Option<&[u8]>, answer: &[u8], reason: &'static str| {
            let mut client = Socks::connect(&node.client).unwrap();
            client.say(greeting);
            if let Some(request) = request {
                assert_eq!(client.hear::<2>(), [5, 0]);
                client.say(request);
            }
            let mut heard = Vec::new();
            client.0.read_to_end(&mut heard).unwrap();
            assert_eq!(heard, answer, "{reason}");
            said.push(reason);
        };
    let hello = [5, 1, 0];
    let reply = |code| [5, code, 0, 1, 0, 0, 0, 0, 0, 0];
    let target = v4(SERVICE);
    check(
        &[4, 1, 0, 80, 10, 0, 0, 1, 0],
        None,
        &[5, 0xff],
        "begins with byte 0x04",
    );
    check(
        b"GET / HTTP/1.1\r\n\r\n",
        None,
        &[5, 0xff],
        "begins with byte 0x47",
    );
    check(
        &[5, 1, 2],
        None,
        &[5, 0xff],
        "no connection without authentication",
    );
    check(
        &hello,
        Some(&request(2, &target, 80)),
        &reply(7),
        "command 2 is asked for",
    );
    check(
        &hello,
        Some(&request(3, &target, 80)),
        &reply(7),
        "command 3 is asked for",
    );
    check(
        &hello,
        Some(&request(1, &[9], 80)),
        &reply(8),
        "address type 9 is unknown",
    );
    check(
        &hello,
        Some(&request(1, &[3, 0], 80)),
        &reply(1),
        "host name is empty",
    );
    check(
        &hello,
        Some(&request(1, &[3, 2, 0xff, 0xff], 80)),
        &reply(1),
        "not UTF-8",
    );
    check(
        &hello,
        Some(&request(1, &target, 0)),
        &reply(1),
        "port 0 is asked for",
    );
    let count = said.len() as u64;
    for reason in said {
        node.logged(&["connection failed", "SOCKS5: ", reason])
            .await;
    }
    let flag = ["response_flags=\"BAD_REQUEST\"", "reporter=\"source\""];
    assert_eq!(
        node.counted("istio_tcp_connections_failed_total", &flag),
        count
    );
    assert!(
        node.get(15000, "/config_dump")
            .contains("address type 9 is unknown")
    );
    // One that hangs up in the middle, and one that only looks whether somebody listens.
    let mut half = Socks::connect(&node.client).unwrap();
    half.say(&[5, 9]);
    drop(half);
    node.logged(&["connection failed", "ended in the middle of its request"])
        .await;
    drop(Socks::connect(&node.client).unwrap());
    node.logged(&["SOCKS5 client ended before it said anything"])
        .await;
    for _ in 0..500 {
        let mut client = Socks::connect(&node.client).unwrap();
        let mut bytes = [&hello[..], &request(1, &host(ECHO), PORT)].concat();
        for _ in 0..3 {
            let at = rand::random_range(0..bytes.len());
            bytes[at] = rand::random();
        }
        let end = rand::random_range(0..=bytes.len());
        // It may be turned away in the midst of it.
        let _ = client.0.write_all(&bytes[..end]);
    }
    assert_eq!(asked(&node, &host(ECHO), PORT), 0);
    assert!(node.is_running());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_says_nothing_is_not_waited_for_and_takes_the_place_of_a_connection() {
    let (node, _agent) = node(&[("MAX_CONNECTIONS_PER_POD", "2")]).await;
    let mut silent = Socks::connect(&node.client).unwrap();
    let mut halting = Socks::greeted(&node.client);
    halting.say(&[5, 1]);
    node.eventually("there is no more room", |node| {
        Socks::connect(&node.client)
            .map(|mut client| is_reset(&mut client.0))
            .unwrap_or_else(|error| error.kind() == ErrorKind::ConnectionReset)
    })
    .await;
    node.logged(&["connection failed", "MAX_CONNECTIONS_PER_POD"])
        .await;
    assert_eq!(silent.hear::<2>(), [5, 0xff]);
    assert_eq!(halting.reply(), 1);
    node.logged(&[
        "connection failed",
        "the request was not complete within 10s",
    ])
    .await;
    silent.ends();
    halting.ends();
    node.eventually("there is room again", |node| {
        let Ok(mut client) = Socks::connect(&node.client) else {
            return false;
        };
        client.0.write_all(&[5, 1, 0]).is_ok() && client.0.read_exact(&mut [0; 2]).is_ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_pod_itself_is_served_and_only_under_its_own_name() {
    let (node, agent) = node(&[]).await;
    // Not from outside.
    let outside = node.server.enter(|| {
        TcpStream::connect_timeout(
            &(IpAddr::from(crate::harness::CLIENT), 15080).into(),
            PATIENCE,
        )
    });
    assert_eq!(
        outside.unwrap().unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
    // A namespace that has none of the addresses of the workload as which it was handed over.
    let stranger = Netns::create().unwrap();
    stranger.loopback_up().unwrap();
    assert_eq!(agent.delete("client").await, "");
    assert_eq!(agent.add("client", &stranger).await, "");
    let mut client = Socks::greeted(&stranger);
    assert_eq!(client.ask(&host(ECHO), PORT), 2);
    client.ends();
    node.logged(&[
        "connection failed",
        "handed over as pod default/client has none of the addresses",
    ])
    .await;
    // And one that the mesh does not know.
    let unknown = Netns::create().unwrap();
    unknown.loopback_up().unwrap();
    assert_eq!(agent.add("unknown", &unknown).await, "");
    let mut client = Socks::greeted(&unknown);
    assert_eq!(client.ask(&v4(SERVER), 80), 1);
    node.logged(&["connection failed", "workload default/unknown is not known"])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_take_the_dns_proxy() {
    let (node, _agent) = node(&[("ISTIO_META_DNS_CAPTURE", "false")]).await;
    assert_eq!(asked(&node, &host(ECHO), PORT), 4);
    node.logged(&["connection failed", "DNS is switched off"])
        .await;
    assert_eq!(asked(&node, &v4(SERVICE), PORT), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_off_unless_asked_for() {
    let (node, _agent) = Node::start(vec![]).await;
    let error = Socks::connect(&node.client).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    let squatter = node.client.enter(|| std::net::TcpListener::bind(LISTENER));
    assert!(squatter.unwrap().is_ok(), "the port is the application's");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_takes_over_takes_the_listener_and_a_drain_gives_it_up() {
    let (mut node, _agent) = node(&[]).await;
    let mut before = Socks::greeted(&node.client);
    assert_eq!(before.ask(&host(ECHO), PORT), 0);
    let mut successor = node.start_successor("log2", &[ON]);
    let agent = node.accept_agent().await;
    node.hand_over(&agent).await;
    successor.logged("this process serves in its place").await;
    assert!(
        successor.log().contains("handed_over=4"),
        "{}",
        successor.log()
    );
    assert_eq!(asked(&node, &host(ECHO), PORT), 0);
    echoes(&mut before.0, b"meanwhile").unwrap();
    drop(before);
    assert!(node.exited().await.success());
    assert_eq!(asked(&node, &host(ECHO), PORT), 0);
    successor.kill();
    let error = Socks::connect(&node.client).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_is_taken_keeps_the_pod_from_being_acknowledged() {
    let (_node, agent) = node(&[]).await;
    let taken = Netns::create().unwrap();
    taken.loopback_up().unwrap();
    let _squatter = taken
        .enter(|| std::net::TcpListener::bind(SocketAddr::from(LISTENER)))
        .unwrap()
        .unwrap();
    let error = agent.add("taken", &taken).await;
    assert!(error.contains("cannot listen on port 15080"), "{error}");
}
