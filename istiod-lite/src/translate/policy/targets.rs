// SPDX-License-Identifier: Apache-2.0
//! What a policy with targetRefs is for, as far as it says so itself.

use cluster::kinds;

use crate::facts::{NamespacedName, Problem};

/// One reference of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// As the author reads it: `Kind.group:namespace/name`.
    pub words: String,
    /// What is meant, or why nothing can be.
    pub key: Result<TargetKey, String>,
}

/// What a policy may be for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TargetKey {
    /// All that this waypoint serves.
    Gateway(NamespacedName),
    /// All that the waypoints of this class serve.
    Class(String),
    /// A Kubernetes service.
    Service(NamespacedName),
    /// All hosts of a ServiceEntry.
    Entry(NamespacedName),
}

/// Reads the references of a policy. One that means nothing is told; the others hold.
pub(in crate::translate) fn targets(
    (single, several): (Option<&kinds::TargetReference>, &[kinds::TargetReference]),
    namespace: &str,
    root_namespace: &str,
    problems: &mut Vec<Problem>,
) -> Vec<Target> {
    let single = single.map(|one| ("spec.targetRef".to_owned(), one));
    let several = several.iter().enumerate();
    let several = several.map(|(i, one)| (format!("spec.targetRefs[{i}]"), one));
    let read = |(field, reference): (String, &kinds::TargetReference)| {
        let target = target(reference, namespace, root_namespace);
        if let Err(reason) = &target.key {
            problems.push(Problem::new(field, format!("{reason}; it is ignored")));
        }
        target
    };
    single.into_iter().chain(several).map(read).collect()
}

fn target(reference: &kinds::TargetReference, namespace: &str, root_namespace: &str) -> Target {
    let kinds::TargetReference {
        group, kind, name, ..
    } = reference;
    let other = reference.namespace.as_deref();
    let other = other.filter(|other| !other.is_empty() && *other != namespace);
    let object = || NamespacedName::new(namespace, name.as_str());
    let key = match (group.as_str(), kind.as_str()) {
        _ if name.is_empty() => Err("names nothing".to_owned()),
        _ if other.is_some() => Err("is in another namespace than the policy".to_owned()),
        ("gateway.networking.k8s.io", "Gateway") => Ok(TargetKey::Gateway(object())),
        ("gateway.networking.k8s.io", "GatewayClass") if namespace == root_namespace => {
            Ok(TargetKey::Class(name.clone()))
        }
        ("gateway.networking.k8s.io", "GatewayClass") => Err(format!(
            "names a GatewayClass, which only policies of {root_namespace} may"
        )),
        ("" | "core", "Service") => Ok(TargetKey::Service(object())),
        ("networking.istio.io", "ServiceEntry") => Ok(TargetKey::Entry(object())),
        _ => Err(format!(
            "is none of Gateway, GatewayClass, Service, ServiceEntry: {kind:?} of group {group:?}"
        )),
    };
    let group = if group.is_empty() { "core" } else { group };
    let place = other.unwrap_or(namespace);
    Target {
        words: format!("{kind}.{group}:{place}/{name}"),
        key,
    }
}
