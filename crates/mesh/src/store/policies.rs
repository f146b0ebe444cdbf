// SPDX-License-Identifier: Apache-2.0
//! Policies by key, and those that apply without being named.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use spiffe::SpiffeId;

use crate::authorize::PolicySet;
use crate::policy::{Policy, PolicyScope};
use crate::workload::Workload;

#[derive(Debug, Default)]
pub(super) struct Policies {
    by_key: HashMap<Arc<str>, Arc<Policy>>,
    /// Those of namespace scope, by namespace. A policy of this scope without a namespace is a global one.
    of_namespace: HashMap<Arc<str>, BTreeMap<Arc<str>, Arc<Policy>>>,
    global: BTreeMap<Arc<str>, Arc<Policy>>,
    /// Those that look at who calls.
    of_sources: HashSet<Arc<str>>,
}

impl Policies {
    /// Adds or replaces a policy; says whether that changed anything.
    pub(super) fn insert(&mut self, key: Arc<str>, policy: Policy) -> bool {
        if self.by_key.get(&key).is_some_and(|held| **held == policy) {
            return false;
        }
        self.remove(&key);
        let policy = Arc::new(policy);
        if policy.looks_at_sources() {
            self.of_sources.insert(key.clone());
        }
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
        self.of_sources.remove(key);
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

    /// Those that a workload names itself.
    pub(super) fn named_by(&self, workload: &Workload) -> PolicySet {
        let mut set = PolicySet::default();
        for key in &workload.authorization_policies {
            match self.by_key.get(key) {
                Some(policy) => set.add(policy),
                None => set.missing.push(key.clone()),
            }
        }
        set
    }

    /// Whether connections to a workload are judged by more than that `one` has made them.
    pub(super) fn ask_beyond(&self, workload: &Workload, one: &SpiffeId) -> bool {
        // As in most meshes, and this is asked for each request.
        if self.of_sources.is_empty() {
            return false;
        }
        let asks = |policy: &Policy| policy.names_others_than(one);
        let unnamed = self.of_namespace.get(&workload.namespace);
        let unnamed = unnamed.into_iter().chain([&self.global]).flatten();
        let named = workload.authorization_policies.iter();
        let named = named.filter_map(|key| self.by_key.get_key_value(key));
        unnamed
            .chain(named)
            .any(|(key, policy)| self.of_sources.contains(key) && asks(policy))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<Policy>)> {
        self.by_key.iter()
    }
}
