// SPDX-License-Identifier: Apache-2.0
//! Where a request goes: the routes of a service, compiled once, and the answer for each request.
//!
//! In: [`proto::waypoint::Service`]; a request, its client's namespace, randomness. Out: [`Answer`], which says all that
//! is to be done. A request is matched without allocation, in a time that depends on its path and not on how many routes
//! there are. What a rule says and can't be honoured is answered 500 with the reason; all other rules work.
//!
//! ```text
//! Service ─ port ─► Port ─ client's namespace ─► Table ─┬─ http ─ request ─► Hit ─ weights, session ─► Answer
//!                                                       ├─ tls ─ server name ─► TcpAnswer
//!                                                       └─ tcp ─► TcpAnswer
//! ```
//!
//! Where no table concerns a client ([`Port::table`] says none), its requests go to the service itself.

mod conditions;
mod fault;
mod http_table;
mod paths;
mod reason;
mod rule;
mod tcp;

use std::collections::HashMap;
use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Method, StatusCode};
use serde_json::{Map, Value};

use crate::authz::{BadPolicy, Policy};
use crate::resilience::traffic::TrafficPolicy;
use crate::telemetry::{self, Telemetry};
use crate::token::{BadRule, TokenRule};

pub use fault::{Abort, DirectResponse};
pub use http_table::{Hit, HttpTable};
pub use reason::Reason;
pub use rule::{Forward, ResponseEdits, Rule, RuleName};
pub use tcp::{TcpAnswer, TcpTable, TlsTable};

/// What is asked of a service.
#[derive(Debug, Clone, Copy)]
pub struct Request<'r> {
    /// As sent; case counts.
    pub method: &'r Method,
    /// `http` or `https`, as the client believes.
    pub scheme: &'r str,
    /// `Host` or `:authority`, with a port if it has one.
    pub authority: &'r str,
    /// The service's port that the connection was made to.
    pub port: u16,
    /// Normalised, without query (see [`crate::path::normalize`]).
    pub path: &'r str,
    /// What follows the question mark.
    pub query: Option<&'r str>,
    /// All others. A condition on `host` looks at the authority.
    pub headers: &'r HeaderMap,
    /// Of a token that was verified.
    pub claims: Option<&'r Map<String, Value>>,
}

/// What becomes of a request.
#[derive(Debug)]
pub enum Answer<'t> {
    /// It goes to a backend.
    Forward(Forward<'t>),
    /// Nobody is asked.
    Here(Here<'t>),
}

/// An answer that needs no backend.
#[derive(Debug)]
pub enum Here<'t> {
    /// The client is sent elsewhere.
    Redirect {
        /// By this rule.
        rule: &'t Rule,
        /// 301, 302, 303, 307 or 308.
        status: StatusCode,
        /// Value of the `Location` header.
        location: HeaderValue,
        /// What is done to the answer's other headers.
        edits: ResponseEdits<'t>,
    },
    /// A browser's question about cross-origin requests is answered 204.
    Preflight {
        /// By this rule.
        rule: &'t Rule,
        /// All that it has.
        headers: HeaderMap,
    },
    /// The rule has the answer itself.
    Direct {
        /// By this rule.
        rule: &'t Rule,
        /// The answer.
        response: &'t DirectResponse,
        /// What is done to its headers.
        edits: ResponseEdits<'t>,
    },
    /// It is refused.
    Refuse {
        /// By this rule; none where none matched.
        rule: Option<&'t Rule>,
        /// Why, which also gives status and flag.
        reason: Reason<'t>,
    },
}

impl<'t> Answer<'t> {
    /// The rule that decides; none where none matched.
    pub fn rule(&self) -> Option<&'t Rule> {
        match self {
            Self::Forward(Forward { rule, .. })
            | Self::Here(
                Here::Redirect { rule, .. }
                | Here::Preflight { rule, .. }
                | Here::Direct { rule, .. },
            ) => Some(rule),
            Self::Here(Here::Refuse { rule, .. }) => *rule,
        }
    }
}

/// A port of a service, as far as a route can say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// The service's.
    pub namespace: Arc<str>,
    /// Its full name.
    pub hostname: Arc<str>,
    /// The service's port, not its pods'.
    pub port: u16,
    /// What the port declares.
    pub protocol: Protocol,
    /// How its endpoints are chosen and spared.
    pub policy: Arc<TrafficPolicy>,
}

