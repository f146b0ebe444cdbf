// SPDX-License-Identifier: Apache-2.0
//! AuthorizationPolicies and PeerAuthentications into the facts. Workloads only name
//! policies, so that a change of rules concerns none of them.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use super::{Index, Subject, mark_selected, mark_workloads};
use crate::{
    facts::{
        NamespacedName,
        policy::{PeerAuthentication, Reach},
    },
    translate::{
        authentication::{Authentication, KeySource},
        policy::{self as authorization, TargetKey},
    },
};

impl Index {
    pub(super) fn set_policy(
        &mut self,
        name: &NamespacedName,
        facts: Option<authorization::Policy>,
    ) {
        let here = self
            .world
            .namespaces
            .entry(name.namespace.clone())
            .or_default();
        let before = here.policies.get(&name.name).cloned();
        if before != facts {
            self.dirty.insert(Subject::Policy(name.clone()));
            if let Some(Reach::Selected(labels)) = before.as_ref().map(|policy| &policy.reach) {
                here.policies_by_selector.remove(&name.name, labels);
            }
            if let Some(Reach::Selected(labels)) = facts.as_ref().map(|policy| &policy.reach) {
                here.policies_by_selector.insert(&name.name, labels);
            }
            self.link_targets(name, before.as_ref(), facts.as_ref());
            let Some(here) = self.world.namespaces.get_mut(&name.namespace) else {
                return;
            };
            // Workloads only name the policy: its rules don't concern them.
            let names = |policy: &Option<authorization::Policy>| {
                policy
                    .as_ref()
                    .filter(|p| p.authorization.is_some())
                    .map(|p| p.reach.clone())
            };
            let (old, new) = (names(&before), names(&facts));
            match facts {
                Some(facts) => here.policies.insert(name.name.clone(), facts),
                None => here.policies.remove(&name.name),
            };
            if old != new {
                for reach in old.iter().chain(&new) {
                    self.mark_reached(&name.namespace, reach);
                }
            }
        }
        self.forget_deserted(&name.namespace);
    }

    /// Notes what a policy with targetRefs is for, and marks what its waypoints are told.
    fn link_targets(
        &mut self,
        name: &NamespacedName,
        before: Option<&authorization::Policy>,
        now: Option<&authorization::Policy>,
    ) {
        let keys = |policy: Option<&authorization::Policy>| -> BTreeSet<TargetKey> {
            let targets = policy.into_iter().flat_map(|policy| &policy.targets);
            targets
                .filter_map(|target| target.key.clone().ok())
                .collect()
        };
        let (before, now) = (keys(before), keys(now));
        relink(&mut self.world.policies_by_target, name, &before, &now);
        self.mark_targets(before.union(&now));
    }

    pub(super) fn set_authentication(
        &mut self,
        name: &NamespacedName,
        facts: Option<Authentication>,
    ) {
        let here = self.world.namespaces.entry(name.namespace.clone());
        let all = &mut here.or_default().authentications;
        let before = match &facts {
            Some(facts) => all.insert(name.name.clone(), facts.clone()),
            None => all.remove(&name.name),
        };
        if before != facts {
            let keys = |facts: Option<&Authentication>| -> BTreeSet<TargetKey> {
                let targets = facts.into_iter().flat_map(|facts| &facts.targets);
                targets
                    .filter_map(|target| target.key.clone().ok())
                    .collect()
            };
            let (before, now) = (keys(before.as_ref()), keys(facts.as_ref()));
            relink(
                &mut self.world.authentications_by_target,
                name,
                &before,
                &now,
            );
            self.mark_targets(before.union(&now));
            self.dirty.insert(Subject::Authentication(name.clone()));
        }
        self.forget_deserted(&name.namespace);
    }

    /// The sources of keys that are wanted; what was fetched from others is forgotten.
    pub fn key_sources(&mut self) -> BTreeSet<KeySource> {
        let all = self.world.namespaces.values();
        let all = all.flat_map(|here| here.authentications.values());
        let rules = all.flat_map(|authentication| &authentication.rules);
        let sources = rules.filter_map(|rule| rule.keys_from.clone());
        let sources: BTreeSet<KeySource> = sources.collect();
        self.world
            .key_sets
            .retain(|source, _| sources.contains(source));
        sources
    }

    pub(in crate::index) fn fold_keys(&mut self, source: KeySource, keys: Result<String, String>) {
        if self.world.key_sets.get(&source) == Some(&keys) {
            return;
        }
        let all = self.world.namespaces.values();
        let all = all.flat_map(|here| here.authentications.values());
        let using = all.filter(|authentication| {
            let mut rules = authentication.rules.iter();
            rules.any(|rule| rule.keys_from.as_ref() == Some(&source))
        });
        let targets = using.flat_map(|authentication| &authentication.targets);
        let targets: BTreeSet<TargetKey> = targets
            .filter_map(|target| target.key.clone().ok())
            .collect();
        if !targets.is_empty() {
            self.world.key_sets.insert(source, keys);
            self.mark_targets(targets.iter());
        }
    }

