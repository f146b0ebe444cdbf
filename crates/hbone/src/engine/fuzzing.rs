// SPDX-License-Identifier: Apache-2.0
//! The engine as a hostile peer reaches it: plaintext behind TLS, and records. Built for the fuzz targets only.

use std::time::{Duration, Instant};

use http::{Request, Response};

use super::flow::WindowLimits;
use super::intake::{Intake, Opened};
use super::outgoing::{LIMIT, Outgoing};
use super::record::{ContentType, HEADER, Opener, Sealer, TRAILER};
use super::secrets::{Suite, TrafficSecret};
use super::session::{Event, Limits, Role, Session};

/// Gives a peer's plaintext to one end, in pieces and at times that the input chooses, and plays the streams' users.
///
/// Whatever comes: no panic, and no more is queued for the peer than it may make us queue.
pub fn session(input: &[u8]) {
    let [how, pace, plain @ ..] = input else {
        return;
    };
    let role = if how & 1 == 0 {
        Role::Server
    } else {
        Role::Client
    };
    let mut out = Outgoing::new(Sealer::new(secret()), 1 << 24);
    let mut now = Instant::now();
    let limits = Limits {
        windows: WindowLimits {
            first: 65_535,
            most: 1 << 22,
            tunnel: 1 << 26,
            process: 1 << 28,
        },
        connection_window: 1 << 24,
        max_frame: 1 << 20,
        max_streams: 8,
        header_list: 16 * 1024,
    };
    let mut session: Session<()> = Session::new(role, limits, &mut out, now);
    let mut open = Vec::new();
    if role == Role::Client {
        for _ in 0..3 {
            let request = Request::connect("web.shop:80")
                .body(())
                .expect("a request of ours");
            open.push(session.open(&request, (), &mut out, now));
        }
    }
    let mut events = Vec::new();
    for piece in plain.chunks(usize::from(*pace) + 1) {
        now += Duration::from_millis(u64::from(how >> 4));
        let result = session.receive(piece, 0, now, &mut out, &mut events);
        for event in events.drain(..) {
            match event {
                Event::Request { slot, .. } => {
                    let mut response = Response::new(());
                    if how & 2 != 0 {
                        *response.status_mut() = http::StatusCode::FORBIDDEN;
                    }
                    session.respond(slot, &response, &mut out);
                    open.push(slot);
                }
                Event::Data { slot, at, length } => {
                    assert!(at + length <= piece.len());
                    session.taken(slot, length, 0, &mut out, now);
                }
                Event::Ended { slot } => session.finish(slot, &mut out),
                Event::Cut { slot } if how & 4 != 0 => {
                    open.retain(|kept| *kept != slot);
                    session.release(slot);
                }
                _ => {}
            }
        }
        for slot in &open {
            let most = session.send_room(*slot).min(out.room()).min(100);
            if most > 0 {
                let sent = session.send(*slot, most, &mut out, |places| Ok(places[0].len()));
                assert!(sent.is_ok());
            }
        }
        assert!(out.queued() < LIMIT + 256 * 1024);
        if how & 8 != 0 {
            out.finish_turn();
            let count = out.unsent().len();
            out.advance(count);
        }
        if let Err(violation) = result {
            session.go_away(violation.code(), &mut out);
            break;
        }
    }
    for slot in open {
        session.reset(slot, 8, &mut out);
        session.release(slot);
    }
    assert_eq!(session.held(), 0);
}

/// Seals what the input says into records of the types that it says, and reads them, or reads it raw.
pub fn records(input: &[u8]) {
    let [how, rest @ ..] = input else {
        return;
    };
    let mut sealer = Sealer::new(secret());
    let mut wire = Vec::new();
    if how & 1 == 0 {
        for part in rest.chunks(usize::from(how >> 1) + 2) {
            let (kind, content) = part.split_first().expect("a chunk is never empty");
            let kind = match kind % 3 {
                0 => ContentType::Alert,
                1 => ContentType::Handshake,
                _ => ContentType::ApplicationData,
            };
            let start = wire.len();
            wire.resize(start + HEADER, 0);
            wire.extend_from_slice(content);
            wire.resize(wire.len() + TRAILER, 0);
            sealer.seal(&mut wire[start..], kind);
            if kind == ContentType::Handshake && content.starts_with(&[24]) {
                sealer.update();
            }
        }
    } else {
        wire.extend_from_slice(rest);
    }
    let mut intake = Intake::new(Opener::new(secret()), &[], how & 2 == 0);
    for piece in wire.chunks(1000) {
        let space = intake.space();
        let room = space.len();
        assert!(room >= piece.len());
        space[..piece.len()].copy_from_slice(piece);
        intake.filled(piece.len(), room);
        loop {
            match intake.next() {
                Ok(Some(Opened::Data(range))) => {
                    let _ = intake.plain(range);
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}

fn secret() -> TrafficSecret {
    TrafficSecret::new(Suite::Aes128GcmSha256, &[7; 32]).expect("a secret of the right length")
}
