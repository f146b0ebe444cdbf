// SPDX-License-Identifier: Apache-2.0
//! In which pods somebody answers DNS, as far as it was looked. Pure.
//!
//! Rules that lead queries to nobody would leave a pod without names, and not every ztunnel answers them: its DNS may be
//! switched off, or it is another version. So rules for DNS come only once a listener was seen, which is looked for when a
//! ztunnel has consented to the pod, and again from time to time. A ztunnel that is gone for a moment changes nothing: one
//! that was seen to listen must be missing for a while.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use capture::NetnsId;

use crate::plan::Dns;

/// How often a pod is looked at.
const PERIOD: Duration = Duration::from_secs(15);
/// How long a listener that was there may be missing.
const PATIENCE: Duration = Duration::from_secs(30);

/// Which ztunnel consented, if one did.
pub(super) type Consent = Option<u64>;

#[derive(Debug, Default)]
pub(super) struct Resolvers(BTreeMap<String, Looked>);

#[derive(Debug)]
struct Looked {
    netns: NetnsId,
    consent: Consent,
    at: Instant,
    missing_since: Option<Instant>,
    verdict: Dns,
}

impl Resolvers {
    /// Is it time to look? Always before rules are decided on for the first time, and for each ztunnel.
    pub(super) fn is_due(&self, uid: &str, netns: NetnsId, consent: Consent, now: Instant) -> bool {
        self.0.get(uid).is_none_or(|looked| {
            looked.netns != netns || looked.consent != consent || now >= looked.at + PERIOD
        })
    }

    /// Takes note of what was found; says what follows if that is news.
    pub(super) fn found(
        &mut self,
        uid: &str,
        netns: NetnsId,
        consent: Consent,
        listens: bool,
        now: Instant,
    ) -> Option<Dns> {
        let before = self.0.get(uid).map(|looked| looked.verdict);
        let known = self
            .0
            .remove(uid)
            .filter(|looked| looked.netns == netns && looked.consent == consent);
        let missing_since = match (&known, listens) {
            (_, true) => None,
            (Some(looked), false) => Some(looked.missing_since.unwrap_or(now)),
            (None, false) => Some(now),
        };
        let verdict = match (&known, missing_since) {
            (_, None) => Dns::Captured,
            (Some(looked), Some(since)) if now < since + PATIENCE => looked.verdict,
            // A ztunnel consents once it listens: what isn't there then won't come.
            _ => Dns::Untouched,
        };
        let looked = Looked {
            netns,
            consent,
            at: now,
            missing_since,
            verdict,
        };
        self.0.insert(uid.to_owned(), looked);
        Some(verdict).filter(|verdict| before != Some(*verdict))
    }

    /// Whether queries of the pod may be captured.
    pub(super) fn verdict(&self, uid: &str, netns: NetnsId) -> Dns {
        let looked = self.0.get(uid).filter(|looked| looked.netns == netns);
        looked.map_or(Dns::Untouched, |looked| looked.verdict)
    }

    /// When to look again, of those pods that matter.
    pub(super) fn wakes_at<'a>(
        &'a self,
        matters: impl Fn(&str) -> bool + 'a,
    ) -> impl Iterator<Item = Instant> + 'a {
        let looked = self.0.iter().filter(move |(uid, _)| matters(uid));
        looked.map(|(_, looked)| looked.at + PERIOD)
    }

    pub(super) fn forget(&mut self, uid: &str) {
        self.0.remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NETNS: NetnsId = NetnsId { dev: 4, ino: 1 };

    /// Looks at the seconds given, and tells the verdict after each.
    fn look(looks: &[(u64, Consent, bool)]) -> Vec<Dns> {
        let start = Instant::now();
        let mut resolvers = Resolvers::default();
        looks
            .iter()
            .map(|(seconds, consent, listens)| {
                let now = start + Duration::from_secs(*seconds);
                resolvers.found("a", NETNS, *consent, *listens, now);
                resolvers.verdict("a", NETNS)
            })
            .collect()
    }

    #[test]
    fn a_listener_that_was_never_seen_is_not_led_to() {
        use Dns::{Captured, Untouched};
        assert_eq!(look(&[(0, None, false)]), [Untouched]);
        assert_eq!(
            look(&[(0, Some(1), false), (15, Some(1), false)]),
            [Untouched; 2]
        );
        assert_eq!(
            look(&[(0, Some(1), false), (15, Some(1), true)]),
            [Untouched, Captured]
        );
    }

    #[test]
    fn a_listener_may_be_missing_for_a_moment() {
        use Dns::{Captured, Untouched};
        let missing = |seconds| (seconds, Some(1), false);
        assert_eq!(
            look(&[(0, Some(1), true), missing(15), missing(30), missing(46)]),
            [Captured, Captured, Captured, Untouched]
        );
        assert_eq!(
            look(&[
                (0, Some(1), true),
                missing(15),
                (30, Some(1), true),
                missing(46)
            ]),
            [Captured; 4]
        );
    }

    #[test]
    fn another_ztunnel_is_judged_at_once() {
        use Dns::{Captured, Untouched};
        assert_eq!(
            look(&[(0, Some(1), true), (1, Some(2), false), (2, Some(3), true)]),
            [Captured, Untouched, Captured]
        );
    }

    #[test]
    fn a_pod_is_looked_at_when_something_is_new_and_from_time_to_time() {
        let start = Instant::now();
        let mut resolvers = Resolvers::default();
        assert!(resolvers.is_due("a", NETNS, None, start));
        resolvers.found("a", NETNS, None, true, start);
        assert!(!resolvers.is_due("a", NETNS, None, start));
        assert!(resolvers.is_due("a", NETNS, Some(1), start));
        assert!(resolvers.is_due("a", NetnsId { dev: 4, ino: 2 }, None, start));
        assert!(resolvers.is_due("a", NETNS, None, start + PERIOD));
        assert_eq!(
            resolvers.wakes_at(|_| true).collect::<Vec<_>>(),
            [start + PERIOD]
        );
        assert_eq!(resolvers.wakes_at(|_| false).count(), 0);
        assert_eq!(
            resolvers.verdict("a", NetnsId { dev: 4, ino: 2 }),
            Dns::Untouched
        );
    }
}
