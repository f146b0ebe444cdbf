// SPDX-License-Identifier: Apache-2.0
//! A Kubernetes pod → what the agent needs to know of it. Pure.

use cluster::kinds::Pod as KubernetesPod;

use crate::enroll::Network;
use crate::state::{Life, Pod, REDIRECTION_ANNOTATION, Redirection};

const DEFAULT_SERVICE_ACCOUNT: &str = "default";

/// None for pods that are (or will be) on other nodes.
pub(crate) fn pod_on(pod: &KubernetesPod, node: &str) -> Option<Pod> {
    let spec = pod.spec.as_ref()?;
    if spec.node_name.as_deref() != Some(node) {
        return None;
    }
    let annotations = pod.metadata.annotations.clone().unwrap_or_default();
    let status = pod.status.as_ref();
    let listed = status
        .and_then(|status| status.pod_ips.as_ref())
        .into_iter()
        .flatten()
        .map(|ip| ip.ip.as_str());
    let single = status.and_then(|status| status.pod_ip.as_deref());
    let mut ips: Vec<_> = listed
        .chain(single)
        .filter_map(|ip| ip.parse().ok())
        .collect();
    ips.dedup();
    Some(Pod {
        uid: pod.metadata.uid.clone()?,
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        service_account: spec
            .service_account_name
            .clone()
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| DEFAULT_SERVICE_ACCOUNT.to_owned()),
        labels: pod.metadata.labels.clone().unwrap_or_default(),
        redirection: annotations
            .get(REDIRECTION_ANNOTATION)
            .and_then(|value| Redirection::parse(value)),
        annotations,
        network: if spec.host_network == Some(true) {
            Network::Host
        } else {
            Network::Own
        },
        life: match status.and_then(|status| status.phase.as_deref()) {
            Some("Succeeded" | "Failed") => Life::Ended,
            _ => Life::Running,
        },
        ips,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(json: serde_json::Value) -> Option<Pod> {
        pod_on(&serde_json::from_value(json).unwrap(), "a")
    }

    #[test]
    fn a_pod_of_this_node_is_seen_with_all_that_matters() {
        let pod = pod(serde_json::json!({
            "metadata": {"namespace": "shop", "name": "web", "uid": "u1",
                "annotations": {"ambient.istio.io/redirection": "enabled"}},
            "spec": {"nodeName": "a", "containers": [], "hostNetwork": true},
            "status": {"phase": "Failed", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}
        }))
        .unwrap();
        assert_eq!(pod.redirection, Some(Redirection::Enabled));
        assert_eq!(pod.service_account, "default");
        assert_eq!((pod.network, pod.life), (Network::Host, Life::Ended));
        assert_eq!(pod.ips.len(), 1);
    }

    #[test]
    fn pods_of_other_nodes_are_not_ours() {
        for spec in [
            serde_json::json!({"containers": []}),
            serde_json::json!({"containers": [], "nodeName": "b"}),
        ] {
            assert_eq!(
                pod(serde_json::json!({"metadata": {"name": "web", "uid": "u1"}, "spec": spec})),
                None
            );
        }
    }
}
