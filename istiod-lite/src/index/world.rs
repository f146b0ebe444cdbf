// SPDX-License-Identifier: Apache-2.0
//! The facts, and the ways in which they are looked up.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use cluster::{Kind, Object, ObjectKey, kinds};

use super::{
    Subject,
    selection::{ByLabels, BySelector},
};
use crate::{
    facts::{
        Labels, NamespacedName,
        gateway::{Class, Gateway},
        mesh_config::MeshConfig,
        namespace::{Locality, Namespace},
        plugin::{Plugin, Target},
        pod::Pod,
        policy::{PeerAuthentication, Reach},
        selects,
        service::Service,
        service_entry::ServiceEntry,
        slice::Slice,
        workload_entry::WorkloadEntry,
    },
    status,
    translate::{
        authentication::{Authentication, KeySource},
        backend_tls::BackendTls,
        destination_rule::DestinationRule,
        policy::{Policy, TargetKey},
        route::{Host, ParentKey, Route, RouteId},
        telemetry::Telemetry,
    },
};

/// All facts.
#[derive(Debug, Default)]
pub(super) struct World {
    pub(super) namespaces: BTreeMap<Arc<str>, Inhabitants>,
    pub(super) nodes: HashMap<String, Locality>,
    pub(super) classes: HashMap<String, Class>,
    pub(super) pods_by_node: HashMap<Arc<str>, BTreeSet<NamespacedName>>,
    pub(super) gateways_by_class: HashMap<String, BTreeSet<NamespacedName>>,
    /// Those that lead into each network.
    pub(super) gateways_by_network: HashMap<String, BTreeSet<NamespacedName>>,
    /// How many PeerAuthentications there are.
    pub(super) peer_authentications: usize,
    pub(super) standings: BTreeMap<ObjectKey, Standing>,
    pub(super) mesh_config: MeshConfig,
    /// ServiceEntries by each of their hosts.
    pub(super) hosts: HashMap<Arc<str>, BTreeSet<NamespacedName>>,
    /// Policies by what they are for.
    pub(super) policies_by_target: HashMap<TargetKey, BTreeSet<NamespacedName>>,
    /// RequestAuthentications likewise.
    pub(super) authentications_by_target: HashMap<TargetKey, BTreeSet<NamespacedName>>,
    /// The keys of token issuers as they were fetched, or why there are none.
    pub(super) key_sets: BTreeMap<KeySource, Result<String, String>>,
    /// BackendTLSPolicies, by what they are for.
    pub(super) tls_policies: BTreeMap<NamespacedName, BackendTls>,
    pub(super) tls_policies_by_target: HashMap<ParentKey, BTreeSet<NamespacedName>>,
    /// The certificates of authorities that ConfigMaps hold, or why there are none.
    pub(super) bundles: BTreeMap<NamespacedName, Result<String, String>>,
    /// Telemetries, whatever they are for.
    pub(super) telemetries: BTreeMap<NamespacedName, Telemetry>,
    /// Routes by what they are for.
    pub(super) routes_by_parent: HashMap<ParentKey, BTreeSet<RouteId>>,
    /// Routes by the Kubernetes services that they lead to.
    pub(super) routes_by_service: HashMap<NamespacedName, BTreeSet<RouteId>>,
    /// Routes by the hosts that they lead to.
    pub(super) routes_by_host: HashMap<Arc<str>, BTreeSet<RouteId>>,
    /// VirtualServices by the hosts that they are for, with and without wildcards.
    pub(super) routes_of_host: HashMap<Host, BTreeSet<RouteId>>,
    /// VirtualServices as they are written, where they leave rules to others or are there for such.
    pub(super) virtual_sources: HashMap<NamespacedName, Arc<kinds::VirtualService>>,
    /// VirtualServices by those that they leave rules to.
    pub(super) delegating: HashMap<NamespacedName, BTreeSet<NamespacedName>>,
    /// DestinationRules by the host that they are for, with and without wildcards.
    pub(super) rules_by_host: HashMap<Host, BTreeSet<NamespacedName>>,
    /// WasmPlugins by what they are for.
    pub(super) plugins_by_target: HashMap<Target, BTreeSet<NamespacedName>>,
    /// Kubernetes services and ServiceEntries by each of their single addresses.
    pub(super) vips: HashMap<IpAddr, BTreeSet<Subject>>,
}

