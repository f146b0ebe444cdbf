// SPDX-License-Identifier: Apache-2.0
//! What the index keeps of an EndpointSlice.

use std::net::IpAddr;

use k8s_openapi::api::discovery::v1 as discovery;

use super::{Problem, Read, label, pod::Health};
use crate::wellknown;

/// Endpoints that something other than a selector gave to a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    /// The service's name, in the slice's namespace.
    pub service: String,
    /// Name and number of each TCP port.
    pub ports: Vec<(String, u16)>,
    /// Pods that the slice points at. They are published as pods.
    pub pods: Vec<PodRef>,
    /// Endpoints that are no pods.
    pub endpoints: Vec<Endpoint>,
}

/// A pod that a slice points at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodRef {
    /// Its name, in the slice's namespace.
    pub name: String,
    /// Its uid: a later pod of the same name is not meant.
    pub uid: String,
}

/// An endpoint that is no pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Its addresses, at least one.
    pub addresses: Vec<IpAddr>,
    /// Whether it takes connections.
    pub health: Health,
}

/// Reads a slice; one of no service, or of host names, is not for the mesh.
pub fn read(slice: &discovery::EndpointSlice) -> Option<Read<Slice>> {
    let service =
        label(&slice.metadata, wellknown::SERVICE_NAME).filter(|name| !name.is_empty())?;
    if slice.address_type == "FQDN" {
        return None;
    }
    let mut problems = Vec::new();
    let mut pods = Vec::new();
    let mut endpoints: Vec<Endpoint> = Vec::new();
    let mut seen = std::collections::BTreeSet::new();
    let namespace = slice.metadata.namespace.as_deref().unwrap_or_default();
    for (position, endpoint) in slice.endpoints.iter().enumerate() {
        let target = endpoint.target_ref.as_ref();
        if let Some(target) = target.filter(|target| target.kind.as_deref() == Some("Pod")) {
            let same_namespace = target
                .namespace
                .as_deref()
                .is_none_or(|other| other == namespace);
            if let (Some(name), Some(uid), true) = (&target.name, &target.uid, same_namespace) {
                pods.push(PodRef {
                    name: name.clone(),
                    uid: uid.clone(),
                });
            }
            continue;
        }
        let parsed: Result<Vec<IpAddr>, _> = endpoint.addresses.iter().map(|a| a.parse()).collect();
        let Ok(addresses) = parsed else {
            problems.push(Problem::new(
                format!("endpoints[{position}].addresses"),
                "not all of them are IP addresses; the endpoint is left out",
            ));
            continue;
        };
        let Some(first) = addresses.first() else {
            continue;
        };
        if !seen.insert(*first) {
            continue;
        }
        let ready = endpoint
            .conditions
            .as_ref()
            .and_then(|c| c.ready)
            .unwrap_or(true);
        let health = if ready {
            Health::Ready
        } else {
            Health::NotReady
        };
        endpoints.push(Endpoint { addresses, health });
    }
    let facts = Slice {
        service: service.to_owned(),
        ports: ports(slice),
        pods,
        endpoints,
    };
    Some(Read { facts, problems })
}

fn ports(slice: &discovery::EndpointSlice) -> Vec<(String, u16)> {
    let all = slice.ports.iter().flatten();
    all.filter(|port| {
        port.protocol
            .as_deref()
            .is_none_or(|protocol| protocol == "TCP")
    })
    .filter_map(|port| {
        let number = u16::try_from(port.port?).ok()?;
        Some((port.name.clone().unwrap_or_default(), number))
    })
    .collect()
}
