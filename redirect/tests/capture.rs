// SPDX-License-Identifier: Apache-2.0
//! Plans against the kernel, with real sockets in fresh network namespaces.
#![allow(
    clippy::unwrap_used,
    reason = "a test that can't go on should stop there"
)]

mod support;

use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

use capture::contract::{NAT_TABLE, PROBE_SOURCE_V4, PROBE_SOURCE_V6};
use capture::socket::original_dst;
use redirect::nftables::{self, Applied, Members};
use redirect::plan::{
    Dns, Families, HostOptions, Inbound, POD_TABLES, PodOptions, PodPlan, host_plan, pod_plan,
    probe_set,
};
use redirect::program::{self, Programmed};
use redirect::rules::{Action, Base, Chain, ChainKind, Family, Hook, Rule, Table};
use support::{
    FAMILIES, Pair, accept, application, assert_nobody_came, assert_talk, connect,
    connect_from_port, connect_marked, loopback, node_ip, pod_ip, proxy,
};

fn options() -> PodOptions {
    PodOptions {
        families: Families::Dual,
        inbound: Inbound::Captured,
        dns: Dns::Untouched,
        outbound_interfaces: Vec::new(),
    }
}

fn plan() -> PodPlan {
    pod_plan(&options())
}

fn captured_pod() -> Pair {
    let pair = Pair::new();
    assert_eq!(
        program::apply(&pair.pod, &plan()).unwrap(),
        Programmed::Installed
    );
    pair
}

fn at(ip: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(ip, port)
}

fn probe_source(family: Family) -> IpAddr {
    match family {
        Family::V4 => PROBE_SOURCE_V4.into(),
        Family::V6 => PROBE_SOURCE_V6.into(),
    }
}

#[test]
fn outbound_connections_reach_ztunnel_with_their_destination() {
    let pair = captured_pod();
    let outbound = proxy(&pair.pod, 15001);
    for family in FAMILIES {
        let target = at(node_ip(family), 8080);
        let mut client = connect(&pair.pod, target).unwrap();
        let (mut served, peer) = accept(&outbound);
        assert_eq!(original_dst(&served).unwrap(), target);
        assert_eq!(peer.ip(), pod_ip(family));
        assert_talk(&mut client, &mut served);
    }
}

#[test]
fn marked_sockets_are_not_captured() {
    let pair = captured_pod();
    let outbound = proxy(&pair.pod, 15001);
    let server = application(&pair.node, 8080);
    for family in FAMILIES {
        let mut client = connect_marked(&pair.pod, at(node_ip(family), 8080), None);
        let (mut served, peer) = accept(&server);
        assert_eq!(peer.ip(), pod_ip(family));
        assert_talk(&mut client, &mut served);
    }
    assert_nobody_came(&outbound);
}

#[test]
fn inbound_connections_reach_ztunnel_with_their_destination() {
    let pair = captured_pod();
    let plaintext = proxy(&pair.pod, 15006);
    let server = application(&pair.pod, 8080);
    for family in FAMILIES {
        let target = at(pod_ip(family), 8080);
        let mut client = connect(&pair.node, target).unwrap();
        let (mut served, peer) = accept(&plaintext);
        assert_eq!(original_dst(&served).unwrap(), target);
        assert_eq!(peer.ip(), node_ip(family));
        assert_talk(&mut client, &mut served);
    }
    assert_nobody_came(&server);
}

#[test]
fn hbone_reaches_its_listener_without_a_redirect() {
    let pair = captured_pod();
    let plaintext = proxy(&pair.pod, 15006);
    let hbone = proxy(&pair.pod, 15008);
    for family in FAMILIES {
        let mut client = connect(&pair.node, at(pod_ip(family), 15008)).unwrap();
        let (mut served, _) = accept(&hbone);
        assert_talk(&mut client, &mut served);
    }
    assert_nobody_came(&plaintext);
}

#[test]
fn ztunnel_reaches_the_application_from_the_peers_address() {
    let pair = captured_pod();
    let outbound = proxy(&pair.pod, 15001);
    let server = application(&pair.pod, 8080);
    for family in FAMILIES {
        // The reply to a foreign address comes back only through the mark, the rule and table 100.
        let mut client = connect_marked(&pair.pod, at(pod_ip(family), 8080), Some(node_ip(family)));
        let (mut served, peer) = accept(&server);
        assert_eq!(peer.ip(), node_ip(family));
        assert_talk(&mut client, &mut served);
    }
    assert_nobody_came(&outbound);
}

