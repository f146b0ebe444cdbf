// SPDX-License-Identifier: Apache-2.0
//! One way to a destination: the socket to connect to, what is said there, and what the record says of it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use hbone::wire::{Authority, ConnectRequest, Forwarded, TraceParent};
use hbone::{BoxFuture, Dial, PoolKey, Stream};
use mesh::{Endpoint, Service};
use spiffe::SpiffeId;
use tokio::net::TcpStream;

use super::retry::Role;
use super::same_node::{Local, Shortcut};
use super::{Caller, baggage, gateway, labels};
use crate::connections::ConnectionView;
use crate::endpoints::endpoint_of;
use crate::failure::Failure;
use crate::hostnames::HostError;
use crate::inbound::arrival::SAME_NODE;
use crate::proxy::{OtherEnd, PodProxy};
use crate::record::{End, Opening, Security};
use crate::route::{Refusal, Route};

pub(super) struct Hop {
    /// Where to connect to.
    pub(super) to: SocketAddr,
    pub(super) role: Role,
    /// Who is there; none where the mesh knows nothing of it.
    pub(super) endpoint: Option<Endpoint>,
    /// Who is meant behind a gateway.
    pub(super) behind: Option<Endpoint>,
    pub(super) service: Option<Arc<Service>>,
    end: End,
    via: Via,
}

enum Via {
    Plain,
    SameNode(Shortcut),
    Tunnel {
        authority: Authority,
        expected: Arc<[SpiffeId]>,
    },
    Gateway {
        authority: Authority,
        expected: Arc<[SpiffeId]>,
        expected_behind: Arc<[SpiffeId]>,
    },
}

/// A route that leads nowhere.
pub(super) struct Refused {
    pub(super) reason: Refusal,
    pub(super) service: Option<Arc<Service>>,
}

/// The far side of a connection.
pub(super) enum Upstream {
    Plain(TcpStream),
    Tunnel(Stream),
    SameNode(Box<Local>),
}

/// The far side, and who it has proven to be where that was not known before.
pub(super) struct Reached {
    pub(super) upstream: Upstream,
    pub(super) proven: Option<End>,
}

impl From<Upstream> for Reached {
    fn from(upstream: Upstream) -> Self {
        Self {
            upstream,
            proven: None,
        }
    }
}

impl Hop {
    pub(super) fn of(route: Route) -> Result<Self, Refused> {
        let endpoint = endpoint_of(&route);
        let hop = match route {
            Route::Passthrough { destination } => Self {
                to: destination,
                role: Role::Destination,
                endpoint,
                behind: None,
                service: None,
                end: End::default(),
                via: Via::Plain,
            },
            Route::Direct {
                destination,
                workload,
                service,
            } => Self {
                to: destination,
                role: Role::Destination,
                endpoint,
                behind: None,
                service,
                end: End::of(&workload).with_principal(Some(workload.identity.clone())),
                via: Via::Plain,
            },
            Route::Hbone {
                tunnel,
                authority,
                expected,
                workload,
                service,
            } => Self {
                to: tunnel,
                role: Role::Destination,
                endpoint,
                behind: None,
                service,
                end: End::of(&workload).with_principal(Some(workload.identity.clone())),
                via: Via::Tunnel {
                    authority,
                    expected,
                },
            },
            Route::Waypoint {
                tunnel,
                authority,
                expected,
                waypoint,
                service,
            } => Self {
                to: tunnel,
                role: Role::Intermediary,
                endpoint,
                behind: None,
                service,
                end: End::of(&waypoint).with_principal(Some(waypoint.identity.clone())),
                via: Via::Tunnel {
                    authority,
                    expected,
                },
            },
            Route::Gateway {
                tunnel,
                authority,
                expected,
                gateway,
                expected_behind,
                workload,
                port,
                service,
            } => Self {
                to: tunnel,
                role: Role::Intermediary,
                endpoint,
                behind: Some(Endpoint {
                    workload: workload.uid.clone(),
                    port,
                }),
                service: Some(service),
                end: End::of(&gateway).with_principal(Some(gateway.identity.clone())),
                via: Via::Gateway {
                    authority,
                    expected,
                    expected_behind,
                },
            },
            Route::Refused { reason, service } => return Err(Refused { reason, service }),
            Route::Unresolved(unresolved) => {
                let refused = unresolved.refused(HostError::NotAsked);
                return Self::of(refused);
            }
        };
        Ok(hop)
    }

    /// The same, but straight to a pod of this node.
    pub(super) fn through(self, shortcut: Shortcut) -> Self {
        Self {
            to: shortcut.to,
            via: Via::SameNode(shortcut),
            ..self
        }
    }

    /// Whether this plain hop leads back to the very address that the client reached: it was not redirected but came to
    /// our port by itself, on an address of the pod that the mesh doesn't know, and would come back over and over.
    pub(super) fn is_loop(&self, reached: Option<SocketAddr>) -> bool {
        matches!(self.via, Via::Plain) && reached == Some(self.to)
    }

