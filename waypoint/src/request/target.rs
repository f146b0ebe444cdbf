// SPDX-License-Identifier: Apache-2.0
//! Where a request goes: what routes say of it, or else what its connection was meant for.

use std::sync::Arc;

use http::request::Parts;
use http::{HeaderValue, StatusCode};

use super::read::Read;
use super::reply::Reply;
use super::upgrade::Wish;
use super::{Life, now};
use crate::destination::Destination;
use crate::endpoints::Observed;
use crate::failure::Flag;
use crate::resilience::affinity::Facts;
use crate::resilience::hash::Key;
use crate::resilience::traffic::{Balancing, TrafficPolicy};
use crate::route::{self, Answer, Port, Protocol, Table};
use crate::token::Accepted;
use crate::upstream::Version;

/// Where a request goes, and what is spoken there.
pub(super) struct Target {
    pub(super) destination: Destination,
    pub(super) protocol: Protocol,
    /// How its endpoints are chosen and spared.
    pub(super) policy: Arc<TrafficPolicy>,
    /// What was seen of them.
    pub(super) observed: Arc<Observed>,
}

impl Target {
    /// As declared, or else as the client does; what becomes something else begins as HTTP/1.1, but for WebSockets where
    /// HTTP/2 is declared.
    pub(super) fn version(&self, client: http::Version, wish: Option<&Wish>) -> Version {
        match self.protocol {
            Protocol::Http2 | Protocol::Grpc if wish.is_some_and(Wish::is_websocket) => {
                Version::Http2
            }
            _ if wish.is_some() => Version::Http1,
            Protocol::Http1 | Protocol::WebSocket => Version::Http1,
            Protocol::Http2 | Protocol::Grpc => Version::Http2,
            Protocol::Detect | Protocol::Tcp | Protocol::Tls => match client {
                http::Version::HTTP_2 => Version::Http2,
                _ => Version::Http1,
            },
        }
    }
}

/// A port as it is now.
pub(super) struct PortNow {
    served: Arc<route::Service>,
    number: u16,
}

impl PortNow {
    pub(super) fn get(&self) -> &Port {
        self.served
            .port(self.number)
            .expect("broken invariant: looked up before this was made")
    }
}

impl Life<'_> {
    /// What is said of the port now: routes may have changed since the connection came.
    pub(super) fn port(&self) -> Result<Option<PortNow>, Reply> {
        let Destination::Service { service, port, .. } = &self.conversation.destination else {
            return Ok(None);
        };
        let known = self.conversation.waypoint.state.read();
        let served = known.served.get(&service.key()).cloned();
        let now = served.and_then(|served| {
            served.port(*port)?;
            Some(PortNow {
                served,
                number: *port,
            })
        });
        let gone = || {
            let words = format!("service {} is no longer served here", service.key());
            Reply::of(StatusCode::SERVICE_UNAVAILABLE, Flag::NoRoute, words)
        };
        now.map(Some).ok_or_else(gone)
    }

    pub(super) fn route<'p>(
        &self,
        port: Option<&'p Port>,
        (head, asked): (&Parts, &Read),
        token: Option<&Accepted>,
    ) -> Option<Answer<'p>> {
        let client = self.conversation.arrival.identity.namespace();
        let Some(Table::Http(table)) = port?.table(client) else {
            return None;
        };
        let request = route::Request {
            method: &head.method,
            scheme: "http",
            authority: &asked.authority,
            port: self.conversation.destination.port_number(),
            path: &asked.path,
            query: asked.query.as_deref(),
            headers: &head.headers,
            claims: token.map(|token| &token.claims),
        };
        Some(table.answer(&request, now(), &mut rand::rng()))
    }

    /// What the connection was meant for.
    pub(super) fn meant(&self, port: Option<&Port>) -> Target {
        let destination = self.conversation.destination.clone();
        let endpoints = &self.conversation.waypoint.endpoints;
        Target {
            policy: Arc::clone(port.map_or(destination.policy(), |port| &port.policy)),
            observed: endpoints.observed(&destination),
            destination,
            protocol: port.map_or(Protocol::Detect, |port| port.protocol),
        }
    }

    /// What the request has in common with others that are to meet at one endpoint, and the cookie that gives it something
    /// where it has nothing.
    pub(super) fn affinity(
        &self,
        target: &Target,
        head: &Parts,
        asked: &Read,
    ) -> (Option<Key>, Option<HeaderValue>) {
        let Balancing::Hash(source) = &target.policy.balancing else {
            return (None, None);
        };
        let facts = Facts {
            headers: &head.headers,
            query: asked.query.as_deref(),
            client: self.conversation.arrival.peer.ip(),
        };
        match source.key(facts) {
            Some(key) => (Some(key), None),
            None => source.make(rand::random()).unzip(),
        }
    }

    /// Where a route sends the request.
    pub(super) fn routed(&self, to: &route::Destination) -> Result<Target, Reply> {
        let known = self.conversation.waypoint.state.read();
        let service = known.mesh.service(&to.namespace, &to.hostname);
        let service = service.cloned().ok_or_else(|| {
            let words = format!("no service {}/{} is known", to.namespace, to.hostname);
            Reply::of(StatusCode::INTERNAL_SERVER_ERROR, Flag::NoRoute, words)
        })?;
        let destination = Destination::Routed {
            service,
            port: to.port,
            policy: Arc::clone(&to.policy),
        };
        Ok(Target {
            policy: Arc::clone(&to.policy),
            observed: self.conversation.waypoint.endpoints.observed(&destination),
            destination,
            protocol: to.protocol,
        })
    }
}
