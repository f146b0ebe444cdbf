// SPDX-License-Identifier: Apache-2.0
//! What a client is told of that asks for workloads and services by key.
//!
//! It is told of all that its keys stand for, now and whenever that changes, and of the
//! workloads of its own node. A key that stands for nothing is answered as removed, and
//! kept: once it stands for something, the client hears of it. What no key stands for any
//! longer, since the client has dropped some, is taken back.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::News;
use crate::catalogue::{
    Entry, Table, TooFarBehind,
    lookup::{Facet, Lookup, parse_address},
};

/// The names that a client was told of.
#[derive(Debug, Default)]
pub(super) struct Told(BTreeSet<Arc<str>>);

/// What is known, and what the client wants of it.
#[derive(Clone, Copy)]
pub(super) struct Demand<'a, 'k> {
    pub(super) table: &'a Table,
    pub(super) lookup: &'a Lookup,
    pub(super) keys: &'k BTreeSet<String>,
    pub(super) node: Option<&'k str>,
}

impl<'a> Demand<'a, '_> {
    /// All that the client is to know.
    fn covered(self) -> BTreeSet<&'a Arc<str>> {
        let local = self
            .node
            .into_iter()
            .flat_map(|node| self.lookup.on_node(node));
        let asked = self.keys.iter().flat_map(|key| self.lookup.resolve(key));
        local.chain(asked).collect()
    }

    /// Tells of a resource, and of the keys that stand for it.
    fn tell(self, name: &'a Arc<str>, entry: &'a Entry, news: &mut News<'a>) {
        news.updated.push((name, entry));
        if let Some(facets) = self.lookup.facets(name) {
            let aliases = news.aliases.entry(name.clone()).or_default();
            aliases.extend(facets.addresses.iter().map(ToString::to_string));
        }
    }

    /// Whether the client is to know of a resource, in view of what it was told.
    fn covers(self, name: &str, told: &Told) -> bool {
        if told.0.contains(name) || self.keys.contains(name) {
            return true;
        }
        let Some(facets) = self.lookup.facets(name) else {
            return false;
        };
        let asked = |key: &Arc<str>| self.keys.contains(&**key);
        facets.addresses.iter().any(asked)
            || match &facets.kind {
                Facet::Workload { services, node } => {
                    services.iter().any(|service| told.0.contains(service))
                        || self.node.is_some_and(|own| *own == **node)
                }
                Facet::Service { ranges } => {
                    !ranges.is_empty()
                        && self.keys.iter().any(|key| {
                            parse_address(key).is_some_and(|(network, ip)| {
                                ranges
                                    .iter()
                                    .any(|(of, range)| **of == *network && range.contains(&ip))
                            })
                        })
                }
            }
    }
}

impl Told {
    /// A client that has been told of everything.
    pub(super) fn everything(table: &Table) -> Self {
        Self(table.iter().map(|(name, _)| name.clone()).collect())
    }

    /// The first answer: all that it is to know, but for what it holds already.
    pub(super) fn all<'a>(
        &mut self,
        demand: Demand<'a, '_>,
        mut held: BTreeMap<String, String>,
        news: &mut News<'a>,
    ) {
        let covered = demand.covered();
        self.0 = covered.iter().map(|name| (*name).clone()).collect();
        for name in covered {
            let Some((name, entry)) = demand.table.get(name) else {
                continue;
            };
            let version = held.remove(&**name);
            if version.is_none_or(|version| version != entry.version.to_string()) {
                demand.tell(name, entry, news);
            }
        }
        // What it holds is among its keys: what of that is gone stands for nothing.
        for key in demand.keys {
            self.answer(demand, key, news);
        }
    }

    /// The answer to keys that were asked for just now.
    pub(super) fn asked<'a>(
        &mut self,
        demand: Demand<'a, '_>,
        keys: &BTreeSet<String>,
        news: &mut News<'a>,
    ) {
        for key in keys {
            let found = demand.lookup.resolve(key);
            let entries = found.iter().filter_map(|name| demand.table.get(name));
            for (name, entry) in entries {
                self.0.insert(name.clone());
                demand.tell(name, entry, news);
            }
            self.answer(demand, key, news);
        }
    }

    /// What has changed since the client was told.
    pub(super) fn changed<'a>(
        &mut self,
        demand: Demand<'a, '_>,
        seen: u64,
        news: &mut News<'a>,
    ) -> Result<(), TooFarBehind> {
        let missed = demand.table.since(seen)?;
        for name in missed.removed {
            if self.0.remove(name) {
                news.removed.push(name.to_string());
            }
        }
        for (name, entry) in missed.updated {
            if !demand.covers(name, self) {
                continue;
            }
            demand.tell(name, entry, news);
            if self.0.insert(name.clone()) {
                // A service that is new to the client comes with what backs it.
                for member in demand.lookup.members(name) {
                    if let Some((member, entry)) = demand.table.get(member)
                        && self.0.insert(member.clone())
                    {
                        demand.tell(member, entry, news);
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes back what none of the client's keys stands for any longer.
    pub(super) fn forget(&mut self, demand: Demand<'_, '_>, news: &mut News<'_>) {
        let covered = demand.covered();
        self.0.retain(|name| {
            let keep = covered.contains(name);
            if !keep {
                news.removed.push(name.to_string());
            }
            keep
        });
    }

    /// Says of a key that it stands for nothing, or that it stands for services in whose ranges it is.
    fn answer(&self, demand: Demand<'_, '_>, key: &str, news: &mut News<'_>) {
        let found = demand.lookup.resolve(key);
        if found.is_empty() {
            news.removed.push(key.to_owned());
        }
        let is_service = |name: &&&Arc<str>| {
            let facets = demand.lookup.facets(name);
            facets.is_some_and(|facets| matches!(facets.kind, Facet::Service { .. }))
        };
        for name in found
            .iter()
            .filter(is_service)
            .filter(|name| ****name != *key)
        {
            let aliases = news.aliases.entry((*name).clone()).or_default();
            aliases.insert(key.to_owned());
        }
    }
}
