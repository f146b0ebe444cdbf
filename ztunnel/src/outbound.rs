// SPDX-License-Identifier: Apache-2.0
//! 15001, pod → mesh: route, connect, relay. One connection's life, in order.
//!
//! A connection that may not or can't be opened is closed with RST, so that the application sees a failure and not an
//! empty answer. There is no way around: what should have gone through a tunnel never goes without.

mod gateway;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use hbone::wire::{Authority, Baggage, ConnectRequest, Forwarded, TraceParent, WorkloadKind};
use hbone::{BoxFuture, Dial, PoolKey};
use mesh::workload::WorkloadType;
use mesh::{Service, Workload};
use spiffe::SpiffeId;
use tokio::net::TcpStream;

use crate::connections::ConnectionView;
use crate::failure::Failure;
use crate::proxy::{PodProxy, canonical, reset, set_timeouts};
use crate::record::{End, Labels, Opening, Record, Reporter, Security};
use crate::relaying::{original_destination, result_of};
use crate::route::{self, Route};
use crate::workers::WorkerId;

pub async fn serve(pod: Arc<PodProxy>, worker: WorkerId, client: TcpStream, peer: SocketAddr) {
    let _ = client.set_nodelay(true);
    set_timeouts(&client, &pod.shared.settings.tcp);
    let destination = match original_destination(&client) {
        Ok(destination) => canonical(destination),
        Err(error) => {
            return tracing::debug!(%peer, %error, "connection ended before it was served");
        }
    };
    let decided = match decide(&pod, peer, destination).await {
        Ok(decided) => decided,
        Err(failure) => {
            reset(client);
            return pod.refuse_early(Reporter::Source, peer, destination, &failure);
        }
    };
    let (source, route) = decided;
    if let Route::Passthrough { destination } | Route::Direct { destination, .. } = &route
        && client
            .local_addr()
            .map(canonical)
            .is_ok_and(|reached| reached == *destination)
    {
        // It was not redirected but came to our port by itself, on an address of the pod that the mesh doesn't know.
        // Connecting there would bring it back here, over and over.
        reset(client);
        return pod.refuse_early(
            Reporter::Source,
            peer,
            *destination,
            &Failure::Loop(*destination),
        );
    }
    match route {
        Route::Passthrough { destination } => {
            let hop = PlainHop {
                destination,
                end: End::default(),
                service: None,
            };
            plain(&pod, worker, client, peer, &source, hop).await;
        }
        Route::Direct {
            destination,
            workload,
            service,
        } => {
            let end = End::of(&workload).with_principal(Some(workload.identity.clone()));
            plain(
                &pod,
                worker,
                client,
                peer,
                &source,
                PlainHop {
                    destination,
                    end,
                    service,
                },
            )
            .await;
        }
        Route::Hbone {
            tunnel,
            authority,
            expected,
            workload,
            service,
        }
        | Route::Waypoint {
            tunnel,
            authority,
            expected,
            waypoint: workload,
            service,
        } => {
            let hop = TunnelHop {
                original: destination,
                tunnel,
                authority,
                expected,
                workload,
                service,
            };
            tunnelled(&pod, worker, client, peer, &source, hop).await;
        }
        Route::Gateway {
            tunnel,
            authority,
            expected,
            gateway,
            expected_behind,
            workload: _,
            service,
        } => {
            let hop = gateway::GatewayHop {
                original: destination,
                tunnel,
                authority,
                expected,
                gateway,
                expected_behind,
                service,
            };
            gateway::through_gateway(&pod, worker, client, peer, &source, hop).await;
        }
        Route::Refused { reason, service } => {
            reset(client);
            let mut labels = labels(
                &source,
                End::default(),
                service.as_deref(),
                Security::Unknown,
            );
            labels.source.principal = None;
            pod.shared
                .recorder
                .refuse_early(&labels, peer, destination, &reason.into());
        }
    }
}

/// Who connects, and where that leads.
async fn decide(
    pod: &PodProxy,
    peer: SocketAddr,
    destination: SocketAddr,
) -> Result<(Arc<Workload>, Route), Failure> {
    // Before anything waits: such a connection comes from this very proxy.
    if route::is_loop(destination, &[peer.ip()]) {
        return Err(Failure::Loop(destination));
    }
    let source = pod.workload_at(peer.ip()).await?;
    let connection = route::Outbound {
        source: &source,
        source_ip: peer.ip(),
        destination,
        network: &pod.shared.settings.network,
    };
    let route = route::route(&pod.shared.mesh.read(), connection, &mut rand::rng());
    Ok((source, route))
}

struct PlainHop {
    destination: SocketAddr,
    end: End,
    service: Option<Arc<Service>>,
}

