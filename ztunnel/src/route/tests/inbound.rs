// SPDX-License-Identifier: Apache-2.0

use super::*;
use mesh::workload::{ApplicationProtocol, ApplicationTunnel};

fn authority(text: &str) -> Authority {
    text.parse().unwrap()
}

/// Whether a pod that was reached by a tunnel to this address takes an authority.
fn accepts(mesh: &Mesh, local: &Workload, asked: &str) -> bool {
    let reached = local.addresses[0];
    let accepted = accept_destination(&mesh.0, local, reached, "", &authority(asked));
    if let Err(refusal) = &accepted {
        assert_eq!(refusal.status(), 400);
    }
    accepted.is_ok()
}

#[test]
fn a_pod_accepts_its_own_address_and_no_other() {
    let mesh = Mesh::of([server()]).with(cart());
    assert!(accepts(&mesh, &server(), "10.0.0.2:8080"));
    assert!(!accepts(&mesh, &server(), "10.0.0.1:8080"));
    assert!(!accepts(&mesh, &server(), "10.96.0.2:80"));
    assert!(!accepts(&mesh, &server(), "192.0.2.1:80"));
}

#[test]
fn a_host_name_is_for_the_next_hop_to_judge() {
    assert!(accepts(
        &Mesh::of([]),
        &server(),
        "cart.shop.svc.cluster.local:80"
    ));
}

#[test]
fn a_waypoint_accepts_what_is_attached_to_it() {
    for reference in [
        at_host(WAYPOINT),
        at_address("10.96.0.8"),
        at_address("10.0.0.8"),
    ] {
        let attached_pod = Workload {
            waypoint: reference.clone(),
            ..server()
        };
        let attached_service = Service {
            waypoint: reference,
            ..cart()
        };
        let other = pod("other", &["10.0.0.3"]);
        let mesh = Mesh::of([attached_pod, other])
            .with(attached_service)
            .with_waypoint();
        assert!(accepts(&mesh, &waypoint(), "10.0.0.2:8080"));
        assert!(accepts(&mesh, &waypoint(), "10.96.0.2:80"));
        assert!(!accepts(&mesh, &waypoint(), "10.0.0.3:8080"));
        assert!(
            !accepts(&mesh, &client(), "10.96.0.2:80"),
            "another pod is no waypoint"
        );
    }
}

#[test]
fn only_the_very_waypoint_of_a_pod_speaks_for_others() {
    let reference = || at_host(WAYPOINT);
    let bound_pod = Workload {
        waypoint: reference(),
        ..server()
    };
    let bound_service = Service {
        waypoint: reference(),
        ..cart()
    };
    let plain = |service: Service| Mesh::of([server()]).with(service).with_waypoint();
    let speaks = |mesh: &Mesh, local: &Workload, peer: &str, from: &str| {
        vouches(&mesh.0, local, "", (&identity(peer), ip(from)))
    };
    let by_service = plain(bound_service);
    assert!(speaks(&by_service, &server(), "wp", "10.0.0.8"));
    assert!(speaks(&by_service, &server(), "wp", "::ffff:10.0.0.8"));
    // Another address of the same identity, another identity at its address, and another pod.
    assert!(!speaks(&by_service, &server(), "wp", "10.0.0.9"));
    assert!(!speaks(&by_service, &server(), "client", "10.0.0.8"));
    assert!(!speaks(&by_service, &server(), "client", "10.0.0.1"));
    // A waypoint, but not of this one.
    let unbound = plain(cart());
    assert!(!speaks(&unbound, &server(), "wp", "10.0.0.8"));
    assert!(speaks(&unbound, &bound_pod, "wp", "10.0.0.8"));
    let unknown = Mesh::of([bound_pod.clone()]).with(cart());
    assert!(!speaks(&unknown, &bound_pod, "wp", "10.0.0.8"));
    for reference in [at_address("10.96.0.8"), at_address("10.0.0.8")] {
        let bound_pod = Workload {
            waypoint: reference,
            ..server()
        };
        assert!(speaks(&unbound, &bound_pod, "wp", "10.0.0.8"));
    }
    let other = Workload {
        waypoint: at_address("10.0.0.9"),
        ..server()
    };
    assert!(!speaks(&unbound, &other, "wp", "10.0.0.8"));
}

#[test]
fn a_waypoint_with_a_share_accepts_what_it_has_a_share_of() {
    let other = pod("other", &["10.0.0.9"]);
    let with = |weight| {
        let shares = sharing(&[(at_address("10.0.0.9"), weight)]);
        Mesh::of([server(), other.clone()])
            .with(shares)
            .with_waypoint()
    };
    assert!(accepts(&with(1), &other, "10.96.0.2:80"));
    assert!(accepts(&with(1), &waypoint(), "10.96.0.2:80"));
    assert!(!accepts(&with(0), &other, "10.96.0.2:80"));
}

