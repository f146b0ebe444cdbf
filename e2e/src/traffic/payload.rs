// SPDX-License-Identifier: Apache-2.0
//! Bytes to send, and the checksum by which both ends agree that these came.

use xxhash_rust::xxh64::Xxh64;

/// An endless stream of bytes that both ends can tell.
#[derive(Debug, Clone)]
pub enum Payload {
    /// Looks random, so that nothing on the way can guess it.
    Random(u64),
    /// A text over and over, so that it is found on a wire that carries it in the clear.
    Marker { text: Vec<u8>, at: usize },
    /// The text again, each time with its number behind it, so that a piece in the wrong place is told from the right one.
    Numbered { text: Vec<u8>, at: u64 },
}

impl Payload {
    pub fn random(seed: u64) -> Self {
        Self::Random(seed | 1)
    }

    pub fn marker(text: &str) -> Self {
        Self::Marker {
            text: text.as_bytes().to_vec(),
            at: 0,
        }
    }

    pub fn numbered(text: &str) -> Self {
        Self::Numbered {
            text: text.as_bytes().to_vec(),
            at: 0,
        }
    }

    /// Fills a buffer with the next bytes.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        match self {
            Self::Random(state) => {
                for chunk in buffer.chunks_mut(8) {
                    // xorshift64: quick, and no two blocks alike.
                    *state ^= *state << 13;
                    *state ^= *state >> 7;
                    *state ^= *state << 17;
                    chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
                }
            }
            Self::Marker { text, at } => {
                for byte in buffer {
                    *byte = text.get(*at).copied().unwrap_or(b'.');
                    *at = if *at + 1 >= text.len() { 0 } else { *at + 1 };
                }
            }
            Self::Numbered { text, at } => fill_numbered(text, at, buffer),
        }
    }
}

/// Copies block by block: bytes one by one would cost more than all else.
fn fill_numbered(text: &[u8], at: &mut u64, buffer: &mut [u8]) {
    let length = text.len() as u64 + 8;
    let mut rest = buffer;
    while !rest.is_empty() {
        let mut block = text.to_vec();
        block.extend((*at / length).to_be_bytes());
        let within = usize::try_from(*at % length).unwrap_or_default();
        let piece = rest.len().min(block.len() - within);
        let (now, later) = rest.split_at_mut(piece);
        now.copy_from_slice(&block[within..within + piece]);
        *at += piece as u64;
        rest = later;
    }
}

/// Counts and sums bytes in the order they pass.
#[derive(Clone)]
pub struct Receipt {
    hash: Xxh64,
    bytes: u64,
}

impl Default for Receipt {
    fn default() -> Self {
        Self {
            hash: Xxh64::new(0),
            bytes: 0,
        }
    }
}

impl Receipt {
    pub fn add(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The count and the sum, as both ends print it.
    pub fn text(&self) -> String {
        format!("{} bytes, xxh64 {:016x}", self.bytes, self.hash.digest())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_repeats_across_buffers() {
        let mut payload = Payload::marker("abc");
        let mut buffer = [0; 4];
        payload.fill(&mut buffer);
        assert_eq!(&buffer, b"abca");
        payload.fill(&mut buffer);
        assert_eq!(&buffer, b"bcab");
    }

    #[test]
    fn numbered_blocks_are_the_same_however_they_are_cut() {
        let mut whole = [0; 100];
        Payload::numbered("abc").fill(&mut whole);
        assert_eq!(&whole[..14], b"abc\0\0\0\0\0\0\0\0abc");
        assert_eq!(whole[21], 1);
        let mut cut = Payload::numbered("abc");
        let mut pieces = Vec::new();
        for size in [1, 10, 11, 3, 40, 35] {
            let mut piece = vec![0; size];
            cut.fill(&mut piece);
            pieces.extend(piece);
        }
        assert_eq!(pieces, whole);
    }

    #[test]
    fn receipts_depend_on_order() {
        let (mut a, mut b) = (Receipt::default(), Receipt::default());
        a.add(b"12");
        b.add(b"21");
        assert_ne!(a.text(), b.text());
    }
}
