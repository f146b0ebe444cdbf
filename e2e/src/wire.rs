// SPDX-License-Identifier: Apache-2.0
//! Reads frames: which conversation a packet belongs to, and whether what it carries is TLS. Pure, and wary: the bytes
//! may be anything.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A TCP or UDP packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub segment: Segment,
    pub payload: &'a [u8],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segment {
    Tcp { sequence: u32, flags: u8 },
    Udp,
}

pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const ACK: u8 = 0x10;

impl Segment {
    pub fn has(self, flag: u8) -> bool {
        matches!(self, Self::Tcp { flags, .. } if flags & flag != 0)
    }

    /// The flags as people write them.
    pub fn flags(self) -> String {
        let Self::Tcp { flags, .. } = self else {
            return "udp".into();
        };
        let names = [(SYN, "SYN"), (FIN, "FIN"), (RST, "RST"), (ACK, "ACK")];
        names
            .iter()
            .filter(|(flag, _)| flags & flag != 0)
            .map(|(_, name)| *name)
            .collect::<Vec<_>>()
            .join("+")
    }
}

/// Reads an Ethernet frame. Everything that is not TCP or UDP over IP is none of ours.
pub fn parse(frame: &[u8]) -> Option<Packet<'_>> {
    let kind = u16::from_be_bytes(frame.get(12..14)?.try_into().ok()?);
    let packet = frame.get(14..)?;
    parse_kind(kind, packet)
}

/// Reads a packet of a device that has no frames around them.
pub fn parse_bare(packet: &[u8]) -> Option<Packet<'_>> {
    match packet.first()? >> 4 {
        4 => parse_kind(0x0800, packet),
        6 => parse_kind(0x86dd, packet),
        _ => None,
    }
}

fn parse_kind(kind: u16, packet: &[u8]) -> Option<Packet<'_>> {
    match kind {
        0x0800 => parse_v4(packet),
        0x86dd => parse_v6(packet),
        _ => None,
    }
}

fn parse_v4(packet: &[u8]) -> Option<Packet<'_>> {
    let head = packet.get(..20)?;
    let head_length = usize::from(head[0] & 0x0f) * 4;
    let total = usize::from(u16::from_be_bytes([head[2], head[3]]));
    let fragment = u16::from_be_bytes([head[6], head[7]]) & 0x1fff;
    if head[0] >> 4 != 4 || head_length < 20 || fragment != 0 {
        return None;
    }
    let address = |at: usize| {
        IpAddr::from(Ipv4Addr::new(
            head[at],
            head[at + 1],
            head[at + 2],
            head[at + 3],
        ))
    };
    // A frame may be padded beyond the packet; a length of 0 is what big segments carry.
    let end = if total == 0 {
        packet.len()
    } else {
        total.min(packet.len())
    };
    parse_transport(
        head[9],
        address(12),
        address(16),
        packet.get(head_length..end)?,
    )
}

fn parse_v6(packet: &[u8]) -> Option<Packet<'_>> {
    let head = packet.get(..40)?;
    let length = usize::from(u16::from_be_bytes([head[4], head[5]]));
    let address = |at: usize| {
        let octets: [u8; 16] = head[at..at + 16].try_into().unwrap_or_default();
        IpAddr::from(Ipv6Addr::from(octets))
    };
    let end = if length == 0 {
        packet.len()
    } else {
        (40 + length).min(packet.len())
    };
    // A length of 0 announces a jumbo packet, whose true length stands in a hop-by-hop option.
    let (mut next, mut at) = (head[6], 40);
    while matches!(next, 0 | 43 | 60) {
        let extension = packet.get(at..at + 2)?;
        next = extension[0];
        at += (usize::from(extension[1]) + 1) * 8;
    }
    parse_transport(next, address(8), address(24), packet.get(at..end)?)
}

fn parse_transport(
    protocol: u8,
    source: IpAddr,
    destination: IpAddr,
    bytes: &[u8],
) -> Option<Packet<'_>> {
    let ports = bytes.get(..4)?;
    let source = SocketAddr::new(source, u16::from_be_bytes([ports[0], ports[1]]));
    let destination = SocketAddr::new(destination, u16::from_be_bytes([ports[2], ports[3]]));
    match protocol {
        6 => {
            let head = bytes.get(..20)?;
            let length = usize::from(head[12] >> 4) * 4;
            let sequence = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
            let payload = bytes.get(length.max(20)..)?;
            Some(Packet {
                source,
                destination,
                segment: Segment::Tcp {
                    sequence,
                    flags: head[13],
                },
                payload,
            })
        }
        17 => Some(Packet {
            source,
            destination,
            segment: Segment::Udp,
            payload: bytes.get(8..)?,
        }),
        _ => None,
    }
}

