// SPDX-License-Identifier: Apache-2.0
//! Which of many alike are told one by one, so that whoever makes them cannot fill the log.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How many are told in each [`EVERY`].
const MOST: u32 = 5;
const EVERY: Duration = Duration::from_secs(1);

/// Whether one is to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Telling {
    /// Yes, together with the number of those that were not, since the last one that was.
    Tell {
        untold: u64,
    },
    CountOnly,
}

#[derive(Debug, Default)]
pub struct Teller(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    since: Option<Instant>,
    /// In this while.
    told: u32,
    untold: u64,
}

impl Teller {
    /// One more has happened.
    pub fn happened(&self, now: Instant) -> Telling {
        let mut state = self.0.lock();
        if state.since.is_none_or(|since| now >= since + EVERY) {
            state.since = Some(now);
            state.told = 0;
        }
        if state.told < MOST {
            state.told += 1;
            let untold = std::mem::take(&mut state.untold);
            return Telling::Tell { untold };
        }
        state.untold += 1;
        Telling::CountOnly
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_a_few_are_told_and_the_next_with_the_number_of_the_others() {
        let teller = Teller::default();
        let start = Instant::now();
        for _ in 0..MOST {
            assert_eq!(teller.happened(start), Telling::Tell { untold: 0 });
        }
        for _ in 0..5 {
            assert_eq!(teller.happened(start), Telling::CountOnly);
        }
        let later = start + EVERY;
        assert_eq!(teller.happened(later), Telling::Tell { untold: 5 });
        assert_eq!(teller.happened(later), Telling::Tell { untold: 0 });
    }
}
