// SPDX-License-Identifier: Apache-2.0
//! Who a client says it is.

use proto::ads;

use crate::authenticate::Caller;

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
        })
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
}
