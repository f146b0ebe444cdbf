// SPDX-License-Identifier: Apache-2.0
//! Pure: what a DNS message has to say that matters here. All else in it stays the bytes that it is.
//!
//! In: bytes from a pod or from an upstream server, which may be anything. Out: a [`Query`] whose question and EDNS record
//! are known to be readable, or why not; whether a response belongs to a query; the addresses in one. Names inside records
//! are stepped over, never followed, so no message costs more than its length (RFC 1035 §4, RFC 6891, RFC 9619).

use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

/// The longest query that is read, over either transport: a question of 255 bytes and any reasonable set of options.
pub const MAX_QUERY: usize = 4096;
/// What a client without EDNS takes over UDP.
pub const PLAIN_UDP_PAYLOAD: u16 = 512;

pub(super) const HEADER: usize = 12;
const MAX_NAME: usize = 255;
const MAX_LABEL: usize = 63;

const RESPONSE: u8 = 0x80;
const OPCODE: u8 = 0x78;
pub(super) const AUTHORITATIVE: u8 = 0x04;
const TRUNCATED: u8 = 0x02;
const RECURSION_DESIRED: u8 = 0x01;
pub(super) const RECURSION_AVAILABLE: u8 = 0x80;
const CHECKING_DISABLED: u8 = 0x10;
const RCODE: u8 = 0x0f;
const DNSSEC_OK: u16 = 0x8000;

/// The response codes that are given or looked at here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rcode(pub u8);

impl Rcode {
    pub const NO_ERROR: Self = Self(0);
    pub const FORMAT_ERROR: Self = Self(1);
    pub const SERVER_FAILURE: Self = Self(2);
    pub const NAME_ERROR: Self = Self(3);
    pub const NOT_IMPLEMENTED: Self = Self(4);
    pub const REFUSED: Self = Self(5);
    /// Only with an EDNS record, which carries its upper bits.
    pub const BAD_VERSION: Self = Self(16);

    pub fn name(self) -> &'static str {
        match self {
            Self::NO_ERROR => "NOERROR",
            Self::FORMAT_ERROR => "FORMERR",
            Self::SERVER_FAILURE => "SERVFAIL",
            Self::NAME_ERROR => "NXDOMAIN",
            Self::NOT_IMPLEMENTED => "NOTIMP",
            Self::REFUSED => "REFUSED",
            Self::BAD_VERSION => "BADVERS",
            _ => "OTHER",
        }
    }
}

/// What a question asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RecordType(pub u16);

impl RecordType {
    pub const A: Self = Self(1);
    pub const CNAME: Self = Self(5);
    pub const AAAA: Self = Self(28);
    pub const OPT: Self = Self(41);
    pub const SOA: Self = Self(6);
    const IXFR: Self = Self(251);
    const AXFR: Self = Self(252);

    /// As a metric label: lower case, one word for all types that are rarely asked for.
    pub fn label(self) -> &'static str {
        match self.0 {
            1 => "a",
            2 => "ns",
            5 => "cname",
            6 => "soa",
            12 => "ptr",
            15 => "mx",
            16 => "txt",
            28 => "aaaa",
            29 => "loc",
            33 => "srv",
            35 => "naptr",
            43 => "ds",
            46 => "rrsig",
            47 => "nsec",
            48 => "dnskey",
            52 => "tlsa",
            64 => "svcb",
            65 => "https",
            251 => "ixfr",
            252 => "axfr",
            255 => "any",
            257 => "caa",
            _ => "unknown",
        }
    }
}

const CLASS_IN: u16 = 1;

/// What a client's EDNS record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edns {
    /// The longest response that it takes over UDP, as it says.
    pub payload: u16,
    pub version: u8,
    pub dnssec_ok: bool,
}

/// A query that can be read: one question, at most one EDNS record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    message: Box<[u8]>,
    /// Name, type and class, in the message.
    question: Range<usize>,
    pub record_type: RecordType,
    class: u16,
    pub edns: Option<Edns>,
}

/// Why a message is no query that can be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    #[error("{0} bytes are no DNS message")]
    Short(usize),
    #[error("the message is longer than {MAX_QUERY} bytes")]
    Long,
    #[error("a response was sent as a query")]
    Response,
    #[error("operation {0} is not supported, only queries are")]
    Operation(u8),
    #[error("the message has {0} questions instead of one")]
    QuestionCount(u16),
    #[error("the question can't be read")]
    Question,
    #[error("record {0} can't be read")]
    Record(usize),
    #[error("the message has more than one EDNS record")]
    SecondEdns,
    #[error("zone transfers are not supported")]
    Transfer,
}

