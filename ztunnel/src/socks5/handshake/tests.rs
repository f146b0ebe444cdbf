// SPDX-License-Identifier: Apache-2.0

use proptest::prelude::*;

use super::*;

const HELLO: &[u8] = &[5, 1, 0];

/// What came of a client that says all this, in pieces of `piece` bytes; with how many bytes it was left.
fn conversation(said: &[u8], piece: usize) -> (Result<Option<Target>, Violation>, usize) {
    let mut handshake = Handshake::default();
    let mut rest = said;
    loop {
        let room = handshake.room();
        let count = room.len().min(piece).min(rest.len());
        if count == 0 {
            return (Ok(None), rest.len());
        }
        room[..count].copy_from_slice(&rest[..count]);
        rest = &rest[count..];
        match handshake.filled(count) {
            Ok(Progress::More | Progress::Greeted) => {}
            Ok(Progress::Asked(target)) => return (Ok(Some(target)), rest.len()),
            Err(violation) => return (Err(violation), rest.len()),
        }
    }
}

/// The same result however the bytes are cut, and never a byte of what follows the request.
fn check(said: &[&[u8]], expected: Result<Option<&str>, Violation>) {
    const PAYLOAD: &[u8] = b"GET / HTTP/1.1\r\n";
    let said = said.concat();
    for piece in 1..=said.len() {
        let (found, left) = match expected {
            Ok(Some(_)) => conversation(&[&said, PAYLOAD].concat(), piece),
            _ => conversation(&said, piece),
        };
        let found = found.map(|target| target.map(|target| line(&target)));
        assert_eq!(
            found.as_ref().map(|target| target.as_deref()),
            expected.as_ref().copied(),
            "{said:?} in pieces of {piece}"
        );
        if let Ok(Some(_)) = expected {
            assert_eq!(left, PAYLOAD.len(), "{said:?} in pieces of {piece}");
        }
    }
}

fn line(target: &Target) -> String {
    match target {
        Target::Address(address) => address.to_string(),
        Target::Host(host, port) => format!("{host} port {port}"),
    }
}

fn named(name: &[u8]) -> Vec<u8> {
    [
        &[5, 1, 0, 3, u8::try_from(name.len()).unwrap()],
        name,
        &[0, 80],
    ]
    .concat()
}

#[test]
fn each_kind_of_address_is_read() {
    check(
        &[HELLO, &[5, 1, 0, 1, 10, 0, 0, 2, 0x1f, 0x90]],
        Ok(Some("10.0.0.2:8080")),
    );
    let v6 = Ipv6Addr::from_bits(0x2001_0db8 << 96 | 2).octets();
    check(
        &[HELLO, &[5, 1, 0, 4], &v6, &[0, 80]],
        Ok(Some("[2001:db8::2]:80")),
    );
    check(
        &[HELLO, &named(b"cart.shop")],
        Ok(Some("cart.shop port 80")),
    );
    let longest = [b'a'; 255];
    let expected = format!("{} port 80", str::from_utf8(&longest).unwrap());
    check(&[HELLO, &named(&longest)], Ok(Some(&expected)));
    check(&[HELLO, &named(b"a")], Ok(Some("a port 80")));
}

#[test]
fn an_address_is_one_however_it_is_written() {
    check(&[HELLO, &named(b"10.0.0.2")], Ok(Some("10.0.0.2:80")));
    check(
        &[HELLO, &named(b"2001:db8::2")],
        Ok(Some("[2001:db8::2]:80")),
    );
    let mapped = Ipv4Addr::new(10, 0, 0, 2).to_ipv6_mapped().octets();
    check(
        &[HELLO, &[5, 1, 0, 4], &mapped, &[0, 80]],
        Ok(Some("10.0.0.2:80")),
    );
}

#[test]
fn no_authentication_is_found_among_other_methods() {
    let request = &[5, 1, 0, 1, 10, 0, 0, 2, 0, 80];
    check(&[&[5, 3, 2, 1, 0], request], Ok(Some("10.0.0.2:80")));
    let many: Vec<u8> = (0..255).rev().collect();
    check(&[&[5, 255], &many, request], Ok(Some("10.0.0.2:80")));
    check(&[&[5, 2, 1, 2]], Err(Violation::Methods(2)));
    check(&[&[5, 0]], Err(Violation::Methods(0)));
}

#[test]
fn what_is_no_request_is_named() {
    check(
        &[&[4, 1, 0, 80, 10, 0, 0, 2, 0]],
        Err(Violation::Greeting(4)),
    );
    check(&[b"GET / HTTP/1.1"], Err(Violation::Greeting(b'G')));
    check(&[HELLO, &[4, 1]], Err(Violation::Version(4)));
    for command in [0, 2, 3, 255] {
        check(&[HELLO, &[5, command]], Err(Violation::Command(command)));
    }
    for kind in [0, 2, 5, 255] {
        check(
            &[HELLO, &[5, 1, 0, kind]],
            Err(Violation::AddressType(kind)),
        );
    }
    check(&[HELLO, &named(b"")], Err(Violation::EmptyName));
    check(&[HELLO, &named(&[0xff, 0xfe])], Err(Violation::Name));
    check(
        &[HELLO, &[5, 1, 0, 1, 10, 0, 0, 2, 0, 0]],
        Err(Violation::Port),
    );
}

#[test]
fn what_is_not_complete_is_waited_for() {
    let whole = [HELLO, &named(b"cart.shop")].concat();
    for end in 0..whole.len() {
        let (found, left) = conversation(&whole[..end], 1);
        assert_eq!((found, left), (Ok(None), 0), "{end} bytes");
    }
}

#[test]
fn each_violation_has_the_answer_that_its_phase_expects() {
    let check = |violation: Violation, expected: &[u8]| {
        assert_eq!(violation.answer(), expected, "{violation}");
    };
    check(Violation::Greeting(4), &[5, 0xff]);
    check(Violation::Methods(1), &[5, 0xff]);
    let reply = |code| [5, code, 0, 1, 0, 0, 0, 0, 0, 0];
    check(Violation::Command(2), &reply(7));
    check(Violation::AddressType(2), &reply(8));
    for violation in [
        Violation::Version(4),
        Violation::EmptyName,
        Violation::Name,
        Violation::Port,
    ] {
        check(violation, &reply(1));
    }
}

proptest! {
    #[test]
    fn cuts_change_nothing_and_nothing_panics(said in prop::collection::vec(any::<u8>(), 0..600), piece in 1..600_usize) {
        // Of what is refused, nobody reads the rest.
        let told = |(outcome, rest): (Result<_, _>, _)| outcome.map(|target| (target, rest));
        prop_assert_eq!(told(conversation(&said, piece)), told(conversation(&said, 600)));
    }

    #[test]
    fn a_request_that_was_written_is_read(
        address in any::<IpAddr>(), port in 1..=u16::MAX, methods in prop::collection::vec(any::<u8>(), 0..254),
        payload in prop::collection::vec(any::<u8>(), 0..20), piece in 1..300_usize,
    ) {
        let mut said = vec![5, u8::try_from(methods.len()).unwrap() + 1];
        said.extend(methods);
        said.push(0);
        said.extend([5, 1, 0]);
        match address {
            IpAddr::V4(v4) => { said.push(1); said.extend(v4.octets()); }
            IpAddr::V6(v6) => { said.push(4); said.extend(v6.octets()); }
        }
        said.extend(port.to_be_bytes());
        said.extend(&payload);
        let expected = Target::Address(SocketAddr::new(address.to_canonical(), port));
        prop_assert_eq!(conversation(&said, piece), (Ok(Some(expected)), payload.len()));
    }
}
