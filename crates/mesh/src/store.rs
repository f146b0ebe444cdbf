// SPDX-License-Identifier: Apache-2.0
//! The indexes: updates in, lookups out.
//!
//! Every answer depends on what was applied last for each name, never on the order in which different names arrived.

mod policies;
mod services;
mod sorted;
mod workloads;

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use spiffe::SpiffeId;

use crate::address::{GatewayDestination, NamespacedHostname};
use crate::authorize::PolicySet;
use crate::batch::{AddressBatch, PolicyBatch};
use crate::intern::Interner;
use crate::policy::Policy;
use crate::service::Service;
use crate::workload::Workload;
use policies::Policies;
use services::Services;
use workloads::{Local, Workloads};

/// All that a proxy knows of the mesh.
#[derive(Debug, Default)]
pub struct Store {
    workloads: Workloads,
    services: Services,
    policies: Policies,
    identities: HashMap<SpiffeId, IdentityUse>,
    interner: Interner,
    generation: u64,
}

/// How many workloads have an identity.
#[derive(Debug, Clone, Copy, Default)]
struct IdentityUse {
    /// Anywhere.
    workloads: usize,
    /// On this node.
    local: usize,
    /// On this node, and in need of a certificate.
    certified: usize,
}

/// What an address or a name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// One workload.
    Workload(Arc<Workload>),
    /// A service.
    Service(Arc<Service>),
}

/// What an update changed; nothing in it was merely repeated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Uids of workloads that were added, changed or removed.
    pub workloads: Vec<Arc<str>>,
    /// Services that were added, changed or removed; not those whose endpoints changed.
    pub services: Vec<NamespacedHostname>,
    /// Whether any policy was added, changed or removed.
    pub policies_changed: bool,
    /// Identities that workloads of this node now need certificates for. Empty where the node is not known.
    pub identities_added: Vec<SpiffeId>,
    /// Identities that no workload of this node has any longer.
    pub identities_removed: Vec<SpiffeId>,
}

impl Changes {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What is known of an update while it is being applied.
#[derive(Default)]
struct Pending {
    workloads: BTreeSet<Arc<str>>,
    services: BTreeSet<NamespacedHostname>,
    policies_changed: bool,
    /// Each touched identity as it was before.
    identities: HashMap<SpiffeId, IdentityUse>,
}

impl Store {
    /// An empty store. Workloads of the node named are local; without a name all are.
    pub fn new(node: Option<&str>) -> Self {
        let local = node.map_or(Local::All, |node| Local::Node(node.into()));
        Self {
            workloads: Workloads::new(local),
            ..Self::default()
        }
    }

    /// Counts the updates that changed something.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    // Updates.

    /// Applies a decoded response of workloads and services: first what it holds, then what it removes.
    pub fn apply_addresses(&mut self, batch: AddressBatch) -> Changes {
        let mut pending = Pending::default();
        for workload in batch.workloads {
            self.put_workload(workload, &mut pending);
        }
        for service in batch.services {
            self.put_service(service, &mut pending);
        }
        for name in batch.removed {
            self.remove_named(&name, &mut pending);
        }
        self.finish(pending)
    }

    /// Applies a decoded response of policies.
    pub fn apply_policies(&mut self, batch: PolicyBatch) -> Changes {
        let mut pending = Pending::default();
        for (key, policy) in batch.policies {
            pending.policies_changed |= self.policies.insert(key, policy);
        }
        for key in batch.removed {
            pending.policies_changed |= self.policies.remove(&key);
        }
        self.finish(pending)
    }

    /// Adds a workload, or replaces the one with its uid.
    pub fn upsert_workload(&mut self, workload: Workload) -> Changes {
        let mut pending = Pending::default();
        self.put_workload(workload, &mut pending);
        self.finish(pending)
    }

    /// Adds a service, or replaces the one of its name.
    pub fn upsert_service(&mut self, service: Service) -> Changes {
        let mut pending = Pending::default();
        self.put_service(service, &mut pending);
        self.finish(pending)
    }

    /// Removes a workload by its uid, or else a service by `namespace/hostname`.
    pub fn remove(&mut self, name: &str) -> Changes {
        let mut pending = Pending::default();
        self.remove_named(name, &mut pending);
        self.finish(pending)
    }

    /// Adds or replaces a policy under the key by which workloads name it.
    pub fn upsert_policy(&mut self, key: impl Into<Arc<str>>, policy: Policy) -> Changes {
        let policies_changed = self.policies.insert(key.into(), policy);
        self.finish(Pending {
            policies_changed,
            ..Pending::default()
        })
    }

    /// Removes a policy by its key.
    pub fn remove_policy(&mut self, key: &str) -> Changes {
        let policies_changed = self.policies.remove(key);
        self.finish(Pending {
            policies_changed,
            ..Pending::default()
        })
    }

