// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;

use proptest::prelude::*;
use prost::Message;
use proto::security as sec;
use proto::workload as wire;

use super::*;
use crate::batch::{AddressBatch, PolicyBatch, Update};
use crate::policy::{PolicyScope, StringMatch};
use crate::service::{IpFamilies, Mode, Scope, Visibility};
use crate::workload::{HealthStatus, TunnelProtocol, WorkloadType};

fn pod() -> wire::Workload {
    wire::Workload {
        uid: "c1//Pod/shop/cart-0".into(),
        name: "cart-0".into(),
        namespace: "shop".into(),
        addresses: vec![vec![10, 1, 2, 3].into()],
        tunnel_protocol: wire::TunnelProtocol::Hbone.into(),
        ..Default::default()
    }
}

fn cart() -> wire::Service {
    wire::Service {
        name: "cart".into(),
        namespace: "shop".into(),
        hostname: "cart.shop.svc.cluster.local".into(),
        ..Default::default()
    }
}

fn any_gateway() -> wire::GatewayAddress {
    wire::GatewayAddress {
        destination: Some(wire::gateway_address::Destination::Hostname(
            wire::NamespacedHostname {
                namespace: "shop".into(),
                hostname: "wp".into(),
            },
        )),
        hbone_mtls_port: 15008,
    }
}

#[test]
fn what_the_wire_leaves_out_takes_its_default() {
    let pod = workload(pod()).unwrap();
    assert_eq!(
        pod.identity.as_str(),
        "spiffe://cluster.local/ns/shop/sa/default"
    );
    assert_eq!(&*pod.cluster_id, "Kubernetes");
    assert_eq!(pod.capacity, 1);
    assert_eq!(pod.pod_uid, None);
    assert_eq!(pod.protocol, TunnelProtocol::Hbone);
    assert_eq!(pod.status, HealthStatus::Healthy);
    assert_eq!(pod.addresses, ["10.1.2.3".parse::<IpAddr>().unwrap()]);
}

#[test]
fn the_uid_of_a_pod_is_kept_whatever_it_looks_like() {
    for uid in ["0f3a9c1e-7d42-4b8e-9f00-a1b2c3d4e5f6", "c0ffee"] {
        let pod = workload(wire::Workload {
            pod_uid: uid.into(),
            ..pod()
        });
        assert_eq!(pod.unwrap().pod_uid.unwrap().to_string(), uid);
    }
}

#[test]
fn a_capacity_of_zero_is_kept() {
    let pod = workload(wire::Workload {
        capacity: Some(0),
        ..pod()
    })
    .unwrap();
    assert_eq!(pod.capacity, 0);
}

#[track_caller]
fn refuses_workload(change: impl FnOnce(&mut wire::Workload), expected: &str) {
    let mut pod = pod();
    change(&mut pod);
    assert_eq!(workload(pod).unwrap_err().to_string(), expected);
}

#[test]
fn a_refused_workload_is_named_with_its_field() {
    let name = "Workload c1//Pod/shop/cart-0:";
    refuses_workload(|w| w.uid.clear(), "Workload : uid is empty");
    refuses_workload(
        |w| w.addresses.push(vec![1, 2, 3].into()),
        &format!("{name} addresses[1] is 3 bytes long, not 4 or 16"),
    );
    refuses_workload(
        |w| w.tunnel_protocol = wire::TunnelProtocol::LegacyIstioMtls.into(),
        &format!("{name} tunnel_protocol LEGACY_ISTIO_MTLS is not supported"),
    );
    refuses_workload(
        |w| w.tunnel_protocol = 9,
        &format!("{name} tunnel_protocol has the unknown value 9"),
    );
    refuses_workload(
        |w| w.status = 7,
        &format!("{name} status has the unknown value 7"),
    );
    refuses_workload(
        |w| w.network_mode = 7,
        &format!("{name} network_mode has the unknown value 7"),
    );
    refuses_workload(
        |w| {
            w.services.insert("cart".into(), wire::PortList::default());
        },
        &format!("{name} services[\"cart\"] is not of the form <namespace>/<hostname>"),
    );
    refuses_workload(
        |w| w.waypoint = Some(wire::GatewayAddress::default()),
        &format!("{name} waypoint.destination is missing"),
    );
    refuses_workload(
        |w| {
            w.network_gateway = Some(wire::GatewayAddress {
                hbone_mtls_port: 70_000,
                ..any_gateway()
            })
        },
        &format!("{name} network_gateway.hbone_mtls_port 70000 is no port"),
    );
    refuses_workload(
        |w| {
            w.application_tunnel = Some(wire::ApplicationTunnel {
                protocol: 5,
                port: 0,
            });
        },
        &format!("{name} application_tunnel.protocol has the unknown value 5"),
    );
    let error = workload(wire::Workload {
        trust_domain: "UPPER".into(),
        ..pod()
    })
    .unwrap_err();
    assert_eq!(error.field, "trust_domain");
    let error = workload(wire::Workload {
        namespace: "a/b".into(),
        ..pod()
    })
    .unwrap_err();
    assert_eq!(error.field, "namespace and service_account");
}

