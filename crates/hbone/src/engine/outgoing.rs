// SPDX-License-Identifier: Apache-2.0
//! What is to leave through the tunnel's socket: frames laid into records, sealed where they lie.
//!
//! ```text
//!   buffer: … sent │ sealed records │ header, content so far (one open record) │ room
//! ```
//!
//! All that is ready in one turn of the worker goes into as few records as it fits; the last one is sealed when the
//! turn ends. Bytes of an application are read straight to their place: a vectored read whose pieces leave out the
//! headers, types and tags of records and the headers of DATA frames.

use std::io::{self, IoSliceMut};

use super::buffer;
use super::frame::{self, FrameHeader, Kind};
use super::record::{CONTENT, ContentType, GAP, HEADER, Sealer, TRAILER};

/// Bytes that wait for the socket at most, before applications are no longer read.
pub(super) const LIMIT: usize = 512 * 1024;

/// Control frames may go beyond [`LIMIT`] by so much; a peer that makes us answer more without reading is cut off.
const CONTROL: usize = 64 * 1024;

/// Less room than this is no room: a stream waits until more is free.
const LEAST: usize = 16 * 1024;

/// Pieces of one vectored read.
const PIECES: usize = 40;

/// A TLS KeyUpdate message: asks for nothing (RFC 8446 §4.6.3).
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];

pub(crate) struct Outgoing {
    sealer: Sealer,
    /// All of it initialised; empty while nothing waits.
    buffer: Vec<u8>,
    sent: usize,
    sealed: usize,
    /// Content in the open record behind `sealed`; always less than a full record.
    open: usize,
    /// When a key has sealed so many records the next one takes over.
    records_per_key: u64,
    update_wanted: bool,
}

/// One DATA frame of a plan, in plaintext positions behind `sealed`.
#[derive(Clone, Copy, Default)]
struct Planned {
    header: usize,
    payload: usize,
}

impl Outgoing {
    pub(super) fn new(sealer: Sealer, records_per_key: u64) -> Self {
        Self {
            sealer,
            buffer: Vec::new(),
            sent: 0,
            sealed: 0,
            open: 0,
            records_per_key,
            update_wanted: false,
        }
    }

    /// Bytes that wait.
    pub(super) fn queued(&self) -> usize {
        self.sealed - self.sent + self.open
    }

    /// Bytes of applications that there is room for now.
    pub(super) fn room(&self) -> usize {
        match LIMIT.saturating_sub(self.queued()) {
            0..LEAST => 0,
            room => room,
        }
    }

    /// Whether the peer has made us answer more than it reads.
    pub(super) fn overflows(&self) -> bool {
        self.queued() > LIMIT + CONTROL
    }

    /// Queues a control frame.
    pub(super) fn frame(&mut self, header: FrameHeader, payload: &[u8]) {
        debug_assert_eq!(header.length as usize, payload.len());
        self.reserve(frame::HEADER + payload.len());
        self.put(&header.encode());
        self.put(payload);
    }

