// SPDX-License-Identifier: Apache-2.0
//! Who has a host name that several objects claim.
//!
//! Within a namespace a Kubernetes service comes before any ServiceEntry, and the
//! older entry before the younger. Each namespace keeps what it has; clients of the
//! others mean the one that is canonical: the Kubernetes service, or else the oldest
//! entry that they may see.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use super::{Index, Subject};
use crate::{
    facts::{
        Labels, NamespacedName, Problem, mesh_config::Visibility, namespace::Namespace,
        service::ServicePort, service_entry::ServiceEntry,
    },
    translate::service::Canonical,
    wellknown,
};

impl Index {
    /// Who sees the ServiceEntries of a namespace.
    pub(super) fn visibility(&self, namespace: &str) -> Visibility {
        let known = self.world.inhabitants(namespace);
        let labels = known.map(|here| with_name(&here.namespace, namespace));
        let labels = labels.unwrap_or_else(|| with_name(&Namespace::default(), namespace));
        self.world.mesh_config.visibility(&labels)
    }

    /// The hosts that an entry has, of those that it claims.
    pub(super) fn hosts_of<'a>(
        &'a self,
        name: &NamespacedName,
        entry: &'a ServiceEntry,
    ) -> impl Iterator<Item = &'a Arc<str>> {
        let seen = self.visibility(&name.namespace) != Visibility::None;
        let name = name.clone();
        entry.hosts.iter().filter(move |host| {
            seen && self
                .service_of_host(host)
                .is_none_or(|service| service.namespace != name.namespace)
                && self
                    .claimants(host)
                    .filter(|(other, _)| other.namespace == name.namespace)
                    .min_by_key(|(other, entry)| (entry.created, *other))
                    .is_some_and(|(first, _)| *first == name)
        })
    }

    /// Whether clients of namespaces that don't have the host themselves mean this entry by it.
    pub(super) fn canonical(&self, name: &NamespacedName, host: &str) -> Canonical {
        if self.service_of_host(host).is_some() {
            return Canonical::No;
        }
        let first = self
            .claimants(host)
            .filter(|(other, _)| self.visibility(&other.namespace) == Visibility::Public)
            .min_by_key(|(other, entry)| (entry.created, *other));
        match first {
            Some((first, _)) if first == name => Canonical::Yes,
            _ => Canonical::No,
        }
    }

    /// What is to be said of a host that an entry claims and doesn't have.
    pub(super) fn lost(&self, name: &NamespacedName, host: &str) -> Problem {
        let service = self.service_of_host(host);
        let service = service.filter(|service| service.namespace == name.namespace);
        let older = || {
            self.claimants(host)
                .filter(|(other, _)| other.namespace == name.namespace)
                .min_by_key(|(other, entry)| (entry.created, *other))
                .map(|(other, _)| format!("the older ServiceEntry {other}"))
        };
        let holder = service
            .map(|service| format!("Service {service}"))
            .or_else(older);
        let holder = holder.unwrap_or_default();
        Problem::new(
            "spec.hosts",
            format!("{host} is that of {holder}; it is left out here"),
        )
    }

    /// The entries that claim a host.
    pub(super) fn claimants(
        &self,
        host: &str,
    ) -> impl Iterator<Item = (&NamespacedName, &ServiceEntry)> {
        let named = self.world.hosts.get(host).into_iter().flatten();
        named.filter_map(|name| {
            let here = self.world.inhabitants(&name.namespace)?;
            Some((name, here.entries.get(&name.name)?))
        })
    }

    /// The Kubernetes service that would have a host name, if it is of the form that they have.
    pub(super) fn name_of_host(&self, host: &str) -> Option<NamespacedName> {
        let rest = host.strip_suffix(self.mesh.cluster_domain.as_str())?;
        let (name, namespace) = rest.strip_suffix(".svc.")?.split_once('.')?;
        Some(NamespacedName::new(namespace, name))
    }

    /// The Kubernetes service that has a host name.
    fn service_of_host(&self, host: &str) -> Option<NamespacedName> {
        let named = self.name_of_host(host)?;
        let here = self.world.inhabitants(&named.namespace)?;
        here.services.contains_key(&named.name).then_some(named)
    }

    /// The service that clients of a namespace mean by a host: its object's namespace, and its ports.
    pub(super) fn meant(
        &self,
        host: &str,
        namespace: &str,
    ) -> Option<(&Arc<str>, &Vec<ServicePort>)> {
        let service = self.service_of_host(host);
        let is_own = |object: &NamespacedName| *object.namespace == *namespace;
        let first = |wanted: &dyn Fn(&NamespacedName) -> bool| {
            self.claimants(host)
                .filter(|(name, _)| wanted(name))
                .min_by_key(|(name, entry)| (entry.created, *name))
                .map(|(name, entry)| (&name.namespace, &entry.ports))
        };
        let own = || first(&|name| is_own(name) && self.visibility(namespace) != Visibility::None);
        let of_service = |service: NamespacedName| {
            let (namespace, here) = self.world.namespaces.get_key_value(&service.namespace)?;
            Some((namespace, &here.services.get(&service.name)?.ports))
        };
        match service {
            Some(service) if is_own(&service) => of_service(service),
            Some(service) => own().or_else(|| of_service(service)),
            None => own()
                .or_else(|| first(&|name| self.visibility(&name.namespace) == Visibility::Public)),
        }
    }

    /// Marks the entries that claim any of these hosts, the workloads that back them, and the routes that lead there.
    pub(super) fn mark_claimants<'a>(&mut self, hosts: impl Iterator<Item = &'a Arc<str>>) {
        let mut touched = BTreeSet::new();
        for host in hosts {
            self.mark_routes_to_host(host);
            for (name, entry) in self.claimants(host) {
                self.mark_entry(name, entry, &mut touched);
            }
        }
        self.dirty.extend(touched);
    }

    /// Marks an entry and the workloads that back it.
    pub(super) fn mark_entry(
        &self,
        name: &NamespacedName,
        entry: &ServiceEntry,
        touched: &mut BTreeSet<Subject>,
    ) {
        touched.insert(Subject::Entry(name.clone()));
        if let Some(here) = self.world.inhabitants(&name.namespace)
            && !entry.selector.is_empty()
        {
            super::fold::mark_selected(&name.namespace, here, &entry.selector, touched);
        }
    }

    /// What is to be said of addresses that a service has in common with others: that
    /// clients who are in neither's namespace reach only one of them.
    pub(super) fn shared_addresses(
        &self,
        subject: &Subject,
        field: &str,
        addresses: impl Iterator<Item = IpAddr>,
    ) -> Vec<Problem> {
        let problem = |ip: IpAddr| {
            let sharing = self.world.vips.get(&ip)?;
            let services = sharing.iter().filter(|s| matches!(s, Subject::Service(_)));
            let reached = services.chain(sharing).next()?;
            let other = sharing.iter().find(|other| {
                let concerns =
                    matches!(other, Subject::Service(_)) || matches!(subject, Subject::Service(_));
                *other != subject && concerns
            })?;
            let reached = if reached == subject {
                "this one".to_owned()
            } else {
                reached.object()?.to_string()
            };
            Some(Problem::new(
                field,
                format!(
                    "{ip} is also an address of {}; clients in neither's namespace reach {reached}",
                    other.object()?
                ),
            ))
        };
        addresses.filter_map(problem).collect()
    }
}

/// Kubernetes gives each namespace its name as a label; manifests may leave that out.
pub(super) fn with_name(namespace: &Namespace, name: &str) -> Labels {
    let mut labels = namespace.labels.clone();
    labels
        .entry(wellknown::NAMESPACE_NAME.to_owned())
        .or_insert_with(|| name.to_owned());
    labels
}
