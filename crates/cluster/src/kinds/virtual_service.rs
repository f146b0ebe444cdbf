// SPDX-License-Identifier: Apache-2.0
//! VirtualService: Istio's own routes, as far as waypoints follow them.
//!
//! Each struct keeps the fields that it doesn't know, since a rule may mean something else with them than without.
//! Numbers are wider than they may be, as in the Gateway API's routes.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::described::described;
use super::open_enum::open_enum;
use super::policy::{PolicyStatus, UnknownFields};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VirtualService {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: VirtualServiceSpec,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<PolicyStatus>,
}

open_enum! {
    /// Which port a redirection names.
    DerivePort {
        ProtocolDefault = "FROM_PROTOCOL_DEFAULT",
        RequestPort = "FROM_REQUEST_PORT",
    }
}

open_enum! {
    /// What becomes of a browser's question that the policy doesn't allow.
    UnmatchedPreflights {
        Unspecified = "UNSPECIFIED",
        Forward = "FORWARD",
        Ignore = "IGNORE",
    }
}

described! {
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualServiceSpec {
    /// Services by name; a short one is of the object's own namespace.
    pub hosts: Vec<String>,
    /// `mesh` when absent.
    pub gateways: Vec<String>,
    pub http: Vec<HttpRoute>,
    pub tls: Vec<TlsRoute>,
    pub tcp: Vec<TcpRoute>,
    pub export_to: Vec<String>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

/// The first whose match holds decides.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpRoute {
    pub name: Option<String>,
    /// One has to hold; none at all stand for one of everything.
    pub r#match: Vec<HttpMatch>,
    pub route: Vec<HttpDestination>,
    pub redirect: Option<Redirect>,
    pub direct_response: Option<DirectResponse>,
    pub delegate: Option<Delegate>,
    pub rewrite: Option<Rewrite>,
    pub timeout: Option<String>,
    pub retries: Option<Retries>,
    pub fault: Option<Fault>,
    pub mirror: Option<Destination>,
    pub mirror_percentage: Option<Percent>,
    pub mirrors: Vec<Mirror>,
    pub cors_policy: Option<CorsPolicy>,
    pub headers: Option<Headers>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

/// All that is given has to hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpMatch {
    pub name: Option<String>,
    pub uri: Option<StringMatch>,
    pub ignore_uri_case: bool,
    pub scheme: Option<StringMatch>,
    pub method: Option<StringMatch>,
    pub authority: Option<StringMatch>,
    pub headers: BTreeMap<String, StringMatch>,
    pub without_headers: BTreeMap<String, StringMatch>,
    pub query_params: BTreeMap<String, StringMatch>,
    pub port: Option<i64>,
    pub source_labels: BTreeMap<String, String>,
    pub source_namespace: Option<String>,
    pub gateways: Vec<String>,
    /// For statistics alone.
    pub stat_prefix: Option<String>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

/// One of the three; none of them stands for any value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StringMatch {
    pub exact: Option<String>,
    pub prefix: Option<String>,
    pub regex: Option<String>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HttpDestination {
    pub destination: Destination,
    pub weight: Option<i64>,
    pub headers: Option<Headers>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Destination {
    pub host: String,
    /// Of a DestinationRule of the host.
    pub subset: Option<String>,
    /// The host's only one when absent.
    pub port: Option<PortSelector>,
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
pub struct Redirect {
    pub uri: Option<String>,
    pub authority: Option<String>,
    pub port: Option<i64>,
    pub derive_port: Option<DerivePort>,
    pub scheme: Option<String>,
    /// 301 when absent.
    pub redirect_code: Option<i64>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DirectResponse {
    pub status: i64,
    pub body: Option<DirectBody>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

/// One of the two.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DirectBody {
    pub string: Option<String>,
    /// In base64.
    pub bytes: Option<String>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Delegate {
    pub name: String,
    pub namespace: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rewrite {
    pub uri: Option<String>,
    pub authority: Option<String>,
    pub uri_regex_rewrite: Option<RegexRewrite>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RegexRewrite {
    pub r#match: String,
    pub rewrite: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Retries {
    /// 0: never.
    pub attempts: Option<i64>,
    pub per_try_timeout: Option<String>,
    /// Conditions and statuses, separated by commas.
    pub retry_on: Option<String>,
    pub retry_remote_localities: Option<bool>,
    pub retry_ignore_previous_hosts: Option<bool>,
    pub backoff: Option<String>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fault {
    pub delay: Option<Delay>,
    pub abort: Option<Abort>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Delay {
    pub percentage: Option<Percent>,
    pub fixed_delay: Option<String>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Abort {
    pub percentage: Option<Percent>,
    pub http_status: Option<i64>,
    pub grpc_status: Option<String>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Percent {
    pub value: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mirror {
    pub destination: Destination,
    pub percentage: Option<Percent>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CorsPolicy {
    pub allow_origins: Vec<StringMatch>,
    pub allow_methods: Vec<String>,
    pub allow_headers: Vec<String>,
    pub expose_headers: Vec<String>,
    pub max_age: Option<String>,
    pub allow_credentials: Option<bool>,
    pub unmatched_preflights: Option<UnmatchedPreflights>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Headers {
    pub request: Option<HeaderOperations>,
    pub response: Option<HeaderOperations>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeaderOperations {
    pub set: BTreeMap<String, String>,
    pub add: BTreeMap<String, String>,
    pub remove: Vec<String>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TlsRoute {
    pub r#match: Vec<TlsMatch>,
    pub route: Vec<RouteDestination>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TlsMatch {
    pub sni_hosts: Vec<String>,
    pub destination_subnets: Vec<String>,
    pub port: Option<i64>,
    pub source_labels: BTreeMap<String, String>,
    pub source_namespace: Option<String>,
    pub gateways: Vec<String>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TcpRoute {
    pub r#match: Vec<TcpMatch>,
    pub route: Vec<RouteDestination>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TcpMatch {
    pub destination_subnets: Vec<String>,
    pub port: Option<i64>,
    pub source_labels: BTreeMap<String, String>,
    pub source_namespace: Option<String>,
    pub gateways: Vec<String>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RouteDestination {
    pub destination: Destination,
    pub weight: Option<i64>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}
}