#[test]
fn what_a_nested_machine_sends_is_captured_whatever_its_port() {
    let pair = Pair::new();
    let nested = PodOptions {
        outbound_interfaces: vec!["eth0".into()],
        ..options()
    };
    program::apply(&pair.pod, &pod_plan(&nested)).unwrap();
    let outbound = proxy(&pair.pod, 15001);
    for family in FAMILIES {
        for port in [8080, 15008] {
            let target = at(pod_ip(family), port);
            let mut client = connect(&pair.node, target).unwrap();
            let (mut served, _) = accept(&outbound);
            assert_eq!(original_dst(&served).unwrap(), target);
            assert_talk(&mut client, &mut served);
        }
    }
}

/// Peers draw their ports for each destination on its own, so that one serves towards many.
#[test]
fn one_port_of_a_peer_reaches_several_ports_of_a_pod() {
    let pair = captured_pod();
    let plaintext = proxy(&pair.pod, 15006);
    for (family, port) in FAMILIES.into_iter().zip([40_001, 40_002]) {
        let mut open = Vec::new();
        for target in [8080, 8081, 9090] {
            let target = at(pod_ip(family), target);
            let client = connect_from_port(&pair.node, port, target)
                .unwrap_or_else(|error| panic!("{target}: {error}"));
            let (served, peer) = accept(&plaintext);
            assert_eq!(original_dst(&served).unwrap(), target);
            assert_eq!(peer.ip(), node_ip(family));
            open.push((client, served));
        }
        for (client, served) in &mut open {
            assert_talk(client, served);
        }
    }
}

/// The other way about: a pod's one port towards several servers.
#[test]
fn one_port_of_a_pod_reaches_several_servers() {
    let pair = captured_pod();
    let outbound = proxy(&pair.pod, 15001);
    for (family, port) in FAMILIES.into_iter().zip([40_003, 40_004]) {
        let mut open = Vec::new();
        for target in [8080, 8081, 9090] {
            let target = at(node_ip(family), target);
            let client = connect_from_port(&pair.pod, port, target)
                .unwrap_or_else(|error| panic!("{target}: {error}"));
            let (served, _) = accept(&outbound);
            assert_eq!(original_dst(&served).unwrap(), target);
            open.push((client, served));
        }
        for (client, served) in &mut open {
            assert_talk(client, served);
        }
    }
}

#[test]
fn a_peer_may_use_a_port_that_ztunnel_has_borrowed_its_address_with() {
    let pair = captured_pod();
    let plaintext = proxy(&pair.pod, 15006);
    let server = application(&pair.pod, 8080);
    for family in FAMILIES {
        let target = at(pod_ip(family), 8080);
        let mut borrowed = connect_marked(&pair.pod, target, Some(node_ip(family)));
        let (mut told, peer) = accept(&server);
        let mut client = connect_from_port(&pair.node, peer.port(), target).unwrap();
        let (mut served, client_seen) = accept(&plaintext);
        assert_eq!(client_seen, peer, "the very same address and port");
        assert_eq!(original_dst(&served).unwrap(), target);
        assert_talk(&mut client, &mut served);
        assert_talk(&mut borrowed, &mut told);
        assert_talk(&mut client, &mut served);
    }
    assert_nobody_came(&server);
}

#[test]
fn probes_reach_the_application() {
    let pair = captured_pod();
    let plaintext = proxy(&pair.pod, 15006);
    let server = application(&pair.pod, 8080);
    for family in FAMILIES {
        let source = probe_source(family);
        pair.add_node_address(source);
        let mut client = connect_marked(&pair.node, at(pod_ip(family), 8080), Some(source));
        let (mut served, peer) = accept(&server);
        assert_eq!(peer.ip(), source);
        assert_talk(&mut client, &mut served);
    }
    assert_nobody_came(&plaintext);
}

#[test]
fn loopback_and_own_address_are_not_captured() {
    let pair = captured_pod();
    let (outbound, plaintext) = (proxy(&pair.pod, 15001), proxy(&pair.pod, 15006));
    let server = application(&pair.pod, 8080);
    for own in FAMILIES
        .into_iter()
        .flat_map(|family| [loopback(family), pod_ip(family)])
    {
        let mut client = connect(&pair.pod, at(own, 8080)).unwrap();
        let (mut served, _) = accept(&server);
        assert_talk(&mut client, &mut served);
    }
    assert_nobody_came(&outbound);
    assert_nobody_came(&plaintext);
}

