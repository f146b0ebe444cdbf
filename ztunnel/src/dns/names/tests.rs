// SPDX-License-Identifier: Apache-2.0

use mesh::service::{IpFamilies, LoadBalancer, Visibility};
use mesh::workload::Membership;
use mesh::{NamespacedHostname, NetworkAddress, Ports, Workload};

use super::super::message::RecordType;
use super::*;

fn domains() -> Domains {
    Domains {
        cluster: "cluster.local".into(),
        preferred_namespace: None,
    }
}

const CLIENT: Client<'static> = Client {
    namespace: "shop",
    network: "",
    ipv6: Ipv6::Enabled,
};

fn service(namespace: &str, host: &str, vips: &[&str]) -> Service {
    Service {
        vips: vips.iter().map(|vip| vip_on("", vip)).collect(),
        ..Service::new(namespace, host)
    }
}

fn vip_on(network: &str, address: &str) -> NetworkAddress {
    NetworkAddress {
        network: network.into(),
        address: address.parse().unwrap(),
    }
}

fn store(services: Vec<Service>) -> Store {
    let mut store = Store::new(None);
    for service in services {
        store.upsert_service(service);
    }
    store
}

fn endpoint(name: &str, of: &Service, addresses: &[&str]) -> Workload {
    let identity = format!("spiffe://cluster.local/ns/shop/sa/{name}");
    Workload {
        addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
        services: vec![Membership {
            service: NamespacedHostname::new(of.namespace.clone(), of.hostname.clone()),
            ports: Ports::default(),
        }]
        .into(),
        ..Workload::new(
            format!("c//Pod/shop/{name}"),
            "shop",
            identity.parse().unwrap(),
        )
    }
}

/// What a client of a namespace is answered, sorted: `-` for no record, `forward` where the mesh has nothing to say; an
/// alias shows how many labels of the name are its target's.
fn asked(store: &Store, client: Client<'_>, host: &str, record_type: RecordType) -> String {
    let query = Query::for_host(host, record_type).unwrap();
    match decide(store, &domains(), client, &query, &mut rand::rng()) {
        Decision::Forward(Name::Foreign) => "forward".to_owned(),
        Decision::Forward(Name::OfTheMesh) => "forward known".to_owned(),
        Decision::Answer(Answer {
            alias_of,
            mut addresses,
        }) => {
            addresses.sort();
            let mut words: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
            if words.is_empty() {
                words.push("-".to_owned());
            }
            words.extend(alias_of.map(|labels| format!("alias of {labels}")));
            words.join(" ")
        }
    }
}

fn check(store: &Store, host: &str, expected: &str) {
    assert_eq!(
        asked(store, CLIENT, host, RecordType::A),
        expected,
        "{host}"
    );
}

#[test]
fn names_are_completed_as_a_clusters_resolver_would() {
    let store = store(vec![
        service("shop", "echo.shop.svc.cluster.local", &["10.96.0.1"]),
        service("shop", "web.shop.svc.cluster.local", &["10.96.0.2"]),
        service("bank", "echo.bank.svc.cluster.local", &["10.96.0.3"]),
    ]);
    for (host, expected) in [
        ("echo.shop.svc.cluster.local", "10.96.0.1"),
        ("echo.shop.svc.cluster", "forward"),
        ("echo.shop.svc", "10.96.0.1"),
        ("echo.shop", "10.96.0.1"),
        ("echo", "10.96.0.1"),
        ("ECHO.Shop", "10.96.0.1"),
        ("echo.bank", "10.96.0.3"),
        ("echo.bank.svc", "10.96.0.3"),
        ("other", "forward"),
        ("echo.other", "forward"),
        ("svc.cluster.local", "forward"),
        ("cluster.local", "forward"),
        ("local", "forward"),
        ("shop.svc.cluster.local", "forward"),
    ] {
        check(&store, host, expected);
    }
    let bank = Client {
        namespace: "bank",
        ..CLIENT
    };
    assert_eq!(asked(&store, bank, "echo", RecordType::A), "10.96.0.3");
    assert_eq!(asked(&store, bank, "web", RecordType::A), "forward");
}

