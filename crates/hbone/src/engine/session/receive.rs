// SPDX-License-Identifier: Apache-2.0
//! What a peer sends: each frame checked, each breach named (RFC 9113 §5 and §6), each kind of flood bounded.

mod control;

use std::time::Instant;

use http::{Response, StatusCode};

use super::super::flow::Window;
use super::super::frame::{
    self, END_HEADERS, END_STREAM, FrameHeader, Kind, PADDED, PREFACE, PRIORITY, Piece, Reader,
    code,
};
use super::super::outgoing::Outgoing;
use super::fields::{self, Block};
use super::streams::{Cut, Entry, Receiving, Sending, Slot};
use super::{
    Current, Draining, Event, PartialBlock, Role, Session, Violation, rst_stream, window_update,
};

/// Frames of one field block that are borne.
const BLOCK_FRAMES: u32 = 64;

impl<U: Default> Session<U> {
    /// Reads a piece of plaintext, which lies at `base` of its buffer.
    pub(crate) fn receive(
        &mut self,
        bytes: &[u8],
        base: usize,
        now: Instant,
        out: &mut Outgoing,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        let mut at = 0;
        if self.preface < PREFACE.len() {
            let wanted = &PREFACE[self.preface..];
            let count = wanted.len().min(bytes.len());
            if bytes[..count] != wanted[..count] {
                return Err(Violation::Protocol("not HTTP/2"));
            }
            self.preface += count;
            at = count;
        }
        let mut reader = std::mem::replace(&mut self.reader, Reader::new(self.limits.max_frame));
        let result = loop {
            let step = match reader.next(bytes, &mut at) {
                Ok(None) => break Ok(()),
                Ok(Some(piece)) => {
                    self.frames += 1;
                    self.piece(piece, base, now, out, events)
                }
                Err(violation) => break Err(violation),
            };
            reader.done();
            if let Err(violation) = step {
                break Err(violation);
            }
            if out.overflows() {
                break Err(Violation::Flood("more answers than the peer reads"));
            }
        };
        self.reader = reader;
        result
    }

    fn piece(
        &mut self,
        piece: Piece<'_>,
        base: usize,
        now: Instant,
        out: &mut Outgoing,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        match piece {
            Piece::Data { at, length } => {
                if let Some(current) = &mut self.current
                    && let Some(slot) = current.slot
                    && self.streams.peek(slot).cut.is_none()
                {
                    current.delivered += length as u32;
                    events.push(Event::Data {
                        slot,
                        at: base + at,
                        length,
                    });
                }
                Ok(())
            }
            Piece::DataBegins { stream, length } => {
                self.outside_of_block()?;
                self.data_begins(stream, length, now, out, events)
            }
            Piece::DataEnds { flags } => {
                self.data_ends(flags, out, events);
                Ok(())
            }
            Piece::Unknown => {
                self.outside_of_block()?;
                self.floods.cheap(now)
            }
            Piece::Frame { header, payload } => {
                if let Some(kind) = header.kind {
                    if kind != Kind::Continuation {
                        self.outside_of_block()?;
                    }
                    if !self.settings_seen && kind != Kind::Settings {
                        return Err(Violation::Protocol("the first frame is not SETTINGS"));
                    }
                    self.frame(kind, header, payload, now, out, events)?;
                }
                Ok(())
            }
        }
    }

    fn frame(
        &mut self,
        kind: Kind,
        header: FrameHeader,
        payload: &[u8],
        now: Instant,
        out: &mut Outgoing,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        match kind {
            Kind::Headers => self.headers(header, payload, now, out, events),
            Kind::Continuation => self.continuation(header, payload, now, out, events),
            Kind::RstStream => self.rst_stream(header, payload, now, events),
            Kind::Settings => self.settings(header, payload, now, out, events),
            Kind::Ping => self.pinged(header, payload, now, out),
            Kind::GoAway => self.gone_away(header, payload, events),
            Kind::WindowUpdate => self.window_update(header, payload, now, out, events),
            Kind::Priority if header.stream == 0 => {
                Err(Violation::Protocol("PRIORITY of no stream"))
            }
            Kind::Priority => {
                if payload.len() != 5 {
                    self.stream_error(header.stream, code::FRAME_SIZE_ERROR, out, events);
                }
                self.floods.cheap(now)
            }
            Kind::PushPromise => Err(Violation::Protocol("PUSH_PROMISE")),
            // Never given out as a whole frame.
            Kind::Data => Ok(()),
        }
    }

    fn outside_of_block(&self) -> Result<(), Violation> {
        match self.block {
            Some(_) => Err(Violation::Protocol("a frame inside a field block")),
            None => Ok(()),
        }
    }

