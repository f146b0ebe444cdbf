// SPDX-License-Identifier: Apache-2.0

use super::*;
use proto::waypoint::{TcpBackend, TcpRoute, TlsRoute};
use rand::SeedableRng as _;
use rand::rngs::StdRng;

/// `v1`, or `v1*70`; those that begin with `invalid` are.
fn backends(text: &str) -> Vec<TcpBackend> {
    let backend = |word: &str| {
        let (name, weight) = word.split_once('*').unwrap_or((word, "1"));
        TcpBackend {
            weight: weight.parse().unwrap(),
            target: Some(match name.starts_with("invalid") {
                true => Target::Invalid(name.into()),
                false => Target::Destination(proto::waypoint::Destination {
                    hostname: name.into(),
                    port: 443,
                    ..Default::default()
                }),
            }),
        }
    };
    text.split_whitespace().map(backend).collect()
}

fn tls(name: &str, created: i64, hostnames: &[&str], to: &str) -> TlsRoute {
    TlsRoute {
        namespace: "shop".into(),
        name: name.into(),
        created,
        hostnames: hostnames.iter().map(|name| (*name).into()).collect(),
        backends: backends(to),
    }
}

/// A backend's name, or why it is rejected.
fn said(answer: TcpAnswer<'_>) -> String {
    match answer {
        Ok(destination) => destination.hostname.to_string(),
        Err(reason) => reason.to_string(),
    }
}

#[test]
fn server_names_are_found_by_the_most_specific() {
    let table = TlsTable::compile(&[
        tls("whole", 9, &["a.example.com", "MiXed.example.com"], "whole"),
        tls("short", 1, &["*.com"], "short"),
        tls("long", 2, &["*.example.com"], "long"),
        tls("longer", 3, &["*.b.example.com"], "longer"),
    ]);
    let mut rng = StdRng::seed_from_u64(1);
    for (name, expected) in [
        (Some("a.example.com"), "whole"),
        (Some("A.Example.COM."), "whole"),
        (Some("mixed.example.com"), "whole"),
        (Some("x.example.com"), "long"),
        // L02, L03: several labels, and at least one.
        (Some("x.y.example.com"), "long"),
        (Some("x.b.example.com"), "longer"),
        (Some("b.example.com"), "long"),
        (Some("example.com"), "short"),
        (Some("com"), "no route matches"),
        (Some(".com"), "no route matches"),
        (Some("example.org"), "no route matches"),
        (Some(""), "no route matches"),
        (None, "no route matches"),
    ] {
        assert_eq!(said(table.answer(name, &mut rng)), expected, "{name:?}");
    }
}

#[test]
fn of_two_for_one_name_the_older_counts() {
    let mut rng = StdRng::seed_from_u64(1);
    for (first, second, expected) in [((2, "a"), (1, "b"), "b"), ((1, "b"), (1, "a"), "a")] {
        let routes = [first, second].map(|(created, name)| tls(name, created, &["x", "*.y"], name));
        let table = TlsTable::compile(&routes);
        assert_eq!(said(table.answer(Some("x"), &mut rng)), expected);
        assert_eq!(said(table.answer(Some("x.y"), &mut rng)), expected);
    }
}

/// L4-3, and shares of connections.
#[test]
fn references_that_lead_nowhere_reject_their_share() {
    let table = TcpTable::compile(&TcpRoute {
        backends: backends("v1*1 invalid*1 v2*0"),
        ..Default::default()
    });
    let mut rng = StdRng::seed_from_u64(1);
    let mut to_v1 = 0;
    for _ in 0..1000 {
        match said(table.answer(&mut rng)).as_str() {
            "v1" => to_v1 += 1,
            other => assert_eq!(other, "the route's backend is invalid: invalid"),
        }
    }
    assert!((450..550).contains(&to_v1), "{to_v1}");
    let none = TcpTable::compile(&TcpRoute {
        backends: backends("v1*0"),
        ..Default::default()
    });
    assert_eq!(none.answer(&mut rng), Err(Reason::NoBackend));
    let port = TcpBackend {
        weight: 1,
        target: Some(Target::Destination(Default::default())),
    };
    let port = TcpTable::compile(&TcpRoute {
        backends: vec![port, TcpBackend::default()],
        ..Default::default()
    });
    assert_eq!(
        port.answer(&mut rng),
        Err(Reason::InvalidBackend("0 is not a port"))
    );
}

/// L4-1: of several routes all connections follow the first.
#[test]
fn the_first_tcp_route_counts() {
    let wire = proto::waypoint::RouteTable {
        tcp: ["v1", "v2"]
            .map(|name| TcpRoute {
                backends: backends(name),
                ..Default::default()
            })
            .to_vec(),
        ..Default::default()
    };
    let Some(super::super::Table::Tcp(table)) = super::super::Table::compile(&wire) else {
        panic!()
    };
    let mut rng = StdRng::seed_from_u64(1);
    for _ in 0..100 {
        assert_eq!(said(table.answer(&mut rng)), "v1");
    }
}
