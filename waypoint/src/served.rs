// SPDX-License-Identifier: Apache-2.0
//! What the control plane says of one service that is served here: for each port, what is spoken there and by which
//! routes it is answered. Pure.

use std::collections::BTreeMap;

use mesh::NamespacedHostname;
use proto::waypoint as wire;

/// A service that is served here.
#[derive(Debug)]
pub struct Served {
    ports: BTreeMap<u16, Port>,
}

/// One of its ports.
#[derive(Debug)]
pub struct Port {
    pub protocol: Protocol,
}

/// What is spoken at a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// To be found out by the first bytes of either side.
    Detect,
    /// HTTP; what endpoints speak follows from it.
    Http(Version),
    /// Bytes that are nobody's business.
    Opaque,
}

/// The version of HTTP that endpoints are spoken to in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Version {
    Http1,
    Http2,
}

/// What is wrong with a resource.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    #[error("Service: {0}")]
    Body(String),
    #[error("Service {service}: {field}: {reason}")]
    Field {
        service: String,
        field: &'static str,
        reason: String,
    },
}

impl Served {
    /// Reads a resource.
    ///
    /// # Errors
    /// Names the service, the field and what is wrong with it.
    pub fn decode(body: &[u8]) -> Result<(NamespacedHostname, Self), Unusable> {
        let message = <wire::Service as prost::Message>::decode(body)
            .map_err(|error| Unusable::Body(error.to_string()))?;
        let name = format!("{}/{}", message.namespace, message.hostname);
        let wrong = |field, reason: String| Unusable::Field {
            service: name.clone(),
            field,
            reason,
        };
        let key: NamespacedHostname = name
            .parse()
            .map_err(|error: mesh::AddressError| wrong("hostname", error.to_string()))?;
        let mut ports = BTreeMap::new();
        for port in message.ports {
            let number = u16::try_from(port.number).ok().filter(|port| *port != 0);
            let number =
                number.ok_or_else(|| wrong("ports", format!("{} is no port", port.number)))?;
            let read = Port {
                protocol: protocol(port.protocol),
            };
            if ports.insert(number, read).is_some() {
                return Err(wrong("ports", format!("{number} is there twice")));
            }
        }
        Ok((key, Self { ports }))
    }

    pub fn port(&self, number: u16) -> Option<&Port> {
        self.ports.get(&number)
    }

    pub fn ports(&self) -> impl Iterator<Item = (u16, &Port)> {
        self.ports.iter().map(|(number, port)| (*number, port))
    }
}

/// A word that is not known yet is one for something newer: its bytes are carried as they are.
fn protocol(number: i32) -> Protocol {
    match wire::Protocol::try_from(number) {
        Ok(wire::Protocol::Detect) => Protocol::Detect,
        Ok(wire::Protocol::Http1 | wire::Protocol::Websocket) => Protocol::Http(Version::Http1),
        Ok(wire::Protocol::Http2 | wire::Protocol::Grpc) => Protocol::Http(Version::Http2),
        Ok(wire::Protocol::Tcp | wire::Protocol::Tls) | Err(_) => Protocol::Opaque,
    }
}
