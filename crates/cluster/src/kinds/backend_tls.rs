// SPDX-License-Identifier: Apache-2.0
//! BackendTLSPolicy of the Gateway API: how TLS is begun with what stands behind a Service.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::open_enum::open_enum;
use super::policy::UnknownFields;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BackendTLSPolicy {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: BackendTLSPolicySpec,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<BackendTLSPolicyStatus>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendTLSPolicySpec {
    pub target_refs: Vec<PolicyTarget>,
    pub validation: BackendTLSValidation,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
    #[serde(flatten, skip_serializing_if = "BTreeMap::is_empty")]
    pub unknown_fields: UnknownFields,
}

/// What a policy is for, in its own namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyTarget {
    pub group: String,
    pub kind: String,
    pub name: String,
    /// The name of a port; all of them when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
}

/// What a server has to prove, and who certifies it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendTLSValidation {
    pub ca_certificate_refs: Vec<LocalReference>,
    #[serde(
        rename = "wellKnownCACertificates",
        skip_serializing_if = "Option::is_none"
    )]
    pub well_known: Option<String>,
    pub hostname: String,
    pub subject_alt_names: Vec<SubjectAltName>,
    #[serde(flatten, skip_serializing_if = "BTreeMap::is_empty")]
    pub unknown_fields: UnknownFields,
}

/// An object of the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LocalReference {
    pub group: String,
    pub kind: String,
    pub name: String,
}

open_enum! {
    /// What kind of a name a certificate is to have.
    SubjectAltNameType {
        Hostname = "Hostname",
        Uri = "URI",
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SubjectAltName {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<SubjectAltNameType>,
    pub hostname: String,
    pub uri: String,
}

/// What each controller says of a policy, for each of what it matters to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BackendTLSPolicyStatus {
    /// As written: those of others are never changed.
    pub ancestors: Vec<Value>,
}
