// SPDX-License-Identifier: Apache-2.0
//! Workloads and services by what clients that don't want all of them ask for.
//!
//! In: resources as they are published. Out: the names of those that a key stands for:
//!
//! | key | stands for |
//! |---|---|
//! | a workload's uid | that workload |
//! | `namespace/hostname` | that service, and all workloads that back it |
//! | `network/address` | all workloads there; all services there or in whose range it is, with what backs them |
//!
//! More than one service may have an address, and which one is meant is for the client
//! to say: it depends on the namespace of the pod that connects.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use ipnet::IpNet;
use prost::Message as _;
use proto::workload::{Address, NetworkMode, Service, Workload, address::Type};

type Names = BTreeSet<Arc<str>>;

/// The resources by key.
#[derive(Debug, Default)]
pub struct Lookup {
    facets: HashMap<Arc<str>, Facets>,
    at: HashMap<Arc<str>, Names>,
    ranges: HashMap<Box<str>, Vec<(IpNet, Arc<str>)>>,
    members: HashMap<Arc<str>, Names>,
    on_node: HashMap<Arc<str>, Names>,
}

/// What a resource can be asked for by, besides its name.
#[derive(Debug)]
pub struct Facets {
    /// `network/address` of each of its addresses.
    pub addresses: Box<[Arc<str>]>,
    /// What it is.
    pub kind: Facet,
}

/// What a resource is.
#[derive(Debug)]
pub enum Facet {
    /// A workload.
    Workload {
        /// The names of the services that it backs.
        services: Box<[Arc<str>]>,
        /// Its node, or empty.
        node: Arc<str>,
    },
    /// A service.
    Service {
        /// Its ranges of addresses, by network.
        ranges: Box<[(Box<str>, IpNet)]>,
    },
}

impl Lookup {
    /// Notes a resource, in place of what was there under its name.
    pub(super) fn insert(&mut self, name: &Arc<str>, body: &[u8]) {
        self.remove(name);
        let facets = match Address::decode(body).map(|address| address.r#type) {
            Ok(Some(Type::Workload(workload))) => of_workload(&workload),
            Ok(Some(Type::Service(service))) => of_service(&service),
            // Not one of ours: nobody can ask for it.
            Ok(None) | Err(_) => return,
        };
        for key in &facets.addresses {
            link(&mut self.at, key, name);
        }
        match &facets.kind {
            Facet::Workload { services, node } => {
                for service in services {
                    link(&mut self.members, service, name);
                }
                if !node.is_empty() {
                    link(&mut self.on_node, node, name);
                }
            }
            Facet::Service { ranges } => {
                for (network, range) in ranges {
                    let known = self.ranges.entry(network.clone()).or_default();
                    known.push((*range, name.clone()));
                }
            }
        }
        self.facets.insert(name.clone(), facets);
    }

    /// Forgets a resource.
    pub(super) fn remove(&mut self, name: &str) {
        let Some(facets) = self.facets.remove(name) else {
            return;
        };
        for key in &facets.addresses {
            unlink(&mut self.at, key, name);
        }
        match &facets.kind {
            Facet::Workload { services, node } => {
                for service in services {
                    unlink(&mut self.members, service, name);
                }
                unlink(&mut self.on_node, node, name);
            }
            Facet::Service { ranges } => {
                for (network, _) in ranges {
                    if let Some(known) = self.ranges.get_mut(network) {
                        known.retain(|(_, other)| **other != *name);
                        if known.is_empty() {
                            self.ranges.remove(network);
                        }
                    }
                }
            }
        }
    }

    /// What a resource can be asked for by.
    pub fn facets(&self, name: &str) -> Option<&Facets> {
        self.facets.get(name)
    }

    /// What a key stands for; nothing where nobody has it.
    pub fn resolve(&self, key: &str) -> BTreeSet<&Arc<str>> {
        let mut found = BTreeSet::new();
        if let Some((name, _)) = self.facets.get_key_value(key) {
            self.add_with_members(name, &mut found);
            return found;
        }
        for name in self.at.get(key).into_iter().flatten() {
            self.add_with_members(name, &mut found);
        }
        if let Some((network, ip)) = parse_address(key) {
            for (range, name) in self.ranges.get(network).into_iter().flatten() {
                if range.contains(&ip) {
                    self.add_with_members(name, &mut found);
                }
            }
        }
        found
    }

    /// The workloads that back a service.
    pub fn members(&self, service: &str) -> impl Iterator<Item = &Arc<str>> {
        self.members.get(service).into_iter().flatten()
    }

    /// The workloads of a node.
    pub fn on_node(&self, node: &str) -> impl Iterator<Item = &Arc<str>> {
        self.on_node.get(node).into_iter().flatten()
    }

    fn add_with_members<'a>(&'a self, name: &'a Arc<str>, found: &mut BTreeSet<&'a Arc<str>>) {
        found.insert(name);
        found.extend(self.members(name));
    }
}

/// Reads a key of the form `network/address`.
pub fn parse_address(key: &str) -> Option<(&str, IpAddr)> {
    let (network, ip) = key.rsplit_once('/')?;
    Some((network, ip.parse().ok()?))
}

fn of_workload(workload: &Workload) -> Facets {
    // An address that is shared with the node is nobody's.
    let own = workload.network_mode() != NetworkMode::HostNetwork;
    let addresses = workload.addresses.iter().filter(|_| own);
    Facets {
        addresses: addresses
            .filter_map(|octets| Some(key(&workload.network, ip(octets)?)))
            .collect(),
        kind: Facet::Workload {
            services: workload
                .services
                .keys()
                .map(|name| name.as_str().into())
                .collect(),
            node: workload.node.as_str().into(),
        },
    }
}

