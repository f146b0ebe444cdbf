// SPDX-License-Identifier: Apache-2.0
//! What the proxy believes, as JSON in the shape that `istioctl ztunnel-config` reads.
//!
//! Values that are what they are by default are mostly left out.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};

use crate::address::Ports;
use crate::policy::{Clause, Enforcement, Match, Policy, Rule, StringMatch, Unparsable, Values};
use crate::service::{IpFamilies, LoadBalancer, Service};
use crate::store::Store;
use crate::workload::{HealthStatus, Workload};

/// The part of a configuration dump that the store holds; a document flattens it among the rest.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Dump<'a> {
    /// Ordered by uid.
    pub workloads: Vec<&'a Workload>,
    /// Ordered by host name.
    pub services: Vec<ServiceDump<'a>>,
    /// Ordered by key.
    pub policies: Vec<&'a Policy>,
    /// Endpoints whose service is not known, by its name.
    pub staged_services: BTreeMap<String, BTreeMap<&'a str, Endpoint<'a>>>,
}

impl<'a> Dump<'a> {
    /// Everything a store holds.
    pub fn of(store: &'a Store) -> Self {
        let mut workloads: Vec<&Workload> = store.workloads().map(|held| &**held).collect();
        workloads.sort_by(|a, b| a.uid.cmp(&b.uid));
        let mut services: Vec<_> = store
            .services()
            .map(|(service, endpoints)| ServiceDump {
                endpoints: Endpoint::all(&service.namespace, &service.hostname, endpoints),
                service,
            })
            .collect();
        services.sort_by(|a, b| {
            let order = |s: &ServiceDump<'a>| (&s.service.hostname, &s.service.namespace);
            order(a).cmp(&order(b))
        });
        let mut policies: Vec<(&Arc<str>, &Policy)> =
            store.policies().map(|(key, held)| (key, &**held)).collect();
        policies.sort_by_key(|(key, _)| *key);
        Self {
            workloads,
            services,
            policies: policies.into_iter().map(|(_, policy)| policy).collect(),
            staged_services: store
                .staged()
                .map(|(key, endpoints)| {
                    let endpoints = Endpoint::all(&key.namespace, &key.hostname, endpoints);
                    (key.to_string(), endpoints)
                })
                .collect(),
        }
    }
}

/// A service with its endpoints.
#[derive(Debug, Serialize)]
pub struct ServiceDump<'a> {
    #[serde(flatten)]
    service: &'a Service,
    endpoints: BTreeMap<&'a str, Endpoint<'a>>,
}

/// A workload as an endpoint of one service.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint<'a> {
    workload_uid: &'a str,
    port: Option<&'a Ports>,
    status: HealthStatus,
}

impl<'a> Endpoint<'a> {
    fn all(
        namespace: &str,
        hostname: &str,
        endpoints: &'a [Arc<Workload>],
    ) -> BTreeMap<&'a str, Self> {
        endpoints
            .iter()
            .map(|workload| {
                let endpoint = Self {
                    workload_uid: &workload.uid,
                    port: workload.ports_for(namespace, hostname),
                    status: workload.status,
                };
                (&*workload.uid, endpoint)
            })
            .collect()
    }
}

impl Serialize for Workload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = Object::new(serializer)?;
        map.put("workloadIps", &self.addresses)?;
        map.put_some("waypoint", self.waypoint.as_ref())?;
        map.put_some("networkGateway", self.network_gateway.as_ref())?;
        map.put("protocol", &self.protocol)?;
        map.put("networkMode", &self.network_mode)?;
        map.put_text("uid", &self.uid)?;
        map.put_some("podUid", self.pod_uid.as_deref())?;
        map.put("name", &self.name)?;
        map.put("namespace", &self.namespace)?;
        map.put_text("trustDomain", self.identity.trust_domain())?;
        map.put_text("serviceAccount", self.identity.service_account())?;
        map.put_text("network", &self.network)?;
        map.put_text("workloadName", &self.workload_name)?;
        map.put("workloadType", &self.workload_type)?;
        map.put_text("canonicalName", &self.canonical_name)?;
        map.put_text("canonicalRevision", &self.canonical_revision)?;
        map.put_text("hostname", &self.hostname)?;
        map.put_text("node", &self.node)?;
        map.put_some("nativeTunnel", self.native_tunnel.then_some(&true))?;
        map.put_some("applicationTunnel", self.application_tunnel.as_ref())?;
        map.put_list("authorizationPolicies", &self.authorization_policies)?;
        map.put("status", &self.status)?;
        map.put("clusterId", &self.cluster_id)?;
        map.put_some(
            "locality",
            (!self.locality.is_empty()).then_some(&self.locality),
        )?;
        let services: Vec<_> = self.services.iter().map(|m| &m.service).collect();
        map.put_list("services", &services)?;
        map.put("capacity", &self.capacity)?;
        map.end()
    }
}

