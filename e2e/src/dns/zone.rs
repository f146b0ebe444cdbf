// SPDX-License-Identifier: Apache-2.0
//! Pure: what the lab's DNS server answers. Its zone, `lab.example`, has a name for everything that a proxy in between
//! could spoil; of names elsewhere, the cluster's own included, it says that they do not exist.

use anyhow::Result;

use crate::dns::message::{self, Edns, edns_bytes, header, name_bytes, record_bytes};
use crate::topology::resolver;

/// Everything that the server knows lies below it.
pub const ZONE: &str = "lab.example";
const TTL: u32 = 17;
/// An EDNS option that no standard knows, with bytes that mean nothing.
pub const ODD_OPTION: (u16, &str) = (65001, "6c6162ff");
const PLAIN_PAYLOAD: usize = 512;
const OWN_PAYLOAD: u16 = 1400;
const QUESTION_NAME: [u8; 2] = [0xc0, 12];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    Udp,
    Tcp,
}

/// The answer to a query; none where the server is to keep silent.
pub fn respond(query: &[u8], transport: Transport) -> Option<Vec<u8>> {
    let asked = Asked::of(query).ok()?;
    let (name, record_type) = (asked.name.as_str(), asked.record_type);
    let below = name
        .strip_suffix(&format!("{ZONE}."))
        .map(|rest| rest.trim_end_matches('.'));
    let mut reply = Reply::default();
    let built = match below {
        Some("silence") => return None,
        Some("broken") => reply.refuse(2),
        Some("refused") => reply.refuse(5),
        Some(host) => reply.of_host(host, record_type),
        None => reply.missing(3),
    };
    built.ok()?;
    reply.write(&asked, transport).ok()
}

/// A query, as far as the server looks at it.
struct Asked {
    id: u16,
    flags: u16,
    /// In lower case, with the last dot.
    name: String,
    record_type: u16,
    question: Vec<u8>,
    edns: Option<Edns>,
}

impl Asked {
    fn of(query: &[u8]) -> Result<Self> {
        let parsed = message::Message::parse(query)?;
        let question = parsed.questions.first();
        let question = question.ok_or_else(|| anyhow::anyhow!("no question"))?;
        let length = name_bytes(&question.name)?.len() + 4;
        Ok(Self {
            id: parsed.id,
            flags: u16::from_be_bytes([query[2], query[3]]),
            name: question.name.to_ascii_lowercase(),
            record_type: message::type_number(&question.record_type).map_err(anyhow::Error::msg)?,
            question: query[12..12 + length].to_vec(),
            edns: parsed.edns,
        })
    }
}

#[derive(Default)]
struct Reply {
    rcode: u16,
    answers: Vec<Vec<u8>>,
    authorities: Vec<Vec<u8>>,
    additionals: Vec<Vec<u8>>,
}

impl Reply {
    fn refuse(&mut self, rcode: u16) -> Result<()> {
        self.rcode = rcode;
        Ok(())
    }

    /// With the zone's SOA record, by which clients know for how long to believe it.
    fn missing(&mut self, rcode: u16) -> Result<()> {
        self.rcode = rcode;
        let mut data = name_bytes(&format!("ns.{ZONE}"))?;
        data.extend(name_bytes(&format!("admin.{ZONE}"))?);
        for number in [2026_u32, 7200, 1800, 86_400, 33] {
            data.extend(number.to_be_bytes());
        }
        self.authorities
            .push(record_bytes(&name_bytes(ZONE)?, 6, 33, &data)?);
        Ok(())
    }

    fn answer(&mut self, owner: &[u8], record_type: u16, data: &[u8]) -> Result<()> {
        self.answers
            .push(record_bytes(owner, record_type, TTL, data)?);
        Ok(())
    }

    fn of_host(&mut self, host: &str, record_type: u16) -> Result<()> {
        let target = name_bytes(&format!("host.{ZONE}"))?;
        let (v4, v6) = (resolver().v4.octets(), resolver().v6.octets());
        // As many names as there are tests to ask: what one has asked, a proxy remembers for a while.
        let host = match host.split_once('-') {
            Some(("host", _)) => "host",
            _ => host,
        };
        match (host, record_type) {
            ("host", 1) => self.answer(&QUESTION_NAME, 1, &v4),
            ("host", 28) => self.answer(&QUESTION_NAME, 28, &v6),
            ("alias", 1) => {
                self.answer(&QUESTION_NAME, 5, &target)?;
                self.answer(&target, 1, &v4)
            }
            ("_echo._tcp", 33) => {
                let data = [&[0, 10, 0, 5, 0x23, 0x28][..], &target].concat();
                self.answer(&QUESTION_NAME, 33, &data)?;
                self.additionals.push(record_bytes(&target, 1, TTL, &v4)?);
                Ok(())
            }
            ("mail", 15) => self.answer(&QUESTION_NAME, 15, &[&[0, 10][..], &target].concat()),
            ("words" | "host", 16) => {
                self.answer(&QUESTION_NAME, 16, b"\x0bhello world\x03\xff\x00\x22")
            }
            ("odd", 65280) => self.answer(&QUESTION_NAME, 65280, b"\x00\x01\xfe\xff"),
            ("many", 1) => (0..100).try_for_each(|n| {
                let address = [10, 78, 0, n];
                self.answer(&QUESTION_NAME, 1, &address)
            }),
            ("large", 16) => (0..40).try_for_each(|n| {
                let text = [&[99][..], &[b'a' + n % 26; 99]].concat();
                self.answer(&QUESTION_NAME, 16, &text)
            }),
            ("host" | "alias" | "_echo._tcp" | "mail" | "words" | "odd" | "many" | "large", _) => {
                self.missing(0)
            }
            _ => self.missing(3),
        }
    }

