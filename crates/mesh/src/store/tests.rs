// SPDX-License-Identifier: Apache-2.0

mod order;

use super::*;
use crate::address::{GatewayAddress, NetworkCidr, Ports};
use crate::policy::{Action, Clause, Enforcement, Match, PolicyScope, Rule, StringMatch};
use crate::service::Visibility;
use crate::workload::{Membership, NetworkMode, TunnelProtocol};

fn workload(uid: &str, address: &str) -> Workload {
    let mut workload = Workload::new(uid, "shop", id("cart"));
    workload.name = uid.rsplit('/').next().unwrap().into();
    workload.node = "n1".into();
    workload.addresses = vec![ip(address)];
    workload
}

fn backing(uid: &str, address: &str, services: &[&str]) -> Workload {
    let memberships = services.iter().map(|name| Membership {
        service: name.parse().unwrap(),
        ports: Ports::from_iter([(80, 8080)]),
    });
    Workload {
        services: memberships.collect(),
        ..workload(uid, address)
    }
}

fn service(namespace: &str, hostname: &str, vip: &str) -> Service {
    let mut service = Service::new(namespace, hostname);
    service.vips = vec![format!("/{vip}").parse().unwrap()];
    service
}

fn ranged(namespace: &str, hostname: &str, cidr: &str) -> Service {
    let mut service = Service::new(namespace, hostname);
    service.cidr_vips = vec![NetworkCidr {
        network: "".into(),
        cidr: cidr.parse().unwrap(),
    }];
    service
}

fn policy(namespace: &str, name: &str, scope: PolicyScope) -> Policy {
    Policy {
        name: name.into(),
        namespace: namespace.into(),
        scope,
        action: Action::Allow,
        rules: vec![],
        enforcement: Enforcement::Enforced,
    }
}

