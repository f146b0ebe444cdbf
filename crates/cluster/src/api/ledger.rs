// SPDX-License-Identifier: Apache-2.0
//! What has been heard of each object and what of that has been told: reports of followers in, batches out. Pure.
//!
//! Nothing is told before all kinds have been heard of once, so that the first batch is the whole state. An object whose
//! present form can't be read keeps its last good one; only the server's word takes an object away.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use crate::object::{Kind, ObjectKey};
use crate::packed::{Fingerprint, Packed};
use crate::parse::Finding;
use crate::problem::{self, Problem, Severity};
use crate::source::{Batch, Events};

/// What a follower says about its kind.
#[derive(Debug)]
pub(crate) enum Report {
    /// What follows, up to `Listed`, are all objects that there are.
    Listing,
    Listed,
    Applied(ObjectKey, Packed),
    /// An object that can't be read as it is.
    Broken(Box<Finding>),
    Gone(ObjectKey),
    /// How it stands with following the kind; none when all is well.
    Standing(Option<(Severity, String)>),
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    shelves: BTreeMap<Kind, Shelf>,
    /// What the readers have yet to hear; none where the object is gone.
    news: BTreeMap<ObjectKey, Option<Packed>>,
    broken: BTreeMap<ObjectKey, Problem>,
    standings: BTreeMap<Kind, Problem>,
    told_problems: Option<Vec<Problem>>,
    /// Problems may have changed.
    stirred: bool,
}

/// All objects of a kind.
#[derive(Debug, Default)]
struct Shelf {
    objects: HashMap<ObjectKey, Known>,
    /// Counts the listings that began.
    listing: u32,
    heard_of: bool,
}

#[derive(Debug)]
struct Known {
    /// Of the last form that could be read. A fingerprint, since the readers keep what they need of the object.
    good: Option<Fingerprint>,
    /// The readers know of it.
    told: bool,
    /// The listing in which it was last seen.
    listing: u32,
}

impl Ledger {
    pub(crate) fn new(kinds: impl IntoIterator<Item = Kind>) -> Self {
        Self {
            shelves: kinds
                .into_iter()
                .map(|kind| (kind, Shelf::default()))
                .collect(),
            ..Self::default()
        }
    }

    pub(crate) fn take(&mut self, kind: Kind, report: Report) {
        match report {
            Report::Listing => self.shelf(kind).listing += 1,
            Report::Listed => self.listed(kind),
            Report::Applied(key, object) => self.applied(key, object),
            Report::Broken(finding) => self.broken(kind, *finding),
            Report::Gone(key) => {
                let known = self.shelf(kind).objects.remove(&key);
                self.gone(key, known);
            }
            Report::Standing(standing) => {
                self.stirred = true;
                match standing {
                    None => self.standings.remove(&kind),
                    Some((severity, reason)) => {
                        let reason = format!("{kind}: {reason}");
                        self.standings
                            .insert(kind, problem(severity, None, None, reason))
                    }
                };
            }
        }
    }

    fn shelf(&mut self, kind: Kind) -> &mut Shelf {
        self.shelves.entry(kind).or_default()
    }

    /// What the listing did not show is gone.
    fn listed(&mut self, kind: Kind) {
        let shelf = self.shelf(kind);
        shelf.heard_of = true;
        let now = shelf.listing;
        let unseen = shelf.objects.extract_if(|_, known| known.listing != now);
        for (key, known) in unseen.collect::<Vec<_>>() {
            self.gone(key, Some(known));
        }
    }

    fn applied(&mut self, key: ObjectKey, object: Packed) {
        if self.broken.remove(&key).is_some() {
            self.stirred = true;
        }
        let fingerprint = Some(object.fingerprint());
        let known = self.seen(&key);
        if known.good != fingerprint {
            known.good = fingerprint;
            self.news.insert(key, Some(object));
        }
    }

    fn broken(&mut self, kind: Kind, finding: Finding) {
        self.stirred = true;
        let Finding {
            severity,
            object,
            field,
            reason,
            ..
        } = finding;
        match object {
            Some(key) => {
                self.seen(&key);
                let problem = problem(severity, Some(key.clone()), field, reason);
                self.broken.insert(key, problem);
            }
            // No server stores an object without a name.
            None => {
                tracing::warn!(%kind, field, reason, "an object that can't be told from others was left aside")
            }
        }
    }

    fn seen(&mut self, key: &ObjectKey) -> &mut Known {
        let told = matches!(self.news.get(key), Some(None));
        let shelf = self.shelves.entry(key.kind).or_default();
        let known = shelf.objects.entry(key.clone()).or_insert(Known {
            good: None,
            told,
            listing: 0,
        });
        known.listing = shelf.listing;
        known
    }

    fn gone(&mut self, key: ObjectKey, known: Option<Known>) {
        if self.broken.remove(&key).is_some() {
            self.stirred = true;
        }
        match known {
            Some(known) if known.told => {
                self.news.insert(key, None);
            }
            // Nobody has heard of it.
            Some(_) => {
                self.news.remove(&key);
            }
            None => {}
        }
    }

    /// Whether there may be something to commit.
    pub(crate) fn has_news(&self) -> bool {
        let all_heard_of = || self.shelves.values().all(|shelf| shelf.heard_of);
        (self.told_problems.is_none() || self.stirred || !self.news.is_empty()) && all_heard_of()
    }

    /// What the readers have yet to hear; None when there is nothing.
    pub(crate) fn commit(&mut self) -> Option<Batch> {
        if !self.has_news() {
            return None;
        }
        self.stirred = false;
        let (mut events, mut applied) = (Events::default(), Events::default());
        for (key, change) in std::mem::take(&mut self.news) {
            match change {
                None => events.deleted(key),
                Some(object) => {
                    if let Some(known) = self.shelf(key.kind).objects.get_mut(&key) {
                        known.told = true;
                    }
                    applied.applied(object);
                }
            }
        }
        events.append(applied);
        let all = self.standings.values().chain(self.broken.values());
        let problems = problem::listed(all.cloned().collect());
        if events.is_empty() && self.told_problems.as_ref() == Some(&problems) {
            return None;
        }
        self.told_problems = Some(problems.clone());
        Some(Batch { events, problems })
    }
}

fn problem(
    severity: Severity,
    object: Option<ObjectKey>,
    field: Option<String>,
    reason: String,
) -> Problem {
    Problem {
        severity,
        file: PathBuf::new(),
        line: None,
        object,
        field,
        reason,
    }
}

#[cfg(test)]
mod tests;
