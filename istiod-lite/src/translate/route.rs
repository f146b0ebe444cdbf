// SPDX-License-Identifier: Apache-2.0
//! Routes: what each says by itself, checked, and what several of them come to for a service.
//!
//! ```text
//!  HTTPRoute, GRPCRoute ─► http, grpc ─► matching, filters ─┐
//!  TLSRoute, TCPRoute ───► l4 ──────────────────────────────┼► Route ─► serving ─► the service's message
//!  VirtualService ───────► virtual_service ─────────────────┘
//!                                          reference: what only the index can follow ──┘
//! ```
//!
//! A rule with a value that can't be honoured is never left out in silence: it goes to the waypoint as one that
//! answers with an error, for the requests that its readable matches match; and its author is told.
//! The limits are those that an API server enforces: files are read without one.

mod filters;
mod grpc;
mod hosts;
mod http;
mod l4;
mod matching;
mod policy;
mod rate_limit;
mod reference;
pub mod serving;
mod values;
mod virtual_service;

use std::{fmt, sync::Arc};

use cluster::{Kind, kinds};
use proto::waypoint as wire;

use super::Mesh;
use crate::facts::{NamespacedName, service::ServicePort};

pub(crate) use hosts::{closeness, is_exported, names_of, pattern};
pub use reference::{Parent, ParentKey, Reference, Unresolved};
pub(crate) use values::{expression, fraction, is_token};
pub(crate) use virtual_service::delegates;
pub use virtual_service::{Connections, Ordered, Scoped, Virtual};

/// Names one route.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteId {
    /// Which of the kinds it is.
    pub kind: Kind,
    /// Its name.
    pub name: NamespacedName,
}

/// A route, checked as far as it goes by itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// When it was made, in seconds since the epoch; the older of two goes first.
    pub created: i64,
    /// The services that it is for; other parents are others' business.
    pub parents: Vec<Parent>,
    /// The hosts that a VirtualService is for.
    pub hosts: Vec<Host>,
    /// What it does.
    pub rules: Rules,
    /// How many requests it takes.
    pub rate_limit: Option<wire::RateLimit>,
    /// What in it can't be honoured.
    pub faults: Vec<Fault>,
}

/// What a route does.
#[derive(Debug, Clone, PartialEq)]
pub enum Rules {
    /// With requests.
    Http(Vec<HttpRule>),
    /// With connections to these server names.
    Tls {
        /// The names; `*.` at the start stands for any labels.
        hostnames: Vec<String>,
        /// Where the connections go.
        backends: Vec<Backend>,
    },
    /// With connections.
    Tcp(Vec<Backend>),
    /// With whatever comes, in order.
    Virtual(Virtual),
}

/// A rule for requests, but for its references.
#[derive(Debug, Clone, PartialEq)]
pub struct HttpRule {
    /// All of it that refers to nothing.
    pub message: wire::HttpRule,
    /// Its filters, in order.
    pub filters: Vec<Filter>,
    /// Where its requests go; those of no weight are left out.
    pub backends: Vec<Backend>,
    /// What of its matches could be read.
    pub reach: Reach,
    /// Whether it can't be honoured as it is written.
    pub broken: bool,
}

/// What of the matches of a rule could be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// All or some of them, or it has none and matches everything.
    Matched,
    /// None of those that it has: it matches nothing.
    Nothing,
}

/// A filter, but for its reference.
#[derive(Debug, Clone, PartialEq)]
pub enum Filter {
    /// It has none.
    Ready(wire::HttpFilter),
    /// Requests are copied to a backend.
    Mirror {
        /// The backend.
        to: Target,
        /// How many …
        numerator: u32,
        /// … of how many.
        denominator: u32,
    },
    /// An extension, of which there are none.
    Extension {
        /// Where it stands.
        field: String,
        /// What it refers to.
        name: String,
    },
}

/// A share of what a rule matches.
#[derive(Debug, Clone, PartialEq)]
pub struct Backend {
    /// Its share; more than 0.
    pub weight: u32,
    /// Where it goes.
    pub to: Target,
    /// Filters for this share alone.
    pub filters: Vec<Filter>,
}

/// A reference, and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Where it stands, as in `spec.rules[0].backendRefs[1]`.
    pub field: String,
    /// What it says.
    pub reference: Reference,
}