#[test]
fn a_search_domain_makes_the_name_an_alias() {
    let store = store(vec![
        service("shop", "echo.shop.svc.cluster.local", &["10.96.0.1"]),
        service("shop", "api.example.com", &["240.0.0.1"]),
        service("shop", "*.wild.example.com", &["240.0.0.2"]),
    ]);
    for (host, expected) in [
        // What a stub resolver makes of short names before it asks for them as they are.
        ("echo.shop.shop.svc.cluster.local", "10.96.0.1 alias of 2"),
        ("echo.shop.svc.cluster.local", "10.96.0.1"),
        ("api.example.com", "240.0.0.1"),
        (
            "api.example.com.shop.svc.cluster.local",
            "240.0.0.1 alias of 3",
        ),
        ("api.example.com.svc.cluster.local", "240.0.0.1 alias of 3"),
        ("api.example.com.cluster.local", "240.0.0.1 alias of 3"),
        // The asked name is as good a member of the wildcard as the shorter one.
        ("x.wild.example.com.shop.svc.cluster.local", "240.0.0.2"),
        // Another namespace's search domain is not the client's: only `svc.cluster.local` is taken off.
        ("api.example.com.bank.svc.cluster.local", "forward"),
    ] {
        check(&store, host, expected);
    }
}

#[test]
fn the_narrowest_name_wins() {
    let store = store(vec![
        service("shop", "*.example.com", &["240.0.0.1"]),
        service("shop", "*.b.example.com", &["240.0.0.2"]),
        service("shop", "a.b.example.com", &["240.0.0.3"]),
        service("shop", "*.com", &["240.0.0.4"]),
    ]);
    for (host, expected) in [
        ("a.b.example.com", "240.0.0.3"),
        ("x.b.example.com", "240.0.0.2"),
        ("y.x.b.example.com", "240.0.0.2"),
        ("b.example.com", "240.0.0.1"),
        ("example.com", "240.0.0.4"),
        ("*.example.com", "240.0.0.1"),
        ("com", "forward"),
        ("example.org", "forward"),
    ] {
        check(&store, host, expected);
    }
}

#[test]
fn of_several_services_the_clients_own_is_meant_then_a_canonical_then_a_preferred_one() {
    let host = "api.example.com";
    let mut services = vec![
        service("a", host, &["240.0.0.1"]),
        service("b", host, &["240.0.0.2"]),
        service("c", host, &["240.0.0.3"]),
    ];
    let preferring = Domains {
        preferred_namespace: Some("c".into()),
        ..domains()
    };
    let meant = |services: &[Service], domains: &Domains, namespace: &str| {
        let client = Client {
            namespace,
            ..CLIENT
        };
        let store = store(services.to_vec());
        let found = pick(&store, domains, client, host, Family::V4, &mut rand::rng());
        found.flatten().map(|address| address.to_string()).unwrap()
    };
    assert_eq!(meant(&services, &domains(), "shop"), "240.0.0.1");
    assert_eq!(meant(&services, &domains(), "b"), "240.0.0.2");
    assert_eq!(meant(&services, &preferring, "shop"), "240.0.0.3");
    services[1].canonical = true;
    assert_eq!(meant(&services, &preferring, "shop"), "240.0.0.2");
    assert_eq!(meant(&services, &preferring, "a"), "240.0.0.1");
    services[1].visibility = Visibility::Namespace;
    assert_eq!(meant(&services, &preferring, "shop"), "240.0.0.3");
    assert_eq!(meant(&services, &preferring, "b"), "240.0.0.2");
}

#[test]
fn a_service_that_the_client_may_not_see_is_none_of_the_meshs() {
    let hidden = Service {
        visibility: Visibility::Namespace,
        ..service("bank", "api.example.com", &["240.0.0.1"])
    };
    check(&store(vec![hidden]), "api.example.com", "forward");
}

#[test]
fn only_addresses_of_the_asked_family_and_the_clients_network_are_answered() {
    let store = store(vec![Service {
        vips: vec![
            vip_on("", "10.96.0.1"),
            vip_on("", "fd96::1"),
            vip_on("far", "10.96.0.2"),
        ],
        ..Service::new("shop", "echo.shop.svc.cluster.local")
    }]);
    let as_asked = |client, record_type| asked(&store, client, "echo", record_type);
    assert_eq!(as_asked(CLIENT, RecordType::A), "10.96.0.1");
    assert_eq!(as_asked(CLIENT, RecordType::AAAA), "fd96::1");
    let far = Client {
        network: "far",
        ..CLIENT
    };
    assert_eq!(as_asked(far, RecordType::A), "10.96.0.2");
    assert_eq!(as_asked(far, RecordType::AAAA), "-");
    let without_ipv6 = Client {
        ipv6: Ipv6::Disabled,
        ..CLIENT
    };
    assert_eq!(as_asked(without_ipv6, RecordType::AAAA), "-");
    assert_eq!(as_asked(CLIENT, RecordType(33)), "forward known");
    assert_eq!(asked(&store, CLIENT, "x.org", RecordType(33)), "forward");
}

