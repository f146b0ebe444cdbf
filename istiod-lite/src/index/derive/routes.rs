// SPDX-License-Identifier: Apache-2.0
//! What routes come to: the message of each service that a waypoint serves, and what their authors are told.

use bytes::Bytes;
use cluster::Kind;
use prost::Message as _;
use proto::waypoint as wire;

use super::{Derived, Index};
use crate::{
    catalogue::ResourceType,
    facts::{NamespacedName, Problem, mesh_config::Visibility, service::ServicePort},
    status::routes::{self, Found, ParentStatus},
    translate::{
        policy::TargetKey,
        route::{
            Carried, ParentKey, Reference, Route, RouteId, Unresolved, reachable,
            serving::{self, Attached, Resolver, Served},
        },
        waypoint::Binding,
        workload,
    },
};

impl Index {
    /// A route, as it was read.
    pub(in crate::index) fn route(&self, id: &RouteId) -> Option<&Route> {
        let here = self.world.inhabitants(&id.name.namespace)?;
        here.routes.get(&(id.kind, id.name.name.clone()))
    }

    /// The routes that are for a service.
    fn routes_for(&self, parent: &ParentKey) -> Vec<Attached<'_>> {
        let ids = self
            .world
            .routes_by_parent
            .get(parent)
            .into_iter()
            .flatten();
        let attached = ids.filter_map(|id| {
            let route = self.route(id)?;
            let parents = route.parents.iter();
            let parents = parents.filter(|one| one.object == *parent).collect();
            Some(Attached { id, route, parents })
        });
        attached.collect()
    }

    /// The message of a service for each waypoint that serves it: whose, under which name, and what it says.
    pub(super) fn served(
        &self,
        parent: &ParentKey,
        hostname: &str,
        ports: &[ServicePort],
        binding: &Binding,
    ) -> Vec<(ResourceType, NamespacedName, String, Bytes)> {
        let waypoints: Vec<_> = binding.gateways().collect();
        if waypoints.is_empty() {
            return Vec::new();
        }
        let namespace = &parent.name().namespace;
        let target = match parent {
            ParentKey::Service(name) => TargetKey::Service(name.clone()),
            ParentKey::Entry(name) => TargetKey::Entry(name.clone()),
        };
        let served = Served {
            namespace,
            waypoint: waypoints[0],
            hostname,
            ports,
            routes: &self.routes_for(parent),
            policies: self.policies_for(&target),
            token_rules: self.token_rules_for(&target),
            virtuals: &self.virtuals_for(hostname, namespace, binding),
        };
        let message = serving::service(served, self);
        let name = workload::host_key(namespace, hostname);
        let each = waypoints.into_iter().map(|waypoint| {
            let mut own = message.clone();
            own.telemetry = self.telemetry_for(waypoint, Some(&target));
            for closed in self.closed_by_plugins(Some(parent), waypoint) {
                closed.close(&mut own);
            }
            let of = ResourceType::WaypointService;
            (
                of,
                waypoint.clone(),
                name.clone(),
                own.encode_to_vec().into(),
            )
        });
        each.collect()
    }

    pub(super) fn derive_route(&self, id: &RouteId) -> Option<Derived> {
        let route = self.route(id)?;
        let targets = route.targets().filter_map(|(carried, target)| {
            let resolved = self.resolve(id, &target.reference, (None, carried));
            let why = resolved.err()?;
            Some((target.field.clone(), why))
        });
        let extensions = route.extensions().map(|(field, name)| {
            let words = format!("{name} is no extension that is known");
            (
                field.to_owned(),
                Unresolved::new(Unresolved::INVALID_KIND, words),
            )
        });
        let unresolved: Vec<_> = targets.chain(extensions).collect();
        let mut derived = Derived::default();
        if id.kind == Kind::VirtualService {
            derived.conditions = self
                .virtual_conditions(id, &unresolved)
                .into_iter()
                .collect();
        }
        if let Some(beyond @ 1..) = route.parents.len().checked_sub(routes::MAX_PARENTS) {
            let words =
                format!("has so many entries that a status has no room for {beyond} of them");
            derived
                .problems
                .push(Problem::new("spec.parentRefs", words));
        }
        for parent in &route.parents {
            let attached = self.routes_for(&parent.object);
            let found = self.parent_service(&parent.object, &mut derived.gateways);
            let found = found.as_ref().map(|(ports, binding)| Found {
                namespace: &parent.object.name().namespace,
                ports,
                binding,
                routes: &attached,
            });
            derived.parents.push(ParentStatus {
                reference: parent.reference.clone(),
                conditions: routes::conditions(id, route, parent, found, &unresolved),
            });
        }
        Some(derived)
    }

    /// The ports of a service, and its waypoint; nothing where it isn't there or nobody sees it.
    pub(super) fn parent_service(
        &self,
        parent: &ParentKey,
        gateways: &mut Vec<NamespacedName>,
    ) -> Option<(&[ServicePort], Binding)> {
        let name = parent.name();
        let here = self.world.inhabitants(&name.namespace)?;
        let (ports, wish, visibility) = match parent {
            ParentKey::Service(_) => {
                let service = here.services.get(&name.name)?;
                (&service.ports, &service.waypoint, Visibility::Public)
            }
            ParentKey::Entry(_) => {
                let entry = here.entries.get(&name.name)?;
                (
                    &entry.ports,
                    &entry.waypoint,
                    self.visibility(&name.namespace),
                )
            }
        };
        if visibility == Visibility::None {
            return None;
        }
        Some((ports, self.bind_service(wish, name, visibility, gateways)))
    }
}

