// SPDX-License-Identifier: Apache-2.0
//! Whether a connection or request may pass here: which policies apply to it, and what they say. Pure.
//!
//! Two kinds are for a waypoint. Those that its own pod names are decided by when a connection comes, whatever it is for.
//! Those that its Gateway, its class or the service asked for are the target of are decided by for each request, and for
//! each connection whose bytes nobody looks into. Policies of the endpoints are their own nodes' to enforce.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

use http::{HeaderMap, request};
use mesh::{Connection, NamespacedHostname, PolicySet, Store, Workload};
use mesh::{Decision as Passage, DenyReason};
use spiffe::SpiffeId;

use crate::authz::{self, Access, Custom, Decision, Policy, Request, ServerName};
use crate::connections::Carried;
use crate::destination::Unserved;
use crate::route;
use crate::settings::Settings;
use crate::state::Known;
use crate::telemetry::Telemetry;
use crate::token::{self, Accepted, BadToken};

/// What policies look at of a connection.
#[derive(Debug, Clone)]
pub struct Facts {
    pub source_ip: IpAddr,
    /// Who the client's tunnel has proven to be.
    pub identity: SpiffeId,
    /// What was asked for.
    pub destination: SocketAddr,
    /// The same, as addresses: one, or all that a service has which was asked for by name.
    pub destination_ips: Arc<[IpAddr]>,
    /// The service that was meant; nothing where a workload was.
    pub service: Option<NamespacedHostname>,
    /// Which server the client's TLS asks for, once somebody has looked: none, or this one.
    pub server_name: OnceLock<Option<Box<str>>>,
}

/// The policies that the waypoint's own pod names, and those names that are not known.
pub fn policies(mesh: &Store, pod: &Workload) -> PolicySet {
    mesh.policies_named_by(pod)
}

/// What becomes of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Allowed,
    /// Not yet: a policy is on its way.
    Missing(Arc<str>),
    Denied(Arc<str>),
}

pub fn decide(policies: &PolicySet, facts: &Facts) -> Verdict {
    let decision = mesh::authorize(
        policies,
        &Connection {
            source_ip: facts.source_ip,
            identity: Some(&facts.identity),
            caller: None,
            destination: facts.destination,
        },
    );
    match decision {
        Passage::Allow { .. } => Verdict::Allowed,
        Passage::Deny { reason } => {
            let words = reason.to_string().into();
            match reason {
                DenyReason::Missing { .. } => Verdict::Missing(words),
                _ => Verdict::Denied(words),
            }
        }
    }
}

/// The policies that are for what was asked for, as they are now.
#[derive(Debug, Clone)]
pub struct Rules {
    pub settings: Arc<Settings>,
    service: Option<Arc<route::Service>>,
}

impl Rules {
    /// Those for a service, or for a workload where none was meant.
    ///
    /// # Errors
    /// If the control plane has not told of them: nobody passes without.
    pub fn of(known: &Known, service: Option<&NamespacedHostname>) -> Result<Self, Unserved> {
        let settings = known.settings.clone().ok_or(Unserved::Unsettled)?;
        let told = |key: &NamespacedHostname| {
            let served = known.served.get(key).cloned();
            served.ok_or_else(|| Unserved::NotTold(key.clone()))
        };
        Ok(Self {
            settings,
            service: service.map(told).transpose()?,
        })
    }

    /// Why nothing passes, whoever asks: a service says so in its routes.
    pub fn closed(&self, facts: &Facts, carried: Carried) -> Option<&str> {
        match facts.service {
            Some(_) => None,
            None => self.settings.closed(facts.destination.port(), carried),
        }
    }

    fn policies(&self) -> impl Iterator<Item = &Policy> + Clone {
        let own = self.service.iter().flat_map(|service| service.policies());
        self.settings.policies.iter().chain(own)
    }

    /// What is told of requests.
    pub fn telemetry(&self) -> Option<&Arc<Telemetry>> {
        let own = self
            .service
            .as_ref()
            .and_then(|service| service.telemetry.as_ref());
        own.or(self.settings.telemetry.as_ref())
    }

    /// What the tokens of a request say, which its head is made to tell the endpoint.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn authenticate(
        &self,
        head: &mut request::Parts,
        now: i64,
    ) -> Result<Option<Accepted>, BadToken> {
        let own = self.service.iter().flat_map(|service| service.tokens());
        token::authenticate(self.settings.tokens.iter().chain(own), head, now)
    }

    /// Whether there is anything to decide by.
    pub fn is_empty(&self) -> bool {
        self.policies().next().is_none()
    }

    /// Whether they ask which server a TLS client wants.
    pub fn look_at_server_names(&self) -> bool {
        self.policies().any(Policy::looks_at_server_names)
    }

    /// What rules look at of a request.
    pub fn asking<'r>(&'r self, facts: &'r Facts, request: Request<'r>) -> Access<'r> {
        Access {
            remote_ip: self.remote_ip(facts, request.headers),
            request: Some(request),
            // A tunnel names none.
            server_name: ServerName::Absent,
            ..self.carrying(facts)
        }
    }

    /// What rules look at where bytes are carried unread.
    pub fn carrying<'r>(&'r self, facts: &'r Facts) -> Access<'r> {
        Access {
            identity: &facts.identity,
            source_ip: facts.source_ip,
            remote_ip: facts.source_ip,
            destination_ips: &facts.destination_ips,
            destination_port: facts.destination.port(),
            trust_domains: &self.settings.trust_domains,
            server_name: match facts.server_name.get() {
                None => ServerName::Unseen,
                Some(None) => ServerName::Absent,
                Some(Some(name)) => ServerName::Named(name),
            },
            request: None,
        }
    }

    fn remote_ip(&self, facts: &Facts, headers: &HeaderMap) -> IpAddr {
        authz::remote_ip(facts.source_ip, headers, self.settings.trusted_hops)
    }

    /// Who has to be asked first, and the rules that say so.
    pub fn custom<'r>(&'r self, access: &Access<'_>) -> impl Iterator<Item = Custom<'r>> {
        authz::custom(self.policies(), access)
    }

    pub fn decide(&self, access: &Access<'_>) -> Decision<'_> {
        authz::decide(self.policies(), access)
    }

    /// Decides on bytes: why they are not carried, or what the rules say.
    ///
    /// # Errors
    /// The reason of the denial.
    pub fn carry(&self, facts: &Facts) -> Result<Decision<'_>, Arc<str>> {
        if let Some(why) = self.closed(facts, Carried::Bytes) {
            return Err(why.into());
        }
        let access = self.carrying(facts);
        let custom = self.custom(&access).find(|custom| !custom.dry_run);
        if let Some(Custom { by, authorizer, .. }) = custom {
            let why = self.settings.asking(authorizer).err();
            let why = why.unwrap_or("it can be asked about requests only");
            return Err(format!("denied by {by}: authorizer {authorizer:?}: {why}").into());
        }
        let decision = self.decide(&access);
        match decision.verdict.is_denied() {
            true => Err(decision.verdict.to_string().into()),
            false => Ok(decision),
        }
    }
}