    /// Forgets every service, and every workload that is not to be kept; policies stay. What it took in memory is
    /// given back.
    pub fn keep_only(&mut self, keep: impl Fn(&Workload) -> bool) {
        let mut kept = Self {
            workloads: self.workloads.emptied(),
            policies: std::mem::take(&mut self.policies),
            generation: self.generation + 1,
            ..Self::default()
        };
        for workload in self.workloads.iter().filter(|workload| keep(workload)) {
            kept.upsert_workload(Workload::clone(workload));
        }
        *self = kept;
    }

    // Lookups.

    /// A workload by its uid.
    pub fn workload(&self, uid: &str) -> Option<&Arc<Workload>> {
        self.workloads.get(uid)
    }

    /// The workload that an address belongs to; never one that shares its node's address.
    pub fn workload_by_ip(&self, network: &str, address: IpAddr) -> Option<&Arc<Workload>> {
        self.workloads.by_address(network, address)
    }

    /// A workload by its own host name.
    pub fn workload_by_hostname(&self, namespace: &str, hostname: &str) -> Option<&Arc<Workload>> {
        self.workloads.by_hostname(namespace, hostname)
    }

    /// The workloads of this node that a pod could be, by what it calls itself, ordered by uid: one, unless clusters
    /// have nodes and pods of the same names.
    pub fn local_workloads(
        &self,
        namespace: &str,
        service_account: &str,
        name: &str,
    ) -> impl Iterator<Item = &Arc<Workload>> {
        self.workloads.local(namespace, service_account, name)
    }

    /// Whether a workload runs on this node.
    pub fn is_local(&self, workload: &Workload) -> bool {
        self.workloads.is_local(workload)
    }

    /// The service of a namespace with exactly this host name.
    pub fn service(&self, namespace: &str, hostname: &str) -> Option<&Arc<Service>> {
        self.services.get(namespace, hostname)
    }

    /// The service that a client means by a virtual address; without a client's namespace all are visible.
    pub fn service_by_vip(
        &self,
        network: &str,
        address: IpAddr,
        client_namespace: Option<&str>,
    ) -> Option<&Arc<Service>> {
        self.services.by_vip(network, address, client_namespace)
    }

    /// The service that a client means by a host name.
    pub fn service_by_host(
        &self,
        hostname: &str,
        client_namespace: Option<&str>,
    ) -> Option<&Arc<Service>> {
        self.services.by_host(hostname, client_namespace)
    }

    /// Every service of a host name, whoever may see it, ordered by namespace.
    pub fn services_by_host(&self, hostname: &str) -> impl Iterator<Item = &Arc<Service>> {
        self.services.of_host(hostname)
    }

    /// What an address stands for: a workload, or else a service.
    pub fn find(
        &self,
        network: &str,
        address: IpAddr,
        client_namespace: Option<&str>,
    ) -> Option<Found> {
        if let Some(workload) = self.workload_by_ip(network, address) {
            return Some(Found::Workload(workload.clone()));
        }
        self.service_by_vip(network, address, client_namespace)
            .map(|service| Found::Service(service.clone()))
    }

    /// What a reference to a waypoint or gateway stands for: a service, or else a workload.
    pub fn gateway(
        &self,
        reference: &GatewayDestination,
        client_namespace: Option<&str>,
    ) -> Option<Found> {
        let (service, workload) = match reference {
            GatewayDestination::Address(at) => (
                self.service_by_vip(&at.network, at.address, client_namespace),
                self.workload_by_ip(&at.network, at.address),
            ),
            GatewayDestination::Hostname(host) => (
                self.service(&host.namespace, &host.hostname),
                self.workload_by_hostname(&host.namespace, &host.hostname),
            ),
        };
        match (service, workload) {
            (Some(service), _) => Some(Found::Service(service.clone())),
            (None, workload) => workload.cloned().map(Found::Workload),
        }
    }

    /// All workloads that back a service, ready or not, ordered by uid.
    pub fn endpoints(&self, service: &Service) -> &[Arc<Workload>] {
        self.services
            .endpoints(&service.namespace, &service.hostname)
    }

    /// A policy by its key.
    pub fn policy(&self, key: &str) -> Option<&Arc<Policy>> {
        self.policies.get(key)
    }

    /// The policies that concern connections to a workload, and the keys it names that are not known.
    pub fn policies_for(&self, workload: &Workload) -> PolicySet {
        self.policies.concerning(workload)
    }

    /// Those of them that it names itself, which are all that concern a waypoint.
    pub fn policies_named_by(&self, workload: &Workload) -> PolicySet {
        self.policies.named_by(workload)
    }

    /// Whether those policies look for more than that `one` connects, so that it matters for whom `one` speaks.
    pub fn policies_ask_beyond(&self, workload: &Workload, one: &SpiffeId) -> bool {
        self.policies.ask_beyond(workload, one)
    }

