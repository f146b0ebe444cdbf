// SPDX-License-Identifier: Apache-2.0
//! Other networks: which Gateway leads into each, and who may answer from there.

use std::{collections::BTreeSet, sync::Arc};

use proto::workload as wire;
use spiffe::SpiffeId;

use super::{Derived, Index, Subject, fold::mark_namespace, world::Inhabitants};
use crate::{
    facts::{
        Labels, NamespacedName, Problem,
        endpoint::Endpoint,
        network_gateway::{NetworkGateway, Side},
        service_entry::ServiceEntry,
    },
    translate::network_gateway,
};

impl Index {
    /// The network of this cluster's pods.
    pub(super) fn network(&self) -> &str {
        let root = self.world.inhabitants(&self.mesh.root_namespace);
        root.map_or("", |inhabitants| &inhabitants.namespace.network)
    }

    /// The workloads at all places of a network's gateways. A place that two Gateways name is that of the first.
    pub(super) fn derive_network(&self, network: &str) -> Option<Derived> {
        let mut seen = BTreeSet::new();
        let mut derived = Derived::default();
        for (name, gateway) in self.gateways_into(network) {
            for place in &gateway.places {
                if seen.insert(network_gateway::uid(gateway, place)) {
                    let message =
                        network_gateway::workload(&self.mesh, &name.namespace, gateway, place);
                    derived.resources.push(self.workload_resource(message));
                }
            }
        }
        Some(derived)
    }

    /// Says how a workload is reached from other networks than its own.
    pub(super) fn with_network_gateway(&self, message: wire::Workload) -> wire::Workload {
        wire::Workload {
            network_gateway: self.gateway_into(&message.network),
            ..message
        }
    }

    /// The way that workloads of a network name as the one to them: the first Gateway that is described as such.
    /// One that lets others in serves where none is described, and the network isn't our own.
    pub(super) fn gateway_into(&self, network: &str) -> Option<wire::GatewayAddress> {
        let foreign = network != self.network();
        let (name, gateway) = self
            .gateways_into(network)
            .filter(|(_, gateway)| foreign || gateway.side == Side::Remote)
            .min_by_key(|(name, gateway)| (gateway.side, *name))?;
        network_gateway::reference(&name.namespace, gateway)
    }

    /// In the order of their names.
    fn gateways_into(
        &self,
        network: &str,
    ) -> impl Iterator<Item = (&NamespacedName, &NetworkGateway)> {
        let named = self.world.gateways_by_network.get(network);
        named.into_iter().flatten().filter_map(|name| {
            let here = self.world.inhabitants(&name.namespace)?;
            let gateway = here.gateways.get(&name.name)?;
            Some((name, gateway.leads.as_ref()?))
        })
    }

    /// What is to be said of an endpoint that nobody can reach.
    pub(super) fn unreachable(&self, field: &str, endpoint: &Endpoint) -> Option<Problem> {
        let network = self.elsewhere(endpoint)?;
        self.gateway_into(network).is_none().then(|| {
            Problem::new(
                field,
                format!(
                    "no Gateway of class istio-remote leads into network {network:?}: clients can't reach it"
                ),
            )
        })
    }

