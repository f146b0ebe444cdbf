// SPDX-License-Identifier: Apache-2.0
//! How long endpoints take to answer, and since when they have been there.
//!
//! In: a service's endpoints when they change, the time of each answer. Out: what is expected of each: the peak of late,
//! which fades. A slow answer counts at once and in full, a quick one only as time passes, so that an endpoint that
//! stalls is left before its clients have noticed by average.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use mesh::Endpoint;

/// After which time a peak counts by a third.
const FADES: Duration = Duration::from_secs(10);

/// What a request to an endpoint costs that has some already, and has answered none yet: nobody knows, so the others go
/// first.
const UNKNOWN: u64 = 1_000_000;

/// The endpoints of one service.
#[derive(Debug, Default)]
pub struct Loads {
    known: HashMap<Endpoint, Load>,
}

#[derive(Debug, Clone, Copy)]
struct Load {
    /// None for those that were there first.
    since: Option<Instant>,
    latency: Option<Latency>,
}

/// A peak that fades.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Latency {
    seconds: f64,
    at: Instant,
}

impl Latency {
    /// After a first answer.
    pub fn new(answered: Duration, now: Instant) -> Self {
        Self {
            seconds: answered.as_secs_f64(),
            at: now,
        }
    }

    /// After one more.
    pub fn observe(&mut self, answered: Duration, now: Instant) {
        let sample = answered.as_secs_f64();
        let elapsed = now.saturating_duration_since(self.at);
        let kept = (-elapsed.as_secs_f64() / FADES.as_secs_f64()).exp();
        self.seconds = match sample > self.seconds {
            true => sample,
            false => self.seconds * kept + sample * (1.0 - kept),
        };
        self.at = self.at.max(now);
    }

    /// What the next answer is expected to take.
    pub fn expected(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

impl Loads {
    /// The service's endpoints are now these. What is known of others is forgotten; those that join others are new.
    pub fn settle(&mut self, endpoints: impl IntoIterator<Item = Endpoint>, now: Instant) {
        let since = (!self.known.is_empty()).then_some(now);
        let new = Load {
            since,
            latency: None,
        };
        let mut before = std::mem::take(&mut self.known);
        let settled = endpoints.into_iter().map(|endpoint| {
            let load = before.remove(&endpoint).unwrap_or(new);
            (endpoint, load)
        });
        self.known = settled.collect();
    }

    /// An endpoint answered after this time. Of one that is gone it says nothing.
    pub fn answered(&mut self, endpoint: &Endpoint, after: Duration, now: Instant) {
        if let Some(load) = self.known.get_mut(endpoint) {
            match &mut load.latency {
                Some(latency) => latency.observe(after, now),
                none => *none = Some(Latency::new(after, now)),
            }
        }
    }

    /// How long it has been there; none: longer than is known.
    pub fn age(&self, endpoint: &Endpoint, now: Instant) -> Option<Duration> {
        let since = self.known.get(endpoint)?.since?;
        Some(now.saturating_duration_since(since))
    }

    /// How many endpoints there are.
    pub fn count(&self) -> usize {
        self.known.len()
    }

    /// What one more request to it costs that has so many under way: expected microseconds times requests.
    pub fn cost(&self, endpoint: &Endpoint, under_way: u32) -> u64 {
        let latency = self.known.get(endpoint).and_then(|load| load.latency);
        let requests = u64::from(under_way) + 1;
        match latency {
            Some(latency) => {
                let micros = u64::try_from(latency.expected().as_micros()).unwrap_or(u64::MAX);
                micros.max(1).saturating_mul(requests)
            }
            // One request finds out.
            None if under_way == 0 => 0,
            None => UNKNOWN.saturating_mul(requests),
        }
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

    #[test]
    fn peaks_count_at_once_and_fade() {
        let start = Instant::now();
        let mut latency = Latency::new(milliseconds(10), start);
        latency.observe(milliseconds(500), start + milliseconds(1));
        assert_eq!(latency.expected(), milliseconds(500));
        // Many quick answers at the same moment change nothing; time does.
        for _ in 0..100 {
            latency.observe(milliseconds(10), start + milliseconds(1));
        }
        assert_eq!(latency.expected(), milliseconds(500));
        latency.observe(milliseconds(10), start + FADES);
        assert!(
            (150..250).contains(&latency.expected().as_millis()),
            "{latency:?}"
        );
        latency.observe(milliseconds(10), start + 10 * FADES);
        assert!(
            (9..11).contains(&latency.expected().as_millis()),
            "{latency:?}"
        );
        // A clock that is read out of order.
        latency.observe(milliseconds(5), start);
        assert_eq!(latency.at, start + 10 * FADES);
    }

    #[test]
    fn costs_grow_with_requests_and_time() {
        let now = Instant::now();
        let mut loads = Loads::default();
        loads.settle([at("slow"), at("quick"), at("new")], now);
        loads.answered(&at("slow"), milliseconds(100), now);
        loads.answered(&at("quick"), milliseconds(1), now);
        assert_eq!(loads.cost(&at("slow"), 0), 100_000);
        assert_eq!(loads.cost(&at("quick"), 9), 10_000);
        assert_eq!(loads.cost(&at("new"), 0), 0);
        assert!(loads.cost(&at("new"), 1) > loads.cost(&at("slow"), 1));
        assert_eq!(loads.cost(&at("quick"), u32::MAX), 1000 * (1 << 32));
    }

    #[test]
    fn who_joins_others_is_new_and_who_is_gone_is_forgotten() {
        let start = Instant::now();
        let later = start + milliseconds(50);
        let mut loads = Loads::default();
        loads.settle([at("a"), at("b")], start);
        assert_eq!(loads.age(&at("a"), later), None);
        loads.answered(&at("a"), milliseconds(7), start);
        loads.settle([at("a"), at("c")], start);
        assert_eq!(loads.age(&at("c"), later), Some(milliseconds(50)));
        assert_eq!(loads.age(&at("a"), later), None);
        assert_eq!(loads.cost(&at("a"), 0), 7000);
        loads.answered(&at("b"), milliseconds(7), later);
        assert_eq!(loads.known.len(), 2);
    }
}
