// SPDX-License-Identifier: Apache-2.0
//! Where bytes that were read from a socket go: a stream of a tunnel, or another socket.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;
use tokio::net::TcpStream;
use tokio::net::tcp::WriteHalf;

use super::Broken;
use super::inlet::Held;
use crate::stream::Transmit;

pub(crate) trait Sink {
    /// Sends some of what is held, and says how much.
    fn poll_send(&mut self, cx: &mut Context<'_>, held: &mut Held) -> Poll<Result<usize, Broken>>;

    /// Says that nothing more will come.
    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>>;

    /// Ready when this side was reset, where reading it would no longer tell.
    fn poll_broken(&mut self, cx: &mut Context<'_>) -> Poll<Broken>;

    /// The socket that the bytes go to as they are; none where they take another form.
    fn socket(&self) -> Option<&TcpStream>;
}

pub(crate) struct TunnelSink<'s>(pub(crate) &'s mut Transmit);

impl Sink for TunnelSink<'_> {
    fn poll_send(&mut self, cx: &mut Context<'_>, held: &mut Held) -> Poll<Result<usize, Broken>> {
        let room = ready!(self.0.poll_room(cx, held.len()))?;
        self.0.send(held.take(room), cx)?;
        Poll::Ready(Ok(room))
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        Poll::Ready(self.0.finish(cx).map_err(Broken::from))
    }

    fn poll_broken(&mut self, cx: &mut Context<'_>) -> Poll<Broken> {
        self.0.poll_broken(cx).map(Broken::from)
    }

    fn socket(&self) -> Option<&TcpStream> {
        None
    }
}

pub(crate) struct TcpSink<'s>(pub(crate) WriteHalf<'s>);

impl Sink for TcpSink<'_> {
    fn poll_send(&mut self, cx: &mut Context<'_>, held: &mut Held) -> Poll<Result<usize, Broken>> {
        match ready!(Pin::new(&mut self.0).poll_write(cx, held.as_slice()))? {
            0 => Poll::Ready(Err(io::Error::from(io::ErrorKind::WriteZero).into())),
            written => {
                held.advance(written);
                Poll::Ready(Ok(written))
            }
        }
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        poll_fin(&mut self.0, cx).map_err(Broken::from)
    }

    /// The other direction reads this socket, and goes on watching it when it has read the end.
    fn poll_broken(&mut self, _cx: &mut Context<'_>) -> Poll<Broken> {
        Poll::Pending
    }

    fn socket(&self) -> Option<&TcpStream> {
        Some(self.0.as_ref())
    }
}

/// Sends FIN. A socket that is gone already needs none; what broke it is seen where it is read.
pub(super) fn poll_fin(half: &mut WriteHalf<'_>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
    match ready!(Pin::new(half).poll_shutdown(cx)) {
        Err(error) if error.kind() != io::ErrorKind::NotConnected => Poll::Ready(Err(error)),
        _ => Poll::Ready(Ok(())),
    }
}
