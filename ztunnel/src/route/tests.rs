// SPDX-License-Identifier: Apache-2.0

mod gateway;
mod inbound;
mod needs;

use std::sync::LazyLock;
use std::time::Instant;

use mesh::workload::{HealthStatus, Membership, NetworkMode};
use mesh::{NetworkAddress, Ports, Standings};
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::*;

const SERVICE: &str = "cart.shop.svc.cluster.local";
const WAYPOINT: &str = "wp.shop.svc.cluster.local";
const OWN_PORTS: OwnPorts = OwnPorts(Socks5::Off);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn identity(account: &str) -> SpiffeId {
    format!("spiffe://cluster.local/ns/shop/sa/{account}")
        .parse()
        .unwrap()
}

/// A pod in the mesh, named and with the identity of its service account.
fn pod(name: &str, addresses: &[&str]) -> Workload {
    let uid = format!("c1//Pod/shop/{name}");
    let mut pod = Workload::new(uid, "shop", identity(name));
    pod.name = name.into();
    pod.addresses = addresses.iter().map(|a| ip(a)).collect();
    pod.protocol = TunnelProtocol::Hbone;
    pod
}

fn plain(pod: Workload) -> Workload {
    Workload {
        protocol: TunnelProtocol::None,
        ..pod
    }
}

fn elsewhere(pod: Workload) -> Workload {
    Workload {
        network: "elsewhere".into(),
        ..pod
    }
}

fn backing(mut pod: Workload, host: &str, ports: &[(u16, u16)]) -> Workload {
    let membership = Membership {
        service: NamespacedHostname::new("shop", host),
        ports: ports.iter().copied().collect(),
    };
    pod.services = pod.services.iter().cloned().chain([membership]).collect();
    pod
}

fn service(host: &str, vip: &str, ports: &[(u16, u16)]) -> Service {
    let mut service = Service::new("shop", host);
    service.vips = vec![NetworkAddress {
        network: "".into(),
        address: ip(vip),
    }];
    service.ports = ports.iter().copied().collect::<Ports>();
    service
}

fn at_address(address: &str) -> Option<GatewayAddress> {
    let destination = GatewayDestination::Address(NetworkAddress {
        network: "".into(),
        address: ip(address),
    });
    Some(GatewayAddress {
        destination,
        hbone_mtls_port: 15008,
    })
}

fn at_host(host: &str) -> Option<GatewayAddress> {
    let destination = GatewayDestination::Hostname(NamespacedHostname::new("shop", host));
    Some(GatewayAddress {
        destination,
        hbone_mtls_port: 15008,
    })
}

/// A mesh with the client at 10.0.0.1 (and fd00::1).
struct Mesh(Store);

impl Mesh {
    fn of(workloads: impl IntoIterator<Item = Workload>) -> Self {
        let mut mesh = Self(Store::new(None));
        mesh.0.upsert_workload(client());
        for workload in workloads {
            mesh.0.upsert_workload(workload);
        }
        mesh
    }

    fn with(mut self, service: Service) -> Self {
        self.0.upsert_service(service);
        self
    }

    /// The waypoint at 10.0.0.8, behind its service at 10.96.0.8.
    fn with_waypoint(mut self) -> Self {
        self.0.upsert_workload(waypoint());
        self.with(service(WAYPOINT, "10.96.0.8", &[(15008, 15008)]))
    }
}

fn client() -> Workload {
    pod("client", &["10.0.0.1", "fd00::1"])
}

fn waypoint() -> Workload {
    backing(pod("wp", &["10.0.0.8"]), WAYPOINT, &[(15008, 15008)])
}

fn cart() -> Service {
    service(SERVICE, "10.96.0.2", &[(80, 8080)])
}

fn server() -> Workload {
    backing(pod("server", &["10.0.0.2"]), SERVICE, &[(80, 8080)])
}

/// What a node knows of endpoints that has just started.
fn unseen() -> Seen<'static> {
    static NOTHING: LazyLock<Standings> = LazyLock::new(Standings::default);
    Seen {
        standings: &NOTHING,
        tried: &[],
        now: Instant::now(),
    }
}

