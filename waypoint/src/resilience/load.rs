// SPDX-License-Identifier: Apache-2.0
//! How long endpoints take to answer, and since when they have been there.
//!
//! In: a service's endpoints when they change, the time of each answer on whichever thread. Out: what is expected of each:
//! the peak of late, which fades. A slow answer counts at once and in full, a quick one only as time passes, so that an endpoint that
//! stalls is left before its clients have noticed by average.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mesh::Endpoint;

/// After which time a peak counts by a third.
const FADES: Duration = Duration::from_secs(10);

/// What a request to an endpoint costs that has some already, and has answered none yet: nobody knows, so the others go
/// first.
const UNKNOWN: u64 = 1_000_000;

/// The endpoints of one service, as they were when they last changed; what is seen of each goes on changing.
#[derive(Debug, Default)]
pub struct Loads {
    known: HashMap<Endpoint, Arc<Load>>,
}

/// What is seen of an endpoint.
#[derive(Debug)]
pub struct Load {
    /// None for those that were there first.
    since: Option<Instant>,
    latency: Latency,
    /// Requests and connections that it carries, whichever service they are for.
    carried: Arc<AtomicU32>,
    /// Whether its last answer was an error that counts.
    pub errs: AtomicBool,
}

/// A peak that fades. In one word, so that whoever reads it sees both of its halves as of one moment: seconds as bits of a
/// float, and milliseconds since its first moment, which come round after 49 days.
#[derive(Debug)]
pub struct Latency {
    first: Instant,
    word: AtomicU64,
}

/// Nothing was answered yet: no number of seconds.
const NONE: u64 = u64::MAX;

impl Latency {
    /// Before a first answer.
    pub fn new(now: Instant) -> Self {
        Self {
            first: now,
            word: AtomicU64::new(NONE),
        }
    }

    /// After one more.
    pub fn observe(&self, answered: Duration, now: Instant) {
        let sample = answered.as_secs_f32();
        let now = now.saturating_duration_since(self.first).as_millis() as u32;
        let next = |word: u64| {
            if word == NONE {
                return Some(join(sample, now));
            }
            let (seconds, at) = split(word);
            // A clock that is read out of order.
            let elapsed = now.wrapping_sub(at);
            let elapsed = if elapsed > u32::MAX / 2 { 0 } else { elapsed };
            let now = at.wrapping_add(elapsed);
            if sample > seconds {
                return Some(join(sample, now));
            }
            // Within one millisecond nothing fades.
            let kept = (-f64::from(elapsed) / FADES.as_millis() as f64).exp() as f32;
            (elapsed > 0).then(|| join(seconds * kept + sample * (1.0 - kept), now))
        };
        // What says nothing new changes nothing.
        let _ = self
            .word
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// What the next answer is expected to take; none: nobody knows.
    pub fn expected(&self) -> Option<Duration> {
        let word = self.word.load(Ordering::Relaxed);
        (word != NONE).then(|| Duration::from_secs_f32(split(word).0))
    }
}

fn join(seconds: f32, at: u32) -> u64 {
    u64::from(seconds.to_bits()) << 32 | u64::from(at)
}

fn split(word: u64) -> (f32, u32) {
    (f32::from_bits((word >> 32) as u32), word as u32)
}

impl Loads {
    /// The service's endpoints are now these, and what they carry is counted so. What is known of others is forgotten; those
    /// that join others are new.
    pub fn settle(
        &self,
        endpoints: impl IntoIterator<Item = Endpoint>,
        carried: impl Fn(&Endpoint) -> Arc<AtomicU32>,
        now: Instant,
    ) -> Self {
        let since = (!self.known.is_empty()).then_some(now);
        let settled = endpoints.into_iter().map(|endpoint| {
            let load = self.known.get(&endpoint).cloned().unwrap_or_else(|| {
                Arc::new(Load {
                    since,
                    latency: Latency::new(now),
                    carried: carried(&endpoint),
                    errs: AtomicBool::new(false),
                })
            });
            (endpoint, load)
        });
        Self {
            known: settled.collect(),
        }
    }

    /// What is seen of an endpoint; none of one that is gone.
    pub fn of(&self, endpoint: &Endpoint) -> Option<&Load> {
        self.known.get(endpoint).map(|load| &**load)
    }

    /// An endpoint answered after this time. Of one that is gone it says nothing.
    pub fn answered(&self, endpoint: &Endpoint, after: Duration, now: Instant) {
        if let Some(load) = self.of(endpoint) {
            load.latency.observe(after, now);
        }
    }

    /// How long it has been there; none: longer than is known.
    pub fn age(&self, endpoint: &Endpoint, now: Instant) -> Option<Duration> {
        let since = self.of(endpoint)?.since?;
        Some(now.saturating_duration_since(since))
    }

