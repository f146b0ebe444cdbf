// SPDX-License-Identifier: Apache-2.0
//! Pods that join and leave the mesh while they run: what is open goes on, byte by byte, in both directions.
#![allow(
    clippy::unwrap_used,
    reason = "a test that can't go on should stop there"
)]

mod support;

use std::net::{SocketAddr, TcpListener, TcpStream};

use capture::Netns;
use capture::contract::NAT_TABLE;
use capture::socket::original_dst;
use redirect::nftables;
use redirect::plan::{Dns, Families, Inbound, PodOptions, Reach, pod_plan, reduced_plan};
use redirect::program::{self, Programmed};
use redirect::rules::Family;
use support::{
    FAMILIES, Pair, accept, application, assert_nobody_came, assert_talk, connect, connect_marked,
    node_ip, pod_ip, proxy,
};

fn options() -> PodOptions {
    PodOptions {
        families: Families::Dual,
        inbound: Inbound::Captured,
        dns: Dns::Untouched,
        outbound_interfaces: Vec::new(),
    }
}

/// A connection by its two ends.
struct Open(TcpStream, TcpStream);

impl Open {
    fn between(from: &Netns, to: SocketAddr, server: &TcpListener) -> Self {
        let client = connect(from, to).unwrap();
        Self(client, accept(server).0)
    }

    fn talks(&mut self) {
        assert_talk(&mut self.0, &mut self.1);
    }
}

fn capture(pair: &Pair) {
    assert_eq!(
        program::apply(&pair.pod, &pod_plan(&options())).unwrap(),
        Programmed::Installed
    );
}

fn loosen(pair: &Pair, reach: Reach) {
    let programmed = program::apply(&pair.pod, &reduced_plan(&options(), reach)).unwrap();
    assert!(
        matches!(programmed, Programmed::Repaired(_)),
        "{programmed:?}"
    );
}

#[test]
fn connections_from_before_the_capture_go_on_and_new_ones_are_captured() {
    let pair = Pair::new();
    let (outside, inside) = (application(&pair.node, 8080), application(&pair.pod, 8080));
    let mut open = Vec::new();
    for family in FAMILIES {
        let there = SocketAddr::new(node_ip(family), 8080);
        let here = SocketAddr::new(pod_ip(family), 8080);
        open.push(Open::between(&pair.pod, there, &outside));
        open.push(Open::between(&pair.node, here, &inside));
    }
    let (outbound, plaintext) = (proxy(&pair.pod, 15001), proxy(&pair.pod, 15006));
    capture(&pair);
    open.iter_mut().for_each(Open::talks);
    assert_nobody_came(&outbound);
    assert_nobody_came(&plaintext);
    for family in FAMILIES {
        let there = SocketAddr::new(node_ip(family), 8080);
        let here = SocketAddr::new(pod_ip(family), 8080);
        Open::between(&pair.pod, there, &outbound).talks();
        Open::between(&pair.node, here, &plaintext).talks();
    }
}

#[test]
fn a_connection_of_which_only_one_side_spoke_since_tracking_began_goes_on_too() {
    let pair = Pair::new();
    let outside = application(&pair.node, 8080);
    let to = SocketAddr::new(node_ip(Family::V4), 8080);
    let mut open = Open::between(&pair.pod, to, &outside);
    capture(&pair);
    // The redirecting table alone was lost: tracking has gone on all the while.
    pair.pod
        .enter(|| nftables::remove(&[NAT_TABLE]))
        .unwrap()
        .unwrap();
    let mut second = Open::between(&pair.pod, to, &outside);
    let programmed = program::apply(&pair.pod, &pod_plan(&options())).unwrap();
    assert!(
        matches!(programmed, Programmed::Repaired(_)),
        "{programmed:?}"
    );
    open.talks();
    second.talks();
}

#[test]
fn what_is_captured_stays_captured_while_a_pod_leaves_and_what_is_new_goes_free() {
    let pair = Pair::new();
    let (outside, inside) = (application(&pair.node, 8080), application(&pair.pod, 8080));
    let (outbound, plaintext) = (proxy(&pair.pod, 15001), proxy(&pair.pod, 15006));
    let tunnels = proxy(&pair.pod, 15008);
    capture(&pair);
    for family in FAMILIES {
        let there = SocketAddr::new(node_ip(family), 8080);
        let here = SocketAddr::new(pod_ip(family), 8080);
        let mut sent = Open::between(&pair.pod, there, &outbound);
        let mut got = Open::between(&pair.node, here, &plaintext);
        // ztunnel's connection to the application in the peer's name.
        let client = connect_marked(&pair.pod, here, Some(node_ip(family)));
        let mut inner = Open(client, accept(&inside).0);

        loosen(&pair, Reach::Inbound);
        Open::between(&pair.pod, there, &outside).talks();
        let mut late = Open::between(&pair.node, here, &plaintext);
        assert_eq!(original_dst(&late.1).unwrap(), here);

        loosen(&pair, Reach::Nothing);
        Open::between(&pair.pod, there, &outside).talks();
        Open::between(&pair.node, here, &inside).talks();
        Open::between(&pair.node, SocketAddr::new(here.ip(), 15008), &tunnels).talks();
        // A tunnel that comes late still leads to the application, in the peer's name.
        let client = connect_marked(&pair.pod, here, Some(node_ip(family)));
        let (server, peer) = accept(&inside);
        assert_eq!(peer.ip(), node_ip(family));
        Open(client, server).talks();
        for open in [&mut sent, &mut got, &mut inner, &mut late] {
            open.talks();
        }
        assert_nobody_came(&outbound);
        assert_nobody_came(&plaintext);
        // Its label came back.
        let programmed = program::apply(&pair.pod, &pod_plan(&options())).unwrap();
        assert!(
            matches!(programmed, Programmed::Repaired(_)),
            "{programmed:?}"
        );
        for open in [&mut sent, &mut got, &mut inner, &mut late] {
            open.talks();
        }
        Open::between(&pair.pod, there, &outbound).talks();
    }
}

#[test]
fn connections_from_after_a_release_go_on_when_the_rules_are_gone() {
    let pair = Pair::new();
    let outside = application(&pair.node, 8080);
    capture(&pair);
    loosen(&pair, Reach::Nothing);
    let to = SocketAddr::new(node_ip(Family::V4), 8080);
    let mut open = Open::between(&pair.pod, to, &outside);
    program::remove(&pair.pod).unwrap();
    open.talks();
    capture(&pair);
    open.talks();
}
