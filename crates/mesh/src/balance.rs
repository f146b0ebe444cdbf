// SPDX-License-Identifier: Apache-2.0
//! Picks an endpoint of a service: ready, reachable, on the port asked for, not failing, of the best locality, drawn by
//! weight and load.
//!
//! ```text
//! endpoints ─ health ─► ready ─ address, gateway ─► reachable ─ port ─► candidates ─ tried, failing ─► trusted
//!                                                                             one ◄─ weight, load ─ best ◄─ locality ─┘
//! ```
//!
//! Failing endpoints are left out before localities are compared, so that a service that fails over does so also for
//! what this node alone sees. Where all that may be used are failing, nobody can say which is better, and all of the best
//! locality take part.
//!
//! When nothing is left, the answer names the step that left nothing. Who goes by other measures than open connections
//! takes the steps one by one: [`permitted`], [`trusted`], [`preferred`], [`draw`].

use std::net::IpAddr;
use std::sync::Arc;

use rand::{Rng, RngExt};
use spiffe::SpiffeId;

use crate::address::GatewayAddress;
use crate::service::{HealthPolicy, LoadBalancer, Mode, Scope, Service};
use crate::standing::{Endpoint, Seen};
use crate::store::{Found, Store};
use crate::workload::{HealthStatus, Workload};

/// An endpoint with the port to reach it on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    /// The endpoint.
    pub workload: Arc<Workload>,
    /// The port of its application.
    pub port: u16,
    /// The service it was picked for; none where the workload itself was addressed.
    pub service: Option<Arc<Service>>,
}

/// What an endpoint must know of the port asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortRule {
    /// The service defines the port, and the endpoint maps it if it is a named one.
    Defined,
    /// As for a waypoint: an endpoint with an application tunnel takes any port.
    DefinedOrTunnelled,
}

/// Why a service has no endpoint for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoEndpoint {
    /// No workload backs the service.
    #[error("no workload backs it")]
    Empty,
    /// Some do, and none is ready.
    #[error("none of its {0} endpoints is ready")]
    NoneReady(usize),
    /// Some are ready, and none can be reached from here.
    #[error("none of its ready endpoints has an address or a gateway that leads to it")]
    NoneReachable,
    /// The port is not the service's, or none of its endpoints maps it.
    #[error("it has no endpoint for port {0}")]
    Port(u16),
    /// The service insists on a locality where it has no endpoint.
    #[error("none of its endpoints is within the locality that it insists on")]
    Locality,
    /// The connection has tried all of them.
    #[error("all of its usable endpoints were tried")]
    AllTried,
    /// All that are left have a capacity of zero.
    #[error("all of its usable endpoints have a capacity of 0")]
    NoCapacity,
}

/// Picks an endpoint for a connection of a workload to a port of a service.
///
/// # Errors
/// Names what left no endpoint.
pub fn pick(
    store: &Store,
    service: &Arc<Service>,
    source: &Workload,
    port: u16,
    rule: PortRule,
    seen: Seen<'_>,
    rng: &mut impl Rng,
) -> Result<Upstream, NoEndpoint> {
    let permitted = permitted(store, service, source, port, rule, seen.tried)?;
    let preferred = preferred(permitted, service, source, seen);
    let weight = |candidate: &Candidate<'_>| u64::from(candidate.0.capacity);
    let load = |candidate: &Candidate<'_>| u64::from(seen.standings.load(&endpoint(candidate)));
    let drawn = draw(&preferred, weight, load, rng).ok_or(NoEndpoint::NoCapacity)?;
    Ok(upstream(drawn, service))
}

/// An endpoint and its port.
pub type Candidate<'s> = (&'s Arc<Workload>, u16);

/// Every endpoint that a connection may go to, whatever its locality and however it does: ready, reachable, on the port
/// asked for, not tried, and within the locality that the service insists on.
///
/// # Errors
/// Names what left no endpoint.
pub fn permitted<'s>(
    store: &'s Store,
    service: &Service,
    source: &Workload,
    port: u16,
    rule: PortRule,
    tried: &[Endpoint],
) -> Result<Vec<Candidate<'s>>, NoEndpoint> {
    let mut candidates = candidates(store, service, source, port, rule)?;
    if !tried.is_empty() {
        candidates.retain(|candidate| !tried.contains(&endpoint(candidate)));
        if candidates.is_empty() {
            return Err(NoEndpoint::AllTried);
        }
    }
    within(candidates, &service.load_balancer, source)
}

/// Of those, the ones of the best locality that has any which have not failed lately.
pub fn preferred<'s>(
    permitted: Vec<Candidate<'s>>,
    service: &Service,
    source: &Workload,
    seen: Seen<'_>,
) -> Vec<Candidate<'s>> {
    best_locality(trusted(permitted, seen), &service.load_balancer, source)
}

