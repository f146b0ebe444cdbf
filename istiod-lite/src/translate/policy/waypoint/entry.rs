// SPDX-License-Identifier: Apache-2.0
//! One entry of `from`, `to` or `when`: its conditions, and what of it can't be read.

use cluster::kinds;
use proto::waypoint as wire;
use wire::Attribute;

use super::values::{self, Key};
use crate::facts::Problem;

/// One entry of a clause.
#[derive(Debug, Default)]
pub(super) struct Entry {
    /// All of them have to hold.
    pub conditions: Vec<wire::Condition>,
    /// Values and fields that can't be read.
    pub problems: Vec<Problem>,
}

/// Whether one of the values has to match, or none may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sense {
    AnyOf,
    NoneOf,
}

/// What is compared, and how its values are read.
#[derive(Clone, Copy)]
struct Reading<'a> {
    attribute: Attribute,
    key: &'a [String],
    read: &'a dyn Fn(&str, &mut wire::Condition) -> Result<(), String>,
}

impl Entry {
    /// An entry of which nothing is known but these fields.
    pub(super) fn unknown(fields: &kinds::UnknownFields, path: &str) -> Self {
        let mut entry = Self::default();
        entry.note_unknown(fields, path);
        entry
    }

    fn note_unknown(&mut self, fields: &kinds::UnknownFields, path: &str) {
        for field in fields.keys() {
            self.problem(format!("{path}.{field}"), "is not known");
        }
    }

    fn problem(&mut self, field: String, reason: &str) {
        self.problems.push(Problem::new(field, reason));
    }

    /// Reads a list. Of one that has to match, a value that can't be read might match anything: no condition is left. Of
    /// one that must not, it excludes nothing.
    fn add(&mut self, reading: Reading<'_>, sense: Sense, texts: &[String], path: &str) {
        let mut condition = wire::Condition {
            attribute: reading.attribute.into(),
            key: reading.key.to_vec(),
            negated: sense == Sense::NoneOf,
            ..wire::Condition::default()
        };
        let mut read = 0;
        for (position, text) in texts.iter().enumerate() {
            match (reading.read)(text, &mut condition) {
                Ok(()) => read += 1,
                Err(reason) => self.problem(format!("{path}[{position}]"), &reason),
            }
        }
        let is_whole = read == texts.len();
        if read > 0 && (is_whole || sense == Sense::NoneOf) {
            self.conditions.push(condition);
        }
    }

    /// Reads both lists of an attribute.
    fn both(&mut self, reading: Reading<'_>, [yes, no]: [(&[String], String); 2]) {
        self.add(reading, Sense::AnyOf, yes.0, &yes.1);
        self.add(reading, Sense::NoneOf, no.0, &no.1);
    }

    /// Leaves out what is known only from tokens: authorizers are asked before those are looked at.
    pub(super) fn before_tokens(&mut self, path: &str) {
        let before = self.conditions.len();
        self.conditions.retain(|condition| {
            !matches!(
                condition.attribute(),
                Attribute::RequestPrincipal
                    | Attribute::Audience
                    | Attribute::Presenter
                    | Attribute::Claim
            )
        });
        if self.conditions.len() < before {
            let words = "asks for what tokens say, which the CUSTOM action comes before";
            self.problem(path.to_owned(), words);
        }
    }

    /// An entry that says nothing at all is a mistake, and must not decide anything.
    fn note_empty(&mut self, path: &str) {
        if self.conditions.is_empty() && self.problems.is_empty() {
            self.problem(path.to_owned(), "is empty");
        }
    }
}

/// An entry of `to`.
pub(super) fn operation(to: &kinds::RuleTo, path: &str) -> Entry {
    let mut entry = Entry::unknown(&to.unknown_fields, path);
    let path = format!("{path}.operation");
    let operation = &to.operation;
    entry.note_unknown(&operation.unknown_fields, &path);
    let field = |name: &str| format!("{path}.{name}");
    let of = |attribute, read| Reading {
        attribute,
        key: &[],
        read,
    };
    entry.both(
        of(Attribute::Host, &values::text),
        [
            (&operation.hosts, field("hosts")),
            (&operation.not_hosts, field("notHosts")),
        ],
    );
    entry.both(
        of(Attribute::DestinationPort, &values::port),
        [
            (&operation.ports, field("ports")),
            (&operation.not_ports, field("notPorts")),
        ],
    );
    entry.both(
        of(Attribute::Method, &values::text),
        [
            (&operation.methods, field("methods")),
            (&operation.not_methods, field("notMethods")),
        ],
    );
    entry.both(
        of(Attribute::Path, &values::path),
        [
            (&operation.paths, field("paths")),
            (&operation.not_paths, field("notPaths")),
        ],
    );
    entry.note_empty(&path);
    entry
}

