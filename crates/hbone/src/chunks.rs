// SPDX-License-Identifier: Apache-2.0
//! Bytes that came from a tunnel and wait for an application, in order.
//!
//! Large pieces stay as they came, small ones are merged, so that what is held is about what was received even if
//! each byte came in a frame of its own.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

/// Pieces below this size are merged once they have to wait.
const SMALL: usize = 4 * 1024;

/// A merged piece is closed at this size.
const MERGED: usize = 64 * 1024;

/// How many pieces one write takes at most.
pub(crate) const SLICES: usize = 32;

#[derive(Default)]
pub(crate) struct Chunks {
    whole: VecDeque<Bytes>,
    /// Comes after all of `whole`.
    merged: BytesMut,
    len: usize,
}

impl Chunks {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn push(&mut self, chunk: Bytes) {
        if chunk.is_empty() {
            return;
        }
        let first = self.is_empty();
        self.len += chunk.len();
        if first {
            self.whole.push_back(chunk);
        } else if chunk.len() < SMALL {
            self.merge(&chunk);
        } else {
            self.close_merged();
            self.whole.push_back(chunk);
        }
    }

    /// Fills `slices` from the front and says how many it filled.
    pub(crate) fn slices<'s>(&'s self, slices: &mut [IoSlice<'s>; SLICES]) -> usize {
        let last = (!self.merged.is_empty()).then_some(&self.merged[..]);
        let pieces = self.whole.iter().map(|chunk| &chunk[..]).chain(last);
        let mut filled = 0;
        for (slice, piece) in slices.iter_mut().zip(pieces) {
            *slice = IoSlice::new(piece);
            filled += 1;
        }
        filled
    }

    /// The first piece; empty if there is none.
    pub(crate) fn front(&self) -> &[u8] {
        self.whole
            .front()
            .map_or(&self.merged[..], |chunk| &chunk[..])
    }

    pub(crate) fn advance(&mut self, mut count: usize) {
        debug_assert!(count <= self.len);
        self.len -= count;
        while count > 0 {
            let Some(front) = self.whole.front_mut() else {
                self.merged.advance(count);
                break;
            };
            if front.len() > count {
                front.advance(count);
                break;
            }
            count -= front.len();
            self.whole.pop_front();
        }
        if self.is_empty() {
            // What a burst needed is not kept by a connection that may idle for days.
            self.merged = BytesMut::new();
            if self.whole.capacity() > SLICES {
                self.whole = VecDeque::new();
            }
        }
    }

    /// Called when the bytes have to wait: a small piece no longer keeps the large buffer alive that it came in.
    pub(crate) fn settle(&mut self) {
        if let [only] = self.whole.make_contiguous()
            && only.len() < SMALL
            && self.merged.len() < MERGED
        {
            let mut merged = BytesMut::with_capacity(only.len() + self.merged.len());
            merged.extend_from_slice(only);
            merged.extend_from_slice(&self.merged);
            self.merged = merged;
            self.whole.clear();
        }
    }

    fn merge(&mut self, chunk: &[u8]) {
        self.merged.extend_from_slice(chunk);
        if self.merged.len() >= MERGED {
            self.close_merged();
        }
    }

    fn close_merged(&mut self) {
        if !self.merged.is_empty() {
            self.whole
                .push_back(std::mem::take(&mut self.merged).freeze());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn drain(chunks: &mut Chunks, count: usize) -> Vec<u8> {
        let mut out = Vec::new();
        let mut slices = [IoSlice::new(&[]); SLICES];
        let filled = chunks.slices(&mut slices);
        for slice in &slices[..filled] {
            out.extend_from_slice(slice);
        }
        out.truncate(count);
        chunks.advance(out.len());
        out
    }

    #[test]
    fn a_million_single_bytes_are_held_in_few_pieces() {
        let mut chunks = Chunks::default();
        for _ in 0..1_000_000 {
            chunks.push(Bytes::from_static(b"x"));
        }
        assert_eq!(chunks.len(), 1_000_000);
        assert!(chunks.whole.len() <= 1_000_000 / MERGED + 2);
    }

    proptest! {
        #[test]
        fn order_and_count_are_kept(
            steps in proptest::collection::vec((0usize..10_000, 0usize..20_000, any::<bool>()), 1..60)
        ) {
            let mut chunks = Chunks::default();
            let mut expected = VecDeque::new();
            let mut next = 0u8;
            for (push, pull, settle) in steps {
                let piece: Vec<u8> = (0..push).map(|_| { next = next.wrapping_add(1); next }).collect();
                expected.extend(piece.iter().copied());
                chunks.push(piece.into());
                if settle {
                    chunks.settle();
                }
                prop_assert_eq!(chunks.len(), expected.len());
                prop_assert_eq!(chunks.front().first(), expected.front());
                for byte in drain(&mut chunks, pull) {
                    prop_assert_eq!(Some(byte), expected.pop_front());
                }
                prop_assert_eq!(chunks.len(), expected.len());
            }
            while !chunks.is_empty() {
                for byte in drain(&mut chunks, usize::MAX) {
                    prop_assert_eq!(Some(byte), expected.pop_front());
                }
            }
            prop_assert!(expected.is_empty());
        }
    }
}
