// SPDX-License-Identifier: Apache-2.0
//! Workloads by uid, address, host name, and (those of this node) by what a pod calls itself.

use std::borrow::Borrow;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use super::sorted::{self, Few, Left};
use crate::workload::{NetworkMode, TunnelProtocol, Workload};

/// Which workloads count as local.
#[derive(Debug, Clone, Default)]
pub(super) enum Local {
    /// All: there is no node name.
    #[default]
    All,
    /// Those of one node.
    Node(Arc<str>),
}

impl Local {
    pub(super) fn includes(&self, workload: &Workload) -> bool {
        match self {
            Self::All => true,
            Self::Node(node) => **node == *workload.node,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Workloads {
    local: Local,
    by_uid: HashSet<ByUid>,
    /// By network, then address. Each list is ordered by uid, so that the order of arrival decides nothing.
    by_address: HashMap<Arc<str>, HashMap<IpAddr, Few>>,
    by_hostname: HashMap<Arc<str>, Vec<Arc<Workload>>>,
    local_by_name: HashMap<Arc<str>, Vec<Arc<Workload>>>,
}

/// A workload that is known by its uid.
#[derive(Debug)]
struct ByUid(Arc<Workload>);

impl Borrow<str> for ByUid {
    fn borrow(&self) -> &str {
        &self.0.uid
    }
}

impl PartialEq for ByUid {
    fn eq(&self, other: &Self) -> bool {
        self.0.uid == other.0.uid
    }
}

impl Eq for ByUid {}

impl Hash for ByUid {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // As the text that it is looked up by.
        str::hash(&self.0.uid, state);
    }
}

impl Workloads {
    pub(super) fn new(local: Local) -> Self {
        Self {
            local,
            ..Self::default()
        }
    }

    /// Nothing, by the same notion of what is local.
    pub(super) fn emptied(&self) -> Self {
        Self::new(self.local.clone())
    }

    /// Adds a workload whose uid is not there.
    pub(super) fn insert(&mut self, workload: &Arc<Workload>) {
        if workload.network_mode == NetworkMode::Standard && !workload.addresses.is_empty() {
            let network = self.by_address.entry(workload.network.clone()).or_default();
            for address in &workload.addresses {
                match network.entry(*address) {
                    Entry::Vacant(entry) => {
                        entry.insert(Few::One(Arc::clone(workload)));
                    }
                    Entry::Occupied(mut entry) => entry.get_mut().insert(workload),
                }
            }
        }
        if !workload.hostname.is_empty() {
            let named = self.by_hostname.entry(workload.hostname.clone());
            sorted::insert(named.or_default(), workload);
        }
        if self.local.includes(workload) {
            let named = self.local_by_name.entry(workload.name.clone());
            sorted::insert(named.or_default(), workload);
        }
        self.by_uid.insert(ByUid(Arc::clone(workload)));
    }

    pub(super) fn remove(&mut self, uid: &str) -> Option<Arc<Workload>> {
        let ByUid(workload) = self.by_uid.take(uid)?;
        if let Some(network) = self.by_address.get_mut(&workload.network) {
            for address in &workload.addresses {
                if let Entry::Occupied(mut entry) = network.entry(*address)
                    && entry.get_mut().remove(uid) == Left::Nothing
                {
                    entry.remove();
                }
            }
            if network.is_empty() {
                self.by_address.remove(&workload.network);
            }
        }
        sorted::remove_from(&mut self.by_hostname, &*workload.hostname, uid);
        sorted::remove_from(&mut self.local_by_name, &*workload.name, uid);
        Some(workload)
    }

    pub(super) fn get(&self, uid: &str) -> Option<&Arc<Workload>> {
        self.by_uid.get(uid).map(|ByUid(workload)| workload)
    }

    pub(super) fn is_local(&self, workload: &Workload) -> bool {
        self.local.includes(workload)
    }

    /// Whether it is known on which node we are.
    pub(super) fn node_is_known(&self) -> bool {
        matches!(self.local, Local::Node(_))
    }

    /// The workload that an address belongs to. Of several, pods come first, then those that speak HBONE.
    pub(super) fn by_address(&self, network: &str, address: IpAddr) -> Option<&Arc<Workload>> {
        let sharing = self.by_address.get(network)?.get(&address)?;
        sharing.as_slice().iter().min_by_key(|workload| {
            (
                !workload.uid.contains("//Pod/"),
                workload.protocol != TunnelProtocol::Hbone,
            )
        })
    }

    pub(super) fn by_hostname(&self, namespace: &str, hostname: &str) -> Option<&Arc<Workload>> {
        self.by_hostname
            .get(hostname)?
            .iter()
            .find(|workload| *workload.namespace == *namespace)
    }

    pub(super) fn local(
        &self,
        namespace: &str,
        service_account: &str,
        name: &str,
    ) -> impl Iterator<Item = &Arc<Workload>> {
        let named = self.local_by_name.get(name).into_iter().flatten();
        named.filter(move |workload| {
            *workload.namespace == *namespace
                && workload.identity.service_account() == service_account
        })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Workload>> {
        self.by_uid.iter().map(|ByUid(workload)| workload)
    }

    pub(super) fn len(&self) -> usize {
        self.by_uid.len()
    }
}
