// SPDX-License-Identifier: Apache-2.0
//! What several replicas tell each other of the certificates that each has signed, so that none takes a step of a change
//! of roots for which somebody elsewhere is not ready. Pure.
//!
//! In: what stands where all of them write, and when it was read. Out: what of it counts by now. What a replica has signed
//! counts until it expires, also once the replica is gone; what it does itself counts while it is seen to write.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use super::rotation::{Anchor, Holder};

/// How long a replica that does not write is taken to run still.
const SILENCE: Duration = Duration::from_secs(90);
/// How long what was read holds while nothing can be read.
const FRESH: Duration = Duration::from_secs(30);

/// What one replica tells. Roots are named by [`Anchor::id`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Record {
    /// The root that its certificates lead to from now on.
    signs: String,
    /// The roots that come with them from now on.
    roots: BTreeSet<String>,
    certificates: Vec<Group>,
    /// Another one whenever it writes, which shows that it lives.
    pub(crate) beat: u64,
}

/// Certificates in use that are alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    /// The root that they lead to.
    under: String,
    /// The roots that came with them; none while they may not have arrived.
    roots: BTreeSet<String>,
    count: usize,
    /// When the last of them expires, in seconds since 1970.
    until: u64,
}

impl Record {
    pub(super) fn new(
        signs: &Anchor,
        roots: &BTreeSet<Anchor>,
        holders: &[Holder],
        now: Instant,
    ) -> Self {
        let ids = |roots: &BTreeSet<Anchor>| roots.iter().map(Anchor::id).collect();
        let mut groups: BTreeMap<(String, BTreeSet<String>), (usize, u64)> = BTreeMap::new();
        for holder in holders {
            let roots = if holder.is_settled(now) {
                ids(&holder.roots)
            } else {
                BTreeSet::new()
            };
            let group = groups.entry((holder.under.id(), roots)).or_default();
            group.0 += 1;
            group.1 = group.1.max(seconds(holder.until));
        }
        let group = |((under, roots), (count, until))| Group {
            under,
            roots,
            count,
            until,
        };
        Self {
            signs: signs.id(),
            roots: ids(roots),
            certificates: groups.into_iter().map(group).collect(),
            beat: 0,
        }
    }

    /// Whether it says the same, however often it was written.
    pub fn says(&self, other: &Self) -> bool {
        let Self {
            signs,
            roots,
            certificates,
            beat: _,
        } = self;
        (signs, roots, certificates) == (&other.signs, &other.roots, &other.certificates)
    }
}

/// A replica as another sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Other {
    name: String,
    /// What it does itself, while it is taken to run.
    runs: bool,
    record: Record,
}

/// Who is not ready for a step: how many certificates, or replicas, and who they are in words.
pub(super) type Behind = (usize, String);

impl Other {
    /// Who of this replica does not trust a root.
    pub(super) fn distrust(&self, root: &Anchor) -> Vec<Behind> {
        let root = root.id();
        self.behind(!self.record.roots.contains(&root), |group| {
            !group.roots.contains(&root)
        })
    }

    /// What of this replica is signed under a root.
    pub(super) fn under(&self, root: &Anchor) -> Vec<Behind> {
        let root = root.id();
        let signs = &self.record.signs;
        // Of one that says nothing anything may be.
        self.behind(signs.is_empty() || *signs == root, |group| {
            group.under == root
        })
    }

    fn behind(&self, itself: bool, group: impl Fn(&Group) -> bool) -> Vec<Behind> {
        let name = &self.name;
        let groups = self.record.certificates.iter();
        let count: usize = groups.filter(|one| group(one)).map(|one| one.count).sum();
        let certificates =
            (count > 0).then(|| (count, format!("{count} certified by replica {name}")));
        let itself = (self.runs && itself).then(|| (1, format!("replica {name} itself")));
        certificates.into_iter().chain(itself).collect()
    }

    /// How many of its certificates count.
    pub(super) fn certificates(&self) -> usize {
        let groups = self.record.certificates.iter();
        groups.map(|group| group.count).sum()
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

/// What is known of other replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Others {
    Known(Vec<Other>),
    /// There may be some, and what they tell can't be read.
    Unknown,
}

/// What was read of other replicas, and when.
#[derive(Debug, Default)]
pub(super) struct Heard {
    records: BTreeMap<String, (Record, Instant)>,
    at: Option<Instant>,
    /// Whether there is nobody to hear of.
    alone: bool,
}

impl Heard {
    /// Where there is but one replica.
    pub(super) fn of_nobody() -> Self {
        Self {
            alone: true,
            ..Self::default()
        }
    }

