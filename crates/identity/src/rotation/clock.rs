// SPDX-License-Identifier: Apache-2.0
//! Tells when somebody set the clock. Pure but for the time since boot, which nobody sets.

use std::fmt;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// How often to look.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What is corrected little by little stays far below this in the time between two looks, and so does what passes
/// between the reading of one clock and of the other.
const STEP: Duration = Duration::from_secs(1);

/// Compares the time of day with the time since boot.
#[derive(Debug)]
pub(super) struct Steps {
    day: SystemTime,
    boot: Instant,
}

/// By how much the clock was set. A machine that slept finds its clock set forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Forward(Duration),
    Back(Duration),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // To the nearest second: the two clocks are not read at the same moment.
            Self::Forward(by) => write!(f, "{:.0} s forward", by.as_secs_f64()),
            Self::Back(by) => write!(f, "{:.0} s back", by.as_secs_f64()),
        }
    }
}

impl Steps {
    pub(super) fn new(day: SystemTime) -> Self {
        Self {
            day,
            boot: Instant::now(),
        }
    }

    /// Takes a look; tells if the clock was set since the last one.
    pub(super) fn observe(&mut self, day: SystemTime) -> Option<Step> {
        let boot = Instant::now();
        let expected = self.day + boot.saturating_duration_since(self.boot);
        *self = Self { day, boot };
        let step = match day.duration_since(expected) {
            Ok(by) => Step::Forward(by),
            Err(behind) => Step::Back(behind.duration()),
        };
        let (Step::Forward(by) | Step::Back(by)) = step;
        (by >= STEP).then_some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_told_to_the_nearest_second() {
        let step = |millis| Duration::from_millis(millis);
        assert_eq!(Step::Forward(step(2_999)).to_string(), "3 s forward");
        assert_eq!(Step::Back(step(3_001)).to_string(), "3 s back");
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_clock_that_was_set_makes_a_step() {
        const SECOND: Duration = Duration::from_secs(1);
        let mut day = SystemTime::UNIX_EPOCH + 1_800_000_000 * SECOND;
        let mut steps = Steps::new(day);
        for (passed, set, expected) in [
            (SECOND, SECOND, None),
            (3600 * SECOND, 3600 * SECOND, None),
            (SECOND, SECOND + SECOND / 2, None),
            (SECOND, 61 * SECOND, Some(Step::Forward(60 * SECOND))),
            (SECOND, SECOND, None),
        ] {
            tokio::time::advance(passed).await;
            day += set;
            assert_eq!(steps.observe(day), expected, "{passed:?}, {set:?}");
        }
        tokio::time::advance(SECOND).await;
        day -= 59 * SECOND;
        assert_eq!(steps.observe(day), Some(Step::Back(60 * SECOND)));
    }
}
