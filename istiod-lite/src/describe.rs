// SPDX-License-Identifier: Apache-2.0
//! Resources as people read them: what is sent, decoded, without the fields that
//! say nothing. For the debug pages and the golden files.

mod policy;
mod telemetry;
mod waypoint;

use std::net::IpAddr;

use prost::Message as _;
use proto::{
    security,
    telemetry::ConnectionLogs,
    waypoint::{Service as Served, Waypoint},
    workload as wire,
};
use serde_json::{Map, Value, json};

use crate::catalogue::ResourceType;

/// Describes a resource from its bytes.
///
/// # Errors
/// When they are none of this type's.
pub fn resource(of: ResourceType, body: &[u8]) -> Result<Value, prost::DecodeError> {
    Ok(match of {
        ResourceType::Address => match wire::Address::decode(body)?.r#type {
            Some(wire::address::Type::Workload(workload)) => {
                json!({ "workload": self::workload(&workload) })
            }
            Some(wire::address::Type::Service(service)) => {
                json!({ "service": self::service(&service) })
            }
            None => json!({}),
        },
        ResourceType::Authorization => authorization(&security::Authorization::decode(body)?),
        ResourceType::Waypoint => policy::waypoint(&Waypoint::decode(body)?),
        ResourceType::WaypointService => waypoint::service(&Served::decode(body)?),
        ResourceType::ConnectionLogs => telemetry::connections(&ConnectionLogs::decode(body)?),
    })
}

fn workload(workload: &wire::Workload) -> Value {
    let mut out = Fields::default();
    out.add("uid", &workload.uid);
    out.add("podUid", &workload.pod_uid);
    out.add("name", &workload.name);
    out.add("namespace", &workload.namespace);
    out.add(
        "addresses",
        workload.addresses.iter().map(|a| ip(a)).collect::<Vec<_>>(),
    );
    out.add("hostname", &workload.hostname);
    out.add("network", &workload.network);
    out.named(
        "tunnelProtocol",
        workload.tunnel_protocol().as_str_name(),
        "NONE",
    );
    out.add("nativeTunnel", workload.native_tunnel);
    out.add("trustDomain", &workload.trust_domain);
    out.add("serviceAccount", &workload.service_account);
    out.add("waypoint", workload.waypoint.as_ref().map(gateway));
    out.add(
        "networkGateway",
        workload.network_gateway.as_ref().map(gateway),
    );
    out.add("node", &workload.node);
    out.add("canonicalName", &workload.canonical_name);
    out.add("canonicalRevision", &workload.canonical_revision);
    out.add("workloadName", &workload.workload_name);
    out.named("workloadType", workload.workload_type().as_str_name(), "");
    out.add(
        "applicationTunnel",
        workload.application_tunnel.map(
            |tunnel| json!({ "protocol": tunnel.protocol().as_str_name(), "port": tunnel.port }),
        ),
    );
    let ports = |list: &wire::PortList| list.ports.iter().map(port).collect::<Vec<_>>();
    let services: Map<String, Value> = workload
        .services
        .iter()
        .map(|(name, list)| (name.clone(), ports(list).into()))
        .collect();
    out.add("services", services);
    out.add(
        "authorizationPolicies",
        workload.authorization_policies.clone(),
    );
    out.named("status", workload.status().as_str_name(), "");
    out.add("clusterId", &workload.cluster_id);
    out.add(
        "locality",
        workload
            .locality
            .as_ref()
            .map(|locality| format!("{}/{}/{}", locality.region, locality.zone, locality.subzone)),
    );
    out.named(
        "networkMode",
        workload.network_mode().as_str_name(),
        "STANDARD",
    );
    out.add("capacity", workload.capacity);
    out.into()
}

fn service(service: &wire::Service) -> Value {
    let mut out = Fields::default();
    out.add("name", &service.name);
    out.add("namespace", &service.namespace);
    out.add("hostname", &service.hostname);
    out.add(
        "addresses",
        service
            .addresses
            .iter()
            .map(network_address)
            .collect::<Vec<_>>(),
    );
    out.add("ports", service.ports.iter().map(port).collect::<Vec<_>>());
    out.add("subjectAltNames", service.subject_alt_names.clone());
    out.add("waypoint", service.waypoint.as_ref().map(gateway));
    let weighted = service.weighted_waypoints.iter().map(|weighted| {
        let destination = weighted.destination.as_ref().map(gateway);
        format!("{}% {}", weighted.weight, destination.unwrap_or_default())
    });
    out.add("weightedWaypoints", weighted.collect::<Vec<_>>());
    out.add("ingressUseWaypoint", service.ingress_use_waypoint);
    out.add(
        "loadBalancing",
        service.load_balancing.as_ref().map(|balancing| {
            let scopes = balancing
                .routing_preference()
                .map(|scope| scope.as_str_name());
            let mut out = Fields::default();
            out.add("routingPreference", scopes.collect::<Vec<_>>());
            out.named("mode", balancing.mode().as_str_name(), "UNSPECIFIED_MODE");
            out.named(
                "healthPolicy",
                balancing.health_policy().as_str_name(),
                "ONLY_HEALTHY",
            );
            Value::from(out)
        }),
    );
    out.named(
        "ipFamilies",
        service.ip_families().as_str_name(),
        "AUTOMATIC",
    );
    out.add("canonical", service.canonical);
    out.named("visibility", service.visibility().as_str_name(), "PUBLIC");
    out.into()
}

