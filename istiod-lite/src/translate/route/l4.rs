// SPDX-License-Identifier: Apache-2.0
//! A TLSRoute or TCPRoute: one rule, which decides about whole connections.

use std::{net::IpAddr, sync::Arc};

use cluster::{
    Kind, check_subdomain,
    kinds::{self, L4RouteSpec, ObjectMeta},
};

use super::{
    Backend, Faults, Route, Rules,
    filters::{Place, Prefix},
    http::backends,
    reference,
};
use crate::facts::created;

/// Server names of a TLSRoute.
const MAX_HOSTNAMES: usize = 1024;

/// Reads a TLSRoute.
pub(super) fn read_tls(route: &kinds::TLSRoute) -> Route {
    let mut faults = Faults::default();
    let hostnames = hostnames(&route.spec.hostnames, &mut faults);
    read(
        Kind::TLSRoute,
        &route.metadata,
        &route.spec,
        faults,
        |backends| Rules::Tls {
            hostnames,
            backends,
        },
    )
}

/// Reads a TCPRoute.
pub(super) fn read_tcp(route: &kinds::TCPRoute) -> Route {
    let faults = Faults::default();
    read(
        Kind::TCPRoute,
        &route.metadata,
        &route.spec,
        faults,
        Rules::Tcp,
    )
}

fn read(
    kind: Kind,
    meta: &ObjectMeta,
    spec: &L4RouteSpec,
    mut faults: Faults,
    rules: impl FnOnce(Vec<Backend>) -> Rules,
) -> Route {
    let namespace: Arc<str> = meta.namespace.as_deref().unwrap_or_default().into();
    let place = Place {
        namespace: &namespace,
        kind,
        prefix: Prefix::None,
    };
    let backends = match spec.rules.as_slice() {
        [rule] => {
            let at = "spec.rules[0]";
            faults.unknown(at, &rule.unknown_fields);
            for (position, one) in rule.backend_refs.iter().enumerate() {
                if !one.filters.is_empty() {
                    let field = format!("{at}.backendRefs[{position}].filters");
                    faults.add(field, "connections have no filters");
                }
            }
            if rule.backend_refs.is_empty() {
                faults.add(format!("{at}.backendRefs"), "names no backend");
            }
            backends(&rule.backend_refs, at, place, &mut faults)
        }
        rules => {
            let words = format!("has {} entries, there has to be one", rules.len());
            faults.add("spec.rules", words);
            Vec::new()
        }
    };
    Route {
        rate_limit: None,
        created: created(meta).unwrap_or_default(),
        parents: reference::parents(&spec.parent_refs, &namespace),
        hosts: Vec::new(),
        rules: rules(backends),
        faults: faults.0,
    }
}

fn hostnames(texts: &[String], faults: &mut Faults) -> Vec<String> {
    const AT: &str = "spec.hostnames";
    faults.at_most(MAX_HOSTNAMES, texts.len(), AT);
    if texts.is_empty() {
        faults.add(AT, "names no server");
    }
    let mut read = Vec::new();
    for (position, text) in texts.iter().take(MAX_HOSTNAMES).enumerate() {
        let host = text.to_ascii_lowercase();
        let name = host.strip_prefix("*.").unwrap_or(&host);
        if name.parse::<IpAddr>().is_ok() || check_subdomain(name).is_err() {
            faults.add(
                format!("{AT}[{position}]"),
                format!("{text:?} is no server name"),
            );
        } else if !read.contains(&host) {
            read.push(host);
        }
    }
    read
}
