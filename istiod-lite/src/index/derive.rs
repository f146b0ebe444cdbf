// SPDX-License-Identifier: Apache-2.0
//! What a subject comes to, from the facts as they are.

use bytes::Bytes;
use prost::Message;
use proto::{security, workload as wire};

mod backend_tls;
mod bind;
mod bypass;
mod entries;
mod routes;
mod telemetry;
mod traffic;
mod waypoint;

use super::{Derived, Index, Subject, networks, world::Inhabitants};
use crate::{
    catalogue::ResourceType,
    facts::{
        Labels, NamespacedName, mesh_config::Visibility, pod::Life, policy::Reach, waypoint::Choice,
    },
    status,
    translate::{
        bypass as bypass_policy,
        peer_authentication::{self, Parent, Requirement, STATIC_STRICT},
        ports,
        route::ParentKey,
        service,
        waypoint::{Addressed, Binding},
        workload,
    },
};

impl Index {
    pub(super) fn derive(&self, subject: &Subject) -> Derived {
        let derived = match subject {
            Subject::Pod(name) => self.derive_pod(name),
            Subject::Slice(name) => self.derive_slice(name),
            Subject::Service(name) => self.derive_service(subject, name),
            Subject::Entry(name) => self.derive_entry(subject, name),
            Subject::WorkloadEntry(name) => self.derive_workload_entry(name),
            Subject::Network(name) => self.derive_network(name),
            Subject::Policy(name) => self.derive_policy(name),
            Subject::Waypoint(name) => self.derive_waypoint(name),
            Subject::PeerAuthentication(name) => self.derive_peer_authentication(name),
            Subject::Route(id) => self.derive_route(id),
            Subject::Rule(name) => self.derive_rule(name),
            Subject::Plugin(name) => self.derive_plugin(name),
            Subject::Telemetry(name) => self.derive_telemetry(name),
            Subject::TlsPolicy(name) => self.derive_tls_policy(name),
            Subject::Authentication(name) => self.derive_authentication(name),
            Subject::ConnectionLogs(namespace) => self.derive_connection_logs(namespace),
            Subject::StaticStrict => Some(self.derive_static_strict()),
            Subject::OnlyThrough(waypoints) => self.derive_only_through(waypoints),
        };
        derived.unwrap_or_default()
    }

    fn derive_pod(&self, name: &NamespacedName) -> Option<Derived> {
        let here = self.world.inhabitants(&name.namespace)?;
        let pod = here.pods.get(&name.name)?;
        if pod.life == Life::Ended || pod.addresses.is_empty() {
            return None;
        }
        let mut gateways = Vec::new();
        let (own_gateway, waypoint) = match self.instance_of(&pod.labels, name, &mut gateways) {
            // A waypoint's own pods never go through a waypoint.
            Some(own) => (Some(own), Binding::Unbound),
            None => {
                let choice = Choice::read(&pod.labels);
                let binding = self.bind(&choice, name, Addressed::Workload, &mut gateways);
                (None, binding)
            }
        };
        let only_through = match own_gateway {
            Some(_) => None,
            None => self.only_through((name, pod), here, &mut gateways),
        };
        let mut policies = self.policies_of(&name.namespace, here, &pod.labels);
        policies.extend(only_through.as_ref().map(|waypoints| {
            bypass_policy::name(&self.mesh.root_namespace, waypoints).to_string()
        }));
        let services = here.services_of(&name.name, pod).into_iter();
        let services = services.map(|(service, facts)| {
            let service = NamespacedName::new(name.namespace.clone(), service.clone());
            let ports = ports::service_at_pod(facts, pod);
            (workload::service_key(&self.mesh, &service), ports)
        });
        let entries = self.entries_selecting(&name.namespace, here, &pod.labels);
        let entries = entries.map(|(key, entry)| (key, ports::entry_at_pod(entry, pod)));
        let message = workload::pod(
            &self.mesh,
            workload::PodInput {
                name,
                pod,
                network: self.network(),
                locality: self.world.nodes.get(&*pod.node),
                // A Kubernetes service never shares its name with an entry's host here.
                services: services.chain(entries).collect(),
                policies,
                waypoint,
                application_tunnel: own_gateway.and_then(|known| known.binding()),
            },
        );
        let message = self.with_network_gateway(message);
        Some(Derived {
            resources: vec![self.workload_resource(message)],
            gateways,
            only_through,
            ..Derived::default()
        })
    }

    fn derive_slice(&self, name: &NamespacedName) -> Option<Derived> {
        let here = self.world.inhabitants(&name.namespace)?;
        let slice = here.slices.get(&name.name)?;
        let service = here.services.get(slice.service.as_str())?;
        let messages = slice.endpoints.iter().map(|endpoint| {
            let input = workload::SliceInput {
                slice_name: name,
                slice,
                endpoint,
                service,
                network: self.network(),
            };
            self.workload_resource(workload::slice_endpoint(&self.mesh, input))
        });
        Some(Derived {
            resources: messages.collect(),
            ..Derived::default()
        })
    }

