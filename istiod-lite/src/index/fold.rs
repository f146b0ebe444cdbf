// SPDX-License-Identifier: Apache-2.0
//! One event into the facts, marking the subjects that depend on what it changes.

use std::{collections::BTreeSet, sync::Arc};

use cluster::{Event, Kind, Object, ObjectKey};

mod backend_tls;
mod entries;
mod policies;
mod routes;
mod telemetry;
mod traffic;
mod virtuals;

use super::{
    Index, Subject,
    world::{Carried, Inhabitants, Standing},
};
use crate::{
    facts::{
        Labels, NamespacedName, Problem, Read, gateway, mesh_config, namespace, plugin, pod,
        policy::{self, Reach},
        service::{self, Service},
        service_entry,
        slice::{self, Slice},
        workload_entry,
    },
    translate::{
        self, authentication, destination_rule,
        policy::{self as authorization, TargetKey},
        route::{self, ParentKey, Route, RouteId},
    },
    wellknown,
};

impl Index {
    /// Takes in one event. Returns the object if conditions are written to its kind.
    pub(super) fn fold(&mut self, event: Event) -> Option<ObjectKey> {
        match event {
            Event::Applied(object) => match self.other_revision(&object) {
                Some(revision) => self.leave_to(revision, &object),
                None => self.fold_object(&object),
            },
            Event::Deleted(key) => self.fold_deletion(key),
        }
    }