#[test]
fn an_unknown_workload_type_is_a_deployment() {
    let pod = workload(wire::Workload {
        workload_type: 99,
        ..pod()
    })
    .unwrap();
    assert_eq!(pod.workload_type, WorkloadType::Deployment);
}

#[track_caller]
fn refuses_service(change: impl FnOnce(&mut wire::Service), expected: &str) {
    let mut cart = cart();
    change(&mut cart);
    let error = service(cart).unwrap_err().to_string();
    assert_eq!(
        error,
        format!("Service shop/cart.shop.svc.cluster.local: {expected}")
    );
}

#[test]
fn a_refused_service_is_named_with_its_field() {
    let address = |length| wire::NetworkAddress {
        network: String::new(),
        address: vec![10, 0, 0, 1].into(),
        length: Some(length),
    };
    refuses_service(
        |s| s.addresses = vec![address(33)],
        "addresses[0].length 33 is longer than 32, the length of its address",
    );
    refuses_service(
        |s| s.addresses = vec![address(260)],
        "addresses[0].length 260 is longer than 32, the length of its address",
    );
    refuses_service(|s| s.ip_families = 8, "ip_families has the unknown value 8");
    refuses_service(
        |s| {
            s.load_balancing = Some(wire::LoadBalancing {
                routing_preference: vec![1, 0],
                ..Default::default()
            });
        },
        "load_balancing.routing_preference[1] is not specified",
    );
    refuses_service(
        |s| s.weighted_waypoints = vec![wire::WeightedWaypoint::default()],
        "weighted_waypoints[0].destination is missing",
    );
    refuses_service(
        |s| {
            s.ports = vec![wire::Port {
                service_port: 65_536,
                ..Default::default()
            }];
        },
        "ports[0].service_port 65536 is no port",
    );
}

#[test]
fn a_service_that_nobody_could_withdraw_is_refused() {
    let error = service(wire::Service {
        hostname: "cart/shop".into(),
        ..cart()
    })
    .unwrap_err()
    .to_string();
    assert_eq!(
        error,
        "Service shop/cart/shop: hostname \"cart/shop\" holds a slash"
    );
}

#[test]
fn addresses_of_a_service_are_hosts_or_ranges() {
    let address = |last, length| wire::NetworkAddress {
        network: "n".into(),
        address: vec![10, 0, 0, last].into(),
        length,
    };
    let addresses = vec![address(1, None), address(2, Some(32)), address(3, Some(24))];
    let service = service(wire::Service {
        addresses,
        ..cart()
    })
    .unwrap();
    let vips: Vec<_> = service.vips.iter().map(ToString::to_string).collect();
    assert_eq!(vips, ["n/10.0.0.1", "n/10.0.0.2"]);
    assert_eq!(service.cidr_vips[0].cidr.to_string(), "10.0.0.0/24");
}

#[test]
fn a_full_service_arrives_whole() {
    let service = service(wire::Service {
        subject_alt_names: vec!["spiffe://td/ns/a/sa/b".into(), "www.example.com".into()],
        waypoint: Some(any_gateway()),
        load_balancing: Some(wire::LoadBalancing {
            routing_preference: vec![6, 1],
            mode: wire::load_balancing::Mode::Failover.into(),
            health_policy: 1,
        }),
        ip_families: 2,
        visibility: 1,
        ..cart()
    })
    .unwrap();
    assert_eq!(
        service.subject_alt_names.len(),
        1,
        "a host name is no identity"
    );
    assert_eq!(
        service.load_balancer.routing_preferences,
        [Scope::Network, Scope::Region]
    );
    assert_eq!(service.load_balancer.mode, Mode::Failover);
    assert_eq!(service.ip_families, IpFamilies::V6Only);
    assert_eq!(service.visibility, Visibility::Namespace);
}

