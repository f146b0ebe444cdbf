// SPDX-License-Identifier: Apache-2.0
//! A scripted peer against one end: each breach of RFC 9113 has its answer, and nothing else is disturbed.

use super::super::frame::ACK;
use super::super::record::{HEADER, Opener, Sealer, length};
use super::super::secrets::{Suite, TrafficSecret};
use super::*;

const KIB: u32 = 1024;

fn secret() -> TrafficSecret {
    TrafficSecret::new(Suite::Aes128GcmSha256, &[5; 32]).unwrap()
}

/// One end, and what it says.
struct End {
    session: Session<()>,
    out: Outgoing,
    opener: Opener,
    now: Instant,
    events: Vec<Event>,
}

/// A frame that the end has sent: kind, flags, stream, payload.
type Sent = (u8, u8, u32, Vec<u8>);

impl End {
    fn new(role: Role) -> Self {
        let now = Instant::now();
        let mut out = Outgoing::new(Sealer::new(secret()), 1 << 24);
        let limits = Limits {
            windows: WindowLimits {
                first: 64 * KIB,
                most: 4096 * KIB,
                tunnel: 1 << 26,
                process: 1 << 30,
            },
            connection_window: 1024 * KIB,
            max_frame: 256 * KIB,
            max_streams: 2,
            header_list: 8 * KIB,
        };
        let session = Session::new(role, limits, &mut out, now);
        Self {
            session,
            out,
            opener: Opener::new(secret()),
            now,
            events: Vec::new(),
        }
    }

    /// A server that has exchanged settings, and a client with one open stream.
    fn server() -> Self {
        let mut end = Self::new(Role::Server);
        end.hear(PREFACE).unwrap();
        end.hear(&frame(4, 0, 0, &[])).unwrap();
        end.hear(&frame(4, ACK, 0, &[])).unwrap();
        end.said();
        end.events.clear();
        end
    }

    fn client() -> (Self, Slot) {
        let mut end = Self::new(Role::Client);
        end.hear(&frame(4, 0, 0, &[])).unwrap();
        end.hear(&frame(4, ACK, 0, &[])).unwrap();
        let request = Request::connect("10.0.0.1:80").body(()).unwrap();
        let slot = end.session.open(&request, (), &mut end.out, end.now);
        end.said();
        end.events.clear();
        (end, slot)
    }

    fn hear(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        self.session
            .receive(bytes, 0, self.now, &mut self.out, &mut self.events)
    }

    /// Opens a stream as a client would, and answers it.
    fn accept(&mut self, id: u32) -> Slot {
        self.hear(&request(id)).unwrap();
        let Some(Event::Request { slot, .. }) = self.events.pop() else {
            panic!("no request");
        };
        self.session
            .respond(slot, &Response::new(()), &mut self.out);
        self.said();
        slot
    }

    /// All frames said since the last call.
    fn said(&mut self) -> Vec<Sent> {
        self.out.finish_turn();
        let mut bytes = self.out.unsent().to_vec();
        self.out.advance(bytes.len());
        let mut plain = Vec::new();
        let mut rest = &mut bytes[..];
        while let Some(size) = length(rest).unwrap() {
            let (record, tail) = rest.split_at_mut(size);
            let (_, end) = self.opener.open(record).unwrap();
            plain.extend_from_slice(&record[HEADER..HEADER + end]);
            rest = tail;
        }
        let mut plain = plain.strip_prefix(PREFACE).unwrap_or(&plain);
        let mut frames = Vec::new();
        while !plain.is_empty() {
            let header = FrameHeader::decode(plain.first_chunk().unwrap());
            let end = 9 + header.length as usize;
            let kind = header.kind.unwrap() as u8;
            frames.push((kind, header.flags, header.stream, plain[9..end].to_vec()));
            plain = &plain[end..];
        }
        frames
    }

    fn resets(&mut self) -> Vec<(u32, u32)> {
        self.said()
            .into_iter()
            .filter(|(kind, ..)| *kind == 3)
            .map(|(_, _, id, code)| (id, u32::from_be_bytes(code.try_into().unwrap())))
            .collect()
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        Encoder::field(&mut block, name.as_bytes(), value.as_bytes());
    }
    block
}

fn request(id: u32) -> Vec<u8> {
    let fields = [(":method", "CONNECT"), (":authority", "10.0.0.1:80")];
    frame(1, END_HEADERS, id, &block(&fields))
}

