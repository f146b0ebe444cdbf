// SPDX-License-Identifier: Apache-2.0
//! Which endpoint of a service a gateway passes a connection on to. Pure.

use std::net::SocketAddr;

use hbone::wire::PORT;
use http::StatusCode;
use mesh::balance::target_port;
use mesh::workload::{HealthStatus, TunnelProtocol};
use mesh::{PortRule, Store};
use rand::{Rng, RngExt as _};

/// Why a connection is not passed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unavailable {
    /// Networks share names of services, no addresses.
    NoService(String),
    /// It is not to be reached from other networks.
    NotExposed(String),
    /// Nobody here knows the name.
    UnknownService(String),
    /// No endpoint of this network takes tunnels for that port now.
    NoEndpoint { host: String, port: u16 },
}

impl std::fmt::Display for Unavailable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoService(text) => write!(f, "{text} is no service's name and port"),
            Self::NotExposed(host) => write!(f, "service {host} is not exposed to other networks"),
            Self::UnknownService(host) => write!(f, "there is no service {host}"),
            Self::NoEndpoint { host, port } => {
                write!(
                    f,
                    "no endpoint of {host} on this network takes port {port} by tunnel now"
                )
            }
        }
    }
}

impl Unavailable {
    /// The answer to the client.
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::NoService(_) => StatusCode::BAD_REQUEST,
            Self::NotExposed(_) | Self::UnknownService(_) => StatusCode::NOT_FOUND,
            Self::NoEndpoint { .. } => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// Draws one of the endpoints on this very network, by their capacity: to go on to a third network would lead in circles.
pub(super) fn endpoint(
    store: &Store,
    network: &str,
    host: &str,
    port: u16,
    rng: &mut impl Rng,
) -> Result<SocketAddr, Unavailable> {
    let service = store
        .service_by_host(host, None)
        .ok_or_else(|| Unavailable::UnknownService(host.into()))?;
    let usable: Vec<_> = store
        .endpoints(service)
        .iter()
        .filter(|workload| {
            *workload.network == *network
                && workload.status == HealthStatus::Healthy
                && workload.protocol == TunnelProtocol::Hbone
                && target_port(service, workload, port, PortRule::Defined).is_some()
        })
        .filter_map(|workload| Some((workload.addresses.first()?, u64::from(workload.capacity))))
        .collect();
    let total: u64 = usable.iter().map(|(_, weight)| weight).sum();
    let mut ticket = match total {
        0 => 0,
        total => rng.random_range(0..total),
    };
    let drawn = usable.iter().find(|(_, weight)| {
        let drawn = ticket < *weight;
        ticket = ticket.saturating_sub(*weight);
        drawn
    });
    drawn
        .map(|(address, _)| SocketAddr::new(**address, PORT))
        .ok_or_else(|| Unavailable::NoEndpoint {
            host: host.into(),
            port,
        })
}

#[cfg(test)]
mod tests {
    use mesh::workload::Membership;
    use mesh::{NamespacedHostname, Service, Workload};
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;

    use super::*;

    const HOST: &str = "cart.shop.svc.cluster.local";

    fn pod(name: &str, address: &str) -> Workload {
        let id = "spiffe://cluster.local/ns/shop/sa/cart".parse().unwrap();
        let mut pod = Workload::new(name, "shop", id);
        pod.network = "here".into();
        pod.protocol = TunnelProtocol::Hbone;
        pod.addresses = vec![address.parse().unwrap()];
        pod.services = vec![Membership {
            service: NamespacedHostname::new("shop", HOST),
            ports: [(80, 8080)].into_iter().collect(),
        }]
        .into();
        pod
    }

    fn chosen(pods: impl IntoIterator<Item = Workload>, host: &str, port: u16) -> String {
        let mut store = Store::new(None);
        let mut cart = Service::new("shop", HOST);
        cart.ports = [(80, 8080)].into_iter().collect();
        store.upsert_service(cart);
        for pod in pods {
            store.upsert_workload(pod);
        }
        match endpoint(&store, "here", host, port, &mut StdRng::seed_from_u64(1)) {
            Ok(address) => address.to_string(),
            Err(refusal) => format!("{} {refusal}", refusal.status().as_u16()),
        }
    }

    #[test]
    fn an_endpoint_of_this_network_that_takes_tunnels_is_chosen() {
        let elsewhere = Workload {
            network: "elsewhere".into(),
            ..pod("b", "10.0.0.2")
        };
        let sick = Workload {
            status: HealthStatus::Unhealthy,
            ..pod("c", "10.0.0.3")
        };
        let plain = Workload {
            protocol: TunnelProtocol::None,
            ..pod("d", "10.0.0.4")
        };
        let idle = Workload {
            capacity: 0,
            ..pod("e", "10.0.0.5")
        };
        let others = [elsewhere, sick, plain, idle];
        let with_a = others.iter().cloned().chain([pod("a", "10.0.0.1")]);
        assert_eq!(chosen(with_a, HOST, 80), "10.0.0.1:15008");
        let none = "503 no endpoint of cart.shop.svc.cluster.local on this network takes port 80 by tunnel now";
        assert_eq!(chosen(others, HOST, 80), none);
    }

    #[test]
    fn unknown_services_and_ports_are_told_apart() {
        let missing = "404 there is no service nobody.shop.svc.cluster.local";
        assert_eq!(chosen([], "nobody.shop.svc.cluster.local", 80), missing);
        let port = "503 no endpoint of cart.shop.svc.cluster.local on this network takes port 81 by tunnel now";
        assert_eq!(chosen([pod("a", "10.0.0.1")], HOST, 81), port);
    }
}
