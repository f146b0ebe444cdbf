// SPDX-License-Identifier: Apache-2.0
//! Tables of a plan ↔ the kernel, for the network namespace that the calling thread is in.
//!
//! [`apply`] looks first, and changes what differs in one transaction: either all of it holds afterwards or nothing has
//! changed, and packets never meet half of it. Applying twice equals applying once. [`inspect`] compares every chain and
//! rule, expression by expression, with what the kernel reports. Blocking; no opinion on what the rules should be.

mod found;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod transaction;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use netlink_bindings::nftables::Nfgenmsg;

use crate::expression::{lower, same};
use crate::rules::{Family, Hook, Set, Table};
use found::{Found, FoundBase, FoundSet, FoundTable, read_set};
use transaction::{Put, Transaction};

/// Elements go to the kernel in messages of this many: the length of an attribute has 16 bits.
const ELEMENTS_PER_MESSAGE: usize = 256;

#[derive(Debug, thiserror::Error)]
pub enum NftError {
    #[error("nftables: {doing}: {cause}")]
    Refused { doing: String, cause: String },
    #[error("nftables: reading {what}: {cause}")]
    Read { what: &'static str, cause: String },
}

/// How the kernel differs from the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Drift {
    TableMissing {
        table: String,
    },
    TableExtra {
        table: String,
    },
    /// It is there, and switched off.
    TableDormant {
        table: String,
    },
    SetDiffers {
        table: String,
        set: String,
    },
    SetMissing {
        table: String,
        set: String,
    },
    SetExtra {
        table: String,
        set: String,
    },
    ChainMissing {
        table: String,
        chain: String,
    },
    ChainExtra {
        table: String,
        chain: String,
    },
    ChainDiffers {
        table: String,
        chain: String,
    },
    RuleCount {
        table: String,
        chain: String,
        wanted: usize,
        found: usize,
    },
    RuleDiffers {
        table: String,
        chain: String,
        rule: usize,
    },
}

/// What [`apply`] had to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Applied {
    Unchanged,
    /// None of our tables was there.
    Installed,
    /// Ours were there, but not as planned.
    Repaired(Vec<Drift>),
}

/// Makes the kernel hold `tables`, and none of the names in `ours` that `tables` leaves out.
pub fn apply(tables: &[Table], ours: &[&str]) -> Result<Applied, NftError> {
    let found = Found::read()?;
    let drift = compare(tables, ours, &found);
    if drift.is_empty() {
        return Ok(Applied::Unchanged);
    }
    let mut transaction = Transaction::default();
    for name in extra_tables(tables, ours, &found) {
        transaction.delete_table(name);
    }
    for table in tables {
        let shape_differs = drift
            .iter()
            .any(|drift| drift.needs_new_table() && drift.table() == table.name);
        transaction.put_table(table, if shape_differs { Put::Anew } else { Put::Over });
    }
    transaction.commit()?;
    let missing = drift
        .iter()
        .filter(|drift| matches!(drift, Drift::TableMissing { .. }))
        .count();
    let fresh = missing == tables.len() && missing == drift.len();
    Ok(if fresh {
        Applied::Installed
    } else {
        Applied::Repaired(drift)
    })
}

/// Says how the kernel differs from `tables`; empty means that it doesn't.
pub fn inspect(tables: &[Table], ours: &[&str]) -> Result<Vec<Drift>, NftError> {
    Ok(compare(tables, ours, &Found::read()?))
}

/// Which of these tables exist.
pub fn existing<'a>(names: &[&'a str]) -> Result<Vec<&'a str>, NftError> {
    let found = Found::read()?;
    Ok(extra_tables(&[], names, &found))
}

/// Removes the tables of these names, as far as they exist.
pub fn remove(ours: &[&str]) -> Result<(), NftError> {
    let found = Found::read()?;
    let mut transaction = Transaction::default();
    for name in extra_tables(&[], ours, &found) {
        transaction.delete_table(name);
    }
    transaction.commit()
}

/// Who an address in a set belongs to; stands beside it as its comment.
pub type Members = BTreeMap<IpAddr, String>;

