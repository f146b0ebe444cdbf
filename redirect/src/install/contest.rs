// SPDX-License-Identifier: Apache-2.0
//! Pure: is somebody else at work on the same files, and how long to leave them to him.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// As many repairs within this time are a quarrel, which no speed of ours ends.
const REPAIRS: usize = 5;
const WITHIN: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_secs(10);

/// When repairs were due lately.
#[derive(Debug, Default)]
pub(super) struct Contest(VecDeque<Instant>);

impl Contest {
    /// Takes note of a look; the time to wait until the next one, where it is a quarrel.
    pub(super) fn pause(&mut self, repaired: bool, now: Instant) -> Option<Duration> {
        if !repaired {
            return None;
        }
        self.0.push_back(now);
        while self
            .0
            .front()
            .is_some_and(|at| now.duration_since(*at) > WITHIN || self.0.len() > REPAIRS)
        {
            self.0.pop_front();
        }
        (self.0.len() == REPAIRS).then_some(PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repairs_in_quick_succession_are_slowed_down_and_others_are_not() {
        let start = Instant::now();
        let mut contest = Contest::default();
        for at in 0..4 {
            let now = start + Duration::from_secs(at);
            assert_eq!(contest.pause(true, now), None, "{at}");
            assert_eq!(contest.pause(false, now), None, "{at}");
        }
        for at in 4..9 {
            let now = start + Duration::from_secs(at);
            assert_eq!(contest.pause(true, now), Some(PAUSE), "{at}");
        }
        let later = start + Duration::from_secs(120);
        assert_eq!(contest.pause(true, later), None);
    }
}
