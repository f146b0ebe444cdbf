// SPDX-License-Identifier: Apache-2.0
//! A node that knows only what it asked for decides as one that knows everything.

use std::collections::BTreeSet;

use mesh::service::{Visibility, WeightedWaypoint};
use mesh::{NetworkCidr, Standings};
use proptest::prelude::*;

use super::*;
use crate::route::needs::{self, Held};

const HERE: &str = "";

/// What a control plane tells of a key: what it stands for, and what backs those services.
fn tell(all: &Store, key: &str, to: &mut Store) {
    let (first, second) = key.split_once('/').unwrap();
    let mut services: Vec<Arc<Service>> = all.service(first, second).cloned().into_iter().collect();
    let mut workloads = Vec::new();
    if let Ok(ip) = second.parse() {
        let there = |w: &&Arc<Workload>| {
            *w.network == *first
                && w.network_mode == NetworkMode::Standard
                && w.addresses.contains(&ip)
        };
        workloads.extend(all.workloads().filter(there).cloned());
        let has = |service: &Service| {
            let exact = service
                .vips
                .iter()
                .any(|v| *v.network == *first && v.address == ip);
            exact
                || service
                    .cidr_vips
                    .iter()
                    .any(|r| *r.network == *first && r.cidr.contains(&ip))
        };
        services.extend(all.services().map(|(s, _)| s).filter(|s| has(s)).cloned());
    }
    for service in services {
        workloads.extend(all.endpoints(&service).iter().cloned());
        to.upsert_service((*service).clone());
    }
    for workload in workloads {
        to.upsert_workload((*workload).clone());
    }
}

/// Asks for what a decision needs until nothing is missing. Returns the keys, and what is known then.
fn learn(all: &Store, source: &Workload, destination: SocketAddr) -> (BTreeSet<String>, Store) {
    let (mut asked, mut known) = (BTreeSet::new(), Store::new(None));
    known.upsert_workload(source.clone());
    for step in 0.. {
        let standings = Standings::default();
        let needs = needs::outbound(&known, &connection(source, destination, &standings));
        let missing = needs.iter().filter(|(key, _)| !asked.contains(*key));
        let missing: Vec<_> = missing.map(|(key, _)| key.to_owned()).collect();
        if missing.is_empty() {
            break;
        }
        assert!(step < 5, "it never ends: {missing:?}");
        for key in missing {
            tell(all, &key, &mut known);
            asked.insert(key);
        }
    }
    (asked, known)
}

fn connection<'a>(
    source: &'a Workload,
    destination: SocketAddr,
    standings: &'a Standings,
) -> Outbound<'a> {
    Outbound {
        source,
        source_ip: source.addresses[0],
        destination,
        network: HERE,
        own_ports: OWN_PORTS,
        seen: Seen {
            standings,
            tried: &[],
            now: Instant::now(),
        },
    }
}

fn decided(store: &Store, source: &Workload, destination: SocketAddr) -> String {
    let standings = Standings::default();
    let connection = connection(source, destination, &standings);
    line(&route(store, connection, &mut StdRng::seed_from_u64(7)))
}

/// The keys that a connection of the client asks for, and that it is decided as if all were known.
#[track_caller]
fn check(mesh: &Mesh, destination: &str, keys: &[&str]) {
    let destination = destination.parse().unwrap();
    let (asked, known) = learn(&mesh.0, &client(), destination);
    let asked: Vec<_> = asked.iter().map(String::as_str).collect();
    assert_eq!(asked, keys, "{destination}");
    let full = decided(&mesh.0, &client(), destination);
    assert_eq!(
        decided(&known, &client(), destination),
        full,
        "{destination}"
    );
}

