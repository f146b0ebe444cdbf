// SPDX-License-Identifier: Apache-2.0
//! A file of workloads, services and policies, for running without a control plane.
//!
//! The format is that of the `LOCAL_XDS_PATH` file of Istio's ztunnel: YAML, and JSON with it. Here it is read more
//! strictly (an unknown key is an error everywhere, in a match too, where it would otherwise be a match of nothing)
//! and a workload's own list of services counts for its inbound connections as well. Trust domain, service account
//! and cluster default as they do on the wire.

mod entry;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde_saphyr::Spanned;
use spiffe::{SpiffeId, TrustDomain};

use crate::address::{NamespacedHostname, Ports};
use crate::batch::{AddressBatch, PolicyBatch};
use crate::intern::Common;
use crate::pod_uid::PodUid;
use crate::policy::{Clause, Enforcement, Match, Policy, Rule, StringMatch, Values};
use crate::service::Service;
use crate::store::{Changes, Store};
use crate::workload::{
    DEFAULT_CLUSTER, DEFAULT_SERVICE_ACCOUNT, HealthStatus, Membership, NetworkMode,
    TunnelProtocol, Workload, WorkloadType,
};
use entry::{File, MatchEntry, PolicyEntry, ServiceEntry, StringEntry, WorkloadEntry};

/// The content of a local file.
#[derive(Debug, Default)]
pub struct LocalConfig {
    /// Its workloads.
    pub workloads: Vec<Workload>,
    /// Its services.
    pub services: Vec<Service>,
    /// Its policies.
    pub policies: Vec<Policy>,
}

/// Why a local file was refused.
#[derive(Debug, thiserror::Error)]
pub enum LocalConfigError {
    /// It is not of the format: no YAML, an unknown or missing key, a value of another kind.
    #[error("{0}")]
    Format(Box<serde_saphyr::Error>),
    /// An entry contradicts itself or the others.
    #[error("line {line}: {object}: {field} {reason}")]
    Entry {
        /// Where the entry begins.
        line: u64,
        /// Which entry.
        object: String,
        /// Which of its fields.
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

impl LocalConfig {
    /// Reads a file's text. An empty one is an empty mesh.
    ///
    /// # Errors
    /// Names line and field.
    pub fn parse(text: &str) -> Result<Self, LocalConfigError> {
        let file: File = serde_saphyr::from_str_with_options(text, options(text))
            .map_err(|error| LocalConfigError::Format(Box::new(error)))?;
        convert(file)
    }

    /// Replaces all that a store holds.
    pub fn load_into(self, store: &mut Store) -> Changes {
        let known_keys = store.policies().map(|(key, _)| key.to_string()).collect();
        let known_names = store
            .workloads()
            .map(|workload| workload.uid.to_string())
            .chain(
                store
                    .services()
                    .map(|(service, _)| service.key().to_string()),
            )
            .collect();
        let removed_policies = store.apply_policies(PolicyBatch {
            removed: known_keys,
            ..PolicyBatch::default()
        });
        store.apply_addresses(AddressBatch {
            removed: known_names,
            ..AddressBatch::default()
        });
        let policies = self.policies.into_iter();
        let added_policies = store.apply_policies(PolicyBatch {
            policies: policies.map(|policy| (policy.key(), policy)).collect(),
            ..PolicyBatch::default()
        });
        let mut changes = store.apply_addresses(AddressBatch {
            workloads: self.workloads,
            services: self.services,
            ..AddressBatch::default()
        });
        changes.policies_changed =
            removed_policies.policies_changed || added_policies.policies_changed;
        changes
    }
}

/// The file is the operator's own, so it may be as large as it is; what expands (aliases) stays bounded.
fn options(text: &str) -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: text.len().max(1024),
            max_nodes: text.len().max(1024),
            max_total_scalar_bytes: text.len().max(1024),
        },
        strict_booleans: true,
    }
}

