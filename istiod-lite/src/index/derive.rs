// SPDX-License-Identifier: Apache-2.0
//! What a subject comes to, from the facts as they are.

use bytes::Bytes;
use prost::Message;
use proto::{security, workload as wire};

use super::{Derived, Index, Subject, world::Inhabitants};
use crate::{
    catalogue::ResourceType,
    facts::{
        Labels, NamespacedName,
        namespace::Namespace,
        pod::{Life, Pod},
        policy::Reach,
        service::WaypointWish,
        waypoint::Choice,
    },
    status,
    translate::{
        peer_authentication::{self, Parent, Requirement, STATIC_STRICT},
        service,
        waypoint::{self, Addressed, Attacher, Binding, Known},
        workload,
    },
    wellknown,
};

impl Index {
    pub(super) fn derive(&self, subject: &Subject) -> Derived {
        let derived = match subject {
            Subject::Pod(name) => self.derive_pod(name),
            Subject::Slice(name) => self.derive_slice(name),
            Subject::Service(name) => self.derive_service(name),
            Subject::Policy(name) => self.derive_policy(name),
            Subject::PeerAuthentication(name) => self.derive_peer_authentication(name),
            Subject::StaticStrict => Some(self.derive_static_strict()),
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
        let instance_of = pod.labels.get(wellknown::GATEWAY_NAME).map(|gateway| {
            let gateway = NamespacedName::new(name.namespace.clone(), gateway.as_str());
            gateways.push(gateway.clone());
            gateway
        });
        let own_gateway = instance_of.and_then(|gateway| self.known_gateway(&gateway));
        // A waypoint's own pods never go through a waypoint.
        let waypoint = if own_gateway.is_some() {
            Binding::Unbound
        } else {
            let choice = Choice::read(&pod.labels);
            self.bind(&choice, name, Addressed::Workload, &mut gateways)
        };
        let services = here.services_of(&name.name, pod).into_iter();
        let message = workload::pod(
            &self.mesh,
            workload::PodInput {
                name,
                pod,
                network: self.network(),
                locality: self.world.nodes.get(&pod.node),
                services: services
                    .map(|(service, facts)| {
                        (
                            NamespacedName::new(name.namespace.clone(), service.clone()),
                            facts,
                        )
                    })
                    .collect(),
                policies: self.policies_of(name, here, pod),
                waypoint,
                application_tunnel: own_gateway.and_then(|known| known.binding()),
            },
        );
        let resources = vec![self.workload_resource(message)];
        Some(Derived {
            resources,
            gateways,
            condition: None,
        })
    }

    fn derive_slice(&self, name: &NamespacedName) -> Option<Derived> {
        let here = self.world.inhabitants(&name.namespace)?;
        let slice = here.slices.get(&name.name)?;
        let service = here.services.get(slice.service.as_str())?;
        let messages = slice.endpoints.iter().map(|endpoint| {
            let input = workload::EndpointInput {
                slice_name: name,
                slice,
                endpoint,
                service,
                network: self.network(),
            };
            self.workload_resource(workload::endpoint(&self.mesh, input))
        });
        Some(Derived {
            resources: messages.collect(),
            ..Derived::default()
        })
    }

    fn derive_service(&self, name: &NamespacedName) -> Option<Derived> {
        let here = self.world.inhabitants(&name.namespace)?;
        let facts = here.services.get(&name.name)?;
        let mut gateways = Vec::new();
        let binding = match &facts.waypoint {
            WaypointWish::Never => Binding::Unbound,
            WaypointWish::Labels(choice) => {
                self.bind(choice, name, Addressed::Service, &mut gateways)
            }
        };
        let message = service::translate(
            &self.mesh,
            service::Input {
                name,
                service: facts,
                namespace: &here.namespace,
                network: self.network(),
                waypoint: &binding,
            },
        );
        let ingress = facts.ingress.or(here.namespace.ingress);
        let body = wire::Address {
            r#type: Some(wire::address::Type::Service(message)),
        };
        let key = workload::service_key(&self.mesh, name);
        Some(Derived {
            resources: vec![(ResourceType::Address, key, body.encode_to_vec().into())],
            condition: status::waypoint_bound(&binding, ingress),
            gateways,
        })
    }

    fn derive_policy(&self, name: &NamespacedName) -> Option<Derived> {
        let policy = self
            .world
            .inhabitants(&name.namespace)?
            .policies
            .get(&name.name)?;
        let resources = policy.authorization.iter().map(|authorization| {
            (
                ResourceType::Authorization,
                name.to_string(),
                authorization.encode_to_vec().into(),
            )
        });
        Some(Derived {
            resources: resources.collect(),
            condition: status::ztunnel_accepted(&policy.acceptance),
            gateways: Vec::new(),
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

    /// The policies that a pod names: those that select it, then what mutual TLS it requires.
    fn policies_of(&self, name: &NamespacedName, here: &Inhabitants, pod: &Pod) -> Vec<String> {
        let root = &*self.mesh.root_namespace;
        let from = |namespace: &str, inhabitants: &Inhabitants| -> Vec<String> {
            inhabitants
                .policies_of(pod)
                .map(|policy| format!("{namespace}/{policy}"))
                .collect()
        };
        let mut names = from(&name.namespace, here);
        if *name.namespace != *root
            && let Some(everywhere) = self.world.inhabitants(root)
        {
            names.extend(from(root, everywhere));
        }
        names.sort_unstable();
        names.dedup();
        let own = if *name.namespace == *root {
            None
        } else {
            here.peer_of(pod)
        };
        let parent = self.parent(&name.namespace, here);
        match peer_authentication::requirement(own.map(|(_, peer)| peer), parent) {
            Requirement::None => {}
            Requirement::Strict => names.push(format!("{root}/{STATIC_STRICT}")),
            Requirement::ByPort(_) => {
                // Only a policy that selects the pod can tell ports apart.
                names.extend(own.map(|(peer, _)| {
                    let peer = NamespacedName::new(name.namespace.clone(), peer.clone());
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

    fn bind(
        &self,
        choice: &Choice,
        object: &NamespacedName,
        addressed: Addressed,
        gateways: &mut Vec<NamespacedName>,
    ) -> Binding {
        let nothing = Namespace::default();
        let namespace = self
            .world
            .inhabitants(&object.namespace)
            .map_or(&nothing, |inhabitants| &inhabitants.namespace);
        let Some(wish) = waypoint::wish(choice, &namespace.waypoint, &object.namespace) else {
            return Binding::Unbound;
        };
        gateways.push(wish.gateway.clone());
        let known = self.known_gateway(&wish.gateway);
        let labels = with_name(&namespace.labels, &object.namespace);
        let attacher = Attacher {
            namespace: &object.namespace,
            labels: &labels,
            addressed,
        };
        waypoint::bind(wish, known, attacher, self.network())
    }

    fn known_gateway(&self, name: &NamespacedName) -> Option<Known<'_>> {
        self.world
            .gateway(name)
            .map(|(gateway, class)| Known { gateway, class })
    }

    fn network(&self) -> &str {
        let root = self.world.inhabitants(&self.mesh.root_namespace);
        root.map_or("", |inhabitants| &inhabitants.namespace.network)
    }

    fn workload_resource(&self, message: wire::Workload) -> (ResourceType, String, Bytes) {
        let uid = message.uid.clone();
        let body = wire::Address {
            r#type: Some(wire::address::Type::Workload(message)),
        };
        (ResourceType::Address, uid, body.encode_to_vec().into())
    }
}

/// Kubernetes gives each namespace its name as a label; manifests may leave that out.
fn with_name(labels: &Labels, namespace: &str) -> Labels {
    let mut labels = labels.clone();
    labels
        .entry("kubernetes.io/metadata.name".to_owned())
        .or_insert_with(|| namespace.to_owned());
    labels
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
