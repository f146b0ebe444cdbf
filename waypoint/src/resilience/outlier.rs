// SPDX-License-Identifier: Apache-2.0
//! Leaves alone for a while what answers with errors again and again.
//!
//! ```text
//!              so many errors in a row, and not too many out
//!  counted ─────────────────────────────────────────────────► out, for a time times how often it was
//!     ▲                                                         │
//!     └──────────────────────── time is over ───────────────────┘
//! ```
//!
//! In: how attempts end, with the time. Out: who is out. Who can't be connected to is `mesh`'s to leave out. Never are so
//! many out that the rest could not carry the load: there is a largest share, and one always stays.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use mesh::Endpoint;

use super::retry::Outcome;

/// What counts, and what follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// So many of 502, 503, 504, and of connections that break off or take too long, in a row put an endpoint out. Zero:
    /// never.
    pub gateway: u32,
    /// So many of those and of every other 5xx. Zero: never.
    pub any: u32,
    /// How long it is out the first time; the second time twice as long, and so on.
    pub first: Duration,
    /// The longest.
    pub longest: Duration,
    /// Endpoints come back at multiples of it, and each one that they are well for is as good as not having been out once;
    /// none: they come back on time, and all is forgotten after the longest.
    pub interval: Option<Duration>,
    /// Most endpoints of a service that are out at a time, in percent; one may always be, where there are others.
    pub most: u32,
    /// With a smaller share of them well, in percent, all are used. Zero: only where none is well.
    pub least_well: u32,
}

impl Default for Policy {
    /// Envoy's figures. What an application says with 500 is its own affair.
    fn default() -> Self {
        Self {
            gateway: 5,
            any: 0,
            first: Duration::from_secs(30),
            longest: Duration::from_secs(300),
            interval: None,
            most: 10,
            least_well: 0,
        }
    }
}

/// What an endpoint is blamed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blame {
    Gateway,
    Other,
}

/// The endpoints of one service.
#[derive(Debug, Clone, Default)]
pub struct Outliers {
    suspects: HashMap<Endpoint, Suspect>,
}

#[derive(Debug, Clone, Copy)]
struct Suspect {
    /// Errors in a row.
    gateway: u32,
    any: u32,
    /// How often it was out.
    times: u32,
    until: Option<Instant>,
    /// When nothing of it need be known any more, unless it errs again.
    forgotten: Instant,
}

/// Errors that are so far apart are not in a row.
const APART: Duration = Duration::from_secs(600);

impl Outliers {
    /// An attempt ended. Says for how long its endpoint is out now, if this put it out. `of` so many endpoints.
    pub fn ended(
        &mut self,
        policy: &Policy,
        endpoint: &Endpoint,
        outcome: Outcome,
        of: usize,
        now: Instant,
    ) -> Option<Duration> {
        let Some(blame) = Blame::of(outcome).filter(|blame| policy.counts(*blame)) else {
            self.succeeded(policy, endpoint, now);
            return None;
        };
        // As many as there are endpoints, whatever comes and goes.
        if self.suspects.len() >= of.saturating_mul(2).max(16) {
            self.suspects.retain(|_, suspect| suspect.is_out(now));
        }
        let out = self.out(now).count();
        let suspect = self.suspects.entry(endpoint.clone()).or_insert(Suspect {
            gateway: 0,
            any: 0,
            times: 0,
            until: None,
            forgotten: now + APART,
        });
        suspect.forgotten = suspect.forgotten.max(now + APART);
        if suspect.is_out(now) {
            // It began before.
            return None;
        }
        suspect.any = suspect.any.saturating_add(1);
        suspect.gateway = match blame {
            Blame::Gateway => suspect.gateway.saturating_add(1),
            Blame::Other => 0,
        };
        let reached = |limit: u32, count: u32| limit > 0 && count >= limit;
        let is_enough =
            reached(policy.gateway, suspect.gateway) || reached(policy.any, suspect.any);
        if !is_enough || out >= policy.most_of(of) {
            return None;
        }
        (suspect.gateway, suspect.any) = (0, 0);
        suspect.times = suspect.remembered(policy, now).saturating_add(1);
        let out_for = policy
            .first
            .saturating_mul(suspect.times)
            .min(policy.longest);
        let out_for = policy.interval.map_or(out_for, |interval| {
            let times = out_for.as_nanos().div_ceil(interval.as_nanos().max(1));
            interval.saturating_mul(u32::try_from(times).unwrap_or(u32::MAX))
        });
        suspect.until = Some(now + out_for);
        suspect.forgotten = now + out_for + policy.longest;
        Some(out_for)
    }

