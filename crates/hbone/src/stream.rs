// SPDX-License-Identifier: Apache-2.0
//! One stream of a tunnel: bytes both ways, each with its own end, or a reset of both.
//!
//! Most streams are handed to a [relay](crate::Stream::relay); who needs a byte stream instead (a proxy of requests,
//! a tunnel inside a tunnel) uses it as `AsyncRead` and `AsyncWrite`.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::FutureExt as _;
use h2::{Reason, RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_util::either::Either;

use crate::chunks::Chunks;
use crate::client::Slot;
use crate::engine;
use crate::engine::stream::OwnStream;
use crate::error::TunnelError;
use crate::fate::Fate;
use crate::meter::Meter;
use crate::relay::{self, Outcome};
use crate::stop::Stop;

/// The largest piece taken from one `poll_write`.
const WRITE: usize = 256 * 1024;

/// An open stream. Dropping it before both ends were reached resets it.
pub struct Stream {
    pub(crate) inner: Inner,
    /// Gives the stream's place in its tunnel back when dropped.
    pub(crate) _slot: Option<Slot>,
}

/// A stream of one engine or the other.
pub(crate) enum Inner {
    Own(OwnStream),
    Library(LibraryStream),
}

/// A stream of the h2 library.
pub(crate) struct LibraryStream {
    pub(crate) transmit: Transmit,
    pub(crate) receive: Receive,
    /// Whether its tunnel was ended for the sake of its peer.
    pub(crate) fate: Fate,
}

impl Stream {
    /// Copies between the stream and a socket until both directions have ended, one side was reset, or `stop` says
    /// so. FIN and RST are mirrored; whenever it does not end in order, both sides are reset.
    ///
    /// What leaves has been gathered already: whoever made the socket has set TCP_NODELAY.
    ///
    /// Dropping the future before it is done resets both sides too.
    pub fn relay(
        self,
        socket: TcpStream,
        meter: &Arc<Meter>,
        stop: &Stop,
    ) -> impl Future<Output = Outcome> + Send + use<> {
        let Self { inner, _slot } = self;
        let relay = match inner {
            Inner::Own(stream) => Either::Left(engine::stream::relay(stream, socket, meter, stop)),
            // Boxed: the fallback should not make every connection larger.
            Inner::Library(stream) => {
                Either::Right(Box::pin(relay::relay_stream(stream, socket, meter, stop)))
            }
        };
        // Not an async block: it would have room for the relay twice, before it begins and while it lasts.
        relay.map(move |outcome| {
            drop(_slot);
            outcome
        })
    }

    /// Ready when the peer has given the stream up or its tunnel broke, also where nothing is left to read.
    pub(crate) fn poll_broken(&mut self, cx: &mut Context<'_>) -> Poll<TunnelError> {
        match &mut self.inner {
            Inner::Own(stream) => stream.poll_broken(cx),
            Inner::Library(stream) => stream.transmit.poll_broken(cx),
        }
    }

    /// Resets the stream: the application at the other end sees its connection reset.
    pub fn reset(&mut self) {
        match &mut self.inner {
            Inner::Own(stream) => stream.reset(),
            Inner::Library(stream) => stream.transmit.reset(),
        }
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let engine = match self.inner {
            Inner::Own(_) => "own",
            Inner::Library(_) => "library",
        };
        f.debug_struct("Stream")
            .field("engine", &engine)
            .finish_non_exhaustive()
    }
}

/// Which end of the tunnel this is; it decides how a reset is called on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TunnelEnd {
    Client,
    Server,
}

impl TunnelEnd {
    /// RFC 9113 §8.5: who connected on behalf of a CONNECT reports its broken connection as CONNECT_ERROR; the
    /// originator just cancels.
    pub(crate) fn reset_reason(self) -> Reason {
        match self {
            Self::Client => Reason::CANCEL,
            Self::Server => Reason::CONNECT_ERROR,
        }
    }
}

/// The sending half.
pub(crate) struct Transmit {
    stream: SendStream<Bytes>,
    end: TunnelEnd,
    finished: bool,
}

impl Transmit {
    pub(crate) fn new(stream: SendStream<Bytes>, end: TunnelEnd) -> Self {
        Self {
            stream,
            end,
            finished: false,
        }
    }