#[test]
fn the_services_address_families_are_kept() {
    let with = |ip_families| {
        let both = service("shop", "api.example.com", &["240.0.0.1", "fd00::1"]);
        store(vec![Service {
            ip_families,
            ..both
        }])
    };
    let both = |families| {
        [RecordType::A, RecordType::AAAA]
            .map(|record_type| asked(&with(families), CLIENT, "api.example.com", record_type))
    };
    assert_eq!(both(IpFamilies::Automatic), ["240.0.0.1", "fd00::1"]);
    assert_eq!(both(IpFamilies::Dual), ["240.0.0.1", "fd00::1"]);
    assert_eq!(both(IpFamilies::V4Only), ["240.0.0.1", "-"]);
    assert_eq!(both(IpFamilies::V6Only), ["-", "fd00::1"]);
}

#[test]
fn a_headless_service_is_answered_with_its_endpoints() {
    let headless = service("shop", "web.shop.svc.cluster.local", &[]);
    let mut store = store(vec![headless.clone()]);
    check(&store, "web", "-");
    store.upsert_workload(endpoint(
        "a",
        &headless,
        &["10.0.0.1", "10.0.0.9", "fd00::1"],
    ));
    store.upsert_workload(endpoint("b", &headless, &["10.0.0.2"]));
    store.upsert_workload(Workload {
        network: "far".into(),
        ..endpoint("c", &headless, &["10.0.0.3"])
    });
    store.upsert_workload(Workload {
        status: HealthStatus::Unhealthy,
        ..endpoint("d", &headless, &["10.0.0.4"])
    });
    check(&store, "web", "10.0.0.1 10.0.0.2");
    // Its single pods are not told to the mesh by the names that they have there, so upstream answers.
    for pod in [
        "a.web",
        "a.web.shop",
        "a.web.shop.svc",
        "a.web.shop.svc.cluster.local",
    ] {
        check(&store, pod, "forward");
    }
    assert_eq!(asked(&store, CLIENT, "web", RecordType::AAAA), "fd00::1");
    store.upsert_service(Service {
        load_balancer: LoadBalancer {
            health_policy: HealthPolicy::AllowAll,
            ..LoadBalancer::default()
        },
        ..headless
    });
    check(&store, "web", "10.0.0.1 10.0.0.2 10.0.0.4");
}

#[test]
fn a_foreign_host_without_an_address_of_its_own_is_left_to_upstream() {
    let mut ranged = service("shop", "ranged.example.com", &[]);
    ranged.cidr_vips = vec![mesh::NetworkCidr {
        network: "".into(),
        cidr: "240.0.0.0/8".parse().unwrap(),
    }];
    let store = store(vec![service("shop", "bare.example.com", &[]), ranged]);
    check(&store, "bare.example.com", "forward");
    check(&store, "ranged.example.com", "forward");
}

#[test]
fn other_classes_are_left_to_upstream() {
    let store = store(vec![service(
        "shop",
        "echo.shop.svc.cluster.local",
        &["10.96.0.1"],
    )]);
    let mut message = Query::for_host("echo", RecordType::A)
        .unwrap()
        .bytes()
        .to_vec();
    *message.last_mut().unwrap() = 3;
    let query = Query::parse(&message).unwrap();
    let decided = decide(&store, &domains(), CLIENT, &query, &mut rand::rng());
    assert_eq!(decided, Decision::Forward(Name::Foreign));
}

#[test]
fn the_order_of_addresses_is_drawn_anew_each_time() {
    let addresses: Vec<String> = (1..=8).map(|n| format!("240.0.0.{n}")).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let store = store(vec![service("shop", "api.example.com", &addresses)]);
    let query = Query::for_host("api.example.com", RecordType::A).unwrap();
    let firsts: BTreeSet<IpAddr> = (0..200)
        .map(
            |_| match decide(&store, &domains(), CLIENT, &query, &mut rand::rng()) {
                Decision::Answer(answer) => answer.addresses[0],
                Decision::Forward(_) => panic!("is the mesh's"),
            },
        )
        .collect();
    assert_eq!(firsts.len(), 8);
}
