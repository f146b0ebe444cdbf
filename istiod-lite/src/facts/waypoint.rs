// SPDX-License-Identifier: Apache-2.0
//! What an object's labels say about the waypoint that it wants.

use super::{Labels, NamespacedName};
use crate::wellknown;

/// The waypoint that an object asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Choice {
    /// It says nothing: its namespace decides.
    #[default]
    Unset,
    /// It wants none, whatever its namespace says.
    None,
    /// It wants this one, and no other.
    Named {
        /// The Gateway's name.
        name: String,
        /// The Gateway's namespace; its own where absent.
        namespace: Option<String>,
    },
}

impl Choice {
    /// Reads the labels of a Service, Pod or Namespace.
    pub fn read(labels: &Labels) -> Self {
        match labels.get(wellknown::USE_WAYPOINT).map(String::as_str) {
            None | Some("") => Self::Unset,
            Some("none") => Self::None,
            Some(name) => Self::Named {
                name: name.to_owned(),
                namespace: labels
                    .get(wellknown::USE_WAYPOINT_NAMESPACE)
                    .filter(|namespace| !namespace.is_empty())
                    .cloned(),
            },
        }
    }

    /// The Gateway meant by an object in `namespace`, if it names one.
    pub fn gateway(&self, namespace: &str) -> Option<NamespacedName> {
        match self {
            Self::Unset | Self::None => None,
            Self::Named {
                name,
                namespace: other,
            } => Some(NamespacedName::new(
                other.as_deref().unwrap_or(namespace),
                name.as_str(),
            )),
        }
    }
}

/// Whether ingress gateways should pass through the waypoint, where labels say so.
/// A malformed value counts as "no".
pub fn ingress(labels: &Labels) -> Option<IngressUse> {
    let value = labels.get(wellknown::INGRESS_USE_WAYPOINT)?;
    Some(match value.as_str() {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => IngressUse::Waypoint,
        _ => IngressUse::Direct,
    })
}

/// How ingress gateways reach a service that has a waypoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IngressUse {
    /// Through the waypoint.
    Waypoint,
    /// Straight to its endpoints.
    Direct,
}