    /// Whether a stream of this id was never opened: no frame may come for it.
    pub(super) fn is_idle(&self, id: u32) -> bool {
        match (self.role, id % 2) {
            (Role::Client, 1) => id >= self.next_id,
            (Role::Server, 1) => id > self.highest_peer,
            // Servers open no streams here.
            _ => true,
        }
    }

    fn data_begins(
        &mut self,
        stream: u32,
        length: u32,
        now: Instant,
        out: &mut Outgoing,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        if !self.settings_seen {
            return Err(Violation::Protocol("the first frame is not SETTINGS"));
        }
        let Some(granted) = self.granted.checked_sub(length) else {
            return Err(Violation::FlowControl(
                "more DATA than the connection's window",
            ));
        };
        self.granted = granted;
        // Given back at once: what waits is bounded by the streams' own windows.
        if self.granted < self.limits.connection_window / 2 {
            let credit = self.limits.connection_window - self.granted;
            self.granted += credit;
            window_update(out, 0, credit);
        }
        let mut slot = self.streams.slot(stream);
        match slot {
            None if self.is_idle(stream) => {
                return Err(Violation::Protocol("DATA of an idle stream"));
            }
            None => self.floods.cheap(now)?,
            Some(found) => {
                let entry = self.streams.get(found);
                let fault = match entry.receiving {
                    Receiving::Answer => Some(code::PROTOCOL_ERROR),
                    Receiving::Ended => Some(code::STREAM_CLOSED),
                    Receiving::Open if !entry.window.received(length) => {
                        Some(code::FLOW_CONTROL_ERROR)
                    }
                    Receiving::Open => None,
                };
                if let Some(code) = fault {
                    self.stream_error(stream, code, out, events);
                    slot = None;
                }
            }
        }
        if length == 0 {
            self.floods.cheap(now)?;
        }
        self.current = Some(Current {
            slot,
            length,
            delivered: 0,
        });
        Ok(())
    }

    fn data_ends(&mut self, flags: u8, out: &mut Outgoing, events: &mut Vec<Event>) {
        let Some(Current {
            slot: Some(slot),
            length,
            delivered,
        }) = self.current.take()
        else {
            return;
        };
        let entry = self.streams.get(slot);
        if length > delivered
            && entry.cut.is_none()
            && let Some(credit) = entry.window.padding(length - delivered)
        {
            window_update(out, entry.id, credit);
        }
        if flags & END_STREAM != 0 {
            self.ended(slot, events);
        }
    }

    fn ended(&mut self, slot: Slot, events: &mut Vec<Event>) {
        let entry = self.streams.get(slot);
        entry.receiving = Receiving::Ended;
        let (id, over) = (entry.id, entry.is_over());
        if over {
            self.streams.forget(id);
        }
        events.push(Event::Ended { slot });
    }

    fn headers(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
        now: Instant,
        out: &mut Outgoing,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        if header.stream == 0 {
            return Err(Violation::Protocol("HEADERS of no stream"));
        }
        let block = unpad(header, payload)?;
        let end_stream = header.has(END_STREAM);
        if header.has(END_HEADERS) {
            return self.field_block(header.stream, end_stream, block, now, out, events);
        }
        self.block = Some(PartialBlock {
            stream: header.stream,
            end_stream,
            bytes: block.to_vec(),
            frames: 1,
        });
        Ok(())
    }

    fn continuation(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
        now: Instant,
        out: &mut Outgoing,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        let Some(mut block) = self.block.take() else {
            return Err(Violation::Protocol("CONTINUATION without HEADERS"));
        };
        if block.stream != header.stream {
            return Err(Violation::Protocol("CONTINUATION of another stream"));
        }
        block.frames += 1;
        if block.frames > BLOCK_FRAMES || block.bytes.len() + payload.len() > frame::MOST_WHOLE {
            return Err(Violation::Flood("a field block without end"));
        }
        block.bytes.extend_from_slice(payload);
        if header.has(END_HEADERS) {
            return self.field_block(
                block.stream,
                block.end_stream,
                &block.bytes,
                now,
                out,
                events,
            );
        }
        self.block = Some(block);
        Ok(())
    }

    fn field_block(
        &mut self,
        stream: u32,
        end_stream: bool,
        block: &[u8],
        now: Instant,
        out: &mut Outgoing,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        match self.streams.slot(stream) {
            Some(slot) => self.late_block(slot, end_stream, block, out, events),
            None if self.role == Role::Server && stream % 2 == 1 && stream > self.highest_peer => {
                self.highest_peer = stream;
                self.request(stream, end_stream, block, now, out, events)
            }
            None if self.is_idle(stream) => Err(Violation::Protocol("HEADERS of an idle stream")),
            None => {
                fields::skip(&mut self.decoder, block)?;
                self.floods.cheap(now)
            }
        }
    }

