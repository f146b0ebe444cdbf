// SPDX-License-Identifier: Apache-2.0
//! An encoder that takes every liberty of the format, and keeps its table in the plainest way.

use std::collections::VecDeque;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::super::huffman::LENGTHS;
use super::super::table::STATIC;
use super::*;

/// How one field is to be written.
#[derive(Debug, Clone)]
struct Style {
    representation: Representation,
    never_indexed: bool,
    name_by_index: bool,
    huffman_name: bool,
    huffman_value: bool,
}

#[derive(Debug, Clone)]
enum Step {
    Resize(usize),
    Block(Vec<(Field, Style)>),
}

struct Model {
    table: VecDeque<Field>,
    limit: usize,
}

impl Model {
    fn size(&self) -> usize {
        self.table.iter().map(|(n, v)| n.len() + v.len() + 32).sum()
    }

    fn resize(&mut self, limit: usize) {
        self.limit = limit;
        while self.size() > limit {
            self.table.pop_back();
        }
    }

    fn index(&self, wanted: impl Fn(&[u8], &[u8]) -> bool) -> usize {
        let known = STATIC.iter().map(|(n, v)| (n.as_bytes(), v.as_bytes()));
        let sent = self.table.iter().map(|(n, v)| (&n[..], &v[..]));
        // The last match: dynamic ones are the more interesting.
        let mut entries: Vec<_> = known.chain(sent).zip(1..).collect();
        entries.reverse();
        let found = entries.iter().find(|((n, v), _)| wanted(n, v));
        found.map_or(0, |(_, index)| *index)
    }

    fn field(&mut self, out: &mut Vec<u8>, field: &Field, style: &Style) {
        let whole = self.index(|n, v| (n, v) == (&field.0, &field.1));
        if style.representation == Representation::Indexed && whole != 0 {
            return integer(out, 0x80, 7, whole);
        }
        let name = match style.name_by_index {
            true => self.index(|n, _| n == field.0),
            false => 0,
        };
        let inserted = style.representation == Representation::Inserted;
        match (inserted, style.never_indexed) {
            (true, _) => integer(out, 0x40, 6, name),
            (false, true) => integer(out, 0x10, 4, name),
            (false, false) => integer(out, 0, 4, name),
        }
        if name == 0 {
            string(out, &field.0, style.huffman_name);
        }
        string(out, &field.1, style.huffman_value);
        if inserted {
            let limit = self.limit;
            self.table.push_front(field.clone());
            self.resize(limit);
        }
    }
}

/// What a table of `limit` may take, whatever came: three times its bytes, and the list of entries, which has four
/// places at first and doubles.
pub(super) fn bound(limit: usize) -> usize {
    let entries = (limit / OVERHEAD).next_power_of_two().max(4);
    3 * limit + entries * 3 * size_of::<usize>()
}

/// Fields that come again, in whole or in part, and some that don't.
pub(super) fn field() -> impl Strategy<Value = Field> {
    let known =
        select(&STATIC[..]).prop_map(|(n, v)| (n.as_bytes().to_vec(), v.as_bytes().to_vec()));
    let few = (
        select(vec![":authority", "age", "a", "b", ""]),
        select(vec!["", "1", "2"]),
    )
        .prop_map(|(n, v)| (n.as_bytes().to_vec(), v.as_bytes().to_vec()));
    let any_bytes = (vec(any::<u8>(), 0..20), vec(any::<u8>(), 0..300));
    let large = (vec(any::<u8>(), 0..3000), vec(any::<u8>(), 0..3000));
    prop_oneof![4 => known, 8 => few, 4 => any_bytes, 1 => large]
}

fn style() -> impl Strategy<Value = Style> {
    let representation = prop_oneof![
        Just(Representation::Indexed),
        Just(Representation::Inserted),
        Just(Representation::Literal),
    ];
    (representation, any::<[bool; 4]>()).prop_map(|(representation, choices)| Style {
        representation,
        never_indexed: choices[0],
        name_by_index: choices[1],
        huffman_name: choices[2],
        huffman_value: choices[3],
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let resize = prop_oneof![0usize..200, 0usize..=6000].prop_map(Step::Resize);
    let block = vec((field(), style()), 0..30).prop_map(Step::Block);
    vec(prop_oneof![1 => resize, 4 => block], 0..30)
}

proptest! {
    #[test]
    fn whatever_the_format_allows_is_decoded_and_the_tables_agree(steps in steps()) {
        let mut decoder = Decoder::new(6000);
        decoder.settings_acknowledged();
        let mut model = Model { table: VecDeque::new(), limit: DEFAULT_TABLE };
        let mut sizes: Vec<usize> = Vec::new();
        for step in steps {
            match step {
                Step::Resize(limit) => sizes.push(limit),
                Step::Block(list) => {
                    let mut block = Vec::new();
                    let least = sizes.iter().min().copied();
                    let last = sizes.last().copied();
                    for size in least.into_iter().chain(last) {
                        integer(&mut block, 0x20, 5, size);
                        model.resize(size);
                    }
                    sizes.clear();
                    for (field, style) in &list {
                        model.field(&mut block, field, style);
                    }
                    let expected: Vec<Field> = list.into_iter().map(|(field, _)| field).collect();
                    prop_assert_eq!(decode(&mut decoder, &block), Ok(expected));
                    prop_assert_eq!(dynamic_table(&mut decoder), Vec::from(model.table.clone()));
                    prop_assert!(decoder.table.allocated() <= bound(6000));
                    prop_assert!(decoder.name.capacity() <= KEPT_SCRATCH);
                    prop_assert!(decoder.value.capacity() <= KEPT_SCRATCH);
                }
            }
        }
    }
}

pub(super) fn integer(out: &mut Vec<u8>, pattern: u8, prefix: u32, value: usize) {
    let most = (1 << prefix) - 1;
    if value < most {
        return out.push(pattern | value as u8);
    }
    out.push(pattern | most as u8);
    let mut rest = value - most;
    while rest > 127 {
        out.push((rest % 128 + 128) as u8);
        rest /= 128;
    }
    out.push(rest as u8);
}

fn string(out: &mut Vec<u8>, text: &[u8], coded: bool) {
    if coded {
        let text = huffman(text);
        integer(out, 0x80, 7, text.len());
        out.extend(text);
    } else {
        integer(out, 0, 7, text.len());
        out.extend(text);
    }
}

/// Code and its length, by symbol.
pub(super) fn codes() -> Vec<(u32, u8)> {
    let mut order: Vec<usize> = (0..LENGTHS.len()).collect();
    order.sort_by_key(|symbol| (LENGTHS[*symbol], *symbol));
    let mut codes = vec![(0, 0); LENGTHS.len()];
    // The next code, as a fraction of all that 32 bits can say.
    let mut next = 0u64;
    for symbol in order {
        let length = LENGTHS[symbol];
        codes[symbol] = ((next >> (32 - length)) as u32, length);
        next += 1 << (32 - length);
    }
    codes
}

pub(super) fn huffman(text: &[u8]) -> Vec<u8> {
    let codes = codes();
    let mut bits: Vec<bool> = Vec::new();
    for byte in text {
        let (code, length) = codes[usize::from(*byte)];
        bits.extend((0..length).rev().map(|bit| code >> bit & 1 == 1));
    }
    while !bits.len().is_multiple_of(8) {
        bits.push(true);
    }
    let byte = |bits: &[bool]| bits.iter().fold(0, |byte, bit| byte << 1 | u8::from(*bit));
    bits.chunks(8).map(byte).collect()
}
