// SPDX-License-Identifier: Apache-2.0
//! What came from the tunnel's socket: large reads, records opened where they lie, TLS's own messages dealt with.

use std::ops::Range;

use super::buffer;
use super::record::{self, ContentType, HEADER, Opener, RecordError};

/// What is read at once from a tunnel that says little, and from one that is all bulk.
const FIRST: usize = 32 * 1024;
const MOST: usize = 512 * 1024;

/// The longest post-handshake message that is collected: tickets are the longest, and ignored.
const MESSAGE: usize = 64 * 1024;

/// Records without content in a row that are borne.
const EMPTY: u32 = 1000;

/// Handshake message types (RFC 8446 §4).
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

pub(crate) struct Intake {
    opener: Opener,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    size: usize,
    /// A handshake message of which not all has come.
    message: Vec<u8>,
    /// Whether tickets may come: only servers send them.
    tickets: bool,
    empty: u32,
    closed: bool,
}

/// What a record was.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Opened {
    /// Application data; [`Intake::plain`] gives the bytes.
    Data(Range<usize>),
    /// A message of TLS's own that asks for nothing.
    Nothing,
    /// The peer goes on with a new key and wants us to do so too.
    UpdateRequested,
    /// The peer has sent all it had.
    Closed,
}

impl Intake {
    /// `rest` is what was read beyond the handshake.
    pub(super) fn new(opener: Opener, rest: &[u8], tickets: bool) -> Self {
        let mut intake = Self {
            opener,
            buffer: Vec::new(),
            start: 0,
            end: 0,
            size: FIRST,
            message: Vec::new(),
            tickets,
            empty: 0,
            closed: false,
        };
        if !rest.is_empty() {
            intake.buffer = buffer::borrow(rest.len().max(FIRST));
            intake.buffer[..rest.len()].copy_from_slice(rest);
            intake.end = rest.len();
        }
        intake
    }