impl Resolver for Index {
    fn policy(
        &self,
        served: &Served<'_>,
        port: u16,
    ) -> Result<Option<Box<wire::TrafficPolicy>>, Unresolved> {
        let namespaces = [&*served.waypoint.namespace, served.namespace];
        self.policy_for(served.hostname, &namespaces, port)
    }

    fn resolve(
        &self,
        route: &RouteId,
        reference: &Reference,
        (asked, carried): (Option<u16>, Carried),
    ) -> Result<wire::Destination, Unresolved> {
        let missing = |words: String| Unresolved::new(Unresolved::NOT_FOUND, words);
        let mut part = None;
        let (namespace, hostname, ports, port) = match reference {
            Reference::Invalid(why) => return Err(why.clone()),
            Reference::Service { name, port } => {
                let here = self.world.inhabitants(&name.namespace);
                let service = here.and_then(|here| here.services.get(&name.name));
                let service =
                    service.ok_or_else(|| missing(format!("there is no Service {name}")))?;
                let hostname = self.mesh.hostname(&name.namespace, &name.name);
                (&name.namespace, hostname, &service.ports, *port)
            }
            Reference::Host { host, port } => {
                let meant = self.meant(host, &route.name.namespace);
                let (namespace, ports) = meant.ok_or_else(|| {
                    missing(format!("no Service or ServiceEntry has the host {host}"))
                })?;
                (namespace, host.to_string(), ports, *port)
            }
            Reference::Named { host, port, subset } => {
                let meant = self.meant(host, &route.name.namespace);
                let (namespace, ports) = meant.ok_or_else(|| {
                    missing(format!("no Service or ServiceEntry has the host {host}"))
                })?;
                part = subset.as_deref();
                let mut known = reachable(ports).map(|(port, _)| port.port);
                let only = known.next().filter(|_| known.next().is_none());
                // Who is asked about no port in particular wants to know whether there is any.
                let any = || match asked {
                    Some(asked) => Some(asked),
                    None => reachable(ports).next().map(|(port, _)| port.port),
                };
                let port = port.or(only).or_else(any).unwrap_or_default();
                (namespace, host.to_string(), ports, port)
            }
        };
        let found = reachable(ports).find(|(known, _)| known.port == port);
        let Some((_, speaks)) = found else {
            let words = format!("{hostname} has no port {port} that is reached over TCP");
            return Err(missing(words));
        };
        let namespaces = [&*route.name.namespace, &**namespace];
        let traffic_policy = match part {
            Some(part) => Some(self.subset_for((&hostname, namespace), part, &namespaces, port)?),
            None => self.policy_for(&hostname, &namespaces, port)?,
        };
        let begins_tls = traffic_policy
            .as_ref()
            .is_some_and(|policy| policy.tls.is_some());
        let protocol = match (carried, speaks) {
            (Carried::Requests, wire::Protocol::Tls) if !begins_tls => {
                let words = format!(
                    "port {port} of {hostname} expects TLS, which waypoints begin only where a DestinationRule says so"
                );
                return Err(Unresolved::new(Unresolved::PROTOCOL, words));
            }
            // Inside of it is spoken what the client speaks.
            (Carried::Requests, wire::Protocol::Tls) => wire::Protocol::Detect,
            (_, speaks) => speaks,
        };
        Ok(wire::Destination {
            namespace: namespace.to_string(),
            hostname,
            port: port.into(),
            protocol: protocol.into(),
            traffic_policy,
        })
    }
}
