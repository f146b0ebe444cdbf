// SPDX-License-Identifier: Apache-2.0
//! Real sockets on the loopback, and servers that do what real ones do.

use std::sync::atomic::AtomicU32;

use tokio::net::TcpListener;

use super::super::message::RecordType;
use super::*;

const PATIENCE: Duration = Duration::from_millis(200);

/// What a server does with a query.
#[derive(Clone)]
enum Does {
    /// Sends these bytes behind the header and the question, with this code.
    Answer(u8, Vec<u8>),
    Nothing,
    /// Answers with another id, then another question, then right.
    MisleadFirst,
}

struct Server {
    address: SocketAddr,
    asked: Arc<AtomicU32>,
}

impl Server {
    fn asked(&self) -> u32 {
        self.asked.load(Ordering::Relaxed)
    }
}

async fn server(does: Does) -> Server {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    let asked = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&asked);
    tokio::spawn(async move {
        let mut buffer = vec![0; 4096];
        loop {
            let (length, client) = socket.recv_from(&mut buffer).await.unwrap();
            count.fetch_add(1, Ordering::Relaxed);
            for response in responses(&does, &buffer[..length]) {
                socket.send_to(&response, client).await.unwrap();
            }
        }
    });
    Server { address, asked }
}

fn responses(does: &Does, query: &[u8]) -> Vec<Vec<u8>> {
    let response = |rcode: u8, tail: &[u8]| {
        let mut response = query.to_vec();
        response[2] |= 0x80;
        response[3] |= rcode;
        response.extend(tail);
        response
    };
    match does {
        Does::Answer(rcode, tail) => vec![response(*rcode, tail)],
        Does::Nothing => Vec::new(),
        Does::MisleadFirst => {
            let mut other_id = response(0, b"wrong");
            other_id[0] ^= 1;
            let mut other_name = response(0, b"wrong");
            other_name[13] ^= 1;
            vec![other_id, other_name, response(0, b"right")]
        }
    }
}

fn upstreams(servers: &[SocketAddr], attempts: u32) -> Upstreams {
    let conf = ResolvConf {
        patience: PATIENCE,
        attempts,
        servers: servers.to_vec(),
        ..ResolvConf::parse("")
    };
    Upstreams {
        path: "/x/resolv.conf".into(),
        conf: RwLock::new(Arc::new(conf)),
        text: Mutex::new(Ok(String::new())),
        rotation: AtomicUsize::new(0),
        demoted: Mutex::new(None),
    }
}

fn query() -> Query {
    Query::for_host("api.example.com", RecordType(33)).unwrap()
}

async fn ask(upstreams: &Upstreams, transport: Transport) -> Result<Vec<u8>, UpstreamError> {
    let netns = Netns::current().expect("needs root");
    let way = Way {
        netns: &netns,
        mark: None,
    };
    upstreams.ask(way, &query(), transport).await
}

/// What stands behind the question of a response.
fn tail(response: Vec<u8>) -> Vec<u8> {
    response[query().bytes().len()..].to_vec()
}

/// An address where nobody listens, so that the kernel says so.
async fn nobody() -> SocketAddr {
    UdpSocket::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap()
}

#[tokio::test]
async fn a_response_is_passed_on_as_it_is_but_for_its_id() {
    let odd: Vec<u8> = (0..=255).collect();
    let server = server(Does::Answer(3, odd.clone())).await;
    let response = ask(&upstreams(&[server.address], 1), Transport::Udp)
        .await
        .unwrap();
    let mut expected = responses(&Does::Answer(3, odd), query().bytes()).remove(0);
    message::set_id(&mut expected, query().id());
    assert_eq!(response, expected);
}

#[tokio::test]
async fn what_answers_another_question_is_not_taken() {
    let server = server(Does::MisleadFirst).await;
    let response = ask(&upstreams(&[server.address], 1), Transport::Udp).await;
    assert_eq!(tail(response.unwrap()), b"right");
}

#[tokio::test]
async fn a_silent_server_costs_its_time_once() {
    let silent = server(Does::Nothing).await;
    let sound = server(Does::Answer(0, b"here".to_vec())).await;
    let upstreams = upstreams(&[silent.address, sound.address], 2);
    let started = Instant::now();
    assert_eq!(
        tail(ask(&upstreams, Transport::Udp).await.unwrap()),
        b"here"
    );
    assert!(started.elapsed() >= PATIENCE);
    let again = Instant::now();
    assert_eq!(
        tail(ask(&upstreams, Transport::Udp).await.unwrap()),
        b"here"
    );
    assert!(
        again.elapsed() < PATIENCE,
        "the silent one was asked first again"
    );
    assert_eq!((silent.asked(), sound.asked()), (1, 2));
}

