// SPDX-License-Identifier: Apache-2.0
//! Who a client says it is.

use proto::ads;

use crate::{authenticate::Caller, facts::NamespacedName, wellknown};

/// A client, by its own word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// `ztunnel~<ip>~<pod>.<namespace>~<domain>`.
    pub id: String,
    /// Its namespace, where it says so.
    pub namespace: Option<String>,
    /// Its service account, where it says so.
    pub service_account: Option<String>,
    /// Its Kubernetes node, where it says so.
    pub node_name: Option<String>,
    /// The Gateway that it is an instance of, where it says so.
    pub gateway: Option<String>,
}

/// Why a client is not taken for an instance of the Gateway that it names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotOfGateway {
    /// Its pod is not known yet.
    UnknownPod,
    /// Its pod is an instance of another one, or of none.
    Foreign {
        /// The one that it names.
        said: String,
    },
}

impl Node {
    /// Reads a node; one without an id is none.
    pub fn read(node: Option<&ads::Node>) -> Option<Self> {
        let node = node.filter(|node| !node.id.is_empty())?;
        let text = |key: &str| match &node.metadata.as_ref()?.fields.get(key)?.kind {
            Some(prost_types::value::Kind::StringValue(text)) if !text.is_empty() => {
                Some(text.clone())
            }
            _ => None,
        };
        Some(Self {
            id: node.id.clone(),
            namespace: text("NAMESPACE"),
            service_account: text("SERVICE_ACCOUNT"),
            node_name: text("NODE_NAME"),
            gateway: label(node, wellknown::GATEWAY_NAME),
        })
    }

    /// The waypoint whose resources it is to get, if it names one: its pod must be an
    /// instance of it, whatever it says of itself.
    ///
    /// # Errors
    /// When it is not, or nobody can say.
    pub fn waypoint(
        &self,
        caller: &Caller,
        pods: &impl Instances,
    ) -> Result<Option<NamespacedName>, NotOfGateway> {
        let Some(said) = &self.gateway else {
            return Ok(None);
        };
        let (namespace, pod) = (&caller.namespace, &caller.pod);
        match pods.gateway_of(namespace, &pod.name, &pod.uid) {
            None => Err(NotOfGateway::UnknownPod),
            Some(Some(gateway)) if gateway == *said => {
                Ok(Some(NamespacedName::new(namespace.as_str(), gateway)))
            }
            Some(_) => Err(NotOfGateway::Foreign { said: said.clone() }),
        }
    }

    /// Checks the word against the token. The trust domain is not compared.
    ///
    /// # Errors
    /// Says what differs.
    pub fn is(&self, caller: &Caller) -> Result<(), String> {
        let checks = [
            ("NAMESPACE", &self.namespace, &caller.namespace),
            (
                "SERVICE_ACCOUNT",
                &self.service_account,
                &caller.service_account,
            ),
        ];
        for (field, said, proven) in checks {
            if let Some(said) = said.as_ref().filter(|said| *said != proven) {
                return Err(format!(
                    "metadata {field} is {said:?}, the token is for {proven:?}"
                ));
            }
        }
        Ok(())
    }
}

/// Who knows of which Gateways pods are instances.
pub trait Instances {
    /// The Gateway, in the pod's own namespace, that this pod is an instance of, or that
    /// it is of none; nothing where no such pod is known.
    fn gateway_of(&self, namespace: &str, name: &str, uid: &str) -> Option<Option<&str>>;
}

/// A label among the metadata.
fn label(node: &ads::Node, key: &str) -> Option<String> {
    use prost_types::value::Kind;
    let labels = node.metadata.as_ref()?.fields.get("LABELS")?;
    let Some(Kind::StructValue(labels)) = &labels.kind else {
        return None;
    };
    match &labels.fields.get(key)?.kind {
        Some(Kind::StringValue(text)) if !text.is_empty() => Some(text.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authenticate::BoundPod;

    #[test]
    fn a_node_must_be_who_its_token_is_for() {
        let caller = Caller {
            namespace: "istio-system".into(),
            service_account: "ztunnel".into(),
            pod: BoundPod {
                name: "z".into(),
                uid: "u".into(),
            },
            node: None,
        };
        let node = |namespace: Option<&str>, account: Option<&str>| Node {
            id: "ztunnel~1.1.1.1~z.istio-system~istio-system.svc.cluster.local".into(),
            namespace: namespace.map(Into::into),
            service_account: account.map(Into::into),
            node_name: None,
            gateway: None,
        };
        assert_eq!(
            node(Some("istio-system"), Some("ztunnel")).is(&caller),
            Ok(())
        );
        assert_eq!(node(None, None).is(&caller), Ok(()));
        assert!(
            node(Some("default"), None)
                .is(&caller)
                .is_err_and(|e| e.contains("NAMESPACE"))
        );
        assert!(
            node(None, Some("web"))
                .is(&caller)
                .is_err_and(|e| e.contains("SERVICE_ACCOUNT"))
        );
    }

    struct OnePod;

    impl Instances for OnePod {
        fn gateway_of(&self, namespace: &str, name: &str, uid: &str) -> Option<Option<&str>> {
            (namespace == "shop" && name == "w" && uid == "u").then_some(Some("gate"))
        }
    }

    #[test]
    fn a_waypoint_is_the_one_that_its_pod_is_an_instance_of() {
        let said = |gateway: Option<&str>, namespace: &str, uid: &str| {
            let node = Node {
                id: "waypoint~1.1.1.1~w.shop~shop.svc.cluster.local".into(),
                namespace: None,
                service_account: None,
                node_name: None,
                gateway: gateway.map(Into::into),
            };
            let caller = Caller {
                namespace: namespace.into(),
                service_account: "gate".into(),
                pod: BoundPod {
                    name: "w".into(),
                    uid: uid.into(),
                },
                node: None,
            };
            node.waypoint(&caller, &OnePod)
        };
        let own = NamespacedName::new("shop", "gate");
        assert_eq!(said(Some("gate"), "shop", "u"), Ok(Some(own)));
        assert_eq!(said(None, "shop", "u"), Ok(None));
        let foreign = NotOfGateway::Foreign {
            said: "other".into(),
        };
        assert_eq!(said(Some("other"), "shop", "u"), Err(foreign));
        for (namespace, uid) in [("shop", "v"), ("bank", "u")] {
            assert_eq!(
                said(Some("gate"), namespace, uid),
                Err(NotOfGateway::UnknownPod)
            );
        }
    }
}
