// SPDX-License-Identifier: Apache-2.0
//! DestinationRules and WasmPlugins into the facts. Each touches the services that it is for, and what leads to them.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
};

use super::{Index, Subject};
use crate::{
    facts::{
        Labels, NamespacedName,
        plugin::{Plugin, Target},
    },
    translate::{
        destination_rule::DestinationRule,
        route::{Host, closeness, names_of},
    },
};

type Names<K> = HashMap<K, BTreeSet<NamespacedName>>;

impl Index {
    pub(super) fn set_rule(&mut self, name: &NamespacedName, facts: Option<DestinationRule>) {
        let here = self
            .world
            .namespaces
            .entry(name.namespace.clone())
            .or_default();
        let before = here.rules.remove(&name.name);
        if before != facts {
            self.dirty.insert(Subject::Rule(name.clone()));
            let hosts = before
                .iter()
                .chain(&facts)
                .filter_map(|rule| rule.host.clone());
            let hosts: Vec<Host> = hosts.collect();
            if let Some(host) = before.and_then(|rule| rule.host) {
                unlink(&mut self.world.rules_by_host, &host, name);
            }
            if let Some(host) = facts.as_ref().and_then(|rule| rule.host.as_ref()) {
                link(&mut self.world.rules_by_host, host, name);
            }
            for host in hosts {
                self.mark_host(&host);
                self.mark_leading_to(&host);
            }
        }
        if let Some(facts) = facts {
            let here = self
                .world
                .namespaces
                .entry(name.namespace.clone())
                .or_default();
            here.rules.insert(name.name.clone(), facts);
        }
        self.forget_deserted(&name.namespace);
    }

    pub(super) fn set_plugin(&mut self, name: &NamespacedName, facts: Option<Plugin>) {
        let here = self
            .world
            .namespaces
            .entry(name.namespace.clone())
            .or_default();
        let before = here.plugins.remove(&name.name);
        if before != facts {
            self.dirty.insert(Subject::Plugin(name.clone()));
            let targets = before
                .iter()
                .chain(&facts)
                .flat_map(|plugin| &plugin.targets);
            let targets: Vec<Target> = targets.cloned().collect();
            for target in before.iter().flat_map(|plugin| &plugin.targets) {
                unlink(&mut self.world.plugins_by_target, target, name);
            }
            for target in facts.iter().flat_map(|plugin| &plugin.targets) {
                link(&mut self.world.plugins_by_target, target, name);
            }
            for target in &targets {
                self.mark_target(target);
            }
        }
        if let Some(facts) = facts {
            let here = self
                .world
                .namespaces
                .entry(name.namespace.clone())
                .or_default();
            here.plugins.insert(name.name.clone(), facts);
        }
        self.forget_deserted(&name.namespace);
    }

    fn mark_target(&mut self, target: &Target) {
        match target {
            Target::Service(name) => {
                self.dirty.insert(Subject::Service(name.clone()));
            }
            Target::Entry(name) => {
                self.dirty.insert(Subject::Entry(name.clone()));
            }
            Target::Gateway(name) => self.mark_served_by(name),
            Target::Class(class) => {
                let gateways = self.world.gateways_by_class.get(class);
                let gateways: Vec<_> = gateways.into_iter().flatten().cloned().collect();
                for gateway in &gateways {
                    self.mark_served_by(gateway);
                }
            }
        }
    }

    /// Marks a waypoint, and what it serves.
    fn mark_served_by(&mut self, waypoint: &NamespacedName) {
        let users = self.users.get(waypoint).into_iter().flatten();
        self.dirty.extend(users.cloned());
        self.dirty.insert(Subject::Waypoint(waypoint.clone()));
    }

    /// Marks whatever has a host of this name.
    pub(super) fn mark_host(&mut self, host: &str) {
        let having = self.having(host);
        self.dirty.extend(having);
    }

    /// Whatever has a host of this name, or of one that it stands for.
    pub(super) fn having(&self, name: &str) -> BTreeSet<Subject> {
        if !name.starts_with('*') {
            let service = self.name_of_host(name).map(Subject::Service);
            let entries = self.world.hosts.get(name).into_iter().flatten();
            let entries = entries.cloned().map(Subject::Entry);
            return service.into_iter().chain(entries).collect();
        }
        let entries = self.world.hosts.iter();
        let entries = entries.filter(|(host, _)| closeness(name, host).is_some());
        let entries = entries.flat_map(|(_, entries)| entries.iter().cloned());
        let mut having: BTreeSet<_> = entries.map(Subject::Entry).collect();
        for (namespace, here) in &self.world.namespaces {
            let services = here.services.keys();
            let services = services.filter(|service| {
                closeness(name, &self.mesh.hostname(namespace, service)).is_some()
            });
            having.extend(services.map(|service| {
                Subject::Service(NamespacedName::new(namespace.clone(), service.clone()))
            }));
        }
        having
    }

    /// Marks the routes that lead to a host, and what they are for.
    pub(super) fn mark_leading_to(&mut self, host: &str) {
        if host.starts_with('*') {
            let hosts = self.world.routes_by_host.keys();
            let hosts = hosts.filter(|known| closeness(host, known).is_some());
            let hosts: Vec<Host> = hosts.cloned().collect();
            let services = self.world.routes_by_service.keys();
            let services = services.filter(|name| {
                closeness(host, &self.mesh.hostname(&name.namespace, &name.name)).is_some()
            });
            let services: Vec<NamespacedName> = services.cloned().collect();
            for host in hosts {
                self.mark_routes_to_host(&host);
            }
            for service in services {
                self.mark_routes_to(&service);
            }
            return;
        }
        self.mark_routes_to_host(host);
        if let Some(service) = self.name_of_host(host) {
            self.mark_routes_to(&service);
        }
    }

    /// Marks what depends on which workloads of a namespace belong together, where one has, or had, such labels.
    pub(super) fn mark_subsets_of(&mut self, namespace: &str, labels: &[Option<&Labels>]) {
        if self.world.rules_by_host.is_empty() {
            return;
        }
        let Some(here) = self.world.inhabitants(namespace) else {
            return;
        };
        let mut hosts: Vec<Host> = Vec::new();
        for labels in labels.iter().copied().flatten() {
            let services = here.services_selecting(labels);
            hosts.extend(services.map(|(name, _)| Host::from(self.mesh.hostname(namespace, name))));
            let entries = here.entries_selecting(labels);
            hosts.extend(entries.flat_map(|(_, entry)| entry.hosts.iter().cloned()));
        }
        hosts.sort_unstable();
        hosts.dedup();
        hosts.retain(|host| self.has_subsets(host));
        for host in hosts {
            self.mark_leading_to(&host);
        }
    }

    fn has_subsets(&self, host: &str) -> bool {
        names_of(host).any(|name| {
            let rules = self.world.rules_by_host.get(&*name).into_iter().flatten();
            let mut rules = rules.filter_map(|name| self.rule(name));
            rules.any(DestinationRule::has_subsets)
        })
    }

    pub(in crate::index) fn rule(&self, name: &NamespacedName) -> Option<&DestinationRule> {
        self.world
            .inhabitants(&name.namespace)?
            .rules
            .get(&name.name)
    }
}

fn link<K: Hash + Eq + Clone>(names: &mut Names<K>, key: &K, name: &NamespacedName) {
    names.entry(key.clone()).or_default().insert(name.clone());
}

fn unlink<K: Hash + Eq>(names: &mut Names<K>, key: &K, name: &NamespacedName) {
    if let Some(named) = names.get_mut(key) {
        named.remove(name);
        if named.is_empty() {
            names.remove(key);
        }
    }
}
