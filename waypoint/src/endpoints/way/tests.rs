// SPDX-License-Identifier: Apache-2.0

use std::net::IpAddr;
use std::time::Instant;

use mesh::address::{GatewayAddress, NetworkAddress};
use mesh::{Standings, Store};
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use super::*;

fn id(name: &str) -> SpiffeId {
    format!("spiffe://cluster.local/ns/shop/sa/{name}")
        .parse()
        .unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn workload(name: &str, network: &str, addresses: &[&str]) -> Workload {
    let mut workload = Workload::new(name, "shop", id(name));
    workload.network = network.into();
    workload.addresses = addresses.iter().map(|text| ip(text)).collect();
    workload.protocol = TunnelProtocol::Hbone;
    workload
}

fn service(names: &[&str]) -> Service {
    let mut service = Service::new("shop", "cart.shop.svc.cluster.local");
    service.subject_alt_names = names.iter().map(|name| id(name)).collect();
    service
}

/// The way to an endpoint at port 8080 for port 80 of the service, in words, with the gateway at 192.0.2.1.
#[track_caller]
fn check(endpoint: Workload, service: Service, expected: &str) {
    let mut store = Store::new(None);
    let mut gateway = workload("gateway", "far", &["192.0.2.1"]);
    gateway.network = "here".into();
    store.upsert_workload(gateway);
    let known = Known {
        mesh: store,
        ..Known::default()
    };
    let own = Own {
        gateway: "wp".into(),
        pod: "wp-1".into(),
        namespace: "shop".into(),
        service_account: "wp".into(),
        identity: id("wp"),
        address: ip("10.0.0.9"),
        node: "n".into(),
        network: "here".into(),
        cluster_id: "c".into(),
        istio_version: "unknown".into(),
        metadata: Default::default(),
    };
    let standings = Standings::default();
    let pod = workload("wp", "here", &["10.0.0.9"]);
    let asker = Asker {
        known: &known,
        own: &own,
        pod: &pod,
        seen: Seen {
            standings: &standings,
            tried: &[],
            now: Instant::now(),
        },
    };
    let service = Arc::new(service);
    let picked = Upstream {
        workload: Arc::new(endpoint),
        port: 8080,
        service: Some(service.clone()),
    };
    let mut rng = StdRng::seed_from_u64(1);
    let names = |ids: &[SpiffeId]| {
        let names = ids.iter().map(|id| id.as_str().rsplit('/').next().unwrap());
        names.collect::<Vec<_>>().join("+")
    };
    let said = match asker.endpoint(&picked, (&service, 80), &mut rng) {
        Err(failure) => failure.to_string(),
        Ok(choice) => {
            assert_eq!(choice.endpoint().port, 8080);
            let place = match choice.place {
                Place::At(address) => address.to_string(),
                Place::Named(host, port) => format!("{host}:{port}"),
            };
            match choice.way {
                Way::Plain => format!("plain {place}"),
                Way::Tunnel { expected, .. } => format!("tunnel {place} of {}", names(&expected)),
                Way::Gateway(gateway) => format!(
                    "gateway {place} of {} asked for {}:{} of {}",
                    names(&gateway.expected),
                    gateway.host,
                    gateway.port,
                    names(&gateway.behind)
                ),
            }
        }
    };
    assert_eq!(said, expected);
}

#[test]
fn an_endpoint_of_this_network_is_reached_itself() {
    let near = || workload("near", "here", &["10.0.0.1"]);
    check(near(), service(&[]), "tunnel 10.0.0.1:8080 of near");
    check(near(), service(&["x"]), "tunnel 10.0.0.1:8080 of near+x");
    let mut plain = near();
    plain.protocol = TunnelProtocol::None;
    check(plain, service(&[]), "plain 10.0.0.1:8080");
    let mut nowhere = workload("near", "here", &[]);
    check(
        nowhere.clone(),
        service(&[]),
        "workload near cannot be reached from here: it has no address that the service's address families permit",
    );
    nowhere.hostname = "db.example.com".into();
    nowhere.protocol = TunnelProtocol::None;
    check(nowhere, service(&[]), "plain db.example.com:8080");
}

#[test]
fn an_endpoint_of_another_network_is_asked_for_at_its_gateway() {
    let far = || {
        let mut far = workload("far", "there", &["10.0.0.1"]);
        far.network_gateway = Some(GatewayAddress {
            destination: GatewayDestination::Address(NetworkAddress {
                network: "here".into(),
                address: ip("192.0.2.1"),
            }),
            hbone_mtls_port: 15008,
        });
        far
    };
    check(
        far(),
        service(&["cart"]),
        "gateway 192.0.2.1:15008 of gateway asked for cart.shop.svc.cluster.local:80 of cart",
    );
    check(
        far(),
        service(&[]),
        "workload far cannot be reached from here: it is on another network, and its service names nobody who may answer there",
    );
    let mut lost = far();
    lost.network_gateway = None;
    check(
        lost,
        service(&["cart"]),
        "workload far cannot be reached from here: it is on another network and names no gateway to it",
    );
    let mut unknown = far();
    let gateway = unknown.network_gateway.as_mut().unwrap();
    gateway.destination = GatewayDestination::Address(NetworkAddress {
        network: "here".into(),
        address: ip("192.0.2.2"),
    });
    check(
        unknown,
        service(&["cart"]),
        "workload far cannot be reached from here: the gateway to its network is not known",
    );
}
