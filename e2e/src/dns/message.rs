// SPDX-License-Identifier: Apache-2.0
//! DNS messages (RFC 1035 §4, RFC 6891): as values for people and tests, and back to bytes.
//!
//! Nothing here is shared with the proxy: what both agree on, they agree on by the standard.

use std::net::{Ipv4Addr, Ipv6Addr};

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};

const TYPES: &[(&str, u16)] = &[
    ("A", 1),
    ("NS", 2),
    ("CNAME", 5),
    ("SOA", 6),
    ("PTR", 12),
    ("MX", 15),
    ("TXT", 16),
    ("AAAA", 28),
    ("SRV", 33),
    ("OPT", 41),
    ("HTTPS", 65),
    ("AXFR", 252),
    ("ANY", 255),
];
const OPT: u16 = 41;

/// `A`, or `TYPE65280` for what has no name here (RFC 3597 §5).
pub fn type_name(record_type: u16) -> String {
    let known = TYPES.iter().find(|(_, number)| *number == record_type);
    known.map_or_else(|| format!("TYPE{record_type}"), |(name, _)| (*name).into())
}

/// The reverse of [`type_name`].
pub fn type_number(name: &str) -> Result<u16, String> {
    let upper = name.to_ascii_uppercase();
    let known = TYPES.iter().find(|(known, _)| *known == upper);
    known.map(|(_, number)| *number).map_or_else(
        || {
            let number = upper.strip_prefix("TYPE").unwrap_or(&upper).parse();
            number.map_err(|_| format!("`{name}` is no record type; write A, SRV or TYPE65280"))
        },
        Ok,
    )
}

fn rcode_name(rcode: u16) -> String {
    match rcode {
        0 => "NOERROR".into(),
        1 => "FORMERR".into(),
        2 => "SERVFAIL".into(),
        3 => "NXDOMAIN".into(),
        4 => "NOTIMP".into(),
        5 => "REFUSED".into(),
        16 => "BADVERS".into(),
        other => format!("RCODE{other}"),
    }
}

/// A message as it was received.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    pub id: u16,
    pub rcode: String,
    /// Of `qr aa tc rd ra ad cd`, those that are set.
    pub flags: Vec<String>,
    pub questions: Vec<Question>,
    pub answers: Vec<Record>,
    pub authorities: Vec<Record>,
    /// Without the EDNS record.
    pub additionals: Vec<Record>,
    pub edns: Option<Edns>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    pub name: String,
    #[serde(rename = "type")]
    pub record_type: String,
    pub class: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub name: String,
    #[serde(rename = "type")]
    pub record_type: String,
    pub class: u16,
    pub ttl: u32,
    pub data: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edns {
    pub payload: u16,
    pub version: u8,
    pub dnssec_ok: bool,
    /// Code and bytes in hexadecimal.
    pub options: Vec<(u16, String)>,
}

