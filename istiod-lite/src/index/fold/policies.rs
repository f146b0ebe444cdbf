// SPDX-License-Identifier: Apache-2.0
//! AuthorizationPolicies and PeerAuthentications into the facts. Workloads only name
//! policies, so that a change of rules concerns none of them.

use std::{collections::BTreeSet, sync::Arc};

use super::{Index, Subject, mark_selected, mark_workloads};
use crate::{
    facts::{
        NamespacedName,
        policy::{PeerAuthentication, Reach},
    },
    translate::policy as authorization,
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
