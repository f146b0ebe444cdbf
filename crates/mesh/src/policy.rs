// SPDX-License-Identifier: Apache-2.0
//! An authorization policy: rules over a connection's ends, and what a match means.
//!
//! ```text
//! policy = any rule;  rule = all clauses;  clause = any match;  match = all fields;  field = any value
//! ```
//!
//! A value that could not be read (it comes from a newer control plane, or is damaged) is kept as such, since dropping
//! it would widen an ALLOW or narrow a DENY; see [`crate::authorize`] for what it means there.

use std::fmt;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use spiffe::SpiffeId;

/// An authorization policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// The policy's name.
    pub name: Arc<str>,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Which workloads it is about.
    pub scope: PolicyScope,
    /// What a match means.
    pub action: Action,
    /// The rules, of which one must match; without any the policy never matches.
    pub rules: Vec<Rule>,
    /// Whether it is evaluated and logged only.
    pub enforcement: Enforcement,
}

impl Policy {
    /// `namespace/name`, as workloads name it.
    pub fn key(&self) -> Arc<str> {
        format!("{}/{}", self.namespace, self.name).into()
    }
}

impl Policy {
    /// Whether it looks at who calls at all.
    pub(crate) fn looks_at_sources(&self) -> bool {
        self.matches().any(Match::looks_at_sources)
    }

    /// Whether it tells others apart from `one`: where all that it says of sources holds of `one`, nothing is decided by who
    /// else there may be.
    pub(crate) fn names_others_than(&self, one: &SpiffeId) -> bool {
        let is_account = |value: &ServiceAccountMatch| {
            *value.namespace == *one.namespace() && *value.service_account == *one.service_account()
        };
        let texts = |values: &Values<StringMatch>, text: &str| {
            values.known.iter().all(|value| value.matches(text))
        };
        self.matches().any(|m| {
            !(texts(&m.namespaces, one.namespace())
                && texts(&m.not_namespaces, one.namespace())
                && texts(&m.principals, one.principal())
                && texts(&m.not_principals, one.principal())
                && m.service_accounts.known.iter().all(is_account)
                && m.not_service_accounts.known.iter().all(is_account))
        })
    }

    fn matches(&self) -> impl Iterator<Item = &Match> {
        let clauses = self.rules.iter().flat_map(|rule| &rule.clauses);
        clauses.flat_map(|clause| &clause.matches)
    }
}

/// Which workloads a policy is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PolicyScope {
    /// All of the mesh.
    Global,
    /// Those of its namespace.
    Namespace,
    /// Those that name it.
    WorkloadSelector,
}

/// What a match means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Action {
    /// The connection may pass.
    Allow,
    /// It must not.
    Deny,
}

/// Whether a policy has effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Enforcement {
    /// It has.
    Enforced,
    /// It is evaluated and logged only.
    DryRun,
}

/// All of its clauses must match; without any it matches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    /// The clauses.
    pub clauses: Vec<Clause>,
}

impl Rule {
    /// Whether some value of it could not be read.
    pub fn has_unparsable(&self) -> bool {
        self.clauses
            .iter()
            .flat_map(|clause| &clause.matches)
            .any(Match::has_unparsable)
    }
}

/// One of its matches must match; without any it matches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Clause {
    /// The matches.
    pub matches: Vec<Match>,
}

/// Every field that holds values must pass; without any value it never matches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Match {
    /// The client's namespace.
    pub namespaces: Values<StringMatch>,
    /// Not the client's namespace.
    pub not_namespaces: Values<StringMatch>,
    /// The client's identity without its scheme.
    pub principals: Values<StringMatch>,
    /// Not the client's identity.
    pub not_principals: Values<StringMatch>,
    /// The client's service account.
    pub service_accounts: Values<ServiceAccountMatch>,
    /// Not the client's service account.
    pub not_service_accounts: Values<ServiceAccountMatch>,
    /// The client's address.
    pub source_ips: Values<IpNet>,
    /// Not the client's address.
    pub not_source_ips: Values<IpNet>,
    /// The address connected to.
    pub destination_ips: Values<IpNet>,
    /// Not the address connected to.
    pub not_destination_ips: Values<IpNet>,
    /// The port connected to.
    pub destination_ports: Values<u16>,
    /// Not the port connected to.
    pub not_destination_ports: Values<u16>,
    /// Conditions of a kind unknown here.
    pub unknown: Vec<Unparsable>,
}

