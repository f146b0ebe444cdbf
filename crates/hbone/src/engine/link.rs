// SPDX-License-Identifier: Apache-2.0
//! A tunnel as its streams and its driver share it.
//!
//! All of them live on one worker, so that the lock is never contended; it is there because futures may be moved
//! between threads while nothing runs them.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use http::{Request, Response};
use parking_lot::{Mutex, MutexGuard};
use tokio::net::TcpStream;

use super::outgoing::{LIMIT, Outgoing};
use super::session::{Cut, Sending, Session, Slot};
use crate::chunks::Chunks;
use crate::error::{TunnelError, TunnelFault};
use crate::meter::Meter;

/// What one stream may queue at once when it is alone, and when there are many.
const QUANTUM: std::ops::RangeInclusive<usize> = 16 * 1024..=256 * 1024;

/// Cloning shares it.
#[derive(Clone)]
pub(crate) struct Link(Arc<Mutex<Core>>);

pub(crate) struct Core {
    pub(super) session: Session<Attachment>,
    pub(super) out: Outgoing,
    /// Why the tunnel is dead.
    pub(super) fault: Option<TunnelError>,
    /// No new stream is wanted: it ends with the last one.
    pub(super) retired: bool,
    pub(super) aborted: bool,
    driver: Option<Waker>,
    /// Streams that have something to send and no room, in order.
    waiting: VecDeque<Slot>,
    /// Turns so far, the present one included.
    turn: u64,
    /// Streams that have queued something in this turn, and in the turn before: however often, since what one of them
    /// may queue at once is to fall with their number, and not because it is alone and fast.
    senders: usize,
    senders_before: usize,
    /// Reads that gave bytes.
    pub(super) pulse: u64,
}

/// What is kept with a stream.
#[derive(Default)]
pub(crate) struct Attachment {
    /// Bytes that wait for the application.
    pub(super) held: Chunks,
    /// Where bytes go as they come.
    pub(super) sink: Option<Sink>,
    /// What broke `sink`.
    pub(super) sink_fault: Option<io::Error>,
    /// Boxed: it is there for a moment, and its place for as long as the stream.
    pub(super) answer: Option<Box<Response<()>>>,
    pub(super) receiver: Option<Waker>,
    pub(super) sender: Option<Waker>,
    waits: bool,
    /// The turn in which it has last queued something.
    sent_in: u64,
}

/// An application's socket that the tunnel writes to without waking anybody.
pub(super) struct Sink {
    pub(super) socket: Arc<TcpStream>,
    pub(super) meter: Arc<Meter>,
}

impl Attachment {
    pub(super) fn wake(&mut self) {
        wake(&mut self.receiver);
        wake(&mut self.sender);
    }
}

pub(super) fn wake(place: &mut Option<Waker>) {
    if let Some(waker) = place.take() {
        waker.wake();
    }
}

/// Notes who is to be woken.
pub(super) fn register(place: &mut Option<Waker>, cx: &Context<'_>) {
    match place {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *place = Some(cx.waker().clone()),
    }
}

