// SPDX-License-Identifier: Apache-2.0
//! Those whom the mesh's configuration names for others to refer to (`extensionProviders`): whom CUSTOM policies ask, and
//! where telemetry goes.
//!
//! One that can't be read takes nothing from the others: whatever names it hears why.

mod authorizer;

use proto::waypoint as wire;
use serde_json::{Map, Value};

/// Who can be referred to by name.
#[derive(Debug, Clone, PartialEq)]
pub struct Provider {
    /// By which it is referred to.
    pub name: String,
    /// What it is, or why it can't be used.
    pub kind: Result<ProviderKind, String>,
}

/// What a provider is.
#[derive(Debug, Clone, PartialEq)]
pub enum ProviderKind {
    /// Whom CUSTOM policies ask: `envoyExtAuthzGrpc` or `envoyExtAuthzHttp`.
    Authorizer(Box<wire::Authorizer>),
    /// One of another kind.
    Other {
        /// As it is written, such as `opentelemetry`.
        key: String,
        /// Where it is, if it says so.
        backend: Option<Backend>,
        /// All that is written of it.
        settings: Map<String, Value>,
    },
}

/// Where a provider is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backend {
    /// Empty: of whichever namespace has such a host.
    pub namespace: String,
    /// A service's host name, in full.
    pub hostname: String,
    /// The service's port.
    pub port: u16,
}

/// Reads the list. Of two with one name, neither can be used.
pub(super) fn read(written: Vec<Value>) -> Vec<Provider> {
    let mut providers: Vec<Provider> = Vec::with_capacity(written.len());
    for (position, one) in written.into_iter().enumerate() {
        let mut fields = match one {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        let name = match fields.remove("name") {
            Some(Value::String(name)) if !name.is_empty() => name,
            // Nobody can name it.
            _ => {
                tracing::warn!(position, "an extension provider has no name");
                continue;
            }
        };
        if let Some(known) = providers.iter_mut().find(|known| known.name == name) {
            known.kind = Err("is there more than once".to_owned());
            continue;
        }
        let kind = kind(&name, fields);
        if let Err(reason) = &kind {
            tracing::warn!(
                provider = name,
                reason,
                "an extension provider can't be used"
            );
        }
        providers.push(Provider { name, kind });
    }
    providers
}

fn kind(name: &str, fields: Map<String, Value>) -> Result<ProviderKind, String> {
    let mut fields = fields.into_iter();
    let (key, value) = match (fields.next(), fields.next()) {
        (Some(one), None) => one,
        (None, _) => return Err("says of no kind that it is of".to_owned()),
        (Some((one, _)), Some((other, _))) => {
            return Err(format!("is of two kinds: {one} and {other}"));
        }
    };
    let settings = match value {
        Value::Object(settings) => settings,
        Value::Null => Map::new(),
        _ => return Err(format!("{key} is no object")),
    };
    let within = |reason: String| format!("{key}.{reason}");
    match key.as_str() {
        "envoyExtAuthzGrpc" => authorizer::grpc(name, settings)
            .map(|authorizer| ProviderKind::Authorizer(Box::new(authorizer)))
            .map_err(within),
        "envoyExtAuthzHttp" => authorizer::http(name, settings)
            .map(|authorizer| ProviderKind::Authorizer(Box::new(authorizer)))
            .map_err(within),
        _ => {
            let service = settings.get("service");
            let backend = service.map(|service| backend(Some(service), settings.get("port")));
            Ok(ProviderKind::Other {
                backend: backend.transpose().map_err(within)?,
                key,
                settings,
            })
        }
    }
}

/// Reads `service` (`[namespace/]host`) and `port`.
fn backend(service: Option<&Value>, port: Option<&Value>) -> Result<Backend, String> {
    let service = service.and_then(Value::as_str).unwrap_or_default();
    let (namespace, hostname) = service.split_once('/').unwrap_or(("", service));
    if hostname.is_empty() || hostname.contains(['/', '*']) {
        return Err(format!("service: {service:?} is no service's host name"));
    }
    let port = port.and_then(Value::as_u64).unwrap_or_default();
    let port = u16::try_from(port).ok().filter(|port| *port > 0);
    Ok(Backend {
        namespace: namespace.to_owned(),
        hostname: hostname.to_ascii_lowercase(),
        port: port.ok_or("port: is missing, or none")?,
    })
}

#[cfg(test)]
mod tests;
