// SPDX-License-Identifier: Apache-2.0
//! The file's entries as they are written: which keys there are, which must be there, what a value looks like.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::Deserialize;
use serde_saphyr::Spanned;
use spiffe::SpiffeId;

use crate::address::{GatewayAddress, NamespacedHostname, NetworkAddress, NetworkCidr, Ports};
use crate::policy::{Action, PolicyScope, ServiceAccountMatch};
use crate::service::{IpFamilies, LoadBalancer, Visibility, WeightedWaypoint};
use crate::workload::{
    ApplicationTunnel, HealthStatus, Locality, NetworkMode, TunnelProtocol, WorkloadType,
};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[derive(Default)]
pub(super) struct File {
    pub(super) workloads: Vec<Spanned<WorkloadEntry>>,
    pub(super) policies: Vec<Spanned<PolicyEntry>>,
    pub(super) services: Vec<Spanned<ServiceEntry>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct WorkloadEntry {
    pub(super) workload_ips: Vec<IpAddr>,
    pub(super) namespace: String,
    pub(super) services: BTreeMap<NamespacedHostname, Ports>,
    #[serde(default)]
    pub(super) uid: String,
    #[serde(default)]
    pub(super) pod_uid: String,
    #[serde(default)]
    pub(super) name: String,
    #[serde(default)]
    pub(super) trust_domain: Option<String>,
    #[serde(default)]
    pub(super) service_account: Option<String>,
    #[serde(default)]
    pub(super) protocol: Option<TunnelProtocol>,
    #[serde(default)]
    pub(super) network_mode: Option<NetworkMode>,
    #[serde(default)]
    pub(super) network: String,
    #[serde(default)]
    pub(super) waypoint: Option<GatewayAddress>,
    #[serde(default)]
    pub(super) network_gateway: Option<GatewayAddress>,
    #[serde(default)]
    pub(super) workload_name: String,
    #[serde(default)]
    pub(super) workload_type: Option<WorkloadType>,
    #[serde(default)]
    pub(super) canonical_name: String,
    #[serde(default)]
    pub(super) canonical_revision: String,
    #[serde(default)]
    pub(super) hostname: String,
    #[serde(default)]
    pub(super) node: String,
    #[serde(default)]
    pub(super) native_tunnel: bool,
    #[serde(default)]
    pub(super) application_tunnel: Option<ApplicationTunnel>,
    #[serde(default)]
    pub(super) authorization_policies: Vec<Arc<str>>,
    #[serde(default)]
    pub(super) status: Option<HealthStatus>,
    #[serde(default)]
    pub(super) cluster_id: Option<String>,
    #[serde(default)]
    pub(super) locality: Locality,
    #[serde(default)]
    pub(super) capacity: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ServiceEntry {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) hostname: String,
    pub(super) vips: Vec<NetworkAddress>,
    pub(super) ports: Ports,
    #[serde(default)]
    pub(super) cidr_vips: Vec<NetworkCidr>,
    #[serde(default)]
    pub(super) endpoints: BTreeMap<String, EndpointEntry>,
    #[serde(default)]
    pub(super) subject_alt_names: Vec<SpiffeId>,
    #[serde(default)]
    pub(super) waypoint: Option<GatewayAddress>,
    #[serde(default)]
    pub(super) weighted_waypoints: Vec<WeightedWaypoint>,
    #[serde(default)]
    pub(super) load_balancer: LoadBalancer,
    #[serde(default)]
    pub(super) ip_families: IpFamilies,
    #[serde(default)]
    pub(super) canonical: bool,
    #[serde(default)]
    pub(super) visibility: Visibility,
}

/// An endpoint as the dump writes it. Its health is the workload's own.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct EndpointEntry {
    pub(super) workload_uid: String,
    pub(super) port: Ports,
    #[serde(default, rename = "status")]
    pub(super) _status: Option<HealthStatus>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct PolicyEntry {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) scope: PolicyScope,
    pub(super) action: Action,
    pub(super) rules: Vec<Vec<Vec<MatchEntry>>>,
    pub(super) dry_run: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct MatchEntry {
    pub(super) namespaces: Vec<StringEntry>,
    pub(super) not_namespaces: Vec<StringEntry>,
    pub(super) principals: Vec<StringEntry>,
    pub(super) not_principals: Vec<StringEntry>,
    pub(super) service_accounts: Vec<ServiceAccountMatch>,
    pub(super) not_service_accounts: Vec<ServiceAccountMatch>,
    pub(super) source_ips: Vec<IpNet>,
    pub(super) not_source_ips: Vec<IpNet>,
    pub(super) destination_ips: Vec<IpNet>,
    pub(super) not_destination_ips: Vec<IpNet>,
    pub(super) destination_ports: Vec<u16>,
    pub(super) not_destination_ports: Vec<u16>,
}

/// `!Exact text`, or the dump's `{Exact: text}`.
#[derive(Debug, Deserialize)]
pub(super) enum StringEntry {
    Exact(Text),
    Prefix(Text),
    Suffix(Text),
    Presence([(); 0]),
}

/// A text to compare with; an empty one would match connections without any identity.
#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Text(pub(super) Arc<str>);

impl TryFrom<String> for Text {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        if text.is_empty() {
            return Err("a text to compare with must not be empty");
        }
        Ok(Self(text.into()))
    }
}