    /// Errors have to come in a row; how often it was out is forgotten with time.
    fn succeeded(&mut self, policy: &Policy, endpoint: &Endpoint, now: Instant) {
        let Some(suspect) = self.suspects.get_mut(endpoint) else {
            return;
        };
        (suspect.gateway, suspect.any) = (0, 0);
        if suspect.remembered(policy, now) == 0 {
            self.suspects.remove(endpoint);
        }
    }

    /// Whether its last answer was an error that counts.
    pub fn errs(&self, endpoint: &Endpoint) -> bool {
        let suspect = self.suspects.get(endpoint);
        suspect.is_some_and(|suspect| suspect.gateway > 0 || suspect.any > 0)
    }

    /// Whether an answer is an error that counts.
    pub fn counts(policy: &Policy, outcome: Outcome) -> bool {
        Blame::of(outcome).is_some_and(|blame| policy.counts(blame))
    }

    /// Forgets those of whom nothing was heard for long, as they may be gone; call it now and then.
    pub fn expire(&mut self, now: Instant) {
        self.suspects.retain(|_, suspect| now < suspect.forgotten);
    }

    /// Whether it is to be left alone.
    pub fn is_out(&self, endpoint: &Endpoint, now: Instant) -> bool {
        let suspect = self.suspects.get(endpoint);
        suspect.is_some_and(|suspect| suspect.is_out(now))
    }

    /// Who is, and until when.
    pub fn out(&self, now: Instant) -> impl Iterator<Item = (&Endpoint, Instant)> {
        let suspects = self.suspects.iter();
        suspects.filter_map(move |(endpoint, suspect)| {
            let until = suspect.until.filter(|until| now < *until)?;
            Some((endpoint, until))
        })
    }
}

impl Suspect {
    /// How often it was out, as far as that counts yet.
    fn remembered(&self, policy: &Policy, now: Instant) -> u32 {
        let Some(until) = self.until else {
            return 0;
        };
        let well = now.saturating_duration_since(until);
        match policy.interval {
            None if well > policy.longest => 0,
            None => self.times,
            Some(interval) => {
                let forgiven = well.as_nanos() / interval.as_nanos().max(1);
                let forgiven = u32::try_from(forgiven).unwrap_or(u32::MAX);
                self.times.saturating_sub(forgiven)
            }
        }
    }

    fn is_out(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }
}

impl Policy {
    fn counts(&self, blame: Blame) -> bool {
        self.any > 0 || (blame == Blame::Gateway && self.gateway > 0)
    }

    fn most_of(&self, endpoints: usize) -> usize {
        let share = endpoints.saturating_mul(self.most as usize) / 100;
        share.max(1).min(endpoints.saturating_sub(1))
    }
}

impl Blame {
    fn of(outcome: Outcome) -> Option<Self> {
        match outcome {
            // Who ends a connection under a request once may be about to leave; five times in a row it is not well.
            Outcome::Crossed
            | Outcome::BrokeOff
            | Outcome::TooLong
            | Outcome::Status(502..=504) => Some(Self::Gateway),
            Outcome::Status(500..=599) => Some(Self::Other),
            Outcome::Status(_) | Outcome::NotConnected | Outcome::NotProcessed => None,
        }
    }
}

#[cfg(test)]
mod tests;