    /// How many endpoints there are.
    pub fn count(&self) -> usize {
        self.known.len()
    }

    /// Requests and connections that it carries.
    pub fn carried(&self, endpoint: &Endpoint) -> u32 {
        self.of(endpoint)
            .map_or(0, |load| load.carried.load(Ordering::Relaxed))
    }

    /// What one more request to it costs: expected microseconds times requests.
    pub fn cost(&self, endpoint: &Endpoint) -> u64 {
        let carried = self.carried(endpoint);
        let requests = u64::from(carried) + 1;
        match self.of(endpoint).and_then(|load| load.latency.expected()) {
            Some(expected) => {
                let micros = u64::try_from(expected.as_micros()).unwrap_or(u64::MAX);
                micros.max(1).saturating_mul(requests)
            }
            // One request finds out.
            None if carried == 0 => 0,
            None => UNKNOWN.saturating_mul(requests),
        }
    }
}

impl Load {
    /// By which is counted what it carries.
    pub fn counter(&self) -> &Arc<AtomicU32> {
        &self.carried
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(name: &str) -> Endpoint {
        Endpoint {
            workload: name.into(),
            port: 80,
        }
    }

    fn milliseconds(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    fn settle(loads: &Loads, names: &[&str], now: Instant) -> Loads {
        let endpoints = names.iter().map(|name| at(name));
        loads.settle(endpoints, |_| Arc::default(), now)
    }

    fn carry(loads: &Loads, name: &str, requests: u32) {
        let load = loads.of(&at(name)).unwrap();
        load.counter().store(requests, Ordering::Relaxed);
    }

    #[test]
    fn peaks_count_at_once_and_fade() {
        let start = Instant::now();
        let latency = Latency::new(start);
        assert_eq!(latency.expected(), None);
        let expected = || latency.expected().unwrap();
        latency.observe(milliseconds(10), start);
        latency.observe(milliseconds(500), start + milliseconds(1));
        assert_eq!(expected(), milliseconds(500));
        // Many quick answers at the same moment change nothing; time does.
        for _ in 0..100 {
            latency.observe(milliseconds(10), start + milliseconds(1));
        }
        assert_eq!(expected(), milliseconds(500));
        latency.observe(milliseconds(10), start + FADES);
        assert!((150..250).contains(&expected().as_millis()), "{latency:?}");
        latency.observe(milliseconds(10), start + 10 * FADES);
        let late = expected();
        assert!((9..11).contains(&late.as_millis()), "{latency:?}");
        // A clock that is read out of order.
        latency.observe(milliseconds(5), start);
        assert_eq!(expected(), late);
    }

    /// Answers that come faster than the clock's step fade a peak as well.
    #[test]
    fn peaks_fade_under_load() {
        let start = Instant::now();
        let latency = Latency::new(start);
        latency.observe(milliseconds(500), start);
        for tenth in 1..=100_000 {
            latency.observe(milliseconds(1), start + tenth * Duration::from_micros(100));
        }
        let expected = latency.expected().unwrap().as_millis();
        assert!((180..190).contains(&expected), "{expected}");
    }

    #[test]
    fn costs_grow_with_requests_and_time() {
        let now = Instant::now();
        let loads = settle(&Loads::default(), &["slow", "quick", "new"], now);
        loads.answered(&at("slow"), milliseconds(100), now);
        loads.answered(&at("quick"), milliseconds(1), now);
        assert_eq!(loads.cost(&at("slow")), 100_000);
        carry(&loads, "quick", 9);
        assert_eq!(loads.cost(&at("quick")), 10_000);
        assert_eq!(loads.cost(&at("new")), 0);
        carry(&loads, "new", 1);
        carry(&loads, "slow", 1);
        assert!(loads.cost(&at("new")) > loads.cost(&at("slow")));
        carry(&loads, "quick", u32::MAX);
        assert_eq!(loads.cost(&at("quick")), 1000 * (1 << 32));
    }

    #[test]
    fn who_joins_others_is_new_and_who_is_gone_is_forgotten() {
        let start = Instant::now();
        let later = start + milliseconds(50);
        let loads = settle(&Loads::default(), &["a", "b"], start);
        assert_eq!(loads.age(&at("a"), later), None);
        loads.answered(&at("a"), milliseconds(7), start);
        let settled = settle(&loads, &["a", "c"], start);
        assert_eq!(settled.age(&at("c"), later), Some(milliseconds(50)));
        assert_eq!(settled.age(&at("a"), later), None);
        assert_eq!(settled.cost(&at("a")), 7000);
        // Who still looks at what was known before sees the same endpoint.
        loads.answered(&at("a"), milliseconds(8), start);
        assert_eq!(settled.cost(&at("a")), 8000);
        settled.answered(&at("b"), milliseconds(7), later);
        assert_eq!(settled.count(), 2);
    }
}
