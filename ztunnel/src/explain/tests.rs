// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;
use std::time::Instant;

use mesh::policy::{
    Action, Clause, Enforcement, Match, Policy, PolicyScope, Rule, StringMatch, Values,
};
use mesh::workload::{Membership, TunnelProtocol};
use mesh::{
    GatewayAddress, GatewayDestination, NamespacedHostname, NetworkAddress, Ports, Service,
};

use super::*;
use crate::config::Socks5;

const HOST: &str = "cart.shop.svc.cluster.local";
const WAYPOINT: &str = "wp.shop.svc.cluster.local";

fn pod(name: &str, address: &str, host: Option<&str>) -> Workload {
    let identity = format!("spiffe://cluster.local/ns/shop/sa/{name}");
    let uid = format!("c1//Pod/shop/{name}");
    let mut pod = Workload::new(uid, "shop", identity.parse().unwrap());
    pod.name = name.into();
    pod.node = "node-a".into();
    pod.addresses = vec![address.parse().unwrap()];
    pod.protocol = TunnelProtocol::Hbone;
    pod.services = host
        .map(|host| Membership {
            service: NamespacedHostname::new("shop", host),
            ports: Ports::default(),
        })
        .into_iter()
        .collect();
    pod
}

fn service(host: &str, vip: &str, ports: &[(u16, u16)]) -> Service {
    let mut service = Service::new("shop", host);
    service.name = host.split('.').next().unwrap().into();
    service.vips = vec![NetworkAddress {
        network: "".into(),
        address: vip.parse().unwrap(),
    }];
    service.ports = ports.iter().copied().collect();
    service
}

fn policy(name: &str, action: Action, principal: Option<&str>) -> Policy {
    let m = Match {
        principals: Values::from(vec![match principal {
            Some(account) => {
                StringMatch::Exact(format!("cluster.local/ns/shop/sa/{account}").into())
            }
            None => StringMatch::Presence,
        }]),
        ..Match::default()
    };
    Policy {
        name: name.into(),
        namespace: "shop".into(),
        scope: PolicyScope::WorkloadSelector,
        action,
        rules: vec![Rule {
            clauses: vec![Clause { matches: vec![m] }],
        }],
        enforcement: Enforcement::Enforced,
    }
}

/// A client, a stranger, a client outside the mesh, and a server behind `cart`, which a waypoint may stand before.
fn store(policies: &[Policy], with_waypoint: bool) -> Store {
    let mut store = Store::new(None);
    store.upsert_workload(pod("client", "10.0.0.1", None));
    store.upsert_workload(pod("stranger", "10.0.0.3", None));
    let mut plain = pod("plain", "10.0.0.4", None);
    plain.protocol = TunnelProtocol::None;
    store.upsert_workload(plain);
    store.upsert_workload(pod("wp", "10.0.0.8", Some(WAYPOINT)));
    store.upsert_service(service(WAYPOINT, "10.96.0.8", &[(15008, 15008)]));
    let mut server = pod("server", "10.0.0.2", Some(HOST));
    server.authorization_policies = policies.iter().map(|policy| policy.key()).collect();
    store.upsert_workload(server);
    let mut cart = service(HOST, "10.96.0.2", &[(80, 8080)]);
    cart.waypoint = with_waypoint.then(|| GatewayAddress {
        destination: GatewayDestination::Hostname(NamespacedHostname::new("shop", WAYPOINT)),
        hbone_mtls_port: 15008,
    });
    store.upsert_service(cart);
    for policy in policies {
        store.upsert_policy(policy.key(), policy.clone());
    }
    store
}

fn ask(store: &Store, source: &str, destination: &str) -> Result<Explanation, Unknown> {
    let standings = Standings::default();
    let knows = Knowledge {
        store,
        standings: &standings,
        network: "",
        own_ports: OwnPorts::with(Socks5::Off),
        now: Instant::now(),
    };
    let question = Question {
        source,
        destination,
        port: None,
    };
    explain(knows, question)
}

