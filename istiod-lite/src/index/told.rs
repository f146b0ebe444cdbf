// SPDX-License-Identifier: Apache-2.0
//! What an application of events comes to, name by name.
//!
//! A name may pass from one subject to another, as a host does between two
//! ServiceEntries: whoever had it takes it back, whoever has it now tells it. What
//! remains of the two is the difference, if there is one.

use std::collections::HashMap;

use bytes::Bytes;

use crate::catalogue::{Change, Place, Version};

#[derive(Debug, Default)]
pub(super) struct Told {
    updates: Vec<(Place, Bytes)>,
    removals: HashMap<Place, Version>,
}

impl Told {
    pub(super) fn update(&mut self, place: Place, body: Bytes) {
        self.updates.push((place, body));
    }

    pub(super) fn removal(&mut self, place: Place, before: Version) {
        self.removals.insert(place, before);
    }

    /// Each name once.
    pub(super) fn changes(mut self) -> Vec<Change> {
        let mut changes = Vec::with_capacity(self.updates.len() + self.removals.len());
        for (place, body) in self.updates {
            let passed = self.removals.remove(&place);
            if passed != Some(Version::of(&body)) {
                changes.push(Change {
                    place,
                    body: Some(body),
                });
            }
        }
        let mut gone: Vec<_> = self.removals.into_keys().collect();
        gone.sort_unstable();
        changes.extend(gone.into_iter().map(|place| Change { place, body: None }));
        changes
    }
}