fn authorization(authorization: &security::Authorization) -> Value {
    let mut out = Fields::default();
    out.add("name", &authorization.name);
    out.add("namespace", &authorization.namespace);
    out.named("scope", authorization.scope().as_str_name(), "");
    out.named("action", authorization.action().as_str_name(), "");
    // Written even if empty: no rules match nothing, a rule without clauses everything.
    let clause =
        |clause: &security::Clause| clause.matches.iter().map(matching).collect::<Vec<_>>();
    let rules = authorization.rules.iter();
    let rules = rules.map(|rule| rule.clauses.iter().map(clause).collect::<Vec<_>>());
    out.0
        .insert("rules".into(), json!(rules.collect::<Vec<_>>()));
    out.add("dryRun", authorization.dry_run);
    out.into()
}

fn matching(matching: &security::Match) -> Value {
    use security::string_match::MatchType;
    let text = |all: &[security::StringMatch]| -> Vec<String> {
        let one = |text: &security::StringMatch| match &text.match_type {
            Some(MatchType::Exact(text)) => text.clone(),
            Some(MatchType::Prefix(text)) => format!("{text}*"),
            Some(MatchType::Suffix(text)) => format!("*{text}"),
            Some(MatchType::Presence(_)) => "*".to_owned(),
            None => "?".to_owned(),
        };
        all.iter().map(one).collect()
    };
    let block = |all: &[security::Address]| -> Vec<String> {
        all.iter()
            .map(|block| format!("{}/{}", ip(&block.address), block.length))
            .collect()
    };
    let account = |all: &[security::ServiceAccountMatch]| -> Vec<String> {
        all.iter()
            .map(|account| format!("{}/{}", account.namespace, account.service_account))
            .collect()
    };
    let mut out = Fields::default();
    out.add("namespaces", text(&matching.namespaces));
    out.add("notNamespaces", text(&matching.not_namespaces));
    out.add("principals", text(&matching.principals));
    out.add("notPrincipals", text(&matching.not_principals));
    out.add("sourceIps", block(&matching.source_ips));
    out.add("notSourceIps", block(&matching.not_source_ips));
    out.add("destinationIps", block(&matching.destination_ips));
    out.add("notDestinationIps", block(&matching.not_destination_ips));
    out.add("destinationPorts", matching.destination_ports.clone());
    out.add(
        "notDestinationPorts",
        matching.not_destination_ports.clone(),
    );
    out.add("serviceAccounts", account(&matching.service_accounts));
    out.add(
        "notServiceAccounts",
        account(&matching.not_service_accounts),
    );
    out.into()
}

fn gateway(gateway: &wire::GatewayAddress) -> String {
    use wire::gateway_address::Destination;
    let destination = match &gateway.destination {
        Some(Destination::Hostname(host)) => format!("{}/{}", host.namespace, host.hostname),
        Some(Destination::Address(address)) => network_address(address),
        None => "?".to_owned(),
    };
    format!("{destination}:{}", gateway.hbone_mtls_port)
}

fn port(port: &wire::Port) -> String {
    let target = match port.target_port {
        0 => "named".to_owned(),
        number => number.to_string(),
    };
    match port.app_protocol() {
        wire::AppProtocol::Unknown => format!("{} -> {target}", port.service_port),
        protocol => format!(
            "{} -> {target} {}",
            port.service_port,
            protocol.as_str_name()
        ),
    }
}

fn network_address(address: &wire::NetworkAddress) -> String {
    let length = address
        .length
        .map(|length| format!("/{length}"))
        .unwrap_or_default();
    format!("{}/{}{length}", address.network, ip(&address.address))
}

fn ip(octets: &[u8]) -> String {
    if let Ok(four) = <[u8; 4]>::try_from(octets) {
        IpAddr::from(four).to_string()
    } else if let Ok(sixteen) = <[u8; 16]>::try_from(octets) {
        IpAddr::from(sixteen).to_string()
    } else {
        format!("{octets:?}")
    }
}

/// An object that takes only what says something.
#[derive(Default)]
struct Fields(Map<String, Value>);

impl Fields {
    fn add(&mut self, name: &str, value: impl serde::Serialize) {
        let value = json!(value);
        let says_nothing = match &value {
            Value::Null | Value::Bool(false) => true,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            Value::Bool(true) | Value::Number(_) => false,
        };
        if !says_nothing {
            self.0.insert(name.to_owned(), value);
        }
    }

    fn named(&mut self, name: &str, value: &str, default: &str) {
        if value != default {
            self.add(name, value);
        }
    }
}

impl From<Fields> for Value {
    fn from(fields: Fields) -> Self {
        Self::Object(fields.0)
    }
}
