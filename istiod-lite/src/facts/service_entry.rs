// SPDX-License-Identifier: Apache-2.0
//! What the index keeps of a ServiceEntry: a service for each of its hosts, and the
//! endpoints that are written into it.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use cluster::kinds;
use ipnet::IpNet;
use proto::workload::AppProtocol;

use super::{
    Labels, Problem, Read, annotation, created,
    endpoint::{self, Endpoint, is_host},
    pod::{Tunnel, tunnel},
    service::{Distribution, Said, ServicePort, TargetPort, WaypointWish, read_annotation, spoken},
    waypoint::{IngressUse, ingress},
};
use crate::wellknown;

/// Services that Kubernetes doesn't know.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceEntry {
    /// Its labels: its endpoints are selected and named by them.
    pub labels: Labels,
    /// When it was made; the older of two that claim one host has it.
    pub created: Option<i64>,
    /// Its hosts in lower case, each once; some may be wildcards.
    pub hosts: Vec<Arc<str>>,
    /// Its virtual addresses and ranges of addresses.
    pub vips: Vec<IpNet>,
    /// Whether its hosts are to be given addresses.
    pub allocation: Allocation,
    /// The addresses that its hosts were given before.
    pub allocated: Vec<(Arc<str>, IpAddr)>,
    /// Its ports, in order.
    pub ports: Vec<ServicePort>,
    /// How endpoints are found.
    pub resolution: Resolution,
    /// The endpoints that are written into it, each address once.
    pub endpoints: Vec<Endpoint>,
    /// Which pods and WorkloadEntries of its namespace back it; empty selects none.
    pub selector: Labels,
    /// Identities that its endpoints may have besides their own.
    pub subject_alt_names: Vec<String>,
    /// How its endpoints are reached.
    pub tunnel: Tunnel,
    /// Which endpoints are preferred.
    pub distribution: Distribution,
    /// Whether that was said, or may be inherited from the namespace.
    pub distribution_said: Said,
    /// The waypoint that it asks for.
    pub waypoint: WaypointWish,
    /// Whether ingress passes through it, where it says so.
    pub ingress: Option<IngressUse>,
    /// Whether it asks for a way to connect that only a waypoint has.
    pub connect_strategy: ConnectStrategy,
}

/// How the endpoints of a ServiceEntry are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    /// They aren't: connections go where the client sent them.
    Passthrough,
    /// They have addresses.
    Static,
    /// By the names that they, or the hosts, have.
    Dns,
    /// By the names that clients ask for, under a wildcard.
    DynamicDns,
}

/// Whether hosts without an address are to be given one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocation {
    /// They are.
    Wanted,
    /// They have some, need none, or it was declined.
    NotWanted,
}

/// How a waypoint is to connect to the endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectStrategy {
    /// To one of them.
    Default,
    /// To several at once: the first that answers is used.
    Race,
}

impl ServiceEntry {
    /// Whether each of its hosts is an endpoint of its own.
    pub fn hosts_are_endpoints(&self) -> bool {
        let by_name = matches!(self.resolution, Resolution::Dns | Resolution::DynamicDns);
        by_name && self.endpoints.is_empty() && self.selector.is_empty()
    }

    /// The hosts that are to be given addresses.
    pub fn hosts_to_address(&self) -> impl Iterator<Item = &Arc<str>> {
        let wanted = self.allocation == Allocation::Wanted;
        let wildcards = self.resolution == Resolution::DynamicDns;
        let eligible = move |host: &&Arc<str>| wanted && (wildcards || !is_wildcard(host));
        self.hosts.iter().filter(eligible)
    }
}

/// Whether a host stands for all names below a domain.
pub fn is_wildcard(host: &str) -> bool {
    host.starts_with('*')
}

/// Reads a ServiceEntry; one with an unreadable address is no service at all, since
/// traffic to that address would go by as if nobody had spoken for it.
pub fn read(entry: &kinds::ServiceEntry) -> Read<Option<ServiceEntry>> {
    let (meta, spec) = (&entry.metadata, &entry.spec);
    let mut problems = Vec::new();
    let labels: Labels = meta.labels.clone().unwrap_or_default();
    let Some(vips) = addresses(&spec.addresses, &mut problems) else {
        return Read {
            facts: None,
            problems,
        };
    };
    let resolution = resolution(spec.resolution.as_ref(), &mut problems);
    let declined = labels
        .get(wellknown::AUTO_ALLOCATE)
        .is_some_and(|value| value.eq_ignore_ascii_case("false"));
    let allocation = if declined || !vips.is_empty() || resolution == Resolution::Passthrough {
        Allocation::NotWanted
    } else {
        Allocation::Wanted
    };
    let selector = spec.workload_selector.as_ref();
    let selector = selector.map(|s| s.labels.clone()).unwrap_or_default();
    let distribution = annotation(meta, wellknown::TRAFFIC_DISTRIBUTION).map(read_annotation);
    let facts = ServiceEntry {
        created: created(meta),
        hosts: hosts(&spec.hosts, &mut problems),
        vips,
        allocation,
        allocated: allocated(entry.status.as_ref(), &mut problems),
        ports: ports(&spec.ports, &mut problems),
        resolution,
        endpoints: endpoints(&spec.endpoints, &mut problems),
        selector,
        subject_alt_names: spec.subject_alt_names.clone(),
        tunnel: tunnel(&labels, meta),
        distribution: distribution.unwrap_or(Distribution::Any),
        distribution_said: match distribution {
            Some(_) => Said::Yes,
            None => Said::No,
        },
        waypoint: WaypointWish::read(meta),
        ingress: ingress(&labels),
        connect_strategy: match annotation(meta, wellknown::CONNECT_STRATEGY) {
            Some("RACE_FIRST_TCP_CONNECT") => ConnectStrategy::Race,
            _ => ConnectStrategy::Default,
        },
        labels,
    };
    Read {
        facts: Some(facts),
        problems,
    }
}

