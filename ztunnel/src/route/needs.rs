// SPDX-License-Identifier: Apache-2.0
//! What has to be known before a connection can be decided on, where the control plane tells only what it is asked for.
//!
//! In: what the mesh holds at this moment, and the connection. Out: keys, as the control plane understands them. What an
//! answer brings may need more: a service its waypoint, a waypoint the gateway to its network; so it is asked until
//! nothing is missing.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use hbone::wire::Authority;
use mesh::service::Mode;
use mesh::{Found, GatewayAddress, GatewayDestination, Store, Workload};

use super::{Outbound, canonical};

/// Keys, and for each whether the mesh holds something under it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Needs(BTreeMap<String, Held>);

/// Whether the mesh holds something under a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// It does, and hears of changes.
    Something,
    /// It does not: nobody may have said so yet, or there is nothing.
    Nothing,
}

impl Needs {
    /// The keys, each once.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Held)> {
        self.0.iter().map(|(key, held)| (&**key, *held))
    }

    /// What it takes to know whether a peer is a waypoint of a pod and may speak for others.
    pub fn vouching(&mut self, store: &Store, local: &Workload, peer: IpAddr, network: &str) {
        self.address(store, network, peer.to_canonical());
        for service in local.services.iter().map(|membership| &membership.service) {
            let held = store.service(&service.namespace, &service.hostname);
            self.add(service.to_string(), held.is_some());
            for waypoint in held.into_iter().flat_map(|service| service.waypoints()) {
                self.once(store, waypoint, network, None);
            }
        }
        if let Some(waypoint) = &local.waypoint {
            self.once(store, waypoint, network, None);
        }
    }

    fn add(&mut self, key: String, holds: bool) {
        let held = if holds {
            Held::Something
        } else {
            Held::Nothing
        };
        self.0.insert(key, held);
    }

    fn address(&mut self, store: &Store, network: &str, ip: IpAddr) {
        let holds = store.find(network, ip, None).is_some();
        self.add(format!("{network}/{ip}"), holds);
    }

    /// A waypoint or gateway, and the gateways that lead to where it is. Where several have its address, the client's
    /// namespace decides, as it does for the connection.
    fn reference(
        &mut self,
        store: &Store,
        reference: &GatewayAddress,
        network: &str,
        client: Option<&str>,
    ) {
        match &reference.destination {
            GatewayDestination::Hostname(host) => {
                let holds = store.gateway(&reference.destination, client).is_some();
                self.add(host.to_string(), holds);
            }
            GatewayDestination::Address(at) => self.address(store, &at.network, at.address),
        }
        match store.gateway(&reference.destination, client) {
            Some(Found::Service(service)) => {
                self.endpoints(store, store.endpoints(&service), network, client)
            }
            Some(Found::Workload(workload)) => self.endpoints(store, &[workload], network, client),
            None => {}
        }
    }

    /// The gateways to endpoints on other networks.
    fn endpoints(
        &mut self,
        store: &Store,
        endpoints: &[Arc<Workload>],
        network: &str,
        client: Option<&str>,
    ) {
        let elsewhere = endpoints
            .iter()
            .filter(|endpoint| *endpoint.network != *network);
        for gateway in elsewhere.filter_map(|endpoint| endpoint.network_gateway.as_ref()) {
            self.once(store, gateway, network, client);
        }
    }

    /// Many share one waypoint or gateway, and one that leads through itself leads nowhere.
    fn once(
        &mut self,
        store: &Store,
        reference: &GatewayAddress,
        network: &str,
        client: Option<&str>,
    ) {
        let known = match &reference.destination {
            GatewayDestination::Hostname(host) => self.0.contains_key(&host.to_string()),
            GatewayDestination::Address(at) => self
                .0
                .contains_key(&format!("{}/{}", at.network, at.address)),
        };
        if !known {
            self.reference(store, reference, network, client);
        }
    }
}

/// What a connection that a pod opens needs.
pub fn outbound(store: &Store, connection: &Outbound<'_>) -> Needs {
    let mut needs = Needs::default();
    let source = connection.source;
    let ip = canonical(connection.destination).ip();
    let client = Some(&*source.namespace);
    needs.address(store, connection.network, ip);
    needs.address(store, &source.network, ip);
    let meant = store.find(connection.network, ip, client);
    if let Some(Found::Service(service)) = &meant {
        let mut waypoints = service.waypoints().peekable();
        if waypoints.peek().is_some() {
            waypoints
                .for_each(|waypoint| needs.reference(store, waypoint, &source.network, client));
            return needs;
        }
    }
    let endpoints = match store.service_by_vip(&source.network, ip, client) {
        Some(service) if service.load_balancer.mode == Mode::Passthrough => &[],
        Some(service) => store.endpoints(service),
        None => store
            .workload_by_ip(&source.network, ip)
            .map_or(&[][..], std::slice::from_ref),
    };
    needs.endpoints(store, endpoints, &source.network, client);
    if !matches!(meant, Some(Found::Service(_))) {
        // Addressed as workloads, they take their own waypoints.
        for waypoint in endpoints
            .iter()
            .filter_map(|endpoint| endpoint.waypoint.as_ref())
        {
            needs.once(store, waypoint, &source.network, client);
        }
    }
    needs
}

/// What a connection that arrives in a tunnel needs: nothing, if it asks for where the tunnel ends.
pub fn inbound(
    store: &Store,
    local: &Workload,
    reached: IpAddr,
    network: &str,
    authority: &Authority,
) -> Needs {
    let mut needs = Needs::default();
    match authority {
        Authority::Host(host, _) => {
            let own = local.services.iter().map(|membership| &membership.service);
            for service in own.filter(|service| service.hostname.eq_ignore_ascii_case(host)) {
                let holds = store
                    .service(&service.namespace, &service.hostname)
                    .is_some();
                needs.add(service.to_string(), holds);
            }
        }
        Authority::Addr(asked) => {
            let ip = asked.ip().to_canonical();
            if ip == reached.to_canonical() || local.application_tunnel.is_some() {
                return needs;
            }
            needs.address(store, network, ip);
            match store.find(network, ip, None) {
                Some(Found::Service(service)) => {
                    for waypoint in service.waypoints() {
                        needs.reference(store, waypoint, network, None);
                    }
                }
                Some(Found::Workload(workload)) => {
                    if let Some(waypoint) = &workload.waypoint {
                        needs.reference(store, waypoint, network, None);
                    }
                }
                None => {}
            }
        }
    }
    needs
}

/// What telemetry of a connection that arrives would like to know: who speaks, and to which service.
pub fn names(store: &Store, local: &Workload, source: IpAddr, network: &str) -> Needs {
    let mut needs = Needs::default();
    needs.address(store, network, source.to_canonical());
    for service in local.services.iter().map(|membership| &membership.service) {
        let holds = store
            .service(&service.namespace, &service.hostname)
            .is_some();
        needs.add(service.to_string(), holds);
    }
    needs
}
