// SPDX-License-Identifier: Apache-2.0
//! Whose routes apply: by port and by the client's namespace; and what no resource may say.

use proto::waypoint::{Port as WirePort, RouteTable, Service as WireService};

use super::*;

fn service(ports: Vec<(u32, Vec<RouteTable>)>) -> Service {
    let port = |(number, tables)| WirePort {
        number,
        protocol: proto::waypoint::Protocol::Http1.into(),
        tables,
        traffic_policy: None,
    };
    let wire = WireService {
        namespace: "mesh".into(),
        hostname: "echo-v1.mesh.svc.cluster.local".into(),
        ports: ports.into_iter().map(port).collect(),
        policies: Vec::new(),
        token_rules: Vec::new(),
        telemetry: None,
    };
    Service::compile(&wire).unwrap()
}

fn routes_for(client_namespace: &str, rules: &[&str]) -> RouteTable {
    RouteTable {
        client_namespace: client_namespace.into(),
        http: vec![route("r", rules.iter().map(|text| rule(text)))],
        ..RouteTable::default()
    }
}

/// Where a client's request goes: "-" is the service itself.
fn from(service: &Service, namespace: &str, port: u16) -> String {
    match service.port(port).unwrap().table(namespace) {
        None => "-".into(),
        Some(Table::Http(table)) => outcome(table, "/"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn consumers_routes_go_before_producers() {
    let consumer = service(vec![(80, vec![routes_for("consumer", &["-> v1"])])]);
    assert_eq!(from(&consumer, "consumer", 80), "v1", "M20");
    assert_eq!(from(&consumer, "mesh", 80), "-", "M20");
    assert_eq!(from(&consumer, "", 80), "-");
    let both = service(vec![(
        80,
        vec![
            routes_for("", &["-> producer"]),
            routes_for("consumer", &["=/only -> v1"]),
        ],
    )]);
    assert_eq!(from(&both, "other", 80), "producer");
    assert_eq!(from(&both, "", 80), "producer");
    // Groups are not merged.
    assert_eq!(from(&both, "consumer", 80), "404");
}

#[test]
fn routes_are_for_ports() {
    let v1 = service(vec![(80, vec![routes_for("", &["-> v1"])]), (8080, vec![])]);
    assert_eq!(from(&v1, "any", 80), "v1", "M21");
    assert_eq!(from(&v1, "any", 8080), "-", "M21, M01");
    assert!(v1.port(81).is_none());
}

#[test]
fn resources_that_say_nothing_certain_are_refused() {
    let why = |change: fn(&mut WireService)| {
        let port = WirePort {
            number: 80,
            tables: vec![routes_for("", &[]), routes_for("a", &[])],
            ..WirePort::default()
        };
        let mut wire = WireService {
            namespace: "n".into(),
            hostname: "h".into(),
            ports: vec![port],
            policies: Vec::new(),
            token_rules: Vec::new(),
            telemetry: None,
        };
        change(&mut wire);
        Service::compile(&wire).unwrap_err().to_string()
    };
    assert_eq!(why(|wire| wire.namespace.clear()), "namespace is empty");
    assert_eq!(why(|wire| wire.hostname.clear()), "hostname is empty");
    assert_eq!(
        why(|wire| wire.ports[0].number = 65_536),
        "ports: 65536 is not a port"
    );
    assert_eq!(
        why(|wire| wire.ports[0].number = 0),
        "ports: 0 is not a port"
    );
    assert_eq!(
        why(|wire| wire.ports.push(wire.ports[0].clone())),
        "ports: 80 stands there twice"
    );
    assert_eq!(
        why(|wire| wire.ports[0].protocol = 99),
        "port 80: protocol 99 is not known"
    );
    assert_eq!(
        why(|wire| wire.ports[0].tables[1].client_namespace.clear()),
        "port 80: two tables for clients of \"\""
    );
    let mixed = why(|wire| wire.ports[0].tables[0].tcp.push(Default::default()));
    assert_eq!(mixed, "port 80: a table of more than one kind of routes");
}