/// Follows one direction of a TCP stream and tells whether it is made of TLS records.
#[derive(Debug, Clone, Default)]
pub struct Records {
    /// Where the next new byte is, once that is known.
    expected: Option<u32>,
    /// Bytes of a record that are still to come.
    missing: usize,
    /// The beginning of a record's head, cut by the end of a segment.
    head: Vec<u8>,
    in_step: bool,
    pub handshake: u64,
    pub application: u64,
    /// Bytes that belong to no record.
    pub foreign: u64,
}

const HEAD: usize = 5;

impl Records {
    /// Takes the next segment; returns the bytes that are new, without what was sent before.
    pub fn take<'a>(&mut self, segment: Segment, payload: &'a [u8]) -> &'a [u8] {
        let Segment::Tcp { sequence, .. } = segment else {
            return payload;
        };
        if segment.has(SYN) {
            self.expected = Some(sequence.wrapping_add(1));
            self.in_step = true;
            return &[];
        }
        let new = match self.expected {
            None => payload,
            Some(expected) => {
                let behind = expected.wrapping_sub(sequence);
                if behind == 0 {
                    payload
                } else if behind < 1 << 31 {
                    payload
                        .get(usize::try_from(behind).unwrap_or(usize::MAX)..)
                        .unwrap_or_default()
                } else {
                    // Something was missed; records must be found again.
                    self.in_step = false;
                    payload
                }
            }
        };
        if !new.is_empty() {
            let end = sequence.wrapping_add(u32::try_from(payload.len()).unwrap_or_default());
            self.expected = Some(end);
            self.follow(new);
        }
        new
    }

    fn follow(&mut self, mut bytes: &[u8]) {
        if !self.in_step {
            // Joined in the middle: a segment that begins with a record's head is where to step in.
            if !is_head(bytes) {
                self.foreign += if looks_like_text(bytes) {
                    bytes.len() as u64
                } else {
                    0
                };
                return;
            }
            (self.in_step, self.missing) = (true, 0);
            self.head.clear();
        }
        while !bytes.is_empty() {
            if self.missing > 0 {
                let step = self.missing.min(bytes.len());
                self.missing -= step;
                bytes = &bytes[step..];
                continue;
            }
            let step = (HEAD - self.head.len()).min(bytes.len());
            self.head.extend_from_slice(&bytes[..step]);
            if self.head.len() < HEAD {
                // A head cut short is a record's head as far as it goes, or it is not.
                if !(20..=23).contains(&self.head[0]) {
                    self.lose_step(bytes.len());
                }
                return;
            }
            if !is_head(&self.head) {
                self.lose_step(bytes.len());
                return;
            }
            bytes = &bytes[step..];
            self.missing = usize::from(u16::from_be_bytes([self.head[3], self.head[4]]));
            if self.head[0] == 23 {
                self.application += 1
            } else {
                self.handshake += 1
            }
            self.head.clear();
        }
    }

    fn lose_step(&mut self, foreign: usize) {
        self.foreign += foreign as u64;
        self.in_step = false;
        self.head.clear();
    }

    /// Nothing but TLS records were seen, and at least one.
    pub fn is_tls(&self) -> bool {
        self.foreign == 0 && self.application + self.handshake > 0
    }
}

fn is_head(bytes: &[u8]) -> bool {
    let [kind, major, minor, high, low, ..] = bytes else {
        return false;
    };
    let length = u16::from_be_bytes([*high, *low]);
    // RFC 8446, 5.2: at most 2^14 + 256 bytes.
    (20..=23).contains(kind) && *major == 3 && *minor <= 4 && length <= (1 << 14) + 256
}

fn looks_like_text(bytes: &[u8]) -> bool {
    let printable = bytes
        .iter()
        .filter(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace())
        .count();
    !bytes.is_empty() && printable * 10 >= bytes.len() * 9
}

/// What a payload is, in a few words.
pub fn describe(payload: &[u8]) -> String {
    if payload.is_empty() {
        return String::new();
    }
    if is_head(payload) {
        let length = u16::from_be_bytes([payload[3], payload[4]]);
        return match (payload[0], payload.get(HEAD)) {
            (22, Some(1)) => format!("TLS client hello, {length} bytes"),
            (22, Some(2)) => format!("TLS server hello, {length} bytes"),
            (22, _) => format!("TLS handshake, {length} bytes"),
            (20, _) => "TLS change cipher spec (compatibility)".into(),
            (21, _) => "TLS alert".into(),
            _ => format!("TLS application data, {length} bytes"),
        };
    }
    if looks_like_text(payload) {
        return format!("PLAINTEXT {:?}", preview(payload));
    }
    format!("{} bytes", payload.len())
}

