// SPDX-License-Identifier: Apache-2.0
//! What a waypoint is told of a service: its ports, and at each the routes that concern each group of clients.

mod ordered;

use std::collections::BTreeMap;

use proto::waypoint as wire;

use super::{
    Backend, Carried, Filter, HttpRule, Parent, Reach, Reference, Route, RouteId, Rules, Target,
    Unresolved, reachable, said,
};
use crate::facts::{NamespacedName, service::ServicePort};

/// A service that a waypoint serves.
#[derive(Debug, Clone)]
pub struct Served<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Who serves it; the first one, if there are several.
    pub waypoint: &'a NamespacedName,
    /// Its host name.
    pub hostname: &'a str,
    /// Its ports.
    pub ports: &'a [ServicePort],
    /// The routes that are for it.
    pub routes: &'a [Attached<'a>],
    /// The policies that are for it alone.
    pub policies: Vec<wire::Policy>,
    /// The VirtualServices that are for its host.
    pub virtuals: &'a [Attached<'a>],
    /// The same of tokens.
    pub token_rules: Vec<wire::TokenRule>,
}

/// A route, and how it is for the service.
#[derive(Debug, Clone)]
pub struct Attached<'a> {
    /// Which one it is.
    pub id: &'a RouteId,
    /// What it says.
    pub route: &'a Route,
    /// Its references to this service.
    pub parents: Vec<&'a Parent>,
}

/// Follows references.
pub trait Resolver {
    /// Where a reference of a route leads, for who asked for this port and has this to send.
    ///
    /// # Errors
    /// When it leads nowhere, or to what such a route can't use.
    fn resolve(
        &self,
        route: &RouteId,
        reference: &Reference,
        asked: (Option<u16>, Carried),
    ) -> Result<wire::Destination, Unresolved>;

    /// How a port of the service itself is spoken to.
    ///
    /// # Errors
    /// Why nothing may be sent there.
    fn policy(
        &self,
        served: &Served<'_>,
        port: u16,
    ) -> Result<Option<Box<wire::TrafficPolicy>>, Unresolved>;
}

/// What lets nothing of some traffic pass.
#[derive(Debug, Clone)]
pub struct Closed {
    /// The kind of the object that says so.
    pub kind: &'static str,
    /// Its name.
    pub name: NamespacedName,
    /// Why nothing passes.
    pub why: String,
    /// At these ports; at all of them where there is none.
    pub ports: Vec<u16>,
    /// Whether connections that carry no requests are none of its business.
    pub requests_only: bool,
}

impl Closed {
    /// Of connections that are meant for a workload.
    pub fn message(self) -> wire::Closure {
        wire::Closure {
            why: self.why,
            ports: self.ports.into_iter().map(u32::from).collect(),
            requests_only: self.requests_only,
        }
    }

    /// Puts what answers with an error in place of all routes.
    pub fn close(&self, service: &mut wire::Service) {
        for port in &mut service.ports {
            let meant = self.ports.is_empty()
                || u16::try_from(port.number).is_ok_and(|number| self.ports.contains(&number));
            if meant {
                self.close_port(port);
            }
        }
    }

    fn close_port(&self, port: &mut wire::Port) {
        let mut table = wire::RouteTable::default();
        let (namespace, name) = (self.name.namespace.to_string(), self.name.name.to_string());
        let carries_requests = match port.protocol() {
            wire::Protocol::Tcp | wire::Protocol::Tls => false,
            // Not known before it is there: whatever it is, it is covered.
            wire::Protocol::Detect => self.requests_only,
            _ => true,
        };
        if carries_requests {
            table.http.push(wire::HttpRoute {
                rate_limit: None,
                kind: self.kind.to_owned(),
                namespace,
                name,
                created: 0,
                rules: vec![wire::HttpRule {
                    invalid: self.why.clone(),
                    ..wire::HttpRule::default()
                }],
            });
        } else if self.requests_only {
            return;
        } else {
            table.tcp.push(wire::TcpRoute {
                namespace,
                name,
                created: 0,
                backends: vec![wire::TcpBackend {
                    weight: 1,
                    target: Some(wire::tcp_backend::Target::Invalid(self.why.clone())),
                }],
            });
        }
        port.tables = vec![table];
    }
}

