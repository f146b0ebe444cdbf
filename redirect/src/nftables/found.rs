// SPDX-License-Identifier: Apache-2.0
//! What the kernel holds in family `inet`, read by netlink dumps.

use std::collections::BTreeMap;
use std::net::IpAddr;

use netlink_bindings::nftables;
use netlink_bindings::utils::ErrorContext;
use netlink_socket2::{NetlinkSocket, ReplyError};

use super::{Members, NftError, comment_in, hook_number, inet};
use crate::rules::{Base, Family, Set};

/// NFT_TABLE_F_DORMANT.
const DORMANT: u32 = 1;
/// NF_ACCEPT.
const ACCEPT: u32 = 1;

/// What the kernel holds in family `inet`.
#[derive(Default)]
pub(super) struct Found {
    pub(super) tables: BTreeMap<String, FoundTable>,
}

#[derive(Default)]
pub(super) struct FoundTable {
    /// Switched off: no packet meets its chains.
    pub(super) dormant: bool,
    pub(super) chains: BTreeMap<String, FoundChain>,
    pub(super) sets: BTreeMap<String, FoundSet>,
}

/// Of what kind a set's members are; more than a plain set of addresses has flags.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FoundSet {
    key_length: u32,
    flags: u32,
}

impl From<Set> for FoundSet {
    fn from(set: Set) -> Self {
        Self {
            key_length: match set.family {
                Family::V4 => 4,
                Family::V6 => 16,
            },
            flags: 0,
        }
    }
}

#[derive(Default)]
pub(super) struct FoundChain {
    pub(super) base: Option<FoundBase>,
    /// The expressions of each rule, as dumped.
    pub(super) rules: Vec<Vec<u8>>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct FoundBase {
    pub(super) kind: String,
    pub(super) hook: u32,
    pub(super) priority: i32,
    /// What becomes of packets that no rule decides on.
    pub(super) policy: u32,
}

impl From<Base> for FoundBase {
    fn from(base: Base) -> Self {
        Self {
            kind: base.kind.name().to_owned(),
            hook: hook_number(base.hook),
            priority: base.priority,
            policy: ACCEPT,
        }
    }
}

impl Found {
    pub(super) fn read() -> Result<Self, NftError> {
        let mut socket = NetlinkSocket::new();
        let mut found = Self::default();
        found.read_tables(&mut socket).map_err(reading("tables"))?;
        found.read_chains(&mut socket).map_err(reading("chains"))?;
        found.read_sets(&mut socket).map_err(reading("sets"))?;
        found.read_rules(&mut socket).map_err(reading("rules"))?;
        Ok(found)
    }

    fn read_tables(&mut self, socket: &mut NetlinkSocket) -> Result<(), ReplyError> {
        let request = nftables::Request::new().op_gettable_dump(&inet());
        let mut replies = socket.request(&request)?;
        while let Some(reply) = replies.recv() {
            self.take_table(&reply?.1)?;
        }
        Ok(())
    }

    fn read_chains(&mut self, socket: &mut NetlinkSocket) -> Result<(), ReplyError> {
        let request = nftables::Request::new().op_getchain_dump(&inet());
        let mut replies = socket.request(&request)?;
        while let Some(reply) = replies.recv() {
            self.take_chain(&reply?.1)?;
        }
        Ok(())
    }

    fn read_sets(&mut self, socket: &mut NetlinkSocket) -> Result<(), ReplyError> {
        let request = nftables::Request::new().op_getset_dump(&inet());
        let mut replies = socket.request(&request)?;
        while let Some(reply) = replies.recv() {
            self.take_set(&reply?.1)?;
        }
        Ok(())
    }

    fn read_rules(&mut self, socket: &mut NetlinkSocket) -> Result<(), ReplyError> {
        let request = nftables::Request::new().op_getrule_dump(&inet());
        let mut replies = socket.request(&request)?;
        while let Some(reply) = replies.recv() {
            self.take_rule(&reply?.1)?;
        }
        Ok(())
    }

