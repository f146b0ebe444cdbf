// SPDX-License-Identifier: Apache-2.0
//! What a route belongs to, and where it leads: references, read but not followed.

use std::{collections::HashSet, sync::Arc};

use cluster::{check_subdomain, kinds};
use serde_json::json;

use super::Host;
use crate::facts::{
    NamespacedName,
    endpoint::is_host,
    service::{ServicePort, port_number},
};

const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";
const ISTIO_GROUP: &str = "networking.istio.io";

/// What a route can be for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ParentKey {
    /// A Kubernetes service.
    Service(NamespacedName),
    /// A ServiceEntry, with all its hosts.
    Entry(NamespacedName),
}

impl ParentKey {
    /// The object's name.
    pub fn name(&self) -> &NamespacedName {
        match self {
            Self::Service(name) | Self::Entry(name) => name,
        }
    }
}

/// A service that a route is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parent {
    /// The reference as written: its status names it.
    pub reference: kinds::ParentReference,
    /// The service.
    pub object: ParentKey,
}

impl Parent {
    /// Reads a reference; to anything but services it is the business of others.
    fn read(reference: &kinds::ParentReference, namespace: &Arc<str>) -> Option<Self> {
        let group = reference.group.as_deref().unwrap_or(GATEWAY_GROUP);
        let kind = reference.kind.as_deref().unwrap_or("Gateway");
        let namespace = match reference.namespace.as_deref() {
            None | Some("") => namespace.clone(),
            Some(other) => other.into(),
        };
        let name = NamespacedName::new(namespace, reference.name.as_str());
        let object = match (group, kind) {
            ("", "Service") => ParentKey::Service(name),
            (ISTIO_GROUP, "ServiceEntry") => ParentKey::Entry(name),
            _ => return None,
        };
        Some(Self {
            reference: reference.clone(),
            object,
        })
    }

    /// Whether it means this port: all of them, unless it says which by number or by name.
    pub fn selects(&self, port: &ServicePort) -> bool {
        let named = self.reference.section_name.as_deref();
        let numbered = self.reference.port;
        named.is_none_or(|name| name.is_empty() || *name == port.name)
            && numbered.is_none_or(|number| number == i64::from(port.port))
    }
}

/// Reads the references to services, each once. An API server takes 32 of them; files may have more.
pub(super) fn parents(references: &[kinds::ParentReference], namespace: &Arc<str>) -> Vec<Parent> {
    let mut seen = HashSet::new();
    let once = references
        .iter()
        .filter(|reference| seen.insert(json!(reference).to_string()));
    once.filter_map(|reference| Parent::read(reference, namespace))
        .collect()
}

/// Where a reference leads, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// To a port of a Kubernetes service.
    Service {
        /// The service.
        name: NamespacedName,
        /// The port.
        port: u16,
    },
    /// To a port of whatever service has a host name.
    Host {
        /// The host name.
        host: Host,
        /// The port.
        port: u16,
    },
    /// To whatever service has a host name.
    Named {
        /// The host name.
        host: Host,
        /// The port; the service's only one, or else the one that was asked for, where it is absent.
        port: Option<u16>,
        /// The part of its endpoints.
        subset: Option<String>,
    },
    /// It can't be followed.
    Invalid(Unresolved),
}

/// Why a reference can't be followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unresolved {
    /// In a word of Gateway API, or of Istio where that has none.
    pub reason: &'static str,
    /// In full.
    pub words: String,
}

impl Unresolved {
    /// A reference to a kind that is no backend.
    pub const INVALID_KIND: &'static str = "InvalidKind";
    /// What is referred to isn't there.
    pub const NOT_FOUND: &'static str = "BackendNotFound";
    /// It speaks what the route can't use.
    pub const PROTOCOL: &'static str = "UnsupportedProtocol";
    /// It leads to a part of a service that can't be told from the rest.
    pub const SUBSET: &'static str = "SubsetNotFound";
    /// The reference itself makes no sense.
    pub const DESTINATION: &'static str = "InvalidDestination";

    /// Says why.
    pub fn new(reason: &'static str, words: impl Into<String>) -> Self {
        Self {
            reason,
            words: words.into(),
        }
    }
}

/// Reads a reference of a route in this namespace.
pub(super) fn read(reference: &kinds::RouteBackendReference, namespace: &Arc<str>) -> Reference {
    follow(reference, namespace).unwrap_or_else(Reference::Invalid)
}

fn follow(
    reference: &kinds::RouteBackendReference,
    own: &Arc<str>,
) -> Result<Reference, Unresolved> {
    let group = reference.group.as_deref().unwrap_or_default();
    let kind = reference.kind.as_deref().unwrap_or("Service");
    let invalid = |words: String| Unresolved::new(Unresolved::DESTINATION, words);
    let port = || match reference.port {
        None => Err(invalid("names no port".to_owned())),
        Some(number) => i32::try_from(number)
            .ok()
            .and_then(port_number)
            .ok_or_else(|| invalid(format!("{number} is no port number"))),
    };
    let elsewhere = reference.namespace.as_deref().filter(|n| !n.is_empty());
    match (group, kind) {
        ("", "Service") => {
            let name = reference.name.as_str();
            if name.contains('.') || check_subdomain(name).is_err() {
                return Err(invalid(format!("{name:?} is no name of a Service")));
            }
            let namespace = elsewhere.map_or_else(|| own.clone(), Arc::from);
            Ok(Reference::Service {
                name: NamespacedName::new(namespace, name),
                port: port()?,
            })
        }
        (ISTIO_GROUP, "Hostname") => {
            let host = reference.name.to_ascii_lowercase();
            if elsewhere.is_some() {
                return Err(invalid("a Hostname has no namespace".to_owned()));
            }
            if !is_host(&host) {
                return Err(invalid(format!("{host:?} is no host name")));
            }
            Ok(Reference::Host {
                host: host.into(),
                port: port()?,
            })
        }
        _ => {
            let of = if group.is_empty() { "core" } else { group };
            let words = format!("kind {kind} of group {of} is no backend that is known");
            Err(Unresolved::new(Unresolved::INVALID_KIND, words))
        }
    }
}