    /// Marks what waypoints are told of these.
    fn mark_targets<'k>(&mut self, keys: impl Iterator<Item = &'k TargetKey>) {
        for key in keys {
            let subject = match key {
                TargetKey::Gateway(name) => Subject::Waypoint(name.clone()),
                TargetKey::Service(name) => Subject::Service(name.clone()),
                TargetKey::Entry(name) => Subject::Entry(name.clone()),
                TargetKey::Class(class) => {
                    let gateways = self.world.gateways_by_class.get(class);
                    let gateways = gateways.into_iter().flatten().cloned();
                    self.dirty.extend(gateways.map(Subject::Waypoint));
                    continue;
                }
            };
            self.dirty.insert(subject);
        }
    }

    /// Marks what is said of the policies, rules of tokens and Telemetries that are for something.
    pub(in crate::index) fn mark_policies_for(&mut self, target: &TargetKey) {
        let named = self.world.policies_by_target.get(target);
        let named = named.into_iter().flatten().cloned();
        self.dirty.extend(named.map(Subject::Policy));
        let named = self.world.authentications_by_target.get(target);
        let named = named.into_iter().flatten().cloned();
        self.dirty.extend(named.map(Subject::Authentication));
        self.mark_telemetries_for(|key| key == target);
    }

    /// Marks what is said of the policies, rules of tokens and Telemetries that are for anything in a namespace.
    pub(in crate::index) fn mark_policies_into(&mut self, namespace: &str) {
        let of = |target: &TargetKey| match target {
            TargetKey::Gateway(name) | TargetKey::Service(name) | TargetKey::Entry(name) => {
                *name.namespace == *namespace
            }
            TargetKey::Class(_) => false,
        };
        let targets = self.world.policies_by_target.iter();
        let named = targets
            .filter(|(target, _)| of(target))
            .flat_map(|(_, names)| names);
        self.dirty.extend(named.cloned().map(Subject::Policy));
        let targets = self.world.authentications_by_target.iter();
        let named = targets
            .filter(|(target, _)| of(target))
            .flat_map(|(_, names)| names);
        self.dirty
            .extend(named.cloned().map(Subject::Authentication));
        self.mark_telemetries_for(of);
    }

    /// Marks the workloads that a policy's selector chooses: in the root namespace, those
    /// of all namespaces. Policies for whole scopes are named by no workload.
    fn mark_reached(&mut self, namespace: &Arc<str>, reach: &Reach) {
        let Reach::Selected(labels) = reach else {
            return;
        };
        let mut touched = BTreeSet::new();
        let everywhere = **namespace == *self.mesh.root_namespace;
        let within = self
            .world
            .namespaces
            .iter()
            .filter(|(name, _)| everywhere || *name == namespace);
        for (name, here) in within {
            mark_selected(name, here, labels, &mut touched);
            let entries = here.selected_entries(labels).cloned();
            touched.extend(
                entries.map(|entry| Subject::Entry(NamespacedName::new(name.clone(), entry))),
            );
        }
        self.dirty.extend(touched);
    }

    pub(super) fn set_peer(&mut self, name: &NamespacedName, facts: Option<PeerAuthentication>) {
        let here = self
            .world
            .namespaces
            .entry(name.namespace.clone())
            .or_default();
        let before = here.peers.get(&name.name).cloned();
        if before != facts {
            if let Some(Reach::Selected(labels)) = before.as_ref().map(|peer| &peer.reach) {
                here.peers_by_selector.remove(&name.name, labels);
            }
            if let Some(Reach::Selected(labels)) = facts.as_ref().map(|peer| &peer.reach) {
                here.peers_by_selector.insert(&name.name, labels);
            }
            let reaches: Vec<Reach> = before
                .iter()
                .chain(&facts)
                .map(|p| p.reach.clone())
                .collect();
            let count = &mut self.world.peer_authentications;
            *count = *count + usize::from(facts.is_some()) - usize::from(before.is_some());
            match facts {
                Some(facts) => here.peers.insert(name.name.clone(), facts),
                None => here.peers.remove(&name.name),
            };
            self.dirty.insert(Subject::StaticStrict);
            self.dirty.insert(Subject::PeerAuthentication(name.clone()));
            for reach in &reaches {
                self.mark_peer_reach(&name.namespace, reach);
            }
        }
        self.forget_deserted(&name.namespace);
    }

    fn mark_peer_reach(&mut self, namespace: &Arc<str>, reach: &Reach) {
        let is_root = **namespace == *self.mesh.root_namespace;
        match reach {
            // In the root namespace, a policy with a selector is ignored.
            Reach::Selected(_) if is_root => {}
            Reach::Selected(_) => self.mark_reached(namespace, reach),
            Reach::All => {
                let mut touched = BTreeSet::new();
                let within = self
                    .world
                    .namespaces
                    .iter()
                    .filter(|(name, _)| is_root || *name == namespace);
                for (name, here) in within {
                    mark_workloads(name, here, &mut touched);
                    let peers = here.peers.keys();
                    touched.extend(peers.map(|peer| {
                        Subject::PeerAuthentication(NamespacedName::new(name.clone(), peer.clone()))
                    }));
                }
                self.dirty.extend(touched);
            }
        }
    }
}

/// Notes under what an object is found, in place of what it was found under before.
pub(super) fn relink<K: Clone + Ord + std::hash::Hash>(
    by_target: &mut HashMap<K, BTreeSet<NamespacedName>>,
    name: &NamespacedName,
    before: &BTreeSet<K>,
    now: &BTreeSet<K>,
) {
    for key in before.difference(now) {
        if let Some(names) = by_target.get_mut(key) {
            names.remove(name);
            if names.is_empty() {
                by_target.remove(key);
            }
        }
    }
    for key in now {
        by_target
            .entry(key.clone())
            .or_default()
            .insert(name.clone());
    }
}
