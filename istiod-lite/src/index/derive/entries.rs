// SPDX-License-Identifier: Apache-2.0
//! What ServiceEntries and WorkloadEntries come to.

use std::sync::Arc;

use proto::workload as wire;

use super::{Derived, Index, Inhabitants, Subject, networks, service_resource};
use crate::{
    facts::{
        Labels, NamespacedName, endpoint::Endpoint, mesh_config::Visibility,
        service_entry::ServiceEntry, waypoint::Choice,
    },
    status,
    translate::{
        ports,
        route::ParentKey,
        service::{self, Host},
        waypoint::{Addressed, Binding},
        workload::{self, EndpointInput, WrittenIn},
    },
};

impl Index {
    /// A service for each host that the entry has, and the workloads that are written into it.
    pub(super) fn derive_entry(&self, subject: &Subject, name: &NamespacedName) -> Option<Derived> {
        let here = self.world.inhabitants(&name.namespace)?;
        let entry = here.entries.get(&name.name)?;
        let visibility = self.visibility(&name.namespace);
        if visibility == Visibility::None {
            return None;
        }
        let mut derived = Derived::default();
        let binding = self.bind_service(&entry.waypoint, name, visibility, &mut derived.gateways);
        let input = service::Input {
            name,
            namespace: &here.namespace,
            network: self.network(),
            waypoint: &binding,
        };
        let parent = ParentKey::Entry(name.clone());
        let hosts: Vec<&Arc<str>> = self.hosts_of(name, entry).collect();
        let elsewhere = self.entry_accounts_elsewhere(&name.namespace, here, entry);
        for host in &hosts {
            let mut message = service::host(
                Host {
                    host,
                    entry,
                    canonical: self.canonical(name, host),
                    visibility,
                },
                input,
            );
            networks::add_names(&mut message, elsewhere.clone());
            let served = self.served(&parent, host, &entry.ports, &binding);
            derived.served.extend(served);
            let key = workload::host_key(&name.namespace, host);
            derived.resources.push(service_resource(key, message));
        }
        let named: Vec<_> = hosts.iter().map(|host| Endpoint::named(host)).collect();
        let written: Vec<(&Endpoint, &[&Arc<str>])> = if entry.hosts_are_endpoints() {
            named.iter().zip(hosts.chunks(1)).collect()
        } else if hosts.is_empty() {
            Vec::new()
        } else {
            entry
                .endpoints
                .iter()
                .map(|endpoint| (endpoint, &*hosts))
                .collect()
        };
        for (endpoint, backed) in written {
            let waypoint = if entry.hosts_are_endpoints() {
                Binding::Unbound
            } else {
                let choice = Choice::read(&endpoint.labels);
                self.bind(&choice, name, Addressed::Workload, &mut derived.gateways)
            };
            let written = Written {
                name,
                here,
                entry,
                endpoint,
                waypoint,
                hosts: backed,
            };
            let message = self.written(written, &mut derived.gateways);
            let message = self.with_network_gateway(message);
            derived.resources.push(self.workload_resource(message));
        }
        let ingress = entry.ingress.or(here.namespace.ingress);
        let bound = status::waypoint_bound(&binding, ingress, Addressed::Service);
        let missing = status::waypoint_missing(entry, &binding);
        let ruled = self.world.mesh_config.visibility.is_some();
        let applied = status::visibility_applied(visibility).filter(|_| ruled);
        derived.conditions = bound.into_iter().chain(missing).chain(applied).collect();
        let single = entry
            .vips
            .iter()
            .filter(|vip| vip.prefix_len() == vip.max_prefix_len());
        let single = single.map(ipnet::IpNet::addr);
        derived.problems = self.shared_addresses(subject, "spec.addresses", single);
        let unreachable = entry
            .endpoints
            .iter()
            .filter_map(|endpoint| self.unreachable("spec.endpoints.network", endpoint));
        derived.problems.extend(unreachable);
        let lost = entry.hosts.iter().filter(|host| !hosts.contains(host));
        derived
            .problems
            .extend(lost.map(|host| self.lost(name, host)));
        Some(derived)
    }

