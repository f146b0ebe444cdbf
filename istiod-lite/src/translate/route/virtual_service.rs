// SPDX-License-Identifier: Apache-2.0
//! A VirtualService: Istio's own routes. The first rule that is for a request decides, whatever others would fit better.
//!
//! What Gateway API's routes have as well is read as theirs, so that it means the same; the rest has its own place in the
//! contract, or makes its rule answer with an error.

use std::{collections::BTreeSet, sync::Arc};

use cluster::{
    Kind,
    kinds::{self, virtual_service as vs},
};
use proto::waypoint as wire;

use super::{
    Backend, Faults, Host, HttpRule, Reach, Reference, Route, Rules, Target, Unresolved,
    filters::{self, Place, Prefix},
    hosts::pattern,
    http::Draft,
};
use crate::{
    facts::{NamespacedName, created, endpoint::is_host, service::port_number},
    translate::Mesh,
};

mod changes;
mod conditions;
mod connections;
mod delegation;
mod retry;

pub(crate) use delegation::delegates;

/// Rules of each kind.
const MAX_RULES: usize = 512;
const MAX_MATCHES: usize = 64;
const MAX_BACKENDS: usize = 64;
const MAX_HOSTS: usize = 64;
const MAX_WEIGHT: i64 = 1_000_000;
/// For whom a VirtualService without `gateways` is.
const MESH: &str = "mesh";

/// The rules of a VirtualService, in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Virtual {
    /// For requests.
    pub http: Vec<Ordered>,
    /// For connections to server names.
    pub tls: Vec<Connections>,
    /// For connections.
    pub tcp: Vec<Connections>,
    /// The namespaces whose waypoints follow it, as `exportTo` has them; none: all.
    pub export_to: Vec<String>,
}

/// A rule for requests.
#[derive(Debug, Clone, PartialEq)]
pub struct Ordered {
    /// What it does; what it matches stands below.
    pub rule: HttpRule,
    /// One has to hold; none: everything is matched.
    pub matches: Vec<Scoped<wire::HttpMatch>>,
}

/// A condition that concerns some ports and clients alone.
#[derive(Debug, Clone, PartialEq)]
pub struct Scoped<T> {
    /// This port of the service.
    pub port: Option<u16>,
    /// Clients of this namespace.
    pub clients: Option<String>,
    /// The rest of it.
    pub condition: T,
}

/// A rule for connections.
#[derive(Debug, Clone, PartialEq)]
pub struct Connections {
    /// One has to hold; none: everything is matched. With the server names, where there are such.
    pub matches: Vec<Scoped<Vec<String>>>,
    /// Where they go.
    pub backends: Vec<Backend>,
    /// Why it can't be honoured; empty where it can.
    pub invalid: String,
}

impl<T> Scoped<T> {
    /// Whether it concerns such clients at such a port; `""` are those that no condition names.
    pub fn concerns(&self, port: u16, clients: &str) -> bool {
        self.port.is_none_or(|own| own == port)
            && self.clients.as_deref().is_none_or(|own| own == clients)
    }
}

impl Virtual {
    /// The namespaces whose clients some condition is about.
    pub fn clients(&self) -> BTreeSet<&str> {
        let http = self.http.iter().flat_map(|rule| &rule.matches);
        let http = http.filter_map(|one| one.clients.as_deref());
        let l4 = self
            .tls
            .iter()
            .chain(&self.tcp)
            .flat_map(|rule| &rule.matches);
        http.chain(l4.filter_map(|one| one.clients.as_deref()))
            .collect()
    }

    /// Where its connections go.
    pub(super) fn l4_backends(&self) -> impl Iterator<Item = &Backend> {
        self.tls
            .iter()
            .chain(&self.tcp)
            .flat_map(|rule| &rule.backends)
    }
}

/// Where names are read.
#[derive(Clone, Copy)]
struct Here<'a> {
    namespace: &'a Arc<str>,
    mesh: &'a Mesh,
}

