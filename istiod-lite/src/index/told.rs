// SPDX-License-Identifier: Apache-2.0
//! What an application of events comes to, name by name.
//!
//! A name may pass from one subject to another, as a host does between two
//! ServiceEntries: whoever had it takes it back, whoever has it now tells it. What
//! remains of the two is the difference, if there is one.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;

use crate::catalogue::{Change, ResourceType, Version};

#[derive(Debug, Default)]
pub(super) struct Told {
    updates: Vec<(ResourceType, Arc<str>, Bytes)>,
    removals: HashMap<(ResourceType, Arc<str>), Version>,
}

impl Told {
    pub(super) fn update(&mut self, of: ResourceType, name: Arc<str>, body: Bytes) {
        self.updates.push((of, name, body));
    }

    pub(super) fn removal(&mut self, of: ResourceType, name: Arc<str>, before: Version) {
        self.removals.insert((of, name), before);
    }

    /// Each name once.
    pub(super) fn changes(mut self) -> Vec<Change> {
        let mut changes = Vec::with_capacity(self.updates.len() + self.removals.len());
        for (of, name, body) in self.updates {
            let passed = self.removals.remove(&(of, name.clone()));
            if passed != Some(Version::of(&body)) {
                changes.push(Change {
                    of,
                    name,
                    body: Some(body),
                });
            }
        }
        let mut gone: Vec<_> = self.removals.into_keys().collect();
        gone.sort_unstable();
        changes.extend(gone.into_iter().map(|(of, name)| Change {
            of,
            name,
            body: None,
        }));
        changes
    }
}
