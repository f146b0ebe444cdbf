// SPDX-License-Identifier: Apache-2.0
//! A gateway of a network as ztunnel learns of it: a workload of its own, and the reference that those behind it carry.

use proto::workload::{
    GatewayAddress, NamespacedHostname, TunnelProtocol, Workload, gateway_address::Destination,
};

use super::{Mesh, network_address, octets};
use crate::facts::network_gateway::{NetworkGateway, Place};

/// The uid of the workload at one place of a gateway.
pub fn uid(gateway: &NetworkGateway, place: &Place) -> String {
    format!(
        "NetworkGateway/{}/{place}/{}",
        gateway.network, gateway.port
    )
}

/// Makes the message of the workload at one place of a gateway in `namespace`.
pub fn workload(mesh: &Mesh, namespace: &str, gateway: &NetworkGateway, place: &Place) -> Workload {
    let uid = uid(gateway, place);
    let (addresses, hostname) = match place {
        Place::Ip(ip) => (vec![octets(*ip)], String::new()),
        Place::Hostname(host) => (Vec::new(), host.clone()),
    };
    Workload {
        name: uid.clone(),
        uid,
        namespace: namespace.to_owned(),
        addresses,
        hostname,
        network: gateway.network.clone(),
        // How it is reached is said by whoever refers to it.
        tunnel_protocol: TunnelProtocol::None.into(),
        trust_domain: mesh.wire_trust_domain(),
        service_account: gateway.service_account.clone(),
        ..Workload::default()
    }
}

/// How workloads of its network refer to a gateway in `namespace`.
pub fn reference(namespace: &str, gateway: &NetworkGateway) -> Option<GatewayAddress> {
    let destination = match gateway.places.first()? {
        Place::Ip(ip) => Destination::Address(network_address(&gateway.network, *ip)),
        Place::Hostname(host) => Destination::Hostname(NamespacedHostname {
            namespace: namespace.to_owned(),
            hostname: host.clone(),
        }),
    };
    Some(GatewayAddress {
        destination: Some(destination),
        hbone_mtls_port: gateway.port.into(),
    })
}
