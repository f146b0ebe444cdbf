// SPDX-License-Identifier: Apache-2.0
//! What the kernel's replies reach. Built for the fuzz targets only.

use netlink_bindings::nftables::{
    OpGetchainDump, OpGetruleDump, OpGetsetDump, OpGetsetelemDump, OpGettableDump,
};
use netlink_bindings::traits::NetlinkRequest;

use super::found::{Found, take_elements};
use super::{Members, compare};
use crate::rules::Table;

/// One reply to a dump.
pub enum Reply<'a> {
    Table(&'a [u8]),
    Chain(&'a [u8]),
    Set(&'a [u8]),
    Rule(&'a [u8]),
    Elements(&'a [u8]),
}

/// Reads replies and compares what they say with a plan.
pub fn replies<'a>(replies: impl IntoIterator<Item = Reply<'a>>, plan: &[Table], ours: &[&str]) {
    let mut found = Found::default();
    let mut members = Members::new();
    for reply in replies {
        // A reply that cannot be read ends the reading with an error.
        let _ = match reply {
            Reply::Table(bytes) => found.take_table(&OpGettableDump::decode_reply(bytes).1),
            Reply::Chain(bytes) => found.take_chain(&OpGetchainDump::decode_reply(bytes).1),
            Reply::Set(bytes) => found.take_set(&OpGetsetDump::decode_reply(bytes).1),
            Reply::Rule(bytes) => found.take_rule(&OpGetruleDump::decode_reply(bytes).1),
            Reply::Elements(bytes) => {
                take_elements(&OpGetsetelemDump::decode_reply(bytes).1, &mut members);
                Ok(())
            }
        };
    }
    for drift in compare(plan, ours, &found) {
        assert!(!drift.to_string().is_empty());
    }
}
