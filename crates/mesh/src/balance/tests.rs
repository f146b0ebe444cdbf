// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::*;
use crate::address::{GatewayAddress, NamespacedHostname, Ports};
use crate::service::IpFamilies;
use crate::standing::Standings;
use crate::workload::{ApplicationProtocol, ApplicationTunnel, Locality, Membership};

const HOST: &str = "cart.shop.svc.cluster.local";

fn workload(uid: &str, address: &str) -> Workload {
    let identity = "spiffe://cluster.local/ns/shop/sa/cart".parse().unwrap();
    let mut workload = Workload::new(uid, "shop", identity);
    workload.addresses = vec![address.parse().unwrap()];
    workload.services = vec![Membership {
        service: NamespacedHostname::new("shop", HOST),
        ports: Ports::from_iter([(80, 8080)]),
    }]
    .into();
    workload
}

fn placed(uid: &str, place: &str) -> Workload {
    let mut parts = place.split('/').map(Arc::<str>::from);
    let mut part = || parts.next().unwrap();
    Workload {
        network: part(),
        locality: Arc::new(Locality {
            region: part(),
            zone: part(),
            subzone: "".into(),
        }),
        node: part(),
        ..workload(uid, "10.0.0.1")
    }
}

fn service() -> Service {
    let mut service = Service::new("shop", HOST);
    service.ports = Ports::from_iter([(80, 8000), (90, 0)]);
    service
}

fn store(service: Service, endpoints: Vec<Workload>) -> (Store, Arc<Service>) {
    let mut store = Store::new(None);
    store.upsert_service(service);
    for endpoint in endpoints {
        store.upsert_workload(endpoint);
    }
    let service = store.service("shop", HOST).unwrap().clone();
    (store, service)
}

/// Picks for port 80 as a node would that has seen nothing of the endpoints.
fn pick_unseen(
    store: &Store,
    service: &Arc<Service>,
    source: &Workload,
    port: u16,
    rng: &mut StdRng,
) -> Result<Upstream, NoEndpoint> {
    let seen = Seen {
        standings: &Standings::default(),
        tried: &[],
        now: Instant::now(),
    };
    pick(store, service, source, port, PortRule::Defined, seen, rng)
}

/// How often each endpoint is picked in a thousand tries.
fn picks(service: Service, source: &Workload, endpoints: Vec<Workload>) -> BTreeMap<String, u32> {
    picks_by(&Standings::default(), service, source, endpoints)
}

fn picks_by(
    standings: &Standings,
    service: Service,
    source: &Workload,
    endpoints: Vec<Workload>,
) -> BTreeMap<String, u32> {
    let (store, service) = store(service, endpoints);
    let mut rng = StdRng::seed_from_u64(7);
    let mut picks = BTreeMap::new();
    let seen = Seen {
        standings,
        tried: &[],
        now: Instant::now(),
    };
    for _ in 0..1000 {
        let rule = PortRule::Defined;
        let upstream = pick(&store, &service, source, 80, rule, seen, &mut rng).unwrap();
        *picks.entry(upstream.workload.uid.to_string()).or_default() += 1;
    }
    picks
}

fn picked(service: Service, source: &Workload, endpoints: Vec<Workload>) -> Vec<String> {
    picks(service, source, endpoints).into_keys().collect()
}

fn refusal(service: Service, endpoints: Vec<Workload>, port: u16) -> NoEndpoint {
    let (store, service) = store(service, endpoints);
    let source = workload("source", "10.0.0.9");
    let mut rng = StdRng::seed_from_u64(7);
    pick_unseen(&store, &service, &source, port, &mut rng).unwrap_err()
}

fn balanced(mode: Mode, scopes: &[Scope]) -> Service {
    let mut service = service();
    service.load_balancer.mode = mode;
    service.load_balancer.routing_preferences = scopes.to_vec();
    service
}

