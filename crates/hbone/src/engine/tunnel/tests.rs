// SPDX-License-Identifier: Apache-2.0
//! A peer that says a great deal at once has its turn, and no more than that, before others have theirs.

use std::future::poll_fn;

use tokio::io::{AsyncWriteExt as _, DuplexStream};

use super::super::frame::{END_HEADERS, FrameHeader, Kind, PREFACE};
use super::super::record::{CONTENT, ContentType, HEADER, TRAILER};
use super::super::secrets::{Suite, TrafficSecret};
use super::super::session::fields;
use super::*;

/// Frames of the smallest kind that fill a record: as many as may be understood beyond a turn's end.
const RECORD: u64 = (CONTENT / 9) as u64;

fn secret() -> TrafficSecret {
    TrafficSecret::new(Suite::Aes128GcmSha256, &[5; 32]).unwrap()
}

/// A server whose peer has said all this, and the peer.
async fn hearing(frames: &[u8]) -> (Driver<DuplexStream>, DuplexStream) {
    let mut sealer = Sealer::new(secret());
    let mut wire = Vec::new();
    let opening = FrameHeader::new(Kind::Settings, 0, 0, 0).encode();
    let plain = [&PREFACE[..], &opening, frames].concat();
    for content in plain.chunks(CONTENT) {
        let start = wire.len();
        wire.resize(start + HEADER, 0);
        wire.extend_from_slice(content);
        wire.resize(wire.len() + TRAILER, 0);
        sealer.seal(&mut wire[start..], ContentType::ApplicationData);
    }
    let (io, mut peer) = tokio::io::duplex(wire.len().max(1 << 20));
    peer.write_all(&wire).await.unwrap();
    let secured = Secured {
        io,
        peer: "spiffe://cluster.local/ns/shop/sa/client".parse().unwrap(),
        standing: Standing::unconditional(),
        secrets: Secrets {
            client: secret(),
            server: secret(),
        },
        rest: Vec::new(),
    };
    let (driver, _) = Driver::new(Role::Server, secured, Farewell::Close, &Config::default());
    (driver, peer)
}

/// Polls once, and as often as there is a stream each time; tells how many there were, and whether that was the end.
async fn turn(driver: &mut Driver<DuplexStream>) -> usize {
    let mut streams = 0;
    poll_fn(|cx| {
        loop {
            match driver.poll_next(cx) {
                Poll::Ready(Next::Stream(..)) => streams += 1,
                Poll::Ready(Next::Ended(result)) => panic!("it ended: {result:?}"),
                Poll::Pending => return Poll::Ready(()),
            }
        }
    })
    .await;
    streams
}

fn heard(driver: &Driver<DuplexStream>) -> u64 {
    driver.link.lock().session.frames()
}

#[tokio::test]
async fn frames_that_say_nothing_end_a_turn_by_their_number_and_are_all_heard() {
    const COUNT: usize = 60_000;
    let priority = FrameHeader::new(Kind::Priority, 0, 1, 5).encode();
    let frames = [&priority[..], &[0; 5]].concat().repeat(COUNT);
    let (mut driver, _peer) = hearing(&frames).await;
    let (mut before, mut turns) = (0, 0);
    while before < COUNT as u64 + 1 {
        turn(&mut driver).await;
        let now = heard(&driver);
        assert!(now > before, "a turn without anything");
        assert!(
            now - before <= FRAMES + RECORD,
            "{} in a turn",
            now - before
        );
        (before, turns) = (now, turns + 1);
    }
    assert!(turns > 20, "{turns} turns");
}

/// Requests of so many streams, each followed by what comes after it on its stream.
fn requests(count: u32, and_then: impl Fn(u32) -> Vec<u8>) -> Vec<u8> {
    let mut block = Vec::new();
    let request = Request::connect("10.0.0.1:80").body(()).unwrap();
    fields::write_request(&request, &mut block);
    let mut frames = Vec::new();
    for number in 0..count {
        let id = 1 + 2 * number;
        frames.extend(FrameHeader::new(Kind::Headers, END_HEADERS, id, block.len()).encode());
        frames.extend_from_slice(&block);
        frames.extend(and_then(id));
    }
    frames
}

fn reset(id: u32) -> Vec<u8> {
    let mut frame = FrameHeader::new(Kind::RstStream, 0, id, 4)
        .encode()
        .to_vec();
    frame.extend(8_u32.to_be_bytes());
    frame
}

#[tokio::test]
async fn streams_end_a_turn_by_their_number_too() {
    const COUNT: u32 = 3000;
    let (mut driver, _peer) = hearing(&requests(COUNT, reset)).await;
    let mut turns = 0;
    while heard(&driver) < u64::from(2 * COUNT + 1) {
        let before = heard(&driver);
        turn(&mut driver).await;
        let now = heard(&driver);
        assert!(
            now - before <= FRAMES + RECORD,
            "{} in a turn",
            now - before
        );
        turns += 1;
    }
    assert!(turns > 2, "{turns} turns");
}

#[tokio::test]
async fn streams_given_up_in_the_turn_that_opened_them_are_nobodys_work_and_leave_nothing() {
    let odd_ones_stay = |id| if id % 4 == 1 { reset(id) } else { Vec::new() };
    let (mut driver, _peer) = hearing(&requests(100, odd_ones_stay)).await;
    assert_eq!(turn(&mut driver).await, 50);
    assert_eq!(driver.link.lock().session.held(), 50);
}

fn window(id: u32, more: u32) -> Vec<u8> {
    let mut frame = FrameHeader::new(Kind::WindowUpdate, 0, id, 4)
        .encode()
        .to_vec();
    frame.extend(more.to_be_bytes());
    frame
}

#[tokio::test]
async fn what_a_stream_may_queue_at_once_falls_with_the_number_of_senders_not_with_their_zeal() {
    const PART: usize = 64 * 1024;
    let frames = [window(0, 4 << 20), requests(2, |id| window(id, 2 << 20))].concat();
    let (mut driver, _peer) = hearing(&frames).await;
    assert_eq!(turn(&mut driver).await, 2);
    let link = driver.link.clone();
    let slots: Vec<Slot> = {
        let mut core = link.lock();
        core.session.users().map(|(slot, _)| slot).collect()
    };
    for slot in &slots {
        let core = &mut *link.lock();
        let answer = http::Response::new(());
        core.session.respond(*slot, &answer, &mut core.out);
    }
    turn(&mut driver).await;
    let send = |slot: Slot| {
        let sent = link.lock().send(slot, PART, |places| {
            Ok(places.iter().map(|place| place.len()).sum())
        });
        assert_eq!(sent.unwrap(), PART);
    };
    let room = |slot: Slot| {
        poll_fn({
            let link = link.clone();
            move |cx| link.lock().poll_room(slot, cx)
        })
    };
    for _ in 0..4 {
        send(slots[0]);
    }
    turn(&mut driver).await;
    assert_eq!(room(slots[0]).await, 4 * PART, "it was alone");
    slots.iter().copied().for_each(send);
    turn(&mut driver).await;
    assert_eq!(room(slots[0]).await, 2 * PART, "there were two");
}
