// SPDX-License-Identifier: Apache-2.0
//! A VirtualService's rules for connections.

use cluster::kinds::{self, virtual_service as vs};

use super::{
    super::{Backend, Faults, said},
    Connections, Here, MAX_BACKENDS, MAX_MATCHES, Scoped, in_mesh, port, weight,
};

fn l4_backends(
    route: &[vs::RouteDestination],
    at: &str,
    here: Here<'_>,
    own: &mut Faults,
) -> Vec<Backend> {
    own.at_most(MAX_BACKENDS, route.len(), &format!("{at}.route"));
    let only = route.len() == 1;
    let mut backends = Vec::new();
    for (position, to) in route.iter().take(MAX_BACKENDS).enumerate() {
        let at = format!("{at}.route[{position}]");
        own.unknown(&at, &to.unknown_fields);
        let weight = weight(to.weight, only, &at, own);
        if weight > 0 {
            backends.push(Backend {
                weight,
                to: here.target(&to.destination, &at, own),
                filters: Vec::new(),
            });
        }
    }
    backends
}

/// What conditions on connections have in common.
struct L4Match<'a> {
    names: &'a [String],
    subnets: &'a [String],
    port: Option<i64>,
    source_labels: bool,
    source_namespace: &'a Option<String>,
    gateways: &'a [String],
    unknown: &'a kinds::UnknownFields,
}

fn connections<'a>(
    matches: impl ExactSizeIterator<Item = L4Match<'a>>,
    route: &[vs::RouteDestination],
    unknown: &kinds::UnknownFields,
    at: &str,
    here: Here<'_>,
    faults: &mut Faults,
) -> Option<Connections> {
    let mut own = Faults::default();
    own.unknown(at, unknown);
    let wanted = matches.len();
    own.at_most(MAX_MATCHES, wanted, &format!("{at}.match"));
    let mut read = Vec::new();
    for (position, one) in matches.take(MAX_MATCHES).enumerate() {
        let at = format!("{at}.match[{position}]");
        own.unknown(&at, one.unknown);
        if !one.subnets.is_empty() {
            own.add(format!("{at}.destinationSubnets"), "is not supported");
        }
        // As in Istio, which labels a client has is not known here.
        if one.source_labels {
            let words = "is not known to waypoints: the condition is left out";
            faults.add(format!("{at}.sourceLabels"), words);
        }
        let port = port(one.port, &at, &mut own);
        if let Ok(port) = port
            && !one.source_labels
            && in_mesh(one.gateways)
        {
            read.push(Scoped {
                port,
                clients: one.source_namespace.clone().filter(|name| !name.is_empty()),
                condition: one.names.to_vec(),
            });
        }
    }
    let backends = l4_backends(route, at, here, &mut own);
    let invalid = match own.0.as_slice() {
        [] if backends.is_empty() => "names no backend of any weight".to_owned(),
        [] => String::new(),
        faults => said(faults),
    };
    faults.0.extend(own.0);
    // None at all would be everything.
    (wanted == 0 || !read.is_empty()).then_some(Connections {
        matches: read,
        backends,
        invalid,
    })
}

pub(super) fn tls(
    one: &vs::TlsRoute,
    at: &str,
    here: Here<'_>,
    faults: &mut Faults,
) -> Option<Connections> {
    let matches = one.r#match.iter().map(|one| L4Match {
        names: &one.sni_hosts,
        subnets: &one.destination_subnets,
        port: one.port,
        source_labels: !one.source_labels.is_empty(),
        source_namespace: &one.source_namespace,
        gateways: &one.gateways,
        unknown: &one.unknown_fields,
    });
    connections(matches, &one.route, &one.unknown_fields, at, here, faults)
}

pub(super) fn tcp(
    one: &vs::TcpRoute,
    at: &str,
    here: Here<'_>,
    faults: &mut Faults,
) -> Option<Connections> {
    let matches = one.r#match.iter().map(|one| L4Match {
        names: &[],
        subnets: &one.destination_subnets,
        port: one.port,
        source_labels: !one.source_labels.is_empty(),
        source_namespace: &one.source_namespace,
        gateways: &one.gateways,
        unknown: &one.unknown_fields,
    });
    connections(matches, &one.route, &one.unknown_fields, at, here, faults)
}
