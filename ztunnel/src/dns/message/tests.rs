// SPDX-License-Identifier: Apache-2.0

use proptest::prelude::*;
use simple_dns::{CLASS, Name, Packet, QCLASS, QTYPE, Question, TYPE};

use super::*;

/// A query as another library writes it.
fn query(name: &str, record_type: TYPE) -> Vec<u8> {
    let mut packet = Packet::new_query(0x1234);
    packet.set_flags(simple_dns::PacketFlag::RECURSION_DESIRED);
    packet.questions.push(Question::new(
        Name::new_unchecked(name).into_owned(),
        QTYPE::TYPE(record_type),
        QCLASS::CLASS(CLASS::IN),
        false,
    ));
    packet.build_bytes_vec().unwrap()
}

/// The same with an EDNS record; `flags` are version and DO bit.
fn with_edns(mut message: Vec<u8>, payload: u16, version: u8, flags: u16) -> Vec<u8> {
    message[11] += 1;
    message.extend([0, 0, 41]);
    message.extend(payload.to_be_bytes());
    message.extend([0, version]);
    message.extend(flags.to_be_bytes());
    message.extend([0, 0]);
    message
}

fn parsed(message: &[u8]) -> Query {
    Query::parse(message).unwrap()
}

#[test]
fn a_query_of_another_library_is_read() {
    let query = parsed(&query("Echo.Shop.svc.cluster.local", TYPE::AAAA));
    assert_eq!(query.id(), 0x1234);
    assert_eq!(query.record_type, RecordType::AAAA);
    assert_eq!(query.family(), Some(Family::V6));
    assert_eq!(query.host().as_deref(), Some("echo.shop.svc.cluster.local"));
    assert_eq!(query.shown_name(), "Echo.Shop.svc.cluster.local.");
    assert_eq!(query.edns, None);
    assert!(query.is_internet_class());
}

#[test]
fn the_edns_record_is_found() {
    let message = with_edns(query("a.b", TYPE::A), 1232, 0, 0x8000);
    let expected = Edns {
        payload: 1232,
        version: 0,
        dnssec_ok: true,
    };
    assert_eq!(parsed(&message).edns, Some(expected));
    let version = parsed(&with_edns(query("a.b", TYPE::A), 1, 7, 0)).edns;
    assert_eq!(
        version.map(|edns| (edns.version, edns.dnssec_ok)),
        Some((7, false))
    );
}