fn hosts(texts: &[String], problems: &mut Vec<Problem>) -> Vec<Arc<str>> {
    let mut hosts: Vec<Arc<str>> = Vec::new();
    for (position, text) in texts.iter().enumerate() {
        let host = text.to_ascii_lowercase();
        if !is_host(host.strip_prefix("*.").unwrap_or(&host)) {
            problems.push(Problem::new(
                format!("spec.hosts[{position}]"),
                format!("{text:?} is no host name; it is left out"),
            ));
        } else if !hosts.iter().any(|known| **known == *host) {
            hosts.push(host.into());
        }
    }
    if texts.is_empty() {
        problems.push(Problem::new(
            "spec.hosts",
            "names no host: there is no service",
        ));
    }
    hosts
}

fn addresses(texts: &[String], problems: &mut Vec<Problem>) -> Option<Vec<IpNet>> {
    let mut addresses = Vec::new();
    for (position, text) in texts.iter().enumerate() {
        let single = text.parse::<IpAddr>().map(IpNet::from);
        match single.ok().or_else(|| text.parse().ok()) {
            Some(address) => addresses.push(address.trunc()),
            None => {
                problems.push(Problem::new(
                    format!("spec.addresses[{position}]"),
                    format!(
                        "{text:?} is neither an IP address nor a range; the whole entry is left out"
                    ),
                ));
                return None;
            }
        }
    }
    Some(addresses)
}

fn resolution(said: Option<&kinds::Resolution>, problems: &mut Vec<Problem>) -> Resolution {
    match said {
        None | Some(kinds::Resolution::None) => Resolution::Passthrough,
        Some(kinds::Resolution::Static) => Resolution::Static,
        Some(kinds::Resolution::Dns | kinds::Resolution::DnsRoundRobin) => Resolution::Dns,
        Some(kinds::Resolution::DynamicDns) => Resolution::DynamicDns,
        Some(kinds::Resolution::Unknown(text)) => {
            problems.push(Problem::new(
                "spec.resolution",
                format!("{text:?} is not known; only endpoints with addresses are used"),
            ));
            Resolution::Static
        }
    }
}

fn allocated(
    status: Option<&kinds::ServiceEntryStatus>,
    problems: &mut Vec<Problem>,
) -> Vec<(Arc<str>, IpAddr)> {
    let given = status.map(|s| s.addresses.as_slice()).unwrap_or_default();
    let mut allocated = Vec::new();
    for (position, address) in given.iter().enumerate() {
        match address.value.parse() {
            Ok(ip) => allocated.push((address.host.to_ascii_lowercase().into(), ip)),
            Err(_) => problems.push(Problem::new(
                format!("status.addresses[{position}].value"),
                format!("{:?} is no IP address; it is left out", address.value),
            )),
        }
    }
    allocated
}

fn ports(ports: &[kinds::Port], problems: &mut Vec<Problem>) -> Vec<ServicePort> {
    let mut read: Vec<ServicePort> = Vec::new();
    for (position, port) in ports.iter().enumerate() {
        let number = |number: u32| u16::try_from(number).ok().filter(|port| *port != 0);
        let mut bad = |field: &str, value: u32, why: &str| {
            problems.push(Problem::new(
                format!("spec.ports[{position}].{field}"),
                format!("{value} {why}; the port is left out"),
            ));
        };
        let Some(own) = number(port.number) else {
            bad("number", port.number, "is no port number");
            continue;
        };
        let target = match port.target_port {
            None | Some(0) => Some(own),
            Some(target) => number(target),
        };
        let Some(target) = target else {
            let said = port.target_port.unwrap_or_default();
            bad("targetPort", said, "is no port number");
            continue;
        };
        if read.iter().any(|known| known.port == own) {
            bad("number", port.number, "stands there twice");
            continue;
        }
        read.push(ServicePort {
            name: port.name.clone(),
            port: own,
            target: TargetPort::Number(target),
            protocol: app_protocol(&port.protocol),
            speaks: match port.protocol.to_ascii_uppercase().as_str() {
                "UDP" => None,
                _ => Some(spoken(app_protocol(&port.protocol))),
            },
        });
    }
    read
}

fn app_protocol(text: &str) -> AppProtocol {
    match text.to_ascii_uppercase().as_str() {
        "HTTP" => AppProtocol::Http11,
        "HTTP2" => AppProtocol::Http2,
        "GRPC" => AppProtocol::Grpc,
        "TLS" | "HTTPS" => AppProtocol::Tls,
        "TCP" => AppProtocol::Tcp,
        _ => AppProtocol::Unknown,
    }
}

/// A workload is named after its address: of two with one address, the first counts.
fn endpoints(specs: &[kinds::WorkloadEntrySpec], problems: &mut Vec<Problem>) -> Vec<Endpoint> {
    let mut known = BTreeMap::new();
    let mut endpoints = Vec::new();
    for (position, spec) in specs.iter().enumerate() {
        let at = format!("spec.endpoints[{position}]");
        let Some(endpoint) = endpoint::read(spec, &at, problems) else {
            continue;
        };
        if let Some(first) = known.insert(endpoint.address.clone(), position) {
            problems.push(Problem::new(
                format!("{at}.address"),
                format!("is that of spec.endpoints[{first}] too; this one is left out"),
            ));
            known.insert(endpoint.address, first);
        } else {
            endpoints.push(endpoint);
        }
    }
    endpoints
}

#[cfg(test)]
mod tests;