fn answer(id: u32, status: &str) -> Vec<u8> {
    frame(1, END_HEADERS, id, &block(&[(":status", status)]))
}

#[test]
fn breaches_end_the_connection_with_their_code() {
    let update = |credit: u32| credit.to_be_bytes();
    let cases: &[(&str, Vec<u8>, u32)] = &[
        (
            "DATA of an idle stream",
            frame(0, 0, 9, b"x"),
            code::PROTOCOL_ERROR,
        ),
        (
            "DATA of no stream",
            frame(0, 0, 0, b"x"),
            code::PROTOCOL_ERROR,
        ),
        (
            "HEADERS of no stream",
            frame(1, END_HEADERS, 0, &block(&[])),
            code::PROTOCOL_ERROR,
        ),
        ("an even stream", request(2), code::PROTOCOL_ERROR),
        (
            "a broken field block",
            frame(1, END_HEADERS, 5, &[0xff; 8]),
            code::COMPRESSION_ERROR,
        ),
        (
            "padding beyond the payload",
            frame(1, END_HEADERS | 8, 5, &[9, 1]),
            code::PROTOCOL_ERROR,
        ),
        (
            "a frame inside a block",
            [frame(1, 0, 5, &[]), frame(6, 0, 0, &[0; 8])].concat(),
            code::PROTOCOL_ERROR,
        ),
        (
            "DATA inside a block",
            [frame(1, 0, 5, &[]), frame(0, 0, 1, b"x")].concat(),
            code::PROTOCOL_ERROR,
        ),
        (
            "an unknown frame inside a block",
            [frame(1, 0, 5, &[]), frame(99, 0, 0, &[])].concat(),
            code::PROTOCOL_ERROR,
        ),
        (
            "CONTINUATION alone",
            frame(9, END_HEADERS, 1, &[]),
            code::PROTOCOL_ERROR,
        ),
        (
            "CONTINUATION of another",
            [frame(1, 0, 5, &[]), frame(9, 4, 7, &[])].concat(),
            code::PROTOCOL_ERROR,
        ),
        (
            "PRIORITY of no stream",
            frame(2, 0, 0, &[0; 5]),
            code::PROTOCOL_ERROR,
        ),
        (
            "RST_STREAM of an idle stream",
            frame(3, 0, 9, &[0; 4]),
            code::PROTOCOL_ERROR,
        ),
        (
            "a short RST_STREAM",
            frame(3, 0, 1, &[0; 3]),
            code::FRAME_SIZE_ERROR,
        ),
        (
            "SETTINGS of a stream",
            frame(4, 0, 1, &[]),
            code::PROTOCOL_ERROR,
        ),
        (
            "SETTINGS of odd length",
            frame(4, 0, 0, &[0; 5]),
            code::FRAME_SIZE_ERROR,
        ),
        (
            "an ACK with payload",
            frame(4, ACK, 0, &[0; 6]),
            code::FRAME_SIZE_ERROR,
        ),
        (
            "a window beyond the largest",
            frame(4, 0, 0, &[0, 4, 0xff, 0xff, 0xff, 0xff]),
            code::FLOW_CONTROL_ERROR,
        ),
        (
            "PUSH_PROMISE",
            frame(5, 4, 1, &[0; 4]),
            code::PROTOCOL_ERROR,
        ),
        (
            "PING of a stream",
            frame(6, 0, 1, &[0; 8]),
            code::PROTOCOL_ERROR,
        ),
        (
            "a short PING",
            frame(6, 0, 0, &[0; 7]),
            code::FRAME_SIZE_ERROR,
        ),
        (
            "GOAWAY of a stream",
            frame(7, 0, 1, &[0; 8]),
            code::PROTOCOL_ERROR,
        ),
        (
            "a short GOAWAY",
            frame(7, 0, 0, &[0; 7]),
            code::FRAME_SIZE_ERROR,
        ),
        (
            "WINDOW_UPDATE of nothing",
            frame(8, 0, 0, &update(0)),
            code::PROTOCOL_ERROR,
        ),
        (
            "WINDOW_UPDATE of an idle stream",
            frame(8, 0, 9, &update(1)),
            code::PROTOCOL_ERROR,
        ),
        (
            "a short WINDOW_UPDATE",
            frame(8, 0, 0, &[0; 3]),
            code::FRAME_SIZE_ERROR,
        ),
        (
            "the connection's window overrun",
            frame(8, 0, 0, &update((1 << 31) - 1)),
            code::FLOW_CONTROL_ERROR,
        ),
        (
            "a frame beyond our limit",
            frame(0, 0, 1, &vec![0; 300 * 1024]),
            code::FRAME_SIZE_ERROR,
        ),
    ];
    for (what, bytes, code) in cases {
        let mut end = End::server();
        end.accept(1);
        let violation = end.hear(bytes).expect_err(what);
        assert_eq!(violation.code(), *code, "{what}: {violation}");
    }
}

