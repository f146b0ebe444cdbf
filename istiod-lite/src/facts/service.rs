// SPDX-License-Identifier: Apache-2.0
//! What the index keeps of a Service.

use std::net::IpAddr;

use k8s_openapi::{
    api::core::v1 as core,
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString},
};
use proto::{
    waypoint,
    workload::{AppProtocol, IpFamilies},
};

use super::{
    Labels, Problem, Read, annotation,
    waypoint::{Bypass, Canary, Choice, IngressUse, ingress},
};
use crate::wellknown;

/// A service, as far as the mesh needs to know it.
#[derive(Debug, Clone, PartialEq)]
pub struct Service {
    /// Which pods of its namespace back it; empty means that others say so.
    pub selector: Labels,
    /// Its virtual addresses; none for a headless one.
    pub vips: Vec<IpAddr>,
    /// Its ports, in order.
    pub ports: Vec<ServicePort>,
    /// Which address families it has.
    pub ip_families: IpFamilies,
    /// Which endpoints are preferred.
    pub distribution: Distribution,
    /// Whether that was said, or may be inherited from the namespace.
    pub distribution_said: Said,
    /// Which endpoints count as members.
    pub membership: Membership,
    /// The waypoint that it asks for.
    pub waypoint: WaypointWish,
    /// Whether ingress passes through it, where it says so.
    pub ingress: Option<IngressUse>,
    /// Whether its pods take what went around it, where it says so.
    pub bypass: Option<Bypass>,
}

/// The waypoint that a service asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WaypointWish {
    /// By its labels, or its namespace's.
    Labels {
        /// The waypoint.
        choice: Choice,
        /// The one that takes a share of the connections.
        canary: Option<Canary>,
    },
    /// It belongs to a waypoint or gateway itself: never any.
    Never,
}

impl WaypointWish {
    /// Reads the labels and annotations of a Service or ServiceEntry.
    pub fn read(meta: &ObjectMeta) -> Self {
        let nothing = Labels::new();
        let labels = meta.labels.as_ref().unwrap_or(&nothing);
        let managed = labels.get(wellknown::GATEWAY_MANAGED).map(String::as_str);
        if managed.is_some_and(|by| wellknown::MESH_CONTROLLERS.contains(&by)) {
            Self::Never
        } else {
            Self::Labels {
                choice: Choice::read(labels),
                canary: Canary::read(meta),
            }
        }
    }
}

/// One port of a service.
#[derive(Debug, Clone, PartialEq)]
pub struct ServicePort {
    /// Its name; empty where there is none.
    pub name: String,
    /// The service's own port.
    pub port: u16,
    /// The port of its endpoints.
    pub target: TargetPort,
    /// What is spoken there.
    pub protocol: AppProtocol,
    /// The same, as waypoints are told it; none where it isn't reached over TCP.
    pub speaks: Option<waypoint::Protocol>,
}

/// The port of a service's endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetPort {
    /// The same for all.
    Number(u16),
    /// Each pod's port of this name.
    Named(String),
}

/// Which endpoints of a service are preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distribution {
    /// Any.
    Any,
    /// Those on the client's node and no others.
    NodeLocal,
    /// Those nearest by network, region and zone.
    SameZone,
    /// Those nearest by network, region, zone, subzone and node.
    SameNode,
}

/// Whether a value was written, or is the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// The object says so.
    Yes,
    /// It doesn't: its namespace may.
    No,
}

/// Which endpoints count as members of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Membership {
    /// Those that are ready.
    Ready,
    /// All.
    All,
}

/// Reads a service; an ExternalName service is an alias in DNS and no service of the mesh.
pub fn read(service: &core::Service) -> Option<Read<Service>> {
    let spec = service.spec.clone().unwrap_or_default();
    if spec.type_.as_deref() == Some("ExternalName") {
        return None;
    }
    let labels = service.metadata.labels.clone().unwrap_or_default();
    let mut problems = Vec::new();
    let (distribution, distribution_said) = distribution(service, &spec);
    let facts = Service {
        selector: spec.selector.clone().unwrap_or_default(),
        vips: vips(&spec, &mut problems),
        ports: ports(&spec, &mut problems),
        ip_families: families(&spec),
        distribution,
        distribution_said,
        membership: match spec.publish_not_ready_addresses {
            Some(true) => Membership::All,
            _ => Membership::Ready,
        },
        bypass: Bypass::read(&service.metadata),
        waypoint: WaypointWish::read(&service.metadata),
        ingress: ingress(&labels),
    };
    Some(Read { facts, problems })
}