    /// The identities that workloads of this node need certificates for.
    pub fn local_identities(&self) -> impl Iterator<Item = &SpiffeId> {
        self.identities
            .iter()
            .filter(|(_, used)| used.certified > 0)
            .map(|(identity, _)| identity)
    }

    /// All workloads, in no order.
    pub fn workloads(&self) -> impl Iterator<Item = &Arc<Workload>> {
        self.workloads.iter()
    }

    /// How many workloads there are.
    pub fn workload_count(&self) -> usize {
        self.workloads.len()
    }

    /// All services with their endpoints, in no order.
    pub fn services(&self) -> impl Iterator<Item = (&Arc<Service>, &[Arc<Workload>])> {
        self.services.iter()
    }

    /// How many services there are.
    pub fn service_count(&self) -> usize {
        self.services.len()
    }

    /// Endpoints of services that are not known, in no order.
    pub fn staged(&self) -> impl Iterator<Item = (NamespacedHostname, &[Arc<Workload>])> {
        self.services.staged()
    }

    /// All policies with their keys, in no order.
    pub fn policies(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<Policy>)> {
        self.policies.iter()
    }

    // How an update is applied.

    fn put_workload(&mut self, mut workload: Workload, pending: &mut Pending) {
        if !self.workloads.is_local(&workload) {
            // It tells pods of this node apart, and there are fifty thousand elsewhere.
            workload.pod_uid = None;
        }
        if self
            .workloads
            .get(&workload.uid)
            .is_some_and(|held| **held == workload)
        {
            return;
        }
        let uid = workload.uid.clone();
        self.take_workload(&uid, pending);
        self.interner.share_workload(&mut workload);
        if let Some((identity, _)) = self.identities.get_key_value(&workload.identity) {
            workload.identity = identity.clone();
        }
        let workload = Arc::new(workload);
        let one = self.identity_use(&workload);
        let used = self.identity_mut(&workload.identity, pending);
        used.workloads += one.workloads;
        used.local += one.local;
        used.certified += one.certified;
        self.workloads.insert(&workload);
        self.services.attach(&workload);
        pending.workloads.insert(uid);
    }

    fn take_workload(&mut self, uid: &str, pending: &mut Pending) -> bool {
        let Some(workload) = self.workloads.remove(uid) else {
            return false;
        };
        self.services.detach(&workload);
        let one = self.identity_use(&workload);
        let used = self.identity_mut(&workload.identity, pending);
        used.workloads -= one.workloads;
        used.local -= one.local;
        used.certified -= one.certified;
        pending.workloads.insert(workload.uid.clone());
        true
    }

    fn put_service(&mut self, mut service: Service, pending: &mut Pending) {
        if self
            .services
            .get(&service.namespace, &service.hostname)
            .is_some_and(|held| **held == service)
        {
            return;
        }
        self.interner.share(&mut service.namespace);
        self.interner.share(&mut service.hostname);
        let service = Arc::new(service);
        pending.services.insert(service.key());
        self.services.insert(&service);
    }

    fn remove_named(&mut self, name: &str, pending: &mut Pending) {
        if self.take_workload(name, pending) {
            return;
        }
        // A uid may hold slashes too; a name with more than one is an unknown workload's, never a service's.
        let Some((namespace, hostname)) = name.split_once('/') else {
            return;
        };
        if hostname.contains('/') {
            return;
        }
        if let Some(service) = self.services.remove(namespace, hostname) {
            pending.services.insert(service.key());
        }
    }

    /// What one workload adds to the count of its identity.
    fn identity_use(&self, workload: &Workload) -> IdentityUse {
        let local = self.workloads.is_local(workload);
        IdentityUse {
            workloads: 1,
            local: usize::from(local),
            certified: usize::from(local && workload.needs_certificate()),
        }
    }

    fn identity_mut(&mut self, identity: &SpiffeId, pending: &mut Pending) -> &mut IdentityUse {
        let used = self.identities.entry(identity.clone()).or_default();
        pending.identities.entry(identity.clone()).or_insert(*used);
        used
    }

    fn finish(&mut self, pending: Pending) -> Changes {
        let mut changes = Changes {
            workloads: pending.workloads.into_iter().collect(),
            services: pending.services.into_iter().collect(),
            policies_changed: pending.policies_changed,
            ..Changes::default()
        };
        for (identity, before) in pending.identities {
            let now = self.identities.get(&identity).copied().unwrap_or_default();
            if now.workloads == 0 {
                self.identities.remove(&identity);
            }
            if before.local > 0 && now.local == 0 {
                changes.identities_removed.push(identity);
            } else if before.certified == 0 && now.certified > 0 && self.workloads.node_is_known() {
                changes.identities_added.push(identity);
            }
        }
        changes.identities_added.sort();
        changes.identities_removed.sort();
        if !changes.is_empty() {
            self.generation += 1;
        }
        changes
    }
}

#[cfg(test)]
mod tests;
