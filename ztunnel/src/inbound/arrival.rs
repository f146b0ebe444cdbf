// SPDX-License-Identifier: Apache-2.0
//! A connection of the mesh that arrives at a pod: is it for us, may it come, where does it go.
//!
//! ```text
//!  permit: room? ─► learn ─► is it ours ─► record, register ─► authorize     connect: to the application ─► relay
//! ```
//!
//! In: what is asked for, and by whom; that was proven before. Out: a socket to the application with the record of the
//! connection, or the status that says no. One way for all: a stream of a tunnel, and a pod of the same node.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use hbone::wire::{ConnectRequest, Forwarded};
use http::StatusCode;
use mesh::{Service, Workload};
use spiffe::SpiffeId;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::config::{AppTunnel, Baggage};
use crate::connections::{ConnectionView, InboundFacts, Tracked};
use crate::failure::Failure;
use crate::limits::Place;
use crate::proxy::{OtherEnd, PodProxy};
use crate::proxy_protocol::Announcement;
use crate::record::{End, Labels, Opening, Record, Reporter, Security};
use crate::route::{self, Announced};
use ops::workers::WorkerId;

/// How the admin view names connections within the node.
pub const SAME_NODE: &str = "SAMENODE";

/// Where connections of one client arrive.
pub struct Arrivals {
    pub pod: Arc<PodProxy>,
    pub worker: WorkerId,
    pub peer: SocketAddr,
    /// The address of the pod at which they arrive.
    pub reached: SocketAddr,
    pub security: Security,
}

/// A connection that is meant for us.
struct Accepted {
    workload: Arc<Workload>,
    destination: SocketAddr,
    /// What the application is to be told first.
    announced: Option<Announced>,
    service: Option<Arc<Service>>,
    source: End,
}

/// A connection that may come.
pub struct Permitted {
    peer: SocketAddr,
    accepted: Permit,
    facts: InboundFacts,
    record: Record,
    tracked: Tracked,
    place: Place,
}

/// What is left to know of an accepted connection.
struct Permit {
    workload: Arc<Workload>,
    announced: Option<Announced>,
}

/// A connection that has reached its application.
pub struct Arrived {
    pub application: TcpStream,
    pub workload: Arc<Workload>,
    pub record: Record,
    pub tracked: Tracked,
    /// Held for as long as it lives.
    pub _place: Place,
}

impl Arrivals {
    /// Decides. What is refused has been recorded; the status is for whoever asked.
    pub async fn permit(
        &self,
        request: &ConnectRequest,
        identity: &SpiffeId,
    ) -> Result<Permitted, StatusCode> {
        let pod = &self.pod;
        let Some(place) = pod.admit_stream(self.peer, self.reached, identity, self.security) else {
            return Err(StatusCode::SERVICE_UNAVAILABLE);
        };
        let accepted = match self.learn_and_accept(request, identity).await {
            Ok(accepted) => accepted,
            Err((status, failure)) => {
                pod.refuse_early(Reporter::Destination, self.peer, self.reached, &failure);
                return Err(status);
            }
        };
        let forwarded_host = forwarded_host(request).map(Arc::from);
        let Accepted {
            workload,
            destination,
            announced,
            service,
            source,
        } = accepted;
        let (reached, authority, protocol) = match self.security {
            Security::SameNode => (destination, None, SAME_NODE),
            Security::MutualTls | Security::Unknown => {
                let authority = request.authority.to_string().into();
                (self.reached, Some(authority), "HBONE")
            }
        };
        let record = pod.shared.recorder.open(
            self.worker,
            Opening {
                labels: Labels {
                    reporter: Reporter::Destination,
                    source,
                    destination: End::of(&workload).with_principal(Some(workload.identity.clone())),
                    service: service.as_deref().map(Into::into),
                    security: self.security,
                },
                source: self.peer,
                destination: reached,
                authority,
            },
        );
        let facts = InboundFacts {
            source_ip: self.peer.ip(),
            identity: Some(identity.clone()),
            claimed: request.caller.clone(),
            destination,
        };
        let view = ConnectionView {
            src: self.peer,
            original_dst: forwarded_host,
            actual_dst: destination.to_string().into(),
            protocol,
            verdict: None,
        };
        let tracked = pod
            .connections
            .track(self.worker, Some(facts.clone()), view);
        match pod.authorize(&facts).await {
            Ok(words) => tracked.note(words),
            Err(denied) => {
                record.close(Err(denied));
                return Err(StatusCode::UNAUTHORIZED);
            }
        }
        Ok(Permitted {
            peer: self.peer,
            accepted: Permit {
                workload,
                announced,
            },
            facts,
            record,
            tracked,
            place,
        })
    }