    fn write(self, asked: &Asked, transport: Transport) -> Result<Vec<u8>> {
        const RESPONSE: u16 = 0x8000;
        const AUTHORITATIVE: u16 = 0x0400;
        const TRUNCATED: u16 = 0x0200;
        const RECURSION_AVAILABLE: u16 = 0x0080;
        const AUTHENTIC: u16 = 0x0020;
        let repeated = asked.flags & 0x0110;
        let flags = RESPONSE | AUTHORITATIVE | RECURSION_AVAILABLE | AUTHENTIC | repeated;
        let edns = match &asked.edns {
            None => Vec::new(),
            Some(edns) => {
                let odd = (ODD_OPTION.0, ODD_OPTION.1.to_owned());
                let own = Edns {
                    payload: OWN_PAYLOAD,
                    version: 0,
                    dnssec_ok: edns.dnssec_ok,
                    options: edns.options.iter().cloned().chain([odd]).collect(),
                };
                edns_bytes(&own, 0)?
            }
        };
        let whole = |flags: u16, sections: [&[Vec<u8>]; 3]| {
            let [answers, authorities, additionals] = sections;
            let counts = [
                1,
                answers.len() as u16,
                authorities.len() as u16,
                additionals.len() as u16 + u16::from(!edns.is_empty()),
            ];
            let mut bytes = header(asked.id, flags | self.rcode, counts);
            bytes.extend(&asked.question);
            sections.iter().for_each(|records| {
                bytes.extend(records.concat());
            });
            bytes.extend(&edns);
            bytes
        };
        let bytes = whole(flags, [&self.answers, &self.authorities, &self.additionals]);
        let payload = asked.edns.as_ref().map_or(PLAIN_PAYLOAD, |edns| {
            usize::from(edns.payload).max(PLAIN_PAYLOAD)
        });
        Ok(match transport {
            Transport::Udp if bytes.len() > payload => whole(flags | TRUNCATED, [&[], &[], &[]]),
            _ => bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dns::message::{Asking, Message, query, type_number};

    fn ask(
        name: &str,
        record_type: &str,
        transport: Transport,
        edns: Option<u16>,
    ) -> Option<Message> {
        let asking = Asking {
            id: 5,
            name,
            record_type: type_number(record_type).unwrap(),
            edns: edns.map(|payload| Edns {
                payload,
                version: 0,
                dnssec_ok: false,
                options: Vec::new(),
            }),
        };
        let response = respond(&query(&asking).unwrap(), transport)?;
        Some(Message::parse(&response).unwrap())
    }

    #[test]
    fn every_kind_of_answer_is_readable() {
        let check = |name: &str, record_type: &str, rcode: &str, counts: [usize; 3]| {
            let name = format!("{name}.{ZONE}");
            let message = ask(&name, record_type, Transport::Tcp, None).unwrap();
            let found = [
                message.answers.len(),
                message.authorities.len(),
                message.additionals.len(),
            ];
            assert_eq!(
                (message.rcode.as_str(), found),
                (rcode, counts),
                "{name} {record_type}"
            );
        };
        check("host", "A", "NOERROR", [1, 0, 0]);
        check("host", "MX", "NOERROR", [0, 1, 0]);
        check("alias", "A", "NOERROR", [2, 0, 0]);
        check("_echo._tcp", "SRV", "NOERROR", [1, 0, 1]);
        check("mail", "MX", "NOERROR", [1, 0, 0]);
        check("odd", "TYPE65280", "NOERROR", [1, 0, 0]);
        check("words", "TXT", "NOERROR", [1, 0, 0]);
        check("words", "A", "NOERROR", [0, 1, 0]);
        check("large", "TXT", "NOERROR", [40, 0, 0]);
        check("none", "A", "NXDOMAIN", [0, 1, 0]);
        check("broken", "A", "SERVFAIL", [0, 0, 0]);
        let elsewhere = ask("echo.shop.svc.cluster.local", "A", Transport::Udp, None).unwrap();
        assert_eq!(elsewhere.rcode, "NXDOMAIN");
        assert_eq!(ask("silence.lab.example", "A", Transport::Udp, None), None);
    }

    #[test]
    fn what_is_too_long_for_a_datagram_is_left_to_tcp() {
        let large = |transport, edns| ask("large.lab.example", "TXT", transport, edns).unwrap();
        assert!(large(Transport::Udp, None).has("tc"));
        assert!(large(Transport::Udp, Some(1232)).has("tc"));
        assert_eq!(large(Transport::Udp, Some(8000)).answers.len(), 40);
        assert!(!large(Transport::Tcp, None).has("tc"));
    }
}
