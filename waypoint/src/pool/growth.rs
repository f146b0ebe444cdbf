// SPDX-License-Identifier: Apache-2.0
//! How many HTTP/1 connections to an endpoint are worth having while requests wait for one. Pure.
//!
//! In: how many requests were answered, how many connections are open, how many requests wait and how long they may, ten
//! times a second while any waits. Out: the most connections there may be.
//!
//! Where each answer takes its time, half as many connections more bring half as many answers more. Where what answers has
//! no time left, they bring none, and each takes from it what several answers would. Which of the two it is shows when they
//! are there: as long as they pay there are more, and then for a while there are no more, each time for longer. Where
//! connections answer so seldom that there is no proof for long, whoever would wait for too long waits for none: but where
//! they are quick, a long queue only says that whoever answers has no time left, and more of them would make it longer.

use std::time::Duration;

/// How often it is looked at.
pub(super) const TICK: Duration = Duration::from_millis(100);

/// Connections that need no proof.
const AT_FIRST: usize = 64;

/// How many times as many answers half as many connections more have to bring.
const PAYS: f64 = 1.2;

/// Ticks that are enough to tell how many answers come, or as few as these if there were two for each connection.
const WINDOW: u32 = 10;
const LEAST: u32 = 3;

/// For how many ticks there are no more connections once they did not pay, at first and at last.
const HOLD: u32 = 20;
const LONGEST_HOLD: u32 = 600;

#[derive(Debug)]
pub(super) struct Growth {
    most: usize,
    /// What came since there are so many.
    ticks: u32,
    answers: usize,
    /// Answers in a tick when there were fewer.
    before: Option<f64>,
    /// How long there will be no more.
    held: Option<u32>,
    next_hold: u32,
}

impl Growth {
    pub(super) fn new() -> Self {
        Self {
            most: AT_FIRST,
            ticks: 0,
            answers: 0,
            before: None,
            held: None,
            next_hold: HOLD,
        }
    }

    /// The most connections there may be.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Nobody waits any more: what comes is what is asked for, and says nothing.
    pub(super) fn pause(&mut self) {
        (self.ticks, self.answers) = (0, 0);
    }

    /// A peak is over for long.
    pub(super) fn forget(&mut self, open: usize) {
        self.most = self.most.min(open.max(AT_FIRST));
    }

    /// A tick is over: what came in it, and what there is now.
    pub(super) fn tick(
        &mut self,
        answers: usize,
        open: usize,
        (waiting, patience): (usize, Duration),
    ) {
        if open < self.most {
            // What they all bring is not known before they are there.
            return self.pause();
        }
        self.ticks += 1;
        self.answers += answers;
        let rate = self.answers as f64 / f64::from(self.ticks);
        let ticks_to_wait = patience.as_secs_f64() / TICK.as_secs_f64();
        let is_too_long = waiting as f64 > rate * ticks_to_wait;
        let is_quick = rate * f64::from(WINDOW) >= (2 * open) as f64;
        if is_too_long && !is_quick {
            return self.grow(open, rate);
        }
        match &mut self.held {
            Some(0) => {
                self.held = None;
                self.grow(open, rate);
            }
            Some(ticks) => *ticks -= 1,
            None => {
                let is_enough = self.ticks >= LEAST && self.answers >= 2 * open;
                if !is_enough && self.ticks < WINDOW {
                    return;
                }
                if self.before.is_none_or(|before| rate >= before * PAYS) {
                    self.next_hold = HOLD;
                    self.grow(open, rate);
                } else {
                    self.held = Some(self.next_hold);
                    self.next_hold = (2 * self.next_hold).min(LONGEST_HOLD);
                    self.pause();
                }
            }
        }
    }

    fn grow(&mut self, open: usize, rate: f64) {
        self.before = Some(rate);
        self.most = open + open.div_ceil(2);
        self.pause();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);

    /// How many connections a crowd of so many gets of an endpoint, so many ticks later; `answers` says how many come in a
    /// tick by so many connections.
    fn after(ticks: u32, crowd: usize, answers: impl Fn(usize) -> usize) -> usize {
        let (mut growth, mut open) = (Growth::new(), 0);
        for _ in 0..ticks {
            open = crowd.min(growth.most());
            if crowd == open {
                break;
            }
            growth.tick(answers(open), open, (crowd - open, PATIENCE));
        }
        open
    }

    #[test]
    fn who_takes_his_time_gets_a_connection_for_each_and_who_has_none_left_gets_few() {
        for (name, ticks, crowd, answers, expected) in [
            // Each answer takes a tenth of a second: seven steps of three ticks.
            (
                "waits",
                40,
                1000,
                (|open| open) as fn(usize) -> usize,
                1000..=1000,
            ),
            // Each takes a second.
            ("waits long", 80, 1000, |open| open / 10, 1000..=1000),
            // None comes while somebody looks.
            ("polls", 20, 10_000, |_| 0, 10_000..=10_000),
            ("is busy", 10, 7500, |_| 500, 64..=96),
            ("is busy", 100, 7500, |_| 500, 64..=330),
            ("is busy", 1000, 7500, |_| 500, 64..=1200),
            // More connections make it slower.
            ("suffers", 100, 7500, |open| 500 - open / 4, 64..=330),
        ] {
            let open = after(ticks, crowd, answers);
            assert!(expected.contains(&open), "{name}, {ticks} ticks: {open}");
        }
    }

    #[test]
    fn who_would_wait_for_longer_than_he_may_waits_for_no_proof_unless_answers_are_quick() {
        for (name, answers, waiting, seconds, expected) in [
            // Ten answers a tick, of which a thousand wait: ten seconds.
            ("he may", 10, 1000, 11, 64),
            ("he may not", 10, 1000, 9, 96),
            // 640 answers a second, ten by each connection: more of those would be no help.
            ("it is busy", 64, 1000, 1, 64),
        ] {
            let mut growth = Growth::new();
            growth.tick(answers, 64, (waiting, Duration::from_secs(seconds)));
            assert_eq!(growth.most(), expected, "{name}");
        }
    }

    #[test]
    fn a_crowd_that_waits_too_long_for_who_is_busy_gets_hardly_more_connections() {
        // A thousand answers a second, however many connections: 15,000 wait for longer than they may.
        let open = after(100, 15_000, |_| 100);
        assert!((64..=330).contains(&open), "{open}");
    }

    #[test]
    fn a_peak_is_forgotten_but_not_what_is_open() {
        let mut growth = Growth::new();
        for open in [64, 96, 144] {
            growth.tick(0, open, (1, PATIENCE));
        }
        assert_eq!(growth.most(), 216);
        growth.forget(100);
        assert_eq!(growth.most(), 100);
        growth.forget(0);
        assert_eq!(growth.most(), AT_FIRST);
    }
}
