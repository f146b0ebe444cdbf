// SPDX-License-Identifier: Apache-2.0
//! The bytes of a connection, as a waypoint follows them: heads and bodies of HTTP/1.1, or TLS's first message.
//!
//! The first two bytes say in which pieces they come; that must not matter.
#![no_main]

use libfuzzer_sys::fuzz_target;
use waypoint::framing::{Framing, Verdict};
use waypoint::hello::{Asked, Hello, LONGEST, NoTls};

const LONGEST_HEAD: usize = 4096;

fuzz_target!(|data: &[u8]| {
    let [first, then, bytes @ ..] = data else {
        return;
    };
    let (first, then) = (
        usize::from(*first).min(bytes.len()),
        usize::from(*then).max(1),
    );
    let (head, tail) = bytes.split_at(first);
    let pieces: Vec<&[u8]> = std::iter::once(head).chain(tail.chunks(then)).collect();

    let whole = heads(&[bytes]);
    assert_eq!(heads(&pieces), whole);
    // What is not read in one way is the last that is read.
    let bad = whole.iter().position(Result::is_err);
    assert!(bad.is_none_or(|at| at + 1 == whole.len()));

    let once = server(&[bytes]);
    // An error is told as soon as it is seen, in whatever words there are by then.
    assert_eq!(server(&pieces).ok(), once.ok());
});

fn heads(pieces: &[&[u8]]) -> Vec<Verdict> {
    let (mut framing, mut heads) = (Framing::new(LONGEST_HEAD), Vec::new());
    for piece in pieces {
        framing.read(piece, |verdict| heads.push(verdict));
    }
    heads
}

/// As a connection's reader does: nothing more once the message is there, or once it is too long.
fn server(pieces: &[&[u8]]) -> Result<Option<Asked>, NoTls> {
    let (mut hello, mut read) = (Hello::default(), 0);
    for piece in pieces {
        if let Some(asked) = hello.read(piece)? {
            return Ok(Some(asked));
        }
        read += piece.len();
        if read > LONGEST {
            break;
        }
    }
    Ok(None)
}
