// SPDX-License-Identifier: Apache-2.0
//! The one task that does a tunnel's I/O, turn by turn: read, deliver, write.
//!
//! ```text
//!   turn: timers ─► read up to 1 MiB ─► open, frames ─► deliver to sockets ─► seal ─► write ─► next in line for room
//! ```
//!
//! A turn ends early where the peer says little by many frames, since it is work that others wait for, not bytes.
//!
//! What comes for a stream that is being relayed is written to its application from here, without waking its task; only
//! what the application does not take is copied and left to that task. Nothing here waits for a slow application.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use identity::Standing;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use super::flow::WindowLimits;
use super::handshake::Secured;
use super::intake::{Intake, Opened};
use super::link::{Core, Link, wake};
use super::outgoing::Outgoing;
use super::record::{Opener, RecordError, Sealer};
use super::secrets::Secrets;
use super::session::{Event, Limits, Role, Session, Slot, Violation};
use crate::chunks::SLICES;
use crate::config::{self, Config};
use crate::error::{TunnelError, TunnelFault};
use crate::meter::Way;
use crate::stream::TunnelEnd;
use crate::turn::{TURN, again};

/// Records and frames understood before other tasks get their turn. Of frames as large as DATA of any weight, a turn of
/// bytes holds far fewer; of the smallest it holds a hundred thousand.
const FRAMES: u64 = 1024;

/// How long the peer may take to hear our last words, where they matter.
const FAREWELL: Duration = Duration::from_secs(30);

/// The same for a peer that broke the protocol, or is no longer believed.
const REPROACH: Duration = Duration::from_secs(1);

/// How a tunnel that has ended in order leaves what carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Farewell {
    /// A socket of its own is just closed.
    Close,
    /// A stream of another tunnel would be reset by that, which could overtake our last bytes: the peer closes first.
    Listen,
}

pub(crate) struct Driver<T> {
    io: T,
    role: Role,
    link: Link,
    intake: Intake,
    events: Vec<Event>,
    requests: VecDeque<(Slot, Box<Request<()>>)>,
    /// The last turn left something for the next.
    tired: bool,
    keepalive: Keepalive,
    standing: Standing,
    farewell: Farewell,
    ending: Ending,
}

/// How far the end has come.
enum Ending {
    No,
    /// The last words are queued; then the writing side is closed. What the peer still sends is of no use, and may be
    /// read so that our last words are not lost to a reset.
    Parting {
        error: Option<TunnelError>,
        until: Pin<Box<Sleep>>,
        listen: bool,
    },
    Done,
}

/// What a driver has for its caller.
pub(crate) enum Next {
    Stream(Slot, Box<Request<()>>),
    Ended(Result<(), TunnelError>),
}

impl<T: AsyncRead + AsyncWrite + Unpin> Driver<T> {
    pub(crate) fn new(
        role: Role,
        secured: Secured<T>,
        farewell: Farewell,
        config: &Config,
    ) -> (Self, Link) {
        let Secured {
            io,
            standing,
            secrets,
            rest,
            ..
        } = secured;
        let Secrets { client, server } = secrets;
        let (seal, open) = match role {
            Role::Client => (client, server),
            Role::Server => (server, client),
        };
        let mut out = Outgoing::new(Sealer::new(seal), config.records_per_key);
        let now = Instant::now();
        let session = Session::new(role, limits(role, config), &mut out, now);
        let link = Link::new(session, out);
        let driver = Self {
            io,
            role,
            link: link.clone(),
            intake: Intake::new(Opener::new(open), &rest, role == Role::Client),
            events: Vec::new(),
            requests: VecDeque::new(),
            tired: false,
            keepalive: Keepalive::new(config),
            standing,
            farewell,
            ending: Ending::No,
        };
        (driver, link)
    }

