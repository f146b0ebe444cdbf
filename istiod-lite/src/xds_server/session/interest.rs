// SPDX-License-Identifier: Apache-2.0
//! What a client wants of a type: everything, or names that it has asked for one by one.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::news::News;
use crate::catalogue::{Entry, Table, TooFarBehind};

/// Stands for all resources of a type.
pub(super) const WILDCARD: &str = "*";

/// What a client wants of a type.
#[derive(Debug, Default)]
pub(super) struct Interest {
    pub(super) everything: Everything,
    pub(super) names: BTreeSet<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Everything {
    Wanted,
    #[default]
    NotWanted,
}

/// What has to be answered, whether anything changed or not.
#[derive(Debug, Default)]
pub(super) enum Owed {
    /// Nothing.
    #[default]
    Nothing,
    /// All that it is interested in, but for what it holds already.
    Everything(BTreeMap<String, String>),
    /// These names, as they are now.
    Names(BTreeSet<String>),
}

impl Interest {
    /// A first request that subscribes to nothing in particular wants everything,
    /// unless it says in the same breath that it does not.
    pub(super) fn first(
        subscribe: Vec<String>,
        unsubscribe: &[String],
        held: &BTreeMap<String, String>,
    ) -> Self {
        let asks = subscribe.is_empty() || subscribe.iter().any(|name| name == WILDCARD);
        let declines = unsubscribe.iter().any(|name| name == WILDCARD);
        let mut names: BTreeSet<String> = subscribe
            .into_iter()
            .filter(|name| name != WILDCARD)
            .collect();
        let everything = if asks && !declines {
            Everything::Wanted
        } else {
            Everything::NotWanted
        };
        if everything == Everything::NotWanted {
            names.extend(held.keys().cloned());
        }
        Self { everything, names }
    }

    pub(super) fn change(&mut self, subscribe: Vec<String>, unsubscribe: &[String]) -> Owed {
        for name in unsubscribe {
            self.names.remove(name);
        }
        if unsubscribe.iter().any(|name| name == WILDCARD) {
            self.everything = Everything::NotWanted;
        }
        let mut wanted = BTreeSet::new();
        let mut newly_everything = false;
        for name in subscribe {
            if name == WILDCARD {
                newly_everything = self.everything == Everything::NotWanted;
                self.everything = Everything::Wanted;
            } else {
                self.names.insert(name.clone());
                wanted.insert(name);
            }
        }
        if newly_everything {
            Owed::Everything(BTreeMap::new())
        } else {
            Owed::Names(wanted)
        }
    }

    pub(super) fn covers(&self, name: &str) -> bool {
        self.everything == Everything::Wanted || self.names.contains(name)
    }

    pub(super) fn all<'a>(
        &self,
        table: &'a Table,
        mut held: BTreeMap<String, String>,
        news: &mut News<'a>,
    ) {
        let mut unless_held = |name: &'a Arc<str>, entry: &'a Entry| {
            if held
                .remove(&**name)
                .is_none_or(|version| version != entry.version.to_string())
            {
                news.updated.push((name, entry));
            }
        };
        if self.everything == Everything::Wanted {
            table
                .iter()
                .for_each(|(name, entry)| unless_held(name, entry));
        } else {
            let named = self.names.iter().filter_map(|name| table.get(name));
            named.for_each(|(name, entry)| unless_held(name, entry));
        }
        let unknown = |name: &&String| table.get(name).is_none() && !held.contains_key(*name);
        news.removed
            .extend(self.names.iter().filter(unknown).cloned());
        news.removed.extend(held.into_keys());
    }

    pub(super) fn changed<'a>(
        &self,
        table: &'a Table,
        seen: u64,
        news: &mut News<'a>,
    ) -> Result<(), TooFarBehind> {
        let missed = table.since(seen)?;
        news.updated.extend(
            missed
                .updated
                .into_iter()
                .filter(|(name, _)| self.covers(name)),
        );
        let removed = missed.removed.into_iter().filter(|name| self.covers(name));
        news.removed.extend(removed.map(ToString::to_string));
        Ok(())
    }
}