    /// The revision that an object is for, if that is none of ours.
    fn other_revision<'a>(&self, object: &'a Object) -> Option<&'a str> {
        let revision = object.labels().get(wellknown::REVISION)?.as_str();
        let chosen = !self.revisions.is_empty() && object.kind().group().ends_with(".istio.io");
        let ours = revision.is_empty() || self.revisions.iter().any(|own| own == revision);
        (chosen && !ours).then_some(revision)
    }

    /// Takes it for absent, but for what it may still carry of ours.
    fn leave_to(&mut self, revision: &str, object: &Object) -> Option<ObjectKey> {
        let key = object.key();
        let before = self.world.standings.get(&key).cloned();
        self.fold_deletion(key.clone());
        let reason = format!(
            "{revision:?} is another control plane's: to this one it is as if the object were not there"
        );
        let field = format!("metadata.labels[{}]", wellknown::REVISION);
        self.set_problems(&key, vec![Problem::new(field, reason)]);
        let standing = Standing::left(object, Carried::of(object)?);
        let changed = before.as_ref() != Some(&standing);
        self.world.standings.insert(key.clone(), standing);
        changed.then_some(key)
    }

    fn fold_object(&mut self, object: &Object) -> Option<ObjectKey> {
        let key = object.key();
        let name = NamespacedName::new(self.sharing.text(object.namespace()), object.name());
        let mut problems = Vec::new();
        match object {
            Object::Namespace(o) => self.set_namespace(&name.name, namespace::read(o)),
            Object::Node(o) => self.set_node(&name.name, namespace::read_node(o)),
            Object::Pod(o) => self.set_pod(&name, Some(take(pod::read(o), &mut problems))),
            Object::Service(o) => {
                let facts = service::read(o).map(|read| take(read, &mut problems));
                self.set_service(&name, facts);
            }
            Object::EndpointSlice(o) => {
                let facts = slice::read(o).map(|read| take(read, &mut problems));
                self.set_slice(&name, facts);
            }
            Object::ServiceEntry(o) => {
                self.set_entry(&name, take(service_entry::read(o), &mut problems));
            }
            Object::WorkloadEntry(o) => {
                self.set_workload_entry(&name, take(workload_entry::read(o), &mut problems));
            }
            Object::ConfigMap(o) if self.is_mesh_config(&name) => match mesh_config::read(o) {
                Ok(config) => self.set_mesh_config(config),
                Err(problem) => problems.push(problem),
            },
            Object::ConfigMap(o) => {
                let bundle = translate::backend_tls::certificates(o);
                self.fold_bundle(&name, Some(bundle));
            }
            Object::Gateway(o) => {
                self.set_gateway(&name, Some(take(gateway::read(o), &mut problems)));
            }
            Object::GatewayClass(o) => {
                self.set_class(
                    &name.name,
                    Some(take(gateway::read_class(o), &mut problems)),
                );
            }
            Object::AuthorizationPolicy(o) => {
                let mut read = authorization::translate(o, &self.mesh.root_namespace);
                if !self.mesh.dry_run_at_ztunnels {
                    read.facts.refuse_dry_run();
                }
                self.set_policy(&name, Some(take(read, &mut problems)));
            }
            Object::RequestAuthentication(o) => {
                let read = authentication::translate(o, &self.mesh.root_namespace);
                self.set_authentication(&name, Some(take(read, &mut problems)));
            }
            Object::Telemetry(o) => {
                let read = translate::telemetry::read(o, &self.mesh.root_namespace);
                self.set_telemetry(&name, Some(take(read, &mut problems)));
            }
            Object::PeerAuthentication(o) => {
                let facts = take(policy::read_peer_authentication(o), &mut problems);
                if *name.namespace == *self.mesh.root_namespace && facts.reach != Reach::All {
                    problems.push(Problem::new(
                        "spec.selector",
                        "has no effect in the root namespace: the policy is ignored",
                    ));
                }
                self.set_peer(&name, Some(facts));
            }
            Object::HTTPRoute(o) => {
                self.take_route(&key, name, route::http(o), &mut problems);
            }
            Object::GRPCRoute(o) => {
                self.take_route(&key, name, route::grpc(o), &mut problems);
            }
            Object::TLSRoute(o) => {
                self.take_route(&key, name, route::tls(o), &mut problems);
            }
            Object::TCPRoute(o) => {
                self.take_route(&key, name, route::tcp(o), &mut problems);
            }
            Object::BackendTLSPolicy(o) => {
                let read = translate::backend_tls::read(o);
                self.set_tls_policy(&name, Some(take(read, &mut problems)));
            }
            Object::VirtualService(o) => {
                self.set_virtual(&name, Some(o), &mut problems);
            }
            Object::DestinationRule(o) => {
                let read = destination_rule::read(o, &self.mesh);
                self.set_rule(&name, Some(take(read, &mut problems)));
            }
            Object::WasmPlugin(o) => {
                let read = plugin::read(o, &self.mesh.root_namespace);
                self.set_plugin(&name, Some(take(read, &mut problems)));
            }
            _ => {}
        }
        self.set_problems(&key, problems);
        let standing = Standing::of(object, Carried::of(object)?);
        let before = self.world.standings.insert(key.clone(), standing.clone());
        (before.as_ref() != Some(&standing)).then_some(key)
    }

    fn fold_deletion(&mut self, key: ObjectKey) -> Option<ObjectKey> {
        let namespace = key.namespace.as_deref().unwrap_or_default();
        let name = NamespacedName::new(self.sharing.text(namespace), key.name.as_str());
        match key.kind {
            Kind::Namespace => self.set_namespace(&name.name, namespace::Namespace::default()),
            Kind::Node => self.set_node(&name.name, None),
            Kind::Pod => self.set_pod(&name, None),
            Kind::Service => self.set_service(&name, None),
            Kind::EndpointSlice => self.set_slice(&name, None),
            Kind::ServiceEntry => self.set_entry(&name, None),
            Kind::WorkloadEntry => self.set_workload_entry(&name, None),
            Kind::ConfigMap if self.is_mesh_config(&name) => {
                self.set_mesh_config(mesh_config::MeshConfig::default())
            }
            Kind::ConfigMap => self.fold_bundle(&name, None),
            Kind::Gateway => self.set_gateway(&name, None),
            Kind::GatewayClass => self.set_class(&name.name, None),
            Kind::AuthorizationPolicy => self.set_policy(&name, None),
            Kind::RequestAuthentication => self.set_authentication(&name, None),
            Kind::Telemetry => self.set_telemetry(&name, None),
            Kind::PeerAuthentication => self.set_peer(&name, None),
            kind @ (Kind::HTTPRoute | Kind::GRPCRoute | Kind::TLSRoute | Kind::TCPRoute) => {
                self.set_route(&RouteId { kind, name }, None);
            }
            Kind::BackendTLSPolicy => self.set_tls_policy(&name, None),
            Kind::VirtualService => self.set_virtual(&name, None, &mut Vec::new()),
            Kind::DestinationRule => self.set_rule(&name, None),
            Kind::WasmPlugin => self.set_plugin(&name, None),
            _ => {}
        }
        self.set_problems(&key, Vec::new());
        self.world.standings.remove(&key).map(|_| key)
    }

    fn take_route(
        &mut self,
        key: &ObjectKey,
        name: NamespacedName,
        route: Route,
        problems: &mut Vec<Problem>,
    ) {
        let faults = route.faults.iter();
        problems.extend(faults.map(|fault| Problem::new(&fault.field, &fault.words)));
        let id = RouteId {
            kind: key.kind,
            name,
        };
        self.set_route(&id, Some(route));
    }

    fn is_mesh_config(&self, name: &NamespacedName) -> bool {
        *name.namespace == *self.mesh.root_namespace && *name.name == *wellknown::MESH_CONFIG
    }

    fn set_namespace(&mut self, name: &Arc<str>, facts: namespace::Namespace) {
        let visibility = self.visibility(name);
        let here = self.world.namespaces.entry(name.clone()).or_default();
        let before = std::mem::replace(&mut here.namespace, facts);
        let concerns_all = **name == *self.mesh.root_namespace
            && (before.network != here.namespace.network || before.bypass != here.namespace.bypass);
        if before != here.namespace {
            let mut touched = BTreeSet::new();
            mark_namespace(name, here, &mut touched);
            self.dirty.extend(touched);
            self.mark_routes_into(name);
        }
        if concerns_all {
            let mut touched = BTreeSet::new();
            for (namespace, here) in &self.world.namespaces {
                mark_namespace(namespace, here, &mut touched);
            }
            self.dirty.extend(touched);
        }
        if self.visibility(name) != visibility {
            self.mark_entries_of(name);
        }
        self.forget_deserted(name);
    }

    fn set_node(&mut self, name: &Arc<str>, facts: Option<namespace::Locality>) {
        let before = match &facts {
            Some(locality) => self.world.nodes.insert(name.to_string(), locality.clone()),
            None => self.world.nodes.remove(&**name),
        };
        if before != facts {
            let pods = self.world.pods_by_node.get(&**name).into_iter().flatten();
            self.dirty.extend(pods.cloned().map(Subject::Pod));
        }
    }

    fn set_pod(&mut self, name: &NamespacedName, facts: Option<pod::Pod>) {
        let facts = facts.map(|facts| self.sharing.share(facts));
        let here = self
            .world
            .namespaces
            .entry(name.namespace.clone())
            .or_default();
        let before = here.pods.remove(&name.name);
        if before == facts {
            if let Some(facts) = facts {
                here.pods.insert(name.name.clone(), facts);
            }
            self.forget_deserted(&name.namespace);
            return;
        }
        let accounts =
            [before.as_ref(), facts.as_ref()].map(|pod| pod.and_then(account_of_gateway));
        if accounts[0] != accounts[1] {
            for (gateway, _) in accounts.iter().flatten() {
                let gateway = NamespacedName::new(name.namespace.clone(), &**gateway);
                let users = self.users.get(&gateway).into_iter().flatten();
                let policies = users.filter(|user| matches!(user, Subject::OnlyThrough(_)));
                self.dirty.extend(policies.cloned());
            }
        }
        let labels = [before.as_ref(), facts.as_ref()].map(|pod| pod.map(|pod| pod.labels.clone()));
        if let Some(before) = before {
            here.pods_by_labels.remove(&name.name, &before.labels);
            if let Some(pods) = self.world.pods_by_node.get_mut(&before.node) {
                pods.remove(name);
                if pods.is_empty() {
                    self.world.pods_by_node.remove(&before.node);
                }
            }
        }
        if let Some(facts) = facts {
            here.pods_by_labels.insert(&name.name, &facts.labels);
            self.world
                .pods_by_node
                .entry(facts.node.clone())
                .or_default()
                .insert(name.clone());
            here.pods.insert(name.name.clone(), facts);
        }
        self.dirty.insert(Subject::Pod(name.clone()));
        if labels[0] != labels[1] {
            let labels = labels.each_ref().map(Option::as_deref);
            self.mark_subsets_of(&name.namespace, &labels);
        }
        self.forget_deserted(&name.namespace);
    }

    fn set_service(&mut self, name: &NamespacedName, facts: Option<Service>) {
        let here = self
            .world
            .namespaces
            .entry(name.namespace.clone())
            .or_default();
        let before = here.services.get(&name.name).cloned();
        if before != facts {
            let now = facts.as_ref().map_or(Vec::new(), |s| s.vips.clone());
            let mut touched = BTreeSet::from([Subject::Service(name.clone())]);
            for service in before
                .iter()
                .chain(&facts)
                .filter(|s| !s.selector.is_empty())
            {
                mark_selected(&name.namespace, here, &service.selector, &mut touched);
            }
            mark_slices(name, here, &mut touched);
            if let Some(before) = &before {
                here.services_by_selector
                    .remove(&name.name, &before.selector);
            }
            match facts {
                Some(facts) => {
                    here.services_by_selector
                        .insert(&name.name, &facts.selector);
                    here.services.insert(name.name.clone(), facts);
                }
                None => {
                    here.services.remove(&name.name);
                }
            }
            self.dirty.extend(touched);
            let hostname = Arc::from(self.mesh.hostname(&name.namespace, &name.name));
            self.mark_claimants(std::iter::once(&hostname));
            self.mark_routes_for(&ParentKey::Service(name.clone()));
            self.mark_routes_to(name);
            let vips =
                |service: &Option<Service>| service.as_ref().map_or(Vec::new(), |s| s.vips.clone());
            self.set_vips(&Subject::Service(name.clone()), &vips(&before), &now);
        }
        self.forget_deserted(&name.namespace);
    }

    fn set_slice(&mut self, name: &NamespacedName, facts: Option<Slice>) {
        let here = self
            .world
            .namespaces
            .entry(name.namespace.clone())
            .or_default();
        let before = here.slices.remove(&name.name);
        if before != facts {
            self.dirty.insert(Subject::Slice(name.clone()));
        }
        let pods = before.iter().chain(&facts).flat_map(|slice| &slice.pods);
        let pods: BTreeSet<String> = pods.map(|pod| pod.name.clone()).collect();
        if before != facts {
            let named = pods
                .iter()
                .map(|pod| NamespacedName::new(name.namespace.clone(), pod.as_str()));
            self.dirty.extend(named.map(Subject::Pod));
        }
        if let Some(before) = before {
            unlink(&mut here.slices_by_service, &before.service, &name.name);
            for pod in &before.pods {
                unlink(&mut here.slices_by_pod, &pod.name, &name.name);
            }
        }
        if let Some(facts) = facts {
            link(&mut here.slices_by_service, &facts.service, &name.name);
            for pod in &facts.pods {
                link(&mut here.slices_by_pod, &pod.name, &name.name);
            }
            here.slices.insert(name.name.clone(), facts);
        }
        self.forget_deserted(&name.namespace);
    }

    fn set_gateway(&mut self, name: &NamespacedName, facts: Option<gateway::Gateway>) {
        let here = self.world.inhabitants(&name.namespace);
        let before = here.and_then(|here| here.gateways.get(&name.name)).cloned();
        if before == facts {
            return;
        }
        self.dirty
            .extend(self.users.get(name).into_iter().flatten().cloned());
        self.dirty.insert(Subject::Waypoint(name.clone()));
        if let Some(before) = &before
            && let Some(gateways) = self.world.gateways_by_class.get_mut(&before.class)
        {
            gateways.remove(name);
            if gateways.is_empty() {
                self.world.gateways_by_class.remove(&before.class);
            }
        }
        if let Some(facts) = &facts {
            self.world
                .gateways_by_class
                .entry(facts.class.clone())
                .or_default()
                .insert(name.clone());
        }
        // Whether there is any of a class decides what is said of its policies.
        for class in before
            .iter()
            .chain(&facts)
            .map(|gateway| gateway.class.clone())
        {
            self.mark_policies_for(&TargetKey::Class(class));
        }
        let network = |facts: Option<&gateway::Gateway>| {
            let leads = facts.and_then(|facts| facts.leads.as_ref());
            leads.map(|gateway| gateway.network.clone())
        };
        let (old, new) = (network(before.as_ref()), network(facts.as_ref()));
        self.change_network_gateway(name, old.as_deref(), new.as_deref(), |index| {
            let here = index.world.namespaces.entry(name.namespace.clone());
            let gateways = &mut here.or_default().gateways;
            match facts {
                Some(facts) => gateways.insert(name.name.clone(), facts),
                None => gateways.remove(&name.name),
            };
        });
        self.forget_deserted(&name.namespace);
    }

    fn set_class(&mut self, name: &Arc<str>, facts: Option<gateway::Class>) {
        let before = match &facts {
            Some(class) => self.world.classes.insert(name.to_string(), class.clone()),
            None => self.world.classes.remove(&**name),
        };
        if before != facts {
            let gateways = self
                .world
                .gateways_by_class
                .get(&**name)
                .into_iter()
                .flatten();
            let users = gateways
                .filter_map(|gateway| self.users.get(gateway))
                .flatten();
            self.dirty.extend(users.cloned());
            self.mark_policies_for(&TargetKey::Class(name.to_string()));
        }
    }

    fn set_problems(&mut self, key: &ObjectKey, problems: Vec<Problem>) {
        if problems.is_empty() {
            self.problems.remove(key);
        } else {
            self.problems.insert(key.clone(), problems);
        }
    }

    fn forget_deserted(&mut self, namespace: &Arc<str>) {
        if self
            .world
            .namespaces
            .get(namespace)
            .is_some_and(Inhabitants::is_deserted)
        {
            self.world.namespaces.remove(namespace);
        }
    }
}

