// SPDX-License-Identifier: Apache-2.0
//! Brings the control plane's pushes into the mesh state, and certificates along with it.
//!
//! In: delta responses, one type each. Out: an updated store, rejections that name resource and field,
//! certificates fetched ahead for identities that appeared on this node and dropped for those that left it.

use std::sync::Arc;

use identity::Certificates;
use mesh::{AddressBatch, Changes, PolicyBatch, Update};
use proto::{ADDRESS_TYPE_URL, AUTHORIZATION_TYPE_URL};
use tracing::{debug, warn};
use xds::{Demand, Handler, Rejection, Resource};

use crate::mesh_state::MeshState;

/// So many resources are decoded and taken in together: a push of the whole mesh neither takes memory for a second
/// mesh nor keeps connections from reading the first.
const AT_ONCE: usize = 1024;

/// Workloads and services.
pub struct Addresses {
    pub mesh: Arc<MeshState>,
    pub certificates: Certificates,
    /// What is asked for by key; all is wanted where this is none.
    pub demand: Option<Demand>,
}

/// Policies.
pub struct Authorizations {
    pub mesh: Arc<MeshState>,
}

impl Handler for Addresses {
    fn type_url(&self) -> &'static str {
        ADDRESS_TYPE_URL
    }

    fn demand(&self) -> Option<Demand> {
        self.demand.clone()
    }

    fn apply(&mut self, resources: Vec<Resource>, removed: Vec<String>) -> Vec<Rejection> {
        debug!(
            updated = resources.len(),
            removed = removed.len(),
            "addresses received"
        );
        let mut rejections = Vec::new();
        let large = resources.len() > AT_ONCE;
        let mut resources = resources.into_iter().peekable();
        while resources.peek().is_some() {
            let some: Vec<Resource> = resources.by_ref().take(AT_ONCE).collect();
            rejections.extend(self.take_in(&some, Vec::new()));
        }
        if !removed.is_empty() {
            self.take_in(&[], removed);
        }
        drop(resources);
        if large {
            capture::memory::give_back();
        }
        rejected(rejections)
    }
}

impl Addresses {
    fn take_in(&self, resources: &[Resource], removed: Vec<String>) -> Vec<mesh::Rejection> {
        let (mut batch, rejections) = AddressBatch::decode(updates(resources), removed);
        self.mesh.sift(&mut batch);
        let changes = self.mesh.update(|store| store.apply_addresses(batch));
        follow_identities(&self.certificates, changes);
        rejections
    }
}

impl Handler for Authorizations {
    fn type_url(&self) -> &'static str {
        AUTHORIZATION_TYPE_URL
    }

    fn apply(&mut self, resources: Vec<Resource>, removed: Vec<String>) -> Vec<Rejection> {
        debug!(
            updated = resources.len(),
            removed = removed.len(),
            "policies received"
        );
        let (batch, rejections) = PolicyBatch::decode(updates(&resources), removed);
        self.mesh.update(|store| store.apply_policies(batch));
        rejected(rejections)
    }
}

/// Certificates are there before the first connection asks, and gone once nobody here may use them.
pub fn follow_identities(certificates: &Certificates, changes: Changes) {
    for identity in changes.identities_added {
        certificates.prefetch(identity);
    }
    for identity in &changes.identities_removed {
        certificates.forget(identity);
    }
}

fn updates(resources: &[Resource]) -> impl Iterator<Item = Update<'_>> {
    resources.iter().map(|resource| Update {
        name: &resource.name,
        body: &resource.body,
    })
}

/// How many refusals of one response are told one by one.
const TOLD: usize = 20;

fn rejected(rejections: Vec<mesh::Rejection>) -> Vec<Rejection> {
    if let Some(more @ 1..) = rejections.len().checked_sub(TOLD) {
        warn!(more, "resources of the control plane rejected");
    }
    let rejected = |(number, rejection): (usize, mesh::Rejection)| {
        if number < TOLD {
            warn!(
                resource = rejection.name,
                reason = rejection.reason,
                "resource of the control plane rejected"
            );
        }
        Rejection {
            name: rejection.name,
            reason: rejection.reason,
        }
    };
    rejections.into_iter().enumerate().map(rejected).collect()
}