/// A namespace, and the objects in it. It may hold objects before it is known itself.
#[derive(Debug, Default)]
pub(super) struct Inhabitants {
    pub(super) namespace: Namespace,
    pub(super) pods: BTreeMap<Arc<str>, Pod>,
    pub(super) pods_by_labels: ByLabels,
    pub(super) services: BTreeMap<Arc<str>, Service>,
    pub(super) services_by_selector: BySelector,
    pub(super) slices: BTreeMap<Arc<str>, Slice>,
    pub(super) slices_by_service: HashMap<String, BTreeSet<Arc<str>>>,
    pub(super) slices_by_pod: HashMap<String, BTreeSet<Arc<str>>>,
    pub(super) policies: BTreeMap<Arc<str>, Policy>,
    pub(super) policies_by_selector: BySelector,
    pub(super) authentications: BTreeMap<Arc<str>, Authentication>,
    pub(super) peers: BTreeMap<Arc<str>, PeerAuthentication>,
    pub(super) peers_by_selector: BySelector,
    pub(super) gateways: BTreeMap<Arc<str>, Gateway>,
    pub(super) entries: BTreeMap<Arc<str>, ServiceEntry>,
    pub(super) entries_by_labels: ByLabels,
    pub(super) entries_by_selector: BySelector,
    pub(super) workload_entries: BTreeMap<Arc<str>, WorkloadEntry>,
    pub(super) workload_entries_by_labels: ByLabels,
    pub(super) routes: BTreeMap<(Kind, Arc<str>), Route>,
    pub(super) rules: BTreeMap<Arc<str>, DestinationRule>,
    pub(super) plugins: BTreeMap<Arc<str>, Plugin>,
}

/// An object that conditions are written to.
#[derive(Debug, Clone, PartialEq)]
pub struct Standing {
    /// Its uid.
    pub uid: String,
    /// The generation of its spec.
    pub generation: Option<i64>,
    /// The conditions that it carries, whoever wrote them.
    pub conditions: Vec<kinds::Condition>,
    /// The addresses that it carries, for its hosts.
    pub addresses: Vec<kinds::ServiceEntryAddress>,
    /// What it carries of controllers, for each parent of a route, or ancestor of a policy.
    pub parents: Vec<serde_json::Value>,
    /// The version in which it carries them, where there may be others' among them.
    pub version: String,
    /// Whether it is another control plane's, so that nothing of ours is to be said of it.
    pub left: bool,
}

/// What is said of an object, whoever wrote it.
#[derive(Debug, Default)]
pub(super) struct Carried {
    conditions: Vec<kinds::Condition>,
    addresses: Vec<kinds::ServiceEntryAddress>,
    parents: Vec<serde_json::Value>,
}

impl Standing {
    pub(super) fn of(object: &Object, carried: Carried) -> Self {
        let metadata = object.metadata();
        let version = metadata.resource_version.clone();
        let mut conditions = carried.conditions.iter();
        let is_shared =
            object.kind().controllers_list().is_some() || !conditions.all(status::is_ours);
        let version = version.filter(|_| is_shared);
        Self {
            uid: object.uid().to_owned(),
            generation: metadata.generation,
            conditions: carried.conditions,
            addresses: carried.addresses,
            parents: carried.parents,
            version: version.unwrap_or_default(),
            left: false,
        }
    }

