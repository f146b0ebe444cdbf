// SPDX-License-Identifier: Apache-2.0
//! Whether a network namespace is a pod's. Pure.
//!
//! In: the namespace, the addresses that the kernel says it has, the pod's addresses as the runtime or the cluster names
//! them, and whose the other namespaces are. Out: consent, or what speaks against it. Whoever is enrolled with another
//! pod's namespace would speak with a foreign identity, so that nothing is enrolled without this.

use std::collections::BTreeSet;
use std::net::IpAddr;

use capture::NetnsId;

use crate::memory::Sandbox;

/// Why a network namespace is not taken for a pod's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    #[error("is the node's own")]
    Host,
    #[error("belongs to pod {pod}, which still runs")]
    Taken { pod: String },
    #[error("has no address {0}")]
    Missing(IpAddr),
    #[error("proves nothing: neither the runtime nor the cluster names an address of the pod")]
    Nameless,
}

impl Mismatch {
    /// For metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Taken { .. } => "taken",
            Self::Missing(_) => "address",
            Self::Nameless => "nameless",
        }
    }
}

/// A network namespace, as the kernel has it.
#[derive(Debug, Clone, Copy)]
pub struct Found<'a> {
    pub id: NetnsId,
    /// The addresses of its interfaces.
    pub held: &'a BTreeSet<IpAddr>,
}

/// Checks a namespace against all that is known. `others` are the sandboxes of other live pods; their namespaces are
/// held open, so that an id means one namespace.
///
/// # Errors
/// Says what speaks against it.
pub fn check<'a>(
    found: Found<'_>,
    host: NetnsId,
    ips: &[IpAddr],
    others: impl IntoIterator<Item = &'a Sandbox>,
) -> Result<(), Mismatch> {
    if found.id == host {
        return Err(Mismatch::Host);
    }
    let mut others = others.into_iter();
    if let Some(owner) = others.find(|other| other.netns_id() == found.id) {
        let (namespace, name, uid) = (&owner.namespace, &owner.name, &owner.uid);
        let pod = format!("{namespace}/{name} ({uid})");
        return Err(Mismatch::Taken { pod });
    }
    if ips.is_empty() {
        return Err(Mismatch::Nameless);
    }
    match ips.iter().find(|ip| !found.held.contains(ip)) {
        Some(missing) => Err(Mismatch::Missing(*missing)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: NetnsId = NetnsId { dev: 4, ino: 1 };

    fn sandbox(ino: u64) -> Sandbox {
        Sandbox {
            uid: "u1".into(),
            namespace: "shop".into(),
            name: "db".into(),
            container_id: None,
            netns: "/run/netns/db".into(),
            dev: 4,
            ino,
            ips: vec![],
            captured: true,
        }
    }

    #[track_caller]
    fn says(ino: u64, held: &[&str], ips: &[&str], expected: &str) {
        let parse = |texts: &[&str]| -> Vec<IpAddr> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let held = parse(held).into_iter().collect();
        let found = Found {
            id: NetnsId { dev: 4, ino },
            held: &held,
        };
        let said = check(found, HOST, &parse(ips), &[sandbox(7)]);
        assert_eq!(
            said.err().map(|why| why.to_string()).as_deref(),
            Some(expected).filter(|text| !text.is_empty())
        );
    }

    #[test]
    fn a_namespace_with_every_address_of_the_pod_is_the_pods() {
        says(
            2,
            &["127.0.0.1", "10.0.0.1", "fd00::1"],
            &["10.0.0.1", "fd00::1"],
            "",
        );
        says(2, &["10.0.0.1", "192.0.2.1"], &["10.0.0.1"], "");
    }

    #[test]
    fn whatever_speaks_against_it_is_named() {
        says(1, &["10.0.0.1"], &["10.0.0.1"], "is the node's own");
        says(
            7,
            &["10.0.0.1"],
            &["10.0.0.1"],
            "belongs to pod shop/db (u1), which still runs",
        );
        says(
            2,
            &["10.0.0.1"],
            &["10.0.0.1", "fd00::1"],
            "has no address fd00::1",
        );
        says(2, &[], &["10.0.0.1"], "has no address 10.0.0.1");
        says(
            2,
            &["10.0.0.1"],
            &[],
            "proves nothing: neither the runtime nor the cluster names an address of the pod",
        );
    }
}
