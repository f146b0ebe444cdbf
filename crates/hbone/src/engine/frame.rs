// SPDX-License-Identifier: Apache-2.0
//! HTTP/2 frames (RFC 9113 §4, §6): headers written and read, payloads given out as they come.
//!
//! The reader is incremental: a header or a small payload may straddle records. DATA is given out in pieces without
//! being copied; every other payload is collected, up to a bound, and given out whole.
//!
//! ```text
//!   Header ─ 9 bytes ─► DATA: Pad length ─► Data ─► Padding ─► Header
//!                       else: Whole ─────────────────────────► Header
//!                       unknown: Skip ───────────────────────► Header
//! ```

use super::session::Violation;

/// Bytes of a frame header.
pub(super) const HEADER: usize = 9;

/// The client's first bytes (RFC 9113 §3.4).
pub(super) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The largest payload of a frame other than DATA that is looked at.
pub(super) const MOST_WHOLE: usize = 64 * 1024;

pub(super) const END_STREAM: u8 = 0x1;
pub(super) const ACK: u8 = 0x1;
pub(super) const END_HEADERS: u8 = 0x4;
pub(super) const PADDED: u8 = 0x8;
pub(super) const PRIORITY: u8 = 0x20;

/// Error codes (RFC 9113 §7).
pub(super) mod code {
    pub(crate) const NO_ERROR: u32 = 0x0;
    pub(crate) const PROTOCOL_ERROR: u32 = 0x1;
    pub(crate) const FLOW_CONTROL_ERROR: u32 = 0x3;
    pub(crate) const STREAM_CLOSED: u32 = 0x5;
    pub(crate) const FRAME_SIZE_ERROR: u32 = 0x6;
    pub(crate) const REFUSED_STREAM: u32 = 0x7;
    pub(crate) const COMPRESSION_ERROR: u32 = 0x9;
    pub(crate) const ENHANCE_YOUR_CALM: u32 = 0xb;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Data = 0,
    Headers = 1,
    Priority = 2,
    RstStream = 3,
    Settings = 4,
    PushPromise = 5,
    Ping = 6,
    GoAway = 7,
    WindowUpdate = 8,
    Continuation = 9,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Data,
            1 => Self::Headers,
            2 => Self::Priority,
            3 => Self::RstStream,
            4 => Self::Settings,
            5 => Self::PushPromise,
            6 => Self::Ping,
            7 => Self::GoAway,
            8 => Self::WindowUpdate,
            9 => Self::Continuation,
            _ => return None,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) length: u32,
    /// `None`: an extension, to be ignored (RFC 9113 §5.5).
    pub(super) kind: Option<Kind>,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

impl FrameHeader {
    pub(super) fn new(kind: Kind, flags: u8, stream: u32, length: usize) -> Self {
        debug_assert!(length < 1 << 24);
        Self {
            length: length as u32,
            kind: Some(kind),
            flags,
            stream,
        }
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Only for frames that are sent: those have a kind.
    pub(super) fn encode(&self) -> [u8; HEADER] {
        let [_, a, b, c] = self.length.to_be_bytes();
        let [d, e, f, g] = self.stream.to_be_bytes();
        [
            a,
            b,
            c,
            self.kind.map_or(0xff, |k| k as u8),
            self.flags,
            d,
            e,
            f,
            g,
        ]
    }

    pub(super) fn decode(bytes: &[u8; HEADER]) -> Self {
        let [a, b, c, kind, flags, d, e, f, g] = *bytes;
        Self {
            length: u32::from_be_bytes([0, a, b, c]),
            kind: Kind::of(kind),
            flags,
            // The first bit is reserved and ignored.
            stream: u32::from_be_bytes([d, e, f, g]) & !(1 << 31),
        }
    }
}

/// What the reader gives out.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece<'p> {
    /// A DATA frame begins: so many bytes count against the windows, padding included.
    DataBegins { stream: u32, length: u32 },
    /// Bytes of the present DATA frame; they lie at `at` of what was given to the reader.
    Data { at: usize, length: usize },
    /// The present DATA frame is complete.
    DataEnds { flags: u8 },
    /// Any other known frame, whole.
    Frame {
        header: FrameHeader,
        payload: &'p [u8],
    },
    /// A frame of an unknown kind begins; it will be skipped.
    Unknown,
}