fn convert(file: File) -> Result<LocalConfig, LocalConfigError> {
    let mut by_uid: HashMap<Arc<str>, usize> = HashMap::with_capacity(file.workloads.len());
    let mut workloads: Vec<Workload> = Vec::with_capacity(file.workloads.len());
    let mut common = Common::default();
    for (i, entry) in file.workloads.into_iter().enumerate() {
        let at = Place::of(&entry, || format!("workloads[{i}]"));
        let mut workload = workload(entry.value, &at)?;
        common.share(&mut workload);
        if by_uid.insert(workload.uid.clone(), i).is_some() {
            return Err(at.fault("uid", format!("{:?} is used twice", workload.uid)));
        }
        workloads.push(workload);
    }
    let mut services = Vec::with_capacity(file.services.len());
    for (i, mut entry) in file.services.into_iter().enumerate() {
        let at = Place::of(&entry, || format!("services[{i}]"));
        let endpoints = std::mem::take(&mut entry.value.endpoints);
        let service = service(entry.value, &at)?;
        for endpoint in endpoints.into_values() {
            let backing = by_uid.get(&*endpoint.workload_uid).ok_or_else(|| {
                let reason = format!(
                    "name {:?}, which is no workload here",
                    endpoint.workload_uid
                );
                at.fault("endpoints", reason)
            })?;
            join(&mut workloads[*backing], service.key(), endpoint.port);
        }
        services.push(service);
    }
    let mut policies = Vec::with_capacity(file.policies.len());
    for (i, entry) in file.policies.into_iter().enumerate() {
        let at = Place::of(&entry, || format!("policies[{i}]"));
        if entry.value.name.is_empty() {
            return Err(at.fault("name", "is empty"));
        }
        policies.push(policy(entry.value));
    }
    Ok(LocalConfig {
        workloads,
        services,
        policies,
    })
}

/// Where an entry stands in the file.
struct Place<F> {
    line: u64,
    name: F,
}

impl<F: Fn() -> String> Place<F> {
    fn of<T>(entry: &Spanned<T>, name: F) -> Self {
        Self {
            line: entry.referenced.line(),
            name,
        }
    }

    fn fault(&self, field: &'static str, reason: impl Into<String>) -> LocalConfigError {
        LocalConfigError::Entry {
            line: self.line,
            object: (self.name)(),
            field,
            reason: reason.into(),
        }
    }
}

fn workload(
    entry: WorkloadEntry,
    at: &Place<impl Fn() -> String>,
) -> Result<Workload, LocalConfigError> {
    let cluster_id = non_empty(entry.cluster_id.as_deref()).unwrap_or(DEFAULT_CLUSTER);
    let uid = match (&*entry.uid, &*entry.name) {
        ("", "") => return Err(at.fault("uid", "is missing, and there is no name to make one of")),
        ("", name) => format!("{cluster_id}//Pod/{}/{name}", entry.namespace),
        (uid, _) => uid.to_owned(),
    };
    let trust_domain: TrustDomain = non_empty(entry.trust_domain.as_deref())
        .unwrap_or(TrustDomain::DEFAULT)
        .parse()
        .map_err(|error| at.fault("trustDomain", format!("makes no identity: {error}")))?;
    let account = non_empty(entry.service_account.as_deref()).unwrap_or(DEFAULT_SERVICE_ACCOUNT);
    let identity = SpiffeId::new(&trust_domain, &entry.namespace, account).map_err(|error| {
        at.fault(
            "namespace and serviceAccount",
            format!("make no identity: {error}"),
        )
    })?;
    Ok(Workload {
        cluster_id: cluster_id.into(),
        uid: uid.into(),
        pod_uid: PodUid::unless_empty(&entry.pod_uid),
        identity,
        name: entry.name.into(),
        namespace: entry.namespace.into(),
        addresses: entry
            .workload_ips
            .iter()
            .map(IpAddr::to_canonical)
            .collect(),
        hostname: entry.hostname.into(),
        network: entry.network.into(),
        protocol: entry.protocol.unwrap_or(TunnelProtocol::None),
        waypoint: entry.waypoint,
        network_gateway: entry.network_gateway,
        node: entry.node.into(),
        canonical_name: entry.canonical_name.into(),
        canonical_revision: entry.canonical_revision.into(),
        workload_type: entry.workload_type.unwrap_or(WorkloadType::Deployment),
        workload_name: entry.workload_name.into(),
        native_tunnel: entry.native_tunnel,
        application_tunnel: entry.application_tunnel,
        services: entry
            .services
            .into_iter()
            .map(|(service, ports)| Membership { service, ports })
            .collect(),
        authorization_policies: entry.authorization_policies,
        status: entry.status.unwrap_or(HealthStatus::Healthy),
        locality: Arc::new(entry.locality),
        network_mode: entry.network_mode.unwrap_or(NetworkMode::Standard),
        capacity: entry.capacity.unwrap_or(1),
    })
}

