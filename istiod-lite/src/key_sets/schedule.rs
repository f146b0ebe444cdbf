// SPDX-License-Identifier: Apache-2.0
//! When which set is fetched. Pure: time is handed in.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::translate::authentication::KeySource;

/// How long a set counts as new where its server doesn't say; and what servers may say.
const FRESH: Duration = Duration::from_secs(5 * 60);
const FRESH_LEAST: Duration = Duration::from_secs(60);
const FRESH_MOST: Duration = Duration::from_secs(20 * 60);

/// The wait after a first failure, and after many.
const BACK_OFF: Duration = Duration::from_secs(1);
const BACK_OFF_MOST: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Schedule(BTreeMap<KeySource, Entry>);

#[derive(Debug)]
struct Entry {
    /// None while it is being fetched.
    due: Option<Instant>,
    failures: u32,
    fetched: bool,
}

impl Schedule {
    /// What is new is due at once; what is no longer wanted is forgotten.
    pub(super) fn want(&mut self, wanted: &BTreeSet<KeySource>, now: Instant) {
        self.0.retain(|source, _| wanted.contains(source));
        for source in wanted {
            if !self.0.contains_key(source) {
                let entry = Entry {
                    due: Some(now),
                    failures: 0,
                    fetched: false,
                };
                self.0.insert(source.clone(), entry);
            }
        }
    }

    /// When the next one is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.values().filter_map(|entry| entry.due).min()
    }

    /// One that is to be fetched now, the longest overdue first.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<KeySource> {
        let due = self.0.iter_mut().filter_map(|(source, entry)| {
            let at = entry.due.filter(|at| *at <= now)?;
            Some((at, source, entry))
        });
        let (_, source, entry) = due.min_by_key(|(at, ..)| *at)?;
        entry.due = None;
        Some(source.clone())
    }

    /// A fetch has ended, with how long the set is new as far as its server says. `share` is a random number below one:
    /// what began together is not to go on together. Whether nothing was known before.
    pub(super) fn ended(
        &mut self,
        source: &KeySource,
        fetched: Result<Option<Duration>, ()>,
        now: Instant,
        share: f64,
    ) -> bool {
        let Some(entry) = self.0.get_mut(source) else {
            return false;
        };
        let wait = match fetched {
            Ok(fresh) => {
                entry.failures = 0;
                fresh.map_or(FRESH, |fresh| fresh.clamp(FRESH_LEAST, FRESH_MOST))
            }
            Err(()) => {
                let doubled = BACK_OFF.saturating_mul(1 << entry.failures.min(6));
                entry.failures = entry.failures.saturating_add(1);
                doubled.min(BACK_OFF_MOST)
            }
        };
        entry.due = Some(now + wait.mul_f64(0.75 + share / 4.0));
        let was_fetched = entry.fetched;
        entry.fetched |= fetched.is_ok();
        !was_fetched
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(name: &str) -> KeySource {
        KeySource::uri(name, Duration::from_secs(5))
    }

    #[test]
    fn what_is_wanted_is_fetched_at_once_and_again_while_it_is() {
        let now = Instant::now();
        let mut schedule = Schedule::default();
        let (a, b) = (source("a"), source("b"));
        schedule.want(&BTreeSet::from([a.clone(), b.clone()]), now);
        assert_eq!(schedule.take_due(now), Some(a.clone()));
        assert_eq!(schedule.take_due(now), Some(b.clone()));
        assert_eq!((schedule.take_due(now), schedule.next()), (None, None));
        assert!(schedule.ended(&a, Ok(None), now, 0.999));
        let next = schedule.next().map(|at| at - now);
        assert!(next.is_some_and(|wait| wait <= FRESH && wait > FRESH * 9 / 10));
        assert!(!schedule.ended(&a, Ok(None), now, 0.0), "it was known");
        schedule.want(&BTreeSet::from([a.clone()]), now);
        assert!(!schedule.ended(&b, Ok(None), now, 0.0), "nobody wants it");
        assert_eq!(schedule.take_due(now + FRESH), Some(a));
    }

    #[test]
    fn servers_say_how_long_a_set_is_new_within_bounds_and_failures_wait_longer_and_longer() {
        let start = Instant::now();
        let a = source("a");
        let wait = |schedule: &mut Schedule, fetched| {
            schedule.ended(&a, fetched, start, 1.0);
            schedule.next().map(|at| (at - start).as_secs())
        };
        let mut schedule = Schedule::default();
        schedule.want(&BTreeSet::from([a.clone()]), start);
        for (seconds, expected) in [(0, 60), (90, 90), (86_400, 1200)] {
            let fresh = Some(Duration::from_secs(seconds));
            assert_eq!(wait(&mut schedule, Ok(fresh)), Some(expected));
        }
        let waits: Vec<_> = (0..9)
            .filter_map(|_| wait(&mut schedule, Err(())))
            .collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(wait(&mut schedule, Ok(None)), Some(300));
        assert_eq!(wait(&mut schedule, Err(())), Some(1));
    }

    #[test]
    fn a_failure_is_told_until_a_set_is_there() {
        let now = Instant::now();
        let a = source("a");
        let mut schedule = Schedule::default();
        schedule.want(&BTreeSet::from([a.clone()]), now);
        let told: Vec<bool> = [Err(()), Err(()), Ok(None), Err(()), Ok(None)]
            .into_iter()
            .map(|fetched| schedule.ended(&a, fetched, now, 0.0))
            .collect();
        assert_eq!(told, [true, true, true, false, false]);
    }
}
