// SPDX-License-Identifier: Apache-2.0
//! BackendTLSPolicies and the certificates that they name into the facts. Each touches the services that it is for, what
//! leads to them, and the other policies for them.

use std::collections::BTreeSet;

use super::{Index, Subject};
use crate::{
    facts::NamespacedName,
    translate::{
        backend_tls::{Authorities, BackendTls},
        route::ParentKey,
    },
};

impl Index {
    pub(super) fn set_tls_policy(&mut self, name: &NamespacedName, facts: Option<BackendTls>) {
        let all = &mut self.world.tls_policies;
        let before = match &facts {
            Some(facts) => all.insert(name.clone(), facts.clone()),
            None => all.remove(name),
        };
        if before == facts {
            return;
        }
        let keys = |facts: Option<&BackendTls>| -> BTreeSet<ParentKey> {
            let targets = facts.into_iter().flat_map(|facts| &facts.targets);
            targets
                .filter_map(|target| target.key.clone().ok())
                .collect()
        };
        let (before, now) = (keys(before.as_ref()), keys(facts.as_ref()));
        let by_target = &mut self.world.tls_policies_by_target;
        super::policies::relink(by_target, name, &before, &now);
        self.dirty.insert(Subject::TlsPolicy(name.clone()));
        for key in before.union(&now) {
            self.mark_tls_with(key);
        }
    }

    /// Takes in what a ConfigMap holds; none: there is no such ConfigMap.
    pub(in crate::index) fn fold_bundle(
        &mut self,
        name: &NamespacedName,
        bundle: Option<Result<String, String>>,
    ) {
        let all = &mut self.world.bundles;
        let before = match &bundle {
            Some(bundle) => all.insert(name.clone(), bundle.clone()),
            None => all.remove(name),
        };
        if before == bundle {
            return;
        }
        let policies = self.world.tls_policies.iter();
        let using = policies.filter(|(_, policy)| policy.bundles().any(|used| used == name));
        let using: Vec<(NamespacedName, Vec<ParentKey>)> = using
            .map(|(policy, facts)| {
                let targets = facts.targets.iter();
                let keys = targets.filter_map(|target| target.key.clone().ok());
                (policy.clone(), keys.collect())
            })
            .collect();
        for (policy, keys) in using {
            self.dirty.insert(Subject::TlsPolicy(policy));
            for key in &keys {
                self.mark_tls_with(key);
            }
        }
    }

    /// The ConfigMaps that policies name.
    pub fn wanted_bundles(&self) -> BTreeSet<NamespacedName> {
        let policies = self.world.tls_policies.values();
        policies.flat_map(BackendTls::bundles).cloned().collect()
    }

    /// Marks what is said of the policies for a service.
    pub(super) fn mark_tls_policies_for(&mut self, key: &ParentKey) {
        let policies = self.world.tls_policies_by_target.get(key);
        let policies = policies.into_iter().flatten().cloned();
        self.dirty.extend(policies.map(Subject::TlsPolicy));
    }

    /// Marks those, the service and all that leads to it.
    fn mark_tls_with(&mut self, key: &ParentKey) {
        self.mark_tls_policies_for(key);
        self.dirty.insert(Subject::of_parent(key));
        for host in self.names_led_to(key) {
            self.mark_leading_to(&host);
        }
    }
}

impl BackendTls {
    fn bundles(&self) -> impl Iterator<Item = &NamespacedName> {
        let listed = match &self.authorities {
            Authorities::System => [].as_slice(),
            Authorities::Listed(listed) => listed,
        };
        listed.iter().filter_map(|one| one.as_ref().ok())
    }
}
