// SPDX-License-Identifier: Apache-2.0
//! A pod's way out of the mesh. Pure.
//!
//! In: what ztunnel reports of the pod, and the time. Out: the stage, which says what is still captured and whether
//! ztunnel is still wanted. Nothing that is open breaks on the way, and nothing comes in undecided before the control
//! plane has said that the pod is to be reached in the clear:
//!
//! ```text
//!  label gone ─► Held: new connections out are free; ztunnel is told, then the annotation goes
//!                  │ ztunnel heard from the control plane that the pod is plain
//!                  ▼
//!                Draining: new connections in are free too; tunnels of late peers and what is open go on
//!                  │ nothing is open any more, or the deadline has come
//!                  ▼
//!                Over: ztunnel drops the pod, then the rules go
//! ```

use std::time::{Duration, Instant};

use crate::zds_server::Report;

/// How long a pod waits for the word of a ztunnel that says nothing. It ends what is open while the rules still hold:
/// without them its resets no longer reach the application, whose next bytes would go out in the clear.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// How long ztunnel goes on serving tunnels after the control plane has called the pod plain: peers hear of it at
/// about the same time, some a little later.
const SETTLING: Duration = Duration::from_secs(3);

/// How far a pod has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Held,
    Draining,
    Over,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Leaving {
    since: Instant,
    stage: Stage,
    /// When the present silence of ztunnel began.
    silent_since: Option<Instant>,
    /// The latest report says that nothing is open.
    empty: bool,
    plain_since: Option<Instant>,
    over_since: Option<Instant>,
}

impl Leaving {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            since: now,
            stage: Stage::Held,
            silent_since: Some(now),
            empty: false,
            plain_since: None,
            over_since: None,
        }
    }

    /// Takes note of how things stand. `served`: some ztunnel has consented to the pod and not let go yet.
    pub(super) fn note(
        &mut self,
        served: bool,
        report: Option<Report>,
        deadline: Duration,
        now: Instant,
    ) {
        match report {
            Some(report) => {
                self.silent_since = None;
                self.empty = report.open == 0;
                if report.plain {
                    self.plain_since.get_or_insert(now);
                }
            }
            None => {
                self.silent_since.get_or_insert(now);
            }
        }
        if self.stage == Stage::Over {
            return;
        }
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        self.stage = if !served || self.ends_at(deadline).any(|at| is_due(Some(at))) {
            self.over_since = Some(now);
            Stage::Over
        } else if self.plain_since.is_some() {
            Stage::Draining
        } else {
            Stage::Held
        };
    }

    pub(super) fn stage(&self) -> Stage {
        self.stage
    }

    /// May the annotation go? ztunnel knows what is coming, or there is nobody to know it.
    pub(super) fn is_told(&self) -> bool {
        self.stage != Stage::Held || self.silent_since.is_none()
    }

    /// The rules hold until ztunnel has let go, but not for good.
    pub(super) fn may_lose_rules(&self, served: bool, now: Instant) -> bool {
        self.over_since
            .is_some_and(|since| !served || now >= since + PATIENCE)
    }

    /// When time alone changes something.
    pub(super) fn wakes_at(&self, deadline: Duration) -> impl Iterator<Item = Instant> {
        let over = self.over_since.map(|since| since + PATIENCE);
        let ends = self
            .ends_at(deadline)
            .filter(move |_| self.over_since.is_none());
        over.into_iter().chain(ends)
    }

    /// What brings the end about, whichever comes first.
    fn ends_at(&self, deadline: Duration) -> impl Iterator<Item = Instant> {
        let silence = self.silent_since.map(|since| since + PATIENCE);
        let settled = self
            .plain_since
            .filter(|_| self.empty)
            .map(|since| since + SETTLING);
        [silence, settled, Some(self.since + deadline)]
            .into_iter()
            .flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(300);

    /// At this second, is it served, and what is reported: open connections, plain.
    type Seen = (u64, bool, Option<(u64, bool)>);

    /// Feeds what is seen; tells the stages that follow.
    fn check(seen: &[Seen], expected: &[Stage]) {
        let start = Instant::now();
        let mut leaving = Leaving::new(start);
        let stages: Vec<_> = seen
            .iter()
            .map(|&(second, served, report)| {
                let report = report.map(|(open, plain)| Report { open, plain });
                leaving.note(
                    served,
                    report,
                    DEADLINE,
                    start + Duration::from_secs(second),
                );
                leaving.stage()
            })
            .collect();
        assert_eq!(stages, expected, "{seen:?}");
    }

    #[test]
    fn a_pod_drains_from_the_control_planes_word_on_until_nothing_is_open() {
        use Stage::{Draining, Held, Over};
        check(
            &[
                (0, true, None),
                (1, true, Some((2, false))),
                (100, true, Some((2, false))),
                (101, true, Some((2, true))),
                (200, true, Some((1, true))),
                (201, true, Some((0, true))),
            ],
            &[Held, Held, Held, Draining, Draining, Over],
        );
        // Late peers get their time although nothing is open.
        check(
            &[
                (1, true, Some((0, true))),
                (3, true, Some((0, true))),
                (4, true, Some((0, true))),
            ],
            &[Draining, Draining, Over],
        );
    }

    #[test]
    fn the_deadline_ends_it_whatever_is_open_and_whatever_the_control_plane_says() {
        use Stage::{Draining, Held, Over};
        check(
            &[
                (1, true, Some((7, true))),
                (299, true, Some((7, true))),
                (300, true, Some((7, true))),
            ],
            &[Draining, Draining, Over],
        );
        check(
            &[
                (1, true, Some((7, false))),
                (299, true, Some((7, false))),
                (300, true, Some((7, false))),
            ],
            &[Held, Held, Over],
        );
    }

    #[test]
    fn whom_nobody_serves_or_speaks_for_is_not_waited_for() {
        use Stage::{Draining, Held, Over};
        check(&[(0, false, None)], &[Over]);
        check(
            &[(0, true, None), (4, true, None), (5, true, None)],
            &[Held, Held, Over],
        );
        // A ztunnel that restarts in between may speak again in time.
        check(
            &[
                (10, true, Some((3, true))),
                (11, true, None),
                (15, true, None),
                (15, true, Some((0, true))),
            ],
            &[Draining, Draining, Draining, Over],
        );
        check(
            &[
                (10, true, Some((3, true))),
                (11, true, None),
                (16, true, None),
            ],
            &[Draining, Draining, Over],
        );
    }

    #[test]
    fn the_annotation_waits_until_ztunnel_knows_and_the_rules_until_it_has_let_go() {
        let start = Instant::now();
        let mut leaving = Leaving::new(start);
        leaving.note(true, None, DEADLINE, start);
        assert!(!leaving.is_told());
        let report = Report {
            open: 1,
            plain: false,
        };
        leaving.note(true, Some(report), DEADLINE, start);
        assert!(leaving.is_told());
        let end = start + DEADLINE;
        assert_eq!(leaving.wakes_at(DEADLINE).min(), Some(end));
        leaving.note(true, Some(report), DEADLINE, end);
        assert_eq!(leaving.stage(), Stage::Over);
        assert!(!leaving.may_lose_rules(true, end));
        assert!(leaving.may_lose_rules(false, end));
        assert_eq!(leaving.wakes_at(DEADLINE).min(), Some(end + PATIENCE));
        assert!(leaving.may_lose_rules(true, end + PATIENCE));
    }
}