    /// Of an object that is another control plane's.
    pub(super) fn left(object: &Object, carried: Carried) -> Self {
        Self {
            left: true,
            ..Self::of(object, carried)
        }
    }
}

impl Carried {
    /// What an object carries, if conditions are written to its kind.
    pub(super) fn of(object: &Object) -> Option<Self> {
        let conditions = |status: Option<&kinds::PolicyStatus>| Self {
            conditions: status.map_or_else(Vec::new, |status| status.conditions.clone()),
            ..Self::default()
        };
        let ancestors = |status: Option<&kinds::BackendTLSPolicyStatus>| Self {
            parents: status.map_or_else(Vec::new, |status| status.ancestors.clone()),
            ..Self::default()
        };
        let parents = |status: Option<&kinds::RouteStatus>| Self {
            parents: status.map_or_else(Vec::new, |status| status.parents.clone()),
            ..Self::default()
        };
        Some(match object {
            Object::Service(o) => Self {
                conditions: o
                    .status
                    .as_ref()
                    .and_then(|status| status.conditions.clone())
                    .unwrap_or_default(),
                ..Self::default()
            },
            Object::ServiceEntry(o) => {
                let status = o.status.clone().unwrap_or_default();
                Self {
                    conditions: status.conditions,
                    addresses: status.addresses,
                    parents: Vec::new(),
                }
            }
            Object::WorkloadEntry(o) => Self {
                conditions: o.status.clone().unwrap_or_default().conditions,
                ..Self::default()
            },
            Object::AuthorizationPolicy(o) => conditions(o.status.as_ref()),
            Object::RequestAuthentication(o) => conditions(o.status.as_ref()),
            Object::Telemetry(o) => conditions(o.status.as_ref()),
            Object::VirtualService(o) => conditions(o.status.as_ref()),
            Object::DestinationRule(o) => conditions(o.status.as_ref()),
            Object::WasmPlugin(o) => conditions(o.status.as_ref()),
            Object::BackendTLSPolicy(o) => ancestors(o.status.as_ref()),
            Object::HTTPRoute(o) => parents(o.status.as_ref()),
            Object::GRPCRoute(o) => parents(o.status.as_ref()),
            Object::TLSRoute(o) => parents(o.status.as_ref()),
            Object::TCPRoute(o) => parents(o.status.as_ref()),
            _ => return None,
        })
    }
}

impl World {
    /// The namespace of this name, if it holds anything.
    pub(super) fn inhabitants(&self, namespace: &str) -> Option<&Inhabitants> {
        self.namespaces.get(namespace)
    }

    /// A Gateway, with its class.
    pub(super) fn gateway(&self, name: &NamespacedName) -> Option<(&Gateway, Option<&Class>)> {
        let gateway = self
            .inhabitants(&name.namespace)?
            .gateways
            .get(&name.name)?;
        Some((gateway, self.classes.get(&gateway.class)))
    }
}