#[test]
fn endpoints_are_drawn_by_capacity() {
    let weighted = |uid, capacity| Workload {
        capacity,
        ..workload(uid, "10.0.0.1")
    };
    let source = workload("source", "10.0.0.9");
    let picks = picks(
        service(),
        &source,
        vec![weighted("a", 3), weighted("b", 1), weighted("c", 0)],
    );
    assert!((650..850).contains(&picks["a"]), "{picks:?}");
    assert!((150..350).contains(&picks["b"]), "{picks:?}");
    assert!(!picks.contains_key("c"));
}

/// An endpoint as the balancer of the test's service knows it.
fn known(uid: &str) -> Endpoint {
    Endpoint {
        workload: uid.into(),
        port: 8080,
    }
}

fn failing(uids: &[&str]) -> Standings {
    let mut standings = Standings::default();
    for uid in uids {
        standings.failed(&known(uid), Instant::now());
    }
    standings
}

#[test]
fn what_fails_is_avoided_until_everything_does() {
    let source = workload("source", "10.0.0.9");
    let check = |out: &[&str], expected: &[&str]| {
        let endpoints = ["a", "b", "c"].map(|uid| workload(uid, "10.0.0.1")).into();
        let picks = picks_by(&failing(out), service(), &source, endpoints);
        let picked: Vec<_> = picks.into_keys().collect();
        assert_eq!(picked, expected, "while {out:?} are out");
    };
    check(&[], &["a", "b", "c"]);
    check(&["b"], &["a", "c"]);
    check(&["a", "b"], &["c"]);
    check(&["a", "b", "c"], &["a", "b", "c"]);
    check(&["somebody else"], &["a", "b", "c"]);
}

#[test]
fn an_endpoint_without_capacity_is_no_way_out() {
    let source = workload("source", "10.0.0.9");
    let idle = Workload {
        capacity: 0,
        ..workload("idle", "10.0.0.1")
    };
    let endpoints = vec![workload("a", "10.0.0.1"), idle];
    let picks = picks_by(&failing(&["a"]), service(), &source, endpoints);
    assert_eq!(picks.into_keys().collect::<Vec<_>>(), ["a"]);
}

#[test]
fn failover_leaves_a_locality_whose_endpoints_fail_and_strict_does_not() {
    let source = placed("source", "n/r/z/1");
    let check = |mode, out: &[&str], expected: &[&str]| {
        let places = [
            ("near", "n/r/z/1"),
            ("near2", "n/r/z/2"),
            ("far", "n/q/y/1"),
        ];
        let endpoints = places.map(|(uid, place)| placed(uid, place)).into();
        let service = balanced(mode, &[Scope::Region, Scope::Zone]);
        let picks = picks_by(&failing(out), service, &source, endpoints);
        let picked: Vec<_> = picks.into_keys().collect();
        assert_eq!(picked, expected, "{mode:?} while {out:?} are out");
    };
    check(Mode::Failover, &[], &["near", "near2"]);
    check(Mode::Failover, &["near"], &["near2"]);
    check(Mode::Failover, &["near", "near2"], &["far"]);
    check(
        Mode::Failover,
        &["near", "near2", "far"],
        &["near", "near2"],
    );
    check(Mode::Strict, &["near", "near2"], &["near", "near2"]);
}

#[test]
fn a_connection_never_tries_an_endpoint_twice() {
    let endpoints = ["a", "b"].map(|uid| workload(uid, "10.0.0.1")).into();
    let (store, service) = store(service(), endpoints);
    let source = workload("source", "10.0.0.9");
    let mut rng = StdRng::seed_from_u64(7);
    let mut tried = Vec::new();
    let standings = Standings::default();
    let mut next = |tried: &[Endpoint]| {
        let seen = Seen {
            standings: &standings,
            tried,
            now: Instant::now(),
        };
        let rule = PortRule::Defined;
        pick(&store, &service, &source, 80, rule, seen, &mut rng)
    };
    for _ in 0..2 {
        let upstream = next(&tried).unwrap();
        let endpoint = known(&upstream.workload.uid);
        assert!(!tried.contains(&endpoint));
        tried.push(endpoint);
    }
    assert_eq!(next(&tried).unwrap_err(), NoEndpoint::AllTried);
}