enum State {
    Header,
    /// In front of a padded DATA frame's payload.
    PadLength(FrameHeader),
    Data {
        flags: u8,
        left: usize,
        padding: usize,
    },
    Padding {
        flags: u8,
        left: usize,
    },
    Whole(FrameHeader),
    Skip {
        left: usize,
    },
}

/// Reads frames out of plaintext that comes in pieces of any size.
pub(super) struct Reader {
    state: State,
    /// A header or a payload that is not complete yet.
    held: Vec<u8>,
    max_frame: u32,
}

impl Reader {
    /// `max_frame` is what our SETTINGS allow.
    pub(super) fn new(max_frame: u32) -> Self {
        Self {
            state: State::Header,
            held: Vec::new(),
            max_frame,
        }
    }

    /// Reads the next piece from `bytes` at `at`, which is moved on; `None` when more bytes are needed.
    pub(super) fn next<'p>(
        &'p mut self,
        bytes: &'p [u8],
        at: &mut usize,
    ) -> Result<Option<Piece<'p>>, Violation> {
        loop {
            match &mut self.state {
                State::Header => {
                    let Some(header) = self.header(bytes, at) else {
                        return Ok(None);
                    };
                    if header.length > self.max_frame {
                        return Err(Violation::FrameSize("a frame longer than announced"));
                    }
                    let length = header.length as usize;
                    match header.kind {
                        Some(Kind::Data) => {
                            if header.has(PADDED) {
                                if length == 0 {
                                    return Err(Violation::FrameSize("padding without length"));
                                }
                                self.state = State::PadLength(header);
                            } else {
                                self.state = State::Data {
                                    flags: header.flags,
                                    left: length,
                                    padding: 0,
                                };
                            }
                            return Ok(Some(Piece::DataBegins {
                                stream: header.stream,
                                length: header.length,
                            }));
                        }
                        Some(_) if length > MOST_WHOLE => {
                            return Err(Violation::Flood(
                                "a frame of headers or control that is too long",
                            ));
                        }
                        Some(_) => self.state = State::Whole(header),
                        None => {
                            self.state = State::Skip { left: length };
                            return Ok(Some(Piece::Unknown));
                        }
                    }
                }
                State::PadLength(header) => {
                    let Some(padding) = bytes.get(*at) else {
                        return Ok(None);
                    };
                    *at += 1;
                    let (padding, left) = (usize::from(*padding), header.length as usize - 1);
                    if padding > left {
                        return Err(Violation::Protocol("more padding than payload"));
                    }
                    self.state = State::Data {
                        flags: header.flags,
                        left: left - padding,
                        padding,
                    };
                }
                State::Data {
                    flags,
                    left,
                    padding,
                } => {
                    if *left == 0 {
                        self.state = State::Padding {
                            flags: *flags,
                            left: *padding,
                        };
                        continue;
                    }
                    let length = (*left).min(bytes.len() - *at);
                    if length == 0 {
                        return Ok(None);
                    }
                    *left -= length;
                    let start = *at;
                    *at += length;
                    return Ok(Some(Piece::Data { at: start, length }));
                }
                State::Padding { flags, left } => {
                    let length = (*left).min(bytes.len() - *at);
                    *left -= length;
                    *at += length;
                    if *left > 0 {
                        return Ok(None);
                    }
                    let flags = *flags;
                    self.state = State::Header;
                    return Ok(Some(Piece::DataEnds { flags }));
                }
                State::Whole(header) => {
                    let header = *header;
                    let wanted = header.length as usize;
                    if self.held.is_empty() && bytes.len() - *at >= wanted {
                        let payload = &bytes[*at..*at + wanted];
                        *at += wanted;
                        self.state = State::Header;
                        return Ok(Some(Piece::Frame { header, payload }));
                    }
                    if !self.collect(bytes, at, wanted) {
                        return Ok(None);
                    }
                    self.state = State::Whole(header);
                    return Ok(Some(self.whole(header)));
                }
                State::Skip { left } => {
                    let length = (*left).min(bytes.len() - *at);
                    *left -= length;
                    *at += length;
                    if *left > 0 {
                        return Ok(None);
                    }
                    self.state = State::Header;
                }
            }
        }
    }

    /// To be called after a [`Piece::Frame`]: forgets what was collected for it.
    pub(super) fn done(&mut self) {
        if let State::Whole(_) = self.state {
            self.state = State::Header;
            self.held = Vec::new();
        }
    }

    fn whole(&self, header: FrameHeader) -> Piece<'_> {
        Piece::Frame {
            header,
            payload: &self.held,
        }
    }

    fn header(&mut self, bytes: &[u8], at: &mut usize) -> Option<FrameHeader> {
        if self.held.is_empty()
            && let Some(header) = bytes[*at..].first_chunk::<HEADER>()
        {
            *at += HEADER;
            return Some(FrameHeader::decode(header));
        }
        if !self.collect(bytes, at, HEADER) {
            return None;
        }
        let header = FrameHeader::decode(self.held.first_chunk()?);
        self.held.clear();
        Some(header)
    }

    /// Collects until `wanted` bytes are held.
    fn collect(&mut self, bytes: &[u8], at: &mut usize, wanted: usize) -> bool {
        let length = (wanted - self.held.len()).min(bytes.len() - *at);
        self.held.extend_from_slice(&bytes[*at..*at + length]);
        *at += length;
        self.held.len() == wanted
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        bytes.push(kind);
        bytes.push(flags);
        bytes.extend_from_slice(&stream.to_be_bytes());
        bytes.extend_from_slice(payload);
        bytes
    }

    /// All that a reader gives out when it gets `bytes` in pieces of `size`; data is merged.
    fn read(bytes: &[u8], size: usize) -> Result<Vec<String>, Violation> {
        let mut reader = Reader::new(1 << 20);
        let mut seen: Vec<String> = Vec::new();
        let mut data = Vec::new();
        for piece in bytes.chunks(size) {
            let mut at = 0;
            loop {
                match reader.next(piece, &mut at)? {
                    None => break,
                    Some(Piece::Data { at, length }) => {
                        data.extend_from_slice(&piece[at..at + length])
                    }
                    Some(Piece::DataEnds { flags }) => {
                        seen.push(format!("data {flags} {:?}", std::mem::take(&mut data)));
                    }
                    Some(other) => seen.push(format!("{other:?}")),
                }
                reader.done();
            }
            assert_eq!(at, piece.len());
        }
        Ok(seen)
    }

    #[test]
    fn the_same_frames_come_out_whatever_the_pieces() {
        let mut bytes = frame(0, END_STREAM, 5, b"hello");
        bytes.extend(frame(0, PADDED, 5, b"\x03abcPAD"));
        bytes.extend(frame(6, 0, 0, b"12345678"));
        bytes.extend(frame(0x77, 9, 3, b"unknown"));
        bytes.extend(frame(4, ACK, 0, b""));
        bytes.extend(frame(0, 0, 7, b""));
        let whole = read(&bytes, bytes.len()).unwrap();
        assert_eq!(whole.len(), 9, "{whole:#?}");
        assert!(whole[3].contains("[97, 98, 99]"), "{whole:#?}");
        for size in 1..bytes.len() {
            assert_eq!(read(&bytes, size).unwrap(), whole, "pieces of {size}");
        }
    }

    #[test]
    fn what_is_too_long_is_refused() {
        let mut long = vec![0x10, 0, 1, 0, 0, 0, 0, 0, 1];
        assert!(matches!(read(&long, 9), Err(Violation::FrameSize(_))));
        long = vec![1, 0, 1, 1, 0, 0, 0, 0, 1];
        assert!(matches!(read(&long, 9), Err(Violation::Flood(_))));
        let padding = frame(0, PADDED, 1, b"\x05abc");
        assert!(matches!(read(&padding, 99), Err(Violation::Protocol(_))));
        let none = frame(0, PADDED, 1, b"");
        assert!(matches!(read(&none, 99), Err(Violation::FrameSize(_))));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000), size in 1usize..200) {
            let _ = read(&bytes, size);
        }

        #[test]
        fn headers_survive_the_wire(length in 0usize..1 << 24, flags: u8, stream in 0u32..1 << 31) {
            let header = FrameHeader::new(Kind::Headers, flags, stream, length);
            prop_assert_eq!(FrameHeader::decode(&header.encode()), header);
        }
    }
}
