// SPDX-License-Identifier: Apache-2.0
//! What this node has seen of endpoints itself: which failed to connect and are left alone for a while, and how many
//! connections each carries now.
//!
//! ```text
//!                failed                     back-off over
//!  trusted ─────────────────► out ─────────────────────────► on trial ──┐
//!     ▲                        ▲                                │  one attempt; the others still avoid it
//!     │ succeeded              └── failed: twice as long out ───┤
//!     └─────────────────────────────────────────────────────────┘
//! ```
//!
//! In: attempts as they begin, fail, succeed and end, each with the time. Out: whether to avoid an endpoint, and its
//! load. What a control plane says of an endpoint's health comes first; this only bridges the time until it says so.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An application's port on a workload: what connects, or doesn't, independently of others.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    /// The workload's uid.
    pub workload: Arc<str>,
    /// The port that its application serves.
    pub port: u16,
}

/// How long failing endpoints are left alone, and how many are remembered.
#[derive(Debug, Clone, Copy)]
pub struct BackOff {
    /// After the first failure; it doubles with each further one.
    pub first: Duration,
    /// The longest.
    pub longest: Duration,
    /// How long the one attempt on trial has before another may be made.
    pub trial: Duration,
    /// An endpoint that was not tried for so long after its time was up starts afresh.
    pub forget: Duration,
    /// Endpoints remembered at most; the one that comes back first makes room.
    pub remembered: usize,
}

impl Default for BackOff {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(2),
            longest: Duration::from_secs(60),
            trial: Duration::from_secs(5),
            forget: Duration::from_secs(120),
            remembered: 4096,
        }
    }
}

/// What is known of an endpoint that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failing {
    /// Failures in a row, those of attempts that began before it was out not counted.
    pub failures: u32,
    /// Until when it is left alone.
    pub until: Instant,
    /// Whether an attempt on trial is under way.
    on_trial: bool,
}

/// All endpoints that carry a connection or failed lately.
#[derive(Debug, Clone, Default)]
pub struct Standings {
    back_off: BackOff,
    /// Never zero. As many as there are open connections, at most.
    open: HashMap<Endpoint, u32>,
    failing: HashMap<Endpoint, Failing>,
}

impl Standings {
    /// Nothing seen yet.
    pub fn new(back_off: BackOff) -> Self {
        Self {
            back_off,
            ..Self::default()
        }
    }

    /// Whether the endpoint had better be avoided now.
    pub fn is_out(&self, endpoint: &Endpoint, now: Instant) -> bool {
        let failing = self.failing.get(endpoint);
        failing.is_some_and(|failing| now < failing.until)
    }

    /// Whether every endpoint is as good as any other: nothing has failed lately.
    pub fn all_trusted(&self) -> bool {
        self.failing.is_empty()
    }

    /// Whether it failed lately, and may have to be forgiven.
    pub fn is_failing(&self, endpoint: &Endpoint) -> bool {
        self.failing.contains_key(endpoint)
    }

    /// Connections to the endpoint that are open or being opened.
    pub fn load(&self, endpoint: &Endpoint) -> u32 {
        self.open.get(endpoint).copied().unwrap_or_default()
    }

    /// An attempt begins; [`Self::ended`] must follow it once.
    pub fn began(&mut self, endpoint: &Endpoint, now: Instant) {
        *self.open.entry(endpoint.clone()).or_default() += 1;
        self.tried(endpoint, now);
    }

    /// An attempt begins, whose load is counted elsewhere.
    pub fn tried(&mut self, endpoint: &Endpoint, now: Instant) {
        if let Some(failing) = self.failing.get_mut(endpoint)
            && failing.until <= now
        {
            failing.until = now + self.back_off.trial;
            failing.on_trial = true;
        }
    }

    /// An attempt or the connection that it became is over.
    pub fn ended(&mut self, endpoint: &Endpoint) {
        if let Some(open) = self.open.get_mut(endpoint) {
            *open -= 1;
            if *open == 0 {
                self.open.remove(endpoint);
            }
        }
    }

    /// An attempt failed by the endpoint's fault. Says for how long it is out now; nothing where it was out already.
    pub fn failed(&mut self, endpoint: &Endpoint, now: Instant) -> Option<Duration> {
        let earlier = self.failing.get(endpoint).copied();
        let failures = match earlier {
            // A crowd that fails together is one failure.
            Some(failing) if now < failing.until && !failing.on_trial => return None,
            Some(failing) if now < failing.until + self.back_off.forget => failing.failures,
            _ => 0,
        };
        if earlier.is_none() {
            self.make_room(now);
        }
        let BackOff { first, longest, .. } = self.back_off;
        let factor = 1_u32.checked_shl(failures).unwrap_or(u32::MAX);
        let out_for = first.saturating_mul(factor).min(longest);
        let failing = Failing {
            failures: failures.saturating_add(1),
            until: now + out_for,
            on_trial: false,
        };
        self.failing.insert(endpoint.clone(), failing);
        Some(out_for)
    }

    /// An attempt succeeded: all is forgiven. Says whether there was something to forgive.
    pub fn succeeded(&mut self, endpoint: &Endpoint) -> bool {
        self.failing.remove(endpoint).is_some()
    }

    /// Forgets those that nobody has tried for long, as they may be gone; call it now and then.
    pub fn forget(&mut self, now: Instant) {
        let forget = self.back_off.forget;
        self.failing
            .retain(|_, failing| now < failing.until + forget);
    }

    /// The endpoints that are out now.
    pub fn out(&self, now: Instant) -> impl Iterator<Item = (&Endpoint, &Failing)> {
        let failing = self.failing.iter();
        failing.filter(move |(_, failing)| now < failing.until)
    }

    fn make_room(&mut self, now: Instant) {
        let remembered = self.back_off.remembered;
        if self.failing.len() < remembered {
            return;
        }
        self.forget(now);
        while self.failing.len() >= remembered.max(1) {
            let first_back = self.failing.iter().min_by_key(|(_, failing)| failing.until);
            let Some(endpoint) = first_back.map(|(endpoint, _)| endpoint.clone()) else {
                return;
            };
            self.failing.remove(&endpoint);
        }
    }
}

/// What one connection's choice of an endpoint goes by, beside what the control plane says.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// What this node has seen.
    pub standings: &'a Standings,
    /// What this very connection has tried already.
    pub tried: &'a [Endpoint],
    /// The time.
    pub now: Instant,
}

#[cfg(test)]
mod tests;
