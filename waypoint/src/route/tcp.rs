// SPDX-License-Identifier: Apache-2.0
//! Connections without requests: by the server name that TLS begins with, or all alike.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use proto::waypoint::tcp_backend::Target;
use rand::Rng;

use super::{Destination, Reason};
use crate::split::Split;

/// Where a connection goes; if nowhere, it is rejected for that reason.
pub type TcpAnswer<'t> = Result<&'t Destination, Reason<'t>>;

/// A share of a route's connections: to a port, or rejected for a reason.
type Backends = Split<Result<Destination, Box<str>>>;

/// TLSRoutes.
#[derive(Debug)]
pub struct TlsTable {
    /// By whole server name.
    exact: HashMap<Box<str>, usize>,
    /// By what follows a `*`, with its dot.
    wildcard: HashMap<Box<str>, usize>,
    routes: Vec<Backends>,
}

/// A TCPRoute.
#[derive(Debug)]
pub struct TcpTable(Backends);

impl TlsTable {
    pub(super) fn compile(routes: &[proto::waypoint::TlsRoute]) -> Self {
        let mut ordered: Vec<_> = routes.iter().collect();
        ordered.sort_by_cached_key(|route| {
            (route.created, format!("{}/{}", route.namespace, route.name))
        });
        let mut table = Self {
            exact: HashMap::new(),
            wildcard: HashMap::new(),
            routes: Vec::new(),
        };
        for (at, route) in ordered.into_iter().enumerate() {
            for hostname in &route.hostnames {
                let hostname = hostname.to_ascii_lowercase();
                let entry = match hostname.strip_prefix('*') {
                    Some(behind) => table.wildcard.entry(behind.into()),
                    None => table.exact.entry(hostname.into()),
                };
                // The older route stays.
                if let Entry::Vacant(vacant) = entry {
                    vacant.insert(at);
                }
            }
            table.routes.push(compile(&route.backends));
        }
        table
    }

    /// Where a connection goes whose client asks for this server name. The whole name comes first, then the longest
    /// wildcard; `*.` stands for one label or more.
    pub fn answer(&self, server_name: Option<&str>, rng: &mut impl Rng) -> TcpAnswer<'_> {
        let name = server_name.map(|name| name.trim_end_matches('.').to_ascii_lowercase());
        let at = name.as_deref().and_then(|name| self.find(name));
        let backends = at.and_then(|at| self.routes.get(at));
        draw(backends.ok_or(Reason::NoRoute)?, rng)
    }

    fn find(&self, name: &str) -> Option<usize> {
        let exact = self.exact.get(name).copied();
        exact.or_else(|| {
            // From the second label on: the wildcard stands for something.
            let dots = name.match_indices('.').filter(|(at, _)| *at > 0);
            let mut suffixes = dots.map(|(at, _)| &name[at..]);
            let longest = suffixes.find_map(|suffix| self.wildcard.get(suffix).copied());
            longest.or_else(|| self.wildcard.get("").copied())
        })
    }
}

impl TcpTable {
    pub(super) fn compile(route: &proto::waypoint::TcpRoute) -> Self {
        Self(compile(&route.backends))
    }

    /// Where a connection goes.
    pub fn answer(&self, rng: &mut impl Rng) -> TcpAnswer<'_> {
        draw(&self.0, rng)
    }
}

fn compile(backends: &[proto::waypoint::TcpBackend]) -> Backends {
    let target = |backend: &proto::waypoint::TcpBackend| match &backend.target {
        Some(Target::Destination(destination)) => {
            Destination::compile(destination).map_err(|error| error.to_string().into())
        }
        Some(Target::Invalid(why)) if !why.is_empty() => Err(why.as_str().into()),
        Some(Target::Invalid(_)) | None => Err("it names no target".into()),
    };
    Split::new(
        backends
            .iter()
            .map(|backend| (backend.weight, target(backend))),
    )
}

fn draw<'t>(backends: &'t Backends, rng: &mut impl Rng) -> TcpAnswer<'t> {
    match backends.draw(rng) {
        None => Err(Reason::NoBackend),
        Some(Ok(destination)) => Ok(destination),
        Some(Err(why)) => Err(Reason::InvalidBackend(why)),
    }
}

#[cfg(test)]
mod tests;