fn vips(spec: &core::ServiceSpec, problems: &mut Vec<Problem>) -> Vec<IpAddr> {
    let listed = spec.cluster_ips.as_deref().unwrap_or_default();
    let single = spec.cluster_ip.as_ref();
    let texts: Vec<&String> = if listed.is_empty() {
        single.into_iter().collect()
    } else {
        listed.iter().collect()
    };
    let mut parsed = Vec::new();
    for (position, text) in texts.into_iter().enumerate() {
        if text.is_empty() || text == "None" {
            continue;
        }
        match text.parse() {
            Ok(ip) => parsed.push(ip),
            Err(_) => problems.push(Problem::new(
                format!("spec.clusterIPs[{position}]"),
                format!("{text:?} is no IP address; it is left out"),
            )),
        }
    }
    parsed
}

fn ports(spec: &core::ServiceSpec, problems: &mut Vec<Problem>) -> Vec<ServicePort> {
    let mut ports = Vec::new();
    for (position, port) in spec.ports.iter().flatten().enumerate() {
        let mut bad = |field: &str, value: &dyn std::fmt::Display| {
            problems.push(Problem::new(
                format!("spec.ports[{position}].{field}"),
                format!("{value} is no port number; the port is left out"),
            ));
        };
        let Some(number) = port_number(port.port) else {
            bad("port", &port.port);
            continue;
        };
        let target = match &port.target_port {
            None | Some(IntOrString::Int(0)) => TargetPort::Number(number),
            Some(IntOrString::String(name)) if name.is_empty() => TargetPort::Number(number),
            Some(IntOrString::String(name)) => match name.parse::<u16>() {
                Ok(target) => TargetPort::Number(target),
                Err(_) => TargetPort::Named(name.clone()),
            },
            Some(IntOrString::Int(target)) => match port_number(*target) {
                Some(target) => TargetPort::Number(target),
                None => {
                    bad("targetPort", target);
                    continue;
                }
            },
        };
        ports.push(ServicePort {
            name: port.name.clone().unwrap_or_default(),
            port: number,
            target,
            protocol: app_protocol(port, number),
            speaks: match (port.protocol.as_deref(), port.app_protocol.as_deref()) {
                (Some("UDP" | "SCTP"), _) => None,
                (_, Some("kubernetes.io/ws")) => Some(waypoint::Protocol::Websocket),
                _ => Some(spoken(app_protocol(port, number))),
            },
        });
    }
    ports
}

/// A protocol as waypoints are told it.
pub(super) fn spoken(protocol: AppProtocol) -> waypoint::Protocol {
    match protocol {
        AppProtocol::Unknown => waypoint::Protocol::Detect,
        AppProtocol::Http11 => waypoint::Protocol::Http1,
        AppProtocol::Http2 => waypoint::Protocol::Http2,
        AppProtocol::Grpc => waypoint::Protocol::Grpc,
        AppProtocol::Tls => waypoint::Protocol::Tls,
        AppProtocol::Tcp => waypoint::Protocol::Tcp,
    }
}

/// A number of a port, if it is one.
pub(crate) fn port_number(number: i32) -> Option<u16> {
    u16::try_from(number).ok().filter(|port| *port != 0)
}

/// The protocol that a port's `appProtocol`, else its name, declares.
fn app_protocol(port: &core::ServicePort, number: u16) -> AppProtocol {
    if port.protocol.as_deref() == Some("UDP") {
        return AppProtocol::Unknown;
    }
    let declared = match port.app_protocol.as_deref() {
        Some("kubernetes.io/h2c") => return AppProtocol::Http2,
        Some("kubernetes.io/ws") => return AppProtocol::Http11,
        Some("kubernetes.io/wss") => return AppProtocol::Tls,
        Some(declared) => declared,
        None => port.name.as_deref().unwrap_or_default(),
    }
    .to_ascii_lowercase();
    if declared.starts_with("grpc-web") {
        return AppProtocol::Unknown;
    }
    let word = declared.split('-').next().unwrap_or_default();
    match word {
        "http" => AppProtocol::Http11,
        "http2" => AppProtocol::Http2,
        "grpc" => AppProtocol::Grpc,
        "tls" | "https" => AppProtocol::Tls,
        "tcp" => AppProtocol::Tcp,
        "udp" | "http_proxy" | "mongo" | "redis" | "mysql" => AppProtocol::Unknown,
        // Protocols in which the server speaks first can't be detected by looking.
        _ if matches!(number, 25 | 53 | 3306 | 27017) => AppProtocol::Tcp,
        _ => AppProtocol::Unknown,
    }
}

fn families(spec: &core::ServiceSpec) -> IpFamilies {
    match spec.ip_families.as_deref().unwrap_or_default() {
        [] => IpFamilies::Automatic,
        [one] if one == "IPv4" => IpFamilies::Ipv4Only,
        [one] if one == "IPv6" => IpFamilies::Ipv6Only,
        [_] => IpFamilies::Automatic,
        [..] => IpFamilies::Dual,
    }
}

