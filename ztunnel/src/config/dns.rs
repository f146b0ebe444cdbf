// SPDX-License-Identifier: Apache-2.0
//! The DNS proxy's settings.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use ops::variables::Reader;

#[derive(Debug, Clone)]
pub struct Dns {
    pub listen: DnsListen,
    /// The cluster's domain, in lower case and without a dot at its ends.
    pub cluster_domain: Arc<str>,
    pub preferred_namespace: Option<Arc<str>>,
}

/// Where pods' queries are taken: on a loopback, since capture rules lead there and nobody else can come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DnsListen {
    /// On the loopback of both families.
    Localhost(u16),
    At(SocketAddr),
}

impl DnsListen {
    pub fn addresses(self) -> impl Iterator<Item = SocketAddr> {
        let both = match self {
            Self::Localhost(port) => [
                Some((Ipv4Addr::LOCALHOST, port).into()),
                Some((Ipv6Addr::LOCALHOST, port).into()),
            ],
            Self::At(address) => [Some(address), None],
        };
        both.into_iter().flatten()
    }

    pub fn port(self) -> u16 {
        match self {
            Self::Localhost(port) => port,
            Self::At(address) => address.port(),
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port != 0);
        if let Some(text) = text.strip_prefix("localhost:") {
            return port(text)
                .map(Self::Localhost)
                .ok_or_else(|| "has no port between 1 and 65535 after `localhost:`".to_owned());
        }
        let address: SocketAddr = text
            .parse()
            .map_err(|_| "is neither localhost:PORT nor IP:PORT".to_owned())?;
        if address.port() == 0 {
            return Err("has port 0".to_owned());
        }
        if !address.ip().is_loopback() {
            return Err(format!(
                "{} is no loopback address: others than the pod itself could ask there, and capture rules don't lead there",
                address.ip()
            ));
        }
        Ok(Self::At(address))
    }
}

/// None where the proxy is switched off: by any word but `true`, as it is on where nothing is said.
pub(super) fn dns(
    reader: &mut Reader<'_>,
    metadata: &BTreeMap<String, serde_json::Value>,
) -> Option<Dns> {
    let said = |key: &str| metadata.get(key).and_then(serde_json::Value::as_str);
    let on = said("DNS_CAPTURE").is_none_or(|word| word.eq_ignore_ascii_case("true"));
    reader.effective("ISTIO_META_DNS_CAPTURE", if on { "true" } else { "false" });
    let default = reader.default_of("ISTIO_META_DNS_PROXY_ADDR");
    let given = said("DNS_PROXY_ADDR").unwrap_or(default);
    reader.effective("ISTIO_META_DNS_PROXY_ADDR", given);
    let listen = match DnsListen::parse(given) {
        Ok(listen) => listen,
        Err(reason) => {
            reader.mistake("ISTIO_META_DNS_PROXY_ADDR", &format!("{given:?} {reason}"));
            return None;
        }
    };
    let cluster_domain = reader.text_with_default("CLUSTER_DOMAIN");
    let cluster_domain = cluster_domain.trim_matches('.').to_ascii_lowercase();
    if cluster_domain.is_empty() {
        reader.mistake("CLUSTER_DOMAIN", "is empty");
    }
    let preferred_namespace = reader
        .text("PREFERED_SERVICE_NAMESPACE")
        .filter(|namespace| !namespace.is_empty());
    on.then(|| Dns {
        listen,
        cluster_domain: cluster_domain.into(),
        preferred_namespace: preferred_namespace.map(Arc::from),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_addresses_are_listened_on() {
        let check = |text: &str, expected: Result<&[&str], &str>| {
            let parsed = DnsListen::parse(text);
            match (parsed, expected) {
                (Ok(listen), Ok(addresses)) => {
                    let found: Vec<String> = listen
                        .addresses()
                        .map(|address| address.to_string())
                        .collect();
                    assert_eq!(found, addresses, "{text}");
                }
                (Err(reason), Err(part)) => assert!(reason.contains(part), "{text}: {reason}"),
                (parsed, _) => panic!("{text}: {parsed:?}"),
            }
        };
        check("localhost:15053", Ok(&["127.0.0.1:15053", "[::1]:15053"]));
        check("127.0.0.1:53", Ok(&["127.0.0.1:53"]));
        check("[::1]:5353", Ok(&["[::1]:5353"]));
        check("localhost:0", Err("no port"));
        check("localhost:", Err("no port"));
        check("localhost", Err("neither"));
        check("127.0.0.1:0", Err("port 0"));
        check("0.0.0.0:15053", Err("no loopback"));
        check("10.0.0.1:15053", Err("no loopback"));
        check("", Err("neither"));
    }
}
