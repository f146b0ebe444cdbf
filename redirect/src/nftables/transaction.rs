// SPDX-License-Identifier: Apache-2.0
//! Changes that take effect together or not at all: one netlink batch.

use std::net::IpAddr;

use netlink_bindings::nftables::{self, Nfgenmsg};
use netlink_bindings::traits::Pusher;
use netlink_bindings::utils::{finalize_nested_header, push_nested_header};
use netlink_socket2::{NetlinkSocket, ReplyError};

use super::{NftError, comment, hook_number, inet};
use crate::expression::lower;
use crate::rules::{Chain, Family, Set, Table};

/// The library counts acknowledgements in words of 64 and takes an exact multiple for "all arrived".
const ACKNOWLEDGEMENT_WORD: usize = 64;
const NFTA_LIST_ELEM: u16 = 1;
const NLMSG_HEADER: usize = 16;
// The kernel stores these for the nft tool.
const NFT_TYPE_IPV4_ADDR: u32 = 7;
const NFT_TYPE_IPV6_ADDR: u32 = 8;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Put {
    /// Empty its chains and fill them again.
    Over,
    /// Away with the whole table first.
    Anew,
}

/// Messages that take effect together, each with words for what it does.
pub(super) struct Transaction {
    chain: nftables::Chained<'static>,
    doing: Vec<(String, Vec<u8>)>,
    /// A table that will exist afterwards.
    table: Option<String>,
}

impl Default for Transaction {
    fn default() -> Self {
        let mut chain = nftables::Chained::new(1);
        chain.request().op_batch_begin_do(&batch());
        Self {
            chain,
            doing: Vec::new(),
            table: None,
        }
    }
}

impl Transaction {
    fn note(&mut self, start: usize, doing: impl FnOnce() -> String) {
        let payload = self.chain.buf()[start..].to_vec();
        self.doing.push((doing(), payload));
    }

    /// Where the payload of the next message will start.
    fn mark(&self) -> usize {
        let length = self.chain.buf().len();
        length.next_multiple_of(4) + NLMSG_HEADER
    }

    fn add_table(&mut self, name: &str) {
        self.table = Some(name.to_owned());
        let start = self.mark();
        self.chain
            .request()
            .set_create()
            .op_newtable_do(&inet())
            .encode()
            .push_name_bytes(name.as_bytes());
        self.note(start, || format!("creating table {name}"));
    }

    pub(super) fn delete_table(&mut self, name: &str) {
        let start = self.mark();
        self.chain
            .request()
            .op_deltable_do(&inet())
            .encode()
            .push_name_bytes(name.as_bytes());
        self.note(start, || format!("deleting table {name}"));
    }

    pub(super) fn put_table(&mut self, table: &Table, put: Put) {
        self.add_table(table.name);
        if put == Put::Anew {
            self.delete_table(table.name);
            self.add_table(table.name);
        } else {
            self.flush_rules(table.name);
        }
        for set in &table.sets {
            self.add_set(table.name, *set);
        }
        // All chains before the first rule, since rules jump.
        for chain in &table.chains {
            self.add_chain(table.name, chain);
        }
        for chain in &table.chains {
            for (index, rule) in chain.rules.iter().enumerate() {
                let start = self.mark();
                {
                    let mut request = self
                        .chain
                        .request()
                        .set_create()
                        .set_append()
                        .op_newrule_do(&inet());
                    let mut attributes = request
                        .encode()
                        .push_table_bytes(table.name.as_bytes())
                        .push_chain_bytes(chain.name.as_bytes())
                        .nested_expressions();
                    let buffer = attributes.as_vec_mut();
                    for expression in lower(rule) {
                        let element = push_nested_header(buffer, NFTA_LIST_ELEM);
                        expression.encode(buffer);
                        finalize_nested_header(buffer, element);
                    }
                }
                self.note(start, || {
                    format!(
                        "adding rule {} to chain {} of table {}: {rule}",
                        index + 1,
                        chain.name,
                        table.name
                    )
                });
            }
        }
    }

    fn flush_rules(&mut self, table: &str) {
        let start = self.mark();
        self.chain
            .request()
            .op_delrule_do(&inet())
            .encode()
            .push_table_bytes(table.as_bytes());
        self.note(start, || format!("emptying table {table}"));
    }