#[test]
fn an_unknown_visibility_is_public() {
    let service = service(wire::Service {
        visibility: 42,
        ..cart()
    })
    .unwrap();
    assert_eq!(service.visibility, Visibility::Public);
}

fn policy_of(m: sec::Match) -> sec::Authorization {
    sec::Authorization {
        name: "p".into(),
        namespace: "shop".into(),
        scope: sec::Scope::WorkloadSelector.into(),
        rules: vec![sec::Rule {
            clauses: vec![sec::Clause { matches: vec![m] }],
        }],
        ..Default::default()
    }
}

fn converted(m: sec::Match) -> crate::policy::Match {
    let mut policy = policy(policy_of(m)).unwrap();
    policy.rules.remove(0).clauses.remove(0).matches.remove(0)
}

#[test]
fn an_unknown_scope_or_action_refuses_the_policy() {
    let wire = sec::Authorization {
        scope: 9,
        ..policy_of(sec::Match::default())
    };
    let error = policy(wire).unwrap_err().to_string();
    assert_eq!(error, "Authorization shop/p: scope has the unknown value 9");
    let wire = sec::Authorization {
        action: 2,
        ..policy_of(sec::Match::default())
    };
    let error = policy(wire).unwrap_err().to_string();
    assert_eq!(
        error,
        "Authorization shop/p: action has the unknown value 2"
    );
}

#[test]
fn values_that_cannot_be_read_are_kept_as_such() {
    use sec::string_match::MatchType;

    let text = |match_type| sec::StringMatch { match_type };
    let range = |address: &[u8], length| sec::Address {
        address: address.to_vec().into(),
        length,
    };
    let m = converted(sec::Match {
        namespaces: vec![text(None), text(Some(MatchType::Exact("a".into())))],
        principals: vec![text(Some(MatchType::Prefix(String::new())))],
        source_ips: vec![
            range(&[10, 0, 0], 8),
            range(&[10, 0, 0, 0], 33),
            range(&[10, 0, 0, 0], 8),
            range(&[10, 0, 0, 0], 264),
        ],
        destination_ports: vec![80, 70_000],
        service_accounts: vec![sec::ServiceAccountMatch::default()],
        extensions: vec![wire::Extension {
            name: "x".into(),
            config: None,
        }],
        ..Default::default()
    });
    assert_eq!(m.namespaces.known, [StringMatch::Exact("a".into())]);
    assert_eq!(m.namespaces.unparsable.len(), 1);
    assert_eq!(m.principals.unparsable.len(), 1);
    assert_eq!(m.source_ips.known.len(), 1);
    assert_eq!(m.source_ips.unparsable.len(), 3);
    assert_eq!(m.destination_ports.known, [80]);
    assert_eq!(m.destination_ports.unparsable.len(), 1);
    assert_eq!(m.service_accounts.unparsable.len(), 1);
    assert_eq!(m.unknown.len(), 1);
}

#[test]
fn ipv4_ranges_in_ipv6_clothes_are_ipv4_ranges() {
    let mut mapped = [0u8; 16];
    mapped[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 0]);
    let range = |length| sec::Address {
        address: mapped.to_vec().into(),
        length,
    };
    let m = converted(sec::Match {
        source_ips: vec![range(104), range(8)],
        ..Default::default()
    });
    assert_eq!(m.source_ips.known, ["10.0.0.0/8".parse().unwrap()]);
    assert_eq!(m.source_ips.unparsable.len(), 1);
}

#[test]
fn an_address_without_content_is_refused_and_the_rest_is_taken() {
    let good = wire::Address {
        r#type: Some(wire::address::Type::Workload(pod())),
    };
    let good = good.encode_to_vec();
    let updates = [
        ("empty", &[][..]),
        ("broken", &[0xff, 0xff]),
        ("good", &good),
    ]
    .map(|(name, body)| (Arc::<str>::from(name), body));
    let updates = updates.iter().map(|(name, body)| Update { name, body });
    let (batch, rejections) = AddressBatch::decode(updates, vec![]);
    assert_eq!(batch.workloads.len(), 1);
    assert_eq!(rejections.len(), 2);
    assert_eq!(
        rejections[0].reason,
        "Address empty: type is neither a workload nor a service"
    );
    assert_eq!(rejections[1].name, "broken");
}

