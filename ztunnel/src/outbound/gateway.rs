// SPDX-License-Identifier: Apache-2.0
//! A connection to another network: a shared tunnel to that network's gateway, and inside it one to the destination.
//!
//! Who really answers is known only once the inner tunnel stands, so the record is opened then. What it says of the
//! destination is what that has proven and told of itself, all of it or nothing: to keep parts of the gateway's description
//! would name a destination that does not exist.

use std::net::SocketAddr;
use std::sync::Arc;

use hbone::wire::{Authority, ConnectRequest};
use hbone::{Behind, PoolKey, TunnelInfo};
use mesh::{Service, Workload};
use spiffe::SpiffeId;
use tokio::net::TcpStream;

use super::{FromPod, fail, labels, request};
use crate::connections::ConnectionView;
use crate::failure::Failure;
use crate::proxy::PodProxy;
use crate::record::{End, Opening, Record, Security};
use crate::relaying::result_of;
use crate::workers::WorkerId;

pub(super) struct GatewayHop {
    pub(super) original: SocketAddr,
    pub(super) tunnel: SocketAddr,
    pub(super) authority: Authority,
    pub(super) expected: Arc<[SpiffeId]>,
    pub(super) gateway: Arc<Workload>,
    pub(super) expected_behind: Arc<[SpiffeId]>,
    pub(super) service: Arc<Service>,
}

pub(super) async fn through_gateway(
    pod: &PodProxy,
    worker: WorkerId,
    client: TcpStream,
    peer: SocketAddr,
    source: &Workload,
    hop: GatewayHop,
) {
    let GatewayHop {
        original,
        tunnel,
        authority,
        expected,
        gateway,
        expected_behind,
        service,
    } = hop;
    let view = ConnectionView {
        src: peer,
        original_dst: Some(original.to_string().into()),
        actual_dst: tunnel.to_string().into(),
        protocol: "DOUBLEHBONE",
        verdict: None,
    };
    let tracked = pod.connections.track(worker, None, view);
    let asked: Arc<str> = authority.to_string().into();
    let open_record = |destination: End| -> Record {
        pod.shared.recorder.open(
            worker,
            Opening {
                labels: labels(source, destination, Some(&service), Security::MutualTls),
                source: peer,
                destination: tunnel,
                authority: Some(Arc::clone(&asked)),
            },
        )
    };
    let to_gateway = request(authority, source, peer, Some(&service));
    let behind = Behind {
        expected: expected_behind,
        to_destination: ConnectRequest {
            network: Some(pod.shared.settings.network.to_string()),
            ..to_gateway.clone()
        },
        to_gateway,
    };
    let key = PoolKey {
        source: source.identity.clone(),
        destination: expected,
        address: tunnel,
        source_ip: peer.ip(),
    };
    // Boxed: large, and over soon, while the relay lives for days.
    let opened = Box::pin(pod.pool(worker).open_behind(&key, &FromPod(pod), behind)).await;
    match opened {
        Ok((stream, info)) => {
            let record = open_record(destination(info));
            let outcome = stream.relay(client, record.meter(), tracked.stop()).await;
            record.close(result_of(outcome.end));
        }
        Err(error) => {
            let gateway = End::of(&gateway).with_principal(Some(gateway.identity.clone()));
            fail(client, open_record(gateway), Failure::Tunnel(error));
        }
    }
}

/// The other end, as it has proven and described itself.
fn destination(info: TunnelInfo) -> End {
    let described = info.baggage.as_ref().map(End::of_baggage);
    let end = described.unwrap_or_default();
    End {
        pod: Arc::clone(&end.workload),
        ..end.with_principal(Some(info.peer))
    }
}

#[cfg(test)]
mod tests {
    use hbone::wire::{Baggage, WorkloadKind};

    use super::*;

    fn info(baggage: Option<Baggage>) -> TunnelInfo {
        TunnelInfo {
            peer: "spiffe://cluster.local/ns/shop/sa/cart".parse().unwrap(),
            reused: false,
            baggage,
        }
    }

    #[test]
    fn the_destination_is_what_it_says_of_itself_under_the_identity_it_has_proven() {
        let end = destination(info(Some(Baggage {
            workload: Some((WorkloadKind::Deployment, "cart".into())),
            namespace: Some("shop".into()),
            service: Some("cart-canonical".into()),
            revision: Some("v2".into()),
            ..Baggage::default()
        })));
        assert_eq!(end.principal, Some(info(None).peer));
        assert_eq!(end.log_name(), Some("cart"));
        assert_eq!(
            (&*end.app, &*end.canonical_service),
            ("cart", "cart-canonical")
        );
        assert_eq!((&*end.version, &*end.canonical_revision), ("v2", "v2"));
        assert_eq!(
            (&*end.cluster, &*end.region),
            ("", ""),
            "never the gateway's"
        );
    }

    #[test]
    fn a_destination_that_says_nothing_is_known_by_its_identity_alone() {
        let end = destination(info(None));
        let nothing = End::default().with_principal(Some(info(None).peer));
        assert_eq!(end, nothing);
    }
}
