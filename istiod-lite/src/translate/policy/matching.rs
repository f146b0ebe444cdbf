// SPDX-License-Identifier: Apache-2.0
//! One entry of `from`, `to` or `when`: its conditions on a connection, and what
//! of it could not be turned into one.

use cluster::kinds;
use proto::security as wire;

use super::values::{self, Unreadable};
use crate::facts::Problem;

/// One entry of a clause.
#[derive(Debug, Default)]
pub(super) struct Entry {
    /// What a connection must fulfil.
    pub conditions: wire::Match,
    /// Attributes that ztunnel can't see.
    pub attributes: Vec<String>,
    /// Values and fields that can't be read.
    pub problems: Vec<Problem>,
}

impl Entry {
    /// Whether all of the entry was turned into conditions.
    pub(super) fn is_whole(&self) -> bool {
        self.attributes.is_empty() && self.problems.is_empty()
    }

    /// An entry of which nothing is known but these fields.
    pub(super) fn unknown(fields: &kinds::UnknownFields, path: &str) -> Self {
        let mut entry = Self::default();
        entry.note_unknown(fields, path);
        entry
    }

    fn note_unknown(&mut self, fields: &kinds::UnknownFields, path: &str) {
        for field in fields.keys() {
            self.problem(&format!("{path}.{field}"), "is not known");
        }
    }

    fn problem(&mut self, field: &str, reason: &str) {
        self.problems.push(Problem::new(field, reason));
    }

    fn unsupported(&mut self, attribute: &str, values: &[String]) {
        if !values.is_empty() && !self.attributes.iter().any(|known| known == attribute) {
            self.attributes.push(attribute.to_owned());
        }
    }

    /// Reads a list of which one value must match. If one can't be read, any
    /// connection might match it: no condition is left.
    fn any_of<T>(
        &mut self,
        texts: &[String],
        path: &str,
        read: impl Fn(&str) -> Result<T, Unreadable>,
    ) -> Vec<T> {
        let before = self.problems.len();
        let values = self.none_of(texts, path, read);
        if self.problems.len() > before {
            Vec::new()
        } else {
            values
        }
    }

    /// Reads a list of which no value may match. One that can't be read excludes nothing.
    fn none_of<T>(
        &mut self,
        texts: &[String],
        path: &str,
        read: impl Fn(&str) -> Result<T, Unreadable>,
    ) -> Vec<T> {
        let mut values = Vec::with_capacity(texts.len());
        for (position, text) in texts.iter().enumerate() {
            match read(text) {
                Ok(value) => values.push(value),
                Err(unreadable) => {
                    self.problem(&format!("{path}[{position}]"), &unreadable.describe(text));
                }
            }
        }
        values
    }
}

/// An entry of `to`.
pub(super) fn operation(to: &kinds::RuleTo, path: &str) -> Entry {
    let mut entry = Entry::unknown(&to.unknown_fields, path);
    let path = format!("{path}.operation");
    let operation = &to.operation;
    entry.note_unknown(&operation.unknown_fields, &path);
    for (attribute, values) in [
        ("hosts", &operation.hosts),
        ("notHosts", &operation.not_hosts),
        ("methods", &operation.methods),
        ("notMethods", &operation.not_methods),
        ("paths", &operation.paths),
        ("notPaths", &operation.not_paths),
    ] {
        entry.unsupported(attribute, values);
    }
    entry.conditions.destination_ports =
        entry.any_of(&operation.ports, &format!("{path}.ports"), values::port);
    entry.conditions.not_destination_ports = entry.none_of(
        &operation.not_ports,
        &format!("{path}.notPorts"),
        values::port,
    );
    note_empty(&mut entry, &path);
    entry
}

