// SPDX-License-Identifier: Apache-2.0
//! AuthorizationPolicy and PeerAuthentication.
//!
//! Their structs keep unknown fields: a misspelt `principals` must not turn a rule for one into a rule for all.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use serde::{Deserialize, Serialize};

use super::described::described;
use super::open_enum::open_enum;

/// Fields that this version doesn't know, as written.
pub type UnknownFields = BTreeMap<String, serde_json::Value>;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AuthorizationPolicy {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: AuthorizationPolicySpec,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<PolicyStatus>,
}

open_enum! {
    /// What a matching rule does.
    Action {
        Allow = "ALLOW",
        Deny = "DENY",
        Audit = "AUDIT",
        Custom = "CUSTOM",
    }
}

described! {
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AuthorizationPolicySpec {
    pub selector: Option<Selector>,
    pub target_ref: Option<TargetReference>,
    pub target_refs: Vec<TargetReference>,
    /// ALLOW when absent.
    pub action: Option<Action>,
    pub rules: Vec<Rule>,
    pub provider: Option<serde_json::Value>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}
}

described! {
/// Which workloads of the namespace are meant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Selector {
    pub match_labels: BTreeMap<String, String>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetReference {
    pub group: String,
    pub kind: String,
    pub name: String,
    pub namespace: Option<String>,
}
}

described! {
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rule {
    pub from: Vec<RuleFrom>,
    pub to: Vec<RuleTo>,
    pub when: Vec<RuleCondition>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}
}

described! {
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RuleFrom {
    pub source: Source,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}
}

described! {
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Source {
    pub principals: Vec<String>,
    pub not_principals: Vec<String>,
    pub request_principals: Vec<String>,
    pub not_request_principals: Vec<String>,
    pub namespaces: Vec<String>,
    pub not_namespaces: Vec<String>,
    pub service_accounts: Vec<String>,
    pub not_service_accounts: Vec<String>,
    pub trust_domains: Vec<String>,
    pub not_trust_domains: Vec<String>,
    pub ip_blocks: Vec<String>,
    pub not_ip_blocks: Vec<String>,
    pub remote_ip_blocks: Vec<String>,
    pub not_remote_ip_blocks: Vec<String>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}
}

described! {
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RuleTo {
    pub operation: Operation,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}
}

described! {
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Operation {
    pub hosts: Vec<String>,
    pub not_hosts: Vec<String>,
    pub ports: Vec<String>,
    pub not_ports: Vec<String>,
    pub methods: Vec<String>,
    pub not_methods: Vec<String>,
    pub paths: Vec<String>,
    pub not_paths: Vec<String>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}
}

described! {
/// One entry of `when`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RuleCondition {
    pub key: String,
    pub values: Vec<String>,
    pub not_values: Vec<String>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}
}

/// A status that consists of conditions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicyStatus {
    pub conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PeerAuthentication {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: PeerAuthenticationSpec,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<PolicyStatus>,
}

open_enum! {
    /// Whether plaintext is accepted.
    MtlsMode {
        Unset = "UNSET",
        Disable = "DISABLE",
        Permissive = "PERMISSIVE",
        Strict = "STRICT",
    }
}

described! {
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PeerAuthenticationSpec {
    pub selector: Option<Selector>,
    pub mtls: Option<MutualTls>,
    /// By number of the workload's port.
    pub port_level_mtls: BTreeMap<u16, MutualTls>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}
}

described! {
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MutualTls {
    /// UNSET when absent.
    pub mode: Option<MtlsMode>,
    #[serde(flatten)]
    pub unknown_fields: UnknownFields,
}
}
