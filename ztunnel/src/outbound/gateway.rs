// SPDX-License-Identifier: Apache-2.0
//! A connection to another network: a shared tunnel to that network's gateway, and inside it one to the destination.
//!
//! Who really answers is known only once the inner tunnel stands, so the record is opened then (see `attempts`). What it says of the
//! destination is what that has proven and told of itself, all of it or nothing: to keep parts of the gateway's description
//! would name a destination that does not exist.

use std::sync::Arc;

use hbone::wire::ConnectRequest;
use hbone::{Behind, Dial, OpenError, PoolKey, Stream, TunnelInfo};
use spiffe::SpiffeId;

use super::Caller;
use crate::record::End;

/// Opens both tunnels, and says who answers at the far end.
pub(super) async fn open(
    caller: &Caller<'_>,
    key: &PoolKey,
    dial: &dyn Dial,
    to_gateway: ConnectRequest,
    expected_behind: Arc<[SpiffeId]>,
) -> Result<(Stream, End), OpenError> {
    let behind = Behind {
        expected: expected_behind,
        to_destination: ConnectRequest {
            network: Some(caller.pod.shared.settings.network.to_string()),
            ..to_gateway.clone()
        },
        to_gateway,
    };
    let pool = caller.pod.pool(caller.worker);
    // Boxed: large, and over soon, while the relay lives for days.
    let opened = Box::pin(pool.open_behind(key, dial, behind)).await;
    opened.map(|(stream, info)| (stream, destination(info)))
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