    /// Takes note of what all others have written.
    pub(super) fn hear(&mut self, records: BTreeMap<String, Record>, now: Instant) {
        let before = std::mem::take(&mut self.records);
        let dated = records.into_iter().map(|(name, record)| {
            let since = match before.get(&name) {
                Some((known, since)) if *known == record => *since,
                _ => now,
            };
            (name, (record, since))
        });
        self.records = dated.collect();
        self.at = Some(now);
    }

    /// What of it counts.
    pub(super) fn others(&self, clock: SystemTime, now: Instant) -> Others {
        if self.alone {
            return Others::Known(Vec::new());
        }
        let fresh = |at: Instant| now.saturating_duration_since(at) <= FRESH;
        if !self.at.is_some_and(fresh) {
            return Others::Unknown;
        }
        let others = self.records.iter().map(|(name, (record, since))| {
            let mut record = record.clone();
            record
                .certificates
                .retain(|group| group.until > seconds(clock));
            Other {
                name: name.clone(),
                runs: now.saturating_duration_since(*since) <= SILENCE,
                record,
            }
        });
        Others::Known(others.collect())
    }

    /// Those of which nothing counts any more.
    pub(super) fn obsolete(&self, clock: SystemTime, now: Instant) -> Vec<String> {
        let Others::Known(others) = self.others(clock, now) else {
            return Vec::new();
        };
        let gone = others
            .into_iter()
            .filter(|other| !other.runs && other.record.certificates.is_empty());
        gone.map(|other| other.name).collect()
    }
}

fn seconds(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(signs: &str, roots: &[&str], groups: &[(&str, &[&str], u64)]) -> Record {
        let set = |names: &[&str]| names.iter().map(|name| Anchor::named(name).id()).collect();
        let group = |(under, roots, until): &(&str, &[&str], u64)| Group {
            under: Anchor::named(under).id(),
            roots: set(roots),
            count: 3,
            until: *until,
        };
        Record {
            signs: Anchor::named(signs).id(),
            roots: set(roots),
            certificates: groups.iter().map(group).collect(),
            beat: 0,
        }
    }

    fn at(second: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(second)
    }

    /// Who is said to be behind, of what counts at a moment.
    fn behind(others: &Others, of: impl Fn(&Other) -> Vec<Behind>) -> Vec<String> {
        let Others::Known(others) = others else {
            return vec!["unknown".to_owned()];
        };
        others.iter().flat_map(of).map(|(_, words)| words).collect()
    }

    #[test]
    fn what_a_replica_signed_counts_until_it_expires_and_what_it_does_while_it_writes() {
        let (old, new) = (Anchor::named("old"), Anchor::named("new"));
        let start = Instant::now();
        let mut heard = Heard::default();
        assert_eq!(heard.others(at(0), start), Others::Unknown);
        let mut told = record("old", &["old"], &[("old", &["old"], 100)]);
        let records = |told: &Record| BTreeMap::from([("b".to_owned(), told.clone())]);
        heard.hear(records(&told), start);
        let both = ["3 certified by replica b", "replica b itself"];
        let now = heard.others(at(0), start);
        assert_eq!(behind(&now, |other| other.under(&old)), both);
        assert_eq!(behind(&now, |other| other.distrust(&new)), both);
        assert_eq!(behind(&now, |other| other.under(&new)), [""; 0]);
        assert_eq!(behind(&now, |other| other.distrust(&old)), [""; 0]);

        // It goes on to write, and then it is silent.
        let later = |seconds| start + Duration::from_secs(seconds);
        told.beat = 1;
        heard.hear(records(&told), later(60));
        heard.hear(records(&told), later(140));
        assert_eq!(
            behind(&heard.others(at(0), later(140)), |other| other.under(&old)),
            both
        );
        heard.hear(records(&told), later(151));
        let silent = heard.others(at(99), later(151));
        assert_eq!(behind(&silent, |other| other.under(&old)), both[..1]);
        assert_eq!(heard.obsolete(at(99), later(151)), [""; 0]);
        let expired = heard.others(at(100), later(151));
        assert_eq!(behind(&expired, |other| other.under(&old)), [""; 0]);
        assert_eq!(heard.obsolete(at(100), later(151)), ["b"]);

        // Nothing can be read for a while: nobody knows.
        assert_eq!(heard.others(at(100), later(182)), Others::Unknown);
        assert_eq!(heard.obsolete(at(100), later(182)), [""; 0]);
    }

    #[test]
    fn who_is_alone_waits_for_nobody() {
        let alone = Heard::of_nobody();
        assert_eq!(
            alone.others(at(0), Instant::now()),
            Others::Known(Vec::new())
        );
    }
}
