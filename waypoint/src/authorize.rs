// SPDX-License-Identifier: Apache-2.0
//! Whether a connection may pass here, by the policies that the control plane attaches to this waypoint. Pure.
//!
//! Those of the endpoints are their own nodes' to enforce; what is written for a whole namespace is for its endpoints.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use mesh::{Connection, Decision, DenyReason, PolicySet, Store, Workload};
use spiffe::SpiffeId;

/// What policies look at.
#[derive(Debug, Clone)]
pub struct Facts {
    pub source_ip: IpAddr,
    /// Who the client's tunnel has proven to be.
    pub identity: SpiffeId,
    /// What was asked for.
    pub destination: SocketAddr,
}

/// The policies that the waypoint's own pod names, and those names that are not known.
pub fn policies(mesh: &Store, pod: &Workload) -> PolicySet {
    let mut set = PolicySet::default();
    for key in &pod.authorization_policies {
        match mesh.policy(key) {
            Some(policy) => set.add(policy),
            None => set.missing.push(key.clone()),
        }
    }
    set
}

/// What becomes of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Allowed,
    /// Not yet: a policy is on its way.
    Missing(Arc<str>),
    Denied(Arc<str>),
}

pub fn decide(policies: &PolicySet, facts: &Facts) -> Verdict {
    let decision = mesh::authorize(
        policies,
        &Connection {
            source_ip: facts.source_ip,
            identity: Some(&facts.identity),
            destination: facts.destination,
        },
    );
    match decision {
        Decision::Allow { .. } => Verdict::Allowed,
        Decision::Deny { reason } => {
            let words = reason.to_string().into();
            match reason {
                DenyReason::Missing { .. } => Verdict::Missing(words),
                _ => Verdict::Denied(words),
            }
        }
    }
}
