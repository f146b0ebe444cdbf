// SPDX-License-Identifier: Apache-2.0
//! What is on another network is reached through its gateway, by name, and answered by whom the service names; or it is
//! refused, and the reason says what is missing.

use mesh::service::{IpFamilies, Scope};
use proptest::prelude::*;

use super::*;

/// The gateway of the network "elsewhere", at 10.9.0.1.
fn gateway() -> Workload {
    plain(elsewhere(pod("gw", &["10.9.0.1"])))
}

fn at_gateway(address: &str, port: u16) -> Option<GatewayAddress> {
    Some(GatewayAddress {
        destination: GatewayDestination::Address(NetworkAddress {
            network: "elsewhere".into(),
            address: ip(address),
        }),
        hbone_mtls_port: port,
    })
}

/// An endpoint of the cart that has no address which means anything here.
fn remote() -> Workload {
    elsewhere(Workload {
        network_gateway: at_gateway("10.9.0.1", 15009),
        ..backing(pod("remote", &[]), SERVICE, &[(80, 8080)])
    })
}

/// The cart, whose endpoints may be `far` or `further`.
fn known_cart() -> Service {
    Service {
        subject_alt_names: vec![identity("far"), identity("further")],
        ..cart()
    }
}

fn sick(workload: Workload) -> Workload {
    Workload {
        status: HealthStatus::Unhealthy,
        ..workload
    }
}

const THROUGH: &str = "gateway 10.9.0.1:15009 of gw (gw) asks cart.shop.svc.cluster.local:80 \
                       of far+further (remote) for cart";
const LOCAL: &str =
    "hbone 10.0.0.2:15008 asks 10.0.0.2:8080 of server+far+further (server) for cart";

#[test]
fn an_endpoint_elsewhere_is_reached_through_its_gateway_by_the_services_name() {
    let mesh = Mesh::of([remote(), gateway()]).with(known_cart());
    check(&mesh, "10.96.0.2:80", THROUGH);
}

#[test]
fn an_address_of_the_endpoint_changes_nothing_since_it_means_nothing_here() {
    let addressed = Workload {
        // The same as a pod of this network has.
        addresses: vec![ip("10.0.0.2")],
        ..remote()
    };
    let mesh = Mesh::of([addressed, gateway()]).with(known_cart());
    check(&mesh, "10.96.0.2:80", THROUGH);
}

#[test]
fn the_protocol_of_the_endpoint_does_not_matter_the_way_is_always_the_gateway() {
    let mesh = Mesh::of([plain(remote()), gateway()]).with(known_cart());
    check(&mesh, "10.96.0.2:80", THROUGH);
}

#[test]
fn without_a_gateway_the_endpoint_is_refused() {
    let away = elsewhere(server());
    check(
        &Mesh::of([away, gateway()]).with(known_cart()),
        "10.96.0.2:80",
        "refused for cart: workload c1//Pod/shop/server is on network \"elsewhere\" and names no gateway to it",
    );
    let nowhere = Workload {
        network_gateway: None,
        ..remote()
    };
    check(
        &Mesh::of([nowhere, gateway()]).with(known_cart()),
        "10.96.0.2:80",
        "refused for cart: service shop/cart.shop.svc.cluster.local cannot take the connection: none of its ready \
         endpoints has an address or a gateway that leads to it",
    );
}

#[test]
fn a_gateway_that_is_not_known_is_refused_though_its_address_could_be_dialled() {
    check(
        &Mesh::of([remote()]).with(known_cart()),
        "10.96.0.2:80",
        "refused for cart: network gateway elsewhere/10.9.0.1 is unknown",
    );
    let here = Workload {
        network: "".into(),
        ..gateway()
    };
    check(
        &Mesh::of([remote(), here]).with(known_cart()),
        "10.96.0.2:80",
        "refused for cart: network gateway elsewhere/10.9.0.1 is unknown",
    );
}

