// SPDX-License-Identifier: Apache-2.0
//! Telemetries into the facts. There are few of them, they change rarely, and each may concern services of any namespace:
//! whatever waypoints are told is made again, and sent where it differs.

use std::sync::Arc;

use super::{Index, Subject};
use crate::{
    facts::NamespacedName,
    translate::{policy::TargetKey, telemetry::Telemetry},
};

impl Index {
    pub(super) fn set_telemetry(&mut self, name: &NamespacedName, facts: Option<Telemetry>) {
        let all = &mut self.world.telemetries;
        let before = match &facts {
            Some(facts) => all.insert(name.clone(), facts.clone()),
            None => all.remove(name),
        };
        if before != facts {
            self.dirty.insert(Subject::Telemetry(name.clone()));
            let concerned = Subject::ConnectionLogs(name.namespace.clone());
            self.dirty.insert(concerned);
            self.mark_told();
        }
    }

    /// Marks what is made of the mesh's providers.
    pub(super) fn mark_telemetry(&mut self) {
        if !self.world.telemetries.is_empty() {
            let all = self.world.telemetries.keys().cloned();
            self.dirty.extend(all.map(Subject::Telemetry));
            self.mark_told();
        }
    }

    /// Marks what is said of those that are for any of these.
    pub(super) fn mark_telemetries_for(&mut self, concerned: impl Fn(&TargetKey) -> bool) {
        let all = self.world.telemetries.iter();
        let named = all.filter(|(_, one)| {
            let mut keys = one
                .targets()
                .iter()
                .filter_map(|target| target.key.as_ref().ok());
            keys.any(&concerned)
        });
        let named = named.map(|(name, _)| Subject::Telemetry(name.clone()));
        self.dirty.extend(named);
    }

    /// Marks what waypoints and nodes are told.
    fn mark_told(&mut self) {
        let namespaces = self.world.telemetries.keys();
        let namespaces = namespaces.map(|name| Subject::ConnectionLogs(name.namespace.clone()));
        self.dirty.extend(namespaces);
        let gateways = self.world.gateways_by_class.values().flatten().cloned();
        self.dirty.extend(gateways.map(Subject::Waypoint));
        for (namespace, here) in &self.world.namespaces {
            let named = |name: &Arc<str>| NamespacedName::new(namespace.clone(), name.clone());
            let services = here.services.keys().map(named).map(Subject::Service);
            let entries = here.entries.keys().map(named).map(Subject::Entry);
            self.dirty.extend(services.chain(entries));
        }
    }
}