/// What in a route can't be honoured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Where it stands.
    pub field: String,
    /// Why.
    pub reason: Reason,
    /// What is wrong.
    pub words: String,
}

/// Why something can't be honoured, in the words of Gateway API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// A value is not one that is supported.
    UnsupportedValue,
    /// Filters exclude each other.
    IncompatibleFilters,
}

impl Reason {
    /// As conditions say it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UnsupportedValue => "UnsupportedValue",
            Self::IncompatibleFilters => "IncompatibleFilters",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.words)
    }
}

/// Collects faults.
#[derive(Debug, Default)]
struct Faults(Vec<Fault>);

impl Faults {
    fn add(&mut self, field: impl Into<String>, words: impl Into<String>) {
        self.because(Reason::UnsupportedValue, field, words);
    }

    fn because(&mut self, reason: Reason, field: impl Into<String>, words: impl Into<String>) {
        self.0.push(Fault {
            field: field.into(),
            reason,
            words: words.into(),
        });
    }

    /// A list is not longer than it may be.
    fn at_most(&mut self, most: usize, length: usize, field: &str) -> bool {
        let fits = length <= most;
        if !fits {
            self.add(field, format!("has {length} entries, {most} may be"));
        }
        fits
    }

    /// Fields that this version doesn't know may change what the ones that it knows mean.
    fn unknown(&mut self, at: &str, fields: &kinds::UnknownFields) {
        for field in fields.keys() {
            self.add(format!("{at}.{field}"), "is not known");
        }
    }
}

/// Reads an HTTPRoute.
pub fn http(route: &kinds::HTTPRoute) -> Route {
    rate_limit::limited(http::read(route), &route.metadata)
}

/// Reads a GRPCRoute.
pub fn grpc(route: &kinds::GRPCRoute) -> Route {
    rate_limit::limited(grpc::read(route), &route.metadata)
}

/// Reads a TLSRoute.
pub fn tls(route: &kinds::TLSRoute) -> Route {
    l4::read_tls(route)
}

/// Reads a TCPRoute.
pub fn tcp(route: &kinds::TCPRoute) -> Route {
    l4::read_tcp(route)
}

/// Reads a VirtualService; `others` finds those that it leaves rules to.
pub fn virtual_service<'a>(
    service: &kinds::VirtualService,
    others: impl Fn(&NamespacedName) -> Option<&'a kinds::VirtualService>,
    mesh: &Mesh,
) -> Route {
    let route = virtual_service::read(service, others, mesh);
    rate_limit::limited(route, &service.metadata)
}

/// Which of several kinds of route counts where they meet at one port: the greatest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// TCPRoutes.
    Tcp,
    /// TLSRoutes.
    Tls,
    /// HTTPRoutes.
    Http,
    /// GRPCRoutes.
    Grpc,
}

/// What a rule of a route sends on. The kind does not say it of a VirtualService, which has rules for both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carried {
    /// HTTP requests, which whoever expects TLS must not get in plain text.
    Requests,
    /// A connection's bytes, whatever they are.
    Bytes,
}

impl RouteId {
    /// How it stands to the other kinds.
    pub fn rank(&self) -> Rank {
        match self.kind {
            Kind::GRPCRoute => Rank::Grpc,
            Kind::HTTPRoute => Rank::Http,
            Kind::TLSRoute => Rank::Tls,
            _ => Rank::Tcp,
        }
    }
}

impl Rank {
    /// Whether such routes can do something with what a port speaks.
    pub(crate) fn suits(self, speaks: wire::Protocol) -> bool {
        use wire::Protocol;
        match self {
            Self::Http | Self::Grpc => !matches!(speaks, Protocol::Tcp | Protocol::Tls),
            Self::Tls => matches!(speaks, Protocol::Tls | Protocol::Detect),
            Self::Tcp => true,
        }
    }
}

