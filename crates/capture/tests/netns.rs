// SPDX-License-Identifier: Apache-2.0
//! Namespaces and sockets against the kernel. Needs root, or a user namespace of one's own (`unshare -Urnm`).
#![allow(
    clippy::unwrap_used,
    reason = "a test that can't go on should stop there"
)]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;

use capture::contract::{BORROWED_SOURCE_MARK, PACKET_MARK};
use capture::netns::Netns;
use capture::socket::{self, ListenOptions};
use socket2::Domain;

const OPTIONS: ListenOptions = ListenOptions {
    mark: Some(PACKET_MARK.value),
    reuse_port: true,
    v6: true,
};

fn netns() -> Netns {
    let netns =
        Netns::create().expect("creating a network namespace needs root, or `unshare -Urnm`");
    netns.loopback_up().unwrap();
    netns
}

#[test]
fn entering_a_namespace_changes_it_only_during_the_work() {
    let home = Netns::current().unwrap();
    let other = netns();
    let inside = other.enter(|| Netns::current().unwrap().id()).unwrap();
    assert_eq!(inside, other.id());
    assert_ne!(inside, home.id());
    assert_eq!(Netns::current().unwrap(), home);
    // Again, from what the first time has left behind, and one inside another.
    let third = netns();
    let visited = other
        .enter(|| {
            let deeper = third.enter(|| Netns::current().unwrap().id()).unwrap();
            (deeper, Netns::current().unwrap().id())
        })
        .unwrap();
    assert_eq!(visited, (third.id(), other.id()));
    assert_eq!(Netns::current().unwrap(), home);
}

#[test]
fn a_namespace_has_the_addresses_of_its_own_interfaces() {
    let other = netns();
    let loopback = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    assert_eq!(other.addresses().unwrap(), loopback.into());
    let without = Netns::create().unwrap();
    assert!(
        without.addresses().unwrap().is_empty(),
        "its loopback is down"
    );
}

#[test]
fn a_panic_inside_a_namespace_brings_the_thread_home() {
    let home = Netns::current().unwrap();
    let other = netns();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        other.enter(|| panic!("inside"))
    }));
    assert!(caught.is_err());
    assert_eq!(Netns::current().unwrap(), home);
}

#[test]
fn a_thread_spends_its_life_inside_a_namespace() {
    let other = netns();
    let thread = other
        .spawn_thread_in("inside", || Netns::current().unwrap().id())
        .unwrap();
    assert_eq!(thread.join().unwrap().unwrap(), other.id());
}

#[test]
fn a_descriptor_that_is_no_network_namespace_is_refused() {
    for path in ["/dev/null", "/proc/self/ns/mnt", "/proc/self/ns/user"] {
        let error = Netns::open(path).unwrap_err();
        assert!(
            error.to_string().contains("not a network namespace"),
            "{path}: {error}"
        );
    }
}

#[test]
fn a_namespace_is_recognised_through_another_descriptor() {
    let one = netns();
    let two = Netns::from_fd(one.as_fd().try_clone_to_owned().unwrap()).unwrap();
    assert_eq!(one, two);
    assert_ne!(one, netns());
}

#[test]
fn a_listener_in_a_namespace_serves_both_families_there_only() {
    let other = netns();
    let listener = socket::listen(&other, 15006, OPTIONS).unwrap();
    assert!(
        !socket2::SockRef::from(&listener)
            .ip_transparent_v4()
            .unwrap()
    );
    listener.set_nonblocking(false).unwrap();
    for address in ["127.0.0.1:15006", "[::1]:15006"] {
        let address: SocketAddr = address.parse().unwrap();
        let mut client = other
            .enter(|| TcpStream::connect(address))
            .unwrap()
            .unwrap();
        let (mut served, _) = listener.accept().unwrap();
        client.write_all(b"hello").unwrap();
        let mut bytes = [0; 5];
        served.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"hello");
    }
    assert!(
        netns()
            .enter(|| TcpStream::connect("127.0.0.1:15006"))
            .unwrap()
            .is_err()
    );
}

#[test]
fn an_old_and_a_new_listener_share_a_port() {
    let other = netns();
    let _old = socket::listen(&other, 15001, OPTIONS).unwrap();
    socket::listen(&other, 15001, OPTIONS).unwrap();
    let alone = ListenOptions {
        reuse_port: false,
        ..OPTIONS
    };
    assert!(socket::listen(&other, 15001, alone).is_err());
}

#[test]
fn a_connector_speaks_from_a_foreign_address() {
    let other = netns();
    let socket = socket::tcp_socket(
        &other,
        Domain::IPV4,
        Some(PACKET_MARK.value),
        Some(Ipv4Addr::new(10, 9, 8, 7).into()),
    )
    .unwrap();
    let local = socket.local_addr().unwrap().as_socket().unwrap();
    assert_eq!(local.ip(), Ipv4Addr::new(10, 9, 8, 7));
    assert_eq!(socket.mark().unwrap(), BORROWED_SOURCE_MARK.value);
    let own = socket::tcp_socket(&other, Domain::IPV4, Some(PACKET_MARK.value), None).unwrap();
    assert_eq!(own.mark().unwrap(), PACKET_MARK.value);
    socket::may_borrow_sources(&other).unwrap();
}