/// Each hop in words, then what decides.
#[track_caller]
fn check(store: &Store, source: &str, expected: &[&str], allowed: bool, why: &str) {
    let found = ask(store, source, "cart").unwrap();
    let hops: Vec<String> = found
        .hops
        .iter()
        .map(|hop| {
            let server = hop.server.as_ref().map_or("-", |party| &party.workload);
            let caller = hop.on_behalf_of.as_deref().unwrap_or_default();
            format!(
                "{} {} {server} {} {caller}",
                hop.transport, hop.to, hop.address
            )
        })
        .collect();
    let hops: Vec<&str> = hops.iter().map(|hop| hop.trim_end()).collect();
    assert_eq!(hops, expected);
    assert_eq!((found.allowed, &*found.why), (allowed, why));
}

const STRAIGHT: &str = "hbone endpoint shop/server 10.0.0.2:15008";

#[test]
fn the_rule_that_decides_is_named() {
    check(
        &store(&[], false),
        "shop/client",
        &[STRAIGHT],
        true,
        "no ALLOW policy applies",
    );
    let allow = store(&[policy("a", Action::Allow, Some("client"))], false);
    check(
        &allow,
        "shop/client",
        &[STRAIGHT],
        true,
        "allowed by policy shop/a rule[0]",
    );
    check(
        &allow,
        "shop/stranger",
        &[STRAIGHT],
        false,
        "not matched by the ALLOW policy shop/a",
    );
    let deny = store(&[policy("d", Action::Deny, None)], false);
    check(
        &deny,
        "10.0.0.3",
        &[STRAIGHT],
        false,
        "denied by policy shop/d rule[0]",
    );
}

#[test]
fn plaintext_has_no_identity() {
    let allow = store(&[policy("a", Action::Allow, None)], false);
    let plain = ["plain endpoint shop/server 10.0.0.2:8080"];
    check(
        &allow,
        "shop/plain",
        &plain,
        false,
        "not matched by the ALLOW policy shop/a",
    );
    // Past any waypoint.
    check(
        &store(&[], true),
        "shop/plain",
        &plain,
        true,
        "no ALLOW policy applies",
    );
}

#[test]
fn behind_a_waypoint_its_client_is_named_where_policies_ask() {
    let first = "hbone waypoint shop/wp 10.0.0.8:15008";
    check(
        &store(&[], true),
        "shop/client",
        &[first, STRAIGHT],
        true,
        "no ALLOW policy applies",
    );
    let named = store(&[policy("a", Action::Allow, Some("client"))], true);
    let second = format!("{STRAIGHT} spiffe://cluster.local/ns/shop/sa/client");
    check(
        &named,
        "shop/client",
        &[first, &second],
        true,
        "allowed by policy shop/a rule[0]",
    );
    let second = format!("{STRAIGHT} spiffe://cluster.local/ns/shop/sa/stranger");
    check(
        &named,
        "shop/stranger",
        &[first, &second],
        false,
        "not matched by the ALLOW policy shop/a",
    );
}

#[test]
fn names_are_those_that_a_client_might_use() {
    let store = store(&[], false);
    for destination in ["cart", "cart.shop", "cart.shop.svc", HOST, "10.96.0.2"] {
        let found = ask(&store, "shop/client", destination).unwrap();
        assert_eq!(found.destination, "10.96.0.2:80".parse().unwrap());
        assert_eq!(
            found.service.as_deref(),
            Some("shop/cart.shop.svc.cluster.local")
        );
    }
    for (source, destination, words) in [
        ("shop/nobody", "cart", "source \"shop/nobody\""),
        (
            "shop/client",
            "nothing.shop",
            "destination \"nothing.shop\": no such",
        ),
        ("shop/client", "shop/server", "needs a port"),
    ] {
        let error = ask(&store, source, destination).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let outside = Arc::new(ask(&store, "shop/client", "192.0.2.1").unwrap_err());
    assert!(matches!(*outside, Unknown::Port { .. }));
}
