// SPDX-License-Identifier: Apache-2.0

use proptest::prelude::*;

use super::*;

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn cart() -> SpiffeId {
    "spiffe://cluster.local/ns/shop/sa/cart".parse().unwrap()
}

#[track_caller]
fn check(announcement: Announcement<'_>, expected: &[&[u8]]) {
    assert_eq!(announcement.header(), expected.concat());
}

#[test]
fn two_ipv4_addresses_take_twelve_bytes() {
    let announcement = Announcement {
        source: address("10.0.0.1:40000"),
        destination: address("10.96.0.2:80"),
        identity: None,
        service: None,
    };
    let expected: &[&[u8]] = &[
        b"\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a",
        &[0x21, 0x11, 0, 12],
        &[10, 0, 0, 1],
        &[10, 96, 0, 2],
        &[0x9c, 0x40],
        &[0, 80],
    ];
    check(announcement, expected);
}

#[test]
fn identity_and_service_follow_the_addresses_each_with_type_and_length() {
    let id = cart();
    let announcement = Announcement {
        source: address("[fd00::1]:40000"),
        destination: address("[fd96::2]:80"),
        identity: Some(&id),
        service: Some("cart.shop.svc.cluster.local"),
    };
    let source: Ipv6Addr = "fd00::1".parse().unwrap();
    let destination: Ipv6Addr = "fd96::2".parse().unwrap();
    let expected: &[&[u8]] = &[
        b"\r\n\r\n\0\r\nQUIT\n",
        &[0x21, 0x21, 0, 36 + 3 + 38 + 3 + 27],
        &source.octets(),
        &destination.octets(),
        &[0x9c, 0x40],
        &[0, 80],
        &[0xd0, 0, 38],
        b"spiffe://cluster.local/ns/shop/sa/cart",
        &[0xd1, 0, 27],
        b"cart.shop.svc.cluster.local",
    ];
    check(announcement, expected);
}

#[test]
fn addresses_of_different_families_are_both_told_as_ipv6() {
    let mapped: Ipv6Addr = "::ffff:10.0.0.1".parse().unwrap();
    let v6: Ipv6Addr = "fd96::2".parse().unwrap();
    let mixed = |source, destination| Announcement {
        source,
        destination,
        identity: None,
        service: None,
    };
    let (four, six) = (address("10.0.0.1:40000"), address("[fd96::2]:80"));
    let head: &[&[u8]] = &[b"\r\n\r\n\0\r\nQUIT\n", &[0x21, 0x21, 0, 36]];
    let forth: [&[u8]; 4] = [&mapped.octets(), &v6.octets(), &[0x9c, 0x40], &[0, 80]];
    check(mixed(four, six), &[head, &forth].concat());
    let back: [&[u8]; 4] = [&v6.octets(), &mapped.octets(), &[0, 80], &[0x9c, 0x40]];
    check(mixed(six, four), &[head, &back].concat());
}

#[test]
fn ipv4_in_ipv6_clothes_is_told_as_ipv4() {
    let announcement = Announcement {
        source: address("[::ffff:10.0.0.1]:40000"),
        destination: address("10.96.0.2:80"),
        identity: None,
        service: None,
    };
    assert_eq!(announcement.header()[13], 0x11);
}

/// What a receiver reads: written after the protocol's text, apart from the writer.
#[derive(Debug, PartialEq, Eq)]
struct Received {
    source: SocketAddr,
    destination: SocketAddr,
    values: Vec<(u8, Vec<u8>)>,
}

fn receive(mut bytes: &[u8]) -> Received {
    fn take<'b>(bytes: &mut &'b [u8], count: usize) -> &'b [u8] {
        let (taken, rest) = bytes.split_at(count);
        *bytes = rest;
        taken
    }
    let number = |bytes: &[u8]| usize::from(u16::from_be_bytes(bytes.try_into().unwrap()));
    assert_eq!(take(&mut bytes, 12), b"\r\n\r\n\0\r\nQUIT\n");
    assert_eq!(take(&mut bytes, 1), [0x21]);
    let family = take(&mut bytes, 1)[0];
    let length = number(take(&mut bytes, 2));
    assert_eq!(bytes.len(), length, "the header says where it ends");
    let mut ip = || -> IpAddr {
        match family {
            0x11 => <[u8; 4]>::try_from(take(&mut bytes, 4)).unwrap().into(),
            0x21 => <[u8; 16]>::try_from(take(&mut bytes, 16)).unwrap().into(),
            other => panic!("family {other:#x}"),
        }
    };
    let (source, destination) = (ip(), ip());
    let ports = take(&mut bytes, 4);
    let port = |bytes: &[u8]| u16::from_be_bytes(bytes.try_into().unwrap());
    let (source_port, destination_port) = (port(&ports[..2]), port(&ports[2..]));
    let mut values = Vec::new();
    while !bytes.is_empty() {
        let kind = take(&mut bytes, 1)[0];
        let length = number(take(&mut bytes, 2));
        values.push((kind, take(&mut bytes, length).to_vec()));
    }
    Received {
        source: SocketAddr::new(source, source_port),
        destination: SocketAddr::new(destination, destination_port),
        values,
    }
}

fn any_address() -> impl Strategy<Value = SocketAddr> {
    let ip = prop_oneof![
        any::<[u8; 4]>().prop_map(IpAddr::from),
        any::<[u8; 16]>().prop_map(|octets| IpAddr::from(octets).to_canonical()),
    ];
    (ip, any::<u16>()).prop_map(SocketAddr::from)
}

proptest! {
    #[test]
    fn a_receiver_reads_what_was_meant(
        source in any_address(),
        destination in any_address(),
        account in proptest::option::of("[a-z0-9]{1,63}"),
        service in proptest::option::of("[a-z0-9.-]{1,253}"),
    ) {
        let identity: Option<SpiffeId> = account
            .map(|account| format!("spiffe://cluster.local/ns/shop/sa/{account}").parse().unwrap());
        let announcement = Announcement {
            source,
            destination,
            identity: identity.as_ref(),
            service: service.as_deref(),
        };
        let received = receive(&announcement.header());
        // Whatever the family on the wire, these are the same addresses.
        prop_assert_eq!(received.source.ip().to_canonical(), source.ip());
        prop_assert_eq!(received.destination.ip().to_canonical(), destination.ip());
        prop_assert_eq!(received.source.port(), source.port());
        prop_assert_eq!(received.destination.port(), destination.port());
        let expected: Vec<(u8, Vec<u8>)> = [
            identity.map(|id| (0xd0, id.as_str().as_bytes().to_vec())),
            service.map(|host| (0xd1, host.into_bytes())),
        ]
        .into_iter()
        .flatten()
        .collect();
        prop_assert_eq!(received.values, expected);
    }
}
