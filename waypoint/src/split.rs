// SPDX-License-Identifier: Apache-2.0
//! Draws one of several by weight.
//!
//! In: things with weights, once; randomness, each time. Out: one of them, none where all weigh nothing.

use rand::{Rng, RngExt};

/// Things that share what comes by weight. What weighs nothing is not kept.
#[derive(Debug, Clone)]
pub struct Split<T> {
    /// Each with the sum of the weights up to it.
    parts: Box<[(u64, T)]>,
}

impl<T> Split<T> {
    /// Of these things and their weights.
    pub fn new(weighted: impl IntoIterator<Item = (u32, T)>) -> Self {
        let mut total = 0;
        let heavy = weighted.into_iter().filter(|(weight, _)| *weight > 0);
        let parts = heavy.map(|(weight, part)| {
            total += u64::from(weight);
            (total, part)
        });
        Self {
            parts: parts.collect(),
        }
    }

    /// One by its weight; none where there is none.
    pub fn draw(&self, rng: &mut impl Rng) -> Option<&T> {
        match &*self.parts {
            [] => None,
            [(_, only)] => Some(only),
            [.., (total, _)] => {
                let ticket = rng.random_range(0..*total);
                let at = self.parts.partition_point(|(sum, _)| *sum <= ticket);
                self.parts.get(at).map(|(_, part)| part)
            }
        }
    }

    /// All that may be drawn.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.parts.iter().map(|(_, part)| part)
    }

    /// Whether nothing can be drawn.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }
}

/// A share of all, drawn anew for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fraction {
    /// How many ...
    pub numerator: u32,
    /// ... of so many. Of none it is nothing.
    pub denominator: u32,
}

impl Fraction {
    /// Whether this one is of the share.
    pub fn draw(self, rng: &mut impl Rng) -> bool {
        match self {
            Self { denominator: 0, .. } => false,
            Self {
                numerator,
                denominator,
            } if numerator >= denominator => true,
            Self {
                numerator,
                denominator,
            } => rng.random_range(0..denominator) < numerator,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;

    const TIMES: u32 = 20_000;

    /// Each one's share, in percent.
    fn shares(weights: &[u32]) -> Vec<f64> {
        let split = Split::new(weights.iter().copied().zip(0..));
        let mut rng = StdRng::seed_from_u64(1);
        let mut counts = vec![0_u32; weights.len()];
        for _ in 0..TIMES {
            let drawn: usize = *split.draw(&mut rng).unwrap();
            counts[drawn] += 1;
        }
        let percent = |count: u32| f64::from(count) * 100.0 / f64::from(TIMES);
        counts.into_iter().map(percent).collect()
    }

    #[test]
    fn shares_follow_weights() {
        for weights in [
            &[70, 30, 0][..],
            &[10, 10],
            &[0, 1],
            &[1_000_000, 1, 999_999],
        ] {
            let total: u32 = weights.iter().sum();
            for (share, weight) in shares(weights).into_iter().zip(weights) {
                let expected = f64::from(*weight) * 100.0 / f64::from(total);
                assert!((share - expected).abs() < 1.5, "{weights:?}: {share}");
                assert!(*weight > 0 || share == 0.0, "{weights:?}");
            }
        }
    }

    #[test]
    fn nothing_weighs_nothing() {
        let mut rng = StdRng::seed_from_u64(1);
        assert_eq!(Split::<u8>::new([]).draw(&mut rng), None);
        assert_eq!(Split::new([(0, 'a'), (0, 'b')]).draw(&mut rng), None);
        assert!(Split::new([(0, 'a')]).is_empty());
        // No overflow at the largest.
        let largest = Split::new([(u32::MAX, 'a'), (u32::MAX, 'b')]);
        assert!(largest.draw(&mut rng).is_some());
    }

    #[test]
    fn fractions_are_kept() {
        let mut rng = StdRng::seed_from_u64(1);
        for (numerator, denominator, expected) in [
            (20, 100, 20.0),
            (25, 50, 50.0),
            (35, 100, 35.0),
            (0, 100, 0.0),
            (100, 100, 100.0),
            (7, 5, 100.0),
            (1, 0, 0.0),
        ] {
            let fraction = Fraction {
                numerator,
                denominator,
            };
            let count = (0..TIMES).filter(|_| fraction.draw(&mut rng)).count();
            let share = count as f64 * 100.0 / f64::from(TIMES);
            let exact = expected == 0.0 || expected == 100.0;
            let room = if exact { 0.0 } else { 1.5 };
            assert!((share - expected).abs() <= room, "{fraction:?}: {share}");
        }
    }
}