fn routed(mesh: &Mesh, source: &Workload, destination: &str) -> Route {
    let connection = Outbound {
        source,
        source_ip: source.addresses[0],
        destination: destination.parse().unwrap(),
        network: "",
        own_ports: OWN_PORTS,
        seen: unseen(),
    };
    route(&mesh.0, connection, &mut StdRng::seed_from_u64(3))
}

/// A route in one line: kind, where to, what to ask for, who may answer, who is there, which service was meant.
fn line(route: &Route) -> String {
    let names = |ids: &[SpiffeId]| {
        let accounts: Vec<_> = ids.iter().map(SpiffeId::service_account).collect();
        accounts.join("+")
    };
    let of = |service: &Option<Arc<Service>>| match service {
        Some(service) => format!(" for {}", service.hostname.split('.').next().unwrap()),
        None => String::new(),
    };
    match route {
        Route::Passthrough { destination } => format!("passthrough {destination}"),
        Route::Direct {
            destination,
            workload,
            service,
        } => {
            format!("tcp {destination} ({}){}", workload.name, of(service))
        }
        Route::Hbone {
            tunnel,
            authority,
            expected,
            workload,
            service,
        } => format!(
            "hbone {tunnel} asks {authority} of {} ({}){}",
            names(expected),
            workload.name,
            of(service)
        ),
        Route::Waypoint {
            tunnel,
            authority,
            expected,
            waypoint,
            service,
        } => format!(
            "waypoint {tunnel} asks {authority} of {} ({}){}",
            names(expected),
            waypoint.name,
            of(service)
        ),
        Route::Gateway {
            tunnel,
            authority,
            expected,
            gateway,
            expected_behind,
            workload,
            port: _,
            service,
        } => format!(
            "gateway {tunnel} of {} ({}) asks {authority} of {} ({}){}",
            names(expected),
            gateway.name,
            names(expected_behind),
            workload.name,
            of(&Some(service.clone()))
        ),
        Route::Unresolved(unresolved) => {
            let inner = line(unresolved.route());
            format!("at {} {inner}", unresolved.host())
        }
        Route::Refused { reason, service } => format!("refused{}: {reason}", of(service)),
    }
}

#[track_caller]
fn check(mesh: &Mesh, destination: &str, expected: &str) {
    check_from(mesh, &client(), destination, expected);
}

#[track_caller]
fn check_from(mesh: &Mesh, source: &Workload, destination: &str, expected: &str) {
    assert_eq!(line(&routed(mesh, source, destination)), expected);
}

// Every outcome that Istio documents for ztunnel's outbound, in its order.

#[test]
fn an_unknown_destination_is_passed_through() {
    check(&Mesh::of([]), "192.0.2.1:443", "passthrough 192.0.2.1:443");
}

#[test]
fn a_plain_pod_is_reached_by_tcp_with_its_name() {
    let mesh = Mesh::of([plain(pod("server", &["10.0.0.2"]))]);
    check(&mesh, "10.0.0.2:8080", "tcp 10.0.0.2:8080 (server)");
}

#[test]
fn a_mesh_pod_is_reached_by_a_tunnel_to_itself() {
    let expected = "hbone 10.0.0.2:15008 asks 10.0.0.2:8080 of server (server)";
    check(&Mesh::of([server()]), "10.0.0.2:8080", expected);
}

#[test]
fn a_service_is_reached_at_an_endpoint_on_its_own_port() {
    let expected = "hbone 10.0.0.2:15008 asks 10.0.0.2:8080 of server (server) for cart";
    check(&Mesh::of([server()]).with(cart()), "10.96.0.2:80", expected);
    let expected = "tcp 10.0.0.2:8080 (server) for cart";
    check(
        &Mesh::of([plain(server())]).with(cart()),
        "10.96.0.2:80",
        expected,
    );
}

