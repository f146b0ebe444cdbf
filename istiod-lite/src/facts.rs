// SPDX-License-Identifier: Apache-2.0
//! What the index keeps of each cluster object.
//!
//! In: objects as the cluster wrote them. Out: small values that are parsed once
//! and can be trusted from here on, plus a [`Problem`] for each value that could
//! not be read. Nothing in here knows of other objects, of the wire or of time.

pub mod endpoint;
pub mod gateway;
pub mod mesh_config;
pub mod namespace;
pub mod network_gateway;
pub mod plugin;
pub mod pod;
pub mod policy;
pub mod service;
pub mod service_entry;
pub mod slice;
pub mod waypoint;
pub mod workload_entry;

use std::{collections::BTreeMap, fmt, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Labels, or a selector over them.
pub type Labels = BTreeMap<String, String>;

/// An object's name inside its namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespacedName {
    /// The namespace.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

impl NamespacedName {
    /// Names an object.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A value in an object that could not be used as it was written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Problem {
    /// Where it stands in the object, such as `spec.rules[0].from[1].source.ipBlocks[0]`.
    pub field: String,
    /// What is wrong, and what was done about it.
    pub reason: String,
}

impl Problem {
    /// Says what is wrong with a field.
    pub fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            reason: reason.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.reason)
    }
}

/// What was read from an object, and what could not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read<T> {
    /// What the index keeps.
    pub facts: T,
    /// What it could not use.
    pub problems: Vec<Problem>,
}

/// Does `selector` choose an object with these labels? An empty selector chooses all.
pub fn selects(selector: &Labels, labels: &Labels) -> bool {
    selector
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value))
}

pub(crate) fn label<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.labels.as_ref()?.get(key).map(String::as_str)
}

pub(crate) fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Whether `account` can be the name of a service account; where it can't, says so of `field` and that `what` is left
/// out: it has no identity, and the proxies would refuse it.
pub(crate) fn is_service_account(
    account: &str,
    field: &str,
    what: &str,
    problems: &mut Vec<Problem>,
) -> bool {
    let checked = cluster::check_subdomain(account);
    if let Err(reason) = &checked {
        problems.push(Problem::new(
            field,
            format!("{account:?} {reason}; {what} is left out"),
        ));
    }
    checked.is_ok()
}

/// When the object was made, in seconds; objects that don't say count as oldest.
pub(crate) fn created(meta: &ObjectMeta) -> Option<i64> {
    meta.creation_timestamp
        .as_ref()
        .map(|time| time.0.as_second())
}

/// The first of `keys` that is set to something.
pub(crate) fn first_label<'a>(labels: &'a Labels, keys: &[&str]) -> Option<&'a str> {
    keys.iter().find_map(|key| {
        labels
            .get(*key)
            .map(String::as_str)
            .filter(|v| !v.is_empty())
    })
}
