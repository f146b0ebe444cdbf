// SPDX-License-Identifier: Apache-2.0
//! A connection whose bytes are nobody's business here: pick an endpoint, connect, relay.
//!
//! The client's proxy hears 200 only once an endpoint was reached: what can't be connected is refused, not cut.

use hbone::{End as RelayEnd, Heard, Incoming, Side, Stop, Stream, relay_streams};
use tokio::net::TcpStream;

use crate::connections::Tracked;
use crate::destination::Destination;
use crate::failure::Failure;
use crate::listener::Arrival;
use crate::record::{Connection, Labels, Near};
use crate::upstream::{self, Leg, Upstream};
use crate::waypoint::Waypoint;

/// Carries a connection to its end.
pub async fn serve(
    waypoint: &Waypoint,
    arrival: &Arrival,
    destination: &Destination,
    tracked: &Tracked,
    mut incoming: Box<Incoming>,
) {
    // Boxed: large, and over soon, while what follows lives for days.
    let connected = Box::pin(async {
        tokio::select! {
            connected = upstream::connect(waypoint, arrival, destination) => connected,
            gone = incoming.abandoned() => Err(Failure::ClientGone(gone.to_string().into())),
        }
    });
    let upstream = match connected.await {
        Ok(upstream) => upstream,
        Err(failure) => {
            waypoint.recorder.refuse(&arrival.ends(), &failure);
            return incoming.reject(failure.status());
        }
    };
    match incoming.accept(None) {
        Ok(client) => {
            relay(
                waypoint,
                arrival,
                destination,
                tracked.stop(),
                client,
                upstream,
            )
            .await
        }
        Err(error) => {
            let failure = Failure::ClientGone(error.to_string().into());
            waypoint.recorder.refuse(&arrival.ends(), &failure);
        }
    }
}

async fn relay(
    waypoint: &Waypoint,
    arrival: &Arrival,
    destination: &Destination,
    stop: &Stop,
    client: Stream,
    upstream: Upstream,
) {
    let Upstream {
        leg,
        chosen,
        using: _using,
    } = upstream;
    let open = |near| -> Connection {
        let (end, security) = chosen.end();
        let labels = Labels {
            source: arrival.source.clone(),
            destination: end,
            service: destination
                .service()
                .map(|service| Labels::service_of(service)),
            security,
        };
        let recorder = &waypoint.recorder;
        recorder.open(arrival.worker, arrival.ends(), chosen.address, labels, near)
    };
    match leg {
        Leg::Tunnel(far) => {
            let record = open(Near::Client);
            let relay = relay_streams(client, far, Heard::default(), record.meter(), stop);
            let outcome = relay.await;
            record.close(result_of(outcome.end, Near::Client));
        }
        Leg::Plain(socket) => {
            let record = open(Near::Endpoint);
            let outcome = plain(client, socket, &record, stop).await;
            record.close(result_of(outcome.end, Near::Endpoint));
        }
    }
}

/// Boxed, so that it makes no other relay larger.
fn plain<'a>(
    client: Stream,
    socket: TcpStream,
    record: &'a Connection,
    stop: &'a Stop,
) -> std::pin::Pin<Box<dyn Future<Output = hbone::Outcome> + Send + 'a>> {
    Box::pin(client.relay(socket, record.meter(), stop))
}

/// Whose fault the end was.
fn result_of(end: RelayEnd, near: Near) -> Result<(), Failure> {
    let is_client = |side| (side == Side::Near) == (near == Near::Client);
    match end {
        RelayEnd::Finished => Ok(()),
        RelayEnd::Reset { by } if is_client(by) => {
            Err(Failure::ClientGone("it reset the connection".into()))
        }
        RelayEnd::Reset { .. } => Err(Failure::Broken("the endpoint reset it".into())),
        RelayEnd::Failed { side, error } if is_client(side) => {
            Err(Failure::ClientGone(error.to_string().into()))
        }
        RelayEnd::Failed { error, .. } => Err(Failure::Broken(error.to_string().into())),
        RelayEnd::Stopped { reason } => Err(Failure::PolicyChanged(reason)),
        RelayEnd::Withdrawn { reason } => Err(Failure::Revoked(reason)),
    }
}
