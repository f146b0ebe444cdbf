// SPDX-License-Identifier: Apache-2.0
//! What a person calls a pod or a service → what it is.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use mesh::{Found, Service, Workload};

use super::{Knowledge, Question};

/// What means nothing here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    #[error("source {0:?}: no such workload is known here; write NAMESPACE/POD or an address")]
    Source(String),
    #[error("source {0:?} has no address")]
    NoAddress(String),
    #[error("destination {0:?}: no such service or workload is known here")]
    Destination(String),
    #[error("destination {destination:?} needs a port; it has {ports}")]
    Port { destination: String, ports: String },
}

/// Who connects.
pub(super) fn source(knows: Knowledge<'_>, text: &str) -> Result<Arc<Workload>, Unknown> {
    let found = workload(knows, text).ok_or_else(|| Unknown::Source(text.to_owned()))?;
    match found.addresses.is_empty() {
        true => Err(Unknown::NoAddress(text.to_owned())),
        false => Ok(found),
    }
}

fn workload(knows: Knowledge<'_>, text: &str) -> Option<Arc<Workload>> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        let found = knows.store.workload_by_ip(knows.network, ip.to_canonical());
        return found.cloned();
    }
    if let Some(found) = knows.store.workload(text) {
        return Some(found.clone());
    }
    let (namespace, name) = text.split_once('/')?;
    let mut all = knows.store.workloads();
    all.find(|one| *one.namespace == *namespace && *one.name == *name)
        .cloned()
}

/// What the client connects to.
pub(super) fn destination(
    knows: Knowledge<'_>,
    question: Question<'_>,
    source: &Workload,
) -> Result<SocketAddr, Unknown> {
    let Question {
        destination: text,
        port,
        ..
    } = question;
    let port_of = |service: Option<&Service>| {
        let ports: Vec<u16> = service
            .into_iter()
            .flat_map(|service| service.ports.iter().map(|(port, _)| port))
            .collect();
        match (port, &*ports) {
            (Some(port), _) => Ok(port),
            (None, [port]) => Ok(*port),
            (None, ports) => Err(Unknown::Port {
                destination: text.to_owned(),
                ports: match ports {
                    [] => "none of its own".to_owned(),
                    some => some
                        .iter()
                        .map(u16::to_string)
                        .collect::<Vec<_>>()
                        .join(", "),
                },
            }),
        }
    };
    if let Ok(ip) = text.parse::<IpAddr>() {
        let ip = ip.to_canonical();
        let client = Some(&*source.namespace);
        let service = match knows.store.find(knows.network, ip, client) {
            Some(Found::Service(service)) => Some(service),
            _ => None,
        };
        return Ok(SocketAddr::new(ip, port_of(service.as_deref())?));
    }
    let unknown = || Unknown::Destination(text.to_owned());
    if let Some(service) = service(knows, text, source) {
        let port = port_of(Some(&*service))?;
        let vips = service.vips.iter().filter(|vip| {
            // What the client's own network calls by that address.
            *vip.network == *source.network
        });
        // Of one without an address, a client asks for its endpoints.
        let endpoints = knows.store.endpoints(&service).iter();
        let mut ips = vips
            .map(|vip| vip.address)
            .chain(endpoints.flat_map(|endpoint| endpoint.addresses.iter().copied()));
        return Ok(SocketAddr::new(ips.next().ok_or_else(unknown)?, port));
    }
    let workload = workload(knows, text).ok_or_else(unknown)?;
    let ip = workload.addresses.first().ok_or_else(unknown)?;
    Ok(SocketAddr::new(*ip, port_of(None)?))
}

/// By its whole name, `name.namespace[.svc]`, or `name` in the client's own namespace.
fn service(knows: Knowledge<'_>, text: &str, source: &Workload) -> Option<Arc<Service>> {
    let text = text.trim_end_matches('.').to_ascii_lowercase();
    let client = Some(&*source.namespace);
    if let Some(found) = knows.store.service_by_host(&text, client) {
        return Some(found.clone());
    }
    let short = text.strip_suffix(".svc").unwrap_or(&text);
    let (name, namespace) = short.split_once('.').unwrap_or((short, &source.namespace));
    let mut all = knows.store.services().map(|(service, _)| service);
    all.find(|one| *one.name == *name && *one.namespace == *namespace)
        .cloned()
}
