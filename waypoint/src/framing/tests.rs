// SPDX-License-Identifier: Apache-2.0

use proptest::prelude::*;

use super::*;

const LONGEST: usize = 1024;

/// What each head is said to be, and the state behind it all.
fn follow<'b>(pieces: impl IntoIterator<Item = &'b [u8]>) -> (Vec<Verdict>, State) {
    let mut framing = Framing::new(LONGEST);
    let mut verdicts = Vec::new();
    for piece in pieces {
        framing.read(piece, |verdict| verdicts.push(verdict));
    }
    (verdicts, framing.state)
}

#[track_caller]
fn check(bytes: &str, verdicts: &[Verdict], state: State) {
    let expected = (verdicts.to_vec(), state);
    assert_eq!(follow([bytes.as_bytes()]), expected, "{bytes:?}");
    let single = bytes.as_bytes().chunks(1);
    assert_eq!(follow(single), expected, "{bytes:?} byte by byte");
}

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn heads_are_found_behind_bodies_of_every_kind() {
    let good = Ok(());
    check(GET, &[good], State::Head);
    check(&format!("{GET}\r\n{GET}"), &[good; 2], State::Head);
    check("GET / HTTP/1.1\r\nHost: a\r\n", &[], State::Head);
    let post = "POST / HTTP/1.1\r\nContent-Length: 28\r\n\r\n";
    // A body that looks like a request is none.
    check(&format!("{post}{GET}"), &[good], State::Body(28 - 27));
    check(&format!("{post}{GET}.{GET}"), &[good; 2], State::Head);
    let chunked = "POST / HTTP/1.1\r\ntransfer-encoding:chunked\r\n\r\n";
    check(
        &format!("{chunked}1B;x=\"y\"\r\n{GET}\r\n0\r\nx: y\r\n\r\n{GET}"),
        &[good; 2],
        State::Head,
    );
    check(&format!("{chunked}5\r\nab"), &[good], State::Chunk(5));
    check(&format!("{chunked}0\r\n"), &[good], State::Trailers(0));
}

#[test]
fn what_can_be_read_in_two_ways_ends_it() {
    for (headers, why) in [
        (
            "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
            Malformed::Lengths,
        ),
        (
            "transfer-encoding: chunked\r\ncontent-length: 3\r\n",
            Malformed::Lengths,
        ),
        (
            "Content-Length: 3\r\nContent-Length: 3\r\n",
            Malformed::Lengths,
        ),
        ("Content-Length: +3\r\n", Malformed::Lengths),
        ("Content-Length: 3, 3\r\n", Malformed::Lengths),
        ("Content-Length: 0x3\r\n", Malformed::Lengths),
        ("Content-Length:\r\n", Malformed::Lengths),
        (
            "Content-Length: 99999999999999999999\r\n",
            Malformed::Lengths,
        ),
        ("X: a\r\n b\r\n", Malformed::Fold),
        ("X: a\r\n\tContent-Length: 3\r\n", Malformed::Fold),
        ("X: a\n", Malformed::Line),
        ("X: a\rContent-Length: 3\r\n", Malformed::Line),
        ("X: a\0b\r\n", Malformed::Line),
        ("X\r\n", Malformed::Line),
    ] {
        let bytes = format!("POST / HTTP/1.1\r\nHost: a\r\n{headers}\r\n{GET}");
        check(&bytes, &[Err(why)], State::Lost);
        // And behind a good one.
        check(&format!("{GET}{bytes}"), &[Ok(()), Err(why)], State::Lost);
    }
    check("GET / HTTP/1.1\n\n", &[Err(Malformed::Line)], State::Lost);
}

#[test]
fn a_body_that_is_not_chunked_as_it_has_to_be_ends_it() {
    for body in [
        "\r\n",
        "x\r\n",
        "+5\r\n",
        "5 \r\n",
        "5\n",
        "-1\r\n",
        "10000000000000000\r\n",
        "5\r;\r\n",
        "ffffffffffffffff\r\n",
        "0\r\nx: a\n\r\n",
        "0\r\nx\0y: a\r\n",
    ] {
        let bytes = format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
        check(&bytes, &[Ok(())], State::Lost);
    }
    let long = format!("0;{}", "x".repeat(LONGEST_LINE));
    let bytes = format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{long}");
    assert_eq!(follow([bytes.as_bytes()]).1, State::Lost);
    let trailers = format!("x: {}\r\n", "y".repeat(1000)).repeat(20);
    let bytes = format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n{trailers}");
    assert_eq!(follow([bytes.as_bytes()]).1, State::Lost);
}

#[test]
fn an_endless_head_is_not_kept() {
    let mut framing = Framing::new(LONGEST);
    for _ in 0..10 {
        framing.read(&[b'a'; 1000], |_| panic!("no head has ended"));
    }
    assert_eq!((framing.state, framing.part.capacity()), (State::Lost, 0));
}

/// Bytes that make and break messages.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let parts = prop::sample::select(vec![
        "GET / HTTP/1.1\r\n",
        "Host: a\r\n",
        "Content-Length: 5\r\n",
        "Content-Length: 0\r\n",
        "Transfer-Encoding: chunked\r\n",
        "\r\n",
        "\n",
        "\r",
        "5\r\n",
        "0\r\n",
        "hello",
        " ",
        ":",
        "x: y\r\n",
        "\0",
    ]);
    prop::collection::vec(parts, 0..24).prop_map(|parts| parts.concat().into_bytes())
}

proptest! {
    #[test]
    fn pieces_say_what_the_whole_says(bytes in bytes(), cuts in prop::collection::vec(0..200_usize, 0..8)) {
        let mut cuts: Vec<_> = cuts.into_iter().filter(|cut| *cut <= bytes.len()).collect();
        cuts.sort_unstable();
        let mut pieces = Vec::new();
        let mut from = 0;
        for cut in cuts.into_iter().chain([bytes.len()]) {
            pieces.push(&bytes[from..cut]);
            from = cut;
        }
        prop_assert_eq!(follow(pieces), follow([&*bytes]));
    }
}

#[test]
fn a_head_that_is_too_long_is_none_however_it_comes() {
    let of = |length: usize| {
        let shortest = "GET / HTTP/1.1\r\nHost: a\r\nx: \r\n\r\n".len();
        let filled = "x".repeat(length - shortest);
        format!("GET / HTTP/1.1\r\nHost: a\r\nx: {filled}\r\n\r\n")
    };
    check(&of(LONGEST), &[Ok(())], State::Head);
    check(&of(LONGEST + 1), &[], State::Lost);
    check(&format!("{}{GET}", of(LONGEST + 1)), &[], State::Lost);
}
