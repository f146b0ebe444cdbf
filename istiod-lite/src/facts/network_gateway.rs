// SPDX-License-Identifier: Apache-2.0
//! What the index keeps of a Gateway that leads into another network: Istio's classes for tunnels between networks.

use std::net::IpAddr;

use cluster::kinds;

use super::{Problem, annotation, endpoint::is_host, is_service_account, label};
use crate::wellknown;

/// A way into a network, for those who are on another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkGateway {
    /// The network that it leads into.
    pub network: String,
    /// Where it is reached; at least one place.
    pub places: Vec<Place>,
    /// Where it takes tunnels.
    pub port: u16,
    /// The service account that it runs as, in the Gateway's namespace.
    pub service_account: String,
    /// Who it is there for.
    pub side: Side,
}

/// Where a gateway is reached.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// At this address.
    Ip(IpAddr),
    /// Under a name that clients resolve.
    Hostname(String),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ip(ip) => ip.fmt(f),
            Self::Hostname(host) => f.write_str(host),
        }
    }
}

/// Who a gateway is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// A gateway that runs elsewhere and is only described here (`istio-remote`): what workloads of its network name
    /// as the way to them.
    Remote,
    /// A gateway that lets others in (`istio-east-west`). Workloads of this cluster don't name it.
    EastWest,
}

impl Side {
    fn of_class(class: &str) -> Option<Self> {
        match class {
            "istio-remote" => Some(Self::Remote),
            "istio-east-west" => Some(Self::EastWest),
            _ => None,
        }
    }
}

/// Reads it; none if the Gateway is something else, or leads nowhere yet.
pub(super) fn read(
    gateway: &kinds::Gateway,
    problems: &mut Vec<Problem>,
) -> Option<NetworkGateway> {
    let meta = &gateway.metadata;
    let side = Side::of_class(&gateway.spec.gateway_class_name)?;
    let network = label(meta, wellknown::NETWORK).filter(|network| !network.is_empty());
    let Some(network) = network else {
        problems.push(Problem::new(
            format!("metadata.labels[{}]", wellknown::NETWORK),
            "is missing: it must name the network that the gateway leads into",
        ));
        return None;
    };
    let terminates = |listener: &kinds::Listener| {
        let mode = listener.tls.as_ref().and_then(|tls| tls.mode.as_deref());
        listener.protocol == "HBONE" && mode.is_none_or(|mode| mode == "Terminate")
    };
    let port = gateway
        .spec
        .listeners
        .iter()
        .filter(|listener| terminates(listener))
        .find_map(|listener| u16::try_from(listener.port).ok())
        .filter(|port| *port != 0);
    let Some(port) = port else {
        problems.push(Problem::new(
            "spec.listeners",
            "has no listener of protocol HBONE that terminates TLS: nobody can enter the network here",
        ));
        return None;
    };
    let places = places(gateway, side);
    if places.is_empty() {
        // An address that is still to be given is no mistake; one that nobody will ever give is.
        if side == Side::Remote {
            problems.push(Problem::new(
                "spec.addresses",
                "has no address: a gateway that runs elsewhere is reached only where this says",
            ));
        }
        return None;
    }
    let name = meta.name.as_deref().unwrap_or_default();
    let usual = match side {
        Side::Remote => format!("{name}-{}", gateway.spec.gateway_class_name),
        Side::EastWest => name.to_owned(),
    };
    let service_account = annotation(meta, wellknown::GATEWAY_SERVICE_ACCOUNT)
        .filter(|account| !account.is_empty())
        .map_or(usual, str::to_owned);
    let field = format!(
        "metadata.annotations[{}]",
        wellknown::GATEWAY_SERVICE_ACCOUNT
    );
    is_service_account(&service_account, &field, "the gateway", problems).then(|| NetworkGateway {
        network: network.to_owned(),
        places,
        port,
        service_account,
        side,
    })
}

