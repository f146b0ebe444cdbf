// SPDX-License-Identifier: Apache-2.0
//! Labels and selectors, looked up from either side without walking all of the other.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use crate::facts::Labels;

type Pairs = HashMap<String, HashMap<String, BTreeSet<Arc<str>>>>;

/// Names by each of their labels: finds those that a selector may choose.
#[derive(Debug, Default)]
pub(super) struct ByLabels(Pairs);

/// Names by one label of their selector: finds those that may choose given labels.
/// Selectors without labels are not kept.
#[derive(Debug, Default)]
pub(super) struct BySelector(Pairs);

impl ByLabels {
    pub(super) fn insert(&mut self, name: &Arc<str>, labels: &Labels) {
        for (key, value) in labels {
            insert(&mut self.0, key, value, name);
        }
    }

    pub(super) fn remove(&mut self, name: &str, labels: &Labels) {
        for (key, value) in labels {
            remove(&mut self.0, key, value, name);
        }
    }

    /// The fewest names that hold all that the selector, which is not empty, may choose.
    pub(super) fn candidates(&self, selector: &Labels) -> impl Iterator<Item = &Arc<str>> {
        let sets = selector
            .iter()
            .map(|(key, value)| self.0.get(key).and_then(|by| by.get(value)));
        let smallest = sets
            .min_by_key(|set| set.map_or(0, BTreeSet::len))
            .flatten();
        smallest.into_iter().flatten()
    }
}

impl BySelector {
    pub(super) fn insert(&mut self, name: &Arc<str>, selector: &Labels) {
        if let Some((key, value)) = selector.first_key_value() {
            insert(&mut self.0, key, value, name);
        }
    }

    pub(super) fn remove(&mut self, name: &str, selector: &Labels) {
        if let Some((key, value)) = selector.first_key_value() {
            remove(&mut self.0, key, value, name);
        }
    }

    /// Names whose selector may choose these labels.
    pub(super) fn candidates<'a>(
        &'a self,
        labels: &'a Labels,
    ) -> impl Iterator<Item = &'a Arc<str>> {
        labels
            .iter()
            .filter_map(|(key, value)| self.0.get(key)?.get(value))
            .flatten()
    }
}

fn insert(pairs: &mut Pairs, key: &str, value: &str, name: &Arc<str>) {
    let values = pairs.entry(key.to_owned()).or_default();
    values
        .entry(value.to_owned())
        .or_default()
        .insert(name.clone());
}

fn remove(pairs: &mut Pairs, key: &str, value: &str, name: &str) {
    let Some(values) = pairs.get_mut(key) else {
        return;
    };
    if let Some(names) = values.get_mut(value) {
        names.remove(name);
        if names.is_empty() {
            values.remove(value);
        }
    }
    if values.is_empty() {
        pairs.remove(key);
    }
}
