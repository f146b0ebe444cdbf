// SPDX-License-Identifier: Apache-2.0
//! Who holds which certificate, as far as it was signed by this process.
//!
//! In: each certificate that is handed out. Out: the newest of everybody who may still use one. What is counted is
//! bounded by the pods of the cluster: who could not ask again, because its pod is gone, counts no more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use parking_lot::Mutex;
use spiffe::SpiffeId;

use super::rotation::{Anchor, Holder};
use crate::authenticate::Caller;

/// The certificates that are in use.
#[derive(Debug, Default)]
pub(super) struct Ledger(Mutex<BTreeMap<(String, SpiffeId), Entry>>);

#[derive(Debug)]
struct Entry {
    caller: Caller,
    holder: Holder,
}

/// What somebody got.
pub(super) struct Issue {
    pub(super) roots: Arc<BTreeSet<Anchor>>,
    pub(super) under: Anchor,
    pub(super) until: SystemTime,
}

impl Ledger {
    pub(super) fn note(&self, caller: &Caller, identity: &SpiffeId, issue: Issue, now: Instant) {
        let Issue {
            roots,
            under,
            until,
        } = issue;
        let mut entries = self.0.lock();
        let key = (caller.pod.uid.clone(), identity.clone());
        // Who had none before trusts nobody until this one has arrived.
        let changed = entries
            .get(&key)
            .and_then(|before| match before.holder.roots == roots {
                true => before.holder.changed,
                false => Some(now),
            });
        let holder = Holder {
            identity: identity.clone(),
            caller: caller.to_string().into(),
            roots,
            under,
            until,
            changed,
        };
        let caller = caller.clone();
        entries.insert(key, Entry { caller, holder });
    }

    /// As if the time had passed that an answer may be under way.
    #[cfg(test)]
    pub(super) fn settle(&self) {
        for entry in self.0.lock().values_mut() {
            entry.holder.changed = None;
        }
    }

    /// Everybody whose certificate is still valid and who could ask for another one.
    pub(super) fn holders(
        &self,
        now: SystemTime,
        mut may_ask: impl FnMut(&Caller, &SpiffeId) -> bool,
    ) -> Vec<Holder> {
        let mut entries = self.0.lock();
        entries.retain(|_, Entry { caller, holder }| {
            holder.until > now && may_ask(caller, &holder.identity)
        });
        entries.values().map(|entry| entry.holder.clone()).collect()
    }
}