#[test]
fn the_first_words_must_be_http_2() {
    let mut end = End::new(Role::Server);
    assert!(end.hear(b"GET / HTTP/1.1\r\n\r\n").is_err());
    let mut end = End::new(Role::Server);
    end.hear(PREFACE).unwrap();
    assert!(
        end.hear(&frame(6, 0, 0, &[0; 8])).is_err(),
        "SETTINGS come first"
    );
    let mut end = End::new(Role::Server);
    for byte in PREFACE {
        end.hear(&[*byte]).unwrap();
    }
    end.hear(&frame(4, 0, 0, &[])).unwrap();
    assert!(
        end.said()
            .iter()
            .any(|(kind, flags, ..)| (*kind, *flags) == (4, ACK))
    );
}

#[test]
fn breaches_on_a_stream_cut_that_stream_alone() {
    let over = vec![0; 65 * 1024];
    let cases: &[(&str, Vec<u8>, u32)] = &[
        (
            "HEADERS on a connected stream",
            request(1),
            code::PROTOCOL_ERROR,
        ),
        (
            "DATA behind END_STREAM",
            [frame(0, 1, 1, b"x"), frame(0, 0, 1, b"y")].concat(),
            code::STREAM_CLOSED,
        ),
        (
            "more DATA than the window",
            frame(0, 0, 1, &over),
            code::FLOW_CONTROL_ERROR,
        ),
        (
            "WINDOW_UPDATE of nothing",
            frame(8, 0, 1, &[0; 4]),
            code::PROTOCOL_ERROR,
        ),
        (
            "its window overrun",
            frame(8, 0, 1, &[0x7f, 0xff, 0xff, 0xff]),
            code::FLOW_CONTROL_ERROR,
        ),
        (
            "a PRIORITY of odd length",
            frame(2, 0, 1, &[0; 4]),
            code::FRAME_SIZE_ERROR,
        ),
    ];
    for (what, bytes, code) in cases {
        let mut end = End::server();
        let slot = end.accept(1);
        let other = end.accept(3);
        end.hear(bytes).unwrap();
        assert_eq!(end.resets(), [(1, *code)], "{what}");
        assert!(end.session.entry(slot).cut().is_some(), "{what}");
        assert!(
            end.events
                .iter()
                .any(|event| matches!(event, Event::Cut { slot: cut } if *cut == slot)),
            "{what}"
        );
        assert!(end.session.entry(other).cut().is_none(), "{what}");
    }
}

#[test]
fn malformed_requests_are_reset_and_long_ones_told_so() {
    let cases: &[&[(&str, &str)]] = &[
        &[(":authority", "a:1")],
        &[
            (":method", "CONNECT"),
            (":authority", "a:1"),
            (":path", "/"),
        ],
        &[(":method", "CONNECT"), (":method", "CONNECT")],
        &[(":method", "CONNECT"), (":strange", "x")],
        &[("x", "y"), (":method", "CONNECT")],
        &[(":method", "CONNECT"), ("connection", "close")],
        &[(":method", "CONNECT"), ("Upper", "case")],
        &[(":method", "CONNECT"), ("x", "line\nbreak")],
        &[(":method", "CONNECT"), (":status", "200")],
    ];
    for fields in cases {
        let mut end = End::server();
        end.hear(&frame(1, END_HEADERS, 1, &block(fields))).unwrap();
        assert_eq!(end.resets(), [(1, code::PROTOCOL_ERROR)], "{fields:?}");
        assert!(end.events.is_empty(), "{fields:?}");
    }
    let mut end = End::server();
    let long = "x".repeat(9000);
    let fields = [(":method", "CONNECT"), (":authority", "a:1"), ("x", &long)];
    end.hear(&frame(1, END_HEADERS, 1, &block(&fields)))
        .unwrap();
    let said = end.said();
    assert_eq!(
        (said[0].0, said[0].1 & END_STREAM),
        (1, END_STREAM),
        "431 ends the stream"
    );
    assert_eq!(said[1].0, 3);
}

