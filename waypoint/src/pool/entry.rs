// SPDX-License-Identifier: Apache-2.0
//! The connections to one endpoint: those that are idle or shared, those that are being made, and who waits for one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::client::conn::{http1, http2};
use tokio::sync::oneshot;

use super::growth::Growth;
use super::{Granted, Key};
use crate::body::AnyBody;
use crate::endpoints::Observed;
use crate::failure::Failure;
use crate::resilience::traffic::Connections;
use crate::upstream::Version;

/// How long an idle connection is kept. Shorter than what servers grant, as a rule, so that they seldom close what is being
/// used.
const IDLE: Duration = Duration::from_secs(50);

/// Requests that one HTTP/2 connection carries before another is opened.
const STREAMS: usize = 100;

/// Connections that may be made at a time where there are few yet: of HTTP/1, and of HTTP/2, of which each carries many
/// requests.
const MADE_AT_FIRST: (usize, usize) = (16, 2);

/// Where there are very many, so manieth part of them may be made at a time. A larger part would have a crowd connect for
/// most of the time, as in a busy mesh that takes as long as many answers.
const GROWTH: usize = 32;

pub(super) struct Entry {
    key: Arc<Key>,
    /// Requests that have a connection.
    busy: usize,
    /// Connections that are being made, each for a request.
    making: usize,
    /// The latest used comes last.
    idle: VecDeque<Idle>,
    shared: Vec<Shared>,
    /// Connections that carry bytes and will never be free again; they are among the busy ones.
    upgraded: usize,
    /// Requests for which there was nothing, in order. There are some only while connections are being made, or there are
    /// as many as are worth it: with the end of each, whichever it is, the next get theirs.
    waiting: VecDeque<Waiting>,
    growth: Growth,
    /// Requests that were answered since the growth was looked at.
    answered: usize,
    /// How long a request may wait for the others.
    patience: Duration,
    /// Whether somebody looks at the growth.
    watched: bool,
}

pub(super) type Waiting = oneshot::Sender<Granted>;

/// An HTTP/1 connection that waits for a request.
struct Idle {
    sender: http1::SendRequest<AnyBody>,
    until: Instant,
    held: Held,
    /// By which the worker's idle connections are counted.
    _counted: Arc<()>,
}

/// What a connection is held to, and how far it has come.
#[derive(Clone)]
pub(super) struct Held {
    /// Among whose connections it counts.
    pub(super) of: Arc<Observed>,
    pub(super) to: Connections,
    /// Requests that it has carried, with the one that it has or waits for.
    pub(super) carried: u32,
}

impl Held {
    fn idle(&self) -> Duration {
        self.to.idle.unwrap_or(IDLE)
    }

    /// Whether it may carry one more.
    pub(super) fn has_more(&self) -> bool {
        self.to.requests.is_none_or(|most| self.carried < most)
    }
}

/// An HTTP/2 connection.
struct Shared {
    number: u64,
    sender: http2::SendRequest<AnyBody>,
    streams: usize,
    used: Instant,
    held: Held,
}

/// What carries a request.
pub(super) struct Carrier {
    pub(super) sender: Sender,
    pub(super) held: Held,
}

pub(super) enum Sender {
    /// None once it was given back.
    Http1(Option<http1::SendRequest<AnyBody>>),
    Http2 {
        number: u64,
        sender: http2::SendRequest<AnyBody>,
    },
}

/// What there is for one more request.
pub(super) enum Found {
    Carrier(Carrier),
    /// A connection may be made.
    Room,
    Queue(oneshot::Receiver<Granted>),
}

/// How many connections may be made at a time where so many are open.
pub(super) fn made_at_a_time(version: Version, open: usize) -> usize {
    let at_first = match version {
        Version::Http1 => MADE_AT_FIRST.0,
        Version::Http2 => MADE_AT_FIRST.1,
    };
    at_first.max(open / GROWTH)
}

impl Entry {
    pub(super) fn new(key: Arc<Key>) -> Self {
        Self {
            key,
            busy: 0,
            making: 0,
            idle: VecDeque::new(),
            shared: Vec::new(),
            upgraded: 0,
            waiting: VecDeque::new(),
            growth: Growth::new(),
            answered: 0,
            patience: Duration::MAX,
            watched: false,
        }
    }