#[test]
fn a_service_with_a_waypoint_is_reached_through_it_untranslated() {
    let expected = "waypoint 10.0.0.8:15008 asks 10.96.0.2:80 of wp (wp) for cart";
    for waypoint in [
        at_host(WAYPOINT),
        at_address("10.96.0.8"),
        at_address("10.0.0.8"),
    ] {
        let cart = Service { waypoint, ..cart() };
        let mesh = Mesh::of([server()]).with(cart).with_waypoint();
        check(&mesh, "10.96.0.2:80", expected);
    }
}

#[test]
fn a_pod_with_a_waypoint_is_reached_through_it_when_addressed_itself() {
    let waypoint = at_host(WAYPOINT);
    let mesh = Mesh::of([Workload {
        waypoint,
        ..server()
    }])
    .with_waypoint();
    let expected = "waypoint 10.0.0.8:15008 asks 10.0.0.2:8080 of wp (wp)";
    check(&mesh, "10.0.0.2:8080", expected);
}

#[test]
fn a_service_never_takes_the_waypoint_of_its_endpoint() {
    let waypoint = at_host(WAYPOINT);
    let mesh = Mesh::of([Workload {
        waypoint,
        ..server()
    }])
    .with(cart())
    .with_waypoint();
    let expected = "hbone 10.0.0.2:15008 asks 10.0.0.2:8080 of server (server) for cart";
    check(&mesh, "10.96.0.2:80", expected);
}

#[test]
fn the_waypoint_itself_goes_straight_to_the_pod() {
    let expected = "hbone 10.0.0.2:15008 asks 10.0.0.2:8080 of server (server)";
    for reference in [
        at_host(WAYPOINT),
        at_address("10.96.0.8"),
        at_address("10.0.0.8"),
    ] {
        let mesh = Mesh::of([Workload {
            waypoint: reference,
            ..server()
        }])
        .with_waypoint();
        check_from(&mesh, &waypoint(), "10.0.0.2:8080", expected);
    }
    let reference = at_address("10.0.0.8");
    let mesh = Mesh::of([Workload {
        waypoint: reference,
        ..server()
    }])
    .with_waypoint();
    let other = Workload {
        identity: identity("wp"),
        ..client()
    };
    let through = "waypoint 10.0.0.8:15008 asks 10.0.0.2:8080 of wp (wp)";
    check_from(&mesh, &other, "10.0.0.2:8080", through);
}

#[test]
fn the_waypoint_of_the_source_does_not_matter() {
    let source = Workload {
        waypoint: at_host(WAYPOINT),
        ..client()
    };
    let mesh = Mesh::of([server()]).with_waypoint();
    let expected = "hbone 10.0.0.2:15008 asks 10.0.0.2:8080 of server (server)";
    check_from(&mesh, &source, "10.0.0.2:8080", expected);
}

#[test]
fn a_service_without_a_usable_endpoint_is_refused() {
    let refused =
        "refused for cart: service shop/cart.shop.svc.cluster.local cannot take the connection:";
    let sick = Workload {
        status: HealthStatus::Unhealthy,
        ..server()
    };
    let check = |mesh: &Mesh, to: &str, why: &str| check(mesh, to, &format!("{refused} {why}"));
    check(
        &Mesh::of([]).with(cart()),
        "10.96.0.2:80",
        "no workload backs it",
    );
    check(
        &Mesh::of([sick]).with(cart()),
        "10.96.0.2:80",
        "none of its 1 endpoints is ready",
    );
    check(
        &Mesh::of([server()]).with(cart()),
        "10.96.0.2:81",
        "it has no endpoint for port 81",
    );
    let mut strict = cart();
    strict.load_balancer.mode = Mode::Strict;
    strict.load_balancer.routing_preferences = vec![mesh::service::Scope::Node];
    let far = Workload {
        node: "far".into(),
        ..server()
    };
    let why = "none of its endpoints is within the locality that it insists on";
    check(&Mesh::of([far]).with(strict), "10.96.0.2:80", why);
}

fn passthrough_service() -> Service {
    let mut cart = cart();
    cart.load_balancer.mode = Mode::Passthrough;
    cart
}