    pub(super) fn take_table(
        &mut self,
        table: &nftables::IterableTableAttrs<'_>,
    ) -> Result<(), ErrorContext> {
        let found = self.tables.entry(text(table.get_name()?)).or_default();
        found.dormant = table.get_flags().unwrap_or_default() & DORMANT != 0;
        Ok(())
    }

    pub(super) fn take_chain(
        &mut self,
        chain: &nftables::IterableChainAttrs<'_>,
    ) -> Result<(), ErrorContext> {
        let base = match chain.get_hook() {
            Ok(hook) => Some(FoundBase {
                kind: text(chain.get_type()?),
                hook: hook.get_num()?,
                priority: hook.get_priority()?,
                policy: chain.get_policy().unwrap_or(ACCEPT),
            }),
            Err(_) => None,
        };
        let table = self.tables.entry(text(chain.get_table()?)).or_default();
        table.chains.insert(
            text(chain.get_name()?),
            FoundChain {
                base,
                rules: Vec::new(),
            },
        );
        Ok(())
    }

    pub(super) fn take_set(
        &mut self,
        set: &nftables::IterableSetAttrs<'_>,
    ) -> Result<(), ErrorContext> {
        let table = self.tables.entry(text(set.get_table()?)).or_default();
        let found = FoundSet {
            key_length: set.get_key_len().unwrap_or_default(),
            flags: set.get_flags().unwrap_or_default(),
        };
        table.sets.insert(text(set.get_name()?), found);
        Ok(())
    }

    pub(super) fn take_rule(
        &mut self,
        rule: &nftables::IterableRuleAttrs<'_>,
    ) -> Result<(), ErrorContext> {
        let table = self.tables.entry(text(rule.get_table()?)).or_default();
        let chain = table.chains.entry(text(rule.get_chain()?)).or_default();
        let expressions = rule
            .get_expressions()
            .map(|list| list.get_buf().to_vec())
            .unwrap_or_default();
        chain.rules.push(expressions);
        Ok(())
    }
}

pub(super) fn read_set(table: &str, set: Set) -> Result<Members, NftError> {
    fn read(table: &str, set: Set) -> Result<Members, ReplyError> {
        let mut request = nftables::Request::new().op_getsetelem_dump(&inet());
        request
            .encode()
            .push_table_bytes(table.as_bytes())
            .push_set_bytes(set.name.as_bytes());
        let mut socket = NetlinkSocket::new();
        let mut replies = socket.request(&request)?;
        let mut members = Members::new();
        while let Some(reply) = replies.recv() {
            take_elements(&reply?.1, &mut members);
        }
        Ok(members)
    }
    read(table, set).map_err(|error| NftError::Refused {
        doing: format!("reading set {} of table {table}", set.name),
        cause: error.to_string(),
    })
}

/// Members of another kind than addresses are none of ours.
pub(super) fn take_elements(list: &nftables::IterableSetelemListAttrs<'_>, members: &mut Members) {
    let Ok(elements) = list.get_elements() else {
        return;
    };
    for element in elements.get_elem() {
        let Ok(key) = element.get_key().and_then(|key| key.get_value()) else {
            continue;
        };
        let Some(address) = address(key) else {
            continue;
        };
        let owner = element.get_userdata().map(comment_in).unwrap_or_default();
        members.insert(address, owner);
    }
}

fn address(key: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(key) {
        return Some(v4.into());
    }
    <[u8; 16]>::try_from(key).ok().map(IpAddr::from)
}

fn text(name: &std::ffi::CStr) -> String {
    name.to_string_lossy().into_owned()
}

fn reading(what: &'static str) -> impl Fn(ReplyError) -> NftError {
    move |error| NftError::Read {
        what,
        cause: error.to_string(),
    }
}
