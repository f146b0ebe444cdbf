// SPDX-License-Identifier: Apache-2.0
//! ServiceEntry and WorkloadEntry: services and workloads that Kubernetes doesn't know.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use serde::{Deserialize, Serialize};

use super::described::described;
use super::open_enum::open_enum;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServiceEntry {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: ServiceEntrySpec,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ServiceEntryStatus>,
}

open_enum! {
    /// Whether the service is part of the mesh.
    Location {
        MeshExternal = "MESH_EXTERNAL",
        MeshInternal = "MESH_INTERNAL",
    }
}

open_enum! {
    /// How the endpoints are found.
    Resolution {
        None = "NONE",
        Static = "STATIC",
        Dns = "DNS",
        DnsRoundRobin = "DNS_ROUND_ROBIN",
        DynamicDns = "DYNAMIC_DNS",
    }
}

open_enum! {
    /// Address families, as in a Service.
    AddressFamily {
        Ipv4 = "IPv4",
        Ipv6 = "IPv6",
    }
}

described! {
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceEntrySpec {
    pub hosts: Vec<String>,
    /// IP addresses or CIDR blocks.
    pub addresses: Vec<String>,
    pub ports: Vec<Port>,
    /// MESH_EXTERNAL when absent.
    pub location: Option<Location>,
    /// NONE when absent.
    pub resolution: Option<Resolution>,
    pub endpoints: Vec<WorkloadEntrySpec>,
    pub workload_selector: Option<WorkloadSelector>,
    pub export_to: Vec<String>,
    pub subject_alt_names: Vec<String>,
}
}

described! {
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Port {
    pub number: u32,
    pub protocol: String,
    pub name: String,
    pub target_port: Option<u32>,
}
}

described! {
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkloadSelector {
    pub labels: BTreeMap<String, String>,
}
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceEntryStatus {
    pub conditions: Vec<Condition>,
    pub addresses: Vec<ServiceEntryAddress>,
}

described! {
/// An address that was allocated for a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceEntryAddress {
    pub value: String,
    pub host: String,
}
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkloadEntry {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: WorkloadEntrySpec,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<WorkloadEntryStatus>,
}

described! {
/// A workload outside of Kubernetes; also an endpoint within a ServiceEntry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadEntrySpec {
    /// An IP address or a host name.
    pub address: String,
    pub ports: BTreeMap<String, u32>,
    pub labels: BTreeMap<String, String>,
    pub network: String,
    /// `region/zone/subzone`
    pub locality: String,
    pub weight: u32,
    pub service_account: String,
}
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkloadEntryStatus {
    pub conditions: Vec<Condition>,
}