    /// Queues raw bytes that are frames already (the client's preface).
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.reserve(bytes.len());
        self.put(bytes);
    }

    /// Reads up to `most` bytes from an application into DATA frames of `stream`, each no longer than `max_frame`.
    ///
    /// `read` gets the places and says how many bytes it filled, from the front. When it gives none, or fails, nothing
    /// is queued.
    pub(super) fn data(
        &mut self,
        stream: u32,
        most: usize,
        max_frame: usize,
        read: impl FnOnce(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let frames_at_most = most.div_ceil(max_frame);
        self.reserve(most + frames_at_most * frame::HEADER);
        let mut frames = [Planned::default(); PIECES];
        let mut pieces = [(0, 0); PIECES];
        let (mut frame_count, mut piece_count) = (0, 0);
        let mut position = self.open;
        let mut left = most;
        while left > 0 && piece_count < PIECES {
            let payload = left.min(max_frame);
            frames[frame_count] = Planned {
                header: position,
                payload: 0,
            };
            position += frame::HEADER;
            let mut rest = payload;
            while rest > 0 && piece_count < PIECES {
                let length = rest.min(CONTENT - position % CONTENT);
                pieces[piece_count] = (position, length);
                piece_count += 1;
                position += length;
                rest -= length;
                frames[frame_count].payload += length;
            }
            left -= frames[frame_count].payload;
            frame_count += 1;
        }
        let count = {
            let mut places = [const { None }; PIECES];
            split(
                &mut self.buffer,
                self.sealed,
                &pieces[..piece_count],
                &mut places,
            );
            let mut slices: [IoSliceMut<'_>; PIECES] =
                places.map(|place| IoSliceMut::new(place.unwrap_or_default()));
            read(&mut slices[..piece_count])?
        };
        let mut rest = count;
        for planned in &frames[..frame_count] {
            if rest == 0 {
                break;
            }
            let length = planned.payload.min(rest);
            rest -= length;
            self.write_at(
                planned.header,
                &FrameHeader::new(Kind::Data, 0, stream, length).encode(),
            );
            self.open = planned.header + frame::HEADER + length;
        }
        self.seal_full();
        Ok(count)
    }

    /// The end of a turn: what is open is sealed, so that all of [`Self::unsent`] may leave.
    pub(super) fn finish_turn(&mut self) {
        if self.open > 0 {
            self.seal(self.open, ContentType::ApplicationData);
            self.open = 0;
        }
        if self.update_wanted {
            self.update_key();
        }
    }

    /// Sealed bytes that the socket has not taken.
    pub(super) fn unsent(&self) -> &[u8] {
        &self.buffer[self.sent..self.sealed]
    }

    /// The socket has taken `count` bytes.
    pub(super) fn advance(&mut self, count: usize) {
        self.sent += count;
        debug_assert!(self.sent <= self.sealed);
        if self.sent == self.sealed && self.open == 0 {
            self.sent = 0;
            self.sealed = 0;
            buffer::give_back(std::mem::take(&mut self.buffer));
        }
    }

    /// The peer wants a new key; it comes before the next application data.
    pub(super) fn answer_key_update(&mut self) {
        self.update_wanted = true;
    }

    /// Queues a TLS alert, behind everything else.
    pub(super) fn alert(&mut self, level: u8, description: u8) {
        self.finish_turn();
        self.reserve(2);
        self.put(&[level, description]);
        self.seal(self.open, ContentType::Alert);
        self.open = 0;
    }

    /// A key that has sealed enough is replaced. Only between records.
    fn update_key(&mut self) {
        debug_assert_eq!(self.open, 0);
        self.update_wanted = false;
        self.make_room(KEY_UPDATE.len());
        self.write_at(0, &KEY_UPDATE);
        self.seal(KEY_UPDATE.len(), ContentType::Handshake);
        self.sealer.update();
    }

    fn reserve(&mut self, plain: usize) {
        if self.open == 0 && (self.update_wanted || self.sealer.sealed() >= self.records_per_key) {
            self.update_key();
        }
        self.make_room(plain);
    }

    /// Makes room for `plain` more bytes of content.
    fn make_room(&mut self, plain: usize) {
        let needed = place(self.open + plain) + TRAILER;
        if self.sealed + needed <= self.buffer.len() {
            return;
        }
        let used = self.sent..self.sealed + if self.open > 0 { HEADER + self.open } else { 0 };
        let kept = self.sealed - self.sent;
        if self.sent > 0 && kept + needed <= self.buffer.len() {
            self.buffer.copy_within(used, 0);
        } else {
            let mut larger = buffer::borrow(kept + needed);
            larger[..used.len()].copy_from_slice(&self.buffer[used]);
            buffer::give_back(std::mem::replace(&mut self.buffer, larger));
        }
        self.sealed = kept;
        self.sent = 0;
    }

    fn put(&mut self, bytes: &[u8]) {
        self.write_at(self.open, bytes);
        self.open += bytes.len();
        self.seal_full();
    }

    /// Writes content at a position behind `sealed`, over the borders of records.
    fn write_at(&mut self, mut position: usize, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let length = bytes.len().min(CONTENT - position % CONTENT);
            let start = self.sealed + place(position);
            self.buffer[start..start + length].copy_from_slice(&bytes[..length]);
            position += length;
            bytes = &bytes[length..];
        }
    }

    fn seal_full(&mut self) {
        while self.open >= CONTENT {
            self.seal(CONTENT, ContentType::ApplicationData);
            self.open -= CONTENT;
        }
    }

    fn seal(&mut self, content: usize, kind: ContentType) {
        let end = self.sealed + HEADER + content + TRAILER;
        self.sealer.seal(&mut self.buffer[self.sealed..end], kind);
        self.sealed = end;
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        buffer::give_back(std::mem::take(&mut self.buffer));
    }
}