    /// Runs turns until there is something for the caller.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Next> {
        let link = self.link.clone();
        let core = &mut *link.lock();
        core.register_driver(cx);
        // The caller comes back for each request: that makes no turn longer.
        let goes_on = !self.tired && self.requests.is_empty();
        if matches!(self.ending, Ending::No)
            && goes_on
            && let Err(error) = self.turn(core, cx)
        {
            self.end(core, error);
        }
        while let Some((slot, request)) = self.requests.pop_front() {
            // Opened and given up in one turn: nobody need hear of it.
            if core.session.entry(slot).cut().is_none() {
                return Poll::Ready(Next::Stream(slot, request));
            }
            core.release(slot, TunnelEnd::Server.reset_reason().into());
        }
        if std::mem::take(&mut self.tired) {
            again(cx);
        }
        self.poll_end(core, cx).map(Next::Ended)
    }

    /// One turn. An error ends the tunnel; `None` in it means in order.
    fn turn(&mut self, core: &mut Core, cx: &mut Context<'_>) -> Result<(), Option<TunnelError>> {
        if core.aborted {
            return Err(Some(TunnelError::new(
                TunnelFault::Aborted,
                "the pool was aborted",
            )));
        }
        if let Poll::Ready(reason) = self.standing.poll_withdrawn(cx) {
            return Err(Some(TunnelError::new(TunnelFault::Withdrawn, reason)));
        }
        if let Poll::Ready(error) = self.keepalive.poll(core, cx) {
            return Err(Some(error));
        }
        let read = self.read(core, cx);
        if let Err(error) = self.write(core, cx) {
            return Err(Some(error.into()));
        }
        core.turn_ends();
        read?;
        let over = match self.role {
            Role::Client => (core.retired || !core.session.may_open()) && core.session.held() == 0,
            Role::Server => core.session.drained(),
        };
        if over { Err(None) } else { Ok(()) }
    }

    fn read(&mut self, core: &mut Core, cx: &mut Context<'_>) -> Result<(), Option<TunnelError>> {
        let mut left = TURN;
        let mut frames = FRAMES;
        loop {
            // What came with the handshake, or was too much for the last turn, is there already.
            let all = self.digest(core, &mut frames)?;
            if self.intake.closed_in_order() {
                return Err(self.closed(core));
            }
            if !all || left == 0 {
                self.tired = true;
                return Ok(());
            }
            let mut buffer = ReadBuf::new(self.intake.space());
            let room = buffer.remaining();
            match Pin::new(&mut self.io).poll_read(cx, &mut buffer) {
                Poll::Pending => {
                    self.intake.settle();
                    return Ok(());
                }
                Poll::Ready(Err(error)) => return Err(Some(error.into())),
                Poll::Ready(Ok(())) => {}
            }
            let count = buffer.filled().len();
            if count == 0 {
                return Err(self.closed(core));
            }
            core.pulse += 1;
            self.intake.filled(count, room);
            left = left.saturating_sub(count);
        }
    }

    /// The peer sends nothing more. Without streams that is its right.
    fn closed(&self, core: &mut Core) -> Option<TunnelError> {
        (core.session.live() > 0).then(|| {
            let words = if self.intake.closed_in_order() {
                "the peer closed the tunnel"
            } else {
                "the peer closed the tunnel without notice"
            };
            TunnelError::new(TunnelFault::Connection, words)
        })
    }

    /// Opens and understands what was read, and delivers it; false if `frames` were not enough for all of it. What came
    /// before a breach still counts.
    fn digest(&mut self, core: &mut Core, frames: &mut u64) -> Result<bool, Option<TunnelError>> {
        let result = self.understand(core, frames);
        self.deliver(core);
        match result {
            Ok(all) => Ok(all),
            Err(Breach::Record(error)) => {
                if let Some(alert) = error.alert() {
                    core.out.alert(2, alert);
                }
                let fault = match error {
                    RecordError::PeerAlert(_) => TunnelFault::Connection,
                    _ => TunnelFault::Protocol,
                };
                Err(Some(TunnelError::new(fault, error.to_string())))
            }
            Err(Breach::Session(violation)) => {
                core.session.go_away(violation.code(), &mut core.out);
                Err(Some(TunnelError::new(
                    TunnelFault::Protocol,
                    violation.to_string(),
                )))
            }
        }
    }

    fn understand(&mut self, core: &mut Core, frames: &mut u64) -> Result<bool, Breach> {
        let mut now = None;
        let enough = core.session.frames() + *frames;
        let mut records = 0;
        while core.session.frames() + records < enough {
            let Some(opened) = self.intake.next()? else {
                *frames = enough - core.session.frames() - records;
                return Ok(true);
            };
            records += 1;
            match opened {
                Opened::Data(range) => {
                    let base = range.start;
                    core.session.receive(
                        self.intake.plain(range),
                        base,
                        *now.get_or_insert_with(Instant::now),
                        &mut core.out,
                        &mut self.events,
                    )?;
                }
                Opened::UpdateRequested => core.out.answer_key_update(),
                Opened::Nothing | Opened::Closed => {}
            }
        }
        Ok(false)
    }

    /// Hands out what has happened, bytes of one stream that follow each other in one write.
    fn deliver(&mut self, core: &mut Core) {
        let mut events = std::mem::take(&mut self.events);
        let mut rest = events.drain(..).peekable();
        while let Some(event) = rest.next() {
            match event {
                Event::Data { slot, at, length } => {
                    let mut pieces = [IoSlice::new(&[]); SLICES];
                    pieces[0] = IoSlice::new(self.intake.plain(at..at + length));
                    let (mut count, mut total) = (1, length);
                    while count < SLICES
                        && let Some(Event::Data { slot: same, .. }) = rest.peek()
                        && *same == slot
                        && let Some(Event::Data { at, length, .. }) = rest.next()
                    {
                        pieces[count] = IoSlice::new(self.intake.plain(at..at + length));
                        count += 1;
                        total += length;
                    }
                    give(core, slot, &pieces[..count], total);
                }
                Event::Ended { slot } => wake(&mut core.session.entry(slot).user.receiver),
                Event::Request { slot, request } => {
                    self.requests.push_back((slot, Box::new(request)))
                }
                Event::Answer { slot, response } => {
                    let user = &mut core.session.entry(slot).user;
                    user.answer = Some(Box::new(response));
                    wake(&mut user.receiver);
                }
                Event::Cut { slot } => core.session.entry(slot).user.wake(),
                Event::Window { slot } => wake(&mut core.session.entry(slot).user.sender),
                Event::Windows => {
                    for (_, user) in core.session.users() {
                        wake(&mut user.sender);
                    }
                }
                Event::GoingAway => {}
            }
        }
        drop(rest);
        if events.capacity() > 64 {
            events = Vec::new();
        }
        self.events = events;
    }

    fn write(&mut self, core: &mut Core, cx: &mut Context<'_>) -> io::Result<()> {
        loop {
            // While the socket takes nothing, small frames go on gathering in the open record.
            if core.out.unsent().is_empty() {
                core.out.finish_turn();
            }
            if core.out.unsent().is_empty() {
                break;
            }
            match Pin::new(&mut self.io).poll_write(cx, core.out.unsent())? {
                Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(count) => core.out.advance(count),
                Poll::Pending => return Ok(()),
            }
        }
        let _ = Pin::new(&mut self.io).poll_flush(cx)?;
        Ok(())
    }

    /// Says the last words. Streams that still live learn that their tunnel is gone.
    fn end(&mut self, core: &mut Core, error: Option<TunnelError>) {
        let fault = error.as_ref().map(TunnelError::fault);
        if matches!(fault, None | Some(TunnelFault::Withdrawn)) {
            core.session.go_away(0, &mut core.out);
        }
        core.out.alert(1, 0);
        core.retired = true;
        core.fail(error.clone().unwrap_or_else(TunnelError::closed));
        let protocol = fault == Some(TunnelFault::Protocol);
        let patience = match fault {
            None => FAREWELL,
            Some(TunnelFault::Protocol | TunnelFault::Withdrawn) => REPROACH,
            Some(_) => Duration::ZERO,
        };
        self.ending = Ending::Parting {
            listen: protocol || error.is_none() && self.farewell == Farewell::Listen,
            until: Box::pin(sleep(patience)),
            error,
        };
    }

    fn poll_end(&mut self, core: &mut Core, cx: &mut Context<'_>) -> Poll<Result<(), TunnelError>> {
        let Ending::Parting {
            error,
            until,
            listen,
        } = &mut self.ending
        else {
            return match self.ending {
                Ending::Done => Poll::Ready(Ok(())),
                _ => Poll::Pending,
            };
        };
        let listen = *listen;
        let late = until.as_mut().poll(cx).is_ready();
        let error = error.clone();
        let parted = match self.write(core, cx) {
            Err(_) => true,
            Ok(()) if core.out.queued() > 0 => false,
            Ok(()) => self.poll_part(listen, cx).is_ready(),
        };
        if !parted && !late {
            return Poll::Pending;
        }
        self.ending = Ending::Done;
        Poll::Ready(error.map_or(Ok(()), Err))
    }

    /// Closes the writing side and, if it is worth while, waits until the peer has closed its own.
    fn poll_part(&mut self, listen: bool, cx: &mut Context<'_>) -> Poll<()> {
        if ready!(Pin::new(&mut self.io).poll_shutdown(cx)).is_err() || !listen {
            return Poll::Ready(());
        }
        let mut ignored = [0; 1024];
        loop {
            let mut buffer = ReadBuf::new(&mut ignored);
            match ready!(Pin::new(&mut self.io).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                _ => return Poll::Ready(()),
            }
        }
    }
}

