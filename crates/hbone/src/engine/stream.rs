// SPDX-License-Identifier: Apache-2.0
//! A stream of the own engine in its user's hands: relayed to a socket, or used as a byte stream.
//!
//! While it is relayed its task sleeps unless the application has something to say or was behind: what comes from the
//! tunnel is written by the tunnel's driver.

use std::future::poll_fn;
use std::io::{self, IoSlice, IoSliceMut, Read as _};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use super::link::{Core, Link, Sink, register};
use super::session::{Receiving, Slot};
use crate::chunks::SLICES;
use crate::error::TunnelError;
use crate::meter::{Meter, Way};
use crate::relay::{End, Fault, Outcome, Progress, outcome};
use crate::stop::Stop;
use crate::stream::TunnelEnd;
use crate::turn::{TURN, again};
use crate::wire;

/// What is read at once from an application that says little, and from one that is all bulk.
const READ: std::ops::RangeInclusive<usize> = 16 * 1024..=256 * 1024;

/// An open stream. Dropping it before both ends were reached resets it; before it is answered, it is answered 503.
pub(crate) struct OwnStream {
    link: Link,
    slot: Slot,
    end: TunnelEnd,
}

impl OwnStream {
    pub(crate) fn new(link: Link, slot: Slot, end: TunnelEnd) -> Self {
        Self { link, slot, end }
    }

    /// Sends a request over a tunnel.
    pub(crate) fn request(link: &Link, request: &Request<()>) -> Result<Self, TunnelError> {
        let slot = link.request(request)?;
        Ok(Self::new(link.clone(), slot, TunnelEnd::Client))
    }

    /// Waits for the answer to a request.
    pub(crate) async fn answer(&mut self) -> Result<Response<()>, TunnelError> {
        poll_fn(|cx| {
            let core = &mut *self.link.lock();
            let user = &mut core.session.entry(self.slot).user;
            if let Some(answer) = user.answer.take() {
                return Poll::Ready(Ok(*answer));
            }
            register(&mut user.receiver, cx);
            match core.broken(self.slot) {
                Some(error) => Poll::Ready(Err(error)),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Answers a request.
    pub(crate) fn respond(&mut self, response: &Response<()>) -> Result<(), TunnelError> {
        let core = &mut *self.link.lock();
        if let Some(error) = core.broken(self.slot) {
            return Err(error);
        }
        core.session.respond(self.slot, response, &mut core.out);
        core.wake_driver();
        Ok(())
    }

    /// Waits until the peer gives the stream up, or the tunnel breaks.
    pub(crate) async fn broken(&mut self) -> TunnelError {
        poll_fn(|cx| self.poll_broken(cx)).await
    }

    /// The same, for whoever reads it in the same task.
    pub(crate) fn poll_broken(&mut self, cx: &mut Context<'_>) -> Poll<TunnelError> {
        let core = &mut *self.link.lock();
        register(&mut core.session.entry(self.slot).user.receiver, cx);
        match core.broken(self.slot) {
            Some(error) => Poll::Ready(error),
            None => Poll::Pending,
        }
    }

    /// Cuts the stream.
    pub(crate) fn reset(&mut self) {
        let core = &mut *self.link.lock();
        core.session
            .reset(self.slot, self.end.reset_reason().into(), &mut core.out);
        core.wake_driver();
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        let core = &mut *self.link.lock();
        if self.end == TunnelEnd::Server && core.owes_answer(self.slot) {
            let unavailable = wire::refused(http::StatusCode::SERVICE_UNAVAILABLE);
            core.session.respond(self.slot, &unavailable, &mut core.out);
        }
        core.release(self.slot, self.end.reset_reason().into());
    }
}

impl AsyncRead for OwnStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let core = &mut *self.link.lock();
        let user = &mut core.session.entry(self.slot).user;
        if !user.held.is_empty() {
            let mut count = 0;
            let mut pieces = [IoSlice::new(&[]); SLICES];
            let filled = user.held.slices(&mut pieces);
            for piece in &pieces[..filled] {
                let part = piece.len().min(buffer.remaining());
                buffer.put_slice(&piece[..part]);
                count += part;
            }
            core.taken(self.slot, count);
            return Poll::Ready(Ok(()));
        }
        register(&mut user.receiver, cx);
        if core.session.entry(self.slot).receiving() == Receiving::Ended {
            return Poll::Ready(Ok(()));
        }
        match core.broken(self.slot) {
            Some(error) => Poll::Ready(Err(error.into_io())),
            None => Poll::Pending,
        }
    }
}

impl AsyncWrite for OwnStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let core = &mut *self.link.lock();
        if let Some(error) = core.broken(self.slot) {
            return Poll::Ready(Err(error.into_io()));
        }
        let room = ready!(core.poll_room(self.slot, cx));
        let mut rest = &bytes[..bytes.len().min(room)];
        Poll::Ready(core.send(self.slot, rest.len(), |places| {
            let mut count = 0;
            for place in places {
                let (part, tail) = rest.split_at(place.len().min(rest.len()));
                place[..part.len()].copy_from_slice(part);
                count += part.len();
                rest = tail;
            }
            Ok(count)
        }))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.link.lock().finish(self.slot);
        Poll::Ready(Ok(()))
    }
}