/// What is spoken on a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Not declared.
    Detect,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 by prior knowledge.
    Http2,
    /// gRPC, on HTTP/2.
    Grpc,
    /// Anything.
    Tcp,
    /// TLS that is not ended here.
    Tls,
    /// HTTP/1.1 that becomes a WebSocket.
    WebSocket,
}

/// A number that is no port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not a port")]
pub struct BadPort(pub u32);

/// Why nothing can be sent to a destination.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadDestination {
    /// Its port is none.
    #[error(transparent)]
    Port(#[from] BadPort),
    /// Something of its traffic policy can't be honoured.
    #[error("traffic_policy.{0}")]
    Policy(String),
}

/// Why a whole resource is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadService {
    /// A service has both.
    #[error("{0} is empty")]
    Unnamed(&'static str),
    /// A port that is none.
    #[error("ports: {0}")]
    Port(#[from] BadPort),
    /// A policy of its own.
    #[error("policies: {0}")]
    Authorization(#[from] BadPolicy),
    /// A rule of tokens of its own.
    #[error("token_rules: {0}")]
    Token(#[from] BadRule),
    /// The same port twice.
    #[error("ports: {0} stands there twice")]
    PortTwice(u16),
    /// Made for a newer waypoint.
    #[error("port {port}: protocol {protocol} is not known")]
    Protocol {
        /// The port's number.
        port: u16,
        /// The protocol's.
        protocol: i32,
    },
    /// Two tables for one namespace.
    #[error("port {port}: two tables for clients of {client_namespace:?}")]
    TableTwice {
        /// The port's number.
        port: u16,
        /// Whose tables; empty for everyone else's.
        client_namespace: String,
    },
    /// Something of a port's traffic policy can't be honoured.
    #[error("port {port}: traffic_policy.{why}")]
    Policy {
        /// The port's number.
        port: u16,
        /// Which field, and why.
        why: String,
    },
    /// Several kinds of routes, of which only one can apply.
    #[error("port {port}: a table of more than one kind of routes")]
    Mixed {
        /// The port's number.
        port: u16,
    },
}

/// A service that the waypoint serves.
#[derive(Debug)]
pub struct Service {
    /// Where it is.
    pub namespace: Arc<str>,
    /// Its full name.
    pub hostname: Arc<str>,
    ports: HashMap<u16, Port>,
    policies: Box<[Policy]>,
    tokens: Box<[TokenRule]>,
    /// What is told of its requests; none: as the waypoint has it.
    pub telemetry: Option<Arc<Telemetry>>,
}

/// A port of a service.
#[derive(Debug)]
pub struct Port {
    /// What it declares.
    pub protocol: Protocol,
    /// How the service's endpoints are chosen and spared where no route leads elsewhere.
    pub policy: Arc<TrafficPolicy>,
    by_namespace: HashMap<Box<str>, Table>,
    for_all: Option<Table>,
}

/// The routes that concern some clients.
#[derive(Debug)]
pub enum Table {
    /// HTTPRoutes and GRPCRoutes.
    Http(HttpTable),
    /// TLSRoutes.
    Tls(TlsTable),
    /// TCPRoutes.
    Tcp(TcpTable),
}

impl Service {
    /// Compiles a resource. What is wrong with a rule is the rule's own answer ([`Self::problems`] lists them).
    ///
    /// # Errors
    /// If it can't be told what the resource is about; then none of it may be used.
    pub fn compile(service: &proto::waypoint::Service) -> Result<Self, BadService> {
        for (field, value) in [
            ("namespace", &service.namespace),
            ("hostname", &service.hostname),
        ] {
            if value.is_empty() {
                return Err(BadService::Unnamed(field));
            }
        }
        let policies = service.policies.iter().map(Policy::compile);
        let tokens = service.token_rules.iter().map(TokenRule::compile);
        let mut ports = HashMap::new();
        for port in &service.ports {
            let number = port_number(port.number)?;
            if ports.insert(number, Port::compile(number, port)?).is_some() {
                return Err(BadService::PortTwice(number));
            }
        }
        Ok(Self {
            namespace: service.namespace.as_str().into(),
            hostname: service.hostname.as_str().into(),
            ports,
            policies: policies.collect::<Result<_, _>>()?,
            tokens: tokens.collect::<Result<_, _>>()?,
            telemetry: telemetry::compiled(service.telemetry.as_ref(), &service.hostname),
        })
    }

    /// The rules of tokens that are for it alone.
    pub fn tokens(&self) -> &[TokenRule] {
        &self.tokens
    }

    /// The policies that are for it alone.
    pub fn policies(&self) -> &[Policy] {
        &self.policies
    }

    /// One of its ports; none where it has no such.
    pub fn port(&self, number: u16) -> Option<&Port> {
        self.ports.get(&number)
    }

    /// Its ports by number, in no order.
    pub fn ports(&self) -> impl Iterator<Item = (u16, &Port)> {
        self.ports.iter().map(|(number, port)| (*number, port))
    }

    /// The rules that can't be honoured, and why; for log and admin view.
    pub fn problems(&self) -> impl Iterator<Item = (&RuleName, &str)> {
        let tables = self.ports.values().flat_map(Port::tables);
        let http = tables.filter_map(|table| match table {
            Table::Http(table) => Some(table),
            Table::Tls(_) | Table::Tcp(_) => None,
        });
        http.flat_map(HttpTable::problems)
    }
}

impl Port {
    fn compile(number: u16, port: &proto::waypoint::Port) -> Result<Self, BadService> {
        let unknown = |protocol| BadService::Protocol {
            port: number,
            protocol,
        };
        let mut by_namespace = HashMap::new();
        let mut for_all = None;
        for table in &port.tables {
            let compiled = Table::compile(table).ok_or(BadService::Mixed { port: number })?;
            let before = match table.client_namespace.as_str() {
                "" => for_all.replace(compiled),
                namespace => by_namespace.insert(namespace.into(), compiled),
            };
            if before.is_some() {
                return Err(BadService::TableTwice {
                    port: number,
                    client_namespace: table.client_namespace.clone(),
                });
            }
        }
        let policy = TrafficPolicy::compile(port.traffic_policy.as_deref());
        let policy = policy.map_err(|why| BadService::Policy { port: number, why })?;
        Ok(Self {
            policy: Arc::new(policy),
            protocol: Protocol::known(port.protocol).ok_or_else(|| unknown(port.protocol))?,
            by_namespace,
            for_all,
        })
    }

    /// The routes for clients of a namespace: those of that very namespace, else those for everyone. None: no route
    /// concerns them, and what they ask goes to the service itself. Clients without identity have no namespace: "".
    pub fn table(&self, client_namespace: &str) -> Option<&Table> {
        let own = self.by_namespace.get(client_namespace);
        own.or(self.for_all.as_ref())
    }

    fn tables(&self) -> impl Iterator<Item = &Table> {
        self.by_namespace.values().chain(&self.for_all)
    }
}

impl Table {
    /// None where the kinds of routes are mixed. An empty table is HTTP's: all that concerns it is answered 404.
    fn compile(table: &proto::waypoint::RouteTable) -> Option<Self> {
        match (&*table.http, &*table.tls, &*table.tcp) {
            ([], [], [first, ..]) => Some(Self::Tcp(TcpTable::compile(first))),
            ([], tls @ [_, ..], []) => Some(Self::Tls(TlsTable::compile(tls))),
            (http, [], []) if table.in_order => Some(Self::Http(HttpTable::in_order(http))),
            (http, [], []) => Some(Self::Http(HttpTable::compile(http))),
            _ => None,
        }
    }
}

impl Destination {
    /// A destination whose protocol is not known is spoken to as if none were declared.
    pub(crate) fn compile(
        destination: &proto::waypoint::Destination,
    ) -> Result<Self, BadDestination> {
        let policy = TrafficPolicy::compile(destination.traffic_policy.as_deref());
        Ok(Self {
            policy: Arc::new(policy.map_err(BadDestination::Policy)?),
            namespace: destination.namespace.as_str().into(),
            hostname: destination.hostname.as_str().into(),
            port: port_number(destination.port)?,
            protocol: Protocol::known(destination.protocol).unwrap_or(Protocol::Detect),
        })
    }
}

impl Protocol {
    fn known(protocol: i32) -> Option<Self> {
        use proto::waypoint::Protocol as Wire;
        Some(match Wire::try_from(protocol).ok()? {
            Wire::Detect => Self::Detect,
            Wire::Http1 => Self::Http1,
            Wire::Http2 => Self::Http2,
            Wire::Grpc => Self::Grpc,
            Wire::Tcp => Self::Tcp,
            Wire::Tls => Self::Tls,
            Wire::Websocket => Self::WebSocket,
        })
    }
}

fn port_number(number: u32) -> Result<u16, BadPort> {
    match u16::try_from(number) {
        Ok(0) | Err(_) => Err(BadPort(number)),
        Ok(port) => Ok(port),
    }
}

#[cfg(test)]
mod tests;
