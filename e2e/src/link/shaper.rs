// SPDX-License-Identifier: Apache-2.0
//! One direction of a link: when each packet arrives, or that it doesn't. Pure: packets, time and a seed go in.
//!
//! ```text
//!  offer ─► lost? ─► waits for the rate ─► travels delay + jitter ─► due
//!                    too long: lost        held back: later ones pass it
//! ```
//! The same packets at the same moments with the same seed meet the same fate.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::terms::{QUEUE, Terms};

/// Bytes under way in one direction; beyond it packets are lost as in any full buffer.
const MOST_BYTES: usize = 64 << 20;
/// How long a packet is held back where there is neither delay nor jitter to hide in.
const LEAST_HOLD: Duration = Duration::from_millis(1);

/// One direction. Times are measured from any one moment on.
#[derive(Debug)]
pub struct Shaper {
    terms: Terms,
    chance: Chance,
    /// When the link has passed on all that it was given.
    free_at: Duration,
    /// No packet that keeps its place arrives before this one.
    last: Duration,
    number: u64,
    bytes: usize,
    under_way: BinaryHeap<Reverse<Packet>>,
}

/// Ordered by when it arrives, then by when it was sent.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Packet {
    due: Duration,
    number: u64,
    bytes: Vec<u8>,
}

impl Shaper {
    pub fn new(terms: &Terms, direction: u64) -> Self {
        Self {
            terms: terms.clone(),
            chance: Chance::new(terms.seed, direction),
            free_at: Duration::ZERO,
            last: Duration::ZERO,
            number: 0,
            bytes: 0,
            under_way: BinaryHeap::new(),
        }
    }

    /// What is under way keeps the terms that it was sent on.
    pub fn change(&mut self, terms: &Terms, direction: u64) {
        self.terms = terms.clone();
        self.chance = Chance::new(terms.seed, direction);
    }

    /// Takes a packet, for good or for ill.
    pub fn offer(&mut self, now: Duration, bytes: Vec<u8>) {
        // As many draws for each packet, so that the fate of one does not shift those of all later ones.
        let (lost, held_back, jitter) = (
            self.chance.share(),
            self.chance.share(),
            self.chance.share(),
        );
        if lost < self.terms.loss || self.bytes + bytes.len() > MOST_BYTES {
            return;
        }
        let mut leaves = now;
        if let Some(rate) = self.terms.rate {
            let begins = now.max(self.free_at);
            if begins > now + QUEUE {
                return;
            }
            leaves = begins + Duration::from_secs_f64(bytes.len() as f64 * 8.0 / rate as f64);
            self.free_at = leaves;
        }
        let travels = leaves + self.terms.delay + self.terms.jitter.mul_f64(jitter);
        let due = if held_back < self.terms.reorder {
            travels
                + (self.terms.delay / 2)
                    .max(self.terms.jitter)
                    .max(LEAST_HOLD)
        } else {
            self.last = self.last.max(travels);
            self.last
        };
        self.bytes += bytes.len();
        self.under_way.push(Reverse(Packet {
            due,
            number: self.number,
            bytes,
        }));
        self.number += 1;
    }

    /// The next packet that has arrived.
    pub fn take(&mut self, now: Duration) -> Option<Vec<u8>> {
        if self.next()? > now {
            return None;
        }
        let Reverse(packet) = self.under_way.pop()?;
        self.bytes -= packet.bytes.len();
        Some(packet.bytes)
    }

    /// When the next packet arrives.
    pub fn next(&self) -> Option<Duration> {
        self.under_way.peek().map(|Reverse(packet)| packet.due)
    }
}

/// Numbers that look like chance and are the same on every machine (splitmix64).
#[derive(Debug, Clone)]
struct Chance(u64);

impl Chance {
    fn new(seed: u64, direction: u64) -> Self {
        let mut chance = Self(seed);
        let start = chance.next();
        Self(start ^ direction.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 up to, not including, 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Sends numbered packets a millisecond apart and tells when each arrived.
    fn send(terms: &str, count: u16) -> Vec<(u16, Duration)> {
        let mut shaper = Shaper::new(&terms.parse().unwrap(), 0);
        let mut arrived = Vec::new();
        for at in 0..=u32::from(count) + 20_000 {
            let now = MS * at;
            if at < u32::from(count) {
                let number = u16::try_from(at).unwrap();
                shaper.offer(now, number.to_be_bytes().to_vec());
            }
            while let Some(bytes) = shaper.take(now) {
                arrived.push((u16::from_be_bytes([bytes[0], bytes[1]]), now));
            }
            if at >= u32::from(count) && shaper.next().is_none() {
                break;
            }
        }
        assert_eq!(shaper.bytes, 0);
        arrived
    }

    #[test]
    fn a_delay_moves_every_packet_and_keeps_the_order() {
        let arrived = send("delay=20ms", 100);
        assert_eq!(arrived.len(), 100);
        for (number, at) in arrived {
            assert_eq!(at, MS * (u32::from(number) + 20));
        }
    }

    #[test]
    fn jitter_never_lets_one_packet_overtake_another() {
        let arrived = send("delay=5ms,jitter=10ms", 1000);
        assert!(arrived.windows(2).all(|pair| pair[0].0 < pair[1].0));
        let late = arrived
            .iter()
            .filter(|(number, at)| *at > MS * (u32::from(*number) + 7));
        assert!(late.count() > 100);
    }

    #[test]
    fn losses_and_reorderings_come_as_often_as_asked() {
        let arrived = send("loss=1%", 20_000);
        assert!(
            (19_700..19_900).contains(&arrived.len()),
            "{}",
            arrived.len()
        );
        let arrived = send("delay=10ms,reorder=5%", 20_000);
        assert_eq!(arrived.len(), 20_000);
        let overtaken = arrived
            .windows(2)
            .filter(|pair| pair[0].0 > pair[1].0)
            .count();
        assert!((800..1200).contains(&overtaken), "{overtaken}");
    }

    #[test]
    fn the_same_seed_is_the_same_fate() {
        let terms = "delay=3ms,jitter=4ms,loss=5%,reorder=5%,seed=9";
        assert_eq!(send(terms, 2000), send(terms, 2000));
        assert_ne!(send(terms, 2000), send(&terms.replace("=9", "=10"), 2000));
    }

    #[test]
    fn a_rate_spaces_packets_and_bounds_the_queue() {
        let mut shaper = Shaper::new(&"rate=8kbit".parse().unwrap(), 0);
        for _ in 0..10 {
            shaper.offer(Duration::ZERO, vec![0; 100]);
        }
        // 100 bytes take 100 ms; the fourth would have to wait for longer than the queue holds.
        let mut arrivals = Vec::new();
        while let Some(next) = shaper.next() {
            arrivals.push(next);
            assert!(shaper.take(next).is_some());
        }
        assert_eq!(arrivals, [MS * 100, MS * 200, MS * 300]);
    }

    proptest! {
        #[test]
        fn nothing_arrives_early_or_twice(delay in 0_u64..50, jitter in 0_u64..50, loss in 0..100, reorder in 0..100, seed: u64) {
            let terms = format!("delay={delay}ms,jitter={jitter}ms,loss={loss}%,reorder={reorder}%,seed={seed}");
            let mut seen = std::collections::BTreeSet::new();
            for (number, at) in send(&terms, 200) {
                prop_assert!(seen.insert(number));
                prop_assert!(at >= MS * u32::from(number) + Duration::from_millis(delay));
            }
        }
    }
}