#[tokio::test]
async fn a_server_that_is_not_there_costs_no_time() {
    let sound = server(Does::Answer(0, b"here".to_vec())).await;
    let upstreams = upstreams(&[nobody().await, sound.address], 1);
    let started = Instant::now();
    assert_eq!(
        tail(ask(&upstreams, Transport::Udp).await.unwrap()),
        b"here"
    );
    assert!(started.elapsed() < PATIENCE);
}

#[tokio::test]
async fn a_refusal_is_the_answer_only_where_nobody_knows_better() {
    for refusal in [2, 4, 5] {
        let refusing = server(Does::Answer(refusal, b"no".to_vec())).await;
        let knowing = server(Does::Answer(3, b"none".to_vec())).await;
        let both = upstreams(&[refusing.address, knowing.address], 2);
        assert_eq!(tail(ask(&both, Transport::Udp).await.unwrap()), b"none");
        let alone = upstreams(&[refusing.address], 2);
        assert_eq!(tail(ask(&alone, Transport::Udp).await.unwrap()), b"no");
        let with_silent = upstreams(&[refusing.address, nobody().await], 2);
        assert_eq!(
            tail(ask(&with_silent, Transport::Udp).await.unwrap()),
            b"no"
        );
        assert_eq!(refusing.asked(), 3, "nobody refuses twice");
    }
}

#[tokio::test]
async fn rotation_asks_each_server_in_turn() {
    let (a, b) = (
        server(Does::Answer(0, vec![])).await,
        server(Does::Answer(0, vec![])).await,
    );
    let upstreams = upstreams(&[a.address, b.address], 1);
    let rotating = ResolvConf {
        turn: Turn::Rotating,
        ..ResolvConf::clone(&upstreams.conf.read())
    };
    *upstreams.conf.write() = Arc::new(rotating);
    for _ in 0..6 {
        ask(&upstreams, Transport::Udp).await.unwrap();
    }
    assert_eq!((a.asked(), b.asked()), (3, 3));
}

#[tokio::test]
async fn a_failure_names_every_server_and_what_it_did() {
    let silent = server(Does::Nothing).await;
    let nobody = nobody().await;
    let error = ask(&upstreams(&[silent.address, nobody], 1), Transport::Udp)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(&format!("{}: no answer within 200ms", silent.address)),
        "{error}"
    );
    assert!(
        error.contains(&format!("{nobody}: Connection refused")),
        "{error}"
    );
    let error = ask(&upstreams(&[], 1), Transport::Udp).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "/x/resolv.conf names no usable upstream server"
    );
}

#[tokio::test]
async fn a_query_that_came_over_tcp_is_forwarded_over_tcp() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let big = vec![7; 60_000];
    let tail_of_response = big.clone();
    tokio::spawn(async move {
        // The first connection ends early, the second answers something else, the third is right.
        drop(listener.accept().await.unwrap());
        for tail in [None, Some(tail_of_response)] {
            let (mut socket, _) = listener.accept().await.unwrap();
            let length = socket.read_u16().await.unwrap();
            let mut query = vec![0; length.into()];
            socket.read_exact(&mut query).await.unwrap();
            let mut response =
                responses(&Does::Answer(0, tail.clone().unwrap_or_default()), &query);
            if tail.is_none() {
                response[0][13] ^= 1;
            }
            socket.write_all(&framed(&response[0])).await.unwrap();
        }
    });
    let response = ask(&upstreams(&[address], 3), Transport::Tcp)
        .await
        .unwrap();
    assert_eq!(tail(response), big);
}

#[tokio::test]
async fn the_file_is_read_again_when_it_changes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("resolv.conf");
    std::fs::write(&path, "nameserver 10.0.0.1\n").unwrap();
    let upstreams = Upstreams::read(path.clone());
    let shown = || {
        upstreams
            .servers()
            .iter()
            .map(SocketAddr::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(shown(), ["10.0.0.1:53"]);
    std::fs::write(&path, "nameserver 10.0.0.2\nnameserver 127.0.0.53\n").unwrap();
    upstreams.look(First::No);
    assert_eq!(shown(), ["10.0.0.2:53"]);
    // Gone for a moment: what was known is better than nothing.
    std::fs::remove_file(&path).unwrap();
    upstreams.look(First::No);
    assert_eq!(shown(), ["10.0.0.2:53"]);
    std::fs::write(&path, "").unwrap();
    upstreams.look(First::No);
    assert_eq!(shown(), [""; 0]);
}