/// Reads a VirtualService; `others` finds those that it leaves rules to.
pub(super) fn read<'a>(
    service: &kinds::VirtualService,
    others: impl Fn(&NamespacedName) -> Option<&'a kinds::VirtualService>,
    mesh: &Mesh,
) -> Route {
    let namespace: Arc<str> = service
        .metadata
        .namespace
        .as_deref()
        .unwrap_or_default()
        .into();
    let spec = &service.spec;
    let here = Here {
        namespace: &namespace,
        mesh,
    };
    let mut faults = Faults::default();
    faults.unknown("spec", &spec.unknown_fields);
    let broken = !faults.0.is_empty();
    // Of gateways alone it is the business of others.
    let for_mesh = spec.gateways.is_empty() || spec.gateways.iter().any(|one| one == MESH);
    let hosts = if for_mesh {
        hosts(spec, here, &mut faults)
    } else {
        Vec::new()
    };
    let mut rules = Virtual {
        export_to: spec.export_to.clone(),
        ..Virtual::default()
    };
    let lengths = [spec.http.len(), spec.tls.len(), spec.tcp.len()];
    let fits = ["spec.http", "spec.tls", "spec.tcp"]
        .iter()
        .zip(lengths)
        .all(|(field, length)| faults.at_most(MAX_RULES, length, field));
    if fits && !broken {
        for (position, one) in spec.http.iter().enumerate() {
            if rules.http.len() > MAX_RULES {
                break;
            }
            let at = format!("spec.http[{position}]");
            let parts = match &one.delegate {
                Some(to) => delegation::parts(one, to, &at, here, &others, &mut faults),
                None => Ok(Vec::new()),
            };
            match parts {
                Ok(parts) if one.delegate.is_some() => {
                    for part in &parts {
                        let there = Here {
                            namespace: &part.namespace,
                            mesh,
                        };
                        let read =
                            http(&part.rule, &part.at, there, Faults::default(), &mut faults);
                        rules.http.extend(read);
                    }
                }
                parts => {
                    let mut own = Faults::default();
                    if let Err(words) = parts {
                        own.add(format!("{at}.delegate"), words);
                    }
                    rules.http.extend(http(one, &at, here, own, &mut faults));
                }
            }
        }
        let with_others = "spec.http, with what it is left to";
        if !faults.at_most(MAX_RULES, rules.http.len(), with_others) {
            rules.http = vec![Ordered {
                rule: HttpRule::broken(&faults.0),
                matches: Vec::new(),
            }];
        }
        for (position, one) in spec.tls.iter().enumerate() {
            let at = format!("spec.tls[{position}]");
            rules
                .tls
                .extend(connections::tls(one, &at, here, &mut faults));
        }
        for (position, one) in spec.tcp.iter().enumerate() {
            let at = format!("spec.tcp[{position}]");
            rules
                .tcp
                .extend(connections::tcp(one, &at, here, &mut faults));
        }
    } else {
        rules.http.push(Ordered {
            rule: HttpRule::broken(&faults.0),
            matches: Vec::new(),
        });
    }
    Route {
        rate_limit: None,
        created: created(&service.metadata).unwrap_or_default(),
        parents: Vec::new(),
        hosts,
        rules: Rules::Virtual(rules),
        faults: faults.0,
    }
}

fn hosts(spec: &vs::VirtualServiceSpec, here: Here<'_>, faults: &mut Faults) -> Vec<Host> {
    faults.at_most(MAX_HOSTS, spec.hosts.len(), "spec.hosts");
    let mut hosts = Vec::new();
    for (position, text) in spec.hosts.iter().take(MAX_HOSTS).enumerate() {
        let at = format!("spec.hosts[{position}]");
        match pattern(text).map_or_else(|| here.host(text), Ok) {
            Ok(host) => hosts.push(host),
            Err(words) => faults.add(at, words),
        }
    }
    hosts
}

impl Here<'_> {
    /// The full name: a short one is of this namespace.
    fn host(self, text: &str) -> Result<Host, String> {
        let host = text.to_ascii_lowercase();
        if !is_host(&host) {
            return Err(format!("{text:?} is no host name"));
        }
        Ok(match host.contains('.') {
            true => host.into(),
            false => self.mesh.hostname(self.namespace, &host).into(),
        })
    }

    fn target(self, to: &vs::Destination, at: &str, faults: &mut Faults) -> Target {
        let at = format!("{at}.destination");
        faults.unknown(&at, &to.unknown_fields);
        let invalid =
            |words: String| Reference::Invalid(Unresolved::new(Unresolved::DESTINATION, words));
        let port = match to.port.as_ref().and_then(|port| port.number) {
            None => Ok(None),
            Some(number) => i32::try_from(number)
                .ok()
                .and_then(port_number)
                .map(Some)
                .ok_or_else(|| format!("{number} is no port number")),
        };
        let reference = match (self.host(&to.host), port) {
            (Err(words), _) | (_, Err(words)) => invalid(words),
            (Ok(host), Ok(port)) => Reference::Named {
                host,
                port,
                subset: to.subset.clone().filter(|name| !name.is_empty()),
            },
        };
        Target {
            field: at,
            reference,
        }
    }
}

