// SPDX-License-Identifier: Apache-2.0
//! Which waypoint a subject gets, noting each Gateway that was looked at.

use super::Index;
use crate::{
    facts::{
        Labels, NamespacedName, mesh_config::Visibility, namespace::Namespace,
        service::WaypointWish, waypoint::Choice,
    },
    index::hosts::with_name,
    translate::waypoint::{self, Addressed, Attacher, Binding, Known},
    wellknown,
};

impl Index {
    /// The waypoint of a service, and the one that takes a share of its connections.
    pub(super) fn bind_service(
        &self,
        wish: &WaypointWish,
        object: &NamespacedName,
        visibility: Visibility,
        gateways: &mut Vec<NamespacedName>,
    ) -> Binding {
        let WaypointWish::Labels { choice, canary } = wish else {
            return Binding::Unbound;
        };
        let seen = Seen {
            addressed: Addressed::Service,
            visibility,
        };
        let binding = self.bind_seen(choice, object, seen, gateways);
        let inherited = self.namespace_of(object).and_then(|n| n.canary.as_ref());
        let Some(wanted) = waypoint::canary((choice, canary.as_ref()), inherited) else {
            return binding;
        };
        let gateway = wanted.gateway(&object.namespace);
        let known = self.known_gateway(&gateway);
        gateways.push(gateway);
        let labels = self.labels_of_namespace(object);
        let attacher = seen.attacher(object, &labels);
        waypoint::share(binding, wanted, known, attacher, self.network())
    }

    /// The waypoint of a subject that all clients see.
    pub(super) fn bind(
        &self,
        choice: &Choice,
        object: &NamespacedName,
        addressed: Addressed,
        gateways: &mut Vec<NamespacedName>,
    ) -> Binding {
        let seen = Seen {
            addressed,
            visibility: Visibility::Public,
        };
        self.bind_seen(choice, object, seen, gateways)
    }

    fn bind_seen(
        &self,
        choice: &Choice,
        object: &NamespacedName,
        seen: Seen,
        gateways: &mut Vec<NamespacedName>,
    ) -> Binding {
        let nothing = Choice::Unset;
        let inherited = self.namespace_of(object).map_or(&nothing, |n| &n.waypoint);
        let Some(wish) = waypoint::wish(choice, inherited, &object.namespace) else {
            return Binding::Unbound;
        };
        gateways.push(wish.gateway.clone());
        let known = self.known_gateway(&wish.gateway);
        let labels = self.labels_of_namespace(object);
        let attacher = seen.attacher(object, &labels);
        waypoint::bind(wish, known, attacher, self.network())
    }

    /// The Gateway that a workload with these labels is an instance of, if there is such a one.
    pub(super) fn instance_of(
        &self,
        labels: &Labels,
        object: &NamespacedName,
        gateways: &mut Vec<NamespacedName>,
    ) -> Option<Known<'_>> {
        let gateway = labels.get(wellknown::GATEWAY_NAME)?;
        let gateway = NamespacedName::new(object.namespace.clone(), gateway.as_str());
        gateways.push(gateway.clone());
        self.known_gateway(&gateway)
    }

    fn known_gateway(&self, name: &NamespacedName) -> Option<Known<'_>> {
        self.world
            .gateway(name)
            .map(|(gateway, class)| Known { gateway, class })
    }

    fn namespace_of(&self, object: &NamespacedName) -> Option<&Namespace> {
        let here = self.world.inhabitants(&object.namespace)?;
        Some(&here.namespace)
    }

    fn labels_of_namespace(&self, object: &NamespacedName) -> Labels {
        let nothing = Namespace::default();
        let namespace = self.namespace_of(object).unwrap_or(&nothing);
        with_name(namespace, &object.namespace)
    }
}

/// How a subject is addressed, and by whom.
#[derive(Clone, Copy)]
struct Seen {
    addressed: Addressed,
    visibility: Visibility,
}

impl Seen {
    fn attacher<'a>(self, object: &'a NamespacedName, labels: &'a Labels) -> Attacher<'a> {
        Attacher {
            namespace: &object.namespace,
            labels,
            addressed: self.addressed,
            visibility: self.visibility,
        }
    }
}