impl Match {
    /// Whether there is no value at all.
    pub fn is_empty(&self) -> bool {
        self.namespaces.is_empty()
            && self.not_namespaces.is_empty()
            && self.principals.is_empty()
            && self.not_principals.is_empty()
            && self.service_accounts.is_empty()
            && self.not_service_accounts.is_empty()
            && self.source_ips.is_empty()
            && self.not_source_ips.is_empty()
            && self.destination_ips.is_empty()
            && self.not_destination_ips.is_empty()
            && self.destination_ports.is_empty()
            && self.not_destination_ports.is_empty()
            && self.unknown.is_empty()
    }

    fn looks_at_sources(&self) -> bool {
        !(self.namespaces.is_empty()
            && self.not_namespaces.is_empty()
            && self.principals.is_empty()
            && self.not_principals.is_empty()
            && self.service_accounts.is_empty()
            && self.not_service_accounts.is_empty())
    }

    /// Whether some value could not be read.
    pub fn has_unparsable(&self) -> bool {
        self.namespaces.has_unparsable()
            || self.not_namespaces.has_unparsable()
            || self.principals.has_unparsable()
            || self.not_principals.has_unparsable()
            || self.service_accounts.has_unparsable()
            || self.not_service_accounts.has_unparsable()
            || self.source_ips.has_unparsable()
            || self.not_source_ips.has_unparsable()
            || self.destination_ips.has_unparsable()
            || self.not_destination_ips.has_unparsable()
            || self.destination_ports.has_unparsable()
            || self.not_destination_ports.has_unparsable()
            || !self.unknown.is_empty()
    }
}

/// The values of one field of a match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Values<T> {
    /// Those that could be read.
    pub known: Vec<T>,
    /// Those that could not.
    pub unparsable: Vec<Unparsable>,
}

impl<T> Values<T> {
    /// Whether the field holds nothing, and so restricts nothing.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty() && self.unparsable.is_empty()
    }

    /// Whether some value could not be read.
    pub fn has_unparsable(&self) -> bool {
        !self.unparsable.is_empty()
    }
}

impl<T> Default for Values<T> {
    fn default() -> Self {
        Self {
            known: Vec::new(),
            unparsable: Vec::new(),
        }
    }
}

impl<T> FromIterator<Result<T, Unparsable>> for Values<T> {
    fn from_iter<I: IntoIterator<Item = Result<T, Unparsable>>>(values: I) -> Self {
        let mut all = Self::default();
        for value in values {
            match value {
                Ok(value) => all.known.push(value),
                Err(problem) => all.unparsable.push(problem),
            }
        }
        all
    }
}

impl<T> From<Vec<T>> for Values<T> {
    fn from(known: Vec<T>) -> Self {
        Self {
            known,
            unparsable: Vec::new(),
        }
    }
}

/// A value that could not be read, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unparsable(pub Arc<str>);

impl fmt::Display for Unparsable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text compared with another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StringMatch {
    /// Equal to it.
    Exact(Arc<str>),
    /// Begins with it.
    Prefix(Arc<str>),
    /// Ends with it.
    Suffix(Arc<str>),
    /// Not empty.
    Presence,
}

impl StringMatch {
    /// Whether a text matches.
    pub fn matches(&self, text: &str) -> bool {
        match self {
            Self::Exact(value) => **value == *text,
            Self::Prefix(value) => text.starts_with(&**value),
            Self::Suffix(value) => text.ends_with(&**value),
            Self::Presence => !text.is_empty(),
        }
    }
}

/// A service account of any trust domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceAccountMatch {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub service_account: Arc<str>,
}
