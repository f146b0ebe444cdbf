// SPDX-License-Identifier: Apache-2.0
//! Picks the endpoint for one attempt of a request.
//!
//! ```text
//! mesh: ready, reachable, not tried ─► the session's own ──────────────────────────────────────► one
//!                                   └► not out ─► mesh: not failing, best locality ─► hash, load ─┘
//!                                                 (by the service, or else by its rules)
//! ```
//!
//! In: what `mesh` knows, what was seen of endpoints, the request's session and key, randomness. Out: an endpoint, or what
//! left none. Where all that may be used are out, they are used: nobody can say which is better.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use mesh::balance::{self, Candidate, PortRule, Upstream};
use mesh::{Endpoint, NoEndpoint, Seen, Service, Standings, Store, Workload};
use rand::{Rng, RngExt as _};

use super::hash::{self, Key};
use super::load::Loads;
use super::locality::Locality;
use super::outlier::Outliers;
use super::slow_start::SlowStart;
use crate::session::Pin;

/// How one of several endpoints that are as good is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Strategy {
    /// Of two drawn by weight, the one with fewer requests for its weight.
    #[default]
    LeastRequest,
    /// Of two drawn by weight, the one that is expected to answer sooner.
    PeakEwma,
    /// One after the other, each as often as it weighs: this is so manieth.
    RoundRobin(u64),
    /// One by weight, whatever it has to do.
    Random,
    /// The one that this key belongs to.
    Hash(Key),
}

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// An endpoint of this service.
    pub service: &'a Arc<Service>,
    /// On this port of it.
    pub port: u16,
    /// Where the client was before, if it is to come back.
    pub pin: Option<Pin>,
    /// How to choose.
    pub strategy: Strategy,
}

/// What was seen of the service's endpoints.
#[derive(Debug, Clone, Copy)]
pub struct Observed<'a> {
    /// What `mesh` goes by: who fails to connect, what was tried, the time.
    pub seen: Seen<'a>,
    /// Who answers with errors.
    pub outliers: &'a Outliers,
    /// Who carries how much, answers how soon, and is how new.
    pub loads: &'a Loads,
    /// What new endpoints get.
    pub slow_start: SlowStart,
    /// With a smaller share of the endpoints well, in percent, all are used.
    pub least_well: u32,
    /// Those that count, by uid; none: all of them.
    pub members: Option<&'a BTreeSet<String>>,
    /// Which of them, by where they are; none: as the service has it.
    pub locality: Option<&'a Locality>,
}

/// Picks an endpoint, as a workload at `source`.
///
/// # Errors
/// Names what left no endpoint.
pub fn pick(
    store: &Store,
    source: &Workload,
    asked: Asked<'_>,
    observed: Observed<'_>,
    rng: &mut impl Rng,
) -> Result<Upstream, NoEndpoint> {
    let Asked { service, port, .. } = asked;
    let Observed { seen, outliers, .. } = observed;
    let rule = PortRule::Defined;
    let mut permitted = balance::permitted(store, service, source, port, rule, seen.tried)?;
    if let Some(members) = observed.members {
        permitted.retain(|(workload, _)| members.contains(&*workload.uid));
        if permitted.is_empty() {
            return Err(match seen.tried {
                [] => NoEndpoint::Empty,
                _ => NoEndpoint::AllTried,
            });
        }
    }
    let is_out = |endpoint: &Endpoint| {
        outliers.is_out(endpoint, seen.now) || seen.standings.is_out(endpoint, seen.now)
    };
    if let Some(pin) = asked.pin {
        let is_its_own = |candidate: &&Candidate<'_>| {
            let endpoint = balance::endpoint(candidate);
            pin.is_at(&endpoint) && !is_out(&endpoint)
        };
        if let Some(own) = permitted.iter().find(is_its_own) {
            return Ok(balance::upstream(*own, service));
        }
    }
    let (usable, seen) = leave_out(permitted, observed);
    let preferred = match observed.locality {
        None => balance::preferred(usable, service, source, seen),
        Some(locality) => {
            let ticket = match asked.strategy {
                Strategy::Hash(key) => key.ticket(),
                _ => rng.random(),
            };
            locality.prefer(balance::trusted(usable, seen), source, ticket)?
        }
    };
    let chosen = choose(&preferred, asked.strategy, observed, rng);
    let chosen = chosen.ok_or(NoEndpoint::NoCapacity)?;
    Ok(balance::upstream(chosen, service))
}

