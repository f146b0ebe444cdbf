// SPDX-License-Identifier: Apache-2.0
//! Field blocks of HTTP/2, compressed with HPACK (RFC 7541): blocks in, fields out, and back.
//!
//! Knows nothing of frames or of what fields mean. The decoder takes all that the format offers: static and dynamic
//! table, Huffman code, size updates. The encoder is free to choose and takes the least: it never uses the dynamic
//! table, so nothing that it wrote ties one block to the next.
//!
//! Time is linear in the bytes of the block and of the fields that it stands for. Memory is bounded by the table's
//! size and, while a block is decoded, by the longest string in it. No allocation is made per field.

mod encoder;
mod huffman;
mod table;

#[cfg(test)]
mod tests;

pub(crate) use encoder::Encoder;

use table::{Name, OVERHEAD, Table};

/// The table's size until something else is agreed (RFC 9113 §6.5.2).
const DEFAULT_TABLE: usize = 4096;

/// How many size updates may open a block: the least and the last of those between two blocks (RFC 7541 §4.2).
const MAX_SIZE_UPDATES: usize = 2;

/// Continuation bytes of an integer; with them it always fits into 36 bits.
const MAX_CONTINUATION: u32 = 5;

/// What is kept of each buffer for decoded strings from one block to the next.
const KEPT_SCRATCH: usize = 1024;

/// Why a block is not HPACK; all are connection errors of type COMPRESSION_ERROR, since the tables of the two sides
/// may differ from here on (RFC 9113 §4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HpackError {
    /// The block is over, the field is not.
    #[error("the field block ends within a field")]
    Truncated,
    /// An integer longer than any that could mean something here.
    #[error("an integer in the field block is too large")]
    Integer,
    /// No such entry, neither static nor dynamic.
    #[error("the field block refers to entry {0}, which is in no table")]
    Index(usize),
    /// The end-of-string symbol is never to be sent.
    #[error("a Huffman-coded string holds the end-of-string symbol")]
    EndOfString,
    /// What follows the last symbol is neither a symbol nor a prefix of the end-of-string symbol.
    #[error("the padding of a Huffman-coded string is not all ones")]
    PaddingBits,
    /// Padding only fills the last byte.
    #[error("the padding of a Huffman-coded string is longer than 7 bits")]
    PaddingLength,
    /// The table was to become larger than we said.
    #[error("dynamic table size update to {size}, but at most {allowed} is allowed")]
    SizeUpdateTooLarge {
        /// Asked for, in bytes.
        size: usize,
        /// Our limit, in bytes.
        allowed: usize,
    },
    /// Size updates come first.
    #[error("dynamic table size update after a field")]
    SizeUpdateAfterField,
    /// More than could ever be needed.
    #[error("more than {MAX_SIZE_UPDATES} dynamic table size updates in one field block")]
    SizeUpdates,
}

/// Whether all fields of a block were reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Listing {
    /// All of them.
    Whole,
    /// Those up to the limit.
    TooLong,
}

