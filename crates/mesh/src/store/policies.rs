// SPDX-License-Identifier: Apache-2.0
//! Policies by key, and those that apply without being named.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::authorize::PolicySet;
use crate::policy::{Policy, PolicyScope};
use crate::workload::Workload;

#[derive(Debug, Default)]
pub(super) struct Policies {
    by_key: HashMap<Arc<str>, Arc<Policy>>,
    /// Those of namespace scope, by namespace. A policy of this scope without a namespace is a global one.
    of_namespace: HashMap<Arc<str>, BTreeMap<Arc<str>, Arc<Policy>>>,
    global: BTreeMap<Arc<str>, Arc<Policy>>,
}

impl Policies {
    /// Adds or replaces a policy; says whether that changed anything.
    pub(super) fn insert(&mut self, key: Arc<str>, policy: Policy) -> bool {
        if self.by_key.get(&key).is_some_and(|held| **held == policy) {
            return false;
        }
        self.remove(&key);
        let policy = Arc::new(policy);
        match policy.scope {
            PolicyScope::WorkloadSelector => {}
            PolicyScope::Namespace if !policy.namespace.is_empty() => {
                let namespace = self.of_namespace.entry(policy.namespace.clone());
                namespace.or_default().insert(key.clone(), policy.clone());
            }
            PolicyScope::Namespace | PolicyScope::Global => {
                self.global.insert(key.clone(), policy.clone());
            }
        }
        self.by_key.insert(key, policy);
        true
    }

    /// Removes a policy; says whether it was there.
    pub(super) fn remove(&mut self, key: &str) -> bool {
        let Some(policy) = self.by_key.remove(key) else {
            return false;
        };
        self.global.remove(key);
        if let Some(namespace) = self.of_namespace.get_mut(&policy.namespace) {
            namespace.remove(key);
            if namespace.is_empty() {
                self.of_namespace.remove(&policy.namespace);
            }
        }
        true
    }

    pub(super) fn get(&self, key: &str) -> Option<&Arc<Policy>> {
        self.by_key.get(key)
    }

    /// All that concern connections to a workload.
    pub(super) fn concerning(&self, workload: &Workload) -> PolicySet {
        let mut set = PolicySet::default();
        for policy in self.global.values() {
            set.add(policy);
        }
        for policy in self
            .of_namespace
            .get(&workload.namespace)
            .into_iter()
            .flat_map(BTreeMap::values)
        {
            set.add(policy);
        }
        for key in &workload.authorization_policies {
            match self.by_key.get(key) {
                Some(policy) => set.add(policy),
                None => set.missing.push(key.clone()),
            }
        }
        set
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<Policy>)> {
        self.by_key.iter()
    }
}
