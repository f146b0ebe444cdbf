// SPDX-License-Identifier: Apache-2.0
//! One copy of each text that many workloads share: namespaces, nodes, services, versions.

use std::collections::HashSet;
use std::sync::Arc;

use crate::address::{GatewayAddress, GatewayDestination};
use crate::workload::Workload;

/// Never sweep below this size: it costs more than it frees.
const SMALLEST_SWEEP: usize = 1024;

/// Texts in use. What nobody else holds is dropped each time the set has doubled, so that it stays in proportion to
/// what is alive.
#[derive(Debug, Default)]
pub(crate) struct Interner {
    texts: HashSet<Arc<str>>,
    sweep_at: usize,
}

impl Interner {
    /// Replaces a text by the shared copy of it.
    pub(crate) fn share(&mut self, text: &mut Arc<str>) {
        if let Some(shared) = self.texts.get(&**text) {
            *text = shared.clone();
            return;
        }
        if self.texts.len() >= self.sweep_at.max(SMALLEST_SWEEP) {
            self.texts.retain(|text| Arc::strong_count(text) > 1);
            self.sweep_at = self.texts.len() * 2;
        }
        self.texts.insert(text.clone());
    }

    /// Shares all that a workload is likely to have in common with others; not its uid and name.
    pub(crate) fn share_workload(&mut self, workload: &mut Workload) {
        let Workload {
            uid: _,
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
            &mut locality.region,
            &mut locality.zone,
            &mut locality.subzone,
        ] {
            self.share(text);
        }
        for gateway in [waypoint, network_gateway].into_iter().flatten() {
            self.share_gateway(gateway);
        }
        for membership in &mut *services {
            self.share(&mut membership.service.namespace);
            self.share(&mut membership.service.hostname);
        }
        for policy in &mut *authorization_policies {
            self.share(policy);
        }
        addresses.shrink_to_fit();
        services.shrink_to_fit();
        authorization_policies.shrink_to_fit();
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

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(interner.texts.len() <= SMALLEST_SWEEP);
    }
}
