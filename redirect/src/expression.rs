// SPDX-License-Identifier: Apache-2.0
//! A rule in the kernel's own terms: a row of expressions that work on registers, each a name and attributes.
//!
//! Pure. [`lower`] translates our rules, [`Expression::encode`] writes one to a netlink message, [`same`] compares a
//! rule with what the kernel says it holds. Constants are those of linux/netfilter/nf_tables.h.

use std::net::IpAddr;

use netlink_bindings::utils::{
    chop_header, finalize_nested_header, push_header, push_nested_header,
};

use crate::rules::{Action, Family, Is, Match, Rule, Transport};

const REGISTER: u32 = 1;
const VERDICT_REGISTER: u32 = 0;

const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;
const NFTA_DATA_VALUE: u16 = 1;
const NFTA_DATA_VERDICT: u16 = 2;

const META_MARK: u32 = 3;
const META_IIFNAME: u32 = 6;
const META_OIFNAME: u32 = 7;
const META_SKUID: u32 = 10;
const META_NFPROTO: u32 = 15;
const META_L4PROTO: u32 = 16;
const CT_MARK: u32 = 3;
const CT_ZONE: u32 = 17;
const IP_CT_DIR_ORIGINAL: u8 = 0;
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
const INTERFACE_NAME_LENGTH: usize = 16;