#[test]
fn a_gateway_may_be_a_service_which_maps_the_port_and_adds_identities() {
    const EAST_WEST: &str = "ew.shop.svc.cluster.local";
    let behind = |destination, port| Workload {
        network_gateway: Some(GatewayAddress {
            destination,
            hbone_mtls_port: port,
        }),
        ..remote()
    };
    let by_host = GatewayDestination::Hostname(NamespacedHostname::new("shop", EAST_WEST));
    let by_vip = GatewayDestination::Address(NetworkAddress {
        network: "".into(),
        address: ip("10.96.0.9"),
    });
    let east_west = || Service {
        subject_alt_names: vec![identity("ew-old")],
        ..service(EAST_WEST, "10.96.0.9", &[(15008, 15009)])
    };
    let instance = || backing(gateway(), EAST_WEST, &[(15008, 15009)]);
    let through = THROUGH.replace("of gw (gw)", "of gw+ew-old (gw)");
    for reference in [by_host.clone(), by_vip] {
        let mesh = Mesh::of([behind(reference, 15008), instance()])
            .with(known_cart())
            .with(east_west());
        check(&mesh, "10.96.0.2:80", &through);
    }

    let missing = Mesh::of([behind(by_host.clone(), 15010), instance()])
        .with(known_cart())
        .with(east_west());
    check(
        &missing,
        "10.96.0.2:80",
        "refused for cart: network gateway shop/ew.shop.svc.cluster.local cannot take the connection: it has no endpoint \
         for port 15010",
    );
    let asleep = Mesh::of([behind(by_host, 15008), sick(instance())])
        .with(known_cart())
        .with(east_west());
    check(
        &asleep,
        "10.96.0.2:80",
        "refused for cart: network gateway shop/ew.shop.svc.cluster.local cannot take the connection: none of its 1 \
         endpoints is ready",
    );
}

#[test]
fn a_service_that_names_nobody_is_refused_before_the_gateway_is_bothered() {
    check(
        &Mesh::of([remote(), gateway()]).with(cart()),
        "10.96.0.2:80",
        "refused for cart: service shop/cart.shop.svc.cluster.local names no identity that its endpoints on network \
         \"elsewhere\" may have",
    );
}

#[test]
fn an_address_of_another_network_is_no_destination() {
    // Seen only from a pod that is itself elsewhere: addresses are looked up on the source's own network.
    let mut source = client();
    source.network = "elsewhere".into();
    let here = Workload {
        waypoint: at_host(WAYPOINT),
        ..elsewhere(server())
    };
    let waypoint = Workload {
        network_gateway: at_gateway("10.9.0.1", 15009),
        ..waypoint()
    };
    let mesh = Mesh::of([here, waypoint, gateway()]).with(service(
        WAYPOINT,
        "10.96.0.8",
        &[(15008, 15008)],
    ));
    let connection = Outbound {
        source: &source,
        source_ip: source.addresses[0],
        destination: "10.0.0.2:8080".parse().unwrap(),
        network: "elsewhere",
        own_ports: OWN_PORTS,
        seen: unseen(),
    };
    let route = route(&mesh.0, connection, &mut StdRng::seed_from_u64(3));
    assert_eq!(
        line(&route),
        "refused: workload c1//Pod/shop/wp is on network \"\", which is reached by the names of services only"
    );
}