/// Makes the message of a service.
pub fn service(served: Served<'_>, resolver: &impl Resolver) -> wire::Service {
    let ports = reachable(served.ports).map(|(port, speaks)| {
        let mut message = wire::Port {
            number: port.port.into(),
            protocol: speaks.into(),
            tables: tables(&served, port, speaks, resolver),
            traffic_policy: None,
        };
        match resolver.policy(&served, port.port) {
            Ok(policy) => message.traffic_policy = policy,
            Err(why) => {
                let closed = Closed {
                    kind: "TrafficPolicy",
                    name: NamespacedName::new(served.namespace, served.hostname),
                    why: why.words,
                    ports: Vec::new(),
                    requests_only: false,
                };
                closed.close_port(&mut message);
            }
        }
        message
    });
    wire::Service {
        namespace: served.namespace.to_owned(),
        hostname: served.hostname.to_owned(),
        ports: ports.collect(),
        policies: served.policies.clone(),
        token_rules: served.token_rules.clone(),
        telemetry: None,
    }
}

fn tables(
    served: &Served<'_>,
    port: &ServicePort,
    speaks: wire::Protocol,
    resolver: &impl Resolver,
) -> Vec<wire::RouteTable> {
    let mut groups: BTreeMap<&str, Vec<&Attached<'_>>> = BTreeMap::new();
    for attached in served.routes {
        if attached.is_at(port, speaks) {
            let clients = clients_of(attached.id, served.namespace);
            groups.entry(clients).or_default().push(attached);
        }
    }
    let mut tables: Vec<_> = groups
        .into_iter()
        .map(|(clients, routes)| table(clients, routes, port.port, resolver))
        .collect();
    let by_virtuals = ordered::tables(served, port.port, speaks, &tables, resolver);
    tables.extend(by_virtuals);
    // For everyone comes last.
    tables.sort_by_key(|table| table.client_namespace.is_empty());
    tables
}

impl Attached<'_> {
    /// Whether it decides about a port, as far as that lies with itself.
    pub fn is_at(&self, port: &ServicePort, speaks: wire::Protocol) -> bool {
        self.id.rank().suits(speaks) && self.parents.iter().any(|parent| parent.selects(port))
    }
}

/// Whose requests a route decides about: those of its own namespace, or where that is the service's, all.
pub(crate) fn clients_of<'a>(route: &'a RouteId, service_namespace: &str) -> &'a str {
    match &*route.name.namespace {
        own if own == service_namespace => "",
        other => other,
    }
}

fn table(
    clients: &str,
    mut routes: Vec<&Attached<'_>>,
    asked: u16,
    resolver: &impl Resolver,
) -> wire::RouteTable {
    let counts = routes.iter().map(|attached| attached.id.rank()).max();
    routes.retain(|attached| Some(attached.id.rank()) == counts);
    routes.sort_by_key(|attached| (attached.route.created, &attached.id.name));
    let mut table = wire::RouteTable {
        client_namespace: clients.to_owned(),
        ..wire::RouteTable::default()
    };
    for attached in routes {
        let following = Following {
            id: attached.id,
            asked,
            resolver,
        };
        let (namespace, name) = (
            attached.id.name.namespace.to_string(),
            attached.id.name.name.to_string(),
        );
        let created = attached.route.created;
        match &attached.route.rules {
            Rules::Http(rules) => table.http.push(wire::HttpRoute {
                rate_limit: attached.route.rate_limit.clone(),
                kind: attached.id.kind.as_str().to_owned(),
                namespace,
                name,
                created,
                rules: rules
                    .iter()
                    .filter(|rule| rule.reach == Reach::Matched)
                    .map(|rule| following.rule(rule))
                    .collect(),
            }),
            Rules::Tls {
                hostnames,
                backends,
            } => table.tls.push(wire::TlsRoute {
                namespace,
                name,
                created,
                hostnames: hostnames.clone(),
                backends: following.connections(attached.route, backends),
            }),
            Rules::Tcp(backends) => table.tcp.push(wire::TcpRoute {
                namespace,
                name,
                created,
                backends: following.connections(attached.route, backends),
            }),
            // It is for hosts, and stands among those.
            Rules::Virtual(_) => {}
        }
    }
    table
}