#[test]
fn a_workload_keeps_the_name_of_its_resource_as_its_uid() {
    let body = wire::Address {
        r#type: Some(wire::address::Type::Workload(pod())),
    };
    let body = body.encode_to_vec();
    let check = |name: &str, shared: bool| {
        let name: Arc<str> = name.into();
        let update = Update {
            name: &name,
            body: &body,
        };
        let (batch, _) = AddressBatch::decode([update], vec![]);
        let uid = &batch.workloads[0].uid;
        assert_eq!(&**uid, "c1//Pod/shop/cart-0");
        assert_eq!(Arc::ptr_eq(uid, &name), shared);
    };
    check("c1//Pod/shop/cart-0", true);
    check("another", false);
}

#[test]
fn a_policy_is_known_by_the_name_of_its_resource() {
    let body = policy_of(sec::Match::default()).encode_to_vec();
    let update = Update {
        name: &"shop/renamed".into(),
        body: &body,
    };
    let (batch, rejections) = PolicyBatch::decode([update], vec![]);
    assert!(rejections.is_empty());
    assert_eq!(batch.policies[0].0, Arc::from("shop/renamed"));
    assert_eq!(batch.policies[0].1.scope, PolicyScope::WorkloadSelector);
}

/// Bytes that are nearly a message: a valid one with some bytes changed, or noise.
fn nearly(message: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8);
    let damaged = changes.prop_map(move |changes| {
        let mut bytes = message.clone();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes
    });
    prop_oneof![damaged, prop::collection::vec(any::<u8>(), 0..200)]
}

fn full_address() -> Vec<u8> {
    let mut workload = wire::Workload {
        waypoint: Some(any_gateway()),
        ..pod()
    };
    let port = wire::Port {
        service_port: 80,
        target_port: 8080,
        ..Default::default()
    };
    let list = wire::PortList { ports: vec![port] };
    workload.services.insert("shop/cart".into(), list);
    wire::Address {
        r#type: Some(wire::address::Type::Workload(workload)),
    }
    .encode_to_vec()
}

fn full_service() -> Vec<u8> {
    let service = wire::Service {
        addresses: vec![wire::NetworkAddress {
            network: "n".into(),
            address: vec![10, 0, 0, 1].into(),
            length: Some(24),
        }],
        waypoint: Some(any_gateway()),
        load_balancing: Some(wire::LoadBalancing {
            mode: 2,
            ..Default::default()
        }),
        ..cart()
    };
    wire::Address {
        r#type: Some(wire::address::Type::Service(service)),
    }
    .encode_to_vec()
}

fn full_policy() -> Vec<u8> {
    policy_of(sec::Match {
        namespaces: vec![sec::StringMatch {
            match_type: Some(sec::string_match::MatchType::Exact("a".into())),
        }],
        source_ips: vec![sec::Address {
            address: vec![10, 0, 0, 1].into(),
            length: 24,
        }],
        destination_ports: vec![80],
        ..Default::default()
    })
    .encode_to_vec()
}

proptest! {
    #[test]
    fn no_bytes_panic_as_an_address(
        workload in nearly(full_address()),
        service in nearly(full_service()),
    ) {
        let names = ["w", "s"].map(Arc::<str>::from);
        let bodies = [&workload, &service];
        let updates = names.iter().zip(bodies).map(|(name, body)| Update { name, body });
        let (batch, rejections) = AddressBatch::decode(updates, vec![]);
        prop_assert_eq!(batch.workloads.len() + batch.services.len() + rejections.len(), 2);
        let mut store = crate::Store::new(None);
        store.apply_addresses(batch);
    }

    #[test]
    fn no_bytes_panic_as_a_policy(body in nearly(full_policy())) {
        let (batch, rejections) = PolicyBatch::decode([Update { name: &"p".into(), body: &body }], vec![]);
        prop_assert_eq!(batch.policies.len() + rejections.len(), 1);
    }
}
