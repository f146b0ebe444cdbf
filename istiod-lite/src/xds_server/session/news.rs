// SPDX-License-Identifier: Apache-2.0
//! What is sent of one type: resources that are new to the client, and names that are gone.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use proto::ads::{Resource, ResourceBody};

use crate::catalogue::{Entry, ResourceType, Table, lookup::Lookup};

/// What is sent of one type.
#[derive(Debug, Default)]
pub(super) struct News<'a> {
    pub(super) updated: Vec<(&'a Arc<str>, &'a Entry)>,
    pub(super) removed: Vec<String>,
    /// Other names under which a resource was asked for.
    pub(super) aliases: BTreeMap<Arc<str>, BTreeSet<String>>,
    /// An empty response is due as well: the client waits for it.
    pub(super) must_answer: bool,
}

/// What there is of a type.
#[derive(Clone, Copy)]
pub(super) struct Known<'a, 'n> {
    pub(super) table: &'a Table,
    pub(super) lookup: Option<&'a Lookup>,
    pub(super) node: Option<&'n str>,
}

impl<'a> News<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.updated.is_empty() && self.removed.is_empty()
    }

    /// Each resource once, in order.
    pub(super) fn once_each(&mut self) {
        self.updated.sort_by_key(|(name, _)| *name);
        self.updated.dedup_by(|(a, _), (b, _)| a == b);
    }

    pub(super) fn add_named(&mut self, table: &'a Table, names: BTreeSet<String>) {
        let sent: BTreeSet<&str> = self.updated.iter().map(|(name, _)| &***name).collect();
        let gone: BTreeSet<&str> = self.removed.iter().map(String::as_str).collect();
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for name in names {
            match table.get(&name) {
                Some(_) if sent.contains(name.as_str()) => {}
                Some(entry) => found.push(entry),
                None if gone.contains(name.as_str()) => {}
                None => missing.push(name),
            }
        }
        self.updated.extend(found);
        self.removed.extend(missing);
    }
}

pub(super) fn resource(
    of: ResourceType,
    name: &Arc<str>,
    entry: &Entry,
    aliases: BTreeSet<String>,
) -> Resource {
    Resource {
        aliases: aliases.into_iter().collect(),
        name: name.to_string(),
        version: entry.version.to_string(),
        resource: Some(ResourceBody {
            type_url: of.url().to_owned(),
            value: entry.body.clone(),
        }),
        ..Resource::default()
    }
}