#[test]
fn an_application_that_tunnels_itself_accepts_anything() {
    let application_tunnel = Some(ApplicationTunnel {
        protocol: ApplicationProtocol::None,
        port: None,
    });
    let local = Workload {
        application_tunnel,
        ..server()
    };
    assert!(accepts(&Mesh::of([]), &local, "192.0.2.1:80"));
}

/// The next hop of a connection to the server, as text.
#[track_caller]
fn check_hop(local: &Workload, asked: &str, expected: &str) {
    let mesh = Mesh::of([local.clone()]).with(cart());
    let hop = next_hop(
        &mesh.0,
        local,
        ip("10.0.0.2"),
        "",
        OWN_PORTS,
        &authority(asked),
    );
    let line = match hop {
        Ok(hop) => {
            let services: Vec<_> = hop
                .services
                .iter()
                .map(|s| s.hostname.to_string())
                .collect();
            format!("{} {}", hop.destination, services.join(","))
        }
        Err(refusal) => {
            assert_eq!(refusal.status(), 503);
            refusal.to_string()
        }
    };
    assert_eq!(line, expected);
}

#[test]
fn the_next_hop_is_the_pod_on_the_port_asked_for() {
    check_hop(
        &server(),
        "10.0.0.2:9000",
        "10.0.0.2:9000 cart.shop.svc.cluster.local",
    );
    check_hop(&client(), "10.0.0.2:9000", "10.0.0.2:9000 ");
}

#[test]
fn a_host_name_is_resolved_to_the_pods_own_port() {
    check_hop(
        &server(),
        "cart.shop.svc.cluster.local:80",
        "10.0.0.2:8080 cart.shop.svc.cluster.local",
    );
    check_hop(
        &server(),
        "cart.shop.svc.cluster.local:81",
        "service \"cart.shop.svc.cluster.local\" has no port 81 here",
    );
    check_hop(
        &server(),
        "unknown.example.com:80",
        "no service \"unknown.example.com\" is known here",
    );
}

#[test]
fn the_proxys_own_ports_are_no_next_hop() {
    for port in [15001, 15006, 15008] {
        let expected = format!("port {port} is a port of this pod's own proxy");
        check_hop(&server(), &format!("10.0.0.2:{port}"), &expected);
    }
    let free = "10.0.0.2:15080 cart.shop.svc.cluster.local";
    check_hop(&server(), "10.0.0.2:15080", free);
}

#[test]
fn the_port_of_socks5_is_the_proxys_own_only_where_that_is_offered() {
    let mesh = Mesh::of([server()]);
    // By itself, and where the control plane moves a connection to.
    let moved = tunnelled(ApplicationProtocol::None, Some(15080));
    for (local, asked) in [(server(), "10.0.0.2:15080"), (moved, "10.0.0.2:80")] {
        let hop = |socks5| {
            let own_ports = OwnPorts::with(socks5);
            let reached = ip("10.0.0.2");
            next_hop(&mesh.0, &local, reached, "", own_ports, &authority(asked))
        };
        assert_eq!(hop(Socks5::On), Err(InboundRefusal::Loop(15080)));
        assert_eq!(hop(Socks5::Off).unwrap().destination.port(), 15080);
    }
}

fn tunnelled(protocol: ApplicationProtocol, port: Option<u16>) -> Workload {
    Workload {
        application_tunnel: Some(ApplicationTunnel { protocol, port }),
        ..server()
    }
}

#[test]
fn an_application_tunnel_moves_the_port() {
    for protocol in [ApplicationProtocol::None, ApplicationProtocol::Proxy] {
        let moved = "10.0.0.2:15088 cart.shop.svc.cluster.local";
        let local = tunnelled(protocol, Some(15088));
        check_hop(&local, "10.0.0.2:80", moved);
        check_hop(&local, "cart.shop.svc.cluster.local:80", moved);
        let own = "10.0.0.2:8080 cart.shop.svc.cluster.local";
        let local = tunnelled(protocol, None);
        check_hop(&local, "cart.shop.svc.cluster.local:80", own);
        let local = tunnelled(protocol, Some(15008));
        let back = "port 15008 is a port of this pod's own proxy";
        check_hop(&local, "10.0.0.2:80", back);
    }
}