fn preview(payload: &[u8]) -> String {
    String::from_utf8_lossy(&payload[..payload.len().min(60)]).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(kind: u8, length: u16) -> Vec<u8> {
        let mut bytes = vec![kind, 3, 3];
        bytes.extend(length.to_be_bytes());
        bytes.extend(std::iter::repeat_n(0xaa, usize::from(length)));
        bytes
    }

    fn data(sequence: u32) -> Segment {
        Segment::Tcp {
            sequence,
            flags: ACK,
        }
    }

    #[test]
    fn records_are_followed_across_segments() {
        let mut stream = record(22, 300);
        stream.extend(record(23, 1000));
        stream.extend(record(23, 7));
        for cut in [1, 3, 4, 5, 300, 305, 308, 700] {
            let mut records = Records::default();
            records.take(
                Segment::Tcp {
                    sequence: 99,
                    flags: SYN,
                },
                &[],
            );
            let mut at = 100;
            for piece in stream.chunks(cut) {
                records.take(data(at), piece);
                at += piece.len() as u32;
            }
            assert!(records.is_tls(), "cut {cut}: {records:?}");
            assert_eq!(
                (records.handshake, records.application),
                (1, 2),
                "cut {cut}"
            );
        }
    }

    #[test]
    fn text_is_no_tls() {
        let mut records = Records::default();
        records.take(
            Segment::Tcp {
                sequence: 0,
                flags: SYN,
            },
            &[],
        );
        records.take(data(1), b"GET / HTTP/1.1\r\n");
        assert!(!records.is_tls() && records.foreign > 0);
    }

    #[test]
    fn what_is_sent_again_counts_once() {
        let mut records = Records::default();
        let bytes = record(23, 10);
        records.take(
            Segment::Tcp {
                sequence: 0,
                flags: SYN,
            },
            &[],
        );
        assert_eq!(records.take(data(1), &bytes).len(), bytes.len());
        assert!(records.take(data(1), &bytes).is_empty());
        assert_eq!(records.application, 1);
    }

    #[test]
    fn a_stream_joined_in_the_middle_is_recognised_at_the_next_record() {
        let mut records = Records::default();
        records.take(data(500), &[0xaa; 50]);
        records.take(data(550), &record(23, 20));
        assert!(records.is_tls());
    }

    #[test]
    fn a_tcp_packet_is_read() {
        let mut frame = vec![0; 12];
        frame.extend([
            0x08, 0x00, 0x45, 0, 0, 42, 0, 0, 0, 0, 64, 6, 0, 0, 10, 77, 1, 10, 10, 77, 2, 11,
        ]);
        frame.extend([
            0x9c, 0x40, 0x3a, 0xa0, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x18, 0, 0, 0, 0, 0, 0, b'h',
            b'i', 0, 0,
        ]);
        let packet = parse(&frame).unwrap();
        assert_eq!(packet.source, "10.77.1.10:40000".parse().unwrap());
        assert_eq!(packet.destination, "10.77.2.11:15008".parse().unwrap());
        // The padding behind the packet is not part of it.
        assert_eq!(packet.payload, b"hi");
        assert_eq!(parse_bare(&frame[14..]), Some(packet));
    }

    proptest! {
        #[test]
        fn no_frame_makes_it_panic(frame in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut records = Records::default();
            for kind in [[0x08, 0x00], [0x86, 0xdd]] {
                let mut frame = frame.clone();
                if frame.len() > 14 {
                    frame[12..14].copy_from_slice(&kind);
                    frame[14] = if kind[0] == 8 { 0x45 } else { 0x60 };
                }
                let bare = frame.get(14..).unwrap_or_default();
                for packet in parse(&frame).into_iter().chain(parse_bare(bare)) {
                    records.take(packet.segment, packet.payload);
                    describe(packet.payload);
                }
            }
        }

        #[test]
        fn no_stream_makes_it_panic(pieces in proptest::collection::vec((any::<u32>(), any::<u8>(), proptest::collection::vec(any::<u8>(), 0..40)), 0..20)) {
            let mut records = Records::default();
            for (sequence, flags, payload) in pieces {
                records.take(Segment::Tcp { sequence, flags }, &payload);
            }
        }
    }
}