/// Makes a set of a table hold exactly the members of its family.
pub fn sync_set(table: &str, set: Set, members: &Members) -> Result<Changed, NftError> {
    let wanted: BTreeMap<_, _> = members
        .iter()
        .filter(|(ip, _)| Family::of(**ip) == set.family)
        .collect();
    let mut found = read_set(table, set)?;
    if !found
        .iter()
        .eq(wanted.iter().map(|(ip, owner)| (*ip, *owner)))
    {
        // A dump that meets the kernel growing the set's hash table leaves elements out; another one has them.
        found.append(&mut read_set(table, set)?);
    }
    let stale: Vec<_> = found
        .iter()
        .filter(|(ip, owner)| wanted.get(ip) != Some(owner))
        .collect();
    let missing: Vec<_> = wanted
        .into_iter()
        .filter(|(ip, owner)| found.get(ip) != Some(owner))
        .collect();
    if stale.is_empty() && missing.is_empty() {
        return Ok(Changed::No);
    }
    let mut transaction = Transaction::default();
    for stale in stale.chunks(ELEMENTS_PER_MESSAGE) {
        transaction.delete_elements(table, set, stale);
    }
    for missing in missing.chunks(ELEMENTS_PER_MESSAGE) {
        transaction.add_elements(table, set, missing);
    }
    transaction.commit()?;
    Ok(Changed::Yes)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    Yes,
    No,
}

impl Drift {
    fn table(&self) -> &str {
        match self {
            Self::TableMissing { table }
            | Self::TableExtra { table }
            | Self::TableDormant { table }
            | Self::SetDiffers { table, .. }
            | Self::SetExtra { table, .. }
            | Self::SetMissing { table, .. }
            | Self::ChainMissing { table, .. }
            | Self::ChainExtra { table, .. }
            | Self::ChainDiffers { table, .. }
            | Self::RuleCount { table, .. }
            | Self::RuleDiffers { table, .. } => table,
        }
    }

    /// Rules are refilled in place; what is of another shape is only got rid of with its table.
    fn needs_new_table(&self) -> bool {
        matches!(
            self,
            Self::ChainExtra { .. }
                | Self::ChainDiffers { .. }
                | Self::SetDiffers { .. }
                | Self::SetExtra { .. }
                | Self::TableDormant { .. }
        )
    }
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TableMissing { table } => write!(f, "table {table} is missing"),
            Self::TableExtra { table } => write!(f, "table {table} should not be there"),
            Self::TableDormant { table } => write!(f, "table {table} is dormant"),
            Self::SetDiffers { table, set } => {
                write!(f, "set {set} of table {table} is of another kind")
            }
            Self::SetExtra { table, set } => {
                write!(f, "set {set} of table {table} should not be there")
            }
            Self::SetMissing { table, set } => write!(f, "set {set} of table {table} is missing"),
            Self::ChainMissing { table, chain } => {
                write!(f, "chain {chain} of table {table} is missing")
            }
            Self::ChainExtra { table, chain } => {
                write!(f, "chain {chain} of table {table} should not be there")
            }
            Self::ChainDiffers { table, chain } => {
                write!(
                    f,
                    "chain {chain} of table {table} has another hook or policy"
                )
            }
            Self::RuleCount {
                table,
                chain,
                wanted,
                found,
            } => {
                write!(
                    f,
                    "chain {chain} of table {table} has {found} rules instead of {wanted}"
                )
            }
            Self::RuleDiffers { table, chain, rule } => {
                write!(
                    f,
                    "rule {rule} in chain {chain} of table {table} is another one"
                )
            }
        }
    }
}

fn extra_tables<'a>(tables: &[Table], ours: &[&'a str], found: &Found) -> Vec<&'a str> {
    let wanted = |name: &str| tables.iter().any(|table| table.name == name);
    ours.iter()
        .copied()
        .filter(|&name| !wanted(name) && found.tables.contains_key(name))
        .collect()
}