const NF_ACCEPT: u32 = 1;
const NFT_JUMP: u32 = -3i32 as u32;
const NFT_RETURN: u32 = -5i32 as u32;
const NFT_NAT_SNAT: u32 = 0;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Expression {
    name: &'static str,
    attributes: Vec<Attribute>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Attribute {
    kind: u16,
    value: Value,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    /// In network byte order on the wire.
    Number(u32),
    Bytes(Vec<u8>),
    Text(&'static str),
    Nested(Vec<Attribute>),
}

/// The expressions of a rule, in order.
pub(crate) fn lower(rule: &Rule) -> Vec<Expression> {
    let mut row = Vec::new();
    for condition in &rule.matches {
        lower_match(condition, &mut row);
    }
    if !matches!(rule.action, Action::Jump(_)) {
        row.push(expression("counter", []));
    }
    lower_action(&rule.action, &mut row);
    row
}

/// Does the kernel's dump of a rule's expressions say the same as ours? The kernel adds attributes with defaults, so
/// only those that we set are compared.
pub(crate) fn same(row: &[Expression], dumped: &[u8]) -> bool {
    let mut position = 0;
    for expression in row {
        let Some((_, element)) = chop_header(dumped, &mut position) else {
            return false;
        };
        if !expression.is_in(element) {
            return false;
        }
    }
    chop_header(dumped, &mut position).is_none()
}

impl Expression {
    /// Appends the attributes of one list element.
    pub(crate) fn encode(&self, buffer: &mut Vec<u8>) {
        text(NFTA_EXPR_NAME, self.name).encode(buffer);
        let data = push_nested_header(buffer, NFTA_EXPR_DATA);
        for attribute in &self.attributes {
            attribute.encode(buffer);
        }
        finalize_nested_header(buffer, data);
    }

    fn is_in(&self, element: &[u8]) -> bool {
        text(NFTA_EXPR_NAME, self.name).is_in(element)
            && (self.attributes.is_empty()
                || nested(NFTA_EXPR_DATA, self.attributes.clone()).is_in(element))
    }
}

impl Attribute {
    fn encode(&self, buffer: &mut Vec<u8>) {
        let bytes: &[u8] = match &self.value {
            Value::Nested(attributes) => {
                let start = push_nested_header(buffer, self.kind);
                for attribute in attributes {
                    attribute.encode(buffer);
                }
                finalize_nested_header(buffer, start);
                return;
            }
            Value::Number(number) => &number.to_be_bytes(),
            Value::Bytes(bytes) => bytes,
            Value::Text(text) => {
                push_header(buffer, self.kind, (text.len() + 1) as u16);
                buffer.extend(text.as_bytes());
                buffer.push(0);
                return;
            }
        };
        push_header(buffer, self.kind, bytes.len() as u16);
        buffer.extend(bytes);
    }

    fn is_in(&self, attributes: &[u8]) -> bool {
        let mut position = 0;
        while let Some((header, found)) = chop_header(attributes, &mut position) {
            if header.r#type == self.kind {
                return match &self.value {
                    Value::Number(number) => found == number.to_be_bytes(),
                    Value::Bytes(bytes) => found == bytes,
                    Value::Text(text) => found.strip_suffix(&[0]) == Some(text.as_bytes()),
                    Value::Nested(wanted) => wanted.iter().all(|attribute| attribute.is_in(found)),
                };
            }
        }
        false
    }
}

fn lower_match(condition: &Match, row: &mut Vec<Expression>) {
    match condition {
        Match::InInterface(name) => {
            row.extend([meta(META_IIFNAME), compare(Is::Equal, interface(name))])
        }
        Match::OutInterface(is, name) => {
            row.extend([meta(META_OIFNAME), compare(*is, interface(name))])
        }
        Match::Transport(transport) => row.extend(transport_is(*transport)),
        Match::Source(is, address) => row.extend(address_is(*address, Side::Source, *is)),
        Match::Destination(is, address) => row.extend(address_is(*address, Side::Destination, *is)),
        Match::DestinationIn(set) => {
            row.extend(family_is(set.family));
            row.push(address_of(set.family, Side::Destination));
            // set, source register, flags
            row.push(expression(
                "lookup",
                [text(1, set.name), number(2, REGISTER), number(5, 0)],
            ));
        }
        Match::SourcePort(transport, is, port) => {
            row.extend(port_is(*transport, Side::Source, *is, *port))
        }
        Match::DestinationPort(transport, is, port) => {
            row.extend(port_is(*transport, Side::Destination, *is, *port))
        }
        Match::PacketMark(is, mark) => row.extend([
            meta(META_MARK),
            bitwise(mark.mask, 0),
            compare(*is, mark.value.to_ne_bytes()),
        ]),
        Match::ConnectionMark(is, mark) => row.extend([
            ct(CT_MARK),
            bitwise(mark.mask, 0),
            compare(*is, mark.value.to_ne_bytes()),
        ]),
        Match::SocketOwner(uid) => {
            row.extend([meta(META_SKUID), compare(Is::Equal, uid.to_ne_bytes())])
        }
    }
}

fn lower_action(action: &Action, row: &mut Vec<Expression>) {
    match action {
        Action::Jump(chain) => row.push(verdict(vec![number(1, NFT_JUMP), text(2, chain)])),
        Action::Accept => row.push(verdict(vec![number(1, NF_ACCEPT)])),
        Action::Return => row.push(verdict(vec![number(1, NFT_RETURN)])),
        // register of the lowest port
        Action::Redirect(port) => {
            row.extend([
                immediate(port.to_be_bytes().to_vec()),
                expression("redir", [number(1, REGISTER)]),
            ]);
        }
        Action::MarkConnection(mark) => row.extend([
            ct(CT_MARK),
            bitwise(!mark.mask, mark.value),
            set_ct(CT_MARK),
        ]),
        Action::RestoreMark => row.extend([ct(CT_MARK), set_meta(META_MARK)]),
        Action::Zone(zone) => row.extend([immediate(zone.to_ne_bytes().to_vec()), set_ct(CT_ZONE)]),
        Action::OriginalZone(zone) => {
            // key, direction, source register
            let set = [
                number(2, CT_ZONE),
                bytes(3, vec![IP_CT_DIR_ORIGINAL]),
                number(4, REGISTER),
            ];
            row.extend([
                immediate(zone.to_ne_bytes().to_vec()),
                expression("ct", set),
            ]);
        }
        Action::Snat(address) => {
            let family = match address {
                IpAddr::V4(_) => libc::NFPROTO_IPV4,
                IpAddr::V6(_) => libc::NFPROTO_IPV6,
            };
            // type, family, register of the lowest address
            let nat = [
                number(1, NFT_NAT_SNAT),
                number(2, family as u32),
                number(3, REGISTER),
            ];
            row.extend([immediate(octets(*address)), expression("nat", nat)]);
        }
    }
}

#[derive(Clone, Copy)]
enum Side {
    Source,
    Destination,
}

fn transport_is(transport: Transport) -> [Expression; 2] {
    let protocol = match transport {
        Transport::Tcp => libc::IPPROTO_TCP,
        Transport::Udp => libc::IPPROTO_UDP,
    };
    [meta(META_L4PROTO), compare(Is::Equal, [protocol as u8])]
}

fn family_is(family: Family) -> [Expression; 2] {
    let protocol = match family {
        Family::V4 => libc::NFPROTO_IPV4,
        Family::V6 => libc::NFPROTO_IPV6,
    };
    [meta(META_NFPROTO), compare(Is::Equal, [protocol as u8])]
}

fn address_is(address: IpAddr, side: Side, is: Is) -> impl Iterator<Item = Expression> {
    let family = Family::of(address);
    family_is(family)
        .into_iter()
        .chain([address_of(family, side), compare(is, octets(address))])
}

fn address_of(family: Family, side: Side) -> Expression {
    let (offset, length) = match (family, side) {
        (Family::V4, Side::Source) => (12, 4),
        (Family::V4, Side::Destination) => (16, 4),
        (Family::V6, Side::Source) => (8, 16),
        (Family::V6, Side::Destination) => (24, 16),
    };
    payload(NETWORK_HEADER, offset, length)
}

fn port_is(
    transport: Transport,
    side: Side,
    is: Is,
    port: u16,
) -> impl Iterator<Item = Expression> {
    let offset = match side {
        Side::Source => 0,
        Side::Destination => 2,
    };
    transport_is(transport).into_iter().chain([
        payload(TRANSPORT_HEADER, offset, 2),
        compare(is, port.to_be_bytes()),
    ])
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn interface(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(INTERFACE_NAME_LENGTH, 0);
    bytes
}

// Each of these notes its attributes in the order of the kernel's header.

fn meta(key: u32) -> Expression {
    // destination register, key
    expression("meta", [number(1, REGISTER), number(2, key)])
}

fn set_meta(key: u32) -> Expression {
    // key, source register
    expression("meta", [number(2, key), number(3, REGISTER)])
}

fn ct(key: u32) -> Expression {
    // destination register, key
    expression("ct", [number(1, REGISTER), number(2, key)])
}

fn set_ct(key: u32) -> Expression {
    // key, source register
    expression("ct", [number(2, key), number(4, REGISTER)])
}

fn payload(base: u32, offset: u32, length: u32) -> Expression {
    // destination register, base, offset, length
    expression(
        "payload",
        [
            number(1, REGISTER),
            number(2, base),
            number(3, offset),
            number(4, length),
        ],
    )
}

fn compare(is: Is, bytes: impl Into<Vec<u8>>) -> Expression {
    let operation = match is {
        Is::Equal => 0,
        Is::Not => 1,
    };
    // source register, operation, data
    expression(
        "cmp",
        [
            number(1, REGISTER),
            number(2, operation),
            data(3, bytes.into()),
        ],
    )
}

fn bitwise(mask: u32, xor: u32) -> Expression {
    // source register, destination register, length, mask, xor
    expression(
        "bitwise",
        [
            number(1, REGISTER),
            number(2, REGISTER),
            number(3, 4),
            data(4, mask.to_ne_bytes().to_vec()),
            data(5, xor.to_ne_bytes().to_vec()),
        ],
    )
}

fn immediate(bytes: Vec<u8>) -> Expression {
    // destination register, data
    expression("immediate", [number(1, REGISTER), data(2, bytes)])
}

fn verdict(attributes: Vec<Attribute>) -> Expression {
    expression(
        "immediate",
        [
            number(1, VERDICT_REGISTER),
            nested(2, vec![nested(NFTA_DATA_VERDICT, attributes)]),
        ],
    )
}

fn expression<const N: usize>(name: &'static str, attributes: [Attribute; N]) -> Expression {
    Expression {
        name,
        attributes: attributes.into(),
    }
}

fn number(kind: u16, number: u32) -> Attribute {
    Attribute {
        kind,
        value: Value::Number(number),
    }
}

fn text(kind: u16, text: &'static str) -> Attribute {
    Attribute {
        kind,
        value: Value::Text(text),
    }
}

fn nested(kind: u16, attributes: Vec<Attribute>) -> Attribute {
    Attribute {
        kind,
        value: Value::Nested(attributes),
    }
}

fn bytes(kind: u16, bytes: Vec<u8>) -> Attribute {
    Attribute {
        kind,
        value: Value::Bytes(bytes),
    }
}

fn data(kind: u16, value: Vec<u8>) -> Attribute {
    nested(kind, vec![bytes(NFTA_DATA_VALUE, value)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(row: &[Expression]) -> Vec<u8> {
        let mut buffer = Vec::new();
        for expression in row {
            let element = push_nested_header(&mut buffer, 1);
            expression.encode(&mut buffer);
            finalize_nested_header(&mut buffer, element);
        }
        buffer
    }

    fn accept_port(port: u16) -> Vec<Expression> {
        lower(&Rule {
            matches: vec![Match::DestinationPort(Transport::Tcp, Is::Not, port)],
            action: Action::Accept,
        })
    }

    #[test]
    fn a_redirect_is_a_port_in_a_register_and_the_redir_expression() {
        let bytes = encoded(
            &lower(&Rule {
                matches: Vec::new(),
                action: Action::Redirect(15001),
            })[1..],
        );
        #[rustfmt::skip]
        let expected = [
            44, 0, 1, 0x80, // list element
            14, 0, 1, 0, b'i', b'm', b'm', b'e', b'd', b'i', b'a', b't', b'e', 0, 0, 0,
            24, 0, 2, 0x80,
            8, 0, 1, 0, 0, 0, 0, 1, // destination register
            12, 0, 2, 0x80, 6, 0, 1, 0, 0x3a, 0x99, 0, 0, // 15001
            28, 0, 1, 0x80,
            10, 0, 1, 0, b'r', b'e', b'd', b'i', b'r', 0, 0, 0,
            12, 0, 2, 0x80,
            8, 0, 1, 0, 0, 0, 0, 1, // register of the port
        ];
        assert_eq!(bytes, expected);
    }

    #[test]
    fn a_rule_equals_its_own_bytes_and_no_other_rule() {
        let row = accept_port(15008);
        assert!(same(&row, &encoded(&row)));
        assert!(!same(&row, &encoded(&accept_port(15009))));
        assert!(!same(&row, &encoded(&row[1..])));
        assert!(!same(&row[1..], &encoded(&row)));
        assert!(!same(&row, &[]));
    }
}
