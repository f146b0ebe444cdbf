// SPDX-License-Identifier: Apache-2.0
//! Bounds on frames that cost a peer little and us something, counted over a while.
//!
//! Memory is bounded elsewhere; these bound work. They are far above what an honest peer with a worker full of short
//! connections sends.

use std::time::{Duration, Instant};

use super::Violation;

/// Counts are forgotten after so long.
const WHILE: Duration = Duration::from_secs(10);

/// Frames that change nothing or little: PRIORITY, unknown kinds, empty DATA, credit.
const CHEAP: u32 = 2_000_000;

/// Frames that must be answered: PING, SETTINGS.
const ANSWERED: u32 = 20_000;

/// Streams that were refused, malformed, or reset by the client before they were answered.
const REFUSED: u32 = 20_000;

pub(super) struct Floods {
    since: Instant,
    cheap: u32,
    answered: u32,
    refused: u32,
}

impl Floods {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            since: now,
            cheap: 0,
            answered: 0,
            refused: 0,
        }
    }

    pub(super) fn cheap(&mut self, now: Instant) -> Result<(), Violation> {
        self.turn(now);
        count(&mut self.cheap, CHEAP, "frames that say nothing")
    }

    pub(super) fn answered(&mut self, now: Instant) -> Result<(), Violation> {
        self.turn(now);
        count(&mut self.answered, ANSWERED, "PING and SETTINGS")
    }

    pub(super) fn refused(&mut self, now: Instant) -> Result<(), Violation> {
        self.turn(now);
        count(
            &mut self.refused,
            REFUSED,
            "streams that are opened and given up",
        )
    }

    fn turn(&mut self, now: Instant) {
        if now.duration_since(self.since) > WHILE {
            *self = Self::new(now);
        }
    }
}

fn count(counter: &mut u32, most: u32, what: &'static str) -> Result<(), Violation> {
    *counter += 1;
    if *counter > most {
        return Err(Violation::Flood(what));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_bounded_and_a_pause_forgives() {
        let mut now = Instant::now();
        let mut floods = Floods::new(now);
        for _ in 0..3 {
            for _ in 0..ANSWERED {
                floods.answered(now).unwrap();
            }
            assert!(floods.answered(now).is_err());
            now += WHILE + Duration::from_secs(1);
        }
    }
}