impl Route {
    /// All that it refers to, and what it would send there.
    pub fn targets(&self) -> impl Iterator<Item = (Carried, &Target)> {
        let backends: Vec<&Backend> = match &self.rules {
            Rules::Http(_) => Vec::new(),
            Rules::Tls { backends, .. } | Rules::Tcp(backends) => backends.iter().collect(),
            Rules::Virtual(rules) => rules.l4_backends().collect(),
        };
        let of_rules = self.http_rules().flat_map(|rule| {
            let own = mirrors(&rule.filters);
            own.chain(rule.backends.iter().flat_map(Backend::targets))
        });
        let of_connections = backends.into_iter().flat_map(Backend::targets);
        let of_rules = of_rules.map(|target| (Carried::Requests, target));
        of_rules.chain(of_connections.map(|target| (Carried::Bytes, target)))
    }

    fn http_rules(&self) -> impl Iterator<Item = &HttpRule> {
        let (rules, ordered): (&[HttpRule], &[Ordered]) = match &self.rules {
            Rules::Http(rules) => (rules, &[]),
            Rules::Virtual(rules) => (&[], &rules.http),
            Rules::Tls { .. } | Rules::Tcp(_) => (&[], &[]),
        };
        rules.iter().chain(ordered.iter().map(|one| &one.rule))
    }

    /// The extensions that it refers to: where, and what.
    pub fn extensions(&self) -> impl Iterator<Item = (&str, &str)> {
        let filters = self.http_rules().flat_map(|rule| {
            let of_backends = rule.backends.iter().flat_map(|backend| &backend.filters);
            rule.filters.iter().chain(of_backends)
        });
        filters.filter_map(|filter| match filter {
            Filter::Extension { field, name } => Some((field.as_str(), name.as_str())),
            Filter::Ready(_) | Filter::Mirror { .. } => None,
        })
    }

    /// How many of its rules can't be honoured, and of how many.
    pub fn broken(&self) -> (usize, usize) {
        match &self.rules {
            Rules::Http(rules) => {
                let broken = rules.iter().filter(|rule| rule.broken);
                (broken.count(), rules.len())
            }
            Rules::Tls { .. } | Rules::Tcp(_) => (usize::from(!self.faults.is_empty()), 1),
            Rules::Virtual(rules) => {
                let l4 = rules.tls.iter().chain(&rules.tcp);
                let broken = self.http_rules().filter(|rule| rule.broken).count()
                    + l4.clone().filter(|rule| !rule.invalid.is_empty()).count();
                (broken, rules.http.len() + l4.count())
            }
        }
    }
}

impl HttpRule {
    /// One that answers all with an error, in place of a route that is too large to be one.
    fn broken(why: &[Fault]) -> Self {
        Self {
            message: wire::HttpRule {
                invalid: said(why),
                ..wire::HttpRule::default()
            },
            filters: Vec::new(),
            backends: Vec::new(),
            reach: Reach::Matched,
            broken: true,
        }
    }
}

impl Filter {
    fn redirects(&self) -> bool {
        let Self::Ready(filter) = self else {
            return false;
        };
        matches!(filter.kind, Some(wire::http_filter::Kind::Redirect(_)))
    }
}

impl Backend {
    fn targets(&self) -> impl Iterator<Item = &Target> {
        std::iter::once(&self.to).chain(mirrors(&self.filters))
    }
}

fn mirrors(filters: &[Filter]) -> impl Iterator<Item = &Target> {
    filters.iter().filter_map(|filter| match filter {
        Filter::Mirror { to, .. } => Some(to),
        Filter::Ready(_) | Filter::Extension { .. } => None,
    })
}

/// How many faults are told at once: what is said has to fit into a condition.
pub(crate) const MAX_SAID: usize = 4;

/// Faults, or what else can be printed, as one sentence.
pub(crate) fn said<T: fmt::Display>(all: &[T]) -> String {
    let first: Vec<String> = all.iter().take(MAX_SAID).map(ToString::to_string).collect();
    let more = all.len().saturating_sub(MAX_SAID);
    let rest = match more {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    format!("{}{rest}", first.join("; "))
}

/// The service that a route is for: what it has at the ports where it can be reached over TCP.
pub(crate) fn reachable(
    ports: &[ServicePort],
) -> impl Iterator<Item = (&ServicePort, wire::Protocol)> {
    let mut seen = std::collections::BTreeSet::new();
    ports
        .iter()
        .filter_map(|port| Some((port, port.speaks?)))
        .filter(move |(port, _)| seen.insert(port.port))
}

/// A host, cheap to clone.
pub type Host = Arc<str>;