#[test]
fn names_that_no_host_has_are_read_but_are_no_hosts() {
    let check = |labels: &[&[u8]], shown: &str| {
        let mut message = vec![0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in labels {
            message.push(label.len() as u8);
            message.extend(*label);
        }
        message.extend([0, 0, 1, 0, 1]);
        let query = parsed(&message);
        assert_eq!(query.host(), None, "{shown}");
        assert_eq!(query.shown_name(), shown);
    };
    check(&[], ".");
    check(&[b"a.b", b"c"], "a\\.b.c.");
    check(&[b"a b"], "a b.");
    check(&[b"\xff\x00"], "\\xff\\x00.");
}

#[test]
fn what_is_no_query_is_refused_by_its_mistake() {
    let good = query("echo.shop", TYPE::A);
    let check = |damage: &dyn Fn(&mut Vec<u8>), expected: QueryError, rcode: Option<Rcode>| {
        let mut message = good.clone();
        damage(&mut message);
        assert_eq!(Query::parse(&message), Err(expected.clone()));
        assert_eq!(expected.rcode(), rcode, "{expected}");
    };
    let format_error = Some(Rcode::FORMAT_ERROR);
    let not_implemented = Some(Rcode::NOT_IMPLEMENTED);
    check(&|m| m.truncate(11), QueryError::Short(11), None);
    check(&|m| m.truncate(0), QueryError::Short(0), None);
    check(
        &|m| m.resize(MAX_QUERY + 1, 0),
        QueryError::Long,
        format_error,
    );
    check(&|m| m[2] |= 0x80, QueryError::Response, format_error);
    check(
        &|m| m[2] |= 5 << 3,
        QueryError::Operation(5),
        not_implemented,
    );
    check(&|m| m[5] = 0, QueryError::QuestionCount(0), format_error);
    check(&|m| m[5] = 2, QueryError::QuestionCount(2), format_error);
    check(&|m| m.truncate(14), QueryError::Question, format_error);
    check(
        &|m| m.truncate(m.len() - 1),
        QueryError::Question,
        format_error,
    );
    // A reference, of which there can be none in the first name.
    check(&|m| m[12] = 0xc0, QueryError::Question, format_error);
    check(&|m| m[12] = 64, QueryError::Question, format_error);
    check(&|m| m[11] = 1, QueryError::Record(1), format_error);
    check(
        &|m| *m = with_edns(with_edns(m.clone(), 512, 0, 0), 512, 0, 0),
        QueryError::SecondEdns,
        format_error,
    );
    let type_at = good.len() - 3;
    check(&|m| m[type_at] = 252, QueryError::Transfer, not_implemented);
    check(&|m| m[type_at] = 251, QueryError::Transfer, not_implemented);
}

#[test]
fn a_name_has_at_most_255_bytes() {
    let question = |length: usize| {
        let mut message = vec![0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        let mut left = length - 1;
        while left > 0 {
            let label = (left - 1).min(63);
            message.push(label as u8);
            message.extend(vec![b'x'; label]);
            left -= label + 1;
        }
        message.extend([0, 0, 1, 0, 1]);
        message
    };
    assert!(parsed(&question(255)).host().is_some());
    assert_eq!(Query::parse(&question(256)), Err(QueryError::Question));
}

#[test]
fn a_response_belongs_to_its_query_only() {
    let asked = parsed(&query("Echo.Shop", TYPE::A));
    let response = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut message = query("Echo.Shop", TYPE::A);
        set_id(&mut message, 77);
        message[2] |= 0x80;
        change(&mut message);
        is_response_to(&asked, 77, &message)
    };
    assert!(response(&|_| {}));
    // Some servers answer in lower case.
    assert!(response(&|m| m[13] = b'e'));
    assert!(response(&|m| m.extend([1, 2, 3])));
    assert!(!response(&|m| m[1] = 78), "another id");
    assert!(!response(&|m| m[2] &= !0x80), "a query");
    assert!(!response(&|m| m[14] = b'x'), "another name");
    let at = query("Echo.Shop", TYPE::A).len();
    assert!(!response(&|m| m[at - 3] = 28), "another type");
    assert!(!response(&|m| m[at - 1] = 3), "another class");
    assert!(!response(&|m| m.truncate(at - 1)), "cut off");
    assert!(!response(&|m| m.truncate(5)), "cut off early");
    let without_question = |m: &mut Vec<u8>, rcode: u8| {
        m.truncate(12);
        m[5] = 0;
        m[3] |= rcode;
    };
    assert!(response(&|m| without_question(m, 1)), "a bare refusal");
    assert!(!response(&|m| without_question(m, 0)), "a bare success");
}

#[test]
fn types_are_told_apart_although_letters_are_not() {
    // Types 65 and 97 are the codes of A and a.
    let mut asked = query("x", TYPE::A);
    let at = asked.len() - 3;
    asked[at] = b'A';
    let query = parsed(&asked);
    let mut response = asked.clone();
    response[2] |= 0x80;
    assert!(is_response_to(&query, query.id(), &response));
    response[at] = b'a';
    assert!(!is_response_to(&query, query.id(), &response));
}

#[test]
fn addresses_are_found_behind_aliases_and_among_other_records() {
    use simple_dns::ResourceRecord;
    use simple_dns::rdata::{A, AAAA, CNAME, RData, TXT};
    let name = |text: &str| Name::new_unchecked(text).into_owned();
    let mut packet = Packet::new_reply(1);
    packet.questions.push(Question::new(
        name("www.example"),
        QTYPE::TYPE(TYPE::A),
        QCLASS::CLASS(CLASS::IN),
        false,
    ));
    let records = [
        ("www.example", RData::CNAME(CNAME(name("host.example")))),
        (
            "host.example",
            RData::A(A {
                address: 0x0a00_0001,
            }),
        ),
        (
            "host.example",
            RData::TXT(TXT::new().with_string("x").unwrap()),
        ),
        ("host.example", RData::AAAA(AAAA { address: 1 })),
        (
            "host.example",
            RData::A(A {
                address: 0x0a00_0002,
            }),
        ),
    ];
    for (owner, data) in records {
        let record = ResourceRecord::new(name(owner), CLASS::IN, 5, data);
        packet.answers.push(record);
    }
    let message = packet.build_bytes_vec_compressed().unwrap();
    let shown = |family| {
        let found = addresses_in(&message, family);
        found.iter().map(IpAddr::to_string).collect::<Vec<_>>()
    };
    assert_eq!(shown(Family::V4), ["10.0.0.1", "10.0.0.2"]);
    assert_eq!(shown(Family::V6), ["::1"]);
    assert_eq!(answer_count(&message), 5);
}

#[test]
fn only_a_missing_name_becomes_a_missing_record() {
    for (rcode, expected) in [
        (Rcode::NAME_ERROR, Rcode::NO_ERROR),
        (Rcode::SERVER_FAILURE, Rcode::SERVER_FAILURE),
        (Rcode::NO_ERROR, Rcode::NO_ERROR),
    ] {
        let mut message = vec![0; 12];
        message[3] = 0x80;
        set_rcode(&mut message, rcode);
        deny_record_only(&mut message);
        assert_eq!(rcode_of(&message), expected);
        assert_eq!(message[3] & 0xf0, 0x80);
    }
}

#[test]
fn a_host_becomes_a_question_if_it_can() {
    let query = Query::for_host("Api.example.com.", RecordType::A).unwrap();
    assert_eq!(query.host().as_deref(), Some("api.example.com"));
    let long_label = "x".repeat(64);
    let long_name = ["x".repeat(63).as_str(); 5].join(".");
    for host in ["", ".", "a..b", ".a", &long_label, &long_name] {
        assert_eq!(Query::for_host(host, RecordType::A), None, "{host}");
    }
}

/// Bytes that are nearly a message: more of them get past the first checks than of any bytes.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let message = with_edns(query("echo.shop.svc.cluster.local", TYPE::A), 1232, 0, 0);
    let changes = prop::collection::vec((0..message.len(), any::<u8>()), 0..6);
    (
        changes,
        0..=message.len(),
        prop::collection::vec(any::<u8>(), 0..40),
    )
        .prop_map(move |(changes, length, tail)| {
            let mut message = message.clone();
            for (at, byte) in changes {
                message[at] = byte;
            }
            message.truncate(length);
            message.extend(tail);
            message
        })
}