/// A candidate of a service as what it is picked for.
pub fn upstream((workload, port): Candidate<'_>, service: &Arc<Service>) -> Upstream {
    Upstream {
        workload: workload.clone(),
        port,
        service: Some(service.clone()),
    }
}

/// Why a waypoint or gateway that is named can't be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoHop {
    /// Nothing is known by that name or address.
    #[error("it is not known")]
    Unknown,
    /// It is a service without an endpoint for it.
    #[error("{0}")]
    NoEndpoint(NoEndpoint),
}

/// Finds an endpoint of a waypoint or gateway, for a connection of a workload.
///
/// # Errors
/// Names what left none.
pub fn hop(
    store: &Store,
    reference: &GatewayAddress,
    source: &Workload,
    rule: PortRule,
    seen: Seen<'_>,
    rng: &mut impl Rng,
) -> Result<Upstream, NoHop> {
    let port = reference.hbone_mtls_port;
    match store.gateway(&reference.destination, Some(&source.namespace)) {
        None => Err(NoHop::Unknown),
        Some(Found::Workload(workload)) => Ok(Upstream {
            workload,
            port,
            service: None,
        }),
        Some(Found::Service(service)) => {
            pick(store, &service, source, port, rule, seen, rng).map_err(NoHop::NoEndpoint)
        }
    }
}

/// Who may answer for a workload: itself, and whoever else the service names.
pub fn identities(workload: &Workload, service: Option<&Service>) -> Arc<[SpiffeId]> {
    let others = service.map_or(&[][..], |service| &service.subject_alt_names);
    let own = std::iter::once(&workload.identity);
    own.chain(others.iter().filter(|other| **other != workload.identity))
        .cloned()
        .collect()
}

fn candidates<'s>(
    store: &'s Store,
    service: &Service,
    source: &Workload,
    port: u16,
    rule: PortRule,
) -> Result<Vec<Candidate<'s>>, NoEndpoint> {
    let endpoints = store.endpoints(service);
    if endpoints.is_empty() {
        return Err(NoEndpoint::Empty);
    }
    let all_count = service.load_balancer.health_policy == HealthPolicy::AllowAll;
    let mut ready = endpoints
        .iter()
        .filter(|workload| all_count || workload.status == HealthStatus::Healthy)
        .peekable();
    if ready.peek().is_none() {
        return Err(NoEndpoint::NoneReady(endpoints.len()));
    }
    let mut reachable = ready
        .filter(|workload| is_reachable(workload, source))
        .peekable();
    if reachable.peek().is_none() {
        return Err(NoEndpoint::NoneReachable);
    }
    let candidates: Vec<_> = reachable
        .filter_map(|workload| Some((workload, target_port(service, workload, port, rule)?)))
        .collect();
    if candidates.is_empty() {
        return Err(NoEndpoint::Port(port));
    }
    Ok(candidates)
}

/// An endpoint without address or name is of use only behind the gateway of another network.
fn is_reachable(workload: &Workload, source: &Workload) -> bool {
    !workload.addresses.is_empty()
        || !workload.hostname.is_empty()
        || (workload.network != source.network && workload.network_gateway.is_some())
}

/// The port of an endpoint's application that stands for a port of a service; none if the endpoint does not serve it.
pub fn target_port(
    service: &Service,
    workload: &Workload,
    port: u16,
    rule: PortRule,
) -> Option<u16> {
    let defined = service.ports.target(port);
    let tunnel = workload.application_tunnel;
    let may_be_undefined = rule == PortRule::DefinedOrTunnelled && tunnel.is_some();
    if defined.is_none() && !may_be_undefined {
        return None;
    }
    let own = workload
        .ports_for(&service.namespace, &service.hostname)
        .and_then(|ports| ports.target(port));
    let named = |port: &u16| *port != 0;
    own.filter(named)
        .or_else(|| defined.filter(named))
        .or_else(|| (may_be_undefined && tunnel.is_some_and(|t| t.port.is_some())).then_some(port))
}

/// What a service that insists on a locality leaves.
fn within<'s>(
    mut candidates: Vec<Candidate<'s>>,
    balancer: &LoadBalancer,
    source: &Workload,
) -> Result<Vec<Candidate<'s>>, NoEndpoint> {
    if balancer.mode == Mode::Strict {
        candidates.retain(|(workload, _)| {
            let mut scopes = balancer.routing_preferences.iter();
            scopes.all(|scope| shares(*scope, source, workload))
        });
        if candidates.is_empty() {
            return Err(NoEndpoint::Locality);
        }
    }
    Ok(candidates)
}

/// Those that have not failed lately; all, where that leaves none of any capacity.
pub fn trusted<'s>(candidates: Vec<Candidate<'s>>, seen: Seen<'_>) -> Vec<Candidate<'s>> {
    if seen.standings.all_trusted() {
        return candidates;
    }
    let is_trusted = |candidate: &&Candidate<'_>| {
        let (workload, _) = **candidate;
        workload.capacity > 0 && !seen.standings.is_out(&endpoint(candidate), seen.now)
    };
    let trusted: Vec<_> = candidates.iter().filter(is_trusted).copied().collect();
    if trusted.is_empty() {
        candidates
    } else {
        trusted
    }
}