    /// The network of an endpoint, if it is another than the cluster's.
    fn elsewhere<'a>(&self, endpoint: &'a Endpoint) -> Option<&'a str> {
        let network = endpoint.network.as_deref();
        network.filter(|network| *network != self.network())
    }

    /// The identities of a Kubernetes service's endpoints on other networks.
    pub(super) fn accounts_elsewhere(
        &self,
        namespace: &str,
        here: &Inhabitants,
        selector: &Labels,
    ) -> BTreeSet<String> {
        if selector.is_empty() {
            return BTreeSet::new();
        }
        let selected = here.selected_workload_entries(selector);
        let endpoints = selected.filter_map(|name| here.workload_entries.get(name));
        self.identities(namespace, endpoints.map(|entry| &entry.endpoint))
    }

    /// The identities of a ServiceEntry's endpoints on other networks.
    pub(super) fn entry_accounts_elsewhere(
        &self,
        namespace: &str,
        here: &Inhabitants,
        entry: &ServiceEntry,
    ) -> BTreeSet<String> {
        let mut accounts = self.accounts_elsewhere(namespace, here, &entry.selector);
        accounts.extend(self.identities(namespace, entry.endpoints.iter()));
        accounts
    }

    fn identities<'a>(
        &self,
        namespace: &str,
        endpoints: impl Iterator<Item = &'a Endpoint>,
    ) -> BTreeSet<String> {
        let elsewhere = endpoints.filter(|endpoint| self.elsewhere(endpoint).is_some());
        // For one that names no account nobody vouches: the account that pods have by default may be anybody's.
        let named = elsewhere.map(|endpoint| endpoint.service_account.as_str());
        let named = named.filter(|account| !account.is_empty());
        let identity =
            |account: &str| SpiffeId::new(&self.mesh.trust_domain, namespace, account).ok();
        named
            .filter_map(identity)
            .map(|id| id.to_string())
            .collect()
    }

    /// Notes that a Gateway leads into another network than before, and marks what depends on it. `change` puts the
    /// Gateway's facts in place.
    pub(super) fn change_network_gateway(
        &mut self,
        name: &NamespacedName,
        before: Option<&str>,
        now: Option<&str>,
        change: impl FnOnce(&mut Self),
    ) {
        let touched: BTreeSet<Arc<str>> = before.into_iter().chain(now).map(Arc::from).collect();
        let ways = |index: &Self| -> Vec<_> {
            touched
                .iter()
                .map(|network| index.gateway_into(network))
                .collect()
        };
        let old = ways(self);
        if let Some(gateways) = before.and_then(|n| self.world.gateways_by_network.get_mut(n)) {
            gateways.remove(name);
            if gateways.is_empty() {
                self.world
                    .gateways_by_network
                    .remove(before.unwrap_or_default());
            }
        }
        if let Some(network) = now {
            let gateways = self.world.gateways_by_network.entry(network.to_owned());
            gateways.or_default().insert(name.clone());
        }
        change(self);
        let new = ways(self);
        for ((network, old), new) in touched.iter().zip(old).zip(new) {
            self.dirty.insert(Subject::Network(network.clone()));
            if old != new {
                self.mark_network(network);
            }
        }
    }

    /// Marks all workloads of a network.
    fn mark_network(&mut self, network: &str) {
        let mut touched = BTreeSet::new();
        let local = network == self.network();
        for (namespace, here) in &self.world.namespaces {
            if local {
                mark_namespace(namespace, here, &mut touched);
                continue;
            }
            let on = |endpoint: &Endpoint| endpoint.network.as_deref() == Some(network);
            let named = |name: &Arc<str>| NamespacedName::new(namespace.clone(), name.clone());
            let workloads = here
                .workload_entries
                .iter()
                .filter(|(_, w)| on(&w.endpoint));
            touched.extend(workloads.map(|(name, _)| Subject::WorkloadEntry(named(name))));
            let entries = here.entries.iter();
            let entries = entries.filter(|(_, entry)| entry.endpoints.iter().any(on));
            touched.extend(entries.map(|(name, _)| Subject::Entry(named(name))));
        }
        self.dirty.extend(touched);
    }

    /// Marks the services whose endpoints on other networks change with a workload of these labels.
    pub(super) fn mark_services_selecting(&mut self, namespace: &Arc<str>, labels: &Labels) {
        let Some(here) = self.world.inhabitants(namespace) else {
            return;
        };
        let named = |name: &Arc<str>| NamespacedName::new(namespace.clone(), name.clone());
        let services = here.services_selecting(labels);
        let services = services.map(|(name, _)| Subject::Service(named(name)));
        let entries = here.entries_selecting(labels);
        let entries = entries.map(|(name, _)| Subject::Entry(named(name)));
        let touched: BTreeSet<Subject> = services.chain(entries).collect();
        self.dirty.extend(touched);
    }
}

/// Adds names that a service's endpoints may prove besides those that it says itself.
pub(super) fn add_names(service: &mut wire::Service, names: BTreeSet<String>) {
    let known = std::mem::take(&mut service.subject_alt_names);
    let added = names.into_iter().filter(|name| !known.contains(name));
    let added: Vec<_> = added.collect();
    service.subject_alt_names = known.into_iter().chain(added).collect();
}