#[test]
fn no_more_streams_than_announced_and_none_refused_without_a_word() {
    let mut end = End::server();
    let first = end.accept(1);
    end.accept(3);
    end.hear(&request(5)).unwrap();
    assert_eq!(end.resets(), [(5, code::REFUSED_STREAM)]);
    // A place is free once the stream has ended both ways and its user has let go.
    end.hear(&frame(0, END_STREAM, 1, &[])).unwrap();
    end.session.finish(first, &mut end.out);
    end.session.release(first);
    end.said();
    end.events.clear();
    end.accept(7);
}

#[test]
fn streams_that_are_given_up_still_count_while_they_keep_us_busy() {
    let mut end = End::server();
    let mut id = 1;
    for _ in 0..4 {
        end.hear(&request(id)).unwrap();
        end.hear(&frame(3, 0, id, &[0, 0, 0, 8])).unwrap();
        id += 2;
    }
    assert_eq!(end.resets(), []);
    end.hear(&request(id)).unwrap();
    assert_eq!(end.resets(), [(id, code::REFUSED_STREAM)]);
}

#[test]
fn floods_end_the_connection() {
    let rapid = |n: u32| [request(2 * n + 1), frame(3, 0, 2 * n + 1, &[0, 0, 0, 8])].concat();
    let mut end = End::server();
    let result = (0..30_000).try_for_each(|n| {
        end.hear(&rapid(n))?;
        for event in std::mem::take(&mut end.events) {
            if let Event::Cut { slot } = event {
                end.session.release(slot);
            }
        }
        end.said();
        Ok::<_, Violation>(())
    });
    assert_eq!(result.unwrap_err().code(), code::ENHANCE_YOUR_CALM);

    let mut end = End::server();
    let ping = frame(6, 0, 0, &[0; 8]);
    let result = (0..100_000).try_for_each(|_| end.hear(&ping));
    assert_eq!(
        result.unwrap_err().code(),
        code::ENHANCE_YOUR_CALM,
        "answers that are never read"
    );
    assert!(end.out.queued() < 1 << 20);

    let mut end = End::server();
    let endless = [frame(1, 0, 1, &[]), frame(9, 0, 1, &[]).repeat(100)].concat();
    assert_eq!(
        end.hear(&endless).unwrap_err().code(),
        code::ENHANCE_YOUR_CALM
    );
}

#[test]
fn empty_data_is_borne() {
    let mut end = End::server();
    end.accept(1);
    end.hear(&frame(0, 0, 1, &[]).repeat(100_000)).unwrap();
}

#[test]
fn padding_is_credited_and_never_delivered() {
    let mut end = End::server();
    end.accept(1);
    let mut payload = vec![200];
    payload.extend(b"data");
    payload.extend([0; 200]);
    for _ in 0..1000 {
        end.hear(&frame(0, 8, 1, &payload)).unwrap();
        for event in std::mem::take(&mut end.events) {
            let Event::Data { slot, length, .. } = event else {
                panic!("{event:?}");
            };
            assert_eq!(length, 4);
            end.session.taken(slot, length, 0, &mut end.out, end.now);
        }
    }
    assert!(
        end.said()
            .iter()
            .any(|(kind, _, id, _)| (*kind, *id) == (8, 1))
    );
}