    /// Whether it waits for a certificate of the source.
    pub(super) fn is_tunnel(&self) -> bool {
        matches!(self.via, Via::Tunnel { .. } | Via::Gateway { .. })
    }

    /// Whether it was chosen among several, as far as can be told.
    pub(super) fn is_chosen(&self) -> bool {
        self.service.is_some() || self.role == Role::Intermediary
    }

    /// Whether it leads to an endpoint that was not tried.
    pub(super) fn is_fresh(&self, tried: &[Endpoint]) -> bool {
        let endpoints = self.endpoint.iter().chain(&self.behind);
        self.endpoint.is_some() && !endpoints.into_iter().any(|one| tried.contains(one))
    }

    /// Whether who answers is known before it does; a record names nobody else.
    pub(super) fn knows_the_end(&self) -> bool {
        !matches!(self.via, Via::Gateway { .. })
    }

    /// What the record says, of the end that answers or else of the one that is asked.
    pub(super) fn opening(&self, caller: &Caller<'_>, proven: Option<End>) -> Opening {
        let (security, authority) = match &self.via {
            Via::Plain => (Security::Unknown, None),
            Via::SameNode(_) => (Security::SameNode, None),
            Via::Tunnel { authority, .. } | Via::Gateway { authority, .. } => {
                (Security::MutualTls, Some(authority.to_string().into()))
            }
        };
        let end = proven.unwrap_or_else(|| self.end.clone());
        Opening {
            labels: labels(caller.source, end, self.service.as_deref(), security),
            source: caller.peer,
            destination: self.to,
            authority,
        }
    }

    pub(super) fn view(&self, caller: &Caller<'_>) -> ConnectionView {
        let (original, protocol) = match self.via {
            Via::Plain => (self.to, "TCP"),
            Via::SameNode(_) => (caller.original, SAME_NODE),
            Via::Tunnel { .. } => (caller.original, "HBONE"),
            Via::Gateway { .. } => (caller.original, "DOUBLEHBONE"),
        };
        ConnectionView {
            src: caller.peer,
            original_dst: Some(original.to_string().into()),
            actual_dst: self.to.to_string().into(),
            protocol,
            verdict: None,
        }
    }

    pub(super) async fn connect(&self, caller: &Caller<'_>) -> Result<Reached, Failure> {
        let pod = caller.pod;
        let (authority, expected, expected_behind) = match &self.via {
            Via::Plain => {
                let connected = pod.connect_in_time(self.to, OtherEnd::Elsewhere).await;
                return connected.map(|socket| Upstream::Plain(socket).into());
            }
            Via::SameNode(shortcut) => {
                let request = self.request(&shortcut.to.into(), caller);
                let local = shortcut.open(caller, &request).await?;
                return Ok(Upstream::SameNode(Box::new(local)).into());
            }
            Via::Tunnel {
                authority,
                expected,
            } => (authority, expected, None),
            Via::Gateway {
                authority,
                expected,
                expected_behind,
            } => (authority, expected, Some(expected_behind)),
        };
        let key = PoolKey {
            source: caller.source.identity.clone(),
            destination: Arc::clone(expected),
            address: self.to,
            source_ip: caller.peer.ip(),
        };
        let request = self.request(authority, caller);
        let opened = match expected_behind {
            None => {
                let pool = pod.pool(caller.worker);
                let opened = pool.open(&key, &FromPod(pod), request).await;
                opened.map(|(stream, _peer)| Upstream::Tunnel(stream).into())
            }
            Some(behind) => {
                let behind = Arc::clone(behind);
                let opened = gateway::open(caller, &key, &FromPod(pod), request, behind).await;
                opened.map(|(stream, end)| Reached {
                    upstream: Upstream::Tunnel(stream),
                    proven: Some(end),
                })
            }
        };
        opened.map_err(Failure::Tunnel)
    }

    /// What is said of a connection to whoever is asked to take it.
    fn request(&self, authority: &Authority, caller: &Caller<'_>) -> ConnectRequest {
        let host = self.service.as_ref();
        ConnectRequest {
            authority: authority.clone(),
            baggage: Some(baggage(caller.source)),
            forwarded: Some(Forwarded {
                source: Some(caller.peer),
                host: host.map(|service| service.hostname.to_string()),
            }),
            traceparent: Some(TraceParent::new(caller.trace, rand::random())),
            network: None,
            caller: None,
        }
    }
}

/// Tunnels leave from inside the pod, so their source is the pod's own address without any binding.
struct FromPod<'a>(&'a PodProxy);

impl Dial for FromPod<'_> {
    fn dial(&self, to: SocketAddr) -> BoxFuture<'_, io::Result<TcpStream>> {
        Box::pin(self.0.connect(to, OtherEnd::Elsewhere))
    }
}
