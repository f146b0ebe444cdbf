// SPDX-License-Identifier: Apache-2.0
//! A client's stream as the HTTP library has it: what was read of it before is read again, what is read of HTTP/1.1 is
//! looked at, and it is known when the library holds nothing of it.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use hyper::body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

use crate::body::{self, Downward};
use crate::framing::{Framing, Verdict};
use crate::http::MAX_HEADERS;
use crate::hygiene::Malformed;

/// How long, and how much, is read of a client that was answered for the last time.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: u64 = 1 << 20;

/// What the heads of an HTTP/1.1 connection were found to be, until the library has read them too.
#[derive(Default)]
pub(super) struct Heads {
    verdicts: Mutex<VecDeque<Verdict>>,
    ended: AtomicBool,
    /// Whether a part of a request was read, and no more of it.
    begun: AtomicBool,
    /// Requests that were taken and whose answers the library still has.
    taken: AtomicUsize,
    /// All of them that there ever were.
    count: AtomicUsize,
    /// Whether something was written that may not be on its way.
    unsent: AtomicBool,
}

/// Heads that the library may have before it; its buffer holds fewer.
const MOST_HEADS: usize = 4096;

impl Heads {
    fn push(&self, verdict: Verdict) {
        let mut verdicts = self.verdicts.lock();
        match verdicts.len() < MOST_HEADS {
            true => verdicts.push_back(verdict),
            false => self.end(),
        }
    }

    /// That of the request that the library has read; a bad one where there is none.
    pub(super) fn next(&self) -> Verdict {
        let verdict = self.verdicts.lock().pop_front();
        verdict.unwrap_or(Err(Malformed::Beginning))
    }

    /// What comes from here on is no HTTP.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// A request is the service's until this is dropped, with the last of its answer.
    pub(super) fn take(self: &Arc<Self>) -> Taken {
        self.taken.fetch_add(1, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
        Taken(Arc::clone(self))
    }

    /// How many requests were answered, if nothing is under way: then the library could be given up, and nothing be lost.
    pub(super) fn at_rest(&self) -> Option<usize> {
        let is_set = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        let is_busy = is_set(&self.begun) || is_set(&self.unsent) || is_set(&self.ended);
        let is_busy = is_busy || self.taken.load(Ordering::Relaxed) > 0;
        let is_busy = is_busy || !self.verdicts.lock().is_empty();
        (!is_busy).then(|| self.count.load(Ordering::Relaxed))
    }
}

/// A request that was taken.
pub(super) struct Taken(Arc<Heads>);

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of an answer, with whose end its request is over.
pub(super) struct Answering {
    pub(super) body: Downward,
    pub(super) _taken: Taken,
}

impl Body for Answering {
    type Data = Bytes;
    type Error = body::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, body::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

pub(super) struct Watch {
    framing: Framing,
    heads: Arc<Heads>,
}

impl Watch {
    pub(super) fn new(heads: &Arc<Heads>) -> Self {
        Self {
            framing: Framing::new(MAX_HEADERS),
            heads: Arc::clone(heads),
        }
    }

    fn read(&mut self, bytes: &[u8]) {
        if !self.heads.ended.load(Ordering::Relaxed) {
            let heads = &self.heads;
            self.framing.read(bytes, |verdict| heads.push(verdict));
            let is_begun = !self.framing.is_between();
            heads.begun.store(is_begun, Ordering::Relaxed);
        }
    }
}

/// A stream whose first bytes were read and are to be read again.
///
/// Dropped after its end was said, it goes on reading for a while: a stream that is given up with something unread is
/// reset, and the client might lose the answer that was just sent. Dropped before, it gives back what it was made of.
pub(super) struct Again<S: AsyncRead + Unpin + Send + 'static> {
    first: Bytes,
    /// None once it is dropped.
    client: Option<S>,
    finished: bool,
    /// Looks at what is read, where that is HTTP/1.1.
    watch: Option<Watch>,
    back: Back<S>,
}

/// Where a client's stream is found again, with what was not read a second time, if its end was not said.
pub(super) type Back<S> = Arc<Mutex<Option<(Bytes, S)>>>;

impl<S: AsyncRead + Unpin + Send + 'static> Again<S> {
    pub(super) fn new(first: Bytes, client: S, watch: Option<Watch>, back: Back<S>) -> Self {
        Self {
            first,
            client: Some(client),
            finished: false,
            watch,
            back,
        }
    }

    fn heads(&self) -> Option<&Heads> {
        self.watch.as_ref().map(|watch| &*watch.heads)
    }

    fn client(self: Pin<&mut Self>) -> Pin<&mut S> {
        let client = self.get_mut().client.as_mut();
        Pin::new(client.expect("broken invariant: there until it is dropped"))
    }
}

impl<S: AsyncRead + Unpin + Send + 'static> Drop for Again<S> {
    fn drop(&mut self) {
        match self.client.take() {
            Some(client) if self.finished => drop(tokio::spawn(linger(client))),
            Some(client) => *self.back.lock() = Some((std::mem::take(&mut self.first), client)),
            None => {}
        }
    }
}

/// Reads on until the client has ended too, for a while.
pub(super) async fn linger(client: impl AsyncRead + Unpin) {
    let (mut rest, mut nowhere) = (client.take(LINGER_BYTES), tokio::io::sink());
    let reading = tokio::io::copy(&mut rest, &mut nowhere);
    // Whatever came of it, nobody waits for it.
    let _ = tokio::time::timeout(LINGER, reading).await;
}

impl<S: AsyncRead + Unpin + Send + 'static> AsyncRead for Again<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        if self.first.is_empty() {
            ready!(self.as_mut().client().poll_read(cx, buf))?;
        } else {
            let count = self.first.len().min(buf.remaining());
            buf.put_slice(&self.first[..count]);
            self.first.advance(count);
        }
        if let Some(watch) = &mut self.watch {
            watch.read(&buf.filled()[before..]);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> AsyncWrite for Again<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Some(heads) = self.heads() {
            heads.unsent.store(true, Ordering::Relaxed);
        }
        self.client().poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.as_mut().client().poll_flush(cx))?;
        if let Some(heads) = self.heads() {
            heads.unsent.store(false, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.finished = true;
        self.client().poll_shutdown(cx)
    }
}
