// SPDX-License-Identifier: Apache-2.0
//! Pure: which service of the mesh a name means to a client, and with which addresses it answers.
//!
//! In: a host name as it was asked for, who asks, the mesh. Out: the answer, or that the name is none of the mesh's
//! business. Names are tried in a fixed order, and the first that some service bears decides:
//!
//! ```text
//!  the name itself ─► its short forms completed, as a cluster's resolver would ─► the same without a search domain
//!       each of them: exact host ─► *.its domain ─► … ─► *.its last label
//! ```

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use mesh::service::HealthPolicy;
use mesh::workload::HealthStatus;
use mesh::{Service, Store};
use rand::Rng;
use rand::seq::SliceRandom as _;

use super::answer::Answer;
use super::message::{Family, Query};
use crate::config::Ipv6;

/// How names are completed, and which of several services with one name is meant.
#[derive(Debug, Clone)]
pub struct Domains {
    /// `cluster.local`, in lower case.
    pub cluster: Arc<str>,
    /// Services of this namespace are preferred where nothing else decides.
    pub preferred_namespace: Option<Arc<str>>,
}

/// Who asks.
#[derive(Debug, Clone, Copy)]
pub struct Client<'a> {
    pub namespace: &'a str,
    pub network: &'a str,
    pub ipv6: Ipv6,
}

/// What is to become of a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Answer(Answer),
    /// The mesh has nothing to say to it.
    Forward(Name),
}

/// Whether the name of a forwarded query belongs to a service of the mesh: then it exists, whatever upstream knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name {
    OfTheMesh,
    Foreign,
}

/// A service that a name means.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Found<'a> {
    service: &'a Arc<Service>,
    /// How many leading labels of the asked name the service's addresses belong to, where those are not all.
    alias_of: Option<usize>,
}

/// Decides what is answered, and in which order.
pub fn decide(
    store: &Store,
    domains: &Domains,
    client: Client<'_>,
    query: &Query,
    rng: &mut impl Rng,
) -> Decision {
    let found = query
        .host()
        .filter(|_| query.is_internet_class())
        .and_then(|host| find(store, domains, client, &host));
    let Some(found) = found else {
        return Decision::Forward(Name::Foreign);
    };
    let Some(family) = query.family() else {
        return Decision::Forward(Name::OfTheMesh);
    };
    let mut addresses = addresses(store, found.service, client, family);
    addresses.shuffle(rng);
    Decision::Answer(Answer {
        alias_of: found.alias_of,
        addresses,
    })
}

/// One address of a host, drawn from those that [`decide`] would answer; `None` where the name is not the mesh's.
pub fn pick(
    store: &Store,
    domains: &Domains,
    client: Client<'_>,
    host: &str,
    family: Family,
    rng: &mut impl Rng,
) -> Option<Option<IpAddr>> {
    let found = find(store, domains, client, host)?;
    let mut addresses = addresses(store, found.service, client, family);
    addresses.shuffle(rng);
    Some(addresses.first().copied())
}

fn find<'a>(
    store: &'a Store,
    domains: &Domains,
    client: Client<'_>,
    host: &str,
) -> Option<Found<'a>> {
    let look = |name: &str| by_name(store, domains, client, name);
    let whole = |(service, _)| Found {
        service,
        alias_of: None,
    };
    if let Some(found) = with_completions(domains, client, host, look) {
        return Some(whole(found));
    }
    let cluster = &domains.cluster;
    let search = [
        format!(".{}.svc.{cluster}", client.namespace),
        format!(".svc.{cluster}"),
        format!(".{cluster}"),
    ];
    search
        .iter()
        .filter_map(|domain| host.strip_suffix(domain.as_str()))
        .filter(|stripped| !stripped.is_empty())
        .find_map(|stripped| {
            let (service, form) = with_completions(domains, client, stripped, look)?;
            Some(Found {
                service,
                alias_of: match form {
                    Form::Exact => Some(stripped.split('.').count()),
                    // The asked name falls under the wildcard itself.
                    Form::Wildcard => None,
                },
            })
        })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Exact,
    Wildcard,
}