#[test]
fn an_ingress_gateway_takes_plain_traffic_itself() {
    let pair = Pair::new();
    program::apply(
        &pair.pod,
        &pod_plan(&PodOptions {
            inbound: Inbound::Bypassed,
            ..options()
        }),
    )
    .unwrap();
    let outbound = proxy(&pair.pod, 15001);
    let server = application(&pair.pod, 8080);
    for family in FAMILIES {
        let mut client = connect(&pair.node, at(pod_ip(family), 8080)).unwrap();
        let (mut served, _) = accept(&server);
        assert_talk(&mut client, &mut served);
        connect(&pair.pod, at(node_ip(family), 8080)).unwrap();
        accept(&outbound);
    }
}

#[test]
fn dns_is_captured_on_demand() {
    let pair = Pair::new();
    program::apply(
        &pair.pod,
        &pod_plan(&PodOptions {
            dns: Dns::Captured,
            ..options()
        }),
    )
    .unwrap();
    let resolver = pair
        .pod
        .enter(|| UdpSocket::bind("[::]:15053"))
        .unwrap()
        .unwrap();
    resolver
        .set_read_timeout(Some(Duration::from_secs(2)))
        .unwrap();
    let over_tcp = proxy(&pair.pod, 15053);
    for family in FAMILIES {
        let client = pair
            .pod
            .enter(|| UdpSocket::bind(at(pod_ip(family), 0)))
            .unwrap()
            .unwrap();
        client.send_to(b"query", at(node_ip(family), 53)).unwrap();
        let mut bytes = [0; 16];
        let (length, _) = resolver.recv_from(&mut bytes).unwrap();
        assert_eq!(&bytes[..length], b"query");
        connect(&pair.pod, at(node_ip(family), 53)).unwrap();
        accept(&over_tcp);
    }
}

#[test]
fn a_resolver_is_seen_by_its_sockets() {
    let listens = |pair: &Pair| program::resolver_listens(&pair.pod).unwrap();
    let inside = |pair: &Pair, address: &str| {
        let address = address.to_owned();
        pair.pod
            .enter(|| UdpSocket::bind(address))
            .unwrap()
            .unwrap()
    };
    let pair = Pair::new();
    assert!(!listens(&pair));
    let udp = inside(&pair, "127.0.0.1:15053");
    assert!(!listens(&pair), "over UDP alone");
    let tcp = pair
        .pod
        .enter(|| TcpListener::bind("127.0.0.1:15053"))
        .unwrap()
        .unwrap();
    assert!(listens(&pair));
    // A process that is about to go takes nothing new.
    udp.connect(udp.local_addr().unwrap()).unwrap();
    assert!(!listens(&pair));
    let _next = inside(&pair, "[::1]:15053");
    assert!(listens(&pair));
    drop(tcp);
    assert!(!listens(&pair));
}

#[test]
fn applying_twice_equals_applying_once() {
    let pair = captured_pod();
    for _ in 0..3 {
        assert_eq!(
            program::apply(&pair.pod, &plan()).unwrap(),
            Programmed::Unchanged
        );
    }
    let drift = pair
        .pod
        .enter(|| nftables::inspect(&plan().tables, &POD_TABLES))
        .unwrap()
        .unwrap();
    assert_eq!(drift, []);
}

#[test]
fn removing_leaves_nothing_of_ours() {
    let pair = captured_pod();
    program::remove(&pair.pod).unwrap();
    program::remove(&pair.pod).unwrap();
    let drift = pair
        .pod
        .enter(|| nftables::inspect(&[], &POD_TABLES))
        .unwrap()
        .unwrap();
    assert_eq!(drift, []);
    // Routing is gone as well: putting it back is a change.
    assert_eq!(
        program::apply(
            &pair.pod,
            &PodPlan {
                tables: Vec::new(),
                ..plan()
            }
        )
        .unwrap(),
        { Programmed::Repaired(vec!["the routing of marked replies was missing".into()]) }
    );
    let server = application(&pair.node, 8080);
    for family in FAMILIES {
        connect(&pair.pod, at(node_ip(family), 8080)).unwrap();
        accept(&server);
    }
}