fn best_locality<'s>(
    mut candidates: Vec<Candidate<'s>>,
    balancer: &LoadBalancer,
    source: &Workload,
) -> Vec<Candidate<'s>> {
    if balancer.mode == Mode::Failover {
        let rank = |workload: &Workload| rank(&balancer.routing_preferences, source, workload);
        let highest = candidates
            .iter()
            .map(|(workload, _)| rank(workload))
            .max()
            .unwrap_or_default();
        candidates.retain(|(workload, _)| rank(workload) == highest);
    }
    candidates
}

/// How many scopes, from the first on, a client and an endpoint share. A network in first place outweighs all that
/// follows, which is then still compared between endpoints of other networks.
pub fn rank(scopes: &[Scope], source: &Workload, endpoint: &Workload) -> usize {
    let mut rank = 0;
    for (place, scope) in scopes.iter().enumerate() {
        let leads_by_network = place == 0 && *scope == Scope::Network;
        match shares(*scope, source, endpoint) {
            true if leads_by_network => rank += scopes.len(),
            true => rank += 1,
            false if leads_by_network => {}
            false => break,
        }
    }
    rank
}

fn shares(scope: Scope, source: &Workload, endpoint: &Workload) -> bool {
    match scope {
        Scope::Region => source.locality.region == endpoint.locality.region,
        Scope::Zone => source.locality.zone == endpoint.locality.zone,
        Scope::Subzone => source.locality.subzone == endpoint.locality.subzone,
        Scope::Node => source.node == endpoint.node,
        Scope::Cluster => source.cluster_id == endpoint.cluster_id,
        Scope::Network => source.network == endpoint.network,
    }
}

/// What a candidate is known by.
pub fn endpoint((workload, port): &Candidate<'_>) -> Endpoint {
    Endpoint {
        workload: workload.uid.clone(),
        port: *port,
    }
}

/// Draws two by weight and takes the one that has less to do for its weight; the first, if it is all the same. None where
/// nothing weighs anything.
pub fn draw<'s>(
    candidates: &[Candidate<'s>],
    weight: impl Fn(&Candidate<'s>) -> u64,
    load: impl Fn(&Candidate<'s>) -> u64,
    rng: &mut impl Rng,
) -> Option<Candidate<'s>> {
    let first = draw_one(candidates, None, &weight, rng)?;
    let Some(second) = draw_one(candidates, Some(first), &weight, rng) else {
        return Some(candidates[first]);
    };
    let (first, second) = (candidates[first], candidates[second]);
    // load / weight, without division.
    let burden = |one: &Candidate<'s>, other: &Candidate<'s>| {
        u128::from(load(one)) * u128::from(weight(other))
    };
    let second_is_freer = burden(&second, &first) < burden(&first, &second);
    Some(if second_is_freer { second } else { first })
}

/// The place of one drawn by weight, `except` left out; none where no weight is left.
fn draw_one<'s>(
    candidates: &[Candidate<'s>],
    except: Option<usize>,
    weight: impl Fn(&Candidate<'s>) -> u64,
    rng: &mut impl Rng,
) -> Option<usize> {
    let weights = || {
        let all = candidates.iter().map(&weight).enumerate();
        all.filter(|(place, _)| Some(*place) != except)
    };
    let total: u64 = weights().map(|(_, weight)| weight).sum();
    if total == 0 {
        return None;
    }
    let mut ticket = rng.random_range(0..total);
    let drawn = weights().find(|(_, weight)| {
        let drawn = ticket < *weight;
        ticket = ticket.saturating_sub(*weight);
        drawn
    });
    drawn.map(|(place, _)| place)
}

/// How an endpoint is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// At this address.
    Ip(IpAddr),
    /// By a name that is to be resolved.
    Hostname(Arc<str>),
    /// Not from its own network.
    Unreachable,
}

/// The address of a workload to use for a connection to `original`: that one if it is the workload's, else one of the
/// families that the service serves, of the same family if there is one.
pub fn choose_address(workload: &Workload, service: Option<&Service>, original: IpAddr) -> Address {
    if workload.addresses.contains(&original) {
        return Address::Ip(original);
    }
    let mut accepted = workload
        .addresses
        .iter()
        .copied()
        .filter(|address| service.is_none_or(|service| service.ip_families.accepts(*address)));
    let first = accepted.next();
    let chosen = first
        .into_iter()
        .chain(accepted)
        .find(|address| address.is_ipv4() == original.is_ipv4())
        .or(first);
    match chosen {
        Some(address) => Address::Ip(address),
        None if !workload.hostname.is_empty() => Address::Hostname(workload.hostname.clone()),
        None => Address::Unreachable,
    }
}

#[cfg(test)]
mod tests;