proptest! {
    /// Connections that stay open spread over the endpoints by capacity, whatever the capacities are.
    #[test]
    fn open_connections_spread_by_capacity(
        capacities in prop::collection::vec(0..5_u32, 2..6),
        seed in any::<u64>(),
    ) {
        prop_assume!(capacities.iter().any(|capacity| *capacity > 0));
        let endpoints = capacities.iter().enumerate().map(|(place, capacity)| Workload {
            capacity: *capacity,
            ..workload(&place.to_string(), "10.0.0.1")
        });
        let (store, service) = store(service(), endpoints.collect());
        let source = workload("source", "10.0.0.9");
        let mut rng = StdRng::seed_from_u64(seed);
        let mut standings = Standings::default();
        let now = Instant::now();
        let total: u32 = capacities.iter().sum();
        for _ in 0..total * 40 {
            let seen = Seen { standings: &standings, tried: &[], now };
            let rule = PortRule::Defined;
            let upstream = pick(&store, &service, &source, 80, rule, seen, &mut rng).unwrap();
            standings.began(&known(&upstream.workload.uid), now);
        }
        for (place, capacity) in capacities.iter().enumerate() {
            let load = standings.load(&known(&place.to_string()));
            let fair = capacity * 40;
            prop_assert!(
                load.abs_diff(fair) <= 12,
                "{capacities:?}: endpoint {place} carries {load} instead of about {fair}"
            );
        }
    }

    /// Of two endpoints the busier one for its capacity is never taken.
    #[test]
    fn the_less_loaded_of_two_is_taken(
        capacity in 1..9_u32,
        other_capacity in 1..9_u32,
        load in 0..20_u32,
        other_load in 0..20_u32,
        seed in any::<u64>(),
    ) {
        let endpoints = [("a", capacity), ("b", other_capacity)]
            .map(|(uid, capacity)| Workload { capacity, ..workload(uid, "10.0.0.1") });
        let (store, service) = store(service(), endpoints.into());
        let mut standings = Standings::default();
        let now = Instant::now() + Duration::from_secs(1);
        for (uid, load) in [("a", load), ("b", other_load)] {
            (0..load).for_each(|_| standings.began(&known(uid), now));
        }
        let seen = Seen { standings: &standings, tried: &[], now };
        let source = workload("source", "10.0.0.9");
        let mut rng = StdRng::seed_from_u64(seed);
        let rule = PortRule::Defined;
        let picked = pick(&store, &service, &source, 80, rule, seen, &mut rng).unwrap();
        let (a, b) = (load * other_capacity, other_load * capacity);
        match &*picked.workload.uid {
            "a" => prop_assert!(a <= b),
            _ => prop_assert!(b <= a),
        }
    }
}

#[test]
fn without_a_mode_the_locality_does_not_matter() {
    let source = placed("source", "n/r/z/1");
    let endpoints = vec![placed("near", "n/r/z/1"), placed("far", "n/q/y/2")];
    let service = balanced(Mode::Standard, &[Scope::Region]);
    assert_eq!(picked(service, &source, endpoints), ["far", "near"]);
}

#[test]
fn failover_uses_the_endpoints_that_share_most() {
    let scopes = [Scope::Region, Scope::Zone, Scope::Node];
    let source = placed("source", "n/r/z/1");
    let check = |endpoints: &[(&str, &str)], expected: &[&str]| {
        let endpoints = endpoints
            .iter()
            .map(|(uid, place)| placed(uid, place))
            .collect();
        assert_eq!(
            picked(balanced(Mode::Failover, &scopes), &source, endpoints),
            expected
        );
    };
    check(&[("node", "n/r/z/1"), ("zone", "n/r/z/2")], &["node"]);
    check(
        &[
            ("zone", "n/r/z/2"),
            ("region", "n/r/y/2"),
            ("far", "n/q/z/1"),
        ],
        &["zone"],
    );
    // A mismatch ends the comparison: the same node of another region shares nothing.
    check(&[("region", "n/r/y/2"), ("odd", "n/q/z/1")], &["region"]);
    check(&[("a", "n/q/z/1"), ("b", "n/p/y/3")], &["a", "b"]);
}