impl Serialize for Service {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = Object::new(serializer)?;
        map.put("name", &self.name)?;
        map.put("namespace", &self.namespace)?;
        map.put("hostname", &self.hostname)?;
        map.put("vips", &self.vips)?;
        map.put_list("cidrVips", &self.cidr_vips)?;
        map.put("ports", &self.ports)?;
        map.put_list("subjectAltNames", &self.subject_alt_names)?;
        map.put_some("waypoint", self.waypoint.as_ref())?;
        map.put_list("weightedWaypoints", &self.weighted_waypoints)?;
        let balancer = &self.load_balancer;
        map.put_some(
            "loadBalancer",
            (*balancer != LoadBalancer::default()).then_some(balancer),
        )?;
        let families = &self.ip_families;
        map.put_some(
            "ipFamilies",
            (*families != IpFamilies::Automatic).then_some(families),
        )?;
        map.put_some("canonical", self.canonical.then_some(&true))?;
        map.put("visibility", &self.visibility)?;
        map.end()
    }
}

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = Object::new(serializer)?;
        map.put("name", &self.name)?;
        map.put("namespace", &self.namespace)?;
        map.put("scope", &self.scope)?;
        map.put("action", &self.action)?;
        map.put("rules", &self.rules)?;
        map.put("dryRun", &(self.enforcement == Enforcement::DryRun))?;
        map.end()
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.clauses.serialize(serializer)
    }
}

impl Serialize for Clause {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.matches.serialize(serializer)
    }
}

impl Serialize for Match {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = Object::new(serializer)?;
        map.put_values("namespaces", &self.namespaces)?;
        map.put_values("notNamespaces", &self.not_namespaces)?;
        map.put_values("serviceAccounts", &self.service_accounts)?;
        map.put_values("notServiceAccounts", &self.not_service_accounts)?;
        map.put_values("principals", &self.principals)?;
        map.put_values("notPrincipals", &self.not_principals)?;
        map.put_values("sourceIps", &self.source_ips)?;
        map.put_values("notSourceIps", &self.not_source_ips)?;
        map.put_values("destinationIps", &self.destination_ips)?;
        map.put_values("notDestinationIps", &self.not_destination_ips)?;
        map.put_values("destinationPorts", &self.destination_ports)?;
        map.put_values("notDestinationPorts", &self.not_destination_ports)?;
        map.put_list("unknown", &self.unknown)?;
        map.end()
    }
}

impl<T: Serialize> Serialize for Values<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        for value in &self.known {
            list.serialize_element(value)?;
        }
        for problem in &self.unparsable {
            list.serialize_element(problem)?;
        }
        list.end()
    }
}

impl Serialize for Unparsable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        one_key(serializer, "Unparsable", &self.0)
    }
}

impl Serialize for StringMatch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Exact(text) => one_key(serializer, "Exact", text),
            Self::Prefix(text) => one_key(serializer, "Prefix", text),
            Self::Suffix(text) => one_key(serializer, "Suffix", text),
            Self::Presence => one_key(serializer, "Presence", &[(); 0]),
        }
    }
}

fn one_key<S: Serializer, T: Serialize + ?Sized>(
    serializer: S,
    key: &'static str,
    value: &T,
) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(1))?;
    map.serialize_entry(key, value)?;
    map.end()
}

/// A JSON object written key by key, where what is empty may be left out.
struct Object<S: Serializer>(S::SerializeMap);

impl<S: Serializer> Object<S> {
    fn new(serializer: S) -> Result<Self, S::Error> {
        serializer.serialize_map(None).map(Self)
    }

    fn put<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) -> Result<(), S::Error> {
        self.0.serialize_entry(key, value)
    }

    fn put_text(&mut self, key: &str, text: &str) -> Result<(), S::Error> {
        if text.is_empty() {
            return Ok(());
        }
        self.put(key, text)
    }

    fn put_some<T: Serialize>(&mut self, key: &str, value: Option<&T>) -> Result<(), S::Error> {
        match value {
            Some(value) => self.put(key, value),
            None => Ok(()),
        }
    }

    fn put_list<T: Serialize>(&mut self, key: &str, list: &[T]) -> Result<(), S::Error> {
        if list.is_empty() {
            return Ok(());
        }
        self.put(key, list)
    }

    fn put_values<T: Serialize>(&mut self, key: &str, values: &Values<T>) -> Result<(), S::Error> {
        if values.is_empty() {
            return Ok(());
        }
        self.put(key, values)
    }

    fn end(self) -> Result<S::Ok, S::Error> {
        self.0.end()
    }
}

#[cfg(test)]
mod tests;