/// Between a socket and a stream, as [`Stream::relay`](crate::Stream::relay) promises.
pub(crate) fn relay(
    stream: OwnStream,
    socket: TcpStream,
    meter: &Arc<Meter>,
    stop: &Stop,
) -> impl Future<Output = Outcome> + Send + use<> {
    let mut relay = Relay::new(stream, socket, meter);
    let stop = stop.clone();
    async move {
        let mut stopped = std::pin::pin!(stop.stopped());
        let end = poll_fn(|cx| {
            if let Poll::Ready(reason) = stopped.as_mut().poll(cx) {
                return Poll::Ready(End::Stopped { reason });
            }
            relay.poll(cx)
        })
        .await;
        if matches!(end, End::Finished) {
            relay.in_order();
        }
        outcome(&relay.meter, end)
    }
}

struct Relay {
    stream: OwnStream,
    socket: Arc<TcpStream>,
    meter: Arc<Meter>,
    progress: Progress,
    size: usize,
    /// Present while the socket is not being read: an abort must be seen all the same.
    watch: Option<Pin<Box<dyn Future<Output = io::Error> + Send>>>,
    in_order: bool,
}

impl Relay {
    fn new(stream: OwnStream, socket: TcpStream, meter: &Arc<Meter>) -> Self {
        // Closing with a linger time of zero sends RST instead of FIN. Set from the beginning, because the kernel closes
        // the sockets of a process that is killed, and a FIN would look like the end of all there was.
        let _ = socket.set_zero_linger();
        let socket = Arc::new(socket);
        {
            let core = &mut *stream.link.lock();
            core.session.entry(stream.slot).user.sink = Some(Sink {
                socket: Arc::clone(&socket),
                meter: Arc::clone(meter),
            });
        }
        Self {
            stream,
            socket,
            meter: Arc::clone(meter),
            progress: Progress::default(),
            size: *READ.start(),
            watch: None,
            in_order: false,
        }
    }

    fn in_order(&mut self) {
        self.in_order = true;
        // Or what the kernel has not sent yet would be lost.
        let _ = SockRef::from(&*self.socket).set_linger(None);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        let link = self.stream.link.clone();
        let core = &mut *link.lock();
        // Down first: when it finishes, up has to know in the same turn.
        let fault = match self.poll_down(core, cx) {
            Poll::Ready(fault) => Poll::Ready(fault),
            Poll::Pending => self.poll_up(core, cx),
        };
        if self.progress.is_done(Way::Sent) && self.progress.is_done(Way::Received) {
            return Poll::Ready(End::Finished);
        }
        fault.map(|fault| fault.into_end(&self.progress))
    }