#[test]
fn a_passthrough_service_takes_its_waypoint_or_the_original_destination() {
    let mesh = Mesh::of([server()]).with(passthrough_service());
    check(&mesh, "10.96.0.2:80", "passthrough 10.96.0.2:80");
    let waypoint = at_host(WAYPOINT);
    let cart = Service {
        waypoint,
        ..passthrough_service()
    };
    let mesh = Mesh::of([server()]).with(cart).with_waypoint();
    let expected = "waypoint 10.0.0.8:15008 asks 10.96.0.2:80 of wp (wp) for cart";
    check(&mesh, "10.96.0.2:80", expected);
}

#[test]
fn an_ipv6_request_reaches_a_waypoint_named_by_ipv4() {
    let waypoint = at_address("10.0.0.8");
    let server = pod("server", &["fd00::2"]);
    let mesh = Mesh::of([Workload { waypoint, ..server }]).with_waypoint();
    let expected = "waypoint 10.0.0.8:15008 asks [fd00::2]:80 of wp (wp)";
    check(&mesh, "[fd00::2]:80", expected);
}

#[test]
fn a_pod_on_its_nodes_address_is_passed_through_there_and_used_as_an_endpoint() {
    let host = Workload {
        network_mode: NetworkMode::HostNetwork,
        ..plain(server())
    };
    let mesh = Mesh::of([host]).with(cart());
    check(&mesh, "10.0.0.2:8080", "passthrough 10.0.0.2:8080");
    check(&mesh, "10.96.0.2:80", "tcp 10.0.0.2:8080 (server) for cart");
}

// What goes beyond that list.

#[test]
fn a_waypoint_that_is_not_known_or_not_served_refuses_and_is_never_passed_by() {
    let with = |waypoint| Mesh::of([server()]).with(Service { waypoint, ..cart() });
    let unknown = with(at_host(WAYPOINT));
    let expected = "refused for cart: waypoint shop/wp.shop.svc.cluster.local is unknown";
    check(&unknown, "10.96.0.2:80", expected);
    let unknown = with(at_address("10.0.0.77"));
    check(
        &unknown,
        "10.96.0.2:80",
        "refused for cart: waypoint /10.0.0.77 is unknown",
    );
    let empty = with(at_host(WAYPOINT)).with(service(WAYPOINT, "10.96.0.8", &[(15008, 15008)]));
    check(
        &empty,
        "10.96.0.2:80",
        "refused for cart: waypoint shop/wp.shop.svc.cluster.local cannot take the connection: no workload backs it",
    );
    let mesh = Mesh::of([Workload {
        waypoint: at_host(WAYPOINT),
        ..server()
    }]);
    let expected = "refused: waypoint shop/wp.shop.svc.cluster.local is unknown";
    check(&mesh, "10.0.0.2:8080", expected);
}

#[test]
fn a_waypoint_may_be_a_workload_with_a_host_name() {
    let hostname = "wp.example.com".into();
    let lone = Workload {
        hostname,
        ..pod("lone", &["10.0.0.7"])
    };
    let waypoint = at_host("wp.example.com");
    let mesh = Mesh::of([server(), lone]).with(Service { waypoint, ..cart() });
    let expected = "waypoint 10.0.0.7:15008 asks 10.96.0.2:80 of lone (lone) for cart";
    check(&mesh, "10.96.0.2:80", expected);
}

#[test]
fn an_application_tunnel_takes_the_waypoint_port_that_the_service_lacks() {
    let tunnel = mesh::workload::ApplicationTunnel {
        protocol: mesh::workload::ApplicationProtocol::Proxy,
        port: Some(15088),
    };
    let sandwiched = Workload {
        application_tunnel: Some(tunnel),
        ..waypoint()
    };
    let sandwiched = Workload {
        services: [].into(),
        ..sandwiched
    };
    let sandwiched = backing(sandwiched, WAYPOINT, &[]);
    let waypoint = at_host(WAYPOINT);
    let mesh = Mesh::of([server(), sandwiched])
        .with(Service { waypoint, ..cart() })
        .with(service(WAYPOINT, "10.96.0.8", &[(80, 80)]));
    let expected = "waypoint 10.0.0.8:15008 asks 10.96.0.2:80 of wp (wp) for cart";
    check(&mesh, "10.96.0.2:80", expected);
}

