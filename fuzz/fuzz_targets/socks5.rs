// SPDX-License-Identifier: Apache-2.0
//! What an application says to the SOCKS5 port: the first byte is how many bytes come at a time, the rest is said.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ztunnel::socks5::{Handshake, Progress, Target, Violation};

/// What came of it, and how many bytes were not touched.
fn listen(said: &[u8], piece: usize) -> (Result<Option<Target>, Violation>, usize) {
    let mut handshake = Handshake::default();
    let mut rest = said;
    loop {
        let room = handshake.room();
        let count = room.len().min(piece).min(rest.len());
        if count == 0 {
            assert!(rest.is_empty(), "it waits and yet has no room");
            return (Ok(None), 0);
        }
        let (now, later) = rest.split_at(count);
        room[..count].copy_from_slice(now);
        rest = later;
        match handshake.filled(count) {
            Ok(Progress::More | Progress::Greeted) => {}
            Ok(Progress::Asked(target)) => return (Ok(Some(target)), rest.len()),
            Err(violation) => {
                let answer = violation.answer();
                assert!(answer.len() == 2 || answer.len() == 10);
                assert_ne!(answer[1], 0, "it is no success");
                assert!(handshake.room().is_empty(), "it is over");
                return (Err(violation), rest.len());
            }
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((piece, said)) = data.split_first() else {
        return;
    };
    let (found, left) = listen(said, usize::from(*piece).max(1));
    let (whole, untouched) = listen(said, usize::MAX);
    assert_eq!(found, whole);
    let Ok(Some(target)) = found else { return };
    assert_eq!(left, untouched);
    // Asked for as it was understood, it is understood the same.
    let (address, port) = match &target {
        Target::Address(address) => (address.ip().to_string(), address.port()),
        Target::Host(host, port) => (host.to_string(), *port),
    };
    let length = u8::try_from(address.len()).expect("names have 255 bytes at most");
    let mut again = vec![5, 1, 0, 5, 1, 0, 3, length];
    again.extend_from_slice(address.as_bytes());
    again.extend_from_slice(&port.to_be_bytes());
    assert_eq!(listen(&again, 3), (Ok(Some(target)), 0));
});
