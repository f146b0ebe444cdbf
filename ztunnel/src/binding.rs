// SPDX-License-Identifier: Apache-2.0
//! Pure: whether a pod is the workload whose identity and policies it would use.
//!
//! Three speak of a pod, and they have to agree:
//!
//! ```text
//!  node agent     name, namespace, service account, UID ──┐            ┌── network namespace
//!  control plane  name, namespace, service account, UID ──┘ addresses ─┤
//!  kernel                                                              └── addresses of its interfaces
//! ```
//! Istio's control plane says no UID. Then a pod can't be told from a predecessor of the same name, account and address.
//!
//! In: what each of them says at this moment, and the address that a connection comes from or goes to. Out: the
//! workload, or why the pod must not speak as it. A namespace handed over under the wrong name, a description of the pod
//! that had the name or the address before, an address of somebody else: each ends here, before anything is signed,
//! decided or sent.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use mesh::{Store, Workload};

use crate::pods::{PodInfo, PodUid};

/// Why a pod must not speak as the workload of its name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unbound {
    /// The control plane describes no workload of this name, account and node.
    #[error("workload {0} is not known to the mesh on this node")]
    Unknown(PodInfo),
    /// The control plane describes one elsewhere: the pod of that name before or after this one, or the namespace is
    /// another pod's.
    #[error(
        "the network namespace handed over as pod {pod} has none of the addresses of that workload ({described})"
    )]
    ForeignNamespace {
        pod: PodInfo,
        /// The addresses, for a person.
        described: String,
    },
    /// The control plane describes the pod that had the name, account and address before this one, or has them after it.
    #[error(
        "the node agent handed over pod {pod} with UID {handed}, but the mesh speaks of the one with UID {described}"
    )]
    OtherPod {
        pod: PodInfo,
        handed: PodUid,
        described: Box<PodUid>,
    },
    /// It is none of those that the control plane gives the workload.
    #[error("address {address} does not belong to workload {pod}")]
    ForeignAddress { address: IpAddr, pod: PodInfo },
    /// The control plane says that it is somebody else's.
    #[error("address {address} belongs to workload {owner}, not to {pod}")]
    TakenAddress {
        address: IpAddr,
        owner: String,
        pod: PodInfo,
    },
    /// No interface of the pod has it.
    #[error("address {address} is not configured in the network namespace of pod {pod}")]
    UnconfiguredAddress { address: IpAddr, pod: PodInfo },
}

impl Unbound {
    /// Whether the next word of the control plane may put it right.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Unknown(_)
            | Self::ForeignNamespace { .. }
            | Self::OtherPod { .. }
            | Self::ForeignAddress { .. }
            | Self::TakenAddress { .. } => true,
            Self::UnconfiguredAddress { .. } => false,
        }
    }
}

/// A pod as the node agent handed it over, and what the kernel says of its network namespace.
#[derive(Debug, Clone, Copy)]
pub struct Handed<'a> {
    pub uid: &'a PodUid,
    pub info: &'a PodInfo,
    /// The addresses that its interfaces have.
    pub held: &'a BTreeSet<IpAddr>,
}

impl Handed<'_> {
    /// The workload that the pod is.
    ///
    /// # Errors
    /// Says why it is none.
    pub fn workload(&self, store: &Store) -> Result<Arc<Workload>, Unbound> {
        let info = self.info;
        let named = store.local_workloads(&info.namespace, &info.service_account, &info.name);
        let (mut elsewhere, mut other) = (None, None);
        for workload in named {
            if !workload.addresses.iter().any(|ip| self.held.contains(ip)) {
                elsewhere.get_or_insert(workload);
                continue;
            }
            match &workload.pod_uid {
                Some(uid) if **uid != *self.uid => _ = other.get_or_insert(uid),
                _ => return Ok(workload.clone()),
            }
        }
        let pod = info.clone();
        Err(match (other, elsewhere) {
            (Some(uid), _) => Unbound::OtherPod {
                pod,
                handed: self.uid.clone(),
                described: uid.clone(),
            },
            (None, Some(workload)) => Unbound::ForeignNamespace {
                pod,
                described: list(&workload.addresses),
            },
            (None, None) => Unbound::Unknown(pod),
        })
    }

    /// The workload that the pod is, for a connection that uses its identity at this address.
    ///
    /// # Errors
    /// Says why the address can't speak for it.
    pub fn workload_at(&self, store: &Store, address: IpAddr) -> Result<Arc<Workload>, Unbound> {
        let workload = self.workload(store)?;
        let pod = || self.info.clone();
        if !workload.addresses.contains(&address) {
            return Err(Unbound::ForeignAddress {
                address,
                pod: pod(),
            });
        }
        if !self.held.contains(&address) {
            return Err(Unbound::UnconfiguredAddress {
                address,
                pod: pod(),
            });
        }
        Ok(workload)
    }

    /// The workload that the pod is, and an address by which it is both known and reached: of the destination's family
    /// if it has one.
    ///
    /// # Errors
    /// Says why it is none.
    pub fn workload_towards(
        &self,
        store: &Store,
        destination: IpAddr,
    ) -> Result<(Arc<Workload>, IpAddr), Unbound> {
        let workload = self.workload(store)?;
        let own = workload
            .addresses
            .iter()
            .filter(|ip| self.held.contains(ip));
        let own = own.max_by_key(|ip| ip.is_ipv4() == destination.is_ipv4());
        let own = *own.expect("broken invariant: a pod is known by an address that it has");
        Ok((workload, own))
    }

    /// The workload that the pod is, for plaintext that arrives for this address: one of the pod's, of which the control
    /// plane need not know, as of a second interface; but never another workload's.
    ///
    /// # Errors
    /// Says why the address is not the pod's.
    pub fn workload_reached(
        &self,
        store: &Store,
        address: IpAddr,
    ) -> Result<Arc<Workload>, Unbound> {
        if !self.held.contains(&address) {
            return Err(Unbound::UnconfiguredAddress {
                address,
                pod: self.info.clone(),
            });
        }
        let workload = self.workload(store)?;
        if !workload.addresses.contains(&address)
            && let Some(owner) = store.workload_by_ip(&workload.network, address)
        {
            return Err(Unbound::TakenAddress {
                address,
                owner: format!("{}/{}", owner.namespace, owner.name),
                pod: self.info.clone(),
            });
        }
        Ok(workload)
    }
}

fn list(addresses: &[IpAddr]) -> String {
    match addresses {
        [] => "none".to_owned(),
        some => some
            .iter()
            .map(IpAddr::to_string)
            .collect::<Vec<_>>()
            .join(", "),
    }
}

#[cfg(test)]
mod tests;
