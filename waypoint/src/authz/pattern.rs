// SPDX-License-Identifier: Apache-2.0
//! The values that conditions compare with.

use std::net::IpAddr;

use proto::waypoint as wire;
use wire::pattern::Kind;

use super::template::Template;

/// A text, or some of them.
#[derive(Debug)]
pub(crate) enum Pattern {
    Exact(Box<str>),
    Prefix(Box<str>),
    Suffix(Box<str>),
    /// Any but the empty one.
    Present,
    /// Of paths.
    Template(Template),
}

/// Which of a pattern's letters count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Case {
    Counts,
    Ignored,
}

impl Pattern {
    pub(crate) fn compile(pattern: &wire::Pattern, case: Case) -> Result<Self, String> {
        let text = |text: &str| match case {
            _ if text.is_empty() => Err("an empty text is looked for".to_owned()),
            Case::Counts => Ok(text.into()),
            Case::Ignored => Ok(text.to_ascii_lowercase().into()),
        };
        Ok(match &pattern.kind {
            Some(Kind::Exact(exact)) => Self::Exact(exact_text(exact, case)),
            Some(Kind::Prefix(prefix)) => Self::Prefix(text(prefix)?),
            Some(Kind::Suffix(suffix)) => Self::Suffix(text(suffix)?),
            Some(Kind::Present(())) => Self::Present,
            Some(Kind::Template(template)) => Template::parse(template)
                .map(Self::Template)
                .map_err(|error| format!("template {template:?}: {error}"))?,
            None => return Err("a pattern of a kind that is not known".to_owned()),
        })
    }

    pub(crate) fn matches(&self, text: &str, case: Case) -> bool {
        let equal = |a: &[u8], b: &str| match case {
            Case::Counts => a == b.as_bytes(),
            Case::Ignored => a.eq_ignore_ascii_case(b.as_bytes()),
        };
        let bytes = text.as_bytes();
        match self {
            Self::Exact(exact) => equal(bytes, exact),
            Self::Prefix(prefix) => bytes
                .get(..prefix.len())
                .is_some_and(|start| equal(start, prefix)),
            Self::Suffix(suffix) => bytes
                .len()
                .checked_sub(suffix.len())
                .is_some_and(|at| equal(&bytes[at..], suffix)),
            Self::Present => !text.is_empty(),
            Self::Template(template) => template.matches(text),
        }
    }

    /// The text, where it is one alone.
    pub(super) fn exact(&self) -> Option<&str> {
        match self {
            Self::Exact(exact) => Some(exact),
            _ => None,
        }
    }
}

/// An exact text may be empty: a token's subject may.
fn exact_text(text: &str, case: Case) -> Box<str> {
    match case {
        Case::Counts => text.into(),
        Case::Ignored => text.to_ascii_lowercase().into(),
    }
}

/// Addresses that begin alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Block {
    first: IpAddr,
    bits: u8,
}

impl Block {
    pub(super) fn compile(block: &wire::IpBlock) -> Result<Self, String> {
        let bad = || {
            format!(
                "{:?}/{} is no block of addresses",
                block.address, block.length
            )
        };
        let first: IpAddr = match *block.address {
            [a, b, c, d] => [a, b, c, d].into(),
            _ => <[u8; 16]>::try_from(&*block.address)
                .map_err(|_| bad())?
                .into(),
        };
        let longest = if first.is_ipv4() { 32 } else { 128 };
        let bits = u8::try_from(block.length)
            .ok()
            .filter(|bits| *bits <= longest);
        let bits = bits.ok_or_else(bad)?;
        Ok(Self { first, bits })
    }

    pub(super) fn holds(&self, ip: IpAddr) -> bool {
        fn same(a: u128, b: u128, unlike: u32) -> bool {
            (a ^ b).checked_shr(unlike).unwrap_or(0) == 0
        }
        match (self.first, ip) {
            (IpAddr::V4(first), IpAddr::V4(ip)) => {
                let (first, ip) = (u32::from(first).into(), u32::from(ip).into());
                same(first, ip, 32 - u32::from(self.bits))
            }
            (IpAddr::V6(first), IpAddr::V6(ip)) => {
                same(first.into(), ip.into(), 128 - u32::from(self.bits))
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_holds_what_begins_alike() {
        let block = |first: &str, length: u32| {
            let first: IpAddr = first.parse().unwrap();
            let address = match first {
                IpAddr::V4(ip) => ip.octets().to_vec(),
                IpAddr::V6(ip) => ip.octets().to_vec(),
            };
            Block::compile(&wire::IpBlock { address, length })
        };
        for (first, length, ip, expected) in [
            ("10.1.2.3", 8, "10.9.9.9", true),
            ("10.1.2.3", 8, "11.1.2.3", false),
            ("10.1.2.3", 32, "10.1.2.3", true),
            ("10.1.2.3", 32, "10.1.2.2", false),
            ("0.0.0.0", 0, "255.1.1.1", true),
            ("0.0.0.0", 0, "::1", false),
            ("::", 0, "fd77::1", true),
            ("fd77::", 16, "fd78::1", false),
            ("fd77::1", 128, "fd77::1", true),
        ] {
            let block = block(first, length).unwrap();
            assert_eq!(block.holds(ip.parse().unwrap()), expected, "{block:?} {ip}");
        }
        assert!(block("10.0.0.0", 33).is_err());
        let short = wire::IpBlock {
            address: vec![1, 2, 3],
            length: 0,
        };
        assert!(Block::compile(&short).is_err());
    }
}