    fn derive_service(&self, subject: &Subject, name: &NamespacedName) -> Option<Derived> {
        let here = self.world.inhabitants(&name.namespace)?;
        let facts = here.services.get(&name.name)?;
        let mut gateways = Vec::new();
        let binding = self.bind_service(&facts.waypoint, name, Visibility::Public, &mut gateways);
        let input = service::Input {
            name,
            namespace: &here.namespace,
            network: self.network(),
            waypoint: &binding,
        };
        let mut message = service::kubernetes(&self.mesh, facts, input);
        let elsewhere = self.accounts_elsewhere(&name.namespace, here, &facts.selector);
        networks::add_names(&mut message, elsewhere);
        let ingress = facts.ingress.or(here.namespace.ingress);
        let bound = status::waypoint_bound(&binding, ingress, Addressed::Service);
        let key = workload::service_key(&self.mesh, name);
        let parent = ParentKey::Service(name.clone());
        Some(Derived {
            served: self.served(&parent, &message.hostname, &facts.ports, &binding),
            resources: vec![service_resource(key, message)],
            conditions: bound.into_iter().collect(),
            problems: self.shared_addresses(subject, "spec.clusterIPs", facts.vips.iter().copied()),
            gateways,
            ..Derived::default()
        })
    }

    fn derive_policy(&self, name: &NamespacedName) -> Option<Derived> {
        let policy = self
            .world
            .inhabitants(&name.namespace)?
            .policies
            .get(&name.name)?;
        let mut gateways = Vec::new();
        let targets = self.found(&policy.targets, &mut gateways);
        let stricter = policy.stricter.as_deref();
        let unasked = self.cannot_ask(policy);
        let at_waypoints =
            status::policies::waypoint_accepted(&targets, stricter, unasked.as_deref());
        let resources = policy.authorization.iter().map(|authorization| {
            (
                ResourceType::Authorization,
                name.to_string(),
                authorization.encode_to_vec().into(),
            )
        });
        Some(Derived {
            resources: resources.collect(),
            conditions: status::ztunnel_accepted(&policy.acceptance)
                .into_iter()
                .chain(at_waypoints)
                .collect(),
            gateways,
            ..Derived::default()
        })
    }

    fn derive_peer_authentication(&self, name: &NamespacedName) -> Option<Derived> {
        let here = self.world.inhabitants(&name.namespace)?;
        let peer = here.peers.get(&name.name)?;
        if peer.reach == Reach::All {
            return None;
        }
        let parent = self.parent(&name.namespace, here);
        let Requirement::ByPort(rules) = peer_authentication::requirement(Some(peer), parent)
        else {
            return None;
        };
        let key = peer_authentication::derived_name(name);
        let authorization = peer_authentication::authorization(&key, rules);
        Some(Derived {
            resources: vec![authorization_resource(&key, &authorization)],
            ..Derived::default()
        })
    }

    fn derive_static_strict(&self) -> Derived {
        if self.world.peer_authentications == 0 {
            return Derived::default();
        }
        let key = NamespacedName::new(self.mesh.root_namespace.as_str(), STATIC_STRICT);
        let rules = peer_authentication::static_strict();
        let authorization = peer_authentication::authorization(&key, rules);
        Derived {
            resources: vec![authorization_resource(&key, &authorization)],
            ..Derived::default()
        }
    }

    /// The policies that a workload names: those that select it, then what mutual TLS it requires.
    fn policies_of(&self, namespace: &str, here: &Inhabitants, labels: &Labels) -> Vec<String> {
        let root = &*self.mesh.root_namespace;
        let from = |namespace: &str, inhabitants: &Inhabitants| -> Vec<String> {
            inhabitants
                .policies_of(labels)
                .map(|policy| format!("{namespace}/{policy}"))
                .collect()
        };
        let mut names = from(namespace, here);
        if namespace != root
            && let Some(everywhere) = self.world.inhabitants(root)
        {
            names.extend(from(root, everywhere));
        }
        names.sort_unstable();
        names.dedup();
        let own = if namespace == root {
            None
        } else {
            here.peer_of(labels)
        };
        let parent = self.parent(namespace, here);
        match peer_authentication::requirement(own.map(|(_, peer)| peer), parent) {
            Requirement::None => {}
            Requirement::Strict => names.push(format!("{root}/{STATIC_STRICT}")),
            Requirement::ByPort(_) => {
                // Only a policy that selects the workload can tell ports apart.
                names.extend(own.map(|(peer, _)| {
                    let peer = NamespacedName::new(namespace, peer.clone());
                    peer_authentication::derived_name(&peer).to_string()
                }));
            }
        }
        names
    }

    fn parent(&self, namespace: &str, here: &Inhabitants) -> Parent {
        let root = &*self.mesh.root_namespace;
        let mesh = self
            .world
            .inhabitants(root)
            .and_then(Inhabitants::peer_of_all);
        let own = if namespace == root {
            None
        } else {
            here.peer_of_all()
        };
        peer_authentication::parent(mesh, own)
    }

    pub(super) fn workload_resource(
        &self,
        message: wire::Workload,
    ) -> (ResourceType, String, Bytes) {
        let uid = message.uid.clone();
        let body = wire::Address {
            r#type: Some(wire::address::Type::Workload(message)),
        };
        (ResourceType::Address, uid, body.encode_to_vec().into())
    }
}

fn service_resource(key: String, message: wire::Service) -> (ResourceType, String, Bytes) {
    let body = wire::Address {
        r#type: Some(wire::address::Type::Service(message)),
    };
    (ResourceType::Address, key, body.encode_to_vec().into())
}

fn authorization_resource(
    key: &NamespacedName,
    authorization: &security::Authorization,
) -> (ResourceType, String, Bytes) {
    (
        ResourceType::Authorization,
        key.to_string(),
        authorization.encode_to_vec().into(),
    )
}