impl<T> Drop for Driver<T> {
    fn drop(&mut self) {
        let mut core = self.link.lock();
        core.retired = true;
        core.fail(TunnelError::closed());
    }
}

/// What ended the understanding of a peer.
enum Breach {
    Record(RecordError),
    Session(Violation),
}

impl From<RecordError> for Breach {
    fn from(error: RecordError) -> Self {
        Self::Record(error)
    }
}

impl From<Violation> for Breach {
    fn from(violation: Violation) -> Self {
        Self::Session(violation)
    }
}

/// Gives bytes to a stream: to its application at once where that takes them, else they are held.
fn give(core: &mut Core, slot: Slot, pieces: &[IoSlice<'_>], total: usize) {
    let entry = core.session.entry(slot);
    let user = &mut entry.user;
    let mut taken = 0;
    if user.held.is_empty()
        && let Some(sink) = &user.sink
    {
        match write_pieces(&sink.socket, pieces) {
            Ok(count) => {
                taken = count;
                sink.meter.add(Way::Received, count);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                user.sink_fault = Some(error);
                user.sink = None;
                wake(&mut user.receiver);
                return;
            }
        }
    }
    let mut skip = taken;
    for piece in pieces {
        let skipped = skip.min(piece.len());
        skip -= skipped;
        if skipped < piece.len() {
            user.held.push(Bytes::copy_from_slice(&piece[skipped..]));
        }
    }
    if taken < total {
        user.held.settle();
        wake(&mut user.receiver);
        entry.stalls(Instant::now());
    }
    if taken > 0 {
        let held = total - taken;
        let now = Instant::now();
        core.session.taken(slot, taken, held, &mut core.out, now);
    }
}

fn write_pieces(socket: &TcpStream, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
    match pieces {
        [one] => socket.try_write(one),
        _ => socket.try_write_vectored(pieces),
    }
}

fn limits(role: Role, config: &Config) -> Limits {
    let (max_streams, header_list) = match role {
        Role::Client => (config.pool_max_streams, config::CLIENT_HEADER_LIST),
        Role::Server => (config.max_streams, config::SERVER_HEADER_LIST),
    };
    Limits {
        windows: WindowLimits {
            first: config.first_window.min(config.stream_window),
            most: config.stream_window,
            tunnel: config.tunnel_window_budget,
            process: config.process_window_budget,
        },
        connection_window: config.connection_window,
        max_frame: config.max_frame,
        max_streams,
        header_list,
    }
}

/// Silence → PING → silence → the tunnel is dead.
struct Keepalive {
    timer: Pin<Box<Sleep>>,
    /// The pulse when the timer was set.
    before: u64,
    asked: bool,
    interval: Duration,
    timeout: Duration,
}

impl Keepalive {
    fn new(config: &Config) -> Self {
        Self {
            timer: Box::pin(sleep(config.ping_interval)),
            before: 0,
            asked: false,
            interval: config.ping_interval,
            timeout: config.ping_timeout,
        }
    }

    fn poll(&mut self, core: &mut Core, cx: &mut Context<'_>) -> Poll<TunnelError> {
        while self.timer.as_mut().poll(cx).is_ready() {
            let heard = core.pulse != self.before;
            self.before = core.pulse;
            let time = if heard {
                self.asked = false;
                self.interval
            } else if self.asked {
                return Poll::Ready(TunnelError::new(
                    TunnelFault::PingTimeout,
                    format!("peer silent for {:?} after a PING", self.timeout),
                ));
            } else {
                core.session.ping(&mut core.out);
                self.asked = true;
                self.timeout
            };
            self.timer
                .as_mut()
                .reset(tokio::time::Instant::now() + time);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests;
