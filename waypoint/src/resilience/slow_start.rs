// SPDX-License-Identifier: Apache-2.0
//! A new endpoint gets little at first: caches fill, code is compiled, connections are made.
//!
//! In: how long it has been there. Out: which part of its weight counts, in percent.

use std::time::Duration;

/// How an endpoint's weight grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlowStart {
    /// How long it takes. Zero: all at once, as in Istio unless a warm-up is asked for.
    pub window: Duration,
    /// What it begins with, in percent.
    pub least: u32,
}

impl Default for SlowStart {
    fn default() -> Self {
        Self {
            window: Duration::ZERO,
            least: 10,
        }
    }
}

impl SlowStart {
    /// Of the weight of an endpoint that has been there for so long; none: for longer than is known.
    pub fn percent(self, age: Option<Duration>) -> u32 {
        match age {
            Some(age) if age < self.window => {
                let grown = age.as_micros() * 100 / self.window.as_micros().max(1);
                let grown = u32::try_from(grown).unwrap_or(100);
                grown.clamp(self.least.clamp(1, 100), 100)
            }
            _ => 100,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weight_grows_evenly_from_the_least() {
        let start = SlowStart {
            window: Duration::from_secs(100),
            least: 10,
        };
        for (age, percent) in [
            (0, 10),
            (5, 10),
            (10, 10),
            (11, 11),
            (50, 50),
            (99, 99),
            (100, 100),
            (1000, 100),
        ] {
            assert_eq!(
                start.percent(Some(Duration::from_secs(age))),
                percent,
                "{age}"
            );
        }
        assert_eq!(start.percent(None), 100);
        assert_eq!(SlowStart::default().percent(Some(Duration::ZERO)), 100);
        // Never nothing: who gets nothing never warms up.
        let none = SlowStart { least: 0, ..start };
        assert_eq!(none.percent(Some(Duration::ZERO)), 1);
    }
}