impl Message {
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader { bytes, at: 0 };
        let id = reader.u16()?;
        let flags = reader.u16()?;
        let counts = [reader.u16()?, reader.u16()?, reader.u16()?, reader.u16()?];
        let questions = (0..counts[0])
            .map(|_| reader.question())
            .collect::<Result<_>>()
            .context("question")?;
        let mut edns = None;
        let mut high = 0;
        let mut section = |count: u16, what: &'static str| -> Result<Vec<Record>> {
            let mut records = Vec::new();
            for _ in 0..count {
                match reader.record().context(what)? {
                    Parsed::Record(record) => records.push(record),
                    Parsed::Edns(found, extended) => {
                        ensure!(edns.is_none(), "a second EDNS record");
                        (edns, high) = (Some(found), extended);
                    }
                }
            }
            Ok(records)
        };
        let answers = section(counts[1], "answer")?;
        let authorities = section(counts[2], "authority")?;
        let additionals = section(counts[3], "additional record")?;
        ensure!(
            reader.at == bytes.len(),
            "{} bytes behind the last record",
            bytes.len() - reader.at
        );
        let names = ["qr", "aa", "tc", "rd", "ra", "ad", "cd"];
        let bits = [15, 10, 9, 8, 7, 5, 4];
        let set = names
            .iter()
            .zip(bits)
            .filter(|(_, bit)| flags >> bit & 1 == 1);
        Ok(Self {
            id,
            rcode: rcode_name(u16::from(high) << 4 | flags & 0xf),
            flags: set.map(|(name, _)| (*name).into()).collect(),
            questions,
            answers,
            authorities,
            additionals,
            edns,
        })
    }

    pub fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|set| set == flag)
    }

    /// The data of the answers of one type, in order.
    pub fn data(&self, record_type: &str) -> Vec<&str> {
        let of_type = |record: &&Record| record.record_type == record_type;
        let answers = self.answers.iter().filter(of_type);
        answers.map(|record| record.data.as_str()).collect()
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

enum Parsed {
    Record(Record),
    /// And the upper bits of the response code.
    Edns(Edns, u8),
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at + count);
        self.at += count;
        taken.context("the message ends early")
    }

    fn u8(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn u16(&mut self) -> Result<u16> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from(self.u16()?) << 16 | u32::from(self.u16()?))
    }

    fn name(&mut self) -> Result<String> {
        let mut labels = Vec::new();
        let mut resume = None;
        // More jumps than labels fit into a name lead in circles.
        for _step in 0..256 {
            let length = self.u8()?;
            match length {
                0 => {
                    self.at = resume.unwrap_or(self.at);
                    return Ok(format!("{}.", labels.join(".")));
                }
                1..=63 => {
                    let label = self.take(usize::from(length))?;
                    labels.push(label.escape_ascii().to_string());
                }
                0xc0.. => {
                    let target = usize::from(length & 0x3f) << 8 | usize::from(self.u8()?);
                    resume.get_or_insert(self.at);
                    self.at = target;
                }
                _ => bail!("a label of unknown kind"),
            }
        }
        bail!("a name without an end")
    }

    fn question(&mut self) -> Result<Question> {
        Ok(Question {
            name: self.name()?,
            record_type: type_name(self.u16()?),
            class: self.u16()?,
        })
    }

    fn record(&mut self) -> Result<Parsed> {
        let name = self.name()?;
        let record_type = self.u16()?;
        let class = self.u16()?;
        let ttl = self.u32()?;
        let length = usize::from(self.u16()?);
        let end = self.at + length;
        if record_type == OPT {
            let [high, version, flags, _] = ttl.to_be_bytes();
            let mut options = Vec::new();
            while self.at < end {
                let (code, length) = (self.u16()?, self.u16()?);
                options.push((code, hex(self.take(usize::from(length))?)));
            }
            let edns = Edns {
                payload: class,
                version,
                dnssec_ok: flags & 0x80 != 0,
                options,
            };
            return Ok(Parsed::Edns(edns, high));
        }
        let data = self.data(record_type, length)?;
        ensure!(self.at == end, "a record whose length is wrong");
        Ok(Parsed::Record(Record {
            name,
            record_type: type_name(record_type),
            class,
            ttl,
            data,
        }))
    }

    fn data(&mut self, record_type: u16, length: usize) -> Result<String> {
        let end = self.at + length;
        Ok(match record_type {
            1 if length == 4 => Ipv4Addr::from_bits(self.u32()?).to_string(),
            28 if length == 16 => {
                let octets: [u8; 16] = self.take(16)?.try_into().context("an address")?;
                Ipv6Addr::from(octets).to_string()
            }
            2 | 5 | 12 => self.name()?,
            15 => format!("{} {}", self.u16()?, self.name()?),
            33 => format!(
                "{} {} {} {}",
                self.u16()?,
                self.u16()?,
                self.u16()?,
                self.name()?
            ),
            6 => {
                let (primary, mailbox) = (self.name()?, self.name()?);
                let numbers = [(); 5].map(|()| self.u32().map(|number| number.to_string()));
                let numbers = numbers.into_iter().collect::<Result<Vec<_>>>()?;
                format!("{primary} {mailbox} {}", numbers.join(" "))
            }
            16 => {
                let mut texts = Vec::new();
                while self.at < end {
                    let length = self.u8()?;
                    let text = self.take(usize::from(length))?;
                    texts.push(format!("\"{}\"", text.escape_ascii()));
                }
                texts.join(" ")
            }
            _ => format!("\\# {length} {}", hex(self.take(length)?)),
        })
    }
}

/// What a query is made of.
#[derive(Debug, Clone)]
pub struct Asking<'a> {
    pub id: u16,
    pub name: &'a str,
    pub record_type: u16,
    pub edns: Option<Edns>,
}