    /// A request of a client.
    fn request(
        &mut self,
        stream: u32,
        end_stream: bool,
        block: &[u8],
        now: Instant,
        out: &mut Outgoing,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        let late = matches!(self.draining, Draining::From(last) if stream > last);
        let most = self.limits.max_streams as usize;
        // Those that the client has reset count as long as they keep us busy, or a limit would be none.
        if late || self.streams.live() >= most || self.streams.held() >= most * 2 {
            fields::skip(&mut self.decoder, block)?;
            rst_stream(out, stream, code::REFUSED_STREAM);
            return self.floods.refused(now);
        }
        let list = self.limits.header_list as usize;
        match fields::request(&mut self.decoder, block, list)? {
            Block::Read(request) => {
                let window = Window::new(self.limits.windows.first, now);
                let mut entry = Entry::new(stream, self.peer.initial_window, window, U::default());
                entry.receiving = if end_stream {
                    Receiving::Ended
                } else {
                    Receiving::Open
                };
                let slot = self.streams.insert(entry);
                events.push(Event::Request { slot, request });
                if end_stream {
                    events.push(Event::Ended { slot });
                }
                Ok(())
            }
            Block::Malformed(_) => {
                rst_stream(out, stream, code::PROTOCOL_ERROR);
                self.floods.refused(now)
            }
            Block::TooLong => {
                let mut response = Response::new(());
                *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
                self.begin_block();
                fields::write_response(&response, &mut self.scratch);
                self.send_block(stream, END_STREAM, out);
                rst_stream(out, stream, code::NO_ERROR);
                self.floods.refused(now)
            }
        }
    }

    /// A field block on a stream that exists: the answer that a client waits for, or something that must not come.
    fn late_block(
        &mut self,
        slot: Slot,
        end_stream: bool,
        block: &[u8],
        out: &mut Outgoing,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        let entry = self.streams.get(slot);
        let id = entry.id;
        if self.role == Role::Server || entry.receiving != Receiving::Answer {
            let refused = entry.sending == Sending::Answer && entry.receiving == Receiving::Open;
            fields::skip(&mut self.decoder, block)?;
            if refused && self.role == Role::Client && end_stream {
                // Trailers of an answer that was no 2xx.
                self.ended(slot, events);
            } else {
                // Only DATA may come on a connected stream (RFC 9113 §8.5).
                self.stream_error(id, code::PROTOCOL_ERROR, out, events);
            }
            return Ok(());
        }
        let list = self.limits.header_list as usize;
        let response = match fields::response(&mut self.decoder, block, list)? {
            Block::Read(response) => response,
            Block::Malformed(_) | Block::TooLong => {
                self.stream_error(id, code::PROTOCOL_ERROR, out, events);
                return Ok(());
            }
        };
        if response.status().is_informational() {
            if end_stream {
                self.stream_error(id, code::PROTOCOL_ERROR, out, events);
            }
            return Ok(());
        }
        let entry = self.streams.get(slot);
        entry.receiving = Receiving::Open;
        if response.status().is_success() {
            entry.sending = Sending::Open;
        }
        events.push(Event::Answer { slot, response });
        if end_stream {
            self.ended(slot, events);
        }
        Ok(())
    }

    /// A stream error (RFC 9113 §5.4.2): the peer's fault, and its stream alone is cut.
    pub(super) fn stream_error(
        &mut self,
        id: u32,
        code: u32,
        out: &mut Outgoing,
        events: &mut Vec<Event>,
    ) {
        rst_stream(out, id, code);
        if let Some(slot) = self.streams.slot(id) {
            self.streams.get(slot).cut = Some(Cut::Fault { code });
            self.streams.forget(id);
            events.push(Event::Cut { slot });
        }
    }
}

/// The field block of a HEADERS frame, without padding and priority (RFC 9113 §6.2).
fn unpad(header: FrameHeader, mut payload: &[u8]) -> Result<&[u8], Violation> {
    let mut padding = 0;
    if header.has(PADDED) {
        let (length, rest) = payload
            .split_first()
            .ok_or(Violation::FrameSize("padding without length"))?;
        padding = usize::from(*length);
        payload = rest;
    }
    if header.has(PRIORITY) {
        payload = payload
            .get(5..)
            .ok_or(Violation::FrameSize("a priority that is too short"))?;
    }
    let end = payload
        .len()
        .checked_sub(padding)
        .ok_or(Violation::Protocol("more padding than payload"))?;
    Ok(&payload[..end])
}