/// Its status, or for a gateway that nobody here runs, and writes the status of, its specification.
fn places(gateway: &kinds::Gateway, side: Side) -> Vec<Place> {
    let given = gateway.status.as_ref().map(|status| &*status.addresses);
    let given = given.unwrap_or_default();
    let written = match side {
        Side::Remote if given.is_empty() => &*gateway.spec.addresses,
        _ => given,
    };
    let mut places = Vec::new();
    for address in written {
        let place = match address.address_type.as_deref() {
            Some("Hostname") => {
                is_host(&address.value).then(|| Place::Hostname(address.value.to_ascii_lowercase()))
            }
            // What the Gateway API means where nothing is said.
            Some("IPAddress") | None => address.value.parse().ok().map(Place::Ip),
            Some(_) => None,
        };
        places.extend(place.filter(|place| !places.contains(place)));
    }
    places
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn described(object: Value) -> Result<String, String> {
        let gateway: kinds::Gateway = serde_json::from_value(object).expect("a gateway");
        let mut problems = Vec::new();
        let found = read(&gateway, &mut problems);
        let said: Vec<_> = problems.iter().map(|p| p.field.clone()).collect();
        let gateway = found.ok_or_else(|| said.join(","))?;
        assert!(said.is_empty(), "{said:?}");
        let places: Vec<_> = gateway.places.iter().map(ToString::to_string).collect();
        let places = places.join(",");
        let NetworkGateway {
            network,
            port,
            service_account,
            ..
        } = gateway;
        Ok(format!(
            "{network} at {places} port {port} as {service_account}"
        ))
    }

    fn remote(change: impl FnOnce(&mut Value)) -> Value {
        let mut gateway = json!({
            "metadata": {"name": "to-2", "namespace": "istio-system",
                         "labels": {"topology.istio.io/network": "net2"}},
            "spec": {"gatewayClassName": "istio-remote",
                     "addresses": [{"type": "IPAddress", "value": "192.0.2.1"}],
                     "listeners": [{"name": "x", "port": 15008, "protocol": "HBONE"}]},
        });
        change(&mut gateway);
        gateway
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut Value), expected: Result<&str, &str>) {
        let found = described(remote(change));
        assert_eq!(found.as_deref().map_err(String::as_str), expected);
    }

    #[test]
    fn a_remote_gateway_is_where_its_status_says_or_else_its_specification() {
        let as_written = "net2 at 192.0.2.1 port 15008 as to-2-istio-remote";
        check(|_| {}, Ok(as_written));
        let given = json!({"addresses": [
            {"type": "Hostname", "value": "GW.example.com"}, {"type": "IPAddress", "value": "2001:db8::1"}]});
        let expected = "net2 at gw.example.com,2001:db8::1 port 15008 as to-2-istio-remote";
        check(|g| g["status"] = given, Ok(expected));
        check(
            |g| g["spec"]["addresses"][0]["type"] = Value::Null,
            Ok(as_written),
        );
        check(
            |g| g["spec"]["addresses"] = json!([]),
            Err("spec.addresses"),
        );
        let odd = json!([{"type": "other.example.com/x", "value": "192.0.2.1"}]);
        check(|g| g["spec"]["addresses"] = odd, Err("spec.addresses"));
        let no_host = json!([{"type": "Hostname", "value": "gw#1"}]);
        check(|g| g["spec"]["addresses"] = no_host, Err("spec.addresses"));
    }

    #[test]
    fn an_east_west_gateway_waits_for_its_address() {
        let east_west = |g: &mut Value| g["spec"]["gatewayClassName"] = "istio-east-west".into();
        check(east_west, Err(""));
        let ready = |g: &mut Value| {
            east_west(g);
            g["status"] = json!({"addresses": [{"type": "IPAddress", "value": "192.0.2.7"}]});
        };
        check(ready, Ok("net2 at 192.0.2.7 port 15008 as to-2"));
    }

    #[test]
    fn the_account_may_be_named() {
        let annotations = json!({"gateway.istio.io/service-account": "eastwest"});
        let expected = "net2 at 192.0.2.1 port 15008 as eastwest";
        check(|g| g["metadata"]["annotations"] = annotations, Ok(expected));
        let key = "gateway.istio.io/service-account";
        let field = "metadata.annotations[gateway.istio.io/service-account]";
        check(
            |g| g["metadata"]["annotations"] = json!({key: "East/West"}),
            Err(field),
        );
    }

    #[test]
    fn without_network_or_tunnel_listener_it_leads_nowhere() {
        let label = "metadata.labels[topology.istio.io/network]";
        check(|g| g["metadata"]["labels"] = json!({}), Err(label));
        let listeners =
            |listener: Value| move |g: &mut Value| g["spec"]["listeners"] = json!([listener]);
        let tls = json!({"name": "x", "port": 15443, "protocol": "TLS"});
        check(listeners(tls), Err("spec.listeners"));
        let passing = json!({"name": "x", "port": 15008, "protocol": "HBONE", "tls": {"mode": "Passthrough"}});
        check(listeners(passing), Err("spec.listeners"));
        let own_port =
            json!({"name": "x", "port": 15009, "protocol": "HBONE", "tls": {"mode": "Terminate"}});
        let expected = "net2 at 192.0.2.1 port 15009 as to-2-istio-remote";
        check(listeners(own_port), Ok(expected));
    }

    #[test]
    fn other_gateways_are_none() {
        check(
            |g| g["spec"]["gatewayClassName"] = "istio-waypoint".into(),
            Err(""),
        );
    }
}
