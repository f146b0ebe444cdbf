// SPDX-License-Identifier: Apache-2.0
//! gRPC messages, counted as they pass. Pure.
//!
//! Each begins with a byte of flags and four of its length (gRPC over HTTP/2, "Length-Prefixed-Message"), wherever the
//! pieces of the body are cut.

use std::sync::atomic::{AtomicU64, Ordering};

/// What passed in one direction.
#[derive(Debug, Default)]
pub struct Messages {
    count: u64,
    /// The head of the one that is about to begin, as far as it was seen.
    head: [u8; HEAD],
    seen: usize,
    /// What of the one that has begun is still to come.
    left: u64,
}

const HEAD: usize = 5;

impl Messages {
    /// Those whose heads have passed.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The next piece of the body.
    pub fn pass(&mut self, mut piece: &[u8]) {
        while !piece.is_empty() {
            let skipped =
                usize::try_from(self.left).map_or(piece.len(), |left| left.min(piece.len()));
            self.left -= skipped as u64;
            piece = &piece[skipped..];
            let taken = piece.len().min(HEAD - self.seen);
            let (head, rest) = piece.split_at(taken);
            self.head[self.seen..self.seen + taken].copy_from_slice(head);
            self.seen += taken;
            piece = rest;
            if self.seen == HEAD {
                let [_flags, a, b, c, d] = self.head;
                (self.left, self.seen) = (u32::from_be_bytes([a, b, c, d]).into(), 0);
                self.count += 1;
            }
        }
    }
}

/// What a client has sent of its body so far, counted where the body passes, read where the request ends.
#[derive(Debug)]
pub struct Received {
    bytes: AtomicU64,
    messages: AtomicU64,
    is_grpc: bool,
}

impl Received {
    /// Nothing yet; messages are counted of gRPC alone.
    pub fn new(is_grpc: bool) -> Self {
        Self {
            bytes: AtomicU64::new(0),
            messages: AtomicU64::new(0),
            is_grpc,
        }
    }

    /// Bytes that somebody else has counted.
    pub fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The next piece of the body.
    pub fn pass(&self, piece: &[u8], messages: &mut Messages) {
        self.add(piece.len() as u64);
        if self.is_grpc {
            messages.pass(piece);
            self.messages.store(messages.count(), Ordering::Relaxed);
        }
    }

    /// All that passed.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// All whose heads passed.
    pub fn messages(&self) -> u64 {
        self.messages.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn body(sizes: &[usize]) -> Vec<u8> {
        let each = sizes.iter().flat_map(|size| {
            let mut message = vec![0];
            message.extend_from_slice(&u32::try_from(*size).unwrap().to_be_bytes());
            message.resize(HEAD + size, 7);
            message
        });
        each.collect()
    }

    proptest! {
        #[test]
        fn messages_are_counted_wherever_the_body_is_cut(
            sizes in prop::collection::vec(0usize..40, 0..12),
            piece in 1usize..30,
        ) {
            let mut messages = Messages::default();
            for piece in body(&sizes).chunks(piece) {
                messages.pass(piece);
            }
            prop_assert_eq!(messages.count(), sizes.len() as u64);
        }

        #[test]
        fn no_bytes_are_too_odd(pieces in prop::collection::vec(any::<Vec<u8>>(), 0..8)) {
            let mut messages = Messages::default();
            for piece in &pieces {
                messages.pass(piece);
            }
            let bytes: usize = pieces.iter().map(Vec::len).sum();
            prop_assert!(messages.count() <= (bytes / HEAD) as u64);
        }
    }
}
