// SPDX-License-Identifier: Apache-2.0
//! What a store answers depends on the last update of each name alone: neither on the order in which different names
//! arrived, nor on what was there in between.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::dump::Dump;

#[derive(Debug, Clone)]
enum Update {
    Workload(Workload),
    Service(Service),
    Policy(Policy),
}

impl Update {
    fn name(&self) -> String {
        match self {
            Self::Workload(workload) => workload.uid.to_string(),
            Self::Service(service) => service.key().to_string(),
            Self::Policy(policy) => format!("policy {}", policy.key()),
        }
    }

    fn apply(&self, store: &mut Store) {
        match self.clone() {
            Self::Workload(workload) => store.upsert_workload(workload),
            Self::Service(service) => store.upsert_service(service),
            Self::Policy(policy) => store.upsert_policy(policy.key(), policy),
        };
    }

    fn remove(&self, store: &mut Store) {
        match self {
            Self::Policy(policy) => store.remove_policy(&policy.key()),
            Self::Workload(_) | Self::Service(_) => store.remove(&self.name()),
        };
    }
}

const NAMESPACES: [&str; 3] = ["a", "b", "shop"];
const HOSTS: [&str; 3] = ["cart", "pay", "wide"];
const ADDRESSES: [&str; 5] = ["10.0.0.1", "10.0.0.2", "10.96.0.1", "10.96.0.2", "fd00::1"];
const NETWORKS: [&str; 2] = ["", "net"];
const POLICIES: [&str; 3] = ["p", "q", "r"];

fn one_of(all: &'static [&'static str]) -> impl Strategy<Value = &'static str> {
    prop::sample::select(all)
}

fn a_workload() -> impl Strategy<Value = Workload> {
    let uid = (0..6).prop_map(|n| match n {
        0..3 => format!("c1//Pod/shop/w{n}"),
        _ => format!("c1//WorkloadEntry/shop/w{n}"),
    });
    let memberships = prop::collection::btree_set((one_of(&NAMESPACES), one_of(&HOSTS)), 0..3);
    (
        uid,
        prop::collection::btree_set(one_of(&ADDRESSES), 0..3),
        memberships,
        (
            one_of(&NETWORKS),
            one_of(&["n1", "n2"]),
            one_of(&["cart", "pay"]),
        ),
        (prop::bool::ANY, prop::bool::weighted(0.2)),
        prop::option::of(one_of(&POLICIES)),
    )
        .prop_map(
            |(uid, addresses, services, (network, node, account), flags, policy)| Workload {
                network: network.into(),
                node: node.into(),
                identity: id(account),
                hostname: if flags.1 { "named" } else { "" }.into(),
                addresses: addresses.into_iter().map(ip).collect(),
                protocol: if flags.0 {
                    TunnelProtocol::Hbone
                } else {
                    TunnelProtocol::None
                },
                network_mode: match flags.1 {
                    true => NetworkMode::HostNetwork,
                    false => NetworkMode::Standard,
                },
                services: services
                    .into_iter()
                    .map(|(namespace, host)| Membership {
                        service: NamespacedHostname::new(namespace, host),
                        ports: Ports::from_iter([(80, 8080)]),
                    })
                    .collect(),
                authorization_policies: policy
                    .map(|p| format!("shop/{p}").into())
                    .into_iter()
                    .collect(),
                ..workload(&uid, "10.0.0.1")
            },
        )
}

fn a_service() -> impl Strategy<Value = Service> {
    let network = || one_of(&NETWORKS);
    (
        (one_of(&NAMESPACES), one_of(&HOSTS)),
        prop::collection::vec((network(), one_of(&ADDRESSES)), 0..3),
        prop::collection::vec((network(), one_of(&["10.0.0.0/8", "10.96.0.0/16"])), 0..2),
        prop::bool::ANY,
        prop::bool::weighted(0.3),
    )
        .prop_map(|((namespace, host), vips, ranges, canonical, hidden)| {
            let mut service = Service::new(namespace, host);
            let vips = vips
                .into_iter()
                .map(|(net, at)| format!("{net}/{at}").parse().unwrap());
            service.vips = vips.collect();
            let ranges = ranges.into_iter().map(|(network, cidr)| NetworkCidr {
                network: network.into(),
                cidr: cidr.parse().unwrap(),
            });
            service.cidr_vips = ranges.collect();
            service.canonical = canonical;
            if hidden {
                service.visibility = Visibility::Namespace;
            }
            service
        })
}

fn an_update() -> impl Strategy<Value = Update> {
    let scopes = [
        PolicyScope::Global,
        PolicyScope::Namespace,
        PolicyScope::WorkloadSelector,
    ];
    let namespaces = prop::sample::select(vec!["shop", "a", ""]);
    let a_policy = (
        namespaces,
        one_of(&POLICIES),
        prop::sample::select(scopes.to_vec()),
    )
        .prop_map(|(namespace, name, scope)| policy(namespace, name, scope));
    prop_oneof![
        3 => a_workload().prop_map(Update::Workload),
        2 => a_service().prop_map(Update::Service),
        1 => a_policy.prop_map(Update::Policy),
    ]
}