    /// Tunnel → socket: what the driver could not write at once. Ready only when something broke.
    fn poll_down(&mut self, core: &mut Core, cx: &mut Context<'_>) -> Poll<Fault> {
        let slot = self.stream.slot;
        register(&mut core.session.entry(slot).user.receiver, cx);
        if let Some(error) = core.session.entry(slot).user.sink_fault.take() {
            return Poll::Ready(Fault::near(error));
        }
        while !core.session.entry(slot).user.held.is_empty() {
            match self.socket.poll_write_ready(cx) {
                Poll::Pending => break,
                Poll::Ready(Err(error)) => return Poll::Ready(Fault::near(error)),
                Poll::Ready(Ok(())) => {}
            }
            let mut pieces = [IoSlice::new(&[]); SLICES];
            let count = core.session.entry(slot).user.held.slices(&mut pieces);
            match self.socket.try_write_vectored(&pieces[..count]) {
                Ok(written) => {
                    self.meter.add(Way::Received, written);
                    core.taken(slot, written);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Fault::near(error)),
            }
        }
        if let Some(error) = core.broken(slot) {
            return Poll::Ready(Fault::far(error));
        }
        let entry = core.session.entry(slot);
        if entry.receiving() == Receiving::Ended
            && entry.user.held.is_empty()
            && !self.progress.is_done(Way::Received)
        {
            match SockRef::from(&*self.socket).shutdown(std::net::Shutdown::Write) {
                // A socket that is gone already needs no FIN; what broke it is seen where it is read.
                Err(error) if error.kind() != io::ErrorKind::NotConnected => {
                    return Poll::Ready(Fault::near(error));
                }
                _ => self.progress.done(Way::Received),
            }
        }
        Poll::Pending
    }

    /// Socket → tunnel. Ready only when something broke.
    fn poll_up(&mut self, core: &mut Core, cx: &mut Context<'_>) -> Poll<Fault> {
        let slot = self.stream.slot;
        let mut moved = 0;
        while !self.progress.is_done(Way::Sent) {
            match self.socket.poll_read_ready(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Fault::near(error)),
                Poll::Ready(Ok(())) => {}
            }
            let Poll::Ready(room) = core.poll_room(slot, cx) else {
                return self.poll_watch(cx);
            };
            self.watch = None;
            let mut emptied = false;
            let read =
                |places: &mut [IoSliceMut<'_>]| read_some(&self.socket, places, &mut emptied);
            match core.send(slot, room.min(self.size), read) {
                Ok(0) => {
                    core.finish(slot);
                    self.progress.done(Way::Sent);
                }
                Ok(count) => {
                    self.meter.add(Way::Sent, count);
                    moved += count;
                    self.resize(count, emptied);
                    if moved >= TURN {
                        again(cx);
                        return Poll::Pending;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Fault::near(error)),
            }
        }
        self.poll_watch(cx)
    }

    /// A read gave `count` bytes, and maybe all there were.
    fn resize(&mut self, count: usize, emptied: bool) {
        if !emptied {
            self.size = (self.size * 2).min(*READ.end());
        } else if count < self.size / 4 {
            self.size = (self.size / 2).max(*READ.start());
        }
    }

    /// Waits for the socket to be reset, without reading it.
    fn poll_watch(&mut self, cx: &mut Context<'_>) -> Poll<Fault> {
        let socket = &self.socket;
        let watch = self.watch.get_or_insert_with(|| {
            let socket = Arc::clone(socket);
            Box::pin(async move {
                match socket.ready(Interest::ERROR).await {
                    Ok(_) => io::ErrorKind::ConnectionReset.into(),
                    Err(error) => error,
                }
            })
        });
        watch.as_mut().poll(cx).map(Fault::near)
    }
}

/// Reads what is there. Fewer bytes than there was room for mean that the socket has been emptied: its readiness is
/// taken back, as it was before the read, which spares asking the kernel once more.
fn read_some(
    socket: &TcpStream,
    places: &mut [IoSliceMut<'_>],
    emptied: &mut bool,
) -> io::Result<usize> {
    let offered: usize = places.iter().map(|place| place.len()).sum();
    let mut got = None;
    let result = socket.try_io(Interest::READABLE, || {
        let count = (&*SockRef::from(socket)).read_vectored(places)?;
        got = Some(count);
        if (1..offered).contains(&count) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(count)
    });
    let Some(count) = got else {
        return result;
    };
    *emptied = count < offered;
    Ok(count)
}

impl Drop for Relay {
    fn drop(&mut self) {
        if !self.in_order {
            self.stream.reset();
        }
    }
}
