// SPDX-License-Identifier: Apache-2.0
//! How things of the mesh are named and found: hosts, addresses per network, gateways, port maps.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize, Serializer};

/// A host name together with the namespace that defines it; two namespaces may define the same host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NamespacedHostname {
    /// The defining namespace.
    pub namespace: Arc<str>,
    /// The full host name.
    pub hostname: Arc<str>,
}

impl NamespacedHostname {
    /// Names a host of a namespace.
    pub fn new(namespace: impl Into<Arc<str>>, hostname: impl Into<Arc<str>>) -> Self {
        Self {
            namespace: namespace.into(),
            hostname: hostname.into(),
        }
    }
}

impl FromStr for NamespacedHostname {
    type Err = AddressError;

    /// Reads `namespace/hostname`.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        match text.split_once('/') {
            Some((namespace, hostname))
                if !namespace.is_empty() && !hostname.is_empty() && !hostname.contains('/') =>
            {
                Ok(Self::new(namespace, hostname))
            }
            _ => Err(AddressError::Hostname(text.into())),
        }
    }
}

impl fmt::Display for NamespacedHostname {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.hostname)
    }
}

/// An address within a network; networks may use the same addresses.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NetworkAddress {
    /// The network's id; empty is a network like any other.
    pub network: Arc<str>,
    /// The address.
    pub address: IpAddr,
}

impl FromStr for NetworkAddress {
    type Err = AddressError;

    /// Reads `network/address`; the empty network is written `/address`.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError::Network(text.into());
        let (network, address) = text.rsplit_once('/').ok_or_else(wrong)?;
        Ok(Self {
            network: network.into(),
            address: address
                .parse::<IpAddr>()
                .map_err(|_| wrong())?
                .to_canonical(),
        })
    }
}

impl fmt::Display for NetworkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.address)
    }
}

/// A range of addresses within a network.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkCidr {
    /// The network's id.
    pub network: Arc<str>,
    /// The range.
    pub cidr: IpNet,
}

/// Where a waypoint or a gateway to another network is found.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GatewayAddress {
    /// Its name or address.
    pub destination: GatewayDestination,
    /// The port on which it takes HBONE.
    pub hbone_mtls_port: u16,
}

/// A reference to a gateway.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum GatewayDestination {
    /// By the name of a service, or else of a workload.
    Hostname(NamespacedHostname),
    /// By the address of a service, or else of a workload.
    Address(NetworkAddress),
}

impl FromStr for GatewayDestination {
    type Err = AddressError;

    /// Reads `network/address`, or else `namespace/hostname`.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        text.parse()
            .map(Self::Hostname)
            .map_err(|_| AddressError::Gateway(text.into()))
    }
}

impl fmt::Display for GatewayDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hostname(host) => host.fmt(f),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// From service port to target port, ordered by service port. Target 0 stands for a named port, which each endpoint
/// resolves for itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(from = "BTreeMap<u16, u16>")]
pub struct Ports(Box<[(u16, u16)]>);

impl Ports {
    /// The target of a service port, if the port is defined; it may be 0.
    pub fn target(&self, service_port: u16) -> Option<u16> {
        let at = self
            .0
            .binary_search_by_key(&service_port, |(port, _)| *port)
            .ok()?;
        Some(self.0[at].1)
    }

    /// The pairs of service port and target port.
    pub fn iter(&self) -> impl Iterator<Item = (u16, u16)> + '_ {
        self.0.iter().copied()
    }

    /// How many ports there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no port is defined.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<(u16, u16)> for Ports {
    /// Of two entries for one service port the later one counts.
    fn from_iter<I: IntoIterator<Item = (u16, u16)>>(pairs: I) -> Self {
        let mut ports: Vec<(u16, u16)> = Vec::new();
        for (service, target) in pairs {
            match ports.binary_search_by_key(&service, |(port, _)| *port) {
                Ok(at) => ports[at].1 = target,
                Err(at) => ports.insert(at, (service, target)),
            }
        }
        Self(ports.into())
    }
}

impl From<BTreeMap<u16, u16>> for Ports {
    fn from(ports: BTreeMap<u16, u16>) -> Self {
        Self(ports.into_iter().collect())
    }
}

impl Serialize for Ports {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

/// In documents these are written as they print.
macro_rules! as_text {
    ($($kind:ty),*) => {
        $(
            impl TryFrom<String> for $kind {
                type Error = AddressError;

                fn try_from(text: String) -> Result<Self, AddressError> {
                    text.parse()
                }
            }

            impl From<$kind> for String {
                fn from(value: $kind) -> Self {
                    value.to_string()
                }
            }
        )*
    };
}

as_text!(NamespacedHostname, NetworkAddress, GatewayDestination);

/// Why a text names no address or host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Not `namespace/hostname`.
    #[error("{0:?} is not of the form <namespace>/<hostname>")]
    Hostname(String),
    /// Not `network/address`.
    #[error(
        "{0:?} is not of the form <network>/<IP address> (an empty network is written /<IP address>)"
    )]
    Network(String),
    /// Neither of the two.
    #[error("{0:?} is neither <network>/<IP address> nor <namespace>/<hostname>")]
    Gateway(String),
}