#[test]
fn an_address_is_asked_for_and_with_it_what_leads_there() {
    let attached = Service {
        waypoint: at_host(WAYPOINT),
        ..cart()
    };
    let plain = || Mesh::of([server()]).with(cart());
    check(&plain(), "192.0.2.1:443", &["/192.0.2.1"]);
    check(&plain(), "10.0.0.2:8080", &["/10.0.0.2"]);
    check(&plain(), "10.96.0.2:80", &["/10.96.0.2"]);
    let mesh = Mesh::of([server()]).with(attached.clone()).with_waypoint();
    let waypoint = format!("shop/{WAYPOINT}");
    check(&mesh, "10.96.0.2:80", &["/10.96.0.2", &waypoint]);
    let unknown = Mesh::of([server()]).with(attached);
    check(&unknown, "10.96.0.2:80", &["/10.96.0.2", &waypoint]);
    let weighted = sharing(&[(at_address("10.0.0.9"), 1), (at_host("none"), 0)]);
    let other = pod("other", &["10.0.0.9"]);
    let mesh = Mesh::of([server(), other]).with(weighted).with_waypoint();
    check(
        &mesh,
        "10.96.0.2:80",
        &["/10.0.0.9", "/10.96.0.2", &waypoint],
    );
    let of_pod = Workload {
        waypoint: at_address("10.0.0.8"),
        ..server()
    };
    let mesh = Mesh::of([of_pod]).with_waypoint();
    check(&mesh, "10.0.0.2:8080", &["/10.0.0.2", "/10.0.0.8"]);
}

#[test]
fn the_gateway_to_another_network_is_asked_for_with_the_endpoint() {
    let far = Workload {
        network_gateway: at_address("10.0.0.8"),
        ..elsewhere(server())
    };
    let service = Service {
        subject_alt_names: vec![identity("server")],
        ..cart()
    };
    let mesh = Mesh::of([far]).with(service).with_waypoint();
    check(&mesh, "10.96.0.2:80", &["/10.0.0.8", "/10.96.0.2"]);
}

#[test]
fn gateways_that_lead_to_each_other_are_asked_for_once() {
    let far = |name: &str, ip: &str, gateway: &str| Workload {
        network_gateway: at_address(gateway),
        network: "elsewhere".into(),
        ..backing(pod(name, &[ip]), SERVICE, &[(80, 8080)])
    };
    let one = far("one", "10.0.0.2", "10.96.0.2");
    check(
        &Mesh::of([one]).with(cart()),
        "10.96.0.2:80",
        &["/10.96.0.2"],
    );
}

#[test]
fn what_is_held_says_whether_an_old_answer_is_good() {
    let destination = "10.96.0.2:80".parse().unwrap();
    let (client, standings) = (client(), Standings::default());
    let connection = connection(&client, destination, &standings);
    let held = |mesh: &Mesh| {
        needs::outbound(&mesh.0, &connection)
            .iter()
            .map(|(_, held)| held)
            .collect::<Vec<_>>()
    };
    assert_eq!(held(&Mesh::of([])), [Held::Nothing]);
    assert_eq!(held(&Mesh::of([]).with(cart())), [Held::Something]);
}

#[test]
fn an_arriving_connection_needs_what_it_asks_for_unless_that_is_where_it_arrived() {
    let check = |asked: &str, expected: &[&str]| {
        let mesh = Mesh::of([server()]).with(sharing(&[])).with_waypoint();
        let asked: Authority = asked.parse().unwrap();
        let needs = needs::inbound(&mesh.0, &waypoint(), ip("10.0.0.8"), HERE, &asked);
        let keys: Vec<_> = needs.iter().map(|(key, _)| key).collect();
        assert_eq!(keys, expected, "{asked}");
    };
    let waypoint = format!("shop/{WAYPOINT}");
    check("10.0.0.8:15008", &[]);
    check("10.96.0.2:80", &["/10.96.0.2", &waypoint]);
    check("192.0.2.1:80", &["/192.0.2.1"]);
    check(&format!("{WAYPOINT}:15008"), &[&waypoint]);
    check("other.example.com:80", &[]);
}

#[test]
fn a_waypoint_at_an_address_that_several_have_is_the_one_that_the_client_takes() {
    let range = |mut service: Service| {
        let network = HERE.into();
        let cidr = "10.96.0.0/16".parse().unwrap();
        service.cidr_vips = vec![NetworkCidr { network, cidr }];
        service
    };
    let ports = [(80, 8080), (15008, 15008)];
    let mut near = range(service("wp.host", "10.0.0.2", &ports));
    near.weighted_waypoints = vec![WeightedWaypoint {
        destination: at_address("10.96.0.2").unwrap(),
        weight: 1,
    }];
    let mut others = range(service("a.host", "10.0.0.2", &ports));
    others.namespace = "other".into();
    let far = Workload {
        network: "far".into(),
        network_gateway: at_host("a.host"),
        ..backing(pod("w0", &["10.0.0.2"]), "wp.host", &ports)
    };
    let mesh = Mesh::of(vec![far]).with(near).with(others);
    let mesh = mesh.with(service("a.host", "10.0.0.2", &ports));
    let destination = "10.96.0.2:80".parse().unwrap();
    let (asked, known) = learn(&mesh.0, &client(), destination);
    assert!(asked.contains("shop/a.host"), "{asked:?}");
    assert_eq!(
        decided(&known, &client(), destination),
        decided(&mesh.0, &client(), destination)
    );
}