fn distribution(service: &core::Service, spec: &core::ServiceSpec) -> (Distribution, Said) {
    if spec.internal_traffic_policy.as_deref() == Some("Local") {
        return (Distribution::NodeLocal, Said::Yes);
    }
    match spec.traffic_distribution.as_deref() {
        Some("PreferClose" | "PreferSameZone") => return (Distribution::SameZone, Said::Yes),
        Some("PreferSameNode") => return (Distribution::SameNode, Said::Yes),
        _ => {}
    }
    match annotation(&service.metadata, wellknown::TRAFFIC_DISTRIBUTION) {
        Some(text) => (read_annotation(text), Said::Yes),
        None => (Distribution::Any, Said::No),
    }
}

/// Reads the traffic distribution annotation: case doesn't matter, and a value
/// that isn't known means "any".
pub fn read_annotation(text: &str) -> Distribution {
    match text.to_ascii_lowercase().as_str() {
        "preferclose" | "prefersamezone" => Distribution::SameZone,
        "prefersamenode" => Distribution::SameNode,
        _ => Distribution::Any,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(json: serde_json::Value) -> Service {
        let service: core::Service = serde_json::from_value(json).expect("a service");
        read(&service).expect("not an ExternalName").facts
    }

    fn protocol(port: serde_json::Value) -> AppProtocol {
        service(serde_json::json!({"spec": {"ports": [port]}})).ports[0].protocol
    }

    #[test]
    fn a_ports_protocol_comes_from_its_app_protocol_else_its_name() {
        let named = |name: &str| protocol(serde_json::json!({"port": 80, "name": name}));
        assert_eq!(named("http"), AppProtocol::Http11);
        assert_eq!(named("HTTP2-admin"), AppProtocol::Http2);
        assert_eq!(named("grpc-api"), AppProtocol::Grpc);
        assert_eq!(named("grpc-web-api"), AppProtocol::Unknown);
        assert_eq!(named("https-x"), AppProtocol::Tls);
        assert_eq!(named("tcp-x"), AppProtocol::Tcp);
        assert_eq!(named("hbone"), AppProtocol::Unknown);
        let declared = |app: &str| {
            protocol(serde_json::json!({"port": 80, "name": "http", "appProtocol": app}))
        };
        // Z01, Z02.
        assert_eq!(declared("kubernetes.io/h2c"), AppProtocol::Http2);
        assert_eq!(declared("kubernetes.io/ws"), AppProtocol::Http11);
        assert_eq!(declared("kubernetes.io/wss"), AppProtocol::Tls);
        assert_eq!(
            declared("foreign"),
            AppProtocol::Unknown,
            "the name no longer counts"
        );
    }

    #[test]
    fn ports_of_server_first_protocols_are_tcp_unless_declared() {
        assert_eq!(
            protocol(serde_json::json!({"port": 3306})),
            AppProtocol::Tcp
        );
        assert_eq!(
            protocol(serde_json::json!({"port": 3306, "name": "http"})),
            AppProtocol::Http11
        );
        assert_eq!(
            protocol(serde_json::json!({"port": 53, "protocol": "UDP"})),
            AppProtocol::Unknown
        );
    }

    #[test]
    fn an_unknown_distribution_in_the_spec_falls_through_and_in_the_annotation_stops() {
        let spec = service(serde_json::json!({"spec": {"trafficDistribution": "Nearest"}}));
        assert_eq!(
            (spec.distribution, spec.distribution_said),
            (Distribution::Any, Said::No)
        );
        let annotated = service(serde_json::json!({
            "metadata": {"annotations": {"networking.istio.io/traffic-distribution": "nearest"}},
        }));
        assert_eq!(
            (annotated.distribution, annotated.distribution_said),
            (Distribution::Any, Said::Yes)
        );
        let same_node = service(serde_json::json!({
            "metadata": {"annotations": {"networking.istio.io/traffic-distribution": "PREFERSAMENODE"}},
        }));
        assert_eq!(same_node.distribution, Distribution::SameNode);
    }

    #[test]
    fn a_port_that_is_no_number_is_left_out_and_reported() {
        let service: core::Service = serde_json::from_value(serde_json::json!({
            "spec": {"clusterIPs": ["None"], "ports": [{"port": 70000}, {"port": 80, "targetPort": "8080"}]},
        }))
        .expect("a service");
        let read = read(&service).expect("not an ExternalName");
        assert_eq!(read.facts.ports.len(), 1);
        assert_eq!(read.facts.ports[0].target, TargetPort::Number(8080));
        assert_eq!(read.problems[0].field, "spec.ports[0].port");
    }
}
