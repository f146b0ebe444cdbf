// SPDX-License-Identifier: Apache-2.0
//! Which endpoints are used by where they are, where a service's rules have their own idea of it.
//!
//! In: [`proto::waypoint::LocalityPreference`]; endpoints that may be used and are well, where the waypoint is, a ticket.
//! Out: those of them that take part. Either shares of places, drawn by the ticket among those that have any endpoint; or
//! those that share the most with the waypoint, so that others follow only once none of these is well.

use std::sync::Arc;

use mesh::balance::{self, Candidate};
use mesh::service::Scope;
use mesh::workload::Locality as Where;
use mesh::{NoEndpoint, Workload};
use proto::waypoint as wire;
use proto::waypoint::locality_preference as of;

/// Compiled.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Locality {
    distribute: Vec<(Place, Vec<(Place, u32)>)>,
    scopes: Vec<Scope>,
    /// By region.
    failover: Vec<(Arc<str>, Arc<str>)>,
}

/// Parts of "region/zone/subzone", each of which may be any.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place([Option<Arc<str>>; 3]);

impl Place {
    fn compile(text: &str) -> Self {
        let mut parts = text.splitn(3, '/');
        Self(std::array::from_fn(|_| {
            let part = parts.next().filter(|part| !matches!(*part, "" | "*"));
            part.map(Arc::from)
        }))
    }

    fn is(&self, at: &Where) -> bool {
        let parts = self.0.iter().zip([&at.region, &at.zone, &at.subzone]);
        let fits =
            |(own, at): (&Option<Arc<str>>, &Arc<str>)| own.as_ref().is_none_or(|own| own == at);
        parts.into_iter().all(fits)
    }

    /// How much it says.
    fn closeness(&self) -> usize {
        self.0.iter().flatten().count()
    }
}

impl Locality {
    /// # Errors
    /// Names the field that can't be honoured.
    pub fn compile(wire: &wire::LocalityPreference) -> Result<Self, String> {
        let distribution = |one: &of::Distribution| {
            let to = one.to.iter();
            let mut to: Vec<_> = to
                .map(|share| (Place::compile(&share.to), share.weight))
                .collect();
            // Who is in two places counts in the one that says more.
            to.sort_by_key(|(place, _)| std::cmp::Reverse(place.closeness()));
            (Place::compile(&one.from), to)
        };
        let scope = |scope: &i32| {
            Ok(match of::Scope::try_from(*scope) {
                Ok(of::Scope::Network) => Scope::Network,
                Ok(of::Scope::Cluster) => Scope::Cluster,
                Ok(of::Scope::Region) => Scope::Region,
                Ok(of::Scope::Zone) => Scope::Zone,
                Ok(of::Scope::Subzone) => Scope::Subzone,
                Ok(of::Scope::Node) => Scope::Node,
                Ok(of::Scope::UnspecifiedScope) | Err(_) => {
                    return Err(format!(
                        "load_balancer.locality.scopes: {scope} is not known"
                    ));
                }
            })
        };
        let failover = |one: &of::Failover| (one.from.as_str().into(), one.to.as_str().into());
        Ok(Self {
            distribute: wire.distribute.iter().map(distribution).collect(),
            scopes: wire.scopes.iter().map(scope).collect::<Result<_, _>>()?,
            failover: wire.failover.iter().map(failover).collect(),
        })
    }

    /// Those of the candidates that take part, for a waypoint there; the ticket is any number, the same for what is to go the
    /// same way.
    ///
    /// # Errors
    /// Shares are given, and all candidates are elsewhere.
    pub fn prefer<'s>(
        &self,
        candidates: Vec<Candidate<'s>>,
        waypoint: &Workload,
        ticket: u64,
    ) -> Result<Vec<Candidate<'s>>, NoEndpoint> {
        let mut distributions = self.distribute.iter();
        match distributions.find(|(from, _)| from.is(&waypoint.locality)) {
            Some((_, to)) => shared(to, candidates, ticket).ok_or(NoEndpoint::Locality),
            None => Ok(self.nearest(candidates, waypoint)),
        }
    }

    fn nearest<'s>(
        &self,
        mut candidates: Vec<Candidate<'s>>,
        waypoint: &Workload,
    ) -> Vec<Candidate<'s>> {
        let own = &waypoint.locality.region;
        let next = self.failover.iter().find(|(from, _)| from == own);
        let rank = |(endpoint, _): &Candidate<'_>| {
            let is_next = next.is_some_and(|(_, to)| *to == endpoint.locality.region);
            (balance::rank(&self.scopes, waypoint, endpoint), is_next)
        };
        let highest = candidates.iter().map(rank).max();
        candidates.retain(|candidate| Some(rank(candidate)) == highest);
        candidates
    }
}