fn of_service(service: &Service) -> Facets {
    let (mut addresses, mut ranges) = (Vec::new(), Vec::new());
    for address in &service.addresses {
        let Some(ip) = ip(&address.address) else {
            continue;
        };
        let length = address.length.and_then(|length| u8::try_from(length).ok());
        match length.and_then(|length| IpNet::new(ip, length).ok()) {
            Some(range) if range.prefix_len() < range.max_prefix_len() => {
                ranges.push((address.network.as_str().into(), range));
            }
            _ => addresses.push(key(&address.network, ip)),
        }
    }
    Facets {
        addresses: addresses.into(),
        kind: Facet::Service {
            ranges: ranges.into(),
        },
    }
}

fn key(network: &str, ip: IpAddr) -> Arc<str> {
    format!("{network}/{ip}").into()
}

fn ip(octets: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(octets).map(IpAddr::from);
    four.or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from))
        .ok()
}

fn link(links: &mut HashMap<Arc<str>, Names>, key: &Arc<str>, name: &Arc<str>) {
    links.entry(key.clone()).or_default().insert(name.clone());
}

fn unlink(links: &mut HashMap<Arc<str>, Names>, key: &str, name: &str) {
    if let Some(names) = links.get_mut(key) {
        names.remove(name);
        if names.is_empty() {
            links.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use proto::workload::{NetworkAddress, PortList};

    use super::*;

    fn octets(ip: &str) -> bytes::Bytes {
        match ip.parse().expect("an address") {
            IpAddr::V4(ip) => bytes::Bytes::copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => bytes::Bytes::copy_from_slice(&ip.octets()),
        }
    }

    fn encode(of: Type) -> Vec<u8> {
        Address { r#type: Some(of) }.encode_to_vec()
    }

    fn workload(ip: &str, services: &[&str], mode: NetworkMode) -> Vec<u8> {
        encode(Type::Workload(Workload {
            addresses: vec![octets(ip)],
            network: "n".into(),
            node: "node-a".into(),
            services: services
                .iter()
                .map(|s| ((*s).into(), PortList::default()))
                .collect(),
            network_mode: mode.into(),
            ..Workload::default()
        }))
    }

    fn service(addresses: &[(&str, Option<u32>)]) -> Vec<u8> {
        let address = |(ip, length): &(&str, Option<u32>)| NetworkAddress {
            network: "n".into(),
            address: octets(ip),
            length: *length,
        };
        encode(Type::Service(Service {
            addresses: addresses.iter().map(address).collect(),
            ..Service::default()
        }))
    }

    fn lookup() -> Lookup {
        let mut lookup = Lookup::default();
        let standard = NetworkMode::Standard;
        for (name, body) in [
            ("c//Pod/x/a", workload("10.0.0.1", &["x/a.host"], standard)),
            ("c//Pod/x/b", workload("10.0.0.2", &["x/a.host"], standard)),
            (
                "c//Pod/x/host",
                workload("10.0.0.3", &[], NetworkMode::HostNetwork),
            ),
            (
                "x/a.host",
                service(&[("10.9.0.1", None), ("2001:db8::1", None)]),
            ),
            ("y/a.host", service(&[("10.9.0.1", Some(32))])),
            ("y/range", service(&[("10.9.0.0", Some(16))])),
        ] {
            lookup.insert(&name.into(), &body);
        }
        lookup
    }

    #[track_caller]
    fn check(lookup: &Lookup, key: &str, expected: &[&str]) {
        let found: Vec<_> = lookup.resolve(key).iter().map(|name| &***name).collect();
        assert_eq!(found, expected, "{key}");
    }

    #[test]
    fn each_form_of_key_stands_for_what_it_says() {
        let lookup = lookup();
        check(&lookup, "c//Pod/x/a", &["c//Pod/x/a"]);
        check(&lookup, "n/10.0.0.1", &["c//Pod/x/a"]);
        let service = ["c//Pod/x/a", "c//Pod/x/b", "x/a.host"];
        check(&lookup, "x/a.host", &service);
        check(&lookup, "n/2001:db8::1", &service);
        let shared = [
            "c//Pod/x/a",
            "c//Pod/x/b",
            "x/a.host",
            "y/a.host",
            "y/range",
        ];
        check(&lookup, "n/10.9.0.1", &shared);
        check(&lookup, "n/10.9.0.2", &["y/range"]);
        for nobodys in [
            "n/10.0.0.3",
            "m/10.0.0.1",
            "n/10.8.0.1",
            "x/b.host",
            "nonsense",
            "/",
        ] {
            check(&lookup, nobodys, &[]);
        }
        assert_eq!(lookup.on_node("node-a").count(), 3);
    }

    #[test]
    fn what_is_removed_or_replaced_leaves_no_trace() {
        let mut lookup = lookup();
        lookup.insert(
            &"c//Pod/x/a".into(),
            &workload("10.0.0.9", &[], NetworkMode::Standard),
        );
        check(&lookup, "n/10.0.0.1", &[]);
        check(&lookup, "n/10.0.0.9", &["c//Pod/x/a"]);
        check(&lookup, "x/a.host", &["c//Pod/x/b", "x/a.host"]);
        for name in [
            "c//Pod/x/a",
            "c//Pod/x/b",
            "c//Pod/x/host",
            "x/a.host",
            "y/a.host",
            "y/range",
        ] {
            lookup.remove(name);
        }
        assert!(lookup.facets.is_empty() && lookup.at.is_empty() && lookup.members.is_empty());
        assert!(lookup.on_node.is_empty() && lookup.ranges.is_empty());
    }
}