#[test]
fn a_waypoint_elsewhere_is_reached_through_its_gateway_under_its_own_identities() {
    let away = elsewhere(Workload {
        network_gateway: at_gateway("10.9.0.1", 15008),
        ..waypoint()
    });
    let waypoint = |subject_alt_names| Service {
        subject_alt_names,
        ..service(WAYPOINT, "10.96.0.8", &[(15008, 15008)])
    };
    let mesh = |names| {
        Mesh::of([server(), away.clone(), gateway()])
            .with(Service {
                waypoint: at_host(WAYPOINT),
                ..known_cart()
            })
            .with(waypoint(names))
    };
    check(
        &mesh(vec![identity("wp")]),
        "10.96.0.2:80",
        "gateway 10.9.0.1:15008 of gw (gw) asks cart.shop.svc.cluster.local:80 of wp (wp) for cart",
    );
    // The cart's own names do not speak for its waypoint.
    check(
        &mesh(vec![]),
        "10.96.0.2:80",
        "refused for cart: service shop/wp.shop.svc.cluster.local names no identity that its endpoints on network \
         \"elsewhere\" may have",
    );
}

#[test]
fn a_failover_service_leaves_the_network_only_when_nothing_is_ready_here() {
    let mut cart = known_cart();
    cart.load_balancer.mode = Mode::Failover;
    cart.load_balancer.routing_preferences = vec![Scope::Network];
    let mesh = |local| Mesh::of([local, remote(), gateway()]).with(cart.clone());
    check(&mesh(server()), "10.96.0.2:80", LOCAL);
    check(&mesh(sick(server())), "10.96.0.2:80", THROUGH);
    let back = Mesh::of([server(), sick(remote()), gateway()]).with(cart.clone());
    check(&back, "10.96.0.2:80", LOCAL);
}

#[test]
fn without_preference_both_networks_serve_by_their_capacity() {
    let remote = Workload {
        capacity: 3,
        ..remote()
    };
    let mesh = Mesh::of([server(), remote, gateway()]).with(known_cart());
    let client = client();
    let connection = Outbound {
        source: &client,
        source_ip: client.addresses[0],
        destination: "10.96.0.2:80".parse().unwrap(),
        network: "",
        own_ports: OWN_PORTS,
        seen: unseen(),
    };
    let mut rng = StdRng::seed_from_u64(7);
    let away = (0..4000)
        .filter(|_| matches!(route(&mesh.0, connection, &mut rng), Route::Gateway { .. }))
        .count();
    assert!((2800..3200).contains(&away), "{away} of 4000");
}

#[test]
fn a_gateway_of_the_own_network_is_not_used() {
    let local = Workload {
        network_gateway: at_gateway("10.9.0.1", 15009),
        ..server()
    };
    let mesh = Mesh::of([local, gateway()]).with(known_cart());
    check(&mesh, "10.96.0.2:80", LOCAL);
}

#[test]
fn the_families_of_the_service_do_not_bind_its_gateway() {
    let gateway = Workload {
        addresses: vec![ip("fd09::1"), ip("10.9.0.1")],
        ..gateway()
    };
    let cart = Service {
        ip_families: IpFamilies::V6Only,
        vips: vec![NetworkAddress {
            network: "".into(),
            address: ip("fd96::2"),
        }],
        ..known_cart()
    };
    let mesh = Mesh::of([remote(), gateway]).with(cart);
    check(&mesh, "[fd96::2]:80", THROUGH);
}

/// One of the endpoints that a service may have.
#[derive(Debug, Clone)]
struct Endpoint {
    elsewhere: bool,
    addressed: bool,
    ready: bool,
    hbone: bool,
    /// Its gateway: none, one that is known, one that is not.
    gateway: Option<bool>,
}

fn endpoint() -> impl Strategy<Value = Endpoint> {
    (
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        any::<Option<bool>>(),
    )
        .prop_map(|(elsewhere, addressed, ready, hbone, gateway)| Endpoint {
            elsewhere,
            addressed,
            ready,
            hbone,
            gateway,
        })
}

