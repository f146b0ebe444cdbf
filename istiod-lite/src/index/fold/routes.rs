// SPDX-License-Identifier: Apache-2.0
//! Routes into the facts. A route touches the services that it is for; what it leads to touches it.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
};

use super::{Index, Subject};
use crate::{
    facts::NamespacedName,
    translate::{
        policy::TargetKey,
        route::{Host, ParentKey, Reference, Route, RouteId},
    },
};

/// Routes by something that they name.
type Routes<K> = HashMap<K, BTreeSet<RouteId>>;

impl Index {
    pub(super) fn set_route(&mut self, id: &RouteId, facts: Option<Route>) {
        let namespace = &id.name.namespace;
        let key = (id.kind, id.name.name.clone());
        let here = self.world.namespaces.entry(namespace.clone()).or_default();
        let before = here.routes.remove(&key);
        if before == facts {
            if let Some(facts) = facts {
                here.routes.insert(key, facts);
            }
            self.forget_deserted(namespace);
            return;
        }
        let mut touched = BTreeSet::from([Subject::Route(id.clone())]);
        let parents = before.iter().chain(&facts).flat_map(|route| &route.parents);
        let parents: BTreeSet<ParentKey> = parents.map(|parent| parent.object.clone()).collect();
        if let Some(before) = &before {
            for parent in &before.parents {
                unlink(&mut self.world.routes_by_parent, &parent.object, id);
            }
            for (_, target) in before.targets() {
                match &target.reference {
                    Reference::Service { name, .. } => {
                        unlink(&mut self.world.routes_by_service, name, id);
                    }
                    Reference::Host { host, .. } => {
                        unlink(&mut self.world.routes_by_host, host, id);
                    }
                    Reference::Named { host, .. } => {
                        unlink(&mut self.world.routes_by_host, host, id);
                    }
                    Reference::Invalid(_) => {}
                }
            }
            for host in &before.hosts {
                unlink(&mut self.world.routes_of_host, host, id);
            }
        }
        let hosts = before.iter().chain(&facts).flat_map(|route| &route.hosts);
        let hosts: BTreeSet<Host> = hosts.cloned().collect();
        if let Some(facts) = facts {
            for parent in &facts.parents {
                link(&mut self.world.routes_by_parent, &parent.object, id);
            }
            for (_, target) in facts.targets() {
                match &target.reference {
                    Reference::Service { name, .. } => {
                        link(&mut self.world.routes_by_service, name, id);
                    }
                    Reference::Host { host, .. } | Reference::Named { host, .. } => {
                        link(&mut self.world.routes_by_host, host, id);
                    }
                    Reference::Invalid(_) => {}
                }
            }
            for host in &facts.hosts {
                link(&mut self.world.routes_of_host, host, id);
            }
            let here = self.world.namespaces.entry(namespace.clone()).or_default();
            here.routes.insert(key, facts);
        }
        for parent in &parents {
            touched.insert(Subject::of_parent(parent));
            // Which of several kinds counts may be another now.
            touched.extend(of(&self.world.routes_by_parent, parent));
        }
        self.dirty.extend(touched);
        for host in &hosts {
            self.mark_host(host);
        }
        self.forget_deserted(namespace);
    }

    /// Marks what is said of the routes and policies that are for a service.
    pub(super) fn mark_routes_for(&mut self, parent: &ParentKey) {
        self.mark_policies_for(&match parent {
            ParentKey::Service(name) => TargetKey::Service(name.clone()),
            ParentKey::Entry(name) => TargetKey::Entry(name.clone()),
        });
        self.mark_tls_policies_for(parent);
        self.dirty.extend(of(&self.world.routes_by_parent, parent));
    }

    /// Marks what is said of the routes and policies that are for any service of a namespace.
    pub(super) fn mark_routes_into(&mut self, namespace: &str) {
        self.mark_policies_into(namespace);
        let parents = self.world.routes_by_parent.iter();
        let here = parents.filter(|(parent, _)| *parent.name().namespace == *namespace);
        let routes = here.flat_map(|(_, routes)| routes.iter().cloned());
        self.dirty.extend(routes.map(Subject::Route));
    }

    /// Marks the routes that lead to a Kubernetes service, and what they are for.
    pub(super) fn mark_routes_to(&mut self, service: &NamespacedName) {
        if let Some(routes) = self.world.routes_by_service.get(service) {
            let touched = self.with_parents(routes);
            self.dirty.extend(touched);
        }
    }

    /// Marks the routes that lead to a host, and what they are for.
    pub(in crate::index) fn mark_routes_to_host(&mut self, host: &str) {
        if let Some(routes) = self.world.routes_by_host.get(host) {
            let touched = self.with_parents(routes);
            self.dirty.extend(touched);
        }
    }

    fn with_parents(&self, routes: &BTreeSet<RouteId>) -> BTreeSet<Subject> {
        let mut touched = BTreeSet::new();
        for id in routes {
            touched.insert(Subject::Route(id.clone()));
            let Some(route) = self.route(id) else {
                continue;
            };
            let parents = route.parents.iter();
            touched.extend(parents.map(|parent| Subject::of_parent(&parent.object)));
            for host in &route.hosts {
                touched.extend(self.having(host));
            }
        }
        touched
    }
}

impl Subject {
    pub(super) fn of_parent(parent: &ParentKey) -> Self {
        match parent {
            ParentKey::Service(name) => Self::Service(name.clone()),
            ParentKey::Entry(name) => Self::Entry(name.clone()),
        }
    }
}

fn of<K: Hash + Eq>(routes: &Routes<K>, key: &K) -> impl Iterator<Item = Subject> {
    let named = routes.get(key).into_iter().flatten();
    named.cloned().map(Subject::Route)
}

fn link<K: Hash + Eq + Clone>(routes: &mut Routes<K>, key: &K, id: &RouteId) {
    routes.entry(key.clone()).or_default().insert(id.clone());
}

fn unlink<K: Hash + Eq>(routes: &mut Routes<K>, key: &K, id: &RouteId) {
    if let Some(named) = routes.get_mut(key) {
        named.remove(id);
        if named.is_empty() {
            routes.remove(key);
        }
    }
}
