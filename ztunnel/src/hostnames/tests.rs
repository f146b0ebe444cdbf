// SPDX-License-Identifier: Apache-2.0
//! A network namespace of its own, with a server on the port that resolv.conf means.

use std::net::UdpSocket as StdUdpSocket;
use std::sync::atomic::{AtomicUsize, Ordering};

use capture::Netns;
use tokio::net::UdpSocket;

use super::*;

/// Records of one name, and how long they hold.
struct Zone {
    name: &'static str,
    rcode: u8,
    addresses: &'static [&'static str],
    ttl: u32,
}

const ZONES: &[Zone] = &[
    Zone {
        name: "both.example",
        rcode: 0,
        addresses: &["192.0.2.1", "192.0.2.2", "2001:db8::1"],
        ttl: 60,
    },
    Zone {
        name: "six.example",
        rcode: 0,
        addresses: &["2001:db8::6"],
        ttl: 60,
    },
    Zone {
        name: "short.example",
        rcode: 0,
        addresses: &["192.0.2.3"],
        ttl: 0,
    },
    Zone {
        name: "own.example",
        rcode: 0,
        addresses: &["127.0.0.1", "0.0.0.0"],
        ttl: 60,
    },
    Zone {
        name: "broken.example",
        rcode: 2,
        addresses: &[],
        ttl: 60,
    },
];

struct World {
    hostnames: Arc<Hostnames>,
    netns: Arc<Netns>,
    asked: Arc<AtomicUsize>,
    metrics: Metrics,
    _files: tempfile::TempDir,
}

impl World {
    fn new(ipv6: Ipv6) -> Self {
        let netns = Netns::create().expect("needs root");
        netns.loopback_up().unwrap();
        give_server_address(&netns);
        let socket = netns
            .enter(|| StdUdpSocket::bind((SERVER, 53)))
            .unwrap()
            .unwrap();
        socket.set_nonblocking(true).unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        tokio::spawn(serve(
            UdpSocket::from_std(socket).unwrap(),
            Arc::clone(&asked),
        ));
        let files = tempfile::tempdir().unwrap();
        let conf = files.path().join("resolv.conf");
        std::fs::write(
            &conf,
            format!("nameserver {SERVER}\noptions timeout:1 attempts:1\n"),
        )
        .unwrap();
        let metrics = Metrics::default();
        Self {
            hostnames: Arc::new(Hostnames::new(Upstreams::read(conf), ipv6, metrics.clone())),
            netns: Arc::new(netns),
            asked,
            metrics,
            _files: files,
        }
    }

    async fn resolve(&self, host: &str, original: &str) -> Result<IpAddr, HostError> {
        let way = Way {
            netns: &self.netns,
            mark: None,
        };
        let source = source();
        self.hostnames
            .resolve(way, &source, &host.into(), original.parse().unwrap())
            .await
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

/// Not on a loopback network, which resolv.conf must not name.
const SERVER: std::net::Ipv4Addr = std::net::Ipv4Addr::new(10, 77, 53, 53);

fn give_server_address(netns: &Netns) {
    let add = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (connection, links, _) = rtnetlink::new_connection().unwrap();
            tokio::spawn(connection);
            let loopback = nix::net::if_::if_nametoindex(c"lo").unwrap();
            links
                .address()
                .add(loopback, SERVER.into(), 32)
                .execute()
                .await
                .unwrap();
        });
    };
    netns
        .spawn_thread_in("netlink", add)
        .unwrap()
        .join()
        .unwrap()
        .unwrap();
}

fn source() -> Workload {
    let identity = "spiffe://cluster.local/ns/shop/sa/a".parse().unwrap();
    Workload::new("uid", "shop", identity)
}

async fn serve(socket: UdpSocket, asked: Arc<AtomicUsize>) {
    let mut buffer = vec![0; 512];
    loop {
        let (length, client) = socket.recv_from(&mut buffer).await.unwrap();
        asked.fetch_add(1, Ordering::Relaxed);
        // Long enough for others to ask meanwhile.
        tokio::time::sleep(Duration::from_millis(20)).await;
        socket
            .send_to(&respond(&buffer[..length]), client)
            .await
            .unwrap();
    }
}

fn respond(query: &[u8]) -> Vec<u8> {
    let asked = Query::parse(query).unwrap();
    let zone = ZONES
        .iter()
        .find(|zone| asked.host().is_some_and(|host| host.starts_with(zone.name)));
    let mut response = query.to_vec();
    response[2] |= 0x80;
    response[3] |= zone.map_or(3, |zone| zone.rcode);
    let (mut count, ttl) = (0_u8, zone.map_or(0, |zone| zone.ttl));
    for ip in zone.map_or(&[][..], |zone| zone.addresses) {
        let ip: IpAddr = ip.parse().unwrap();
        if Some(Family::of(ip)) != asked.family() {
            continue;
        }
        count += 1;
        let data = match ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        response.extend([0xc0, 0x0c]);
        response.extend(Family::of(ip).record_type().0.to_be_bytes());
        response.extend([0, 1]);
        response.extend(ttl.to_be_bytes());
        response.extend([0, u8::try_from(data.len()).unwrap()]);
        response.extend(data);
    }
    response[7] = count;
    response
}