/// Follows the references of one route.
struct Following<'a, R> {
    id: &'a RouteId,
    asked: u16,
    resolver: &'a R,
}

impl<R: Resolver> Following<'_, R> {
    fn follow(&self, to: &Target, carried: Carried) -> Result<wire::Destination, Unresolved> {
        self.resolver
            .resolve(self.id, &to.reference, (Some(self.asked), carried))
    }

    fn rule(&self, rule: &HttpRule) -> wire::HttpRule {
        if !rule.message.invalid.is_empty() {
            return rule.message.clone();
        }
        wire::HttpRule {
            filters: self.filters(&rule.filters),
            backends: rule.backends.iter().map(|one| self.backend(one)).collect(),
            ..rule.message.clone()
        }
    }

    fn filters(&self, filters: &[Filter]) -> Vec<wire::HttpFilter> {
        use wire::http_filter::Kind;
        let filter = |filter: &Filter| {
            let kind = match filter {
                Filter::Ready(ready) => return ready.clone(),
                Filter::Mirror {
                    to,
                    numerator,
                    denominator,
                } => Kind::Mirror(wire::Mirror {
                    destination: self.follow(to, Carried::Requests).ok(),
                    numerator: *numerator,
                    denominator: *denominator,
                }),
                Filter::Extension { field, name } => Kind::Unknown(format!("{field}: {name}")),
            };
            wire::HttpFilter { kind: Some(kind) }
        };
        filters.iter().map(filter).collect()
    }

    fn backend(&self, backend: &Backend) -> wire::HttpBackend {
        use wire::http_backend::Target;
        let target = match self.follow(&backend.to, Carried::Requests) {
            Ok(destination) => Target::Destination(destination),
            Err(why) => Target::Invalid(format!("{}: {}", backend.to.field, why.words)),
        };
        wire::HttpBackend {
            weight: backend.weight,
            target: Some(target),
            filters: self.filters(&backend.filters),
        }
    }

    /// A route that can't be honoured, or leads nowhere, has one backend that rejects all.
    fn connections(&self, route: &Route, backends: &[Backend]) -> Vec<wire::TcpBackend> {
        let invalid = match route.faults.as_slice() {
            [] => String::new(),
            faults => said(faults),
        };
        self.shares(invalid, backends)
    }

    fn shares(&self, invalid: String, backends: &[Backend]) -> Vec<wire::TcpBackend> {
        use wire::tcp_backend::Target;
        let nowhere = if !invalid.is_empty() {
            Some(invalid)
        } else if backends.is_empty() {
            Some("names no backend of any weight".to_owned())
        } else {
            None
        };
        if let Some(why) = nowhere {
            return vec![wire::TcpBackend {
                weight: 1,
                target: Some(Target::Invalid(why)),
            }];
        }
        let backend = |backend: &Backend| wire::TcpBackend {
            weight: backend.weight,
            target: Some(match self.follow(&backend.to, Carried::Bytes) {
                Ok(destination) => Target::Destination(destination),
                Err(why) => Target::Invalid(format!("{}: {}", backend.to.field, why.words)),
            }),
        };
        backends.iter().map(backend).collect()
    }
}
