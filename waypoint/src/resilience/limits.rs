// SPDX-License-Identifier: Apache-2.0
//! How much of a service's work may be under way at a time; what is beyond is refused at once, so that it doesn't pile up.
//!
//! In: work that begins and ends. Out: whether it may, or which limit is reached.

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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnderWay {
    counts: [u32; 4],
}

impl UnderWay {
    /// One more begins; [`Self::end`] must follow it once.
    ///
    /// # Errors
    /// If there are as many as there may be; then none has begun.
    pub fn begin(&mut self, work: Work, limits: &Limits) -> Result<(), Overflow> {
        let most = limits.of(work);
        let count = &mut self.counts[work as usize];
        if *count >= most {
            return Err(Overflow { work, most });
        }
        *count += 1;
        Ok(())
    }

    /// One of them ends.
    pub fn end(&mut self, work: Work) {
        let count = &mut self.counts[work as usize];
        *count = count.saturating_sub(1);
    }

    /// How many there are.
    pub fn count(&self, work: Work) -> u32 {
        self.counts[work as usize]
    }
}

impl Limits {
    fn of(&self, work: Work) -> u32 {
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
        let mut under_way = UnderWay::default();
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
}