impl Inhabitants {
    /// The services of this namespace that a pod backs: those that select it, and
    /// those whose slices point at exactly this pod.
    pub(super) fn services_of<'a>(
        &'a self,
        name: &str,
        pod: &'a Pod,
    ) -> BTreeMap<&'a Arc<str>, &'a Service> {
        let selecting = self.services_selecting(&pod.labels);
        let pointing = self
            .slices_by_pod
            .get(name)
            .into_iter()
            .flatten()
            .filter_map(|slice| self.slices.get(slice))
            .filter(|slice| {
                slice
                    .pods
                    .iter()
                    .any(|pod_ref| pod_ref.name == name && pod_ref.uid == pod.uid)
            })
            .filter_map(|slice| self.services.get_key_value(slice.service.as_str()));
        selecting.chain(pointing).collect()
    }

    /// The services of this namespace that select a workload with these labels.
    pub(super) fn services_selecting<'a>(
        &'a self,
        labels: &'a Labels,
    ) -> impl Iterator<Item = (&'a Arc<str>, &'a Service)> {
        self.services_by_selector
            .candidates(labels)
            .filter_map(|name| self.services.get_key_value(name))
            .filter(|(_, service)| selects(&service.selector, labels))
    }

    /// The ServiceEntries of this namespace that select a workload with these labels.
    pub(super) fn entries_selecting<'a>(
        &'a self,
        labels: &'a Labels,
    ) -> impl Iterator<Item = (&'a Arc<str>, &'a ServiceEntry)> {
        self.entries_by_selector
            .candidates(labels)
            .filter_map(|name| self.entries.get_key_value(name))
            .filter(|(_, entry)| selects(&entry.selector, labels))
    }

    /// The policies of this namespace that select a workload with these labels and are sent.
    pub(super) fn policies_of<'a>(
        &'a self,
        labels: &'a Labels,
    ) -> impl Iterator<Item = &'a Arc<str>> {
        self.policies_by_selector.candidates(labels).filter(|name| {
            self.policies.get(*name).is_some_and(|policy| {
                policy.authorization.is_some()
                    && matches!(&policy.reach, Reach::Selected(wanted) if selects(wanted, labels))
            })
        })
    }

    /// The PeerAuthentication that selects a workload with these labels: the oldest.
    pub(super) fn peer_of<'a>(
        &'a self,
        labels: &'a Labels,
    ) -> Option<(&'a Arc<str>, &'a PeerAuthentication)> {
        self.peers_by_selector
            .candidates(labels)
            .filter_map(|name| self.peers.get_key_value(name))
            .filter(|(_, peer)| matches!(&peer.reach, Reach::Selected(wanted) if selects(wanted, labels)))
            .min_by_key(|(name, peer)| (peer.created, *name))
    }

    /// The PeerAuthentication for all of the namespace: the oldest.
    pub(super) fn peer_of_all(&self) -> Option<&PeerAuthentication> {
        self.peers
            .iter()
            .filter(|(_, peer)| peer.reach == Reach::All)
            .min_by_key(|(name, peer)| (peer.created, *name))
            .map(|(_, peer)| peer)
    }

    /// The pods that a selector with labels chooses.
    pub(super) fn selected_pods<'a>(
        &'a self,
        selector: &'a Labels,
    ) -> impl Iterator<Item = &'a Arc<str>> {
        self.pods_by_labels.candidates(selector).filter(|name| {
            self.pods
                .get(*name)
                .is_some_and(|pod| selects(selector, &pod.labels))
        })
    }

    /// The WorkloadEntries that a selector with labels chooses.
    pub(super) fn selected_workload_entries<'a>(
        &'a self,
        selector: &'a Labels,
    ) -> impl Iterator<Item = &'a Arc<str>> {
        self.workload_entries_by_labels
            .candidates(selector)
            .filter(|name| {
                self.workload_entries
                    .get(*name)
                    .is_some_and(|entry| selects(selector, &entry.endpoint.labels))
            })
    }

    /// The ServiceEntries that a selector with labels chooses, as it does their endpoints.
    pub(super) fn selected_entries<'a>(
        &'a self,
        selector: &'a Labels,
    ) -> impl Iterator<Item = &'a Arc<str>> {
        self.entries_by_labels.candidates(selector).filter(|name| {
            self.entries
                .get(*name)
                .is_some_and(|entry| selects(selector, &entry.labels))
        })
    }

    /// Whether nothing is known of it any more.
    pub(super) fn is_deserted(&self) -> bool {
        self.namespace == Namespace::default()
            && self.pods.is_empty()
            && self.services.is_empty()
            && self.slices.is_empty()
            && self.policies.is_empty()
            && self.authentications.is_empty()
            && self.peers.is_empty()
            && self.gateways.is_empty()
            && self.entries.is_empty()
            && self.workload_entries.is_empty()
            && self.routes.is_empty()
            && self.rules.is_empty()
            && self.plugins.is_empty()
    }
}