fn one_of<T: Clone + std::fmt::Debug + 'static>(all: Vec<T>) -> impl Strategy<Value = T> {
    prop::sample::select(all)
}

fn address() -> impl Strategy<Value = &'static str> {
    one_of(vec![
        "10.0.0.2",
        "10.0.0.3",
        "10.96.0.2",
        "10.96.0.3",
        "fd00::2",
        "192.0.2.1",
    ])
}

fn host() -> impl Strategy<Value = &'static str> {
    one_of(vec!["a.host", "b.host", "wp.host"])
}

fn reference() -> impl Strategy<Value = Option<GatewayAddress>> {
    prop_oneof![
        3 => Just(None),
        1 => address().prop_map(at_address),
        2 => host().prop_map(at_host),
    ]
}

fn a_workload() -> impl Strategy<Value = Workload> {
    let backed = prop::collection::vec(host(), 0..3);
    let ways = (reference(), reference(), one_of(vec!["", "", "far"]));
    let modes = (
        one_of(vec![TunnelProtocol::Hbone, TunnelProtocol::None]),
        any::<bool>(),
    );
    (0..6_u8, address(), backed, ways, modes).prop_map(
        |(number, address, backed, (waypoint, network_gateway, network), (protocol, host))| {
            let mut workload = pod(&format!("w{number}"), &[address]);
            for host in backed {
                workload = backing(workload, host, &[(80, 8080), (15008, 15008)]);
            }
            Workload {
                waypoint,
                network_gateway,
                network: network.into(),
                protocol,
                network_mode: if host {
                    NetworkMode::HostNetwork
                } else {
                    NetworkMode::Standard
                },
                ..workload
            }
        },
    )
}

fn a_service() -> impl Strategy<Value = Service> {
    let addresses = (
        address(),
        prop::option::of(one_of(vec!["10.0.0.0/8", "192.0.2.0/24", "10.96.0.0/16"])),
    );
    let weighted = prop::collection::vec((reference(), 0..3_u32), 0..3);
    let flags = (
        any::<bool>(),
        any::<bool>(),
        one_of(vec![Mode::Standard, Mode::Passthrough]),
    );
    (
        one_of(vec!["shop", "other"]),
        host(),
        addresses,
        reference(),
        weighted,
        flags,
    )
        .prop_map(
            |(namespace, host, (vip, range), waypoint, weighted, (canonical, hidden, mode))| {
                let mut service = service(host, vip, &[(80, 8080), (15008, 15008)]);
                service.namespace = namespace.into();
                service.subject_alt_names = vec![identity("far")];
                service.load_balancer.mode = mode;
                let weighted = weighted.into_iter().filter_map(|(destination, weight)| {
                    let destination = destination?;
                    Some(WeightedWaypoint {
                        destination,
                        weight,
                    })
                });
                Service {
                    cidr_vips: range
                        .map(|cidr| NetworkCidr {
                            network: HERE.into(),
                            cidr: cidr.parse().unwrap(),
                        })
                        .into_iter()
                        .collect(),
                    waypoint,
                    weighted_waypoints: weighted.collect(),
                    canonical,
                    visibility: if hidden {
                        Visibility::Namespace
                    } else {
                        Visibility::Public
                    },
                    ..service
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2048, ..ProptestConfig::default() })]

    #[test]
    fn knowing_what_was_asked_for_is_as_good_as_knowing_everything(
        workloads in prop::collection::vec(a_workload(), 0..5),
        services in prop::collection::vec(a_service(), 0..4),
        to in address(),
    ) {
        let mut mesh = Mesh::of(workloads);
        for service in services {
            mesh = mesh.with(service);
        }
        let destination = SocketAddr::new(to.parse().unwrap(), 80);
        let (_, known) = learn(&mesh.0, &client(), destination);
        prop_assert_eq!(
            decided(&known, &client(), destination),
            decided(&mesh.0, &client(), destination)
        );
    }
}
