// SPDX-License-Identifier: Apache-2.0
//! A client that asks for workloads and services by key, against real resources.

use prost::Message as _;
use proto::workload::{Address, NetworkAddress, PortList, Service, Workload, address::Type};

use super::*;

/// A workload of a node, at an address, that backs services.
fn workload(ip: [u8; 4], node: &str, services: &[&str]) -> Type {
    let services = services.iter().map(|s| ((*s).into(), PortList::default()));
    Type::Workload(Workload {
        addresses: vec![bytes::Bytes::copy_from_slice(&ip)],
        node: node.into(),
        services: services.collect(),
        ..Workload::default()
    })
}

fn service(ip: [u8; 4], length: Option<u32>, ports: u32) -> Type {
    Type::Service(Service {
        addresses: vec![NetworkAddress {
            address: bytes::Bytes::copy_from_slice(&ip),
            length,
            ..NetworkAddress::default()
        }],
        ports: vec![proto::workload::Port {
            service_port: ports,
            ..Default::default()
        }],
        ..Service::default()
    })
}

struct OnDemand(Client);

impl OnDemand {
    /// A client on node a, which has asked for nothing yet.
    fn new() -> Self {
        let mut client = Client::new(&[]);
        client.session = Session::new(Some("a".into()), None);
        client.session.stop_waiting();
        client.catalogue.keep_lookup();
        let mut client = Self(client);
        client.publish([
            ("u/1", Some(workload([10, 0, 0, 1], "b", &["x/s"]))),
            ("u/2", Some(workload([10, 0, 0, 2], "b", &["x/s", "x/t"]))),
            ("u/local", Some(workload([10, 0, 0, 9], "a", &[]))),
            ("x/s", Some(service([10, 9, 0, 1], None, 80))),
            ("x/t", Some(service([10, 9, 0, 2], None, 80))),
            ("x/wide", Some(service([192, 0, 2, 0], Some(24), 80))),
        ]);
        client
    }