/// An entry of `from`. `namespace` is the policy's: a service account without one is from there.
pub(super) fn source(from: &kinds::RuleFrom, path: &str, namespace: &str) -> Entry {
    let mut entry = Entry::unknown(&from.unknown_fields, path);
    let path = format!("{path}.source");
    let source = &from.source;
    entry.note_unknown(&source.unknown_fields, &path);
    for (attribute, values) in [
        ("requestPrincipals", &source.request_principals),
        ("notRequestPrincipals", &source.not_request_principals),
        ("remoteIpBlocks", &source.remote_ip_blocks),
        ("notRemoteIpBlocks", &source.not_remote_ip_blocks),
        // Not of HTTP, but there is no such condition on the wire either.
        ("trustDomains", &source.trust_domains),
        ("notTrustDomains", &source.not_trust_domains),
    ] {
        entry.unsupported(attribute, values);
    }
    let field = |name: &str| format!("{path}.{name}");
    let account = |text: &str| values::service_account(text, namespace);
    let conditions = wire::Match {
        principals: entry.any_of(&source.principals, &field("principals"), values::text),
        not_principals: entry.none_of(
            &source.not_principals,
            &field("notPrincipals"),
            values::text,
        ),
        namespaces: entry.any_of(&source.namespaces, &field("namespaces"), values::text),
        not_namespaces: entry.none_of(
            &source.not_namespaces,
            &field("notNamespaces"),
            values::text,
        ),
        service_accounts: entry.any_of(
            &source.service_accounts,
            &field("serviceAccounts"),
            account,
        ),
        not_service_accounts: entry.none_of(
            &source.not_service_accounts,
            &field("notServiceAccounts"),
            account,
        ),
        source_ips: entry.any_of(&source.ip_blocks, &field("ipBlocks"), values::ip_block),
        not_source_ips: entry.none_of(
            &source.not_ip_blocks,
            &field("notIpBlocks"),
            values::ip_block,
        ),
        ..wire::Match::default()
    };
    entry.conditions = conditions;
    note_empty(&mut entry, &path);
    entry
}

/// An entry of `when`.
pub(super) fn condition(when: &kinds::RuleCondition, path: &str) -> Entry {
    let mut entry = Entry::unknown(&when.unknown_fields, path);
    if when.values.is_empty() && when.not_values.is_empty() {
        entry.problem(path, "has neither values nor notValues");
        return entry;
    }
    let (yes, no) = (format!("{path}.values"), format!("{path}.notValues"));
    match when.key.as_str() {
        "source.ip" => {
            entry.conditions.source_ips = entry.any_of(&when.values, &yes, values::ip_block);
            entry.conditions.not_source_ips =
                entry.none_of(&when.not_values, &no, values::ip_block);
        }
        "source.namespace" => {
            entry.conditions.namespaces = entry.any_of(&when.values, &yes, values::text);
            entry.conditions.not_namespaces = entry.none_of(&when.not_values, &no, values::text);
        }
        "source.principal" => {
            entry.conditions.principals = entry.any_of(&when.values, &yes, values::text);
            entry.conditions.not_principals = entry.none_of(&when.not_values, &no, values::text);
        }
        "destination.ip" => {
            entry.conditions.destination_ips = entry.any_of(&when.values, &yes, values::ip_block);
            entry.conditions.not_destination_ips =
                entry.none_of(&when.not_values, &no, values::ip_block);
        }
        "destination.port" => {
            entry.conditions.destination_ports = entry.any_of(&when.values, &yes, values::port);
            entry.conditions.not_destination_ports =
                entry.none_of(&when.not_values, &no, values::port);
        }
        key if is_seen_elsewhere(key) => entry.unsupported(key, &[key.to_owned()]),
        key => entry.problem(&format!("{path}.key"), &format!("{key:?} is not known")),
    }
    entry
}

/// Keys that mean something, though not to ztunnel.
fn is_seen_elsewhere(key: &str) -> bool {
    matches!(
        key,
        "remote.ip" | "source.serviceAccount" | "source.trustDomain" | "connection.sni"
    ) || key.starts_with("request.")
        || key.starts_with("experimental.envoy.filters.")
}

/// An entry that says nothing at all is a mistake, and must not decide anything.
fn note_empty(entry: &mut Entry, path: &str) {
    if entry.is_whole() && entry.conditions == wire::Match::default() {
        entry.problem(path, "is empty");
    }
}