#[test]
fn a_network_in_first_place_outweighs_the_rest() {
    let scopes = [Scope::Network, Scope::Region, Scope::Zone];
    let source = placed("source", "n/r/z/1");
    let check = |endpoints: &[(&str, &str)], expected: &[&str]| {
        let endpoints = endpoints
            .iter()
            .map(|(uid, place)| placed(uid, place))
            .collect();
        assert_eq!(
            picked(balanced(Mode::Failover, &scopes), &source, endpoints),
            expected
        );
    };
    check(&[("near", "n/q/y/2"), ("other", "m/r/z/1")], &["near"]);
    // Among other networks the remaining scopes still count.
    check(
        &[
            ("region", "m/r/y/2"),
            ("zone", "m/r/z/2"),
            ("far", "m/q/y/2"),
        ],
        &["zone"],
    );
    check(&[("near", "n/r/z/2"), ("less", "n/r/y/2")], &["near"]);
}

#[test]
fn strict_uses_only_endpoints_that_share_everything() {
    let scopes = [Scope::Region, Scope::Zone];
    let source = placed("source", "n/r/z/1");
    let endpoints = vec![placed("both", "n/r/z/2"), placed("one", "n/r/y/1")];
    assert_eq!(
        picked(balanced(Mode::Strict, &scopes), &source, endpoints),
        ["both"]
    );
    let far = vec![placed("one", "n/r/y/1")];
    let (store, service) = store(balanced(Mode::Strict, &scopes), far);
    let mut rng = StdRng::seed_from_u64(7);
    let none = pick_unseen(&store, &service, &source, 80, &mut rng).unwrap_err();
    assert_eq!(none, NoEndpoint::Locality);
}

#[test]
fn a_change_of_health_policy_brings_kept_endpoints_back() {
    let sick = Workload {
        status: HealthStatus::Unhealthy,
        ..workload("sick", "10.0.0.1")
    };
    let (mut store, strict) = store(service(), vec![sick]);
    let source = workload("source", "10.0.0.9");
    let mut rng = StdRng::seed_from_u64(7);
    let mut try_pick =
        |store: &Store, service: &Arc<Service>| pick_unseen(store, service, &source, 80, &mut rng);
    assert_eq!(
        try_pick(&store, &strict).unwrap_err(),
        NoEndpoint::NoneReady(1)
    );
    let mut lenient = (*strict).clone();
    lenient.load_balancer.health_policy = HealthPolicy::AllowAll;
    store.upsert_service(lenient);
    let lenient = store.service("shop", HOST).unwrap().clone();
    assert_eq!(&*try_pick(&store, &lenient).unwrap().workload.uid, "sick");
}

#[test]
fn a_refusal_names_the_step_that_left_nothing() {
    let unreachable = Workload {
        addresses: vec![],
        ..workload("a", "10.0.0.1")
    };
    let idle = Workload {
        capacity: 0,
        ..workload("a", "10.0.0.1")
    };
    assert_eq!(refusal(service(), vec![], 80), NoEndpoint::Empty);
    assert_eq!(
        refusal(service(), vec![unreachable], 80),
        NoEndpoint::NoneReachable
    );
    assert_eq!(
        refusal(service(), vec![workload("a", "10.0.0.1")], 81),
        NoEndpoint::Port(81)
    );
    assert_eq!(
        refusal(service(), vec![workload("a", "10.0.0.1")], 90),
        NoEndpoint::Port(90)
    );
    assert_eq!(refusal(service(), vec![idle], 80), NoEndpoint::NoCapacity);
}

