// SPDX-License-Identifier: Apache-2.0
//! Services by host and virtual address, joined with the workloads that say they back them.
//!
//! A workload may arrive before the service it backs: its membership is kept under the service's name all the same, so
//! the two meet in either order. Unhealthy endpoints are kept too; a service's health policy is applied when one is
//! picked, so that a change of the policy needs no workload to be sent again.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::sorted;
use crate::address::NamespacedHostname;
use crate::service::Service;
use crate::workload::Workload;

#[derive(Debug, Default)]
pub(super) struct Services {
    /// By host name, then ordered by namespace.
    hosts: HashMap<Arc<str>, Vec<Host>>,
    /// By network, then address. Each list is ordered by namespace and host.
    vips: HashMap<Arc<str>, HashMap<IpAddr, Vec<Arc<Service>>>>,
    /// By network; ordered by namespace and host.
    ranges: HashMap<Arc<str>, Vec<(IpNet, Arc<Service>)>>,
    known: usize,
}

/// What one namespace makes of a host name.
#[derive(Debug)]
struct Host {
    namespace: Arc<str>,
    service: Option<Arc<Service>>,
    endpoints: Vec<Arc<Workload>>,
}

impl Host {
    fn is_unused(&self) -> bool {
        self.service.is_none() && self.endpoints.is_empty()
    }
}

impl Services {
    /// Adds a service or replaces the one of the same name, with the endpoints that are there.
    pub(super) fn insert(&mut self, service: &Arc<Service>) {
        self.remove(&service.namespace, &service.hostname);
        self.host_mut(&service.namespace, &service.hostname).service = Some(service.clone());
        self.known += 1;
        for vip in &service.vips {
            let network = self.vips.entry(vip.network.clone()).or_default();
            insert_service(network.entry(vip.address).or_default(), service);
        }
        for range in &service.cidr_vips {
            let ranges = self.ranges.entry(range.network.clone()).or_default();
            let at = ranges.partition_point(|(cidr, other)| {
                (order(other), cidr) < (order(service), &range.cidr)
            });
            ranges.insert(at, (range.cidr, service.clone()));
        }
    }

    /// Removes a service; its endpoints stay, for the case that it comes back.
    pub(super) fn remove(&mut self, namespace: &str, hostname: &str) -> Option<Arc<Service>> {
        let hosts = self.hosts.get_mut(hostname)?;
        let at = hosts
            .iter()
            .position(|host| *host.namespace == *namespace)?;
        let service = hosts[at].service.take()?;
        self.known -= 1;
        self.drop_unused(namespace, hostname);
        for vip in &service.vips {
            let Some(network) = self.vips.get_mut(&vip.network) else {
                continue;
            };
            if let Some(sharing) = network.get_mut(&vip.address) {
                sharing.retain(|other| !Arc::ptr_eq(other, &service));
                if sharing.is_empty() {
                    network.remove(&vip.address);
                }
            }
            if network.is_empty() {
                self.vips.remove(&vip.network);
            }
        }
        for range in &service.cidr_vips {
            if let Some(ranges) = self.ranges.get_mut(&range.network) {
                ranges.retain(|(_, other)| !Arc::ptr_eq(other, &service));
                if ranges.is_empty() {
                    self.ranges.remove(&range.network);
                }
            }
        }
        Some(service)
    }

    /// Makes a workload an endpoint of each service that it says it backs.
    pub(super) fn attach(&mut self, workload: &Arc<Workload>) {
        for membership in workload.services.iter() {
            let host = self.host_mut(&membership.service.namespace, &membership.service.hostname);
            sorted::insert(&mut host.endpoints, workload);
        }
    }

    /// Undoes [`Self::attach`].
    pub(super) fn detach(&mut self, workload: &Workload) {
        for membership in workload.services.iter() {
            let NamespacedHostname {
                namespace,
                hostname,
            } = &membership.service;
            if let Some(host) = self
                .hosts
                .get_mut(hostname)
                .and_then(|hosts| hosts.iter_mut().find(|host| host.namespace == *namespace))
            {
                sorted::remove(&mut host.endpoints, &workload.uid);
                self.drop_unused(namespace, hostname);
            }
        }
    }

    pub(super) fn get(&self, namespace: &str, hostname: &str) -> Option<&Arc<Service>> {
        self.host(namespace, hostname)?.service.as_ref()
    }

    /// All that back a service, ready or not, ordered by uid.
    pub(super) fn endpoints(&self, namespace: &str, hostname: &str) -> &[Arc<Workload>] {
        self.host(namespace, hostname)
            .map_or(&[], |host| &host.endpoints)
    }

