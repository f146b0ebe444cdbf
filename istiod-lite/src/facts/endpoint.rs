// SPDX-License-Identifier: Apache-2.0
//! What the index keeps of a workload that Kubernetes doesn't run: a WorkloadEntry's,
//! or an endpoint that is written into a ServiceEntry.

use std::net::IpAddr;

use cluster::kinds;

use super::{Labels, Problem, is_service_account, namespace::Locality};

/// A workload that is no pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Where it is.
    pub address: EndpointAddress,
    /// Its own port for each named one; names are those of service ports, or of target ports.
    pub ports: Vec<(String, u16)>,
    /// Its labels.
    pub labels: Labels,
    /// Its network, where that isn't the cluster's.
    pub network: Option<String>,
    /// Where it stands.
    pub locality: Option<Locality>,
    /// Its share of the connections, where it says so.
    pub capacity: Option<u32>,
    /// The service account that it runs as, or empty.
    pub service_account: String,
}

/// Where a workload is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndpointAddress {
    /// At this address.
    Ip(IpAddr),
    /// Under a name that clients resolve.
    Hostname(String),
    /// Behind its network's gateway.
    Gateway,
}

impl std::fmt::Display for EndpointAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ip(ip) => ip.fmt(f),
            Self::Hostname(host) => f.write_str(host),
            Self::Gateway => Ok(()),
        }
    }
}

impl Endpoint {
    /// An endpoint that is nothing but a name to resolve.
    pub fn named(host: &str) -> Self {
        Self {
            address: EndpointAddress::Hostname(host.to_owned()),
            ports: Vec::new(),
            labels: Labels::new(),
            network: None,
            locality: None,
            capacity: None,
            service_account: String::new(),
        }
    }

    /// Its own port of a name.
    pub fn port(&self, name: &str) -> Option<u16> {
        let named = self.ports.iter().find(|(known, _)| known == name);
        named.map(|(_, number)| *number)
    }
}

/// Reads the part that WorkloadEntries and endpoints share. `at` is where it stands
/// in the object. None when it is nowhere.
pub fn read(
    spec: &kinds::WorkloadEntrySpec,
    at: &str,
    problems: &mut Vec<Problem>,
) -> Option<Endpoint> {
    let network = Some(spec.network.clone()).filter(|network| !network.is_empty());
    let address = match read_address(&spec.address, network.as_deref()) {
        Ok(address) => address,
        Err(reason) => {
            problems.push(Problem::new(
                format!("{at}.address"),
                format!("{:?} {reason}; the workload is left out", spec.address),
            ));
            return None;
        }
    };
    let account = &spec.service_account;
    let field = format!("{at}.serviceAccount");
    if !account.is_empty() && !is_service_account(account, &field, "the workload", problems) {
        return None;
    }
    let mut ports = Vec::new();
    for (name, number) in &spec.ports {
        match u16::try_from(*number).ok().filter(|number| *number != 0) {
            Some(number) => ports.push((name.clone(), number)),
            None => problems.push(Problem::new(
                format!("{at}.ports[{name}]"),
                format!("{number} is no port number; the port is left out"),
            )),
        }
    }
    Some(Endpoint {
        address,
        ports,
        labels: spec.labels.clone(),
        network,
        locality: read_locality(&spec.locality),
        capacity: Some(spec.weight).filter(|weight| *weight > 0),
        service_account: spec.service_account.clone(),
    })
}

fn read_address(text: &str, network: Option<&str>) -> Result<EndpointAddress, &'static str> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return if ip.is_unspecified() || ip.is_multicast() {
            Err("is nobody's address")
        } else {
            Ok(EndpointAddress::Ip(ip))
        };
    }
    match (text, network) {
        ("", Some(_)) => Ok(EndpointAddress::Gateway),
        ("", None) => Err("is required, unless a network is named"),
        (host, _) if is_host(host) => Ok(EndpointAddress::Hostname(host.to_ascii_lowercase())),
        _ => Err("is neither an IP address nor a host name"),
    }
}

/// Whether this is a name of DNS (RFC 1035; underscores are in use as well).
pub(crate) fn is_host(text: &str) -> bool {
    let text = text.strip_suffix('.').unwrap_or(text);
    let is_label = |label: &str| {
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        (1..=63).contains(&label.len()) && label.bytes().all(inner)
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

/// Reads `region/zone/subzone`, of which the latter parts may be missing.
fn read_locality(text: &str) -> Option<Locality> {
    let mut parts = text.splitn(3, '/').map(str::to_owned);
    let mut next = || parts.next().unwrap_or_default();
    let locality = Locality {
        region: next(),
        zone: next(),
        subzone: next(),
    };
    (locality != Locality::default()).then_some(locality)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(spec: serde_json::Value, address: Option<EndpointAddress>, fields: &[&str]) {
        let spec: kinds::WorkloadEntrySpec = serde_json::from_value(spec).expect("a spec");
        let mut problems = Vec::new();
        let read = read(&spec, "spec", &mut problems);
        assert_eq!(read.map(|endpoint| endpoint.address), address, "{spec:?}");
        let said: Vec<_> = problems.iter().map(|p| p.field.as_str()).collect();
        assert_eq!(said, fields, "{spec:?}");
    }

    #[test]
    fn an_address_is_an_ip_a_name_or_a_network_with_a_gateway() {
        let ip = |text: &str| Some(EndpointAddress::Ip(text.parse().expect("an address")));
        let host = |text: &str| Some(EndpointAddress::Hostname(text.into()));
        check(
            serde_json::json!({"address": "192.0.2.1"}),
            ip("192.0.2.1"),
            &[],
        );
        check(
            serde_json::json!({"address": "2001:db8::1"}),
            ip("2001:db8::1"),
            &[],
        );
        check(
            serde_json::json!({"address": "DB.example.com"}),
            host("db.example.com"),
            &[],
        );
        check(
            serde_json::json!({"address": "", "network": "n2"}),
            Some(EndpointAddress::Gateway),
            &[],
        );
        for bad in ["", "unix:///run/db.sock", "a b", "0.0.0.0", ".", "a..b"] {
            check(
                serde_json::json!({ "address": bad }),
                None,
                &["spec.address"],
            );
        }
    }

    #[test]
    fn a_workload_without_an_identity_is_left_out() {
        for (account, fields) in [
            ("", &[][..]),
            ("db.v1", &[]),
            ("a/b", &["spec.serviceAccount"]),
        ] {
            let spec = serde_json::json!({"address": "192.0.2.1", "serviceAccount": account});
            let ip = EndpointAddress::Ip("192.0.2.1".parse().expect("an address"));
            check(spec, fields.is_empty().then_some(ip), fields);
        }
    }

    #[test]
    fn a_port_that_is_no_number_is_left_out_and_reported() {
        let spec =
            serde_json::json!({"address": "192.0.2.1", "ports": {"a": 0, "b": 80, "c": 65536}});
        check(
            spec,
            Some(EndpointAddress::Ip(
                "192.0.2.1".parse().expect("an address"),
            )),
            &["spec.ports[a]", "spec.ports[c]"],
        );
    }

    #[test]
    fn a_locality_may_lack_its_latter_parts() {
        let text = |locality: Option<Locality>| {
            locality.map(|l| format!("{}|{}|{}", l.region, l.zone, l.subzone))
        };
        assert_eq!(text(read_locality("")), None);
        assert_eq!(text(read_locality("r")), Some("r||".into()));
        assert_eq!(text(read_locality("r/z")), Some("r|z|".into()));
        assert_eq!(text(read_locality("r/z/s/t")), Some("r|z|s/t".into()));
    }
}
