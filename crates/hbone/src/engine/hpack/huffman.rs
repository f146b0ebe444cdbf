// SPDX-License-Identifier: Apache-2.0
//! The Huffman code of HPACK (RFC 7541 §5.2 and Appendix B): coded bytes in, text out.
//!
//! The code is canonical: shorter codes sort before longer ones, and those of one length follow the order of their
//! symbols. So the lengths are all that has to be written down; the tables come out of them when this is compiled.

use super::HpackError;

/// Symbols: the bytes and end-of-string.
const SYMBOLS: usize = 257;

const END_OF_STRING: u16 = 256;

/// Bits of the longest codes.
const LONGEST: usize = 30;

/// Codes up to this many bits are found with one look. Text for people rarely has longer ones.
const SHORT: usize = 10;

/// Bits of each symbol's code.
#[rustfmt::skip]
pub(super) const LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
     6, 10, 10, 12, 13,  6,  8, 11, 10, 10,  8, 11,  8,  6,  6,  6,
     5,  5,  5,  6,  6,  6,  6,  6,  6,  6,  7,  8, 15,  6, 12, 10,
    13,  6,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,
     7,  7,  7,  7,  7,  7,  7,  7,  8,  7,  8, 13, 19, 13, 14,  6,
    15,  5,  6,  5,  6,  5,  6,  6,  6,  5,  7,  7,  6,  6,  6,  5,
     6,  7,  6,  5,  5,  6,  7,  7,  7,  7,  7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];

static CODE: Code = Code::new();

/// Decodes `input` into `out`, in place of what was there.
pub(super) fn decode(mut input: &[u8], out: &mut Vec<u8>) -> Result<(), HpackError> {
    out.clear();
    // The shortest codes have five bits.
    out.reserve(input.len() * 8 / 5);
    // The bits not yet decoded, from the top; those below the `held` ones are zeros.
    let mut window = 0u64;
    let mut held = 0;
    loop {
        if held < 32 {
            if let Some((word, rest)) = input.split_first_chunk() {
                window |= u64::from(u32::from_be_bytes(*word)) << (32 - held);
                held += 32;
                input = rest;
            } else {
                for byte in std::mem::take(&mut input) {
                    window |= u64::from(*byte) << (56 - held);
                    held += 8;
                }
            }
        }
        if held == 0 {
            return Ok(());
        }
        // Padding is a prefix of end-of-string, which is all ones: with ones behind it, it reads as that symbol.
        let padded = window | (u64::MAX >> held);
        let (symbol, length) = CODE.first((padded >> 32) as u32);
        if length > held {
            return match held {
                _ if padded != u64::MAX => Err(HpackError::PaddingBits),
                8.. => Err(HpackError::PaddingLength),
                _ => Ok(()),
            };
        }
        out.push(u8::try_from(symbol).map_err(|_| HpackError::EndOfString)?);
        window <<= length;
        held -= length;
    }
}

struct Code {
    /// By the next bits: symbol and length, or length 0 where the code is longer.
    short: [(u8, u8); 1 << SHORT],
    /// By length: the codes of that length.
    long: [Range; LONGEST + 1],
    /// In the order of their codes.
    symbols: [u16; SYMBOLS],
}

/// Successive codes of one length.
#[derive(Clone, Copy)]
struct Range {
    first: u32,
    count: u32,
    /// Where the first one's symbol is in [`Code::symbols`].
    at: usize,
}

impl Code {
    const fn new() -> Self {
        const NONE: Range = Range {
            first: 0,
            count: 0,
            at: 0,
        };
        let mut code = Self {
            short: [(0, 0); 1 << SHORT],
            long: [NONE; LONGEST + 1],
            symbols: [0; SYMBOLS],
        };
        let mut next = 0;
        let mut at = 0;
        let mut length = 1;
        while length <= LONGEST {
            next <<= 1;
            code.long[length] = Range {
                first: next,
                count: 0,
                at,
            };
            let mut symbol = 0;
            while symbol < SYMBOLS {
                if LENGTHS[symbol] as usize == length {
                    code.symbols[at] = symbol as u16;
                    code.long[length].count += 1;
                    if length <= SHORT {
                        code.fill_short(next, length, symbol as u8);
                    }
                    at += 1;
                    next += 1;
                }
                symbol += 1;
            }
            length += 1;
        }
        assert!(
            at == SYMBOLS && next == 1 << LONGEST,
            "a code of these lengths is complete"
        );
        code
    }

    /// All that starts with the code finds the symbol.
    const fn fill_short(&mut self, code: u32, length: usize, symbol: u8) {
        let free = SHORT - length;
        let mut entry = 0;
        while entry < 1 << free {
            self.short[((code as usize) << free) + entry] = (symbol, length as u8);
            entry += 1;
        }
    }

    /// The symbol at the top of `window`, and its length.
    fn first(&self, window: u32) -> (u16, u32) {
        match self.short[(window >> (32 - SHORT)) as usize] {
            (_, 0) => self.first_long(window),
            (symbol, length) => (symbol.into(), length.into()),
        }
    }

    fn first_long(&self, window: u32) -> (u16, u32) {
        for length in SHORT + 1..=LONGEST {
            let range = self.long[length];
            let place = (window >> (32 - length)).wrapping_sub(range.first);
            if place < range.count {
                return (self.symbols[range.at + place as usize], length as u32);
            }
        }
        // Not reached, as the code is complete.
        (END_OF_STRING, LONGEST as u32)
    }
}