    /// How many of `wanted` bytes the peer, the connection and the send buffer have room for.
    pub(crate) fn poll_room(
        &mut self,
        cx: &mut Context<'_>,
        wanted: usize,
    ) -> Poll<Result<usize, TunnelError>> {
        self.stream.reserve_capacity(wanted);
        loop {
            match self.stream.capacity() {
                0 => {}
                room => return Poll::Ready(Ok(room.min(wanted))),
            }
            match ready!(self.stream.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(error.into())),
                None => return Poll::Ready(Err(self.why_closed(cx))),
            }
        }
    }

    /// Sends what [`poll_room`](Self::poll_room) has room for.
    pub(crate) fn send(&mut self, bytes: Bytes, cx: &mut Context<'_>) -> Result<(), TunnelError> {
        self.stream
            .send_data(bytes, false)
            .map_err(|_| self.why_closed(cx))
    }

    /// Sends END_STREAM.
    pub(crate) fn finish(&mut self, cx: &mut Context<'_>) -> Result<(), TunnelError> {
        self.finished = true;
        self.stream
            .send_data(Bytes::new(), true)
            .map_err(|_| self.why_closed(cx))
    }

    /// Sends RST_STREAM. What the tunnel had no room for yet is dropped.
    pub(crate) fn reset(&mut self) {
        self.stream.send_reset(self.end.reset_reason());
    }

    /// Waits for the peer to reset the stream, or for the tunnel to break.
    pub(crate) fn poll_broken(&mut self, cx: &mut Context<'_>) -> Poll<TunnelError> {
        self.stream.poll_reset(cx).map(|result| match result {
            Ok(reason) => TunnelError::reset(reason),
            Err(error) => error.into(),
        })
    }

    /// The library says only "not open" where a stream was reset or its tunnel broke; this asks for the reason.
    fn why_closed(&mut self, cx: &mut Context<'_>) -> TunnelError {
        match self.poll_broken(cx) {
            Poll::Ready(error) => error,
            Poll::Pending => TunnelError::closed(),
        }
    }
}

/// The receiving half, and what it holds.
pub(crate) struct Receive {
    stream: RecvStream,
    pub(crate) chunks: Chunks,
    ended: bool,
}

/// What a receiving half may still give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Supply {
    /// More may come; the task will be woken.
    Open,
    /// END_STREAM was received: what is held is all there is.
    Ended,
}

impl Receive {
    pub(crate) fn new(stream: RecvStream) -> Self {
        Self {
            stream,
            chunks: Chunks::default(),
            ended: false,
        }
    }

    /// Takes over all that has arrived. No credit is given for it: the peer's window bounds what is held.
    pub(crate) fn fill(&mut self, cx: &mut Context<'_>) -> Result<Supply, TunnelError> {
        while !self.ended {
            match self.stream.poll_data(cx) {
                Poll::Ready(Some(Ok(bytes))) => self.chunks.push(bytes),
                Poll::Ready(Some(Err(error))) => return Err(error.into()),
                Poll::Ready(None) => self.ended = true,
                Poll::Pending => return Ok(Supply::Open),
            }
        }
        Ok(Supply::Ended)
    }

    /// Says that the application has taken `count` bytes of what is held: they are gone, and the peer may send as
    /// many again.
    pub(crate) fn taken(&mut self, count: usize) {
        self.chunks.advance(count);
        // An error means that the stream is closed already, when nobody waits for credit.
        let _ = self.stream.flow_control().release_capacity(count);
    }
}

impl AsyncRead for LibraryStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let receive = &mut self.get_mut().receive;
        let supply = receive.fill(cx);
        if !receive.chunks.is_empty() {
            while buf.remaining() > 0 && !receive.chunks.is_empty() {
                let front = receive.chunks.front();
                let count = front.len().min(buf.remaining());
                buf.put_slice(&front[..count]);
                receive.taken(count);
            }
            return Poll::Ready(Ok(()));
        }
        match supply {
            Ok(Supply::Ended) => Poll::Ready(Ok(())),
            Ok(Supply::Open) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error.into_io())),
        }
    }
}

impl AsyncWrite for LibraryStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let transmit = &mut self.get_mut().transmit;
        let room =
            ready!(transmit.poll_room(cx, buf.len().min(WRITE))).map_err(TunnelError::into_io)?;
        transmit
            .send(Bytes::copy_from_slice(&buf[..room]), cx)
            .map_err(TunnelError::into_io)?;
        Poll::Ready(Ok(room))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let transmit = &mut self.get_mut().transmit;
        if transmit.finished {
            return Poll::Ready(Ok(()));
        }
        Poll::Ready(transmit.finish(cx).map_err(TunnelError::into_io))
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().inner {
            Inner::Own(stream) => Pin::new(stream).poll_read(cx, buf),
            Inner::Library(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().inner {
            Inner::Own(stream) => Pin::new(stream).poll_write(cx, buf),
            Inner::Library(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().inner {
            Inner::Own(stream) => Pin::new(stream).poll_flush(cx),
            Inner::Library(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().inner {
            Inner::Own(stream) => Pin::new(stream).poll_shutdown(cx),
            Inner::Library(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
