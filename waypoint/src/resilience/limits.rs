// SPDX-License-Identifier: Apache-2.0
//! How much of a service's work may be under way at a time; what is beyond is refused at once, so that it doesn't pile up.
//!
//! In: work that begins and ends, on whichever thread. Out: whether it may, or which limit is reached.

use std::sync::atomic::{AtomicU32, Ordering};

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Connections to endpoints.
    Connection,
    /// Requests that wait for a connection.
    Waiting,
    /// Requests that an endpoint has.
    Request,
    /// Requests that are being tried again.
    Retry,
}

/// Most of each. `u32::MAX`: unlimited, as in Istio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Of [`Work::Connection`].
    pub connections: u32,
    /// Of [`Work::Waiting`].
    pub waiting: u32,
    /// Of [`Work::Request`].
    pub requests: u32,
    /// Of [`Work::Retry`].
    pub retries: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: u32::MAX,
            waiting: u32::MAX,
            requests: u32::MAX,
            retries: u32::MAX,
        }
    }
}

/// A limit is reached: the client is answered 503, with Envoy's flag UO.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{most} {} are under way, which is the limit", self.work.plural())]
pub struct Overflow {
    /// Which one.
    pub work: Work,
    /// What it is.
    pub most: u32,
}

/// What is under way.
#[derive(Debug, Default)]
pub struct UnderWay {
    counts: [AtomicU32; 4],
}

impl UnderWay {
    /// One more begins; [`Self::end`] must follow it once.
    ///
    /// # Errors
    /// If there are as many as there may be; then none has begun.
    pub fn begin(&self, work: Work, limits: &Limits) -> Result<(), Overflow> {
        let most = limits.of(work);
        match self.begin_if(work, |count| count < most) {
            true => Ok(()),
            false => Err(Overflow { work, most }),
        }
    }

    /// One more begins, if that is right for as many as there are. Says whether it has; then [`Self::end`] must follow it
    /// once.
    pub fn begin_if(&self, work: Work, is_right: impl Fn(u32) -> bool) -> bool {
        let one_more = |count| is_right(count).then(|| count + 1);
        self.counts[work as usize]
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more)
            .is_ok()
    }

    /// One of them ends.
    pub fn end(&self, work: Work) {
        self.counts[work as usize].fetch_sub(1, Ordering::AcqRel);
    }

    /// How many there are.
    pub fn count(&self, work: Work) -> u32 {
        self.counts[work as usize].load(Ordering::Acquire)
    }
}

impl Limits {
    /// Most of a kind.
    pub fn of(&self, work: Work) -> u32 {
        match work {
            Work::Connection => self.connections,
            Work::Waiting => self.waiting,
            Work::Request => self.requests,
            Work::Retry => self.retries,
        }
    }
}

impl Work {
    fn plural(self) -> &'static str {
        match self {
            Self::Connection => "connections",
            Self::Waiting => "waiting requests",
            Self::Request => "requests",
            Self::Retry => "retries",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_own_limit() {
        let limits = Limits {
            requests: 2,
            waiting: 0,
            ..Limits::default()
        };
        let under_way = UnderWay::default();
        assert_eq!(under_way.begin(Work::Request, &limits), Ok(()));
        assert_eq!(under_way.begin(Work::Request, &limits), Ok(()));
        let refused = under_way.begin(Work::Request, &limits).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "2 requests are under way, which is the limit"
        );
        assert_eq!(under_way.count(Work::Request), 2);
        let refused = under_way.begin(Work::Waiting, &limits).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "0 waiting requests are under way, which is the limit"
        );
        assert_eq!(under_way.begin(Work::Retry, &limits), Ok(()));
        under_way.end(Work::Request);
        assert_eq!(under_way.begin(Work::Request, &limits), Ok(()));
    }

    #[test]
    fn no_more_begin_than_may_whoever_begins_them() {
        let (under_way, begun) = (UnderWay::default(), AtomicU32::new(0));
        let limits = Limits {
            requests: 7,
            ..Limits::default()
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        if under_way.begin(Work::Request, &limits).is_ok() {
                            let others = begun.fetch_add(1, Ordering::SeqCst);
                            assert!(others < 7, "{others}");
                            begun.fetch_sub(1, Ordering::SeqCst);
                            under_way.end(Work::Request);
                        }
                    }
                });
            }
        });
        assert_eq!(under_way.count(Work::Request), 0);
    }
}
