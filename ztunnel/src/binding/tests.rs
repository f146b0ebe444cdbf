// SPDX-License-Identifier: Apache-2.0
//! Who may speak as whom, one case at a time; and under thousands of reused names and addresses.

mod reuse;

use std::collections::BTreeSet;
use std::net::IpAddr;

use mesh::{Store, Workload};

use super::{Handed, Unbound};
use crate::pods::PodInfo;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn pod(name: &str, account: &str) -> PodInfo {
    PodInfo {
        name: name.into(),
        namespace: "shop".into(),
        service_account: account.into(),
    }
}

/// As a control plane describes a pod of this node.
fn described(cluster: &str, name: &str, account: &str, addresses: &[&str]) -> Workload {
    let identity = format!("spiffe://cluster.local/ns/shop/sa/{account}");
    let uid = format!("{cluster}//Pod/shop/{name}");
    Workload {
        name: name.into(),
        node: "n1".into(),
        addresses: addresses.iter().map(|text| ip(text)).collect(),
        ..Workload::new(uid, "shop", identity.parse().unwrap())
    }
}

fn store(workloads: impl IntoIterator<Item = Workload>) -> Store {
    let mut store = Store::new(Some("n1"));
    for workload in workloads {
        store.upsert_workload(workload);
    }
    store
}

/// What the pod `web` of account `web` may do in a namespace with these addresses.
struct Case<'a> {
    store: &'a Store,
    held: &'a [&'a str],
}

impl Case<'_> {
    fn ask<T>(&self, ask: impl FnOnce(Handed<'_>, &Store) -> Result<T, Unbound>) -> String {
        let held: BTreeSet<IpAddr> = self.held.iter().map(|text| ip(text)).collect();
        let handed = Handed {
            uid: &"u1".into(),
            info: &pod("web", "web"),
            held: &held,
        };
        match ask(handed, self.store) {
            Ok(_) => "yes".to_owned(),
            Err(unbound) => unbound.to_string(),
        }
    }

    #[track_caller]
    fn is(&self, expected: &str) {
        let found = self.ask(|handed, store| handed.workload(store));
        assert_eq!(found, expected, "in a namespace with {:?}", self.held);
    }

    #[track_caller]
    fn speaks(&self, from: &str, expected: &str) {
        let found = self.ask(|handed, store| handed.workload_at(store, ip(from)));
        assert_eq!(found, expected, "from {from}");
    }

    #[track_caller]
    fn is_reached(&self, at: &str, expected: &str) {
        let found = self.ask(|handed, store| handed.workload_reached(store, ip(at)));
        assert_eq!(found, expected, "at {at}");
    }
}

#[test]
fn name_account_address_and_namespace_have_to_agree() {
    let store = store([
        described("c", "web", "web", &["10.0.0.1", "fd00::1"]),
        described("c", "db", "db", &["10.0.0.2"]),
    ]);
    let case = |held| Case {
        store: &store,
        held,
    };
    case(&["127.0.0.1", "10.0.0.1", "fd00::1"]).is("yes");
    // One of two families is enough: the other may be switched off in the pod.
    case(&["10.0.0.1"]).is("yes");
    let foreign = "the network namespace handed over as pod shop/web has none of the addresses of that workload (10.0.0.1, fd00::1)";
    case(&["10.0.0.2"]).is(foreign);
    case(&["127.0.0.1", "::1"]).is(foreign);
    case(&[]).is(foreign);
}

#[test]
fn an_account_of_another_pod_of_the_same_name_is_none_of_this_one() {
    let store = store([described("c", "web", "other", &["10.0.0.1"])]);
    let case = Case {
        store: &store,
        held: &["10.0.0.1"],
    };
    case.is("workload shop/web is not known to the mesh on this node");
}

#[test]
fn a_pod_is_not_taken_for_another_of_its_name_account_and_address() {
    let case = |uid: Option<&str>, held, expected: &str| {
        let workload = Workload {
            pod_uid: uid.map(|uid| Box::new(uid.into())),
            ..described("c", "web", "web", &["10.0.0.1"])
        };
        let store = store([workload]);
        let case = Case {
            store: &store,
            held: &[held],
        };
        case.is(expected);
        case.speaks("10.0.0.1", expected);
        case.is_reached("10.0.0.1", expected);
    };
    case(Some("u1"), "10.0.0.1", "yes");
    // As Istio's control plane speaks of it.
    case(None, "10.0.0.1", "yes");
    case(
        Some("u0"),
        "10.0.0.1",
        "the node agent handed over pod shop/web with UID u1, but the mesh speaks of the one with UID u0",
    );
}

