// SPDX-License-Identifier: Apache-2.0
//! Fields as the plainest HPACK: indexes into the static table where it has the name or all of the field, the rest
//! as it is.
//!
//! A tunnel's fields differ from stream to stream or are few, so that a dynamic table would cost more than it saves,
//! and blocks that leave no trace can be written in any order and thrown away.

use super::table::{STATIC, STATIC_PSEUDO};

/// Writes field blocks.
pub(crate) struct Encoder;

impl Encoder {
    /// Opens the first block of a connection, and that one only: says that our dynamic table has size 0.
    ///
    /// Otherwise a peer whose SETTINGS make the table smaller than the default could insist on a size update in the
    /// next block (RFC 7541 §4.2); from size 0 there is nothing to shrink.
    pub(crate) fn first_block(out: &mut Vec<u8>) {
        integer(out, 0x20, 5, 0);
    }

    /// Appends a field to a block; `name` in lower case.
    pub(crate) fn field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        match known(name, value) {
            Known::Field(index) => integer(out, 0x80, 7, index),
            Known::Name(index) => {
                integer(out, 0, 4, index);
                string(out, value);
            }
            Known::Nothing => {
                integer(out, 0, 4, 0);
                string(out, name);
                string(out, value);
            }
        }
    }
}

/// What the static table has of a field, with the index.
enum Known {
    Field(usize),
    Name(usize),
    Nothing,
}

fn known(name: &[u8], value: &[u8]) -> Known {
    let (pseudo, other) = STATIC.split_at(STATIC_PSEUDO);
    let (entries, first) = match name.first() {
        Some(b':') => (pseudo, 1),
        _ => (other, 1 + STATIC_PSEUDO),
    };
    let named = |entry: &&(&str, &str)| entry.0.as_bytes() == name;
    let Some(at) = entries.iter().position(|entry| named(&entry)) else {
        return Known::Nothing;
    };
    // Entries of one name follow each other.
    let mut same_name = entries[at..].iter().take_while(named);
    match same_name.position(|entry| entry.1.as_bytes() == value) {
        Some(further) => Known::Field(first + at + further),
        None => Known::Name(first + at),
    }
}

fn string(out: &mut Vec<u8>, text: &[u8]) {
    integer(out, 0, 7, text.len());
    out.extend_from_slice(text);
}

/// Appends `value` after the bits of `pattern`, with `prefix` bits in the first byte (RFC 7541 §5.1).
fn integer(out: &mut Vec<u8>, pattern: u8, prefix: u32, value: usize) {
    let mask = (1u8 << prefix) - 1;
    match u8::try_from(value) {
        Ok(small) if small < mask => out.push(pattern | small),
        _ => {
            out.push(pattern | mask);
            let mut rest = value - usize::from(mask);
            while rest >= 0x80 {
                out.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            out.push(rest as u8);
        }
    }
}