    pub(super) fn key(&self) -> &Arc<Key> {
        &self.key
    }

    /// What there is for one more request, which then counts among those under way.
    ///
    /// # Errors
    /// There are `most` already.
    pub(super) fn take(
        &mut self,
        (most, patience): (usize, Duration),
        now: Instant,
    ) -> Result<Found, Failure> {
        self.patience = patience;
        if self.under_way() >= most {
            self.waiting.retain(|waiting| !waiting.is_closed());
            if self.under_way() >= most {
                return Err(Failure::Overflow(most));
            }
        }
        Ok(if let Some(carrier) = self.carrier(now) {
            Found::Carrier(carrier)
        } else if self.may_make() {
            self.making += 1;
            Found::Room
        } else {
            let (waiting, granted) = oneshot::channel();
            self.waiting.push_back(waiting);
            Found::Queue(granted)
        })
    }

    /// A connection for one more request, if there is one and no more than `most` are under way.
    pub(super) fn ready(&mut self, most: usize, now: Instant) -> Option<Carrier> {
        match self.under_way() < most {
            true => self.carrier(now),
            false => None,
        }
    }

    /// What those get that have waited longest: a connection, or, with none, the permission to make one.
    pub(super) fn grant(&mut self, now: Instant) -> Vec<(Waiting, Option<Carrier>)> {
        let mut granted = Vec::new();
        while let Some(waiting) = self.waiting.pop_front() {
            if waiting.is_closed() {
                continue;
            }
            match self.carrier(now) {
                Some(carrier) => granted.push((waiting, Some(carrier))),
                None if self.may_make() => {
                    self.making += 1;
                    granted.push((waiting, None));
                }
                None => {
                    self.waiting.push_front(waiting);
                    break;
                }
            }
        }
        granted
    }

    /// Requests that have a connection, make one, or wait.
    fn under_way(&self) -> usize {
        self.busy + self.making + self.waiting.len()
    }

    fn may_make(&self) -> bool {
        let open = self.open();
        let is_worth_it = match self.key.version {
            Version::Http1 => open - self.upgraded.min(open) + self.making < self.growth.most(),
            Version::Http2 => true,
        };
        is_worth_it && self.making < made_at_a_time(self.key.version, open)
    }

    /// Whether somebody has to look at the growth from now on.
    pub(super) fn is_to_be_watched(&mut self) -> bool {
        let waits = self.key.version == Version::Http1 && !self.waiting.is_empty();
        waits && !std::mem::replace(&mut self.watched, true)
    }

    /// Looks at the growth; whether to do so again.
    pub(super) fn look(&mut self) -> bool {
        let answered = std::mem::take(&mut self.answered);
        self.watched = !self.waiting.is_empty();
        match self.watched {
            true => {
                let open = self.open();
                let waiting = (self.waiting.len(), self.patience);
                let open = open - self.upgraded.min(open);
                self.growth.tick(answered, open, waiting);
            }
            false => self.growth.pause(),
        }
        self.watched
    }

    fn carrier(&mut self, now: Instant) -> Option<Carrier> {
        let carrier = match self.key.version {
            Version::Http1 => self.latest(now)?,
            Version::Http2 => self.stream(now)?,
        };
        self.busy += 1;
        Some(carrier)
    }

    /// The connection that was used last, of those that can be used.
    fn latest(&mut self, now: Instant) -> Option<Carrier> {
        for place in (0..self.idle.len()).rev() {
            let idle = &self.idle[place];
            let is_over = idle.sender.is_closed() || idle.until <= now;
            if !is_over && !idle.sender.is_ready() {
                continue;
            }
            let idle = self.idle.remove(place)?;
            if !is_over {
                return Some(Carrier {
                    sender: Sender::Http1(Some(idle.sender)),
                    held: idle.held,
                });
            }
        }
        None
    }

