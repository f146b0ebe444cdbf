// SPDX-License-Identifier: Apache-2.0
//! Brings the control plane's pushes into what is known here.
//!
//! In: delta responses, one type each. Out: an updated state, and rejections that name resource and field; what is
//! refused leaves what was known of it as it was.

use std::collections::HashMap;
use std::sync::Arc;

use mesh::{AddressBatch, NamespacedHostname, PolicyBatch, Update};
use proto::{
    ADDRESS_TYPE_URL, AUTHORIZATION_TYPE_URL, WAYPOINT_SERVICE_TYPE_URL, WAYPOINT_TYPE_URL,
};
use tracing::warn;
use xds::{Handler, Rejection, Resource};

use crate::route::Service;
use crate::settings::Settings;
use crate::state::State;
use crate::token::TokenRule;

/// So many resources are decoded and taken in together: connections read what is known in between.
const AT_ONCE: usize = 1024;

/// How many refusals of one response are told one by one.
const TOLD: usize = 20;

/// Workloads and services of the mesh.
pub struct Addresses(pub Arc<State>);

/// L4 policies.
pub struct Authorizations(pub Arc<State>);

/// The services that this waypoint serves.
pub struct Services {
    state: Arc<State>,
    /// What each resource was last known to be about.
    named: HashMap<Arc<str>, NamespacedHostname>,
}

impl Services {
    pub fn new(state: Arc<State>) -> Self {
        Self {
            state,
            named: HashMap::new(),
        }
    }
}

/// What holds for all of them. There is one such resource: the control plane tells nobody of another's.
pub struct Whole(pub Arc<State>);

impl Handler for Whole {
    fn type_url(&self) -> &'static str {
        WAYPOINT_TYPE_URL
    }

    fn apply(&mut self, resources: Vec<Resource>, removed: Vec<String>) -> Vec<Rejection> {
        let mut rejections = Vec::new();
        if resources.is_empty() && !removed.is_empty() {
            self.0.update_settings(None);
        }
        for resource in resources {
            match settings(&resource) {
                Ok(settings) => self.0.update_settings(Some(settings)),
                Err(reason) => rejections.push(Rejection {
                    name: resource.name.to_string(),
                    reason,
                }),
            }
        }
        told(rejections)
    }
}

fn settings(resource: &Resource) -> Result<Settings, String> {
    let message = <proto::waypoint::Waypoint as prost::Message>::decode(&*resource.body);
    let message = message.map_err(|error| format!("Waypoint: {error}"))?;
    let settings = Settings::compile(&message).map_err(|error| {
        let (namespace, name) = (&message.namespace, &message.name);
        format!("Waypoint {namespace}/{name}: {error}")
    })?;
    tell_unused_keys(&settings.tokens);
    Ok(settings)
}

fn tell_unused_keys(rules: &[TokenRule]) {
    for problem in rules.iter().flat_map(TokenRule::problems) {
        warn!(problem, "keys of an issuer are not used");
    }
}

impl Handler for Addresses {
    fn type_url(&self) -> &'static str {
        ADDRESS_TYPE_URL
    }

    fn apply(&mut self, resources: Vec<Resource>, removed: Vec<String>) -> Vec<Rejection> {
        let mut rejections = Vec::new();
        for some in resources.chunks(AT_ONCE) {
            let (batch, refused) = AddressBatch::decode(updates(some), Vec::new());
            self.0.update_mesh(|mesh| mesh.apply_addresses(batch));
            rejections.extend(refused);
        }
        if !removed.is_empty() {
            let (batch, _) = AddressBatch::decode([], removed);
            self.0.update_mesh(|mesh| mesh.apply_addresses(batch));
        }
        told(rejections.into_iter().map(rejection).collect())
    }
}

impl Handler for Authorizations {
    fn type_url(&self) -> &'static str {
        AUTHORIZATION_TYPE_URL
    }

    fn apply(&mut self, resources: Vec<Resource>, removed: Vec<String>) -> Vec<Rejection> {
        let (batch, refused) = PolicyBatch::decode(updates(&resources), removed);
        self.0.update_mesh(|mesh| mesh.apply_policies(batch));
        told(refused.into_iter().map(rejection).collect())
    }
}

impl Handler for Services {
    fn type_url(&self) -> &'static str {
        WAYPOINT_SERVICE_TYPE_URL
    }

    fn apply(&mut self, resources: Vec<Resource>, removed: Vec<String>) -> Vec<Rejection> {
        let (mut updated, mut rejections) = (Vec::new(), Vec::new());
        for resource in resources {
            match compile(&resource) {
                Ok(service) => {
                    let name = NamespacedHostname {
                        namespace: service.namespace.clone(),
                        hostname: service.hostname.clone(),
                    };
                    self.named.insert(resource.name, name.clone());
                    updated.push((name, service));
                }
                Err(reason) => rejections.push(Rejection {
                    name: resource.name.to_string(),
                    reason,
                }),
            }
        }
        let removed = removed.iter();
        let removed: Vec<_> = removed
            .filter_map(|name| self.named.remove(name.as_str()))
            .collect();
        self.state.update_served(updated, &removed);
        told(rejections)
    }
}

fn compile(resource: &Resource) -> Result<Service, String> {
    let message = <proto::waypoint::Service as prost::Message>::decode(&*resource.body);
    let message = message.map_err(|error| format!("Service: {error}"))?;
    let compiled = Service::compile(&message);
    let service = compiled.map_err(|error| {
        let (namespace, hostname) = (&message.namespace, &message.hostname);
        format!("Service {namespace}/{hostname}: {error}")
    })?;
    for (rule, problem) in service.problems() {
        warn!(%rule, problem, "a rule can't be honoured: what it matches is answered 500");
    }
    tell_unused_keys(service.tokens());
    Ok(service)
}

fn updates(resources: &[Resource]) -> impl Iterator<Item = Update<'_>> {
    resources.iter().map(|resource| Update {
        name: &resource.name,
        body: &resource.body,
    })
}

fn rejection(rejection: mesh::Rejection) -> Rejection {
    Rejection {
        name: rejection.name,
        reason: rejection.reason,
    }
}

fn told(rejections: Vec<Rejection>) -> Vec<Rejection> {
    for Rejection { name, reason } in rejections.iter().take(TOLD) {
        warn!(
            resource = name,
            reason, "resource of the control plane rejected"
        );
    }
    if let Some(more @ 1..) = rejections.len().checked_sub(TOLD) {
        warn!(more, "resources of the control plane rejected");
    }
    rejections
}
