// SPDX-License-Identifier: Apache-2.0
//! 15006, plaintext → pod: authorize, connect, relay.
//!
//! A connection that didn't come through a tunnel has no identity; whether that is good enough is for policies to say.
//! One connection's life, in order.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpStream;

use crate::connections::{ConnectionView, InboundFacts};
use crate::failure::Failure;
use crate::proxy::{PodProxy, reset};
use crate::record::{End, Labels, Opening, Reporter, Security};
use crate::relaying::result_of;
use crate::route;
use ops::workers::WorkerId;

/// `destination` is what the client meant to reach.
pub async fn serve(
    pod: Arc<PodProxy>,
    worker: WorkerId,
    socket: TcpStream,
    peer: SocketAddr,
    destination: SocketAddr,
) {
    if let Err(failure) = connection(&pod, worker, socket, peer, destination).await {
        pod.refuse_early(Reporter::Destination, peer, destination, &failure);
    }
}

/// An error is a refusal before there was a record; later ones are the record's.
async fn connection(
    pod: &Arc<PodProxy>,
    worker: WorkerId,
    client: TcpStream,
    peer: SocketAddr,
    destination: SocketAddr,
) -> Result<(), Failure> {
    if pod.own_ports().contains(destination.port()) {
        reset(client);
        return Err(Failure::Loop(destination));
    }
    let workload = match pod.workload_reached(destination.ip()).await {
        Ok(workload) => workload,
        Err(failure) => {
            reset(client);
            return Err(failure);
        }
    };
    pod.wonder_at(&workload, peer.ip());
    let (source, service) = {
        let store = pod.shared.mesh.read();
        let source = store
            .workload_by_ip(&pod.shared.settings.network, peer.ip())
            .map(|source| End::of(source));
        let candidates = route::candidate_services(&store, &workload);
        let service = route::destination_service(&candidates, &workload, destination.port(), None);
        (
            source.unwrap_or_default(),
            service.as_deref().map(Into::into),
        )
    };
    let record = pod.shared.recorder.open(
        worker,
        Opening {
            labels: Labels {
                reporter: Reporter::Destination,
                source,
                destination: End::of(&workload).with_principal(Some(workload.identity.clone())),
                service,
                security: Security::Unknown,
            },
            source: peer,
            destination,
            authority: None,
        },
    );
    let facts = InboundFacts {
        source_ip: peer.ip(),
        identity: None,
        claimed: None,
        destination,
    };
    let view = ConnectionView {
        src: peer,
        original_dst: None,
        actual_dst: destination.to_string().into(),
        protocol: "TCP",
        verdict: None,
    };
    let tracked = pod.connections.track(worker, Some(facts.clone()), view);

    match pod.authorize(&facts).await {
        Ok(words) => tracked.note(words),
        Err(denied) => {
            reset(client);
            record.close(Err(denied));
            return Ok(());
        }
    }
    let application = match pod.connect_keeping_source(destination, peer.ip()).await {
        Ok(application) => application,
        Err(failure) => {
            reset(client);
            record.close(Err(failure));
            return Ok(());
        }
    };
    // The pod's own socket is the near one: what it sends is what the pod sends.
    let outcome = hbone::relay_tcp(application, client, record.meter(), tracked.stop()).await;
    pod.habits.learn(destination, record.meter());
    record.close(result_of(outcome.end));
    Ok(())
}
