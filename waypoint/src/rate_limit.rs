// SPDX-License-Identifier: Apache-2.0
//! How many requests a route takes: token buckets, of all that come or of each client, in this process. Pure but for the
//! store of the buckets.
//!
//! In: [`proto::waypoint::RateLimit`]; who asks, the time. Out: whether the request may come, and what its client is told.
//! A bucket is one number, the time at which it will be full again (GCRA: each request moves it on by a period's share).
//!
//! Buckets are kept by route, so that a push of the control plane fills none. There are at most [`MOST`]; what comes on top
//! shares one of its route, so that inventing clients buys nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderName, HeaderValue, header};
use parking_lot::Mutex;
use proto::waypoint::{self as wire, rate_limit::By as WireBy};
use spiffe::SpiffeId;

mod buckets;

pub use buckets::{Buckets, MOST};

/// What a route's annotation may say at most, of requests and of bursts.
const MOST_REQUESTS: u32 = 1_000_000;
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// What a bucket may take to fill, in nanoseconds: a century and a half. A burst that would take longer is cut to it.
const LONGEST_FILL: u64 = u64::MAX / 4;

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// A route's limit.
#[derive(Debug)]
pub struct RateLimit {
    /// The route, in words.
    pub route: Arc<str>,
    rate: Rate,
    by: By,
    /// For clients that there is no bucket for.
    others: Mutex<Bucket>,
}

/// So many in a burst, and one more every so often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rate {
    /// Nanoseconds after which one more may come.
    every: u64,
    burst: u32,
}

/// What the requests of one bucket have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
enum By {
    All,
    Identity,
    /// Requests without it share one.
    Header(HeaderName),
}

/// When it will be full again, in nanoseconds since the store was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Bucket(u64);

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    limit: u32,
    remaining: u32,
    /// Until the bucket is full.
    reset: Duration,
    /// How long the client has to wait; none where the request may come.
    pub wait: Option<Duration>,
}

impl RateLimit {
    /// Compiles a route's limit.
    ///
    /// # Errors
    /// Names what of it can't be honoured.
    pub fn compile(route: Arc<str>, limit: &wire::RateLimit) -> Result<Self, String> {
        let per = limit.per.and_then(|per| Duration::try_from(per).ok());
        let per = per.filter(|per| !per.is_zero() && *per <= LONGEST);
        let per = per.ok_or("rate_limit.per is no time from 1 ns to 24 h")?;
        let within = |field: &str, value: u32| match value {
            1..=MOST_REQUESTS => Ok(value),
            _ => Err(format!(
                "rate_limit.{field} {value} is not from 1 to {MOST_REQUESTS}"
            )),
        };
        let requests = within("requests", limit.requests)?;
        let burst = match limit.burst {
            0 => requests,
            burst => within("burst", burst)?,
        };
        let by = match &limit.by {
            None => By::All,
            Some(WireBy::Identity(())) => By::Identity,
            Some(WireBy::Header(name)) => {
                let bad = |_| format!("rate_limit.header {name:?} is no header's name");
                By::Header(name.parse().map_err(bad)?)
            }
        };
        let every = nanoseconds(per) / u64::from(requests);
        Ok(Self {
            route,
            rate: Rate {
                every: every.max(1),
                burst,
            },
            by,
            others: Mutex::default(),
        })
    }

    /// Which bucket of the route a request is for.
    fn key<'r>(&self, identity: &'r SpiffeId, headers: &'r HeaderMap) -> &'r [u8] {
        match &self.by {
            By::All => &[],
            By::Identity => identity.as_str().as_bytes(),
            By::Header(name) => headers.get(name).map_or(&[], HeaderValue::as_bytes),
        }
    }
}

impl Rate {
    fn take(self, bucket: &mut Bucket, now: u64) -> Taken {
        let full_at = bucket.0.max(now);
        let most = self.every.saturating_mul(u64::from(self.burst));
        let (owed, most) = (full_at - now, most.min(LONGEST_FILL));
        // One more has to fit in.
        let wait = (owed + self.every)
            .checked_sub(most)
            .filter(|wait| *wait > 0);
        let owed = match wait {
            Some(_) => owed,
            None => {
                bucket.0 = full_at + self.every;
                owed + self.every
            }
        };
        let remaining = most.saturating_sub(owed) / self.every;
        Taken {
            limit: self.burst,
            remaining: u32::try_from(remaining).unwrap_or(u32::MAX),
            reset: Duration::from_nanos(owed),
            wait: wait.map(Duration::from_nanos),
        }
    }
}

impl Taken {
    /// What the client is told of it.
    pub fn tell(&self, headers: &mut HeaderMap) {
        let told = [
            (LIMIT, Some(self.limit.into())),
            (REMAINING, Some(self.remaining.into())),
            (RESET, Some(seconds(self.reset))),
            (header::RETRY_AFTER, self.wait.map(seconds)),
        ];
        for (name, value) in told {
            if let Some(value) = value {
                // An answer that has too many headers already tells nothing.
                let _ = headers.try_insert(name, HeaderValue::from(value));
            }
        }
    }
}

/// Whole ones: who waits so long comes late enough.
fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
