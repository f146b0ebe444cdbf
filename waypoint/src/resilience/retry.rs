// SPDX-License-Identifier: Apache-2.0
//! Whether a request is tried again, and when.
//!
//! In: the rule's policy, how the attempt ended, what is left of attempts, time and budget, randomness. Out: the wait
//! before the next attempt, or why there is none.
//!
//! Without a policy of its own a rule has what is safe for any request: it is tried again where no application can have
//! seen it, or where it does no harm that one has. A rule that states a policy asks for more: connections that break off, attempts that take too long, and the
//! statuses that it lists.

use std::time::Duration;

use rand::{Rng, RngExt};

/// Most retries that a rule may ask for; more would be a storm of their own.
const MOST_ATTEMPTS: u32 = 100;

/// How often a request is tried again that no application can have seen, or that may be sent twice.
const SAFE_ATTEMPTS: u32 = 2;

/// Least wait of a rule that states none.
const BACK_OFF: Duration = Duration::from_millis(25);

/// The longest wait, as a multiple of the least one.
const LONGEST: u32 = 10;

/// What a rule says of retries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryPolicy {
    /// How often at most, besides the first attempt.
    pub attempts: u32,
    conditions: Conditions,
    back_off: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Conditions {
    /// Nobody can have seen the request, or it may be sent twice.
    Safe,
    /// The connection failed at any time, the attempt took too long, or one of these came back.
    Stated(Box<[u16]>),
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// There was no connection to the endpoint.
    NotConnected,
    /// There was one, and its end said that the request was not processed: HTTP/2's REFUSED_STREAM, a GOAWAY that names
    /// an earlier stream, or an idle connection that closed before anything was sent on it.
    NotProcessed,
    /// The connection ended instead of answering, and the request may be sent twice without harm: as a rule it crossed with
    /// the end of the application (RFC 9110 §9.2.2).
    Crossed,
    /// The connection broke off after some of the request was sent, and no response had begun.
    BrokeOff,
    /// It took longer than an attempt may.
    TooLong,
    /// A response with this status.
    Status(u16),
}

/// What a decision goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// How it ended.
    pub outcome: Outcome,
    /// How many retries there were before.
    pub retries: u32,
    /// Whether the request can be sent once more: its body, if any, is all there.
    pub replayable: bool,
    /// How long the request may still take; none: as long as it likes.
    pub left: Option<Duration>,
}

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Another attempt after this time.
    Retry(Duration),
    /// Nothing: the client gets what there is.
    Stop(Stop),
}

/// Why there is no further attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// Nothing to be tried again.
    #[error("the outcome is final")]
    Final,
    /// There were enough: Envoy's flag URX.
    #[error("all retries are used up")]
    Attempts,
    /// Parts of the body are gone.
    #[error("the body can't be sent again")]
    Body,
    /// The request's time would be over before.
    #[error("no time is left for a retry")]
    Time,
    /// Too many requests of the service are being tried again: Envoy's flag UO.
    #[error("the budget for retries is used up")]
    Budget,
}

impl RetryPolicy {
    /// Of a rule without one: what is safe.
    pub(crate) fn compile(wire: Option<&proto::waypoint::Retry>) -> Result<Self, String> {
        let Some(wire) = wire else {
            return Ok(Self::safe());
        };
        let code = |code: &u32| match u16::try_from(*code) {
            Ok(code @ 400..=599) => Ok(code),
            _ => Err(format!("retry: {code} is not a status of an error")),
        };
        let codes: Result<_, _> = wire.codes.iter().map(code).collect();
        let back_off = wire.backoff.map(Duration::try_from).transpose();
        let back_off = back_off.map_err(|_| "retry: the back-off is negative".to_owned())?;
        Ok(Self {
            attempts: wire.attempts.min(MOST_ATTEMPTS),
            conditions: Conditions::Stated(codes?),
            back_off: back_off.unwrap_or(BACK_OFF),
        })
    }

    /// Twice, where no application can have seen the request. For services without routes too.
    pub fn safe() -> Self {
        Self {
            attempts: SAFE_ATTEMPTS,
            conditions: Conditions::Safe,
            back_off: BACK_OFF,
        }
    }

    /// Whether to try again after an attempt. `budget` is asked last, and only if all else allows it.
    pub fn decide(
        &self,
        attempt: Attempt,
        budget: impl FnOnce() -> bool,
        rng: &mut impl Rng,
    ) -> Next {
        if !self.covers(attempt.outcome) {
            return Next::Stop(Stop::Final);
        }
        if attempt.retries >= self.attempts {
            return Next::Stop(Stop::Attempts);
        }
        if !attempt.replayable {
            return Next::Stop(Stop::Body);
        }
        let wait = self.wait(attempt, rng);
        if attempt.left.is_some_and(|left| left <= wait) {
            return Next::Stop(Stop::Time);
        }
        match budget() {
            true => Next::Retry(wait),
            false => Next::Stop(Stop::Budget),
        }
    }

    /// Whether any response may lead to another attempt, so that its head has to be looked at.
    pub fn has_codes(&self) -> bool {
        matches!(&self.conditions, Conditions::Stated(codes) if !codes.is_empty())
    }

    fn covers(&self, outcome: Outcome) -> bool {
        match (outcome, &self.conditions) {
            (Outcome::NotConnected | Outcome::NotProcessed | Outcome::Crossed, _) => true,
            (_, Conditions::Safe) => false,
            (Outcome::BrokeOff | Outcome::TooLong, Conditions::Stated(_)) => true,
            (Outcome::Status(status), Conditions::Stated(codes)) => codes.contains(&status),
        }
    }

    /// At least what the rule says, and a random part of what doubles with each retry, up to ten times as much.
    fn wait(&self, attempt: Attempt, rng: &mut impl Rng) -> Duration {
        // An endpoint that isn't there says nothing of the next one, which is asked at once.
        if attempt.retries == 0 && self.conditions == Conditions::Safe {
            return Duration::ZERO;
        }
        let factor = 1_u32.checked_shl(attempt.retries + 1).unwrap_or(LONGEST);
        let longest = self.back_off.saturating_mul(factor.min(LONGEST));
        let spread = longest.saturating_sub(self.back_off);
        let jitter = spread.mul_f64(rng.random_range(0.0..1.0));
        self.back_off.saturating_add(jitter)
    }
}

/// How many of a service's requests may be on a retry at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// In percent of those that are under way.
    pub percent: u32,
    /// And at least so many.
    pub least: u32,
}

impl Default for Budget {
    /// Istio's and Envoy's.
    fn default() -> Self {
        Self {
            percent: 20,
            least: 3,
        }
    }
}

impl Budget {
    /// Whether one more may be tried again, beside so many requests under way, of which so many are on a retry.
    pub fn allows(self, under_way: u32, retrying: u32) -> bool {
        let share = u64::from(under_way) * u64::from(self.percent) / 100;
        u64::from(retrying) < share.max(u64::from(self.least))
    }
}

#[cfg(test)]
mod tests;