fn exercise(message: &[u8]) {
    match Query::parse(message) {
        Ok(query) => {
            query.host();
            query.shown_name();
            query.leading_labels(3);
            is_response_to(&query, 0x1234, message);
        }
        Err(error) => {
            if let Some(rcode) = error.rcode() {
                let refusal = refuse_unreadable(message, rcode).unwrap();
                assert_eq!(refusal.len(), HEADER);
                assert_eq!(refusal[..2], message[..2]);
            }
        }
    }
    addresses_in(message, Family::V4);
    addresses_in(message, Family::V6);
    let asked = parsed(&query("echo.shop", TYPE::A));
    is_response_to(&asked, 0, message);
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        exercise(&bytes);
    }

    #[test]
    fn no_damaged_message_panics(message in damaged()) {
        exercise(&message);
    }

    #[test]
    fn what_another_library_writes_is_read_as_it_was_meant(
        labels in prop::collection::vec("[a-zA-Z0-9_-]{1,20}", 1..8),
        payload in any::<u16>(),
    ) {
        let name = labels.join(".");
        let query = parsed(&with_edns(query(&name, TYPE::SRV), payload, 0, 0));
        prop_assert_eq!(query.host(), Some(name.to_ascii_lowercase()));
        prop_assert_eq!(query.edns.map(|edns| edns.payload), Some(payload));
        prop_assert_eq!(query.family(), None);
    }
}