    fn publish<const N: usize>(&mut self, changes: [(&str, Option<Type>); N]) {
        let body = |of: Type| Address { r#type: Some(of) }.encode_to_vec().into();
        let change = |(name, of): (&str, Option<Type>)| Change {
            place: Place::new(ADDRESS, None, name),
            body: of.map(body),
        };
        self.0
            .catalogue
            .publish(changes.into_iter().map(change).collect());
    }

    fn open(&mut self, held: &[(&str, &str)]) {
        let held = held.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        self.0.ask(DeltaDiscoveryRequest {
            resource_names_subscribe: names(&["*"]),
            resource_names_unsubscribe: names(&["*"]),
            initial_resource_versions: held.collect(),
            ..wildcard(ADDRESS)
        });
    }

    fn want(&mut self, subscribe: &[&str], unsubscribe: &[&str]) {
        self.0.ask(DeltaDiscoveryRequest {
            resource_names_subscribe: names(subscribe),
            resource_names_unsubscribe: names(unsubscribe),
            ..wildcard(ADDRESS)
        });
    }

    #[track_caller]
    fn hears(&mut self, updated: &[&str], removed: &[&str]) {
        assert_eq!(
            self.0.settle(),
            [("address", names(updated), names(removed))]
        );
    }

    #[track_caller]
    fn hears_nothing(&mut self) {
        assert_eq!(self.0.settle(), []);
    }
}

#[test]
fn it_is_told_of_its_node_and_else_of_what_it_asks_for() {
    let mut client = OnDemand::new();
    client.open(&[]);
    client.hears(&["u/local"], &[]);
    client.want(&["/10.0.0.1"], &[]);
    client.hears(&["u/1"], &[]);
    client.want(&["/10.9.0.1", "u/2", "/10.0.0.77"], &[]);
    client.hears(&["u/1", "u/2", "x/s"], &["/10.0.0.77"]);
    client.want(&["x/t"], &[]);
    client.hears(&["u/2", "x/t"], &[]);
}

#[test]
fn an_answer_says_by_which_keys_it_could_be_asked_for() {
    let mut client = OnDemand::new();
    client.open(&[]);
    client.0.settle();
    client.want(&["/192.0.2.7", "/10.9.0.1"], &[]);
    let responses = client.0.push();
    let aliases: Vec<_> = responses[0]
        .resources
        .iter()
        .map(|r| (r.name.as_str(), r.aliases.join(" ")))
        .collect();
    assert_eq!(
        aliases,
        [
            ("u/1", "/10.0.0.1".to_owned()),
            ("u/2", "/10.0.0.2".to_owned()),
            ("x/s", "/10.9.0.1".to_owned()),
            ("x/wide", "/192.0.2.7".to_owned()),
        ]
    );
}

#[test]
fn changes_reach_only_who_asked_for_what_changes() {
    let mut client = OnDemand::new();
    client.open(&[]);
    client.want(&["x/s"], &[]);
    client.hears(&["u/1", "u/2", "u/local", "x/s"], &[]);
    // Somebody else's, then what backs the service, then the service.
    client.publish([("x/t", Some(service([10, 9, 0, 2], None, 81)))]);
    client.hears_nothing();
    client.publish([("u/1", Some(workload([10, 0, 0, 5], "b", &["x/s"])))]);
    client.hears(&["u/1"], &[]);
    client.publish([("u/3", Some(workload([10, 0, 0, 3], "c", &["x/s"])))]);
    client.hears(&["u/3"], &[]);
    client.publish([("u/4", Some(workload([10, 0, 0, 4], "a", &[])))]);
    client.hears(&["u/4"], &[]);
    client.publish([("x/s", Some(service([10, 9, 0, 1], None, 81)))]);
    client.hears(&["x/s"], &[]);
    client.publish([("u/2", None), ("x/t", None)]);
    client.hears(&[], &["u/2"]);
}

#[test]
fn a_key_that_stood_for_nothing_is_remembered() {
    let mut client = OnDemand::new();
    client.open(&[]);
    client.want(&["/10.9.0.7", "/198.51.100.3", "y/new"], &[]);
    client.hears(&["u/local"], &["/10.9.0.7", "/198.51.100.3", "y/new"]);
    client.publish([
        (
            "u/7",
            Some(workload([10, 0, 0, 7], "b", &["y/new", "y/other"])),
        ),
        ("y/new", Some(service([10, 9, 0, 7], None, 80))),
        ("y/range", Some(service([198, 51, 100, 0], Some(24), 80))),
        ("y/other", Some(service([10, 9, 0, 8], None, 80))),
    ]);
    client.hears(&["u/7", "y/new", "y/range"], &[]);
}

#[test]
fn what_no_key_stands_for_any_longer_is_taken_back() {
    let mut client = OnDemand::new();
    client.open(&[]);
    client.want(&["x/s", "x/t"], &[]);
    client.hears(&["u/1", "u/2", "u/local", "x/s", "x/t"], &[]);
    client.want(&[], &["x/s"]);
    client.hears(&[], &["u/1", "x/s"]);
    client.publish([("u/1", None)]);
    client.hears_nothing();
}

#[test]
fn one_that_comes_back_hears_what_differs_from_what_it_holds() {
    let mut client = OnDemand::new();
    let version = |client: &OnDemand, name: &str| {
        let tables = client.0.catalogue.read();
        let (_, entry) = tables.of(ADDRESS).get(name).expect("there");
        entry.version.to_string()
    };
    let (local, first) = (version(&client, "u/local"), version(&client, "u/1"));
    client.open(&[
        ("u/local", &local),
        ("u/1", &first),
        ("x/s", "old"),
        ("u/gone", "1"),
        ("/10.0.0.77", ""),
    ]);
    client.hears(&["u/2", "x/s"], &["/10.0.0.77", "u/gone"]);
    client.publish([("u/1", None)]);
    client.hears(&[], &["u/1"]);
}

#[test]
fn one_that_no_longer_wants_everything_keeps_what_it_asks_for() {
    let mut client = OnDemand::new();
    client.0.subscribe(ADDRESS);
    client.0.settle();
    client.want(&["x/t"], &["*"]);
    client.hears(&["u/2", "x/t"], &["u/1", "x/s", "x/wide"]);
    client.want(&["*"], &[]);
    client.hears(&["u/1", "u/2", "u/local", "x/s", "x/t", "x/wide"], &[]);
}