impl QueryError {
    /// What to answer; none where there is nothing to answer to.
    pub fn rcode(&self) -> Option<Rcode> {
        match self {
            Self::Short(_) => None,
            Self::Operation(_) | Self::Transfer => Some(Rcode::NOT_IMPLEMENTED),
            Self::Long
            | Self::Response
            | Self::QuestionCount(_)
            | Self::Question
            | Self::Record(_)
            | Self::SecondEdns => Some(Rcode::FORMAT_ERROR),
        }
    }
}

impl Query {
    /// # Errors
    /// Says what can't be read or served.
    pub fn parse(message: &[u8]) -> Result<Self, QueryError> {
        if message.len() < HEADER {
            return Err(QueryError::Short(message.len()));
        }
        if message.len() > MAX_QUERY {
            return Err(QueryError::Long);
        }
        if message[2] & RESPONSE != 0 {
            return Err(QueryError::Response);
        }
        let operation = (message[2] & OPCODE) >> 3;
        if operation != 0 {
            return Err(QueryError::Operation(operation));
        }
        let counts = counts(message);
        if counts[0] != 1 {
            return Err(QueryError::QuestionCount(counts[0]));
        }
        let question = question(message).ok_or(QueryError::Question)?;
        let fixed = question.end - 4;
        let record_type =
            RecordType(u16_at(message, fixed).expect("broken invariant: the question was read"));
        let class = u16_at(message, fixed + 2).expect("broken invariant: the question was read");
        let edns = edns(message, question.end, &counts)?;
        if matches!(record_type, RecordType::AXFR | RecordType::IXFR) {
            return Err(QueryError::Transfer);
        }
        Ok(Self {
            message: message.into(),
            question,
            record_type,
            class,
            edns,
        })
    }

    /// A question of our own for an upstream server. None where the host can't be a name in a question.
    pub fn for_host(host: &str, record_type: RecordType) -> Option<Self> {
        let mut message = vec![0, 0, RECURSION_DESIRED, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in host.trim_end_matches('.').split('.') {
            let length = u8::try_from(label.len())
                .ok()
                .filter(|length| (1..=MAX_LABEL).contains(&usize::from(*length)))?;
            message.push(length);
            message.extend(label.as_bytes());
        }
        message.push(0);
        message.extend(record_type.0.to_be_bytes());
        message.extend(CLASS_IN.to_be_bytes());
        Self::parse(&message).ok()
    }

    pub fn id(&self) -> u16 {
        u16_at(&self.message, 0).expect("broken invariant: a query has a header")
    }

    /// All of it, as the client sent it.
    pub fn bytes(&self) -> &[u8] {
        &self.message
    }

    /// Name, type and class as they were sent.
    pub fn question(&self) -> &[u8] {
        &self.message[self.question.clone()]
    }

    /// The family of the addresses that are asked for, where the question is for such.
    pub fn family(&self) -> Option<Family> {
        match self.record_type {
            RecordType::A if self.class == CLASS_IN => Some(Family::V4),
            RecordType::AAAA if self.class == CLASS_IN => Some(Family::V6),
            _ => None,
        }
    }

    pub fn is_internet_class(&self) -> bool {
        self.class == CLASS_IN
    }

    /// The name in lower case and without its last dot, if it is one that a host may have; no service has any other.
    pub fn host(&self) -> Option<String> {
        let mut host = String::with_capacity(self.question.len());
        for label in self.labels() {
            let fine = label.iter().all(
                |byte| matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'*'),
            );
            if !fine {
                return None;
            }
            if !host.is_empty() {
                host.push('.');
            }
            host.extend(
                label
                    .iter()
                    .map(|byte| char::from(byte.to_ascii_lowercase())),
            );
        }
        Some(host).filter(|host| !host.is_empty())
    }

    /// The name for people, whatever bytes it holds.
    pub fn shown_name(&self) -> String {
        let labels: Vec<String> = self
            .labels()
            .map(|label| {
                let escape = |byte: &u8| match byte {
                    b'.' => "\\.".to_owned(),
                    byte => byte.escape_ascii().to_string(),
                };
                label.iter().map(escape).collect()
            })
            .collect();
        format!("{}.", labels.join("."))
    }

    /// The first `count` labels as they stand in a message, with the end mark.
    pub(super) fn leading_labels(&self, count: usize) -> Vec<u8> {
        let mut name = Vec::new();
        for label in self.labels().take(count) {
            name.push(u8::try_from(label.len()).expect("broken invariant: a label is short"));
            name.extend(label);
        }
        name.push(0);
        name
    }

    /// Without the root.
    fn labels(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.message[self.question.clone()];
        std::iter::from_fn(move || {
            let (length, after) = rest.split_first()?;
            let (label, after) = after.split_at_checked(usize::from(*length))?;
            rest = after;
            (!label.is_empty()).then_some(label)
        })
    }