impl Link {
    pub(super) fn new(session: Session<Attachment>, out: Outgoing) -> Self {
        Self(Arc::new(Mutex::new(Core {
            session,
            out,
            fault: None,
            retired: false,
            aborted: false,
            driver: None,
            waiting: VecDeque::new(),
            turn: 1,
            senders: 0,
            senders_before: 0,
            pulse: 0,
        })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Core> {
        self.0.lock()
    }

    /// Whether one more stream may be opened, as far as the tunnel itself is concerned.
    pub(crate) fn is_open(&self) -> bool {
        let core = self.lock();
        core.fault.is_none() && !core.retired && core.session.may_open()
    }

    /// How many streams the peer bears at a time.
    pub(crate) fn peer_max_streams(&self) -> usize {
        self.lock().session.peer_max_streams()
    }

    /// Opens no more streams; ends once the last one has ended.
    pub(crate) fn retire(&self) {
        let mut core = self.lock();
        core.retired = true;
        core.wake_driver();
    }

    /// Cuts the tunnel and every stream in it.
    pub(crate) fn abort(&self) {
        let mut core = self.lock();
        core.aborted = true;
        core.wake_driver();
    }

    /// Wants no more streams of the client; ends once the last one has ended.
    pub(crate) fn drain(&self) {
        let core = &mut *self.lock();
        core.session.drain(&mut core.out);
        core.wake_driver();
    }

    /// Changes whenever the peer has said anything.
    pub(crate) fn pulse(&self) -> u64 {
        self.lock().pulse
    }

    /// Sends a request.
    pub(super) fn request(&self, request: &Request<()>) -> Result<Slot, TunnelError> {
        let core = &mut *self.lock();
        if let Some(fault) = &core.fault {
            return Err(fault.clone());
        }
        if !core.session.may_open() {
            return Err(TunnelError::new(
                TunnelFault::GoAway { code: 0 },
                "the peer wants no more streams",
            ));
        }
        let now = Instant::now();
        let slot = core
            .session
            .open(request, Attachment::default(), &mut core.out, now);
        core.wake_driver();
        Ok(slot)
    }
}

impl Core {
    pub(super) fn register_driver(&mut self, cx: &Context<'_>) {
        register(&mut self.driver, cx);
    }

    pub(super) fn wake_driver(&mut self) {
        // Kept: it is woken again and again, and which task it is does not change.
        if let Some(driver) = &self.driver {
            driver.wake_by_ref();
        }
    }

    /// Why a stream can't go on, if it can't.
    pub(super) fn broken(&mut self, slot: Slot) -> Option<TunnelError> {
        if let Some(cut) = self.session.entry(slot).cut() {
            return Some(match cut {
                Cut::Here => TunnelError::closed(),
                Cut::Peer { code } => TunnelError::reset(code.into()),
                Cut::Fault { code } => TunnelError::reset(code.into()),
                Cut::GoneAway { code } => TunnelError::new(
                    TunnelFault::GoAway { code },
                    "the peer is going away and has not taken the stream",
                ),
            });
        }
        // What has ended both ways no longer needs its tunnel.
        if self.session.entry(slot).is_over() {
            return None;
        }
        self.fault.clone()
    }

    /// How much a stream may send now; the task is woken when there may be more.
    pub(super) fn poll_room(&mut self, slot: Slot, cx: &Context<'_>) -> Poll<usize> {
        let out = self.out.room();
        let peer = self.session.send_room(slot);
        let quantum =
            (LIMIT / 2 / self.senders_before.max(1)).clamp(*QUANTUM.start(), *QUANTUM.end());
        let user = &mut self.session.entry(slot).user;
        match out.min(peer).min(quantum) {
            0 => {
                register(&mut user.sender, cx);
                if peer > 0 && !std::mem::replace(&mut user.waits, true) {
                    self.waiting.push_back(slot);
                }
                Poll::Pending
            }
            room => Poll::Ready(room),
        }
    }

    /// Queues what `read` gives, up to `most` bytes, and sees to it that it leaves.
    pub(super) fn send(
        &mut self,
        slot: Slot,
        most: usize,
        read: impl FnOnce(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let count = self.session.send(slot, most, &mut self.out, read)?;
        if count > 0 {
            let sent_in = &mut self.session.entry(slot).user.sent_in;
            if std::mem::replace(sent_in, self.turn) != self.turn {
                self.senders += 1;
            }
            self.wake_driver();
        }
        Ok(count)
    }

    pub(super) fn finish(&mut self, slot: Slot) {
        self.session.finish(slot, &mut self.out);
        self.wake_driver();
    }

    /// Bytes that the application has taken out of what is held.
    pub(super) fn taken(&mut self, slot: Slot, count: usize) {
        let user = &mut self.session.entry(slot).user;
        user.held.advance(count);
        let held = user.held.len();
        self.session
            .taken(slot, count, held, &mut self.out, Instant::now());
        if self.out.queued() > 0 {
            self.wake_driver();
        }
    }

    /// The socket has taken what was queued: those that wait for room are next, in order.
    pub(super) fn turn_ends(&mut self) {
        self.turn += 1;
        self.senders_before = std::mem::take(&mut self.senders);
        let mut room = self.out.room();
        while room > 0
            && let Some(slot) = self.waiting.pop_front()
        {
            room = room.saturating_sub(*QUANTUM.end() / 2);
            let user = &mut self.session.entry(slot).user;
            user.waits = false;
            wake(&mut user.sender);
        }
    }

    /// Lets go of a stream, cutting it with `code` if it is not over.
    pub(super) fn release(&mut self, slot: Slot, code: u32) {
        self.session.reset(slot, code, &mut self.out);
        if self.session.entry(slot).user.waits {
            self.waiting.retain(|waiting| *waiting != slot);
        }
        self.session.release(slot);
        self.wake_driver();
    }

    /// The tunnel is dead: everybody in it learns so.
    pub(super) fn fail(&mut self, error: TunnelError) {
        self.fault.get_or_insert(error);
        for (_, user) in self.session.users() {
            user.wake();
        }
    }

    /// Whether a stream's answer is outstanding on this side.
    pub(super) fn owes_answer(&mut self, slot: Slot) -> bool {
        let entry = self.session.entry(slot);
        entry.cut().is_none() && entry.sending() == Sending::Answer
    }
}
