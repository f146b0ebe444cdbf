// SPDX-License-Identifier: Apache-2.0
//! DestinationRule: how a host is spoken to, as far as waypoints follow it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::described::described;
use super::open_enum::open_enum;
use super::policy::{PolicyStatus, UnknownFields};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DestinationRule {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: DestinationRuleSpec,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<PolicyStatus>,
}

open_enum! {
    /// How an endpoint is chosen.
    SimpleBalancer {
        Unspecified = "UNSPECIFIED",
        LeastConnection = "LEAST_CONN",
        Random = "RANDOM",
        Passthrough = "PASSTHROUGH",
        RoundRobin = "ROUND_ROBIN",
        LeastRequest = "LEAST_REQUEST",
    }
}

open_enum! {
    /// Whether HTTP/1.1 becomes HTTP/2 on the way.
    UpgradePolicy {
        Default = "DEFAULT",
        DoNotUpgrade = "DO_NOT_UPGRADE",
        Upgrade = "UPGRADE",
    }
}

open_enum! {
    /// What is spoken below HTTP.
    TlsMode {
        Disable = "DISABLE",
        Simple = "SIMPLE",
        Mutual = "MUTUAL",
        IstioMutual = "ISTIO_MUTUAL",
    }
}

described! {
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DestinationRuleSpec {
    /// A service by name; a short one is of the object's own namespace.
    pub host: String,
    pub traffic_policy: Option<TrafficPolicy>,
    pub subsets: Vec<Subset>,
    pub export_to: Vec<String>,
    pub workload_selector: Option<WorkloadSelector>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadSelector {
    pub match_labels: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Subset {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub traffic_policy: Option<TrafficPolicy>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TrafficPolicy {
    pub load_balancer: Option<LoadBalancer>,
    pub connection_pool: Option<ConnectionPool>,
    pub outlier_detection: Option<OutlierDetection>,
    pub tls: Option<ClientTls>,
    pub port_level_settings: Vec<PortPolicy>,
    pub proxy_protocol: Option<serde_json::Value>,
    pub tunnel: Option<serde_json::Value>,
    pub retry_budget: Option<RetryBudget>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

/// In place of what holds for all ports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PortPolicy {
    pub port: Option<PortSelector>,
    pub load_balancer: Option<LoadBalancer>,
    pub connection_pool: Option<ConnectionPool>,
    pub outlier_detection: Option<OutlierDetection>,
    pub tls: Option<ClientTls>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PortSelector {
    pub number: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadBalancer {
    pub simple: Option<SimpleBalancer>,
    pub consistent_hash: Option<ConsistentHash>,
    pub locality_lb_setting: Option<LocalitySetting>,
    pub warmup: Option<Warmup>,
    /// The older word for `warmup.duration`.
    pub warmup_duration_secs: Option<String>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LocalitySetting {
    pub enabled: Option<bool>,
    pub distribute: Vec<Distribution>,
    pub failover: Vec<Failover>,
    /// Labels that say where something is.
    pub failover_priority: Vec<String>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

/// Places are written as "region/zone/subzone".
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Distribution {
    pub from: String,
    pub to: BTreeMap<String, i64>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

/// Between regions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Failover {
    pub from: String,
    pub to: String,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Warmup {
    pub duration: Option<String>,
    pub minimum_percent: Option<f64>,
    pub aggression: Option<f64>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsistentHash {
    pub http_header_name: Option<String>,
    pub http_cookie: Option<HashCookie>,
    pub use_source_ip: Option<bool>,
    pub http_query_parameter_name: Option<String>,
    pub ring_hash: Option<serde_json::Value>,
    pub maglev: Option<serde_json::Value>,
    pub minimum_ring_size: Option<i64>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HashCookie {
    pub name: String,
    pub path: Option<String>,
    pub ttl: Option<String>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConnectionPool {
    pub tcp: Option<TcpPool>,
    pub http: Option<HttpPool>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TcpPool {
    pub max_connections: Option<i64>,
    pub connect_timeout: Option<String>,
    pub idle_timeout: Option<String>,
    pub max_connection_duration: Option<String>,
    pub tcp_keepalive: Option<Keepalive>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Keepalive {
    pub probes: Option<i64>,
    pub time: Option<String>,
    pub interval: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpPool {
    pub http1_max_pending_requests: Option<i64>,
    pub http2_max_requests: Option<i64>,
    pub max_requests_per_connection: Option<i64>,
    pub max_retries: Option<i64>,
    pub idle_timeout: Option<String>,
    pub h2_upgrade_policy: Option<UpgradePolicy>,
    pub use_client_protocol: Option<bool>,
    pub max_concurrent_streams: Option<i64>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OutlierDetection {
    pub consecutive_5xx_errors: Option<i64>,
    pub consecutive_gateway_errors: Option<i64>,
    pub consecutive_local_origin_failures: Option<i64>,
    pub split_external_local_origin_errors: Option<bool>,
    /// 10 s when absent.
    pub interval: Option<String>,
    /// 30 s when absent.
    pub base_ejection_time: Option<String>,
    /// 10 when absent.
    pub max_ejection_percent: Option<i64>,
    pub min_health_percent: Option<i64>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

/// What is shown and trusted lies in files of the waypoint's, or in a Secret that is mounted there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientTls {
    pub mode: Option<TlsMode>,
    pub client_certificate: String,
    pub private_key: String,
    pub ca_certificates: String,
    pub credential_name: String,
    pub subject_alt_names: Vec<String>,
    pub sni: String,
    pub insecure_skip_verify: Option<bool>,
    pub ca_crl: String,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RetryBudget {
    pub percent: Option<f64>,
    pub min_retry_concurrency: Option<i64>,
}
}