    pub(super) fn header_of_response(&self) -> [u8; HEADER] {
        let mut header = response_header(&self.message, Rcode::NO_ERROR);
        header[5] = 1;
        header
    }
}

/// The whole answer to a message that can't be read: a header that names the mistake. None to what has no header itself.
pub fn refuse_unreadable(message: &[u8], rcode: Rcode) -> Option<Vec<u8>> {
    (message.len() >= HEADER).then(|| response_header(message, rcode).to_vec())
}

/// Repeats what a response repeats: the id, the operation, and which of recursion and checking was asked for.
fn response_header(message: &[u8], rcode: Rcode) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..2].copy_from_slice(&message[..2]);
    header[2] = RESPONSE | message[2] & (OPCODE | RECURSION_DESIRED);
    header[3] = message[3] & CHECKING_DISABLED | rcode.0 & RCODE;
    header
}

/// Says that there is more than fits.
pub(super) fn mark_truncated(message: &mut [u8]) {
    message[2] |= TRUNCATED;
}

pub(super) fn set_flags(message: &mut [u8], first: u8, second: u8) {
    message[2] |= first;
    message[3] |= second;
}

pub(super) fn set_rcode(message: &mut [u8], rcode: Rcode) {
    message[3] = message[3] & !RCODE | rcode.0 & RCODE;
}

/// Gives a message another id.
pub fn set_id(message: &mut [u8], id: u16) {
    message[..2].copy_from_slice(&id.to_be_bytes());
}

/// The response code of a response that [`is_response_to`] has accepted.
pub fn rcode_of(response: &[u8]) -> Rcode {
    Rcode(response.get(3).map_or(0, |byte| byte & RCODE))
}

/// Whether a message is the response to this query as it was sent under `id`. A server that understood nothing may leave
/// the question out of its refusal.
pub fn is_response_to(query: &Query, id: u16, message: &[u8]) -> bool {
    if message.len() < HEADER
        || u16_at(message, 0) != Some(id)
        || message[2] & RESPONSE == 0
        || message[2] & OPCODE != 0
    {
        return false;
    }
    match counts(message)[0] {
        0 => rcode_of(message) != Rcode::NO_ERROR,
        1 => {
            let asked = query.question();
            let Some(repeated) = message.get(HEADER..HEADER + asked.len()) else {
                return false;
            };
            let (name, fixed) = asked.split_at(asked.len() - 4);
            // Lengths of labels are no letters, so the comparison of letters leaves them alone.
            repeated[..name.len()].eq_ignore_ascii_case(name) && repeated[name.len()..] == *fixed
        }
        _ => false,
    }
}

/// Whether the server says that there is more than it could send.
pub fn is_truncated(response: &[u8]) -> bool {
    response.get(2).is_some_and(|byte| byte & TRUNCATED != 0)
}

/// The name exists, whatever the response says: turns "no such name" into "no such record". Nothing else changes.
pub fn deny_record_only(response: &mut [u8]) {
    if rcode_of(response) == Rcode::NAME_ERROR {
        set_rcode(response, Rcode::NO_ERROR);
    }
}

/// How many records a response has in its answer section.
pub fn answer_count(response: &[u8]) -> u16 {
    u16_at(response, 6).unwrap_or_default()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    pub fn record_type(self) -> RecordType {
        match self {
            Self::V4 => RecordType::A,
            Self::V6 => RecordType::AAAA,
        }
    }
}

/// The addresses of one family in the answer section of a response, as far as it can be read.
pub fn addresses_in(response: &[u8], family: Family) -> Vec<IpAddr> {
    let records = records_in(response, family);
    records.into_iter().map(|(address, _)| address).collect()
}

/// The same, each with the time for which it holds.
pub fn records_in(response: &[u8], family: Family) -> Vec<(IpAddr, Duration)> {
    let mut found = Vec::new();
    if response.len() < HEADER {
        return found;
    }
    let counts = counts(response);
    let mut at = HEADER;
    for _question in 0..counts[0] {
        match skip_name(response, at) {
            Some(end) => at = end + 4,
            None => return found,
        }
    }
    for _record in 0..counts[1] {
        let Some(record) = record_at(response, at) else {
            return found;
        };
        at = record.data.end;
        if record.class != CLASS_IN || record.record_type != family.record_type() {
            continue;
        }
        let seconds = record.seconds();
        let data = &response[record.data];
        let address = match family {
            Family::V4 => <[u8; 4]>::try_from(data).ok().map(IpAddr::from),
            Family::V6 => <[u8; 16]>::try_from(data).ok().map(IpAddr::from),
        };
        found.extend(address.map(|address| (address, Duration::from_secs(seconds.into()))));
    }
    found
}

