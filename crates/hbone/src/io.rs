// SPDX-License-Identifier: Apache-2.0
//! What lies between the HTTP/2 library and TLS: gathers the frames of one turn and notes that the peer is alive.
//!
//! The library flushes after every frame of more than a few hundred bytes, which would make each of them a record
//! and a system call of its own. Here a flush only counts once the tunnel's driver calls [`TunnelIo::poll_drain`],
//! at the end of its turn; until then small writes gather. Nothing waits for a timer, and large writes pass through.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Writes of at least this size are not gathered: the copy would cost more than the record.
const LARGE: usize = 8 * 1024;

/// Gathered bytes are handed on as soon as they fill a TLS record.
const FULL: usize = 16 * 1024;

/// A buffer that stays with an idle tunnel is no larger than this.
const KEPT: usize = 2 * 1024;

/// Shared by the library, which reads and writes, and the tunnel's driver, which drains.
pub(crate) struct TunnelIo<T> {
    inner: Arc<Mutex<Inner<T>>>,
    pulse: Pulse,
}

/// Counts the reads that gave bytes: changes if and only if the peer is alive.
#[derive(Clone, Default)]
pub(crate) struct Pulse(Arc<AtomicU64>);

impl Pulse {
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn beat(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Inner<T> {
    io: T,
    gathered: Vec<u8>,
    /// How much of `gathered` is already handed on.
    handed: usize,
    /// Whether a flush waits for the driver.
    gathers: bool,
}

impl<T> Clone for TunnelIo<T> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            pulse: self.pulse.clone(),
        }
    }
}

impl<T> TunnelIo<T> {
    pub(crate) fn new(io: T) -> Self {
        Self {
            inner: Arc::new(Mutex::new(Inner {
                io,
                gathered: Vec::new(),
                handed: 0,
                gathers: false,
            })),
            pulse: Pulse::default(),
        }
    }

    /// From now on a driver drains: flushes may wait for it.
    pub(crate) fn gather(&self) {
        self.inner.lock().gathers = true;
    }

    pub(crate) fn pulse(&self) -> Pulse {
        self.pulse.clone()
    }
}

impl<T: AsyncWrite + Unpin> TunnelIo<T> {
    /// Writes out what was gathered in this turn.
    pub(crate) fn poll_drain(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let inner = &mut *self.inner.lock();
        ready!(inner.poll_hand_on(cx))?;
        Pin::new(&mut inner.io).poll_flush(cx)
    }
}

impl<T: AsyncWrite + Unpin> Inner<T> {
    fn poll_hand_on(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.handed < self.gathered.len() {
            let rest = &self.gathered[self.handed..];
            match ready!(Pin::new(&mut self.io).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.handed += written,
            }
        }
        self.handed = 0;
        if self.gathered.capacity() > KEPT {
            self.gathered = Vec::new();
        } else {
            self.gathered.clear();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write_parts(
        &mut self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        if !self.gathers || total >= LARGE || self.gathered.len() >= FULL {
            ready!(self.poll_hand_on(cx))?;
            if !self.gathers || total >= LARGE {
                return Pin::new(&mut self.io).poll_write_vectored(cx, parts);
            }
        }
        for part in parts {
            self.gathered.extend_from_slice(part);
        }
        Poll::Ready(Ok(total))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for TunnelIo<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let inner = &mut *self.inner.lock();
        let before = buf.filled().len();
        let result = Pin::new(&mut inner.io).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.pulse.beat();
        }
        result
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for TunnelIo<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.inner.lock().poll_write_parts(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.inner.lock().poll_write_parts(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.inner.lock().gathers {
            return Poll::Ready(Ok(()));
        }
        self.poll_drain(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let inner = &mut *self.inner.lock();
        ready!(inner.poll_hand_on(cx))?;
        Pin::new(&mut inner.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn small_writes_of_a_turn_leave_together_at_its_end() {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let mut io = TunnelIo::new(near);
        io.gather();
        io.write_all(b"one ").await.unwrap();
        io.flush().await.unwrap();
        io.write_all(b"two").await.unwrap();
        let mut seen = [0; 16];
        let early = futures_util::poll!(std::pin::pin!(far.read(&mut seen)));
        assert!(early.is_pending(), "nothing leaves before the turn ends");
        std::future::poll_fn(|cx| io.poll_drain(cx)).await.unwrap();
        assert_eq!(far.read(&mut seen).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn order_is_kept_between_small_and_large_writes() {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let mut io = TunnelIo::new(near);
        io.gather();
        let mut expected = Vec::new();
        for (round, size) in [1, 20_000, 7, 9_000, 300, 8 * 1024 - 1]
            .into_iter()
            .cycle()
            .take(60)
            .enumerate()
        {
            let part = vec![round as u8; size];
            io.write_all(&part).await.unwrap();
            expected.extend_from_slice(&part);
        }
        io.shutdown().await.unwrap();
        let mut seen = Vec::new();
        far.read_to_end(&mut seen).await.unwrap();
        assert!(seen == expected);
    }

    #[tokio::test]
    async fn no_large_buffer_stays_with_an_idle_tunnel() {
        let (near, _far) = tokio::io::duplex(1 << 20);
        let mut io = TunnelIo::new(near);
        io.gather();
        io.write_all(&[1; LARGE - 1]).await.unwrap();
        std::future::poll_fn(|cx| io.poll_drain(cx)).await.unwrap();
        assert!(io.inner.lock().gathered.capacity() <= KEPT);
    }
}