    /// The service that a client of a namespace means by a virtual address.
    pub(super) fn by_vip(
        &self,
        network: &str,
        address: IpAddr,
        client_namespace: Option<&str>,
    ) -> Option<&Arc<Service>> {
        let sharing = self.vips.get(network).and_then(|vips| vips.get(&address));
        let exact = sharing.and_then(|sharing| preferred(sharing.iter(), client_namespace));
        exact.or_else(|| self.by_range(network, address, client_namespace))
    }

    fn by_range(
        &self,
        network: &str,
        address: IpAddr,
        client_namespace: Option<&str>,
    ) -> Option<&Arc<Service>> {
        self.ranges
            .get(network)?
            .iter()
            .filter(|(cidr, service)| {
                cidr.contains(&address) && service.is_visible_to(client_namespace)
            })
            .min_by_key(|(cidr, service)| {
                Reverse((
                    is_of(service, client_namespace),
                    cidr.prefix_len(),
                    service.canonical,
                ))
            })
            .map(|(_, service)| service)
    }

    /// The service that a client of a namespace means by a host name.
    pub(super) fn by_host(
        &self,
        hostname: &str,
        client_namespace: Option<&str>,
    ) -> Option<&Arc<Service>> {
        preferred(self.of_host(hostname), client_namespace)
    }

    /// All services of a host name, ordered by namespace.
    pub(super) fn of_host(&self, hostname: &str) -> impl Iterator<Item = &Arc<Service>> {
        let hosts = self.hosts.get(hostname).into_iter().flatten();
        hosts.filter_map(|host| host.service.as_ref())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<Service>, &[Arc<Workload>])> {
        self.hosts.values().flatten().filter_map(|host| {
            let service = host.service.as_ref()?;
            Some((service, &*host.endpoints))
        })
    }

    /// Endpoints whose service is not known.
    pub(super) fn staged(&self) -> impl Iterator<Item = (NamespacedHostname, &[Arc<Workload>])> {
        self.hosts.iter().flat_map(|(hostname, hosts)| {
            let unknown = hosts.iter().filter(|host| host.service.is_none());
            unknown.map(|host| {
                let key = NamespacedHostname::new(host.namespace.clone(), hostname.clone());
                (key, &*host.endpoints)
            })
        })
    }

    pub(super) fn len(&self) -> usize {
        self.known
    }

    fn host(&self, namespace: &str, hostname: &str) -> Option<&Host> {
        let hosts = self.hosts.get(hostname)?;
        hosts.iter().find(|host| *host.namespace == *namespace)
    }

    fn host_mut(&mut self, namespace: &Arc<str>, hostname: &Arc<str>) -> &mut Host {
        let hosts = self.hosts.entry(hostname.clone()).or_default();
        let at = match hosts.binary_search_by(|host| host.namespace.cmp(namespace)) {
            Ok(at) => at,
            Err(at) => {
                hosts.reserve_exact(1);
                hosts.insert(
                    at,
                    Host {
                        namespace: namespace.clone(),
                        service: None,
                        endpoints: Vec::new(),
                    },
                );
                at
            }
        };
        &mut hosts[at]
    }

    fn drop_unused(&mut self, namespace: &str, hostname: &str) {
        if let Some(hosts) = self.hosts.get_mut(hostname) {
            hosts.retain(|host| *host.namespace != *namespace || !host.is_unused());
            if hosts.is_empty() {
                self.hosts.remove(hostname);
            }
        }
    }
}

/// Of the visible ones: the client's own, else a canonical one, else the first by name.
fn preferred<'a>(
    services: impl Iterator<Item = &'a Arc<Service>>,
    client_namespace: Option<&str>,
) -> Option<&'a Arc<Service>> {
    services
        .filter(|service| service.is_visible_to(client_namespace))
        .min_by_key(|service| Reverse((is_of(service, client_namespace), service.canonical)))
}

fn is_of(service: &Service, namespace: Option<&str>) -> bool {
    namespace.is_some_and(|namespace| *service.namespace == *namespace)
}

fn order(service: &Service) -> (&str, &str) {
    (&service.namespace, &service.hostname)
}

fn insert_service(list: &mut Vec<Arc<Service>>, service: &Arc<Service>) {
    if let Err(at) = list.binary_search_by(|other| order(other).cmp(&order(service))) {
        list.insert(at, service.clone());
    }
}
