// SPDX-License-Identifier: Apache-2.0
//! What is refused and what is bounded; `examples` are those of RFC 7541, `model` is an encoder that uses the whole
//! format, `peer` is h2.

mod examples;
mod model;
mod peer;

use proptest::prelude::*;

use super::*;

type Field = (Vec<u8>, Vec<u8>);

/// Far above what any test sends.
const NO_LIMIT: usize = 1 << 30;

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<Field>, HpackError> {
    let mut fields = Vec::new();
    let listing = decoder.decode(block, NO_LIMIT, |name, value| {
        fields.push((name.to_vec(), value.to_vec()));
    })?;
    assert_eq!(listing, Listing::Whole);
    Ok(fields)
}

/// The dynamic table, newest first, as the peer could refer to it.
fn dynamic_table(decoder: &mut Decoder) -> Vec<Field> {
    let mut entries = Vec::new();
    loop {
        let mut block = Vec::new();
        model::integer(&mut block, 0x80, 7, 62 + entries.len());
        match decode(decoder, &block) {
            Ok(fields) => entries.extend(fields),
            Err(error) => {
                assert_eq!(error, HpackError::Index(62 + entries.len()));
                return entries;
            }
        }
    }
}

fn fields(text: &[(&str, &str)]) -> Vec<Field> {
    text.iter()
        .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
        .collect()
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter_map(|digit| digit.to_digit(16))
        .map(|digit| digit as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

#[test]
fn malformed_blocks_are_refused_with_the_reason() {
    let too_large = HpackError::SizeUpdateTooLarge {
        size: 4097,
        allowed: 4096,
    };
    for (block, expected) in [
        ("80", HpackError::Index(0)),
        ("be", HpackError::Index(62)),
        ("7f00 00", HpackError::Index(63)),
        ("ff80 8080 8000", HpackError::Index(127)),
        ("ff80 8080 8080 00", HpackError::Integer),
        ("ffff ffff ffff", HpackError::Integer),
        ("ff", HpackError::Truncated),
        ("ff80", HpackError::Truncated),
        ("40", HpackError::Truncated),
        ("4001", HpackError::Truncated),
        ("4001 61", HpackError::Truncated),
        ("4001 6102 61", HpackError::Truncated),
        ("417f ffff ff0f 61", HpackError::Truncated),
        // Behind 'a', which is 00011.
        ("4181 18", HpackError::PaddingBits),
        ("4181 1e", HpackError::PaddingBits),
        ("4182 1ffe", HpackError::PaddingBits),
        ("4182 1fff", HpackError::PaddingLength),
        ("4185 1fff ffff ff", HpackError::EndOfString),
        ("4181 ff", HpackError::PaddingLength),
        ("4184 ffff ffff", HpackError::EndOfString),
        ("8220", HpackError::SizeUpdateAfterField),
        ("2020 20", HpackError::SizeUpdates),
        ("3fe2 1f", too_large),
    ] {
        let result = decode(&mut Decoder::new(1 << 20), &hex(block));
        assert_eq!(result, Err(expected), "{block}");
    }
    for (block, value) in [("4181 1f", "a"), ("4180", ""), ("4100", "")] {
        let result = decode(&mut Decoder::new(0), &hex(block));
        assert_eq!(result, Ok(fields(&[(":authority", value)])), "{block}");
    }
}

#[test]
fn size_of_the_table_follows_our_settings_once_they_are_acknowledged() {
    let insert = hex("4101 61");
    let refer = hex("be");
    let field = Ok(fields(&[(":authority", "a")]));

    let mut none = Decoder::new(0);
    assert_eq!(decode(&mut none, &insert), field);
    assert_eq!(decode(&mut none, &refer), field);
    none.settings_acknowledged();
    // An encoder that forgets the size update, and one that does not: what was there is gone.
    assert_eq!(decode(&mut none, &refer), Err(HpackError::Index(62)));
    assert_eq!(decode(&mut none, &hex("20 be")), Err(HpackError::Index(62)));
    assert_eq!(decode(&mut none, &insert), field);
    assert_eq!(decode(&mut none, &refer), Err(HpackError::Index(62)));
    let more = HpackError::SizeUpdateTooLarge {
        size: 1,
        allowed: 0,
    };
    assert_eq!(decode(&mut none, &hex("21")), Err(more));

    let mut larger = Decoder::new(5000);
    larger.settings_acknowledged();
    assert_eq!(decode(&mut larger, &insert), field);
    assert_eq!(
        decode(&mut larger, &refer),
        field,
        "the old size still does"
    );
    assert_eq!(decode(&mut larger, &hex("3fe9 26 be")), field, "5000");
    // Least and last of several: what was there is gone.
    assert_eq!(
        decode(&mut larger, &hex("20 3fe9 26 be")),
        Err(HpackError::Index(62))
    );
}

#[test]
fn too_long_a_list_is_cut_but_the_table_stays_right() {
    let first = fields(&[("a", "b")]);
    for (limit, reported, listing) in [
        (102, 3, Listing::Whole),
        (101, 2, Listing::TooLong),
        (68, 2, Listing::TooLong),
        (67, 1, Listing::TooLong),
        (33, 0, Listing::TooLong),
        (0, 0, Listing::TooLong),
    ] {
        let mut decoder = Decoder::new(DEFAULT_TABLE);
        let mut seen = Vec::new();
        let result = decoder.decode(&hex("4001 6101 62 be be"), limit, |name, value| {
            seen.push((name.to_vec(), value.to_vec()));
        });
        assert_eq!(result, Ok(listing), "{limit}");
        assert_eq!(seen, vec![first[0].clone(); reported], "{limit}");
        assert_eq!(dynamic_table(&mut decoder), first, "{limit}");
    }
    // What would still fit is not reported behind what did not: the list would have a hole.
    let mut seen = 0;
    let block = hex("0001 6105 6262 6262 62 0001 6101 62");
    let result = Decoder::new(0).decode(&block, 35, |_, _| seen += 1);
    assert_eq!((result, seen), (Ok(Listing::TooLong), 0));
}

#[test]
fn name_survives_the_eviction_of_its_own_entry() {
    let mut decoder = Decoder::new(DEFAULT_TABLE);
    let value = [b'v'; 4050];
    let mut block = hex("40 04 6e616d65 00");
    model::integer(&mut block, 0x40, 6, 62);
    model::integer(&mut block, 0, 7, value.len());
    block.extend_from_slice(&value);
    let large = (b"name".to_vec(), value.to_vec());
    let both = vec![(b"name".to_vec(), Vec::new()), large.clone()];
    assert_eq!(decode(&mut decoder, &block), Ok(both));
    assert_eq!(dynamic_table(&mut decoder), [large]);
}

#[test]
fn memory_of_the_table_is_bounded_however_it_is_filled() {
    for limit in [0, 31, 32, 100, 1000, 4096] {
        let mut table = Table::new(limit);
        let mut most = 0;
        for round in 0..20_000usize {
            // Runs of small, middle and large entries, some with the name of the newest.
            let length = match round / 50 % 4 {
                0 => 0,
                1 => round % 50,
                2 => limit / 2 + round % 50,
                _ => round * 7919 % (limit + 10),
            };
            let name = match round % 3 {
                0 => table.name(62).unwrap_or(Name::Given(b"name")),
                _ => Name::Given(b""),
            };
            table.insert(name, &vec![b'v'; length]);
            most = most.max(table.allocated());
        }
        assert!(most <= model::bound(limit), "{limit}: {most}");
        table.resize(0);
        assert_eq!(table.allocated(), 0);
    }
}

#[test]
fn encoder_uses_the_static_table_for_names_and_whole_fields() {
    for (name, value, expected) in [
        (":method", "CONNECT", "0207 434f 4e4e 4543 54"),
        (":method", "POST", "83"),
        (":status", "200", "88"),
        (":status", "503", "0803 3530 33"),
        (":authority", "a:1", "0103 613a 31"),
        (":protocol", "x", "0009 3a70 726f 746f 636f 6c01 78"),
        ("accept-encoding", "gzip, deflate", "90"),
        ("www-authenticate", "b", "0f2e 0162"),
        ("baggage", "", "0007 6261 6767 6167 6500"),
    ] {
        let mut block = Vec::new();
        Encoder::field(&mut block, name.as_bytes(), value.as_bytes());
        assert_eq!(block, hex(expected), "{name}: {value}");
    }
    let mut block = Vec::new();
    Encoder::first_block(&mut block);
    assert_eq!(block, hex("20"));
}

proptest! {
    #[test]
    fn what_the_encoder_writes_is_read_back(
        list in proptest::collection::vec(model::field(), 0..20),
    ) {
        let mut decoder = Decoder::new(0);
        decoder.settings_acknowledged();
        let mut block = Vec::new();
        Encoder::first_block(&mut block);
        for (name, value) in &list {
            Encoder::field(&mut block, name, value);
        }
        prop_assert_eq!(decode(&mut decoder, &block), Ok(list));
        prop_assert!(decoder.table.allocated() == 0);
    }

    #[test]
    fn huffman_code_of_anything_is_read_back(text: Vec<u8>) {
        let mut out = b"left over".to_vec();
        prop_assert_eq!(huffman::decode(&model::huffman(&text), &mut out), Ok(()));
        prop_assert_eq!(out, text);
    }

    #[test]
    fn any_bytes_as_huffman_code_are_refused_or_are_what_would_be_sent(coded: Vec<u8>) {
        let mut out = Vec::new();
        if huffman::decode(&coded, &mut out).is_ok() {
            prop_assert_eq!(model::huffman(&out), coded);
        }
    }

    #[test]
    fn any_bytes_are_refused_or_read_within_bounded_memory(
        max_table in 0usize..10_000,
        acknowledged: bool,
        blocks in proptest::collection::vec(any::<Vec<u8>>(), 1..50),
    ) {
        let mut decoder = Decoder::new(max_table);
        if acknowledged {
            decoder.settings_acknowledged();
        }
        for block in blocks {
            let _ = decoder.decode(&block, 1000, |_, _| ());
            prop_assert!(decoder.table.allocated() <= model::bound(max_table.max(DEFAULT_TABLE)));
        }
    }
}