impl Endpoint {
    fn workload(&self, number: usize) -> Workload {
        let address = format!("10.0.1.{number}");
        let addresses: &[&str] = if self.addressed { &[&address] } else { &[] };
        let workload = backing(
            pod(&format!("e{number}"), addresses),
            SERVICE,
            &[(80, 8080)],
        );
        Workload {
            network: if self.elsewhere { "elsewhere" } else { "" }.into(),
            status: if self.ready {
                HealthStatus::Healthy
            } else {
                HealthStatus::Unhealthy
            },
            protocol: if self.hbone {
                TunnelProtocol::Hbone
            } else {
                TunnelProtocol::None
            },
            network_gateway: self
                .gateway
                .and_then(|known| at_gateway(if known { "10.9.0.1" } else { "10.9.0.7" }, 15008)),
            ..workload
        }
    }

    /// Whether it may be drawn at all.
    fn is_candidate(&self) -> bool {
        self.ready && (self.addressed || (self.elsewhere && self.gateway.is_some()))
    }
}

proptest! {
    /// Whatever the endpoints are: what is elsewhere is only ever reached through a known gateway, by name, with
    /// somebody named to answer; what is here never takes a gateway; and nothing usable is left out.
    #[test]
    fn networks_are_never_mixed_up(
        endpoints in proptest::collection::vec(endpoint(), 0..6),
        named in any::<bool>(),
        failover in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let mut cart = if named { known_cart() } else { cart() };
        if failover {
            cart.load_balancer.mode = Mode::Failover;
            cart.load_balancer.routing_preferences = vec![Scope::Network, Scope::Region];
        }
        let workloads = endpoints.iter().enumerate().map(|(n, e)| e.workload(n + 10));
        let mesh = Mesh::of(workloads.chain([gateway()])).with(cart);
        let client = client();
        let connection = Outbound {
            source: &client,
            source_ip: client.addresses[0],
            destination: "10.96.0.2:80".parse().unwrap(),
            network: "",
            own_ports: OWN_PORTS,
            seen: unseen(),
        };
        let decided = route(&mesh.0, connection, &mut StdRng::seed_from_u64(seed));
        let of = |workload: &Workload| {
            let number: usize = workload.name.trim_start_matches('e').parse().unwrap();
            endpoints[number - 10].clone()
        };
        let here_is_ready = endpoints.iter().any(|e| !e.elsewhere && e.is_candidate());
        match decided {
            Route::Gateway { tunnel, authority, expected, gateway, expected_behind, workload, .. } => {
                let picked = of(&workload);
                prop_assert!(picked.elsewhere && picked.is_candidate() && named);
                prop_assert_eq!(picked.gateway, Some(true));
                prop_assert!(!failover || !here_is_ready);
                prop_assert_eq!(tunnel, "10.9.0.1:15008".parse::<SocketAddr>().unwrap());
                prop_assert_eq!(authority.to_string(), format!("{SERVICE}:80"));
                prop_assert_eq!(&expected[..], &[identity("gw")]);
                prop_assert_eq!(&*gateway.name, "gw");
                prop_assert_eq!(&expected_behind[..], &[identity("far"), identity("further")]);
            }
            Route::Hbone { workload, tunnel, .. } => {
                let picked = of(&workload);
                prop_assert!(!picked.elsewhere && picked.hbone && picked.is_candidate());
                prop_assert!(workload.addresses.contains(&tunnel.ip()));
            }
            Route::Direct { workload, .. } => {
                let picked = of(&workload);
                prop_assert!(!picked.elsewhere && !picked.hbone && picked.is_candidate());
            }
            Route::Refused { reason, .. } => match reason {
                Refusal::NoEndpoint { .. } => {
                    prop_assert!(!endpoints.iter().any(Endpoint::is_candidate), "{}", reason);
                }
                Refusal::NoGateway { .. }
                | Refusal::NobodyExpected { .. }
                | Refusal::UnknownHop { .. } => {
                    prop_assert!(endpoints.iter().any(|e| e.elsewhere && e.is_candidate()));
                    prop_assert!(!failover || !here_is_ready);
                }
                other => prop_assert!(false, "{}", other),
            },
            other => prop_assert!(false, "{:?}", other),
        }
    }
}