fn non_empty(text: Option<&str>) -> Option<&str> {
    text.filter(|text| !text.is_empty())
}

/// Adds a service to those that a workload backs; what the workload itself says of it comes first.
fn join(workload: &mut Workload, service: NamespacedHostname, ports: Ports) {
    let mut services = workload.services.to_vec();
    match services.iter_mut().find(|m| m.service == service) {
        Some(membership) => {
            membership.ports = ports.iter().chain(membership.ports.iter()).collect();
        }
        None => services.push(Membership { service, ports }),
    }
    workload.services = services.into();
}

fn service(
    entry: ServiceEntry,
    at: &Place<impl Fn() -> String>,
) -> Result<Service, LocalConfigError> {
    if entry.namespace.is_empty() {
        return Err(at.fault("namespace", "is empty"));
    }
    if entry.hostname.is_empty() {
        return Err(at.fault("hostname", "is empty"));
    }
    Ok(Service {
        name: entry.name.into(),
        namespace: entry.namespace.into(),
        hostname: entry.hostname.into(),
        vips: entry.vips,
        cidr_vips: entry.cidr_vips,
        ports: entry.ports,
        subject_alt_names: entry.subject_alt_names,
        waypoint: entry.waypoint,
        weighted_waypoints: entry.weighted_waypoints,
        load_balancer: entry.load_balancer,
        ip_families: entry.ip_families,
        canonical: entry.canonical,
        visibility: entry.visibility,
    })
}

fn policy(entry: PolicyEntry) -> Policy {
    let rules = entry.rules.into_iter().map(|clauses| Rule {
        clauses: clauses
            .into_iter()
            .map(|matches| Clause {
                matches: matches.into_iter().map(one_match).collect(),
            })
            .collect(),
    });
    Policy {
        name: entry.name.into(),
        namespace: entry.namespace.into(),
        scope: entry.scope,
        action: entry.action,
        rules: rules.collect(),
        enforcement: if entry.dry_run {
            Enforcement::DryRun
        } else {
            Enforcement::Enforced
        },
    }
}

fn one_match(entry: MatchEntry) -> Match {
    Match {
        namespaces: strings(entry.namespaces),
        not_namespaces: strings(entry.not_namespaces),
        principals: strings(entry.principals),
        not_principals: strings(entry.not_principals),
        service_accounts: entry.service_accounts.into(),
        not_service_accounts: entry.not_service_accounts.into(),
        source_ips: entry.source_ips.into(),
        not_source_ips: entry.not_source_ips.into(),
        destination_ips: entry.destination_ips.into(),
        not_destination_ips: entry.not_destination_ips.into(),
        destination_ports: entry.destination_ports.into(),
        not_destination_ports: entry.not_destination_ports.into(),
        unknown: Vec::new(),
    }
}

fn strings(entries: Vec<StringEntry>) -> Values<StringMatch> {
    let values = entries.into_iter().map(|entry| match entry {
        StringEntry::Exact(text) => StringMatch::Exact(text.0),
        StringEntry::Prefix(text) => StringMatch::Prefix(text.0),
        StringEntry::Suffix(text) => StringMatch::Suffix(text.0),
        StringEntry::Presence([]) => StringMatch::Presence,
    });
    values.collect::<Vec<_>>().into()
}

#[cfg(test)]
mod tests;
