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
        }
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
    fn receipts_depend_on_order() {
        let (mut a, mut b) = (Receipt::default(), Receipt::default());
        a.add(b"12");
        b.add(b"21");
        assert_ne!(a.text(), b.text());
    }
}