    /// Where to read to. What was given out before is gone.
    pub(super) fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        let held = self.end - self.start;
        if self.buffer.len() < self.size || held > 0 && self.buffer.len() > self.size * 4 {
            let mut other = buffer::borrow(self.size.max(held + FIRST));
            other[..held].copy_from_slice(&self.buffer[self.start..self.end]);
            buffer::give_back(std::mem::replace(&mut self.buffer, other));
        } else if self.start > 0 {
            // At most a part of one record.
            self.buffer.copy_within(self.start..self.end, 0);
        }
        (self.start, self.end) = (0, held);
        let end = self.buffer.len().min(held + self.size);
        &mut self.buffer[held..end]
    }

    /// `count` bytes were read to [`Self::space`], which had `room`.
    pub(super) fn filled(&mut self, count: usize, room: usize) {
        self.end += count;
        if count == room {
            self.size = (self.size * 2).min(MOST);
        } else if count < self.size / 8 {
            self.size = (self.size / 2).max(FIRST);
        }
    }

    /// Opens the next record that is there whole.
    pub(super) fn next(&mut self) -> Result<Option<Opened>, RecordError> {
        let Some(length) = record::length(&self.buffer[self.start..self.end])? else {
            return Ok(None);
        };
        if self.end - self.start < length {
            return Ok(None);
        }
        let start = self.start;
        self.start += length;
        if self.closed {
            // What comes after close_notify is ignored (RFC 8446 §6.1).
            return Ok(Some(Opened::Nothing));
        }
        let (kind, content) = self.opener.open(&mut self.buffer[start..start + length])?;
        let range = start + HEADER..start + HEADER + content;
        if kind != ContentType::Handshake && !self.message.is_empty() {
            return Err(RecordError::UnexpectedMessage(
                "something inside a handshake message",
            ));
        }
        match kind {
            ContentType::ApplicationData => {
                self.empty = if content == 0 { self.empty + 1 } else { 0 };
                if self.empty > EMPTY {
                    return Err(RecordError::UnexpectedMessage("too many empty records"));
                }
                Ok(Some(Opened::Data(range)))
            }
            ContentType::Alert => self.alert(range).map(Some),
            ContentType::Handshake => self.handshake(range).map(Some),
        }
    }

    /// The bytes of [`Opened::Data`].
    pub(super) fn plain(&self, range: Range<usize>) -> &[u8] {
        &self.buffer[range]
    }

    /// Whether the stream of records ended where it may: between records, after close_notify.
    pub(super) fn closed_in_order(&self) -> bool {
        self.closed
    }

    /// Called when nothing more is there to read: an idle tunnel keeps no large buffer.
    pub(super) fn settle(&mut self) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if !self.buffer.is_empty() {
                buffer::give_back(std::mem::take(&mut self.buffer));
            }
        }
    }

    fn alert(&mut self, range: Range<usize>) -> Result<Opened, RecordError> {
        match self.buffer[range] {
            // close_notify; user_canceled is followed by it.
            [_, 0] => {
                self.closed = true;
                Ok(Opened::Closed)
            }
            [_, 90] => Ok(Opened::Nothing),
            [_, description] => Err(RecordError::PeerAlert(description)),
            [] => Err(RecordError::UnexpectedMessage("an empty alert")),
            _ => Err(RecordError::DecodeError("an alert")),
        }
    }

    /// Post-handshake messages (RFC 8446 §4.6): KeyUpdate counts, tickets are ignored, all else is an error.
    fn handshake(&mut self, range: Range<usize>) -> Result<Opened, RecordError> {
        if range.is_empty() {
            return Err(RecordError::UnexpectedMessage("an empty handshake record"));
        }
        self.message.extend_from_slice(&self.buffer[range]);
        let mut opened = Opened::Nothing;
        while let Some([kind, a, b, c]) = self.message.first_chunk::<4>().copied() {
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            match kind {
                NEW_SESSION_TICKET if self.tickets && length <= MESSAGE => {}
                KEY_UPDATE if length == 1 => {}
                KEY_UPDATE => return Err(RecordError::DecodeError("a KeyUpdate")),
                _ => return Err(RecordError::UnexpectedMessage("a handshake message")),
            }
            let end = 4 + length;
            if self.message.len() < end {
                break;
            }
            if kind == KEY_UPDATE {
                opened = match self.message[4] {
                    0 => Opened::Nothing,
                    1 => Opened::UpdateRequested,
                    _ => return Err(RecordError::IllegalParameter("a KeyUpdate")),
                };
                // The key changes at a record's border (RFC 8446 §5.1).
                if self.message.len() > end {
                    return Err(RecordError::UnexpectedMessage(
                        "something behind a KeyUpdate",
                    ));
                }
                self.opener.update();
            }
            self.message.drain(..end);
        }
        if self.message.is_empty() {
            self.message = Vec::new();
        }
        Ok(opened)
    }
}

