// SPDX-License-Identifier: Apache-2.0
//! What Istio's own kinds come to at waypoints: VirtualServices by host, DestinationRules, plugins that can't be run.

use std::{collections::BTreeSet, sync::Arc};

use proto::waypoint as wire;

use super::{Derived, Index};
use crate::{
    facts::{
        Labels, NamespacedName,
        plugin::{Covers, Fails, Target},
        selects,
    },
    status::{self, Verdict},
    translate::{
        destination_rule::DestinationRule,
        route::{
            ParentKey, Route, RouteId, Rules, Unresolved, is_exported, names_of,
            serving::{Attached, Closed},
        },
        waypoint::Binding,
        workload::{self, WrittenIn},
    },
};

const NO_EFFECT: &str = "it names no hosts, or no gateway \"mesh\", and no other VirtualService leaves rules to it: it has no effect at waypoints";

impl Index {
    /// The VirtualServices for a host: of the service's namespace, and of its waypoints'.
    pub(super) fn virtuals_for(
        &self,
        host: &str,
        namespace: &str,
        binding: &Binding,
    ) -> Vec<Attached<'_>> {
        let counts = |of: &str| {
            of == namespace || binding.gateways().any(|gateway| *gateway.namespace == *of)
        };
        let seen = |id: &RouteId, route: &Route| {
            let Rules::Virtual(rules) = &route.rules else {
                return false;
            };
            let own = &id.name.namespace;
            let mut gateways = binding.gateways();
            gateways.any(|gateway| is_exported(&rules.export_to, own, &gateway.namespace))
        };
        let of_host = &self.world.routes_of_host;
        // One may name it in several ways.
        let ids: BTreeSet<&RouteId> = names_of(host)
            .filter_map(|name| of_host.get(&*name))
            .flatten()
            .filter(|id| counts(&id.name.namespace))
            .collect();
        let attached = ids.into_iter().filter_map(|id| {
            let route = self.route(id).filter(|route| seen(id, route))?;
            Some(Attached {
                id,
                route,
                parents: Vec::new(),
            })
        });
        attached.collect()
    }

    /// The DestinationRule for a host: of the first of these namespaces that has one which the first sees, there the one
    /// that names it the closest, and of those the oldest.
    fn rule_for(&self, host: &str, namespaces: &[&str]) -> Option<&DestinationRule> {
        let by_host = &self.world.rules_by_host;
        if by_host.is_empty() {
            return None;
        }
        let asking = namespaces.first().copied().unwrap_or_default();
        let root = self.mesh.root_namespace.as_str();
        let mut namespaces = namespaces.iter().copied().chain([root]);
        namespaces.find_map(|namespace| {
            names_of(host).find_map(|name| {
                let named = by_host.get(&*name)?.iter();
                let here = named.filter(|name| *name.namespace == *namespace);
                let rules = here.filter_map(|name| Some((self.rule(name)?, &name.name)));
                rules
                    .filter(|(rule, _)| is_exported(&rule.export_to, namespace, asking))
                    .min_by_key(|(rule, name)| (rule.created, *name))
                    .map(|(rule, _)| rule)
            })
        })
    }

    /// How a port of a host is spoken to; the last of the namespaces is the one that has the host.
    ///
    /// # Errors
    /// Why nothing may be sent there.
    pub(super) fn policy_for(
        &self,
        host: &str,
        namespaces: &[&str],
        port: u16,
    ) -> Result<Option<Box<wire::TrafficPolicy>>, Unresolved> {
        let owner = namespaces.last().copied().unwrap_or_default();
        let tls = self.tls_for(host, owner, port)?;
        let Some(rule) = self.rule_for(host, namespaces) else {
            let begun = tls.map(|tls| wire::TrafficPolicy {
                tls: Some(tls),
                ..wire::TrafficPolicy::default()
            });
            return Ok(begun.map(Box::new));
        };
        if !rule.closed.is_empty() {
            let words = format!(
                "the DestinationRule of {host} can't be honoured: {}",
                rule.closed
            );
            return Err(Unresolved::new(Unresolved::PROTOCOL, words));
        }
        let mut policy = rule.policy(port);
        if let Some(tls) = tls {
            policy.get_or_insert_default().tls = Some(tls);
        }
        policy.map(|policy| named(policy, host)).transpose()
    }

    /// The same for a part of a host.
    ///
    /// # Errors
    /// There is no such part, or nothing may be sent there.
    pub(super) fn subset_for(
        &self,
        (host, namespace): (&str, &Arc<str>),
        subset: &str,
        namespaces: &[&str],
        port: u16,
    ) -> Result<Box<wire::TrafficPolicy>, Unresolved> {
        self.policy_for(host, namespaces, port)?;
        let rule = self.rule_for(host, namespaces);
        let Some((labels, policy)) = rule.and_then(|rule| rule.subset(subset, port)) else {
            let words = format!("no DestinationRule of {host} has a subset {subset:?}");
            return Err(Unresolved::new(Unresolved::SUBSET, words));
        };
        let policy = wire::TrafficPolicy {
            tls: self.tls_for(host, namespace, port)?.or(policy.tls),
            members: Some(wire::Members {
                name: subset.to_owned(),
                workloads: self.members(host, namespace, labels),
            }),
            ..policy
        };
        named(policy, host)
    }

    /// The workloads behind a host that have these labels, by uid.
    fn members(&self, host: &str, namespace: &Arc<str>, labels: &Labels) -> Vec<String> {
        let Some(here) = self.world.inhabitants(namespace) else {
            return Vec::new();
        };
        let service = self.name_of_host(host);
        let service = service.filter(|service| service.namespace == *namespace);
        let service = service.and_then(|service| here.services.get(&service.name));
        let mut uids = Vec::new();
        let selector = match service {
            Some(service) => Some(&service.selector),
            None => {
                let claimants = self.claimants(host);
                let own = claimants.filter(|(name, _)| name.namespace == *namespace);
                let own = own.min_by_key(|(name, entry)| (entry.created, *name));
                own.map(|(name, entry)| {
                    // Endpoints that are written into it have their labels there.
                    let written = entry.endpoints.iter();
                    let written = written.filter(|endpoint| selects(labels, &endpoint.labels));
                    uids.extend(written.map(|endpoint| {
                        let within = WrittenIn::ServiceEntry(name);
                        workload::endpoint_uid(&self.mesh, within, &endpoint.address)
                    }));
                    &entry.selector
                })
            }
        };
        let Some(selector) = selector.filter(|selector| !selector.is_empty()) else {
            return uids;
        };
        let named = |name: &Arc<str>| NamespacedName::new(namespace.clone(), name.clone());
        let pods = here.selected_pods(selector);
        let pods = pods.filter(|name| {
            here.pods
                .get(*name)
                .is_some_and(|pod| selects(labels, &pod.labels))
        });
        uids.extend(pods.map(|name| workload::pod_uid(&self.mesh, &named(name))));
        for name in here.selected_workload_entries(selector) {
            if let Some(entry) = here.workload_entries.get(name)
                && selects(labels, &entry.endpoint.labels)
            {
                let own = named(name);
                let within = WrittenIn::WorkloadEntry(&own);
                uids.push(workload::endpoint_uid(
                    &self.mesh,
                    within,
                    &entry.endpoint.address,
                ));
            }
        }
        uids.sort_unstable();
        uids
    }

    /// What plugins refuse at a waypoint: of a service's traffic, or of that which is meant for no service.
    pub(super) fn closed_by_plugins(
        &self,
        parent: Option<&ParentKey>,
        waypoint: &NamespacedName,
    ) -> Vec<Closed> {
        let service = parent.map(|parent| match parent {
            ParentKey::Service(name) => Target::Service(name.clone()),
            ParentKey::Entry(name) => Target::Entry(name.clone()),
        });
        let known = self.world.gateway(waypoint);
        let class = known.map(|(known, _)| Target::Class(known.class.clone()));
        let gateway = Target::Gateway(waypoint.clone());
        let named = service.iter().chain([&gateway]).chain(&class);
        let named = named.filter_map(|target| self.world.plugins_by_target.get(target));
        let closed = named.flatten().filter_map(|name| {
            let plugin = self.world.inhabitants(&name.namespace)?.plugins.get(&name.name)?;
            (plugin.fails == Fails::Closed).then(|| Closed {
                kind: "WasmPlugin",
                name: name.clone(),
                why: format!("WasmPlugin {name} is not run, and its failStrategy lets nothing pass without it"),
                ports: plugin.ports.clone(),
                requests_only: plugin.covers == Covers::Requests,
            })
        });
        closed.collect()
    }

    pub(super) fn derive_rule(&self, name: &NamespacedName) -> Option<Derived> {
        let rule = self.rule(name)?;
        let condition = match (rule.closed.is_empty(), rule.notes.as_slice()) {
            (true, []) => status::waypoint_accepted(Verdict::True, "Accepted", String::new()),
            (true, notes) => {
                let words = crate::translate::route::said(notes);
                status::waypoint_accepted(Verdict::True, "PartiallyInvalid", words)
            }
            (false, _) => {
                status::waypoint_accepted(Verdict::False, "UnsupportedValue", rule.closed.clone())
            }
        };
        Some(Derived {
            conditions: vec![condition],
            ..Derived::default()
        })
    }

    pub(super) fn derive_plugin(&self, name: &NamespacedName) -> Option<Derived> {
        let plugin = self
            .world
            .inhabitants(&name.namespace)?
            .plugins
            .get(&name.name)?;
        let words = match (plugin.targets.is_empty(), plugin.fails) {
            (true, _) => {
                "it is for no waypoint and no service (spec.targetRefs), and has no effect"
            }
            (false, Fails::Closed) => {
                "plugins are not run: requests that it covers are answered 500, connections are reset (failStrategy FAIL_CLOSE)"
            }
            (false, Fails::Open) => {
                "plugins are not run: traffic passes without it (failStrategy FAIL_OPEN)"
            }
        };
        let condition =
            status::waypoint_accepted(Verdict::False, "UnsupportedValue", words.to_owned());
        Some(Derived {
            conditions: vec![condition],
            ..Derived::default()
        })
    }

    /// What the author of a VirtualService is told.
    pub(super) fn virtual_conditions(
        &self,
        id: &RouteId,
        unresolved: &[(String, Unresolved)],
    ) -> Option<status::Condition> {
        let route = self.route(id)?;
        let (broken, all) = route.broken();
        let faults = route.faults.iter().map(ToString::to_string);
        let lost = unresolved
            .iter()
            .map(|(field, why)| format!("{field}: {}", why.words));
        let words: Vec<String> = faults.chain(lost).collect();
        let said = crate::translate::route::said(&words);
        let idle = route.hosts.is_empty() && !self.world.delegating.contains_key(&id.name);
        Some(if words.is_empty() {
            let said = match idle {
                true => NO_EFFECT.to_owned(),
                false => said,
            };
            status::waypoint_accepted(Verdict::True, "Accepted", said)
        } else if broken > 0 && broken == all {
            status::waypoint_accepted(Verdict::False, "UnsupportedValue", said)
        } else {
            status::waypoint_accepted(Verdict::True, "PartiallyInvalid", said)
        })
    }
}

/// A policy whose TLS names the server, which is the host where it says nothing else.
///
/// # Errors
/// The host is none.
fn named(
    mut policy: wire::TrafficPolicy,
    host: &str,
) -> Result<Box<wire::TrafficPolicy>, Unresolved> {
    if let Some(tls) = &mut policy.tls
        && tls.server_name.is_empty()
    {
        if host.contains('*') {
            let words = format!(
                "the DestinationRule of {host} has to say in tls.sni which server TLS is begun with"
            );
            return Err(Unresolved::new(Unresolved::PROTOCOL, words));
        }
        tls.server_name = host.to_owned();
    }
    Ok(Box::new(policy))
}
