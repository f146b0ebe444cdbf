// SPDX-License-Identifier: Apache-2.0
//! What all workers saw of one port of a service: who answers how soon, who with errors, and how much is under way.
//!
//! In: attempts as they begin, are answered and end; the port's policy, which is the caller's and may change. Out: an
//! endpoint for the next attempt, and whether there may be one. The figures are `resilience`'s; this is what keeps them.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mesh::balance::{self, PortRule, Upstream};
use mesh::{Endpoint, NoEndpoint, Seen, Service, Store, Workload};
use parking_lot::Mutex;
use rand::Rng;

use super::carried::Carried;
use super::queue::Queue;
use super::snapshot::Snapshot;
use crate::resilience::hash::Key;
use crate::resilience::limits::{Limits, Overflow, UnderWay, Work};
use crate::resilience::load::Loads;
use crate::resilience::outlier::Outliers;
use crate::resilience::pick::{self, Strategy};
use crate::resilience::retry::Outcome;
use crate::resilience::traffic::{Balancing, TrafficPolicy};
use crate::session::Pin;

/// What an answer with an error counts as at least: who fails quickly is no quick endpoint.
const FAILED: Duration = Duration::from_secs(1);

/// Workers meet here for every request, so that each finds its figures without waiting for another; only an error, or the
/// first answer after one, waits for its turn.
#[derive(Default)]
pub struct Observed {
    endpoints: Snapshot<Settled>,
    carried: Arc<Carried>,
    /// With who was put out last.
    out: Snapshot<Outliers>,
    /// With every error.
    outliers: Mutex<Outliers>,
    under_way: UnderWay,
    turn: AtomicU64,
    /// Those that wait for a connection, or for the place of one.
    pub queue: Queue,
}

/// The endpoints, as of one generation of the store.
#[derive(Default)]
struct Settled {
    generation: Option<u64>,
    /// Those of them that counted; none: all.
    counting: Option<Arc<BTreeSet<String>>>,
    loads: Loads,
}

/// Work that is under way until this is dropped.
pub struct Begun {
    observed: Arc<Observed>,
    work: Work,
}

/// What an attempt asks for.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    pub service: &'a Arc<Service>,
    pub port: u16,
    pub policy: &'a TrafficPolicy,
    pub key: Option<Key>,
    pub pin: Option<Pin>,
}

impl Settled {
    fn is_of(&self, counting: Option<&Arc<BTreeSet<String>>>) -> bool {
        match (&self.counting, counting) {
            (Some(own), Some(counting)) => Arc::ptr_eq(own, counting),
            (own, counting) => own.is_none() && counting.is_none(),
        }
    }
}

impl Observed {
    /// Of a destination whose endpoints carry what is counted there.
    pub(super) fn new(carried: &Arc<Carried>) -> Self {
        Self {
            carried: Arc::clone(carried),
            ..Self::default()
        }
    }

    /// By which is counted what an endpoint carries.
    pub(super) fn counter(&self, endpoint: &Endpoint) -> Arc<AtomicU32> {
        match self.endpoints.read().loads.of(endpoint) {
            Some(load) => Arc::clone(load.counter()),
            None => self.carried.of(endpoint),
        }
    }

    /// More work of a kind.
    ///
    /// # Errors
    /// If there is as much as may be.
    pub fn begin(self: &Arc<Self>, work: Work, limits: &Limits) -> Result<Begun, Overflow> {
        self.under_way.begin(work, limits)?;
        Ok(self.begun(work))
    }

    /// One more retry; none where the budget, or the limit, allows no more.
    pub fn retry(self: &Arc<Self>, policy: &TrafficPolicy) -> Option<Begun> {
        let requests = self.under_way.count(Work::Request);
        let most = policy.limits.of(Work::Retry);
        let may = |retries| retries < most && policy.budget.allows(requests, retries);
        let may = self.under_way.begin_if(Work::Retry, may);
        may.then(|| self.begun(Work::Retry))
    }

    fn begun(self: &Arc<Self>, work: Work) -> Begun {
        Begun {
            observed: Arc::clone(self),
            work,
        }
    }

    /// Picks an endpoint, as a workload at `source`.
    ///
    /// # Errors
    /// Names what left no endpoint.
    pub fn pick(
        &self,
        store: &Store,
        source: &Workload,
        asked: Asked<'_>,
        seen: Seen<'_>,
        rng: &mut impl Rng,
    ) -> Result<Upstream, NoEndpoint> {
        let Asked {
            service,
            port,
            policy,
            ..
        } = asked;
        let generation = Some(store.generation());
        let counting = policy.workloads();
        let settled = self.endpoints.settled(
            |settled| settled.generation == generation && settled.is_of(counting),
            |before| {
                let rule = PortRule::Defined;
                // Who is not ready is not there: when it is, it is new.
                let ready = balance::permitted(store, service, source, port, rule, &[]);
                let ready = ready.unwrap_or_default();
                let ready = ready.iter().map(balance::endpoint).filter(|endpoint| {
                    counting.is_none_or(|counting| counting.contains(&*endpoint.workload))
                });
                let carried = |endpoint: &Endpoint| self.carried.of(endpoint);
                Settled {
                    generation,
                    counting: counting.cloned(),
                    loads: before.loads.settle(ready, carried, seen.now),
                }
            },
        );
        let out = self.out.read();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let strategy = match (&policy.balancing, asked.key) {
            (Balancing::Hash(_), Some(key)) => Strategy::Hash(key),
            (Balancing::PeakEwma | Balancing::Hash(_), _) => Strategy::PeakEwma,
            (Balancing::LeastRequest, _) => Strategy::LeastRequest,
            (Balancing::RoundRobin, _) => Strategy::RoundRobin(turn),
            (Balancing::Random, _) => Strategy::Random,
        };
        let observed = pick::Observed {
            seen,
            outliers: &out,
            loads: &settled.loads,
            slow_start: policy.slow_start,
            least_well: policy.outliers.least_well,
            members: counting.map(|counting| &**counting),
            locality: policy.locality.as_ref(),
        };
        let asked = pick::Asked {
            service,
            port,
            pin: asked.pin,
            strategy,
        };
        pick::pick(store, source, asked, observed, rng)
    }