/// All that can be asked of a store, as text.
fn answers(store: &Store) -> String {
    let mut all = vec![serde_json::to_string_pretty(&Dump::of(store)).unwrap()];
    let clients = NAMESPACES.map(Some).into_iter().chain([None]);
    for client in clients {
        for (network, address) in NETWORKS
            .iter()
            .flat_map(|n| ADDRESSES.iter().map(move |a| (n, a)))
        {
            let address = ip(address);
            let vip = store
                .service_by_vip(network, address, client)
                .map(|s| s.key());
            let pod = store
                .workload_by_ip(network, address)
                .map(|w| w.uid.clone());
            all.push(format!("{client:?} {network} {address}: {vip:?} {pod:?}"));
        }
        for host in HOSTS {
            let found = store.service_by_host(host, client).map(|s| s.key());
            all.push(format!("{client:?} {host}: {found:?}"));
        }
    }
    let mut pods: Vec<_> = store.workloads().collect();
    pods.sort_by_key(|pod| &pod.uid);
    for pod in pods {
        let account = pod.identity.service_account();
        let found = store
            .local_workloads(&pod.namespace, account, &pod.name)
            .next();
        let set = store.policies_for(pod);
        all.push(format!("{}: {:?} {set:?}", pod.uid, found.map(|w| &w.uid)));
    }
    let named = store.workload_by_hostname("shop", "named");
    all.push(format!("named: {:?}", named.map(|w| &w.uid)));
    let mut identities: Vec<_> = store.local_identities().collect();
    identities.sort();
    all.push(format!(
        "{identities:?} {} {}",
        store.workload_count(),
        store.service_count()
    ));
    all.join("\n")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_order_of_arrival_decides_nothing(
        (updates, shuffled) in prop::collection::vec(an_update(), 0..25)
            .prop_map(|updates| {
                let last: HashMap<_, _> = updates.into_iter().map(|u| (u.name(), u)).collect();
                last.into_values().collect::<Vec<_>>()
            })
            .prop_flat_map(|updates| (Just(updates.clone()), Just(updates).prop_shuffle())),
    ) {
        let (mut first, mut second) = (Store::new(Some("n1")), Store::new(Some("n1")));
        for update in &updates {
            update.apply(&mut first);
        }
        for update in &shuffled {
            update.apply(&mut second);
        }
        prop_assert_eq!(answers(&first), answers(&second));
    }

    #[test]
    fn a_policy_concerns_whom_its_scope_says(
        updates in prop::collection::vec(an_update(), 0..25),
        namespace in one_of(&["shop", "a", "b"]),
        named in prop::collection::vec(one_of(&["shop/p", "a/q", "/r", "shop/none"]), 0..3),
    ) {
        let mut store = Store::new(None);
        let mut last = HashMap::new();
        for update in &updates {
            update.apply(&mut store);
            if let Update::Policy(policy) = update {
                last.insert(policy.key().to_string(), policy);
            }
        }
        let pod = Workload {
            authorization_policies: named.iter().map(|key| (*key).into()).collect(),
            ..Workload::new("c1//Pod/x/y", namespace, id("cart"))
        };
        let concerns = |policy: &&Policy| match policy.scope {
            PolicyScope::Global => true,
            // Of no namespace is of all.
            PolicyScope::Namespace => ["", namespace].contains(&&*policy.namespace),
            PolicyScope::WorkloadSelector => false,
        };
        let by_name = named.iter().filter_map(|key| last.get(*key).copied());
        let all = last.values().copied().filter(concerns).chain(by_name);
        let expected: BTreeSet<_> = all.map(|policy| policy.key().to_string()).collect();
        let set = store.policies_for(&pod);
        let found: Vec<_> = set.names().map(|name| name.to_string()).collect();
        let distinct: BTreeSet<_> = found.iter().cloned().collect();
        prop_assert_eq!(found.len(), distinct.len(), "none counts twice");
        prop_assert_eq!(distinct, expected);
        let unknown: BTreeSet<_> = named.iter().filter(|key| !last.contains_key(**key)).copied().collect();
        let missing: BTreeSet<_> = set.missing.iter().map(|key| &**key).collect();
        prop_assert_eq!(missing, unknown);
    }

    #[test]
    fn what_was_there_in_between_leaves_no_trace(
        steps in prop::collection::vec((an_update(), prop::bool::weighted(0.3)), 0..40),
    ) {
        let mut lived = Store::new(Some("n1"));
        let mut last = HashMap::new();
        for (update, removed) in steps {
            if removed {
                update.remove(&mut lived);
                last.remove(&update.name());
            } else {
                update.apply(&mut lived);
                last.insert(update.name(), update);
            }
        }
        let mut fresh = Store::new(Some("n1"));
        for update in last.values() {
            update.apply(&mut fresh);
        }
        prop_assert_eq!(answers(&lived), answers(&fresh));
    }
}