#[test]
fn an_endpoint_without_address_counts_only_behind_another_networks_gateway() {
    let source = placed("source", "n/r/z/1");
    let gateway = GatewayAddress {
        destination: "m/10.9.9.9".parse().unwrap(),
        hbone_mtls_port: 15008,
    };
    let behind = |network: &str| Workload {
        addresses: vec![],
        network: network.into(),
        network_gateway: Some(gateway.clone()),
        ..workload("a", "10.0.0.1")
    };
    assert!(is_reachable(&behind("m"), &source));
    assert!(!is_reachable(&behind("n"), &source));
    assert!(!is_reachable(
        &Workload {
            network_gateway: None,
            ..behind("m")
        },
        &source
    ));
    let named = Workload {
        hostname: "db.example.com".into(),
        ..behind("n")
    };
    assert!(is_reachable(&named, &source));
}

#[test]
fn the_endpoint_maps_a_port_before_the_service_does() {
    let service = service();
    let port_of = |workload: &Workload, port, rule| target_port(&service, workload, port, rule);
    let own = workload("a", "10.0.0.1");
    assert_eq!(port_of(&own, 80, PortRule::Defined), Some(8080));
    let plain = Workload {
        services: vec![Membership {
            service: service.key(),
            ports: Ports::default(),
        }]
        .into(),
        ..workload("a", "10.0.0.1")
    };
    assert_eq!(port_of(&plain, 80, PortRule::Defined), Some(8000));
    assert_eq!(
        port_of(&plain, 90, PortRule::Defined),
        None,
        "a named port nobody maps"
    );
    assert_eq!(port_of(&plain, 15008, PortRule::DefinedOrTunnelled), None);
    let tunnelled = |port| Workload {
        application_tunnel: Some(ApplicationTunnel {
            protocol: ApplicationProtocol::None,
            port,
        }),
        ..plain.clone()
    };
    let tunnel = PortRule::DefinedOrTunnelled;
    assert_eq!(port_of(&tunnelled(Some(15088)), 15008, tunnel), Some(15008));
    assert_eq!(port_of(&tunnelled(None), 15008, tunnel), None);
    assert_eq!(
        port_of(&tunnelled(Some(15088)), 15008, PortRule::Defined),
        None
    );
    assert_eq!(port_of(&tunnelled(Some(15088)), 80, tunnel), Some(8000));
}

#[test]
fn the_address_follows_the_original_one_and_the_services_families() {
    let dual = Workload {
        addresses: ["10.0.0.1", "10.0.0.2", "fd00::1"]
            .map(|a| a.parse().unwrap())
            .to_vec(),
        ..workload("a", "10.0.0.1")
    };
    let families = |ip_families| Service {
        ip_families,
        ..service()
    };
    let check = |service: Option<&Service>, original: &str, expected: &str| {
        let chosen = choose_address(&dual, service, original.parse().unwrap());
        assert_eq!(
            chosen,
            Address::Ip(expected.parse().unwrap()),
            "for {original}"
        );
    };
    check(None, "10.0.0.2", "10.0.0.2");
    check(None, "10.9.9.9", "10.0.0.1");
    check(None, "fd99::9", "fd00::1");
    check(Some(&families(IpFamilies::V4Only)), "fd99::9", "10.0.0.1");
    check(Some(&families(IpFamilies::V6Only)), "10.9.9.9", "fd00::1");
    check(Some(&families(IpFamilies::Dual)), "10.9.9.9", "10.0.0.1");
}

#[test]
fn without_an_address_there_is_a_name_or_nothing() {
    let original = "10.9.9.9".parse().unwrap();
    let nowhere = Workload {
        addresses: vec![],
        ..workload("a", "10.0.0.1")
    };
    assert_eq!(
        choose_address(&nowhere, None, original),
        Address::Unreachable
    );
    let named = Workload {
        hostname: "db.example.com".into(),
        ..nowhere
    };
    let by_name = Address::Hostname("db.example.com".into());
    assert_eq!(choose_address(&named, None, original), by_name);
    let wrong_family = workload("a", "fd00::1");
    let v4 = Service {
        ip_families: IpFamilies::V4Only,
        ..service()
    };
    assert_eq!(
        choose_address(&wrong_family, Some(&v4), original),
        Address::Unreachable
    );
}