#[test]
fn changed_options_replace_the_rules() {
    let pair = Pair::new();
    let variants = [
        options(),
        PodOptions {
            dns: Dns::Captured,
            ..options()
        },
        PodOptions {
            families: Families::V4,
            ..options()
        },
        PodOptions {
            inbound: Inbound::Bypassed,
            outbound_interfaces: vec!["vm0".into()],
            ..options()
        },
        options(),
    ];
    for options in variants {
        let plan = pod_plan(&options);
        assert_ne!(
            program::apply(&pair.pod, &plan).unwrap(),
            Programmed::Unchanged,
            "{options:?}"
        );
        assert_eq!(
            program::apply(&pair.pod, &plan).unwrap(),
            Programmed::Unchanged,
            "{options:?}"
        );
    }
}

/// Does something to the rules of a captured pod, and expects it to be noticed and undone.
fn check_repair(damage: impl FnOnce(&mut Vec<Table>), expected: &str) {
    let pair = captured_pod();
    let mut damaged = plan().tables;
    damage(&mut damaged);
    pair.pod
        .enter(|| nftables::apply(&damaged, &POD_TABLES))
        .unwrap()
        .unwrap();
    match program::apply(&pair.pod, &plan()).unwrap() {
        Programmed::Repaired(drift) => {
            assert!(drift.iter().any(|drift| drift == expected), "{drift:?}")
        }
        other => panic!("{expected}: {other:?}"),
    }
    assert_eq!(
        program::apply(&pair.pod, &plan()).unwrap(),
        Programmed::Unchanged,
        "{expected}"
    );
    let outbound = proxy(&pair.pod, 15001);
    connect(&pair.pod, at(node_ip(Family::V4), 8080)).unwrap();
    accept(&outbound);
}

fn chain<'a>(tables: &'a mut [Table], table: &str, chain: &str) -> &'a mut Chain {
    let table = tables.iter_mut().find(|found| found.name == table).unwrap();
    table
        .chains
        .iter_mut()
        .find(|found| found.name == chain)
        .unwrap()
}

#[test]
fn drift_of_any_kind_is_repaired() {
    check_repair(
        |tables| tables.truncate(1),
        "table istio-ambient-nat is missing",
    );
    check_repair(
        |tables| _ = chain(tables, NAT_TABLE, "istio-output").rules.pop(),
        "chain istio-output of table istio-ambient-nat has 6 rules instead of 7",
    );
    check_repair(
        |tables| chain(tables, NAT_TABLE, "istio-output").rules[6].action = Action::Redirect(15002),
        "rule 7 in chain istio-output of table istio-ambient-nat is another one",
    );
    check_repair(
        |tables| {
            chain(tables, NAT_TABLE, "output")
                .base
                .as_mut()
                .unwrap()
                .priority = -90
        },
        "chain output of table istio-ambient-nat has another hook or policy",
    );
    check_repair(
        |tables| {
            let base = Base {
                kind: ChainKind::Filter,
                hook: Hook::Output,
                priority: 0,
            };
            tables[0].chains.push(Chain {
                name: "intruder",
                base: Some(base),
                rules: Vec::new(),
            });
        },
        "chain intruder of table istio-ambient-mangle should not be there",
    );
    check_repair(
        |tables| {
            tables[0]
                .chains
                .retain(|chain| !chain.name.ends_with("output"))
        },
        "chain istio-output of table istio-ambient-mangle is missing",
    );
}

#[test]
fn a_refused_rule_is_named_and_changes_nothing() {
    let pair = captured_pod();
    let mut broken = plan().tables;
    chain(&mut broken, NAT_TABLE, "istio-output").rules[2] = Rule {
        matches: Vec::new(),
        action: Action::Jump("nowhere"),
    };
    let error = pair
        .pod
        .enter(|| nftables::apply(&broken, &POD_TABLES))
        .unwrap()
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(
            "adding rule 3 to chain istio-output of table istio-ambient-nat: jump nowhere"
        ),
        "{error}"
    );
    assert_eq!(
        program::apply(&pair.pod, &plan()).unwrap(),
        Programmed::Unchanged
    );
}

#[test]
fn a_pod_without_ipv6_is_captured_by_ipv4() {
    let pair = Pair::new();
    let off = || std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1");
    pair.pod
        .spawn_thread_in("off", off)
        .unwrap()
        .join()
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(
        program::apply(&pair.pod, &plan()).unwrap(),
        Programmed::Installed
    );
    let outbound = proxy(&pair.pod, 15001);
    connect(&pair.pod, at(node_ip(Family::V4), 8080)).unwrap();
    accept(&outbound);
}