fn id(account: &str) -> SpiffeId {
    format!("spiffe://cluster.local/ns/shop/sa/{account}")
        .parse()
        .unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn uids(workloads: &[Arc<Workload>]) -> Vec<&str> {
    workloads.iter().map(|workload| &*workload.uid).collect()
}

#[test]
fn a_workload_is_found_by_uid_address_host_and_its_own_name() {
    let mut store = Store::new(Some("n1"));
    let mut pod = workload("c1//Pod/shop/cart-0", "10.0.0.1");
    pod.network = "net".into();
    pod.hostname = "cart-0.cart".into();
    store.upsert_workload(pod);
    assert!(store.workload("c1//Pod/shop/cart-0").is_some());
    assert!(store.workload_by_ip("net", ip("10.0.0.1")).is_some());
    assert!(store.workload_by_ip("", ip("10.0.0.1")).is_none());
    assert!(store.workload_by_hostname("shop", "cart-0.cart").is_some());
    assert!(store.workload_by_hostname("other", "cart-0.cart").is_none());
    assert!(
        store
            .local_workloads("shop", "cart", "cart-0")
            .next()
            .is_some()
    );
    assert!(
        store
            .local_workloads("shop", "other", "cart-0")
            .next()
            .is_none()
    );
    store.remove("c1//Pod/shop/cart-0");
    assert!(store.workload("c1//Pod/shop/cart-0").is_none());
    assert!(store.workload_by_ip("net", ip("10.0.0.1")).is_none());
    assert!(store.workload_by_hostname("shop", "cart-0.cart").is_none());
    assert!(
        store
            .local_workloads("shop", "cart", "cart-0")
            .next()
            .is_none()
    );
}

#[test]
fn an_update_replaces_every_trace_of_the_workload_before_it() {
    let mut store = Store::new(None);
    store.upsert_workload(backing("u", "10.0.0.1", &["shop/a"]));
    store.upsert_workload(backing("u", "10.0.0.2", &["shop/b"]));
    assert!(store.workload_by_ip("", ip("10.0.0.1")).is_none());
    assert!(store.workload_by_ip("", ip("10.0.0.2")).is_some());
    assert!(store.endpoints(&Service::new("shop", "a")).is_empty());
    assert_eq!(uids(store.endpoints(&Service::new("shop", "b"))), ["u"]);
}

#[test]
fn of_workloads_that_share_an_address_pods_and_then_hbone_come_first() {
    let mut store = Store::new(None);
    let at = |store: &Store| {
        store
            .workload_by_ip("", ip("10.0.0.1"))
            .unwrap()
            .uid
            .to_string()
    };
    store.upsert_workload(workload("c1//WorkloadEntry/shop/a", "10.0.0.1"));
    store.upsert_workload(workload("c1//WorkloadEntry/shop/b", "10.0.0.1"));
    assert_eq!(at(&store), "c1//WorkloadEntry/shop/a");
    store.upsert_workload(Workload {
        protocol: TunnelProtocol::Hbone,
        ..workload("c1//WorkloadEntry/shop/c", "10.0.0.1")
    });
    assert_eq!(at(&store), "c1//WorkloadEntry/shop/c");
    store.upsert_workload(workload("c1//Pod/shop/d", "10.0.0.1"));
    assert_eq!(at(&store), "c1//Pod/shop/d");
    store.remove("c1//Pod/shop/d");
    assert_eq!(at(&store), "c1//WorkloadEntry/shop/c");
}

#[test]
fn a_workload_on_its_nodes_address_is_no_ones_address_but_an_endpoint() {
    let mut store = Store::new(None);
    store.upsert_service(service("shop", "cart", "10.96.0.1"));
    store.upsert_workload(Workload {
        network_mode: NetworkMode::HostNetwork,
        ..backing("u", "192.168.0.1", &["shop/cart"])
    });
    assert!(store.workload_by_ip("", ip("192.168.0.1")).is_none());
    let service = store.service("shop", "cart").unwrap();
    assert_eq!(uids(store.endpoints(service)), ["u"]);
}

#[test]
fn a_workload_on_another_node_is_not_local() {
    let mut store = Store::new(Some("n2"));
    store.upsert_workload(workload("c1//Pod/shop/cart-0", "10.0.0.1"));
    assert!(
        store
            .local_workloads("shop", "cart", "cart-0")
            .next()
            .is_none()
    );
}

#[test]
fn endpoints_that_come_first_wait_for_their_service() {
    let mut store = Store::new(None);
    store.upsert_workload(backing("b", "10.0.0.2", &["shop/cart"]));
    store.upsert_workload(backing("a", "10.0.0.1", &["shop/cart"]));
    assert!(store.service("shop", "cart").is_none());
    let staged: Vec<_> = store
        .staged()
        .map(|(key, list)| (key.to_string(), uids(list)))
        .collect();
    assert_eq!(staged, [("shop/cart".to_owned(), vec!["a", "b"])]);
    store.upsert_service(service("shop", "cart", "10.96.0.1"));
    assert_eq!(store.staged().count(), 0);
    let service = store.service("shop", "cart").unwrap();
    assert_eq!(uids(store.endpoints(service)), ["a", "b"]);
}

#[test]
fn a_service_that_goes_and_comes_back_finds_its_endpoints() {
    let mut store = Store::new(None);
    store.upsert_service(service("shop", "cart", "10.96.0.1"));
    store.upsert_workload(backing("a", "10.0.0.1", &["shop/cart"]));
    store.remove("shop/cart");
    assert!(store.service("shop", "cart").is_none());
    assert!(store.service_by_vip("", ip("10.96.0.1"), None).is_none());
    store.upsert_service(service("shop", "cart", "10.96.0.2"));
    let service = store.service_by_vip("", ip("10.96.0.2"), None).unwrap();
    assert_eq!(uids(store.endpoints(service)), ["a"]);
}

/// What a removal by this name leaves of a workload `shop/cart` and services `shop/cart`, `shop/other`.
fn check_removal(name: &str, changed: bool, left: (usize, usize)) {
    let mut store = Store::new(None);
    store.upsert_workload(workload("shop/cart", "10.0.0.1"));
    store.upsert_workload(workload("c1//Pod/shop/cart-0", "10.0.0.2"));
    store.upsert_service(service("shop", "cart", "10.96.0.1"));
    store.upsert_service(service("shop", "other", "10.96.0.2"));
    assert_eq!(!store.remove(name).is_empty(), changed, "{name}");
    assert_eq!(
        (store.workload_count(), store.service_count()),
        left,
        "{name}"
    );
}

#[test]
fn a_removed_name_is_a_uid_first_and_else_a_service() {
    check_removal("shop/cart", true, (1, 2));
    check_removal("c1//Pod/shop/cart-0", true, (1, 2));
    check_removal("shop/other", true, (2, 1));
    check_removal("c1//Pod/shop/cart-9", false, (2, 2));
    check_removal("shop/other/more", false, (2, 2));
    check_removal("other", false, (2, 2));
    check_removal("", false, (2, 2));
}

/// Which namespace's service `cart` a client of a namespace gets.
fn check_vip(services: &[Service], client: Option<&str>, address: &str, expected: Option<&str>) {
    let mut store = Store::new(None);
    for service in services {
        store.upsert_service(service.clone());
    }
    let found = store.service_by_vip("", ip(address), client);
    assert_eq!(
        found.map(|service| &*service.namespace),
        expected,
        "{client:?} {address}"
    );
}

#[test]
fn of_services_that_share_an_address_the_clients_own_comes_first_then_a_canonical_one() {
    let a = service("a", "cart", "10.96.0.1");
    let b = service("b", "cart", "10.96.0.1");
    let canonical = Service {
        canonical: true,
        ..service("c", "cart", "10.96.0.1")
    };
    let all = [a.clone(), b.clone(), canonical];
    check_vip(&all, Some("b"), "10.96.0.1", Some("b"));
    check_vip(&all, Some("x"), "10.96.0.1", Some("c"));
    check_vip(&all, None, "10.96.0.1", Some("c"));
    check_vip(&[b, a], Some("x"), "10.96.0.1", Some("a"));
}

#[test]
fn a_hidden_service_is_not_there_for_others() {
    let hidden = Service {
        visibility: Visibility::Namespace,
        ..service("a", "cart", "10.96.0.1")
    };
    let range = ranged("b", "wide", "10.96.0.0/16");
    check_vip(
        std::slice::from_ref(&hidden),
        Some("a"),
        "10.96.0.1",
        Some("a"),
    );
    check_vip(std::slice::from_ref(&hidden), Some("x"), "10.96.0.1", None);
    check_vip(std::slice::from_ref(&hidden), None, "10.96.0.1", Some("a"));
    check_vip(&[hidden, range], Some("x"), "10.96.0.1", Some("b"));
}

#[test]
fn of_ranges_the_clients_own_outweighs_the_longer_and_the_canonical() {
    let wide = ranged("a", "wide", "10.0.0.0/8");
    let narrow = ranged("b", "narrow", "10.96.0.0/16");
    let canonical = Service {
        canonical: true,
        ..ranged("c", "canonical", "10.96.0.0/16")
    };
    let all = [wide, narrow, canonical];
    check_vip(&all, Some("a"), "10.96.0.1", Some("a"));
    check_vip(&all, Some("x"), "10.96.0.1", Some("c"));
    check_vip(&all[..2], Some("x"), "10.96.0.1", Some("b"));
    check_vip(&all, Some("x"), "10.1.0.1", Some("a"));
    check_vip(&all, Some("x"), "11.1.0.1", None);
}

#[test]
fn a_host_name_is_resolved_as_an_address_is() {
    let mut store = Store::new(None);
    store.upsert_service(service("a", "cart.example.com", "10.96.0.1"));
    store.upsert_service(service("b", "cart.example.com", "10.96.0.2"));
    let by_host = |client| {
        let found = store.service_by_host("cart.example.com", client);
        found.map(|service| service.namespace.to_string())
    };
    assert_eq!(by_host(Some("b")).as_deref(), Some("b"));
    assert_eq!(by_host(Some("x")).as_deref(), Some("a"));
    assert!(store.service_by_host("other.example.com", None).is_none());
}

#[test]
fn an_address_is_a_workloads_before_it_is_a_services() {
    let mut store = Store::new(None);
    store.upsert_service(service("a", "cart", "10.0.0.1"));
    assert!(matches!(
        store.find("", ip("10.0.0.1"), None),
        Some(Found::Service(_))
    ));
    store.upsert_workload(workload("u", "10.0.0.1"));
    assert!(matches!(
        store.find("", ip("10.0.0.1"), None),
        Some(Found::Workload(_))
    ));
}

#[test]
fn policies_apply_by_scope_and_by_name() {
    let mut store = Store::new(None);
    for (namespace, name, scope) in [
        ("root", "everywhere", PolicyScope::Global),
        ("", "nowhere-in-particular", PolicyScope::Namespace),
        ("shop", "here", PolicyScope::Namespace),
        ("other", "there", PolicyScope::Namespace),
        ("shop", "selected", PolicyScope::WorkloadSelector),
        ("shop", "unselected", PolicyScope::WorkloadSelector),
    ] {
        store.upsert_policy(
            format!("{namespace}/{name}"),
            policy(namespace, name, scope),
        );
    }
    let mut pod = workload("u", "10.0.0.1");
    pod.authorization_policies = vec![
        "shop/selected".into(),
        "shop/late".into(),
        "shop/here".into(),
    ];
    let set = store.policies_for(&pod);
    let names: Vec<_> = set.names().map(|name| name.to_string()).collect();
    assert_eq!(
        names,
        [
            "/nowhere-in-particular",
            "root/everywhere",
            "shop/here",
            "shop/selected"
        ]
    );
    assert_eq!(set.missing, [Arc::from("shop/late")]);
    store.remove_policy("shop/here");
    store.remove_policy("root/everywhere");
    assert_eq!(store.policies_for(&pod).missing.len(), 2);
    assert_eq!(
        store
            .policies_for(&workload("v", "10.0.0.2"))
            .names()
            .count(),
        1
    );
}

#[test]
fn policies_ask_beyond_a_waypoint_where_they_tell_its_clients_apart() {
    let by = |principal: &str| Match {
        principals: vec![StringMatch::Exact(principal.into())].into(),
        ..Match::default()
    };
    let put = |store: &mut Store, name: &str, namespace: &str, scope, m: Match| {
        let clause = Clause { matches: vec![m] };
        let rule = Rule {
            clauses: vec![clause],
        };
        store.upsert_policy(
            format!("{namespace}/{name}"),
            Policy {
                rules: vec![rule],
                ..policy(namespace, name, scope)
            },
        );
    };
    let mut store = Store::new(None);
    let mut pod = workload("u", "10.0.0.1");
    pod.authorization_policies = vec!["shop/named".into()];
    let asks = |store: &Store| store.policies_ask_beyond(&pod, &id("waypoint"));
    assert!(!asks(&store));
    let waypoint = by("cluster.local/ns/shop/sa/waypoint");
    put(
        &mut store,
        "named",
        "shop",
        PolicyScope::WorkloadSelector,
        waypoint,
    );
    assert!(!asks(&store), "only the waypoint is named");
    let any = Match {
        not_principals: vec![StringMatch::Presence].into(),
        ..Match::default()
    };
    put(&mut store, "strict", "shop", PolicyScope::Namespace, any);
    assert!(!asks(&store), "anybody with an identity will do");
    let ports = Match {
        destination_ports: vec![80].into(),
        ..Match::default()
    };
    put(&mut store, "ports", "shop", PolicyScope::Namespace, ports);
    let client = || by("cluster.local/ns/shop/sa/client");
    put(
        &mut store,
        "elsewhere",
        "other",
        PolicyScope::Namespace,
        client(),
    );
    put(
        &mut store,
        "of-others",
        "shop",
        PolicyScope::WorkloadSelector,
        client(),
    );
    assert!(!asks(&store), "nothing that concerns it names a client");
    for (name, namespace, scope) in [
        ("named", "shop", PolicyScope::WorkloadSelector),
        ("here", "shop", PolicyScope::Namespace),
        ("everywhere", "root", PolicyScope::Global),
    ] {
        put(&mut store, name, namespace, scope, client());
        assert!(asks(&store), "{name}");
        store.remove_policy(&format!("{namespace}/{name}"));
        assert!(!asks(&store), "{name} is gone");
    }
}

#[test]
fn a_policy_that_changes_scope_leaves_its_old_place() {
    let mut store = Store::new(None);
    store.upsert_policy("shop/p", policy("shop", "p", PolicyScope::Global));
    store.upsert_policy("shop/p", policy("shop", "p", PolicyScope::WorkloadSelector));
    assert!(store.policies_for(&workload("u", "10.0.0.1")).is_empty());
}

fn meshed(uid: &str, account: &str, node: &str) -> Workload {
    Workload {
        protocol: TunnelProtocol::Hbone,
        identity: id(account),
        node: node.into(),
        ..workload(uid, "10.0.0.1")
    }
}

#[test]
fn identities_of_this_node_are_announced_with_the_first_and_dropped_with_the_last_workload() {
    let mut store = Store::new(Some("n1"));
    assert_eq!(
        store
            .upsert_workload(meshed("a", "cart", "n1"))
            .identities_added,
        [id("cart")]
    );
    assert!(
        store
            .upsert_workload(meshed("b", "cart", "n1"))
            .identities_added
            .is_empty()
    );
    assert!(
        store
            .upsert_workload(meshed("c", "cart", "n2"))
            .identities_added
            .is_empty()
    );
    assert!(store.remove("a").identities_removed.is_empty());
    assert_eq!(store.remove("b").identities_removed, [id("cart")]);
    assert!(store.remove("c").identities_removed.is_empty());
}

#[test]
fn the_uid_of_a_pod_is_kept_on_its_own_node_alone() {
    let mut store = Store::new(Some("n1"));
    let with = |name: &str, node, uid: &str| Workload {
        pod_uid: Some(Box::new(uid.into())),
        ..meshed(name, "cart", node)
    };
    store.upsert_workload(with("here", "n1", "u1"));
    store.upsert_workload(with("there", "n2", "u1"));
    let kept = |store: &Store, name| store.workload(name).unwrap().pod_uid.is_some();
    assert_eq!((kept(&store, "here"), kept(&store, "there")), (true, false));
    // A successor that differs in nothing else is news where it runs.
    assert_eq!(
        store.upsert_workload(with("here", "n1", "u2")).workloads,
        ["here".into()]
    );
    assert!(store.upsert_workload(with("there", "n2", "u2")).is_empty());
    let mut everywhere = Store::new(None);
    everywhere.upsert_workload(with("there", "n2", "u1"));
    assert!(kept(&everywhere, "there"));
}

#[test]
fn a_plain_workload_needs_no_certificate_until_it_is_in_the_mesh() {
    let mut store = Store::new(Some("n1"));
    let plain = Workload {
        protocol: TunnelProtocol::None,
        ..meshed("a", "cart", "n1")
    };
    assert!(
        store
            .upsert_workload(plain.clone())
            .identities_added
            .is_empty()
    );
    assert_eq!(store.local_identities().count(), 0);
    assert_eq!(
        store
            .upsert_workload(meshed("a", "cart", "n1"))
            .identities_added,
        [id("cart")]
    );
    assert_eq!(store.local_identities().collect::<Vec<_>>(), [&id("cart")]);
    assert!(store.upsert_workload(plain).identities_removed.is_empty());
    assert_eq!(store.remove("a").identities_removed, [id("cart")]);
}

#[test]
fn a_workload_that_is_replaced_in_one_batch_loses_no_certificate() {
    let mut store = Store::new(Some("n1"));
    store.upsert_workload(meshed("a", "cart", "n1"));
    let changes = store.apply_addresses(AddressBatch {
        workloads: vec![meshed("b", "cart", "n1")],
        removed: vec!["a".into()],
        ..AddressBatch::default()
    });
    assert!(changes.identities_added.is_empty());
    assert!(changes.identities_removed.is_empty());
    assert_eq!(changes.workloads, [Arc::from("a"), Arc::from("b")]);
}

#[test]
fn without_a_node_name_nothing_is_announced_but_what_goes_is_dropped() {
    let mut store = Store::new(None);
    assert!(
        store
            .upsert_workload(meshed("a", "cart", "n1"))
            .identities_added
            .is_empty()
    );
    assert_eq!(store.remove("a").identities_removed, [id("cart")]);
}

#[test]
fn a_repeated_update_changes_nothing() {
    let mut store = Store::new(Some("n1"));
    let once = |store: &mut Store| {
        let mut changes = vec![
            store.upsert_workload(backing("a", "10.0.0.1", &["shop/cart"])),
            store.upsert_service(service("shop", "cart", "10.96.0.1")),
            store.upsert_policy("shop/p", policy("shop", "p", PolicyScope::Global)),
        ];
        changes.retain(|changes| !changes.is_empty());
        changes.len()
    };
    assert_eq!(once(&mut store), 3);
    let generation = store.generation();
    assert_eq!(once(&mut store), 0);
    assert!(store.remove("nobody").is_empty());
    assert!(store.remove_policy("shop/none").is_empty());
    assert_eq!(store.generation(), generation);
}

#[test]
fn equal_texts_and_identities_are_held_once() {
    let mut store = Store::new(None);
    let gateway = || GatewayAddress {
        destination: "shop/wp".parse().unwrap(),
        hbone_mtls_port: 15008,
    };
    for (uid, address) in [("a", "10.0.0.1"), ("b", "10.0.0.2")] {
        let waypoint = Some(gateway());
        store.upsert_workload(Workload {
            waypoint,
            ..backing(uid, address, &["shop/cart"])
        });
    }
    let (a, b) = (store.workload("a").unwrap(), store.workload("b").unwrap());
    assert!(Arc::ptr_eq(&a.namespace, &b.namespace));
    assert!(Arc::ptr_eq(
        &a.services[0].service.hostname,
        &b.services[0].service.hostname
    ));
    assert_eq!(a.identity.as_str().as_ptr(), b.identity.as_str().as_ptr());
}