#[tokio::test]
async fn an_address_of_the_clients_family_is_preferred_and_any_is_better_than_none() {
    let world = World::new(Ipv6::Enabled);
    let four = world.resolve("both.example", "10.0.0.1").await.unwrap();
    assert!(
        ["192.0.2.1", "192.0.2.2"].contains(&&*four.to_string()),
        "{four}"
    );
    let six = world.resolve("both.example", "fd00::1").await.unwrap();
    assert_eq!(six.to_string(), "2001:db8::1");
    let other = world.resolve("six.example", "10.0.0.1").await.unwrap();
    assert_eq!(other.to_string(), "2001:db8::6");
    let text = world.metrics.render();
    let counted = text
        .lines()
        .find(|line| line.contains("istio_on_demand_dns_total{") && line.contains("both.example"));
    assert!(counted.is_some_and(|line| line.ends_with(" 2")), "{text}");
}

#[tokio::test]
async fn without_ipv6_it_is_not_asked_for() {
    let world = World::new(Ipv6::Disabled);
    let none = world.resolve("six.example", "fd00::1").await;
    assert_eq!(none, Err(HostError::NoAddress));
    assert_eq!(world.asked(), 1);
}

#[tokio::test]
async fn many_who_need_a_host_ask_once_and_its_answer_is_kept_as_long_as_it_says() {
    let world = Arc::new(World::new(Ipv6::Enabled));
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let world = Arc::clone(&world);
        all.spawn(async move { world.resolve("both.example", "10.0.0.1").await });
    }
    for one in all.join_all().await {
        one.unwrap();
    }
    assert_eq!(world.asked(), 2, "once for each family");
    world.resolve("short.example", "10.0.0.1").await.unwrap();
    world.resolve("short.example", "10.0.0.1").await.unwrap();
    assert_eq!(world.asked(), 4, "it is kept for a second at least");
    tokio::time::sleep(KEPT.0).await;
    world.resolve("short.example", "10.0.0.1").await.unwrap();
    world.resolve("both.example", "10.0.0.1").await.unwrap();
    assert_eq!(world.asked(), 6);
}

#[tokio::test]
async fn a_host_that_leads_nowhere_says_why() {
    let world = World::new(Ipv6::Enabled);
    let (own, gone, broken) = tokio::join!(
        world.resolve("own.example", "10.0.0.1"),
        world.resolve("gone.example", "10.0.0.1"),
        world.resolve("broken.example", "10.0.0.1"),
    );
    assert_eq!(
        own,
        Err(HostError::NoAddress),
        "nobody else's endpoint is our own loopback"
    );
    assert_eq!(gone, Err(HostError::NoAddress));
    let broken = broken.unwrap_err().to_string();
    assert!(broken.starts_with("it can't be resolved: "), "{broken}");
    let nonsense = world.resolve("*.example", "10.0.0.1").await;
    assert_eq!(nonsense, Err(HostError::NoName));
}

#[tokio::test]
async fn whoever_waits_for_somebody_who_gives_up_asks_in_their_place() {
    let world = World::new(Ipv6::Enabled);
    {
        let first = world.resolve("both.example", "10.0.0.1");
        let soon = Duration::from_millis(5);
        assert!(tokio::time::timeout(soon, first).await.is_err(), "gives up");
    }
    world.resolve("both.example", "10.0.0.1").await.unwrap();
}

#[test]
fn what_is_over_makes_room_and_then_what_ends_soonest() {
    let mut hosts = HashMap::new();
    let start = Instant::now();
    for number in 0..MAX_HOSTS {
        let seconds = u64::try_from(number).unwrap() + 60;
        let until = start + Duration::from_secs(seconds);
        let addresses = Arc::from([]);
        let known = Host::Known(Answer { addresses, until });
        hosts.insert(Arc::from(format!("{number:04}")), known);
    }
    make_room(&mut hosts);
    assert_eq!(hosts.len(), MAX_HOSTS - MAX_HOSTS / 8);
    assert!(!hosts.contains_key("0000") && hosts.contains_key("4095"));
    let over = Host::Known(Answer {
        addresses: Arc::from([]),
        until: start,
    });
    hosts.insert("over".into(), over);
    make_room(&mut hosts);
    assert!(hosts.contains_key("over"), "there is room");
}
