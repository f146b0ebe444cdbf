// SPDX-License-Identifier: Apache-2.0
//! WasmPlugin, RequestAuthentication and Telemetry: what is added to the traffic of waypoints, workloads or services.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::described::described;
use super::open_enum::open_enum;
use super::policy::{PolicyStatus, Selector, TargetReference, UnknownFields};

/// Declares an object of which only conditions are said.
macro_rules! object {
    ($name:ident, $spec:ident) => {
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        pub struct $name {
            #[serde(default)]
            pub metadata: ObjectMeta,
            #[serde(default)]
            pub spec: $spec,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub status: Option<PolicyStatus>,
        }
    };
}

object!(WasmPlugin, WasmPluginSpec);
object!(RequestAuthentication, RequestAuthenticationSpec);
object!(Telemetry, TelemetrySpec);

open_enum! {
    /// What a plugin sees.
    PluginType {
        Unspecified = "UNSPECIFIED_PLUGIN_TYPE",
        Http = "HTTP",
        Network = "NETWORK",
    }
}

open_enum! {
    /// When a plugin runs.
    PluginPhase {
        Unspecified = "UNSPECIFIED_PHASE",
        Authentication = "AUTHN",
        Authorization = "AUTHZ",
        Statistics = "STATS",
    }
}

open_enum! {
    /// What becomes of traffic while a plugin can't run.
    FailStrategy {
        Close = "FAIL_CLOSE",
        Open = "FAIL_OPEN",
        Reload = "FAIL_RELOAD",
    }
}

open_enum! {
    /// When an image is fetched.
    PullPolicy {
        Unspecified = "UNSPECIFIED_POLICY",
        IfNotPresent = "IfNotPresent",
        Always = "Always",
    }
}

open_enum! {
    /// Which side of the traffic is meant.
    WorkloadMode {
        Undefined = "UNDEFINED",
        Client = "CLIENT",
        Server = "SERVER",
        Both = "CLIENT_AND_SERVER",
    }
}

open_enum! {
    /// What is done to a tag of a metric.
    TagOperation {
        Upsert = "UPSERT",
        Remove = "REMOVE",
    }
}

described! {
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WasmPluginSpec {
    pub selector: Option<Selector>,
    pub target_ref: Option<TargetReference>,
    pub target_refs: Vec<TargetReference>,
    pub url: String,
    pub sha256: Option<String>,
    pub image_pull_policy: Option<PullPolicy>,
    pub image_pull_secret: Option<String>,
    pub verification_key: Option<String>,
    pub plugin_config: Option<serde_json::Value>,
    pub plugin_name: Option<String>,
    pub phase: Option<PluginPhase>,
    pub priority: Option<i64>,
    /// FAIL_CLOSE when absent.
    pub fail_strategy: Option<FailStrategy>,
    pub vm_config: Option<serde_json::Value>,
    /// All traffic when there is none.
    pub r#match: Vec<TrafficSelector>,
    /// HTTP when absent.
    pub r#type: Option<PluginType>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrafficSelector {
    /// CLIENT_AND_SERVER when absent.
    pub mode: Option<WorkloadMode>,
    /// All of them when there is none.
    pub ports: Vec<PluginPort>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PluginPort {
    pub number: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RequestAuthenticationSpec {
    pub selector: Option<Selector>,
    pub target_ref: Option<TargetReference>,
    pub target_refs: Vec<TargetReference>,
    pub jwt_rules: Vec<JwtRule>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

/// Whose tokens are taken, and where they are looked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JwtRule {
    pub issuer: String,
    pub audiences: Vec<String>,
    pub jwks_uri: Option<String>,
    pub jwks: Option<String>,
    pub from_headers: Vec<JwtHeader>,
    pub from_params: Vec<String>,
    pub from_cookies: Vec<String>,
    pub forward_original_token: Option<bool>,
    pub output_payload_to_header: Option<String>,
    pub output_claim_to_headers: Vec<ClaimToHeader>,
    pub space_delimited_claims: Vec<String>,
    pub timeout: Option<String>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JwtHeader {
    pub name: String,
    pub prefix: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClaimToHeader {
    pub header: String,
    pub claim: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TelemetrySpec {
    pub selector: Option<Selector>,
    pub target_ref: Option<TargetReference>,
    pub target_refs: Vec<TargetReference>,
    pub tracing: Vec<Tracing>,
    pub metrics: Vec<Metrics>,
    pub access_logging: Vec<AccessLogging>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProviderReference {
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tracing {
    pub r#match: Option<LogSelector>,
    pub providers: Vec<ProviderReference>,
    pub random_sampling_percentage: Option<f64>,
    pub disable_span_reporting: Option<bool>,
    pub custom_tags: BTreeMap<String, serde_json::Value>,
    /// Whether spans say which workloads are concerned; true when absent.
    pub enable_istio_tags: Option<bool>,
    pub disable_context_propagation: Option<bool>,
    pub use_request_id_for_trace_sampling: Option<bool>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metrics {
    pub providers: Vec<ProviderReference>,
    pub overrides: Vec<MetricsOverride>,
    pub reporting_interval: Option<String>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MetricsOverride {
    pub r#match: Option<MetricSelector>,
    pub disabled: Option<bool>,
    pub tag_overrides: BTreeMap<String, TagOverride>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MetricSelector {
    pub metric: Option<String>,
    pub custom_metric: Option<String>,
    pub mode: Option<WorkloadMode>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TagOverride {
    pub operation: Option<TagOperation>,
    pub value: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AccessLogging {
    pub r#match: Option<LogSelector>,
    pub providers: Vec<ProviderReference>,
    pub disabled: Option<bool>,
    pub filter: Option<LogFilter>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogSelector {
    pub mode: Option<WorkloadMode>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogFilter {
    pub expression: Option<String>,
}
}
