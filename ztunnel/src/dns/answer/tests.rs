// SPDX-License-Identifier: Apache-2.0

use std::net::Ipv4Addr;

use proptest::prelude::*;
use simple_dns::rdata::RData;
use simple_dns::{Packet, PacketFlag, RCODE};

use super::super::message::Family;
use super::*;

fn query(host: &str, record_type: RecordType) -> Query {
    Query::for_host(host, record_type).unwrap()
}

fn with_edns(query: &Query, payload: u16, version: u8, flags: u8) -> Query {
    let mut message = query.bytes().to_vec();
    message[11] = 1;
    message.extend([0, 0, 41]);
    message.extend(payload.to_be_bytes());
    message.extend([0, version, flags, 0, 0, 0]);
    Query::parse(&message).unwrap()
}

fn addresses(count: u32) -> Answer {
    Answer {
        alias_of: None,
        addresses: (0..count)
            .map(|n| Ipv4Addr::from_bits(0x0a00_0000 + n).into())
            .collect(),
    }
}

/// Owner and data of each answer, as another library reads them.
fn read(message: &[u8]) -> Vec<(String, String)> {
    let packet = Packet::parse(message).unwrap();
    let shown = |data: &RData<'_>| match data {
        RData::A(a) => Ipv4Addr::from_bits(a.address).to_string(),
        RData::AAAA(aaaa) => std::net::Ipv6Addr::from_bits(aaaa.address).to_string(),
        RData::CNAME(name) => name.to_string(),
        other => format!("{other:?}"),
    };
    let answers = packet.answers.iter();
    answers
        .map(|record| {
            assert_eq!(record.ttl, 30);
            (record.name.to_string(), shown(&record.rdata))
        })
        .collect()
}

#[test]
fn another_library_reads_our_answers() {
    let query = query("Echo.Shop", RecordType::A);
    let message = answer(&query, Transport::Udp, &addresses(2));
    let owned = |owner: &str, data: &str| (owner.to_owned(), data.to_owned());
    assert_eq!(
        read(&message),
        [
            owned("Echo.Shop", "10.0.0.0"),
            owned("Echo.Shop", "10.0.0.1")
        ]
    );
    let packet = Packet::parse(&message).unwrap();
    assert_eq!(packet.id(), query.id());
    assert_eq!(packet.rcode(), RCODE::NoError);
    for flag in [
        PacketFlag::RESPONSE,
        PacketFlag::AUTHORITATIVE_ANSWER,
        PacketFlag::RECURSION_AVAILABLE,
        PacketFlag::RECURSION_DESIRED,
    ] {
        assert!(packet.has_flags(flag), "{flag:?}");
    }
    assert!(packet.opt().is_none());
}

#[test]
fn addresses_of_ipv6_are_written() {
    let query = query("echo", RecordType::AAAA);
    let found = Answer {
        alias_of: None,
        addresses: vec!["fd96::10".parse().unwrap()],
    };
    let message = answer(&query, Transport::Udp, &found);
    assert_eq!(read(&message), [("echo".to_owned(), "fd96::10".to_owned())]);
}

#[test]
fn an_alias_is_answered_with_its_target_and_the_targets_addresses() {
    let query = query("Echo.Shop.shop.svc.cluster.local", RecordType::A);
    let found = Answer {
        alias_of: Some(2),
        ..addresses(1)
    };
    let message = answer(&query, Transport::Udp, &found);
    let owned = |owner: &str, data: &str| (owner.to_owned(), data.to_owned());
    assert_eq!(
        read(&message),
        [
            owned("Echo.Shop.shop.svc.cluster.local", "Echo.Shop"),
            owned("Echo.Shop", "10.0.0.0"),
        ]
    );
    // Without an address there is nothing that the alias could lead to.
    let nothing = Answer {
        alias_of: Some(2),
        ..addresses(0)
    };
    assert!(read(&answer(&query, Transport::Udp, &nothing)).is_empty());
}

#[test]
fn a_missing_record_is_an_empty_success() {
    let message = answer(
        &query("echo", RecordType::AAAA),
        Transport::Udp,
        &addresses(0),
    );
    let packet = Packet::parse(&message).unwrap();
    assert_eq!(packet.rcode(), RCODE::NoError);
    assert!(packet.answers.is_empty() && packet.name_servers.is_empty());
}