/// A name, then what a cluster's resolver would make of it.
fn with_completions<T>(
    domains: &Domains,
    client: Client<'_>,
    name: &str,
    look: impl Fn(&str) -> Option<T>,
) -> Option<T> {
    if let Some(found) = look(name) {
        return Some(found);
    }
    let (cluster, namespace) = (&domains.cluster, client.namespace);
    let in_services = name.ends_with(".svc");
    let completions = match name.split('.').count() {
        1 => vec![format!("{name}.{namespace}.svc.{cluster}")],
        2 => vec![
            format!("{name}.svc.{cluster}"),
            format!("{name}.{namespace}.svc.{cluster}"),
        ],
        3 if in_services => vec![format!("{name}.{cluster}"), format!("{name}.svc.{cluster}")],
        3 => vec![format!("{name}.svc.{cluster}")],
        4 if in_services => vec![format!("{name}.{cluster}")],
        _ => Vec::new(),
    };
    completions.iter().find_map(|name| look(name))
}

/// The service that bears a name, or the narrowest wildcard that the name falls under.
fn by_name<'a>(
    store: &'a Store,
    domains: &Domains,
    client: Client<'_>,
    name: &str,
) -> Option<(&'a Arc<Service>, Form)> {
    if let Some(service) = by_host(store, domains, client, name) {
        return Some((service, Form::Exact));
    }
    let mut rest = name;
    while let Some((_, parent)) = rest.split_once('.') {
        if let Some(service) = by_host(store, domains, client, &format!("*.{parent}")) {
            return Some((service, Form::Wildcard));
        }
        rest = parent;
    }
    None
}

/// Of the services of a host that the client may see and that can be answered with addresses: its own namespace's, else
/// a canonical one, else the preferred namespace's, else the first.
fn by_host<'a>(
    store: &'a Store,
    domains: &Domains,
    client: Client<'_>,
    host: &str,
) -> Option<&'a Arc<Service>> {
    store
        .services_by_host(host)
        .filter(|service| !service.vips.is_empty() || is_of_cluster(domains, service))
        .filter(|service| service.is_visible_to(Some(client.namespace)))
        .min_by_key(|service| {
            Reverse((
                *service.namespace == *client.namespace,
                service.canonical,
                domains.preferred_namespace.as_ref() == Some(&service.namespace),
            ))
        })
}

/// A service of Kubernetes; without a virtual address it is a headless one.
fn is_of_cluster(domains: &Domains, service: &Service) -> bool {
    service
        .hostname
        .strip_suffix(&*domains.cluster)
        .is_some_and(|rest| rest.ends_with(".svc."))
}

/// All addresses of a family that lead to a service from the client's network.
fn addresses(store: &Store, service: &Service, client: Client<'_>, family: Family) -> Vec<IpAddr> {
    if family == Family::V6 && client.ipv6 == Ipv6::Disabled {
        return Vec::new();
    }
    let wanted =
        |address: &IpAddr| Family::of(*address) == family && service.ip_families.accepts(*address);
    let found: BTreeSet<IpAddr> = if service.vips.is_empty() {
        let takes_traffic = |status| {
            status == HealthStatus::Healthy
                || service.load_balancer.health_policy == HealthPolicy::AllowAll
        };
        store
            .endpoints(service)
            .iter()
            .filter(|endpoint| takes_traffic(endpoint.status))
            // Addresses of other networks mean somebody else here.
            .filter(|endpoint| *endpoint.network == *client.network)
            .filter_map(|endpoint| endpoint.addresses.iter().copied().find(wanted))
            .collect()
    } else {
        service
            .vips
            .iter()
            .filter(|vip| *vip.network == *client.network)
            .map(|vip| vip.address)
            .filter(wanted)
            .collect()
    };
    found.into_iter().collect()
}

#[cfg(test)]
mod tests;
