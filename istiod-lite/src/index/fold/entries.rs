// SPDX-License-Identifier: Apache-2.0
//! ServiceEntries, WorkloadEntries and the mesh's configuration into the facts.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use super::{Index, Subject};
use crate::{
    facts::{
        NamespacedName, mesh_config::MeshConfig, service_entry::ServiceEntry,
        workload_entry::WorkloadEntry,
    },
    translate::route::ParentKey,
};

impl Index {
    pub(super) fn set_entry(&mut self, name: &NamespacedName, facts: Option<ServiceEntry>) {
        let here = self
            .world
            .namespaces
            .entry(name.namespace.clone())
            .or_default();
        let before = here.entries.remove(&name.name);
        if before == facts {
            if let Some(facts) = facts {
                here.entries.insert(name.name.clone(), facts);
            }
            self.forget_deserted(&name.namespace);
            return;
        }
        let mut touched = BTreeSet::from([Subject::Entry(name.clone())]);
        let mut claimed: BTreeSet<Arc<str>> = BTreeSet::new();
        let mut unallocated = BTreeSet::from([name.clone()]);
        if let Some(before) = &before {
            here.entries_by_labels.remove(&name.name, &before.labels);
            here.entries_by_selector
                .remove(&name.name, &before.selector);
            claimed.extend(before.hosts.iter().cloned());
            for host in &before.hosts {
                if let Some(claimants) = self.world.hosts.get_mut(host) {
                    claimants.remove(name);
                    if claimants.is_empty() {
                        self.world.hosts.remove(host);
                    }
                }
            }
            self.mark_entry(name, before, &mut touched);
            if let Some(allocator) = &mut self.allocator {
                allocator.release(name, before);
            }
        }
        let (old, new) = (vips(before.as_ref()), vips(facts.as_ref()));
        if let Some(facts) = facts {
            self.mark_entry(name, &facts, &mut touched);
            claimed.extend(facts.hosts.iter().cloned());
            for host in &facts.hosts {
                let claimants = self.world.hosts.entry(host.clone()).or_default();
                claimants.insert(name.clone());
            }
            if let Some(allocator) = &mut self.allocator {
                unallocated.extend(allocator.claim(name, &facts));
            }
            if let Some(here) = self.world.namespaces.get_mut(&name.namespace) {
                here.entries_by_labels.insert(&name.name, &facts.labels);
                here.entries_by_selector.insert(&name.name, &facts.selector);
                here.entries.insert(name.name.clone(), facts);
            }
        }
        self.dirty.extend(touched);
        self.unallocated.extend(unallocated);
        self.mark_claimants(claimed.iter());
        self.mark_routes_for(&ParentKey::Entry(name.clone()));
        self.set_vips(&Subject::Entry(name.clone()), &old, &new);
        self.forget_deserted(&name.namespace);
    }

    pub(super) fn set_workload_entry(
        &mut self,
        name: &NamespacedName,
        facts: Option<WorkloadEntry>,
    ) {
        let here = self
            .world
            .namespaces
            .entry(name.namespace.clone())
            .or_default();
        let before = here.workload_entries.remove(&name.name);
        let labels = [before.as_ref(), facts.as_ref()];
        let labels = labels.map(|entry| entry.map(|entry| entry.endpoint.labels.clone()));
        let mut selected_by = Vec::new();
        if before != facts {
            self.dirty.insert(Subject::WorkloadEntry(name.clone()));
            // Services name the identities of those on other networks.
            let named = before.iter().chain(&facts);
            let named = named.filter(|facts| facts.endpoint.network.is_some());
            selected_by.extend(named.map(|facts| facts.endpoint.labels.clone()));
        }
        if let Some(before) = before {
            here.workload_entries_by_labels
                .remove(&name.name, &before.endpoint.labels);
        }
        if let Some(facts) = facts {
            here.workload_entries_by_labels
                .insert(&name.name, &facts.endpoint.labels);
            here.workload_entries.insert(name.name.clone(), facts);
        }
        for labels in selected_by {
            self.mark_services_selecting(&name.namespace, &labels);
        }
        if labels[0] != labels[1] {
            let labels = labels.each_ref().map(Option::as_ref);
            self.mark_subsets_of(&name.namespace, &labels);
        }
        self.forget_deserted(&name.namespace);
    }

    pub(super) fn set_mesh_config(&mut self, config: MeshConfig) {
        if self.world.mesh_config == config {
            return;
        }
        if self.world.mesh_config.providers != config.providers {
            let targeted = self.world.policies_by_target.values().flatten().cloned();
            self.dirty.extend(targeted.map(Subject::Policy));
        }
        let tells = self.world.mesh_config.providers != config.providers;
        self.world.mesh_config = config;
        if tells {
            self.mark_telemetry();
        }
        let gateways = self.world.gateways_by_class.values().flatten().cloned();
        self.dirty.extend(gateways.map(Subject::Waypoint));
        let with_entries = self.world.namespaces.iter();
        let with_entries = with_entries.filter(|(_, here)| !here.entries.is_empty());
        let names: Vec<_> = with_entries.map(|(name, _)| name.clone()).collect();
        for name in names {
            self.mark_entries_of(&name);
        }
    }

    /// Marks all that depends on who sees the ServiceEntries of a namespace.
    pub(super) fn mark_entries_of(&mut self, namespace: &str) {
        let Some(here) = self.world.inhabitants(namespace) else {
            return;
        };
        let hosts = here
            .entries
            .values()
            .flat_map(|entry| entry.hosts.iter().cloned());
        let hosts: BTreeSet<Arc<str>> = hosts.collect();
        let entries = here.entries.keys();
        let entries = entries.map(|entry| NamespacedName::new(namespace, entry.clone()));
        self.dirty.extend(entries.map(Subject::Entry));
        self.mark_claimants(hosts.iter());
        self.mark_routes_into(namespace);
    }

    /// Notes the single addresses of a service, and marks those that have one in common with it.
    pub(super) fn set_vips(&mut self, subject: &Subject, before: &[IpAddr], now: &[IpAddr]) {
        if before == now {
            return;
        }
        for ip in before {
            if let Some(sharing) = self.world.vips.get_mut(ip) {
                sharing.remove(subject);
                self.dirty.extend(sharing.iter().cloned());
                if sharing.is_empty() {
                    self.world.vips.remove(ip);
                }
            }
        }
        for ip in now {
            let sharing = self.world.vips.entry(*ip).or_default();
            self.dirty.extend(sharing.iter().cloned());
            sharing.insert(subject.clone());
        }
    }
}

fn vips(entry: Option<&ServiceEntry>) -> Vec<IpAddr> {
    let vips = entry.map(|entry| entry.vips.as_slice()).unwrap_or_default();
    let single = vips
        .iter()
        .filter(|vip| vip.prefix_len() == vip.max_prefix_len());
    single.map(ipnet::IpNet::addr).collect()
}
