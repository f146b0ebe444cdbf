// SPDX-License-Identifier: Apache-2.0
//! The connection that a request gets to its endpoint: one that is kept, a new one, or its turn at one of the few that
//! there may be.

use std::sync::Arc;

use super::target::Target;
use crate::endpoints::Chosen;
use crate::failure::Failure;
use crate::http::Conversation;
use crate::pool::{Checkout, Granted, Lease};
use crate::resilience::limits::Work;
use crate::upstream::{self, Version};

/// A connection to an endpoint, kept or new; where there are as many as may be, one that becomes free.
pub(super) async fn connection(
    conversation: &Conversation,
    target: &Target,
    chosen: &Chosen,
    version: Version,
) -> Result<Lease, Failure> {
    let (waypoint, arrival) = (&conversation.waypoint, &conversation.arrival);
    let pool = waypoint.worker(arrival.worker).http();
    let Target {
        policy, observed, ..
    } = target;
    let (mut waiting, mut queued) = (None, None);
    // Who waits for others is to have time left to connect.
    let patience = upstream::connect_timeout(&policy.connections) / 2;
    let bounds = (waypoint.limits.requests_per_endpoint, patience);
    loop {
        let found = pool.checkout(chosen, version, bounds)?;
        if waiting.is_none() && !matches!(found, Checkout::Ready(_)) {
            waiting = Some(observed.begin(Work::Waiting, &policy.limits)?);
        }
        let place = match found {
            Checkout::Ready(lease) => return Ok(lease),
            Checkout::Connect(place) => place,
            Checkout::Wait(granted) => {
                match upstream::in_time(&policy.connections, chosen.address, granted).await? {
                    Ok(Granted::Lease(lease)) => return Ok(lease),
                    Ok(Granted::Place(place)) => place,
                    Ok(Granted::Failed(failure)) => return Err(failure),
                    // Nothing is remembered of an endpoint that nobody uses: it begins anew.
                    Err(_) => continue,
                }
            }
        };
        let Ok(begun) = observed.begin(Work::Connection, &policy.limits) else {
            drop(place);
            // From here on each connection that becomes free is told of, so that none is missed that does so meanwhile.
            let waits_already = queued.is_some();
            let queued = queued.get_or_insert_with(|| observed.queue.join(chosen.address));
            if let Some(lease) = waypoint.ready(chosen, version) {
                return Ok(lease);
            }
            waypoint.close_idle(observed);
            if waits_already {
                queued.room().await;
            }
            continue;
        };
        drop(queued);
        let to = &target.destination;
        let wanted = (&policy.connections, Some(version));
        let reaching = upstream::reach(waypoint, arrival, to, wanted, chosen);
        let held = (Arc::clone(observed), policy.connections, begun);
        return place.fill(reaching, held).await;
    }
}
