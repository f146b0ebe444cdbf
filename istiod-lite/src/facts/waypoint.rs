// SPDX-License-Identifier: Apache-2.0
//! What an object's labels say about the waypoint that it wants.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{Labels, NamespacedName, annotation};
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

/// The waypoint that takes a share of the connections, beside the one that takes the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Canary {
    /// The Gateway's name.
    pub name: String,
    /// The Gateway's namespace; the object's own where absent.
    pub namespace: Option<String>,
    /// Its share in percent; or the text that is no such share.
    pub weight: Result<u32, String>,
}

impl Canary {
    /// Reads the labels and the annotation of a Service, ServiceEntry or Namespace.
    pub fn read(meta: &ObjectMeta) -> Option<Self> {
        let labels = meta.labels.as_ref()?;
        let set = |key| labels.get(key).filter(|value| !value.is_empty()).cloned();
        let name = set(wellknown::CANARY_WAYPOINT).filter(|name| name != "none")?;
        let weight = annotation(meta, wellknown::CANARY_WEIGHT).unwrap_or("0");
        let percent = weight.parse().ok().filter(|percent| *percent <= 100);
        Some(Self {
            name,
            namespace: set(wellknown::CANARY_WAYPOINT_NAMESPACE),
            weight: percent.ok_or_else(|| weight.to_owned()),
        })
    }

    /// The Gateway meant by an object in `namespace`.
    pub fn gateway(&self, namespace: &str) -> NamespacedName {
        let namespace = self.namespace.as_deref().unwrap_or(namespace);
        NamespacedName::new(namespace, self.name.as_str())
    }
}

/// Whether a pod takes what did not come through its waypoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bypass {
    /// It does.
    Open,
    /// It refuses it.
    Closed,
}

impl Bypass {
    /// Reads the annotation of a Pod, Service or Namespace. What is no boolean closes: whoever wrote it wanted something.
    pub fn read(meta: &ObjectMeta) -> Option<Self> {
        let value = annotation(meta, wellknown::REQUIRE_WAYPOINT)?;
        Some(match value {
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Self::Open,
            _ => Self::Closed,
        })
    }

    /// What holds for a pod: its own word, or else that of the services that it backs, of which one suffices to close,
    /// or else its namespace's, or the mesh's.
    pub fn of_pod(
        own: Option<Self>,
        services: impl IntoIterator<Item = Option<Self>>,
        namespace: Option<Self>,
        mesh: Option<Self>,
    ) -> Self {
        let services = services.into_iter().flatten();
        own.or_else(|| services.max_by_key(|word| *word == Self::Closed))
            .or(namespace)
            .or(mesh)
            .unwrap_or(Self::Open)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_holds_and_one_service_suffices_to_close() {
        use Bypass::{Closed, Open};
        let check = |own, services: &[_], namespace, mesh, expected| {
            let said = Bypass::of_pod(own, services.iter().copied(), namespace, mesh);
            assert_eq!(
                said, expected,
                "{own:?} {services:?} {namespace:?} {mesh:?}"
            );
        };
        check(None, &[], None, None, Open);
        check(None, &[], None, Some(Closed), Closed);
        check(None, &[None], Some(Open), Some(Closed), Open);
        check(None, &[Some(Open)], Some(Closed), None, Open);
        check(
            None,
            &[Some(Open), Some(Closed), None],
            Some(Open),
            None,
            Closed,
        );
        check(None, &[Some(Closed), Some(Open)], None, None, Closed);
        check(
            Some(Open),
            &[Some(Closed)],
            Some(Closed),
            Some(Closed),
            Open,
        );
        check(Some(Closed), &[Some(Open)], Some(Open), Some(Open), Closed);
    }

    #[test]
    fn only_a_plain_no_leaves_the_way_around_open() {
        let read = |value: &str| {
            let annotations = [(wellknown::REQUIRE_WAYPOINT.to_owned(), value.to_owned())];
            Bypass::read(&ObjectMeta {
                annotations: Some(annotations.into()),
                ..ObjectMeta::default()
            })
        };
        for (value, expected) in [
            ("true", Bypass::Closed),
            ("yes", Bypass::Closed),
            ("", Bypass::Closed),
            ("no", Bypass::Closed),
            ("false", Bypass::Open),
            ("0", Bypass::Open),
        ] {
            assert_eq!(read(value), Some(expected), "{value:?}");
        }
        assert_eq!(Bypass::read(&ObjectMeta::default()), None);
    }
}
