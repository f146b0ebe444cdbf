// SPDX-License-Identifier: Apache-2.0

use super::super::message::RecordType;
use super::*;

fn query(host: &str, id: u16) -> Query {
    let mut message = Query::for_host(host, RecordType::A)
        .unwrap()
        .bytes()
        .to_vec();
    message::set_id(&mut message, id);
    Query::parse(&message).unwrap()
}

fn record(record_type: u16, seconds: u32, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(data.len()).unwrap();
    let mut record = vec![0xc0, 0x0c];
    record.extend(record_type.to_be_bytes());
    record.extend([0, 1]);
    record.extend(seconds.to_be_bytes());
    record.extend(length.to_be_bytes());
    record.extend(data);
    record
}

fn address(seconds: u32) -> Vec<u8> {
    record(1, seconds, &[192, 0, 2, 1])
}

/// A zone whose absences hold for so long.
fn zone(seconds: u32, minimum: u32) -> Vec<u8> {
    let numbers = [1, 2, 3, 4, minimum].map(u32::to_be_bytes).concat();
    record(6, seconds, &[&[0, 0][..], &numbers].concat())
}

fn response(query: &Query, rcode: u8, answers: &[Vec<u8>], authorities: &[Vec<u8>]) -> Vec<u8> {
    let count = |records: &[Vec<u8>]| u16::try_from(records.len()).unwrap().to_be_bytes();
    let mut message = query.id().to_be_bytes().to_vec();
    message.extend([0x81, 0x80 | rcode, 0, 1]);
    message.extend(count(answers));
    message.extend(count(authorities));
    message.extend([0, 0]);
    message.extend(query.question());
    message.extend([answers.concat(), authorities.concat()].concat());
    message
}

/// For how many seconds a response is given again.
fn kept_for(response: &[u8]) -> u64 {
    let (asked, now) = (query("example.com", 1), Instant::now());
    let mut cache = Cache::default();
    cache.keep(&asked, Transport::Udp, response, now);
    let holds = |seconds: &u64| {
        let then = now + Duration::from_secs(*seconds) - Duration::from_millis(1);
        cache.response(&asked, Transport::Udp, then).is_some()
    };
    (1..100).take_while(holds).count() as u64
}

#[test]
fn a_response_is_given_again_with_the_id_of_the_query_and_what_is_left_of_its_life() {
    let (asked, now) = (query("example.com", 1), Instant::now());
    let answer = |id, first, second| {
        response(
            &query("example.com", id),
            0,
            &[address(first), address(second)],
            &[],
        )
    };
    let mut cache = Cache::default();
    cache.keep(&asked, Transport::Udp, &answer(1, 30, 50), now);
    let later = now + Duration::from_millis(12_900);
    let again = cache.response(&query("example.com", 7), Transport::Udp, later);
    assert_eq!(again, Some(answer(7, 18, 38)));
    let at = |seconds| now + Duration::from_secs(seconds);
    assert!(cache.response(&asked, Transport::Udp, at(29)).is_some());
    assert!(cache.response(&asked, Transport::Udp, at(30)).is_none());
    // Other words, another transport.
    assert!(
        cache
            .response(&query("Example.com", 1), Transport::Udp, now)
            .is_none()
    );
    assert!(cache.response(&asked, Transport::Tcp, now).is_none());
}

#[test]
fn each_kind_of_response_is_kept_for_as_long_as_it_says() {
    let asked = query("example.com", 1);
    let of = |rcode, answers: &[Vec<u8>], authorities: &[Vec<u8>]| {
        kept_for(&response(&asked, rcode, answers, authorities))
    };
    assert_eq!(of(0, &[address(5)], &[]), 5);
    assert_eq!(
        of(0, &[address(5)], &[zone(3, 1)]),
        3,
        "the shortest counts"
    );
    assert_eq!(of(0, &[address(9000)], &[]), 60, "no longer than the bound");
    assert_eq!(of(0, &[address(0)], &[]), 0);
    // There is no such name, or no such record.
    assert_eq!(of(3, &[], &[zone(20, 7)]), 7);
    assert_eq!(of(3, &[], &[zone(4, 7)]), 4);
    assert_eq!(of(0, &[], &[zone(20, 7)]), 7);
    assert_eq!(of(3, &[], &[]), 0, "nobody says for how long");
    // Failures.
    assert_eq!(of(2, &[], &[zone(20, 7)]), 0);
    assert_eq!(of(5, &[address(5)], &[]), 0);
}

#[test]
fn what_can_not_be_read_to_its_end_is_not_kept() {
    let whole = response(&query("example.com", 1), 0, &[address(5)], &[]);
    assert_eq!(kept_for(&whole), 5);
    for end in 0..whole.len() {
        assert_eq!(kept_for(&whole[..end]), 0, "{end} bytes");
    }
    assert_eq!(kept_for(&[&whole[..], &[0]].concat()), 0);
    let mut cut = whole;
    cut[2] |= 2;
    assert_eq!(kept_for(&cut), 0, "the server says that there is more");
}

#[test]
fn no_number_and_no_size_of_responses_goes_beyond_the_bounds() {
    let now = Instant::now();
    let mut cache = Cache::default();
    for number in 0..2 * MOST_ENTRIES {
        let asked = query(&format!("{number}.example.com"), 1);
        cache.keep(
            &asked,
            Transport::Udp,
            &response(&asked, 0, &[address(50)], &[]),
            now,
        );
    }
    assert_eq!(cache.entries.len(), MOST_ENTRIES);
    let first = query("0.example.com", 1);
    assert!(
        cache.response(&first, Transport::Udp, now).is_none(),
        "the oldest went"
    );
    let last = query(&format!("{}.example.com", 2 * MOST_ENTRIES - 1), 1);
    assert!(cache.response(&last, Transport::Udp, now).is_some());
    let many = vec![address(50); 200];
    for number in 0..100 {
        let asked = query(&format!("large{number}.example.com"), 1);
        cache.keep(
            &asked,
            Transport::Tcp,
            &response(&asked, 0, &many, &[]),
            now,
        );
        assert!(cache.bytes <= MOST_BYTES);
    }
    let sizes = cache.entries.iter().map(|(key, entry)| entry.size(key));
    assert_eq!(cache.bytes, sizes.sum::<usize>());
    assert_eq!(cache.order.len(), cache.entries.len());
    // The same once more takes no more room.
    let (before, count) = (cache.bytes, cache.entries.len());
    let again = query("large99.example.com", 1);
    cache.keep(
        &again,
        Transport::Tcp,
        &response(&again, 0, &many, &[]),
        now,
    );
    assert_eq!((cache.bytes, cache.entries.len()), (before, count));
}
