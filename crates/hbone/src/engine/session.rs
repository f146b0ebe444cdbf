// SPDX-License-Identifier: Apache-2.0
//! HTTP/2 as a tunnel needs it (RFC 9113): CONNECT streams, windows, settings, and every bound on what a peer may do.
//!
//! In: plaintext, time, what the streams' users want. Out: frames in [`Outgoing`], events. It knows no socket, and what
//! a user keeps with a stream (`U`) is its own affair.
//!
//! ```text
//!   client:  HEADERS ──► Answer ─ 2xx ─► Open ─ END_STREAM both ways ─► over
//!   server:  request ──► Answer ─ 2xx ─► Open ─ ……                        ▲
//!               RST_STREAM, GOAWAY: cut ──────────────────────────────────┘
//! ```
//!
//! A stream's place is kept until its user releases it, so that nobody ever looks at another's stream.

pub(super) mod fields;
mod floods;
mod receive;
mod settings;
mod streams;

use std::io::{self, IoSliceMut};
use std::time::{Duration, Instant};

use http::{Request, Response};

use self::floods::Floods;
use self::settings::PeerSettings;
use self::streams::Streams;
pub(crate) use self::streams::{Cut, Entry, Receiving, Sending, Slot};
use super::flow::{Grown, Window, WindowLimits};
use super::frame::{END_HEADERS, END_STREAM, FrameHeader, Kind, PREFACE, Reader, code};
use super::hpack::{Decoder, Encoder, HpackError};
use super::outgoing::Outgoing;

/// The largest window of HTTP/2.
const MOST_WINDOW: i64 = (1 << 31) - 1;

/// The window of a connection before anything is said.
const DEFAULT_WINDOW: u32 = 65_535;

/// The last stream id; a tunnel that comes near it is replaced.
const LAST_ID: u32 = (1 << 31) - 1;

/// The PING that tells when a client has seen our first GOAWAY.
const DRAIN_PING: [u8; 8] = *b"culv:end";

/// Which end this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

/// Bounds that this side sets.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    pub(crate) windows: WindowLimits,
    pub(crate) connection_window: u32,
    pub(crate) max_frame: u32,
    pub(crate) max_streams: u32,
    pub(crate) header_list: u32,
}

