// SPDX-License-Identifier: Apache-2.0
//! Frames that carry no bytes and open no stream: resets, settings, pings, credit, leave-taking.

use std::time::Instant;

use super::super::super::frame::{ACK, FrameHeader, Kind, code};
use super::super::super::outgoing::Outgoing;
use super::super::streams::{Cut, Sending};
use super::super::{DRAIN_PING, Draining, Event, MOST_WINDOW, Role, Session, Violation, go_away};

impl<U: Default> Session<U> {
    pub(super) fn rst_stream(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
        now: Instant,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        let Ok(code) = payload.try_into().map(u32::from_be_bytes) else {
            return Err(Violation::FrameSize("RST_STREAM"));
        };
        let Some(slot) = self.streams.slot(header.stream) else {
            if self.is_idle(header.stream) {
                return Err(Violation::Protocol("RST_STREAM of an idle stream"));
            }
            return self.floods.cheap(now);
        };
        let entry = self.streams.get(slot);
        let unanswered = entry.sending == Sending::Answer;
        entry.cut = Some(Cut::Peer { code });
        self.streams.forget(header.stream);
        events.push(Event::Cut { slot });
        if unanswered && self.role == Role::Server {
            self.floods.refused(now)?;
        }
        Ok(())
    }

    pub(super) fn settings(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
        now: Instant,
        out: &mut Outgoing,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        if header.stream != 0 {
            return Err(Violation::Protocol("SETTINGS of a stream"));
        }
        if header.has(ACK) {
            if !payload.is_empty() {
                return Err(Violation::FrameSize("SETTINGS"));
            }
            if !self.settings_seen {
                return Err(Violation::Protocol("the first frame is not SETTINGS"));
            }
            if !self.settings_acknowledged {
                self.settings_acknowledged = true;
                self.round_trip = now.duration_since(self.settings_sent);
                self.decoder.settings_acknowledged();
            }
            return self.floods.cheap(now);
        }
        self.settings_seen = true;
        let growth = self.peer.apply(self.role, payload)?;
        if growth != 0 {
            for (_, entry) in self.streams.iter_mut() {
                entry.send_window += growth;
                if entry.send_window > MOST_WINDOW {
                    return Err(Violation::FlowControl("a window beyond HTTP/2's largest"));
                }
            }
        }
        out.frame(FrameHeader::new(Kind::Settings, ACK, 0, 0), &[]);
        events.push(Event::Windows);
        self.floods.answered(now)
    }

    pub(super) fn pinged(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
        now: Instant,
        out: &mut Outgoing,
    ) -> Result<(), Violation> {
        if header.stream != 0 {
            return Err(Violation::Protocol("PING of a stream"));
        }
        if payload.len() != 8 {
            return Err(Violation::FrameSize("PING"));
        }
        if !header.has(ACK) {
            out.frame(FrameHeader::new(Kind::Ping, ACK, 0, 8), payload);
            return self.floods.answered(now);
        }
        if payload == DRAIN_PING && self.draining == Draining::Announced {
            self.draining = Draining::From(self.highest_peer);
            go_away(out, self.highest_peer, code::NO_ERROR);
        }
        self.floods.cheap(now)
    }

    pub(super) fn gone_away(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        if header.stream != 0 {
            return Err(Violation::Protocol("GOAWAY of a stream"));
        }
        let (Some(last), Some(code)) = (word(payload, 0), word(payload, 4)) else {
            return Err(Violation::FrameSize("GOAWAY"));
        };
        let last = last & !(1 << 31);
        if self.told.is_some_and(|before| last > before) {
            return Err(Violation::Protocol(
                "a GOAWAY that takes more streams than the last",
            ));
        }
        self.told = Some(last);
        if self.role == Role::Client {
            let mut lost = Vec::new();
            for (slot, entry) in self.streams.iter_mut() {
                if entry.id > last && !entry.is_over() {
                    entry.cut = Some(Cut::GoneAway { code });
                    lost.push((slot, entry.id));
                }
            }
            for (slot, id) in lost {
                self.streams.forget(id);
                events.push(Event::Cut { slot });
            }
        }
        events.push(Event::GoingAway);
        Ok(())
    }

    pub(super) fn window_update(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
        now: Instant,
        out: &mut Outgoing,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        let Ok(word) = payload.try_into().map(u32::from_be_bytes) else {
            return Err(Violation::FrameSize("WINDOW_UPDATE"));
        };
        let credit = i64::from(word & !(1 << 31));
        if header.stream == 0 {
            if credit == 0 {
                return Err(Violation::Protocol("a WINDOW_UPDATE of nothing"));
            }
            let blocked = self.send_window <= 0;
            self.send_window += credit;
            if self.send_window > MOST_WINDOW {
                return Err(Violation::FlowControl("a window beyond HTTP/2's largest"));
            }
            if blocked {
                events.push(Event::Windows);
            }
            return self.floods.cheap(now);
        }
        match self.streams.slot(header.stream) {
            None if self.is_idle(header.stream) => {
                return Err(Violation::Protocol("WINDOW_UPDATE of an idle stream"));
            }
            None => {}
            Some(_) if credit == 0 => {
                self.stream_error(header.stream, code::PROTOCOL_ERROR, out, events);
            }
            Some(slot) => {
                let entry = self.streams.get(slot);
                let blocked = entry.send_window <= 0;
                entry.send_window += credit;
                if entry.send_window > MOST_WINDOW {
                    self.stream_error(header.stream, code::FLOW_CONTROL_ERROR, out, events);
                } else if blocked {
                    events.push(Event::Window { slot });
                }
            }
        }
        self.floods.cheap(now)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at + 4)?.first_chunk()?;
    Some(u32::from_be_bytes(*word))
}