    /// An attempt ended so, after this time. Says for how long its endpoint is left alone now, if this is why.
    pub fn ended(
        &self,
        policy: &TrafficPolicy,
        endpoint: &Endpoint,
        outcome: Outcome,
        took: Duration,
        now: Instant,
    ) -> Option<Duration> {
        let took = match outcome {
            Outcome::Status(..500) => took,
            Outcome::Status(_) | Outcome::Crossed | Outcome::BrokeOff | Outcome::TooLong => {
                took.max(FAILED)
            }
            // It has seen nothing of the request.
            Outcome::NotConnected | Outcome::NotProcessed => return None,
        };
        let settled = self.endpoints.read();
        let loads = &settled.loads;
        let load = loads.of(endpoint);
        loads.answered(endpoint, took, now);
        let erred = load.is_some_and(|load| load.errs.load(Ordering::Relaxed));
        if !erred && !Outliers::counts(&policy.outliers, outcome) {
            return None;
        }
        let mut outliers = self.outliers.lock();
        let of = loads.count();
        let out_for = outliers.ended(&policy.outliers, endpoint, outcome, of, now);
        if let Some(load) = load {
            load.errs.store(outliers.errs(endpoint), Ordering::Relaxed);
        }
        if out_for.is_some() {
            self.out.change(|out| *out = outliers.clone());
        }
        out_for
    }

    /// Forgets endpoints of which nothing was heard for long; call it now and then.
    pub fn expire(&self, now: Instant) {
        self.outliers.lock().expire(now);
    }

    /// Who is left alone because of its errors, and for how long yet.
    pub fn out(&self, now: Instant) -> Vec<(Endpoint, Duration)> {
        let outliers = self.out.read();
        let out = outliers.out(now);
        out.map(|(endpoint, until)| (endpoint.clone(), until.duration_since(now)))
            .collect()
    }

    /// Whether anybody is.
    pub fn has_any_out(&self, now: Instant) -> bool {
        self.out.read().out(now).next().is_some()
    }

    /// A connection to that endpoint can take another request.
    pub fn freed(&self, leads_to: SocketAddr) {
        self.queue.call(Some(leads_to));
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.observed.under_way.end(self.work);
        if self.work == Work::Connection {
            self.observed.queue.call(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::resilience::retry::Budget;

    fn policy(limits: Limits) -> TrafficPolicy {
        TrafficPolicy {
            limits,
            ..TrafficPolicy::default()
        }
    }

    #[test]
    fn retries_are_a_share_of_what_is_under_way_at_this_service() {
        let observed = Arc::<Observed>::default();
        let other = Arc::<Observed>::default();
        let policy = TrafficPolicy {
            budget: Budget {
                percent: 20,
                least: 1,
            },
            ..TrafficPolicy::default()
        };
        let requests = || observed.begin(Work::Request, &policy.limits);
        let requests: Vec<_> = (0..10).map(|_| requests().ok()).collect();
        let retries: Vec<_> = (0..3).map_while(|_| observed.retry(&policy)).collect();
        assert_eq!(retries.len(), 2);
        // What one service tries again takes nothing from another.
        assert!(other.retry(&policy).is_some());
        drop(retries);
        assert!(observed.retry(&policy).is_some());
        drop(requests);
        let one = observed.retry(&policy);
        assert!(one.is_some() && observed.retry(&policy).is_none());
        let none = policy_without_retries();
        assert!(other.retry(&none).is_none());
    }

    fn policy_without_retries() -> TrafficPolicy {
        policy(Limits {
            retries: 0,
            ..Limits::default()
        })
    }

    #[test]
    fn who_waits_for_a_place_is_told_of_it() {
        let observed = Arc::<Observed>::default();
        let limits = Limits {
            connections: 1,
            ..Limits::default()
        };
        let connection = observed.begin(Work::Connection, &limits).ok().unwrap();
        assert!(observed.begin(Work::Connection, &limits).is_err());
        let to = SocketAddr::from(([10, 0, 0, 1], 80));
        let mut queued = observed.queue.join(to);
        assert!(queued.room().now_or_never().is_none());
        observed.freed(to);
        assert!(queued.room().now_or_never().is_some());
        drop(connection);
        assert!(queued.room().now_or_never().is_some());
        assert!(observed.begin(Work::Connection, &limits).is_ok());
    }
}