fn take<T>(read: Read<T>, problems: &mut Vec<Problem>) -> T {
    problems.extend(read.problems);
    read.facts
}

/// Under which account a pod lives as an instance of which Gateway.
fn account_of_gateway(pod: &pod::Pod) -> Option<(String, Arc<str>)> {
    let gateway = pod.labels.get(wellknown::GATEWAY_NAME)?;
    (pod.life == pod::Life::Live).then(|| (gateway.clone(), pod.service_account.clone()))
}

/// Marks the pods and WorkloadEntries that a selector with labels chooses.
pub(super) fn mark_selected(
    namespace: &Arc<str>,
    here: &Inhabitants,
    selector: &Labels,
    touched: &mut BTreeSet<Subject>,
) {
    let named = |name: &Arc<str>| NamespacedName::new(namespace.clone(), name.clone());
    touched.extend(here.selected_pods(selector).map(named).map(Subject::Pod));
    let entries = here.selected_workload_entries(selector);
    touched.extend(entries.map(named).map(Subject::WorkloadEntry));
}

/// Marks all that is a workload, or has some written into it.
fn mark_workloads(namespace: &Arc<str>, here: &Inhabitants, touched: &mut BTreeSet<Subject>) {
    let named = |name: &Arc<str>| NamespacedName::new(namespace.clone(), name.clone());
    touched.extend(here.pods.keys().map(named).map(Subject::Pod));
    touched.extend(
        here.workload_entries
            .keys()
            .map(named)
            .map(Subject::WorkloadEntry),
    );
    touched.extend(here.entries.keys().map(named).map(Subject::Entry));
}

