// SPDX-License-Identifier: Apache-2.0
//! Pure: writes the responses that are ours: addresses of the mesh, "no such record", refusals with their reason.
//!
//! The question is repeated as it was sent. What exceeds the client's limit is left out by whole records and marked, so
//! that the client comes again over TCP (RFC 2181 §9). A client that speaks EDNS gets an EDNS record back, and with a
//! refusal the reason in words (RFC 8914).

use std::net::IpAddr;

use super::message::{
    self, AUTHORITATIVE, HEADER, PLAIN_UDP_PAYLOAD, Query, RECURSION_AVAILABLE, Rcode, RecordType,
};

/// Seconds that an address of the mesh may be kept.
const TTL: u32 = 30;
/// Over UDP nothing longer is sent, whatever a client says it takes: the largest datagram.
const LONGEST_DATAGRAM: usize = 65_507;
const LONGEST_MESSAGE: usize = 65_535;
const CLASS_IN: u16 = 1;
/// A reference to the question's name.
const QUESTION_NAME: u16 = 0xc000 | HEADER as u16;
const EXTENDED_ERROR: u16 = 15;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    Udp,
    Tcp,
}

impl Transport {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
        }
    }
}

/// What the mesh says to a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The addresses belong to the name made of this many leading labels, of which the asked one is an alias.
    pub alias_of: Option<usize>,
    /// All of the family that was asked for; none means that the name has no such record.
    pub addresses: Vec<IpAddr>,
}

/// Codes of RFC 8914 §4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtendedError {
    Other = 0,
    NotReady = 14,
    Prohibited = 18,
    NotSupported = 21,
    NoReachableAuthority = 22,
}

/// The response that carries an answer.
pub fn answer(query: &Query, transport: Transport, answer: &Answer) -> Vec<u8> {
    if query.edns.is_some_and(|edns| edns.version > 0) {
        return Writer::new(query, transport, Rcode::BAD_VERSION).finish(None);
    }
    let mut writer = Writer::new(query, transport, Rcode::NO_ERROR);
    message::set_flags(&mut writer.bytes, AUTHORITATIVE, RECURSION_AVAILABLE);
    let mut owner = QUESTION_NAME;
    if let Some(labels) = answer.alias_of.filter(|_| !answer.addresses.is_empty()) {
        let target = query.leading_labels(labels);
        match writer.record(QUESTION_NAME, RecordType::CNAME, &target) {
            Some(data_at) => owner = 0xc000 | data_at,
            None => return writer.finish(None),
        }
    }
    for address in &answer.addresses {
        let written = match address {
            IpAddr::V4(v4) => writer.record(owner, RecordType::A, &v4.octets()),
            IpAddr::V6(v6) => writer.record(owner, RecordType::AAAA, &v6.octets()),
        };
        if written.is_none() {
            break;
        }
    }
    writer.finish(None)
}

/// The response that refuses, and says why to those who can hear it.
pub fn refuse(
    query: &Query,
    transport: Transport,
    rcode: Rcode,
    error: ExtendedError,
    reason: &str,
) -> Vec<u8> {
    let mut writer = Writer::new(query, transport, rcode);
    message::set_flags(&mut writer.bytes, 0, RECURSION_AVAILABLE);
    writer.finish(Some((error, reason)))
}

struct Writer<'a> {
    query: &'a Query,
    transport: Transport,
    bytes: Vec<u8>,
    /// Where the records must end.
    limit: usize,
    answers: u16,
    rcode: Rcode,
}

impl<'a> Writer<'a> {
    fn new(query: &'a Query, transport: Transport, rcode: Rcode) -> Self {
        let mut bytes = query.header_of_response().to_vec();
        bytes.extend(query.question());
        message::set_rcode(&mut bytes, rcode);
        let whole = match transport {
            Transport::Tcp => LONGEST_MESSAGE,
            Transport::Udp => usize::from(payload(query)).min(LONGEST_DATAGRAM),
        };
        let edns = query.edns.map_or(0, |_| EDNS_RECORD);
        Self {
            query,
            transport,
            bytes,
            limit: whole - edns,
            answers: 0,
            rcode,
        }
    }

    /// Adds a record if it fits, and says where its data stands.
    fn record(&mut self, owner: u16, record_type: RecordType, data: &[u8]) -> Option<u16> {
        const FIXED: usize = 12;
        let data_at = self.bytes.len() + FIXED;
        if data_at + data.len() > self.limit {
            // More can't be had over TCP either.
            if self.transport == Transport::Udp {
                message::mark_truncated(&mut self.bytes);
            }
            return None;
        }
        let length = u16::try_from(data.len()).ok()?;
        self.bytes.extend(owner.to_be_bytes());
        self.bytes.extend(record_type.0.to_be_bytes());
        self.bytes.extend(CLASS_IN.to_be_bytes());
        self.bytes.extend(TTL.to_be_bytes());
        self.bytes.extend(length.to_be_bytes());
        self.bytes.extend(data);
        self.answers += 1;
        u16::try_from(data_at).ok()
    }

    fn finish(mut self, reason: Option<(ExtendedError, &str)>) -> Vec<u8> {
        self.bytes[6..8].copy_from_slice(&self.answers.to_be_bytes());
        let Some(edns) = self.query.edns else {
            return self.bytes;
        };
        let option = reason
            .map(|(error, text)| extended_error(error, text))
            .filter(|option| self.bytes.len() + option.len() <= self.limit)
            .unwrap_or_default();
        self.bytes[10..12].copy_from_slice(&1u16.to_be_bytes());
        self.bytes.push(0);
        self.bytes.extend(RecordType::OPT.0.to_be_bytes());
        self.bytes.extend(payload(self.query).to_be_bytes());
        let dnssec_ok = if edns.dnssec_ok { 0x80 } else { 0 };
        // Of the versions we know, there is one.
        self.bytes.extend([self.rcode.0 >> 4, 0, dnssec_ok, 0]);
        let length = u16::try_from(option.len()).expect("broken invariant: a reason is short");
        self.bytes.extend(length.to_be_bytes());
        self.bytes.extend(option);
        self.bytes
    }
}

const EDNS_RECORD: usize = 11;

fn payload(query: &Query) -> u16 {
    query.edns.map_or(PLAIN_UDP_PAYLOAD, |edns| {
        edns.payload.max(PLAIN_UDP_PAYLOAD)
    })
}

fn extended_error(error: ExtendedError, text: &str) -> Vec<u8> {
    const LONGEST_TEXT: usize = 200;
    let text = &text[..text.floor_char_boundary(LONGEST_TEXT)];
    let length = u16::try_from(text.len() + 2).expect("broken invariant: a reason is short");
    let mut option = EXTENDED_ERROR.to_be_bytes().to_vec();
    option.extend(length.to_be_bytes());
    option.extend((error as u16).to_be_bytes());
    option.extend(text.as_bytes());
    option
}

#[cfg(test)]
mod tests;
