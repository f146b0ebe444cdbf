// SPDX-License-Identifier: Apache-2.0
//! One copy of what many workloads have in common: namespaces, nodes, versions, the services that they back.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

use spiffe::SpiffeId;

use crate::address::{GatewayAddress, GatewayDestination};
use crate::workload::{Locality, Membership, Workload};

/// Never sweep below this size: it costs more than it frees.
const SMALLEST_SWEEP: usize = 1024;

/// Values in use, of each kind that is shared.
#[derive(Debug, Default)]
pub(crate) struct Interner {
    texts: Pool<str>,
    services: Pool<[Membership]>,
    localities: Pool<Locality>,
}

/// Values in use. What nobody else holds is dropped each time the set has doubled, so that it stays in proportion to
/// what is alive.
#[derive(Debug)]
struct Pool<T: ?Sized> {
    known: HashSet<Arc<T>>,
    sweep_at: usize,
}

impl<T: ?Sized> Default for Pool<T> {
    fn default() -> Self {
        Self {
            known: HashSet::new(),
            sweep_at: SMALLEST_SWEEP,
        }
    }
}

impl<T: Eq + Hash + ?Sized> Pool<T> {
    fn share(&mut self, value: &mut Arc<T>) {
        if let Some(shared) = self.known.get(&**value) {
            *value = Arc::clone(shared);
            return;
        }
        if self.known.len() >= self.sweep_at {
            self.known.retain(|value| Arc::strong_count(value) > 1);
            self.sweep_at = SMALLEST_SWEEP.max(self.known.len() * 2);
        }
        self.known.insert(Arc::clone(value));
    }
}

impl Interner {
    /// Replaces a text by the shared copy of it.
    pub(crate) fn share(&mut self, text: &mut Arc<str>) {
        self.texts.share(text);
    }

    /// Shares all that a workload is likely to have in common with others; not its uid and name, nor its identity,
    /// of which the owner of the interner has its own notion.
    pub(crate) fn share_workload(&mut self, workload: &mut Workload) {
        let Workload {
            uid: _,
            pod_uid: _,
            name: _,
            namespace,
            addresses,
            hostname,
            network,
            protocol: _,
            identity: _,
            waypoint,
            network_gateway,
            node,
            canonical_name,
            canonical_revision,
            workload_type: _,
            workload_name,
            native_tunnel: _,
            application_tunnel: _,
            services,
            authorization_policies,
            status: _,
            cluster_id,
            locality,
            network_mode: _,
            capacity: _,
        } = workload;
        for text in [
            namespace,
            hostname,
            network,
            node,
            canonical_name,
            canonical_revision,
            workload_name,
            cluster_id,
        ] {
            self.share(text);
        }
        for gateway in [waypoint, network_gateway].into_iter().flatten() {
            self.share_gateway(gateway);
        }
        self.share_services(services);
        self.localities.share(locality);
        for policy in &mut *authorization_policies {
            self.share(policy);
        }
        addresses.shrink_to_fit();
        authorization_policies.shrink_to_fit();
    }

    fn share_services(&mut self, services: &mut Arc<[Membership]>) {
        if !self.services.known.contains(&**services) {
            // Lists that differ have names in common.
            let mut own = services.to_vec();
            for membership in &mut own {
                self.share(&mut membership.service.namespace);
                self.share(&mut membership.service.hostname);
            }
            *services = own.into();
        }
        self.services.share(services);
    }

    fn share_gateway(&mut self, gateway: &mut GatewayAddress) {
        match &mut gateway.destination {
            GatewayDestination::Hostname(host) => {
                self.share(&mut host.namespace);
                self.share(&mut host.hostname);
            }
            GatewayDestination::Address(address) => self.share(&mut address.network),
        }
    }
}

/// What the workloads of one update have in common, so that a large one is not a large one in memory.
#[derive(Debug, Default)]
pub(crate) struct Common {
    interner: Interner,
    identities: HashSet<SpiffeId>,
}

impl Common {
    /// Shares what a workload has in common with those before it.
    pub(crate) fn share(&mut self, workload: &mut Workload) {
        self.interner.share_workload(workload);
        match self.identities.get(&workload.identity) {
            Some(shared) => workload.identity = shared.clone(),
            None => _ = self.identities.insert(workload.identity.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{NamespacedHostname, Ports};

    #[test]
    fn equal_texts_become_one() {
        let mut interner = Interner::default();
        let (mut first, mut second): (Arc<str>, Arc<str>) = ("shop".into(), "shop".into());
        interner.share(&mut first);
        interner.share(&mut second);
        assert!(Arc::ptr_eq(&first, &second));
    }

    #[test]
    fn texts_that_nobody_holds_do_not_pile_up() {
        let mut interner = Interner::default();
        for i in 0..100_000 {
            interner.share(&mut format!("pod-{i}").into());
        }
        assert!(interner.texts.known.len() <= SMALLEST_SWEEP);
    }

    #[test]
    fn replicas_share_all_but_what_is_their_own() {
        let replica = |uid: &str| {
            let identity = "spiffe://td/ns/shop/sa/cart".parse().unwrap();
            let mut workload = Workload::new(uid, "shop", identity);
            workload.services = [Membership {
                service: NamespacedHostname::new("shop", "cart.shop"),
                ports: Ports::from_iter([(80, 8080)]),
            }]
            .into();
            workload.locality = Arc::new(Locality {
                region: "r".into(),
                ..Locality::default()
            });
            workload
        };
        let (mut first, mut second) = (replica("a"), replica("b"));
        let before = (first.clone(), second.clone());
        let mut common = Common::default();
        common.share(&mut first);
        common.share(&mut second);
        assert!(Arc::ptr_eq(&first.namespace, &second.namespace));
        assert!(Arc::ptr_eq(&first.services, &second.services));
        assert!(Arc::ptr_eq(&first.locality, &second.locality));
        assert!(Arc::ptr_eq(
            &first.namespace,
            &first.services[0].service.namespace
        ));
        assert!(std::ptr::eq(
            first.identity.as_str(),
            second.identity.as_str()
        ));
        assert_eq!((first, second), before);
    }
}