    fn add_chain(&mut self, table: &str, chain: &Chain) {
        let start = self.mark();
        {
            let mut request = self.chain.request().set_create().op_newchain_do(&inet());
            let attributes = request
                .encode()
                .push_table_bytes(table.as_bytes())
                .push_name_bytes(chain.name.as_bytes());
            if let Some(base) = chain.base {
                attributes
                    .nested_hook()
                    .push_num(hook_number(base.hook))
                    .push_priority(base.priority)
                    .end_nested()
                    .push_type_bytes(base.kind.name().as_bytes());
            }
        }
        self.note(start, || {
            format!("creating chain {} of table {table}", chain.name)
        });
    }

    fn add_set(&mut self, table: &str, set: Set) {
        let (kind, length) = match set.family {
            Family::V4 => (NFT_TYPE_IPV4_ADDR, 4),
            Family::V6 => (NFT_TYPE_IPV6_ADDR, 16),
        };
        let start = self.mark();
        self.chain
            .request()
            .set_create()
            .op_newset_do(&inet())
            .encode()
            .push_table_bytes(table.as_bytes())
            .push_name_bytes(set.name.as_bytes())
            .push_key_type(kind)
            .push_key_len(length)
            .push_id(length);
        self.note(start, || {
            format!("creating set {} of table {table}", set.name)
        });
    }

    pub(super) fn add_elements(&mut self, table: &str, set: Set, members: &[(&IpAddr, &String)]) {
        self.table = Some(table.to_owned());
        let start = self.mark();
        {
            let mut request = self.chain.request().set_create().op_newsetelem_do(&inet());
            let mut list = request
                .encode()
                .push_table_bytes(table.as_bytes())
                .push_set_bytes(set.name.as_bytes())
                .nested_elements();
            for (address, owner) in members {
                list = list
                    .nested_elem()
                    .nested_key()
                    .push_value(&octets(**address))
                    .end_nested()
                    .push_userdata(&comment(owner))
                    .end_nested();
            }
        }
        self.note(start, || {
            format!(
                "adding {} addresses to set {} of table {table}",
                members.len(),
                set.name
            )
        });
    }

    pub(super) fn delete_elements(
        &mut self,
        table: &str,
        set: Set,
        members: &[(&IpAddr, &String)],
    ) {
        self.table = Some(table.to_owned());
        let start = self.mark();
        {
            let mut request = self.chain.request().op_delsetelem_do(&inet());
            let mut list = request
                .encode()
                .push_table_bytes(table.as_bytes())
                .push_set_bytes(set.name.as_bytes())
                .nested_elements();
            for (address, _) in members {
                list = list
                    .nested_elem()
                    .nested_key()
                    .push_value(&octets(**address))
                    .end_nested()
                    .end_nested();
            }
        }
        self.note(start, || {
            format!(
                "removing {} addresses from set {} of table {table}",
                members.len(),
                set.name
            )
        });
    }

    pub(super) fn commit(mut self) -> Result<(), NftError> {
        if self.doing.is_empty() {
            return Ok(());
        }
        let with_frame = self.doing.len() + 2;
        if with_frame.is_multiple_of(ACKNOWLEDGEMENT_WORD)
            && let Some(table) = self.table.clone()
        {
            self.add_table(&table);
        }
        self.chain.request().op_batch_end_do(&batch());
        let messages = self.chain.finalize();
        let mut socket = NetlinkSocket::new();
        let sent = socket
            .request_chained(&messages)
            .map_err(ReplyError::from)
            .and_then(|mut replies| replies.recv_all());
        sent.map_err(|error| NftError::Refused {
            doing: blame(&self.doing, &error),
            cause: error.to_string(),
        })
    }
}

/// The kernel sends the message that it refused back: find out what we were doing with it.
fn blame(doing: &[(String, Vec<u8>)], error: &ReplyError) -> String {
    let refused = error.request().unwrap_or_default();
    doing
        .iter()
        .filter(|(_, payload)| refused.starts_with(payload))
        // A message may begin with the bytes of a shorter one.
        .max_by_key(|(_, payload)| payload.len())
        .map_or_else(
            || format!("a transaction of {} steps", doing.len()),
            |(doing, _)| doing.clone(),
        )
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn batch() -> Nfgenmsg {
    let mut header = Nfgenmsg::new();
    header.set_res_id(libc::NFNL_SUBSYS_NFTABLES as u16);
    header
}