impl Drop for Intake {
    fn drop(&mut self) {
        buffer::give_back(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{CONTENT, Sealer, TRAILER};
    use super::super::secrets::{Suite, TrafficSecret};
    use super::*;

    fn secret() -> TrafficSecret {
        TrafficSecret::new(Suite::Aes256GcmSha384, &[3; 48]).unwrap()
    }

    struct Peer(Sealer);

    impl Peer {
        fn record(&mut self, kind: ContentType, content: &[u8]) -> Vec<u8> {
            let mut record = vec![0; HEADER];
            record.extend_from_slice(content);
            record.resize(record.len() + TRAILER, 0);
            self.0.seal(&mut record, kind);
            record
        }
    }

    fn pair() -> (Peer, Intake) {
        (
            Peer(Sealer::new(secret())),
            Intake::new(Opener::new(secret()), &[], true),
        )
    }

    fn give(intake: &mut Intake, mut bytes: &[u8]) -> Result<Vec<Opened>, RecordError> {
        let mut opened = Vec::new();
        while !bytes.is_empty() {
            let space = intake.space();
            let (room, count) = (space.len(), space.len().min(bytes.len()));
            space[..count].copy_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            intake.filled(count, room);
            while let Some(record) = intake.next()? {
                opened.push(record);
            }
        }
        Ok(opened)
    }

    #[test]
    fn records_are_opened_in_any_pieces() {
        for size in [1, 7, 1000, 100_000] {
            let (mut peer, mut intake) = pair();
            let mut wire = peer.record(ContentType::ApplicationData, b"one");
            wire.extend(peer.record(ContentType::ApplicationData, &[2; CONTENT]));
            let mut plain = Vec::new();
            for piece in wire.chunks(size) {
                let space = intake.space();
                let room = space.len();
                space[..piece.len().min(room)].copy_from_slice(&piece[..piece.len().min(room)]);
                intake.filled(piece.len(), room);
                while let Some(Opened::Data(range)) = intake.next().unwrap() {
                    plain.extend_from_slice(intake.plain(range));
                }
            }
            assert_eq!(plain.len(), 3 + CONTENT);
            intake.settle();
            assert!(intake.buffer.is_empty(), "an idle tunnel holds no buffer");
        }
    }

    #[test]
    fn the_key_changes_at_the_record_behind_a_key_update() {
        let (mut peer, mut intake) = pair();
        let mut wire = peer.record(ContentType::Handshake, &[24, 0, 0, 1, 1]);
        peer.0.update();
        wire.extend(peer.record(ContentType::ApplicationData, b"new"));
        let opened = give(&mut intake, &wire).unwrap();
        assert_eq!(opened[0], Opened::UpdateRequested);
        assert!(matches!(opened[1], Opened::Data(_)));
    }

    #[test]
    fn each_breach_has_its_alert() {
        let check = |records: &[(ContentType, &[u8])], alert: u8| {
            let (mut peer, mut intake) = pair();
            let mut wire = Vec::new();
            for (kind, content) in records {
                wire.extend(peer.record(*kind, content));
            }
            let error = give(&mut intake, &wire).unwrap_err();
            assert_eq!(error.alert(), Some(alert), "{records:?}: {error}");
        };
        use ContentType::{Alert, ApplicationData, Handshake};
        check(&[(Handshake, &[24, 0, 0, 1, 2])], 47);
        check(&[(Handshake, &[24, 0, 0, 2, 0, 0])], 50);
        check(&[(Handshake, &[24, 0, 0, 1, 0, 24])], 10);
        check(&[(Handshake, &[13, 0, 0, 0])], 10);
        check(&[(Handshake, &[])], 10);
        check(&[(Handshake, &[4, 0, 0, 9]), (ApplicationData, b"x")], 10);
        check(&[(Alert, &[])], 10);
        check(&[(Alert, &[1, 0, 0])], 50);
        let (mut peer, mut intake) = pair();
        let fatal = peer.record(Alert, &[2, 20]);
        assert_eq!(give(&mut intake, &fatal), Err(RecordError::PeerAlert(20)));
        let (_, mut intake) = pair();
        assert_eq!(
            give(&mut intake, &[20, 3, 3, 0, 1, 1]).unwrap_err().alert(),
            Some(10)
        );
    }

    #[test]
    fn tickets_are_ignored_and_what_follows_close_notify_too() {
        let (mut peer, mut intake) = pair();
        let mut ticket = vec![4, 0, 0, 200];
        ticket.resize(204, 1);
        let mut wire = peer.record(ContentType::Handshake, &ticket[..100]);
        wire.extend(peer.record(ContentType::Handshake, &ticket[100..]));
        wire.extend(peer.record(ContentType::Alert, &[1, 0]));
        wire.extend(peer.record(ContentType::ApplicationData, b"late"));
        let opened = give(&mut intake, &wire).unwrap();
        assert_eq!(
            opened,
            [
                Opened::Nothing,
                Opened::Nothing,
                Opened::Closed,
                Opened::Nothing
            ]
        );
        assert!(intake.closed_in_order());
    }

    #[test]
    fn empty_records_are_bounded() {
        let (mut peer, mut intake) = pair();
        let mut wire = Vec::new();
        for _ in 0..=EMPTY {
            wire.extend(peer.record(ContentType::ApplicationData, b""));
        }
        assert!(give(&mut intake, &wire).is_err());
    }
}
