// SPDX-License-Identifier: Apache-2.0
//! DestinationRules and WasmPlugins into the facts. Each touches the services that it is for, and what leads to them.

use std::{collections::HashMap, hash::Hash};

use super::{Index, Subject};
use crate::{
    facts::{
        Labels, NamespacedName,
        plugin::{Plugin, Target},
    },
    translate::{destination_rule::DestinationRule, route::Host},
};

type Names<K> = HashMap<K, std::collections::BTreeSet<NamespacedName>>;

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
            Target::Gateway(name) => {
                let users = self.users.get(name).into_iter().flatten();
                self.dirty.extend(users.cloned());
            }
            Target::Class(class) => {
                let gateways = self.world.gateways_by_class.get(class);
                let gateways = gateways.into_iter().flatten();
                let users = gateways.filter_map(|gateway| self.users.get(gateway));
                self.dirty.extend(users.flatten().cloned());
            }
        }
    }

    /// Marks whatever has a host.
    pub(super) fn mark_host(&mut self, host: &str) {
        if let Some(service) = self.name_of_host(host) {
            self.dirty.insert(Subject::Service(service));
        }
        let entries = self.world.hosts.get(host).into_iter().flatten();
        self.dirty.extend(entries.cloned().map(Subject::Entry));
    }

    /// Marks the routes that lead to a host, and what they are for.
    pub(super) fn mark_leading_to(&mut self, host: &str) {
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
        let rules = self.world.rules_by_host.get(host).into_iter().flatten();
        let mut rules = rules.filter_map(|name| self.rule(name));
        rules.any(DestinationRule::has_subsets)
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