/// A connection error (RFC 9113 §5.4.1): the peer broke the protocol, and the tunnel ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    #[error("HTTP/2: {0}")]
    Protocol(&'static str),
    #[error("HTTP/2: {0}")]
    FrameSize(&'static str),
    #[error("HTTP/2: {0}")]
    FlowControl(&'static str),
    #[error("HTTP/2: {0}")]
    Compression(#[from] HpackError),
    #[error("HTTP/2: flood: {0}")]
    Flood(&'static str),
}

impl Violation {
    pub(crate) fn code(&self) -> u32 {
        match self {
            Self::Protocol(_) => code::PROTOCOL_ERROR,
            Self::FrameSize(_) => code::FRAME_SIZE_ERROR,
            Self::FlowControl(_) => code::FLOW_CONTROL_ERROR,
            Self::Compression(_) => code::COMPRESSION_ERROR,
            Self::Flood(_) => code::ENHANCE_YOUR_CALM,
        }
    }
}

/// What has happened.
#[derive(Debug)]
pub(crate) enum Event {
    /// Bytes of a stream; they lie at `at` of the buffer that the piece came from.
    Data {
        slot: Slot,
        at: usize,
        length: usize,
    },
    /// The peer will send no more on it.
    Ended { slot: Slot },
    /// A client wants a stream.
    Request { slot: Slot, request: Request<()> },
    /// The peer has answered.
    Answer { slot: Slot, response: Response<()> },
    /// The stream is cut; [`Entry::cut`] says how.
    Cut { slot: Slot },
    /// The stream may send again.
    Window { slot: Slot },
    /// Every stream may send again.
    Windows,
    /// The peer wants no more streams.
    GoingAway,
}

/// How far a graceful end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Draining {
    No,
    /// GOAWAY without a last stream was sent, and a PING behind it.
    Announced,
    /// Streams above this one are refused.
    From(u32),
}

/// The DATA frame that is being read.
struct Current {
    slot: Option<Slot>,
    length: u32,
    delivered: u32,
}

/// A field block of which not all has come.
struct PartialBlock {
    stream: u32,
    end_stream: bool,
    bytes: Vec<u8>,
    frames: u32,
}

pub(crate) struct Session<U> {
    role: Role,
    limits: Limits,
    reader: Reader,
    decoder: Decoder,
    streams: Streams<U>,
    peer: PeerSettings,
    /// What this side may still send, all streams together.
    send_window: i64,
    /// What the peer may still send, all streams together.
    granted: u32,
    grown: Grown,
    /// How much of the client's preface has come.
    preface: usize,
    settings_seen: bool,
    settings_sent: Instant,
    settings_acknowledged: bool,
    round_trip: Duration,
    current: Option<Current>,
    block: Option<PartialBlock>,
    next_id: u32,
    highest_peer: u32,
    /// The peer's GOAWAY: the last stream that it takes.
    told: Option<u32>,
    draining: Draining,
    floods: Floods,
    /// Frames and pieces of frames that have come.
    frames: u64,
    /// The field block that is being written.
    scratch: Vec<u8>,
    /// Whether a field block was sent.
    spoken: bool,
}

impl<U> Session<U> {
    /// Says the first words: preface, settings, the connection's window.
    pub(crate) fn new(role: Role, limits: Limits, out: &mut Outgoing, now: Instant) -> Self {
        if role == Role::Client {
            out.raw(PREFACE);
        }
        settings::send(role, &limits, out);
        if limits.connection_window > DEFAULT_WINDOW {
            window_update(out, 0, limits.connection_window - DEFAULT_WINDOW);
        }
        Self {
            role,
            reader: Reader::new(limits.max_frame),
            decoder: Decoder::new(0),
            streams: Streams::new(),
            peer: PeerSettings::default(),
            send_window: i64::from(DEFAULT_WINDOW),
            granted: limits.connection_window.max(DEFAULT_WINDOW),
            grown: Grown::default(),
            preface: if role == Role::Client {
                PREFACE.len()
            } else {
                0
            },
            settings_seen: false,
            settings_sent: now,
            settings_acknowledged: false,
            round_trip: Duration::ZERO,
            current: None,
            block: None,
            next_id: 1,
            highest_peer: 0,
            told: None,
            draining: Draining::No,
            floods: Floods::new(now),
            frames: 0,
            scratch: Vec::new(),
            spoken: false,
            limits,
        }
    }

    /// Whether the peer would take one more stream of ours.
    pub(crate) fn may_open(&self) -> bool {
        self.told.is_none() && self.next_id < LAST_ID - 2
    }

    /// How many streams of ours the peer bears at a time.
    pub(crate) fn peer_max_streams(&self) -> usize {
        self.peer.max_streams as usize
    }

    /// How many frames, and pieces of frames, have come.
    pub(crate) fn frames(&self) -> u64 {
        self.frames
    }

    /// Streams whose user has not let go.
    pub(crate) fn held(&self) -> usize {
        self.streams.held()
    }

    /// Streams that have not ended.
    pub(crate) fn live(&self) -> usize {
        self.streams.live()
    }

    pub(crate) fn entry(&mut self, slot: Slot) -> &mut Entry<U> {
        self.streams.get(slot)
    }

    pub(crate) fn users(&mut self) -> impl Iterator<Item = (Slot, &mut U)> {
        self.streams
            .iter_mut()
            .map(|(slot, entry)| (slot, &mut entry.user))
    }

    /// Sends a request. Only where [`Self::may_open`].
    pub(crate) fn open(
        &mut self,
        request: &Request<()>,
        user: U,
        out: &mut Outgoing,
        now: Instant,
    ) -> Slot {
        let id = self.next_id;
        self.next_id += 2;
        self.begin_block();
        fields::write_request(request, &mut self.scratch);
        self.send_block(id, 0, out);
        let window = Window::new(self.limits.windows.first, now);
        self.streams
            .insert(Entry::new(id, self.peer.initial_window, window, user))
    }

    /// Answers a request; with anything but 2xx the stream ends.
    pub(crate) fn respond(&mut self, slot: Slot, response: &Response<()>, out: &mut Outgoing) {
        let entry = self.streams.get(slot);
        if entry.cut.is_some() || entry.sending != Sending::Answer {
            return;
        }
        let id = entry.id;
        let connected = response.status().is_success();
        entry.sending = if connected {
            Sending::Open
        } else {
            Sending::Ended
        };
        let ended = entry.receiving == Receiving::Ended;
        self.begin_block();
        fields::write_response(response, &mut self.scratch);
        self.send_block(id, if connected { 0 } else { END_STREAM }, out);
        if !connected {
            if !ended {
                // The client need not send the rest (RFC 9113 §8.1).
                rst_stream(out, id, code::NO_ERROR);
                self.streams.get(slot).cut = Some(Cut::Here);
            }
            self.streams.forget(id);
        }
    }

    /// How much may be sent on a stream, as far as the peer is concerned.
    pub(crate) fn send_room(&self, slot: Slot) -> usize {
        let entry = self.streams.peek(slot);
        if entry.cut.is_some() || entry.sending != Sending::Open {
            return 0;
        }
        entry.send_window.min(self.send_window).max(0) as usize
    }

    /// Sends what `read` reads, up to `most` bytes; see [`Outgoing::data`]. Only where [`Self::send_room`] is not 0.
    pub(crate) fn send(
        &mut self,
        slot: Slot,
        most: usize,
        out: &mut Outgoing,
        read: impl FnOnce(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let most = most.min(self.send_room(slot));
        let entry = self.streams.get(slot);
        let count = out.data(entry.id, most, self.peer.max_frame, read)?;
        entry.send_window -= count as i64;
        self.send_window -= count as i64;
        Ok(count)
    }

    /// Sends END_STREAM.
    pub(crate) fn finish(&mut self, slot: Slot, out: &mut Outgoing) {
        let entry = self.streams.get(slot);
        if entry.cut.is_some() || entry.sending != Sending::Open {
            return;
        }
        entry.sending = Sending::Ended;
        let (id, over) = (entry.id, entry.is_over());
        out.frame(FrameHeader::new(Kind::Data, END_STREAM, id, 0), &[]);
        if over {
            self.streams.forget(id);
        }
    }

    /// Cuts a stream, unless it is over already.
    pub(crate) fn reset(&mut self, slot: Slot, code: u32, out: &mut Outgoing) {
        let entry = self.streams.get(slot);
        if entry.is_over() {
            return;
        }
        entry.cut = Some(Cut::Here);
        let id = entry.id;
        rst_stream(out, id, code);
        self.streams.forget(id);
    }

    /// The user has let go of a stream that is over; one that is not must be reset first.
    pub(crate) fn release(&mut self, slot: Slot) -> Option<U> {
        if let Some(current) = &mut self.current
            && current.slot == Some(slot)
        {
            // The rest of a DATA frame that nobody wants any more.
            current.slot = None;
        }
        let mut entry = self.streams.remove(slot)?;
        entry.window.close(&self.limits.windows, &mut self.grown);
        Some(entry.user)
    }

    /// The application has taken `count` bytes of a stream, `held` are left.
    pub(crate) fn taken(
        &mut self,
        slot: Slot,
        count: usize,
        held: usize,
        out: &mut Outgoing,
        now: Instant,
    ) {
        let entry = self.streams.get(slot);
        if entry.cut.is_some() || entry.receiving == Receiving::Ended {
            return;
        }
        let credit = entry.window.taken(
            count,
            held,
            now,
            self.round_trip,
            &self.limits.windows,
            &mut self.grown,
        );
        if let Some(credit) = credit {
            window_update(out, entry.id, credit);
        }
    }

    /// Asks whether the peer is still there.
    pub(crate) fn ping(&mut self, out: &mut Outgoing) {
        out.frame(FrameHeader::new(Kind::Ping, 0, 0, 8), b"culvert?");
    }

    /// Wants no more streams; those that are open go on. The end comes once [`Self::drained`].
    pub(crate) fn drain(&mut self, out: &mut Outgoing) {
        if self.draining == Draining::No {
            self.draining = Draining::Announced;
            go_away(out, LAST_ID, code::NO_ERROR);
            out.frame(FrameHeader::new(Kind::Ping, 0, 0, 8), &DRAIN_PING);
        }
    }

    /// Whether a drain is done: the client knows, and no stream is left.
    pub(crate) fn drained(&self) -> bool {
        matches!(self.draining, Draining::From(_)) && self.streams.held() == 0
    }

    /// The last word.
    pub(crate) fn go_away(&mut self, code: u32, out: &mut Outgoing) {
        go_away(out, self.highest_peer, code);
    }

    fn begin_block(&mut self) {
        self.scratch.clear();
        if !std::mem::replace(&mut self.spoken, true) {
            Encoder::first_block(&mut self.scratch);
        }
    }

    /// Queues a field block, in as many frames as the peer's limit demands.
    fn send_block(&mut self, id: u32, flags: u8, out: &mut Outgoing) {
        let mut kind = Kind::Headers;
        let mut rest = &self.scratch[..];
        loop {
            let (part, tail) = rest.split_at(rest.len().min(self.peer.max_frame));
            rest = tail;
            let mut flags = if kind == Kind::Headers { flags } else { 0 };
            if rest.is_empty() {
                flags |= END_HEADERS;
            }
            out.frame(FrameHeader::new(kind, flags, id, part.len()), part);
            if rest.is_empty() {
                break;
            }
            kind = Kind::Continuation;
        }
    }
}

fn window_update(out: &mut Outgoing, id: u32, credit: u32) {
    let header = FrameHeader::new(Kind::WindowUpdate, 0, id, 4);
    out.frame(header, &credit.to_be_bytes());
}

fn rst_stream(out: &mut Outgoing, id: u32, code: u32) {
    let header = FrameHeader::new(Kind::RstStream, 0, id, 4);
    out.frame(header, &code.to_be_bytes());
}

fn go_away(out: &mut Outgoing, last: u32, code: u32) {
    let mut payload = [0; 8];
    payload[..4].copy_from_slice(&last.to_be_bytes());
    payload[4..].copy_from_slice(&code.to_be_bytes());
    out.frame(FrameHeader::new(Kind::GoAway, 0, 0, 8), &payload);
}

#[cfg(test)]
mod tests;