/// A query with recursion desired.
pub fn query(asking: &Asking<'_>) -> Result<Vec<u8>> {
    let additional = u16::from(asking.edns.is_some());
    let mut bytes = header(asking.id, 0x0100, [1, 0, 0, additional]);
    bytes.extend(name_bytes(asking.name)?);
    bytes.extend(asking.record_type.to_be_bytes());
    bytes.extend(1u16.to_be_bytes());
    if let Some(edns) = &asking.edns {
        bytes.extend(edns_bytes(edns, 0)?);
    }
    Ok(bytes)
}

pub fn header(id: u16, flags: u16, counts: [u16; 4]) -> Vec<u8> {
    let words = [id, flags].into_iter().chain(counts);
    words.flat_map(u16::to_be_bytes).collect()
}

/// A whole name, with the end mark.
pub fn name_bytes(name: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for label in name
        .trim_end_matches('.')
        .split('.')
        .filter(|_| name != ".")
    {
        let length = u8::try_from(label.len())
            .ok()
            .filter(|n| (1..64).contains(n));
        bytes.push(length.with_context(|| format!("`{name}` is no name"))?);
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    Ok(bytes)
}

pub fn record_bytes(owner: &[u8], record_type: u16, ttl: u32, data: &[u8]) -> Result<Vec<u8>> {
    let length = u16::try_from(data.len()).context("the data of a record")?;
    let mut bytes = owner.to_vec();
    bytes.extend(record_type.to_be_bytes());
    bytes.extend(1u16.to_be_bytes());
    bytes.extend(ttl.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes.extend(data);
    Ok(bytes)
}

pub fn edns_bytes(edns: &Edns, extended_rcode: u8) -> Result<Vec<u8>> {
    let mut options = Vec::new();
    for (code, text) in &edns.options {
        let bytes = unhex(text)?;
        options.extend(code.to_be_bytes());
        options.extend(
            u16::try_from(bytes.len())
                .context("an option")?
                .to_be_bytes(),
        );
        options.extend(bytes);
    }
    let mut bytes = vec![0];
    bytes.extend(OPT.to_be_bytes());
    bytes.extend(edns.payload.to_be_bytes());
    let flags = if edns.dnssec_ok { 0x80 } else { 0 };
    bytes.extend([extended_rcode, edns.version, flags, 0]);
    bytes.extend(
        u16::try_from(options.len())
            .context("options")?
            .to_be_bytes(),
    );
    bytes.extend(options);
    Ok(bytes)
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn unhex(text: &str) -> Result<Vec<u8>> {
    ensure!(
        text.is_ascii() && text.len().is_multiple_of(2),
        "`{text}` is no hexadecimal text"
    );
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16))
        .collect::<Result<_, _>>()
        .with_context(|| format!("`{text}` is no hexadecimal text"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_query_is_read_as_it_was_written() {
        let edns = Edns {
            payload: 1232,
            version: 0,
            dnssec_ok: true,
            options: vec![(65001, "c0ffee".into())],
        };
        let asking = Asking {
            id: 7,
            name: "_echo._tcp.lab.example",
            record_type: 33,
            edns: Some(edns.clone()),
        };
        let message = Message::parse(&query(&asking).unwrap()).unwrap();
        assert_eq!((message.id, message.rcode.as_str()), (7, "NOERROR"));
        assert_eq!(message.flags, ["rd"]);
        assert_eq!(message.questions[0].name, "_echo._tcp.lab.example.");
        assert_eq!(message.questions[0].record_type, "SRV");
        assert_eq!(message.edns, Some(edns));
    }

    #[test]
    fn types_are_named_as_in_zone_files() {
        for (name, number) in [("A", 1), ("SRV", 33), ("TYPE65280", 65280)] {
            assert_eq!(type_number(name), Ok(number));
            assert_eq!(type_name(number), name);
        }
        assert_eq!(type_number("aaaa"), Ok(28));
        assert!(type_number("WHAT").is_err());
    }

    #[test]
    fn names_in_circles_end() {
        let mut message = header(1, 0, [1, 0, 0, 0]);
        message.extend([0xc0, 12, 0, 1, 0, 1]);
        assert!(Message::parse(&message).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            _ = Message::parse(&bytes);
        }
    }
}