fn compare(tables: &[Table], ours: &[&str], found: &Found) -> Vec<Drift> {
    let mut drift: Vec<_> = extra_tables(tables, ours, found)
        .into_iter()
        .map(|table| Drift::TableExtra {
            table: table.to_owned(),
        })
        .collect();
    for table in tables {
        match found.tables.get(table.name) {
            Some(found) => compare_table(table, found, &mut drift),
            None => drift.push(Drift::TableMissing {
                table: table.name.to_owned(),
            }),
        }
    }
    drift
}

fn compare_table(table: &Table, found: &FoundTable, drift: &mut Vec<Drift>) {
    let name = || table.name.to_owned();
    if found.dormant {
        drift.push(Drift::TableDormant { table: name() });
    }
    for wanted in &table.sets {
        let (table, set) = (name(), wanted.name.to_owned());
        match found.sets.get(wanted.name) {
            Some(found) if *found == FoundSet::from(*wanted) => {}
            Some(_) => drift.push(Drift::SetDiffers { table, set }),
            None => drift.push(Drift::SetMissing { table, set }),
        }
    }
    for set in found.sets.keys() {
        // The kernel's own names: sets that are part of a rule.
        let unnamed = set.starts_with("__");
        if !unnamed && !table.sets.iter().any(|wanted| wanted.name == set) {
            let (table, set) = (name(), set.clone());
            drift.push(Drift::SetExtra { table, set });
        }
    }
    for chain in found.chains.keys() {
        if !table.chains.iter().any(|wanted| wanted.name == chain) {
            drift.push(Drift::ChainExtra {
                table: name(),
                chain: chain.clone(),
            });
        }
    }
    for wanted in &table.chains {
        let chain = || wanted.name.to_owned();
        let Some(found) = found.chains.get(wanted.name) else {
            drift.push(Drift::ChainMissing {
                table: name(),
                chain: chain(),
            });
            continue;
        };
        if found.base != wanted.base.map(FoundBase::from) {
            drift.push(Drift::ChainDiffers {
                table: name(),
                chain: chain(),
            });
        }
        if found.rules.len() != wanted.rules.len() {
            let (wanted, found) = (wanted.rules.len(), found.rules.len());
            drift.push(Drift::RuleCount {
                table: name(),
                chain: chain(),
                wanted,
                found,
            });
            continue;
        }
        for (index, (rule, dumped)) in wanted.rules.iter().zip(&found.rules).enumerate() {
            if !same(&lower(rule), dumped) {
                drift.push(Drift::RuleDiffers {
                    table: name(),
                    chain: chain(),
                    rule: index + 1,
                });
            }
        }
    }
}

fn hook_number(hook: Hook) -> u32 {
    match hook {
        Hook::Prerouting => libc::NF_INET_PRE_ROUTING as u32,
        Hook::Output => libc::NF_INET_LOCAL_OUT as u32,
        Hook::Postrouting => libc::NF_INET_POST_ROUTING as u32,
    }
}

fn inet() -> Nfgenmsg {
    Nfgenmsg {
        nfgen_family: libc::NFPROTO_INET as u8,
        ..Nfgenmsg::default()
    }
}

/// User data is a list of (type, length, value) in bytes, by convention of the nft tool; type 0 is a comment.
fn comment(owner: &str) -> Vec<u8> {
    let owner = owner.as_bytes();
    let owner = &owner[..owner.len().min(127)];
    let mut data = vec![0, owner.len() as u8 + 1];
    data.extend(owner);
    data.push(0);
    data
}

fn comment_in(mut data: &[u8]) -> String {
    while let [kind, length, rest @ ..] = data {
        let Some((value, rest)) = rest.split_at_checked(usize::from(*length)) else {
            break;
        };
        if *kind == 0 {
            return String::from_utf8_lossy(value.strip_suffix(&[0]).unwrap_or(value)).into_owned();
        }
        data = rest;
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_of_elements_survive_the_trip() {
        for owner in ["", "0d9e1a9c-6c8e-4d5f-9d1b-2f0a4f6b7c8d"] {
            assert_eq!(comment_in(&comment(owner)), owner);
        }
        // Another kind of user data in front, and one that is cut off.
        assert_eq!(comment_in(&[1, 1, 9, 0, 2, b'x', 0]), "x");
        assert_eq!(comment_in(&[0, 200, b'x']), "");
    }
}