#[test]
fn a_stream_waits_for_the_peer_s_window_and_settings_may_make_it_negative() {
    let (mut end, slot) = End::client();
    end.hear(&answer(1, "200")).unwrap();
    assert_eq!(end.session.send_room(slot), 65_535);
    let all = |places: &mut [IoSliceMut<'_>]| Ok(places.iter().map(|place| place.len()).sum());
    assert_eq!(
        end.session.send(slot, 50_000, &mut end.out, all).unwrap(),
        50_000
    );
    end.hear(&frame(4, 0, 0, &[0, 4, 0, 0, 0, 100])).unwrap();
    assert_eq!(end.session.send_room(slot), 0);
    end.events.clear();
    end.hear(&frame(8, 0, 1, &50_000u32.to_be_bytes())).unwrap();
    assert_eq!(end.session.send_room(slot), 100);
    assert!(matches!(end.events[..], [Event::Window { .. }]));
}

#[test]
fn answers_are_read_as_they_may_come() {
    let (mut end, slot) = End::client();
    end.hear(&answer(1, "103")).unwrap();
    assert!(
        end.events
            .iter()
            .all(|event| !matches!(event, Event::Answer { .. }))
    );
    end.hear(&answer(1, "503")).unwrap();
    assert!(
        matches!(&end.events[..], [.., Event::Answer { response, .. }] if response.status() == 503)
    );
    // Trailers of a refusal are its end.
    end.hear(&frame(
        1,
        END_HEADERS | END_STREAM,
        1,
        &block(&[("x", "y")]),
    ))
    .unwrap();
    assert_eq!(end.session.entry(slot).receiving(), Receiving::Ended);
    assert_eq!(end.resets(), []);

    for fields in [
        &[("x", "y")][..],
        &[(":status", "20")],
        &[(":status", "200"), (":method", "GET")],
    ] {
        let (mut end, _) = End::client();
        end.hear(&frame(1, END_HEADERS, 1, &block(fields))).unwrap();
        assert_eq!(end.resets(), [(1, code::PROTOCOL_ERROR)], "{fields:?}");
    }
    let (mut end, _) = End::client();
    end.hear(&frame(0, 0, 1, b"too early")).unwrap();
    assert_eq!(end.resets(), [(1, code::PROTOCOL_ERROR)]);
}

#[test]
fn what_a_leaving_peer_has_not_taken_is_cut_and_the_rest_goes_on() {
    let (mut end, first) = End::client();
    let request = Request::connect("10.0.0.1:80").body(()).unwrap();
    let second = end.session.open(&request, (), &mut end.out, end.now);
    end.hear(&frame(7, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]))
        .unwrap();
    assert_eq!(
        end.session.entry(second).cut(),
        Some(Cut::GoneAway { code: 0 })
    );
    assert_eq!(end.session.entry(first).cut(), None);
    assert!(!end.session.may_open());
    end.hear(&answer(1, "200")).unwrap();
    assert!(
        end.hear(&frame(7, 0, 0, &[0, 0, 0, 3, 0, 0, 0, 0]))
            .is_err(),
        "it can't take more than before"
    );
}

#[test]
fn a_drain_tells_first_and_refuses_later() {
    let mut end = End::server();
    let slot = end.accept(1);
    end.session.drain(&mut end.out);
    let said = end.said();
    assert_eq!(
        said[0].3[..4],
        [0x7f, 0xff, 0xff, 0xff],
        "nothing is refused yet"
    );
    // What the client had on its way is still taken.
    let second = end.accept(3);
    end.hear(&frame(6, ACK, 0, &said[1].3)).unwrap();
    assert_eq!(end.said()[0].3[..4], [0, 0, 0, 3]);
    end.hear(&request(5)).unwrap();
    assert_eq!(end.resets(), [(5, code::REFUSED_STREAM)]);
    assert!(!end.session.drained());
    for slot in [slot, second] {
        end.session.reset(slot, 0, &mut end.out);
        end.session.release(slot);
    }
    assert!(end.session.drained());
}

#[test]
fn a_released_stream_s_late_frames_harm_nobody() {
    let (mut end, slot) = End::client();
    end.hear(&answer(1, "200")).unwrap();
    // A DATA frame of which half has come when its stream is given up, and whose place goes to another.
    let data = frame(0, 0, 1, &[7; 1000]);
    end.hear(&data[..500]).unwrap();
    end.session.reset(slot, code::REFUSED_STREAM, &mut end.out);
    end.session.release(slot);
    let request = Request::connect("10.0.0.1:80").body(()).unwrap();
    let other = end.session.open(&request, (), &mut end.out, end.now);
    assert_eq!(other, slot, "the place is used again");
    end.events.clear();
    end.hear(&data[500..]).unwrap();
    assert!(end.events.is_empty(), "{:?}", end.events);
    end.hear(&frame(8, 0, 1, &[0, 0, 0, 9])).unwrap();
    end.hear(&frame(3, 0, 1, &[0; 4])).unwrap();
    assert!(end.session.entry(other).cut().is_none());
}