async fn plain(
    pod: &PodProxy,
    worker: WorkerId,
    client: TcpStream,
    peer: SocketAddr,
    source: &Workload,
    hop: PlainHop,
) {
    let destination = hop.destination;
    let record = pod.shared.recorder.open(
        worker,
        Opening {
            labels: labels(source, hop.end, hop.service.as_deref(), Security::Unknown),
            source: peer,
            destination,
            authority: None,
        },
    );
    let view = ConnectionView {
        src: peer,
        original_dst: Some(destination.to_string().into()),
        actual_dst: destination.to_string().into(),
        protocol: "TCP",
        verdict: None,
    };
    let tracked = pod.connections.track(worker, None, view);
    match pod.connect_in_time(destination, None).await {
        Ok(upstream) => {
            let outcome = hbone::relay_tcp(client, upstream, record.meter(), tracked.stop()).await;
            record.close(result_of(outcome.end));
        }
        Err(failure) => fail(client, record, failure),
    }
}

struct TunnelHop {
    original: SocketAddr,
    tunnel: SocketAddr,
    authority: Authority,
    expected: Arc<[SpiffeId]>,
    workload: Arc<Workload>,
    service: Option<Arc<Service>>,
}

async fn tunnelled(
    pod: &PodProxy,
    worker: WorkerId,
    client: TcpStream,
    peer: SocketAddr,
    source: &Workload,
    hop: TunnelHop,
) {
    let end = End::of(&hop.workload).with_principal(Some(hop.workload.identity.clone()));
    let authority: Arc<str> = hop.authority.to_string().into();
    let record = pod.shared.recorder.open(
        worker,
        Opening {
            labels: labels(source, end, hop.service.as_deref(), Security::MutualTls),
            source: peer,
            destination: hop.tunnel,
            authority: Some(authority),
        },
    );
    let view = ConnectionView {
        src: peer,
        original_dst: Some(hop.original.to_string().into()),
        actual_dst: hop.tunnel.to_string().into(),
        protocol: "HBONE",
        verdict: None,
    };
    let tracked = pod.connections.track(worker, None, view);
    let request = request(hop.authority, source, peer, hop.service.as_deref());
    let key = PoolKey {
        source: source.identity.clone(),
        destination: hop.expected,
        address: hop.tunnel,
        source_ip: peer.ip(),
    };
    match pod.pool(worker).open(&key, &FromPod(pod), request).await {
        Ok((stream, _peer)) => {
            let outcome = stream.relay(client, record.meter(), tracked.stop()).await;
            record.close(result_of(outcome.end));
        }
        Err(error) => fail(client, record, Failure::Tunnel(error)),
    }
}

/// What is said of a connection to whoever is asked to take it.
fn request(
    authority: Authority,
    source: &Workload,
    peer: SocketAddr,
    service: Option<&Service>,
) -> ConnectRequest {
    ConnectRequest {
        authority,
        baggage: Some(baggage(source)),
        forwarded: Some(Forwarded {
            source: Some(peer),
            host: service.map(|service| service.hostname.to_string()),
        }),
        traceparent: Some(TraceParent::new(rand::random(), rand::random())),
        network: None,
    }
}

fn fail(client: TcpStream, record: Record, failure: Failure) {
    reset(client);
    record.close(Err(failure));
}

/// Tunnels leave from inside the pod, so their source is the pod's own address without any binding.
struct FromPod<'a>(&'a PodProxy);

impl Dial for FromPod<'_> {
    fn dial(&self, to: SocketAddr) -> BoxFuture<'_, io::Result<TcpStream>> {
        Box::pin(self.0.connect(to, None))
    }
}

fn labels(
    source: &Workload,
    destination: End,
    service: Option<&Service>,
    security: Security,
) -> Labels {
    let principal = match security {
        Security::MutualTls => Some(source.identity.clone()),
        Security::Unknown => None,
    };
    Labels {
        reporter: Reporter::Source,
        source: End::of(source).with_principal(principal),
        destination,
        service: service.map(Into::into),
        security,
    }
}

/// What a workload says of itself to its peers.
pub fn baggage(workload: &Workload) -> Baggage {
    let text = |text: &Arc<str>| Some(text.to_string()).filter(|text| !text.is_empty());
    let kind = match workload.workload_type {
        WorkloadType::Deployment => WorkloadKind::Deployment,
        WorkloadType::CronJob => WorkloadKind::CronJob,
        WorkloadType::Pod => WorkloadKind::Pod,
        WorkloadType::Job => WorkloadKind::Job,
    };
    Baggage {
        cluster: text(&workload.cluster_id),
        namespace: text(&workload.namespace),
        workload: text(&workload.workload_name).map(|name| (kind, name)),
        service: text(&workload.canonical_name),
        revision: text(&workload.canonical_revision),
        region: text(&workload.locality.region),
        zone: text(&workload.locality.zone),
    }
}