/// Decodes the blocks of one direction of a connection, in the order of their arrival.
pub(crate) struct Decoder {
    table: Table,
    /// What a size update may ask for now.
    allowed: usize,
    /// What it may ask for once our SETTINGS are in force.
    max_table: usize,
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Decoder {
    /// For a connection where our SETTINGS_HEADER_TABLE_SIZE is `max_table`, in bytes. Until
    /// [`settings_acknowledged`](Self::settings_acknowledged) the default of 4096 holds.
    pub(crate) fn new(max_table: usize) -> Self {
        Self {
            table: Table::new(DEFAULT_TABLE),
            allowed: DEFAULT_TABLE,
            max_table,
            name: Vec::new(),
            value: Vec::new(),
        }
    }

    /// The peer has acknowledged our SETTINGS. From its next block on its table is no larger than they allow
    /// (RFC 7541 §4.2).
    pub(crate) fn settings_acknowledged(&mut self) {
        self.allowed = self.max_table;
    }

    /// Decodes a whole block and calls `field` with each name and value, in order.
    ///
    /// `max_list` bounds the sum of name, value and 32 bytes each (RFC 9113 §6.5.2). From the field that exceeds it
    /// none is reported any more, but the block is read to its end, so that the table stays right.
    ///
    /// # Errors
    /// The block is malformed. The connection is then of no more use, nor is the decoder.
    pub(crate) fn decode(
        &mut self,
        block: &[u8],
        max_list: usize,
        field: impl FnMut(&[u8], &[u8]),
    ) -> Result<Listing, HpackError> {
        let mut input = self.size_updates(block)?;
        let mut report = Report {
            left: Some(max_list),
            field,
        };
        while let Some(first) = input.first() {
            let representation = Representation::of(*first);
            let index = integer(&mut input, representation.prefix())?;
            let name = match (representation, index) {
                (Representation::Indexed, _) => {
                    let (name, value) = self.table.get(index).ok_or(HpackError::Index(index))?;
                    report.field(name, value);
                    continue;
                }
                (Representation::SizeUpdate, _) => return Err(HpackError::SizeUpdateAfterField),
                (_, 0) => Name::Given(string(&mut input, &mut self.name)?),
                _ => self.table.name(index).ok_or(HpackError::Index(index))?,
            };
            let value = string(&mut input, &mut self.value)?;
            report.field(self.table.resolve(&name), value);
            if representation == Representation::Inserted {
                self.table.insert(name, value);
            }
        }
        for scratch in [&mut self.name, &mut self.value] {
            scratch.clear();
            scratch.shrink_to(KEPT_SCRATCH);
        }
        Ok(match report.left {
            Some(_) => Listing::Whole,
            None => Listing::TooLong,
        })
    }

    /// Obeys the size updates at the start of `block`; gives the rest of it.
    fn size_updates<'b>(&mut self, mut block: &'b [u8]) -> Result<&'b [u8], HpackError> {
        let allowed = self.allowed;
        let mut seen = 0;
        while let Some(first) = block.first()
            && Representation::of(*first) == Representation::SizeUpdate
        {
            seen += 1;
            if seen > MAX_SIZE_UPDATES {
                return Err(HpackError::SizeUpdates);
            }
            let size = integer(&mut block, Representation::SizeUpdate.prefix())?;
            if size > allowed {
                return Err(HpackError::SizeUpdateTooLarge { size, allowed });
            }
            self.table.resize(size);
        }
        // RFC 7541 §4.2 demands a size update here. An encoder that never inserts anything may well forget it; one that
        // does is out of step from now on, and will refer to what is not there.
        if self.table.limit() > allowed {
            self.table.resize(allowed);
        }
        Ok(block)
    }
}

/// What the first byte says of what follows (RFC 7541 §6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Representation {
    Indexed,
    Inserted,
    SizeUpdate,
    /// Without indexing or never indexed: the difference matters only to those who encode the field again.
    Literal,
}

impl Representation {
    fn of(first: u8) -> Self {
        match first.leading_zeros() {
            0 => Self::Indexed,
            1 => Self::Inserted,
            2 => Self::SizeUpdate,
            _ => Self::Literal,
        }
    }

    /// Bits of the first byte that belong to an integer.
    fn prefix(self) -> u32 {
        match self {
            Self::Indexed => 7,
            Self::Inserted => 6,
            Self::SizeUpdate => 5,
            Self::Literal => 4,
        }
    }
}

/// Hands fields on while they are within the limit.
struct Report<F> {
    /// `None` once the limit was exceeded.
    left: Option<usize>,
    field: F,
}

impl<F: FnMut(&[u8], &[u8])> Report<F> {
    fn field(&mut self, name: &[u8], value: &[u8]) {
        let size = name.len() + value.len() + OVERHEAD;
        self.left = self.left.and_then(|left| left.checked_sub(size));
        if self.left.is_some() {
            (self.field)(name, value);
        }
    }
}

/// Takes an integer whose first `prefix` bits end the first byte (RFC 7541 §5.1).
fn integer(input: &mut &[u8], prefix: u32) -> Result<usize, HpackError> {
    let mask = (1 << prefix) - 1;
    let first = byte(input)? & mask;
    let mut value = u64::from(first);
    if first < mask {
        return Ok(first.into());
    }
    for position in 0..MAX_CONTINUATION {
        let next = byte(input)?;
        value += u64::from(next & 0x7f) << (7 * position);
        if next & 0x80 == 0 {
            return usize::try_from(value).map_err(|_| HpackError::Integer);
        }
    }
    Err(HpackError::Integer)
}

/// Takes a string; `scratch` is where it is decoded if it has to be (RFC 7541 §5.2).
fn string<'s, 'b: 's>(
    input: &mut &'b [u8],
    scratch: &'s mut Vec<u8>,
) -> Result<&'s [u8], HpackError> {
    let coded = input.first().is_some_and(|first| first & 0x80 != 0);
    let length = integer(input, 7)?;
    let (text, rest) = input
        .split_at_checked(length)
        .ok_or(HpackError::Truncated)?;
    *input = rest;
    if !coded {
        return Ok(text);
    }
    huffman::decode(text, scratch)?;
    Ok(scratch)
}

fn byte(input: &mut &[u8]) -> Result<u8, HpackError> {
    let (first, rest) = input.split_first().ok_or(HpackError::Truncated)?;
    *input = rest;
    Ok(*first)
}