/// What the application of a waypoint is told of a connection, as text.
#[track_caller]
fn check_announced(services: &[Service], asked: &str, expected: &str) {
    let local = tunnelled(ApplicationProtocol::Proxy, Some(15088));
    let mut mesh = Mesh::of([local.clone()]);
    for service in services {
        mesh = mesh.with(service.clone());
    }
    let hop = next_hop(
        &mesh.0,
        &local,
        ip("10.0.0.2"),
        "here",
        OWN_PORTS,
        &authority(asked),
    );
    let line = match hop.map(|hop| hop.announced) {
        Ok(Some(announced)) => {
            let service = announced.service.as_deref().unwrap_or("none");
            format!("{} for {service}", announced.destination)
        }
        Ok(None) => "nothing".into(),
        Err(refusal) => {
            assert_eq!(refusal.status(), 503);
            refusal.to_string()
        }
    };
    assert_eq!(line, expected);
}

fn with_vips(vips: &[(&str, &str)]) -> Service {
    let vips = vips.iter().map(|(network, address)| NetworkAddress {
        network: (*network).into(),
        address: ip(address),
    });
    Service {
        vips: vips.collect(),
        ..cart()
    }
}

#[test]
fn an_address_is_announced_as_it_was_asked_for_with_the_service_it_belongs_to() {
    let cart = with_vips(&[("here", "10.96.0.2")]);
    let services = std::slice::from_ref(&cart);
    check_announced(
        services,
        "10.96.0.2:80",
        "10.96.0.2:80 for cart.shop.svc.cluster.local",
    );
    check_announced(services, "[fd00::9]:81", "[fd00::9]:81 for none");
    let elsewhere = with_vips(&[("elsewhere", "10.96.0.2")]);
    check_announced(&[elsewhere], "10.96.0.2:80", "10.96.0.2:80 for none");
}

#[test]
fn a_host_name_is_announced_by_an_address_of_this_network_first_and_of_ipv4_first() {
    let all = [
        ("elsewhere", "fd96::3"),
        ("elsewhere", "10.96.0.3"),
        ("here", "fd96::2"),
        ("here", "10.96.0.2"),
    ];
    let expected = ["10.96.0.2", "[fd96::2]", "10.96.0.3", "[fd96::3]"];
    for (left, first) in (1..=4).rev().zip(expected) {
        check_announced(
            &[with_vips(&all[..left])],
            "cart.shop.svc.cluster.local:80",
            &format!("{first}:80 for cart.shop.svc.cluster.local"),
        );
    }
}

#[test]
fn a_host_name_without_any_address_cannot_be_announced_and_is_refused() {
    check_announced(
        &[with_vips(&[])],
        "cart.shop.svc.cluster.local:80",
        "service \"cart.shop.svc.cluster.local\" has no address, which the workload's application tunnel needs",
    );
    // As peers do it, with any application tunnel.
    let mesh = Mesh::of([server()]).with(with_vips(&[]));
    let asked = authority("cart.shop.svc.cluster.local:80");
    let local = tunnelled(ApplicationProtocol::None, None);
    let refused = next_hop(&mesh.0, &local, ip("10.0.0.2"), "here", OWN_PORTS, &asked);
    assert!(
        matches!(refused, Err(InboundRefusal::NoVip(_))),
        "{refused:?}"
    );
    assert!(
        next_hop(
            &mesh.0,
            &server(),
            ip("10.0.0.2"),
            "here",
            OWN_PORTS,
            &asked
        )
        .is_ok()
    );
}

#[test]
fn an_application_that_does_not_ask_is_told_nothing() {
    let mesh = Mesh::of([]).with(cart());
    for local in [server(), tunnelled(ApplicationProtocol::None, Some(15088))] {
        let asked = authority("10.96.0.2:80");
        let hop = next_hop(&mesh.0, &local, ip("10.0.0.2"), "", OWN_PORTS, &asked).unwrap();
        assert_eq!(hop.announced, None);
    }
}

#[test]
fn the_service_meant_is_the_one_named_or_the_first_with_the_port() {
    let pay = service(
        "pay.shop.svc.cluster.local",
        "10.96.0.3",
        &[(80, 0), (443, 8443)],
    );
    let local = backing(server(), "pay.shop.svc.cluster.local", &[(80, 9090)]);
    let mesh = Mesh::of([local.clone()]).with(cart()).with(pay);
    let candidates = candidate_services(&mesh.0, &local);
    assert_eq!(candidates.len(), 2);
    let meant = |port, named| {
        let service = destination_service(&candidates, &local, port, named)?;
        Some(service.hostname.split('.').next()?.to_owned())
    };
    assert_eq!(meant(8080, None).as_deref(), Some("cart"));
    assert_eq!(
        meant(9090, None).as_deref(),
        Some("pay"),
        "by the endpoint's own port map"
    );
    assert_eq!(meant(8443, None).as_deref(), Some("pay"));
    assert_eq!(meant(1, None), None);
    assert_eq!(
        meant(8080, Some("pay.shop.svc.cluster.local")).as_deref(),
        Some("pay")
    );
    assert_eq!(
        meant(8080, Some("foreign.example.com")).as_deref(),
        Some("cart")
    );
}