    async fn learn_and_accept(
        &self,
        request: &ConnectRequest,
        peer: &SpiffeId,
    ) -> Result<Accepted, (StatusCode, Failure)> {
        let shared = &self.pod.shared;
        if let Some(on_demand) = &shared.on_demand
            && let Ok(workload) = self.pod.workload()
        {
            self.pod.wonder_at(&workload, self.peer.ip());
            let (reached, network) = (self.reached.ip(), &*shared.settings.network);
            let needs = |store: &mesh::Store| {
                let authority = &request.authority;
                let mut needs =
                    route::needs::inbound(store, &workload, reached, network, authority);
                if request.caller.is_some() {
                    needs.vouching(store, &workload, self.peer.ip(), network);
                }
                needs
            };
            let learned = Box::pin(on_demand.learn(&shared.mesh, needs)).await;
            learned.map_err(|failure| (StatusCode::SERVICE_UNAVAILABLE, failure))?;
        }
        self.accept(request, peer)
    }

    /// Is it for us, where does it go, and who speaks as far as telemetry is concerned.
    fn accept(
        &self,
        request: &ConnectRequest,
        peer: &SpiffeId,
    ) -> Result<Accepted, (StatusCode, Failure)> {
        let pod = &self.pod;
        // The tunnel may be older than what is known of the pod.
        let workload = pod
            .workload_now_at(self.reached.ip())
            .map_err(|unbound| (StatusCode::SERVICE_UNAVAILABLE, unbound.into()))?;
        let refused =
            |refusal: route::InboundRefusal| (refusal.status(), Failure::NotServed(refusal));
        let network = &*pod.shared.settings.network;
        let store = pod.shared.mesh.read();
        let (reached, authority) = (self.reached.ip(), &request.authority);
        route::accept_destination(&store, &workload, reached, network, authority)
            .map_err(refused)?;
        let own_ports = pod.own_ports();
        let hop = route::next_hop(&store, &workload, reached, network, own_ports, authority)
            .map_err(refused)?;
        let named = forwarded_host(request);
        let service =
            route::destination_service(&hop.services, &workload, hop.destination.port(), named);
        Ok(Accepted {
            source: self
                .source(&store, request)
                .with_principal(Some(peer.clone())),
            workload,
            destination: hop.destination,
            announced: hop.announced,
            service,
        })
    }

    /// A workload found by its address is worth more than what a peer says of itself; an address of another network
    /// says nothing here.
    fn source(&self, store: &mesh::Store, request: &ConnectRequest) -> End {
        let settings = &self.pod.shared.settings;
        let foreign = request
            .network
            .as_ref()
            .is_some_and(|network| !network.eq_ignore_ascii_case(&settings.network));
        let known = if foreign {
            None
        } else {
            store.workload_by_ip(&settings.network, self.peer.ip())
        };
        if let Some(workload) = known {
            return End::of(workload);
        }
        match (&request.baggage, settings.baggage) {
            (Some(baggage), Baggage::Exchanged) => End::of_baggage(baggage),
            _ => End::default(),
        }
    }
}

impl Permitted {
    /// Connects to the application unless whoever asked is gone first.
    pub async fn connect(
        self,
        pod: &PodProxy,
        gone: impl Future<Output = impl Display>,
    ) -> Result<Arrived, StatusCode> {
        let connected = tokio::select! {
            connected = self.application(pod) => connected,
            gone = gone => Err(Failure::Copy(format!("the client gave up while connecting: {gone}"))),
        };
        let Self {
            accepted,
            record,
            tracked,
            place,
            ..
        } = self;
        match connected {
            Ok(application) => Ok(Arrived {
                application,
                workload: accepted.workload,
                record,
                tracked,
                _place: place,
            }),
            Err(failure) => {
                record.close(Err(failure));
                Err(StatusCode::SERVICE_UNAVAILABLE)
            }
        }
    }

    /// A socket to the application, which knows by then what it wants to know first.
    async fn application(&self, pod: &PodProxy) -> Result<TcpStream, Failure> {
        let to = self.facts.destination;
        let Some(announced) = &self.accepted.announced else {
            return pod.connect_keeping_source(to, self.peer.ip()).await;
        };
        // Such an application may listen on loopback alone, where nobody else can tell it anything.
        let mut application = match pod.shared.settings.inpod.app_tunnel {
            AppTunnel::Loopback => {
                let loopback = match to.ip() {
                    IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                    IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
                };
                let to = SocketAddr::new(loopback, to.port());
                pod.connect_in_time(to, OtherEnd::Application { source: None })
                    .await?
            }
            AppTunnel::PodAddress => pod.connect_keeping_source(to, self.peer.ip()).await?,
        };
        let announcement = Announcement {
            source: self.peer,
            destination: announced.destination,
            identity: self.facts.identity.as_ref(),
            service: announced.service.as_deref(),
        };
        // A fresh socket has room for it.
        let written = application.write_all(&announcement.header()).await;
        written.map_err(|error| Failure::Copy(error.to_string()))?;
        Ok(application)
    }
}

fn forwarded_host(request: &ConnectRequest) -> Option<&str> {
    request
        .forwarded
        .as_ref()
        .and_then(|Forwarded { host, .. }| host.as_deref())
}
