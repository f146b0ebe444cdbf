// SPDX-License-Identifier: Apache-2.0
//! What every byte and every stream passes, as work that can be done again and again: what it costs in instructions is
//! counted, so that nobody makes it dearer unseen. Pure; nothing else uses it.

use super::frame::{END_STREAM, FrameHeader, HEADER as FRAME_HEADER, Kind, Piece, Reader};
use super::hpack::Decoder;
use super::record::{ContentType, HEADER, Opener, Sealer, TRAILER};
use super::secrets::{Suite, TrafficSecret};
use super::session::fields;
use crate::wire::ConnectRequest;

/// A record that is sealed and opened where it lies.
pub struct Records {
    sealer: Sealer,
    opener: Opener,
    record: Vec<u8>,
}

impl Records {
    /// Of so many bytes of content, at most 16 KiB.
    pub fn new(content: usize) -> Self {
        Self {
            sealer: Sealer::new(secret()),
            opener: Opener::new(secret()),
            record: vec![7; HEADER + content + TRAILER],
        }
    }

    /// There and back; the content stays what it was. Returns its length.
    pub fn seal_and_open(&mut self) -> usize {
        self.sealer
            .seal(&mut self.record, ContentType::ApplicationData);
        let opened = self.opener.open(&mut self.record);
        opened.expect("what was just sealed").1
    }
}

/// DATA frames that are written and read.
pub struct Frames {
    reader: Reader,
    wire: Vec<u8>,
}

impl Frames {
    const COUNT: usize = 64;
    const PAYLOAD: usize = 1024;

    /// As a tunnel begins.
    pub fn new() -> Self {
        Self {
            reader: Reader::new(1 << 20),
            wire: Vec::new(),
        }
    }

    /// Writes 64 frames of 1 KiB and reads them. Returns the bytes of their payload.
    pub fn write_and_read(&mut self) -> usize {
        self.wire.clear();
        for number in 0..Self::COUNT {
            let stream = 1 + 2 * number as u32;
            let header = FrameHeader::new(Kind::Data, END_STREAM, stream, Self::PAYLOAD);
            self.wire.extend_from_slice(&header.encode());
            self.wire.resize(self.wire.len() + Self::PAYLOAD, 7);
        }
        debug_assert_eq!(
            self.wire.len(),
            Self::COUNT * (FRAME_HEADER + Self::PAYLOAD)
        );
        let (mut at, mut payload) = (0, 0);
        while let Some(piece) = self.reader.next(&self.wire, &mut at).expect("well-formed") {
            if let Piece::Data { length, .. } = piece {
                payload += length;
            }
        }
        payload
    }
}

impl Default for Frames {
    fn default() -> Self {
        Self::new()
    }
}

/// CONNECT requests that are written and read.
pub struct Requests {
    decoder: Decoder,
    block: Vec<u8>,
}

impl Requests {
    /// As a tunnel begins.
    pub fn new() -> Self {
        Self {
            decoder: Decoder::new(0),
            block: Vec::new(),
        }
    }

    /// From a request to its field block and back.
    pub fn write_and_read(&mut self, request: &ConnectRequest) -> ConnectRequest {
        self.block.clear();
        let written = request.to_http().expect("a request of ours");
        fields::write_request(&written, &mut self.block);
        let read = fields::request(&mut self.decoder, &self.block, 16 * 1024);
        let fields::Block::Read(read) = read.expect("well-formed") else {
            unreachable!("a request of ours is neither malformed nor long");
        };
        ConnectRequest::from_http(&read).expect("a CONNECT")
    }
}

impl Default for Requests {
    fn default() -> Self {
        Self::new()
    }
}

fn secret() -> TrafficSecret {
    TrafficSecret::new(Suite::Aes128GcmSha256, &[7; 32]).expect("a secret of the right length")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_is_done_and_comes_back_as_it_went() {
        let mut records = Records::new(1000);
        assert_eq!(
            (records.seal_and_open(), records.seal_and_open()),
            (1000, 1000)
        );
        assert!(
            records.record[HEADER..HEADER + 1000]
                .iter()
                .all(|byte| *byte == 7)
        );
        let mut frames = Frames::new();
        assert_eq!(frames.write_and_read(), 64 << 10);
        assert_eq!(frames.write_and_read(), 64 << 10);
        let request = ConnectRequest::new("10.0.0.1:80".parse().unwrap());
        let mut requests = Requests::new();
        assert_eq!(
            requests.write_and_read(&request).authority,
            request.authority
        );
    }
}