    fn stream(&mut self, now: Instant) -> Option<Carrier> {
        self.shared.retain(|shared| !shared.sender.is_closed());
        let mut shared = self.shared.iter_mut();
        let shared = shared.find(|one| one.streams < STREAMS && one.held.has_more())?;
        shared.streams += 1;
        shared.used = now;
        shared.held.carried += 1;
        Some(Carrier {
            sender: Sender::Http2 {
                number: shared.number,
                sender: shared.sender.clone(),
            },
            held: shared.held.clone(),
        })
    }

    /// A request has its answer; its connection, with a token of the idle, if another may have it.
    pub(super) fn done_http1(
        &mut self,
        kept: Option<(http1::SendRequest<AnyBody>, Held, Arc<()>)>,
    ) {
        self.busy = self.busy.saturating_sub(1);
        self.answered += 1;
        if let Some((sender, held, counted)) = kept {
            self.idle.push_back(Idle {
                sender,
                until: Instant::now() + held.idle(),
                held,
                _counted: counted,
            });
        }
    }

    /// A connection carries bytes from now on.
    pub(super) fn upgrade(&mut self) {
        self.upgraded += 1;
    }

    /// It has ended.
    pub(super) fn done_upgraded(&mut self) {
        self.busy = self.busy.saturating_sub(1);
        self.upgraded = self.upgraded.saturating_sub(1);
    }

    /// The same on an HTTP/2 connection.
    pub(super) fn done_http2(&mut self, number: u64) {
        self.busy = self.busy.saturating_sub(1);
        let mut shared = self.shared.iter_mut();
        if let Some(shared) = shared.find(|one| one.number == number) {
            shared.streams = shared.streams.saturating_sub(1);
            self.expire(Instant::now());
        }
    }

    /// A connection was made; it has its request.
    pub(super) fn made(&mut self, carrier: &Carrier) {
        self.making = self.making.saturating_sub(1);
        self.busy += 1;
        if let Sender::Http2 { number, sender } = &carrier.sender {
            self.shared.push(Shared {
                number: *number,
                sender: sender.clone(),
                streams: 1,
                used: Instant::now(),
                held: carrier.held.clone(),
            });
        }
    }

    /// None was.
    pub(super) fn not_made(&mut self) {
        self.making = self.making.saturating_sub(1);
    }

    /// None was, by the endpoint's fault: where it has no other, those that wait can hope for none.
    pub(super) fn failed(&mut self) -> VecDeque<Waiting> {
        self.not_made();
        match self.open() {
            0 => std::mem::take(&mut self.waiting),
            _ => VecDeque::new(),
        }
    }

    /// Its connections.
    fn open(&self) -> usize {
        match self.key.version {
            Version::Http1 => self.busy + self.idle.len(),
            Version::Http2 => self.shared.len(),
        }
    }

    /// Closes what has waited for too long.
    pub(super) fn expire(&mut self, now: Instant) {
        if self.waiting.is_empty() {
            self.growth.forget(self.open());
        }
        self.idle
            .retain(|idle| !idle.sender.is_closed() && now < idle.until);
        self.shared.retain(|shared| {
            let is_wanted = now.duration_since(shared.used) < shared.held.idle();
            let is_usable = is_wanted && shared.held.has_more();
            !shared.sender.is_closed() && (shared.streams > 0 || is_usable)
        });
    }

    /// Closes the idle connections that count among a destination's.
    pub(super) fn close_idle(&mut self, of: &Arc<Observed>) {
        let is_its = |held: &Held| Arc::ptr_eq(&held.of, of);
        self.idle.retain(|idle| !is_its(&idle.held));
        let is_idle = |shared: &Shared| shared.streams == 0 && is_its(&shared.held);
        self.shared.retain(|shared| !is_idle(shared));
    }

    /// Closes the older half of the idle ones.
    pub(super) fn halve_idle(&mut self) {
        self.idle.drain(..self.idle.len().div_ceil(2));
    }

    /// Whether nothing of it is there.
    pub(super) fn is_unused(&self) -> bool {
        let is_empty = self.idle.is_empty() && self.shared.is_empty();
        is_empty && self.under_way() == 0 && !self.watched
    }
}