/// An entry of `from`. `namespace` is the policy's: a service account without one is from there.
pub(super) fn source(from: &kinds::RuleFrom, path: &str, namespace: &str) -> Entry {
    let mut entry = Entry::unknown(&from.unknown_fields, path);
    let path = format!("{path}.source");
    let source = &from.source;
    entry.note_unknown(&source.unknown_fields, &path);
    let field = |name: &str| format!("{path}.{name}");
    let account = |text: &str, into: &mut wire::Condition| values::account(text, namespace, into);
    let of = |attribute, read| Reading {
        attribute,
        key: &[],
        read,
    };
    entry.both(
        of(Attribute::SourcePrincipal, &values::text),
        [
            (&source.principals, field("principals")),
            (&source.not_principals, field("notPrincipals")),
        ],
    );
    entry.both(
        of(Attribute::RequestPrincipal, &values::request_principal),
        [
            (&source.request_principals, field("requestPrincipals")),
            (
                &source.not_request_principals,
                field("notRequestPrincipals"),
            ),
        ],
    );
    entry.both(
        of(Attribute::SourceNamespace, &values::plain),
        [
            (&source.namespaces, field("namespaces")),
            (&source.not_namespaces, field("notNamespaces")),
        ],
    );
    entry.both(
        of(Attribute::SourceServiceAccount, &account),
        [
            (&source.service_accounts, field("serviceAccounts")),
            (&source.not_service_accounts, field("notServiceAccounts")),
        ],
    );
    entry.both(
        of(Attribute::SourceTrustDomain, &values::plain),
        [
            (&source.trust_domains, field("trustDomains")),
            (&source.not_trust_domains, field("notTrustDomains")),
        ],
    );
    entry.both(
        of(Attribute::SourceIp, &values::block),
        [
            (&source.ip_blocks, field("ipBlocks")),
            (&source.not_ip_blocks, field("notIpBlocks")),
        ],
    );
    entry.both(
        of(Attribute::RemoteIp, &values::block),
        [
            (&source.remote_ip_blocks, field("remoteIpBlocks")),
            (&source.not_remote_ip_blocks, field("notRemoteIpBlocks")),
        ],
    );
    entry.note_empty(&path);
    entry
}

/// An entry of `when`.
pub(super) fn condition(when: &kinds::RuleCondition, path: &str, namespace: &str) -> Entry {
    let mut entry = Entry::unknown(&when.unknown_fields, path);
    if when.values.is_empty() && when.not_values.is_empty() {
        entry.problem(path.to_owned(), "has neither values nor notValues");
        return entry;
    }
    let account = |text: &str, into: &mut wire::Condition| values::account(text, namespace, into);
    let key = match values::key(&when.key) {
        Ok(key) => key,
        Err(reason) => {
            entry.problem(format!("{path}.key"), &reason);
            return entry;
        }
    };
    let Key { attribute, way } = key;
    let read: &dyn Fn(&str, &mut wire::Condition) -> Result<(), String> = match attribute {
        Attribute::SourceIp | Attribute::RemoteIp | Attribute::DestinationIp => &values::block,
        Attribute::DestinationPort => &values::port,
        Attribute::SourceServiceAccount => &account,
        Attribute::SourceNamespace | Attribute::SourceTrustDomain => &values::plain,
        Attribute::RequestPrincipal => &values::request_principal,
        _ => &values::text,
    };
    let reading = Reading {
        attribute,
        key: &way,
        read,
    };
    let lists = [
        (when.values.as_slice(), format!("{path}.values")),
        (&when.not_values, format!("{path}.notValues")),
    ];
    entry.both(reading, lists);
    entry
}
