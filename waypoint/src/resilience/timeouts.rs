// SPDX-License-Identifier: Apache-2.0
//! Until when a request and each of its attempts may last.
//!
//! In: what a rule says, when the request began. Out: the deadline of an attempt, and which limit it is that ends it.

use std::time::{Duration, Instant};

/// Longest limit that is one; anything beyond is as good as none.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// A rule's limits. None: unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timeouts {
    /// Of the whole request, its retries and waits between them.
    pub request: Option<Duration>,
    /// Of one attempt, from where it begins to the end of its response.
    pub attempt: Option<Duration>,
}

/// When a request has to be over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    request: Option<Instant>,
    attempt: Option<Duration>,
}

/// Which limit is over: the client is answered 504 for either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Expiry {
    /// The request's: nothing more is tried.
    #[error("the request took longer than its route allows")]
    Request,
    /// The attempt's: another may follow.
    #[error("the attempt took longer than its route allows")]
    Attempt,
}

impl Timeouts {
    pub(crate) fn compile(wire: Option<&proto::waypoint::Timeouts>) -> Result<Self, String> {
        let Some(wire) = wire else {
            return Ok(Self::default());
        };
        Ok(Self {
            request: limit("request timeout", wire.request)?,
            attempt: limit("backend request timeout", wire.backend_request)?,
        })
    }

    /// For a request that begins now.
    pub fn begin(self, now: Instant) -> Deadlines {
        Deadlines {
            request: self.request.map(|limit| now + limit),
            attempt: self.attempt,
        }
    }
}

/// A limit of zero is none, as in Gateway API.
fn limit<D: TryInto<Duration>>(name: &str, wire: Option<D>) -> Result<Option<Duration>, String> {
    let limit = wire.map(TryInto::try_into).transpose();
    let limit = limit.map_err(|_| format!("the {name} is negative"))?;
    Ok(limit.filter(|limit| !limit.is_zero() && *limit < LONGEST))
}

impl Deadlines {
    /// When an attempt that begins now has to be over, and by which limit.
    pub fn attempt(&self, now: Instant) -> Option<(Instant, Expiry)> {
        let own = self.attempt.map(|limit| (now + limit, Expiry::Attempt));
        let whole = self.request.map(|request| (request, Expiry::Request));
        match (own, whole) {
            (Some(own), Some(whole)) => Some(if own.0 < whole.0 { own } else { whole }),
            (own, whole) => own.or(whole),
        }
    }

    /// How long the request may still take; none: as long as it likes.
    pub fn left(&self, now: Instant) -> Option<Duration> {
        let request = self.request?;
        Some(request.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn milliseconds(time: u64) -> Option<Duration> {
        Some(Duration::from_millis(time))
    }

    #[test]
    fn the_earlier_limit_ends_an_attempt() {
        let start = Instant::now();
        let after = |time| start + Duration::from_millis(time);
        let limits = |request, attempt| Timeouts { request, attempt }.begin(start);
        assert_eq!(limits(None, None).attempt(start), None);
        assert_eq!(limits(None, None).left(start), None);
        let both = limits(milliseconds(400), milliseconds(150));
        assert_eq!(both.attempt(start), Some((after(150), Expiry::Attempt)));
        assert_eq!(
            both.attempt(after(200)),
            Some((after(350), Expiry::Attempt))
        );
        // Both at once: nothing could follow, so it is the request's.
        assert_eq!(
            both.attempt(after(250)),
            Some((after(400), Expiry::Request))
        );
        assert_eq!(
            both.attempt(after(300)),
            Some((after(400), Expiry::Request))
        );
        assert_eq!(both.left(after(300)), milliseconds(100));
        assert_eq!(both.left(after(500)), milliseconds(0));
        let whole = limits(milliseconds(400), None);
        assert_eq!(whole.attempt(after(1)), Some((after(400), Expiry::Request)));
    }

    #[test]
    fn zero_disables_and_nonsense_is_refused() {
        let wire = |seconds, nanos| Some(prost_types::Duration { seconds, nanos });
        let compile = |request, backend_request| {
            Timeouts::compile(Some(&proto::waypoint::Timeouts {
                request,
                backend_request,
            }))
        };
        assert_eq!(Timeouts::compile(None), Ok(Timeouts::default()));
        // K01, K03, K05
        let set = compile(wire(0, 500_000_000), wire(0, 0)).unwrap();
        assert_eq!(set.request, milliseconds(500));
        assert_eq!(set.attempt, None);
        assert_eq!(compile(wire(0, 0), None), Ok(Timeouts::default()));
        assert_eq!(compile(wire(i64::MAX, 0), None), Ok(Timeouts::default()));
        let negative = Err("the backend request timeout is negative".to_owned());
        assert_eq!(compile(None, wire(-1, 0)), negative);
    }
}