#[test]
fn of_two_clusters_with_the_same_names_and_addresses_the_uid_tells_which() {
    let of = |cluster, uid: &str| Workload {
        pod_uid: Some(Box::new(uid.into())),
        ..described(cluster, "web", "web", &["10.0.0.1"])
    };
    let store = store([of("a", "u0"), of("b", "u1")]);
    let handed = Handed {
        uid: &"u1".into(),
        info: &pod("web", "web"),
        held: &[ip("10.0.0.1")].into(),
    };
    assert_eq!(*handed.workload(&store).unwrap().uid, *"b//Pod/shop/web");
}

#[test]
fn a_pod_speaks_from_its_own_addresses_alone() {
    let store = store([
        described("c", "web", "web", &["10.0.0.1", "fd00::1"]),
        described("c", "db", "db", &["10.0.0.2"]),
    ]);
    let case = Case {
        store: &store,
        held: &["10.0.0.1", "10.0.0.2", "192.0.2.7"],
    };
    case.speaks("10.0.0.1", "yes");
    for foreign in ["10.0.0.2", "192.0.2.7", "10.0.0.9"] {
        let expected = format!("address {foreign} does not belong to workload shop/web");
        case.speaks(foreign, &expected);
    }
    case.speaks(
        "fd00::1",
        "address fd00::1 is not configured in the network namespace of pod shop/web",
    );
}

#[test]
fn a_connection_without_an_address_gets_one_that_the_pod_has_of_the_destinations_family() {
    let store = store([described("c", "web", "web", &["10.0.0.1", "fd00::1"])]);
    let towards = |held: &[&str], to: &str| {
        let handed = Handed {
            uid: &"u1".into(),
            info: &pod("web", "web"),
            held: &held.iter().map(|text| ip(text)).collect(),
        };
        let found = handed.workload_towards(&store, ip(to));
        found
            .map(|(_, own)| own.to_string())
            .map_err(|unbound| unbound.to_string())
    };
    let own = |text: &str| Ok(text.to_owned());
    let both = ["127.0.0.1", "10.0.0.1", "fd00::1"];
    assert_eq!(towards(&both, "10.9.9.9"), own("10.0.0.1"));
    assert_eq!(towards(&both, "fd99::9"), own("fd00::1"));
    assert_eq!(towards(&["10.0.0.1"], "fd99::9"), own("10.0.0.1"));
    let foreign = towards(&["127.0.0.1", "10.0.0.2"], "10.9.9.9").unwrap_err();
    assert!(foreign.contains("none of the addresses"), "{foreign}");
}

#[test]
fn plaintext_reaches_a_pod_at_its_own_addresses_alone() {
    let store = store([
        described("c", "web", "web", &["10.0.0.1"]),
        described("c", "db", "db", &["10.0.0.2"]),
    ]);
    let case = Case {
        store: &store,
        held: &["10.0.0.1", "10.0.0.2", "192.0.2.7"],
    };
    case.is_reached("10.0.0.1", "yes");
    // Of a second interface, of which the control plane knows nothing.
    case.is_reached("192.0.2.7", "yes");
    case.is_reached(
        "10.0.0.2",
        "address 10.0.0.2 belongs to workload shop/db, not to shop/web",
    );
    case.is_reached(
        "10.0.0.9",
        "address 10.0.0.9 is not configured in the network namespace of pod shop/web",
    );
}

#[test]
fn of_two_clusters_with_the_same_names_the_address_tells_which() {
    let store = store([
        described("a", "web", "web", &["10.1.0.1"]),
        described("b", "web", "web", &["10.2.0.1"]),
    ]);
    for (held, cluster) in [("10.1.0.1", "a"), ("10.2.0.1", "b")] {
        let handed = Handed {
            uid: &"u1".into(),
            info: &pod("web", "web"),
            held: &[ip(held)].into(),
        };
        let found = handed.workload(&store).unwrap();
        assert_eq!(*found.uid, *format!("{cluster}//Pod/shop/web"));
    }
}

#[test]
fn only_what_the_control_plane_may_put_right_is_waited_for() {
    let unconfigured = Unbound::UnconfiguredAddress {
        address: ip("10.0.0.1"),
        pod: pod("web", "web"),
    };
    assert!(!unconfigured.may_pass());
    assert!(Unbound::Unknown(pod("web", "web")).may_pass());
    let other = Unbound::OtherPod {
        pod: pod("web", "web"),
        handed: "u1".into(),
        described: Box::new("u0".into()),
    };
    assert!(other.may_pass());
}
