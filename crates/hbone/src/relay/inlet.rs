// SPDX-License-Identifier: Apache-2.0
//! Reads an application's socket into a buffer that exists only while there is something to read.
//!
//! How much is read at once grows while reads fill the buffer and shrinks while they don't. An idle connection holds
//! no buffer: each worker keeps one spare, which the connections borrow in turn.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::AsyncRead;
use tokio::net::TcpStream;
use tokio::net::tcp::ReadHalf;
use tokio_util::io::poll_read_buf;

/// What is read at once from a connection that says little.
const FIRST: usize = 16 * 1024;

/// What is read at once from one that is all bulk; also the most that a stalled direction holds here.
const MOST: usize = 256 * 1024;

/// A read of at least this much is one of bulk.
pub(super) const LARGE: usize = FIRST;

/// A read of less than this is none.
pub(super) const SMALL: usize = FIRST / 4;

/// Bytes of large reads, without a small one between them, that make a direction bulk.
const BULK: usize = 1024 * 1024;

thread_local! {
    static SPARE: Cell<Option<BytesMut>> = const { Cell::new(None) };
}

pub(crate) struct Inlet<'s> {
    pub(crate) half: ReadHalf<'s>,
    pub(crate) held: Held,
    size: usize,
    /// Bytes of large reads since the last small one.
    large: usize,
}

impl<'s> Inlet<'s> {
    pub(crate) fn new(half: ReadHalf<'s>) -> Self {
        Self {
            half,
            held: Held::default(),
            size: FIRST,
            large: 0,
        }
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        self.half.as_ref()
    }

    /// Whether so much has come in large reads that more of them are to be expected.
    pub(crate) fn is_bulk(&self) -> bool {
        self.large >= BULK
    }

    /// Begins to look for bulk anew.
    pub(crate) fn not_bulk(&mut self) {
        self.large = 0;
    }

    /// Reads what is there now, up to the present size. `Ok(0)` is the end.
    ///
    /// May only be called when nothing is held.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        debug_assert!(self.held.is_empty());
        ready!(self.half.as_ref().poll_read_ready(cx))?;
        let result = self.held.poll_fill(Pin::new(&mut self.half), self.size, cx);
        let Poll::Ready(Ok(count @ 1..)) = result else {
            return result;
        };
        if count == self.size {
            self.size = (self.size * 2).min(MOST);
        } else if count < self.size / 4 {
            self.size = (self.size / 2).max(FIRST);
        }
        if count >= LARGE {
            self.large = self.large.saturating_add(count);
        } else if count < SMALL {
            self.large = 0;
        }
        Poll::Ready(Ok(count))
    }
}

/// Bytes that were read and not yet sent on.
#[derive(Default)]
pub(crate) struct Held(BytesMut);

impl From<Bytes> for Held {
    fn from(bytes: Bytes) -> Self {
        Self(bytes.into())
    }
}

impl Held {
    /// Reads what is there now, up to `size`. `Ok(0)` is the end.
    ///
    /// May only be called when nothing is held.
    pub(crate) fn poll_fill<R: AsyncRead>(
        &mut self,
        reader: Pin<&mut R>,
        size: usize,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        debug_assert!(self.is_empty());
        let mut buffer = borrow(size);
        let result = poll_read_buf(reader, cx, &mut (&mut buffer).limit(size));
        match result {
            Poll::Ready(Ok(1..)) => self.0 = buffer,
            _ => give_back(buffer),
        }
        result
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.0
    }

    /// Forgets bytes that were written.
    pub(crate) fn advance(&mut self, count: usize) {
        bytes::Buf::advance(&mut self.0, count);
        self.give_back_if_empty();
    }

    /// Takes the first `count` bytes: the buffer itself when they fill a good part of it, else a copy, so that a
    /// few bytes in a queue never keep a large buffer alive.
    pub(crate) fn take(&mut self, count: usize) -> Bytes {
        if count * 4 < self.0.capacity() {
            let copy = Bytes::copy_from_slice(&self.0[..count]);
            self.advance(count);
            return copy;
        }
        let taken = self.0.split_to(count).freeze();
        if self.0.is_empty() {
            self.0 = BytesMut::new();
        }
        taken
    }

    /// Called when the bytes have to wait: keeps no more memory for them than they need.
    pub(crate) fn settle(&mut self) {
        if self.0.len() * 4 < self.0.capacity() {
            let small = BytesMut::from(&self.0[..]);
            give_back(std::mem::replace(&mut self.0, small));
        }
    }

    fn give_back_if_empty(&mut self) {
        if self.0.is_empty() {
            give_back(std::mem::take(&mut self.0));
        }
    }
}

fn borrow(size: usize) -> BytesMut {
    match SPARE.take() {
        Some(mut spare) => {
            spare.clear();
            // Takes the whole allocation back if it is large enough.
            spare.reserve(size);
            spare
        }
        None => BytesMut::with_capacity(size),
    }
}

fn give_back(buffer: BytesMut) {
    if buffer.capacity() <= MOST {
        SPARE.set(Some(buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(capacity: usize, bytes: &[u8]) -> Held {
        let mut buffer = BytesMut::with_capacity(capacity);
        buffer.extend_from_slice(bytes);
        Held(buffer)
    }

    #[test]
    fn a_few_bytes_do_not_keep_a_large_buffer_alive() {
        let mut few = held(MOST, b"few");
        assert_eq!(few.take(3), "few");
        assert!(SPARE.take().is_some(), "the buffer went back to the worker");

        let mut waiting = held(MOST, b"waiting");
        waiting.settle();
        assert!(waiting.0.capacity() < 64);
        assert_eq!(waiting.as_slice(), b"waiting");
    }

    #[test]
    fn bulk_is_handed_on_without_a_copy() {
        let bytes = vec![7; FIRST];
        let mut bulk = held(FIRST, &bytes);
        let start = bulk.as_slice().as_ptr();
        let taken = bulk.take(FIRST);
        assert_eq!(taken.as_ptr(), start);
        assert!(bulk.is_empty() && bulk.0.capacity() == 0);
    }

    #[test]
    fn the_spare_buffer_is_reused_whole() {
        let mut first = borrow(MOST);
        first.extend_from_slice(&[1; 1000]);
        let start = first.as_ptr();
        let mut partly = Held(first);
        partly.advance(1000);
        let again = borrow(MOST);
        assert_eq!((again.as_ptr(), again.len()), (start, 0));
        assert!(again.capacity() >= MOST);
    }
}