/// The cart with its own waypoint, and others with shares.
fn sharing(weighted: &[(Option<GatewayAddress>, u32)]) -> Service {
    let weighted = weighted.iter().cloned().map(|(destination, weight)| {
        let destination = destination.unwrap();
        mesh::service::WeightedWaypoint {
            destination,
            weight,
        }
    });
    Service {
        weighted_waypoints: weighted.collect(),
        waypoint: at_host(WAYPOINT),
        ..cart()
    }
}

#[test]
fn a_weighted_waypoint_is_drawn_for_each_connection() {
    let other = pod("other", &["10.0.0.9"]);
    let shares = sharing(&[(at_host(WAYPOINT), 75), (at_address("10.0.0.9"), 25)]);
    let mesh = Mesh::of([server(), other]).with(shares).with_waypoint();
    let mut rng = StdRng::seed_from_u64(5);
    let client = client();
    let connection = Outbound {
        source: &client,
        source_ip: client.addresses[0],
        destination: "10.96.0.2:80".parse().unwrap(),
        network: "",
        own_ports: OWN_PORTS,
        seen: unseen(),
    };
    let drawn = (0..1000).filter(|_| {
        let line = line(&route(&mesh.0, connection, &mut rng));
        let own = "waypoint 10.0.0.8:15008 asks 10.96.0.2:80 of wp (wp) for cart";
        let other = "waypoint 10.0.0.9:15008 asks 10.96.0.2:80 of other (other) for cart";
        assert!(line == own || line == other, "{line}");
        line == other
    });
    let drawn = drawn.count();
    assert!((200..300).contains(&drawn), "{drawn} of 1000");
}

#[test]
fn weightless_waypoints_are_never_drawn() {
    let expected = "waypoint 10.0.0.8:15008 asks 10.96.0.2:80 of wp (wp) for cart";
    for weighted in [
        vec![(at_host("other"), 0)],
        vec![(at_host("other"), 0), (at_host(WAYPOINT), 1)],
    ] {
        let mesh = Mesh::of([server()])
            .with(sharing(&weighted))
            .with_waypoint();
        check(&mesh, "10.96.0.2:80", expected);
    }
}

#[test]
fn a_drawn_waypoint_that_is_not_known_refuses_though_the_single_one_is_there() {
    let mesh = Mesh::of([server()])
        .with(sharing(&[(at_host("other"), 1)]))
        .with_waypoint();
    let expected = "refused for cart: waypoint shop/other is unknown";
    check(&mesh, "10.96.0.2:80", expected);
}

/// What a route to somebody who is known by a name comes to at an address, and without one.
#[track_caller]
fn check_named(mesh: &Mesh, destination: &str, host: &str, at: &str, without: &str) {
    let named = || match routed(mesh, &client(), destination) {
        Route::Unresolved(unresolved) => unresolved,
        other => panic!("{other:?} names no host"),
    };
    assert_eq!(&**named().host(), host);
    assert_eq!(line(&named().at(ip("192.0.2.9"))), at);
    assert_eq!(line(&named().refused(HostError::NoAddress)), without);
}

#[test]
fn an_endpoint_known_by_name_is_reached_at_the_names_address_or_not_at_all() {
    let hostname = "db.example.com".into();
    let named = Workload {
        hostname,
        ..backing(pod("db", &[]), SERVICE, &[(80, 8080)])
    };
    let refused =
        "refused for cart: workload c1//Pod/shop/db is at db.example.com, but it has no address";
    let tunnelled = "hbone 192.0.2.9:15008 asks 192.0.2.9:8080 of db (db) for cart";
    let mesh = Mesh::of([named.clone()]).with(cart());
    check_named(&mesh, "10.96.0.2:80", "db.example.com", tunnelled, refused);
    let mesh = Mesh::of([plain(named)]).with(cart());
    let direct = "tcp 192.0.2.9:8080 (db) for cart";
    check_named(&mesh, "10.96.0.2:80", "db.example.com", direct, refused);
}