/// Marks a service's slices and the pods that they point at.
fn mark_slices(service: &NamespacedName, here: &Inhabitants, touched: &mut BTreeSet<Subject>) {
    for name in here
        .slices_by_service
        .get(&*service.name)
        .into_iter()
        .flatten()
    {
        touched.insert(Subject::Slice(NamespacedName::new(
            service.namespace.clone(),
            name.clone(),
        )));
        for pod in here
            .slices
            .get(name)
            .into_iter()
            .flat_map(|slice| &slice.pods)
        {
            let pod = NamespacedName::new(service.namespace.clone(), pod.name.as_str());
            touched.insert(Subject::Pod(pod));
        }
    }
}

pub(super) fn mark_namespace(name: &Arc<str>, here: &Inhabitants, touched: &mut BTreeSet<Subject>) {
    let named = |object: &Arc<str>| NamespacedName::new(name.clone(), object.clone());
    mark_workloads(name, here, touched);
    touched.extend(
        here.services
            .keys()
            .map(|service| Subject::Service(named(service))),
    );
    touched.extend(here.slices.keys().map(|slice| Subject::Slice(named(slice))));
}

type Links = std::collections::HashMap<String, BTreeSet<Arc<str>>>;

fn link(links: &mut Links, from: &str, to: &Arc<str>) {
    links.entry(from.to_owned()).or_default().insert(to.clone());
}

fn unlink(links: &mut Links, from: &str, to: &str) {
    if let Some(set) = links.get_mut(from) {
        set.remove(to);
        if set.is_empty() {
            links.remove(from);
        }
    }
}
