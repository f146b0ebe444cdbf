// SPDX-License-Identifier: Apache-2.0
//! What a waypoint is told of all that it serves, and what the authors of its policies are told.

use prost::Message as _;
use proto::waypoint as wire;

use super::{Derived, Index};
use crate::{
    catalogue::ResourceType,
    facts::NamespacedName,
    facts::{Problem, gateway::Readiness},
    status::{
        self, Verdict,
        policies::{self, Found},
    },
    translate::{
        policy::{Policy, Target, TargetKey},
        route::{ParentKey, serving::Closed},
        waypoint::Binding,
    },
};

impl Index {
    /// The policies that are for something, by name.
    pub(super) fn policies_for(&self, target: &TargetKey) -> Vec<wire::Policy> {
        let names = self.world.policies_by_target.get(target);
        let messages = names.into_iter().flatten().filter_map(|name| {
            let here = self.world.inhabitants(&name.namespace)?;
            here.policies.get(&name.name)?.for_waypoints.clone()
        });
        messages.collect()
    }

    /// The rules of tokens that are for something, by the names of their objects.
    pub(super) fn token_rules_for(&self, target: &TargetKey) -> Vec<wire::TokenRule> {
        let names = self.world.authentications_by_target.get(target);
        let rules = names.into_iter().flatten().filter_map(|name| {
            let here = self.world.inhabitants(&name.namespace)?;
            Some(&here.authentications.get(&name.name)?.rules)
        });
        let told = rules.flatten().map(|rule| {
            let mut told = rule.told.clone();
            if let (Some(source), true) = (&rule.keys_from, told.no_keys.is_empty()) {
                match self.world.key_sets.get(source) {
                    Some(Ok(keys)) => told.keys.clone_from(keys),
                    Some(Err(reason)) => told.no_keys.clone_from(reason),
                    None => told.no_keys = format!("{source}: not fetched yet"),
                }
            }
            told
        });
        told.collect()
    }

    /// What holds for all that a waypoint serves.
    pub(super) fn derive_waypoint(&self, name: &NamespacedName) -> Option<Derived> {
        let (gateway, _) = self.world.gateway(name)?;
        let mut policies = self.policies_for(&TargetKey::Gateway(name.clone()));
        policies.extend(self.policies_for(&TargetKey::Class(gateway.class.clone())));
        // One that names both its Gateway and its class counts once.
        policies.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        policies.dedup();
        let mut token_rules = self.token_rules_for(&TargetKey::Gateway(name.clone()));
        token_rules.extend(self.token_rules_for(&TargetKey::Class(gateway.class.clone())));
        let closures = self.closed_by_plugins(None, name).into_iter();
        let config = &self.world.mesh_config;
        let own = std::iter::once(self.mesh.trust_domain.as_str());
        let aliases = config.trust_domain_aliases.iter().map(String::as_str);
        let message = wire::Waypoint {
            namespace: name.namespace.to_string(),
            name: name.name.to_string(),
            policies,
            path_normalization: config.path_normalization.into(),
            trusted_hops: config.trusted_hops,
            trust_domains: own.chain(aliases).map(str::to_owned).collect(),
            authorizers: config.authorizers().collect(),
            explain: gateway.explains,
            token_rules,
            closures: closures.map(Closed::message).collect(),
            telemetry: self.telemetry_for(name, None),
        };
        Some(Derived {
            served: vec![(
                ResourceType::Waypoint,
                name.clone(),
                name.to_string(),
                message.encode_to_vec().into(),
            )],
            ..Derived::default()
        })
    }

    /// Why the authorizer that a policy names can't be asked.
    pub(super) fn cannot_ask(&self, policy: &Policy) -> Option<String> {
        let told = policy.for_waypoints.as_ref()?;
        if told.action() != wire::PolicyAction::Custom {
            return None;
        }
        let why = self.world.mesh_config.cannot_ask(&told.authorizer)?;
        Some(format!(
            "provider {:?} {why}; what the rules match is denied",
            told.authorizer
        ))
    }

    /// What the author of a RequestAuthentication is told.
    pub(super) fn derive_authentication(&self, name: &NamespacedName) -> Option<Derived> {
        let here = self.world.inhabitants(&name.namespace)?;
        let written = here.authentications.get(&name.name)?;
        let mut gateways = Vec::new();
        let targets = self.found(&written.targets, &mut gateways);
        let said: Vec<String> = written.faults.iter().map(Problem::to_string).collect();
        let said = Some(said.join("; ")).filter(|said| !said.is_empty());
        let condition = match targets.as_slice() {
            [] => Some(status::waypoint_accepted(
                Verdict::False,
                "UnsupportedValue",
                said.unwrap_or_default(),
            )),
            targets => policies::waypoint_accepted(targets, said.as_deref(), None),
        };
        Some(Derived {
            conditions: condition.into_iter().collect(),
            gateways,
            ..Derived::default()
        })
    }

    /// What becomes of each of an object's references.
    pub(super) fn found(
        &self,
        targets: &[Target],
        gateways: &mut Vec<NamespacedName>,
    ) -> Vec<policies::Target> {
        let each = targets.iter().map(|target| policies::Target {
            words: target.words.clone(),
            found: match &target.key {
                Ok(key) => self.find_target(key, gateways),
                Err(reason) => Found::Invalid(reason.clone()),
            },
        });
        each.collect()
    }

    fn find_target(&self, key: &TargetKey, gateways: &mut Vec<NamespacedName>) -> Found {
        let parent = match key {
            TargetKey::Class(name) if self.world.classes.contains_key(name) => {
                return Found::Bound(name.clone());
            }
            // Gateways that name the class are served by it even where its object is missing.
            TargetKey::Class(name) if self.world.gateways_by_class.contains_key(name) => {
                return Found::Bound(name.clone());
            }
            TargetKey::Class(_) => return Found::Missing,
            TargetKey::Gateway(name) => {
                gateways.push(name.clone());
                return match self.world.gateway(name) {
                    Some((gateway, _)) if gateway.readiness == Readiness::Ready => {
                        Found::Bound(name.to_string())
                    }
                    _ => Found::Missing,
                };
            }
            TargetKey::Service(name) => ParentKey::Service(name.clone()),
            TargetKey::Entry(name) => ParentKey::Entry(name.clone()),
        };
        match self.parent_service(&parent, gateways) {
            None => Found::Missing,
            Some((_, Binding::Bound { gateway, .. })) => Found::Bound(gateway.to_string()),
            Some((_, Binding::Unbound | Binding::Refused { .. })) => Found::NoWaypoint,
        }
    }
}