/// Where each record but EDNS says how long it lives, with the record; none where not all of the message can be read.
fn lives(response: &[u8]) -> Option<Vec<RawRecord>> {
    let counts = counts(response);
    let mut at = HEADER;
    for _question in 0..counts[0] {
        at = skip_name(response, at)? + 4;
    }
    let mut found = Vec::new();
    for _record in 0..counts[1..].iter().map(|count| u32::from(*count)).sum() {
        let record = record_at(response, at)?;
        at = record.data.end;
        if record.record_type != RecordType::OPT {
            found.push(record);
        }
    }
    (at == response.len()).then_some(found)
}

/// The shortest life, in seconds, that a response states for any of its records; none where there are none or not all of
/// it can be read.
pub fn shortest_life(response: &[u8]) -> Option<u32> {
    let lives = lives(response)?;
    lives.iter().map(RawRecord::seconds).min()
}

/// How long, in seconds, it holds that what was asked for does not exist: as the zone's SOA record says (RFC 2308 §5).
pub fn life_of_absence(response: &[u8]) -> Option<u32> {
    const MINIMUM: usize = 4;
    let lives = lives(response)?;
    let zone = lives
        .iter()
        .find(|record| record.record_type == RecordType::SOA)?;
    let data = &response[zone.data.clone()];
    let minimum = data.last_chunk::<MINIMUM>()?;
    let shortest = lives.iter().map(RawRecord::seconds).min()?;
    Some(u32::from_be_bytes(*minimum).min(shortest))
}

/// Takes so many seconds from the life of each record. What can't be read stays as it is.
pub fn age(response: &mut [u8], seconds: u32) {
    for record in lives(response).unwrap_or_default() {
        let left = record.seconds().saturating_sub(seconds);
        let at = record.data.start - 6;
        response[at..at + 4].copy_from_slice(&left.to_be_bytes());
    }
}

/// Questions, answers, authorities, additional records.
fn counts(message: &[u8]) -> [u16; 4] {
    [4, 6, 8, 10].map(|at| u16_at(message, at).unwrap_or_default())
}

fn u16_at(message: &[u8], at: usize) -> Option<u16> {
    let bytes = message.get(at..at + 2)?;
    Some(u16::from_be_bytes([bytes[0], bytes[1]]))
}

/// The first question. Nothing stands before it that its name could be a repetition of.
fn question(message: &[u8]) -> Option<Range<usize>> {
    let mut at = HEADER;
    loop {
        let length = usize::from(*message.get(at)?);
        if length > MAX_LABEL {
            return None;
        }
        at += 1 + length;
        if at - HEADER > MAX_NAME {
            return None;
        }
        if length == 0 {
            break;
        }
    }
    let end = at + 4;
    (end <= message.len()).then_some(HEADER..end)
}

/// Where a name ends that may be cut short by a reference to an earlier one.
fn skip_name(message: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *message.get(at)? {
            0 => return Some(at + 1),
            length if usize::from(length) <= MAX_LABEL => at += 1 + usize::from(length),
            reference if reference & 0xc0 == 0xc0 => {
                return (at + 2 <= message.len()).then_some(at + 2);
            }
            _ => return None,
        }
    }
}

struct RawRecord {
    owner_is_root: bool,
    record_type: RecordType,
    class: u16,
    ttl: [u8; 4],
    data: Range<usize>,
}

impl RawRecord {
    fn seconds(&self) -> u32 {
        u32::from_be_bytes(self.ttl)
    }
}

fn record_at(message: &[u8], at: usize) -> Option<RawRecord> {
    let fixed = skip_name(message, at)?;
    let ttl = message.get(fixed + 4..fixed + 8)?;
    let start = fixed + 10;
    let end = start + usize::from(u16_at(message, fixed + 8)?);
    (end <= message.len()).then_some(RawRecord {
        owner_is_root: fixed == at + 1,
        record_type: RecordType(u16_at(message, fixed)?),
        class: u16_at(message, fixed + 2)?,
        ttl: [ttl[0], ttl[1], ttl[2], ttl[3]],
        data: start..end,
    })
}

fn edns(message: &[u8], mut at: usize, counts: &[u16; 4]) -> Result<Option<Edns>, QueryError> {
    let records = counts[1..].iter().map(|count| usize::from(*count)).sum();
    let mut found = None;
    for number in 1..=records {
        let record = record_at(message, at).ok_or(QueryError::Record(number))?;
        at = record.data.end;
        if record.record_type != RecordType::OPT {
            continue;
        }
        if found.is_some() {
            return Err(QueryError::SecondEdns);
        }
        if !record.owner_is_root {
            return Err(QueryError::Record(number));
        }
        found = Some(Edns {
            payload: record.class,
            version: record.ttl[1],
            dnssec_ok: u16::from_be_bytes([record.ttl[2], record.ttl[3]]) & DNSSEC_OK != 0,
        });
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
