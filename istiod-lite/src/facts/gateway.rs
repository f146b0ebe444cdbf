// SPDX-License-Identifier: Apache-2.0
//! What the index keeps of a Gateway and a GatewayClass: enough to be a waypoint, or a way into another network.

use std::net::IpAddr;

use cluster::kinds;
use proto::workload::{ApplicationTunnel, application_tunnel::Protocol};

use super::{
    Labels, Problem, Read, annotation,
    endpoint::is_host,
    label,
    network_gateway::{self, NetworkGateway},
    selects,
};
use crate::wellknown;

/// A Gateway that others may name as their waypoint. Its class does not matter.
#[derive(Debug, Clone, PartialEq)]
pub struct Gateway {
    /// Its class, by name.
    pub class: String,
    /// Whether it has been given any address.
    pub readiness: Readiness,
    /// Where it is reached.
    pub address: Option<Address>,
    /// What may use it, where its label says so.
    pub serves: Option<Serves>,
    /// How traffic is handed to its pods where ztunnel captures them.
    pub binding: Option<ApplicationTunnel>,
    /// Its listeners.
    pub listeners: Vec<Listener>,
    /// Where it leads, if that is into another network.
    pub leads: Option<NetworkGateway>,
    /// Whether its waypoints say in their answers which rule has decided.
    pub explains: bool,
}

/// Whether a Gateway can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// It has an address.
    Ready,
    /// Its status lists none yet.
    NoAddress,
}

/// Where a Gateway is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// By the host name of a service in its namespace.
    Hostname(String),
    /// By an address on the cluster's network.
    Ip(IpAddr),
}

/// What may use a waypoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serves {
    /// Traffic addressed to services.
    Services,
    /// Traffic addressed to pods.
    Workloads,
    /// Both.
    All,
    /// Neither.
    Nothing,
}

/// One listener of a Gateway.
#[derive(Debug, Clone, PartialEq)]
pub struct Listener {
    /// `HBONE` for waypoints.
    pub protocol: String,
    /// Its port.
    pub port: i32,
    /// Which namespaces may attach.
    pub admits: Admits,
}

/// Which namespaces may attach to a listener.
#[derive(Debug, Clone, PartialEq)]
pub enum Admits {
    /// The Gateway's own.
    Same,
    /// All.
    All,
    /// Those with matching labels.
    Selected(kinds::LabelSelector),
}

/// What a class says for its Gateways.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Class {
    /// What may use them.
    pub serves: Option<Serves>,
    /// How traffic is handed to their pods.
    pub binding: Option<ApplicationTunnel>,
}

/// Reads a Gateway.
pub fn read(gateway: &kinds::Gateway) -> Read<Gateway> {
    let meta = &gateway.metadata;
    let mut problems = Vec::new();
    let status = gateway.status.as_ref();
    let given = status.map(|s| s.addresses.as_slice()).unwrap_or_default();
    let facts = Gateway {
        class: gateway.spec.gateway_class_name.clone(),
        readiness: if given.is_empty() {
            Readiness::NoAddress
        } else {
            Readiness::Ready
        },
        address: address(given),
        serves: label(meta, wellknown::WAYPOINT_FOR).and_then(|text| serves(text, &mut problems)),
        binding: annotation(meta, wellknown::INBOUND_BINDING)
            .and_then(|text| binding(text, &mut problems)),
        listeners: gateway.spec.listeners.iter().map(listener).collect(),
        leads: network_gateway::read(gateway, &mut problems),
        explains: annotation(meta, wellknown::EXPLAIN_POLICIES) == Some("true"),
    };
    Read { facts, problems }
}

/// Reads a GatewayClass.
pub fn read_class(class: &kinds::GatewayClass) -> Read<Class> {
    let meta = &class.metadata;
    let mut problems = Vec::new();
    let facts = Class {
        serves: label(meta, wellknown::WAYPOINT_FOR).and_then(|text| serves(text, &mut problems)),
        binding: annotation(meta, wellknown::INBOUND_BINDING)
            .and_then(|text| binding(text, &mut problems)),
    };
    Read { facts, problems }
}