#[test]
fn what_does_not_fit_is_left_out_by_whole_records_and_marked() {
    let plain = query("echo.shop", RecordType::A);
    let check = |query: &Query, transport, limit: usize, expected: usize, truncated: bool| {
        let message = answer(query, transport, &addresses(5000));
        assert!(message.len() <= limit, "{} of {limit}", message.len());
        assert_eq!(read(&message).len(), expected, "{limit}");
        let packet = Packet::parse(&message).unwrap();
        assert_eq!(
            packet.has_flags(PacketFlag::TRUNCATION),
            truncated,
            "{limit}"
        );
    };
    check(&plain, Transport::Udp, 512, 30, true);
    check(
        &with_edns(&plain, 1232, 0, 0),
        Transport::Udp,
        1232,
        74,
        true,
    );
    // Nobody takes less than 512 bytes.
    check(&with_edns(&plain, 12, 0, 0), Transport::Udp, 512, 29, true);
    check(
        &with_edns(&plain, 65535, 0, 0),
        Transport::Udp,
        65507,
        4091,
        true,
    );
    check(&plain, Transport::Tcp, 65535, 4094, false);
    assert_eq!(
        read(&answer(&plain, Transport::Udp, &addresses(30))).len(),
        30
    );
    let all = Packet::parse(&answer(&plain, Transport::Udp, &addresses(30)))
        .unwrap()
        .has_flags(PacketFlag::TRUNCATION);
    assert!(!all, "everything fits");
}

#[test]
fn an_alias_that_does_not_fit_is_marked_too() {
    let host = vec!["x".repeat(58); 4].join(".") + ".svc.cluster.local";
    let query = query(&host, RecordType::A);
    let found = Answer {
        alias_of: Some(4),
        ..addresses(3)
    };
    let message = answer(&query, Transport::Udp, &found);
    assert!(message.len() <= 512);
    assert!(message::is_truncated(&message));
}

#[test]
fn edns_is_answered_with_edns() {
    let check = |payload, version, flags, expected_payload, rcode: u16| {
        let query = with_edns(&query("echo", RecordType::A), payload, version, flags);
        let message = answer(&query, Transport::Udp, &addresses(1));
        let record = message[message.len() - 11..].to_vec();
        assert_eq!(record[..3], [0, 0, 41]);
        assert_eq!(u16::from_be_bytes([record[3], record[4]]), expected_payload);
        assert_eq!(
            u16::from(record[5]) << 4 | u16::from(message[3] & 15),
            rcode
        );
        assert_eq!(record[6..], [0, flags & 0x80, 0, 0, 0]);
        assert_eq!(message[11], 1);
    };
    check(4096, 0, 0x80, 4096, 0);
    check(100, 0, 0, 512, 0);
    // A version that nobody knows yet.
    check(1232, 1, 0, 1232, 16);
}

#[test]
fn a_refusal_says_why_to_those_who_can_hear_it() {
    let plain = query("echo", RecordType::A);
    let refused = |query: &Query, reason: &str| {
        refuse(
            query,
            Transport::Udp,
            Rcode::SERVER_FAILURE,
            ExtendedError::NoReachableAuthority,
            reason,
        )
    };
    let silent = refused(&plain, "nobody there");
    assert_eq!(
        Packet::parse(&silent).unwrap().rcode(),
        RCODE::ServerFailure
    );
    assert_eq!(silent.len(), 12 + plain.question().len());
    let spoken = refused(&with_edns(&plain, 1232, 0, 0), "nobody there");
    let packet = Packet::parse(&spoken).unwrap();
    let option = &packet.opt().unwrap().opt_codes[0];
    assert_eq!(option.code, 15);
    assert_eq!(option.data[..2], [0, 22]);
    assert_eq!(&option.data[2..], b"nobody there");
    let long = refused(&with_edns(&plain, 512, 0, 0), &"ä".repeat(5000));
    assert!(long.len() <= 512);
    assert!(Packet::parse(&long).is_ok());
}

proptest! {
    #[test]
    fn no_answer_exceeds_its_limit_or_is_unreadable(
        labels in prop::collection::vec("[a-z0-9-]{1,40}", 1..6),
        count in 0u32..400,
        payload in any::<u16>(),
        alias in prop::option::of(1usize..5),
    ) {
        let Some(query) = Query::for_host(&labels.join("."), RecordType::A) else { return Ok(()) };
        let query = with_edns(&query, payload, 0, 0);
        let found = Answer { alias_of: alias.filter(|n| *n <= labels.len()), ..addresses(count) };
        let message = answer(&query, Transport::Udp, &found);
        prop_assert!(message.len() <= usize::from(payload.max(512)));
        read(&message);
        let whole = answer(&query, Transport::Tcp, &found);
        let expected = count as usize + usize::from(found.alias_of.is_some() && count > 0);
        prop_assert_eq!(read(&whole).len(), expected);
        prop_assert_eq!(message::addresses_in(&whole, Family::V4).len(), count as usize);
    }
}