/// Where content of this position lies behind the start of the open record.
fn place(position: usize) -> usize {
    HEADER + position + position / CONTENT * GAP
}

/// Splits a buffer into the places of `pieces`, which are in order and do not overlap.
fn split<'b>(
    buffer: &'b mut [u8],
    base: usize,
    pieces: &[(usize, usize)],
    places: &mut [Option<&'b mut [u8]>],
) {
    let mut rest = buffer;
    let mut start = 0;
    for ((position, length), slot) in pieces.iter().zip(places) {
        let skip = base + place(*position) - start;
        let (piece, tail) = rest[skip..].split_at_mut(*length);
        start += skip + length;
        rest = tail;
        *slot = Some(piece);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::record::{Opener, length};
    use super::super::secrets::{Suite, TrafficSecret};
    use super::*;

    fn secret() -> TrafficSecret {
        TrafficSecret::new(Suite::Aes128GcmSha256, &[1; 32]).unwrap()
    }

    fn outgoing() -> Outgoing {
        Outgoing::new(Sealer::new(secret()), 1 << 24)
    }

    /// Opens all that is unsent and gives the plaintext and the number of records.
    fn open(outgoing: &mut Outgoing, opener: &mut Opener) -> (Vec<u8>, usize) {
        outgoing.finish_turn();
        let mut bytes = outgoing.unsent().to_vec();
        outgoing.advance(bytes.len());
        let (mut plain, mut records) = (Vec::new(), 0);
        let mut rest = &mut bytes[..];
        while let Some(size) = length(rest).unwrap() {
            let (record, tail) = rest.split_at_mut(size);
            let (kind, end) = opener.open(record).unwrap();
            match kind {
                ContentType::Handshake => {
                    assert_eq!(record[HEADER..HEADER + end], KEY_UPDATE);
                    opener.update();
                }
                _ => plain.extend_from_slice(&record[HEADER..HEADER + end]),
            }
            records += 1;
            rest = tail;
        }
        (plain, records)
    }

    fn fill<'a>(data: &'a [u8]) -> impl FnOnce(&mut [IoSliceMut<'_>]) -> io::Result<usize> + 'a {
        move |slices| {
            let mut rest = data;
            for slice in slices {
                let count = rest.len().min(slice.len());
                slice[..count].copy_from_slice(&rest[..count]);
                rest = &rest[count..];
            }
            Ok(data.len() - rest.len())
        }
    }

    /// The payloads of DATA frames in a run of frames, and the longest of them.
    fn payloads(mut plain: &[u8]) -> (Vec<u8>, usize) {
        let (mut data, mut longest) = (Vec::new(), 0);
        while !plain.is_empty() {
            let header = FrameHeader::decode(plain.first_chunk().unwrap());
            let end = frame::HEADER + header.length as usize;
            data.extend_from_slice(&plain[frame::HEADER..end]);
            longest = longest.max(header.length as usize);
            plain = &plain[end..];
        }
        (data, longest)
    }

    #[test]
    fn bulk_is_one_frame_in_full_records() {
        let mut outgoing = outgoing();
        let data: Vec<u8> = (0..256 * 1024u32).map(|n| n as u8).collect();
        let count = outgoing.data(1, data.len(), 1 << 20, fill(&data)).unwrap();
        assert_eq!(count, data.len());
        let (plain, records) = open(&mut outgoing, &mut Opener::new(secret()));
        let (payload, longest) = payloads(&plain);
        assert!(payload == data);
        assert_eq!(longest, data.len());
        assert_eq!(records, 17);
        assert!(
            outgoing.buffer.is_empty(),
            "nothing is held when all is sent"
        );
    }

    #[test]
    fn small_frames_of_one_turn_share_a_record() {
        let mut outgoing = outgoing();
        for stream in [1, 3, 5] {
            outgoing.data(stream, 4096, 16384, fill(b"abc")).unwrap();
        }
        let (plain, records) = open(&mut outgoing, &mut Opener::new(secret()));
        assert_eq!((plain.len(), records), (3 * 12, 1));
    }

    #[test]
    fn a_read_that_gives_nothing_queues_nothing() {
        let mut outgoing = outgoing();
        assert_eq!(outgoing.data(1, 100, 100, |_| Ok(0)).unwrap(), 0);
        let blocked = outgoing.data(1, 100, 100, |_| Err(io::ErrorKind::WouldBlock.into()));
        assert_eq!(blocked.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        outgoing.finish_turn();
        assert_eq!((outgoing.queued(), outgoing.unsent().len()), (0, 0));
    }

    #[test]
    fn room_ends_at_the_limit() {
        let mut outgoing = outgoing();
        let data = vec![0; LIMIT];
        while outgoing.room() > 0 {
            let most = outgoing.room().min(256 * 1024);
            outgoing.data(1, most, 1 << 20, fill(&data)).unwrap();
        }
        assert!(!outgoing.overflows());
        assert!(outgoing.queued() <= LIMIT + LIMIT / 512);
        while !outgoing.overflows() {
            outgoing.frame(FrameHeader::new(Kind::Ping, 1, 0, 8), &[0; 8]);
        }
        assert!(outgoing.queued() < LIMIT + CONTROL + 1024);
    }

    proptest! {
        #[test]
        fn every_byte_arrives_in_order_whatever_the_sizes(
            steps in proptest::collection::vec(
                (1usize..100_000, 1usize..70_000, prop_oneof![Just(16_384usize), Just(20_000), Just(1 << 20)],
                 0usize..200_000, any::<bool>()), 1..40),
            records_per_key in 3u64..40,
        ) {
            let mut outgoing = Outgoing::new(Sealer::new(secret()), records_per_key);
            let mut opener = Opener::new(secret());
            let (mut expected, mut wire, mut next) = (Vec::new(), Vec::new(), 0u8);
            for (have, most, max_frame, take, turn) in steps {
                let data: Vec<u8> = (0..have).map(|_| { next = next.wrapping_mul(31).wrapping_add(7); next }).collect();
                if outgoing.room() > 0 {
                    let count = outgoing.data(1, most.min(outgoing.room()), max_frame, fill(&data)).unwrap();
                    expected.extend_from_slice(&data[..count]);
                }
                if turn {
                    outgoing.finish_turn();
                    let count = take.min(outgoing.unsent().len());
                    wire.extend_from_slice(&outgoing.unsent()[..count]);
                    outgoing.advance(count);
                }
            }
            outgoing.finish_turn();
            wire.extend_from_slice(outgoing.unsent());
            let mut plain = Vec::new();
            let mut rest = &mut wire[..];
            while let Some(size) = length(rest).unwrap() {
                let (record, tail) = rest.split_at_mut(size);
                let (kind, end) = opener.open(record).unwrap();
                match kind {
                    ContentType::Handshake => opener.update(),
                    _ => plain.extend_from_slice(&record[HEADER..HEADER + end]),
                }
                rest = tail;
            }
            prop_assert!(payloads(&plain).0 == expected);
        }
    }
}
