// SPDX-License-Identifier: Apache-2.0
//! Which pods refuse what did not come through their waypoint, and who may come at all.

use std::{collections::BTreeSet, sync::Arc};

use super::{Addressed, Choice, Derived, Index, Life, authorization_resource};
use crate::{
    facts::{
        Labels, NamespacedName,
        pod::Pod,
        service::{Service, WaypointWish},
        waypoint::Bypass,
    },
    index::world::Inhabitants,
    translate::{bypass, waypoint::Binding},
    wellknown,
};

impl Index {
    /// The waypoints that alone may send to a pod; none where others may as well, or where it has no waypoint that
    /// anybody could go around.
    pub(super) fn only_through(
        &self,
        (name, pod): (&NamespacedName, &Pod),
        here: &Inhabitants,
        gateways: &mut Vec<NamespacedName>,
    ) -> Option<Arc<[NamespacedName]>> {
        let services = here.services_of(&name.name, pod);
        let root = self.world.inhabitants(&self.mesh.root_namespace);
        let word = Bypass::of_pod(
            pod.bypass,
            services.values().map(|service| service.bypass),
            here.namespace.bypass,
            root.and_then(|root| root.namespace.bypass),
        );
        if word == Bypass::Open {
            return None;
        }
        let choice = Choice::read(&pod.labels);
        let own = self.bind(&choice, name, Addressed::Workload, gateways);
        let mut waypoints: BTreeSet<NamespacedName> = asked_for(&own).cloned().collect();
        let services = services.into_iter();
        let of_services = services.map(|(service, Service { waypoint, .. })| (service, waypoint));
        let entries = here.entries_selecting(&pod.labels);
        let of_entries = entries.map(|(entry, facts)| (entry, &facts.waypoint));
        let visible = self.visibility(&name.namespace);
        let wishes: Vec<(&Arc<str>, &WaypointWish)> = of_services.chain(of_entries).collect();
        for (object, wish) in wishes {
            let object = NamespacedName::new(name.namespace.clone(), object.clone());
            let binding = self.bind_service(wish, &object, visible, gateways);
            waypoints.extend(asked_for(&binding).cloned());
        }
        (!waypoints.is_empty()).then(|| waypoints.into_iter().collect())
    }

    /// The policy that keeps all others out, while any pod asks for it.
    pub(super) fn derive_only_through(&self, waypoints: &Arc<[NamespacedName]>) -> Option<Derived> {
        self.only_through_demanded.get(waypoints)?;
        let key = bypass::name(&self.mesh.root_namespace, waypoints);
        let accounts: BTreeSet<(&str, &str)> = waypoints
            .iter()
            .flat_map(|waypoint| self.accounts_of(waypoint))
            .collect();
        let authorization = bypass::authorization(&self.mesh, &key, &accounts);
        Some(Derived {
            resources: vec![authorization_resource(&key, &authorization)],
            gateways: waypoints.to_vec(),
            ..Derived::default()
        })
    }

    /// The service accounts of a Gateway's pods, each with its namespace.
    fn accounts_of(&self, gateway: &NamespacedName) -> Vec<(&str, &str)> {
        let Some((namespace, here)) = self.world.namespaces.get_key_value(&gateway.namespace)
        else {
            return Vec::new();
        };
        let label = (wellknown::GATEWAY_NAME.to_owned(), gateway.name.to_string());
        let selector = Labels::from([label]);
        let pods = here.selected_pods(&selector);
        let live = pods
            .filter_map(|pod| here.pods.get(pod))
            .filter(|pod| pod.life == Life::Live);
        live.map(|pod| (&**namespace, &*pod.service_account))
            .collect()
    }
}

/// The Gateways that a binding names, whether or not they serve yet: what is to be judged by one that is not there comes
/// from nobody.
fn asked_for(binding: &Binding) -> impl Iterator<Item = &NamespacedName> {
    let refused = match binding {
        Binding::Refused { gateway, .. } => Some(gateway),
        Binding::Unbound | Binding::Bound { .. } => None,
    };
    refused.into_iter().chain(binding.gateways())
}