#[test]
fn a_waypoint_known_by_name_is_reached_at_the_names_address_or_not_at_all() {
    let hostname = "wp.example.com".into();
    let lone = Workload {
        hostname,
        ..pod("lone", &[])
    };
    let waypoint = at_host("wp.example.com");
    let mesh = Mesh::of([server(), lone]).with(Service { waypoint, ..cart() });
    check_named(
        &mesh,
        "10.96.0.2:80",
        "wp.example.com",
        "waypoint 192.0.2.9:15008 asks 10.96.0.2:80 of lone (lone) for cart",
        "refused for cart: workload c1//Pod/shop/lone is at wp.example.com, but it has no address",
    );
}

#[test]
fn identities_of_the_service_may_answer_too() {
    let subject_alt_names = vec![identity("extra"), identity("server")];
    let mesh = Mesh::of([server()]).with(Service {
        subject_alt_names,
        ..cart()
    });
    let expected = "hbone 10.0.0.2:15008 asks 10.0.0.2:8080 of server+extra (server) for cart";
    check(&mesh, "10.96.0.2:80", expected);
}

#[test]
fn an_address_that_is_a_pods_and_a_services_skips_the_services_waypoint_only() {
    let both = Service {
        waypoint: at_host(WAYPOINT),
        ..service(SERVICE, "10.0.0.2", &[(80, 8080)])
    };
    let mesh = Mesh::of([server()]).with(both.clone()).with_waypoint();
    let expected = "hbone 10.0.0.2:15008 asks 10.0.0.2:8080 of server (server) for cart";
    check(&mesh, "10.0.0.2:80", expected);
    let lone = Workload {
        services: [].into(),
        ..server()
    };
    let mesh = Mesh::of([lone]).with(both).with_waypoint();
    let route = line(&routed(&mesh, &client(), "10.0.0.2:80"));
    assert!(
        route.starts_with("refused: service shop/cart"),
        "never plaintext instead: {route}"
    );
}

#[test]
fn a_service_that_is_hidden_from_the_client_is_not_there() {
    let visibility = mesh::service::Visibility::Namespace;
    let mesh = Mesh::of([server()]).with(Service {
        visibility,
        ..cart()
    });
    let stranger = Workload {
        namespace: "other".into(),
        ..client()
    };
    check_from(&mesh, &stranger, "10.96.0.2:80", "passthrough 10.96.0.2:80");
}

#[test]
fn the_pods_own_proxy_ports_are_refused_and_those_of_others_are_not() {
    let mesh = Mesh::of([server()]);
    for port in [15001, 15006, 15008] {
        for own in [
            "10.0.0.1",
            "127.0.0.1",
            "[::1]",
            "[fd00::1]",
            "0.0.0.0",
            "[::ffff:10.0.0.1]",
        ] {
            let route = routed(&mesh, &client(), &format!("{own}:{port}"));
            let Route::Refused {
                reason: Refusal::Loop(_),
                ..
            } = route
            else {
                panic!("{own}:{port} became {route:?}");
            };
        }
        let other = format!("10.0.0.2:{port}");
        let expected = format!("hbone 10.0.0.2:15008 asks {other} of server (server)");
        check(&mesh, &other, &expected);
    }
    check(
        &mesh,
        "10.0.0.1:8080",
        "hbone 10.0.0.1:15008 asks 10.0.0.1:8080 of client (client)",
    );
}

#[test]
fn ipv4_in_ipv6_clothes_is_ipv4() {
    let expected = "hbone 10.0.0.2:15008 asks 10.0.0.2:8080 of server (server)";
    check(&Mesh::of([server()]), "[::ffff:10.0.0.2]:8080", expected);
}