/// As if nothing had failed.
static NOTHING: LazyLock<Standings> = LazyLock::new(Standings::default);

/// Those that are well, and what more is to be left out; where too few are, all, and nothing.
fn leave_out<'s, 'o>(
    permitted: Vec<Candidate<'s>>,
    observed: Observed<'o>,
) -> (Vec<Candidate<'s>>, Seen<'o>) {
    let Observed { seen, outliers, .. } = observed;
    let is_in = |candidate: &&Candidate<'_>| {
        let endpoint = balance::endpoint(candidate);
        candidate.0.capacity > 0 && !outliers.is_out(&endpoint, seen.now)
    };
    let none_is_out = outliers.out(seen.now).next().is_none();
    if none_is_out && (observed.least_well == 0 || seen.standings.all_trusted()) {
        return (permitted, seen);
    }
    let usable: Vec<_> = permitted.iter().filter(is_in).copied().collect();
    if observed.least_well > 0 {
        let connects = |candidate: &&Candidate<'_>| {
            !seen
                .standings
                .is_out(&balance::endpoint(candidate), seen.now)
        };
        let well = usable.iter().filter(connects).count() as u64;
        if well * 100 < permitted.len() as u64 * u64::from(observed.least_well) {
            // What is known of their failures is of no use now.
            let seen = Seen {
                standings: &NOTHING,
                ..seen
            };
            return (permitted, seen);
        }
    }
    (if usable.is_empty() { permitted } else { usable }, seen)
}

fn choose<'s>(
    candidates: &[Candidate<'s>],
    strategy: Strategy,
    observed: Observed<'_>,
    rng: &mut impl Rng,
) -> Option<Candidate<'s>> {
    let Observed {
        seen,
        loads,
        slow_start,
        ..
    } = observed;
    let weight = |candidate: &Candidate<'_>| {
        let age = match slow_start.window.is_zero() {
            true => None,
            false => loads.age(&balance::endpoint(candidate), seen.now),
        };
        u64::from(candidate.0.capacity) * u64::from(slow_start.percent(age))
    };
    match strategy {
        Strategy::LeastRequest => {
            let load =
                |candidate: &Candidate<'_>| u64::from(loads.carried(&balance::endpoint(candidate)));
            balance::draw(candidates, weight, load, rng)
        }
        Strategy::PeakEwma => {
            let load = |candidate: &Candidate<'_>| loads.cost(&balance::endpoint(candidate));
            balance::draw(candidates, weight, load, rng)
        }
        Strategy::RoundRobin(turn) => {
            let weights = candidates.iter().map(weight);
            candidates.get(by_turn(turn, weights)?).copied()
        }
        Strategy::Random => balance::draw(candidates, weight, |_| 0, rng),
        Strategy::Hash(key) => {
            let endpoints: Vec<_> = candidates.iter().map(balance::endpoint).collect();
            let weights = candidates.iter().map(weight);
            let place = hash::choose(key, endpoints.iter().zip(weights))?;
            candidates.get(place).copied()
        }
    }
}

/// The place whose turn it is: turns are laid over the weights at steps of the golden ratio, which spread evenly over any
/// number of them.
fn by_turn(turn: u64, weights: impl Iterator<Item = u64> + Clone) -> Option<usize> {
    let total: u64 = weights.clone().sum();
    // The part of one that the turn's multiple of the ratio leaves, in 64 bits.
    let part = turn.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut ticket = ((u128::from(part) * u128::from(total)) >> 64) as u64;
    for (place, weight) in weights.enumerate() {
        if ticket < weight {
            return Some(place);
        }
        ticket -= weight;
    }
    None
}

#[cfg(test)]
mod tests;