#[test]
fn each_family_is_routed_on_its_own() {
    let pair = Pair::new();
    let alone = |family| PodPlan {
        routing: plan()
            .routing
            .into_iter()
            .filter(|routing| routing.family == family)
            .collect(),
        ..plan()
    };
    assert_ne!(
        program::apply(&pair.pod, &alone(Family::V4)).unwrap(),
        Programmed::Unchanged
    );
    assert_ne!(
        program::apply(&pair.pod, &plan()).unwrap(),
        Programmed::Unchanged
    );
    assert_eq!(
        program::apply(&pair.pod, &alone(Family::V6)).unwrap(),
        Programmed::Unchanged
    );
}

#[test]
fn probes_from_the_node_reach_a_captured_application_with_the_probe_address() {
    let pair = captured_pod();
    let host = host_plan(&HostOptions::default());
    let members: Members = FAMILIES
        .map(|family| (pod_ip(family), "uid-1".to_owned()))
        .into();
    let applied = program::apply_host(&pair.node, &host, Families::Dual, &members).unwrap();
    assert_eq!(applied, Applied::Installed);
    let server = application(&pair.pod, 8080);
    let plaintext = proxy(&pair.pod, 15006);
    for family in FAMILIES {
        let mut client = connect(&pair.node, at(pod_ip(family), 8080)).unwrap();
        let (mut served, peer) = accept(&server);
        assert_eq!(peer.ip(), probe_source(family));
        assert_talk(&mut client, &mut served);
    }
    // A pod that has left the set is not probed by that address any more.
    program::sync_host(&pair.node, Families::Dual, &Members::new()).unwrap();
    for family in FAMILIES {
        connect(&pair.node, at(pod_ip(family), 8080)).unwrap();
        let (_, peer) = accept(&plaintext);
        assert_eq!(peer.ip(), node_ip(family));
    }
}

#[test]
fn the_nodes_sets_hold_exactly_what_is_wanted() {
    let pair = Pair::new();
    let host = host_plan(&HostOptions::default());
    let member = |n: u16, uid: &str| {
        [
            (
                IpAddr::from([10, 1, (n >> 8) as u8, n as u8]),
                uid.to_owned(),
            ),
            (IpAddr::from([0xfd01, 0, 0, 0, 0, 0, 0, n]), uid.to_owned()),
        ]
    };
    let many: Members = (0..1000).flat_map(|n| member(n, "uid-1")).collect();
    program::apply_host(&pair.node, &host, Families::Dual, &many).unwrap();
    let sync = |members: &Members| {
        let synced = pair.node.enter(|| {
            FAMILIES.map(|family| nftables::sync_set(NAT_TABLE, probe_set(family), members))
        });
        synced.unwrap().map(Result::unwrap)
    };
    assert_eq!(sync(&many), [nftables::Changed::No; 2]);
    // An address that belongs to another pod now, one that is gone, one that is new.
    let mut other = many.clone();
    other.extend(member(7, "uid-2"));
    other.extend(member(2000, "uid-3"));
    other.retain(|ip, _| !member(8, "").iter().any(|(gone, _)| gone == ip));
    assert_eq!(sync(&other), [nftables::Changed::Yes; 2]);
    assert_eq!(sync(&other), [nftables::Changed::No; 2]);
    // Refilling the rules keeps the elements.
    let mut damaged = host.clone();
    damaged.chains[0].rules.pop();
    pair.node
        .enter(|| nftables::apply(&[damaged], &[NAT_TABLE]))
        .unwrap()
        .unwrap();
    program::apply_host(&pair.node, &host, Families::Dual, &other).unwrap();
    assert_eq!(sync(&other), [nftables::Changed::No; 2]);
    program::remove_host(&pair.node).unwrap();
    assert_eq!(
        pair.node
            .enter(|| nftables::inspect(&[], &[NAT_TABLE]))
            .unwrap()
            .unwrap(),
        []
    );
}

#[test]
fn a_namespace_tells_its_addresses() {
    let pair = Pair::new();
    let found = pair.pod.addresses().unwrap();
    for family in FAMILIES {
        assert!(found.contains(&pod_ip(family)));
        assert!(found.contains(&loopback(family)));
        assert!(!found.contains(&node_ip(family)));
    }
}