    /// The message of a workload that is written into an entry.
    fn written(&self, written: Written<'_>, gateways: &mut Vec<NamespacedName>) -> wire::Workload {
        let Written {
            name,
            here,
            entry,
            endpoint,
            waypoint,
            hosts,
        } = written;
        let instance = self.instance_of(&endpoint.labels, name, gateways);
        let ports = ports::entry_at_endpoint(entry, endpoint);
        let service = |host: &&Arc<str>| (workload::host_key(&name.namespace, host), ports.clone());
        let input = EndpointInput {
            written_in: WrittenIn::ServiceEntry(name),
            endpoint,
            labels: &entry.labels,
            workload_name: &name.name,
            tunnel: entry.tunnel,
            network: self.network(),
            services: hosts.iter().map(service).collect(),
            policies: self.policies_of(&name.namespace, here, &entry.labels),
            waypoint,
            application_tunnel: instance.and_then(|known| known.binding()),
        };
        workload::endpoint(&self.mesh, input)
    }

    pub(super) fn derive_workload_entry(&self, name: &NamespacedName) -> Option<Derived> {
        let here = self.world.inhabitants(&name.namespace)?;
        let facts = here.workload_entries.get(&name.name)?;
        let (endpoint, labels) = (&facts.endpoint, &facts.endpoint.labels);
        let mut gateways = Vec::new();
        let instance = self.instance_of(labels, name, &mut gateways);
        let waypoint = match instance {
            Some(_) => Binding::Unbound,
            None => {
                let choice = Choice::read(labels);
                self.bind(&choice, name, Addressed::Workload, &mut gateways)
            }
        };
        let services = here.services_selecting(labels).map(|(service, facts)| {
            let service = NamespacedName::new(name.namespace.clone(), service.clone());
            let ports = ports::service_at_endpoint(facts, endpoint);
            (workload::service_key(&self.mesh, &service), ports)
        });
        let entries = self.entries_selecting(&name.namespace, here, labels);
        let entries = entries.map(|(key, entry)| (key, ports::entry_at_endpoint(entry, endpoint)));
        let bound = status::waypoint_bound(&waypoint, None, Addressed::Workload);
        let input = EndpointInput {
            written_in: WrittenIn::WorkloadEntry(name),
            endpoint,
            labels,
            workload_name: &facts.workload_name,
            tunnel: facts.tunnel,
            network: self.network(),
            services: services.chain(entries).collect(),
            policies: self.policies_of(&name.namespace, here, labels),
            waypoint,
            application_tunnel: instance.and_then(|known| known.binding()),
        };
        let message = self.with_network_gateway(workload::endpoint(&self.mesh, input));
        Some(Derived {
            resources: vec![self.workload_resource(message)],
            conditions: bound.into_iter().collect(),
            problems: self
                .unreachable("spec.network", endpoint)
                .into_iter()
                .collect(),
            gateways,
            ..Derived::default()
        })
    }

    /// The hosts of entries that select a workload with these labels, by the names of their resources.
    pub(super) fn entries_selecting<'a>(
        &'a self,
        namespace: &'a Arc<str>,
        here: &'a Inhabitants,
        labels: &'a Labels,
    ) -> impl Iterator<Item = (String, &'a ServiceEntry)> {
        here.entries_selecting(labels)
            .flat_map(move |(name, entry)| {
                let name = NamespacedName::new(namespace.clone(), name.clone());
                let hosts: Vec<_> = self.hosts_of(&name, entry).collect();
                let key = move |host: &Arc<str>| (workload::host_key(namespace, host), entry);
                hosts.into_iter().map(key)
            })
    }
}

/// A workload that is written into an entry.
struct Written<'a> {
    name: &'a NamespacedName,
    here: &'a Inhabitants,
    entry: &'a ServiceEntry,
    endpoint: &'a Endpoint,
    waypoint: Binding,
    /// The hosts that it backs.
    hosts: &'a [&'a Arc<str>],
}
