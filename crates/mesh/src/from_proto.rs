// SPDX-License-Identifier: Apache-2.0
//! The only way in from the wire: a decoded message becomes a [`Workload`], [`Service`] or [`Policy`], or is refused
//! with the object and the field at fault.
//!
//! A value of an enumeration that is not known here changes how something is reached or protected, so it refuses the
//! resource; where the contract says otherwise (a service's visibility, a workload's type) it takes the default.
//! A value of a policy's match that cannot be read refuses nothing: the policy keeps it as unparsable.

mod policy;
mod service;
mod workload;

use std::fmt;
use std::net::IpAddr;

use proto::workload as wire;

use crate::address::{GatewayAddress, GatewayDestination, NamespacedHostname, NetworkAddress};

pub use policy::policy;
pub use service::service;
pub use workload::workload;

/// Why a resource was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{object}: {field} {reason}")]
pub struct ConvertError {
    /// The kind and name of the resource.
    pub object: String,
    /// The field at fault.
    pub field: String,
    /// What is wrong with it.
    pub reason: String,
}

impl ConvertError {
    pub(crate) fn new(
        object: impl Into<String>,
        field: impl Into<String>,
        reason: impl Into<String>,
    ) -> Self {
        Self {
            object: object.into(),
            field: field.into(),
            reason: reason.into(),
        }
    }
}

/// A fault of one field, before it is known of which object.
#[derive(Debug)]
struct Fault {
    field: String,
    reason: String,
}

impl Fault {
    fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            reason: reason.into(),
        }
    }

    /// The same fault within an outer field.
    fn within(self, outer: &str) -> Self {
        Self {
            field: format!("{outer}.{}", self.field),
            reason: self.reason,
        }
    }

    fn of(self, object: String) -> ConvertError {
        ConvertError::new(object, self.field, self.reason)
    }
}

fn required(field: &str, text: &str) -> Result<(), Fault> {
    if text.is_empty() {
        return Err(Fault::new(field, "is empty"));
    }
    Ok(())
}

/// Reads an enumeration's value, or refuses one that this version does not know.
fn known<E: TryFrom<i32>>(field: &str, value: i32) -> Result<E, Fault> {
    E::try_from(value).map_err(|_| Fault::new(field, format!("has the unknown value {value}")))
}

// A field's name is put together only where something is wrong with it: there are many fields.

fn port(field: impl fmt::Display, value: u32) -> Result<u16, Fault> {
    u16::try_from(value).map_err(|_| Fault::new(field.to_string(), format!("{value} is no port")))
}

fn ip(field: impl fmt::Display, bytes: &[u8]) -> Result<IpAddr, Fault> {
    parse_ip(bytes).map_err(|reason| Fault::new(field.to_string(), reason))
}

/// Reads a raw address; an IPv4 address in IPv6 clothes is taken for what it is.
fn parse_ip(bytes: &[u8]) -> Result<IpAddr, String> {
    let address = if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        IpAddr::from(v4)
    } else if let Ok(v6) = <[u8; 16]>::try_from(bytes) {
        IpAddr::from(v6).to_canonical()
    } else {
        return Err(format!("is {} bytes long, not 4 or 16", bytes.len()));
    };
    Ok(address)
}

fn gateway(field: &str, gateway: wire::GatewayAddress) -> Result<GatewayAddress, Fault> {
    use wire::gateway_address::Destination;

    let destination = match gateway.destination {
        Some(Destination::Hostname(host)) => {
            required(&format!("{field}.hostname.hostname"), &host.hostname)?;
            GatewayDestination::Hostname(NamespacedHostname::new(host.namespace, host.hostname))
        }
        Some(Destination::Address(address)) => GatewayDestination::Address(NetworkAddress {
            network: address.network.into(),
            address: ip(format_args!("{field}.address.address"), &address.address)?,
        }),
        None => return Err(Fault::new(format!("{field}.destination"), "is missing")),
    };
    Ok(GatewayAddress {
        destination,
        hbone_mtls_port: port(
            format_args!("{field}.hbone_mtls_port"),
            gateway.hbone_mtls_port,
        )?,
    })
}

fn ports(field: &str, ports: Vec<wire::Port>) -> Result<crate::address::Ports, Fault> {
    ports
        .into_iter()
        .enumerate()
        .map(|(i, p)| {
            Ok((
                port(format_args!("{field}[{i}].service_port"), p.service_port)?,
                port(format_args!("{field}[{i}].target_port"), p.target_port)?,
            ))
        })
        .collect()
}

#[cfg(test)]
mod tests;
