// SPDX-License-Identifier: Apache-2.0
//! An endpoint of another network: through that network's gateway, in a tunnel of its own inside.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hbone::wire::ConnectRequest;
use hbone::{Handler, Incoming, Meter, Server, Stop};
use mesh::address::{GatewayDestination, NetworkAddress};
use mesh::{GatewayAddress, Workload};
use parking_lot::Mutex;
use proto::waypoint::Protocol;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::harness::{World, application, host, id, member};

const GATEWAY: &str = "spiffe://cluster.local/ns/far/sa/gateway";
const APP: &str = "spiffe://cluster.local/ns/shop/sa/app";

/// Passes on what comes in tunnels: the gateway to the destination's proxy, that one to the application.
struct Onward {
    to: SocketAddr,
    asked: Mutex<Vec<ConnectRequest>>,
}

impl Handler for Onward {
    async fn connect(self: Arc<Self>, incoming: Incoming) {
        self.asked.lock().push(incoming.request.clone());
        let onward = TcpStream::connect(self.to).await.unwrap();
        let stream = incoming.accept(None).unwrap();
        let (meter, stop) = (Arc::new(Meter::new()), Stop::new());
        stream.relay(onward, &meter, &stop).await;
    }
}

/// Takes tunnels at an address, as this identity.
async fn proxy(
    world: &World,
    at: IpAddr,
    identity: &str,
    to: SocketAddr,
) -> (SocketAddr, Arc<Onward>) {
    let listener = TcpListener::bind((at, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let onward = Arc::new(Onward {
        to,
        asked: Mutex::default(),
    });
    let handler = Arc::clone(&onward);
    let certificate = world.authority.issue(&id(identity));
    let server = Server::new(hbone::Config::default());
    tokio::spawn(async move {
        let (_drain, draining) = watch::channel(false);
        while let Ok((socket, _)) = listener.accept().await {
            let (server, certificate) = (server.clone(), Arc::clone(&certificate));
            let (handler, draining) = (Arc::clone(&handler), draining.clone());
            tokio::spawn(async move {
                let _ = server.serve(socket, certificate, handler, draining).await;
            });
        }
    });
    (address, onward)
}

#[tokio::test]
async fn a_request_reaches_an_endpoint_behind_the_gateway_of_its_network() {
    let mut world = World::new().await;
    let app = application("far").await;
    let (inner, destination) = proxy(&world, [127, 0, 0, 4].into(), APP, app).await;
    let (outer, gateway) = proxy(&world, [127, 0, 0, 3].into(), GATEWAY, inner).await;
    let to = world.service("app", &[]);
    world.serve("app", Protocol::Http1, vec![]);

    let mut at_gateway = Workload::new("c//Pod/far/gateway", "far", id(GATEWAY));
    at_gateway.addresses = vec![outer.ip()];
    let mut far = Workload::new("d//Pod/shop/app", "shop", id(APP));
    far.network = "far".into();
    far.protocol = mesh::workload::TunnelProtocol::Hbone;
    far.network_gateway = Some(GatewayAddress {
        destination: GatewayDestination::Address(NetworkAddress {
            network: "".into(),
            address: outer.ip(),
        }),
        hbone_mtls_port: outer.port(),
    });
    far.services = [member(&host("app"), 80, 8080)].into();
    world
        .state
        .update_mesh(|mesh| mesh.upsert_workload(at_gateway));
    world.state.update_mesh(|mesh| mesh.upsert_workload(far));

    // Nobody is named who may answer there.
    let refused = world.get(to, "/").await;
    assert_eq!(refused.status, 503);
    assert!(refused.body.contains("UH"), "{refused:?}");
    assert!(gateway.asked.lock().is_empty());

    let known = world
        .state
        .read()
        .mesh
        .service("shop", &host("app"))
        .cloned();
    let mut service = Arc::unwrap_or_clone(known.unwrap());
    service.subject_alt_names = vec![id(APP)];
    world
        .state
        .update_mesh(|mesh| mesh.upsert_service(service.clone()));
    assert_eq!(world.get(to, "/").await.header("x-app"), "far");
    for (proxy, network) in [(&gateway, None), (&destination, Some(""))] {
        let asked = proxy.asked.lock();
        assert_eq!(asked.len(), 1, "{asked:?}");
        let authority = asked[0].authority.to_string();
        assert_eq!(authority, format!("{}:80", host("app")));
        assert_eq!(asked[0].network.as_deref(), network);
    }

    // Another who answers there is not believed.
    service.subject_alt_names = vec![id("spiffe://cluster.local/ns/shop/sa/other")];
    world.state.update_mesh(|mesh| mesh.upsert_service(service));
    let refused = world.get(to, "/").await;
    assert_eq!(refused.status, 503);
    assert!(refused.body.contains("UF"), "{refused:?}");
}