/// A port that a condition names; one that is none matches nothing.
fn port(number: Option<i64>, at: &str, faults: &mut Faults) -> Result<Option<u16>, ()> {
    let Some(number) = number else {
        return Ok(None);
    };
    let port = i32::try_from(number).ok().and_then(port_number);
    port.map(Some).ok_or_else(|| {
        faults.add(format!("{at}.port"), format!("{number} is no port number"));
    })
}

/// Whether a condition can hold for traffic inside the mesh at all.
fn in_mesh(gateways: &[String]) -> bool {
    gateways.is_empty() || gateways.iter().any(|one| one == MESH)
}

/// None where none of its conditions can be read, or can hold here. `own`: what is wrong with it already.
fn http(
    one: &vs::HttpRoute,
    at: &str,
    here: Here<'_>,
    mut own: Faults,
    faults: &mut Faults,
) -> Option<Ordered> {
    own.unknown(at, &one.unknown_fields);
    own.at_most(MAX_MATCHES, one.r#match.len(), &format!("{at}.match"));
    let matches = conditions::read(&one.r#match, at, &mut own, faults);
    if matches.is_empty() && !one.r#match.is_empty() {
        // None at all would be everything.
        faults.0.extend(own.0);
        return None;
    }
    let place = Place {
        namespace: here.namespace,
        kind: Kind::VirtualService,
        prefix: Prefix::One,
    };
    let mut filters = filters::read(
        &changes::filters_of(one, at, &matches, &mut own),
        at,
        place,
        &mut own,
    );
    changes::beyond(one, at, &mut filters, &mut own);
    filters.extend(changes::mirrors(one, at, here, &mut own));
    if one.redirect.is_some() && !one.route.is_empty() {
        own.add(
            format!("{at}.redirect"),
            "a rule that redirects has no destinations",
        );
    }
    let message = wire::HttpRule {
        name: one.name.clone().unwrap_or_default(),
        timeouts: retry::timeouts(one, at, &mut own),
        retry: retry::read(one.retries.as_ref(), at, &mut own, faults),
        fault: changes::fault(one, at, &mut own),
        direct_response: changes::direct_response(one, at, &mut own),
        ..wire::HttpRule::default()
    };
    let draft = Draft {
        message,
        wanted: 0,
        filters,
        backends: backends(one, at, here, place, &mut own),
    };
    let mut rule = draft.finish(own, faults);
    rule.reach = Reach::Matched;
    Some(Ordered { rule, matches })
}

/// Shares as they are meant: of several destinations those without a weight get nothing, a single one gets all.
fn weight(given: Option<i64>, only: bool, at: &str, own: &mut Faults) -> u32 {
    match given {
        _ if only => 1,
        None => 0,
        Some(weight @ 0..=MAX_WEIGHT) => u32::try_from(weight).unwrap_or_default(),
        Some(other) => {
            own.add(
                format!("{at}.weight"),
                format!("{other} is no weight from 0 to {MAX_WEIGHT}"),
            );
            0
        }
    }
}

fn backends(
    one: &vs::HttpRoute,
    at: &str,
    here: Here<'_>,
    place: Place<'_>,
    own: &mut Faults,
) -> Vec<Backend> {
    own.at_most(MAX_BACKENDS, one.route.len(), &format!("{at}.route"));
    let only = one.route.len() == 1;
    let mut backends = Vec::new();
    for (position, to) in one.route.iter().take(MAX_BACKENDS).enumerate() {
        let at = format!("{at}.route[{position}]");
        own.unknown(&at, &to.unknown_fields);
        let weight = weight(to.weight, only, &at, own);
        let headers = to.headers.as_ref().map_or(Vec::new(), |headers| {
            changes::headers_of(headers, &format!("{at}.headers"), own)
        });
        let filters = filters::read(&headers, &at, place, own);
        if weight > 0 {
            backends.push(Backend {
                weight,
                to: here.target(&to.destination, &at, own),
                filters,
            });
        }
    }
    backends
}
