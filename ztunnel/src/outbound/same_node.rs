// SPDX-License-Identifier: Apache-2.0
//! From pod to pod of this node without a tunnel between them, where `SAME_NODE_SHORTCUT` allows it.
//!
//! ```text
//!  HBONE route to a pod served here ─► allowed? both certificates good? ─► arrives there like any other ─► relay
//!                                        └ any doubt: the tunnel, which says what is wrong
//! ```
//!
//! This process holds the keys of both pods: a handshake with itself would prove nothing that it does not know. What
//! it would have checked is checked here, all else is the destination's own: policy, limits, source address, record.
//! What ends a tunnel's connection ends this one: a policy, a revoked certificate of either pod, either pod's end.

use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;

use hbone::wire::{Authority, ConnectRequest};
use hbone::{Meter, Stop, relay_tcp};
use identity::{PeerRole, Standing, WorkloadCertificate};
use tokio::net::TcpStream;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::{Instrument as _, debug_span};

use super::Caller;
use crate::failure::Failure;
use crate::inbound::arrival::{Arrivals, Arrived};
use crate::proxy::PodProxy;
use crate::record::Security;
use crate::relaying::result_of;
use crate::route::Route;

/// Such a way.
pub(super) struct Shortcut {
    /// The application.
    pub(super) to: SocketAddr,
    pod: Arc<PodProxy>,
    /// Of the client, and of the destination.
    certificates: [(Arc<WorkloadCertificate>, PeerRole); 2],
}

/// A connection of two pods that is open at both.
pub(super) struct Local {
    pod: Arc<PodProxy>,
    arrived: Arrived,
    standings: [Standing; 2],
    _open: TaskTrackerToken,
}

/// Whether a route may be taken without its tunnel.
pub(super) fn shortcut(caller: &Caller<'_>, route: &Route) -> Option<Shortcut> {
    let Route::Hbone {
        authority: Authority::Addr(to),
        expected,
        workload,
        ..
    } = route
    else {
        return None;
    };
    let (shared, source) = (&caller.pod.shared, caller.source);
    let allowed = &shared.settings.same_node;
    if !allowed.allows(&source.namespace, &workload.namespace)
        || !workload.addresses.contains(&to.ip())
        || !expected.contains(&workload.identity)
    {
        return None;
    }
    let pod = shared.local.find(workload, to.ip())?;
    let client = shared.certificates.at_hand(&source.identity)?;
    let server = shared.certificates.at_hand(&workload.identity)?;
    let certificates = [(client, PeerRole::Client), (server, PeerRole::Server)];
    let all_good = certificates.iter().all(|(one, _)| one.is_good());
    all_good.then_some(Shortcut {
        to: *to,
        pod,
        certificates,
    })
}

impl Shortcut {
    /// Arrives at the destination's pod, as a stream of a tunnel would.
    pub(super) async fn open(
        &self,
        caller: &Caller<'_>,
        request: &ConnectRequest,
    ) -> Result<Local, Failure> {
        let span = debug_span!("inbound", id = format_args!("{:032x}", caller.trace), peer = %caller.source.identity);
        let standings = self.vouch()?;
        let open = self.pod.hold();
        let arrivals = Arrivals {
            pod: Arc::clone(&self.pod),
            worker: caller.worker,
            peer: caller.peer,
            reached: self.to,
            security: Security::SameNode,
        };
        let arrives = async {
            let permitted = arrivals.permit(request, &caller.source.identity).await?;
            permitted.connect(&self.pod, pending::<Infallible>()).await
        };
        // Until it is open here, the destination's end is only waited for by its own drain.
        let arrived = tokio::select! {
            biased;
            () = self.pod.cut() => return Err(Failure::Refused { to: self.to, status: 503 }),
            arrived = Box::pin(arrives.instrument(span)) => arrived,
        };
        let arrived = arrived.map_err(|status| Failure::Refused {
            to: self.to,
            status: status.as_u16(),
        })?;
        Ok(Local {
            pod: Arc::clone(&self.pod),
            arrived,
            standings,
            _open: open,
        })
    }

    fn vouch(&self) -> Result<[Standing; 2], Failure> {
        let [client, server] = &self.certificates;
        let vouch = |(certificate, role): &(Arc<WorkloadCertificate>, PeerRole)| {
            let unvouched = |reason| Failure::Unvouched {
                identity: certificate.identity().clone(),
                reason,
            };
            certificate.vouch(*role).map_err(unvouched)
        };
        Ok([vouch(client)?, vouch(server)?])
    }
}

impl Local {
    /// Relays until it ends; closes the destination's record and returns what the source's has to say.
    pub(super) async fn relay(
        self,
        client: TcpStream,
        meter: &Arc<Meter>,
        stop: &Stop,
    ) -> Result<(), Failure> {
        let Self {
            pod,
            arrived,
            mut standings,
            _open,
        } = self;
        let Arrived {
            application,
            record,
            tracked,
            ..
        } = arrived;
        let both = Arc::new(Meter::of_both_ends(meter, record.meter()));
        // Whatever comes before the relay's own end drops it, and so resets both sides.
        tokio::select! {
            biased;
            reason = tracked.stop().stopped() => {
                record.close(result_of(hbone::End::Stopped { reason }));
                // To the client it looks like a reset by the other end.
                Ok(())
            }
            reason = withdrawn(&mut standings) => {
                record.close(Err(Failure::Revoked(Arc::clone(&reason))));
                Err(Failure::Revoked(reason))
            }
            // The record is closed as drained.
            () = pod.cut() => Ok(()),
            outcome = relay_tcp(client, application, &both, stop) => {
                let end = outcome.end;
                match &end {
                    // The client's pod is gone, which to the destination looks like a reset.
                    hbone::End::Stopped { .. } => record.close(Ok(())),
                    _ => record.close(result_of(end.clone())),
                }
                result_of(end)
            }
        }
    }
}

async fn withdrawn(standings: &mut [Standing]) -> Arc<str> {
    poll_fn(|cx| {
        let mut polled = standings.iter_mut().map(|one| one.poll_withdrawn(cx));
        polled.find(Poll::is_ready).unwrap_or(Poll::Pending)
    })
    .await
}
