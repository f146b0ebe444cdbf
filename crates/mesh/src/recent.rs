// SPDX-License-Identifier: Apache-2.0
//! A bounded memory of what was decided on lately: each kind of access once, with how often it came in each of the last
//! minutes. Policies that are tried out are judged by it.
//!
//! What is kept lies in small sets, found by a hash: to note one costs the same whatever is held, and allocates only for a
//! kind that is not there. Where a set is full, the kind that was not seen for the longest gives way, and how many accesses
//! were forgotten with it is told.

use std::hash::{BuildHasher as _, Hash};

use foldhash::quality::RandomState;

/// How far back it goes, in minutes.
pub const MINUTES: u64 = 10;
const SLOTS: usize = MINUTES as usize;

const SETS: usize = 64;
/// Kinds in one set.
const WAYS: usize = 4;

/// What was seen lately, of kinds `K`.
#[derive(Debug)]
pub struct Recent<K> {
    sets: Box<[Vec<Entry<K>>]>,
    hasher: RandomState,
    /// In each minute, what was forgotten before its time.
    forgotten: Counts,
}

#[derive(Debug)]
struct Entry<K> {
    hash: u64,
    kind: K,
    counts: Counts,
}

/// How often something came, minute by minute.
#[derive(Debug, Default)]
struct Counts {
    slots: [u32; SLOTS],
    /// The minute of the latest.
    latest: u64,
}

impl<K> Recent<K> {
    /// Nothing yet.
    pub fn new() -> Self {
        Self {
            sets: (0..SETS).map(|_| Vec::new()).collect(),
            // Seeded anew in each process; whoever finds collisions all the same only crowds a set of bounded size.
            hasher: RandomState::default(),
            forgotten: Counts::default(),
        }
    }

    /// Notes one access in a minute, which never goes back. `asked` hashes as its kind does; `is` finds that, `kind` makes it.
    pub fn note(
        &mut self,
        minute: u64,
        asked: impl Hash,
        is: impl Fn(&K) -> bool,
        kind: impl FnOnce() -> K,
    ) {
        let hash = self.hasher.hash_one(asked);
        let at = usize::try_from(hash % SETS as u64).unwrap_or_default();
        let set = &mut self.sets[at];
        if let Some(known) = set
            .iter_mut()
            .find(|known| known.hash == hash && is(&known.kind))
        {
            return known.counts.add(minute, 1);
        }
        let mut counts = Counts::default();
        counts.add(minute, 1);
        let kind = kind();
        let new = Entry { hash, kind, counts };
        if set.len() < WAYS {
            return set.push(new);
        }
        let oldest = set.iter_mut().min_by_key(|known| known.counts.latest);
        if let Some(oldest) = oldest {
            let lost = oldest.counts.lately(minute);
            if lost > 0 {
                self.forgotten.add(minute, lost);
            }
            *oldest = new;
        }
    }

    /// What was seen up to a minute, with how often.
    pub fn lately(&self, minute: u64) -> impl Iterator<Item = (&K, u32)> {
        self.sets
            .iter()
            .flatten()
            .map(move |known| (&known.kind, known.counts.lately(minute)))
            .filter(|(_, count)| *count > 0)
    }

    /// How many of the accesses of that time were forgotten.
    pub fn forgotten(&self, minute: u64) -> u32 {
        self.forgotten.lately(minute)
    }
}

impl<K> Default for Recent<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl Counts {
    fn slot(minute: u64) -> usize {
        usize::try_from(minute % MINUTES).unwrap_or_default()
    }

    fn add(&mut self, minute: u64, more: u32) {
        let passed = minute.saturating_sub(self.latest).min(MINUTES);
        for gone in 0..passed {
            self.slots[Self::slot(minute - gone)] = 0;
        }
        self.latest = self.latest.max(minute);
        let slot = &mut self.slots[Self::slot(minute)];
        *slot = slot.saturating_add(more);
    }

    /// In the [`MINUTES`] that end with this one.
    fn lately(&self, minute: u64) -> u32 {
        let oldest = minute.saturating_sub(MINUTES - 1);
        let held = self.latest.saturating_sub(MINUTES - 1)..=self.latest;
        held.filter(|at| (oldest..=minute).contains(at))
            .map(|at| self.slots[Self::slot(at)])
            .fold(0, u32::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn note(recent: &mut Recent<u32>, minute: u64, kind: u32) {
        recent.note(minute, kind, |known| *known == kind, || kind);
    }

    fn seen(recent: &Recent<u32>, minute: u64) -> BTreeMap<u32, u32> {
        recent.lately(minute).map(|(kind, n)| (*kind, n)).collect()
    }

    #[test]
    fn what_is_old_counts_no_longer() {
        let mut recent = Recent::new();
        note(&mut recent, 100, 1);
        note(&mut recent, 100, 1);
        note(&mut recent, 105, 1);
        note(&mut recent, 105, 2);
        assert_eq!(seen(&recent, 105), [(1, 3), (2, 1)].into());
        assert_eq!(seen(&recent, 109), [(1, 3), (2, 1)].into());
        assert_eq!(seen(&recent, 110), [(1, 1), (2, 1)].into());
        assert_eq!(seen(&recent, 115), BTreeMap::new());
        note(&mut recent, 200, 2);
        assert_eq!(seen(&recent, 200), [(2, 1)].into());
        assert_eq!(recent.forgotten(200), 0);
    }

    #[test]
    fn it_holds_so_many_kinds_and_tells_what_it_has_forgotten() {
        let mut recent = Recent::new();
        let kinds = 10_000;
        for kind in 0..kinds {
            note(&mut recent, 7, kind);
        }
        let held = seen(&recent, 7).len();
        assert_eq!(held, SETS * WAYS);
        assert_eq!(
            u64::from(recent.forgotten(7)),
            u64::from(kinds) - held as u64
        );
        assert_eq!(recent.forgotten(17), 0);
    }

    proptest! {
        #[test]
        fn few_kinds_are_counted_exactly(
            steps in prop::collection::vec((0u64..4, 0u32..4), 0..200),
        ) {
            let mut recent = Recent::new();
            let mut all = Vec::new();
            let mut minute = 50;
            for (passed, kind) in steps {
                minute += passed;
                note(&mut recent, minute, kind);
                all.push((minute, kind));
            }
            for later in [0, 1, 5, 9, 10] {
                let now = minute + later;
                let mut expected = BTreeMap::new();
                for (at, kind) in &all {
                    if at + MINUTES > now {
                        *expected.entry(*kind).or_insert(0) += 1;
                    }
                }
                prop_assert_eq!(seen(&recent, now), expected);
            }
        }
    }
}