/// A host name is preferred, since it outlives a change of address.
fn address(given: &[kinds::GatewayAddress]) -> Option<Address> {
    let of = |kind: &'static str| {
        given
            .iter()
            .filter(move |a| a.address_type.as_deref() == Some(kind))
            .map(|a| &a.value)
    };
    of("Hostname")
        .find(|host| is_host(host))
        .map(|host| Address::Hostname(host.clone()))
        .or_else(|| {
            of("IPAddress")
                .find_map(|text| text.parse().ok())
                .map(Address::Ip)
        })
}

fn serves(text: &str, problems: &mut Vec<Problem>) -> Option<Serves> {
    match text {
        "service" => Some(Serves::Services),
        "workload" => Some(Serves::Workloads),
        "all" => Some(Serves::All),
        "none" => Some(Serves::Nothing),
        other => {
            problems.push(Problem::new(
                format!("metadata.labels[{}]", wellknown::WAYPOINT_FOR),
                format!("{other:?} is none of service, workload, all, none; it is ignored"),
            ));
            None
        }
    }
}

fn binding(text: &str, problems: &mut Vec<Problem>) -> Option<ApplicationTunnel> {
    let (protocol, port) = text
        .split_once('/')
        .map_or((text, None), |(p, n)| (p, Some(n)));
    let protocol = match protocol {
        "PROXY" => Some(Protocol::Proxy),
        "NONE" => Some(Protocol::None),
        _ => None,
    };
    let port = port.map_or(Some(0), |number| number.parse::<u16>().ok());
    if let (Some(protocol), Some(port)) = (protocol, port) {
        return Some(ApplicationTunnel {
            protocol: protocol.into(),
            port: port.into(),
        });
    }
    problems.push(Problem::new(
        format!("metadata.annotations[{}]", wellknown::INBOUND_BINDING),
        format!("{text:?} is not PROXY, PROXY/<port> or NONE/<port>; it is ignored"),
    ));
    None
}

fn listener(listener: &kinds::Listener) -> Listener {
    let rule = listener
        .allowed_routes
        .as_ref()
        .and_then(|routes| routes.namespaces.as_ref());
    let admits = match rule.and_then(|rule| rule.from.as_deref()) {
        Some("All") => Admits::All,
        // A selector that isn't there selects nothing beyond the Gateway's own namespace.
        Some("Selector") => match rule.and_then(|rule| rule.selector.clone()) {
            Some(selector) => Admits::Selected(selector),
            None => Admits::Same,
        },
        _ => Admits::Same,
    };
    Listener {
        protocol: listener.protocol.clone(),
        port: listener.port,
        admits,
    }
}

impl Admits {
    /// May objects of a namespace with these labels attach?
    pub fn admits(&self, same_namespace: SameNamespace, labels: &Labels) -> bool {
        match self {
            Self::Same => same_namespace == SameNamespace::Yes,
            Self::All => true,
            Self::Selected(selector) => selector_matches(selector, labels),
        }
    }
}

/// Whether who attaches lives in the Gateway's namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SameNamespace {
    /// It does.
    Yes,
    /// It doesn't.
    No,
}

/// Whether a selector chooses an object with these labels. What it says in a way nobody knows chooses nothing.
pub(super) fn selector_matches(selector: &kinds::LabelSelector, labels: &Labels) -> bool {
    let by_labels = selector
        .match_labels
        .as_ref()
        .is_none_or(|wanted| selects(wanted, labels));
    by_labels
        && selector.match_expressions.iter().flatten().all(|wanted| {
            let value = labels.get(&wanted.key);
            let listed = || {
                let values = wanted.values.as_deref().unwrap_or_default();
                value.is_some_and(|value| values.contains(value))
            };
            match wanted.operator.as_str() {
                "In" => listed(),
                "NotIn" => !listed(),
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        })
}