/// Those of the place that the ticket falls to.
fn shared<'s>(
    to: &[(Place, u32)],
    candidates: Vec<Candidate<'s>>,
    ticket: u64,
) -> Option<Vec<Candidate<'s>>> {
    let mut groups: Vec<(u64, Vec<Candidate<'s>>)> = to
        .iter()
        .map(|(_, weight)| ((*weight).into(), Vec::new()))
        .collect();
    for candidate in candidates {
        let (workload, _) = candidate;
        // What has no capacity is nobody to go to.
        let group = to
            .iter()
            .position(|(place, _)| place.is(&workload.locality));
        if let Some(group) = group.filter(|_| workload.capacity > 0) {
            groups[group].1.push(candidate);
        }
    }
    groups.retain(|(_, members)| !members.is_empty());
    let total: u64 = groups.iter().map(|(weight, _)| weight).sum();
    // The ticket as a part of all tickets that there are.
    let mut ticket = ((u128::from(ticket) * u128::from(total)) >> 64) as u64;
    groups.into_iter().find_map(|(weight, members)| {
        let is_its = ticket < weight;
        ticket = ticket.saturating_sub(weight);
        is_its.then_some(members)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(at: &str) -> Arc<Workload> {
        let identity = "spiffe://cluster.local/ns/a/sa/b".parse().unwrap();
        let mut workload = Workload::new(at, "a", identity);
        let mut parts = at.split('/').map(Arc::from);
        let mut next = || parts.next().unwrap_or_default();
        workload.locality = Arc::new(Where {
            region: next(),
            zone: next(),
            subzone: next(),
        });
        Arc::new(workload)
    }

    fn distribute(to: &[(&str, u32)]) -> wire::LocalityPreference {
        let share = |(to, weight): &(&str, u32)| of::Share {
            to: (*to).into(),
            weight: *weight,
        };
        wire::LocalityPreference {
            distribute: vec![
                of::Distribution {
                    from: "other/*".into(),
                    to: vec![],
                },
                of::Distribution {
                    from: "us/*".into(),
                    to: to.iter().map(share).collect(),
                },
            ],
            ..Default::default()
        }
    }

    fn nearest(failover: &[(&str, &str)]) -> wire::LocalityPreference {
        let failover = failover.iter().map(|(from, to)| of::Failover {
            from: (*from).into(),
            to: (*to).into(),
        });
        let scopes = [of::Scope::Region, of::Scope::Zone, of::Scope::Subzone];
        wire::LocalityPreference {
            scopes: scopes.map(i32::from).into(),
            failover: failover.collect(),
            ..Default::default()
        }
    }

    /// Of these endpoints, from `us/a/1`, for a ticket at so many of 100.
    fn check(wire: &wire::LocalityPreference, all: &[&str], ticket: u64, expected: &[&str]) {
        let workloads: Vec<_> = all.iter().map(|at| workload(at)).collect();
        let candidates = workloads.iter().map(|workload| (workload, 80)).collect();
        let preference = Locality::compile(wire).unwrap();
        let ticket = u64::MAX / 100 * ticket;
        let preferred = preference.prefer(candidates, &workload("us/a/1"), ticket);
        let preferred = preferred.unwrap_or_default();
        let names: Vec<_> = preferred.iter().map(|(one, _)| &*one.uid).collect();
        assert_eq!(names, expected, "{wire:?} {all:?} {ticket}");
    }

    #[test]
    fn the_nearest_go_first_and_others_once_none_of_them_is_left() {
        let near = nearest(&[("us", "eu")]);
        let all = ["us/a/1", "us/a/2", "us/b/1", "asia/a/1", "eu/a/1"];
        check(&near, &all, 0, &all[..1]);
        check(&near, &all[1..], 0, &all[1..2]);
        check(&near, &all[2..], 0, &all[2..3]);
        check(&near, &all[3..], 0, &all[4..]);
        check(&near, &all[3..4], 0, &all[3..4]);
        // Where nothing is said of the region, all others are alike.
        check(&nearest(&[("asia", "eu")]), &all[3..], 0, &all[3..]);
        check(&wire::LocalityPreference::default(), &all, 0, &all);
        check(&near, &[], 0, &[]);
    }

    #[test]
    fn places_get_their_shares_and_who_is_elsewhere_nothing() {
        let shares = distribute(&[("us/*", 20), ("us/a/1", 50), ("eu/*", 30)]);
        let all = ["us/a/1", "us/b/1", "us/b/2", "eu/a/1", "asia/a/1"];
        check(&shares, &all, 0, &["us/a/1"]);
        check(&shares, &all, 49, &["us/a/1"]);
        check(&shares, &all, 51, &["us/b/1", "us/b/2"]);
        check(&shares, &all, 71, &["eu/a/1"]);
        check(&shares, &all, 99, &["eu/a/1"]);
        // A place without endpoints leaves its share to the others.
        check(&shares, &all[1..], 39, &["us/b/1", "us/b/2"]);
        check(&shares, &all[1..], 41, &["eu/a/1"]);
        check(&shares, &all[4..], 0, &[]);
    }

    #[test]
    fn a_place_is_of_as_many_parts_as_are_said() {
        let at = workload("us/a/1");
        for (place, expected) in [
            ("*", true),
            ("us", true),
            ("us/*", true),
            ("us/a/*", true),
            ("us/a/1", true),
            ("us/a/2", false),
            ("us/b", false),
            ("eu/*", false),
        ] {
            assert_eq!(Place::compile(place).is(&at.locality), expected, "{place}");
        }
    }
}
